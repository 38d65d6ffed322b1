"""Which rows and columns of a tile a lane holds, as index expressions of its number in the warp."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from ptxc.frontend.linear import Linear, constant
from ptxc.ir.values import Value

if TYPE_CHECKING:
    from ptxc.frontend.lower import Lowering

_WARP = constant(32)
_ZERO = constant(0)


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


def bit(k: Lowering, at: int) -> Linear:
    """The bit ``at`` of the lane's number."""
    e = k.expressions
    return e.once(("bit", at), lambda: e.modulo(e.divide(lane(k), constant(1 << at)), constant(2)))


def of_bits(k: Lowering, **weights: int) -> Linear:
    """The sum of the weights of the bits (``b0`` to ``b4``) that the lane's number has; ``low`` weighs ``lane % 4``."""
    return k.expressions.once(("bits", *weights.items()), lambda: _of_bits(k, weights))


def _of_bits(k: Lowering, weights: dict[str, int]) -> Linear:
    total = _ZERO
    for name, weight in weights.items():
        part = in_group(k) if name == "low" else bit(k, int(name[1]))
        total = k.expressions.registers.add(total, part, weight)
    return in_one(k, total)


def in_one(k: Lowering, own: Linear) -> Linear:
    """A sum that depends on the lane alone as a multiple of one register: addresses are made of fewer terms.

    As it is the same in all loops, it stands first in sums, wherever it is first needed.
    """
    if not own.terms:
        return own
    e = k.expressions
    step = math.gcd(own.constant, *own.terms.values())
    part = e.registers.split(own, step)[0]
    register = e.register(part, 32)
    assert isinstance(register, Value)
    e.registers.add_atom(register, part.lo, part.hi, 0)
    return e.registers.scale(e.registers.linear(register), step)


def accumulator(k: Lowering, layout: str, interleaved: tuple[int, int] | None = None) -> Accumulator:
    """The elements that a lane holds of one accumulator, whose layout :mod:`.registers` knows.

    ``m16n8k16`` (PTX ISA, "Matrix Fragments for mma.m16n8k16"; per warp, that of wgmma is as many of these side by
    side): the pairs of columns ``2 * (lane % 4)`` in the rows ``lane / 4`` and ``lane / 4 + 8``.

    ``m8n8k4`` (PTX ISA, "Matrix Fragments for mma.m8n8k4 with .f16 floating point type", the f32 accumulator): see
    :func:`_volta`. ``interleaved`` is the place, along rows and columns, of a tile whose neighbours share a square.
    """
    if layout == "m8n8k4":
        if interleaved is None:
            return k.expressions.once("volta", lambda: _volta(k))
        m, n = (at & 1 for at in interleaved)
        return k.expressions.once(("volta", m, n), lambda: _volta_interleaved(k, m, n))
    return k.expressions.once("accumulator", lambda: _sixteen_by_eight(k))


def _sixteen_by_eight(k: Lowering) -> Accumulator:
    registers = k.expressions.registers
    row, pair = group(k), registers.scale(in_group(k), 2)
    rows = [row, registers.add(row, constant(8))]
    columns = [pair, registers.add(pair, constant(1))]
    return Accumulator([rows[0], rows[0], rows[1], rows[1]], columns * 2)


def _volta(k: Lowering) -> Accumulator:
    """A square of 16 x 16, a quarter of it for each of the warp's four products of 8 x 8.

    Bits 2 and 3 of the lane's number say which quarter, the others which of its elements: two rows, two apart, and two
    pairs of columns, four apart (Emmy's ``M8N8K4``).
    """
    row, column = of_bits(k, b0=1, b3=8, b4=4), of_bits(k, b1=2, b2=8)
    return _elements(k, row, column, 4)


def _volta_interleaved(k: Lowering, m: int, n: int) -> Accumulator:
    """A quarter of a square of 32 x 32 that four tiles share, two by two.

    Each of the products of 8 x 8 has its two rows and pairs of columns in both halves of the square. A tile's index is
    that of a square of 16 x 16, so the odd ones begin 12 before theirs (Emmy's ``RegStore._element_coords``).
    """
    registers = k.expressions.registers
    row, column = of_bits(k, b0=1, b2=8, b4=16), of_bits(k, b1=2, b3=8)
    row = registers.add(row, constant(-12 * m))
    return _elements(k, row, registers.add(column, constant(-12 * n)), 16)


def _elements(k: Lowering, row: Linear, column: Linear, far: int) -> Accumulator:
    """Two rows of two pairs of columns: bit 0 of an element's number is the column, bit 1 the row, bit 2 the pair."""
    add = k.expressions.registers.add
    rows = [add(row, constant(element & 2)) for element in range(8)]
    return Accumulator(
        rows, [add(column, constant((element & 1) + (far if element & 4 else 0))) for element in range(8)]
    )
