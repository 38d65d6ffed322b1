"""Counts the registers of each bank, and how many of them are live at once.

The count is what PTX text declares; the peak is the most values of the bank that are live at one point, which bounds
from below what the assembler will allocate. Both stand in the kernel's header::

      registers b32: 12 peak 7
"""

from __future__ import annotations

from typing import NamedTuple

from ptxc.ir.kernel import Kernel
from ptxc.ir.liveness import liveness, uses
from ptxc.ir.types import BANKS, Type


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
    live = liveness(kernel)
    counts = dict.fromkeys(BANKS, 0)
    masks = dict.fromkeys(BANKS, 0)
    for value, number in live.numbers.items():
        counts[value.type] += 1
        masks[value.type] |= 1 << number
    peak = dict.fromkeys(BANKS, 0)
    for block in kernel.blocks:
        alive = live.live_out[block]
        current = {bank: (alive & mask).bit_count() for bank, mask in masks.items()}
        for instr in reversed(block.instrs):
            for bank in BANKS:
                if current[bank] > peak[bank]:
                    peak[bank] = current[bank]
            if instr.guard is None:
                for value in instr.results:
                    bit = 1 << live.numbers[value]
                    if alive & bit:
                        alive ^= bit
                        current[value.type] -= 1
            for value in uses(instr):
                bit = 1 << live.numbers[value]
                if not alive & bit:
                    alive |= bit
                    current[value.type] += 1
        for bank in BANKS:
            peak[bank] = max(peak[bank], current[bank])
    return Registers(counts, peak)
