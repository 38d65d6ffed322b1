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

What has left a loop holds a register all through it. Where registers are scarce (:data:`_SCARCE`), only what frees as
many moves: an instruction that alone uses its operands. The rest costs less where it is, computed anew each time, than
the spills or the CTA on the multiprocessor that it would displace. Where all registers are taken (:data:`_FULL`),
nothing moves: the assembler, which spills then, knows best what to hold.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache

from ptxc.ir import cfg, opcodes
from ptxc.ir.kernel import Block, Instr, Kernel
from ptxc.ir.uses import crowding, use_counts, words
from ptxc.ir.values import Const, Operand, Value

#: From how many live words (:func:`crowding`) on registers are scarce. Below, the assembler finds room (measured over
#: Emmy's corpus: it takes hardly more, and no CTA on the multiprocessor is lost); above, it spills.
_SCARCE = 144

#: From how many on as good as all are taken, of the 255 that a thread can have.
_FULL = 240

#: What is less than this is a small constant: an immediate of an instruction holds it. What the frontend adds to a
#: pointer because accesses are far from it is not.
_SMALL = 1 << 23


def run(kernel: Kernel) -> None:
    """Hoist out of every loop that is entered from one block."""
    loops = cfg.loops(kernel)
    if not loops:
        return
    before = cfg.predecessors(kernel)
    rule = cache(lambda: _rule(kernel, loops))
    for loop in loops:
        members = set(loop.blocks)
        entries = {block: None for block in before[loop.header] if block not in members}
        if len(entries) == 1:
            _hoist(loop, rule, *entries)


def _rule(kernel: Kernel, loops: Sequence[cfg.Loop]) -> Callable[[Instr], bool]:
    """Which instructions may move: all, those that free registers, or none."""
    live = crowding(kernel, loops, _FULL)
    if live < _SCARCE:
        return lambda instr: True
    if live >= _FULL:
        return lambda instr: False
    users = use_counts(kernel)
    return lambda instr: _frees_registers(instr, users)


def _hoist(loop: cfg.Loop, rule: Callable[[], Callable[[Instr], bool]], entry: Block) -> None:
    """Move to the end of ``entry`` what does not change in the loop and may move.

    What may, ``rule`` says, which is asked where there is something: that needs a look at the whole kernel.
    """
    inside: set[Operand] = set()
    for block in loop.blocks:
        inside.update(block.params, *[instr.results for instr in block.instrs])
    hoisted: list[Instr] = []
    # Layout order has definitions before uses but for what goes round the loop, which cannot be hoisted.
    for block in loop.blocks:
        kept = []
        for instr in block.instrs:
            if (
                instr.op.effect == "PURE"
                and instr.guard is None
                and inside.isdisjoint(instr.operands)
                and not _is_immediate(instr)
                and rule()(instr)
            ):
                hoisted.append(instr)
                inside.difference_update(instr.results)
            else:
                kept.append(instr)
        block.instrs = kept
    entry.instrs[-1:-1] = hoisted


def _is_immediate(instr: Instr) -> bool:
    """Whether an instruction adds a small constant to 64 bits, as each matrix descriptor of a warpgroup's product has:
    the assembler makes it part of moving the descriptor to uniform registers, where it takes none of the thread's.
    """
    if instr.op is not opcodes.ADD or instr.mods != ("s64",):
        return False
    constant = instr.operands[1]
    return type(constant) is Const and -_SMALL < constant.bits < _SMALL


def _frees_registers(instr: Instr, users: Counter[Operand]) -> bool:
    """Whether operands that nothing else uses take as many registers as the results."""
    freed = [operand for operand in instr.operands if type(operand) is Value and users[operand] == 1]
    return words(freed) >= words(instr.results)
