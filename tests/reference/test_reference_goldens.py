"""The goldens, evaluated directly and compared with NumPy: neither the compiler nor the CPU device takes part."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from conftest import ROOT
from reference_lab import prepared

from ptxc.driver import graph_of
from ptxc.reference.buffers import decoded
from ptxc.reference.compare import Tolerance, compare
from ptxc.reference.evaluator import evaluate_kernels

FOLDER = ROOT / "golden"
GOLDENS: dict[str, dict[str, Any]] = tomllib.loads((FOLDER / "goldens.toml").read_text())


def _softmax(x: Any) -> Any:
    powers = np.exp(x - x.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def _attention(q: Any, k: Any, v: Any, causal: bool = False) -> Any:
    scores = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    if causal:
        scores = np.where(np.tri(scores.shape[-2], dtype=bool), scores, -np.inf)
    return _softmax(scores) @ v


def _rms_norm(x: Any, w: Any) -> Any:
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * w


def _l2_norm(x: Any) -> Any:
    return x / np.sqrt((x**2).sum(-1, keepdims=True) + 1e-12)


FUNCTIONS = {
    "np": np, "softmax": _softmax, "attention": _attention, "rms_norm": _rms_norm, "l2_norm": _l2_norm,
    "erf": np.vectorize(__import__("math").erf),
}  # fmt: skip

#: What runs longest; the others show the same statements.
SLOW = {"big_sum_serial", "matmul_carried", "matmul_async_three_stages", "matmul_cooperative_vec4"}


def cases() -> Iterator[Any]:
    for name, table in GOLDENS.items():
        if "computes" in table and name not in SLOW:
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
            expected = np.asarray(eval(expression, dict(FUNCTIONS), inputs))
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
