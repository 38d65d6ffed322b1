"""The limits of what is compiled: sizes, depths, odd names, odd shapes, hints; at them kernels work or are refused."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from emmy.compiler.graph import Graph
from emmy.compiler.ir import stmt as emmy_stmt
from emmy.compiler.ir.expr import Builtin, CastExpr, TernaryExpr
from kernel_ir import (
    Accum,
    Assign,
    Cond,
    CpAsyncCopy,
    CpAsyncWait,
    Init,
    Let,
    Load,
    Loop,
    Select,
    SelectBranch,
    Smem,
    StridedLoop,
    Sync,
    TreeHalve,
    Write,
    axis,
    dtype,
    lit,
    op,
    tile,
    var,
)
from lowering_lab import AT, LOAD, WRITE, compiled, kernel_graph, pointwise, refused, run

import ptxc
from ptxc.errors import DivergenceError, TargetError, UnsupportedError

F32 = dtype("f32")
SEEDED = Init("s", 0.0, dtype=F32)


# ------------------------------------------------------------------------------------------------------- limits


@pytest.mark.parametrize(
    ("target", "limit"), [("sm_75", 64), ("sm_80", 163), ("sm_86", 99), ("sm_89", 99), ("sm_90", 227), ("sm_120", 99)]
)
def test_shared_memory_beyond_a_target_is_refused(target: str, limit: int) -> None:
    def kernel(size: int) -> Graph:
        return pointwise(Smem("m", (size,)), Write("m", (AT,), "a"))

    assert compiled(kernel(limit * 256), target).launch.dynamic_shared == limit * 1024  # type: ignore[union-attr]
    error = refused(lambda: kernel(limit * 256 + 1), target)
    assert type(error) is TargetError
    assert (
        error.what
        == f"the kernel uses {limit * 1024 + 4} bytes of shared memory, {target} has {limit * 1024} for a CTA"
    )


def test_targets_without_an_instruction_are_refused() -> None:
    error = refused(lambda: pointwise(Smem("m", (64,)), CpAsyncCopy("m", (AT,), "x", (AT,))), "sm_75")
    assert type(error) is TargetError
    assert "sm_75 has no cp.async.ca.shared.global, which sm_80 brought" in error.what
    assert "cp.async[4B] m[i] <- x[i]" in error.statement


def test_statements_of_carried_states_are_not_supported_yet() -> None:
    for stmt in (emmy_stmt.Carry("s", "a", (AT,), 0.0), emmy_stmt.Pre("v", "s", (AT,))):
        error = refused(lambda stmt=stmt: pointwise(stmt))  # type: ignore[misc]
        assert type(error) is UnsupportedError
        assert error.what == f"{type(stmt).__name__} is not supported yet"
        assert error.statement.startswith("body[0].body[1] ")
        assert error.hint == "see `ptxc ops`"


# --------------------------------------------------------------------------------------------- legal, but unusual


def test_names_of_ptx_are_names() -> None:
    for name in ("add", "tid", "ret", "ld", "_smem_pool", "b32", "reg", "param", "addr", "entry", "base", "int"):
        body = tile({"i": 64}, [Load("a", name, (AT,)), Assign("exp", "add", ("a", "a")), Write("y", (AT,), "exp")])
        got = run(kernel_graph(body, {name: (64,)}, {"y": (64,)}), {name: np.arange(64)})
        np.testing.assert_array_equal(got["y"], np.arange(64) * 2)


def test_shared_arrays_and_registers_may_have_the_same_names() -> None:
    for name in ("entry", "addr", "i", "a", "t", "loop", "tid"):
        body = [LOAD, Smem(name, (64,)), Write(name, (AT,), "a"), Sync(), Load("b", name, (op("-", 63, AT),))]
        graph = kernel_graph(tile({"i": 64}, [*body, Write("y", (AT,), "b")], 64), {"x": (64,)}, {"y": (64,)})
        np.testing.assert_array_equal(run(graph, {"x": np.arange(64)})["y"], np.arange(64)[::-1])


def test_empty_bodies() -> None:
    for stmts in ([], [Loop(axis("k", 8), ())], [Cond(op("<", AT, 3), ())], [Cond(op("<", AT, 3), (), ())]):
        body = tile({"i": 64}, stmts)
        (kernel,) = ptxc.compile(kernel_graph(body, {"x": (64,)}, {"y": (64,)}), verify_each=True)
        assert "ld.global" not in kernel.ptx


def test_an_output_that_is_never_written() -> None:
    graph = kernel_graph(tile({"i": 64}, [LOAD, WRITE]), {"x": (64,)}, {"y": (64,), "z": (64,)})
    got = run(graph, {"x": np.arange(64)})
    np.testing.assert_array_equal(got["y"], np.arange(64))
    assert np.isnan(got["z"]).all()


def test_an_input_that_is_never_read() -> None:
    graph = kernel_graph(tile({"i": 64}, [LOAD, WRITE]), {"w": (3,), "x": (64,)}, {"y": (64,)})
    got = run(graph, {"x": np.arange(64), "w": np.zeros(3)})
    np.testing.assert_array_equal(got["y"], np.arange(64))


def test_copies_need_not_be_awaited_together() -> None:
    compiled(pointwise(Cond(op("<", AT, 7), (CpAsyncWait(0),))))


# --------------------------------------------------------------------------------------------------- deep and long


@contextmanager
def room() -> Iterator[None]:
    """Room for Emmy's constructors, which walk expressions recursively."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(30_000)
    try:
        yield
    finally:
        sys.setrecursionlimit(limit)


