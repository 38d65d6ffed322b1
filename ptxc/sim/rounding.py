"""Exact floating-point arithmetic in NumPy: single rounding, every rounding mode, every format.

Narrow formats (f32, f16, bf16, tf32, the 8-, 6- and 4-bit ones) are computed in float64. A product of two of them is
exact there; a sum may not be, so it is *rounded to odd*: of the two neighbours of an inexact result the one whose
last bit is one. Rounding such a value once more, to any format at least two bits narrower and in any mode, gives what
rounding the exact value would (Boldo and Melquiond, 2008). float64 itself uses error-free transforms, and exact
rational arithmetic where those could overflow or underflow.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from ptxc.sim.scalar import Array, PtxType

CANONICAL_NAN = {"f16": 0x7FFF, "bf16": 0x7FFF, "f32": 0x7FFFFFFF, "f64": 0x7FF8000000000000}
"""The NaN that an operation makes. PTX leaves it open for f32 (9.7.3); this is what hardware returns."""

MODES = ("rn", "rz", "rm", "rp")


@dataclass(frozen=True, slots=True)
class Format:
    """A binary format: ``precision`` counts the hidden bit, ``least`` is the exponent of the smallest normal number."""

    precision: int
    least: int
    largest: float
    infinite: bool = True


FORMATS: dict[str, Format] = {
    "f32": Format(24, -126, float(np.finfo(np.float32).max)),
    "tf32": Format(11, -126, (2 - 2.0**-10) * 2.0**127),
    "f16": Format(11, -14, 65504.0),
    "bf16": Format(8, -126, (2 - 2.0**-7) * 2.0**127),
    "e5m2": Format(3, -14, 57344.0),
    "e4m3": Format(4, -6, 448.0, False),
    "e2m3": Format(4, 0, 7.5, False),
    "e3m2": Format(3, -2, 28.0, False),
    "e2m1": Format(2, 0, 6.0, False),
}


def flush(values: Array) -> Array:
    """Subnormal f32 values as zero of the same sign (``.ftz``)."""
    if values.dtype != np.float32:
        return values
    small = np.abs(values) < np.float32(2.0**-126)
    return np.where(small, np.copysign(np.float32(0), values), values) if small.any() else values


def canonical(values: Array) -> Array:
    """NaNs of f16 or f32 replaced by the canonical one."""
    peak = np.maximum.reduce(values)
    if peak == peak:
        return values
    name = f"f{values.dtype.itemsize * 8}"
    nan = np.array([CANONICAL_NAN[name]], f"u{values.dtype.itemsize}").view(values.dtype)
    return np.where(np.isnan(values), nan, values)


def saturate(values: Array) -> Array:
    """Clamp to [0, 1]; NaN and negative zero become +0 (``.sat``)."""
    zero, one = values.dtype.type(0), values.dtype.type(1)
    clamped: Array = np.where(values > zero, np.minimum(values, one), zero)
    return clamped


# Sums without loss


def two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    """The float64 sum of ``a`` and ``b`` and what rounding it lost (exact unless it overflows)."""
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


def round_to_odd(value: Array, lost: Array) -> Array:
    """``value`` moved, where ``lost`` is not zero, to that float64 neighbour of the exact sum whose last bit is one."""
    bits = value.view(np.int64)
    move = (lost != 0) & (bits & 1 == 0) & np.isfinite(value)
    outward = np.where((lost > 0) == (value > 0), 1, -1)
    return np.where(move, bits + outward, bits).view(np.float64)


def odd_sum(a: Array, b: Array) -> Array:
    """The sum of two float64 arrays, rounded to odd."""
    return round_to_odd(*two_sum(a, b))


# To narrower formats


def quantize(values: Array, target: Format, mode: str) -> Array:
    """float64 ``values`` rounded to ``target``, still as float64. ``mode`` is rn, rz, rm, rp or rna (ties away)."""
    _, exponent = np.frexp(values)
    unit = np.maximum(exponent - 1, target.least) - (target.precision - 1)
    scaled = np.ldexp(values, -unit)
    rounded = np.ldexp(_TO_INTEGER[mode](scaled), unit)
    over = (np.abs(rounded) > target.largest) & np.isfinite(values)
    if over.any():
        up = {"rn": True, "rna": True, "rz": False}.get(mode, (mode == "rp") == (values > 0))
        limit = np.where(up, np.inf, target.largest)
        rounded = np.where(over, np.copysign(limit, values), rounded)
    signed: Array = np.copysign(rounded, values)
    return signed


_TO_INTEGER: dict[str, Callable[[Array], Array]] = {
    "rn": np.rint,
    "rz": np.trunc,
    "rm": np.floor,
    "rp": np.ceil,
    "rna": lambda x: np.copysign(np.floor(np.abs(x) + 0.5), x),
}


def widen(values: Array, kind: PtxType) -> Array:
    """Values of a float type as float64."""
    if kind.kind == "bf":
        values = (values.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return values.astype(np.float64)


def narrow(values: Array, kind: PtxType, mode: str) -> Array:
    """float64 ``values``, exact or rounded to odd, as values of ``kind`` (not f64); NaNs are canonical."""
    if mode == "rn" and kind.kind == "f":
        return canonical(values.astype(kind.dtype))
    rounded = quantize(values, FORMATS[kind.name], mode)
    if kind.kind == "f":
        return canonical(rounded.astype(kind.dtype))
    bits = (rounded.astype(np.float32).view(np.uint32) >> np.uint32(16)).astype(np.uint16)
    return np.where(np.isnan(rounded), np.uint16(CANONICAL_NAN["bf16"]), bits)


def signed_zero(result: Array, a: Array, b: Array, mode: str) -> Array:
    """A sum's zero has the minus sign when rounding down, unless both operands are plus zero."""
    if mode != "rm":
        return result
    negative = (result == 0) & (np.signbit(a) | np.signbit(b))
    return np.where(negative, -0.0, result)


