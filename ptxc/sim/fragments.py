"""How matrices are spread over the registers of a warp's lanes (PTX ISA 9.7.16.5).

A fragment is a table ``[rows, columns]`` whose entries say where an element is among the warp's values: lane times
the number of elements a lane holds, plus the element's number in the lane's registers, lowest bits first.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ptxc.sim.scalar import Array, Index

Place = Callable[[Array, Array], tuple[Array, Array]]
"""From lanes and element numbers to rows and columns."""


def table(rows: int, columns: int, held: int, place: Place) -> Index:
    """The fragment in which each lane holds ``held`` elements, at the rows and columns that ``place`` says."""
    lane, element = np.divmod(np.arange(32 * held), held)
    row, column = place(lane, element)
    out = np.full((rows, columns), -1, np.intp)
    out[row, column] = np.arange(32 * held)
    assert (out >= 0).all()
    return out


def a_16(k: int, per_register: int) -> Index:
    """A of ``m16n8k...``: 16 x k, ``per_register`` elements in each 32 bits (figures of 9.7.16.5.4 to 9.7.16.5.11)."""

    def place(lane: Array, element: Array) -> tuple[Array, Array]:
        register, part = np.divmod(element, per_register)
        row = lane // 4 + 8 * (register & 1)
        return row, lane % 4 * per_register + part + 4 * per_register * (register >> 1)

    return table(16, k, 16 * k // 32, place)


def b_8(k: int, per_register: int) -> Index:
    """B of ``m16n8k...``: k x 8."""

    def place(lane: Array, element: Array) -> tuple[Array, Array]:
        register, part = np.divmod(element, per_register)
        return lane % 4 * per_register + part + 4 * per_register * register, lane // 4

    return table(k, 8, k * 8 // 32, place)


def c_16() -> Index:
    """C and D of ``m16n8k...``: 16 x 8."""
    return table(16, 8, 4, lambda lane, i: (lane // 4 + 8 * (i >> 1), lane % 4 * 2 + (i & 1)))


# m8n8k4: four products a warp, each by eight lanes (9.7.16.5.1)


def _quad_pairs(rows: int, columns: int, held: int, place: Place) -> Index:
    """``[4, rows, columns]``: the product that lanes 4p to 4p+3 and 16+4p to 16+4p+3 compute is the p-th."""
    lane, element = np.divmod(np.arange(32 * held), held)
    row, column = place(lane, element)
    out = np.full((4, rows, columns), -1, np.intp)
    out[lane % 16 // 4, row, column] = np.arange(32 * held)
    assert (out >= 0).all()
    return out


def _outer(lane: Array) -> Array:
    return lane % 4 + np.where(lane < 16, 0, 4)


def volta_a(row_major: bool) -> Index:
    """A of ``m8n8k4``: 8 x 4."""
    if row_major:
        return _quad_pairs(8, 4, 4, lambda lane, i: (_outer(lane), i))
    return _quad_pairs(8, 4, 4, lambda lane, i: (i + np.where(lane < 16, 0, 4), lane % 4))


def volta_b(row_major: bool) -> Index:
    """B of ``m8n8k4``: 4 x 8."""
    if row_major:
        return _quad_pairs(4, 8, 4, lambda lane, i: (lane % 4, i + np.where(lane < 16, 0, 4)))
    return _quad_pairs(4, 8, 4, lambda lane, i: (i, _outer(lane)))


def volta_c(single: bool) -> Index:
    """C or D of ``m8n8k4``: 8 x 8, of f32 if ``single``, else of f16."""
    if not single:
        return _quad_pairs(8, 8, 8, lambda lane, i: (_outer(lane), i))
    return _quad_pairs(
        8,
        8,
        8,
        lambda lane, i: ((lane & 1) + (i & 2) + np.where(lane < 16, 0, 4), (i & 4) + (lane & 2) + (i & 1)),
    )


# m64nNk...: a warpgroup's four warps hold 16 rows each (9.7.17.5.1.1)


def warpgroup_d(n: int) -> Index:
    """A warp's 16 x ``n`` rows of D of ``m64n..``."""
    return table(16, n, n // 2, lambda lane, i: (lane // 4 + 8 * (i >> 1 & 1), 8 * (i >> 2) + lane % 4 * 2 + (i & 1)))


# Packing


def gather(registers: Array, dtype: str, fragment: Index) -> Array:
    """The elements of ``registers`` (``[warps, 32, n]``, contiguous) in the order of ``fragment``."""
    elements = registers.view(dtype).reshape(registers.shape[0], -1)
    return elements[:, fragment]


def scatter(values: Array, fragment: Index, dtype: str) -> Array:
    """The other way: ``values`` (``[warps, *fragment.shape]``) as registers, ``[warps, 32, n]`` of ``dtype``."""
    flat = np.empty((values.shape[0], fragment.size), values.dtype)
    flat[:, fragment.reshape(-1)] = values.reshape(values.shape[0], -1)
    return flat.view(dtype).reshape(values.shape[0], 32, -1)
