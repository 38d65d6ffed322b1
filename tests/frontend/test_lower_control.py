"""Loops and conditions: trip counts, unrolling, bounds of every form, scopes, states that loops carry."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from emmy.compiler.dim import Dim
from emmy.compiler.ir.expr import CastExpr, TernaryExpr
from emmy.compiler.ir.kernel import ir
from kernel_ir import (
    Accum,
    Assign,
    Cond,
    Init,
    Let,
    Load,
    Loop,
    Select,
    SelectBranch,
    StridedLoop,
    WarpShuffle,
    Write,
    axis,
    dtype,
    lit,
    op,
    tile,
    var,
)
from lowering_lab import AT, LOAD, WRITE, Array, compiled, kernel_graph, pointwise, run, run_emmy

from ptxc.frontend.unrolling import unroll_factor

F32, I32 = dtype("f32"), dtype("i32")
X = np.random.default_rng(1).integers(-9, 9, (64, 64)).astype(np.float32)
ROW = Load("v", "x", (AT, var("k")))
SUM = Accum("s", "v", "add")


def folded(loop: Any, *, size: int | None = None, before: tuple[Any, ...] = (), runner: Any = run) -> Array:
    """What a loop that folds elements ``x[i, k]`` into ``s`` makes of 64 rows."""
    body = tile({"i": 64}, [*before, loop, Write("y", (AT,), "s")], 64)
    inputs: dict[str, Any] = {"x": (64, 64)}
    arrays: dict[str, Any] = {"x": X}
    if size is not None:
        inputs["z"] = (Dim("n"),)
        arrays["z"] = np.zeros(size, np.float32)
    return np.asarray(runner(kernel_graph(body, inputs, {"y": (64,)}), arrays)["y"])


# ---------------------------------------------------------------------------------------------------------- trips


@pytest.mark.parametrize("hinted", [False, True])
@pytest.mark.parametrize("trips", [1, 2, 3, 4, 5, 7, 8, 12, 16, 31, 32, 33, 36, 63, 64])
def test_static_loops(trips: int, hinted: bool) -> None:
    got = folded(Loop(axis("k", trips), (ROW, SUM), unroll=hinted))
    np.testing.assert_array_equal(got, X[:, :trips].sum(1))


@pytest.mark.parametrize("size", [1, 2, 3, 4, 7, 8, 33, 64])
def test_loops_to_a_runtime_size(size: int) -> None:
    np.testing.assert_array_equal(folded(Loop(axis("k", Dim("n")), (ROW, SUM)), size=size), X[:, :size].sum(1))


@pytest.mark.parametrize("simple", [True, False])
@pytest.mark.parametrize("start", [0, -5, 5])
@pytest.mark.parametrize("size", [0, 1, 5, 9, 10, 11, 16, 40])
def test_loops_whose_extent_may_be_below_zero(size: int, start: int, simple: bool) -> None:
    more = () if simple else (Cond(op("<", var("k"), 3), (SUM,)),)
    body = (Load("v", "x", (AT, op("&", var("k"), 63))), SUM, *more)
    extent = Dim(op("-", var("n"), 10))
    loop = StridedLoop(axis("k", extent), lit(start), lit(1), body) if start else Loop(axis("k", extent), body)
    turns = [k for k in range(start, size - 10) for _ in range(1 if simple or k >= 3 else 2)]
    expected = X[:, [k % 64 for k in turns]].sum(1)
    np.testing.assert_array_equal(folded(loop, size=size), expected)


@pytest.mark.parametrize("more", [0, 1, 3, 30])
@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 15, 16, 17, 19, 20, 21, 31, 32, 33, 36, 63, 64])
def test_loops_come_in_rounds_and_what_is_left(size: int, more: int) -> None:
    filler = [Assign(f"t{at}", "add", ("v", "v")) for at in range(more)]
    for start, step in ((0, 1), (0, 3), (5, 1), (op("%", AT, 7), 2), (op("-", op("%", AT, 7), 9), 16)):
        loop = StridedLoop(axis("k", Dim("n")), start if not isinstance(start, int) else lit(start), lit(step),
                           (Load("v", "x", (AT, op("%", op("+", var("k"), 16), 64))), *filler, SUM))  # fmt: skip
        first = [start if isinstance(start, int) else i % 7 - (9 if step == 16 else 0) for i in range(64)]
        expected = [sum(X[i, (at + 16) % 64] for at in range(first[i], size, step)) for i in range(64)]
        np.testing.assert_array_equal(folded(loop, size=size), np.array(expected, np.float32))


@pytest.mark.parametrize(("more", "loads"), [(0, 16 + 4 + 1), (1, 8 + 1), (2, 8 + 1), (3, 4 + 1), (34, 4 + 1), (35, 1)])
def test_how_many_iterations_are_a_round(more: int, loads: int) -> None:
    filler = [Assign(f"t{at}", "add", ("v", "v")) for at in range(more)]
    loop = Loop(axis("k", Dim("n")), (ROW, *filler, SUM))
    graph = kernel_graph(
        tile({"i": 64}, [loop, Write("y", (AT,), "s")], 64), {"x": (64, 64), "z": (Dim("n"),)}, {"y": (64,)}
    )
    ptx = compiled(graph).ptx
    assert ptx.count("ld.global") == loads
    assert ptx.count('.pragma "nounroll"') == {21: 3, 9: 2, 5: 2, 1: 1}[loads]


@pytest.mark.parametrize(
    ("trips", "more", "loads"),
    [
        (125, 0, 16 + 13),  # seven rounds
        (37, 0, 16 + 5),
        (1000, 0, 20),  # a divisor of its own
        (64, 0, 16),
        (31, 0, 31),  # all of them
        (37, 2, 8 + 5),
        (37, 7, 4 + 1),
        (37, 35, 1),  # too large a body
    ],
)
@pytest.mark.parametrize("cooperative", [False, True])
def test_rounds_of_a_known_number(trips: int, more: int, loads: int, cooperative: bool) -> None:
    filler = [Assign(f"t{at}", "add", ("v", "v")) for at in range(more)]
    number = op("/", var("k"), 8) if cooperative else var("k")
    body = (Load("v", "x", (AT, op("%", number, 64))), *filler, SUM)
    loop: Any = Loop(axis("k", trips), body)
    if cooperative:
        loop = StridedLoop(axis("k", trips * 8), op("%", AT, 8), lit(8), body)
    expected = [sum(X[i, at % 64] for at in range(trips)) for i in range(64)]
    np.testing.assert_array_equal(folded(loop), np.array(expected, np.float32))
    graph = kernel_graph(tile({"i": 64}, [loop, Write("y", (AT,), "s")], 64), {"x": (64, 64)}, {"y": (64,)})
    assert compiled(graph).ptx.count("ld.global") == loads


@pytest.mark.parametrize(
    ("end", "count"),
    [
        (lambda n: op("+", n, 1), lambda n: n + 1),
        (lambda n: op("*", n, 4), lambda n: 4 * n),
        (lambda n: n, lambda n: n),
    ],
)
@pytest.mark.parametrize("static", [False, True])
def test_what_an_end_is_made_of_does_not_matter_to_rounds(end: Any, count: Any, static: bool) -> None:
    step = (Load("v", "x", (AT, op("%", var("k"), 64))), SUM)
    extent, stated = (64, end(var("n"))) if static else (Dim(end(var("n"))), None)
    loop = StridedLoop(axis("k", extent), lit(0), lit(1), step, end=stated)
    for size in (1, 4, 7, 11, 15):
        expected = [sum(X[i, at % 64] for at in range(count(size))) for i in range(64)]
        np.testing.assert_array_equal(folded(loop, size=size), np.array(expected, np.float32))
    inputs = {"x": (64, 64), "z": (Dim("n"),)}
    loop = StridedLoop(axis("k", extent), lit(0), lit(1), step, end=stated, seed=False)
    # Of 4 * n iterations none is left behind the rounds of four.
    once = 20 if count(1) == 4 else 21
    for around, loads in ((1, once), (16, 4 * once)):
        body = tile(
            {"i": 64}, [Init("s", 0.0, dtype=F32), Loop(axis("j", around), (loop,)), Write("y", (AT,), "s")], 64
        )
        assert compiled(kernel_graph(body, inputs, {"y": (64,)})).ptx.count("ld.global") == loads


def test_loops_with_conditions_do_not_come_in_rounds() -> None:
    body = (ROW, SUM, Cond(op("<", var("k"), 3), (Accum("s", "v", "add"),)))
    graph = kernel_graph(
        tile({"i": 64}, [Loop(axis("k", Dim("n")), body), Write("y", (AT,), "s")], 64),
        {"x": (64, 64), "z": (Dim("n"),)}, {"y": (64,)},
    )  # fmt: skip
    assert compiled(graph).ptx.count("ld.global") == 1


def test_loops_to_an_expression_of_sizes() -> None:
    half = Dim(op("//", op("+", var("n"), 1), 2))
    np.testing.assert_array_equal(folded(Loop(axis("k", half), (ROW, SUM)), size=21), X[:, :11].sum(1))


@pytest.mark.parametrize("multiplies", [False, True])
@pytest.mark.parametrize(
    ("trips", "cost", "hinted", "factor"),
    [
        (0, 5, True, 1), (1, 500, False, 1), (8, 4, False, 8), (37, 4, False, 1), (34, 4, False, 2), (16, 4, True, 16),
        (80, 2, False, 16), (39, 10, False, 3), (16, 36, False, 4), (32, 4, True, 32), (37, 4, True, 1),
        (34, 4, True, 2), (52, 10, True, 4), (64, 64, True, 4), (64, 257, True, 1), (64, 257, False, 1),
    ],
)  # fmt: skip
def test_how_often_a_loop_is_unrolled(trips: int, cost: int, hinted: bool, factor: int, multiplies: bool) -> None:
    assert unroll_factor(trips, cost, hinted, multiplies) == factor


@pytest.mark.parametrize(
    ("trips", "cost", "scalar", "products"),
    [(9, 4, 9, 3), (31, 4, 31, 1), (32, 4, 16, 8), (64, 3, 16, 8), (64, 8, 16, 4), (64, 9, 8, 4), (64, 16, 8, 4),
     (64, 17, 4, 4), (64, 37, 4, 1), (64, 64, 4, 1), (64, 65, 2, 1), (64, 128, 2, 1), (64, 129, 1, 1)],
)  # fmt: skip
def test_products_on_tensor_cores_are_unrolled_less(trips: int, cost: int, scalar: int, products: int) -> None:
    assert (unroll_factor(trips, cost, False, False), unroll_factor(trips, cost, False, True)) == (scalar, products)


@pytest.mark.parametrize(("cost", "factor"), [(64, 4), (65, 2), (128, 2), (129, 1), (256, 1), (257, 1)])
def test_products_together_are_no_large_body_whatever_emmy_hints_at(cost: int, factor: int) -> None:
    assert unroll_factor(64, cost, True, True) == factor
    assert unroll_factor(64, cost, True, False) == (4 if cost <= 256 else 1)


@pytest.mark.parametrize(("target", "copies"), [("sm_89", 4), ("sm_90", 2), ("sm_120", 4)])
@pytest.mark.parametrize("kind", ["e4m3", "e5m2"])
def test_products_of_bytes_are_large_on_a_hopper(kind: str, target: str, copies: int) -> None:
    """The assembler makes some ten instructions of each there."""
    shape = (16, 8, 32)
    types = {"a": dtype(f"f8{kind}"), "b": dtype(f"f8{kind}"), "c": F32}
    fragments = [ir.RegFragment(role, role, shape, type) for role, type in types.items()]
    products = Loop(axis("k", 8), (ir.MmaSyncPtx("c", "a", "b", shape, kind),) * 30, unroll=True)
    store = ir.RegStore("z", (lit(0), lit(0)), "c", shape)
    ptx = compiled(kernel_graph(tile({"i": 32}, [*fragments, products, store], 32), {}, {"z": (16, 8)}), target).ptx
    assert ptx.count("mma.sync") == 30 * copies


def outer_loops(*body: Any, trips: int = 41) -> tuple[int, int]:
    """How often a row of ``body`` is loaded in a loop's text, and how many loops the assembler is to leave alone."""
    loop = Loop(axis("k", trips), (ROW, *body, SUM))
    ptx = compiled(kernel_graph(tile({"i": 64}, [loop, Write("y", (AT,), "s")], 64), {"x": (64, 64)}, {"y": (64,)})).ptx
    return ptx.count("ld.global"), ptx.count('.pragma "nounroll"')


