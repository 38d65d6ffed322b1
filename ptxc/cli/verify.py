"""``ptxc verify``: three independent answers, compared."""

from __future__ import annotations

import argparse
import io
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from ptxc.cli import launching
from ptxc.cli.arguments import Commands, add_choice_of_passes, add_code_options, add_sources, examples, options_of
from ptxc.cli.files import show
from ptxc.cli.messages import table
from ptxc.errors import CompileError, ToolchainError, UnsupportedError, UsageError

if TYPE_CHECKING:
    import numpy as np
    from emmy.compiler.graph import Graph
    from numpy.typing import NDArray

    from ptxc.cli.results import Listing
    from ptxc.cli.sources import Source
    from ptxc.reference.buffers import Array, Problem
    from ptxc.reference.compare import Difference, Tolerance
    from ptxc.reference.execution import Settings
    from ptxc.reference.steps import Step
    from ptxc.sim.findings import Finding

_DESCRIPTION = """\
Computes a graph's kernels in three ways and compares what they write:

  reference  Kernel IR evaluated directly in float64, with no code generated; or Emmy's NumPy evaluation of the program
             that the kernels come from, --program
  ptxc       ptxc's PTX on the CPU device, with all checks
  nvcc       Emmy's CUDA text by way of nvcc, where that is found, on the same device

Exit status 0 if all agree and nothing is found, 1 if not, 2 for an error of the input or the usage."""

_EXAMPLES = (
    ("ptxc verify k.ir.json", "on random inputs"),
    ("ptxc verify k.ir.json --set seq_len=50 --target sm_90", "one size, one GPU"),
    ("ptxc verify k.ir.json --ctas 16", "a kernel too large to execute whole"),
    ("ptxc verify k.ir.json --program rmsnorm.json", "against what the program means"),
)

REFERENCE, PTXC, NVCC = "reference", "ptxc", "nvcc"

#: How findings begin. Those in nvcc's PTX are faults of Emmy's CUDA text, and do not make ptxc's wrong.
_WHOSE = {PTXC: "", NVCC: "not counted, of nvcc's PTX: "}


def add(commands: Commands) -> None:
    """Make the command's parser."""
    parser = commands.add_parser(
        "verify",
        help="compare kernels with a reference and with nvcc's",
        description=_DESCRIPTION,
        epilog=examples(_EXAMPLES, "docs/cpu-device.md explains the findings and the figures."),
        usage="ptxc verify FILE [option...]",
    )
    parser.set_defaults(run=run, launch=None, verify_each=False, time_passes=False)
    add_sources(parser, "a graph of Kernel IR as JSON, or - for standard input")
    launching.add_memory_options(parser)
    comparing = parser.add_argument_group("comparing")
    comparing.add_argument(
        "--program", metavar="JSON", help="the program that the kernels compute, in Emmy's wire form"
    )
    comparing.add_argument("--no-nvcc", action="store_true", help="leave nvcc out")
    launching.add_tolerance_options(comparing)
    launching.add_execution_options(parser)
    output = parser.add_argument_group("output")
    output.add_argument("--json", action="store_true", help="print JSON")
    add_code_options(parser)
    add_choice_of_passes(parser)


def run(args: argparse.Namespace) -> int:
    """Compute, compare, report."""
    from ptxc.cli.sources import Source
    from ptxc.driver import Options

    launching.one_source(args)
    settings = launching.settings_of(args)
    source = Source(args.sources[0], Options(**options_of(args)), "", args.target is not None)
    program = launching.compiled(args, source)
    problem = launching.problem_for(args, program.steps)
    verification = Verification(problem, launching.tolerance_of(args, problem), settings)
    if args.program is not None:
        verification.evaluate_program(args.program)
    else:
        verification.evaluate(source, program.steps)
    verification.execute(PTXC, program)
    if not args.no_nvcc:
        verification.compile_with_nvcc(source, program.target)
    verification.check()
    show(verification.json() if args.json else verification.text())
    return verification.status


