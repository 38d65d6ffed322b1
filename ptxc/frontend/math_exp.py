"""exp and log, and what is made of them: sigmoid, tanh, erf.

An error in ulp is the greatest measured (``docs/accuracy.md``) where the approximating instructions round correctly,
and after "at worst" where they use all of the error that PTX ISA allows them.

A coefficient table holds a minimax polynomial from the constant on, found by exchange in 50 digits and rounded to f32
one coefficient after the other, the rest fitted anew each time. Its error is that of the rounded table.
"""

from __future__ import annotations

from typing import NamedTuple

from ptxc.frontend.math_writer import Real, Writer
from ptxc.ir import opcodes
from ptxc.ir.values import Operand, Value

#: log2(e) in two parts, the second with the bits that the first lacks.
LOG2E = (1.442695, 1.925963e-08)
LN2 = 0.6931472

#: Adding this rounds a number of magnitude below 2**22 to an integer n: the sum's last nine bits are n + 127, the
#: exponent field of 2**n.
_EXPONENT = 3 * 2.0**22 + 127

# ------------------------------------------------------------------------------------------------------ exponentials


def scaled_exp2(w: Writer, x: Real, factor: float = 1.0) -> tuple[Value, Value]:
    """Split a power ``2**a = 2**n * 2**(a - n)`` for ``a`` near ``x * factor``: gives ``-n`` and ``2**n``.

    n is ``a`` rounded to an integer and kept in [-126, 127]. Where it had to be kept the caller's ``ex2(a - n)`` is
    small or large, and its product with 2**n a denormal, zero or an infinity as it should be. The clamp is the
    saturation of ``(a + 126) / 253``, whose rounding moves the boundaries between two n by 2**-16 only.
    """
    share = w.fma_sat(x, factor / 253, 126 / 253)
    shifted = w.fma(share, 253.0, _EXPONENT - 126)
    scale = w.word(opcodes.SHL, "b32", w.bits(shifted), 23)
    return w.sub(_EXPONENT, shifted), w.real(scale)


def exp(w: Writer, x: Operand, sign: float = 1.0) -> Value:
    """``e**(sign * x)`` as ``2**n * ex2(a - n)`` with ``a = x * log2(e)`` in two parts.

    Error: 1.1 ulp, at worst 3.1; 4.5 just below powers of two, where an ulp of ex2 is two of the result.
    """
    if w.arithmetic.fast:
        return exp_fast(w, x, sign)
    high, low = LOG2E
    minus_n, scale = scaled_exp2(w, x, sign * high)
    fraction = w.fma(x, sign * low, w.fma(x, sign * high, minus_n))
    return w.multiply(w.ex2(fraction), scale)


def exp_fast(w: Writer, x: Operand, sign: float = 1.0) -> Value:
    """``__expf``, ``ex2(x * log2(e))``. Error: ``2 + 1.2 * |x|`` ulp; denormal results are 0."""
    return w.ex2(w.multiply(x, sign * LOG2E[0]))


def sigmoid(w: Writer, x: Operand) -> Value:
    """``1 / (1 + exp(0 - x))``, each step rounded, as the CUDA text has it.

    Error: 2.4 ulp, at worst 6.3; below -88.7 the exponential overflows, so that the result is 0.
    """
    return w.reciprocal(w.plus(exp(w, x, -1.0), 1.0))


#: (tanh(x) / x - 1) / x**2 as a polynomial in x**2 for |x| <= 0.9; error 2**-29.7 relative to tanh(x).
_TANH = (-0.33333322, 0.13332981, -0.053929474, 0.021664092, -0.008265454, 0.0025834232, -0.0004557081)


def tanh(w: Writer, x: Operand) -> Value:
    """``x + x * z * P(z)``, ``z = x * x``, for small ``|x|``, else ``1 - 2 / (1 + e**(2 * |x|))``.

    The error of ex2 and rcp counts by less than one half in the second. Adding ``+0`` to ``z * P(z)`` keeps -0.
    """
    if w.arithmetic.fast and w.arithmetic.sm >= 75:
        return w.tanh(x)
    size = w.abs(x)
    power = w.ex2(w.mul(size, 2 * LOG2E[0]))
    large = w.copysign(x, w.fma(w.rcp(w.add(power, 1.0)), -2.0, 1.0))
    z = w.mul(x, x)
    small = w.fma(w.fma(w.horner(z, _TANH), z, 0.0), x, x)
    return w.choose(w.test("ge.f32", size, 0.9), large, small)


