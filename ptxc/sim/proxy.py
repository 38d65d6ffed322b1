"""Accesses of one place in shared memory by two proxies: a thread's own, and those of ``wgmma`` and of bulk copies.

Threads load and store in the generic proxy, ``wgmma`` reads and bulk copies write in the async proxy. Beside what
orders the threads, a ``fence.proxy.async`` is needed (PTX ISA 9.7.10.28.2 and 9.7.17.4) between

- a store, or what a ``cp.async`` brings, and the ``wgmma`` that reads it;
- a load or store, and the bulk copy that writes there;
- the initialisation of an mbarrier and the bulk copy that completes at it (a ``fence.mbarrier_init`` does as well),

executed by the thread that did the one, behind it, or by one that does the other, before it. What bulk copies bring
needs none: a wait at their mbarrier makes it visible.
"""

from __future__ import annotations

import numpy as np

from ptxc.sim.access import Piece
from ptxc.sim.binding import Action
from ptxc.sim.machine import Active, Machine
from ptxc.sim.program import Instruction, Program
from ptxc.sim.scalar import Array, Index, Mask

_UNIT = 16


def uses_async_proxy(program: Program) -> bool:
    """Whether some instruction of ``program`` accesses shared memory in the async proxy."""
    return any(
        (item.opcode == "wgmma" and "mma_async" in item.modifiers) or (item.opcode == "cp" and "bulk" in item.modifiers)
        for item in program.instructions
    )


class _Last:
    """The last access of a kind to each unit of a batch's shared memory: who made it, and when (0: nobody)."""

    def __init__(self, units: int) -> None:
        self.slot = np.zeros(units, np.int32)
        self.time = np.zeros(units, np.int64)

    def note(self, at: Index, slots: Index, time: int) -> None:
        self.slot[at] = slots
        self.time[at] = time

    def unfenced(self, at: Index, fenced: Array, since: int) -> Mask:
        """Of which units ``at`` the last access is not fenced: by who made it, or by who comes then, at ``since``."""
        time = self.time[at]
        wrong: Mask = (time > since) & (time > fenced[self.slot[at]])
        return wrong


class ProxyCheck:
    """Of each 16 bytes of a batch's shared memory, the last load and the last store; of mbarriers, who made them.

    Time counts accesses and fences. ``_fenced`` is when each thread last executed a fence, ``_published`` when one that
    counts for mbarriers. Of several threads that load from one place the last is looked at.
    """

    def __init__(self, shared_bytes: int, threads: int, ctas: int) -> None:
        self._time = 1
        self._loads, self._stores = _Last(shared_bytes // _UNIT), _Last(shared_bytes // _UNIT)
        self._ctas = ctas
        self._made: dict[int, _Last] = {}
        self._fenced = np.zeros(threads, np.int64)
        self._published = np.zeros(threads, np.int64)

    # In the generic proxy

    def loaded(self, piece: Piece) -> None:
        """The threads of ``piece`` load from there."""
        self._time += 1
        self._loads.note(piece.offsets // _UNIT, piece.slots, self._time)

    def written(self, piece: Piece) -> None:
        """The threads of ``piece`` store there."""
        self._time += 1
        self._stores.note(piece.offsets // _UNIT, piece.slots, self._time)

    def initialised(self, address: int, slots: Index, ctas: Index) -> None:
        """Threads ``slots`` make the mbarriers at ``address`` of their CTAs."""
        self._time += 1
        self._made.setdefault(address, _Last(self._ctas)).note(ctas, slots, self._time)

    def fenced(self, slots: Index, *, mbarriers_alone: bool = False) -> None:
        """Threads ``slots`` execute ``fence.proxy.async``, or what is one for their mbarriers alone."""
        self._time += 1
        self._published[slots] = self._time
        if not mbarriers_alone:
            self._fenced[slots] = self._time

    # In the async proxy

    def landed(self, piece: Piece) -> None:
        """A bulk copy has written to ``piece``."""
        at = piece.offsets // _UNIT
        self._loads.time[at] = self._stores.time[at] = 0

    def multiplied(self, m: Machine, piece: Piece, readers: Index) -> None:
        """A ``wgmma`` of threads ``readers`` reads ``piece``."""
        wrong = self._stores.unfenced(piece.offsets // _UNIT, self._fenced, int(self._fenced[readers].max()))
        self._report(m, "reads", "stored", self._stores, piece, wrong)

    def overwritten(self, m: Machine, piece: Piece, slot: int) -> None:
        """A bulk copy of thread ``slot`` will write to ``piece``."""
        at = piece.offsets // _UNIT
        for last, verb in ((self._stores, "stored"), (self._loads, "loaded")):
            wrong = last.unfenced(at, self._fenced, int(self._fenced[slot]))
            self._report(m, "overwrites", verb, last, piece, wrong)

    def completes(self, m: Machine, address: int, slot: int) -> None:
        """A bulk copy of thread ``slot`` will complete at the mbarrier at ``address`` of its CTA."""
        made, cta = self._made.get(address), m.geometry.cta_of_slot[slot : slot + 1]
        if made is not None and made.unfenced(cta, self._published, int(self._published[slot])).any():
            message = "completes at an mbarrier with no fence.proxy.async behind its initialisation"
            m.report("race", "proxy mbarrier", message, np.array([slot]), address=address, space="shared")

    def _report(self, m: Machine, verb: str, before: str, last: _Last, piece: Piece, wrong: Mask) -> None:
        if not wrong.any():
            return
        first = int(piece.offsets[int(np.argmax(wrong))])
        thread = int(last.slot[first // _UNIT]) % m.geometry.slots
        message = f"{verb} what thread {thread} {before}, with no fence.proxy.async between"
        m.report("race", "proxy", message, np.unique(piece.slots[wrong]), address=first % m.shared_stride,
                 space="shared")  # fmt: skip


def fence(instruction: Instruction) -> Action:
    """``fence`` and ``membar``: of effect for the checks only, as threads' accesses are in order anyway."""
    between = "proxy" in instruction.modifiers and any(name.startswith("async") for name in instruction.modifiers)
    publishes = "mbarrier_init" in instruction.modifiers

    def act(m: Machine, active: Active) -> None:
        if (between or publishes) and m.checks.proxy is not None:
            m.checks.proxy.fenced(active.index, mbarriers_alone=not between)

    return act
