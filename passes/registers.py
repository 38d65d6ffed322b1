"""Counts the registers of each bank, and how many of them are live at once.

The count is what PTX text declares; the peak is the most values of the bank that are live at one point, which bounds
from below what the assembler will allocate. Both stand in the kernel's header::

      registers b32: 12 peak 7

Where threads fill a multiprocessor of 64 warps, each has 32 registers. The assembler tends to spill a word or two
rather than leave room for fewer threads; then the kernel asks for fewer CTAs (``ctas``). Where shared memory has room
for one CTA alone, a kernel asks for that one only if it needs many registers: asked, the assembler does not spill, but
takes more of them than it needs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, cast

from ptxc.ir import cfg, opcodes
from ptxc.ir.kernel import Block, Kernel
from ptxc.ir.types import BANKS, Type
from ptxc.ir.uses import reads
from ptxc.ir.values import Operand, Value
from ptxc.target import parse_target

#: How many live words the assembler squeezes into 32 registers by spilling (measured over the benchmark kernels).
_TIGHT = range(31, 37)

#: From how many live words on the assembler may spill in a kernel that asks for no number of CTAs (measured likewise).
_MANY = 57


class Registers(NamedTuple):
    """What a kernel needs of each bank."""

    counts: dict[Type, int]
    #: The most values of the bank that are live at one point.
    peaks: dict[Type, int]


def run(kernel: Kernel) -> None:
    """Count, and write the counts into the kernel."""
    found = count(kernel)
    kernel.registers = {bank: (found.counts[bank], found.peaks[bank]) for bank in BANKS if found.counts[bank]}
    words = sum(peak * bank.words for bank, peak in found.peaks.items())
    if not kernel.ctas and not kernel.shared and words in _TIGHT:
        target = parse_target(kernel.target)
        if target.full_registers(kernel.threads) == 32:
            kernel.ctas = target.ctas_with_registers(kernel.threads, 40)
    elif kernel.ctas == 1 and words < _MANY and not _moves_registers(kernel):
        kernel.ctas = 0


def _moves_registers(kernel: Kernel) -> bool:
    """Whether warps hand registers to one another, for which the assembler has to know how many each begins with."""
    return any([instr.op is opcodes.SETMAXNREG for block in kernel.blocks for instr in block.instrs])


def count(kernel: Kernel) -> Registers:
    """Count without changing the kernel."""
    peaks = dict.fromkeys(BANKS, 0)
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
            live_in[block] = _walk_back(block, reads_of[block], out, current, peaks)
            counts_in[block] = current
    values: set[Value] = set().union(*live_in.values(), *[instr.results for instr in kernel.instrs()])
    return Registers(_count(values), peaks)


def _count(values: Iterable[Value]) -> dict[Type, int]:
    """How many values there are of each bank."""
    found = dict.fromkeys(BANKS, 0)
    for value in values:
        found[value.type] += 1
    return found


def _walk_back(
    block: Block, read: list[Sequence[Operand]], out: set[Value], current: dict[Type, int], peaks: dict[Type, int]
) -> set[Value]:
    """Raise ``peaks`` to the most values that are live in the block; give those that are live where it begins.

    ``read`` is what its instructions read, ``out`` the values that are live where it ends. ``current`` says how many
    these are, and then how many are live where the block begins.
    """
    for bank, number in current.items():
        if number > peaks[bank]:
            peaks[bank] = number
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
                    if number > peaks[bank]:
                        peaks[bank] = number
                else:
                    others.add(operand)
    return cast(set[Value], alive - others)