def test_an_inner_loop_weighs_as_often_as_it_is_written() -> None:
    inner = Loop(axis("j", 8), (Assign("t", "add", ("v", "v")),), unroll=True)
    assert outer_loops(trips=80) == (16, 1)
    assert outer_loops(inner, trips=80) == (10, 1)
    assert outer_loops(*[inner] * 4, trips=64) == (4, 1)
    assert outer_loops(*[inner] * 8, trips=64) == (2, 1)


@pytest.mark.parametrize(
    ("row", "trips", "loads"),
    [
        (lambda j, s: AT, 64, 2 * 64),  # the assembler loads a row of x once, and keeps it
        (lambda j, s: AT, 65, 2 * 13),  # too much to keep
        (lambda j, s: op("%", op("+", AT, j), 64), 64, 2 * 16),  # each time another row
        (lambda j, s: op("%", op("+", AT, s), 64), 64, 2 * 16),
    ],
)
def test_loads_that_the_loop_around_does_not_change(row: Any, trips: int, loads: int) -> None:
    product = (Load("v", "x", (row(var("j"), var("step")), var("k"))), Load("w", "z", (var("j"), var("k"))),
               Assign("vw", "multiply", ("v", "w")), Accum("d", "vw", "add"))  # fmt: skip
    step = Let("step", op("*", var("j"), 2), dtype=dtype("i32"))
    outer = Loop(axis("j", Dim("n")), (step, Loop(axis("k", trips), product), Accum("s", "d", "add")))
    graph = kernel_graph(
        tile({"i": 64}, [outer, Write("y", (AT,), "s")], 64),
        {"x": ((64, trips), "f32"), "z": ((Dim("n"), trips), "f32")}, {"y": (64,)},
    )  # fmt: skip
    assert compiled(graph).ptx.count("ld.global") == loads
    x, z = (
        np.random.default_rng(at).integers(-3, 3, (rows, trips)).astype(np.float32) for at, rows in ((1, 64), (2, 5))
    )
    rows = [[int(row(lit(j), lit(2 * j)).eval({"i": i})) for j in range(5)] for i in range(64)]
    expected = [sum(x[rows[i][j]] @ z[j] for j in range(5)) for i in range(64)]
    np.testing.assert_array_equal(run(graph, {"x": x, "z": z})["y"], np.array(expected, np.float32))


