"""sin and cos: the argument reduced to [-pi/4, pi/4], then one polynomial each.

``x = n * pi/2 + r``; the last two bits of n say which of ``sin(r)`` and ``cos(r)`` it is, and with which sign. No
approximating instruction takes part. Error: 1.54 ulp for all arguments. The polynomials are made as in ``math_exp``.
"""

from __future__ import annotations

import math
from itertools import pairwise

from ptxc.frontend.math_writer import SIGN, Writer
from ptxc.ir import opcodes
from ptxc.ir.types import B32, B64, F32, F64
from ptxc.ir.values import Const, Operand, Value, integer, real

#: (sin(r) / r - 1) / r**2 and (cos(r) - 1) / r**2 as polynomials in r**2 for |r| <= 0.79; errors 2**-27.9, 2**-33.
_SIN = (-0.16666655, 0.008332188, -0.00019518095)
_COS = (-0.5, 0.041666646, -0.001388731, 2.4432327e-05)

#: Minus pi/2 in three parts of 24 bits, all negative: n = 0 times each is -0, which leaves x = -0 as it is.
_MINUS_HALF_PI = (-1.5707963, -7.5497894e-08, -5.3903025e-15)
#: Adding this rounds a number of magnitude below 2**22 to an integer, which the sum's last bits then are.
_ROUND = 3 * 2.0**22
#: Up to here three parts of pi/2 leave a remainder that is right to 1 ulp.
_LARGE = 105615.0

#: 2/pi in binary, 32 bits a word, after one word of zeros.
_TWO_OVER_PI = (0x00000000, 0xA2F9836E, 0x4E441529, 0xFC2757D1, 0xF534DDC0, 0xDB629599, 0x3C439041)


def sin(w: Writer, x: Operand) -> Value:
    """``sin(x)``; NaN for infinities."""
    if w.arithmetic.fast:
        return w.sin(x)
    remainder, quadrant = _reduce(w, x)
    return _sine(w, remainder, quadrant)


def cos(w: Writer, x: Operand) -> Value:
    """``cos(x) = sin(x + pi/2)``; NaN for infinities."""
    if w.arithmetic.fast:
        return w.cos(x)
    remainder, quadrant = _reduce(w, x)
    return _sine(w, remainder, w.word(opcodes.ADD, "s32", quadrant, 1))


def _sine(w: Writer, r: Value, quadrant: Value) -> Value:
    """``sin(r + quadrant * pi/2)``. Adding ``+0`` to ``z * S(z)`` keeps the sign of a zero."""
    z = w.mul(r, r)
    sine = w.fma(w.fma(w.horner(z, _SIN), z, 0.0), r, r)
    cosine = w.fma(w.horner(z, _COS), z, 1.0)
    even = w.test_word("eq.s32", w.word(opcodes.AND, "b32", quadrant, 1), 0)
    magnitude = w.bits(w.choose(even, sine, cosine))
    flip = w.word(opcodes.SHL, "b32", quadrant, 30)
    # (flip & SIGN) ^ magnitude
    return w.real(w.word(opcodes.LOP3, "b32", flip, SIGN, magnitude, 0x6A))


def _reduce(w: Writer, x: Operand) -> tuple[Value, Value]:
    """The remainder r and an integer whose last two bits are n's, for ``x = n * pi/2 + r``.

    Common arguments take the remainder in three steps, of which the first is exact (Cody and Waite); huge ones branch.
    """
    shifted = w.fma(x, 2 / math.pi, _ROUND)
    n = w.sub(shifted, _ROUND)
    r: Operand = x
    for part in _MINUS_HALF_PI:
        r = w.fma(n, part, r)
    b = w.b
    huge, join = b.new_block(f"{w.name}.huge"), b.new_block(f"{w.name}.reduced")
    remainder, quadrant = b.kernel.value(F32, w.name), b.kernel.value(B32, w.name)
    join.params = [remainder, quadrant]
    b.branch_if(w.test("gt.f32", w.abs(x), _LARGE), huge, join, (), (r, w.bits(shifted)))
    b.start(huge)
    b.branch(join, _reduce_huge(w, x))
    b.start(join)
    return remainder, quadrant


def _reduce_huge(w: Writer, x: Operand) -> tuple[Value, Value]:
    """The same for ``|x| >= 2**16``, from the product with the bits of 2/pi that matter (Payne and Hanek).

    ``|x| = m * 2**(e - 31)`` with a 32-bit integer m. Bits of 2/pi of weight 2**(33 - e) and more give multiples of
    four, which turn no angle. Of the 96 bits that follow, the product with m mod 2**96 is x * 2/pi mod 4 with 94 bits
    after the point, wrong by less than m in the last place, so by 2**-62.
    """
    b = w.b
    bits = w.bits(x)
    m = w.word(opcodes.OR, "b32", w.word(opcodes.SHL, "b32", bits, 8), SIGN)
    high, middle, low = _window(w, bits)
    product = b.emit(opcodes.MUL, ("wide", "u32"), B64, (m, low), w.name)
    product = b.emit(opcodes.SHR, ("u64",), B64, (product, integer(B32, 32)), w.name)
    product = b.emit(opcodes.MAD, ("wide", "u32"), B64, (m, middle, product), w.name)
    top = b.emit(opcodes.MUL, ("wide", "u32"), B64, (m, high), w.name)
    top = b.emit(opcodes.SHL, ("b64",), B64, (top, integer(B32, 32)), w.name)
    turns = b.binary(opcodes.ADD, "s64", product, top, w.name)
    negative = b.unary(opcodes.NEG, "s64", turns, w.name)
    turns = b.selp("b64", negative, turns, w.test_word("lt.s32", bits, 0), w.name)
    # Two bits before the point: rounded they are n, and the rest, as a signed number, is r * 2/pi.
    rounded = b.binary(opcodes.ADD, "s64", turns, integer(B64, 2**61), w.name)
    n = b.cvt("u32.u64", b.emit(opcodes.SHR, ("u64",), B64, (rounded, integer(B32, 62)), w.name), w.name)
    fraction = b.emit(opcodes.SHL, ("b64",), B64, (turns, integer(B32, 2)), w.name)
    angle = b.binary(opcodes.MUL, "rn.f64", b.cvt("rn.f64.s64", fraction, w.name), _QUARTER_TURN, w.name)
    # Infinities and NaN come here too, and 0 * x makes NaN of both.
    return w.fma(x, 0.0, b.cvt("rn.f32.f64", angle, w.name)), n


#: pi/2 * 2**-64
_QUARTER_TURN = real(F64, math.pi / 2 * 2.0**-64)


def _window(w: Writer, bits: Value) -> list[Value]:
    """Three words of 2/pi from the bit on that the exponent field of ``bits`` says, 128 standing for the first.

    The field's bits 6 and 5 choose among the words, its last five are how far to shift.
    """
    words: list[Operand] = [Const(B32, integer(B32, word).bits) for word in _TWO_OVER_PI]
    for step, bit in ((2, 29), (1, 28)):
        skip = w.test_word("ne.s32", w.word(opcodes.AND, "b32", bits, 1 << bit), 0)
        words = [w.b.selp("b32", later, word, skip, w.name) for word, later in zip(words, words[step:])]
    shift = w.word(opcodes.SHR, "u32", bits, 23)
    return [w.word(opcodes.SHF, "l.wrap.b32", after, word, shift) for word, after in pairwise(words)]
