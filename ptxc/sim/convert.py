"""``cvt`` (PTX ISA 9.7.10.24): between integers, between floats, from one to the other, and to packed formats."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import numpy as np

from ptxc.sim import rounding
from ptxc.sim.binding import Modifiers, Pure
from ptxc.sim.rounding import FORMATS, MODES, flush, narrow, odd_sum, quantize, saturate, widen
from ptxc.sim.scalar import TYPES, Array, PtxType

_INTEGRAL: dict[str, Callable[[Array], Array]] = {
    "rni": np.rint,
    "rzi": np.trunc,
    "rmi": np.floor,
    "rpi": np.ceil,
}
_WHOLE = "us"


def _convert(m: Modifiers) -> Pure:
    integral = m.choice(_INTEGRAL, "")
    mode = m.choice((*MODES, "rna"), "")
    ftz, sat, relu, finite = m.flag("ftz"), m.flag("sat"), m.flag("relu"), m.flag("satfinite")
    kinds = m.types()
    if len(kinds) != 2:
        raise m.instruction.unsupported("this form; two types are expected")
    target, source = kinds
    if "packed" in {target.kind, source.kind}:
        return _packed(m, target, source, mode, relu, finite)
    function: Callable[[Array], Array]
    if target.kind in _WHOLE and source.kind in _WHOLE:
        function = _integer_to_integer(target, sat)
    elif target.kind in _WHOLE:
        function = _real_to_integer(source, target, integral or "rzi")
    elif source.kind in _WHOLE:
        function = _integer_to_real(target, mode or "rn")
    else:
        function = _real_to_real(source, target, mode, integral, relu, finite)
    return Pure((target,), (source,), _finished(function, ftz, sat and target.kind == "f"), relaxed=True)


def _finished(function: Callable[[Array], Array], ftz: bool, sat: bool) -> Callable[[Array], Array]:
    def apply(a: Array) -> Array:
        result = function(flush(a) if ftz else a)
        if ftz:
            result = flush(result)
        return saturate(result) if sat else result

    return apply if ftz or sat else function


def _integer_to_integer(target: PtxType, sat: bool) -> Callable[[Array], Array]:
    if not sat:
        return lambda a: a.astype(target.dtype)
    limits = np.iinfo(target.dtype)

    def clamp(a: Array) -> Array:
        low, high = np.iinfo(a.dtype).min, np.iinfo(a.dtype).max
        clipped = np.clip(a, a.dtype.type(max(low, limits.min)), a.dtype.type(min(high, limits.max)))
        return clipped.astype(target.dtype)

    return clamp


def _real_to_integer(source: PtxType, target: PtxType, integral: str) -> Callable[[Array], Array]:
    """Values beyond the target's range give its nearest one. NaN gives zero, or the top bit if a type has 64 bits."""
    limits = np.iinfo(target.dtype)
    low, high = float(limits.min), float(limits.max)
    wide = source.bits == 64 or target.bits == 64
    nan = np.array([1 << (target.bits - 1) if wide else 0], f"u{target.size}").view(target.dtype)

    def apply(a: Array) -> Array:
        whole = _INTEGRAL[integral](widen(a, source))
        inside = np.where((whole > low) & (whole < high), whole, 0.0).astype(target.dtype)
        clamped = np.where(whole >= high, limits.max, np.where(whole <= low, limits.min, inside))
        return np.where(np.isnan(whole), nan, clamped.astype(target.dtype))

    return apply


def _integer_to_real(target: PtxType, mode: str) -> Callable[[Array], Array]:
    if mode == "rn" and target.bits >= 32:
        return lambda a: a.astype(target.dtype)
    if target.name == "f64":
        return lambda a: np.array([rounding.round_fraction(Fraction(x), mode, 0.0) for x in a.tolist()], np.float64)

    def apply(a: Array) -> Array:
        wide = a.astype(np.int64) if a.dtype.kind == "i" else a.astype(np.uint64)
        low = (wide & wide.dtype.type(0xFFFFFFFF)).astype(np.float64)
        high = (wide >> wide.dtype.type(32)).astype(np.float64) * 2.0**32
        return narrow(odd_sum(high, low), target, mode)

    return apply