@pytest.mark.parametrize(
    ("threads", "loops", "often", "words", "written"),
    [
        (64, 1, 53, 1, [64]),
        (64, 2, 53, 1, [64, 16]),  # registers for one of them
        (1024, 1, 53, 1, [16]),  # too many threads
        (64, 1, 8, 1, [64]),
        (64, 1, 7, 1, [16]),  # too seldom
        (64, 1, 53, 2, [16]),  # vectors of two
    ],
)
def test_what_is_kept_has_registers(threads: int, loops: int, often: int, words: int, written: list[int]) -> None:
    inner = []
    for at in range(loops):
        names = [f"v{at}_{word}" for word in range(words)]
        loads = (Load(names=tuple(names), input="x", index=(AT, op("*", var("k"), words))),
                 Load(f"w{at}", "z", (var("j"), op("+", var("k"), at))))  # fmt: skip
        product = (Assign(f"vw{at}", "multiply", (names[0], f"w{at}")), Accum(f"d{at}", f"vw{at}", "add"))
        inner += [Loop(axis("k", 64), (*loads, *product)), Accum("s", f"d{at}", "add")]
    body = tile({"i": threads}, [Loop(axis("j", often), tuple(inner)), Write("y", (AT,), "s")], threads)
    ptx = compiled(kernel_graph(body, {"x": (threads, 128), "z": (often, 128)}, {"y": (threads,)})).ptx
    assert ptx.count("ld.global.nc") == 2 * sum(written)