@dataclass
class Verification:
    """The answers so far, by who gave them, and what was found on the way."""

    problem: Problem
    tolerance: Tolerance
    settings: Settings
    answers: dict[str, Mapping[str, Array]] = field(default_factory=dict)
    #: What each answer is, or why there is none.
    notes: dict[str, str] = field(default_factory=dict)
    #: What the device found, in whose PTX of which kernel.
    findings: list[tuple[str, Listing, str, Finding]] = field(default_factory=list)
    #: Accesses outside of buffers that the reference met.
    faults: list[str] = field(default_factory=list)

    # ----------------------------------------------------------------------------------------------- the answers

    def evaluate(self, source: Source, steps: list[Step]) -> None:
        """What the kernels mean."""
        from ptxc.frontend.reader import kernel_nodes
        from ptxc.reference.evaluator import evaluate_kernels

        ops = {node.op.name or f"k_{node.node_id}": node.op for node in kernel_nodes(_graph(source))}
        try:
            kernels = [ops[step.entry] for step in steps]
            evaluation = evaluate_kernels(kernels, self.problem, sample=self.settings.sample)
        except UnsupportedError as error:
            self.notes[REFERENCE] = f"none: {error}"
            return
        self.answers[REFERENCE], self.faults = evaluation.outputs, evaluation.faults
        self.notes[REFERENCE] = "Kernel IR, evaluated directly in float64"

    def evaluate_program(self, name: str) -> None:
        """What the program means that the kernels compute. Raises CompileError."""
        from ptxc.reference.emmy import evaluate_program

        try:
            values = evaluate_program(Path(name).read_bytes(), self.problem)
        except OSError as error:
            raise UsageError(f"cannot read {name!r}: {error.strerror}") from error
        except CompileError as error:
            error.at(file=name)
            raise
        written = [buffer.name for buffer in self.problem.written]
        if not values.keys() & set(written):
            what = f"the program computes {', '.join(values)}, the kernels write {', '.join(written)}"
            raise UsageError(what, hint="give the program of these kernels", file=name)
        self.answers[REFERENCE] = {name: values[name] for name in written if name in values}
        self.notes[REFERENCE] = "Emmy's NumPy evaluation of the program, in float64"

    def execute(self, who: str, program: launching.Program) -> None:
        """What PTX computes on the CPU device."""
        arrays = self.problem.arrays()
        launched = launching.execute(program, arrays, self.problem, self.settings, f"running {who}'s PTX")
        if who == PTXC:
            launching.note_empty(launched)
        self.answers[who] = {buffer.name: arrays[buffer.name] for buffer in self.problem.written}
        instructions = sum(launch.result.statistics.instructions for launch in launched)
        self.notes[who] = f"PTX on the CPU device, {instructions:,} instructions of threads"
        listing = program.listing()
        for launch in launched:
            self.findings += [(who, listing, launch.step.entry, finding) for finding in launch.result.findings]

    def compile_with_nvcc(self, source: Source, target: str) -> None:
        """The same of nvcc's PTX of Emmy's CUDA text for ``target``; a note says why not, where that cannot be had."""
        from ptxc.reference.emmy import cuda_kernels, nvcc_options, nvcc_ptx
        from ptxc.toolchain import find_tool

        options = nvcc_options(source.options)
        try:
            find_tool("nvcc")
            kernels = cuda_kernels(_graph(source), target, self.problem)
            texts = {kernel.step.entry: nvcc_ptx(kernel, target, options) for kernel in kernels}
            self.execute(NVCC, launching.Program(f"nvcc's PTX of {source.name}", [k.step for k in kernels], texts))
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
        """The differences of every output between every two answers: who, against whom, how far."""
        from ptxc.reference.compare import compare

        found = []
        for buffer in self.problem.written:
            for who, other in ((PTXC, REFERENCE), (NVCC, REFERENCE), (PTXC, NVCC)):
                a, b = (self.answers.get(name, {}).get(buffer.name) for name in (who, other))
                if a is not None and b is not None:
                    where = self._written(buffer.name, a, b) if not self.settings.sample.is_all else None
                    found.append((who, other, compare(buffer.name, a, b, buffer.dtype, self.tolerance, where)))
        return found

    def _written(self, name: str, *answers: Array) -> NDArray[np.bool_]:
        """Which elements were written in one of the answers; in float64, those that are numbers."""
        import numpy as np

        exact = np.dtype(np.float64)
        masks = [
            ~np.isnan(array) if array.dtype == exact else self.problem.is_written(name, array) for array in answers
        ]
        written: NDArray[np.bool_] = np.logical_or.reduce([mask.reshape(masks[0].shape) for mask in masks])
        return written

    @property
    def wrong(self) -> list[str]:
        """What is wrong, in words."""
        from ptxc.cli.results import counted

        parts = [
            f"{d.name} of {who} differs from {other}'s in {d.wrong} of {d.elements} elements"
            for who, other, d in self.differences
            if d.wrong
        ]
        if self.faults:
            parts.append(counted(len(self.faults), "fault"))
        findings = [row for row in self.findings if row[0] == PTXC]
        if findings:
            parts.append(counted(len(findings), "finding"))
        return parts

    @property
    def status(self) -> int:
        """The exit status."""
        return int(bool(self.wrong))

    def text(self) -> str:
        """The report for people."""
        from ptxc.cli.results import differences_table

        rows = [((d.name, f"{who}, {other}"), d) for who, other, d in self.differences]
        parts = [table(list(self.notes.items())), differences_table(rows, ("output", "compared"))]
        if self.faults:
            parts.append("\n".join(self.faults))
        parts += [
            f"{_WHOSE[who]}{listing.finding_text(kernel, found)}" for who, listing, kernel, found in self.findings
        ]
        return "\n\n".join([*parts, f"wrong: {', '.join(self.wrong)}" if self.wrong else "right"])

    def json(self) -> str:
        """The report for programs."""
        from ptxc.cli.results import dumps

        compared = [{"of": who, "against": other, **asdict(d)} for who, other, d in self.differences]
        found = [{"of": who, **listing.finding_dict(kernel, found)} for who, listing, kernel, found in self.findings]
        report = {
            "right": not self.wrong,
            "answers": self.notes,
            "integers": self.problem.integers,
            "differences": compared,
            "faults": self.faults,
            "findings": found,
        }
        return dumps(report)


def _graph(source: Source) -> Graph:
    from ptxc.driver import graph_of

    return graph_of(io.BytesIO(source.data) if source.flows else source.given)
