"""CPU time, the best of some rounds: other work on the machine only ever adds."""

from __future__ import annotations

import gc
import resource
import time
from collections.abc import Callable


def best_ms(work: Callable[[], object], rounds: int, repeat: int = 1) -> float:
    """The least CPU milliseconds of ``work`` in one of ``rounds``, this process and its children.

    A round is ``repeat`` runs, one after the other as an autotuner's are, with the garbage collections that they cause.
    """
    best = float("inf")
    for _ in range(rounds):
        gc.collect()
        before = _cpu()
        for _ in range(repeat):
            work()
        best = min(best, (_cpu() - before) / repeat)
    return best * 1e3


def _cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + usage.ru_utime + usage.ru_stime
