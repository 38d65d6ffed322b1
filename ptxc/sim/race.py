"""The ``race`` check: accesses that nothing orders.

In shared memory, two threads of a CTA race when they touch the same byte, one of them writes, not both are atomic,
and no barrier orders them. Memory is watched in granules of the smallest size that the kernel accesses.

Barriers of the whole CTA divide its life into *eras*: accesses of different eras are ordered. Kernels in which fewer
threads meet (``bar.warp.sync``, the other warp operations with ``.sync``, barriers with a thread count,
``barrier.arrive``) are watched more finely: each warp has a time that every meeting it takes part in moves on, and
each thread knows up to which time it is ordered behind each lane of its warp and behind each other warp.

A warp operation that is no barrier (``shfl.sync``, ``vote.sync``, ...) makes its lanes meet but not their writes
visible (PTX ISA 9.7.10.6): it orders what they read before it, so that others may then overwrite it, and nothing else.

A ``cp.async`` writes from its issue until it is waited for: any access in between races with it, even its own
thread's. Ordering by atomics, fences and flags is not understood; kernels that rely on it show false races.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from ptxc.sim.access import Piece
from ptxc.sim.machine import Machine
from ptxc.sim.memory import Region
from ptxc.sim.program import Program
from ptxc.sim.scalar import TYPES, Array, Index, Mask
from ptxc.sim.warp import COLLECTIVES

_NOBODY, _MANY = -1, -2
_IN_FLIGHT = np.iinfo(np.int32).max
_FOR_EVER = _IN_FLIGHT - 1
_ATOMIC = 1 << 30
_BITS = np.uint32(1) << np.arange(32, dtype=np.uint32)


def granule(program: Program) -> int:
    """The bytes of the smallest access of ``program``, at most 4."""
    sizes = [4]
    for item in program.instructions:
        if item.opcode in {"ld", "st", "atom", "red", "ldu"}:
            sizes += [TYPES[name].size for name in item.modifiers if name in TYPES]
    return min(sizes)


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
class _Clocks:
    """Who is ordered behind whom, in kernels in which fewer threads than the CTA's meet.

    ``time[w]`` is warp ``w``'s own time. A thread is ordered behind what lane ``l`` of its warp wrote before time
    ``lanes[slot, l]`` and read before ``lanes_read[slot, l]``, and behind all that warp ``v`` of its CTA did before
    ``warps[w, v]``. ``arrivals`` has, for each mbarrier and CTA, what those who arrived knew: in the phase that goes
    on, and in those that are over.
    """

    time: Array
    lanes: Array
    lanes_read: Array
    warps: Array
    arrivals: dict[int, tuple[Array, Array]] = field(default_factory=dict)

    @classmethod
    def of(cls, ctas: int, warps: int) -> _Clocks:
        total = ctas * warps
        lanes = np.zeros((total * 32, 32), np.int32)
        return cls(np.zeros(total, np.int32), lanes, lanes.copy(), np.zeros((total, warps), np.int32))

    def knows(self, slots: Index, others: Array) -> Array:
        """Up to which time each of ``slots`` is ordered behind thread ``others`` of its CTA."""
        warp, other = slots >> 5, others >> 5
        in_cta = other % self.warps.shape[1]
        known: Array = np.where(warp == other, self.lanes[slots, others & 31], self.warps[warp, in_cta])
        return known

    def lanes_meet(self, slots: Index, members: Array, *, orders_memory: bool) -> None:
        """``slots`` meet, each with the lanes of its mask in ``members``."""
        now = self.time[slots >> 5]
        named = (members[:, None] & _BITS[None, :]) != 0
        for clock in (self.lanes, self.lanes_read) if orders_memory else (self.lanes_read,):
            rows = clock[slots]
            clock[slots] = np.where(named, now[:, None] + 1, rows)
        self.time[np.unique(slots >> 5)] += 1

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


class SharedRaceCheck:
    """The accesses to a batch's shared memory.

    For each granule: the era, the thread and the time of the last write, and of the reads since. A thread is its
    slot, ``_MANY`` for several; ``_ATOMIC`` is added for atomics. ``_IN_FLIGHT`` as a write's era is a ``cp.async``
    that was not waited for, ``_FOR_EVER`` an access of a thread that has exited since, with no barrier between.
    """

    def __init__(self, m: Machine) -> None:
        self._size = granule(m.program)
        count = m.shared.data.size // self._size
        self._write_era = np.full(count, -1, np.int32)
        self._write_slot = np.full(count, _NOBODY, np.int32)
        self._read_era = np.full(count, -1, np.int32)
        self._read_slot = np.full(count, _NOBODY, np.int32)
        self._era = np.zeros(m.threads, np.int32)
        self._warps = m.geometry.slots // 32
        self._reading: Array | None = None
        self._arrivals: dict[int, tuple[Array, Array]] = {}
        self._clocks: _Clocks | None = None
        if has_small_meetings(m.program):
            self._clocks = _Clocks.of(len(m.geometry.ctas), self._warps)
            self._write_time = np.zeros(count, np.int32)
            self._read_time = np.full((count, self._warps), -1, np.int32)
            self._read_lanes = np.zeros((count, self._warps), np.uint32)

    # Accesses

    def read(self, m: Machine, piece: Piece, size: int) -> None:
        """Plain reads of ``size`` bytes."""
        at, slots, era = self._granules(piece, size)
        self._against_writes(m, piece, at, slots, era, atomic=False)
        self._note_read(at, slots, era)

    def async_read(self, m: Machine, piece: Piece, size: int) -> None:
        """A ``wgmma`` starts to read ``size`` bytes."""
        at, slots, era = self._granules(piece, size)
        self._against_writes(m, piece, at, slots, era, atomic=False)
        if self._reading is None:
            self._reading = np.zeros(self._read_slot.size, np.int32)
        np.add.at(self._reading, at, 1)

    def async_read_done(self, piece: Piece, size: int) -> None:
        """The threads of ``piece`` have waited for it."""
        at, slots, era = self._granules(piece, size)
        if self._reading is not None:
            np.subtract.at(self._reading, at, 1)
        self._note_read(at, slots, era)

    def _note_read(self, at: Index, slots: Array, era: Array) -> None:
        known = self._read_slot[at]
        alone = (self._read_era[at] != era) | (known == slots)
        mine = np.where(alone, slots, _MANY).astype(np.int32)
        self._read_era[at] = era
        self._read_slot[at] = mine
        shared = self._read_slot[at] != mine
        if shared.any():
            self._read_slot[at[shared]] = _MANY
        if self._clocks is not None:
            self._note_read_time(at, slots)

    def write(self, m: Machine, piece: Piece, size: int) -> None:
        """Plain writes of ``size`` bytes."""
        at, slots, era = self._granules(piece, size)
        self._against_writes(m, piece, at, slots, era, atomic=False)
        self._against_reads(m, piece, at, slots, era)
        self._note_write(at, slots, era)
        self._within(m, piece, at, slots)

    def atomic(self, m: Machine, piece: Piece, size: int) -> None:
        """Atomic reads and writes of ``size`` bytes."""
        at, slots, era = self._granules(piece, size)
        self._against_writes(m, piece, at, slots, era, atomic=True)
        self._against_reads(m, piece, at, slots, era)
        mine = slots | _ATOMIC
        alone = (self._write_era[at] != era) | (self._write_slot[at] == mine)
        self._note_write(at, np.where(alone, mine, _MANY), era)
        shared = self._write_slot[at] != mine
        if shared.any():
            self._write_slot[at[shared]] = _MANY

    def async_issued(self, m: Machine, piece: Piece, size: int) -> None:
        """A ``cp.async`` starts to write ``size`` bytes."""
        at, slots, era = self._granules(piece, size)
        self._against_writes(m, piece, at, slots, era, atomic=False)
        self._against_reads(m, piece, at, slots, era)
        self._note_write(at, slots, np.full(1, _IN_FLIGHT, np.int32))
        self._within(m, piece, at, slots)

    def async_arrived(self, piece: Piece, size: int) -> None:
        """The threads of ``piece`` have waited for what they copied."""
        at, slots, era = self._granules(piece, size)
        self._note_write(at, slots, era)

    def _granules(self, piece: Piece, size: int) -> tuple[Index, Array, Array]:
        """Each access as its granules, with the thread and its era, all of one length."""
        at = piece.offsets >> (self._size.bit_length() - 1)
        slots = piece.slots.astype(np.int32)
        parts = size // self._size
        if parts > 1:
            at = (at[:, None] + np.arange(parts)).reshape(-1)
            slots = np.repeat(slots, parts)
        return at, slots, self._era[slots]

    def _note_write(self, at: Index, slots: Array, era: Array) -> None:
        self._write_era[at] = era
        self._write_slot[at] = slots
        if self._clocks is not None:
            self._write_time[at] = self._clocks.time[(slots & (_ATOMIC - 1)) >> 5 if slots.min() >= 0 else 0]

    def _note_read_time(self, at: Index, slots: Array) -> None:
        assert self._clocks is not None
        warp = slots >> 5
        column = warp % self._warps
        now = self._clocks.time[warp]
        earlier = np.where(self._read_time[at, column] == now, self._read_lanes[at, column], np.uint32(0))
        lanes = earlier | _BITS[slots & 31]
        self._read_lanes[at, column] = lanes
        self._read_time[at, column] = now
        lost = self._read_lanes[at, column] != lanes
        if lost.any():
            np.bitwise_or.at(self._read_lanes, (at[lost], column[lost]), lanes[lost])

    # Conflicts

    def _against_writes(self, m: Machine, piece: Piece, at: Index, slots: Array, era: Array, *, atomic: bool) -> None:
        """Report accesses that are not ordered behind the last write of their granule."""
        suspect = self._write_era[at] >= era
        if not suspect.any():
            return
        chosen = np.flatnonzero(suspect)
        at, slots = at[chosen], slots[chosen]
        writer, flying = self._write_slot[at], self._write_era[at] == _IN_FLIGHT
        if flying.any():
            message = "touches what a cp.async writes that was not waited for"
            self._report(m, piece, "in flight", message, at[flying], slots[flying], writer[flying])
        by_atomic = (writer == _MANY) | (writer >= _ATOMIC)
        other = np.where(by_atomic & (writer != _MANY), writer - _ATOMIC, writer)
        races = (other != slots) & ~flying
        if atomic:
            races &= ~by_atomic
        races = self._unordered(races, at, slots, other)
        if races.any():
            message = "races with a write that no barrier orders before it"
            self._report(m, piece, "after write", message, at[races], slots[races], other[races])

    def _unordered(self, races: Mask, at: Index, slots: Array, others: Array) -> Mask:
        """Those ``races`` that no smaller barrier orders either."""
        if self._clocks is None or not races.any():
            return races
        which = np.flatnonzero(races & (others >= 0))
        ordered = self._clocks.knows(slots[which], others[which]) > self._write_time[at[which]]
        races = races.copy()
        races[which[ordered]] = False
        return races

    def _against_reads(self, m: Machine, piece: Piece, at: Index, slots: Array, era: Array) -> None:
        """Report writes that are not ordered behind the reads of their granule."""
        if self._reading is not None and (self._reading[at] > 0).any():
            flying = self._reading[at] > 0
            message = "overwrites what a wgmma reads that was not waited for"
            self._report(m, piece, "being read", message, at[flying], slots[flying], np.full(1, _NOBODY))
        reader = self._read_slot[at]
        races = (self._read_era[at] >= era) & (reader != slots)
        if not races.any():
            return
        chosen = np.flatnonzero(races)
        at, slots, reader = at[chosen], slots[chosen], reader[chosen]
        if self._clocks is not None:
            unordered = self._reads_unordered(at, slots)
            at, slots, reader = at[unordered], slots[unordered], reader[unordered]
        if at.size:
            message = "overwrites what another thread reads with no barrier between"
            self._report(m, piece, "after read", message, at, slots, reader)

    def _reads_unordered(self, at: Index, slots: Array) -> Mask:
        assert self._clocks is not None
        warp = slots >> 5
        own = warp % self._warps
        readers = (self._read_lanes[at, own] & ~_BITS[slots & 31])[:, None] & _BITS[None, :] != 0
        in_warp = readers & (self._clocks.lanes_read[slots] <= self._read_time[at, own][:, None])
        behind = self._read_time[at] < self._clocks.warps[warp]
        behind[np.arange(at.size), own] = True
        unordered: Mask = in_warp.any(1) | ~behind.all(1)
        return unordered

    def _within(self, m: Machine, piece: Piece, at: Index, slots: Array) -> None:
        """Report threads of one instruction that write the same granule."""
        last = self._write_slot[at]
        races = last != slots
        if races.any():
            message = "two threads write the same bytes at once"
            self._report(m, piece, "same write", message, at[races], slots[races], last[races])

    def _report(
        self, m: Machine, piece: Piece, kind: str, message: str, at: Index, slots: Array, others: Array
    ) -> None:
        other = int(others[0])
        who = f" (thread {other % m.geometry.slots})" if other >= 0 else ""
        address = int(at[0]) * self._size % m.shared_stride
        threads = np.unique(slots).astype(np.intp)
        first = np.concatenate((slots[:1].astype(np.intp), threads[threads != slots[0]]))
        m.report("race", kind, message + who, first, address=address, space=piece.region.space)

    # Barriers

    def arrived(self, m: Machine, name: int, index: Index) -> None:
        """Threads ``index`` arrive at barrier ``name`` and go on at once."""
        if self._clocks is None:
            return
        warps = np.unique(index >> 5)
        time, known = self._arrivals.setdefault(
            name, (np.full(self._clocks.time.size, -1, np.int32), self._clocks.warps.copy())
        )
        time[warps] = self._clocks.time[warps]
        known[warps] = self._clocks.warps[warps]
        self._clocks.time[warps] += 1

    def barrier(self, m: Machine, name: int, arrived: Mask, waiting: Mask) -> None:
        """Barrier ``name`` completes in every CTA that has ``arrived`` threads."""
        shape = (-1, m.geometry.slots)
        present = arrived.reshape(shape)
        here = present.any(1)
        everyone = here & (present | ~m.live.reshape(shape)).all(1) & (waiting == arrived).reshape(shape).all(1)
        self._era.reshape(shape)[everyone] += 1
        if self._clocks is None:
            return
        by_warp, waits = arrived.reshape(-1, 32).any(1), waiting.reshape(-1, 32).any(1)
        time, known = self._arrivals.get(name, (np.full(self._clocks.time.size, -1, np.int32), self._clocks.warps))
        for cta in np.flatnonzero(here).tolist():
            mine = np.arange(cta * self._warps, (cta + 1) * self._warps)
            warps = mine[by_warp[mine]]
            now = np.where(waits[warps], self._clocks.time[warps], time[warps])
            rows = np.where(waits[warps][:, None], self._clocks.warps[warps], known[warps])
            self._clocks.barrier(warps, waits[warps], rows, now)

    def exited(self, m: Machine, index: Index) -> None:
        """Threads ``index`` exit: what they did since their last barrier, no later one orders."""
        leaving = np.zeros(m.threads, np.bool_)
        leaving[index] = True
        leaving &= np.repeat(m.live.reshape(-1, m.geometry.slots).any(1), m.geometry.slots)
        if not leaving.any():
            return
        for slots, eras in ((self._write_slot, self._write_era), (self._read_slot, self._read_era)):
            owner = slots & (_ATOMIC - 1)
            owner[slots < 0] = 0
            eras[(slots >= 0) & leaving[owner] & (eras == self._era[owner])] = _FOR_EVER

    def lanes_meet(self, taking_part: Mask, members: Array, *, orders_memory: bool) -> None:
        """The threads of ``taking_part`` meet in the groups of lanes that ``members`` names, one mask a slot."""
        if self._clocks is not None:
            slots = np.flatnonzero(taking_part)
            self._clocks.lanes_meet(slots, members[slots], orders_memory=orders_memory)

    # mbarriers

    def now(self, slots: Index) -> tuple[Array, Array]:
        """The era and the time of ``slots``: what they do now, ``ordered`` can ask about later."""
        time = self._clocks.time[slots >> 5] if self._clocks is not None else np.zeros(slots.size, np.int32)
        return self._era[slots], time

    def ordered(self, slots: Index, others: Index, era: Array, time: Array) -> Mask:
        """Whether each of ``slots`` is ordered behind what a thread of ``others`` did in ``era`` at ``time``."""
        behind: Mask = (self._era[slots] > era) | (slots == others)
        if self._clocks is not None:
            behind |= self._clocks.knows(slots, others) > time
        return behind

    def release(self, key: int, slots: Index) -> None:
        """Threads ``slots`` arrive at mbarrier ``key``."""
        if self._clocks is not None:
            self._clocks.release(key, slots)

    def publish(self, key: int, ctas: Index) -> None:
        """A phase of mbarrier ``key`` is over in ``ctas``."""
        if self._clocks is not None:
            self._clocks.publish(key, ctas)

    def acquire(self, key: int, slots: Index) -> None:
        """Threads ``slots`` have waited for mbarrier ``key``: they are ordered behind those who arrived."""
        if self._clocks is not None:
            self._clocks.acquire(key, slots)


class GlobalRaceCheck:
    """Writes of a launch's CTAs to the same global bytes, over all its batches.

    For each granule of a region that is written: 0 for nobody, the CTA's number for a plain write, its negative for
    an atomic one, ``_SEVERAL`` for atomics of several CTAs.
    """

    _SEVERAL = np.iinfo(np.int32).min

    def __init__(self, program: Program) -> None:
        self._size = granule(program)
        self._writers: dict[int, tuple[Region, Array]] = {}

    def write(self, m: Machine, piece: Piece, size: int) -> None:
        """Plain writes of ``size`` bytes."""
        writers, at, mine, slots = self._granules(m, piece, size)
        before = writers[at]
        races = (before != 0) & (np.abs(before) != mine)
        writers[at] = mine
        races |= writers[at] != mine
        self._report(m, piece, at, slots, races)

    def atomic(self, m: Machine, piece: Piece, size: int) -> None:
        """Atomic writes of ``size`` bytes; they race with plain ones only."""
        writers, at, mine, slots = self._granules(m, piece, size)
        before = writers[at]
        races = (before > 0) & (before != mine)
        writers[at] = np.where((before == 0) | (before == -mine), -mine, self._SEVERAL)
        mixed = writers[at] != -mine
        writers[at[mixed]] = self._SEVERAL
        self._report(m, piece, at, slots, races)

    def _granules(self, m: Machine, piece: Piece, size: int) -> tuple[Array, Index, Array, Index]:
        known = self._writers.get(id(piece.region))
        if known is None:
            count = -(-piece.region.data.size // self._size)
            known = self._writers[id(piece.region)] = piece.region, np.zeros(count, np.int32)
        at, slots = piece.offsets >> (self._size.bit_length() - 1), piece.slots
        parts = size // self._size
        if parts > 1:
            at = (at[:, None] + np.arange(parts)).reshape(-1)
            slots = np.repeat(slots, parts)
        return known[1], at, m.geometry.number_of_slot[slots] + 1, slots

    def _report(self, m: Machine, piece: Piece, at: Index, slots: Index, races: Mask) -> None:
        if races.any():
            message = f"two CTAs write the same bytes of {piece.region.name}, not both atomically"
            address = piece.region.start + int(at[races][0]) * self._size
            m.report("race", "global", message, slots[races], address=address, space="global")