@pytest.mark.parametrize("many", [64, 65])
def test_a_count_that_differs_between_threads_has_no_known_rounds(many: int) -> None:
    """Threads begin at 0, 1 or 2 and step by 3: 16 iterations for some, 15 for others. Written out 65 times it is too
    much, as a family of fragments is chosen from in the loop around."""
    shape = (16, 8, 16)
    fragments = [ir.RegFragment(role, role, shape, dtype("f16")) for role in "ab"]
    fragments.append(ir.RegFragment("c", "c", shape, F32, count=many))
    body = [stmt for at in range(4) for stmt in (
        Load(f"v{at}", "x", (op("&", op("+", var("k"), at), 511),)), Accum("d", f"v{at}", "add"))]  # fmt: skip
    inner = StridedLoop(axis("k", 46), op("%", AT, 3), lit(3), tuple(body))
    outer = Loop(axis("m", many), (ir.MmaSyncPtx("c[m]", "a", "b", shape, "f16"), inner, Accum("s", "d", "add")))
    graph = kernel_graph(tile({"i": 32}, [*fragments, outer, Write("y", (AT,), "s")], 32), {"x": (512,)}, {"y": (32,)})
    x = np.arange(512, dtype=np.float32)
    expected = [many * sum(x[k + at] for k in range(i % 3, 46, 3) for at in range(4)) for i in range(32)]
    np.testing.assert_array_equal(run(graph, {"x": x}, sanitize=())["y"], np.array(expected, np.float32))


@pytest.mark.parametrize("step", [8, 64])
def test_rounds_that_leave_nothing_end_where_the_loop_does(step: int) -> None:
    """So what divides an index of the loop is known to be beyond it."""
    index = op("+", op("/", var("k"), 1000 * step), op("%", AT, 4))
    loop = StridedLoop(axis("k", 1000 * step), op("%", AT, step), lit(step), (Load("v", "x", (index,)), SUM))
    graph = kernel_graph(tile({"i": 64}, [loop, Write("y", (AT,), "s")], 64), {"x": (64,)}, {"y": (64,)})
    ptx = compiled(graph).ptx
    assert not any(word in ptx for word in ("div", "mul.hi", "shr"))
    x = np.arange(64, dtype=np.float32)
    np.testing.assert_array_equal(run(graph, {"x": x})["y"], [1000 * x[i % 4] for i in range(64)])


def test_the_assembler_does_not_unroll_what_ptxc_has_unrolled() -> None:
    assert outer_loops(trips=31) == (31, 0)
    assert outer_loops() == (16 + 9, 1)
    assert outer_loops(trips=81) == (16 + 1, 1)
    condition = Cond(op("<", var("k"), 3), (Accum("s", "v", "add"),))
    assert outer_loops(condition) == (1, 0)
    assert outer_loops(condition, trips=81) == (9, 1)
    assert outer_loops(trips=64) == (16, 1)


def test_large_bodies_are_not_unrolled_by_the_assembler() -> None:
    filler = [Assign(f"t{at}", "add", ("v", "v")) for at in range(40)]
    assert outer_loops(*filler) == (1, 1)
    assert outer_loops(*filler, trips=44) == (4, 1)
    shape = (16, 8, 16)
    fragments = [ir.RegFragment(role, role, shape, F32 if role == "c" else dtype("f16")) for role in "abc"]
    assert outer_loops(*fragments, *filler, ir.MmaSyncPtx("c", "a", "b", shape, "f16"), trips=44) == (1, 1)


