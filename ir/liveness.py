"""Liveness: where in a kernel a register may still be read.

Values are numbered, sets of them are Python integers used as bit sets: unions over thousands of values are single
operations.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

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
    if instr.op.addresses or instr.guard is not None or instr.targets:
        return uses(instr)
    return instr.operands


def words(values: Iterable[Value]) -> int:
    """The 32-bit registers that values take."""
    return sum([value.type.words for value in values])


def crowding(kernel: Kernel, loops: Iterable[Loop]) -> int:
    """About how many 32-bit registers are live at the busiest point of a kernel in SSA form.

    A value counts from where it is defined to its last use in the order of the text, and to the end of each loop that
    uses it and does not define it: at least what :func:`liveness` would find, at a fraction of the work.
    """
    ending: dict[Block, list[Loop]] = {}
    for loop in loops:
        ending.setdefault(loop.blocks[-1], []).append(loop)
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
                if type(operand) is Value and operand not in live:
                    live.add(operand)
                    now += operand.type.words
            if now > peak:
                peak = now
        gone = live.intersection(block.params)
        live -= gone
        now -= words([value for value in block.params if value in gone])
    return peak


def _entering(loop: Loop) -> set[Value]:
    """The values that a loop uses and does not define."""
    used: set[Operand] = set()
    defined: set[Operand] = set()
    for block in loop.blocks:
        defined.update(block.params)
        for instr in block.instrs:
            used.update(reads(instr))
            defined.update(instr.results)
    return {value for value in used - defined if type(value) is Value}


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
