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
from ptxc.ir.types import B16
from ptxc.ir.uses import use_counts
from ptxc.ir.values import Operand

#: How many operations one after the other are paired.
_DEEP = 4


def run(kernel: Kernel) -> None:
    """Pair operations in every block."""
    found = [(block, apart) for block in kernel.blocks if (apart := _apart(block))]
    if found:
        users = use_counts(kernel)
        for block, apart in found:
            _pair(block, apart, users)


def _apart(block: Block) -> list[tuple[Instr, dict[Operand, Instr]]]:
    """What packs halves whose operations may stand apart, each with the operations on halves that may move to it.

    None moves past a meeting of threads, or past an instruction that takes registers over: what it reads may be held
    then, and would have to be copied.
    """
    if not any([instr.op is opcodes.PACK for instr in block.instrs]):
        return []
    found: list[tuple[Instr, dict[Operand, Instr]]] = []
    halves: dict[Operand, Instr] = {}
    before: tuple[Instr | None, Instr | None] = (None, None)
    for instr in block.instrs:
        op = instr.op
        if op is opcodes.PACK:
            first, second = [halves.get(operand) for operand in instr.operands]
            if first is not None and second is not None and _alike(first, second):
                # In place already, and so is what they are computed of unless that is a half again.
                together = before == (first, second) and halves.keys().isdisjoint((*first.operands, *second.operands))
                if not together:
                    found.append((instr, halves))
        elif op.tied or op.effect == "SYNC":
            halves = {}
        elif op.effect == "PURE" and len(instr.results) == 1 and instr.results[0].type is B16:
            halves[instr.results[0]] = instr
        before = (before[1], instr)
    return found


def _alike(first: Instr, second: Instr) -> bool:
    return first is not second and first.op is second.op and first.mods == second.mods


def _pair(block: Block, apart: list[tuple[Instr, dict[Operand, Instr]]], users: Counter[Operand]) -> None:
    """Move the operations of pairs to what packs them."""
    paired = {pack: _pairs(pack.operands[0], pack.operands[1], halves, users, _DEEP) for pack, halves in apart}
    moved = {instr for found in paired.values() for instr in found}
    if moved:
        kept = [instr for instr in block.instrs if instr not in moved]
        block.instrs = [one for instr in kept for one in (*paired.get(instr, ()), instr)]


def _pairs(x: Operand, y: Operand, halves: dict[Operand, Instr], users: Counter[Operand], deep: int) -> list[Instr]:
    """The operations that compute x and y, if they are a pair, after the pairs that compute their operands."""
    first, second = halves.get(x), halves.get(y)
    if deep == 0 or first is None or second is None or not _alike(first, second):
        return []
    if users[first.results[0]] > 1 or users[second.results[0]] > 1:
        return []
    before = [
        instr
        for a, b in zip(first.operands, second.operands, strict=True)
        for instr in _pairs(a, b, halves, users, deep - 1)
    ]
    return [*before, first, second]
