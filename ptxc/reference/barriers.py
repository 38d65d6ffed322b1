"""Barriers in shared memory that count arrivals and bytes, and those of a CTA by number.

Sources: the PTX ISA, "Parallel Synchronization and Communication Instructions: mbarrier" and "barrier"; ``Mbarrier*``
and ``Sync`` of ``emmy.compiler.ir.kernel.ir``, ``_TMA_PRELUDE`` of ``emmy.compiler.ir.kernel.render``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from emmy.compiler.ir.expr import Expr
from emmy.compiler.ir.kernel.ir import MbarrierArrive, MbarrierArriveExpectTx, MbarrierInit, MbarrierWait, Sync

from ptxc.errors import InputError
from ptxc.reference.buffers import Array
from ptxc.reference.expressions import index_of
from ptxc.sim.findings import missing

if TYPE_CHECKING:
    from ptxc.reference.evaluator import Evaluator
    from ptxc.reference.progress import Ready


@dataclass(slots=True)
class Mbarrier:
    """An array of mbarriers in each CTA; everything has the shape (CTAs, slots).

    A phase is complete when no arrival is ``pending`` and no ``bytes`` are; ``phase`` is the parity of the current one.
    ``count`` is 0 where a barrier was not initialised.
    """

    count: Array
    pending: Array
    bytes: Array
    phase: Array

    def note(self, at: tuple[Array, Array], arrivals: int, bytes: int) -> None:
        """Count arrivals at places, and bytes that are still to come."""
        if (self.count[at] == 0).any():
            raise InputError("an mbarrier is used before it is initialised")
        np.subtract.at(self.pending, at, arrivals)
        np.add.at(self.bytes, at, bytes)
        if (self.pending[at] < 0).any():
            raise InputError("more threads arrive at an mbarrier than it counts")
        complete = (self.pending == 0) & (self.bytes == 0) & (self.count > 0)
        self.phase[complete] ^= 1
        self.pending[complete] = self.count[complete]


@dataclass(slots=True)
class _Numbered:
    """One barrier of each CTA by its number: who has arrived, and how often it was complete."""

    arrived: Array
    complete: Array


class Barriers:
    """The barriers of a batch of CTAs.

    ``parted``: how many conditions deep threads go on by themselves. ``whole``: the threads of each CTA that a barrier
    of all waits for; those beyond the end of the tile have left.
    """

    def __init__(self, ctas: int) -> None:
        self.ctas = ctas
        self.parted = 0
        self.whole: Array = np.zeros(ctas, np.int64)
        self._shared: dict[str, Mbarrier] = {}
        self._numbered: dict[int, _Numbered] = {}
        #: Why threads wait, by the statements at which they do.
        self.waits: dict[str, Callable[[], str]] = {}

    def hang(self) -> InputError:
        """The error where all threads wait."""
        for path, reason in self.waits.items():
            return InputError(f"threads wait for what never happens: {reason()}", statement=path)
        return InputError("threads wait for what never happens")

    def shared(self, name: str, slots: int) -> Mbarrier:
        """The mbarriers of a shared array."""
        if name not in self._shared:
            self._shared[name] = Mbarrier(*(np.zeros((self.ctas, slots), np.int64) for _ in range(4)))
        return self._shared[name]

    def numbered(self, number: int) -> _Numbered:
        """The barrier of a number."""
        if number not in self._numbered:
            self._numbered[number] = _Numbered(*(np.zeros(self.ctas, np.int64) for _ in range(2)))
        return self._numbered[number]


def taking_part(e: Evaluator) -> Array:
    """The lanes that take part."""
    return np.arange(e.lanes) if e.mask is None else np.flatnonzero(e.mask)


def barriers_at(e: Evaluator, name: str, slot: Expr | None) -> tuple[Mbarrier, tuple[Array, Array]]:
    """An array of mbarriers, and which of them each thread that takes part means."""
    store = e.memory.store_of(name)
    lanes = taking_part(e)
    slots = e.spread(index_of(slot, e) if slot is not None else np.zeros((), np.int64))[lanes]
    if ((slots < 0) | (slots >= store.size)).any():
        raise InputError(f"{name!r} has {store.size} mbarriers, none at {slots.max()}")
    return e.barriers.shared(name, store.size), (e.number[lanes], slots)


def init(e: Evaluator, stmt: MbarrierInit, path: str) -> None:
    """A barrier in its first phase, which ``count`` arrivals complete."""
    barrier, at = barriers_at(e, stmt.mbar, stmt.slot)
    barrier.count[at] = barrier.pending[at] = stmt.count
    barrier.bytes[at] = barrier.phase[at] = 0


def arrive(e: Evaluator, stmt: MbarrierArrive, path: str) -> None:
    """An arrival of each thread."""
    barrier, at = barriers_at(e, stmt.mbar, stmt.slot)
    barrier.note(at, 1, 0)


def expect(e: Evaluator, stmt: MbarrierArriveExpectTx, path: str) -> None:
    """An arrival of each thread, and bytes that copies are to bring before the phase is complete."""
    barrier, at = barriers_at(e, stmt.mbar, stmt.slot)
    barrier.note(at, 1, stmt.bytes_)


def wait(e: Evaluator, stmt: MbarrierWait, path: str) -> Iterator[Ready]:
    """Until the phase of a parity is complete, that is, until the current one has the other parity."""
    barrier, at = barriers_at(e, stmt.mbar, stmt.slot)
    parity = e.spread(index_of(stmt.phase, e))[taking_part(e)] & 1

    def complete() -> bool:
        return bool((barrier.phase[at] != parity).all())

    if (barrier.count[at] == 0).any():
        raise InputError("an mbarrier is used before it is initialised")

    def reason() -> str:
        ctas, slots = (places[barrier.phase[at] == parity] for places in at)
        place = ctas[0], slots[0]
        lack = missing(int(barrier.pending[place]), int(barrier.bytes[place]))
        return f"phase {int(barrier.phase[place])} of the mbarrier {stmt.mbar}[{slots[0]}] {lack}"

    if not complete():
        e.barriers.waits[f"{path} MbarrierWait"] = reason
        yield complete
        del e.barriers.waits[f"{path} MbarrierWait"]


def sync(e: Evaluator, stmt: Sync, path: str) -> Iterator[Ready]:
    """A barrier: threads that go on by themselves wait for as many as it is for; together there is nothing to order."""
    if stmt.warp or not e.barriers.parted:
        return
    wanted = stmt.count if stmt.barrier_id and stmt.count is not None else e.barriers.whole
    barrier = e.barriers.numbered(stmt.barrier_id)
    here = np.bincount(e.number[taking_part(e)], minlength=e.barriers.ctas)
    ctas = np.flatnonzero(here)
    before = barrier.complete[ctas].copy()
    barrier.arrived += here
    full = barrier.arrived >= wanted
    barrier.complete[full] += 1
    barrier.arrived[full] = 0

    def complete() -> bool:
        return bool((barrier.complete[ctas] > before).all())

    def reason() -> str:
        here = ctas[barrier.complete[ctas] <= before][0]
        total = np.broadcast_to(wanted, e.barriers.ctas)[here]
        return f"{barrier.arrived[here]} of {total} threads are at barrier {stmt.barrier_id}"

    if not complete():
        e.barriers.waits[f"{path} Sync"] = reason
        yield complete
        del e.barriers.waits[f"{path} Sync"]


def nothing(e: Evaluator, stmt: Any, path: str) -> None:
    """What has nothing to order here, or is declared already."""


STATEMENTS: dict[type, Callable[[Evaluator, Any, str], Iterator[Ready] | None]] = {
    MbarrierInit: init,
    MbarrierArrive: arrive,
    MbarrierArriveExpectTx: expect,
    MbarrierWait: wait,
    Sync: sync,
}
