"""Conversions of fp8 and fp4: the hardware's instructions from sm_89 on, the same values by bit arithmetic before.

Also those to bf16, which have instructions from sm_80 on.

======  ==============  ====================================================  ==================
type    bits            values                                                has no
======  ==============  ====================================================  ==================
e4m3    s eeee mmm      up to 448; NaN is 0x7f and 0xff                       infinities
e5m2    s eeeee mm      an f16's high byte                                    (as f16)
e2m1    s ee m          0, 0.5, 1, 1.5, 2, 3, 4, 6                            infinities, NaN
======  ==============  ====================================================  ==================

Every fp8 is exact in f16, and is decoded to it; any NaN becomes 0x7fff, f16's canonical one. Encoding rounds to nearest
even and saturates at the largest finite value; a NaN becomes 0x7f.

Sources: PTX ISA, "cvt", "Alternate floating point data formats"; ``emmy_from_f8e4m3`` and ``emmy_to_f4e2m1`` of
``emmy.compiler.ir.kernel.render``; cuda_fp8.hpp, which Emmy's CUDA converts by elsewhere.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from emmy.compiler.dtype import decode_f8, encode_f8

from ptxc.frontend.dtypes import E4M3_T, E5M2_T, FP8, ElementType
from ptxc.ir import opcodes
from ptxc.ir.builder import Builder
from ptxc.ir.types import B16, B32, F32
from ptxc.ir.values import Const, Operand, Value, integer, real, real_of
from ptxc.target import parse_target

#: The first architectures with instructions for fp8, and for bf16.
_FP8_SM, _BF16_SM = 89, 80
#: The truth table of ``(a & ~b) | (c & b)``: c where b's bits are set, else a.
_MERGE = 0xB8


class _Format(NamedTuple):
    """What encoding needs to know of a format."""

    #: The bits of an f32's fraction that it lacks, and what its exponent counts from less.
    dropped: int
    rebias: int
    least_normal: float
    #: A power of two whose f32 ulp is the format's least step: adding it rounds what is below ``least_normal``.
    magic: float
    largest: float
    #: Where the sign is, and what a NaN becomes, sign and all; None where it becomes a zero of its sign.
    sign: int
    nan: int | None


_E4M3 = _Format(20, (127 - 7) << 3, 2.0**-6, 2.0**14, 448.0, 7, 0x7F)
_E5M2 = _Format(21, (127 - 15) << 2, 2.0**-14, 2.0**7, 57344.0, 7, 0x7F)
_E2M1 = _Format(22, (127 - 1) << 1, 1.0, 2.0**22, 6.0, 3, None)
_FORMATS: dict[ElementType, _Format] = {E4M3_T: _E4M3, E5M2_T: _E5M2}


def number(bits: int, type: ElementType) -> float:
    """The number that the bits of an fp8 spell."""
    return float(decode_f8(np.array([bits & 0xFF], np.uint8), type.name)[0])


def bits_of(value: float, type: ElementType) -> int:
    """The bits of the fp8 that ``value``, rounded to f32, becomes."""
    return int(encode_f8(np.array([real_of(real(F32, value))]), type.name)[0])


def has_fp8(b: Builder) -> bool:
    """Whether the target has instructions that convert fp8."""
    return parse_target(b.kernel.target).sm >= _FP8_SM


def _register(b: Builder, operand: Operand) -> Operand:
    """The operand in a register."""
    if isinstance(operand, Const):
        return b.emit(opcodes.MOV, (operand.type.name,), operand.type, (operand,), "bits")
    return operand


# ------------------------------------------------------------------------------------------------------- decoding


def decode(b: Builder, byte: Operand, type: ElementType, hint: str = "t") -> Value:
    """The f16 that an fp8, the low byte of a b32 whose other bytes are zero, stands for."""
    if has_fp8(b):
        pair = decode_pair(b, b.cvt("u16.u32", byte, hint), type, hint)
        return b.multi(opcodes.UNPACK, ("b32",), (b.kernel.value(B16, hint), b.kernel.value(B16, "high")), (pair,))[0]
    shifted = b.binary(opcodes.SHL, "b32", byte, integer(B32, 8), hint)
    magnitude = b.binary(opcodes.AND, "b32", shifted, integer(B32, 0x7FFF if type is E5M2_T else 0x7F00), hint)
    if type is E5M2_T:
        nan = b.setp("gt.u32", magnitude, integer(B32, 0x7C00), "nan")
        half = b.cvt("u16.u32", shifted, hint)
    else:
        nan = b.setp("eq.u32", magnitude, integer(B32, 0x7F00), "nan")
        sign = b.binary(opcodes.AND, "b32", shifted, integer(B32, 0x8000), "sign")
        low = b.binary(opcodes.SHR, "b32", magnitude, integer(B32, 1), hint)
        unscaled = b.cvt("u16.u32", b.binary(opcodes.OR, "b32", sign, low, hint), hint)
        # The exponent's bias is 8 less than f16's. The product also normalises what is denormal in f16.
        half = b.binary(opcodes.MUL, "rn.f16", unscaled, _register(b, integer(B16, 0x5C00)), hint)
    return b.selp("b16", integer(B16, 0x7FFF), half, nan, hint)


def decode_pair(b: Builder, pair: Value, type: ElementType, hint: str = "pair") -> Value:
    """The packed pair of f16 that two fp8 in a b16 stand for, the low byte in the low half."""
    if has_fp8(b):
        return b.emit(opcodes.PAIR_CVT, ("rn", "f16x2", FP8[type]), B32, (pair,), hint)
    wide = b.cvt("u32.u16", pair, hint)
    # Byte 0 to byte 1, byte 1 to byte 3, zeros between them.
    spread = b.emit(opcodes.PRMT, ("b32",), B32, (wide, integer(B32, 0), integer(B32, 0x1404)), hint)
    magnitude = b.binary(opcodes.AND, "b32", spread, integer(B32, 0x7FFF7FFF), hint)
    if type is E5M2_T:
        halves = spread
        # Adding what is missing to 0x8000 sets the high bit of each half that is beyond infinity.
        missing = 0x8000 - 0x7C00 - 1
    else:
        sign = b.binary(opcodes.AND, "b32", spread, integer(B32, 0x80008000 - 2**32), "sign")
        low = b.binary(opcodes.SHR, "b32", magnitude, integer(B32, 1), hint)
        unscaled = b.binary(opcodes.OR, "b32", sign, low, hint)
        scale = _register(b, integer(B32, 0x5C005C00))
        halves = b.binary(opcodes.MUL, "rn.f16x2", unscaled, scale, hint)
        missing = 0x8000 - 0x7F00
    over = b.binary(opcodes.ADD, "u32", magnitude, integer(B32, missing << 16 | missing), hint)
    flags = b.binary(opcodes.SHR, "b32", over, integer(B32, 15), hint)
    flags = b.binary(opcodes.AND, "b32", flags, integer(B32, 0x00010001), hint)
    nan = b.binary(opcodes.MUL, "lo.u32", flags, integer(B32, 0xFFFF), "nan")
    canonical = integer(B32, 0x7FFF7FFF)
    return b.emit(opcodes.LOP3, ("b32",), B32, (halves, nan, canonical, integer(B32, _MERGE)), hint)


# ------------------------------------------------------------------------------------------------------- encoding


def encode(b: Builder, value: Operand, type: ElementType, hint: str = "t") -> Value:
    """The fp8 nearest to an f32, in the low byte of a b32 whose other bytes are zero."""
    if has_fp8(b):
        return b.cvt("u32.u16", encode_pair(b, value, real(F32, 0.0), type, hint), hint)
    return _encode(b, value, _FORMATS[type], hint)


def encode_pair(b: Builder, low: Operand, high: Operand, type: ElementType, hint: str = "t") -> Value:
    """The fp8 nearest to two f32, in the bytes of a b16; by the instruction for it, which the target must have."""
    return b.emit(opcodes.PACK_CVT, ("rn", "satfinite", FP8[type], "f32"), B16, (high, low), hint)


def encode_e2m1(b: Builder, value: Operand, hint: str = "t") -> Value:
    """The e2m1 code nearest to an f32, an integer below 16; that of a NaN is a zero of its sign."""
    return _encode(b, value, _E2M1, hint)


def _encode(b: Builder, value: Operand, form: _Format, hint: str) -> Value:
    """The format's code that is nearest to an f32, by arithmetic on the f32's bits.

    In the range of the format's normal numbers, half of the last place that it keeps, less one if that place is even,
    is added to the bits; what carries into the exponent belongs there. Below that range, adding ``magic`` rounds, and
    the sum's last bits count the format's least steps, as its codes do.
    """
    bits = b.emit(opcodes.BITCAST, ("b32", "f32"), B32, (value,), hint)
    magnitude = b.unary(opcodes.ABS, "f32", value, hint)
    kept = b.binary(opcodes.MIN, "f32", magnitude, real(F32, form.largest), hint)
    word = b.emit(opcodes.BITCAST, ("b32", "f32"), B32, (kept,), hint)
    last = b.emit(opcodes.BFE, ("u32",), B32, (word, integer(B32, form.dropped), integer(B32, 1)), "last")
    # The exponent's bias leaves together with the rounding's half: the shift drops both.
    offset = (1 << (form.dropped - 1)) - 1 - (form.rebias << form.dropped)
    moved = b.binary(opcodes.ADD, "s32", b.binary(opcodes.ADD, "s32", word, last, hint), integer(B32, offset), hint)
    normal = b.binary(opcodes.SHR, "u32", moved, integer(B32, form.dropped), hint)
    shifted = b.binary(opcodes.ADD, "rn.f32", kept, real(F32, form.magic), hint)
    shifted = b.emit(opcodes.BITCAST, ("b32", "f32"), B32, (shifted,), hint)
    small = b.binary(opcodes.SUB, "s32", shifted, integer(B32, real(F32, form.magic).bits), hint)
    below = b.setp("lt.f32", kept, real(F32, form.least_normal), "below")
    code = b.selp("b32", small, normal, below, hint)
    sign = b.binary(opcodes.SHR, "u32", bits, integer(B32, 31 - form.sign), "sign")
    sign = b.binary(opcodes.AND, "b32", sign, integer(B32, 1 << form.sign), "sign")
    nan = b.setp("nan.f32", value, value, "nan")
    if form.nan is None:
        code = b.selp("b32", integer(B32, 0), code, nan, hint)
    code = b.binary(opcodes.OR, "b32", code, sign, hint)
    return code if form.nan is None else b.selp("b32", integer(B32, form.nan), code, nan, hint)


def to_bf16(b: Builder, value: Operand, hint: str = "t") -> Value:
    """The bf16 nearest to an f32, to even; a NaN becomes 0x7fff."""
    if parse_target(b.kernel.target).sm >= _BF16_SM:
        return b.cvt("rn.bf16.f32", value, hint)
    word = b.emit(opcodes.BITCAST, ("b32", "f32"), B32, (value,), hint)
    last = b.emit(opcodes.BFE, ("u32",), B32, (word, integer(B32, 16), integer(B32, 1)), "last")
    moved = b.binary(opcodes.ADD, "s32", b.binary(opcodes.ADD, "s32", word, last, hint), integer(B32, 0x7FFF), hint)
    half = b.cvt("u16.u32", b.binary(opcodes.SHR, "u32", moved, integer(B32, 16), hint), hint)
    return b.selp("b16", integer(B16, 0x7FFF), half, b.setp("nan.f32", value, value, "nan"), hint)
