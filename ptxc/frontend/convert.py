"""Conversions between element types, as C's assignment and CUDA's conversion functions make them."""

from __future__ import annotations

import struct

from ptxc.errors import UnsupportedError
from ptxc.frontend import minifloat
from ptxc.frontend.dtypes import BF16_T, BOOL_T, F16_T, F16X2_T, F32_T, F64_T, FP8, I32_T, ElementType
from ptxc.frontend.scope import Typed
from ptxc.ir import opcodes
from ptxc.ir.builder import Builder
from ptxc.ir.types import B16, B32, B64, F32, F64
from ptxc.ir.values import FALSE, TRUE, Const, Operand, Value, bfloat_bits, half_bits, integer, real, real_of


def convert(b: Builder, value: Typed, to: ElementType) -> Typed:
    """``value`` as an element of type ``to``.

    Floats become integers by cutting the fraction, anything becomes bool by comparing with zero, floats narrow to
    nearest even, integers keep their low bits. fp8 saturates at its largest number and converts through f32, or f16
    where it is decoded. Raises UnsupportedError for pairs of f16, which only an f16 or an f32 becomes.
    """
    source = value.type
    if source is to:
        return value
    if source is F16X2_T or to is F16X2_T:
        return _to_pair(b, value, to)
    if to is BOOL_T:
        return Typed(truth(b, value), BOOL_T)
    if source is BOOL_T:
        return convert(b, Typed(_from_bool(b, value.operand), I32_T), to)
    if to.is_integer:
        return Typed(_to_integer(b, value, to), to)
    if isinstance(value.operand, Const):
        return Typed(_constant(value.operand, source, to), to)
    if source.is_integer:
        return _integer_to_float(b, value, to)
    return _float_to_float(b, value, to)


def constant(value: float, to: ElementType) -> Typed:
    """The constant ``value`` in ``to``, as C initialises a variable from a float literal: rounded to f32 first."""
    if to is BOOL_T:
        return Typed(TRUE if value else FALSE, BOOL_T)
    rounded = real(F32, value)
    if to.is_integer:
        return Typed(_constant_integer(Typed(rounded, F32_T), to), to)
    if to is F16X2_T:
        return Typed(integer(B32, half_bits(real_of(rounded)) * 0x10001), to)
    return Typed(_constant(rounded, F32_T, to), to)


def number(operand: Const, type: ElementType) -> int:
    """The integer that a constant of an integer type is: what its bits say, read with the type's sign."""
    return operand.bits if type.signed else operand.bits % (1 << (8 * type.nbytes))


def truth(b: Builder, value: Typed) -> Operand:
    """The predicate ``value != 0`` (true for NaN)."""
    if value.type is BOOL_T:
        return value.operand
    if value.type.is_integer:
        bits = value.type.bank.bits
        return b.setp(f"ne.s{bits}", value.operand, integer(value.type.bank, 0))
    wide = value if value.type is F64_T else convert(b, value, F32_T)
    return b.setp(f"neu.{wide.type.name}", wide.operand, real(wide.type.bank, 0.0))


def _from_bool(b: Builder, predicate: Operand) -> Operand:
    if isinstance(predicate, Const):
        return integer(B32, -predicate.bits)
    return b.selp("b32", integer(B32, 1), integer(B32, 0), predicate)


def _to_integer(b: Builder, value: Typed, to: ElementType) -> Operand:
    operand, source = value.operand, value.type
    if isinstance(operand, Const):
        return _constant_integer(value, to)
    if not source.is_integer:
        wide = value if source is F64_T else convert(b, value, F32_T)
        # C leaves undefined what the type cannot hold. CUDA saturates; for types below 32 bits it converts to int, or
        # unsigned int, and keeps the low bits.
        kind = to.memory if to.nbytes >= 4 else "s32" if to.signed else "u32"
        operand = b.cvt(f"rzi.{kind}.{wide.type.name}", wide.operand)
    elif to.bank is B64:
        return operand if source.bank is B64 else b.cvt("s64.s32" if source.signed else "u64.u32", operand)
    elif source.bank is B64:
        operand = b.cvt("u32.u64", operand)
    elif to.nbytes == 4 or source.fits(to):
        return operand
    return _narrow(b, operand, to)


