"""Liveness: where in a kernel a value may still be read.

Values are numbered, sets of them are Python integers used as bit sets: unions over thousands of values are single
operations. Positions number the instructions in layout order; a block's parameters are defined just before its first.
"""

from __future__ import annotations

from typing import NamedTuple

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
    """Live values at the borders of blocks, as bit sets over :attr:`numbers`.

    Only values that some block reads without defining them have a number: no other is live at a border.
    """

    numbers: dict[Value, int]
    live_in: dict[Block, int]
    live_out: dict[Block, int]
    #: What each instruction of a block reads (:func:`uses`), in order.
    reads: dict[Block, list[list[Value]]]


def liveness(kernel: Kernel) -> Liveness:
    """Which values are live where blocks begin and end.

    What an edge passes is read by the branch; a block's parameters are not live where it begins. A value is live out
    of a block only if a later block reads it itself.
    """
    numbers: dict[Value, int] = {}
    exposed: dict[Block, int] = {}
    defined: dict[Block, set[Value]] = {}
    reads = {block: [uses(instr) for instr in block.instrs] for block in kernel.blocks}
    for block in kernel.blocks:
        exposed[block], defined[block] = _scan(block, reads[block], kernel.ssa, numbers)
    kept = {
        block: ~sum(1 << numbers[value] for value in values if value in numbers) for block, values in defined.items()
    }
    live_in = dict(exposed)
    live_out = dict.fromkeys(kernel.blocks, 0)
    changed = bool(numbers)
    while changed:
        changed = False
        for block in reversed(kernel.blocks):
            out = 0
            for edge in block.instrs[-1].targets:
                out |= live_in[edge.block]
            if out != live_out[block]:
                live_out[block] = out
                into = exposed[block] | (out & kept[block])
                if into != live_in[block]:
                    live_in[block] = into
                    changed = True
    return Liveness(numbers, live_in, live_out, reads)


def _scan(block: Block, reads: list[list[Value]], ssa: bool, numbers: dict[Value, int]) -> tuple[int, set[Value]]:
    """The values that a block reads before it defines them, numbered, and those that it defines."""
    exposed = 0
    defined = set(block.params)
    for instr, values in zip(block.instrs, reads, strict=True):
        for value in values:
            if value not in defined:
                exposed |= 1 << numbers.setdefault(value, len(numbers))
        # In register form a guarded instruction may leave its result as it was.
        if instr.results and (instr.guard is None or ssa):
            defined.update(instr.results)
    return exposed, defined
