"""Which rows and columns of a tile a lane holds, as index expressions of its number in the warp."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ptxc.errors import UnsupportedError
from ptxc.frontend.linear import Linear, constant

if TYPE_CHECKING:
    from ptxc.frontend.lower import Lowering

_WARP = constant(32)


class Accumulator(NamedTuple):
    """The rows and columns of the elements of an accumulator that a lane holds, in the order of its registers."""

    rows: list[Linear]
    columns: list[Linear]


def lane(k: Lowering) -> Linear:
    """The thread's number in its warp."""
    e = k.expressions
    return e.once("lane", lambda: e.modulo(e.special("tid.x"), _WARP))


def group(k: Lowering) -> Linear:
    """``lane / 4``: the row of an accumulator's elements, the column of B's."""
    e = k.expressions
    return e.once("group", lambda: e.divide(lane(k), constant(4)))


def in_group(k: Lowering) -> Linear:
    """``lane % 4``: which pair of columns of an accumulator, which pair of a fragment's k."""
    e = k.expressions
    return e.once("in group", lambda: e.modulo(lane(k), constant(4)))


def accumulator(k: Lowering, layout: str) -> Accumulator:
    """The elements that a lane holds of one accumulator. Raises UnsupportedError for an unknown layout.

    ``m16n8k16`` (PTX ISA, "Matrix Fragments for mma.m16n8k16"; per warp, that of wgmma is as many of these side by
    side): the pairs of columns ``2 * (lane % 4)`` in the rows ``lane / 4`` and ``lane / 4 + 8``.
    """
    if layout not in ("m16n8k16", "wgmma"):
        raise UnsupportedError(f"accumulators of the layout {layout!r} are not supported yet")
    return k.expressions.once("accumulator", lambda: _sixteen_by_eight(k))


def _sixteen_by_eight(k: Lowering) -> Accumulator:
    registers = k.expressions.registers
    row, pair = group(k), registers.scale(in_group(k), 2)
    rows = [row, registers.add(row, constant(8))]
    columns = [pair, registers.add(pair, constant(1))]
    return Accumulator([rows[0], rows[0], rows[1], rows[1]], columns * 2)
