"""Which threads of a CTA are ordered behind which others: what the ``race`` check asks.

Barriers of the whole CTA divide its life into *eras*: accesses of different eras are ordered. Kernels in which fewer
threads meet (``bar.warp.sync``, the other warp operations with ``.sync``, barriers with a thread count,
``barrier.arrive``) are watched more finely: each warp has a time that every meeting it takes part in moves on, and
each thread knows up to which time it is ordered behind each lane of its warp and behind each other warp.

A warp operation that is no barrier (``shfl.sync``, ``vote.sync``, ...) makes its lanes meet but not their writes
visible (PTX ISA 9.7.10.6): it orders what they read before it, so that others may then overwrite it, and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from ptxc.sim.machine import Machine
from ptxc.sim.program import Program
from ptxc.sim.scalar import Array, Index, Mask
from ptxc.sim.warp import COLLECTIVES, mask_bits

BITS = np.uint32(1) << np.arange(32, dtype=np.uint32)
"""A lane as one bit of a mask."""


def has_small_meetings(program: Program) -> bool:
    """Whether some instruction of ``program`` makes fewer threads than the CTA's meet."""
    for item in program.instructions:
        if item.opcode == "mbarrier" or (item.opcode in COLLECTIVES and "sync" in item.modifiers):
            return True
        if item.opcode in {"bar", "barrier"}:
            operands = len(item.operands) - (2 if "red" in item.modifiers else 0)
            if "warp" in item.modifiers or "arrive" in item.modifiers or operands > 1:
                return True
    return False


