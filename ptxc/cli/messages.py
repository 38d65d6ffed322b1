"""What is said to a person, on standard error, and plain tables."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from contextlib import suppress

from ptxc.errors import CompileError, InternalError, UsageError


def say(text: str) -> None:
    """Write a message and a newline to standard error. One that the disk has no room for is lost: what it is about is
    in the exit status too."""
    with suppress(UsageError):
        present(text)


def present(text: str) -> None:
    """The same for what was asked for: a dump, a report. Raises UsageError where it cannot be written.

    Where nobody reads it, the command ends: it may be a compilation's dump, deep inside the compiler.
    """
    try:
        print(text, file=sys.stderr, flush=True)
    except BrokenPipeError:
        raise SystemExit(128 + signal.SIGPIPE) from None
    except OSError as error:
        raise UsageError(f"cannot write to standard error: {error.strerror}") from error


def complain(error: CompileError) -> None:
    """Say what is wrong, on one line."""
    kind = "internal error" if isinstance(error, InternalError) else "error"
    say(f"ptxc: {kind}: {printable(str(error))}")


def printable(text: str) -> str:
    """``text`` on one line, without what would move a terminal's cursor or hide something."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in " ".join(text.split()))


def table(rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> str:
    """``rows``, the first of which is the heading, in columns; those numbered in ``right`` are aligned to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [
            cell.rjust(width) if at in right else cell.ljust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)
