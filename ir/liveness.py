"""Liveness: where in a kernel a register may still be read.

Values are numbered, sets of them are Python integers used as bit sets: unions over thousands of values are single
operations.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import NamedTuple

from ptxc.ir.cfg import Loop
from ptxc.ir.kernel import Block, Instr, Kernel
from ptxc.ir.types import PRED
from ptxc.ir.values import Mem, Operand, Value


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


def reads(instr: Instr) -> Sequence[Operand]:
    """Operands among which are all values that an instruction reads; cheaper than :func:`uses` where that will do."""
    if instr.op.addresses or instr.guard is not None or instr.targets:
        return uses(instr)
    return instr.operands


def words(values: Iterable[Operand]) -> int:
    """The 32-bit registers that values take; predicates have their own."""
    return sum([max(value.type.bits // 32, 1) for value in values if type(value) is Value and value.type is not PRED])


def crowding(kernel: Kernel, loops: Iterable[Loop]) -> int:
    """About how many 32-bit registers are live at the busiest point of a kernel in SSA form.

    A value counts from where it is defined to its last use in the order of the text, and to the end of each loop that
    uses it and does not define it: at least what :func:`liveness` would find, at a fraction of the work.
    """
    starts: dict[Block, int] = {}
    position = 0
    for block in kernel.blocks:
        starts[block] = position
        position += len(block.instrs)
    around: dict[Block, list[tuple[int, int]]] = {block: [] for block in kernel.blocks}
    for loop in loops:
        last = loop.blocks[-1]
        span = (starts[loop.blocks[0]], starts[last] + len(last.instrs))
        for block in loop.blocks:
            around[block].append(span)
    born: dict[Operand, int] = {}
    dies: dict[Operand, int] = {}
    for block in kernel.blocks:
        position, spans = starts[block], around[block]
        born.update(dict.fromkeys(block.params, position))
        for instr in block.instrs:
            for value in reads(instr):
                if type(value) is Value:
                    since = born.get(value, 0)
                    dies[value] = max([dies.get(value, 0), position, *[end for start, end in spans if since < start]])
            born.update(dict.fromkeys(instr.results, position))
            position += 1
    change = [0] * (position + 2)
    for value, since in born.items():
        taken = words((value,))
        change[since] += taken
        change[dies.get(value, since) + 1] -= taken
    return max(accumulate(change))


class Liveness(NamedTuple):
    """The registers that are live where blocks end, as bit sets over :attr:`numbers`.

    Only registers that some block reads before it writes them have a number: no other is live at a border.
    """

    numbers: dict[Value, int]
    live_out: dict[Block, int]
    #: Of each block's instructions, :func:`reads`.
    read: dict[Block, list[Sequence[Operand]]]


def liveness(kernel: Kernel) -> Liveness:
    """Which registers are live where blocks end, of a kernel that has left SSA form."""
    numbers: dict[Value, int] = {}
    exposed: dict[Block, int] = {}
    all_reads: dict[Block, list[Sequence[Operand]]] = {}
    for block in kernel.blocks:
        read = all_reads[block] = [reads(instr) for instr in block.instrs]
        # What was written or read so far, and of that what was read first.
        seen: set[Operand] = set()
        first: list[Operand] = []
        for instr, operands in zip(block.instrs, read, strict=True):
            if not seen.issuperset(operands):
                first += [operand for operand in operands if operand not in seen]
                seen.update(operands)
            # A guarded instruction may leave its result as it was.
            if instr.guard is None:
                seen.update(instr.results)
        bits = 0
        for value in first:
            if type(value) is Value:
                bits |= 1 << numbers.setdefault(value, len(numbers))
        exposed[block] = bits
    kept: dict[Block, int] = {}
    for block in kernel.blocks:
        written: set[Value] = set().union(*[instr.results for instr in block.instrs if instr.guard is None])
        kept[block] = ~sum([1 << numbers[value] for value in numbers.keys() & written])
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
    return Liveness(numbers, live_out, all_reads)
