"""Integer arithmetic of the CPU device against Python's integers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from ptx_lab import Array, evaluate, i32, u32

TYPES = ["u16", "s16", "u32", "s32", "u64", "s64"]


def numpy_type(kind: str) -> str:
    return f"{'i' if kind[0] == 's' else 'u'}{int(kind[1:]) // 8}"


def operands(kind: str, count: int, seed: int) -> Array:
    """Random values, many of them at the ends of the range."""
    rng = np.random.default_rng(seed)
    limits = np.iinfo(numpy_type(kind))
    values = rng.integers(limits.min, limits.max, count, dtype=numpy_type(kind), endpoint=True)
    ends = rng.choice(np.array([limits.min, limits.min + 1, 0, 1, limits.max - 1, limits.max], values.dtype), count)
    return np.where(rng.random(count) < 0.3, ends, values)


def wrap(value: int, kind: str) -> int:
    bits = int(kind[1:])
    value &= (1 << bits) - 1
    return value - (1 << bits) if kind[0] == "s" and value >> (bits - 1) else value


def truncating(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


BINARY: dict[str, Callable[[int, int], int]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul.lo": lambda a, b: a * b,
    "div": lambda a, b: truncating(a, b) if b else -1,
    "rem": lambda a, b: a - truncating(a, b) * b if b else a,
    "min": min,
    "max": max,
}


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("opcode", BINARY)
def test_binary(opcode: str, kind: str) -> None:
    a, b = operands(kind, 400, 1), operands(kind, 400, 2)
    got = evaluate(f"{opcode}.{kind} %res, %a, %b;", numpy_type(kind), a, b)
    want = [wrap(BINARY[opcode](int(x), int(y)), kind) for x, y in zip(a, b)]
    assert got.tolist() == want


@pytest.mark.parametrize("kind", TYPES)
def test_high_and_wide_products(kind: str) -> None:
    bits = int(kind[1:])
    a, b = operands(kind, 300, 3), operands(kind, 300, 4)
    c = operands(kind, 300, 5)
    high = evaluate(f"mul.hi.{kind} %res, %a, %b;", numpy_type(kind), a, b)
    assert high.tolist() == [int(x) * int(y) >> bits for x, y in zip(a, b)]
    got = evaluate(f"mad.hi.{kind} %res, %a, %b, %c;", numpy_type(kind), a, b, c)
    assert got.tolist() == [wrap((int(x) * int(y) >> bits) + int(z), kind) for x, y, z in zip(a, b, c)]
    got = evaluate(f"mad.lo.{kind} %res, %a, %b, %c;", numpy_type(kind), a, b, c)
    assert got.tolist() == [wrap(int(x) * int(y) + int(z), kind) for x, y, z in zip(a, b, c)]
    if bits == 64:
        return
    wide = f"{kind[0]}{2 * bits}"
    got = evaluate(f"mul.wide.{kind} %res, %a, %b;", numpy_type(wide), a, b)
    assert got.tolist() == [int(x) * int(y) for x, y in zip(a, b)]
    d = operands(wide, 300, 6)
    got = evaluate(f"mad.wide.{kind} %res, %a, %b, %c;", numpy_type(wide), a, b, d)
    assert got.tolist() == [wrap(int(x) * int(y) + int(z), wide) for x, y, z in zip(a, b, d)]


def test_saturating_sums() -> None:
    a, b = operands("s32", 300, 7), operands("s32", 300, 8)
    low, high = -(2**31), 2**31 - 1
    got = evaluate("add.sat.s32 %res, %a, %b;", "i4", a, b)
    assert got.tolist() == [min(max(int(x) + int(y), low), high) for x, y in zip(a, b)]
    got = evaluate("sub.sat.s32 %res, %a, %b;", "i4", a, b)
    assert got.tolist() == [min(max(int(x) - int(y), low), high) for x, y in zip(a, b)]


def test_carry_makes_128_bit_sums() -> None:
    words = [operands("u32", 500, seed) for seed in range(10, 14)]
    add = "add.cc.u32 %r40, %a, %c; addc.u32 %r41, %b, %d; mov.b64 %res, {%r40, %r41};"
    got = evaluate(add, "u8", *words)
    low, high = ([int(x) for x in w] for w in (words[0], words[1]))
    whole = [x | y << 32 for x, y in zip(low, high)]
    other = [int(x) | int(y) << 32 for x, y in zip(words[2], words[3])]
    assert got.tolist() == [(x + y) % 2**64 for x, y in zip(whole, other)]
    sub = "sub.cc.u32 %r40, %a, %c; subc.u32 %r41, %b, %d; mov.b64 %res, {%r40, %r41};"
    assert evaluate(sub, "u8", *words).tolist() == [(x - y) % 2**64 for x, y in zip(whole, other)]
    # A carry through three words, the last of them only the carry.
    chain = "mov.u32 %r42, 0; add.cc.u32 %r40, %a, %c; addc.cc.u32 %r41, %b, %d; addc.u32 %res, %r42, 0;"
    assert evaluate(chain, "u4", *words).tolist() == [(x + y) >> 64 for x, y in zip(whole, other)]
    # 64 x 32 -> 96 bits by mad.
    product = (
        "mul.lo.u32 %r40, %a, %c; mul.hi.u32 %r41, %a, %c; mad.lo.cc.u32 %r41, %b, %c, %r41;"
        "madc.hi.u32 %r42, %b, %c, 0; mov.b64 %res, {%r41, %r42};"
    )
    got = evaluate(product, "u8", *words[:3])
    assert got.tolist() == [x * int(y) >> 32 for x, y in zip(whole, words[2])]


def test_products_of_24_bits() -> None:
    a, b = operands("u32", 200, 20), operands("u32", 200, 21)
    exact = [(int(x) % 2**24) * (int(y) % 2**24) for x, y in zip(a, b)]
    assert evaluate("mul24.lo.u32 %res, %a, %b;", "u4", a, b).tolist() == [x % 2**32 for x in exact]
    assert evaluate("mul24.hi.u32 %res, %a, %b;", "u4", a, b).tolist() == [x >> 16 for x in exact]
    assert evaluate("mad24.lo.s32 %res, %a, %b, 5;", "i4", i32(-3), i32(7)).tolist() == [-16]


def test_signs() -> None:
    a = np.array([-5, 7, 0, -(2**31)], np.int32)
    assert evaluate("abs.s32 %res, %a;", "i4", a).tolist() == [5, 7, 0, -(2**31)]
    assert evaluate("neg.s32 %res, %a;", "i4", a).tolist() == [5, -7, 0, -(2**31)]
    assert evaluate("max.relu.s32 %res, %a, %b;", "i4", a, i32(-1)).tolist() == [0, 7, 0, 0]
    assert evaluate("sad.u32 %res, %a, %b, %c;", "u4", u32(2), u32(5), u32(10)).tolist() == [13]
    assert evaluate("sad.s32 %res, %a, %b, %c;", "i4", i32(-2), i32(5), i32(10)).tolist() == [17]


def test_packed_halves() -> None:
    a, b = u32(0x0001FFFF, 0x80007FFF), u32(0x00020001, 0x80000001)
    assert evaluate("add.u16x2 %res, %a, %b;", "u4", a, b).tolist() == [0x00030000, 0x00008000]
    assert evaluate("min.s16x2 %res, %a, %b;", "u4", a, b).tolist() == [0x0001FFFF, 0x80000001]
    assert evaluate("max.u16x2 %res, %a, %b;", "u4", a, b).tolist() == [0x0002FFFF, 0x80007FFF]


def test_dot_products() -> None:
    a, b = u32(0x01FF0380), u32(0x02020202)
    assert evaluate("dp4a.u32.u32 %res, %a, %b, 1;", "u4", a, b).tolist() == [1 + 2 * (0x01 + 0xFF + 0x03 + 0x80)]
    assert evaluate("dp4a.s32.s32 %res, %a, %b, 1;", "i4", a, b).tolist() == [1 + 2 * (1 - 1 + 3 - 128)]
    assert evaluate("dp2a.lo.u32.u32 %res, %a, %b, 0;", "u4", a, u32(0x04030201)).tolist() == [0x0380 + 2 * 0x01FF]
    assert evaluate("dp2a.hi.s32.u32 %res, %a, %b, 0;", "i4", u32(0xFFFF0001), u32(0x04030201)).tolist() == [3 - 4]


def test_division_by_zero_stops_nothing() -> None:
    got = evaluate("div.u32 %res, %a, %b;", "u4", u32(7), u32(0))
    assert got.tolist() == [0xFFFFFFFF]
