"""How many registers of each bank are live at once at most: less the assembler cannot allocate."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import cast

from ptxc.ir import cfg
from ptxc.ir.kernel import Block, Kernel
from ptxc.ir.types import BANKS, Type
from ptxc.ir.uses import reads
from ptxc.ir.values import Operand, Value


def peaks(kernel: Kernel) -> dict[Type, int]:
    """The most values of each bank that are live at one point."""
    most = dict.fromkeys(BANKS, 0)
    reads_of: dict[Block, list[Sequence[Operand]]] = {}
    live_in: dict[Block, set[Value]] = {}
    live_out: dict[Block, set[Value]] = {}
    #: How many of each bank are live where each block begins.
    counts_in: dict[Block, dict[Type, int]] = {}
    # Backwards all blocks that follow one are known but for those that a loop goes back to. What is found live only
    # grows, so another walk over a block raises the peaks where the first found too little.
    order = cfg.reverse_postorder(kernel)[::-1]
    growing = True
    while growing:
        growing = False
        for block in order:
            after = [edge.block for edge in block.instrs[-1].targets if edge.block in live_in]
            out: set[Value] = set().union(*[live_in[following] for following in after])
            if block not in live_in:
                reads_of[block] = [reads(instr) for instr in block.instrs]
            elif len(out) == len(live_out[block]):
                continue
            growing = True
            live_out[block] = out
            # Of a branch around a few instructions, one side has what the other has.
            known = [counts_in[following] for following in after if len(live_in[following]) == len(out)]
            current = {**known[0]} if known else _count(out)
            live_in[block] = _walk_back(block, reads_of[block], out, current, most)
            counts_in[block] = current
    return most


def _count(values: Iterable[Value]) -> dict[Type, int]:
    """How many values there are of each bank."""
    found = dict.fromkeys(BANKS, 0)
    for value in values:
        found[value.type] += 1
    return found


def _walk_back(
    block: Block, read: list[Sequence[Operand]], out: set[Value], current: dict[Type, int], most: dict[Type, int]
) -> set[Value]:
    """Raise ``most`` to the most values that are live in the block; give those that are live where it begins.

    ``read`` is what its instructions read, ``out`` the values that are live where it ends. ``current`` says how many
    these are, and then how many are live where the block begins.
    """
    for bank, number in current.items():
        if number > most[bank]:
            most[bank] = number
    #: The values that are live, and whatever else is an operand below.
    alive: set[Operand] = {*out}
    others: set[Operand] = set()
    for instr, operands in zip(reversed(block.instrs), reversed(read), strict=True):
        # A guarded instruction may leave its result as it was.
        if instr.guard is None:
            for result in instr.results:
                if result in alive:
                    alive.remove(result)
                    current[result.type] -= 1
        for operand in operands:
            if operand not in alive:
                alive.add(operand)
                if type(operand) is Value:
                    bank = operand.type
                    number = current[bank] = current[bank] + 1
                    if number > most[bank]:
                        most[bank] = number
                else:
                    others.add(operand)
    return cast(set[Value], alive - others)