def _narrow(b: Builder, operand: Operand, to: ElementType) -> Operand:
    """The low bits of a 32-bit register as a value of a type of 32 bits or less."""
    if to.nbytes >= 4:
        return operand
    if to.signed:
        return b.cvt("s32.s16", b.cvt("u16.u32", operand))
    return b.binary(opcodes.AND, "b32", operand, integer(B32, (1 << (8 * to.nbytes)) - 1))


def _constant_integer(value: Typed, to: ElementType) -> Operand:
    """A constant converted to an integer type; floats saturate, as ``cvt`` does."""
    assert isinstance(value.operand, Const)
    assert to.lo is not None
    assert to.hi is not None
    if value.type.is_integer:
        kept = number(value.operand, value.type) % (1 << (8 * to.nbytes))
        return integer(to.bank, kept - (1 << (8 * to.nbytes)) if kept > to.hi else kept)
    real_number = _real(value.operand, value.type)
    if real_number != real_number:
        return integer(to.bank, 0)
    # Saturated at the type's own range, so that -1e30 is the neutral element of a maximum in every type.
    clamped = min(max(real_number, float(to.lo)), float(to.hi))
    return integer(to.bank, min(max(int(clamped), to.lo), to.hi))


def _real(operand: Const, type: ElementType) -> float:
    if operand.type.is_float:
        return real_of(operand)
    if type in FP8:
        return minifloat.number(operand.bits, type)
    if type is BF16_T:
        return real_of(Const(F32, (operand.bits & 0xFFFF) << 16))
    return float(struct.unpack(">e", (operand.bits & 0xFFFF).to_bytes(2, "big"))[0])


def _constant(operand: Const, source: ElementType, to: ElementType) -> Operand:
    """A constant converted to a float type."""
    exact = float(number(operand, source)) if source.is_integer else _real(operand, source)
    if to in FP8:
        return integer(B32, minifloat.bits_of(exact, to))
    if to is F16_T:
        return integer(B16, half_bits(exact))
    if to is BF16_T:
        return integer(B16, bfloat_bits(exact))
    return real(to.bank, exact)


def _integer_to_float(b: Builder, value: Typed, to: ElementType) -> Typed:
    kind = value.type.memory if value.type.nbytes >= 4 else "s32"
    if to is BF16_T or to in FP8:
        return convert(b, Typed(b.cvt(f"rn.f32.{kind}", value.operand), F32_T), to)
    return Typed(b.cvt(f"rn.{to.name}.{kind}", value.operand), to)


def _float_to_float(b: Builder, value: Typed, to: ElementType) -> Typed:
    operand, source = value.operand, value.type
    assert isinstance(operand, Value)
    if source in FP8:
        return convert(b, Typed(minifloat.decode(b, operand, source), F16_T), to)
    if to in FP8:
        return Typed(minifloat.encode(b, convert(b, value, F32_T).operand, to), to)
    if source is BF16_T:
        # A bf16 is the high half of an f32.
        word = b.emit(opcodes.PACK, ("b32",), B32, (integer(B16, 0), operand))
        wide = Typed(b.emit(opcodes.BITCAST, ("f32", "b32"), F32, (word,)), F32_T)
        return wide if to is F32_T else convert(b, wide, to)
    if to is BF16_T:
        return Typed(minifloat.to_bf16(b, convert(b, value, F32_T).operand), to)
    rounding = "rn." if to.nbytes < source.nbytes else ""
    bank = {F32_T: F32, F64_T: F64}.get(to, B16)
    mods = tuple(f"{rounding}{to.name}.{source.name}".split("."))
    return Typed(b.emit(opcodes.CVT, mods, bank, (operand,)), to)


def _to_pair(b: Builder, value: Typed, to: ElementType) -> Typed:
    """A scalar in both halves of a pair of f16."""
    if to is not F16X2_T or value.type not in (F16_T, F32_T):
        raise UnsupportedError(f"a conversion of {value.type.name} to {to.name}", hint="a pair is made of f16 or f32")
    if isinstance(value.operand, Const):
        return constant(_real(value.operand, value.type), to)
    half = convert(b, value, F16_T).operand
    return Typed(b.emit(opcodes.PACK, ("b32",), B32, (half, half), "pair"), to)
