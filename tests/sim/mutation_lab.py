"""Mutants of the goldens' PTX: each lacks one barrier, one wait or one guard, and must be seen to be wrong.

A mutant is *detected* where the CPU device, with all checks on, has a finding, or where an output differs from the
original's by more than ``ptxc run --expect`` lets pass. ``data/mutation.toml`` holds the sizes to run with beyond those
of ``golden/goldens.toml``, and says of each survivor why it survives.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from conftest import ROOT

import ptxc
from ptxc.codegen.lines import statements_of_lines
from ptxc.reference.buffers import Array, Problem, integers_of, problem_of
from ptxc.reference.compare import Tolerance, compare
from ptxc.reference.execution import Settings, execute, load
from ptxc.reference.sample import ALL, Sample
from ptxc.reference.steps import Step, steps_of
from ptxc.sim.device import DEFAULT_MAX_STEPS
from ptxc.sim.findings import CHECKS
from ptxc.target import parse_target

FOLDER = ROOT / "golden"
GOLDENS: dict[str, dict[str, Any]] = tomllib.loads((FOLDER / "goldens.toml").read_text())
DATA: dict[str, Any] = tomllib.loads((Path(__file__).parent / "data" / "mutation.toml").read_text())

#: The kinds of mutants, and what is taken away.
KINDS = {
    "barrier": "a barrier of the CTA or of a warp",
    "wait": "a wait for copies, products or the grid before, what it waits for (a group's end, an arrival), or a fence",
    "guard": "the predicate of an instruction, or a forward branch around some: all threads execute them",
    "loop": "the end of a loop: its branch back is always taken",
}

#: The goldens that show what every pass does.
SHOWCASES = frozenset(name for name, table in GOLDENS.items() if table.get("dump"))

#: A mutant may execute this many times the instructions of the original before it is said to be endless.
PATIENCE = 2

_LINE = re.compile(r"^    (?:@(?P<not>!?)(?P<guard>%p\d+) )?(?P<text>(?P<opcode>[a-z][\w.:]*).*;)$")
_LABEL = re.compile(r"^(\$\w+):$")
_BARRIER = re.compile(r"(bar|barrier)\.")
_WAIT = re.compile(
    r"cp\.async\.(wait_group|wait_all|commit_group|mbarrier)|griddepcontrol\.wait"
    r"|mbarrier\.|fence\.mbarrier_init|fence\.proxy\.async"
    r"|wgmma\.(fence|commit_group|wait_group)|setmaxnreg"
)


@dataclass(frozen=True, slots=True)
class Key:
    """What names a mutant, and goes on to name it where registers and lines change."""

    kernel: str
    kind: str
    #: The Kernel IR statement of the line.
    statement: str
    #: The instruction, its registers and labels without their numbers.
    instruction: str
    #: Which of the kernel's lines that are the same in all of this, from 0.
    at: int

    @property
    def place(self) -> Key:
        """The same for all copies of the line that loops are unrolled to."""
        return replace(self, instruction=re.sub(r"\+\d+\]", "]", self.instruction), at=0)


@dataclass(frozen=True, slots=True)
class Mutant:
    """One line (counted from 1) of a kernel's PTX, and what stands there instead."""

    key: Key
    line: int
    original: str
    replacement: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a mutant: the checks that had findings, ``output`` among them for a wrong one."""

    mutant: Mutant
    found: frozenset[str]

    @property
    def survives(self) -> bool:
        """Whether nothing was found."""
        return not self.found


@dataclass
class Subject:
    """A golden whose mutants are executed."""

    name: str
    _begun: list[_Run] = field(default_factory=list)

    @cached_property
    def _kernel(self) -> Any:
        table = GOLDENS[self.name]
        options = {"target": table.get("target", "sm_89"), **table.get("options", {})}
        (kernel,) = ptxc.compile(FOLDER / self.name / "kernel.ir.json", **options)
        return kernel

    @cached_property
    def mutants(self) -> list[Mutant]:
        """All of them, in the order of their lines."""
        kernel = self._kernel
        target = parse_target(GOLDENS[self.name].get("target", "sm_89"))
        statements = statements_of_lines([kernel.kernel], target, kernel.version)
        found: list[Mutant] = []
        seen: dict[tuple[str, str, str], int] = {}
        for line, kind, original, replacement in _mutations(kernel.ptx.splitlines()):
            what = kind, statements.get(line, ""), without_numbers(original)
            key = Key(self.name, *what, seen.setdefault(what, 0))
            seen[what] += 1
            found.append(Mutant(key, line, original, replacement))
        return found

    def judge(self, mutant: Mutant) -> Verdict:
        """Execute a mutant with one size after the other until something is found."""
        lines = self._kernel.ptx.splitlines()
        lines[mutant.line - 1] = mutant.replacement
        text = "\n".join(lines) + "\n"
        for run in self._runs():
            found = run.compare(text)
            if found:
                return Verdict(mutant, found)
        return Verdict(mutant, frozenset())

    def is_right(self) -> bool:
        """Whether the original has no finding and computes what it did before."""
        return not any(run.compare(self._kernel.ptx) for run in self._runs())

    def _runs(self) -> Iterator[_Run]:
        """The launches of the original, made as they are needed and kept."""
        extra = DATA.get("kernels", {}).get(self.name, {})
        sizes = GOLDENS[self.name].get("sizes", [{}]) + extra.get("sizes", [])
        for at, integers in enumerate(reversed(sizes)):
            if at == len(self._begun):
                sample = Sample(count=extra["ctas"]) if "ctas" in extra else ALL
                self._begun.append(_Run.of(self._kernel, integers, sample, extra.get("infinite", [])))
            yield self._begun[at]


@dataclass(frozen=True)
class _Run:
    """The original's launch on one set of sizes, and what it left."""

    steps: list[Step]
    problem: Problem
    sample: Sample
    #: Whether the grid ahead may still run, as of a kernel that waits for it.
    dependent: bool
    limit: int
    expected: dict[str, Array]

    @classmethod
    def of(cls, kernel: Any, integers: dict[str, int], sample: Sample, infinite: list[str]) -> _Run:
        steps = steps_of([kernel])
        values = {name: integer.value for name, integer in integers_of(steps, integers, {}).items()}
        problem = problem_of(steps, values, {})
        for name in infinite:
            problem.begin[name][..., 0] = np.inf
        waits = "griddepcontrol.wait" in kernel.ptx
        run = cls(steps, problem, sample, waits, DEFAULT_MAX_STEPS, problem.arrays())
        issued, found = run._execute(kernel.ptx, run.expected)
        assert not found, f"{kernel.name} is at fault as it is: {sorted(found)}"
        return replace(run, limit=PATIENCE * issued + 1000)

    def compare(self, text: str) -> frozenset[str]:
        """What shows that ``text`` does not do what the original does."""
        arrays = self.problem.arrays()
        _, found = self._execute(text, arrays)
        return found or (frozenset({"output"}) if self._is_wrong(arrays) else frozenset())

    def _execute(self, text: str, arrays: dict[str, Array]) -> tuple[int, frozenset[str]]:
        settings = Settings(CHECKS, self.sample, self.limit, dependent=self.dependent)
        (launched,) = execute(load({self.steps[0].entry: text}), self.steps, arrays, self.problem.integers, settings)
        found = frozenset(finding.check for finding in launched.result.findings)
        return launched.result.statistics.issued, found

    def _is_wrong(self, arrays: dict[str, Array]) -> bool:
        types = frozenset(buffer.dtype for buffer in self.problem.buffers.values())
        for buffer in self.problem.written:
            got, expected = arrays[buffer.name], self.expected[buffer.name]
            if compare(buffer.name, got, expected, buffer.dtype, Tolerance(types=types)).wrong:
                return True
        return False


