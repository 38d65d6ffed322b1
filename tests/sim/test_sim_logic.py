"""Bits, shifts, comparisons and selection against the ISA's pseudo-code, written with Python's integers."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable

import numpy as np
import pytest
from ptx_lab import Array, bits, evaluate, f32, i32, u32
from test_sim_integer import numpy_type, operands, wrap

M32 = 0xFFFFFFFF


def lanes(*arrays: Array) -> list[tuple[int, ...]]:
    return list(zip(*[[int(x) for x in a] for a in np.broadcast_arrays(*arrays)], strict=True))


def test_logic() -> None:
    a, b = operands("u32", 100, 1), operands("u32", 100, 2)
    for opcode, function in {"and": operator.and_, "or": operator.or_, "xor": operator.xor}.items():
        got = evaluate(f"{opcode}.b32 %res, %a, %b;", "u4", a, b)
        assert got.tolist() == [function(x, y) for x, y in lanes(a, b)]
    assert evaluate("not.b32 %res, %a;", "u4", a).tolist() == [x ^ M32 for x in a.tolist()]
    assert evaluate("cnot.b32 %res, %a;", "u4", u32(0, 5)).tolist() == [1, 0]
    got = evaluate(
        "setp.ne.u32 %p1, %a, 0; setp.ne.u32 %p2, %b, 0; xor.pred %res, %p1, %p2;", "bool", u32(0, 1), u32(1, 1)
    )
    assert got.tolist() == [True, False]


@pytest.mark.parametrize("kind", ["u16", "s16", "u32", "s32", "u64", "s64"])
def test_shifts_clamp_their_amount(kind: str) -> None:
    width = int(kind[1:])
    a = operands(kind, 200, 3)
    n = np.random.default_rng(4).choice(np.array([0, 1, 5, 15, 16, 31, 32, 33, 63, 64, 2**32 - 1], np.uint32), 200)
    right = evaluate(f"shr.{kind} %res, %a, %b;", numpy_type(kind), a, n)
    assert right.tolist() == [x >> min(y, width) for x, y in lanes(a, n)]
    left = evaluate(f"shl.b{width} %res, %a, %b;", numpy_type(kind), a, n)
    assert left.tolist() == [wrap(x << min(y, width), kind) for x, y in lanes(a, n)]


def test_funnel_shifts() -> None:
    a, b = operands("u32", 100, 5), operands("u32", 100, 6)
    c = np.random.default_rng(7).choice(u32(0, 1, 16, 31, 32, 33, 40), 100)
    for mode in ("wrap", "clamp"):
        amounts = [y & 31 if mode == "wrap" else min(y, 32) for y in c.tolist()]
        joined = [x | y << 32 for x, y in lanes(a, b)]
        left = evaluate(f"shf.l.{mode}.b32 %res, %a, %b, %c;", "u4", a, b, c)
        assert left.tolist() == [(v << n) >> 32 & M32 for v, n in zip(joined, amounts)]
        right = evaluate(f"shf.r.{mode}.b32 %res, %a, %b, %c;", "u4", a, b, c)
        assert right.tolist() == [v >> n & M32 for v, n in zip(joined, amounts)]


def extract(a: int, b: int, c: int, kind: str) -> int:
    msb, pos, length = int(kind[1:]) - 1, b & 255, c & 255
    a &= (1 << msb + 1) - 1
    sign = 0 if kind[0] == "u" or length == 0 else a >> min(pos + length - 1, msb) & 1
    value = 0
    for i in range(msb + 1):
        value |= (a >> (pos + i) & 1 if i < length and pos + i <= msb else sign) << i
    return wrap(value, kind)


@pytest.mark.parametrize("kind", ["u32", "s32", "u64", "s64"])
def test_bit_field_extract_and_insert(kind: str) -> None:
    rng = np.random.default_rng(8)
    a, b = operands(kind, 300, 9), operands(kind, 300, 10)
    pos = rng.choice(u32(0, 1, 7, 31, 32, 40, 63, 64, 255, 256), 300)
    length = rng.choice(u32(0, 1, 5, 8, 31, 32, 33, 64, 255), 300)
    got = evaluate(f"bfe.{kind} %res, %a, %b, %c;", numpy_type(kind), a, pos, length)
    assert got.tolist() == [extract(x, p, n, kind) for x, p, n in lanes(a, pos, length)]
    got = evaluate(f"bfi.b{kind[1:]} %res, %a, %b, %c, %d;", numpy_type(kind), a, b, pos, length)
    want = []
    for x, y, p, n in lanes(a, b, pos, length):
        value = y
        for i in range(n & 255):
            if (p & 255) + i < int(kind[1:]):
                at = 1 << (p & 255) + i
                value = value | at if x >> i & 1 else value & ~at
        want.append(wrap(value, kind))
    assert got.tolist() == want


def test_counting_and_finding_bits() -> None:
    a = operands("u32", 200, 11)
    assert evaluate("popc.b32 %res, %a;", "u4", a).tolist() == [x.bit_count() for x in a.tolist()]
    assert evaluate("clz.b32 %res, %a;", "u4", a).tolist() == [32 - x.bit_length() for x in a.tolist()]
    wide = operands("u64", 200, 12)
    assert evaluate("clz.b64 %res, %a;", "u4", wide).tolist() == [64 - x.bit_length() for x in wide.tolist()]
    assert evaluate("bfind.u32 %res, %a;", "u4", a).tolist() == [x.bit_length() - 1 & M32 for x in a.tolist()]
    signed = operands("s64", 200, 13)
    at = [(~x if x < 0 else x).bit_length() - 1 for x in signed.tolist()]
    assert evaluate("bfind.s64 %res, %a;", "u4", signed).tolist() == [x & M32 for x in at]
    amounts = [63 - x if x >= 0 else M32 for x in at]
    assert evaluate("bfind.shiftamt.s64 %res, %a;", "u4", signed).tolist() == amounts
    assert evaluate("brev.b32 %res, %a;", "u4", a).tolist() == [int(f"{x:032b}"[::-1], 2) for x in a.tolist()]
    assert evaluate("brev.b64 %res, %a;", "u8", wide).tolist() == [int(f"{x:064b}"[::-1], 2) for x in wide.tolist()]


def test_finding_the_nth_bit() -> None:
    mask = u32(0b101101)
    cases = [(0, 0, 0), (1, 0, M32), (0, 1, 0), (0, 2, 2), (0, 4, 5), (0, 5, M32), (5, -1, 5), (5, -2, 3), (1, 1, 2)]
    base, offset, want = zip(*cases, strict=True)
    got = evaluate("fns.b32 %res, %a, %b, %c;", "u4", mask, u32(*base), np.array(offset, np.int32))
    assert got.tolist() == list(want)


def test_masks_and_extension() -> None:
    assert evaluate("bmsk.clamp.b32 %res, %a, %b;", "u4", u32(1, 0, 32, 28), u32(2, 32, 1, 8)).tolist() == [
        6, M32, 0, 0xF0000000,
    ]  # fmt: skip
    assert evaluate("bmsk.wrap.b32 %res, %a, %b;", "u4", u32(1, 33), u32(2, 34)).tolist() == [6, 6]
    values, widths = u32(0x1FF, 0x0FF, M32, 0x80), u32(8, 8, 0, 40)
    assert evaluate("szext.clamp.s32 %res, %a, %b;", "u4", values, widths).tolist() == [M32, M32, 0, 0x80]
    assert evaluate("szext.wrap.u32 %res, %a, %b;", "u4", values, widths).tolist() == [0xFF, 0xFF, 0, 0x80]


def test_byte_permutation() -> None:
    a, b = u32(0x33221100), u32(0xF7665544)
    assert evaluate("prmt.b32 %res, %a, %b, 0x7531;", "u4", a, b).tolist() == [0xF7553311]
    assert evaluate("prmt.b32 %res, %a, %b, 0xF8F8;", "u4", a, b).tolist() == [0xFF00FF00]
    modes = {
        "f4e": [0x33221100, 0x44332211, 0x55443322, 0x66554433],
        "b4e": [0x5566F700, 0x66F70011, 0xF7001122, 0x00112233],
        "rc8": [0x00000000, 0x11111111, 0x22222222, 0x33333333],
        "ecl": [0x33221100, 0x33221111, 0x33222222, 0x33333333],
        "ecr": [0x00000000, 0x11111100, 0x22221100, 0x33221100],
        "rc16": [0x11001100, 0x33223322, 0x11001100, 0x33223322],
    }
    for mode, want in modes.items():
        assert evaluate(f"prmt.b32.{mode} %res, %a, %b, %c;", "u4", a, b, u32(0, 1, 2, 3)).tolist() == want, mode


def test_truth_tables() -> None:
    a, b, c = u32(0xF0F0), u32(0xCCCC), u32(0xAAAA)
    functions: dict[int, Callable[[int, int, int], int]] = {
        0x80: lambda x, y, z: x & y & z,
        0xFE: lambda x, y, z: x | y | z,
        0x96: lambda x, y, z: x ^ y ^ z,
        0x1A: lambda x, y, z: (x & y | z) ^ x,
        0xE8: lambda x, y, z: x & y | x & z | y & z,
        0x00: lambda x, y, z: 0,
        0xFF: lambda x, y, z: M32,
    }
    for table, function in functions.items():
        want = function(0xF0F0, 0xCCCC, 0xAAAA) & M32
        assert evaluate(f"lop3.b32 %res, %a, %b, %c, {table};", "u4", a, b, c).tolist() == [want], hex(table)
    combined = "setp.eq.u32 %p1, %c, 1; lop3.and.b32 %r40|%res, %a, %b, 0, 0xC0, %p1;"
    assert evaluate(combined, "bool", u32(3, 3, 4), u32(1, 1, 1), u32(1, 0, 1)).tolist() == [True, False, False]


# Comparisons

ORDERED: dict[str, Callable[[float, float], bool]] = {
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
}


def test_integer_comparisons() -> None:
    a, b = operands("s32", 100, 14), operands("s32", 100, 15)
    a[:30] = b[:30]
    for name, holds in ORDERED.items():
        got = evaluate(f"setp.{name}.s32 %res, %a, %b;", "bool", a, b)
        assert got.tolist() == [holds(x, y) for x, y in lanes(a, b)], name
    unsigned = a.view(np.uint32), b.view(np.uint32)
    for name, plain in {"lo": "lt", "ls": "le", "hi": "gt", "hs": "ge"}.items():
        got = evaluate(f"setp.{name}.u32 %res, %a, %b;", "bool", *unsigned)
        assert got.tolist() == [ORDERED[plain](x, y) for x, y in lanes(*unsigned)], name


@pytest.mark.parametrize("kind", ["f32", "f64", "f16", "bf16"])
def test_float_comparisons(kind: str) -> None:
    pairs = [(1.0, 2.0), (2.0, 1.0), (1.0, 1.0), (0.0, -0.0), (math.nan, 1.0), (1.0, math.nan), (math.inf, -math.inf)]
    x, y = (np.array(column, np.float64) for column in zip(*pairs, strict=True))
    if kind == "bf16":
        a, b = ((v.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16) for v in (x, y))
    else:
        a, b = (v.astype(f"f{int(kind[1:]) // 8}") for v in (x, y))
    unordered = [math.isnan(p) or math.isnan(q) for p, q in pairs]
    for name, holds in ORDERED.items():
        got = evaluate(f"setp.{name}.{kind} %res, %a, %b;", "bool", a, b)
        assert got.tolist() == [holds(p, q) and not u for (p, q), u in zip(pairs, unordered)], name
        got = evaluate(f"setp.{name}u.{kind} %res, %a, %b;", "bool", a, b)
        assert got.tolist() == [holds(p, q) or u for (p, q), u in zip(pairs, unordered)], name
    assert evaluate(f"setp.nan.{kind} %res, %a, %b;", "bool", a, b).tolist() == unordered
    assert evaluate(f"setp.num.{kind} %res, %a, %b;", "bool", a, b).tolist() == [not u for u in unordered]


def test_comparison_with_a_second_result_and_combination() -> None:
    a, b = u32(1, 2, 1, 2), u32(1, 1, 1, 1)
    flag = "setp.eq.u32 %p1, %c, 1; "
    c = u32(1, 1, 0, 0)
    equal, given = [True, False, True, False], [True, True, False, False]
    for name, join in {"and": operator.and_, "or": operator.or_, "xor": operator.xor}.items():
        got = evaluate(flag + f"setp.eq.{name}.u32 %res|%p2, %a, %b, %p1;", "bool", a, b, c)
        assert got.tolist() == [join(p, q) for p, q in zip(equal, given)]
        got = evaluate(flag + f"setp.eq.{name}.u32 %p2|%res, %a, %b, %p1;", "bool", a, b, c)
        assert got.tolist() == [join(not p, q) for p, q in zip(equal, given)]
        got = evaluate(flag + f"setp.eq.{name}.u32 _|%res, %a, %b, !%p1;", "bool", a, b, c)
        assert got.tolist() == [join(not p, not q) for p, q in zip(equal, given)]


def test_flushing_comparison() -> None:
    assert evaluate("setp.eq.f32 %res, %a, %b;", "bool", f32(1), f32(0)).tolist() == [False]
    assert evaluate("setp.eq.ftz.f32 %res, %a, %b;", "bool", f32(1), f32(0)).tolist() == [True]


def test_packed_comparison() -> None:
    a, b = u32(0x3C004000), u32(0x40003C00)
    assert evaluate("setp.lt.f16x2 %res|%p1, %a, %b;", "bool", a, b).tolist() == [False]
    assert evaluate("setp.lt.f16x2 %p1|%res, %a, %b;", "bool", a, b).tolist() == [True]
    assert evaluate("set.lt.f16x2.f16x2 %res, %a, %b;", "u4", a, b).tolist() == [0x3C000000]
    assert evaluate("set.lt.u32.f16x2 %res, %a, %b;", "u4", a, b).tolist() == [0xFFFF0000]
    assert evaluate("set.gt.bf16x2.bf16x2 %res, %a, %b;", "u4", u32(0x3F804000), u32(0x40003F80)).tolist() == [0x3F80]


def test_set() -> None:
    a, b = u32(1, 2), u32(2, 2)
    assert evaluate("set.lt.u32.u32 %res, %a, %b;", "u4", a, b).tolist() == [M32, 0]
    assert evaluate("set.lt.f32.u32 %res, %a, %b;", "f4", a, b).tolist() == [1.0, 0.0]
    got = evaluate("setp.eq.u32 %p1, 0, 0; set.lt.and.s32.u32 %res, %a, %b, !%p1;", "i4", a, b)
    assert got.tolist() == [0, 0]
    assert bits(evaluate("set.eq.f16.u32 %res, %a, %b;", "u2", a, b)) == [0, 0x3C00]


def test_selection() -> None:
    a, b, c = u32(1, 2), u32(3, 4), u32(0, 1)
    assert evaluate("setp.ne.u32 %p1, %c, 0; selp.b32 %res, %a, %b, %p1;", "u4", a, b, c).tolist() == [3, 2]
    assert evaluate("slct.u32.s32 %res, %a, %b, %c;", "u4", a, b, i32(-1, 0)).tolist() == [3, 2]
    zeros = f32(0x80000000, 0x7FC00000)
    assert evaluate("slct.u32.f32 %res, %a, %b, %c;", "u4", a, b, zeros).tolist() == [1, 4]
    assert evaluate("slct.ftz.u32.f32 %res, %a, %b, %c;", "u4", a, b, f32(0x80000001, 1)).tolist() == [1, 2]
