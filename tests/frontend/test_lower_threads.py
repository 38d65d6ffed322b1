"""Threads together: shuffles and scans, broadcasts, trees, barriers of every kind, copies in flight."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from kernel_ir import (
    Accum,
    Assign,
    Cond,
    CpAsyncCommit,
    CpAsyncCopy,
    CpAsyncWait,
    Init,
    Let,
    Load,
    Loop,
    Smem,
    Sync,
    TreeHalve,
    WarpBroadcast,
    WarpShuffle,
    Write,
    axis,
    dtype,
    lit,
    op,
    tile,
    var,
)
from lowering_lab import AT, DTYPES, LOAD, Array, compiled, kernel_graph, run, run_emmy
from tolerances import ROUNDOFF, of_terms

NVCC = pytest.mark.needs("nvcc")
F32, I32 = dtype("f32"), dtype("i32")
ADD = (Assign("s", "add", ("s", "o")),)
PAIR = (Assign("s", "maximum", ("s", "o")), Assign("t", "add", ("t", "u")))
#: The mean and the sum of squares of counted numbers (Welford), whose steps need temporaries and their order.
WELFORD = (
    Assign("total", "add", ("n", "n2")),
    Assign("d", "subtract", ("m2", "m")),
    Assign("part", "divide", ("n2", "total")),
    Assign("move", "multiply", ("d", "part")),
    Assign("dd", "multiply", ("d", "d")),
    Assign("nn", "multiply", ("n", "part")),
    Assign("more", "multiply", ("dd", "nn")),
    Assign("q", "add", ("q", "q2")),
    Assign("q", "add", ("q", "more")),
    Assign("m", "add", ("m", "move")),
    Assign("n", "copy", ("total",)),
)


def numbers(kind: str, count: int, most: int = 9) -> Array:
    """Whole numbers, of which sums are exact in any type."""
    return np.random.default_rng(3).integers(-most, most, count).astype(DTYPES[kind])


def shuffled(
    count: int, stmts: list[Any], x: Array, kind: str = "f32", runner: Any = run, state: str = "s", threads: int = 0
) -> Array:
    """What ``count`` threads of one or more CTAs hold after ``stmts``, having loaded ``s`` from ``x``."""
    body = [Load("s", "x", (AT,)), *stmts, Write("y", (AT,), state)]
    graph = kernel_graph(tile({"i": count}, body, threads or count), {"x": ((count,), kind)}, {"y": ((count,), kind)})
    return np.asarray(runner(graph, {"x": x})["y"])


def groups(x: Array, length: int) -> Array:
    return x.reshape(-1, length)


# ------------------------------------------------------------------------------------------------------- shuffles


@pytest.mark.parametrize("kind", ["f32", "f16", "f64", "i32", "i64", "u32", "i16"])
@pytest.mark.parametrize("length", [1, 2, 4, 8, 16, 32])
@pytest.mark.parametrize("prefix", [False, True])
def test_shuffles(length: int, kind: str, prefix: bool) -> None:
    x = numbers(kind, 64, 3)
    got = shuffled(64, [WarpShuffle(("s",), ("o",), ADD, length, dtype=dtype(kind), prefix=prefix)], x, kind)
    rows = groups(x, length)
    expected = rows.cumsum(1, dtype=x.dtype) if prefix else np.repeat(rows.sum(1, dtype=x.dtype), length)
    np.testing.assert_array_equal(got, expected.reshape(64))


@pytest.mark.parametrize(("count", "length"), [(8, 8), (8, 4), (4, 2), (16, 16), (48, 16), (40, 8), (100, 4), (96, 32)])
@pytest.mark.parametrize("prefix", [False, True])
def test_shuffles_in_partial_warps(count: int, length: int, prefix: bool) -> None:
    x = numbers("f32", count)
    got = shuffled(count, [WarpShuffle(("s",), ("o",), ADD, length, prefix=prefix)], x)
    rows = groups(x, length)
    np.testing.assert_array_equal(got, (rows.cumsum(1) if prefix else np.repeat(rows.sum(1), length)).reshape(count))


def test_shuffles_of_a_tile_that_does_not_fit() -> None:
    """80 cells in CTAs of 64: the last CTA has whole warps outside, and half a warp."""
    x = numbers("f32", 80)
    got = shuffled(80, [WarpShuffle(("s",), ("o",), ADD, 16)], x, threads=64)
    np.testing.assert_array_equal(got, np.repeat(groups(x, 16).sum(1), 16))


@pytest.mark.parametrize("length", [2, 8, 32])
def test_shuffles_of_several_states(length: int) -> None:
    x = numbers("f32", 64)
    second = Assign("t", "multiply", ("s", "s"))
    for state in ("s", "t"):
        stmts = [second, WarpShuffle(("s", "t"), ("o", "u"), PAIR, length)]
        got = shuffled(64, stmts, x, state=state)
        rows = groups(x, length)
        wanted = rows.max(1) if state == "s" else (rows * rows).sum(1)
        np.testing.assert_array_equal(got, np.repeat(wanted, length))


@pytest.mark.parametrize("runner", [run, pytest.param(run_emmy, marks=NVCC)])
@pytest.mark.parametrize("prefix", [False, True])
def test_a_merge_program_with_temporaries(runner: Any, prefix: bool) -> None:
    """Means and variances: temporaries, a state assigned twice, a state read after it was assigned."""
    x = np.random.default_rng(5).standard_normal(64).astype(np.float32)
    setup = [Assign("m", "copy", ("s",)), Init("n", 1.0, dtype=F32), Init("q", 0.0, dtype=F32)]
    stmts = [*setup, WarpShuffle(("m", "q", "n"), ("m2", "q2", "n2"), WELFORD, 16, prefix=prefix)]
    rows = groups(x.astype(np.float64), 16)
    counts = np.arange(1, 17) if prefix else np.full(16, 16)
    mean = np.stack([[row[:count].mean() for count in counts] for row in rows])
    square = np.stack([[((row[:count] - row[:count].mean()) ** 2).sum() for count in counts] for row in rows])
    for state, expected in (("m", mean), ("q", square), ("n", np.broadcast_to(counts, mean.shape))):
        got = shuffled(64, stmts, x, runner=runner, state=state)
        np.testing.assert_allclose(got, expected.reshape(64), rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("kind", ["f16", "i32", "bf16"])
def test_a_state_declared_in_another_type_than_the_merge_runs_in(kind: str) -> None:
    """The merge runs in f32; the state keeps the type that it was declared with."""
    x = np.random.default_rng(6).integers(-60, 60, 64)
    inputs = {"x": ((64,), kind)}
    body = [Load("s", "x", (AT,)), WarpShuffle(("s",), ("o",), ADD, 8), Assign("v", "copy", ("s",), dtype=F32)]
    graph = kernel_graph(tile({"i": 64}, [*body, Write("y", (AT,), "v")], 64), inputs, {"y": (64,)})
    arrays = {"x": (x.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16) if kind == "bf16" else x}
    got = run(graph, arrays)["y"]
    expected = np.repeat(groups(x, 8).sum(1), 8)
    # Three steps, of which each rounds a bf16; the others hold these integers.
    near = of_terms(groups(x, 8).T, ROUNDOFF["bf16"], 3) if kind == "bf16" else np.zeros(8)
    assert (np.abs(got - expected) <= np.repeat(near, 8)).all()


@pytest.mark.parametrize("kind", ["f32", "f16", "i32", "i64", "u8", "f64", "bool"])
@pytest.mark.parametrize("length", [1, 2, 8, 32])
def test_broadcasts(kind: str, length: int) -> None:
    x = numbers(kind, 64, 9) if kind not in ("bool", "u8") else np.arange(64).astype(DTYPES[kind])
    got = shuffled(64, [WarpBroadcast(("s",), length)], x, kind)
    np.testing.assert_array_equal(got, np.repeat(groups(x, length)[:, -1], length))


@NVCC
@pytest.mark.parametrize("prefix", [False, True])
def test_shuffles_are_those_of_emmys_cuda(prefix: bool) -> None:
    x = np.random.default_rng(7).standard_normal(48).astype(np.float32)
    stmts = [WarpShuffle(("s",), ("o",), ADD, 16, prefix=prefix), WarpBroadcast(("s",), 4)]
    np.testing.assert_array_equal(shuffled(48, stmts, x), shuffled(48, stmts, x, runner=run_emmy))


def test_a_shuffle_in_a_branch_that_a_warp_takes_together() -> None:
    x = numbers("f32", 128)
    inside = Cond(op("<", op("/", AT, 32), 2), (WarpShuffle(("s",), ("o",), ADD, 32),))
    got = shuffled(128, [inside], x)
    np.testing.assert_array_equal(got[:64], np.repeat(groups(x, 32).sum(1), 32)[:64])
    np.testing.assert_array_equal(got[64:], x[64:])


# ---------------------------------------------------------------------------------------------------------- trees


def reduced(
    length: int,
    *,
    threads: int = 0,
    states: int = 1,
    kind: str = "f32",
    slab: str = "",
    runner: Any = run,
    **fields: Any,
) -> tuple[Array, Array]:
    """``length`` rows folded by a tree over shared memory; every thread holds the result: what went in, what came out.

    State ``k`` of row ``r`` is ``x[r, k]``; the states are folded by +, max, min, and + again.
    """
    operations = ("add", "maximum", "minimum", "add")[:states]
    names, others = tuple(f"s{at}" for at in range(states)), tuple(f"o{at}" for at in range(states))
    slabs = tuple(f"m{at}" for at in range(states))
    threads = -(-length // 32) * 32
    x = numbers(kind, length * states, 3).reshape(length, states)
    c_name = slab or {"f32": "float", "f16": "__half", "i32": "int", "f64": "double"}[kind]
    body: list[Any] = [Load(name, "x", (op("%", AT, length), lit(at))) for at, name in enumerate(names)]
    body += [Smem(name, (length,), c_name) for name in slabs]
    filled = tuple(Write(name, (AT,), state) for name, state in zip(slabs, names))
    body += [Cond(op("<", AT, length), filled), fields.pop("sync", Sync())]
    program = tuple(Assign(name, operation, (name, other)) for name, operation, other in zip(names, operations, others))
    dtypes = {"dtype": dtype(fields.pop("merge", kind))}
    body.append(TreeHalve(slabs, names, others, program, length, fields.pop("tid", "i"), **dtypes, **fields))
    body += [Write("y", (AT, lit(at)), name) for at, name in enumerate(names)]
    graph = kernel_graph(
        tile({"i": threads}, body, threads), {"x": ((length, states), kind)}, {"y": ((threads, states), kind)}
    )
    return x, np.asarray(runner(graph, {"x": x})["y"])


FOLDS: tuple[Callable[..., Array], ...] = (np.sum, np.max, np.min, np.sum)


def expected(x: Array) -> Array:
    return np.array([fold(x[:, at].astype(np.float64)) for at, fold in zip(range(x.shape[1]), FOLDS)])


@pytest.mark.parametrize("length", [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024])
def test_trees_of_every_length(length: int) -> None:
    x, y = reduced(length)
    np.testing.assert_array_equal(y, np.broadcast_to(expected(x), y.shape))


@pytest.mark.parametrize("states", [1, 2, 3, 4])
@pytest.mark.parametrize("length", [8, 64])
def test_trees_of_several_states(states: int, length: int) -> None:
    x, y = reduced(length, states=states)
    np.testing.assert_array_equal(y, np.broadcast_to(expected(x), y.shape))


@pytest.mark.parametrize(
    ("kind", "slab", "merge"),
    [
        ("f16", "__half", "f16"),
        ("f16", "float", "f32"),
        ("i32", "int", "i32"),
        ("f64", "double", "f64"),
        ("f16", "__half", "f32"),
    ],
)
@pytest.mark.parametrize("length", [8, 64])
def test_trees_of_other_types(kind: str, slab: str, merge: str, length: int) -> None:
    """A carrier of halves may keep its declaration while the tree folds floats."""
    x, y = reduced(length, states=2, kind=kind, slab=slab, merge=merge)
    np.testing.assert_array_equal(y, np.broadcast_to(expected(x), y.shape))


@pytest.mark.parametrize(
    ("length", "states", "runner"),
    [
        *((length, states, run) for length in (1, 2, 4, 8, 16, 32) for states in (1, 3)),
        pytest.param(8, 3, run_emmy, marks=NVCC),
        pytest.param(32, 1, run_emmy, marks=NVCC),
    ],
)
def test_trees_over_warps(length: int, states: int, runner: Any) -> None:
    """One partial state a warp, left there by its first lane; warp 0 folds them by shuffles."""
    operations = ("add", "maximum", "minimum")[:states]
    names, others = tuple(f"s{at}" for at in range(states)), tuple(f"o{at}" for at in range(states))
    program = tuple(Assign(name, operation, (name, other)) for name, operation, other in zip(names, operations, others))
    slabs = tuple(f"m{at}" for at in range(states))
    threads = 32 * length
    body: list[Any] = [Load(name, "x", (lit(at), AT)) for at, name in enumerate(names)]
    body += [WarpShuffle(names, others, program, 32), *(Smem(name, (length,)) for name in slabs)]
    stores = tuple(Write(name, (var("warp"),), state) for name, state in zip(slabs, names))
    body += [Cond(op("==", var("lane"), 0), stores), Sync(), TreeHalve(slabs, names, others, program, length, "warp")]
    body += [Write("y", (lit(at), AT), name) for at, name in enumerate(names)]
    x = numbers("f32", threads * states).reshape(states, threads)
    graph = kernel_graph(tile({"i": threads}, body, threads), {"x": x.shape}, {"y": x.shape})
    y = runner(graph, {"x": x})["y"]
    np.testing.assert_array_equal(y, np.repeat(expected(x.T)[:, None], threads, 1))
    if runner is run and length > 1:
        assert compiled(graph).ptx.count("bar.sync") == 2


@pytest.mark.parametrize(("length", "scale"), [(8, 1), (8, 4), (8, 32), (64, 1), (64, 4), (32, 32)])
def test_trees_of_segments(length: int, scale: int) -> None:
    """Segments of ``scale`` slots, folded slot by slot: the columns of a slab."""
    threads = length * scale
    x = numbers("f32", threads).reshape(length, scale)
    cell = (var("r"), var("c"))
    slot = op("+", op("*", var("r"), scale), var("c"))
    body = [Load("s", "x", cell), Smem("m", (threads,)), Write("m", (slot,), "s"), Sync()]
    body += [TreeHalve(("m",), ("s",), ("o",), ADD, length, "r", inner=("c", scale)), Write("y", cell, "s")]
    graph = kernel_graph(tile({"r": length, "c": scale}, body, threads), {"x": x.shape}, {"y": x.shape})
    np.testing.assert_array_equal(run(graph, {"x": x})["y"], np.broadcast_to(x.sum(0), x.shape))


@NVCC
def test_trees_are_those_of_emmys_cuda() -> None:
    for fields in ({"length": 64, "states": 4}, {"length": 128, "barrier_id": 1, "barrier_count": 128}):
        _, ours = reduced(**fields)  # type: ignore[arg-type]
        _, theirs = reduced(**fields, runner=run_emmy)  # type: ignore[arg-type]
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("length", [64, 128])
def test_trees_with_a_numbered_barrier(length: int) -> None:
    x, y = reduced(length, barrier_id=3, barrier_count=length, sync=Sync(barrier_id=2, count=length))
    np.testing.assert_array_equal(y, np.broadcast_to(expected(x), y.shape))


def test_two_halves_of_a_cta_reduce_on_their_own() -> None:
    """Named barriers: each half of the warps folds its own slab in a branch of its own."""
    x = numbers("f32", 128)

    def half(number: int) -> tuple[Any, ...]:
        slab, first = f"m{number}", number * 64
        within = op("-", AT, first)
        return (
            Let(f"t{number}", within), Write(slab, (var(f"t{number}"),), "a"), Sync(barrier_id=number + 1, count=64),
            TreeHalve((slab,), ("a",), ("o",), (Assign("a", "add", ("a", "o")),), 64, f"t{number}",
                      barrier_id=number + 1, barrier_count=64),
        )  # fmt: skip

    body = [LOAD, Smem("m0", (64,)), Smem("m1", (64,)), Cond(op("<", op("/", AT, 64), 1), half(0), half(1))]
    graph = kernel_graph(tile({"i": 128}, [*body, Write("y", (AT,), "a")], 128), {"x": (128,)}, {"y": (128,)})
    np.testing.assert_array_equal(run(graph, {"x": x})["y"], np.repeat(groups(x, 64).sum(1), 64))


def test_a_tree_in_a_loop_that_all_threads_run() -> None:
    """The slab is used again: its writers wait for the readers of the broadcast."""
    x = numbers("f32", 5 * 64).reshape(5, 64)
    load = Load("s", "x", (var("k"), AT))
    body = (
        load,
        Write("m", (AT,), "s"),
        Sync(),
        TreeHalve(("m",), ("s",), ("o",), ADD, 64, "i"),
        Accum("t", "s"),
        Sync(),
    )
    stmts = [Smem("m", (64,)), Loop(axis("k", 5), body), Write("y", (AT,), "t")]
    graph = kernel_graph(tile({"i": 64}, stmts, 64), {"x": x.shape}, {"y": (64,)})
    np.testing.assert_array_equal(run(graph, {"x": x})["y"], np.full(64, x.sum()))


# ------------------------------------------------------------------------------------------------------- barriers


def test_every_kind_of_barrier() -> None:
    body = [LOAD, Smem("m", (64,)), Write("m", (AT,), "a"), Sync(), Load("b", "m", (op("-", 63, AT),)), Sync(warp=True)]
    body += [Sync(barrier_id=1, count=64), Write("m", (AT,), "b"), Sync(barrier_id=15, count=64)]
    body += [Load("c", "m", (op("-", 63, AT),)), Write("y", (AT,), "c")]
    graph = kernel_graph(tile({"i": 64}, body, 64), {"x": (64,)}, {"y": (64,)})
    np.testing.assert_array_equal(run(graph, {"x": np.arange(64)})["y"], np.arange(64))
    ptx = compiled(graph).ptx
    for text in ("bar.sync 0;", "bar.warp.sync -1;", "bar.sync 1, 64;", "bar.sync 15, 64;"):
        assert text in ptx


# ----------------------------------------------------------------------------------------------- copies in flight


@pytest.mark.parametrize("stages", [1, 2, 3, 4])
@pytest.mark.parametrize("unroll", [False, True])
def test_a_pipeline_of_copies(stages: int, unroll: bool) -> None:
    """Chunks of 64 numbers, ``stages`` in flight; the last prefetches copy the last chunk once more."""
    chunks = 9
    slot = op("*", op("%", var("k"), stages), 64)

    def copy(chunk: Any, place: Any) -> list[Any]:
        here = op("+", place, op("*", AT, 4))
        return [
            Cond(op("<", AT, 16), (CpAsyncCopy("m", (here,), "x", (chunk, op("*", AT, 4)), nbytes=16),)),
            CpAsyncCommit(),
        ]

    body: list[Any] = [Smem("m", (stages * 64,), align=16)]
    for stage in range(stages - 1):
        body += copy(lit(stage), lit(stage * 64))
    ahead = op("+", var("k"), stages - 1)
    clamped = op("-", ahead, op("*", op("/", ahead, chunks), op("-", ahead, chunks - 1)))
    step = [
        *copy(clamped, op("*", op("%", ahead, stages), 64)), CpAsyncWait(stages - 1), Sync(),
        Load("v", "m", (op("+", slot, op("-", 63, AT)),)), Accum("s", "v"), Sync(),
    ]  # fmt: skip
    body += [Loop(axis("k", chunks), tuple(step), unroll=unroll), CpAsyncWait(0), Write("y", (AT,), "s")]
    x = numbers("f32", chunks * 64).reshape(chunks, 64)
    graph = kernel_graph(tile({"i": 64}, body, 64), {"x": x.shape}, {"y": (64,)})
    np.testing.assert_array_equal(run(graph, {"x": x})["y"], x.sum(0)[::-1])
