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
from launching import SANITIZERS, Array, error, run
from meanings import computed
from reference import inputs
from tolerances import of_kernel

import ptxc
from ptxc.compilation import CompiledKernel
from ptxc.driver import graph_of
from ptxc.frontend.reader import kernel_nodes
from ptxc.passes.pipeline import PIPELINE
from ptxc.reference.buffers import decoded, integers_of, problem_of
from ptxc.reference.codes import unpacked4
from ptxc.reference.execution import Settings, execute, load
from ptxc.reference.sample import Sample
from ptxc.reference.steps import steps_of
from ptxc.sim.device import CpuDevice

FOLDER = ROOT / "golden"
GOLDENS: dict[str, dict[str, Any]] = tomllib.loads((FOLDER / "goldens.toml").read_text())
SHOWCASES = [name for name, table in GOLDENS.items() if table.get("dump") and "computes" in table]


#: Goldens with an array of gigabytes.
OF_GIGABYTES = ["row_sum_index64", "row_sum_grid64"]

#: Two goldens of one graph: the one zeroes what the other adds to.
A_CHAIN = ["matmul_zero_prologue", "matmul_zero_delegated"]

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
    if "ctas" in table:
        check_sample(name, kernel, sizes)
        return
    arrays = inputs([kernel], sizes, table.get("step", 0.0))
    expected = {output: computed(expression, arrays) for output, expression in table["computes"].items()}
    assert not run([kernel], arrays)
    for output, value in expected.items():
        assert error(arrays[output], value) <= table.get("bound", 2e-6)


def check_sample(name: str, kernel: CompiledKernel, sizes: dict[str, int]) -> None:
    """The same of some CTAs; tensor maps, and elements of any type."""
    table = GOLDENS[name]
    steps = steps_of([kernel])
    problem = problem_of(steps, {key: value.value for key, value in integers_of(steps, sizes, {}).items()}, {})
    arrays = problem.arrays()
    settings = Settings(frozenset(SANITIZERS), Sample(count=table["ctas"]))
    (launched,) = execute(load({kernel.name: kernel.ptx}), steps, arrays, problem.integers, settings)
    assert not launched.result.findings
    (node,) = kernel_nodes(graph_of(FOLDER / name / "kernel.ir.json"))
    allowed = of_kernel(node.op, [buffer.dtype for buffer in problem.written], arrays)
    numbers = {key: numbers_in(array, problem.buffers[key].dtype) for key, array in problem.begin.items()}
    assert {buffer.name for buffer in problem.written} == table["computes"].keys()
    for output, expression in table["computes"].items():
        where = problem.is_written(output, arrays[output])
        assert where.any()
        value = numbers_in(arrays[output], problem.buffers[output].dtype)
        assert error(value, computed(expression, numbers), where) <= allowed


def numbers_in(array: Array, dtype: str) -> Array:
    """The numbers that an array's elements stand for."""
    return unpacked4(array) if dtype == "f4e2m1x2" else decoded(array, dtype)


def test_all_are_executed() -> None:
    """Those of which nothing is said to be computed are executed by the tests at the end."""
    assert {name for name, table in GOLDENS.items() if "computes" not in table} == {*OF_GIGABYTES, *A_CHAIN}


@pytest.mark.parametrize(("name", "sizes"), list(cases()))
def test_golden_computes(name: str, sizes: dict[str, int]) -> None:
    check(name, compiled(name), sizes)


@pytest.mark.parametrize("name", OF_GIGABYTES)
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


def test_zeros_of_another_kernel() -> None:
    kernels = [compiled(name) for name in A_CHAIN]
    arrays = inputs(kernels, {})
    assert not run(kernels, arrays)
    expected = computed("np.maximum(a @ b, 0) @ d", arrays)
    assert error(arrays["c"], expected) <= 2e-6
