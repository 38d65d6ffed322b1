"""Accesses that do not conflict with one another, reads or atomics, of each granule of a memory.

Of plain writes the last is enough to know: whoever is ordered behind it is ordered behind those before. Reads, and
atomics, may be many that nothing orders, and a write must be ordered behind each of them.
"""

from __future__ import annotations

import numpy as np

from ptxc.sim.order import BITS, Order
from ptxc.sim.scalar import Array, Index, Mask

NOBODY, MANY = -1, -2


class Touches:
    """The era and the thread (``MANY`` for several) of the last ones.

    Where fewer threads than a CTA's meet, for each warp also the time of its last, counted from 1, and which lanes had
    a part in it; and of lanes that did so earlier and that none of the later ones is ordered behind, how late that was
    at most. ``reads``: these are reads, which a warp operation orders though it makes no memory visible.
    """

    def __init__(self, order: Order, count: int, *, reads: bool) -> None:
        self.order = order
        self._reads = reads
        self._era = np.zeros(count, np.int32)
        self._slot = np.zeros(count, np.int32)
        if order.clocks is not None:
            self._time, self._early_time = (np.zeros((count, order.warps), np.int32) for _ in range(2))
            self._lanes, self._early_lanes = (np.zeros((count, order.warps), np.uint32) for _ in range(2))
        self._any = False

    def forget(self, at: Index | slice) -> None:
        """Nobody has touched the granules ``at`` yet."""
        self._era[at] = -1
        self._slot[at] = NOBODY
        if self.order.clocks is not None and self._any:
            for array in (self._time, self._early_time, self._lanes, self._early_lanes):
                array[at] = 0

    def note(self, at: Index, slots: Array, era: Array) -> None:
        """``slots`` touch the granules ``at`` in their ``era``."""
        known = self._slot[at]
        alone = (self._era[at] != era) | (known == slots)
        mine = np.where(alone, slots, MANY).astype(np.int32)
        self._era[at] = era
        self._slot[at] = mine
        shared = self._slot[at] != mine
        if shared.any():
            self._slot[at[shared]] = MANY
        if self.order.clocks is not None:
            self._note_time(at, slots)
        self._any = True

    def _note_time(self, at: Index, slots: Array) -> None:
        clocks = self.order.clocks
        assert clocks is not None
        warp = slots >> 5
        column = warp % self.order.warps
        now = clocks.time[warp] + 1
        if clocks.partly:
            self._keep_early(at, column, slots, now)
        earlier = np.where(self._time[at, column] == now, self._lanes[at, column], np.uint32(0))
        lanes = earlier | BITS[slots & 31]
        self._lanes[at, column] = lanes
        self._time[at, column] = now
        lost = self._lanes[at, column] != lanes
        if lost.any():
            np.bitwise_or.at(self._lanes, (at[lost], column[lost]), lanes[lost])

    def _keep_early(self, at: Index, column: Array, slots: Array, now: Array) -> None:
        """What is about to be replaced joins the early ones, less the lanes that one of ``slots`` knows of."""
        new = (self._time[at, column] != now) | (self._early_lanes[at, column] != 0)
        if not new.any():
            return
        at, column, slots, now = at[new], column[new], slots[new], now[new]
        time, early = self._time[at, column], self._early_time[at, column]
        replaced = np.where(time != now, self._lanes[at, column], np.uint32(0))
        left = self._unknown(slots, replaced, time) | self._unknown(slots, self._early_lanes[at, column], early)
        self._early_time[at, column] = np.maximum(early, np.where(replaced != 0, time, 0))
        self._early_lanes[at, column] |= replaced
        np.bitwise_and.at(self._early_lanes, (at, column), left)

    def _unknown(self, slots: Array, lanes: Array, time: Array) -> Array:
        """Those of the ``lanes`` of its warp that each of ``slots`` is not ordered behind, whose ``time`` it was."""
        clocks = self.order.clocks
        assert clocks is not None
        rows = (clocks.lanes_read if self._reads else clocks.lanes)[slots]
        unknown = np.where(rows < time[:, None], BITS[None, :], np.uint32(0)).sum(1, dtype=np.uint32)
        left: Array = lanes & unknown & ~BITS[slots & 31]
        return left

    def unordered(self, at: Index, slots: Array, era: Array) -> tuple[Index, Array]:
        """Which accesses to ``at`` by ``slots`` are not ordered behind all others' touches, and whose those are."""
        if not self._any:
            return np.zeros(0, np.intp), np.zeros(0, np.int32)
        toucher, touched = self._slot[at], self._era[at]
        races = touched >= era
        if self.order.anyone_left:
            races |= self.order.never_ordered(toucher, touched)
        races &= toucher != slots
        which = np.flatnonzero(races)
        if which.size and self.order.clocks is not None:
            which = which[self._unordered_by_time(at[which], slots[which])]
        return which, toucher[which]

    def _unordered_by_time(self, at: Index, slots: Array) -> Mask:
        clocks = self.order.clocks
        assert clocks is not None
        warp = slots >> 5
        own = warp % self.order.warps
        in_warp = self._unknown(slots, self._lanes[at, own], self._time[at, own])
        if clocks.partly:
            in_warp |= self._unknown(slots, self._early_lanes[at, own], self._early_time[at, own])
        behind = self._time[at] <= clocks.warps[warp]
        behind[np.arange(at.size), own] = True
        unordered: Mask = (in_warp != 0) | ~behind.all(1)
        return unordered
