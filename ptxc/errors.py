"""The errors that ptxc reports to people.

Every error says what is wrong, where (file, kernel, statement) and what to do. The layers of the compiler know
different parts of the "where": the reader knows the JSON path, the lowering knows the statement, the driver knows
the file. Each raises with what it knows, and an outer layer completes the rest with :meth:`CompileError.at`.

Exit statuses of the command line: 2 for an error of the input or the usage, 70 for a fault inside ptxc
(``EX_SOFTWARE`` of sysexits.h), 1 for a comparison that found a difference.
"""

from __future__ import annotations

import errno
from typing import Self


class CompileError(Exception):
    """Something in the input, the options or the environment keeps ptxc from making a right kernel.

    ``what`` is a sentence without a full stop; ``hint`` says what to do. ``file``, ``kernel`` and ``statement``
    are the place, each empty while unknown.
    """

    exit_status = 2

    def __init__(self, what: str, *, hint: str = "", file: str = "", kernel: str = "", statement: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.hint = hint
        self.file = file
        self.kernel = kernel
        self.statement = statement

    def at(self, *, file: str = "", kernel: str = "", statement: str = "") -> Self:
        """Complete the place with what the caller knows; what is known already stays. Returns itself."""
        self.file = self.file or file
        self.kernel = self.kernel or kernel
        self.statement = self.statement or statement
        return self

    def __str__(self) -> str:
        """One line: ``file: kernel: statement: what; hint``."""
        # Of what has a body, Emmy's text has a colon at its end.
        place = ": ".join(part.removesuffix(":") for part in (self.file, self.kernel, self.statement) if part)
        text = f"{place}: {self.what}" if place else self.what
        text = f"{text}; {self.hint}" if self.hint else text
        return " ".join(text.split())


class InputError(CompileError):
    """The file is not a kernel: unreadable, not JSON, of another shape, hostile, or inconsistent."""


class UnsupportedError(CompileError):
    """The kernel uses something that ptxc does not compile yet, or that no hardware has."""


class TargetError(CompileError):
    """The target or PTX version lacks an instruction or a resource that the kernel needs."""


class DivergenceError(CompileError):
    """A barrier or another collective operation is reached by only some of the threads that it waits for."""


class UsageError(CompileError):
    """The command line or the options of a call do not fit together."""


class ToolchainError(CompileError):
    """ptxas is missing or refuses the text."""


class WriteError(CompileError):
    """The files that a tool works on cannot be written: there is no room for them."""


class DeviceError(CompileError):
    """There is no GPU to use, or what was launched on it failed: a kernel that hangs, an illegal address."""


class CheckError(CompileError):
    """A kernel of a batch that was executed did not what it means, or something that no kernel may do."""


class TimeLimitError(CompileError):
    """A candidate of a batch took longer than it may."""


class MemoryLimitError(CompileError):
    """A candidate of a batch took more memory than it may."""


class CrashError(CompileError):
    """The process that worked on a candidate of a batch died."""


class StoreWarning(UserWarning):
    """Results cannot be kept. Compilations go on without."""


class InternalError(CompileError):
    """A fault of ptxc itself: a pass crashed or produced IR that the verifier refuses.

    ``reproducer`` is what shows it again: the IR from before the pass, or empty where there is none.
    """

    exit_status = 70
    reproducer = ""


def room_for(fault: OSError) -> str:
    """What to do where the system does not take what is written; empty where that is not a matter of room."""
    if fault.errno == errno.EFBIG:
        return "raise the limit of files' sizes, ulimit -f"
    return "make room on that disk" if fault.errno in (errno.ENOSPC, errno.EDQUOT) else ""
