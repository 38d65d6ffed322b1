"""Integer arithmetic (PTX ISA 9.7.1, 9.7.2): one row an opcode, a function of NumPy arrays.

Arrays are of the instruction's type; NumPy's integer arithmetic wraps around as PTX's does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ptxc.sim.binding import Modifiers, Pure
from ptxc.sim.scalar import TYPES, Array, PtxType

_PAIRS = {"u16x2": np.dtype(np.uint16), "s16x2": np.dtype(np.int16)}


def paired(function: Callable[..., Array], dtype: np.dtype[Any]) -> Callable[..., Array]:
    """``function`` of halves, applied to both halves of packed 32-bit operands."""

    def apply(*operands: Array) -> Array:
        low = function(*[operand.astype(np.uint16).view(dtype) for operand in operands])
        high = function(*[(operand >> np.uint32(16)).astype(np.uint16).view(dtype) for operand in operands])
        return low.view(np.uint16).astype(np.uint32) | high.view(np.uint16).astype(np.uint32) << np.uint32(16)

    return apply


def widened(kind: PtxType) -> PtxType:
    """The type of twice the width."""
    return TYPES[f"{kind.kind}{2 * kind.bits}"]


def _saturating(function: Callable[[Array, Array], Array]) -> Callable[[Array, Array], Array]:
    limits = np.iinfo(np.int32)

    def apply(a: Array, b: Array) -> Array:
        exact = function(a.astype(np.int64), b.astype(np.int64))
        return np.clip(exact, limits.min, limits.max).astype(np.int32)

    return apply


def _sum(function: Callable[[Array, Array], Array]) -> Callable[[Modifiers], Pure]:
    """``add`` and ``sub``: plain, saturating, packed, and with the carry flag."""

    def row(m: Modifiers) -> Pure:
        saturate, carry = m.flag("sat"), m.flag("cc")
        kind = m.type()
        if kind.name in _PAIRS:
            return Pure((kind,), (kind, kind), paired(function, _PAIRS[kind.name]))
        if carry:
            flag = _carry_of_sum if function is np.add else _borrow_of_difference
            return Pure((kind,), (kind, kind), lambda a, b: flag(a, b, np.zeros(1, np.bool_)), carry_out=True)
        return Pure((kind,), (kind, kind), _saturating(function) if saturate else function)

    return row


def _sum_with_carry(flag: Callable[[Array, Array, Array], tuple[Array, Array]]) -> Callable[[Modifiers], Pure]:
    def row(m: Modifiers) -> Pure:
        carry = m.flag("cc")
        kind = m.type("b u s")
        if carry:
            return Pure((kind,), (kind, kind), flag, carry_in=True, carry_out=True)
        return Pure((kind,), (kind, kind), lambda a, b, c: flag(a, b, c)[0], carry_in=True)

    return row


def _unsigned(values: Array) -> Array:
    return values.view(f"u{values.dtype.itemsize}")


def _carry_of_sum(a: Array, b: Array, carry: Array) -> tuple[Array, Array]:
    x, y = _unsigned(a), _unsigned(b)
    first = x + y
    total = first + carry.astype(x.dtype)
    return total.view(a.dtype), (first < x) | (total < first)


def _borrow_of_difference(a: Array, b: Array, borrow: Array) -> tuple[Array, Array]:
    x, y = _unsigned(a), _unsigned(b)
    first = x - y
    total = first - borrow.astype(x.dtype)
    return total.view(a.dtype), (x < y) | (first < borrow.astype(x.dtype))


def high_half(a: Array, b: Array) -> Array:
    """The upper half of the double-width product of two arrays of the same integer type."""
    bits = a.dtype.itemsize * 8
    if bits < 64:
        wide = np.dtype(f"{a.dtype.kind}{a.dtype.itemsize * 2}")
        upper: Array = (a.astype(wide) * b.astype(wide) >> wide.type(bits)).astype(a.dtype)
        return upper
    x, y = _unsigned(a), _unsigned(b)
    mask, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    x0, x1, y0, y1 = x & mask, x >> half, y & mask, y >> half
    middle = x1 * y0 + (x0 * y0 >> half)
    high = x1 * y1 + (middle >> half) + (((middle & mask) + x0 * y1) >> half)
    if a.dtype.kind == "i":
        high = high - np.where(a < 0, y, np.uint64(0)) - np.where(b < 0, x, np.uint64(0))
    signed: Array = high.view(a.dtype)
    return signed


def _product(m: Modifiers) -> Pure:
    part = m.choice(("lo", "hi", "wide"))
    kind = m.type("u s b")
    if part == "wide":
        wide = widened(kind)
        return Pure((wide,), (kind, kind), lambda a, b: a.astype(wide.dtype) * b.astype(wide.dtype))
    return Pure((kind,), (kind, kind), high_half if part == "hi" else np.multiply)


def _multiply_add(m: Modifiers) -> Pure:
    part = m.choice(("lo", "hi", "wide"))
    saturate, carry = m.flag("sat"), m.flag("cc")
    kind = m.type("u s b")
    if part == "wide":
        wide = widened(kind)
        return Pure((wide,), (kind, kind, wide), lambda a, b, c: a.astype(wide.dtype) * b.astype(wide.dtype) + c)
    product = high_half if part == "hi" else np.multiply
    if carry:
        zero = np.zeros(1, np.bool_)
        return Pure((kind,), (kind, kind, kind), lambda a, b, c: _carry_of_sum(product(a, b), c, zero), carry_out=True)
    if saturate:
        add = _saturating(np.add)
        return Pure((kind,), (kind, kind, kind), lambda a, b, c: add(product(a, b), c))
    return Pure((kind,), (kind, kind, kind), lambda a, b, c: product(a, b) + c)


def _multiply_add_carry(m: Modifiers) -> Pure:
    product = high_half if m.choice(("lo", "hi")) == "hi" else np.multiply
    carry = m.flag("cc")
    kind = m.type("u s b")
    if carry:
        return Pure(
            (kind,),
            (kind, kind, kind),
            lambda a, b, c, f: _carry_of_sum(product(a, b), c, f),
            carry_in=True,
            carry_out=True,
        )
    return Pure((kind,), (kind, kind, kind), lambda a, b, c, f: _carry_of_sum(product(a, b), c, f)[0], carry_in=True)


def _product24(m: Modifiers, addend: bool) -> Pure:
    part, saturate = m.choice(("lo", "hi")), m.flag("sat")
    kind = m.type("u32 s32")
    wide = np.dtype(np.int64) if kind.kind == "s" else np.dtype(np.uint64)

    def product(a: Array, b: Array) -> Array:
        eight = np.uint32(8) if kind.kind == "u" else np.int32(8)
        exact = (a << eight >> eight).astype(wide) * (b << eight >> eight).astype(wide)
        return (exact >> wide.type(16) if part == "hi" else exact).astype(kind.dtype)

    if not addend:
        return Pure((kind,), (kind, kind), product)
    add = _saturating(np.add) if saturate else np.add
    return Pure((kind,), (kind, kind, kind), lambda a, b, c: add(product(a, b), c))


def quotient(a: Array, b: Array) -> Array:
    """Division toward zero; all ones where the divisor is zero (PTX leaves that value open)."""
    zero = b == 0
    result = a // b
    if a.dtype.kind == "i":
        result = result + ((result * b != a) & ((a < 0) != (b < 0)))
    if zero.any():
        result = np.where(zero, ~np.zeros(1, a.dtype), result)
    return result.astype(a.dtype)


def _remainder(a: Array, b: Array) -> Array:
    """The remainder that has the dividend's sign; the dividend where the divisor is zero."""
    return np.where(b == 0, a, a - quotient(a, b) * b)


