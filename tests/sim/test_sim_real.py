"""Floating-point arithmetic of the CPU device against rational arithmetic and the ISA's special cases."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from ptx_lab import Array, as_float, bits, evaluate, exact_fma, f16, f32, interesting_f32, round_to

from ptxc.sim.rounding import FORMATS, quantize

INF, NAN = math.inf, math.nan
MODES = ["rn", "rz", "rm", "rp"]


def f(*values: float) -> Array:
    return np.array(values, np.float32)


def d(*values: float) -> Array:
    return np.array(values, np.float64)


@pytest.mark.parametrize("mode", MODES)
def test_fma_f32_rounds_once(mode: str) -> None:
    a, b, c = (interesting_f32(4000, seed) for seed in (1, 2, 3))
    # Sums that nearly cancel or lie near half-way between two values are where a second rounding would show.
    with np.errstate(over="ignore"):
        c[::3] = -(a[::3].astype(np.float64) * b[::3]).astype(np.float32)
        c[1::3] = ((a[1::3].astype(np.float64) * b[1::3]) * 2.0**24).astype(np.float32)
    keep = np.isfinite(c)
    a, b, c = a[keep], b[keep], c[keep]
    got = evaluate(f"fma.{mode}.f32 %res, %a, %b, %c;", "f4", a, b, c)
    want = f(*[exact_fma(float(x), float(y), float(z), "f32", mode) for x, y, z in zip(a, b, c)])
    assert bits(got) == bits(want)


def test_fma_f32_halfway_cases() -> None:
    # 1 + 2^-24 is half-way: the product's last bit far below decides.
    a = f32(0x3F800001, 0x3F800001, 0x3F7FFFFF, 0x00800001)
    b = f32(0x3F800001, 0xBF800001, 0x3F800001, 0x3F000000)
    c = f32(0x33000000, 0x3F800000, 0xB3800000, 0x00000000)
    got = evaluate("fma.rn.f32 %res, %a, %b, %c;", "f4", a, b, c)
    want = f(*[exact_fma(float(x), float(y), float(z), "f32", "rn") for x, y, z in zip(a, b, c)])
    assert bits(got) == bits(want)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("opcode", ["add", "sub", "mul", "div"])
def test_f32_arithmetic_in_every_mode(opcode: str, mode: str) -> None:
    a, b = interesting_f32(2000, 4), interesting_f32(2000, 5)
    b[b == 0] = 1
    got = evaluate(f"{opcode}.{mode}.f32 %res, %a, %b;", "f4", a, b)
    assert bits(got) == bits(f(*[binary(opcode, float(x), float(y), "f32", mode) for x, y in zip(a, b)]))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("opcode", ["add", "mul", "div", "fma"])
def test_f64_arithmetic_in_every_mode(opcode: str, mode: str) -> None:
    rng = np.random.default_rng(6)
    a = rng.standard_normal(300) * 2.0 ** rng.integers(-60, 60, 300)
    b = rng.standard_normal(300) * 2.0 ** rng.integers(-60, 60, 300)
    a[:20] *= 2.0**900
    a[20:40] *= 2.0**-900
    b[10:30] *= 2.0**-120
    if opcode == "fma":
        c = -(a * b) * (1 + 2.0**-50 * rng.integers(-2, 3, 300))
        got = evaluate(f"fma.{mode}.f64 %res, %a, %b, %c;", "f8", a, b, c)
        want = [exact_fma(x, y, z, "f64", mode) for x, y, z in zip(a.tolist(), b.tolist(), c.tolist())]
    else:
        got = evaluate(f"{opcode}.{mode}.f64 %res, %a, %b;", "f8", a, b)
        want = [binary(opcode, x, y, "f64", mode) for x, y in zip(a.tolist(), b.tolist())]
    assert bits(got) == bits(d(*want))


def binary(opcode: str, a: float, b: float, form: str, mode: str) -> float:
    x, y = Fraction(a), Fraction(b)
    if opcode == "mul":
        return round_to(x * y, form, mode) if x * y else math.copysign(0.0, math.copysign(1, a) * math.copysign(1, b))
    if opcode == "div":
        return round_to(x / y, form, mode) if x else math.copysign(0.0, math.copysign(1, a) * math.copysign(1, b))
    return exact_fma(1.0, a, -b if opcode == "sub" else b, form, mode)


@pytest.mark.parametrize("mode", MODES)
def test_square_root_and_reciprocal_in_every_mode(mode: str) -> None:
    a = np.abs(interesting_f32(500, 7))
    a = a[a > 0]
    got = evaluate(f"sqrt.{mode}.f32 %res, %a;", "f4", a)
    for x, root in zip(a.tolist(), got.tolist(), strict=True):
        square, exact = Fraction(root) ** 2, Fraction(x)
        down, up = (
            Fraction(float(np.nextafter(np.float32(root), f(0)[0]))),
            Fraction(float(np.nextafter(np.float32(root), f(INF)[0]))),
        )
        if mode in {"rz", "rm"}:
            assert square <= exact < up**2
        elif mode == "rp":
            assert down**2 < exact <= square
        else:
            assert ((down + Fraction(root)) / 2) ** 2 <= exact <= ((up + Fraction(root)) / 2) ** 2
    normal = a[(a > 2.0**-120) & (a < 2.0**120)]
    got = evaluate(f"rcp.{mode}.f32 %res, %a;", "f4", normal)
    assert bits(got) == bits(f(*[round_to(1 / Fraction(x), "f32", mode) for x in normal.tolist()]))


@pytest.mark.parametrize("form", ["f16", "bf16"])
@pytest.mark.parametrize("opcode", ["add", "sub", "mul", "fma"])
def test_half_precision_rounds_once(form: str, opcode: str) -> None:
    rng = np.random.default_rng(8)
    top = 0x7C00 if form == "f16" else 0x7F80
    a, b, c = ((rng.integers(0, top, 1500) | rng.integers(0, 2, 1500) << 15).astype(np.uint16) for _ in range(3))
    operands = [a, b, c] if opcode == "fma" else [a, b]
    names = ", ".join(f"%{name}" for name in "abc"[: len(operands)])
    got = evaluate(f"{opcode}.rn.{form} %res, {names};", "u2", *operands)
    for *patterns, result in zip(*operands, got, strict=True):
        values = [as_float(int(p), form) for p in patterns]
        if opcode == "fma":
            want = exact_fma(values[0], values[1], values[2], form, "rn")
        else:
            want = binary(opcode, values[0], values[1], form, "rn")
        found = as_float(int(result), form)
        assert (found, math.copysign(1, found)) == (want, math.copysign(1, want)), (patterns, hex(result))


def test_packed_arithmetic_is_that_of_its_halves() -> None:
    rng = np.random.default_rng(9)
    words = [rng.integers(0, 1 << 32, 400, dtype=np.uint64).astype(np.uint32) for _ in range(3)]
    for form in ("f16", "bf16"):
        whole = evaluate(f"fma.rn.{form}x2 %res, %a, %b, %c;", "u4", *words)
        low = evaluate(f"fma.rn.{form} %res, %a, %b, %c;", "u2", *[w.astype(np.uint16) for w in words])
        high = evaluate(f"fma.rn.{form} %res, %a, %b, %c;", "u2", *[(w >> 16).astype(np.uint16) for w in words])
        assert np.array_equal(whole, low.astype(np.uint32) | high.astype(np.uint32) << 16)
    pairs = [interesting_f32(200, seed).view(np.uint64) for seed in (10, 11)]
    packed = evaluate("add.rn.f32x2 %res, %a, %b;", "u8", *pairs)
    single = evaluate("add.rn.f32 %res, %a, %b;", "f4", *[p.view(np.float32) for p in pairs])
    assert bits(packed.view(np.float32)) == bits(single)


def test_mixed_precision_addition() -> None:
    half = np.array([1.5, -2.25, 65504.0], np.float16)
    assert evaluate("add.f32.f16 %res, %a, %b;", "f4", half, f(1e-3, 1.0, 1.0)).tolist() == [
        float(np.float32(1.5) + np.float32(1e-3)),
        -1.25,
        65505.0,
    ]


# Zeros, NaNs, infinities, subnormals


def test_signs_of_zero() -> None:
    x, y = f(1.0, 0.0, -0.0, -0.0), f(-1.0, -0.0, 0.0, -0.0)
    assert bits(evaluate("add.rn.f32 %res, %a, %b;", "f4", x, y)) == [0, 0, 0, 0x80000000]
    assert bits(evaluate("add.rm.f32 %res, %a, %b;", "f4", x, y)) == [0x80000000] * 4
    assert bits(evaluate("fma.rm.f32 %res, %a, 0f3F800000, %b;", "f4", x, y)) == [0x80000000] * 4
    assert bits(evaluate("neg.f32 %res, %a;", "f4", f(0.0, -0.0))) == [0x80000000, 0]
    assert bits(evaluate("abs.f32 %res, %a;", "f4", f(-0.0, -INF))) == [0, 0x7F800000]


def test_nan_results_are_canonical() -> None:
    got = evaluate("add.rn.f32 %res, %a, %b;", "f4", f(INF, NAN, 1), f(-INF, 1, -NAN))
    assert bits(got) == [0x7FFFFFFF] * 3
    assert bits(evaluate("mul.f32 %res, %a, %b;", "f4", f(INF, 0), f(0, -INF))) == [0x7FFFFFFF] * 2
    assert bits(evaluate("fma.rn.f32 %res, %a, %b, %c;", "f4", f(INF, 1), f(0, NAN), f(1, 1))) == [0x7FFFFFFF] * 2
    assert bits(evaluate("sqrt.rn.f32 %res, %a;", "f4", f(-1.0))) == [0x7FFFFFFF]


def test_infinities() -> None:
    big = f(3e38, -3e38)
    assert evaluate("add.rn.f32 %res, %a, %b;", "f4", big, big).tolist() == [INF, -INF]
    assert bits(evaluate("add.rz.f32 %res, %a, %b;", "f4", big, big)) == [0x7F7FFFFF, 0xFF7FFFFF]
    assert bits(evaluate("add.rm.f32 %res, %a, %b;", "f4", big, big)) == [0x7F7FFFFF, 0xFF800000]
    assert evaluate("div.rn.f32 %res, %a, %b;", "f4", f(1, -1, 1), f(0, 0, -0.0)).tolist() == [INF, -INF, -INF]
    assert evaluate("fma.rn.f32 %res, %a, %b, %c;", "f4", f(INF), f(2), f(1)).tolist() == [INF]


def test_subnormals_are_kept_or_flushed() -> None:
    tiny = f32(0x00000001, 0x80000001, 0x007FFFFF, 0x00800000)
    assert bits(evaluate("mul.rn.f32 %res, %a, 0f3F800000;", "f4", tiny)) == bits(tiny)
    flushed = [0, 0x80000000, 0, 0x00800000]
    assert bits(evaluate("mul.rn.ftz.f32 %res, %a, 0f3F800000;", "f4", tiny)) == flushed
    assert bits(evaluate("add.ftz.f32 %res, %a, %b;", "f4", tiny, f(0, -0.0, 0, 0))) == flushed
    # A result that rounds up to the smallest normal number is no subnormal.
    assert bits(evaluate("mul.rn.ftz.f32 %res, %a, 0f3F000000;", "f4", f32(0x00FFFFFF))) == [0x00800000]
    assert bits(evaluate("fma.rn.f32 %res, %a, 0f3F000000, %b;", "f4", f32(0x00000003), f32(0))) == [2]


def test_saturation() -> None:
    values = f(-1.0, 0.5, 2.0, NAN, -0.0, INF)
    want = [0.0, 0.5, 1.0, 0.0, 0.0, 1.0]
    assert evaluate("add.sat.f32 %res, %a, %b;", "f4", values, f(0)).tolist() == want
    assert evaluate("fma.rn.sat.f32 %res, %a, %b, %c;", "f4", values, f(1), f(0)).tolist() == want
    assert bits(evaluate("cvt.sat.f32.f32 %res, %a;", "f4", f(-0.0, NAN))) == [0, 0]


def test_relu() -> None:
    half = np.array([-1.0, 2.0, NAN], np.float16)
    got = evaluate("fma.rn.relu.f16 %res, %a, %b, %c;", "f2", half, f16(1), f16(0))
    assert bits(got) == [0, 0x4000, 0x7FFF]


def test_minimum_and_maximum() -> None:
    a, b = f(1, NAN, NAN, 0.0, -0.0, -INF), f(2, 3, NAN, -0.0, 0.0, INF)
    assert bits(evaluate("min.f32 %res, %a, %b;", "f4", a, b)) == [
        *bits(f(1, 3)), 0x7FFFFFFF, 0x80000000, 0x80000000, *bits(f(-INF)),
    ]  # fmt: skip
    assert bits(evaluate("max.f32 %res, %a, %b;", "f4", a, b)) == [*bits(f(2, 3)), 0x7FFFFFFF, 0, 0, *bits(f(INF))]
    assert bits(evaluate("max.NaN.f32 %res, %a, %b;", "f4", a[:3], b[:3])) == [*bits(f(2)), 0x7FFFFFFF, 0x7FFFFFFF]
    got = evaluate("max.xorsign.abs.f32 %res, %a, %b;", "f4", f(-3, 1, -4), f(2, -5, -1))
    assert got.tolist() == [-3, -5, 4]
    assert evaluate("max.f32 %res, %a, %b, %c;", "f4", f(1, NAN), f(5, 2), f(3, NAN)).tolist() == [5, 2]
    assert evaluate("min.f64 %res, %a, %b;", "f8", d(1, NAN), d(2, 3)).tolist() == [1, 3]
    half = np.array([0x3C00, 0x7FFF], np.uint16)
    assert bits(evaluate("max.bf16 %res, %a, %b;", "u2", half, np.array([0x4000], np.uint16))) == [0x4000, 0x4000]


def test_properties() -> None:
    values = np.concatenate([f(1, -0.0, INF, NAN), f32(1)])
    for name, want in {
        "finite": [True, True, False, False, True],
        "infinite": [False, False, True, False, False],
        "number": [True, True, True, False, True],
        "notanumber": [False, False, False, True, False],
        "normal": [True, True, False, False, False],
        "subnormal": [False, False, False, False, True],
    }.items():
        assert evaluate(f"testp.{name}.f32 %res, %a;", "bool", values).tolist() == want, name
    assert evaluate("copysign.f32 %res, %a, %b;", "f4", f(-1, 2), f(3, -4)).tolist() == [-3, 4]


# Approximations: the ISA's tables of special operands, and its bounds


@pytest.mark.parametrize(
    ("opcode", "operands", "results"),
    [
        ("ex2.approx.f32", [-INF, -0.0, 0.0, INF, NAN], [0.0, 1.0, 1.0, INF, NAN]),
        ("ex2.approx.ftz.f32", [-INF, 1e-40, -127.0, 3.0, NAN], [0.0, 1.0, 0.0, 8.0, NAN]),
        ("lg2.approx.f32", [-INF, -0.0, 0.0, INF, NAN, -1.0], [NAN, -INF, -INF, INF, NAN, NAN]),
        ("rcp.approx.f32", [-INF, -0.0, 0.0, INF, NAN], [-0.0, -INF, INF, 0.0, NAN]),
        ("rcp.approx.ftz.f32", [1e-40, -1e-40, 3e38], [INF, -INF, 0.0]),
        ("sqrt.approx.f32", [-INF, -1.0, -0.0, 0.0, INF, NAN], [NAN, NAN, -0.0, 0.0, INF, NAN]),
        ("rsqrt.approx.f32", [-INF, -1.0, -0.0, 0.0, INF, NAN, 4.0], [NAN, NAN, -INF, INF, 0.0, NAN, 0.5]),
        ("sin.approx.f32", [-INF, -0.0, 0.0, INF, NAN], [NAN, -0.0, 0.0, NAN, NAN]),
        ("cos.approx.f32", [-INF, -0.0, 0.0, INF, NAN], [NAN, 1.0, 1.0, NAN, NAN]),
        ("tanh.approx.f32", [-INF, -0.0, 0.0, INF, NAN], [-1.0, -0.0, 0.0, 1.0, NAN]),
    ],
)
def test_special_operands_of_approximations(opcode: str, operands: list[float], results: list[float]) -> None:
    got = evaluate(f"{opcode} %res, %a;", "f4", f(*operands))
    want = np.where(np.isnan(f(*results)), f32(0x7FFFFFFF), f(*results))
    assert bits(got) == bits(want)


def test_approximations_are_close() -> None:
    x = np.linspace(-6, 6, 1000, dtype=np.float32)
    for opcode, function, bound in [
        ("ex2.approx.f32", np.exp2, 2.0**-22),
        ("sin.approx.f32", np.sin, 2.0**-20.5),
        ("cos.approx.f32", np.cos, 2.0**-20.5),
        ("tanh.approx.f32", np.tanh, 2.0**-11),
    ]:
        got = evaluate(f"{opcode} %res, %a;", "f4", x).astype(np.float64)
        want = function(x.astype(np.float64))
        assert (np.abs(got - want) <= bound * np.maximum(np.abs(want), 1)).all(), opcode


def test_approximate_division_of_huge_divisors() -> None:
    a, b = f(1, INF, -1, 1), f32(0x7E800001, 0x7E800001, 0x7F7FFFFF, 0x7E800000)
    got = evaluate("div.approx.f32 %res, %a, %b;", "f4", a, b)
    assert bits(got) == [0, 0x7FFFFFFF, 0x80000000, 0x00800000]
    assert evaluate("div.full.f32 %res, %a, %b;", "f4", f(1), f(3)).tolist() == [float(np.float32(1) / np.float32(3))]


def test_top_half_approximations_of_f64() -> None:
    got = evaluate("rcp.approx.ftz.f64 %res, %a;", "f8", d(-INF, -0.0, 1e-310, INF, NAN, 3.0))
    assert bits(got)[:5] == [1 << 63, 0xFFF << 52, 0x7FF << 52, 0, 0x7FFFFFFF << 32]
    assert bits(got)[5] & 0xFFFFFFFF == 0
    assert got[5] == pytest.approx(1 / 3, rel=2.0**-19)
    assert evaluate("rsqrt.approx.f64 %res, %a;", "f8", d(16.0)).tolist() == [0.25]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("form", ["f16", "bf16", "f32"])
def test_quantize_is_rounding_by_definition(form: str, mode: str) -> None:
    rng = np.random.default_rng(12)
    values = rng.standard_normal(2000) * 2.0 ** rng.integers(-150, 130, 2000)
    got = quantize(values, FORMATS[form], mode)
    assert got.tolist() == [round_to(Fraction(x), form, mode) for x in values.tolist()]
