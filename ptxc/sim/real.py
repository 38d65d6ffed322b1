"""Floating-point arithmetic (PTX ISA 9.7.3 to 9.7.6): one row an opcode.

``f32`` in the default rounding mode is NumPy's own float32 arithmetic; everything else goes through
``ptxc.sim.rounding``. The approximations (``.approx``, ``.full``) return the correctly rounded result, which is within
every error that PTX documents; where PTX fixes the result of a special operand, that is what they return.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np

from ptxc.sim import rounding
from ptxc.sim.binding import Modifiers, Pure
from ptxc.sim.rounding import MODES, canonical, flush, narrow, odd_sum, saturate, signed_zero, widen
from ptxc.sim.scalar import HALVES, TYPES, Array, PtxType

Function = Callable[..., Array]


def lanewise(kind: PtxType, function: Callable[[PtxType], Function]) -> Function:
    """``function`` of a scalar type, applied to both halves where ``kind`` is a packed pair."""
    if kind.name not in HALVES:
        return function(kind)
    part = TYPES[HALVES[kind.name]]
    apply, shift = function(part), kind.dtype.type(part.bits)
    half = np.dtype(f"u{part.size}")

    def both(*operands: Array) -> Array:
        low = apply(*[x.astype(half).view(part.dtype) for x in operands])
        high = apply(*[(x >> shift).astype(half).view(part.dtype) for x in operands])
        packed: Array = low.view(half).astype(kind.dtype) | high.view(half).astype(kind.dtype) << shift
        return packed

    return both


def finished(function: Function, ftz: bool, sat: bool = False, relu: bool = False) -> Function:
    """``function`` with operands and result flushed, and the result clamped, as the modifiers say."""

    def apply(*operands: Array) -> Array:
        result = function(*[flush(x) for x in operands] if ftz else operands)
        if ftz:
            result = flush(result)
        if sat:
            result = saturate(result)
        if relu:
            result = np.where(result <= 0, result.dtype.type(0), result)
        return result

    return apply if ftz or sat or relu else function


# Sums, products, quotients


def _sum(sign: int) -> Callable[[PtxType, str], Function]:
    def build(kind: PtxType, mode: str) -> Function:
        if kind.name == "f32" and mode == "rn":
            native = np.add if sign > 0 else np.subtract
            return lambda a, b: canonical(native(a, b))
        if kind.name == "f64":
            return _sum_f64(sign, mode)

        def apply(a: Array, b: Array) -> Array:
            x, y = widen(a, kind), sign * widen(b, kind)
            return narrow(signed_zero(odd_sum(*np.broadcast_arrays(x, y)), x, y, mode), kind, mode)

        return apply

    return build


def _sum_f64(sign: int, mode: str) -> Function:
    if mode == "rn":
        return np.add if sign > 0 else np.subtract
    return lambda a, b: rounding.each_exactly(lambda x, y: rounding.scalar_fma(x, 1.0, y, mode), a, sign * b)


def _product(kind: PtxType, mode: str) -> Function:
    if kind.name == "f32" and mode == "rn":
        return lambda a, b: canonical(np.multiply(a, b))
    if kind.name == "f64":
        if mode == "rn":
            return np.multiply

        def scalar(x: float, y: float) -> float:
            zero = math.copysign(0.0, math.copysign(1, x) * math.copysign(1, y))
            finite = math.isfinite(x) and math.isfinite(y)
            return rounding.round_fraction(Fraction(x) * Fraction(y), mode, zero) if finite else x * y

        return lambda a, b: rounding.each_exactly(scalar, a, b)
    return lambda a, b: narrow(widen(a, kind) * widen(b, kind), kind, mode)


def _fma(kind: PtxType, mode: str) -> Function:
    if kind.name == "f32" and mode == "rn":
        return rounding.fma_f32
    if kind.name == "f64":
        if mode == "rn":
            return rounding.fma_f64
        return lambda a, b, c: rounding.each_exactly(lambda x, y, z: rounding.scalar_fma(x, y, z, mode), a, b, c)

    def apply(a: Array, b: Array, c: Array) -> Array:
        product = widen(a, kind) * widen(b, kind)
        addend = widen(c, kind)
        total = odd_sum(*np.broadcast_arrays(product, addend))
        return narrow(signed_zero(total, product, addend, mode), kind, mode)

    return apply


def _quotient(kind: PtxType, mode: str) -> Function:
    if mode == "rn":
        return lambda a, b: canonical(np.divide(a, b)) if kind.name == "f32" else np.divide(a, b)
    if kind.name == "f32":
        # A float64 quotient of two f32 values is itself an f32 value only if it is exact.
        return lambda a, b: narrow(widen(a, kind) / widen(b, kind), kind, mode)

    def scalar(x: float, y: float) -> float:
        if not (math.isfinite(x) and math.isfinite(y)) or x == 0 or y == 0:
            with np.errstate(all="ignore"):
                return float(np.float64(x) / np.float64(y))
        return rounding.round_fraction(Fraction(x) / Fraction(y), mode, 0.0)

    return lambda a, b: rounding.each_exactly(scalar, a, b)


def _root(kind: PtxType, mode: str) -> Function:
    if mode == "rn":
        return lambda a: canonical(np.sqrt(a)) if kind.name == "f32" else np.sqrt(a)
    if kind.name == "f32":
        return lambda a: narrow(np.sqrt(widen(a, kind)), kind, mode)
    return lambda a: rounding.each_exactly(lambda x: _scalar_root(x, mode), a)


def _scalar_root(x: float, mode: str) -> float:
    if x <= 0 or not math.isfinite(x):
        return x if x == 0 or x > 0 else math.nan
    nearest = math.sqrt(x)
    excess = Fraction(nearest) ** 2 - Fraction(x)
    if mode == "rp" and excess < 0:
        return math.nextafter(nearest, math.inf)
    if mode in {"rm", "rz"} and excess > 0:
        return math.nextafter(nearest, 0.0)
    return nearest


_FLOAT = "f bf f16x2 bf16x2 f32x2"


def _rounded(build: Callable[[PtxType, str], Function], operands: int) -> Callable[[Modifiers], Pure]:
    """``add``, ``sub``, ``mul``, ``fma``: a rounding mode, ``.ftz``, ``.sat``, ``.relu``; mixed types (9.7.5)."""

    def row(m: Modifiers) -> Pure:
        mode = m.choice(MODES, "rn")
        ftz, sat, relu = m.flag("ftz"), m.flag("sat"), m.flag("relu")
        kinds = m.types()
        kind = kinds[0]
        function = lanewise(kind, lambda part: finished(build(part, mode), ftz, sat, relu))
        if len(kinds) == 1:
            return Pure((kind,), (kind,) * operands, function)
        if kind.name != "f32" or len(kinds) != 2:
            raise m.instruction.unsupported("these types")
        # add.f32.f16 d, a, c: the first operands have the second type, the last one f32.
        narrow_kind = kinds[1]
        sources = (narrow_kind,) * (operands - 1) + (kind,)

        def mixed(*values: Array) -> Array:
            wide = [widen(x, narrow_kind).astype(np.float32) for x in values[:-1]]
            return function(*wide, values[-1])

        return Pure((kind,), sources, mixed)

    return row


# Approximations


def _approximate(function: Callable[[Array], Array]) -> Function:
    """The float64 ``function``, rounded once to the operand's type."""

    def apply(a: Array) -> Array:
        return canonical(function(a.astype(np.float64)).astype(a.dtype))

    return apply