def _real_to_real(
    source: PtxType, target: PtxType, mode: str, integral: str, relu: bool, finite: bool
) -> Callable[[Array], Array]:
    if integral:
        return _to_integral(source, target, integral)
    if source == target:
        return lambda a: a
    if target.name == "f64" or (target.name == "f32" and source.bits == 16):
        return lambda a: widen(a, source).astype(target.dtype)
    return lambda a: narrow(_clamped(widen(a, source), target.name, relu, finite), target, mode or "rn")


def _to_integral(source: PtxType, target: PtxType, integral: str) -> Callable[[Array], Array]:
    """Round to an integer in the same format; zero keeps the operand's sign."""

    def apply(a: Array) -> Array:
        wide = widen(a, source)
        rounded = np.copysign(_INTEGRAL[integral](wide), wide)
        return rounded if target.name == "f64" else narrow(rounded, target, "rn")

    return apply


def _clamped(values: Array, target: str, relu: bool, finite: bool) -> Array:
    if relu:
        values = np.where(values <= 0, 0.0, values)
    if finite:
        largest = FORMATS[target].largest
        values = np.where(np.isnan(values), values, np.clip(values, -largest, largest))
    return values


# Packed formats

_ELEMENTS = {
    "f16x2": ("f16", 16), "bf16x2": ("bf16", 16), "e4m3x2": ("e4m3", 8), "e5m2x2": ("e5m2", 8),
    "e2m3x2": ("e2m3", 8), "e3m2x2": ("e3m2", 8), "e2m1x2": ("e2m1", 4), "ue8m0x2": ("ue8m0", 8),
}  # fmt: skip
"""The format of each half and how many bits it takes."""

_EXPONENT_BITS = {"e4m3": 4, "e5m2": 5, "e2m3": 2, "e3m2": 3, "e2m1": 2}
_NAN_PATTERN = {"e4m3": 0x7F, "e5m2": 0x7F, "e2m3": 0x1F, "e3m2": 0x1F, "e2m1": 0x7}


def _packed(m: Modifiers, target: PtxType, source: PtxType, mode: str, relu: bool, finite: bool) -> Pure:
    if target.name == "tf32":
        return Pure((TYPES["b32"],), (source,), lambda a: _to_tf32(a, mode or "rn", relu, finite))
    if target.name not in _ELEMENTS:
        raise m.instruction.unsupported(f"type .{target.name}")
    element, bits = _ELEMENTS[target.name]

    def encode(values: Array) -> Array:
        if element == "ue8m0":
            return _to_ue8m0(values, mode, finite)
        return encoded(_clamped(values, element, relu, finite), element, mode)

    def join(high: Array, low: Array) -> Array:
        both = encode(high).astype(np.uint32) << np.uint32(bits) | encode(low).astype(np.uint32)
        return both.astype(target.dtype)

    if source.name == "f32":
        return Pure((target,), (source, source), lambda a, b: join(widen(a, source), widen(b, source)), relaxed=True)
    if source.name not in _ELEMENTS:
        raise m.instruction.unsupported(f"type .{source.name}")
    part, width = _ELEMENTS[source.name]
    mask = source.dtype.type((1 << width) - 1)

    def repack(a: Array) -> Array:
        high, low = a >> source.dtype.type(width) & mask, a & mask
        return join(decoded(high, part), decoded(low, part))

    return Pure((target,), (source,), repack, relaxed=True)


def _to_tf32(a: Array, mode: str, relu: bool, finite: bool) -> Array:
    rounded = quantize(_clamped(a.astype(np.float64), "tf32", relu, finite), FORMATS["tf32"], mode)
    return rounding.canonical(rounded.astype(np.float32)).view(np.uint32)


