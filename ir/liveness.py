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
    scan = _scan_ssa if kernel.ssa else _scan_registers
    for block in kernel.blocks:
        read, defined[block] = scan(block, reads[block])
        exposed[block] = sum(1 << numbers.setdefault(value, len(numbers)) for value in read)
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


def _scan_ssa(block: Block, reads: list[list[Value]]) -> tuple[set[Value], set[Value]]:
    """The values that a block reads and does not define (in SSA form, before it defines them), and those it defines."""
    defined = set(block.params).union(*[instr.results for instr in block.instrs])
    return set().union(*reads) - defined, defined


def _scan_registers(block: Block, reads: list[list[Value]]) -> tuple[set[Value], set[Value]]:
    """The registers that a block reads before it writes them, and those that it writes."""
    exposed: set[Value] = set()
    written: set[Value] = set()
    for instr, values in zip(block.instrs, reads, strict=True):
        if not written.issuperset(values):
            exposed.update([value for value in values if value not in written])
        # A guarded instruction may leave its result as it was.
        if instr.guard is None:
            written.update(instr.results)
    return exposed, written