@dataclass(slots=True)
class Clocks:
    """Who is ordered behind whom, in kernels in which fewer threads than the CTA's meet.

    ``time[w]`` is warp ``w``'s own time. A thread is ordered behind what lane ``l`` of its warp wrote before time
    ``lanes[slot, l]`` and read before ``lanes_read[slot, l]``, and behind all that warp ``v`` of its CTA did before
    ``warps[w, v]``. ``partly`` says that some lanes of a warp have met without the others. ``arrivals`` has, for each
    mbarrier and CTA, what those who arrived knew: in the phase that goes on, and in those that are over.
    """

    time: Array
    lanes: Array
    lanes_read: Array
    warps: Array
    partly: bool = False
    arrivals: dict[int, tuple[Array, Array]] = field(default_factory=dict)

    @classmethod
    def of(cls, ctas: int, warps: int) -> Clocks:
        """At the beginning, when nobody has met anybody."""
        total = ctas * warps
        lanes = np.zeros((total * 32, 32), np.int32)
        return cls(np.zeros(total, np.int32), lanes, lanes.copy(), np.zeros((total, warps), np.int32))

    def knows(self, slots: Index, others: Array) -> Array:
        """Up to which time each of ``slots`` is ordered behind thread ``others`` of its CTA."""
        warp, other = slots >> 5, others >> 5
        in_cta = other % self.warps.shape[1]
        known: Array = np.where(warp == other, self.lanes[slots, others & 31], self.warps[warp, in_cta])
        return known

    def lanes_meet(self, slots: Index, members: Array, live: Array, *, orders_memory: bool) -> None:
        """``slots`` meet, each with the lanes of its mask in ``members``; ``live`` are the lanes of each warp."""
        now = self.time[slots >> 5]
        named = (members[:, None] & BITS[None, :]) != 0
        partly = np.flatnonzero(live[slots >> 5] & ~members)
        for clock in (self.lanes, self.lanes_read) if orders_memory else (self.lanes_read,):
            rows = np.where(named, now[:, None] + 1, clock[slots])
            if partly.size:
                rows[partly] = np.maximum(rows[partly], _together(clock, slots[partly], named[partly]))
            clock[slots] = rows
        self.time[np.unique(slots >> 5)] += 1
        self.partly |= partly.size > 0

    def barrier(self, warps: Index, waiting: Mask, known: Array, now: Array) -> None:
        """``warps`` of one CTA meet, having known ``known`` at their time ``now``; those ``waiting`` learn of all."""
        width = self.warps.shape[1]
        rows = known.copy()
        rows[np.arange(warps.size), warps % width] = now + 1
        learnt = rows.max(0)
        for warp in warps[waiting].tolist():
            self.warps[warp] = np.maximum(self.warps[warp], learnt)
            for clock in (self.lanes, self.lanes_read):
                clock[warp * 32 : warp * 32 + 32] = self.time[warp] + 1
        self.time[warps[waiting]] += 1

    def release(self, key: int, slots: Index) -> None:
        """``slots`` arrive at mbarrier ``key``, each for its warp."""
        width = self.warps.shape[1]
        warps = np.unique(slots >> 5)
        known = self.warps[warps].copy()
        known[np.arange(warps.size), warps % width] = self.time[warps] + 1
        nothing = np.zeros((self.warps.shape[0] // width, width), np.int32)
        current, _ = self.arrivals.setdefault(key, (nothing, nothing.copy()))
        np.maximum.at(current, warps // width, known)
        self.time[warps] += 1

    def publish(self, key: int, ctas: Index) -> None:
        """The phase of mbarrier ``key`` is over in ``ctas``."""
        if key in self.arrivals:
            current, over = self.arrivals[key]
            over[ctas] = np.maximum(over[ctas], current[ctas])

    def acquire(self, key: int, slots: Index) -> None:
        """``slots`` have waited for a phase of mbarrier ``key``: their warps learn of those who arrived."""
        if key not in self.arrivals:
            return
        width = self.warps.shape[1]
        warps = np.unique(slots >> 5)
        learnt = self.arrivals[key][1][warps // width]
        self.warps[warps] = np.maximum(self.warps[warps], learnt)
        own = learnt[np.arange(warps.size), warps % width]
        mine = own[np.searchsorted(warps, slots >> 5)][:, None]
        for clock in (self.lanes, self.lanes_read):
            clock[slots] = np.maximum(clock[slots], mine)


def _together(clock: Array, slots: Index, named: Mask) -> Array:
    """What the lanes that are ``named`` know of the lanes of their warp, taken together, for each of ``slots``."""
    warps = clock.reshape(-1, 32, 32)[slots >> 5]
    learnt: Array = np.where(named[:, :, None], warps, 0).max(1)
    return learnt


class Order:
    """The barriers that the threads of a batch have passed, alone or together."""

    def __init__(self, m: Machine) -> None:
        self._slots = m.geometry.slots
        #: The number of each thread's era, and in which one it exited.
        self.era = np.zeros(m.threads, np.int32)
        self._last_era = np.full(m.threads, -1, np.int32)
        self.anyone_left = False
        self._arrivals: dict[int, tuple[Array, Array]] = {}
        #: How many warps a CTA has, and what they know of one another where fewer than all threads meet.
        self.warps = self._slots // 32
        self.clocks: Clocks | None = None
        if has_small_meetings(m.program):
            self.clocks = Clocks.of(len(m.geometry.ctas), self.warps)

    def never_ordered(self, slots: Array, eras: Array) -> Mask:
        """Which accesses, of ``slots`` in ``eras``, no barrier can order any more, as their threads exited in the era.

        A slot below 0 is no thread.
        """
        gone: Mask = (slots >= 0) & (self._last_era[slots] == eras)
        return gone

    def arrived(self, name: int, index: Index) -> None:
        """Threads ``index`` arrive at barrier ``name`` and go on at once."""
        clocks = self.clocks
        if clocks is None:
            return
        warps = np.unique(index >> 5)
        time, known = self._arrivals.setdefault(name, (np.full(clocks.time.size, -1, np.int32), clocks.warps.copy()))
        time[warps] = clocks.time[warps]
        known[warps] = clocks.warps[warps]
        clocks.time[warps] += 1

    def barrier(self, m: Machine, name: int, arrived: Mask, waiting: Mask) -> None:
        """Barrier ``name`` completes in every CTA that has ``arrived`` threads."""
        shape = (-1, self._slots)
        present = arrived.reshape(shape)
        here = present.any(1)
        everyone = here & (present | ~m.live.reshape(shape)).all(1) & (waiting == arrived).reshape(shape).all(1)
        self.era.reshape(shape)[everyone] += 1
        clocks = self.clocks
        if clocks is None:
            return
        by_warp, waits = arrived.reshape(-1, 32).any(1), waiting.reshape(-1, 32).any(1)
        time, known = self._arrivals.get(name, (np.full(clocks.time.size, -1, np.int32), clocks.warps))
        for cta in np.flatnonzero(here).tolist():
            mine = np.arange(cta * self.warps, (cta + 1) * self.warps)
            warps = mine[by_warp[mine]]
            now = np.where(waits[warps], clocks.time[warps], time[warps])
            rows = np.where(waits[warps][:, None], clocks.warps[warps], known[warps])
            clocks.barrier(warps, waits[warps], rows, now)

    def exited(self, index: Index) -> None:
        """Threads ``index`` exit: what they did since their last barrier, no later one orders."""
        self.anyone_left = True
        self._last_era[index] = self.era[index]

    def lanes_meet(self, m: Machine, taking_part: Mask, members: Array, *, orders_memory: bool) -> None:
        """The threads of ``taking_part`` meet in the groups of lanes that ``members`` names, one mask a slot."""
        if self.clocks is not None:
            slots = np.flatnonzero(taking_part)
            self.clocks.lanes_meet(slots, members[slots], mask_bits(m.live), orders_memory=orders_memory)

    # mbarriers

    def now(self, slots: Index) -> tuple[Array, Array]:
        """The era and the time of ``slots``: what they do now, ``ordered`` can ask about later."""
        time = self.clocks.time[slots >> 5] if self.clocks is not None else np.zeros(slots.size, np.int32)
        return self.era[slots], time

    def ordered(self, slots: Index, others: Index, era: Array, time: Array) -> Mask:
        """Whether each of ``slots`` is ordered behind what a thread of ``others`` did in ``era`` at ``time``."""
        behind: Mask = (self.era[slots] > era) | (slots == others)
        if self.clocks is not None:
            behind |= self.clocks.knows(slots, others) > time
        return behind

    def release(self, key: int, slots: Index) -> None:
        """Threads ``slots`` arrive at mbarrier ``key``."""
        if self.clocks is not None:
            self.clocks.release(key, slots)

    def publish(self, key: int, ctas: Index) -> None:
        """A phase of mbarrier ``key`` is over in ``ctas``."""
        if self.clocks is not None:
            self.clocks.publish(key, ctas)

    def acquire(self, key: int, slots: Index) -> None:
        """Threads ``slots`` have waited for mbarrier ``key``: they are ordered behind those who arrived."""
        if self.clocks is not None:
            self.clocks.acquire(key, slots)
