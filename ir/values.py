"""Operands: values, constants, symbols and memory addresses.

A :class:`Value` is one virtual register, equal only to itself. The other operands are tuples and compare by content,
so that an instruction's operands can be a dictionary key as they are.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import Final, NamedTuple

from ptxc.ir.types import F32, F64, PRED, Type


class Value:
    """A virtual register: in SSA form the one result of one instruction, or a block's parameter."""

    __slots__ = ("hint", "number", "type")

    def __init__(self, type: Type, hint: str, number: int = 0) -> None:
        self.type = type
        #: What it is named after, and which of those named after the same it is.
        self.hint = hint
        self.number = number

    @property
    def name(self) -> str:
        """Unique within its kernel, without the ``%``. Made when it is asked for: most names are never read."""
        return f"{self.hint}.{self.number}" if self.number else self.hint

    def __repr__(self) -> str:
        return f"%{self.name}"


class Const(NamedTuple):
    """A typed constant: integers in two's complement as signed numbers, floats as their bits.

    Predicates are 0 and -1. Make them with :func:`integer` and :func:`real`, which normalise.
    """

    type: Type
    bits: int


class Sym(NamedTuple):
    """A name that the assembler resolves: a parameter, a shared array, a special register (with its ``%``)."""

    name: str


#: Special registers look like values in PTX; these names are never a value's. Each is the same whenever it is read.
SPECIAL = frozenset(
    f"{kind}.{axis}" for kind in ("tid", "ntid", "ctaid", "nctaid") for axis in "xyz"
) | {"laneid", "warpid"}  # fmt: skip


class Mem(NamedTuple):
    """A memory operand: ``[base+offset]``, the offset in bytes."""

    base: Value | Sym
    offset: int = 0


Operand = Value | Const | Sym | Mem


@lru_cache(4096)
def integer(type: Type, value: int) -> Const:
    """The integer constant ``value`` wrapped into ``type`` (an integer bank or a predicate)."""
    half = 1 << (type.bits - 1)
    return Const(type, ((value + half) & (2 * half - 1)) - half)


def real(type: Type, value: float) -> Const:
    """The constant nearest to ``value`` in ``type`` (F32 or F64); beyond F32's range it is an infinity."""
    if type is F64:
        return Const(F64, int.from_bytes(struct.pack(">d", value), "big"))
    try:
        packed = struct.pack(">f", value)
    except OverflowError:
        packed = b"\x7f\x80\x00\x00" if value > 0 else b"\xff\x80\x00\x00"
    return Const(F32, int.from_bytes(packed, "big"))


def real_of(constant: Const) -> float:
    """The number that a floating-point constant's bits spell."""
    if constant.type is F64:
        return float(struct.unpack(">d", constant.bits.to_bytes(8, "big"))[0])
    return float(struct.unpack(">f", constant.bits.to_bytes(4, "big"))[0])


def half_bits(value: float) -> int:
    """The IEEE binary16 bits nearest to ``value``; beyond its range, an infinity's."""
    try:
        return int.from_bytes(struct.pack(">e", value), "big")
    except OverflowError:
        return 0x7C00 if value > 0 else 0xFC00


def bfloat_bits(value: float) -> int:
    """The bfloat16 bits of ``value`` rounded to f32, then to nearest even as CUDA's ``__float2bfloat16`` does."""
    bits = real(F32, value).bits
    if (bits & 0x7FFFFFFF) > 0x7F800000:
        return 0x7FFF
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16) & 0xFFFF


TRUE: Final = integer(PRED, -1)
FALSE: Final = integer(PRED, 0)
