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

from collections.abc import Iterable
from typing import NamedTuple

from ptxc.ir import opcodes
from ptxc.ir.kernel import Block, Kernel
from ptxc.ir.liveness import Liveness, liveness
from ptxc.ir.types import BANKS, Type
from ptxc.ir.values import Value
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
    live = liveness(kernel)
    masks = dict.fromkeys(BANKS, 0)
    for value, number in live.numbers.items():
        masks[value.type] |= 1 << number
    values: set[Value] = set()
    peaks = dict.fromkeys(BANKS, 0)
    for block in kernel.blocks:
        out = live.live_out[block]
        current = {bank: (out & mask).bit_count() for bank, mask in masks.items()}
        for bank, number in current.items():
            peaks[bank] = max(peaks[bank], number)
        values.update(_walk_back(block, out, live, current, peaks))
    counts = dict.fromkeys(BANKS, 0)
    for value in values:
        counts[value.type] += 1
    return Registers(counts, peaks)


def _walk_back(
    block: Block, out: int, live: Liveness, current: dict[Type, int], peaks: dict[Type, int]
) -> Iterable[Value]:
    """Raise ``peaks`` to the most values that are live in the block; give the values that it defines or reads.

    ``out`` are the values that are live at its end; ``current`` says how many, and is used up.
    """
    numbers = live.numbers
    #: Whether each value met so far is live above the instruction that was looked at last.
    alive: dict[Value, bool] = {}
    for instr, read in zip(reversed(block.instrs), reversed(live.read[block]), strict=True):
        for result in instr.results:
            known = alive.get(result)
            if known or (known is None and result in numbers and out >> numbers[result] & 1):
                # A guarded instruction may leave its result as it was.
                if instr.guard is None:
                    alive[result] = False
                    current[result.type] -= 1
            else:
                alive.setdefault(result, False)
        for value in read:
            if type(value) is Value and not (known := alive.get(value)):
                alive[value] = True
                if known is None and value in numbers and out >> numbers[value] & 1:
                    continue
                bank = value.type
                current[bank] += 1
                if current[bank] > peaks[bank]:
                    peaks[bank] = current[bank]
    return alive