def test_expressions_of_1900_levels() -> None:
    sum_: Any = AT
    mixed: Any = AT
    for level in range(1900):
        sum_ = op("+", sum_, AT)
        kind = ("+", "*", "%", "ternary")[level % 4]
        mixed = TernaryExpr(op("<", mixed, 500), mixed, lit(7)) if kind == "ternary" else op(kind, mixed, 3 + level % 7)
    with room():
        stmts = [Let("n", sum_, dtype=dtype("i32")), Write("y", (AT,), "n")]
        graphs = [kernel_graph(tile({"i": 64}, stmts), {"x": (64,)}, {"y": (64,)})]
        graphs.append(pointwise(Load("b", "x", (op("%", mixed, 64),))))
    limit = sys.getrecursionlimit()
    np.testing.assert_array_equal(run(graphs[0], {"x": np.arange(64)})["y"], np.arange(64) * 1901)
    compiled(graphs[1], verify_each=False)
    assert sys.getrecursionlimit() == limit


def test_loops_of_300_levels() -> None:
    body: Iterable[Any] = (Accum("s", "a"),)
    for level in range(300):
        body = (Loop(axis(f"k{level}", 1 if level % 30 else 2), body, seed=False),)
    graph = kernel_graph(tile({"i": 64}, [LOAD, SEEDED, *body, Write("y", (AT,), "s")]), {"x": (64,)}, {"y": (64,)})
    np.testing.assert_array_equal(run(graph, {"x": np.arange(64)})["y"], np.arange(64) * 2.0**10)


def test_branches_of_300_levels() -> None:
    body: Iterable[Any] = (WRITE,)
    for level in range(300):
        body = (Cond(op("<", AT, 63 - level % 50), body, (LOAD,)),)
    graph = kernel_graph(tile({"i": 64}, [LOAD, *body]), {"x": (64,)}, {"y": (64,)})
    got = run(graph, {"x": np.arange(64)}, verify_each=False)["y"]
    np.testing.assert_array_equal(got[:14], np.arange(14))
    assert np.isnan(got[14:]).all()


def test_loops_of_6000_levels_are_refused() -> None:
    body: Iterable[Any] = (Accum("s", "a"),)
    for level in range(6000):
        body = (Loop(axis(f"k{level}", 2), body, seed=False),)
    with room():
        graph = kernel_graph(tile({"i": 64}, [LOAD, SEEDED, *body, Write("y", (AT,), "s")]), {"x": (64,)}, {"y": (64,)})
    error = refused(lambda: graph)
    assert "the kernel nests too deeply" in str(error)


def test_20_000_statements() -> None:
    stmts = [Assign(f"v{at + 1}", "add", (f"v{at}", "a")) for at in range(20_000)]
    body = tile({"i": 64}, [LOAD, Load("v0", "x", (AT,)), *stmts, Write("y", (AT,), "v20000")])
    graph = kernel_graph(body, {"x": (64,)}, {"y": (64,)})
    (kernel,) = ptxc.compile(graph)
    assert kernel.ptx.count("add") >= 20_000


@pytest.mark.parametrize(
    ("hints", "message"),
    [
        ({"cuda.indirect_inputs": 5}, "the hint cuda.indirect_inputs is 5; it is a list"),
        ({"cuda.indirect_inputs": "x"}, "the hint cuda.indirect_inputs is 'x'"),
        ({"cuda.paged_buffers": 5}, "the hint cuda.paged_buffers is 5; it is a list"),
        ({"cuda.paged_buffers": [5]}, "the hint cuda.paged_buffers holds 5; an entry is"),
        ({"cuda.paged_buffers": [["x", 0, 4]]}, "the hint cuda.paged_buffers holds"),
        ({"cuda.paged_buffers": [["x", "0", 4, None]]}, "the hint cuda.paged_buffers holds"),
        ({"cuda.paged_buffers": [["x", 0, 4, 5]]}, "the hint cuda.paged_buffers holds"),
        ({"cuda.paged_buffers": [["x", 0, 0, None]]}, "pages axis 0 of 'x' by 0; x has 1 axes"),
        ({"cuda.paged_buffers": [["x", 1, 4, None]]}, "pages axis 1 of 'x' by 4"),
        ({"cuda.paged_buffers": [["x", -1, 4, None]]}, "pages axis -1 of 'x' by 4"),
        ({"cuda.paged_buffers": [["x", 0, 4, "x"]]}, "start"),
        ({"cuda.paged_buffers": [["x", 0, 4, "9"]]}, "a parameter cannot be called '9'"),
        ({"cuda.paged_buffers": [["x", 0, 4, None]], "cuda.indirect_inputs": ["x"]}, "both paged and indirect"),
    ],
)
def test_malformed_hints_are_refused(hints: dict[str, Any], message: str) -> None:
    error = refused(lambda: pointwise(hints=hints))
    assert message in str(error)


