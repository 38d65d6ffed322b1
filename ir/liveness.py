"""Liveness: where in a kernel a register may still be read."""

from __future__ import annotations

from typing import NamedTuple

from ptxc.ir.cfg import predecessors
from ptxc.ir.kernel import Block, Instr, Kernel
from ptxc.ir.values import Mem, Value


def uses(instr: Instr) -> list[Value]:
    """The values that an instruction reads: operands, address registers, its guard, what its edges pass."""
    # Types are compared by identity here: this is the innermost loop of several passes.
    found: list[Value] = [operand for operand in instr.operands if type(operand) is Value]
    if instr.op.addresses:
        found += [operand.base for operand in instr.operands if type(operand) is Mem and type(operand.base) is Value]
    if instr.guard is not None:
        found.append(instr.guard.predicate)
    for edge in instr.targets:
        found += [arg for arg in edge.args if type(arg) is Value]
    return found


class Liveness(NamedTuple):
    """What is live at the borders of blocks."""

    #: The registers that a later block may read as they are where the block ends.
    live_out: dict[Block, set[Value]]
    #: What each instruction of a block reads (:func:`uses`), the last one first.
    reads: dict[Block, list[list[Value]]]


def liveness(kernel: Kernel) -> Liveness:
    """Which registers are live where blocks end, of a kernel that has left SSA form.

    From each block that reads a register which it has not written before, the register is followed up to the blocks
    that write it: work in proportion to what is live, as most registers live in one block.
    """
    reads: dict[Block, list[list[Value]]] = {}
    exposed: dict[Block, set[Value]] = {}
    written: dict[Block, set[Value]] = {}
    for block in kernel.blocks:
        live = exposed[block] = set()
        kept = written[block] = set()
        mine = reads[block] = []
        for instr in reversed(block.instrs):
            # A guarded instruction may leave its result as it was.
            if instr.guard is None:
                live.difference_update(instr.results)
                kept.update(instr.results)
            read = uses(instr)
            live.update(read)
            mine.append(read)
    before = predecessors(kernel)
    live_out: dict[Block, set[Value]] = {block: set() for block in kernel.blocks}
    for reader, values in exposed.items():
        for value in values:
            pending = [reader]
            while pending:
                for block in before[pending.pop()]:
                    if value not in live_out[block]:
                        live_out[block].add(value)
                        if value not in written[block] and value not in exposed[block]:
                            pending.append(block)
    return Liveness(live_out, reads)
