"""What is kept of a fault of ptxc: a folder with all that shows it again."""

from __future__ import annotations

import hashlib
import platform
import re
import shlex
import tempfile
import traceback
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from ptxc.cli.files import make_folder, stem, write
from ptxc.cli.messages import complain, say
from ptxc.cli.sources import Source
from ptxc.errors import CompileError, InputError, InternalError


def report(error: InternalError, source: Source, command_line: str) -> None:
    """Say what failed, and write the folder."""
    complain(error)
    files: dict[str, str | bytes] = {}
    if error.reproducer:
        files["before.ir"] = error.reproducer
    with suppress(InputError):
        files[f"input-{Path(source.given).name if source.given != '-' else 'stdin'}"] = source.data
    _keep(error, error.kernel or stem(source.given), files, command_line)


def report_crash(fault: Exception, arguments: Sequence[str]) -> int:
    """The same for an exception outside of any kernel's compilation; returns the exit status."""
    error = InternalError(f"{type(fault).__name__}: {fault}")
    error.__cause__ = fault
    complain(error)
    _keep(error, "command", {}, shlex.join(["ptxc", *arguments]))
    return error.exit_status


def _keep(error: InternalError, about: str, files: dict[str, str | bytes], command_line: str) -> None:
    """Write ``files`` and a page about the error to a folder here, or where temporary files go, and say where."""
    files["report.txt"] = _page(error, files, command_line)
    digest = hashlib.sha256(b"".join(text.encode("utf-8", "replace") if isinstance(text, str) else text
                                     for text in files.values())).hexdigest()[:8]  # fmt: skip
    name = f"ptxc-fault-{re.sub('[^A-Za-z0-9_]', '_', about)[:60]}-{digest}"
    for here in (True, False):
        try:
            place = Path() if here else Path(tempfile.gettempdir())
            make_folder(place / name)
            for file, content in files.items():
                write(place / name / file, content)
        except (CompileError, OSError):  # nor need there be a folder for temporary files
            continue
        say(f"ptxc: this is a fault of ptxc; please report it, with the folder {str(place / name)!r}")
        return
    say(f"ptxc: this is a fault of ptxc; please report it, with this:\n{files['report.txt']!s}")


def _page(error: InternalError, files: dict[str, str | bytes], command_line: str) -> str:
    from ptxc.version import __version__

    lines = [str(error), "", f"found by: {command_line}"]
    if match := re.match(r"// before pass (\S+)\n", error.reproducer):
        lines.append(f"again:    ptxc compile --start-at {match[1]} before.ir --verify-each")
    lines += [f"versions: ptxc {__version__}, Python {platform.python_version()}", ""]
    lines += ["".join(traceback.format_exception(error))]
    return "\n".join(lines)
