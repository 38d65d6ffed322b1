"""Counts the registers of each bank, which PTX text declares.

The counts stand in the kernel's header, beside the most values of the bank that are live at one point, which bounds
from below what the assembler will allocate (:mod:`ptxc.ir.peaks`; the text form adds it)::

      registers b32: 12 peak 7
"""

from __future__ import annotations

from collections import Counter

from ptxc.ir.kernel import Kernel
from ptxc.ir.types import BANKS
from ptxc.ir.values import Value


def run(kernel: Kernel) -> None:
    """Count."""
    values: set[Value] = set().union(*[instr.results for block in kernel.blocks for instr in block.instrs])
    counts = Counter([value.type for value in values])
    kernel.registers = {bank: counts[bank] for bank in BANKS if counts[bank]}
