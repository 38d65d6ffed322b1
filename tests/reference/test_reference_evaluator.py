"""The direct evaluation of Kernel IR against NumPy: every statement, masks, scopes, batches, faults."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from emmy.compiler.ir import stmt as _stmt
from kernel_ir import (
    Accum,
    Assign,
    Cond,
    CpAsyncCopy,
    Init,
    KernelOp,
    Let,
    Load,
    Loop,
    Select,
    SelectBranch,
    Smem,
    StridedLoop,
    Sync,
    TreeHalve,
    WarpBroadcast,
    WarpShuffle,
    Write,
    ZeroPrologue,
    axis,
    dtype,
    lit,
    op,
    tile,
    var,
)
from reference_lab import Node, evaluated, floats, graph_of, output, prepared

from ptxc.errors import InputError, UnsupportedError
from ptxc.reference import evaluator
from ptxc.reference.evaluator import evaluate_kernels
from ptxc.reference.sample import Sample
from ptxc.reference.statements import STATEMENTS

I = var("i")  # noqa: E741


def test_every_statement_that_compiles_can_be_evaluated() -> None:
    from ptxc.frontend.statements import STATEMENTS as compiled

    assert STATEMENTS.keys() >= compiled.keys()


@pytest.mark.parametrize("count", [1, 31, 256, 1000])
def test_a_ragged_grid(count: int) -> None:
    x = floats(count)
    body = [Load("a", "x", (I,)), Assign("b", "add", ("a", "a")), Write("y", (I,), "b")]
    assert np.array_equal(output(tile({"i": count}, body), {"x": x}, (count,)), 2.0 * x)


def test_batches_of_ctas_are_evaluated_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    x = floats(37, 100)
    body = [
        StridedLoop(axis("k", 100), I, 32, (Load("a", "x", (var("r"), var("k"))), Accum("s", "a"))),
        WarpShuffle(("s",), ("s_o",), (Assign("s", "add", ("s", "s_o")),), 32),
        Cond(op("==", var("lane"), 0), (Write("y", (var("r"),), "s"),)),
    ]
    kernel = tile({"r": 37, "i": 32}, body, 32)
    whole = output(kernel, {"x": x}, (37,))
    monkeypatch.setattr(evaluator, "BATCH_THREADS", 64)
    assert np.array_equal(output(kernel, {"x": x}, (37,)), whole)
    assert np.allclose(whole, x.astype(np.float64).sum(1), rtol=1e-12)


def test_a_sample_of_the_ctas_writes_its_part() -> None:
    x = floats(1024)
    body = [Load("a", "x", (I,)), Write("y", (I,), "a")]
    graph = graph_of({"x": (1024,)}, Node(tile({"i": 1024}, body), ("x",), {"y": (1024,)}))
    result = evaluated(graph, {"x": x}, sample=Sample(numbers=(1, 3))).outputs["y"]
    assert np.array_equal(np.isnan(result.reshape(4, 256)).all(1), [True, False, True, False])
    assert np.array_equal(result[256:512], x[256:512])


# ------------------------------------------------------------------------------------------------ control and names


def test_loops_with_ends_steps_and_bounds_that_differ_between_threads() -> None:
    count = 40
    body = [
        Init("total", 0.0, dtype=dtype("f32")),
        StridedLoop(axis("k", 100), I, lit(7), (Accum("total", "one"),), end=op("*", I, 2), seed=False),
    ]
    kernel = tile({"i": count}, [Let("one", 1.0, dtype=dtype("f32")), *body, Write("y", (I,), "total")])
    expected = [len(range(i, 2 * i, 7)) for i in range(count)]
    assert np.array_equal(output(kernel, {"x": floats(1)}, (count,)), expected)


def test_the_end_of_a_loop_can_be_read_in_it() -> None:
    inner = [Assign("v", "add", ("e", "e")), Accum("s", "v")]
    loop = StridedLoop(axis("k", 9), lit(0), lit(4), (Let("e", var("k_end"), dtype=dtype("f32")), *inner), end=lit(6))
    assert np.array_equal(output(tile({"i": 3}, [loop, Write("y", (I,), "s")]), {"x": floats(1)}, (3,)), [24.0] * 3)


def test_nested_accumulators_of_one_name_shadow() -> None:
    x = floats(4, 5)
    inner = Loop(axis("k", 5), (Load("a", "x", (var("m"), var("k"))), Accum("s", "a", op="maximum")))
    outer = Loop(axis("m", 4), (inner, Let("t", var("s"), dtype=dtype("f32")), Accum("s", "t")))
    result = output(tile({"i": 1}, [outer, Write("y", (I,), "s")]), {"x": x}, (1,))
    # The inner maximum is a variable of the outer loop's body, which the outer sum then adds to.
    assert result == [0.0]


def test_conditions_and_their_other_branch() -> None:
    x = floats(100)
    body = [
        Load("a", "x", (I,)),
        Init("r", 0.0, dtype=dtype("f32")),
        Cond(
            op("&&", op(">=", I, 10), op("!=", op("%", I, 3), 0)),
            (Cond(op("||", op("<", I, 20), op(">", I, 90)), (Accum("r", "a"),)),),
            (Assign("b", "negative", ("a",)), Accum("r", "b")),
        ),
        Write("y", (I,), "r"),
    ]
    i = np.arange(100)
    taken = (i >= 10) & (i % 3 != 0)
    expected = np.where(taken, np.where((i < 20) | (i > 90), x, 0), -x.astype(np.float64))
    assert np.array_equal(output(tile({"i": 100}, body), {"x": x}, (100,)), expected)


def test_select_takes_the_first_branch_that_holds() -> None:
    x = floats(50)
    branches = (SelectBranch("a", op("<", I, 10)), SelectBranch("b", op("<", I, 20)), SelectBranch("c", lit(0)))
    lets = [Load("a", "x", (I,)), Let("b", 2.0, dtype=dtype("f32")), Let("c", 3.0, dtype=dtype("f32"))]
    kernel = tile({"i": 50}, [*lets, Select("s", branches), Write("y", (I,), "s")])
    i = np.arange(50)
    expected = np.where(i < 10, x, np.where(i < 20, 2, 3)).astype(np.float64)
    assert np.array_equal(output(kernel, {"x": x}, (50,)), expected)


def test_coordinates_in_groups_of_rows() -> None:
    """Whatever the order, each CTA has its own tile."""
    for group, orient in ((2, "m"), (3, "m"), (2, "n"), (4, "n")):
        kernel = tile(
            {"b": 2, "m": 5, "n": 4, "t": 32},
            [Let("one", 1.0, dtype=dtype("f32")), Write("y", (var("b"), var("m"), var("n")), "one", atomic=True)],
            32, raster_axes=("m", "n"), raster_group=group, raster_orient=orient,
        )  # fmt: skip
        assert np.array_equal(output(kernel, {"x": floats(1)}, (2, 5, 4)), np.full((2, 5, 4), 32.0))


def test_auxiliary_threads_have_a_cell_of_their_cta() -> None:
    body = [
        Let("t", var("c"), dtype=dtype("f32")),
        Cond(op("<", var("thread"), 32), (Write("y", (var("r"), var("c")), "t"),)),
    ]
    kernel = tile({"r": 3, "c": 32}, [Let("thread", _builtin("thread_idx.x")), *body], 32, aux_threads=32)
    assert np.array_equal(output(kernel, {"x": floats(1)}, (3, 32)), np.tile(np.arange(32.0), (3, 1)))


def _builtin(name: str) -> Any:
    from emmy.compiler.ir.expr import Builtin

    return Builtin(name)


# ---------------------------------------------------------------------------------------------------------- memory


def test_vectors_and_loads_that_are_carried() -> None:
    x = floats(64)
    index = op("*", I, 4)
    names = ("a", "b", "c", "d")
    body = [
        Load(names=names, input="x", index=(index,)),
        Load(names=names, input="x", index=(op("-", 60, index),), carried="load"),
        Write("y", (I, lit(0)), values=names),
        Load(names=names, input="x", index=(index,), carried="unpack"),
        Write("y", (I, lit(4)), values=names),
    ]
    result = output(tile({"i": 16}, body), {"x": x}, (16, 8))
    assert np.array_equal(result[:, :4], x.reshape(16, 4))
    assert np.array_equal(result[:, 4:], x.reshape(16, 4)[::-1])


def test_atomics_add_in_float64_and_round_once() -> None:
    x = floats(300)
    body = [Load("a", "x", (I,)), Write("y", (op("%", I, 3),), "a", atomic=True)]
    kernel = tile({"i": 300}, body)
    expected = x.astype(np.float64).reshape(100, 3).sum(0)
    assert np.allclose(output(kernel, {"x": x}, (3,)), expected, rtol=1e-14)
    rounded = output(kernel, {"x": x}, (3,), exact=False)
    assert rounded.dtype == np.float32
    assert np.array_equal(rounded, expected.astype(np.float32))


def test_atomics_add_to_shared_memory() -> None:
    x = floats(64)
    body = [
        Smem("s", (2,)),
        Init("none", 0.0, dtype=dtype("f32")),
        Load("a", "x", (I,)),
        Cond(op("<", I, 2), _stmt.Body((Write("s", (I,), "none"),))),
        Sync(),
        Write("s", (op("%", I, 2),), "a", atomic=True),
        Sync(),
        Load("b", "s", (op("%", I, 2),)),
        Write("y", (I,), "b"),
    ]
    sums = x.astype(np.float64).reshape(32, 2).sum(0)
    assert np.allclose(output(tile({"i": 64}, body, 64), {"x": x}, (64,)), np.tile(sums, 32), rtol=1e-14)


def test_one_kernel_zeroes_what_another_adds_to() -> None:
    x = floats(64)
    first = Node(
        [ZeroPrologue("acc", 4), tile({"i": 64}, [Load("a", "x", (I,)), Write("t", (I,), "a")])],
        ("x",), {"t": (64,)}, "first",
    )  # fmt: skip
    add = [Load("a", "t", (I,)), Write("acc", (op("/", I, 16),), "a", atomic=True)]
    second = Node(tile({"i": 64}, add), ("t",), {"acc": (4,)}, "second", zero_delegated=("acc",))
    evaluation = evaluated(graph_of({"x": (64,)}, first, second), {"x": x})
    assert np.allclose(evaluation.outputs["acc"], x.astype(np.float64).reshape(4, 16).sum(1), rtol=1e-14)


def test_asynchronous_copies_arrive_at_once_and_fill_with_zeros() -> None:
    x = floats(64)
    body = [
        Smem("tile", (64,)),
        CpAsyncCopy("tile", (op("*", I, 4),), "x", (op("*", I, 4),), 16, valid=op("<", I, 10)),
        Sync(),
        Load(names=("a", "b", "c", "d"), input="tile", index=(op("-", 60, op("*", I, 4)),)),
        Write("y", (op("*", I, 4),), values=("a", "b", "c", "d")),
    ]
    result = output(tile({"i": 16}, body, 16), {"x": x}, (64,))
    expected = np.where(np.arange(64) < 40, x, 0).reshape(16, 4)[::-1].reshape(-1)
    assert np.array_equal(result, expected)


def test_shared_memory_that_nothing_wrote_is_nan() -> None:
    body = [Smem("tile", (32,)), Load("a", "tile", (I,)), Write("y", (I,), "a")]
    assert np.isnan(output(tile({"i": 32}, body, 32), {"x": floats(1)}, (32,))).all()


def test_accesses_outside_are_faults_with_their_place() -> None:
    body = [Load("a", "x", (op("+", I, 1),)), Write("y", (op("-", I, 1),), "a")]
    graph = graph_of({"x": (8,)}, Node(tile({"i": 8}, body), ("x",), {"y": (8,)}))
    x = floats(8)
    evaluation = evaluated(graph, {"x": x})
    assert evaluation.faults == [
        "k: body[0].body[0]: thread 7 of CTA 0 reads x[8], which has 8 elements",
        "k: body[0].body[1]: thread 0 of CTA 0 writes y[-1], which has 8 elements",
    ]
    assert np.array_equal(evaluation.outputs["y"][:7], [*x[2:], 0])


# ---------------------------------------------------------------------------------------------------- collectives


def _merge(names: tuple[str, ...]) -> Any:
    return tuple(Assign(name, "add", (name, f"{name}_o")) for name in names)


@pytest.mark.parametrize("length", [2, 8, 32])
@pytest.mark.parametrize("prefix", [False, True])
def test_shuffles_combine_groups_of_lanes(length: int, prefix: bool) -> None:
    x = floats(96)
    body = [
        Load("a", "x", (I,)),
        Init("s", 0.0, dtype=dtype("f32")),
        Accum("s", "a"),
        WarpShuffle(("s",), ("s_o",), _merge(("s",)), length, prefix=prefix),
        Write("y", (I,), "s"),
        *((WarpBroadcast(("s",), length), Write("z", (I,), "s")) if prefix else ()),
    ]
    writes = {"y": (96,), "z": (96,)} if prefix else {"y": (96,)}
    outputs = evaluated(graph_of({"x": (96,)}, Node(tile({"i": 96}, body, 96), ("x",), writes)), {"x": x}).outputs
    groups = x.astype(np.float64).reshape(-1, length)
    sums = np.repeat(groups.sum(1), length)
    assert np.allclose(outputs["y"], groups.cumsum(1).reshape(-1) if prefix else sums, rtol=1e-12)
    if prefix:
        assert np.allclose(outputs["z"], sums, rtol=1e-12)


@pytest.mark.parametrize("length", [1, 2, 4, 8])
@pytest.mark.parametrize("inner", [False, True])
def test_trees_combine_shared_partials(length: int, inner: bool) -> None:
    x = floats(length, 4 if inner else 1)
    width = x.shape[1]
    place = op("+", op("*", var("t"), width), var("c"))
    body = [
        Smem("slab", (length * width,)),
        Load("a", "x", (var("t"), var("c"))),
        Write("slab", (place,), "a"),
        Sync(),
        Init("s", 0.0, dtype=dtype("f32")),
        TreeHalve(("slab",), ("s",), ("s_o",), _merge(("s",)), length, "t", inner=("c", width) if inner else None),
        Write("y", (var("t"), var("c")), "s"),
    ]
    kernel = tile({"t": length, "c": width}, body, length * width)
    result = output(kernel, {"x": x}, x.shape)
    assert np.allclose(result, np.broadcast_to(x.astype(np.float64).sum(0), x.shape), rtol=1e-12)


def test_a_tree_over_warps_leaves_all_but_the_first_partial() -> None:
    x = floats(128)
    place = var("warp")
    body = [
        Smem("slab", (4,)),
        Load("s", "x", (I,)),
        WarpShuffle(("s",), ("s_o",), _merge(("s",)), 32),
        Cond(op("==", var("lane"), 0), _stmt.Body((Write("slab", (place,), "s"),))),
        Sync(),
        TreeHalve(("slab",), ("s",), ("s_o",), _merge(("s",)), 4, "warp"),
        TreeHalve(("slab",), ("s",), ("s_o",), _merge(("s",)), 4, "warp"),
        Load("p", "slab", (place,)),
        Write("y", (I,), "s"),
        Write("z", (I,), "p"),
    ]
    graph = graph_of({"x": (128,)}, Node(tile({"i": 128}, body, 128), ("x",), {"y": (128,), "z": (128,)}))
    outputs = evaluated(graph, {"x": x}).outputs
    partials = x.astype(np.float64).reshape(4, 32).sum(1)
    partials[0] = partials.sum() + partials[1:].sum()
    assert np.allclose(outputs["y"], partials[0], rtol=1e-12)
    assert np.allclose(outputs["z"], np.repeat(partials, 32), rtol=1e-12)


def test_two_states_travel_together() -> None:
    """The maximum, and the sum of the exponentials relative to it."""
    x = floats(32)
    program = (
        Assign("m_n", "maximum", ("m", "m_o")),
        Assign("d", "subtract", ("m", "m_n")),
        Assign("e", "exp", ("d",)),
        Assign("d_o", "subtract", ("m_o", "m_n")),
        Assign("e_o", "exp", ("d_o",)),
        Assign("l1", "multiply", ("l", "e")),
        Assign("l2", "multiply", ("l_o", "e_o")),
        Assign("l", "add", ("l1", "l2")),
        Assign("m", "copy", ("m_n",)),
    )
    body = [
        Load("a", "x", (I,)),
        Init("m", -1e30, dtype=dtype("f32")),
        Init("l", 1.0, dtype=dtype("f32")),
        Accum("m", "a", op="maximum"),
        WarpShuffle(("m", "l"), ("m_o", "l_o"), program, 32),
        Write("y", (I,), "l"),
    ]
    expected = np.exp(x.astype(np.float64) - x.max()).sum()
    assert np.allclose(output(tile({"i": 32}, body, 32), {"x": x}, (32,)), expected, rtol=1e-12)


# --------------------------------------------------------------------------------------------------------- errors


def _broken(*body: Any, **fields: Any) -> Any:
    """A kernel that the compiler need not take: its problem is another's."""
    plain = graph_of(
        {"x": (8,)}, Node(tile({"i": 8}, [Load("a", "x", (I,)), Write("y", (I,), "a")]), ("x",), {"y": (8,)})
    )
    _, _, problem = prepared(plain, {"x": floats(8)})
    graph = graph_of({"x": (8,)}, Node(tile({"i": 8}, body, **fields), ("x",), {"y": (8,)}))
    return [graph.nodes["y"].op], problem


