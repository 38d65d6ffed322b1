"""Puts half-precision operations side by side whose results are packed together.

The hardware computes two halves in one instruction, and the assembler makes one of two that it finds next to each
other::

    %x = cvt.rn.f16.f32 %a               %x = cvt.rn.f16.f32 %a
    %s = mul.f16 %x, %w                  %y = cvt.rn.f16.f32 %b
    ...                            ->    %s = mul.f16 %x, %w
    %y = cvt.rn.f16.f32 %b               %t = mul.f16 %y, %v
    %t = mul.f16 %y, %v                  %p = pack.b32 %s, %t
    %p = pack.b32 %s, %t

Both operations move down to what packs them, and so do operations of the same kind that they alone use, a few deep:
what long chains are made of would have to wait in registers. They must be in the block of what packs them.
"""

from __future__ import annotations

from collections import Counter

from ptxc.ir import opcodes
from ptxc.ir.kernel import Block, Instr, Kernel
from ptxc.ir.liveness import use_counts
from ptxc.ir.types import B16
from ptxc.ir.values import Operand

#: How many operations one after the other are paired.
_DEEP = 4


def run(kernel: Kernel) -> None:
    """Pair operations in every block."""
    packing = [block for block in kernel.blocks if any([instr.op is opcodes.PACK for instr in block.instrs])]
    if packing:
        users = use_counts(kernel)
        for block in packing:
            _pair(block, users)


def _pair(block: Block, users: Counter[Operand]) -> None:
    """Move the operations of pairs to what packs them."""
    halves: dict[Operand, Instr] = {
        instr.results[0]: instr
        for instr in block.instrs
        if instr.op.effect == "PURE" and len(instr.results) == 1 and instr.results[0].type is B16
    }
    paired: dict[Instr, list[Instr]] = {}
    for instr in block.instrs:
        if instr.op is opcodes.PACK:
            x, y = instr.operands
            paired[instr] = _pairs(x, y, halves, users, _DEEP)
    moved = {instr for found in paired.values() for instr in found}
    if moved:
        kept = [instr for instr in block.instrs if instr not in moved]
        block.instrs = [one for instr in kept for one in (*paired.get(instr, ()), instr)]


def _pairs(x: Operand, y: Operand, halves: dict[Operand, Instr], users: Counter[Operand], deep: int) -> list[Instr]:
    """The operations that compute x and y, if they are a pair, after the pairs that compute their operands."""
    first, second = halves.get(x), halves.get(y)
    if deep == 0 or first is None or second is None or first is second:
        return []
    alike = first.op is second.op and first.mods == second.mods
    if not alike or users[first.results[0]] > 1 or users[second.results[0]] > 1:
        return []
    before = [
        instr
        for a, b in zip(first.operands, second.operands, strict=True)
        for instr in _pairs(a, b, halves, users, deep - 1)
    ]
    return [*before, first, second]
