"""The tile: its geometry, rasters, auxiliary threads, what stands around it; the launch; zeroing for another kernel."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from emmy.compiler.dim import Dim
from emmy.compiler.ir.expr import Builtin
from kernel_ir import (
    Accum,
    Assign,
    Cond,
    Init,
    Let,
    Load,
    Loop,
    Smem,
    StridedLoop,
    Sync,
    Write,
    ZeroPrologue,
    axis,
    dtype,
    lit,
    op,
    tile,
    var,
)
from lowering_lab import AT, LOAD, WRITE, Array, compiled, kernel_graph, launch, run, run_emmy

from ptxc.launch import evaluate
from ptxc.sim.device import CpuDevice

I32, F32 = dtype("i32"), dtype("f32")


def visited(extents: dict[str, int], threads: int | None, symbolic: str = "", **fields: Any) -> tuple[Array, Array]:
    """For each cell, how often it was visited, and the coordinates that it was told, as one number."""
    shape = tuple(extents.values())
    index = tuple(var(name) for name in extents)
    number: Any = lit(0)
    for name, size in extents.items():
        number = op("+", op("*", number, size), var(name))
    body = [
        Init("one", 1.0, dtype=F32),
        Let("cell", number, dtype=I32),
        Write("seen", index or (lit(0),), "one", atomic=True),
        Write("told", index or (lit(0),), "cell"),
    ]
    axes: dict[str, Any] = {name: Dim(f"size_{name}") if name in symbolic else size for name, size in extents.items()}
    inputs = {f"z_{name}": (Dim(f"size_{name}"),) for name in extents if name in symbolic}
    graph = kernel_graph(
        tile(axes, body, threads, **fields), inputs, {"seen": shape or (1,), "told": (shape or (1,), "i32")}
    )
    got = run(graph, {f"z_{name}": np.zeros(extents[name]) for name in extents if name in symbolic})
    return got["seen"], got["told"]


GEOMETRIES: list[tuple[dict[str, int], int | None]] = [
    ({}, None), ({"i": 1}, None), ({"i": 256}, None), ({"i": 257}, None), ({"i": 1000}, None), ({"i": 64}, 64),
    ({"i": 100}, 32), ({"i": 3, "j": 5}, None), ({"i": 7, "j": 100}, 64), ({"i": 4, "j": 64}, 64),
    ({"i": 5, "j": 1, "k": 3}, None), ({"a": 2, "b": 3, "c": 5, "d": 7}, 48),
    ({"a": 3, "b": 2, "c": 2, "d": 2, "e": 9}, 1),
    ({"i": 33, "j": 33}, 1024), ({"i": 6, "j": 4}, 96), ({"i": 2, "j": 1024}, 1024), ({"i": 1, "j": 1}, 7),
]  # fmt: skip


@pytest.mark.parametrize(("extents", "threads"), GEOMETRIES)
def test_every_cell_is_visited_once(extents: dict[str, int], threads: int | None) -> None:
    seen, told = visited(extents, threads)
    np.testing.assert_array_equal(seen, np.ones_like(seen))
    np.testing.assert_array_equal(told.ravel(), np.arange(told.size))


@pytest.mark.parametrize("symbolic", ["i", "j", "ij", "k", "ijk"])
@pytest.mark.parametrize("threads", [None, 32, 48])
def test_every_cell_of_a_symbolic_tile_is_visited_once(symbolic: str, threads: int | None) -> None:
    seen, told = visited({"i": 5, "j": 7, "k": 13}, threads, symbolic)
    np.testing.assert_array_equal(seen, np.ones_like(seen))
    np.testing.assert_array_equal(told.ravel(), np.arange(told.size))


@pytest.mark.parametrize("symbolic", ["", "m", "mnt"])
@pytest.mark.parametrize("orient", ["m", "n"])
@pytest.mark.parametrize("group", [1, 2, 3, 8])
@pytest.mark.parametrize("shape", [(8, 6), (7, 5), (1, 9), (9, 1)])
def test_rasters_visit_every_cell_once_and_in_groups(
    shape: tuple[int, int], group: int, orient: str, symbolic: str
) -> None:
    """The order of the CTAs: ``group`` tiles of one axis before the other axis advances; a last group may be ragged."""
    m, n = shape
    extents = {"m": m, "n": n, "t": 32}
    fields = {"raster_axes": ("m", "n"), "raster_group": group, "raster_orient": orient}
    seen, told = visited(extents, 32, symbolic, **fields)
    np.testing.assert_array_equal(seen, np.ones_like(seen))
    np.testing.assert_array_equal(told.ravel(), np.arange(told.size))
    assert order(extents, symbolic, fields, run) == expected_order(m, n, group, orient)


def order(extents: dict[str, int], symbolic: str, fields: dict[str, Any], runner: Any) -> list[tuple[int, int]]:
    """The cell (m, n) of every CTA."""
    axes: dict[str, Any] = {name: Dim(f"size_{name}") if name in symbolic else size for name, size in extents.items()}
    cta = op("+", Builtin("block_idx.x"), 0)
    body = [Let("a", var("m"), dtype=I32), Let("b", var("n"), dtype=I32)]
    body += [Cond(op("==", var("t"), 0), (Write("o", (cta, lit(0)), "a"), Write("o", (cta, lit(1)), "b")))]
    inputs = {f"z_{name}": (Dim(f"size_{name}"),) for name in extents if name in symbolic}
    ctas = extents["m"] * extents["n"]
    graph = kernel_graph(tile(axes, body, 32, **fields), inputs, {"o": ((ctas, 2), "i32")})
    got = runner(graph, {f"z_{name}": np.zeros(extents[name]) for name in extents if name in symbolic})["o"]
    return [(int(a), int(b)) for a, b in got]


def expected_order(m: int, n: int, group: int, orient: str) -> list[tuple[int, int]]:
    """The standard swizzle of thread blocks."""
    grouped, other = (m, n) if orient == "m" else (n, m)
    if group == 1 or grouped == 1:
        return [(a, b) for a in range(m) for b in range(n)]
    cells = []
    for sub in range(m * n):
        stripe = sub // (group * other)
        size = min(group, grouped - stripe * group)
        a, b = stripe * group + sub % (group * other) % size, sub % (group * other) // size
        cells.append((a, b) if orient == "m" else (b, a))
    return cells


@pytest.mark.needs("nvcc")
@pytest.mark.parametrize(("group", "orient", "symbolic"), [(3, "m", ""), (4, "n", "mn"), (8, "n", "")])
def test_rasters_are_those_of_emmys_cuda(group: int, orient: str, symbolic: str) -> None:
    extents = {"m": 7, "n": 5, "t": 32}
    fields = {"raster_axes": ("m", "n"), "raster_group": group, "raster_orient": orient}
    assert order(extents, symbolic, fields, run) == order(extents, symbolic, fields, run_emmy)


@pytest.mark.parametrize("axes", [("m", "n"), ("n", "m"), ("m", "q"), ("m", "t")])
def test_rasters_need_neighbouring_axes(axes: tuple[str, str]) -> None:
    fields = {"raster_axes": axes, "raster_group": 4, "raster_orient": "m"}
    got = order({"m": 8, "n": 6, "t": 32}, "", fields, run)
    assert got == expected_order(8, 6, 4 if axes == ("m", "n") else 1, "m")


def test_a_raster_of_axes_that_are_not_the_outermost() -> None:
    extents = {"b": 3, "m": 5, "n": 4, "s": 2, "t": 16}
    fields = {"raster_axes": ("m", "n"), "raster_group": 2, "raster_orient": "m"}
    for symbolic in ("", "mn", "b", "s"):
        seen, told = visited(extents, 32, symbolic, **fields)
        np.testing.assert_array_equal(seen, np.ones_like(seen))
        np.testing.assert_array_equal(told.ravel(), np.arange(told.size))


# ---------------------------------------------------------------------------------------------- auxiliary threads


@pytest.mark.parametrize("rows", [4, 5])
def test_auxiliary_threads_take_the_first_cells_and_other_work(rows: int) -> None:
    """32 producer threads beside 64 of cells: they fill a slab for the others."""
    tid = Builtin("thread_idx.x")
    fill = StridedLoop(
        axis("e", 64), op("-", tid, 64), lit(32), (Load("v", "x", (var("r"), var("e"))), Write("m", (var("e"),), "v"))
    )
    cells = (Load("u", "m", (op("-", 63, var("c")),)), Write("y", (var("r"), var("c")), "u"))
    body = [Smem("m", (64,)), Cond(op(">=", tid, 64), (fill,)), Sync(), Cond(op("<", tid, 64), cells)]
    graph = kernel_graph(tile({"r": rows, "c": 64}, body, 64, aux_threads=32), {"x": (rows, 64)}, {"y": (rows, 64)})
    kernel = compiled(graph)
    assert kernel.launch is not None
    assert (kernel.launch.grid[0], kernel.launch.block[0]) == (rows, 96)
    x = np.arange(rows * 64, dtype=np.float32).reshape(rows, 64)
    np.testing.assert_array_equal(run(graph, {"x": x})["y"], x[:, ::-1])


@pytest.mark.parametrize("runner", [run, pytest.param(run_emmy, marks=pytest.mark.needs("nvcc"))])
def test_auxiliary_threads_of_a_ragged_and_of_a_symbolic_tile(runner: Any) -> None:
    tid = Builtin("thread_idx.x")
    index = op("+", op("*", Builtin("block_idx.x"), 96), tid)
    body = [Let("n", op("+", op("*", var("r"), 7), var("c")), dtype=I32), Write("o", (index,), "n")]
    for rows in (9, Dim("n")):
        inputs = {"z": (Dim("n"),)} if isinstance(rows, Dim) else {}
        graph = kernel_graph(tile({"r": rows, "c": 7}, body, 64, aux_threads=32), inputs, {"o": ((96,), "i32")})
        got = runner(graph, {"z": np.zeros(9)} if inputs else {})["o"]
        np.testing.assert_array_equal(got[:63], np.arange(63))
        np.testing.assert_array_equal(got[63:], [77, *range(32)])


# ------------------------------------------------------------------------------------------------ around the tile


def test_statements_before_and_after_the_tile() -> None:
    """What stands around the tile runs in every thread; names of before are known in the tile and after it."""
    index = op("+", op("*", Builtin("block_idx.x"), 64), Builtin("thread_idx.x"))
    before = [
        Init("s", 5.0, dtype=F32),
        Load("a", "x", (op("%", index, 100),)),
        Accum("s", "a"),
        Let("k", op("*", index, 2)),
    ]
    inside = tile({"i": 100}, [Accum("s", "a"), Write("y", (AT,), "s")], 64)
    after = [Let("q", op("/", var("k"), 2), dtype=F32), Accum("s", "q"), Write("z", (index,), "s")]
    graph = kernel_graph((*before, inside, *after), {"x": (100,)}, {"y": (100,), "z": (128,)})
    x = np.arange(100, dtype=np.float32) / 2
    got = run(graph, {"x": x})
    cells = np.arange(128)
    value = x[cells % 100]
    np.testing.assert_array_equal(got["y"], 5 + 2 * x)
    np.testing.assert_array_equal(got["z"], 5 + value + np.where(cells < 100, value, 0) + cells)


def test_a_barrier_after_a_tile_that_does_not_fit() -> None:
    """Threads outside the tile wait with the others, and read what those wrote."""
    tid = Builtin("thread_idx.x")
    inside = tile({"i": 40}, [LOAD, Write("m", (AT,), "a")], 64)
    body = (Smem("m", (64,)), Init("none", -1.0, dtype=F32), Write("m", (tid,), "none"), Sync(), inside, Sync(),
            Load("b", "m", (op("-", 63, tid),)), Write("y", (tid,), "b"))  # fmt: skip
    got = run(kernel_graph(body, {"x": (64,)}, {"y": (64,)}), {"x": np.arange(64)})["y"]
    np.testing.assert_array_equal(got, np.where(np.arange(64) < 40, np.arange(64), -1)[::-1])


def test_barriers_in_a_tile_that_does_not_fit() -> None:
    """The last CTA has threads outside the tile: they must reach the barriers, and write nothing."""
    body = [Smem("m", (64,)), Load("a", "x", (AT,)), Write("m", (op("%", AT, 64),), "a"), Sync()]
    total = Loop(axis("k", 20), (Load("b", "m", (op("%", op("+", AT, var("k")), 20),)), Accum("s", "b")))
    graph = kernel_graph(tile({"i": 84}, [*body, total, Write("y", (AT,), "s")], 64), {"x": (84,)}, {"y": (84,)})
    x = np.arange(84, dtype=np.float32)
    got = run(graph, {"x": x})["y"]
    np.testing.assert_array_equal(got, [x[:20].sum()] * 64 + [x[64:].sum()] * 20)


# ----------------------------------------------------------------------------------------------------- the launch


def test_the_launch_description_of_a_symbolic_kernel() -> None:
    rows, half = Dim("n"), Dim(op("//", var("m"), 2))
    loads = [
        Load("a", "x", (var("r"), var("c"))),
        Load("b", "w", (op("%", var("c"), var("m")),)),
        Load("e", "eps", (lit(0),)),
    ]
    stmts = [
        *loads,
        Assign("s", "add", ("a", "b")),
        Assign("t", "add", ("s", "e")),
        Write("y", (var("r"), var("c")), "t"),
    ]
    inputs = {"x": (rows, 24), "w": (half,), "eps": (1,), "v": ((Dim("m"), 3), "f16")}
    body = tile({"r": rows, "c": 24}, stmts, 48)
    graph = kernel_graph(body, inputs, {"y": (rows, 24)}, constants={"eps": 0.5})
    kernel = compiled(graph)
    launched = kernel.launch
    assert launched is not None
    assert launched.block == (48, 1, 1)
    assert [evaluate(launched.grid[0], {"n": n, "m": 2}) for n in (1, 2, 5)] == [1, 1, 3]
    assert [(p.name, p.role, p.type, p.dtype, p.shape, p.value) for p in launched.parameters] == [
        ("x", "input", "u64", "f32", ("n", 24), None),
        ("w", "input", "u64", "f32", (launched.parameters[1].shape[0],), None),
        ("eps", "constant", "u64", "f32", (1,), 0.5),
        ("v", "input", "u64", "f16", ("m", 3), None),
        ("y", "output", "u64", "f32", ("n", 24), None),
        ("n", "runtime", "u32", "", (), None),
        ("m", "runtime", "u32", "", (), None),
    ]
    assert evaluate(launched.parameters[1].shape[0], {"m": 48}) == 24
    assert [(item.name, item.sizes) for item in launched.runtime] == [("n", (("x", 0), ("y", 0))), ("m", (("v", 0),))]
    x = np.arange(120, dtype=np.float32).reshape(5, 24)
    got = run(graph, {"x": x, "w": np.arange(24), "v": np.zeros((48, 3))})["y"]
    np.testing.assert_array_equal(got, x + np.arange(24) + 0.5)


def test_a_serial_axis_is_a_number_of_the_launch() -> None:
    body = [LOAD, Load("b", "y", (AT,)), Let("q", var("step"), dtype=F32), Assign("c", "multiply", ("a", "q"))]
    body += [Assign("d", "add", ("b", "c")), Write("y", (AT,), "d")]
    graph = kernel_graph(tile({"i": 64}, body), {"x": (64,)}, {"y": (64,)}, serial=(axis("step", 4),))
    kernel = compiled(graph, fma=False)
    assert kernel.launch is not None
    assert [(item.name, item.serial) for item in kernel.launch.runtime] == [("step", 4)]
    y = np.zeros(64, np.float32)
    for step in range(4):
        launch(kernel.ptx, kernel.name, kernel.launch, {"x": np.arange(64), "y": y, "step": step})
    np.testing.assert_array_equal(y, np.arange(64) * 6)


@pytest.mark.parametrize("words", [1, 63, 64, 65, 300, 1000])
@pytest.mark.parametrize("threads", [None, 32])
def test_zeroing_the_accumulator_of_another_kernel(words: int, threads: int | None) -> None:
    graph = kernel_graph(
        (ZeroPrologue("acc", words), tile({"i": 64}, [LOAD, WRITE], threads)), {"x": (64,)}, {"y": (64,)}
    )
    kernel = compiled(graph)
    assert kernel.launch is not None
    assert [(p.name, p.role) for p in kernel.launch.parameters] == [("x", "input"), ("y", "output"), ("acc", "zero")]
    acc = np.full(words + 7, 3.0, np.float32)
    y = launch(kernel.ptx, kernel.name, kernel.launch, {"x": np.arange(64), "acc": acc})["y"]
    np.testing.assert_array_equal(acc, [0.0] * words + [3.0] * 7)
    np.testing.assert_array_equal(y, np.arange(64))


def test_delegated_accumulators_need_no_zeros_of_the_launch() -> None:
    body = tile({"i": 64}, [LOAD, Write("y", (op("%", AT, 4),), "a", atomic=True)])
    for delegated, zero in (((), ("y",)), (("y",), ())):
        kernel = compiled(kernel_graph(body, {"x": (64,)}, {"y": (4,)}, zero_delegated=delegated))
        assert kernel.launch is not None
        assert kernel.launch.zero == zero


def test_atomic_additions_to_shared_memory_ask_nothing_of_the_launch() -> None:
    body = [
        LOAD,
        Smem("m", (4,)),
        Init("none", 0.0, dtype=F32),
        Cond(op("<", AT, 4), (Write("m", (AT,), "none"),)),
        Sync(),
    ]
    body += [Write("m", (op("%", AT, 4),), "a", atomic=True), Sync()]
    body += [Load("b", "m", (op("%", AT, 4),)), Write("y", (AT,), "b")]
    graph = kernel_graph(tile({"i": 64}, body, 64), {"x": (64,)}, {"y": (64,)})
    kernel = compiled(graph)
    assert kernel.launch is not None
    assert kernel.launch.zero == ()
    x = np.arange(64, dtype=np.float32)
    np.testing.assert_array_equal(run(graph, {"x": x})["y"], np.tile(x.reshape(16, 4).sum(0), 16))


def test_grids_of_more_cells_than_an_int_counts() -> None:
    """Two CTAs of a grid of 2**33 cells, the last one among them."""
    rows = 2**23
    body = [Let("n", op("%", var("r"), 1000), dtype=I32), Write("y", (op("%", var("r"), 2), var("c")), "n")]
    kernel = compiled(kernel_graph(tile({"r": rows, "c": 1024}, body, 1024), {}, {"y": ((2, 1024), "i32")}))
    assert kernel.launch is not None
    assert math.prod(int(extent) for extent in kernel.launch.grid) == rows
    y = np.full((2, 1024), -1, np.int32)
    module = CpuDevice().load(kernel.ptx)
    module.launch("k", [rows], kernel.launch.block, [y], ctas=[(rows - 1,), (rows - 2,)])
    np.testing.assert_array_equal(y, np.repeat([[(rows - 2) % 1000], [(rows - 1) % 1000]], 1024, 1))
