"""The standard streams of the process: such as are closed, and such as take no more."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from ptxc.errors import UsageError

#: The descriptors of the three.
_STANDARD = 3


@contextmanager
def occupied() -> Iterator[None]:
    """Have closed standard streams lead nowhere, so that nothing takes their place.

    The next file that is opened would get a closed one's number, and what a library or another process writes there;
    and ``print`` without a standard error writes to standard output. Without one, messages are lost. Standard input and
    output stay None where they are: those who need them say so.
    """
    while (nowhere := os.open(os.devnull, os.O_RDWR)) < _STANDARD:
        os.set_inheritable(nowhere, True)
    os.close(nowhere)
    if sys.stderr is not None:
        yield
        return
    with open(os.devnull, "w", encoding="utf-8") as lost:
        sys.stderr = lost
        try:
            yield
        finally:
            sys.stderr = None


def flush() -> None:
    """Write out standard output, so that what goes wrong is known while it can be said. Raises UsageError."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise UsageError(f"cannot write to standard output: {error.strerror}") from error


def forget() -> None:
    """Have the interpreter not try again, when it ends, to write what cannot be written."""
    for stream in (sys.stdout, sys.stderr):
        if stream is None:
            continue
        try:
            stream.flush()
        except (OSError, ValueError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())
            os.close(nowhere)