def test_hints_about_other_buffers_are_not_this_kernels() -> None:
    graph = pointwise(hints={"cuda.indirect_inputs": ["q"], "cuda.paged_buffers": [["q", 7, 4, None]], "other": 3})
    np.testing.assert_array_equal(run(graph, {"x": np.arange(64)})["y"], np.arange(64))


def test_a_graph_without_the_input_of_its_kernel_is_refused() -> None:
    graph = pointwise()
    graph.nodes["y"].inputs = ["x", "z"]
    assert "no node of the graph writes the input 'z'" in str(refused(lambda: graph))


# ------------------------------------------------------------------------------------------- divergent barriers

TREE = TreeHalve(("m",), ("s",), ("o",), (Assign("s", "add", ("s", "o")),), 64, "i")
BARRIER = (Sync(),)
#: A barrier in places that only some of its threads reach.
DIVERGENT: dict[str, Callable[[], Graph]] = {
    "in a branch of some threads": lambda: pointwise(Cond(op("<", AT, 7), BARRIER)),
    "in the other branch": lambda: pointwise(Cond(op("<", AT, 7), (LOAD,), BARRIER)),
    "in a branch on a value": lambda: pointwise(Cond(op("<", var("a"), 0.5), BARRIER)),
    "in a branch on a value made from one": lambda: pointwise(
        Assign("b", "exp", ("a",)), Let("c", op(">", var("b"), 0.5)), Cond(var("c"), BARRIER)
    ),
    "in a branch on the lane": lambda: pointwise(Cond(op("==", var("lane"), 0), BARRIER)),
    "in a branch on the warp": lambda: pointwise(Cond(op("==", var("warp"), 0), BARRIER)),
    "in a branch in a uniform one": lambda: pointwise(
        Cond(op("<", Builtin("block_idx.x"), 1), (Cond(op("<", AT, 7), BARRIER),))
    ),
    "in a loop as long as the thread's number": lambda: pointwise(StridedLoop(axis("k", 64), AT, lit(1), BARRIER)),
    "in a loop to the thread's number": lambda: pointwise(StridedLoop(axis("k", 64), lit(0), lit(1), BARRIER, end=AT)),
    "in a loop with steps of the thread's number": lambda: pointwise(
        StridedLoop(axis("k", 64), lit(0), op("+", AT, 1), BARRIER)
    ),
    "in a loop as long as a value": lambda: pointwise(
        Let("n", CastExpr("int", var("a"))), StridedLoop(axis("k", 64), lit(0), lit(1), BARRIER, end=var("n"))
    ),
    "in a branch on an accumulator": lambda: pointwise(
        Loop(axis("k", 40), (Accum("s", "a"),)), Cond(op(">", var("s"), 9.0), BARRIER)
    ),
    "in a branch on what a branch assigned": lambda: pointwise(
        Init("s", 0.0, dtype=F32),
        Init("one", 1.0, dtype=F32),
        Cond(op("<", AT, 7), (Accum("s", "one"),)),
        Cond(op(">", var("s"), 0.5), BARRIER),
    ),
    "in a branch on a selection": lambda: pointwise(
        Init("p", 0.0, dtype=F32),
        Init("q", 1.0, dtype=F32),
        Select("s", (SelectBranch("p", op("<", AT, 7)), SelectBranch("q", op("<", AT, 9)))),
        Cond(op(">", var("s"), 0.5), BARRIER),
    ),
    "in a branch on an element of shared memory": lambda: pointwise(
        Smem("m", (64,)), Write("m", (AT,), "a"), Sync(), Load("b", "m", (AT,)), Cond(op(">", var("b"), 0.5), BARRIER)
    ),
    "in a tree in a branch of some threads": lambda: pointwise(
        SEEDED, Smem("m", (64,)), Write("m", (AT,), "a"), Sync(), Cond(op("<", AT, 40), (TREE,))
    ),
    "of a warp, in a branch of some lanes": lambda: pointwise(Cond(op("<", AT, 7), (Sync(warp=True),))),
    "of half of the warps, in a branch of some lanes": lambda: pointwise(
        Cond(op("<", AT, 7), (Sync(barrier_id=1, count=32),))
    ),
}


@pytest.mark.parametrize("name", DIVERGENT)
def test_divergent_barriers_are_refused(name: str) -> None:
    error = refused(DIVERGENT[name])
    assert type(error) is DivergenceError, error
    assert "body[0].body[" in error.statement
    assert error.hint
