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
from ptxc.sim.order import Order
from ptxc.sim.program import Program
from ptxc.sim.scalar import TYPES, Array, Index
from ptxc.sim.touches import NOBODY, Touches

_IN_FLIGHT = np.iinfo(np.int32).max
_AFTER_WRITE = "races with a write that no barrier orders before it"


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

    For each granule: the era, the thread (its slot) and the time of the last plain write, the reads and the atomics.
    ``_IN_FLIGHT`` as a write's era is a ``cp.async`` that was not waited for. Nothing is known of a granule until it is
    forgotten: arrays of zeros take no memory where nobody looks.
    """

    def __init__(self, order: Order, unit: int, count: int) -> None:
        self._order = order
        self._unit = unit
        self._write_era = np.zeros(count, np.int32)
        self._write_slot = np.zeros(count, np.int32)
        if order.clocks is not None:
            self._write_time = np.zeros(count, np.int32)
        self._reads = Touches(order, count, reads=True)
        self._atomics = Touches(order, count, reads=False)
        #: How many ``wgmma`` that were not waited for read each granule; None before the first.
        self._reading: Array | None = None

    def begin(self, order: Order) -> None:
        """The next batch of CTAs begins; what is known of the last one's must be forgotten when they touch it."""
        self._order = self._reads.order = self._atomics.order = order

    def forget(self, at: Index | slice) -> None:
        """Nobody has touched the granules ``at`` yet."""
        self._write_era[at] = -1
        self._write_slot[at] = NOBODY
        self._reads.forget(at)
        self._atomics.forget(at)

    # Accesses: granules ``at`` by the threads ``slots``

    def read(self, m: Machine, piece: Piece, at: Index, slots: Array) -> None:
        """Plain reads."""
        era = self._order.era[slots]
        self._against_writes(m, piece, at, slots, era)
        self._against_atomics(m, piece, at, slots, era)
        self._reads.note(at, slots, era)

    def write(self, m: Machine, piece: Piece, at: Index, slots: Array) -> None:
        """Plain writes."""
        era = self._before_write(m, piece, at, slots)
        self._note_write(at, slots, era)
        self._within(m, piece, at, slots)

    def atomic(self, m: Machine, piece: Piece, at: Index, slots: Array) -> None:
        """Atomic reads and writes."""
        era = self._order.era[slots]
        self._against_writes(m, piece, at, slots, era)
        self._against_reads(m, piece, at, slots, era)
        self._atomics.note(at, slots, era)

    def async_issued(self, m: Machine, piece: Piece, at: Index, slots: Array) -> None:
        """A ``cp.async`` starts to write."""
        self._before_write(m, piece, at, slots)
        self._note_write(at, slots, np.full(1, _IN_FLIGHT, np.int32))
        self._within(m, piece, at, slots)

    def async_arrived(self, at: Index, slots: Array) -> None:
        """The threads ``slots`` have waited for what they copied."""
        self._note_write(at, slots, self._order.era[slots])

    def async_read(self, m: Machine, piece: Piece, at: Index, slots: Array) -> None:
        """A ``wgmma`` starts to read."""
        era = self._order.era[slots]
        self._against_writes(m, piece, at, slots, era)
        self._against_atomics(m, piece, at, slots, era)
        if self._reading is None:
            self._reading = np.zeros(self._write_era.size, np.int32)
        np.add.at(self._reading, at, 1)

    def async_read_done(self, at: Index, slots: Array) -> None:
        """The threads ``slots`` have waited for it."""
        if self._reading is not None:
            np.subtract.at(self._reading, at, 1)
        self._reads.note(at, slots, self._order.era[slots])

    def _before_write(self, m: Machine, piece: Piece, at: Index, slots: Array) -> Array:
        era = self._order.era[slots]
        self._against_writes(m, piece, at, slots, era)
        self._against_atomics(m, piece, at, slots, era)
        self._against_reads(m, piece, at, slots, era)
        return era

    def _note_write(self, at: Index, slots: Array, era: Array) -> None:
        self._write_era[at] = era
        self._write_slot[at] = slots
        if self._order.clocks is not None:
            self._write_time[at] = self._order.clocks.time[slots >> 5]

    # Conflicts

    def _against_writes(self, m: Machine, piece: Piece, at: Index, slots: Array, era: Array) -> None:
        """Report accesses that are not ordered behind the last write of their granule."""
        written = self._write_era[at]
        suspect = written >= era
        if self._order.anyone_left:
            suspect |= self._order.never_ordered(self._write_slot[at], written)
        if not suspect.any():
            return
        at, slots = at[suspect], slots[suspect]
        writer, flying = self._write_slot[at], written[suspect] == _IN_FLIGHT
        if flying.any():
            message = "touches what a cp.async writes that was not waited for"
            self._report(m, piece, "in flight", message, at[flying], slots[flying], writer[flying])
        races = (writer != slots) & ~flying
        if self._order.clocks is not None and races.any():
            which = np.flatnonzero(races)
            ordered = self._order.clocks.knows(slots[which], writer[which]) > self._write_time[at[which]]
            races[which[ordered]] = False
        if races.any():
            self._report(m, piece, "after write", _AFTER_WRITE, at[races], slots[races], writer[races])

    def _against_atomics(self, m: Machine, piece: Piece, at: Index, slots: Array, era: Array) -> None:
        """Report plain accesses that are not ordered behind the atomics of their granule."""
        which, others = self._atomics.unordered(at, slots, era)
        if which.size:
            self._report(m, piece, "after write", _AFTER_WRITE, at[which], slots[which], others)

    def _against_reads(self, m: Machine, piece: Piece, at: Index, slots: Array, era: Array) -> None:
        """Report writes that are not ordered behind the reads of their granule."""
        if self._reading is not None and (self._reading[at] > 0).any():
            flying = self._reading[at] > 0
            message = "overwrites what a wgmma reads that was not waited for"
            self._report(m, piece, "being read", message, at[flying], slots[flying], np.full(1, NOBODY))
        which, others = self._reads.unordered(at, slots, era)
        if which.size:
            message = "overwrites what another thread reads with no barrier between"
            self._report(m, piece, "after read", message, at[which], slots[which], others)

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

    def async_read(self, m: Machine, piece: Piece, size: int) -> None:
        """A ``wgmma`` starts to read ``size`` bytes."""
        self._watch.async_read(m, piece, *granules(piece, size, self._unit))

    def async_read_done(self, piece: Piece, size: int) -> None:
        """The threads of ``piece`` have waited for it."""
        self._watch.async_read_done(*granules(piece, size, self._unit))
