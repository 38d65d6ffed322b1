"""Counts the registers of each bank, and how many of them are live at once.

The count is what PTX text declares; the peak is the most values of the bank that are live at one point, which bounds
from below what the assembler will allocate. Both stand in the kernel's header::

      registers b32: 12 peak 7
"""

from __future__ import annotations

from typing import NamedTuple

from ptxc.ir.kernel import Block, Kernel
from ptxc.ir.liveness import liveness
from ptxc.ir.types import BANKS, Type
from ptxc.ir.values import Value


class Registers(NamedTuple):
    """What a kernel needs of each bank."""

    counts: dict[Type, int]
    #: The most values of the bank that are live at one point.
    peaks: dict[Type, int]


def run(kernel: Kernel) -> None:
    """Count, and write the counts into the kernel."""
    found = count(kernel)
    kernel.registers = {bank: (found.counts[bank], found.peaks[bank]) for bank in BANKS if found.counts[bank]}


def count(kernel: Kernel) -> Registers:
    """Count without changing the kernel."""
    live_out, reads = liveness(kernel)
    values: set[Value] = set()
    peaks = dict.fromkeys(BANKS, 0)
    for block in kernel.blocks:
        _walk_back(block, live_out[block], reads[block], values, peaks)
    counts = dict.fromkeys(BANKS, 0)
    for value in values:
        counts[value.type] += 1
    return Registers(counts, peaks)


def _walk_back(
    block: Block, live: set[Value], reads: list[list[Value]], values: set[Value], peaks: dict[Type, int]
) -> None:
    """Raise ``peaks`` to the most values that are live in the block, and add to ``values`` all that it has.

    ``live`` is what is live at its end, and is used up; ``reads`` is what its instructions read, the last one first.
    """
    current = dict.fromkeys(BANKS, 0)
    for value in live:
        current[value.type] += 1
    for bank, number in current.items():
        peaks[bank] = max(peaks[bank], number)
    values |= live
    for instr, read in zip(reversed(block.instrs), reads, strict=True):
        for value in instr.results:
            if value not in live:
                values.add(value)
            # A guarded instruction may leave its result as it was.
            elif instr.guard is None:
                live.remove(value)
                current[value.type] -= 1
        if not live.issuperset(read):
            for value in read:
                if value not in live:
                    live.add(value)
                    values.add(value)
                    bank = value.type
                    current[bank] += 1
                    if current[bank] > peaks[bank]:
                        peaks[bank] = current[bank]
