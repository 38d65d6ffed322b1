"""Reading, writing: whole files or none, standard output, and which file is for which input."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from ptxc.errors import CompileError, UsageError, room_for

STDIO = "-"


def write(path: Path, content: str | bytes) -> None:
    """Make ``path`` hold ``content``, all of it or nothing new; ``-`` is standard output.

    A file appears under its name when it is complete. What is no file (a pipe, ``/dev/null``) is written to. Raises
    UsageError where that cannot be done.
    """
    write_all([(path, content)])


def write_all(contents: Sequence[tuple[Path, str | bytes]]) -> None:
    """The same for several: where one cannot be written, none is. Raises UsageError, also for one name given twice."""
    streams: list[tuple[Path, bytes]] = []
    #: The complete files that are to take the place of others.
    staged: dict[Path, Path] = {}
    try:
        for path, content in contents:
            # Names that a kernel came with may hold what UTF-8 has no bytes for.
            data = content.encode("utf-8", "backslashreplace") if isinstance(content, str) else content
            with _failing(path):
                if str(path) == STDIO or (path.exists() and not path.is_file() and not path.is_dir()):
                    streams.append((path, data))
                    continue
                final = Path(os.path.realpath(path))
                if final in staged:
                    raise UsageError(f"two outputs would be written to {os.fspath(path)!r}", hint="rename one")
                staged[final] = final.with_name(f".ptxc-{os.urandom(6).hex()}")
                _stage(staged[final], data, final)
        for path, data in streams:
            with _failing(path):
                _send(path, data)
        for final, new in staged.items():
            with _failing(final):
                os.replace(new, final)
    finally:  # only a kill -9 can leave them there
        for new in staged.values():
            with suppress(OSError, ValueError):
                new.unlink(missing_ok=True)


def read[T](name: str, what: Callable[[bytes], T]) -> T:
    """What ``what`` makes of a file's bytes; its errors name the file. Raises UsageError where that cannot be read."""
    try:
        return what(Path(name).read_bytes())
    except OSError as error:
        raise UsageError(f"cannot read {name!r}: {error.strerror}") from error
    except CompileError as error:
        error.at(file=name)
        raise


@contextmanager
def _failing(path: Path) -> Iterator[None]:
    """Have what the system refuses say that ``path`` cannot be written."""
    try:
        yield
    except BrokenPipeError:
        raise
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        what = "to standard output" if str(path) == STDIO else repr(os.fspath(path))
        hint = room_for(error) if isinstance(error, OSError) and str(path) != STDIO else ""
        if not os.path.exists(path.parent):
            hint = f"make the folder {os.fspath(path.parent)!r} first"
        raise UsageError(f"cannot write {what}: {reason}", hint=hint) from error


def keep_inputs(path: Path, sources: Sequence[str], what: str, hint: str) -> None:
    """Raise UsageError where ``path``, by whatever name or link, is one of ``sources``; ``what`` would be written."""
    for source in sources:
        if source != STDIO and os.path.exists(path) and os.path.exists(source) and os.path.samefile(path, source):
            raise UsageError(f"{what} would replace the input {source!r}", hint=hint)


def show(text: str) -> None:
    """Write ``text`` and a newline to standard output. Raises UsageError."""
    write(Path(STDIO), text + "\n")


def _stage(new: Path, data: bytes, final: Path) -> None:
    """Write a new file beside ``final``, whose place it can take."""
    if final.is_dir():
        raise IsADirectoryError(None, "it is a folder")
    with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666), "wb") as file:
        file.write(data)
    if final.exists():
        os.chmod(new, stat.S_IMODE(final.stat().st_mode))


def _send(path: Path, data: bytes) -> None:
    """Write to what is no file; of standard output, text that was printed to it comes first."""
    if str(path) != STDIO:
        with open(path, "wb") as device:
            device.write(data)
        return
    if sys.stdout is None:
        raise OSError(None, "it is closed")
    sys.stdout.flush()
    sys.stdout.buffer.write(data)


def make_folder(path: Path) -> None:
    """Make the folder ``path`` and those above it. Raises UsageError."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        hint = room_for(error) if isinstance(error, OSError) else ""
        raise UsageError(f"cannot make the folder {os.fspath(path)!r}: {reason}", hint=hint) from error


def is_folder(text: str) -> bool:
    """Whether ``text`` names a folder: one that there is, or by its last character one to be."""
    return text.endswith(os.sep) or os.path.isdir(text)


def stem(source: str) -> str:
    """The name of a source without its folder and without ``.gz``, ``.json`` and ``.ir``."""
    if source == STDIO:
        return "stdin"
    name = os.path.basename(source)
    for suffix in (".gz", ".json", ".ir"):
        shorter = name.removesuffix(suffix)
        name = shorter or name
    return name


def output_names(sources: Sequence[str]) -> dict[str, str]:
    """What each source's output is called in a folder, without a suffix.

    Folders below the sources' common one are kept: ``a/k.json`` and ``b/k.json`` become ``a/k`` and ``b/k``. Raises
    UsageError where two sources would have one name.
    """
    folders = {source: os.path.dirname(os.path.abspath(source)) for source in sources if source != STDIO}
    common = os.path.commonpath(folders.values()) if folders else ""
    names: dict[str, str] = {}
    taken: dict[str, str] = {}
    for source in sources:
        name = stem(source)
        if source in folders:
            name = os.path.normpath(os.path.join(os.path.relpath(folders[source], common), name))
        if taken.get(name) == source:
            raise UsageError(f"{source!r} is given twice", hint="give it once")
        if name in taken:
            what = f"{taken[name]!r} and {source!r} would be written to one file, {name!r}"
            raise UsageError(what, hint="rename one, or compile it apart")
        taken[name] = source
        names[source] = name
    return names


def distinct(names: Sequence[str]) -> list[str]:
    """``names``, each but the first of equal ones with a number."""
    given: list[str] = []
    for name in names:
        number, candidate = 1, name
        while candidate in given:
            number += 1
            candidate = f"{name}.{number}"
        given.append(candidate)
    return given
