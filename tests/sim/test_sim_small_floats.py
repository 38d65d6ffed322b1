"""Conversions to and from the 8-, 6- and 4-bit formats, against tables of every value they have."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from ptx_lab import evaluate

Array = NDArray[Any]

LAYOUTS = {"e4m3": (4, 3, 7), "e5m2": (5, 2, 15), "e2m3": (2, 3, 1), "e3m2": (3, 2, 3), "e2m1": (2, 1, 1)}
"""Bits of exponent and fraction, and the bias."""

LARGEST = {"e4m3": 0x7E, "e5m2": 0x7B, "e2m3": 0x1F, "e3m2": 0x1F, "e2m1": 0x7}
NAN = {"e4m3": 0x7F, "e5m2": 0x7F, "e2m3": 0x1F, "e3m2": 0x1F, "e2m1": 0x7}
"""What a NaN becomes; formats without one take their largest value."""


def value(element: str, pattern: int) -> float:
    """What a pattern means, by the definition of its format."""
    exponent_bits, fraction_bits, bias = LAYOUTS[element]
    fraction = pattern & (1 << fraction_bits) - 1
    exponent = pattern >> fraction_bits & (1 << exponent_bits) - 1
    sign = -1.0 if pattern >> fraction_bits + exponent_bits else 1.0
    if element == "e4m3" and pattern & 0x7F == 0x7F:
        return float("nan")
    if element == "e5m2" and exponent == 31:
        return float("nan") if fraction else sign * float("inf")
    if exponent == 0:
        return sign * fraction * 2.0 ** (1 - bias - fraction_bits)
    return sign * (1 + fraction / (1 << fraction_bits)) * 2.0 ** (exponent - bias)


def nearest(element: str, values: Array) -> Array:
    """The patterns of ``values``: the nearest, ties to the even one, saturated to the largest."""
    positive = np.array([value(element, pattern) for pattern in range(LARGEST[element] + 1)])
    size = np.fmin(np.abs(values), positive[-1])
    above = np.clip(np.searchsorted(positive, size), 1, positive.size - 1)
    low, high = size - positive[above - 1], positive[above] - size
    even = np.where(above % 2 == 0, above, above - 1)
    pattern = np.where(low < high, above - 1, np.where(high < low, above, even))
    sign = 1 << sum(LAYOUTS[element][:2])
    pattern = np.where(np.signbit(values), pattern | sign, pattern)
    return np.where(np.isnan(values), NAN[element], pattern)


def width(element: str) -> int:
    return 4 if element == "e2m1" else 8


HALVES = np.arange(1 << 16, dtype=np.uint16).view(np.float16)


@pytest.mark.parametrize("element", LAYOUTS)
@pytest.mark.parametrize("relu", ["", ".relu"])
def test_from_f32(element: str, relu: str) -> None:
    """Every f16, as an f32, and the numbers next to each half-way case."""
    values = HALVES.astype(np.float32)
    grid = np.array([value(element, pattern) for pattern in range(LARGEST[element] + 1)], np.float32)
    ties = (grid[1:] + grid[:-1]) / 2
    values = np.concatenate((values, ties, np.nextafter(ties, np.float32(0)), np.nextafter(ties, np.float32(1e9))))
    text = f"cvt.rn.satfinite{relu}.{element}x2.f32"
    if element == "e2m1":
        code = f"{{.reg .b8 t; {text} t, %a, %b; cvt.u32.u8 %res, t;}}"
    else:
        code = f"{{.reg .b16 t; {text} t, %a, %b; cvt.u32.u16 %res, t;}}"
    got = evaluate(code, "u4", values, values[::-1])
    wanted = np.where(values <= 0, np.float32(0), values) if relu else values
    with np.errstate(invalid="ignore"):
        pattern = nearest(element, wanted.astype(np.float64))
    assert np.array_equal(got, pattern << width(element) | pattern[::-1])


@pytest.mark.parametrize("element", ["e4m3", "e5m2"])
def test_from_f16x2(element: str) -> None:
    pairs = np.arange(1 << 16, dtype=np.uint32) << 16 | np.arange(1 << 16, dtype=np.uint32)[::-1]
    got = evaluate(f"cvt.rn.satfinite.{element}x2.f16x2 %res, %a;", "u2", pairs)
    pattern = nearest(element, HALVES.astype(np.float64))
    assert np.array_equal(got, pattern << 8 | pattern[::-1])


@pytest.mark.parametrize("element", LAYOUTS)
def test_to_f16x2(element: str) -> None:
    bits = 1 + sum(LAYOUTS[element][:2])
    patterns = np.arange(1 << bits, dtype=np.uint32)
    pairs = patterns << width(element) | patterns[::-1]
    source = f"{{.reg .b{8 if element == 'e2m1' else 16} t; cvt.u{8 if element == 'e2m1' else 16}.u32 t, %a;"
    got = evaluate(f"{source} cvt.rn.f16x2.{element}x2 %res, t;}}", "u4", pairs)
    values = np.array([value(element, int(pattern)) for pattern in patterns]).astype(np.float16)
    for half, want in ((got >> 16, values), (got & 0xFFFF, values[::-1])):
        halves = half.astype(np.uint16).view(np.float16)
        assert np.array_equal(halves, want, equal_nan=True)
        assert (half[np.isnan(want)] == 0x7FFF).all()
        assert np.array_equal(np.signbit(halves[~np.isnan(want)]), np.signbit(want[~np.isnan(want)]))


@pytest.mark.parametrize("mode", ["rz", "rp"])
@pytest.mark.parametrize("finite", ["", ".satfinite"])
def test_powers_of_two(mode: str, finite: str) -> None:
    """Every bf16, as CUDA's cuda_fp8.hpp converts where the hardware cannot."""
    bits = np.arange(1 << 16, dtype=np.uint32)
    want = bits >> 7 & 0xFF
    size = bits & 0x7FFF
    if mode == "rp":
        want = np.where((bits & 0x7F != 0) & (size > 0x40) & (size < 0x7F80), want + 1, want)
    if finite:
        want = np.where((size <= 0x7F80) & (want == 0xFF), 0xFE, want)
    pairs = bits << 16 | bits[::-1]
    got = evaluate(f"cvt.{mode}{finite}.ue8m0x2.bf16x2 %res, %a;", "u2", pairs)
    assert np.array_equal(got, want << 8 | want[::-1])
    single = (bits << 16).view(np.float32)
    got = evaluate(f"cvt.{mode}{finite}.ue8m0x2.f32 %res, %a, %b;", "u2", single, single[::-1].copy())
    assert np.array_equal(got, want << 8 | want[::-1])


def test_powers_of_two_to_bf16() -> None:
    patterns = np.arange(256, dtype=np.uint16)
    got = evaluate("cvt.rn.bf16x2.ue8m0x2 %res, %a;", "u4", patterns << 8 | patterns[::-1])
    values = np.array([2.0 ** (int(pattern) - 127) for pattern in patterns[:255]] + [0], np.float32)
    want = values.view(np.uint32) >> 16
    want[255] = 0x7FFF
    assert np.array_equal(got, want << 16 | want[::-1])
