"""Moves what does not change in a loop in front of it.

An instruction without effects whose operands are all defined outside the loop is computed once, at the end of the
block from which the loop is entered::

    entry:                              entry:
      bra loop(0)                         %a = mul.lo.s32 %n, 4
    loop(%i):                     ->      bra loop(0)
      %a = mul.lo.s32 %n, 4             loop(%i):
      ...                                 ...

Inner loops go first, so that what leaves an inner loop can leave the outer one too. Nothing that could fault is moved
(no loads), so computing it although the loop may not run is harmless.
"""

from __future__ import annotations

from ptxc.ir import cfg
from ptxc.ir.kernel import Block, Instr, Kernel
from ptxc.ir.values import Operand


def run(kernel: Kernel) -> None:
    """Hoist out of every loop that is entered from one block."""
    loops = cfg.loops(kernel)
    if not loops:
        return
    before = cfg.predecessors(kernel)
    for loop in loops:
        members = set(loop.blocks)
        entries = {block: None for block in before[loop.header] if block not in members}
        if len(entries) == 1:
            _hoist(loop, *entries)


def _hoist(loop: cfg.Loop, entry: Block) -> None:
    inside: set[Operand] = set()
    for block in loop.blocks:
        inside.update(block.params)
        for instr in block.instrs:
            inside.update(instr.results)
    hoisted: list[Instr] = []
    # Layout order has definitions before uses but for what goes round the loop, which cannot be hoisted.
    for block in loop.blocks:
        kept = []
        for instr in block.instrs:
            if instr.op.effect == "PURE" and instr.guard is None and inside.isdisjoint(instr.operands):
                hoisted.append(instr)
                inside.difference_update(instr.results)
            else:
                kept.append(instr)
        block.instrs = kept
    entry.instrs[-1:-1] = hoisted