@pytest.mark.parametrize(
    ("body", "error", "message"),
    [
        ([Write("y", (I,), "a")], InputError, "'a' is not defined"),
        ([Load("a", "z", (I,))], InputError, "'z' is neither a buffer nor a shared array"),
        ([Load("a", "x", (I, I))], InputError, "'x' has 1 dimensions but 2 indices"),
        ([Load("a", "x", (I,)), Accum("s", "a")], InputError, "'s' is not defined"),
        ([Load("a", "x", (I,)), Assign("b", "silu", ("a",))], UnsupportedError, "does not compute 'silu'"),
        ([Load("a", "x", (I,)), Assign("b", "add", ("a",))], InputError, "'add' does not take 1 operands"),
        ([Loop(axis("k", 2), (Accum("s", "a", op="subtract"),))], InputError, "nothing accumulates with 'subtract'"),
        ([StridedLoop(axis("k", 2), lit(0), lit(0), ())], InputError, "a loop's step is at least 1"),
        ([Let("a", op("<<", 1.5, 2))], InputError, "'<<' of floats"),
        ([Let("a", op("@", 1, 2))], InputError, "there is no operator '@'"),
        ([Smem("s", (4,), "half7")], UnsupportedError, "does not compute with 'half7'"),
        ([Load("a", "x", (I,)), Write("y", (I,), "a", swizzle="B7")], UnsupportedError, "the layout 'B7'"),
    ],
)  # fmt: skip
def test_errors_have_the_place(body: list[Any], error: type[Exception], message: str) -> None:
    kernels, problem = _broken(*body)
    with pytest.raises(error, match=message) as raised:
        evaluate_kernels(kernels, problem)
    if "half7" not in message:  # a shared array is made before the first statement
        assert "k: body[0].body[" in str(raised.value)


def test_a_statement_that_is_not_evaluated_is_named() -> None:
    class Odd(type(Let("v", lit(1)))):  # type: ignore[misc]
        pass

    _, problem = _broken(Write("y", (I,), "a"))
    kernel = KernelOp(body=_stmt.Body((tile({"i": 8}, [Odd("v", lit(1))]),)), name="k")
    with pytest.raises(UnsupportedError, match="does not evaluate Odd"):
        evaluate_kernels([kernel], problem)


def test_two_tiles_are_no_kernel() -> None:
    _, problem = _broken(Write("y", (I,), "a"))
    tiles = [tile({"i": 8}, []), tile({"i": 8}, [])]
    graph = graph_of({"x": (8,)}, Node(tiles, ("x",), {"y": (8,)}))
    with pytest.raises(InputError, match="2 tiles"):
        evaluate_kernels([graph.nodes["y"].op], problem)
