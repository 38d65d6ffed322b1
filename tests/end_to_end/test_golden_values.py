"""The goldens, compiled, executed on the CPU device, and compared with NumPy.

They need nothing beside the repository. What each computes, and the runtime sizes to try, is in
``golden/goldens.toml``.
"""

from __future__ import annotations

import math
import tomllib
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from conftest import ROOT
from launching import DTYPES, Array, Arrays, error, run

import ptxc
from ptxc.driver import CompiledKernel
from ptxc.launch import evaluate
from ptxc.sim.device import CpuDevice

FOLDER = ROOT / "golden"
GOLDENS: dict[str, dict[str, Any]] = tomllib.loads((FOLDER / "goldens.toml").read_text())


def softmax(x: Array) -> Array:
    powers = np.exp(x - x.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def attention(q: Array, k: Array, v: Array, causal: bool = False) -> Array:
    scores = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    if causal:
        scores = np.where(np.tri(scores.shape[-2], dtype=bool), scores, -np.inf)
    return softmax(scores) @ v


FUNCTIONS = {"np": np, "softmax": softmax, "attention": attention, "erf": np.vectorize(math.erf)}


def compiled(name: str) -> CompiledKernel:
    table = GOLDENS[name]
    options = {"target": table.get("target", "sm_89"), **table.get("options", {})}
    (kernel,) = ptxc.compile(FOLDER / name / "kernel.ir.json", **options)
    return kernel


def cases() -> Iterator[Any]:
    """Each golden that can be executed, with each of its sizes."""
    for name, table in GOLDENS.items():
        if "computes" in table:
            for sizes in table.get("sizes", [{}]):
                yield pytest.param(name, sizes, id="-".join((name, *(f"{k}={v}" for k, v in sizes.items()))))


@pytest.mark.parametrize(("name", "sizes"), list(cases()))
def test_golden_computes(name: str, sizes: dict[str, int]) -> None:
    kernel = compiled(name)
    assert kernel.launch is not None
    arrays: Arrays = {}
    for parameter in kernel.launch.parameters:
        if parameter.role == "input":
            shape = [evaluate(extent, sizes) for extent in parameter.shape]
            random = np.random.default_rng(zlib.crc32(parameter.name.encode()))
            arrays[parameter.name] = random.standard_normal(shape).astype(DTYPES[parameter.dtype])
    inputs = {name: array.astype(np.float64) for name, array in arrays.items()}
    assert not run([kernel], arrays)
    for output, expression in GOLDENS[name]["computes"].items():
        value: Array = np.asarray(eval(expression, FUNCTIONS, inputs))
        assert error(arrays[output], value) <= GOLDENS[name].get("bound", 2e-6)


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