#: erf(x) / x - 1 as a polynomial in x**2 for |x| <= 1; relative error 2**-29.4.
_ERF = (0.12837917, -0.37612626, 0.11283579, -0.026853347, 0.005187162, -0.0007997853, 7.806904e-05)
#: log2(1 - erf(x)) for 1 <= x <= 4; error 2**-29.8 relative to erf(x).
_ERFC = (-0.000492753, -1.6260458, -0.92064863, -0.14875144, 0.031505633, -0.004252582, 0.00026889186)


def erf(w: Writer, x: Operand) -> Value:
    """``x + x * P(x * x)`` for ``|x| < 1``, else ``1 - 2**Q(|x|)``; from 4 on it is 1.

    Errors of ex2 count little in the second form. Error: 1.2 ulp, at worst 1.7.
    """
    size = w.abs(x)
    complement = w.ex2(w.horner(w.min(size, 4.0), _ERFC))
    large = w.copysign(x, w.sub(1.0, complement))
    small = w.fma(w.horner(w.mul(x, x), _ERF), x, x)
    return w.choose(w.test("ge.f32", size, 1.0), large, small)


# --------------------------------------------------------------------------------------------------------- logarithm


class Decomposed(NamedTuple):
    """A positive number as ``2**exponent * mantissa``."""

    exponent: Value
    mantissa: Value
    #: The number, multiplied by 2**23 where it was denormal, and its bits.
    normal: Value
    bits: Value


def decompose(w: Writer, x: Operand, least: int) -> Decomposed:
    """Split x so that the mantissa lies in [m, 2 m), m being the f32 with the bits ``least``. Exact."""
    denormal = w.test("lt.f32", x, 2.0**-126)
    normal = w.choose(denormal, w.mul(x, 2.0**23), x)
    bits = w.bits(normal)
    field = w.word(opcodes.AND, "b32", w.word(opcodes.SUB, "s32", bits, least), -(2**23))
    mantissa = w.real(w.word(opcodes.SUB, "s32", bits, field))
    exponent = w.fma(w.b.cvt("rn.f32.s32", field, w.name), 2.0**-23, w.choose(denormal, -23.0, 0.0))
    return Decomposed(exponent, mantissa, normal, bits)


#: (log(1 + f) - f) / f**2 on [-1/3, 1/3]; error 2**-26.9 relative to log(1 + f).
_LOG = (
    -0.5, 0.33333197, -0.2499992, 0.20011434, -0.16674446, 0.13989748, -0.12276192, 0.14063078, -0.12461772,
)  # fmt: skip
#: The bits of 2/3.
_TWO_THIRDS = 0x3F2AAAAB
#: One less than the number of positive finite f32, whose bits are 1, 2, and so on.
_FINITE = 0x7F7FFFFF


def log(w: Writer, x: Operand) -> Value:
    """``log(2**e * m) = e * log(2) + log(m)``, log(m) by a polynomial in ``f = m - 1``.

    What is no positive finite number goes to lg2, which is exact there: 0 gives -inf, inf inf, anything else NaN.
    Error: 0.94 ulp.
    """
    if w.arithmetic.fast:
        return w.multiply(w.lg2(x), LN2)
    exponent, mantissa, normal, bits = decompose(w, x, _TWO_THIRDS)
    f = w.sub(mantissa, 1.0)
    log_m = w.fma(w.mul(f, f), w.horner(f, _LOG), f)
    return w.choose(is_positive(w, bits), w.fma(exponent, LN2, log_m), w.lg2(normal))


def is_positive(w: Writer, bits: Operand) -> Value:
    """Whether the f32 with these bits is a positive finite number."""
    return w.test_word("lt.u32", w.word(opcodes.SUB, "s32", bits, 1), _FINITE)
