"""Conversions: rounding, saturation, NaN, and the packed formats."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from ptx_lab import Array, bits, evaluate, f32, i32, interesting_f32, round_to, u16, u32
from test_sim_integer import numpy_type, operands, wrap

from ptxc.sim.convert import decoded, encoded

INF, NAN = math.inf, math.nan


def f(*values: float) -> Array:
    return np.array(values, np.float32)


@pytest.mark.parametrize(
    ("mode", "want"),
    [
        ("rni", [0, 2, 2, -2, -2, 3, 0]),
        ("rzi", [0, 1, 2, -1, -2, 2, 0]),
        ("rmi", [0, 1, 2, -2, -3, 2, -1]),
        ("rpi", [1, 2, 3, -1, -2, 3, 0]),
    ],
)
def test_float_to_integer_rounding(mode: str, want: list[int]) -> None:
    values = f(0.5, 1.5, 2.5, -1.5, -2.5, 2.7, -0.25)
    assert evaluate(f"cvt.{mode}.s32.f32 %res, %a;", "i4", values).tolist() == want
    got = evaluate(f"cvt.{mode}.f32.f32 %res, %a;", "f4", values)
    assert got.tolist() == want
    assert bits(got)[6] == (0x80000000 if want[6] == 0 else bits(f(-1))[0])


def test_float_to_integer_saturates() -> None:
    values = f(3e9, -3e9, INF, -INF, NAN, -1.0, 4294967040.0)
    assert evaluate("cvt.rzi.s32.f32 %res, %a;", "i4", values).tolist() == [
        2**31 - 1, -(2**31), 2**31 - 1, -(2**31), 0, -1, 2**31 - 1,
    ]  # fmt: skip
    assert evaluate("cvt.rzi.u32.f32 %res, %a;", "u4", values).tolist() == [
        3000000000, 0, 2**32 - 1, 0, 0, 0, 4294967040,
    ]  # fmt: skip
    assert evaluate("cvt.rzi.s8.f32 %res, %a;", "i4", f(200, -200, 5)).tolist() == [127, -128, 5]
    assert evaluate("cvt.rzi.u16.f64 %res, %a;", "u2", np.array([70000.5, -3.0])).tolist() == [65535, 0]
    assert evaluate("cvt.rzi.u64.f32 %res, %a;", "u8", f(1e19, 3e19, -1)).tolist() == [int(f(1e19)[0]), 2**64 - 1, 0]
    # NaN is zero only if neither type has 64 bits.
    assert evaluate("cvt.rzi.s64.f32 %res, %a;", "i8", f(NAN)).tolist() == [-(2**63)]
    assert evaluate("cvt.rzi.u64.f64 %res, %a;", "u8", np.array([NAN])).tolist() == [2**63]
    assert evaluate("cvt.rzi.s32.f64 %res, %a;", "i4", np.array([NAN])).tolist() == [-(2**31)]
    assert evaluate("cvt.rni.s64.f64 %res, %a;", "i8", np.array([9.3e18, -9.3e18, 2.0**62])).tolist() == [
        2**63 - 1, -(2**63), 2**62,
    ]  # fmt: skip


@pytest.mark.parametrize("mode", ["rn", "rz", "rm", "rp"])
@pytest.mark.parametrize("source", ["u32", "s32", "u64", "s64"])
@pytest.mark.parametrize("target", ["f32", "f64", "f16"])
def test_integer_to_float(target: str, source: str, mode: str) -> None:
    a = operands(source, 200, 1)
    got = evaluate(f"cvt.{mode}.{target}.{source} %res, %a;", f"f{int(target[1:]) // 8}", a)
    assert got.tolist() == [round_to(Fraction(x), target, mode) if x else 0.0 for x in a.tolist()]


@pytest.mark.parametrize("mode", ["rn", "rz", "rm", "rp"])
def test_narrowing(mode: str) -> None:
    a = interesting_f32(2000, 2)
    a = a[np.isfinite(a) & (a != 0)]
    half = evaluate(f"cvt.{mode}.f16.f32 %res, %a;", "f2", a)
    assert half.tolist() == [round_to(Fraction(x), "f16", mode) for x in a.tolist()]
    wide = a.astype(np.float64) * (1 + 2.0**-30)
    single = evaluate(f"cvt.{mode}.f32.f64 %res, %a;", "f4", wide)
    assert single.tolist() == [round_to(Fraction(x), "f32", mode) for x in wide.tolist()]
    brain = evaluate(f"cvt.{mode}.bf16.f32 %res, %a;", "u2", a)
    values = (brain.astype(np.uint32) << 16).view(np.float32)
    assert values.tolist() == [round_to(Fraction(x), "bf16", mode) for x in a.tolist()]


def test_widening_is_exact() -> None:
    half = np.arange(0x7C00, dtype=np.uint16)
    assert np.array_equal(evaluate("cvt.f32.f16 %res, %a;", "f4", half), half.view(np.float16).astype(np.float32))
    assert bits(evaluate("cvt.f32.bf16 %res, %a;", "f4", u16(0x3F80, 1))) == [0x3F800000, 0x00010000]
    assert evaluate("cvt.f64.f32 %res, %a;", "f8", f32(1)).tolist() == [2.0**-149]
    assert bits(evaluate("cvt.ftz.f64.f32 %res, %a;", "f8", f32(0x80000001))) == [1 << 63]
    assert bits(evaluate("cvt.rn.ftz.f32.f64 %res, %a;", "f4", np.array([1e-40]))) == [0]


def test_packed_pairs() -> None:
    high, low = f(1.0, -2.0), f(0.5, 70000.0)
    assert evaluate("cvt.rn.f16x2.f32 %res, %a, %b;", "u4", high, low).tolist() == [0x3C003800, 0xC0007C00]
    assert evaluate("cvt.rn.satfinite.f16x2.f32 %res, %a, %b;", "u4", high, low).tolist() == [0x3C003800, 0xC0007BFF]
    assert evaluate("cvt.rn.relu.bf16x2.f32 %res, %a, %b;", "u4", high, low).tolist() == [0x3F803F00, 0x00004789]
    assert evaluate("cvt.rna.tf32.f32 %res, %a;", "u4", f32(0x3F801000, 0x3F800FFF, 0xBF801000)).tolist() == [
        0x3F802000, 0x3F800000, 0xBF802000,
    ]  # fmt: skip


@pytest.mark.parametrize("element", ["e4m3", "e5m2", "e2m3", "e3m2", "e2m1"])
def test_small_formats_round_trip(element: str) -> None:
    width = int(element[1]) + int(element[3]) + 1
    patterns = np.arange(1 << width, dtype=np.uint32)
    values = decoded(patterns, element)
    finite = np.isfinite(values)
    assert np.array_equal(encoded(values[finite], element, "rn"), patterns[finite])
    positive = values[finite & (patterns < 1 << (width - 1))]
    assert (np.diff(positive) > 0).all()


def test_small_formats_by_instruction() -> None:
    a, b = f(448.0, 1.0, NAN, -1000.0), f(0.001953125, 17.0, 0.0, 1.0625)
    got = evaluate("cvt.rn.satfinite.e4m3x2.f32 %res, %a, %b;", "u2", a, b)
    assert got.tolist() == [0x7E01, 0x3858, 0x7F00, 0xFE38]
    assert evaluate("cvt.rn.f16x2.e4m3x2 %res, %a;", "u4", u16(0x3858)).tolist() == [0x3C004C00]
    assert evaluate("cvt.rn.satfinite.e5m2x2.f32 %res, %a, %b;", "u2", f(1.0), f(57344.0)).tolist() == [0x3C7B]
    body = ".reg .b8 pair; cvt.rn.satfinite.e2m1x2.f32 pair, %a, %b; mov.b16 %res, {pair, pair};"
    assert evaluate(body, "u2", f(6.0), f(-0.5)).tolist() == [0x7979]


def test_integers() -> None:
    a = i32(-1, 300, -300, 100)
    assert evaluate("cvt.s8.s32 %res, %a;", "i4", a).tolist() == [-1, 44, -44, 100]
    assert evaluate("cvt.u8.s32 %res, %a;", "u4", a).tolist() == [255, 44, 212, 100]
    assert evaluate("cvt.sat.s8.s32 %res, %a;", "i4", a).tolist() == [-1, 127, -128, 100]
    assert evaluate("cvt.sat.u8.s32 %res, %a;", "u4", a).tolist() == [0, 255, 0, 100]
    assert evaluate("cvt.s64.s32 %res, %a;", "i8", a).tolist() == a.tolist()
    assert evaluate("cvt.u64.u32 %res, %a;", "u8", a).tolist() == [wrap(x, "u32") for x in a.tolist()]
    assert evaluate("cvt.s32.s8 %res, %a;", "i4", i32(0x180)).tolist() == [-128]
    wide = operands("s64", 50, 3)
    assert evaluate("cvt.u32.u64 %res, %a;", "u4", wide).tolist() == [wrap(x, "u32") for x in wide.tolist()]
    assert numpy_type("s64") == "i8"


def test_pack() -> None:
    a, b = i32(300, -5), i32(-200, 7)
    assert evaluate("cvt.pack.sat.s16.s32 %res, %a, %b;", "u4", a, b).tolist() == [0x012CFF38, 0xFFFB0007]
    c = u32(0xAABB, 1)
    assert evaluate("cvt.pack.sat.u8.s32.b32 %res, %a, %b, %c;", "u4", a, b, c).tolist() == [0xAABBFF00, 0x00010007]
