"""The ``race`` check: accesses of a CTA's threads that nothing orders.

Two threads of a CTA race when they touch the same byte, one of them writes, not both are atomic, and no barrier orders
them (``ptxc.sim.order``), whichever of them came first in this run. Memory is watched in granules of the smallest size
that the kernel accesses.

A ``cp.async`` writes from its issue until it is waited for: any access in between races with it, even its own
thread's. Ordering by atomics, fences and flags is not understood; kernels that rely on it show false races in shared
memory, and global memory is not watched in them (``ptxc.sim.global_race``).
"""

from __future__ import annotations

import numpy as np

from ptxc.sim.access import Piece
from ptxc.sim.machine import Machine
from ptxc.sim.order import BITS, Order
from ptxc.sim.program import Program
from ptxc.sim.scalar import TYPES, Array, Index, Mask

_NOBODY, _MANY = -1, -2
_IN_FLIGHT = np.iinfo(np.int32).max
_ATOMIC = 1 << 30


def granule(program: Program) -> int:
    """The bytes of the smallest access of ``program``, at most 4."""
    sizes = [4]
    for item in program.instructions:
        if item.opcode in {"ld", "st", "atom", "red", "ldu"}:
            sizes += [TYPES[name].size for name in item.modifiers if name in TYPES]
    return min(sizes)


def granules(piece: Piece, size: int, unit: int) -> tuple[Index, Array]:
    """Accesses of ``size`` bytes as granules of ``unit`` bytes, with the thread of each."""
    at = piece.offsets >> (unit.bit_length() - 1)
    slots = piece.slots.astype(np.int32)
    parts = size // unit
    if parts > 1:
        at = (at[:, None] + np.arange(parts)).reshape(-1)
        slots = np.repeat(slots, parts)
    return at, slots