def test_every_factor_of_unrolling_computes_the_same() -> None:
    filler = [Assign(f"t{at}", "add", ("v", "v")) for at in range(30)]
    for trips in (6, 10, 12, 40, 41):
        for hinted in (False, True):
            for more in (0, 3, 10, 30):
                got = folded(Loop(axis("k", trips), (ROW, *filler[:more], SUM), unroll=hinted))
                np.testing.assert_array_equal(got, X[:, :trips].sum(1))


def test_the_last_iterations_of_an_unrolled_loop_know_their_number() -> None:
    last = Cond(op(">=", var("k"), 39), (Accum("s", "v", "add"),))
    more = Cond(op("<", var("k"), 1), (Accum("s", "v", "add"),))
    body = (ROW, Accum("s", "v", "add"), last, more, *(Assign(f"t{at}", "add", ("v", "v")) for at in range(9)))
    got = folded(Loop(axis("k", 40), body))
    np.testing.assert_array_equal(got, X[:, :40].sum(1) + X[:, 39] + X[:, 0])


# ------------------------------------------------------------------------------------------------- strided loops


def strided(start: Any, step: Any, end: Any = None, extent: Any = 64, **fields: Any) -> Any:
    return StridedLoop(axis("k", extent), lit(start), lit(step), (ROW, SUM), end=end, **fields)


@pytest.mark.parametrize("hinted", [False, True])
@pytest.mark.parametrize("step", [1, 2, 3, 7, 63, 64, 100])
@pytest.mark.parametrize("start", [0, 1, 5, 63, 64, 70])
def test_strided_loops_of_constants(start: int, step: int, hinted: bool) -> None:
    np.testing.assert_array_equal(folded(strided(start, step, unroll=hinted)), X[:, start::step].sum(1))


def rows(start: Any, step: Any, end: Any) -> Array:
    """The sums of ``x[i, start(i) : end(i) : step(i)]``."""
    cells = [slice(*(f(i) if callable(f) else f for f in (start, end, step))) for i in range(64)]
    return np.array([X[i, cell].sum() for i, cell in enumerate(cells)], np.float32)