# f32 fused multiply-add, the operation that everything is made of

_HALF_WAY = np.uint64(1 << 28)
_BELOW_F32 = np.uint64((1 << 29) - 1)
_TINY = np.float32(2.0**-126)


def fma_f32(a: Array, b: Array, c: Array) -> Array:
    """``a * b + c`` of float32 arrays, rounded once to nearest even.

    The float64 sum is right unless it lies half-way between two float32 values, or the result is subnormal, where
    half-way is elsewhere; those elements are done again with rounding to odd.
    """
    product = np.multiply(a, b, dtype=np.float64)
    total = np.add(product, c)
    result: Array = total.astype(np.float32)
    doubtful = (total.view(np.uint64) & _BELOW_F32) == _HALF_WAY
    if np.minimum.reduce(np.abs(result)) < _TINY:
        doubtful |= (np.abs(total) < _TINY) & (total != 0)
    if np.count_nonzero(doubtful):
        terms = (np.broadcast_to(x, total.shape)[doubtful] for x in (product, c.astype(np.float64)))
        result[doubtful] = odd_sum(*terms).astype(np.float32)
    return canonical(result)


# float64


_TO_WHOLE: dict[str, Callable[[Fraction], int]] = {
    "rn": round,
    "rz": math.trunc,
    "rm": math.floor,
    "rp": math.ceil,
}


def round_fraction(value: Fraction, mode: str, zero: float) -> float:
    """``value`` rounded to float64; ``zero`` is the result where it is zero."""
    if value == 0:
        return zero
    sign, magnitude = (-1.0 if value < 0 else 1.0), abs(value)
    exponent = magnitude.numerator.bit_length() - magnitude.denominator.bit_length()
    if Fraction(2) ** exponent > magnitude:
        exponent -= 1
    unit = max(exponent, -1022) - 52
    whole = abs(_TO_WHOLE[mode](value / Fraction(2) ** unit))
    if whole << max(unit, 0) >= 1 << 1024:
        up = {"rn": True, "rz": False}.get(mode, (mode == "rp") == (value > 0))
        return sign * (math.inf if up else float(np.finfo(np.float64).max))
    return sign * math.ldexp(float(whole), unit)


def each_exactly(function: Callable[..., float], *operands: Array) -> Array:
    """``function`` of Python floats for every element, where NumPy has no exact way."""
    shaped = np.broadcast_arrays(*operands)
    values = [function(*map(float, lane)) for lane in zip(*[x.tolist() for x in shaped], strict=True)]
    return np.array(values, np.float64)


def _split(a: Array) -> tuple[Array, Array]:
    scaled = a * 134217729.0
    high = scaled - (scaled - a)
    return high, a - high


def two_product(a: Array, b: Array) -> tuple[Array, Array]:
    """The float64 product of ``a`` and ``b`` and what rounding it lost (Dekker; no overflow or underflow in it)."""
    product = a * b
    ah, al = _split(a)
    bh, bl = _split(b)
    return product, ((ah * bh - product) + ah * bl + al * bh) + al * bl


def fma_f64(a: Array, b: Array, c: Array) -> Array:
    """``a * b + c`` of float64 arrays, rounded once to nearest even (Boldo and Melquiond's emulation)."""
    a, b, c = np.broadcast_arrays(a, b, c)
    high, low = two_product(a, b)
    middle, rest = two_sum(c, low)
    top, carry = two_sum(high, middle)
    result = top + odd_sum(carry, rest)
    safe = np.ones(a.shape, np.bool_)
    for x in (a, b, high, c):
        size = np.abs(x)
        safe &= ((size < 1e290) & (size > 1e-270)) | (x == 0)
    safe &= np.abs(result) > 1e-280
    unsafe = ~safe
    if unsafe.any():
        result = result.copy()
        result[unsafe] = each_exactly(lambda x, y, z: scalar_fma(x, y, z, "rn"), a[unsafe], b[unsafe], c[unsafe])
    return result


def scalar_fma(a: float, b: float, c: float, mode: str) -> float:
    """``a * b + c`` rounded once, by rational arithmetic; infinities and NaNs as IEEE 754 says."""
    if not (math.isfinite(a) and math.isfinite(b) and math.isfinite(c)):
        with np.errstate(all="ignore"):
            product = np.float64(math.copysign(1, a) if math.isfinite(a) and a else a) * np.float64(
                math.copysign(1, b) if math.isfinite(b) and b else b
            )
            return float(product + np.float64(c if not math.isfinite(c) else 0.0))
    negative = math.copysign(1, a) * math.copysign(1, b)
    if a * b == 0 and (a == 0 or b == 0) and c == 0:
        same = negative == math.copysign(1, c)
        zero = math.copysign(0.0, c) if same else (-0.0 if mode == "rm" else 0.0)
    else:
        zero = -0.0 if mode == "rm" else 0.0
    return round_fraction(Fraction(a) * Fraction(b) + Fraction(c), mode, zero)
