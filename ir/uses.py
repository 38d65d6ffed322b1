"""What instructions read, and about how many values are live at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain

from ptxc.ir.cfg import Loop
from ptxc.ir.kernel import Block, Instr, Kernel
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
    op = instr.op
    if op.plain and instr.guard is None:
        return instr.operands
    found: list[Operand] = [operand.base if type(operand) is Mem else operand for operand in instr.operands]
    if instr.guard is not None:
        found.append(instr.guard.predicate)
    for edge in instr.targets:
        found += edge.args
    return found


def use_counts(kernel: Kernel) -> Counter[Operand]:
    """How often each value is used (constants are counted too)."""
    return Counter(chain.from_iterable([reads(instr) for block in kernel.blocks for instr in block.instrs]))


def words(values: Iterable[Value]) -> int:
    """The 32-bit registers that values take."""
    return sum([value.type.words for value in values])


def crowding(kernel: Kernel, loops: Iterable[Loop], enough: int | None = None) -> int:
    """About how many 32-bit registers are live at the busiest point of a kernel in SSA form.

    A value counts from where it is defined to its last use in the order of the text, and to the end of each loop that
    uses it and does not define it: at least what the flow of control would give, at a fraction of the work. Nobody
    looks further where ``enough`` are live already.
    """
    ending: dict[Block, list[Loop]] = {}
    for loop in loops:
        ending.setdefault(loop.blocks[-1], []).append(loop)
    #: The values that are live, and whatever else was an operand below.
    live: set[Operand] = set()
    now = peak = 0
    for block in reversed(kernel.blocks):
        for loop in ending.get(block, ()):
            more = _entering(loop) - live
            live |= more
            now += words(more)
        for instr in reversed(block.instrs):
            for result in instr.results:
                if result in live:
                    live.remove(result)
                    now -= result.type.words
            for operand in reads(instr):
                if operand not in live:
                    live.add(operand)
                    if type(operand) is Value:
                        now += operand.type.words
            if now > peak:
                peak = now
        if enough is not None and peak >= enough:
            break
        gone = live.intersection(block.params)
        live -= gone
        now -= words([value for value in block.params if value in gone])
    return peak


def _entering(loop: Loop) -> set[Value]:
    """The values that a loop uses and does not define."""
    instrs = [instr for block in loop.blocks for instr in block.instrs]
    used: set[Operand] = set().union(*[reads(instr) for instr in instrs])
    used.difference_update(*[instr.results for instr in instrs], *[block.params for block in loop.blocks])
    return {value for value in used if type(value) is Value}
