"""Counts and peaks of registers against a walk along every path."""

from __future__ import annotations

import pytest
from random_programs import random_program

from ptxc.ir.kernel import Block, Instr, Kernel
from ptxc.ir.peaks import peaks
from ptxc.ir.text import format_kernel
from ptxc.ir.types import BANKS
from ptxc.ir.values import Mem, Value
from ptxc.ir.verify import check
from ptxc.passes import dead_code, leave_ssa, registers, simplify

#: An instruction's place: the block's and its own number.
Point = tuple[int, int]


@pytest.mark.parametrize("seed", range(40))
def test_counts_and_peaks(seed: int) -> None:
    kernel = random_program(seed)
    if seed % 2:
        simplify.run(kernel)
        dead_code.run(kernel)
    leave_ssa.run(kernel)
    text = format_kernel(kernel)
    registers.run(kernel)
    check(kernel, "registers")
    live = live_before(kernel)
    values = {value for instr in kernel.instrs() for value in (*instr.results, *reads(instr))}
    expected = {
        bank: (
            sum(value.type is bank for value in values),
            max(sum(value.type is bank for value in alive) for alive in live.values()),
        )
        for bank in BANKS
        if any(value.type is bank for value in values)
    }
    most = peaks(kernel)
    assert {bank: (count, most[bank]) for bank, count in kernel.registers.items()} == expected
    kernel.registers = {}
    assert format_kernel(kernel) == text, "counting changes nothing"


def reads(instr: Instr) -> list[Value]:
    operands = [operand.base if isinstance(operand, Mem) else operand for operand in instr.operands]
    if instr.guard is not None:
        operands.append(instr.guard.predicate)
    return [operand for operand in operands if isinstance(operand, Value)]


def live_before(kernel: Kernel) -> dict[Point, set[Value]]:
    """What may still be read from each instruction on: from each read walk back to what gives the value."""
    number = {block: at for at, block in enumerate(kernel.blocks)}
    before: dict[Block, list[Block]] = {block: [] for block in kernel.blocks}
    for block in kernel.blocks:
        for after in block.successors():
            before[after].append(block)
    live: dict[Point, set[Value]] = {
        (at, line): set() for at, block in enumerate(kernel.blocks) for line in range(len(block.instrs))
    }
    for block in kernel.blocks:
        for line, instr in enumerate(block.instrs):
            for value in reads(instr):
                pending = [(block, line)]
                while pending:
                    here, at = pending.pop()
                    if value in live[number[here], at]:
                        continue
                    live[number[here], at].add(value)
                    if at == 0:
                        steps = [(other, len(other.instrs) - 1) for other in before[here]]
                    else:
                        steps = [(here, at - 1)]
                    # A guarded instruction may leave its register as it was.
                    pending += [
                        (other, last)
                        for other, last in steps
                        if value not in other.instrs[last].results or other.instrs[last].guard is not None
                    ]
    return live