def _to_ue8m0(values: Array, mode: str, finite: bool) -> Array:
    """float64 ``values`` as powers of two (9.7.10.24): a sign is dropped, and zero becomes the smallest, 2**-127."""
    size = np.abs(values)
    significand, exponent = np.frexp(size)
    up = (mode == "rp") & (significand != 0.5)
    bits = np.where(size < 2.0**-126, (mode == "rp") & (size > 2.0**-127), exponent - 1 + 127 + up)
    bits = np.where(np.isfinite(values), bits, 255)
    if finite:
        bits = np.where(np.isnan(values), 255, np.minimum(bits, 254))
    return bits.astype(np.uint32)


def encoded(values: Array, element: str, mode: str) -> Array:
    """float64 ``values`` rounded to ``element`` and as its bits (uint32)."""
    if element in {"f16", "bf16"}:
        kind = TYPES[element]
        return narrow(values, kind, mode).view(np.uint16).astype(np.uint32)
    form = FORMATS[element]
    fraction = form.precision - 1
    rounded = quantize(values, form, mode)
    magnitude = np.abs(np.where(np.isfinite(rounded), rounded, form.largest))
    _, exponent = np.frexp(magnitude)
    biased = np.maximum(exponent - 1, form.least) - form.least + 1
    scaled = np.ldexp(magnitude, fraction - (np.maximum(exponent - 1, form.least)))
    whole = scaled.astype(np.uint32)
    normal = whole >= 1 << fraction
    bits = np.where(normal, (biased.astype(np.uint32) << np.uint32(fraction)) + whole - (1 << fraction), whole)
    sign = np.signbit(rounded).astype(np.uint32) << np.uint32(fraction + _EXPONENT_BITS[element])
    return np.where(np.isnan(values), _NAN_PATTERN[element], bits | sign).astype(np.uint32)


def decoded(bits: Array, element: str) -> Array:
    """The float64 values that ``bits`` mean in ``element``."""
    if element in {"f16", "bf16"}:
        kind = TYPES[element]
        return widen(bits.astype(np.uint16).view(kind.dtype), kind)
    pattern = bits.astype(np.int64)
    if element == "ue8m0":
        return np.where(pattern == 255, np.nan, np.ldexp(1.0, pattern - 127))
    form, exponent_bits = FORMATS[element], _EXPONENT_BITS[element]
    fraction = form.precision - 1
    exponent = pattern >> fraction & (1 << exponent_bits) - 1
    significand = pattern & (1 << fraction) - 1
    normal = exponent > 0
    significand = np.where(normal, significand + (1 << fraction), significand)
    value: Array = np.ldexp(significand.astype(np.float64), np.maximum(exponent, 1) - 1 + form.least - fraction)
    value = np.where(pattern >> (fraction + exponent_bits) & 1, -value, value)
    below = pattern & (1 << fraction + exponent_bits) - 1
    if element == "e4m3":
        return np.where(below == 0x7F, np.nan, value)
    if element == "e5m2":
        special = np.where(below == 0x7C, np.copysign(np.inf, value), np.nan)
        return np.where(below >= 0x7C, special, value)
    return value


def _convert_pack(m: Modifiers) -> Pure:
    """``cvt.pack``: two integers saturated and put side by side, below what a third operand holds (9.7.10.25)."""
    m.choice(("sat",))
    kinds = m.types()
    three = len(kinds) == 3
    if len(kinds) - three != 2:
        raise m.instruction.unsupported("these types")
    element, source = kinds[:2]
    saturated = _integer_to_integer(element, sat=True)
    unsigned, shift = np.dtype(f"u{element.size}"), np.uint32(element.bits)

    def pack(a: Array, b: Array, *c: Array) -> Array:
        high, low = (saturated(x).view(unsigned).astype(np.uint32) for x in (a, b))
        both = high << shift | low
        return c[0] << shift + shift | both if c else both

    return Pure((TYPES["b32"],), (source, source, *kinds[2:]), pack)


CONVERT: dict[str, Callable[[Modifiers], Pure]] = {
    "cvt": lambda m: _convert_pack(m) if m.flag("pack") else _convert(m),
}
"""Conversions."""
