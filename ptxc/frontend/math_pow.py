"""pow: 2**(y * log2(|x|)) with log2 to about 32 bits, and C99's special cases behind a branch."""

from __future__ import annotations

from ptxc.frontend.math_exp import LOG2E, decompose, is_positive, scaled_exp2
from ptxc.frontend.math_writer import SIGN, Writer
from ptxc.ir import opcodes
from ptxc.ir.types import B32, F32
from ptxc.ir.values import Operand, Value, integer

#: The bits of the square root of 1/2.
_SQRT_HALF = 0x3F3504F3
#: log2(e) * (2 * atanh(q / 2) - q) / q**3 as a polynomial in q**2 for |q| <= 0.4; error 2**-34.8 relative to q**3.
_LOG2 = (0.12022458, 0.018034082, 0.0032129826, 0.0006793018)
#: Any power beyond this is that of an infinity for every base but 1: the closest is 1 - 2**-24.
_HUGE = 2.0**36


def pow(w: Writer, x: Operand, y: Operand) -> Value:
    """``x**y``, with all of C99's special cases (annex F). Error: 2.4 ulp, at worst 4.5."""
    if w.arithmetic.fast:
        return w.ex2(w.multiply(y, w.lg2(x)))
    b = w.b
    high, low = _log2(w, w.abs(x))
    # y as it is once, so that NaN goes through; clamped elsewhere, so that infinities meet no zero.
    bounded = w.max(w.min(y, _HUGE), -_HUGE)
    product = w.mul(bounded, high)
    rest = w.fma(bounded, low, w.fma(y, high, w.neg(product)))
    minus_n, scale = scaled_exp2(w, product)
    power = w.mul(w.ex2(w.add(w.add(product, minus_n), rest)), scale)
    power = w.choose(w.test("eq.f32", x, 1.0), 1.0, power)
    special, join = b.new_block(f"{w.name}.special"), b.new_block(f"{w.name}.end")
    result = b.kernel.value(F32, w.name)
    join.params = [result]
    b.branch_if(is_positive(w, w.bits(x)), join, special, (power,))
    b.start(special)
    b.branch(join, (_special(w, x, y, power),))
    b.start(join)
    return result


def _log2(w: Writer, x: Value) -> tuple[Value, Value]:
    """``log2(x)`` of a positive number as a sum of two f32, the second below the last bit of the first.

    ``log(m) = 2 * atanh(q / 2)`` for ``q = 2 * (m - 1) / (m + 1)``. q and its product with log2(e) carry a low part;
    the rest of the series, a hundredth of the first term, does not. q's low part counts by the derivative of
    ``2 * atanh(q / 2)``, which is ``1 + q * q / 4`` and less.
    """
    exponent, mantissa, _, _ = decompose(w, x, _SQRT_HALF)
    u = w.sub(mantissa, 1.0)
    reciprocal = w.rcp(w.add(mantissa, 1.0))
    q = w.mul(w.add(u, u), reciprocal)
    minus_q = w.neg(q)
    difference = w.sub(u, q)
    q_low = w.mul(reciprocal, w.fma(minus_q, u, w.add(difference, difference)))
    square = w.mul(q, q)
    first = w.mul(q, LOG2E[0])
    low = w.fma(q, LOG2E[0], w.neg(first))
    low = w.fma(q, LOG2E[1], w.fma(q_low, w.fma(square, LOG2E[0] / 4, LOG2E[0]), low))
    low = w.fma(w.mul(q, square), w.horner(square, _LOG2), low)
    high = w.add(exponent, first)
    low = w.add(w.add(w.sub(exponent, high), first), low)
    total = w.add(high, low)
    return total, w.add(w.sub(high, total), low)


def _special(w: Writer, x: Operand, y: Operand, power: Value) -> Value:
    """``x**y`` where x is negative, zero, infinite or NaN. ``power`` is ``|x|**y`` for finite x but 0."""
    b = w.b
    size = w.abs(x)
    whole = w.test("eq.f32", w.truncate(y), y)
    half = w.mul(y, 0.5)
    even = w.test("eq.f32", w.truncate(half), half)
    edge = b.binary(opcodes.OR, "pred", w.test("eq.f32", size, 0.0), w.test("eq.f32", size, float("inf")), w.name)
    inverse = w.choose(w.test("lt.f32", y, 0.0), w.rcp(size), size)
    ordinary = w.choose(w.test("eq.f32", size, 1.0), 1.0, power)
    ordinary = w.choose(whole, ordinary, float("nan"))
    magnitude = w.bits(w.choose(edge, inverse, ordinary))
    negates = b.binary(opcodes.AND, "pred", whole, b.unary(opcodes.NOT, "pred", even, w.name), w.name)
    flip = b.selp("b32", w.bits(x), integer(B32, 0), negates, w.name)
    result = w.real(w.word(opcodes.LOP3, "b32", flip, SIGN, magnitude, 0x6A))
    result = w.choose(w.test("nan.f32", x, y), w.add(x, y), result)
    return w.choose(w.test("eq.f32", y, 0.0), 1.0, result)
