"""Constants: how integers wrap and floats round, against NumPy and against exact arithmetic."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ptxc.ir.types import B16, B32, B64, F32, F64, PRED, Type
from ptxc.ir.values import FALSE, TRUE, Const, bfloat_bits, half_bits, integer, real, real_of

#: Doubles of every kind, among them many near the limits and the midpoints of the narrow formats.
DOUBLES = st.one_of(
    st.floats(),
    st.floats(width=32),
    st.floats(width=16),
    st.builds(math.ldexp, st.integers(-(2**13), 2**13), st.integers(-160, 130)),
)
ROUND_LIMITS = [65504.0, 65519.999999999, 65520.0, 2.0**-24, 2.0**-25, 2.0**-149, 2.0**-150, 3.4028234663852886e38]
ROUND_LIMITS += [3.4028235677973366e38, 3.3895313892515355e38, 3.3961775292304665e38, math.inf, 0.0, 1.0 + 2**-8]


@pytest.mark.parametrize(
    ("bank", "value", "bits"),
    [
        (PRED, 0, 0), (PRED, 1, -1), (PRED, -1, -1), (PRED, 2, 0),
        (B16, 32767, 32767), (B16, 32768, -32768), (B16, 65535, -1),
        (B32, 2**31 - 1, 2**31 - 1), (B32, 2**31, -(2**31)), (B32, -(2**31) - 1, 2**31 - 1), (B32, 2**40, 0),
        (B64, 2**63, -(2**63)), (B64, -1, -1), (B64, 2**64 + 5, 5),
    ],
)  # fmt: skip
def test_integers_wrap(bank: Type, value: int, bits: int) -> None:
    assert integer(bank, value) == Const(bank, bits)


@given(st.sampled_from([PRED, B16, B32, B64]), st.integers())
def test_integers_are_the_signed_number_of_the_same_bits(bank: Type, value: int) -> None:
    bits = integer(bank, value).bits
    assert (bits - value) % 2**bank.bits == 0
    assert -(2 ** (bank.bits - 1)) <= bits < 2 ** (bank.bits - 1)


def test_predicates() -> None:
    assert (TRUE.bits, FALSE.bits) == (-1, 0)


def with_limits[Test: Callable[..., None]](test: Test) -> Test:
    for limit in ROUND_LIMITS:
        test = example(limit)(example(-limit)(test))
    return test


@given(DOUBLES)
@with_limits
def test_f64_is_exact(value: float) -> None:
    constant = real(F64, value)
    assert struct.pack(">Q", constant.bits) == struct.pack(">d", value)
    assert same(real_of(constant), value)


@given(DOUBLES)
@with_limits
def test_f32_rounds_as_numpy_does(value: float) -> None:
    with np.errstate(all="ignore"):
        rounded = np.float32(value)
    constant = real(F32, value)
    assert same(real_of(constant), float(rounded))
    assert math.isnan(value) or constant.bits == int(rounded.view(np.uint32))


@given(DOUBLES)
@with_limits
def test_f16_rounds_as_numpy_does(value: float) -> None:
    with np.errstate(all="ignore"):
        rounded = np.float16(value)
    half = np.array(half_bits(value), np.uint16).view(np.float16)
    assert same(float(half), float(rounded))
    assert math.isnan(value) or half_bits(value) == int(rounded.view(np.uint16))


@given(DOUBLES)
@with_limits
def test_bf16_is_the_nearest_of_an_f32(value: float) -> None:
    bits = bfloat_bits(value)
    single = real_of(real(F32, value))
    if math.isnan(single):
        assert bits == 0x7FFF
    else:
        assert bits == nearest_bfloat(single)


def nearest_bfloat(single: float) -> int:
    """The bfloat16 that is nearest to a number, with the even one of two as near, by exact arithmetic."""
    sign = 0x8000 if math.copysign(1, single) < 0 else 0
    if math.isinf(single):
        return sign | 0x7F80
    below = real(F32, abs(single)).bits >> 16
    # What would follow the largest finite number stands for an infinity: rounding knows no limit.
    down, up = (exact(bits) - Fraction(abs(single)) for bits in (below, below + 1))
    return sign | (below if -down < up or (-down == up and below % 2 == 0) else below + 1)


def exact(bits: int) -> Fraction:
    """The number that the bits of a positive bfloat16 spell, an infinity's as if exponents went on."""
    exponent, fraction = bits >> 7, bits & 0x7F
    return Fraction(fraction + 128 * (exponent > 0)) * Fraction(2) ** (max(exponent, 1) - 134)


def same(a: float, b: float) -> bool:
    return struct.pack("d", a) == struct.pack("d", b) or (math.isnan(a) and math.isnan(b))
