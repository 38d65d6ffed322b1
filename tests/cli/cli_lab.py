"""Running the command line: in this process, or as a user does."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple
from unittest import mock

from ptxc.cli import main

DATA = Path(__file__).parent / "data"

VECTOR_ADD = DATA / "vector_add.json"
#: Shuffles, a barrier, shared memory.
ROW_MAX = DATA / "row_max.json"
#: Asynchronous copies.
COPIES = DATA / "copies.json"
TWO_KERNELS = DATA / "two_kernels.json"

KERNELS = sorted(DATA.glob("*.json"))


#: Where commands run that need not be anywhere: what one leaves there goes at the end.
_ELSEWHERE = tempfile.TemporaryDirectory(prefix="ptxc-cli-")


class Result(NamedTuple):
    """What a command left."""

    status: int
    out: str
    err: str

    @property
    def message(self) -> str:
        """What was said, which must be one line about one error and nothing on standard output."""
        assert self.status == 2
        assert self.out == ""
        assert self.err.startswith("ptxc: error: ")
        assert self.err.count("\n") == 1
        return self.err.strip()


def ptxc(*args: object, stdin: bytes = b"", cwd: Path | None = None) -> Result:
    """Run the command line in this process."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2))
    with (
        mock.patch.object(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin))),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        contextlib.chdir(cwd or _ELSEWHERE.name),
    ):
        status = main([str(arg) for arg in args])
    texts = []
    for stream in (out, err):
        stream.flush()
        stream.seek(0)
        texts.append(stream.read())
    return Result(status, *texts)


def command(*args: object) -> list[str]:
    """The command line as a process of its own."""
    return [sys.executable, "-P", "-m", "ptxc", *map(str, args)]


def environment(**more: str) -> dict[str, str]:
    """The environment for such a process."""
    return {**os.environ, **more}


def process(*args: object, cwd: Path, stdin: bytes = b"", **more: str) -> subprocess.CompletedProcess[bytes]:
    """Run it to its end."""
    return subprocess.run(
        command(*args), input=stdin, capture_output=True, cwd=cwd, env=environment(**more), check=False, timeout=60
    )


def files(folder: Path) -> list[str]:
    """Every file below a folder, hidden ones too."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir())


def changed(source: Path, old: str, new: str, to: Path) -> Path:
    """A copy of a kernel's file with a part replaced."""
    text = source.read_text()
    assert old in text
    to.write_text(text.replace(old, new))
    return to
