"""Independent answers to what kernels write, compared: the Kernel IR's meaning, ptxc's PTX, and nvcc's."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ptxc.errors import ToolchainError, UnsupportedError, UsageError
from ptxc.frontend.reader import kernel_nodes
from ptxc.reference import emmy, execution
from ptxc.reference.buffers import Array, Problem
from ptxc.reference.compare import Difference, Tolerance, compare
from ptxc.reference.evaluator import evaluate_kernels
from ptxc.reference.execution import Launched, Settings
from ptxc.reference.steps import Step
from ptxc.sim.findings import Finding
from ptxc.toolchain import find_tool

if TYPE_CHECKING:
    from emmy.compiler.graph import Graph

REFERENCE, PTXC, NVCC = "reference", "ptxc", "nvcc"

#: Executes kernels on arrays: told whose PTX it is, the texts by entry, and the steps.
Runner = Callable[[str, Mapping[str, str], Sequence[Step], Mapping[str, Array]], list[Launched]]


@dataclass(frozen=True, slots=True)
class Found:
    """What the device found: in whose PTX, of which kernel."""

    who: str
    kernel: str
    finding: Finding


@dataclass
class Verification:
    """The answers so far, by who gave them, and what was found on the way.

    ``runner`` takes the place of plain execution with ``settings``; ``gpu`` is the GPU's name where it uses one.
    """

    problem: Problem
    tolerance: Tolerance
    settings: Settings
    runner: Runner | None = None
    gpu: str = ""
    answers: dict[str, Mapping[str, Array]] = field(default_factory=dict)
    #: What each answer is, or why there is none.
    notes: dict[str, str] = field(default_factory=dict)
    #: The PTX that was executed, by whose it is and its entries.
    texts: dict[str, Mapping[str, str]] = field(default_factory=dict)
    findings: list[Found] = field(default_factory=list)
    #: How many CTAs were executed of ptxc's kernels, and how many they have.
    ctas: tuple[int, int] = (0, 0)
    #: Accesses outside of buffers that the reference met.
    faults: list[str] = field(default_factory=list)
    #: Evaluates Kernel IR once more, each operation rounded to its type.
    _round: Callable[[], Mapping[str, Array]] | None = None

    # ----------------------------------------------------------------------------------------------- the answers

    def evaluate(self, graph: Graph, steps: Sequence[Step]) -> None:
        """What the kernels of ``graph`` mean; a note says why there is no such answer."""
        ops = {node.name: node.op for node in kernel_nodes(graph)}
        evaluated = partial(evaluate_kernels, sample=self.settings.sample)
        try:
            kernels = [ops[step.entry] for step in steps]
            evaluation = evaluated(kernels, self.problem)
        except UnsupportedError as error:
            self.notes[REFERENCE] = f"none: {error}"
            return
        self._round = lambda: evaluated(kernels, self.problem, exact=False).outputs
        self.answers[REFERENCE], self.faults = evaluation.outputs, evaluation.faults
        self.notes[REFERENCE] = "Kernel IR, evaluated directly in float64"

    def evaluate_program(self, wire: bytes) -> None:
        """What the program means that the kernels compute. Raises CompileError."""
        self._answer_with(emmy.evaluate_program(wire, self.problem))

    def evaluate_graph(self, program: Graph) -> None:
        """What a program means that was lowered to the kernels. Raises CompileError."""
        self._answer_with(emmy.evaluate_graph(program, self.problem))

    def _answer_with(self, values: Mapping[str, Array]) -> None:
        """The values of a program as the reference, for all that the kernels write."""
        written = [buffer.name for buffer in self.problem.written]
        if not values.keys() & set(written):
            what = f"the program computes {', '.join(values)}, the kernels write {', '.join(written)}"
            raise UsageError(what, hint="give the program of these kernels")
        self.answers[REFERENCE] = {name: values[name] for name in written if name in values}
        self.notes[REFERENCE] = "Emmy's NumPy evaluation of the program, in float64"

    def execute(self, who: str, texts: Mapping[str, str], steps: Sequence[Step]) -> list[Launched]:
        """What PTX computes on the device."""
        arrays = self.problem.arrays()
        launched = (self.runner or self._run)(who, texts, steps, arrays)
        self.texts[who] = texts
        self.answers[who] = {buffer.name: arrays[buffer.name] for buffer in self.problem.written}
        instructions = sum(launch.result.statistics.instructions for launch in launched)
        on_cpu = f"PTX on the CPU device, {instructions:,} instructions of threads"
        if who == PTXC:
            self.ctas = sum(launch.ctas for launch in launched), sum(math.prod(launch.grid) for launch in launched)
        self.notes[who] = f"PTX on {self.gpu}" if self.gpu else on_cpu
        for launch in launched:
            self.findings += [Found(who, launch.step.entry, finding) for finding in launch.result.findings]
        return launched

    def _run(
        self, who: str, texts: Mapping[str, str], steps: Sequence[Step], arrays: Mapping[str, Array]
    ) -> list[Launched]:
        return execution.execute(execution.load(texts), steps, arrays, self.problem.integers, self.settings)

    def compile_with_nvcc(self, graph: Graph, target: str, options: Sequence[str] = ()) -> None:
        """The same of nvcc's PTX of Emmy's CUDA text for ``target``; a note says why not, where that cannot be had."""
        try:
            find_tool("nvcc")
            kernels = emmy.cuda_kernels(graph, target, self.problem)
            texts = {kernel.step.entry: emmy.nvcc_ptx(kernel, target, list(options)) for kernel in kernels}
            self.execute(NVCC, texts, [kernel.step for kernel in kernels])
        except (ToolchainError, UnsupportedError) as error:
            self.notes[NVCC] = f"none: {error}"

    def check(self) -> None:
        """Raise UsageError where there is nothing to compare with."""
        if len(self.answers) < 2:
            reasons = "; ".join(f"{who}: {note}" for who, note in self.notes.items() if who not in self.answers)
            raise UsageError(f"there is nothing to compare with ({reasons})", hint="`ptxc run` only executes")

    # -------------------------------------------------------------------------------------------------- comparing

    @cached_property
    def differences(self) -> list[tuple[str, str, Difference]]:
        """The differences of every output between every two answers: who, against whom, how far.

        What differs from the reference is compared with one that rounds as well: float64 is no kernel's type, and keeps
        what adding a large number to a small one loses (a mask's -1e9), or what f32 does not have of an integer. A
        relative tolerance that was given is one against float64.
        """
        found = []
        for buffer in self.problem.written:
            for who, other in ((PTXC, REFERENCE), (NVCC, REFERENCE), (PTXC, NVCC)):
                a, b = (self.answers.get(name, {}).get(buffer.name) for name in (who, other))
                if a is not None and b is not None:
                    where = self._written(buffer.name, a, b) if not self.settings.sample.is_all else None
                    compared = partial(compare, buffer.name, a, b, buffer.dtype, self.tolerance, where)
                    difference = compared()
                    lenient = self._round is not None and self.tolerance.relative is None
                    if difference.wrong and other == REFERENCE and lenient:
                        difference = compared(self._rounded[buffer.name])
                    found.append((who, other, difference))
        return found

    @cached_property
    def _rounded(self) -> Mapping[str, Array]:
        assert self._round is not None
        return self._round()

    def _written(self, name: str, *answers: Array) -> NDArray[np.bool_]:
        """Which elements were written in one of the answers; in float64, those that are numbers."""
        exact = np.dtype(np.float64)
        masks = [
            ~np.isnan(array) if array.dtype == exact else self.problem.is_written(name, array) for array in answers
        ]
        written: NDArray[np.bool_] = np.logical_or.reduce([mask.reshape(masks[0].shape) for mask in masks])
        return written

    @cached_property
    def identical(self) -> bool:
        """Whether ptxc's PTX and nvcc's leave the same bits in every output."""
        ours, theirs = (self.answers.get(who) for who in (PTXC, NVCC))
        return bool(ours and theirs) and all(
            array.tobytes() == theirs[name].tobytes() for name, array in (ours or {}).items() if theirs is not None
        )

    def _overflow(self, d: Difference) -> str:
        """A remark where infinities are what numbers too large for the type become."""
        dtype = self.problem.buffers[d.name].dtype
        which = "there" if d.overflowed == d.wrong else f"in {d.overflowed} of them"
        return f" ({which} the expected number is too large for {dtype})" if d.overflowed else ""

    @property
    def wrong(self) -> list[str]:
        """What is wrong, in words. Findings in nvcc's PTX are faults of Emmy's CUDA text, and none of ptxc's."""
        parts = [
            f"{d.name} of {who} differs from {other}'s in {d.wrong} of {d.elements} elements{self._overflow(d)}"
            for who, other, d in self.differences
            if d.wrong
        ]
        findings = sum(found.who == PTXC for found in self.findings)
        for count, what in ((len(self.faults), "fault"), (findings, "finding")):
            if count:
                parts.append(f"{count} {what}{'s' * (count > 1)}")
        return parts
