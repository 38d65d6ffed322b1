"""Emmy on ptxc: Emmy's CUDA backend builds its kernels with ptxc and ptxas where it would call nvcc.

    from ptxc.emmy import use_ptxc

    with use_ptxc():
        ...  # whatever Emmy compiles here is PTX, and its cubins are ptxas'

Graphs, schedules, launch geometry and the order of arguments are Emmy's own: only the text of a kernel is another, and
who assembles it. :mod:`ptxc.emmy.internals` lists what of Emmy is replaced, and checks it first; :mod:`ptxc.emmy.build`
is what stands in its place; :mod:`ptxc.emmy.worker` runs Emmy's process for measurements.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ptxc.errors import UsageError

if TYPE_CHECKING:
    from ptxc.emmy.internals import Replacement

__all__ = ["use_ptxc"]

_lock = threading.RLock()
#: The options of each use that is entered and not left; all have the same.
_uses: list[dict[str, Any]] = []
#: What is in Emmy's place meanwhile, one entry or none.
_installed: list[Replacement] = []


@contextmanager
def use_ptxc(**options: Any) -> Iterator[None]:
    """Have Emmy build its kernels with ptxc and ptxas, without nvcc, until the block is left.

    ``options`` are those of :class:`ptxc.Options` but for what Emmy decides: its target, and the arithmetic that its
    ``FAST_MATH`` and ``EMMY_NVCC_FLAGS`` ask for. What is replaced is the process's, so it holds for all threads until
    the last use is left, and then all is exactly as before. Uses may be nested, with the same options.

    Raises UnsupportedError where the installed Emmy's internals are not those that ptxc knows, UsageError for options
    that there are not, or other ones than those of a use around this one.
    """
    from ptxc.emmy.build import Builder
    from ptxc.emmy.internals import Replacement

    with _lock:
        if _uses and _uses[0] != options:
            raise UsageError(f"use_ptxc is in use with the options {_uses[0]}", hint="give the same, or leave it first")
        if not _uses:
            replacement = Replacement(Builder(options))
            replacement.install()
            _installed.append(replacement)
        _uses.append(options)
    try:
        yield
    finally:
        with _lock:
            _uses.pop()
            if not _uses:
                _installed.pop().restore()
