"""Which lane of a warp holds which element of a matrix, as the PTX ISA's figures show it.

Sources: the PTX ISA, "Matrix Fragments for mma.m16n8k16" (and m16n8k8, m16n8k32, m16n8k64, m8n8k4). A fragment is an
array of the shape (lanes, elements of a lane), a matrix one of (warps, rows, columns). Elements of a register count
from its low bits.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

LANE = np.arange(32)[:, None]
#: The ISA's groupID and threadID_in_group.
_GROUP, _THREAD = LANE >> 2, LANE & 3


class LaneMap:
    """Element ``i`` of lane ``l`` is at ``row[l, i]``, ``column[l, i]`` of a ``rows`` x ``columns`` matrix."""

    def __init__(self, rows: int, columns: int, row: Array, column: Array) -> None:
        self.rows, self.columns = rows, columns
        self.row, self.column = np.broadcast_arrays(row, column)
        self._lanes, self._each = self.row.shape
        self._place = (self.row * columns + self.column).reshape(-1)
        self._source = np.zeros(rows * columns, np.int64)
        self._source[self._place] = np.arange(self._place.size)

    def matrices(self, fragment: Array) -> Array:
        """The matrices (warps, rows, columns) of a fragment (lanes, elements)."""
        found: Array = fragment.reshape(-1, self._place.size)[:, self._source]
        return found.reshape(-1, self.rows, self.columns)

    def elements(self, matrices: Array) -> Array:
        """The fragment (lanes, elements) of matrices (warps, rows, columns)."""
        found: Array = matrices.reshape(-1, self.rows * self.columns)[:, self._place]
        return found.reshape(-1, self._each)


@cache
def operand_a(each: int, packed: int) -> LaneMap:
    """A of m16n8k*: ``each`` elements of a lane, ``packed`` of them in each register."""
    at = np.arange(each)
    register, inner = at // packed, at % packed
    row = _GROUP + 8 * (register & 1)
    column = _THREAD * packed + inner + 4 * packed * (register >> 1)
    return LaneMap(16, 2 * each, row, column)


@cache
def operand_b(each: int, packed: int) -> LaneMap:
    """B of m16n8k*, which has the reduced dimension as its rows."""
    at = np.arange(each)
    row = _THREAD * packed + at % packed + 4 * packed * (at // packed)
    return LaneMap(4 * each, 8, row, _GROUP)


_AT = np.arange(4)
#: C and D of m16n8k*.
ACCUMULATOR = LaneMap(16, 8, _GROUP + 8 * (_AT >> 1), _THREAD * 2 + (_AT & 1))

# ------------------------------------------------------------------------------------------------------------ m8n8k4
#
# A warp computes four products of 8 x 8 x 4, one in each group of eight lanes: lanes 4g to 4g + 3 and those 16 beyond.

_EIGHT = np.arange(8)[:, None]
_FOURTH = np.arange(4)
_WIDE = np.arange(8)

#: A by rows: a lane has a row; as B by columns, a lane has a column.
VOLTA_ROWS = LaneMap(8, 4, _EIGHT, _FOURTH)
VOLTA_COLUMNS = LaneMap(4, 8, _FOURTH, _EIGHT)
#: B by rows: the lower four lanes have the first four columns of their row.
VOLTA_B_BY_ROWS = LaneMap(4, 8, _EIGHT & 3, 4 * (_EIGHT >> 2) + _FOURTH)
#: C of f32 and of f16.
VOLTA_C = LaneMap(8, 8, (_EIGHT & 1) + (_WIDE & 2) + 4 * (_EIGHT >> 2), (_WIDE & 4) + (_EIGHT & 2) + (_WIDE & 1))
VOLTA_C_HALF = LaneMap(8, 8, _EIGHT, _WIDE)


def volta_groups(fragment: Array) -> Array:
    """A fragment (lanes, elements) with the eight lanes of each group together: (groups * 8, elements)."""
    each = fragment.shape[1]
    parted: Array = fragment.reshape(-1, 2, 4, 4, each).transpose(0, 2, 1, 3, 4)
    return parted.reshape(-1, each)


def volta_lanes(groups: Array) -> Array:
    """The reverse of :func:`volta_groups`."""
    each = groups.shape[1]
    parted: Array = groups.reshape(-1, 4, 2, 4, each).transpose(0, 2, 1, 3, 4)
    return parted.reshape(-1, each)


#: The group of each lane, and its place of eight in it.
_QUAD, _PLACE = (LANE & 15) >> 2, (LANE & 3) + 4 * (LANE >> 4)

#: The four products as quarters of one of 16 x 16 x 4: the row of A and the column of B that a lane holds.
VOLTA_ROW = 8 * (_QUAD >> 1) + _PLACE
VOLTA_COLUMN = 8 * (_QUAD & 1) + _PLACE
#: C of f32 of the four.
VOLTA_WHOLE = LaneMap(
    16,
    16,
    8 * (_QUAD >> 1) + (LANE & 1) + (_WIDE & 2) + 4 * (LANE >> 4),
    8 * (_QUAD & 1) + (_WIDE & 4) + (LANE & 2) + (_WIDE & 1),
)

#: Two fragments of each operand make a product of 32 x 32: what fragment 0 holds, 1 holds four further.
#: The row of A; the column of B by columns; the first of four columns of B by rows.
VOLTA_PAIR_ROW = 16 * (LANE >> 4) + 8 * ((LANE >> 2) & 1) + (LANE & 3)
VOLTA_PAIR_COLUMN = 16 * (LANE >> 4) + 8 * ((LANE >> 3) & 1) + (LANE & 3)
VOLTA_PAIR_FOUR = 16 * (LANE >> 4) + 8 * ((LANE >> 3) & 1)
#: Where C of f32 lies in it, fragment (0, 0); a fragment further, four further.
VOLTA_PAIR_C = (
    16 * ((LANE >> 4) & 1) + 8 * ((LANE >> 2) & 1) + (LANE & 1) + (_WIDE & 2),
    8 * ((LANE >> 3) & 1) + (LANE & 2) + 4 * (_WIDE & 4) + (_WIDE & 1),
)
