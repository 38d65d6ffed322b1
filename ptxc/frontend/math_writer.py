"""What the elementary functions are written with: f32 instructions that round once, spelled shortly."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ptxc.ir import opcodes
from ptxc.ir.builder import Builder
from ptxc.ir.types import B32, F32, Type
from ptxc.ir.values import Const, Operand, Value, integer, real

#: An f32 operand; a number stands for the nearest f32.
Real = Operand | float
#: A 32-bit integer operand.
Word = Operand | int

#: The sign bit, as a 32-bit integer.
SIGN = -(2**31)


class Arithmetic(NamedTuple):
    """How floats are computed with: the options ``--math`` and ``--no-fma``, and the target."""

    #: ``--use_fast_math``: approximations, denormals are zeros.
    fast: bool = False
    #: Whether a later pass may contract ``a * b + c`` into one rounding.
    fma: bool = True
    #: The target's number, 80 for sm_80.
    sm: int = 80

    def mods(self, type: str) -> tuple[str, ...]:
        """The modifiers of the program's own additions and multiplications in ``type`` (f32 or f64).

        ``rn`` stands where they may not be contracted: PTX lets both our pass and ptxas fuse those without it.
        """
        rounding = () if self.fma else ("rn",)
        return (*rounding, *self.ftz(type))

    def ftz(self, type: str) -> tuple[str, ...]:
        """``type`` as the last modifiers of an instruction that flushes denormals in fast arithmetic."""
        return ("ftz", type) if self.fast and type == "f32" else (type,)


class Writer:
    """Writes one function's instructions at the end of the builder's block.

    Arithmetic rounds to nearest and keeps denormals; no later pass contracts it, so an algorithm computes what it says.
    Intermediate values are named after the function.
    """

    __slots__ = ("arithmetic", "b", "name")

    def __init__(self, b: Builder, name: str, arithmetic: Arithmetic) -> None:
        self.b = b
        self.name = name
        self.arithmetic = arithmetic

    # -------------------------------------------------------------------------------------------------- arithmetic

    def add(self, x: Real, y: Real) -> Value:
        """``x + y``."""
        return self._f32(opcodes.ADD, ("rn", "f32"), x, y)

    def sub(self, x: Real, y: Real) -> Value:
        """``x - y``."""
        return self._f32(opcodes.SUB, ("rn", "f32"), x, y)

    def mul(self, x: Real, y: Real) -> Value:
        """``x * y``."""
        return self._f32(opcodes.MUL, ("rn", "f32"), x, y)

    def fma(self, x: Real, y: Real, z: Real) -> Value:
        """``x * y + z``, rounded once."""
        return self._f32(opcodes.FMA, ("rn", "f32"), x, y, z)

    def fma_sat(self, x: Real, y: Real, z: Real) -> Value:
        """``x * y + z`` clamped to [0, 1]; 0 for NaN."""
        return self._f32(opcodes.FMA, ("rn", "sat", "f32"), x, y, z)

    def min(self, x: Real, y: Real) -> Value:
        """The smaller; of a NaN and a number the number."""
        return self._f32(opcodes.MIN, ("f32",), x, y)

    def max(self, x: Real, y: Real) -> Value:
        """The larger; of a NaN and a number the number."""
        return self._f32(opcodes.MAX, ("f32",), x, y)

    def abs(self, x: Real) -> Value:
        """``|x|``."""
        return self._f32(opcodes.ABS, ("f32",), x)

    def neg(self, x: Real) -> Value:
        """``-x``, which the machine folds into the instruction that uses it."""
        return self._f32(opcodes.NEG, ("f32",), x)

    def copysign(self, sign: Real, magnitude: Real) -> Value:
        """``magnitude`` with the sign of ``sign``."""
        return self._f32(opcodes.COPYSIGN, ("f32",), sign, magnitude)

    def horner(self, x: Real, coefficients: Sequence[float]) -> Real:
        """The polynomial in ``x`` whose coefficients are given from the constant on."""
        *rest, result = map(_constant, coefficients)
        value: Operand = result
        for coefficient in reversed(rest):
            value = self.fma(value, x, coefficient)
        return value

    def truncate(self, x: Real) -> Value:
        """``x`` without its fraction."""
        return self._f32(opcodes.CVT, ("rzi", "f32", "f32"), x)

    # ------------------------------------------------------------------------------- as the program would compute

    def plus(self, x: Real, y: Real) -> Value:
        """``x + y`` as the program's own addition: it may be contracted, fast arithmetic flushes denormals."""
        return self._f32(opcodes.ADD, self.arithmetic.mods("f32"), x, y)

    def multiply(self, x: Real, y: Real) -> Value:
        """``x * y`` likewise."""
        return self._f32(opcodes.MUL, self.arithmetic.mods("f32"), x, y)

    def reciprocal(self, x: Real) -> Value:
        """``1 / x``, rounded or in fast arithmetic approximated."""
        return self.rcp(x) if self.arithmetic.fast else self._f32(opcodes.RCP, ("rn", "f32"), x)

    # -------------------------------------------------------------------- approximations (bounds: PTX ISA 9.7.3)

    def ex2(self, x: Real) -> Value:
        """``2 ** x`` within 2 ulp of the rounded value; results below 2**-126 are 0, ``ex2(0)`` is 1."""
        return self._f32(opcodes.EX2, ("approx", "ftz", "f32"), x)

    def lg2(self, x: Real) -> Value:
        """``log2(x)`` within 2**-22, absolute in (0.5, 2), relative elsewhere; denormals count as 0."""
        return self._f32(opcodes.LG2, ("approx", "ftz", "f32"), x)

    def rcp(self, x: Real) -> Value:
        """``1 / x`` within 1 ulp; denormal results are 0."""
        return self._f32(opcodes.RCP, ("approx", "ftz", "f32"), x)

    def rsqrt(self, x: Real) -> Value:
        """``1 / sqrt(x)`` within a relative 2**-22.9."""
        return self._f32(opcodes.RSQRT, ("approx", *self.arithmetic.ftz("f32")), x)

    def sin(self, x: Real) -> Value:
        """``sin(x)`` within an absolute 2**-20.5 in [-2 pi, 2 pi]."""
        return self._f32(opcodes.SIN, ("approx", "ftz", "f32"), x)

    def cos(self, x: Real) -> Value:
        """``cos(x)`` within an absolute 2**-20.5 in [-2 pi, 2 pi]."""
        return self._f32(opcodes.COS, ("approx", "ftz", "f32"), x)

    def tanh(self, x: Real) -> Value:
        """``tanh(x)`` within a relative 2**-11."""
        return self._f32(opcodes.TANH, ("approx", "f32"), x)

    # ------------------------------------------------------------------------------------------ bits and choices

    def bits(self, x: Operand) -> Value:
        """The bits of an f32 as an integer."""
        return self.b.emit(opcodes.BITCAST, ("b32", "f32"), B32, (x,), self.name)

    def real(self, bits: Operand) -> Value:
        """The f32 that has these bits."""
        return self.b.emit(opcodes.BITCAST, ("f32", "b32"), F32, (bits,), self.name)

    def copy(self, x: Operand) -> Value:
        """A register with the value of ``x``."""
        return self.b.emit(opcodes.MOV, ("f32",), F32, (x,), self.name)

    def word(self, op: opcodes.Opcode, suffix: str, *operands: Word) -> Value:
        """An instruction on 32-bit integers, such as ``word(SHL, "b32", x, 23)``."""
        return self._write(op, tuple(suffix.split(".")), B32, tuple(map(_word, operands)))

    def test(self, suffix: str, x: Real, y: Real) -> Value:
        """The predicate ``setp.suffix x, y`` of two f32 (or of two registers of integers)."""
        return self.b.setp(suffix, _operand(x), _operand(y), self.name)

    def test_word(self, suffix: str, x: Word, y: Word) -> Value:
        """The predicate ``setp.suffix x, y`` of two 32-bit integers."""
        return self.b.setp(suffix, _word(x), _word(y), self.name)

    def choose(self, p: Operand, x: Real, y: Real) -> Value:
        """The f32 ``x`` where ``p`` holds, else ``y``."""
        return self._write(opcodes.SELP, ("f32",), F32, (_operand(x), _operand(y), p))

    def _f32(self, op: opcodes.Opcode, mods: tuple[str, ...], *operands: Real) -> Value:
        return self._write(op, mods, F32, tuple(map(_operand, operands)))

    def _write(self, op: opcodes.Opcode, mods: tuple[str, ...], type: Type, operands: tuple[Operand, ...]) -> Value:
        return self.b.emit(op, mods, type, operands, self.name)


def _operand(x: Real) -> Operand:
    return real(F32, x) if isinstance(x, float) else x


def _constant(x: float) -> Const:
    return real(F32, x)


def _word(x: Word) -> Operand:
    return integer(B32, x) if isinstance(x, int) else x
