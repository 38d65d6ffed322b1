"""CUDA kernels with one seeded fault each, as nvcc compiles them: the right check must find it at the right line.

``data/faults`` holds them by check, and the PTX that nvcc made of them: as they are, and repaired. ``cuda.toml`` says
how each is launched and what is to be found. Where nvcc is there, it compiles them again, and the same must be found.
"""

from __future__ import annotations

import re
import subprocess
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ptxc.device import device
from ptxc.sim.findings import CHECKS, Finding
from ptxc.toolchain import find_tool

FOLDER = Path(__file__).parent / "data" / "faults"
FAULTS: dict[str, dict[str, dict[str, Any]]] = tomllib.loads((FOLDER / "cuda.toml").read_text())
CASES = [(check, name) for check, kernels in FAULTS.items() for name in kernels]

#: Where a source line stands in nvcc's PTX: itself, or the call that it was inlined at.
_LOC = re.compile(r"^\s*\.loc\s+(?:1 (\d+) |.*inlined_at 1 (\d+) )")


@cache
def stored(check: str, kind: str = "") -> str:
    """The PTX that is kept of a check's kernels; ``kind`` is ``.repaired`` or nothing."""
    return (FOLDER / f"{check}{kind}.ptx").read_text()


def found(text: str, check: str, name: str) -> list[Finding]:
    """What the CPU device finds in a kernel."""
    table = FAULTS[check][name]
    x, y = (np.arange(table.get(buffer, 256), dtype=np.float32) for buffer in "xy")
    x.flags.writeable = not table.get("read_only", False)
    grid, block = [table.get("grid", 1)], [table.get("block", 64)]
    result = device("cpu").load(text).launch(name, grid, block, [x, y, table.get("n", 0)], sanitize=CHECKS)
    return result.findings


def source_line(text: str, finding: Finding) -> str:
    """The CUDA line of a finding, by the PTX text's line information."""
    name = re.findall(r'^\s*\.file\s+1 "(?:.*/)?(\w+\.cu)"', text, re.MULTILINE)[0]
    before = text.splitlines()[: finding.line]
    numbers = next(match.groups() for line in reversed(before) if (match := _LOC.match(line)))
    line: str = (FOLDER / name).read_text().splitlines()[int(numbers[0] or numbers[1]) - 1]
    return line


def check_finding(text: str, check: str, name: str) -> None:
    """The fault is found, nothing else is, and the place is right."""
    table = FAULTS[check][name]
    finding, *more = found(text, check, name)
    assert {other.check for other in (finding, *more)} == {check}
    assert table["message"] in finding.message
    for each in (finding, *more):
        assert source_line(text, each).endswith(f"// FAULT {name}")
    assert text.splitlines()[finding.line - 1].split(maxsplit=1)[0].startswith(table["at"])
    assert list(finding.threads) == table["threads"]
    if finding.space == "shared":
        assert finding.address == table["address"]


@pytest.mark.parametrize(("check", "name"), CASES)
def test_fault_is_found(check: str, name: str) -> None:
    check_finding(stored(check), check, name)


@pytest.mark.parametrize(("check", "name"), CASES)
def test_repaired_twin_has_no_finding(check: str, name: str) -> None:
    assert not [str(finding) for finding in found(stored(check, ".repaired"), check, name)]


@pytest.mark.parametrize("check", FAULTS)
def test_each_kernel_is_listed(check: str) -> None:
    source = (FOLDER / f"{check}.cu").read_text()
    assert re.findall(r"KERNEL\((\w+)\)", source) == [*FAULTS[check]] == re.findall(r"// FAULT (\w+)", source)


def test_each_check_has_faults_enough() -> None:
    assert FAULTS.keys() == CHECKS
    assert all(len(kernels) >= 6 for kernels in FAULTS.values())


@pytest.mark.needs("nvcc")
@pytest.mark.parametrize("check", FAULTS)
def test_nvcc_makes_the_same_of_them(check: str, tmp_path: Path) -> None:
    """Compiled here and now, the same is found, and nothing in the repaired ones."""
    texts = {}
    for kind, options in {"": [], ".repaired": ["-DREPAIRED"]}.items():
        file = tmp_path / f"{check}{kind}.ptx"
        command = [str(find_tool("nvcc")), "-ptx", "-lineinfo", "-arch=sm_80", *options, f"{check}.cu", "-o", str(file)]
        subprocess.run(command, cwd=FOLDER, check=True)
        texts[kind] = file.read_text()
    for name in FAULTS[check]:
        check_finding(texts[""], check, name)
        assert not found(texts[".repaired"], check, name)