def _binary(function: Callable[[Array, Array], Array]) -> Callable[[Modifiers], Pure]:
    def row(m: Modifiers) -> Pure:
        kind = m.type("u s")
        return Pure((kind,), (kind, kind), function)

    return row


def _extreme(function: Callable[[Array, Array], Array]) -> Callable[[Modifiers], Pure]:
    """``min`` and ``max``; ``.relu`` raises a negative result to zero."""

    def row(m: Modifiers) -> Pure:
        relu = m.flag("relu")
        kind = m.type()
        apply: Callable[..., Array] = (lambda a, b: np.maximum(function(a, b), 0)) if relu else function
        if kind.name in _PAIRS:
            apply = paired(apply, _PAIRS[kind.name])
        return Pure((kind,), (kind, kind), apply)

    return row


def _unary(function: Callable[[Array], Array]) -> Callable[[Modifiers], Pure]:
    def row(m: Modifiers) -> Pure:
        kind = m.type("s")
        return Pure((kind,), (kind,), function)

    return row


def _absolute_difference(m: Modifiers) -> Pure:
    kind = m.type("u s")
    return Pure((kind,), (kind, kind, kind), lambda a, b, c: c + np.where(a < b, b - a, a - b))


def _dot_product(lanes: int) -> Callable[[Modifiers], Pure]:
    """``dp4a`` and ``dp2a``: four bytes of ``a`` times four bytes, or two halves of ``a`` times two bytes, of ``b``."""

    def row(m: Modifiers) -> Pure:
        half = m.choice(("lo", "hi")) if lanes == 2 else "lo"
        kinds = m.types()
        if len(kinds) != 2 or any(kind.name not in {"u32", "s32"} for kind in kinds):
            raise m.instruction.unsupported("these types")
        result = TYPES["s32" if "s32" in {kind.name for kind in kinds} else "u32"]
        width = 8 if lanes == 4 else 16
        start = 16 if half == "hi" else 0

        def part(values: Array, at: int, bits: int) -> Array:
            field = values.astype(np.int64) << np.int64(64 - bits - at)
            shifted = field if values.dtype.kind == "i" else field.view(np.uint64)
            return (shifted >> shifted.dtype.type(64 - bits)).astype(np.int64)

        def dot(a: Array, b: Array, c: Array) -> Array:
            total = c.astype(np.int64)
            for lane in range(lanes):
                total = total + part(a, lane * width, width) * part(b, start + lane * 8, 8)
            return total.astype(result.dtype)

        return Pure((result,), (kinds[0], kinds[1], result), dot)

    return row


INTEGER: dict[str, Callable[[Modifiers], Pure]] = {
    "add": _sum(np.add),
    "sub": _sum(np.subtract),
    "addc": _sum_with_carry(_carry_of_sum),
    "subc": _sum_with_carry(_borrow_of_difference),
    "mul": _product,
    "mad": _multiply_add,
    "madc": _multiply_add_carry,
    "mul24": lambda m: _product24(m, addend=False),
    "mad24": lambda m: _product24(m, addend=True),
    "div": _binary(quotient),
    "rem": _binary(_remainder),
    "min": _extreme(np.minimum),
    "max": _extreme(np.maximum),
    "abs": _unary(np.abs),
    "neg": _unary(np.negative),
    "sad": _absolute_difference,
    "dp4a": _dot_product(4),
    "dp2a": _dot_product(2),
}
"""Opcodes whose type is an integer."""
