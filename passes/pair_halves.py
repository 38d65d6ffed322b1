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
from collections.abc import Iterator

from ptxc.ir import opcodes
from ptxc.ir.kernel import Block, Instr, Kernel
from ptxc.ir.liveness import use_counts
from ptxc.ir.types import B16
from ptxc.ir.values import Operand

#: How many operations one after the other are paired.
_DEEP = 4


def run(kernel: Kernel) -> None:
    """Pair operations in every block."""
    blocks = [(block, halves, packs) for block in kernel.blocks for halves, packs in _apart(block)]
    if blocks:
        users = use_counts(kernel)
        for block, halves, packs in blocks:
            _pair(block, halves, packs, users)


def _apart(block: Block) -> Iterator[tuple[dict[Operand, Instr], list[Instr]]]:
    """If the block packs pairs whose operations may stand apart: its operations on halves, and what packs such."""
    if not any([instr.op is opcodes.PACK for instr in block.instrs]):
        return
    halves: dict[Operand, Instr] = {}
    packs = []
    last: list[Instr] = []
    for instr in block.instrs:
        if instr.op is opcodes.PACK:
            first, second = [halves.get(operand) for operand in instr.operands]
            if first is not None and second is not None and _alike(first, second):
                together = last[-2:] == [first, second]
                if not together or not halves.keys().isdisjoint(first.operands):
                    packs.append(instr)
        elif instr.op.effect == "PURE" and len(instr.results) == 1 and instr.results[0].type is B16:
            halves[instr.results[0]] = instr
        last.append(instr)
    if packs:
        yield halves, packs


def _alike(first: Instr, second: Instr) -> bool:
    return first is not second and first.op is second.op and first.mods == second.mods


def _pair(block: Block, halves: dict[Operand, Instr], packs: list[Instr], users: Counter[Operand]) -> None:
    """Move the operations of pairs to what packs them."""
    paired = {pack: _pairs(pack.operands[0], pack.operands[1], halves, users, _DEEP) for pack in packs}
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
