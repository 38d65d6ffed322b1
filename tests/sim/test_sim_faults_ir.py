"""Goldens with one fault seeded in their Kernel IR: the right check must find it at the right statement.

``data/faults/ir.toml`` says what is changed and what is to be found. The golden itself is the repaired twin.
"""

from __future__ import annotations

import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT
from mutation_lab import GOLDENS, without_numbers

import ptxc
from ptxc.codegen.lines import statements_of_lines
from ptxc.compilation import CompiledKernel
from ptxc.reference.buffers import problem_of
from ptxc.reference.execution import Settings, execute, load
from ptxc.reference.steps import steps_of
from ptxc.sim.findings import CHECKS, Finding
from ptxc.target import parse_target

FAULTS: list[dict[str, Any]] = tomllib.loads(
    (Path(__file__).parent / "data" / "faults" / "ir.toml").read_text(encoding="utf-8")
)["faults"]


def compiled(golden: str, edits: list[list[str]], folder: Path) -> CompiledKernel:
    """A golden with ``edits`` made to its Kernel IR."""
    text = (ROOT / "golden" / golden / "kernel.ir.json").read_text()
    for before, after in edits:
        assert before in text
        text = text.replace(before, after, 1)
    file = folder / "kernel.ir.json"
    file.write_text(text)
    (kernel,) = ptxc.compile(file, target=GOLDENS[golden].get("target", "sm_89"))
    return kernel


def found(kernel: CompiledKernel) -> list[Finding]:
    """What the CPU device finds in a kernel of fixed sizes."""
    steps = steps_of([kernel])
    (launched,) = execute(
        load({kernel.name: kernel.ptx}), steps, problem_of(steps, {}, {}).arrays(), {}, Settings(CHECKS)
    )
    return launched.result.findings


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault['check']}-{fault['name']}-{fault['golden']}")
def test_fault_is_found(fault: dict[str, Any], tmp_path: Path) -> None:
    kernel = compiled(fault["golden"], fault["edits"], tmp_path)
    finding, *more = found(kernel)
    assert finding.check == fault["check"]
    assert {other.check for other in (finding, *more)} == {fault["check"], *fault.get("also", ())}
    assert fault["message"] in finding.message
    target = parse_target(GOLDENS[fault["golden"]].get("target", "sm_89"))
    assert statements_of_lines([kernel.kernel], target, kernel.version)[finding.line] == fault["statement"]
    assert without_numbers(kernel.ptx.splitlines()[finding.line - 1].strip()) == fault["instruction"]
    assert (list(finding.threads), finding.count) == (fault["threads"], fault["count"])
    if finding.space == "shared":
        assert finding.address == fault["address"]


@pytest.mark.parametrize("golden", sorted({fault["golden"] for fault in FAULTS}))
def test_repaired_twin_has_no_finding(golden: str, tmp_path: Path) -> None:
    assert not [str(finding) for finding in found(compiled(golden, [], tmp_path))]


def test_each_check_has_faults_enough() -> None:
    counts = Counter(fault["check"] for fault in FAULTS)
    assert counts.keys() == CHECKS
    assert min(counts.values()) >= 6
