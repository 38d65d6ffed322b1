"""Room for deep recursion: Emmy's expressions are trees, and a legal one may be a thousand levels deep."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable

from ptxc.errors import InputError

#: Python frames that a level of an expression may take at most, times the levels that the reader admits.
_FRAMES = 40_000

#: What has room may ask for it again, by way of something that it calls.
_lock = threading.RLock()


def with_room[T](work: Callable[[], T]) -> T:
    """Do ``work``; where it is too deep for Python's recursion limit, once more with a higher one.

    The limit is the process's, so one thread at a time may raise it. Raises InputError where even that is too little.
    """
    try:
        return work()
    except RecursionError:
        pass
    with _lock:
        limit = sys.getrecursionlimit()
        sys.setrecursionlimit(max(limit, _FRAMES))
        try:
            return work()
        except RecursionError as error:
            raise InputError("the kernel nests too deeply", hint="split its expressions or its loops") from error
        finally:
            sys.setrecursionlimit(limit)
