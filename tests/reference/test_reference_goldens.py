"""The goldens, evaluated directly and compared with NumPy: neither the compiler nor the CPU device takes part.

Those of which only some CTAs are executed are left out; ``test_reference_corpus`` does the same of their like.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from conftest import ROOT
from meanings import computed
from reference_lab import prepared

from ptxc.driver import graph_of
from ptxc.reference.buffers import decoded
from ptxc.reference.compare import Tolerance, compare
from ptxc.reference.evaluator import evaluate_kernels

FOLDER = ROOT / "golden"
GOLDENS: dict[str, dict[str, Any]] = tomllib.loads((FOLDER / "goldens.toml").read_text())


#: What runs longest; the others show the same statements.
SLOW = {"big_sum_serial", "big_sum_split", "matmul_carried", "matmul_async_three_stages", "matmul_cooperative_vec4"}


def cases() -> Iterator[Any]:
    for name, table in GOLDENS.items():
        if "computes" in table and "ctas" not in table and name not in SLOW:
            sizes = table.get("sizes", [{}])[-1]
            yield pytest.param(name, sizes, id=name)


@pytest.mark.parametrize(("name", "sizes"), list(cases()))
def test_golden_means_what_numpy_computes(name: str, sizes: dict[str, int]) -> None:
    ops, _, problem = prepared(graph_of(FOLDER / name / "kernel.ir.json"), None, **sizes)
    evaluation = evaluate_kernels(ops, problem)
    assert not evaluation.faults
    inputs = {
        key: decoded(array, problem.buffers[key].dtype).astype(np.float64) for key, array in problem.begin.items()
    }
    for output, expression in GOLDENS[name]["computes"].items():
        with np.errstate(all="ignore"):
            expected = computed(expression, inputs)
        # A constant of the program, such as 1 / sqrt(128), is an f32.
        difference = compare(output, evaluation.outputs[output], expected, "f64", Tolerance(1e-7))
        assert difference.wrong == 0, difference


def test_rounding_each_operation_is_near() -> None:
    ops, _, problem = prepared(graph_of(FOLDER / "softmax_online" / "kernel.ir.json"), k=50)
    exact = evaluate_kernels(ops, problem).outputs["y"]
    rounded = evaluate_kernels(ops, problem, exact=False).outputs["y"]
    assert (exact.dtype.name, rounded.dtype.name) == ("float64", "float32")
    difference = compare("y", rounded, exact, "f32", Tolerance(1e-6))
    assert difference.wrong == 0
    assert difference.absolute > 0