def _approximate_quotient(a: Array, b: Array) -> Array:
    result = canonical(np.divide(a, b))
    large = (np.abs(b) > np.float32(2.0**126)) & np.isfinite(b)
    if not large.any():
        return result
    special = np.where(np.isinf(a) | np.isnan(a), np.float32(np.nan), np.copysign(np.float32(0), result))
    return canonical(np.where(large, special, result))


def _divide(m: Modifiers) -> Pure:
    mode = m.choice((*MODES, "approx", "full"))
    ftz = m.flag("ftz")
    kind = m.type("f32 f64")
    function: Function
    if mode == "approx":
        function = _approximate_quotient
    else:
        function = _quotient(kind, "rn" if mode == "full" else mode)
    return Pure((kind,), (kind, kind), finished(function, ftz))


def _reciprocal(m: Modifiers) -> Pure:
    mode = m.choice((*MODES, "approx"))
    ftz = m.flag("ftz")
    kind = m.type("f32 f64")
    quotient = _quotient(kind, "rn" if mode == "approx" else mode)
    one = np.ones(1, kind.dtype)
    if kind.name == "f64" and mode == "approx":
        return Pure((kind,), (kind,), _top_half(lambda a: np.divide(1.0, a)))
    return Pure((kind,), (kind,), finished(lambda a: quotient(one, a), ftz))


def _top_half(function: Callable[[Array], Array]) -> Function:
    """``.approx.ftz.f64``: operand and result have their lower 32 bits zero, subnormals flushed (9.7.3.14)."""
    mask = np.uint64(0xFFFFFFFF00000000)

    def cut(values: Array) -> Array:
        small = np.abs(values) < np.finfo(np.float64).tiny
        kept = (values.view(np.uint64) & mask).view(np.float64)
        kept = np.where(small, np.copysign(0.0, values), kept)
        return np.where(np.isnan(values), np.uint64(0x7FFFFFFF00000000).view(np.float64), kept)

    return lambda a: cut(function(cut(a)))


def _square_root(m: Modifiers) -> Pure:
    mode = m.choice((*MODES, "approx"))
    ftz = m.flag("ftz")
    kind = m.type("f32 f64")
    return Pure((kind,), (kind,), finished(_root(kind, "rn" if mode == "approx" else mode), ftz))


