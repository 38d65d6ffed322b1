"""Buffers in pages and indirect inputs, which hints of the graph make: what a kernel does with their tables."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from kernel_ir import Assign, CpAsyncCopy, Load, Smem, Write, op, tile, var
from lowering_lab import AT, LOAD, WRITE, compiled, kernel_graph, run, run_emmy

from ptxc.errors import CompileError
from ptxc.sim.device import CpuDevice


def paged_graph(whole: bool, axis_at: int, start: bool, vector: bool) -> Any:
    """A copy of ``x`` by pages of 5 rows (or all 20 in one) to the pages of ``y``."""
    page = 20 if whole else 5
    names = ("v", "w") if vector else ("v",)
    step = 2 if vector else 1
    shape = (20, 6) if axis_at == 0 else (6, 20)
    row, column = var("r"), op("*", var("c"), step)
    body = [Load(names=names, input="x", index=(row, column)), Write("y", (row, column), values=names)]
    entries = [["x", axis_at, page, None], ["y", axis_at, page, "at" if start else None]]
    return kernel_graph(
        tile({"r": shape[0], "c": shape[1] // step}, body),
        {"x": shape, **({"at": ((1,), "i64")} if start else {})},
        {"y": shape},
        hints={"cuda.paged_buffers": entries},
    )


@pytest.mark.parametrize("vector", [False, True])
@pytest.mark.parametrize(
    ("whole", "axis_at", "start"),
    [(False, 0, False), (True, 0, False), (False, 1, False), (False, 0, True), (True, 0, True)],
)
def test_paged_buffers(whole: bool, axis_at: int, start: bool, vector: bool) -> None:
    shape = (20, 6) if axis_at == 0 else (6, 20)
    page = 20 if whole else 5
    x = np.arange(120, dtype=np.float32).reshape(shape)
    first = 7 if start else 0
    pages = -(-(20 + first) // page)
    device = CpuDevice()
    parts = [np.ascontiguousarray(part) for part in np.split(x, 20 // page, axis_at)]
    results = [np.full(parts[0].shape, -1, np.float32) for _ in range(pages)]
    order = np.random.default_rng(8).permutation(pages)
    addresses = {int(at): device.address(results[at]) for at in order}
    tables = {
        "x__pages": np.array([device.address(part) for part in parts], np.uint64),
        "y__pages": np.array([addresses[at] for at in range(pages)], np.uint64),
        "at": np.array([first], np.int64),
    }
    run(paged_graph(whole, axis_at, start, vector), tables, device=device)
    whole_y = np.concatenate(results, axis_at)
    expected = np.full(whole_y.shape, -1, np.float32)
    window = (slice(first, first + 20),) if axis_at == 0 else (slice(None), slice(first, first + 20))
    expected[window] = x
    np.testing.assert_array_equal(whole_y, expected)


def test_paged_starts_must_be_i64_scalars() -> None:
    body = [LOAD, WRITE]
    for spec in ((2,), ((1,), "i32"), ((2,), "i64")):
        graph = kernel_graph(
            tile({"i": 64}, body), {"x": (64,), "at": spec}, {"y": (64,)},
            hints={"cuda.paged_buffers": [["y", 0, 8, "at"]]},
        )  # fmt: skip
        with pytest.raises(CompileError, match="the paged start 'at' is no i64 scalar; it is the position"):
            compiled(graph)


def test_only_loads_and_stores_reach_paged_buffers() -> None:
    copy = CpAsyncCopy("m", (AT,), "x", (AT,))
    for stmts, hint, message in (
        (
            [Smem("m", (64,)), copy, LOAD, WRITE],
            ["x", 0, 8, None],
            "CpAsyncCopy takes the address of the paged buffer 'x'",
        ),
        ([LOAD, Write("y", (AT,), "a", atomic=True)], ["y", 0, 8, None], "the paged buffer 'y' would have to be zero"),
    ):
        graph = kernel_graph(
            tile({"i": 64}, stmts, 64), {"x": (64,)}, {"y": (64,)}, hints={"cuda.paged_buffers": [hint]}
        )
        with pytest.raises(CompileError, match=message):
            compiled(graph)
    whole = kernel_graph(
        tile({"i": 64}, [Smem("m", (64,)), copy, LOAD, WRITE], 64), {"x": (64,)}, {"y": (64,)},
        hints={"cuda.paged_buffers": [["x", 0, 64, None]]},
    )  # fmt: skip
    compiled(whole)


@pytest.mark.parametrize("runner", [run, pytest.param(run_emmy, marks=pytest.mark.needs("nvcc"))])
def test_indirect_inputs(runner: Any) -> None:
    device = CpuDevice()
    candidates = [np.full(64, 10.0 * at, np.float32) + np.arange(64, dtype=np.float32) for at in range(4)]
    body = [LOAD, Load("b", "z", (op("-", 63, AT),)), Assign("s", "add", ("a", "b")), Write("y", (AT,), "s")]
    graph = kernel_graph(
        tile({"i": 64}, body), {"x": (64,), "z": (64,)}, {"y": (64,)}, hints={"cuda.indirect_inputs": ["x", "q"]}
    )
    kernel = compiled(graph)
    assert kernel.launch is not None
    assert [(p.name, p.role, p.type) for p in kernel.launch.parameters[:3]] == [
        ("x__table", "table", "u64"), ("x__sel", "selector", "u64"), ("x__slot", "slot", "u32"),
    ]  # fmt: skip
    table = np.array([device.address(array) for array in candidates], np.uint64)
    for slot, chosen in enumerate((2, 0, 3)):
        arrays = {"x__table": table, "x__sel": np.array([2, 0, 3], np.int32), "x__slot": slot, "z": np.arange(64)}
        got = runner(graph, arrays, device=device)["y"]
        np.testing.assert_array_equal(got, 10 * chosen + np.full(64, 63))
