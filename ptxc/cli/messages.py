"""What is said to a person, on standard error, and plain tables."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence

from ptxc.errors import CompileError, InternalError


def say(text: str) -> None:
    """Write ``text`` and a newline to standard error.

    Where nobody reads it, the command ends: it may be a compilation's dump, deep inside the compiler.
    """
    try:
        print(text, file=sys.stderr, flush=True)
    except BrokenPipeError:
        raise SystemExit(128 + signal.SIGPIPE) from None


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