def _reciprocal_root(m: Modifiers) -> Pure:
    m.choice(("approx",))
    ftz = m.flag("ftz")
    kind = m.type("f32 f64")
    if kind.name == "f64":
        function: Function = lambda a: np.divide(1.0, np.sqrt(a))  # noqa: E731
        return Pure((kind,), (kind,), _top_half(function) if ftz else function)
    return Pure((kind,), (kind,), finished(_approximate(lambda a: 1.0 / np.sqrt(a)), ftz))


def _function(function: Callable[[Array], Array]) -> Callable[[Modifiers], Pure]:
    """``sin``, ``cos``, ``lg2``, ``ex2``, ``tanh``: only approximations exist."""

    def row(m: Modifiers) -> Pure:
        m.choice(("approx",))
        ftz = m.flag("ftz")
        kind = m.type("f32 f16 bf f16x2 bf16x2")

        def build(part: PtxType) -> Function:
            if part.name == "f32":
                return finished(_approximate(function), ftz)
            return lambda a: narrow(function(widen(a, part)), part, "rn")

        return Pure((kind,), (kind,), lanewise(kind, build))

    return row


# Sign, minimum, maximum

_SIGN_BIT = {16: 0x8000, 32: 0x80000000, 64: 0x8000000000000000}


def _on_bits(function: Callable[[Array, int], Array]) -> Callable[[Modifiers], Pure]:
    """``abs`` and ``neg``: a change of the sign bit, also of a NaN's."""

    def row(m: Modifiers) -> Pure:
        ftz = m.flag("ftz")
        kind = m.type(_FLOAT)

        def build(part: PtxType) -> Function:
            bits, sign = np.dtype(f"u{part.size}"), _SIGN_BIT[part.bits]
            return finished(lambda a: function(a.view(bits), sign).view(part.dtype), ftz)

        return Pure((kind,), (kind,), lanewise(kind, build))

    return row


def _copy_sign(m: Modifiers) -> Pure:
    kind = m.type("f32 f64")
    return Pure((kind,), (kind, kind), lambda a, b: np.copysign(b, a))


def _extreme(largest: bool) -> Callable[[Modifiers], Pure]:
    """``min`` and ``max``: a NaN operand loses unless ``.NaN``; +0 is greater than -0."""

    def row(m: Modifiers) -> Pure:
        ftz, nan, xorsign = m.flag("ftz"), m.flag("NaN"), m.flag("xorsign")
        if xorsign:
            m.choice(("abs",))
        kind = m.type(_FLOAT)
        count = len(m.instruction.operands) - 1

        def build(part: PtxType) -> Function:
            def fold(*operands: Array) -> Array:
                result = operands[0]
                for operand in operands[1:]:
                    result = _pick(result, operand, part, largest, nan, xorsign)
                return result

            return finished(fold, ftz)

        return Pure((kind,), (kind,) * count, lanewise(kind, build))

    return row


def _pick(a: Array, b: Array, part: PtxType, largest: bool, nan: bool, xorsign: bool) -> Array:
    bits = np.dtype(f"u{part.size}")
    sign = bits.type(_SIGN_BIT[part.bits])
    if xorsign:
        joint = (a.view(bits) ^ b.view(bits)) & sign
        a, b = (a.view(bits) & ~sign).view(a.dtype), (b.view(bits) & ~sign).view(b.dtype)
    if part.kind == "f":
        x, y = a, b
    else:
        x, y = widen(a, part), widen(b, part)
    first = x > y if largest else x < y
    equal = x == y
    result = np.where(first | np.isnan(y), a, b)
    if equal.any():
        # Equal operands differ at most in the sign of a zero.
        both = a.view(bits) & b.view(bits) if largest else a.view(bits) | b.view(bits)
        result = np.where(equal, both.view(a.dtype), result)
    unordered = np.isnan(x) | np.isnan(y) if nan else np.isnan(x) & np.isnan(y)
    if unordered.any():
        quiet = np.array([rounding.CANONICAL_NAN[part.name]], bits).view(a.dtype)
        result = np.where(unordered, quiet, result)
    return (result.view(bits) | joint).view(a.dtype) if xorsign else result


REAL: dict[str, Callable[[Modifiers], Pure]] = {
    "add": _rounded(_sum(1), 2),
    "sub": _rounded(_sum(-1), 2),
    "mul": _rounded(_product, 2),
    "fma": _rounded(_fma, 3),
    "mad": _rounded(_fma, 3),
    "div": _divide,
    "rcp": _reciprocal,
    "sqrt": _square_root,
    "rsqrt": _reciprocal_root,
    "ex2": _function(np.exp2),
    "lg2": _function(np.log2),
    "sin": _function(np.sin),
    "cos": _function(np.cos),
    "tanh": _function(np.tanh),
    "abs": _on_bits(lambda bits, sign: bits & bits.dtype.type(~sign & (sign << 1) - 1)),
    "neg": _on_bits(lambda bits, sign: bits ^ bits.dtype.type(sign)),
    "copysign": _copy_sign,
    "min": _extreme(False),
    "max": _extreme(True),
}
"""Opcodes whose type is a floating-point one."""
