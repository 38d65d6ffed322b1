"""Emmy's own answers: programs evaluated by NumPy, and kernels by way of its CUDA text and nvcc."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import ROOT
from emmy.compiler.ir.expr import Expr
from kernel_ir import Load, Write, op, tile, var
from reference_lab import Node, floats, graph_of, prepared

from ptxc.driver import graph_of as read
from ptxc.errors import InputError, ToolchainError, UnsupportedError
from ptxc.recursion import with_room
from ptxc.reference import emmy
from ptxc.reference.buffers import problem_of
from ptxc.reference.emmy import CudaKernel, assemble_cuda, cuda_kernels, evaluate_program, nvcc_ptx
from ptxc.reference.execution import Settings, execute, load
from ptxc.reference.steps import Step

M: dict[str, Any] = {"sym": "m", "hint": 64}


def row_sum(rows: int = 7) -> tuple[Any, list[Step], Any]:
    graph = read(ROOT / "golden" / "row_sum_dynamic" / "kernel.ir.json")
    _, steps, problem = prepared(graph, None, m=rows)
    return graph, steps, problem


# ---------------------------------------------------------------------------------------------------------- programs


def test_a_program_is_evaluated_in_float64() -> None:
    _, _, problem = row_sum()
    result = evaluate_program(json.dumps(_program()), problem)
    assert result["y"].dtype.name == "float64"
    assert np.allclose(result["y"].reshape(-1), problem.begin["x"].astype(np.float64).sum(1), rtol=1e-14)


def _program(**changes: Any) -> dict[str, Any]:
    """A program of Emmy's: the sum, without what a release may spell otherwise."""
    nodes = [
        {"id": "x", "op": "input", "outputs": [["x", "f32", [M, 100]]]},
        {"id": "c", "op": "constant", "attrs": {"name": "c", "value": 1.0}, "outputs": [["c", "f32", [1]]]},
        {"id": "z", "op": "tensor.elementwise", "attrs": {"op": "multiply"}, "inputs": ["x", "c"],
         "outputs": [["z", "f32", [M, 100]]]},
        {"id": "y", "op": "tensor.reduce", "attrs": {"op": "sum", "axis": 1}, "inputs": ["z"],
         "outputs": [["y", "f32", [M, 1]]]},
    ]  # fmt: skip
    return {"inputs": ["x"], "outputs": ["y"], "nodes": nodes, **changes}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "this is no program of Emmy's"),
        ("[]", "this is no program of Emmy's: program must be a mapping"),
        ('{"nodes": 1}', "this is no program of Emmy's"),
        ("[" * 100_000, "this is no program of Emmy's"),
        ('{"nodes": [{"id": "x", "op": "odd", "outputs": [["x", "f32", [1]]]}]}', "has unknown op 'odd'"),
    ],
)
def test_what_is_no_program(text: str, message: str) -> None:
    _, _, problem = row_sum()
    with pytest.raises(InputError, match=message):
        evaluate_program(text, problem)


def test_a_program_of_other_inputs() -> None:
    _, _, problem = row_sum()
    text = json.dumps(_program()).replace('"x"', '"q"')
    with pytest.raises(InputError, match="the program's input 'q' is no input of the kernels"):
        evaluate_program(text, problem)


def test_a_program_that_cannot_be_evaluated() -> None:
    _, _, problem = row_sum()
    text = json.dumps(_program())
    with pytest.raises(InputError, match="the program's constant 'c' has no value"):
        evaluate_program(text.replace('"value": 1.0', '"value": null'), problem)
    with pytest.raises(InputError, match="Emmy's NumPy evaluation fails"):
        evaluate_program(text.replace('"axis": 1', '"axis": 7'), problem)


def test_the_programs_of_the_corpus(shared: Path) -> None:
    """Each program of a reduced size gives the reference that lies beside it."""
    bench, tried = shared / "bench15", 0
    for path in sorted((bench / "programs").glob("*.json")):
        reference = bench / "ref" / f"{path.stem}.npz"
        if not reference.exists() or "full" in path.stem:
            continue
        with np.load(reference) as file:
            numbers = dict(file)
        inputs = {name[3:]: array for name, array in numbers.items() if name.startswith("in_")}
        sizes = {name[5:]: int(array) for name, array in numbers.items() if name.startswith("bind_")}
        problem = _problem(inputs, sizes)
        result = evaluate_program(path.read_text(), problem)
        outputs = [name for name in result if f"out64_{name}" in numbers]
        assert len(outputs) == len([name for name in numbers if name.startswith("out64_")])
        for name in outputs:
            assert np.allclose(result[name], numbers[f"out64_{name}"], rtol=1e-12, atol=1e-12), path.stem
        tried += 1
    assert tried >= 40


def _problem(inputs: dict[str, Any], sizes: dict[str, int]) -> Any:
    from ptxc.launch import Launch, LaunchParameter

    kinds = {"float32": "f32", "float16": "f16", "int32": "i32", "int64": "i64", "bool": "bool"}
    parameters = tuple(
        LaunchParameter(name, "input", "u64", kinds[str(array.dtype)], array.shape) for name, array in inputs.items()
    )
    step = Step("k", Launch((1, 1, 1), (1, 1, 1), 0, 0, parameters, (), ()))
    return problem_of([step], sizes, inputs)


# --------------------------------------------------------------------------------------------------------- CUDA text


