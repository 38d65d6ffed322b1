"""Pairs of 16-bit elements in a register."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ptxc.frontend.convert import convert
from ptxc.frontend.dtypes import F16_T, F32_T, element_type
from ptxc.frontend.fragments.registers import as_register
from ptxc.frontend.scope import Typed
from ptxc.ir import opcodes
from ptxc.ir.types import B16, B32, F32
from ptxc.ir.values import Operand

if TYPE_CHECKING:
    from ptxc.frontend.lower import Lowering


def pack(k: Lowering, low: Operand, high: Operand, dtype: str) -> Operand:
    """Two f32 rounded to a pair of ``dtype`` (f16 or bf16)."""
    b = k.builder
    if k.arithmetic.sm >= 80:
        return b.emit(opcodes.PACK_CVT, ("rn", f"{dtype}x2", "f32"), B32, (high, low), "pair")
    halves = tuple(as_register(k, convert(b, Typed(half, F32_T), element_type(dtype)).operand) for half in (low, high))
    return b.emit(opcodes.PACK, ("b32",), B32, halves, "pair")


def add_halves(k: Lowering, word: Operand, totals: list[Typed], hint: str) -> list[Operand]:
    """The sums of the two f16 in ``word`` and two f32."""
    b = k.builder
    return [
        b.emit(opcodes.ADD, k.arithmetic.mods("f32"), F32, (total.operand, b.cvt("f32.f16", half.operand, hint)), hint)
        for half, total in zip(unpack(k, word), totals, strict=True)
    ]


def unpack(k: Lowering, pair: Operand) -> tuple[Typed, Typed]:
    """The two f16 of a pair."""
    halves = (k.kernel.value(B16, "half"), k.kernel.value(B16, "half"))
    k.builder.multi(opcodes.UNPACK, ("b32",), halves, (pair,))
    return Typed(halves[0], F16_T), Typed(halves[1], F16_T)
