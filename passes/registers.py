"""Counts the registers of each bank, and how many of them are live at once.

The count is what PTX text declares; the peak is the most values of the bank that are live at one point, which bounds
from below what the assembler will allocate. Both stand in the kernel's header::

      registers b32: 12 peak 7
"""

from __future__ import annotations

from typing import NamedTuple

from ptxc.ir.kernel import Block, Kernel
from ptxc.ir.liveness import liveness, uses
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
    live = liveness(kernel)
    masks = dict.fromkeys(BANKS, 0)
    for value, number in live.numbers.items():
        masks[value.type] |= 1 << number
    values: set[Value] = set()
    peaks = dict.fromkeys(BANKS, 0)
    for block in kernel.blocks:
        alive = live.live_out[block]
        current = {bank: (alive & mask).bit_count() for bank, mask in masks.items()}
        touched = _touched(block)
        values |= touched
        at_end = {value for value in touched if value in live.numbers and alive >> live.numbers[value] & 1}
        _walk_back(block, at_end, current, peaks)
    counts = dict.fromkeys(BANKS, 0)
    for value in values:
        counts[value.type] += 1
    return Registers(counts, peaks)


def _walk_back(block: Block, alive: set[Value], current: dict[Type, int], peaks: dict[Type, int]) -> None:
    """Raise ``peaks`` to the most values that are live in the block; ``alive`` are those at its end that it touches."""
    for bank, number in current.items():
        peaks[bank] = max(peaks[bank], number)
    for instr in reversed(block.instrs):
        if instr.guard is None:
            for value in instr.results:
                if value in alive:
                    alive.remove(value)
                    current[value.type] -= 1
        for value in uses(instr):
            if value not in alive:
                alive.add(value)
                bank = value.type
                current[bank] += 1
                if current[bank] > peaks[bank]:
                    peaks[bank] = current[bank]


def _touched(block: Block) -> set[Value]:
    """The values that a block's instructions define or read."""
    touched: set[Value] = set()
    for instr in block.instrs:
        touched.update(instr.results)
        touched.update(uses(instr))
    return touched
