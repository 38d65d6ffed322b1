"""Counts the registers of each bank, and how many of them are live at once.

The count is what PTX text declares; the peak is the most values of the bank that are live at one point, which bounds
from below what the assembler will allocate. Both stand in the kernel's header::

      registers b32: 12 peak 7

Where threads fill a multiprocessor of 64 warps, each has 32 registers. The assembler tends to spill a word or two
rather than leave room for fewer threads; then the kernel asks for fewer CTAs (``ctas``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from ptxc.ir.kernel import Block, Kernel
from ptxc.ir.liveness import liveness
from ptxc.ir.types import BANKS, Type
from ptxc.ir.values import Operand, Value
from ptxc.target import parse_target

#: How many live words the assembler squeezes into 32 registers by spilling (measured over the benchmark kernels).
_TIGHT = range(31, 37)


class Registers(NamedTuple):
    """What a kernel needs of each bank."""

    counts: dict[Type, int]
    #: The most values of the bank that are live at one point.
    peaks: dict[Type, int]


def run(kernel: Kernel) -> None:
    """Count, and write the counts into the kernel."""
    found = count(kernel)
    kernel.registers = {bank: (found.counts[bank], found.peaks[bank]) for bank in BANKS if found.counts[bank]}
    if not kernel.ctas and not kernel.shared:
        target = parse_target(kernel.target)
        words = sum(peak * bank.words for bank, peak in found.peaks.items())
        if words in _TIGHT and target.full_registers(kernel.threads) == 32:
            kernel.ctas = target.ctas_with_registers(kernel.threads, 40)


def count(kernel: Kernel) -> Registers:
    """Count without changing the kernel."""
    live = liveness(kernel)
    masks = dict.fromkeys(BANKS, 0)
    for value, number in live.numbers.items():
        masks[value.type] |= 1 << number
    peaks = dict.fromkeys(BANKS, 0)
    for block in kernel.blocks:
        out = live.live_out[block]
        current = {bank: (out & mask).bit_count() for bank, mask in masks.items()}
        for bank, number in current.items():
            peaks[bank] = max(peaks[bank], number)
        alive: set[Operand] = {value for value, bit in zip(live.numbers, reversed(f"{out:b}")) if bit == "1"}
        _walk_back(block, live.read[block], alive, current, peaks)
    values: set[Value] = set(live.numbers).union(*[instr.results for instr in kernel.instrs()])
    counts = Counter([value.type for value in values])
    return Registers({bank: counts[bank] for bank in BANKS}, peaks)


def _walk_back(
    block: Block, reads: list[Sequence[Operand]], alive: set[Operand], current: dict[Type, int], peaks: dict[Type, int]
) -> None:
    """Raise ``peaks`` to the most values that are live in the block.

    ``reads`` is what its instructions read. ``alive`` are the values that are live at its end, ``current`` says how
    many of each bank; both are used up.
    """
    for instr, read in zip(reversed(block.instrs), reversed(reads), strict=True):
        # A guarded instruction may leave its result as it was.
        if instr.guard is None:
            for result in instr.results:
                if result in alive:
                    alive.remove(result)
                    current[result.type] -= 1
        if not alive.issuperset(read):
            for operand in read:
                if operand not in alive:
                    alive.add(operand)
                    if type(operand) is Value:
                        bank = operand.type
                        current[bank] += 1
                        if current[bank] > peaks[bank]:
                            peaks[bank] = current[bank]
