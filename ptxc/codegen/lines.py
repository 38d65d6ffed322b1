"""Which Kernel IR statement each line of a PTX text comes from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ptxc.codegen.ptx import _Entry, print_module
from ptxc.ir.kernel import Block, Instr, Kernel
from ptxc.target import PtxVersion, Target


def statements_of_lines(kernels: Iterable[Kernel], target: Target, version: PtxVersion) -> dict[int, str]:
    """The statement of each line of :func:`print_module`'s text, counted from 1; lines of no statement are left out.

    It prints the kernels again: nobody but those who look for a fault has to pay for it.
    """
    kernels = list(kernels)
    noted = [place for kernel in kernels for place in _Noting(kernel).note()]
    lines = print_module(kernels, target, version).splitlines()
    instructions = [number for number, line in enumerate(lines, 1) if line.startswith("    ") and line[4] != "."]
    return {number: str(loc) for number, loc in zip(instructions, noted, strict=True) if str(loc)}


class _Noting(_Entry):
    """Prints a kernel, and notes for each line that is an instruction where that comes from."""

    def __init__(self, kernel: Kernel) -> None:
        super().__init__(kernel)
        self._places: list[object] = []

    def note(self) -> list[object]:
        """The statements of the instructions' lines, in order."""
        self.body()
        return self._places

    def instrs(self, instrs: Sequence[Instr]) -> list[str]:
        self._places += [instr.loc for instr in instrs]
        return super().instrs(instrs)

    def terminator(self, instr: Instr, following: Block | None) -> list[str]:
        lines = super().terminator(instr, following)
        self._places += [instr.loc] * len(lines)
        return lines