def test_emmys_launch_is_ptxcs() -> None:
    graph, steps, problem = row_sum(37)
    (kernel,) = cuda_kernels(graph, "sm_90", problem)
    assert "__global__" in kernel.source
    assert not kernel.specific
    ours = steps[0].launch
    assert [p.name for p in kernel.step.launch.parameters] == [p.name for p in ours.parameters]
    assert (kernel.step.entry, kernel.step.launch.grid, kernel.step.launch.block) == (
        steps[0].entry, (3, 1, 1), ours.block,
    )  # fmt: skip


def test_the_pool_of_shared_memory_and_buffers_to_zero() -> None:
    graph = read(ROOT / "golden" / "matmul_pipeline_raster" / "kernel.ir.json")
    _, steps, problem = prepared(graph)
    (kernel,) = cuda_kernels(graph, "sm_120", problem)
    assert kernel.step.launch.dynamic_shared == steps[0].launch.dynamic_shared > 0
    graph = read(ROOT / "golden" / "sum_split_atomic" / "kernel.ir.json")
    (kernel,) = cuda_kernels(graph, "sm_90", prepared(graph)[2])
    assert kernel.step.launch.zero == ("y",)


def test_expressions_as_deep_as_are_read_become_cuda_text() -> None:
    deep: Expr = var("i")
    for _ in range(1900):
        deep = op("^", deep, var("i"))
    kernel = tile({"i": 4}, [Load("a", "x", (deep,)), Write("y", (var("i"),), "a")])
    graph = with_room(lambda: graph_of({"x": (4,)}, Node(kernel, ("x",), {"y": (4,)})))
    (text,) = cuda_kernels(graph, "sm_90", prepared(graph)[2])
    assert text.source.count("^") == 1900


def test_a_lowering_that_fails() -> None:
    graph = read(ROOT / "golden" / "matmul_zero_prologue" / "kernel.ir.json")
    with pytest.raises(UnsupportedError, match="Emmy's CUDA lowering fails: ValueError"):
        cuda_kernels(graph, "sm_90", prepared(graph)[2])


@pytest.mark.needs("nvcc")
def test_kernels_of_a_graph_by_nvcc() -> None:
    x, i = floats(64), var("i")
    first = Node(tile({"i": 64}, [Load("a", "x", (i,)), Write("t", (i,), "a")]), ("x",), {"t": (64,)}, "first")
    add = [Load("a", "t", (i,)), Write("acc", (op("/", i, 16),), "a", atomic=True)]
    graph = graph_of({"x": (64,)}, first, Node(tile({"i": 64}, add), ("t",), {"acc": (4,)}, "second"))
    _, _, problem = prepared(graph, {"x": x})
    kernels = cuda_kernels(graph, "sm_80", problem)
    # Emmy has the first zero what the second adds to, and says so in its name.
    assert [kernel.step.entry.partition("__")[0] for kernel in kernels] == ["first", "second"]
    assert kernels[0].step.names("zero") == ["acc"]
    assert kernels[1].step.launch.zero == ()
    arrays = problem.arrays()
    texts = {kernel.step.entry: nvcc_ptx(kernel, "sm_80") for kernel in kernels}
    checks = frozenset({"memory", "race", "init", "sync"})
    launched = execute(load(texts), [k.step for k in kernels], arrays, {}, Settings(checks))
    assert [launch.result.findings for launch in launched] == [[], []]
    assert np.allclose(arrays["acc"], x.reshape(4, 16).sum(1), rtol=1e-5)


@pytest.mark.needs("nvcc")
def test_text_that_nvcc_refuses() -> None:
    _, steps, _ = row_sum()
    with pytest.raises(ToolchainError, match=r"k_y_reduce: nvcc refuses Emmy's CUDA text for sm_90: .*kernel\.cu"):
        nvcc_ptx(CudaKernel(steps[0], "odd", False), "sm_90")


def test_options_and_the_target_reach_nvcc(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen: list[list[str]] = []

    def run(command: list[str], _: float) -> tuple[int, str, float]:
        seen.append(command)
        Path(command[command.index("-o") + 1]).write_text("ptx")
        return 0, "", 1.0

    monkeypatch.setattr(emmy, "find_tool", lambda name: tmp_path / name)
    monkeypatch.setattr(emmy, "run_timed", run)
    step = row_sum()[1][0]
    assert nvcc_ptx(CudaKernel(step, "text", True), "sm_90", ["--fmad=false"]) == "ptx"
    assert {"-arch=sm_90a", "--fmad=false", "--ptx"} <= set(seen[0])
    assert assemble_cuda("text", "sm_90") == (b"ptx", 1.0)
    assert {"-arch=sm_90", "--cubin"} <= set(seen[1])


def test_an_nvcc_that_hangs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    nvcc = tmp_path / "nvcc"
    nvcc.write_text("#!/bin/sh\nsleep 60\n")
    nvcc.chmod(0o755)
    monkeypatch.setenv("PTXC_NVCC", str(nvcc))
    monkeypatch.setattr(emmy, "TIME_LIMIT", 0.1)
    with pytest.raises(ToolchainError, match=r"k_y_reduce: .*nvcc took longer than 0\.1 s and was ended"):
        nvcc_ptx(CudaKernel(row_sum()[1][0], "text", False), "sm_90")


def test_there_is_no_nvcc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PTXC_NVCC", "/nonexistent/nvcc")
    with pytest.raises(ToolchainError, match="PTXC_NVCC"):
        nvcc_ptx(CudaKernel(row_sum()[1][0], "text", False), "sm_90")
