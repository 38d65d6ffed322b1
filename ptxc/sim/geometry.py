"""Where the threads of a batch of CTAs sit: one slot a thread, each CTA padded to whole warps."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ptxc.sim.scalar import Array, Index, Mask

Dim3 = tuple[int, int, int]


@dataclass(slots=True)
class Geometry:
    """The slots of a batch. Slot ``s`` is thread ``s % slots`` of the batch's CTA ``s // slots``.

    ``tid``, ``ntid``, ``ctaid`` and ``nctaid`` are the special registers' three axes, ``lane`` and ``warp`` the
    thread's place in its CTA; arrays of u32, of one element where all threads agree. ``exists`` marks the slots that
    are threads and not padding. ``cta_of_slot`` counts the batch's CTAs, ``number_of_slot`` is the CTA's linear id in
    the grid.
    """

    ctas: list[Dim3]
    block: Dim3
    grid: Dim3
    slots: int
    tid: tuple[Array, Array, Array]
    ntid: tuple[Array, Array, Array]
    ctaid: tuple[Array, Array, Array]
    nctaid: tuple[Array, Array, Array]
    lane: Array
    warp: Array
    exists: Mask
    cta_of_slot: Index
    number_of_slot: Array

    @property
    def threads(self) -> int:
        """How many slots the batch has."""
        return len(self.ctas) * self.slots

    def place(self, slot: int) -> tuple[Dim3, int]:
        """The CTA and the linear thread id of a slot."""
        return self.ctas[slot // self.slots], slot % self.slots


def padded(block: Dim3) -> int:
    """How many slots a CTA of ``block`` threads takes: its threads, up to a whole warp."""
    return -(-(block[0] * block[1] * block[2]) // 32) * 32


def geometry(ctas: list[Dim3], block: Dim3, grid: Dim3) -> Geometry:
    """The slots of a batch of ``ctas``, each of ``block`` threads, of a launch of ``grid`` CTAs."""
    slots, count = padded(block), len(ctas)
    linear = np.arange(slots, dtype=np.uint32)
    x, y = np.uint32(block[0]), np.uint32(block[1])
    tid = [linear % x, linear // x % y, linear // (x * y)]
    ids = np.array(ctas, np.uint32).reshape(count, 3)
    exists = np.tile(linear < block[0] * block[1] * block[2], count)
    return Geometry(
        ctas,
        block,
        grid,
        slots,
        _triple([_one_if_same(np.tile(axis, count), exists) for axis in tid]),
        _triple([np.array([n], np.uint32) for n in block]),
        _triple([_one_if_same(np.repeat(ids[:, at], slots), exists) for at in range(3)]),
        _triple([np.array([n], np.uint32) for n in grid]),
        np.tile(linear % np.uint32(32), count),
        np.tile(linear // np.uint32(32), count),
        exists,
        np.repeat(np.arange(count, dtype=np.intp), slots),
        np.repeat(ids @ np.array([1, grid[0], grid[0] * grid[1]], np.uint32), slots).astype(np.int32),
    )


def _one_if_same(values: Array, exists: Mask) -> Array:
    inside = values[exists]
    return inside[:1] if (inside == inside[0]).all() else values


def _triple(axes: list[Array]) -> tuple[Array, Array, Array]:
    return axes[0], axes[1], axes[2]