def test_strided_loops_with_bounds_of_each_cell() -> None:
    quarter = op("/", AT, 4)
    for loop, expected in (
        (strided(AT, 8), rows(lambda i: i, 8, 64)),
        (strided(op("%", AT, 8), 8), rows(lambda i: i % 8, 8, 64)),
        (strided(0, 1, AT), rows(0, 1, lambda i: i)),
        (strided(quarter, 3, AT), rows(lambda i: i // 4, 3, lambda i: i)),
        (strided(AT, 2, quarter), rows(lambda i: i, 2, lambda i: i // 4)),
        (strided(0, op("+", op("%", AT, 5), 1)), rows(0, lambda i: i % 5 + 1, 64)),
        (strided(quarter, op("+", quarter, 1), op("-", lit(64), quarter)),
         rows(lambda i: i // 4, lambda i: i // 4 + 1, lambda i: 64 - i // 4)),
        (strided(0, 1, TernaryExpr(op("<", AT, 8), op("*", AT, 4), lit(50))),
         rows(0, 1, lambda i: i * 4 if i < 8 else 50)),
    ):  # fmt: skip
        np.testing.assert_array_equal(folded(loop), expected)


@pytest.mark.parametrize("hinted", [False, True])
@pytest.mark.parametrize(
    ("step", "trips", "bodies"), [(8, 8, 8), (10, 7, 7), (16, 4, 4), (3, 22, 21), (1, 64, 21), (30, 3, 3)]
)
def test_the_last_iteration_of_a_loop_that_some_threads_end_earlier(
    step: int, trips: int, bodies: int, hinted: bool
) -> None:
    loop = strided(op("%", AT, 8), step, unroll=hinted)
    assert max(len(range(start, 64, step)) for start in range(8)) == trips
    np.testing.assert_array_equal(folded(loop), rows(lambda i: i % 8, step, 64))
    graph = kernel_graph(tile({"i": 64}, [loop, Write("y", (AT,), "s")], 64), {"x": (64, 64)}, {"y": (64,)})
    assert compiled(graph).ptx.count("ld.global") == bodies


@pytest.mark.parametrize("hinted", [False, True])
def test_a_way_that_is_longer_than_an_int(hinted: bool) -> None:
    """From -15 * 2^27 - 1 to 14 * 2^27: both are ints, and so is each index, but not their difference."""
    step, start = 2**27, op("-", op("*", op("*", op("%", AT, 16), -32768), 4096), 1)
    first = (Load("v", "x", (AT, lit(0))), SUM)
    loop = StridedLoop(axis("k", 2**31 - 2 * step), start, lit(step), first, unroll=hinted)
    trips = [len(range(-(i % 16) * step - 1, 2**31 - 2 * step, step)) for i in range(64)]
    np.testing.assert_array_equal(folded(loop), trips * X[:, 0])


def test_strided_loops_to_a_runtime_size() -> None:
    np.testing.assert_array_equal(folded(strided(AT, 4, extent=Dim("n")), size=37), rows(lambda i: i, 4, 37))
    np.testing.assert_array_equal(folded(strided(3, 4, op("-", var("n"), 2), Dim("n")), size=37), rows(3, 4, 35))
    np.testing.assert_array_equal(folded(strided(0, var("n"), extent=64), size=10), rows(0, 10, 64))
    np.testing.assert_array_equal(folded(strided(5, 1, var("n"), Dim("n")), size=5), np.zeros(64))


def test_a_number_may_stand_for_the_step() -> None:
    loop = StridedLoop(axis("k", 64), lit(2), 5, (ROW, SUM))
    np.testing.assert_array_equal(folded(loop), X[:, 2::5].sum(1))


def test_the_end_can_be_read_in_the_body() -> None:
    left = Let("left", op("-", var("k_end"), var("k")), dtype=F32)
    loop = StridedLoop(axis("k", 64), lit(0), lit(2), (left, Accum("s", "left")), end=op("+", AT, 1))
    expected = [sum(i + 1 - k for k in range(0, i + 1, 2)) for i in range(64)]
    np.testing.assert_array_equal(folded(loop), expected)


def test_an_end_that_is_a_float_is_cut() -> None:
    loop = strided(0, 1, var("e"))
    got = folded(loop, before=(Let("e", op("*", CastExpr("float", AT), 0.5)),))
    np.testing.assert_array_equal(got, rows(0, 1, lambda i: i // 2))


@pytest.mark.needs("nvcc")
def test_loops_are_those_of_emmys_cuda() -> None:
    quarter = op("/", AT, 4)
    loops = [
        Init("s", 0.0, dtype=F32),
        strided(quarter, op("+", quarter, 1), op("-", lit(64), quarter), seed=False),
        strided(op("%", AT, 8), 8, seed=False, unroll=True),
        strided(5, 1, op("+", op("%", var("n"), 7), 20), seed=False),
        Loop(axis("k", Dim("n")), (ROW, SUM), seed=False),
        Loop(axis("k", 12), (ROW, SUM), seed=False, unroll=True),
    ]
    wrapped = Cond(op(">=", AT, 0), ())
    ours, theirs = (folded(wrapped, size=37, before=tuple(loops), runner=runner) for runner in (run, run_emmy))
    np.testing.assert_array_equal(ours, theirs)


# --------------------------------------------------------------------------------------------------------- scopes


def test_a_nested_loop_shadows_an_accumulator_of_the_same_name() -> None:
    one, two = Accum("s", "one"), Accum("s", "two")
    inner = Loop(axis("k", 3), (two,))
    outer = Loop(axis("j", 5), (one, inner, Write("y", (AT, var("j")), "s")))
    known = [Init("one", 1.0, dtype=F32), Init("two", 2.0, dtype=F32)]
    body = tile({"i": 8}, [*known, outer, Write("y", (AT, lit(5)), "s")])
    got = run(kernel_graph(body, {}, {"y": (8, 6)}), {})["y"]
    np.testing.assert_array_equal(got, [[6.0] * 5 + [5.0]] * 8)


def test_a_nested_loop_without_a_seed_goes_on_with_the_outer_accumulator() -> None:
    inner = Loop(axis("k", 3), (Accum("s", "one"),), seed=False)
    outer = Loop(axis("j", 5), (Accum("s", "one"), inner))
    body = tile({"i": 8}, [Init("one", 1.0, dtype=F32), outer, Write("y", (AT,), "s")])
    np.testing.assert_array_equal(run(kernel_graph(body, {}, {"y": (8,)}), {})["y"], [20.0] * 8)


def test_bindings_in_a_branch_or_loop_shadow_and_end_with_it() -> None:
    shadow = Assign("a", "add", ("a1", "a1"))
    body = [
        Assign("a1", "copy", ("a",)),
        Cond(op("<", AT, 9), (shadow, Write("y", (AT, lit(0)), "a")), (Write("y", (AT, lit(0)), "a"),)),
        Loop(axis("k", 20), (shadow, Write("y", (AT, lit(1)), "a"))),
        Write("y", (AT, lit(2)), "a"),
    ]
    x = np.arange(64, dtype=np.float32)
    graph = kernel_graph(tile({"i": 64}, [LOAD, *body]), {"x": (64,)}, {"y": (64, 3)})
    got = run(graph, {"x": x})["y"]
    np.testing.assert_array_equal(got, np.stack([np.where(x < 9, 2 * x, x), 2 * x, x], 1))


def test_a_branch_may_assign_on_one_side_only() -> None:
    body = [Init("s", 3.0, dtype=F32), Init("q", 1.0, dtype=F32)]
    body += [
        Cond(op("<", AT, 40), (Cond(op("<", AT, 9), (Accum("s", "a"),), (Accum("q", "a", "maximum"),)),)),
        Cond(op(">", AT, 50), (), (Accum("s", "q"),)),
        Write("y", (AT, lit(0)), "s"),
        Write("y", (AT, lit(1)), "q"),
    ]
    x = np.arange(64, dtype=np.float32)
    got = run(kernel_graph(tile({"i": 64}, [LOAD, *body]), {"x": (64,)}, {"y": (64, 2)}), {"x": x})["y"]
    q = np.where((x >= 9) & (x < 40), np.maximum(x, 1), 1)
    np.testing.assert_array_equal(got, np.stack([3 + np.where(x < 9, x, 0) + np.where(x > 50, 0, q), q], 1))


def test_an_expression_is_computed_anew_when_its_names_mean_something_else() -> None:
    """One object in several statements: what it was lowered to is remembered."""
    positive = op(">", var("s"), 2.0)
    body = [
        Init("s", 1.0, dtype=F32), Init("t", 5.0, dtype=F32), Init("n", 0.0, dtype=F32),
        Select("p", (SelectBranch("t", positive), SelectBranch("n", lit(1)))),
        Accum("s", "t"),
        Select("q", (SelectBranch("t", positive), SelectBranch("n", lit(1)))),
        Loop(axis("k", 3), (
            Select("u", (SelectBranch("t", positive), SelectBranch("n", lit(1)))),
            Assign("s", "negative", ("t",)),
            Select("w", (SelectBranch("t", positive), SelectBranch("n", lit(1)))),
            Write("y", (AT, lit(2)), "u"), Write("y", (AT, lit(3)), "w"),
        )),
        Write("y", (AT, lit(0)), "p"), Write("y", (AT, lit(1)), "q"),
    ]  # fmt: skip
    got = run(kernel_graph(tile({"i": 8}, body), {}, {"y": (8, 4)}), {})["y"]
    np.testing.assert_array_equal(got, [[0, 5, 5, 0]] * 8)


def test_an_index_in_a_loop_is_computed_anew_in_each_iteration() -> None:
    twice = op("*", op("+", var("k"), AT), 2)
    index = op("%", twice, 64)
    loops = [Loop(axis("k", trips), (Load("v", "x", (AT, index)), SUM), seed=False) for trips in (3, 40)]
    got = folded(Cond(op("<", AT, 0), ()), before=(Init("s", 0.0, dtype=F32), *loops))
    cells = np.arange(64)
    expected = sum(X[cells, (k + cells) * 2 % 64] for trips in (3, 40) for k in range(trips))
    np.testing.assert_array_equal(got, expected)


# ------------------------------------------------------------------------------------------- what loops carry


@pytest.mark.parametrize(("kind", "count"), [("f32", 2), ("f32", 4), ("f16", 2), ("f16", 4), ("f16", 8)])
@pytest.mark.parametrize("trips", [2, 9, 40])
def test_vectors_carried_over_the_back_edge(kind: str, count: int, trips: int) -> None:
    """A software pipeline: the next vector is loaded before this one is unpacked and used."""
    names = tuple(f"v{at}" for at in range(count))
    here = (AT, lit(0))
    following = (AT, op("*", op("+", var("k"), 1), count))
    body = [
        Load(names=names, input="x", index=here),
        Loop(axis("k", trips), (
            *(Accum("s", name, dtype=F32) for name in names),
            Load(names=names, input="x", index=following, carried="load"),
            Accum("s", "one"),
            Load(names=names, input="x", index=following, carried="unpack"),
        )),
        Write("y", (AT,), "s"),
    ]  # fmt: skip
    x = np.random.default_rng(2).integers(-9, 9, (64, (trips + 1) * count)).astype(np.float32)
    graph = kernel_graph(tile({"i": 64}, [Init("one", 1.0, dtype=F32), *body]), {"x": (x.shape, kind)}, {"y": (64,)})
    np.testing.assert_array_equal(run(graph, {"x": x})["y"], x[:, : trips * count].sum(1) + trips)


@pytest.mark.parametrize("trips", [3, 40])
@pytest.mark.parametrize("prefix", [False, True])
def test_shuffled_states_carried_by_a_loop(trips: int, prefix: bool) -> None:
    program = (Assign("s", "add", ("s", "o")),)
    known = [Init("half", 0.5, dtype=F32), Init("zero", 0.0, dtype=F32), Load("s", "x", (AT, lit(0)))]
    shrink = (Assign("q", "multiply", ("s", "half")), Accum("s", "zero", base="q"))
    loop = Loop(axis("k", trips), (WarpShuffle(("s",), ("o",), program, 4, prefix=prefix), *shrink), seed=False)
    expected = X[:, 0].reshape(16, 4)
    for _ in range(trips):
        expected = (expected.cumsum(1) if prefix else np.repeat(expected.sum(1, keepdims=True), 4, 1)) / 2
    np.testing.assert_allclose(folded(loop, before=tuple(known)), expected.reshape(64), rtol=1e-5)


def test_an_index_value_can_be_carried() -> None:
    body = (Let("m", op("+", op("*", var("k"), 3), AT), dtype=I32), Accum("s", "m", "maximum", dtype=I32))
    got = folded(Loop(axis("k", 40), body))
    np.testing.assert_array_equal(got, np.arange(64) + 39 * 3)


# ------------------------------------------------------------------------------------------- conditions of all kinds


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        (op("<", AT, 7), lambda i: i < 7), (op(">=", lit(7), AT), lambda i: i <= 7), (lit(1), lambda i: i >= 0),
        (lit(0), lambda i: i < 0), (op("%", AT, 3), lambda i: i % 3 != 0), (var("a"), lambda i: i != 3),
        (op("&&", op(">", AT, 3), op("<", AT, 9)), lambda i: (i > 3) & (i < 9)),
        (op("||", op("<", AT, 3), op("==", op("&", AT, 8), 8)), lambda i: (i < 3) | (i & 8 == 8)),
        (op("!=", op("*", var("a"), 2.0), -4.0), lambda i: i != 1), (op("<", AT, 64), lambda i: i >= 0),
        (op(">", op("/", AT, 64), 0), lambda i: i < 0), (TernaryExpr(op("<", AT, 5), lit(0), lit(2)), lambda i: i >= 5),
        (op("<", op("<", AT, 5), 1), lambda i: i >= 5), (CastExpr("bool", op("/", AT, 2)), lambda i: i >= 2),
        (op("==", op("%", op("+", op("*", AT, 4), 3), 4), 3), lambda i: i >= 0),
        (op("<", var("a"), 0), lambda i: i < 3),
    ],
)  # fmt: skip
def test_conditions(condition: Any, holds: Any) -> None:
    i = np.arange(64)
    stmts = [Init("one", 1.0, dtype=F32), Init("two", 2.0, dtype=F32)]
    branch = Cond(condition, (Write("y", (AT,), "one"),), (Write("y", (AT,), "two"),))
    got = run(
        kernel_graph(tile({"i": 64}, [LOAD, *stmts, branch]), {"x": (64,)}, {"y": (64,)}),
        {"x": i.astype(np.float32) - 3},
    )["y"]
    np.testing.assert_array_equal(got, np.where(holds(i), 1, 2))


def test_a_decided_condition_leaves_no_branch() -> None:
    kernel = compiled(pointwise(Cond(op("<", AT, 64), (WRITE,)), Cond(op("<", AT, 0), (WRITE,)), threads=64))
    assert kernel.ptx.count("st.global") == 2
    assert "bra" not in kernel.ptx


# ------------------------------------------------------------------------------------------------------ counters
# A counter counts what the index is always a multiple of.

PLACE = op("+", op("//", var("k"), 8), op("%", var("k"), 8))
PLACED = Load("v", "x", (AT, PLACE))


@pytest.mark.parametrize("end", [0, 7, 8, 9, 47, 48, 49, 64, "n"])
@pytest.mark.parametrize(("start", "step"), [(0, 8), (8, 8), (8, 16), (16, 24), (6, 12), (24, 4), (0, 3)])
def test_quotients_and_remainders_of_a_strided_index(start: int, step: int, end: int | str) -> None:
    stop = var("n") if isinstance(end, str) else lit(end)
    loop = StridedLoop(axis("k", 64), lit(start), lit(step), (PLACED, SUM), end=stop)
    for size in (1, 6, 8, 23, 24, 25, 63) if end == "n" else (None,):
        indices = np.arange(start, size or end, step)
        got = folded(loop, size=size)
        np.testing.assert_array_equal(got, X[:, indices // 8 + indices % 8].sum(1))


@pytest.mark.parametrize("relation", ["<", "<=", ">", ">=", "==", "!="])
def test_comparisons_of_a_strided_index(relation: str) -> None:
    compare = {"<": np.less, "<=": np.less_equal, ">": np.greater, ">=": np.greater_equal, "==": np.equal}
    for bound in (-1, 0, 1, 7, 8, 9, 23, 24, 25, 56, 57):
        loop = StridedLoop(axis("k", 64), lit(0), lit(8), (ROW, Cond(op(relation, var("k"), bound), (SUM,))))
        indices = np.arange(0, 64, 8)
        taken = compare[relation](indices, bound) if relation in compare else indices != bound
        before = (Init("s", 0.0, dtype=F32),)
        np.testing.assert_array_equal(folded(loop, before=before), X[:, indices[taken]].sum(1))


def test_the_slot_of_a_ring_is_a_bit_of_the_counter() -> None:
    slot = op("%", op("//", var("k"), 8), 2)
    loop = StridedLoop(axis("k", 8 * 51), lit(0), lit(8), (Load("v", "x", (AT, slot)), *[SUM] * 40))
    graph = kernel_graph(tile({"i": 64}, [loop, Write("y", (AT,), "s")], 64), {"x": (64, 64)}, {"y": (64,)})
    ptx = compiled(graph).ptx
    assert "and.b32" in ptx
    assert not any(word in ptx for word in ("shr", "div", "rem", "mul.hi"))
