"""Threads that go on by themselves: the branches of a condition, each until it must wait for the other.

A body yields where its threads must wait, and is resumed once they need not. Which branch goes on does not depend on
anything but the kernel: the first that can, as far as it gets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
from emmy.compiler.ir.kernel.ir import MbarrierWait, Sync
from emmy.compiler.ir.stmt import Body

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ptxc.reference.evaluator import Evaluator
    from ptxc.reference.values import Value

#: Says whether what threads wait for has happened.
Ready = Callable[[], bool]


class Task:
    """A body that some threads execute; it sees the scopes where it begins, and has its own within."""

    def __init__(self, e: Evaluator, mask: NDArray[np.bool_], body: Body, path: str) -> None:
        self._e = e
        self._mask: NDArray[np.bool_] | None = mask
        self._scopes: list[dict[str, Value]] = [*e.scopes, {}]
        self._steps = e.body(body, path)
        self.ready: Ready = lambda: True
        self.done = False

    def go_on(self) -> None:
        """Execute until the threads must wait or are done."""
        e = self._e
        before = e.mask, e.scopes, e.path
        e.mask, e.scopes = self._mask, self._scopes
        try:
            self.ready = next(self._steps)
        except StopIteration:
            self.done = True
        finally:
            self._mask = e.mask
            e.mask, e.scopes, e.path = before


def together(e: Evaluator, tasks: Sequence[Task]) -> Iterator[Ready]:
    """Execute tasks of different threads until all are done; yields where none can go on."""
    e.barriers.parted += 1
    left = list(tasks)

    def able() -> list[Task]:
        return [task for task in left if task.ready()]

    while left:
        if not able():
            yield lambda: bool(able())
        for task in able():
            task.go_on()
        left = [task for task in left if not task.done]
    e.barriers.parted -= 1


def waits(body: Body) -> bool:
    """Whether threads may wait for others in a body."""
    return any(isinstance(stmt, MbarrierWait) or (isinstance(stmt, Sync) and not stmt.warp) for stmt in body.iter())