class Watch:
    """The accesses to a piece of memory, of ``count`` granules of ``unit`` bytes.

    For each granule: the era, the thread and the time of the last write, and of the reads since. A thread is its
    slot, ``_MANY`` for several; ``_ATOMIC`` is added for atomics. ``_IN_FLIGHT`` as a write's era is a ``cp.async``
    that was not waited for. Times of reads are counted from 1. Nothing is known of a granule until it is forgotten:
    arrays of zeros take no memory where nobody looks.
    """

    def __init__(self, order: Order, unit: int, count: int) -> None:
        self.order = order
        self._unit = unit
        self._write_era = np.zeros(count, np.int32)
        self._write_slot = np.zeros(count, np.int32)
        self._read_era = np.zeros(count, np.int32)
        self._read_slot = np.zeros(count, np.int32)
        if order.clocks is not None:
            self._write_time = np.zeros(count, np.int32)
            self._read_time = np.zeros((count, order.warps), np.int32)
            self._read_lanes = np.zeros((count, order.warps), np.uint32)
        self._any_read = False

    def forget(self, at: Index | slice) -> None:
        """Nobody has touched the granules ``at`` yet."""
        self._write_era[at] = -1
        self._write_slot[at] = _NOBODY
        self._read_era[at] = -1
        self._read_slot[at] = _NOBODY
        if self.order.clocks is not None and self._any_read:
            self._read_time[at] = 0

    # Accesses: granules ``at`` by the threads ``slots``

    def read(self, m: Machine, piece: Piece, at: Index, slots: Array) -> None:
        """Plain reads."""
        era = self.order.era[slots]
        self._against_writes(m, piece, at, slots, era, atomic=False)
        known = self._read_slot[at]
        alone = (self._read_era[at] != era) | (known == slots)
        mine = np.where(alone, slots, _MANY).astype(np.int32)
        self._read_era[at] = era
        self._read_slot[at] = mine
        shared = self._read_slot[at] != mine
        if shared.any():
            self._read_slot[at[shared]] = _MANY
        if self.order.clocks is not None:
            self._note_read_time(at, slots)
        self._any_read = True

    def write(self, m: Machine, piece: Piece, at: Index, slots: Array) -> None:
        """Plain writes."""
        era = self.order.era[slots]
        self._against_writes(m, piece, at, slots, era, atomic=False)
        self._against_reads(m, piece, at, slots, era)
        self._note_write(at, slots, era)
        self._within(m, piece, at, slots)

    def atomic(self, m: Machine, piece: Piece, at: Index, slots: Array) -> None:
        """Atomic reads and writes."""
        era = self.order.era[slots]
        self._against_writes(m, piece, at, slots, era, atomic=True)
        self._against_reads(m, piece, at, slots, era)
        mine = slots | _ATOMIC
        alone = (self._write_era[at] != era) | (self._write_slot[at] == mine)
        self._note_write(at, np.where(alone, mine, _MANY), era)
        shared = self._write_slot[at] != mine
        if shared.any():
            self._write_slot[at[shared]] = _MANY

    def async_issued(self, m: Machine, piece: Piece, at: Index, slots: Array) -> None:
        """A ``cp.async`` starts to write."""
        era = self.order.era[slots]
        self._against_writes(m, piece, at, slots, era, atomic=False)
        self._against_reads(m, piece, at, slots, era)
        self._note_write(at, slots, np.full(1, _IN_FLIGHT, np.int32))
        self._within(m, piece, at, slots)

    def async_arrived(self, at: Index, slots: Array) -> None:
        """The threads ``slots`` have waited for what they copied."""
        self._note_write(at, slots, self.order.era[slots])

    def _note_write(self, at: Index, slots: Array, era: Array) -> None:
        self._write_era[at] = era
        self._write_slot[at] = slots
        clocks = self.order.clocks
        if clocks is not None:
            self._write_time[at] = clocks.time[(slots & (_ATOMIC - 1)) >> 5 if slots.min() >= 0 else 0]

    def _note_read_time(self, at: Index, slots: Array) -> None:
        clocks = self.order.clocks
        assert clocks is not None
        warp = slots >> 5
        column = warp % self.order.warps
        now = clocks.time[warp] + 1
        earlier = np.where(self._read_time[at, column] == now, self._read_lanes[at, column], np.uint32(0))
        lanes = earlier | BITS[slots & 31]
        self._read_lanes[at, column] = lanes
        self._read_time[at, column] = now
        lost = self._read_lanes[at, column] != lanes
        if lost.any():
            np.bitwise_or.at(self._read_lanes, (at[lost], column[lost]), lanes[lost])

    # Conflicts

    def _against_writes(self, m: Machine, piece: Piece, at: Index, slots: Array, era: Array, *, atomic: bool) -> None:
        """Report accesses that are not ordered behind the last write of their granule."""
        written = self._write_era[at]
        suspect = written >= era
        if self.order.anyone_left:
            writer = self._write_slot[at]
            suspect |= self.order.never_ordered(np.where(writer >= 0, writer & (_ATOMIC - 1), writer), written)
        if not suspect.any():
            return
        at, slots = at[suspect], slots[suspect]
        writer, flying = self._write_slot[at], written[suspect] == _IN_FLIGHT
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
        clocks = self.order.clocks
        if clocks is None or not races.any():
            return races
        which = np.flatnonzero(races & (others >= 0))
        ordered = clocks.knows(slots[which], others[which]) > self._write_time[at[which]]
        races = races.copy()
        races[which[ordered]] = False
        return races

    def _against_reads(self, m: Machine, piece: Piece, at: Index, slots: Array, era: Array) -> None:
        """Report writes that are not ordered behind the reads of their granule."""
        if not self._any_read:
            return
        reader, read = self._read_slot[at], self._read_era[at]
        races = read >= era
        if self.order.anyone_left:
            races |= self.order.never_ordered(reader, read)
        races &= reader != slots
        if not races.any():
            return
        at, slots, reader = at[races], slots[races], reader[races]
        if self.order.clocks is not None:
            unordered = self._reads_unordered(at, slots)
            at, slots, reader = at[unordered], slots[unordered], reader[unordered]
        if at.size:
            message = "overwrites what another thread reads with no barrier between"
            self._report(m, piece, "after read", message, at, slots, reader)

    def _reads_unordered(self, at: Index, slots: Array) -> Mask:
        clocks = self.order.clocks
        assert clocks is not None
        warp = slots >> 5
        own = warp % self.order.warps
        readers = (self._read_lanes[at, own] & ~BITS[slots & 31])[:, None] & BITS[None, :] != 0
        in_warp = readers & (clocks.lanes_read[slots] < self._read_time[at, own][:, None])
        behind = self._read_time[at] <= clocks.warps[warp]
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
        offset, region = int(at[0]) * self._unit, piece.region
        address = offset % m.shared_stride if region is m.shared else region.start + offset
        threads = np.unique(slots).astype(np.intp)
        first = np.concatenate((slots[:1].astype(np.intp), threads[threads != slots[0]]))
        m.report("race", kind, message + who, first, address=address, space=region.space)


class SharedRaceCheck:
    """The accesses to a batch's shared memory, where the memory of each CTA has its own granules."""

    def __init__(self, m: Machine, order: Order) -> None:
        self._unit = granule(m.program)
        self._watch = Watch(order, self._unit, m.shared.data.size // self._unit)
        self._watch.forget(slice(None))

    def read(self, m: Machine, piece: Piece, size: int) -> None:
        """Plain reads of ``size`` bytes."""
        self._watch.read(m, piece, *granules(piece, size, self._unit))

    def write(self, m: Machine, piece: Piece, size: int) -> None:
        """Plain writes of ``size`` bytes."""
        self._watch.write(m, piece, *granules(piece, size, self._unit))

    def atomic(self, m: Machine, piece: Piece, size: int) -> None:
        """Atomic reads and writes of ``size`` bytes."""
        self._watch.atomic(m, piece, *granules(piece, size, self._unit))

    def async_issued(self, m: Machine, piece: Piece, size: int) -> None:
        """A ``cp.async`` starts to write ``size`` bytes."""
        self._watch.async_issued(m, piece, *granules(piece, size, self._unit))

    def async_arrived(self, piece: Piece, size: int) -> None:
        """The threads of ``piece`` have waited for what they copied."""
        self._watch.async_arrived(*granules(piece, size, self._unit))