def _mutations(lines: list[str]) -> Iterator[tuple[int, str, str, str]]:
    """Line, kind, original and replacement of each mutation of a PTX text as ptxc prints it."""
    labels = {match[1]: number for number, line in enumerate(lines, 1) if (match := _LABEL.match(line))}
    for number, line in enumerate(lines, 1):
        match = _LINE.match(line)
        if match is None:
            continue
        original = line.strip()
        if _BARRIER.match(match["opcode"]):
            yield number, "barrier", original, ""
        elif _WAIT.match(match["opcode"]):
            yield number, "wait", original, ""
        elif match["guard"] is None:
            continue
        elif match["opcode"] != "bra":
            yield number, "guard", original, f"    {match['text']}"
        elif labels[match["text"].split()[1].rstrip(";")] > number:
            yield number, "guard", original, ""
        else:
            yield number, "loop", original, f"    {match['text']}"


def without_numbers(instruction: str) -> str:
    """An instruction, its registers and labels without their numbers."""
    return re.sub(r"(%[a-z]+)\d+", r"\1", re.sub(r"\$\w+", "$", instruction))


def subjects() -> list[Subject]:
    """The goldens that have mutants."""
    return [subject for subject in map(Subject, GOLDENS) if subject.mutants]


def explained() -> dict[Key, str]:
    """Why each survivor survives."""
    reasons: dict[str, str] = DATA.get("reasons", {})
    return {
        Key(row["kernel"], row["kind"], row["statement"], instruction, at): reasons[row["reason"]]
        for row in DATA.get("survivors", [])
        for instruction in _list(row["instruction"])
        for at in _list(row.get("at", 0))
    }


def _list(given: Any) -> list[Any]:
    return given if isinstance(given, list) else [given]
