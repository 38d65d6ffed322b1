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
    found: list[Value] = []
    for operand in instr.operands:
        if isinstance(operand, Value):
            found.append(operand)
        elif isinstance(operand, Mem) and isinstance(operand.base, Value):
            found.append(operand.base)
    if instr.guard is not None:
        found.append(instr.guard.predicate)
    for edge in instr.targets:
        found += [arg for arg in edge.args if isinstance(arg, Value)]
    return found


class Liveness(NamedTuple):
    """Live values at the borders of blocks, as bit sets over :attr:`numbers`."""

    numbers: dict[Value, int]
    live_in: dict[Block, int]
    live_out: dict[Block, int]


def liveness(kernel: Kernel) -> Liveness:
    """Which values are live where blocks begin and end.

    What an edge passes is read by the branch; a block's parameters are not live where it begins. A value is live out
    of a block only if a later block reads it itself.
    """
    numbers: dict[Value, int] = {}
    reads: dict[Block, int] = {}
    writes: dict[Block, int] = {}
    for block in kernel.blocks:
        read = written = 0
        for value in block.params:
            written |= 1 << numbers.setdefault(value, len(numbers))
        for instr in block.instrs:
            for value in uses(instr):
                read |= (1 << numbers.setdefault(value, len(numbers))) & ~written
            if instr.guard is None:
                for value in instr.results:
                    written |= 1 << numbers.setdefault(value, len(numbers))
            else:
                # A guarded instruction may leave its result as it was.
                for value in instr.results:
                    bit = 1 << numbers.setdefault(value, len(numbers))
                    if kernel.ssa:
                        written |= bit
        reads[block], writes[block] = read, written
    live_in = dict(reads)
    live_out = dict.fromkeys(kernel.blocks, 0)
    changed = True
    while changed:
        changed = False
        for block in reversed(kernel.blocks):
            out = 0
            for after in block.successors():
                out |= live_in[after]
            if out != live_out[block]:
                live_out[block] = out
                into = reads[block] | (out & ~writes[block])
                if into != live_in[block]:
                    live_in[block] = into
                    changed = True
    return Liveness(numbers, live_in, live_out)
