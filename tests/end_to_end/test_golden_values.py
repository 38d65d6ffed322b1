"""The goldens, compiled, executed on the CPU device, and compared with NumPy.

They need nothing beside the repository. What each computes, and the runtime sizes to try, is in
``golden/goldens.toml``.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from conftest import ROOT
from launching import error, run
from reference import computed, inputs

import ptxc
from ptxc.driver import CompiledKernel
from ptxc.passes.pipeline import PIPELINE
from ptxc.sim.device import CpuDevice

FOLDER = ROOT / "golden"
GOLDENS: dict[str, dict[str, Any]] = tomllib.loads((FOLDER / "goldens.toml").read_text())
SHOWCASES = [name for name, table in GOLDENS.items() if table.get("dump") and "computes" in table]


#: The passes that a kernel can do without.
OPTIONAL = [item.name for item in PIPELINE if not item.required]


def compiled(name: str, **more: Any) -> CompiledKernel:
    table = GOLDENS[name]
    options = {"target": table.get("target", "sm_89"), **table.get("options", {}), **more}
    (kernel,) = ptxc.compile(FOLDER / name / "kernel.ir.json", **options)
    return kernel


def cases() -> Iterator[Any]:
    """Each golden that can be executed, with each of its sizes."""
    for name, table in GOLDENS.items():
        if "computes" in table:
            for sizes in table.get("sizes", [{}]):
                yield pytest.param(name, sizes, id="-".join((name, *(f"{k}={v}" for k, v in sizes.items()))))


def check(name: str, kernel: CompiledKernel, sizes: dict[str, int]) -> None:
    """Execute a kernel on random inputs, and compare."""
    table = GOLDENS[name]
    arrays = inputs([kernel], sizes, table.get("step", 0.0))
    expected = {output: computed(expression, arrays) for output, expression in table["computes"].items()}
    assert not run([kernel], arrays)
    for output, value in expected.items():
        assert error(arrays[output], value) <= table.get("bound", 2e-6)


@pytest.mark.parametrize(("name", "sizes"), list(cases()))
def test_golden_computes(name: str, sizes: dict[str, int]) -> None:
    check(name, compiled(name), sizes)


@pytest.mark.parametrize("name", ["row_sum_index64", "row_sum_grid64"])
def test_64_bits(name: str) -> None:
    """The first and the last row of an array of gigabytes, of which these rows alone are ever touched."""
    kernel = compiled(name)
    assert kernel.launch is not None
    rows, columns = (int(extent) for extent in kernel.launch.parameters[0].shape)
    x, y = np.zeros((rows, columns), np.float32), np.full(rows, np.nan, np.float32)
    x[0], x[-1] = 1, 2
    module = CpuDevice().load(kernel.ptx)
    grid, block = [int(extent) for extent in kernel.launch.grid], kernel.launch.block
    result = module.launch(kernel.name, grid, block, [x, y], ctas=[(0,), (rows - 1,)], sanitize=("memory", "sync"))
    assert not result.findings
    assert (y[0], y[-1]) == (columns, 2 * columns)
    assert np.isnan(y[1:-1]).all()
