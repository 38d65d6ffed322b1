"""Tensor-core statements against NumPy: fragments of f16 and bf16, filled, multiplied, changed and stored.

Numbers are small integers, so products and sums are exact whatever their order.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from emmy.compiler.dim import Dim
from emmy.compiler.dtype import encode_f8
from emmy.compiler.ir.elementwise import ElementwiseImpl
from emmy.compiler.ir.kernel import ir
from emmy.compiler.ir.pure.lam import Lambda
from emmy.compiler.ir.stmt import Assign, Body
from kernel_ir import (
    Cond,
    FragmentApply,
    FragmentPromote,
    FragmentRepack,
    FragmentRowReduce,
    LdmatrixLoad,
    Load,
    Loop,
    MmaSyncPtx,
    RegFragment,
    RegStore,
    Select,
    SelectBranch,
    Smem,
    Sync,
    Write,
    axis,
    dtype,
    lit,
    op,
    tile,
    var,
)
from lowering_lab import Array, compiled, kernel_graph, of_bfloat, refused, run, to_bfloat

SHAPE = (16, 8, 16)
I = var("i")  # noqa: E741 - the tile's axis
C_NAMES = {"f16": "__half", "bf16": "__nv_bfloat16", "f32": "float"}
ZERO = (lit(0), lit(0))


def numbers(seed: int, *shape: int) -> Array:
    """Small integers as floats."""
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(np.float32)


def stored(values: Array, kind: str) -> Array:
    """Numbers as a buffer of a type holds them."""
    return to_bfloat(values) if kind == "bf16" else values.astype({"f16": np.float16, "f32": np.float32}[kind])


def plain(values: Array, kind: str) -> Array:
    """The numbers in a buffer of a type."""
    return of_bfloat(values) if kind == "bf16" else values.astype(np.float32)


def fill(array: str, buffer: str, count: int, swizzle: str = "NONE") -> list[Any]:
    """A warp copies a buffer to a shared array, element by element."""
    stmts: list[Any] = []
    for at in range(0, count, 32):
        index = (op("+", I, at),)
        name = f"{array}{at}"
        stmts += [Load(name, buffer, index), Write(array, index, name, swizzle=swizzle)]
    return stmts


def fragment(name: str, role: str, kind: str, **fields: Any) -> Any:
    return RegFragment(name, role, SHAPE, dtype(kind), **fields)


def multiply(a: str = "a", b: str = "b", c: str = "c", kind: str = "f16", **fields: Any) -> Any:
    return MmaSyncPtx(c, a, b, SHAPE, kind, **fields)


def warp(stmts: Iterable[Any], inputs: dict[str, Any], outputs: dict[str, Any], **fields: Any) -> Any:
    """A kernel of one warp."""
    return kernel_graph(tile({"i": 32}, stmts, 32), inputs, outputs, **fields)


# ------------------------------------------------------------------------------------------- through shared memory


@pytest.mark.parametrize("kind", ["f16", "bf16"])
@pytest.mark.parametrize("trans", [False, True])
@pytest.mark.parametrize("paired", [False, True])
@pytest.mark.parametrize("swizzle", ["NONE", "B32", "B64", "B128", "B128@7"])
def test_a_product_through_shared_memory(kind: str, trans: bool, paired: bool, swizzle: str) -> None:
    depth, columns = 64, 16 if paired else 8
    a, b = numbers(1, 16, depth), numbers(2, depth, columns)
    shape_b = (columns, depth) if trans else (depth, columns)
    stmts = [
        Smem("sa", (16, depth), C_NAMES[kind], align=128),
        Smem("sb", shape_b, C_NAMES[kind], align=128),
        *fill("sa", "x", 16 * depth, swizzle),
        *fill("sb", "y", depth * columns, "NONE" if columns == 8 else swizzle),
        Sync(),
        fragment("a", "a", kind),
        *[fragment(f"b{n}", "b", kind) for n in range(columns // 8)],
        *[fragment(f"c{n}", "c", "f32") for n in range(columns // 8)],
    ]
    for at in range(0, depth, 16):
        second = {"pair_frag": "b1"} if paired else {}
        index = (lit(0), lit(at)) if trans else (lit(at), lit(0))
        stmts += [
            LdmatrixLoad("a", "sa", (lit(0), lit(at)), "a", ldm=depth, swizzle=swizzle),
            LdmatrixLoad(
                "b0",
                "sb",
                index,
                "b",
                ldm=shape_b[1],
                b_trans=trans,
                swizzle="NONE" if columns == 8 else swizzle,
                **second,
            ),
            *[multiply("a", f"b{n}", f"c{n}", kind) for n in range(columns // 8)],
        ]
    stmts += [RegStore("z", (lit(0), lit(8 * n)), f"c{n}", SHAPE) for n in range(columns // 8)]
    given = {"x": ((16, depth), kind), "y": (shape_b, kind)}
    graph = warp(stmts, given, {"z": (16, columns)})
    got = run(graph, {"x": stored(a, kind), "y": stored(b.T.copy() if trans else b, kind)})
    np.testing.assert_array_equal(got["z"], a @ b)


# ----------------------------------------------------------------------------------------- straight from memory


def direct(role: str, buffer: str, **fields: Any) -> Any:
    return LdmatrixLoad(role, buffer, ZERO, role, staged=False, **fields)


@pytest.mark.parametrize("kind", ["f16", "bf16"])
@pytest.mark.parametrize("source", ["f16", "bf16", "f32"])
@pytest.mark.parametrize("trans", [False, True])
@pytest.mark.parametrize("depth", [16, 17])
def test_a_product_straight_from_global_memory(kind: str, source: str, trans: bool, depth: int) -> None:
    a, b = numbers(3, 16, depth), numbers(4, depth, 8)
    stmts = [
        *[fragment(name, name, kind) for name in "ab"],
        fragment("c", "c", "f32"),
        direct("a", "x"),
        direct("b", "y", b_trans=trans),
        multiply(kind=kind),
        RegStore("z", ZERO, "c", SHAPE),
    ]
    shape_b = (8, depth) if trans else (depth, 8)
    graph = warp(stmts, {"x": ((16, depth), source), "y": (shape_b, source)}, {"z": (16, 8)})
    got = run(graph, {"x": stored(a, source), "y": stored(b.T.copy() if trans else b, source)})
    np.testing.assert_array_equal(got["z"], a[:, :16] @ b[:16])


@pytest.mark.parametrize("trans", [False, True])
@pytest.mark.parametrize(("rows", "columns", "depth"), [(16, 8, 16), (11, 5, 16), (1, 1, 9), (16, 8, 3), (9, 8, 15)])
def test_edges_of_a_tile_read_nothing_outside(trans: bool, rows: int, columns: int, depth: int) -> None:
    a, b = numbers(5, rows, depth), numbers(6, depth, columns)
    stmts = [
        *[fragment(name, name, "f16") for name in "ab"],
        fragment("c", "c", "f32"),
        direct("a", "x", gmem_guard=(lit(0), lit(rows)), k_zero=(lit(0), lit(depth))),
        direct("b", "y", b_trans=trans, gmem_guard=(lit(0), lit(columns)), k_zero=(lit(0), lit(depth))),
        multiply(),
        RegStore("z", ZERO, "c", SHAPE, m_guard=(lit(0), lit(rows)), n_guard=(lit(0), lit(columns))),
    ]
    shape_b = (columns, depth) if trans else (depth, columns)
    graph = warp(stmts, {"x": ((rows, depth), "f16"), "y": (shape_b, "f16")}, {"z": (rows, columns)})
    got = run(graph, {"x": stored(a, "f16"), "y": stored(b.T.copy() if trans else b, "f16")})
    np.testing.assert_array_equal(got["z"], a @ b)


def test_a_tile_wholly_outside_is_zero() -> None:
    stmts = [
        *[fragment(name, name, "f16") for name in "ab"],
        fragment("c", "c", "f32"),
        direct("a", "x", gmem_guard=(lit(16), lit(3))),
        direct("b", "y"),
        multiply(),
        RegStore("z", ZERO, "c", SHAPE),
    ]
    graph = warp(stmts, {"x": ((16, 16), "f16"), "y": ((16, 8), "f16")}, {"z": (16, 8)})
    got = run(graph, {"x": numbers(1, 16, 16), "y": numbers(2, 16, 8)})
    np.testing.assert_array_equal(got["z"], np.zeros((16, 8)))


# ------------------------------------------------------------------------------------------ accumulators in registers


def loaded(kind: str = "f16", c: str = "f32") -> list[Any]:
    """The product of ``x`` and ``y`` in ``c``."""
    return [
        *[fragment(name, name, kind) for name in "ab"],
        fragment("c", "c", c),
        direct("a", "x"),
        direct("b", "y"),
        multiply(kind=kind, c_dtype=c),
    ]


GIVEN = {"x": ((16, 16), "f16"), "y": ((16, 8), "f16")}
A, B = numbers(7, 16, 16), numbers(8, 16, 8)
ARRAYS = {"x": A.astype(np.float16), "y": B.astype(np.float16)}
PRODUCT = A @ B


def applied(*stmts: Any, out: str = "c", more: dict[str, Any] | None = None, arrays: Any = None) -> Array:
    """What is stored of the product after ``stmts``."""
    graph = warp([*loaded(), *stmts, RegStore("z", ZERO, out, SHAPE)], {**GIVEN, **(more or {})}, {"z": (16, 8)})
    return run(graph, {**ARRAYS, **(arrays or {})})["z"]


def apply(out: str, name: str, *args: tuple[Any, str], **fields: Any) -> Any:
    return FragmentApply(out, ElementwiseImpl(name), tuple(a for a, _ in args), tuple(k for _, k in args), **fields)


def test_a_packed_accumulator_is_promoted() -> None:
    stmts = [
        *loaded(c="f16"),
        fragment("total", "c", "f32"),
        FragmentPromote("total", "c"),
        multiply(c_dtype="f16"),
        FragmentPromote("total", "c"),
        RegStore("z", ZERO, "total", SHAPE),
    ]
    got = run(warp(stmts, GIVEN, {"z": (16, 8)}), ARRAYS)
    np.testing.assert_array_equal(got["z"], 2 * PRODUCT)


def test_elements_take_uniform_numbers_and_other_elements() -> None:
    scale = apply("d", "multiply", ("c", "frag"), (lit(0.5), "uniform"))
    total = apply("d", "add", ("d", "frag"), ("c", "frag"), in_place=True)
    np.testing.assert_array_equal(applied(scale, total, out="d"), 1.5 * PRODUCT)


def test_elements_take_their_rows_values_and_what_follows() -> None:
    stmts = [
        FragmentRowReduce("top", "bot", ("c",), ElementwiseImpl("maximum")),
        apply("d", "subtract", ("c", "frag"), (("top", "bot"), "row"), post=(ElementwiseImpl("negative"),)),
    ]
    np.testing.assert_array_equal(applied(*stmts, out="d"), PRODUCT.max(axis=1, keepdims=True) - PRODUCT)


def test_rows_of_several_fragments_are_reduced() -> None:
    stmts = [
        apply("d", "multiply", ("c", "frag"), (lit(2.0), "uniform")),
        FragmentRowReduce("top", "bot", ("c", "d"), ElementwiseImpl("add")),
        apply("e", "multiply", ("c", "frag"), (("top", "bot"), "row")),
    ]
    np.testing.assert_array_equal(applied(*stmts, out="e"), PRODUCT * (3 * PRODUCT.sum(axis=1, keepdims=True)))


def test_elements_are_masked_by_their_place_in_the_matrix() -> None:
    later = op(">", var(ir.FRAG_COL), var(ir.FRAG_ROW))
    where = apply(
        "c", "where", (later, "coord"), (lit(-7.0), "uniform"), ("c", "frag"),
        in_place=True, row_base=lit(2), col_base=lit(5),
    )  # fmt: skip
    rows, columns = np.arange(16)[:, None] + 2, np.arange(8) + 5
    np.testing.assert_array_equal(applied(where), np.where(columns > rows, -7, PRODUCT))


@pytest.mark.parametrize("kind", ["f32", "f16"])
def test_elements_take_what_lies_at_their_place(kind: str) -> None:
    bias = numbers(9, 20, 10)
    index = (var(ir.FRAG_ROW), var(ir.FRAG_COL))
    add = apply("c", "add", ("c", "frag"), (("w", index), "gmem"), in_place=True, row_base=lit(3), col_base=lit(1))
    got = applied(add, more={"w": ((20, 10), kind)}, arrays={"w": stored(bias, kind)})
    np.testing.assert_array_equal(got, PRODUCT + bias[3:19, 1:9])


def test_accumulators_become_a_multiplicand() -> None:
    v = numbers(10, 16, 8)
    stmts = [
        *loaded(),
        apply("d", "add", ("c", "frag"), (lit(1.0), "uniform")),
        fragment("p", "a", "f16"),
        FragmentRepack("p", ("c", "d")),
        direct("b", "v"),
        fragment("o", "c", "f32"),
        multiply("p", "b", "o"),
        RegStore("z", ZERO, "o", SHAPE),
    ]
    got = run(warp(stmts, {**GIVEN, "v": ((16, 8), "f16")}, {"z": (16, 8)}), {**ARRAYS, "v": stored(v, "f16")})
    np.testing.assert_array_equal(got["z"], np.concatenate([PRODUCT, PRODUCT + 1], axis=1) @ v)


def test_a_family_of_fragments_is_chosen_by_an_unrolled_loop() -> None:
    r = var("r")
    stmts = [
        *loaded()[:-1],
        fragment("f", "c", "f32", count=3),
        Loop(axis("r", 3), (multiply(c="f[r]"), multiply(c="f[r]"))),
        multiply(c="f[1]"),
        Loop(axis("r", 3), (RegStore("z", (op("*", r, 16), lit(0)), "f[r]", SHAPE),)),
    ]
    got = run(warp(stmts, GIVEN, {"z": (48, 8)}), ARRAYS)
    np.testing.assert_array_equal(got["z"], np.concatenate([2 * PRODUCT, 3 * PRODUCT, 2 * PRODUCT]))


@pytest.mark.parametrize("around", ["loop", "condition"])
def test_a_family_that_is_declared_inside_is_carried_whole(around: str) -> None:
    r = var("r")
    body = (
        fragment("f", "c", "f32", count=3),
        Loop(axis("t", 1000), (Loop(axis("r", 3), (multiply(c="f[r]"),)),)),
        Loop(axis("r", 3), (RegStore("z", (op("*", r, 16), lit(0)), "f[r]", SHAPE),)),
    )
    outer = Loop(axis("o", 300), body) if around == "loop" else Cond(op("<", var("n"), 5), body)
    inputs = {**GIVEN, "few": ((1,), "i32")}
    graph = warp([*loaded()[:-1], Load("n", "few", (lit(0),)), outer], inputs, {"z": (48, 8)})
    got = run(graph, {**ARRAYS, "few": np.ones(1, np.int32)})
    np.testing.assert_array_equal(got["z"], np.tile(1000 * PRODUCT, (3, 1)))


def test_loops_carry_fragments() -> None:
    turns = Loop(
        axis("t", 1000), (multiply(), apply("c", "multiply", ("c", "frag"), (lit(0.5), "uniform"), in_place=True))
    )
    expected = np.zeros((16, 8), np.float32)
    for _ in range(1000):
        expected = (expected + PRODUCT) * np.float32(0.5)
    graph = warp([*loaded()[:-1], turns, RegStore("z", ZERO, "c", SHAPE)], GIVEN, {"z": (16, 8)})
    np.testing.assert_allclose(run(graph, ARRAYS)["z"], expected, rtol=1e-6)


@pytest.mark.parametrize("ahead", [False, True])
def test_kernels_that_load_an_iteration_ahead_say_how_many_ctas_fit(ahead: bool) -> None:
    """Loads of the same iteration can wait, so ptxas decides on registers itself."""
    depth = 2048
    load = LdmatrixLoad("a", "sa", (lit(0), op("%", op("*", var("t"), 16), depth)), "a", ldm=depth)
    products = [multiply(c=f"c{n}") for n in range(16)]
    turn = (*products, load) if ahead else (load, *products)
    stmts = [
        Smem("sa", (16, depth), "__half", align=128), *fill("sa", "x", 512), Sync(),
        fragment("a", "a", "f16"), fragment("b", "b", "f16"), *[fragment(f"c{n}", "c", "f32") for n in range(16)],
        LdmatrixLoad("a", "sa", ZERO, "a", ldm=depth), direct("b", "y"),
        Loop(axis("t", 1000), turn), *[RegStore("z", (lit(0), lit(8 * n)), f"c{n}", SHAPE) for n in range(16)],
    ]  # fmt: skip
    graph = warp(stmts, {"x": ((16, depth), "f16"), "y": ((16, 8), "f16")}, {"z": (16, 128)})
    assert (".minnctapersm 2\n" in compiled(graph, target="sm_80").ptx) is ahead


# ---------------------------------------------------------------------------------------------------------- stores


@pytest.mark.parametrize("kind", ["f16", "bf16", "f32"])
@pytest.mark.parametrize("width", [8, 9])
def test_stores_round_to_the_buffers_type(kind: str, width: int) -> None:
    got = run(warp([*loaded(), RegStore("z", ZERO, "c", SHAPE)], GIVEN, {"z": ((16, width), kind)}), ARRAYS)
    np.testing.assert_array_equal(plain(got["z"], kind)[:, :8], plain(stored(PRODUCT, kind), kind))


@pytest.mark.parametrize("kind", ["f16", "bf16", "f32"])
def test_atomic_stores_add(kind: str) -> None:
    store = RegStore("z", ZERO, "c", SHAPE, atomic=True)
    got = run(warp([*loaded(), store, store], GIVEN, {"z": ((16, 8), kind)}), ARRAYS)
    np.testing.assert_array_equal(plain(got["z"], kind), plain(stored(2 * PRODUCT, kind), kind))


def test_a_transposed_store() -> None:
    store = RegStore("z", ZERO, "c", SHAPE, row_dim=1, col_dim=0)
    got = run(warp([*loaded(), store], GIVEN, {"z": (8, 16)}), ARRAYS)
    np.testing.assert_array_equal(got["z"], PRODUCT.T)


@pytest.mark.parametrize("kind", ["f16", "bf16", "f32"])
def test_a_run_of_four_cells(kind: str) -> None:
    cells = [RegStore("z", (lit(0), lit(8 * n)), f"c{n}", SHAPE) for n in range(4)]
    stmts = [*loaded(), *[apply(f"c{n}", "add", ("c", "frag"), (lit(float(n)), "uniform")) for n in range(4)]]
    store = RegStore("z", ZERO, "c0", SHAPE, run=tuple(cells[1:]))
    got = run(warp([*stmts, store], GIVEN, {"z": ((16, 32), kind)}), ARRAYS)
    np.testing.assert_array_equal(plain(got["z"], kind), np.concatenate([PRODUCT + n for n in range(4)], axis=1))


@pytest.mark.parametrize("swizzle", ["NONE", "B128", "B32"])
def test_a_store_to_shared_memory_is_read_back(swizzle: str) -> None:
    eye = np.eye(16, dtype=np.float16)
    stmts = [
        Smem("s", (16, 64), "__half", align=128),
        *fill("s", "zeros", 1024),
        *loaded(),
        Sync(),
        RegStore("s", ZERO, "c", SHAPE, swizzle=swizzle),
        RegStore("s", (lit(0), lit(8)), "c", SHAPE, swizzle=swizzle),
        Sync(),
        fragment("p", "a", "f16"),
        LdmatrixLoad("p", "s", ZERO, "a", ldm=64, swizzle=swizzle),
        direct("b", "eye"),
        fragment("o", "c", "f32"),
        multiply("p", "b", "o"),
        RegStore("z", ZERO, "o", SHAPE),
    ]
    given = {**GIVEN, "zeros": ((16, 64), "f16"), "eye": ((16, 16), "f16")}
    got = run(warp(stmts, given, {"z": (16, 8)}), {**ARRAYS, "zeros": np.zeros((16, 64)), "eye": eye})
    np.testing.assert_array_equal(got["z"], PRODUCT)


def epilogue(params: Iterable[str], body: Iterable[Any], result: str) -> Any:
    return Lambda.closing(tuple(params), Body(tuple(body)), (result,))


@pytest.mark.parametrize("target", ["sm_80", "sm_89"])
@pytest.mark.parametrize("kind", ["f8e4m3", "f8e5m2"])
@pytest.mark.parametrize("last", ["", "round", "multiply"])
@pytest.mark.parametrize("width", [8, 9])
def test_two_bytes_are_one_store(target: str, kind: str, last: str, width: int) -> None:
    """Rounded by the store, by the epilogue's last step, or by one that computes something."""
    steps = [Load("scale", "w", (lit(0),)), Assign("s", ElementwiseImpl("multiply"), ("acc", "scale"))]
    if last == "round":
        steps.append(Assign("t", ElementwiseImpl(f"to_{kind}"), ("s",), dtype(kind)))
    elif last == "multiply":
        steps.append(Assign("t", ElementwiseImpl("multiply"), ("s", "scale"), dtype(kind)))
    chain = epilogue(("acc",), steps, steps[-1].name if last else "s")
    graph = warp(
        [*loaded(), RegStore("z", ZERO, "c", SHAPE, epilogue=chain)],
        {**GIVEN, "w": ((1,), "f32")},
        {"z": ((16, width), kind)},
    )
    got = run(graph, {**ARRAYS, "w": np.array([11.25], np.float32)}, target)["z"][:, :8]
    exact = PRODUCT * np.float32(11.25) ** (2 if last == "multiply" else 1)
    np.testing.assert_array_equal(got, encode_f8(exact, kind))
    ptx = compiled(graph, target).ptx
    assert re.findall(r"st\.global\.[bu](\d+)", ptx) == (["16"] * 2 if width == 8 else ["8"] * 4)
    assert ptx.count("x2.f32") == (0 if target == "sm_80" else 2 if width == 8 and last != "multiply" else 4)


@pytest.mark.parametrize("rows", [16, 13])
def test_an_epilogue_loads_and_computes(rows: int) -> None:
    row, column = var(ir.ELEM_ROW), var(ir.ELEM_COL)
    chain = [
        Load("bias", "w", (op("+", column, 1),)),
        Load("rest", "r", (row, column)),
        Assign("t", ElementwiseImpl("add"), ("acc", "bias")),
        Assign("u", ElementwiseImpl("multiply"), ("t", "rest")),
        Select("v", (SelectBranch(value="u", select=op("<", column, row)), SelectBranch(value="t", select=lit(1)))),
        Assign("s", ElementwiseImpl("add"), ("v", "second")),
    ]
    store = RegStore(
        "z", ZERO, "c", SHAPE, epilogue=epilogue(("acc", "second"), chain, "s"), extra_frags=("d",),
        m_guard=(lit(0), lit(rows)) if rows < 16 else None,
    )  # fmt: skip
    w, r = numbers(11, 9), numbers(12, rows, 8)
    stmts = [*loaded(), apply("d", "multiply", ("c", "frag"), (lit(3.0), "uniform")), store]
    graph = warp(stmts, {**GIVEN, "w": ((9,), "f16"), "r": (rows, 8)}, {"z": (rows, 8)})
    got = run(graph, {**ARRAYS, "w": stored(w, "f16"), "r": r})
    t = PRODUCT[:rows] + w[1:]
    chosen = np.where(np.arange(8) < np.arange(rows)[:, None], t * r, t)
    np.testing.assert_array_equal(got["z"], chosen + 3 * PRODUCT[:rows])


@pytest.mark.parametrize("kind", ["f32", "f16"])
@pytest.mark.parametrize("more", [0, 4])
@pytest.mark.parametrize(("rows", "columns"), [(13, 8), (16, 5), (9, 7), (8, 8), (1, 8)])
def test_an_epilogue_at_an_edge(rows: int, columns: int, more: int, kind: str) -> None:
    row, column = var(ir.ELEM_ROW), var(ir.ELEM_COL)
    extra = [Assign(f"t{at + 1}", ElementwiseImpl("add"), (f"t{at}", "factor")) for at in range(more)]
    chain = [
        Load("factor", "f", (row,)),
        Load("bias", "w", (column,)),
        Assign("t0", ElementwiseImpl("multiply"), ("acc", "factor")),
        *extra,
        Assign("s", ElementwiseImpl("add"), (f"t{more}", "bias")),
    ]
    store = RegStore(
        "z", ZERO, "c", SHAPE, epilogue=epilogue(("acc",), chain, "s"),
        m_guard=(lit(0), op("+", var("n"), 0)), n_guard=(lit(0), lit(columns)) if columns < 8 else None,
    )  # fmt: skip
    f, w = numbers(11, 16), numbers(12, 8)
    inputs = {**GIVEN, "f": (16,), "w": (8,), "size": (Dim("n"),)}
    graph = warp([*loaded(), store], inputs, {"z": ((16, 8), kind)})
    arrays = {**ARRAYS, "f": f, "w": w, "size": np.zeros(rows, np.float32)}
    expected = np.full((16, 8), np.nan, np.float32)  # what is outside nobody writes
    expected[:rows, :columns] = ((PRODUCT + more) * f[:, None] + w)[:rows, :columns]
    np.testing.assert_array_equal(run(graph, arrays)["z"].astype(np.float32), expected)
    ptx = compiled(graph).ptx
    # A block for each of the two rows.
    branches = more > 0 and columns == 8
    assert ptx.count("bra $") == (2 if branches else 0)


@pytest.mark.parametrize("by", ["column", "row", "nothing"])
@pytest.mark.parametrize("outside", [False, True])
def test_an_epilogue_that_gathers_by_what_it_has_loaded(by: str, outside: bool) -> None:
    """What it loads by its own values is no row's, not even where a name outside is the same."""
    place = {"column": var(ir.ELEM_COL), "row": var(ir.ELEM_ROW), "nothing": lit(5)}[by]
    chain = [
        Load("j", "ids", (place,)),
        Load("factor", "f", (var("j"),)),
        Assign("t0", ElementwiseImpl("multiply"), ("acc", "factor")),
        *[Assign(f"t{at + 1}", ElementwiseImpl("add"), (f"t{at}", "factor")) for at in range(3)],
        Assign("s", ElementwiseImpl("add"), ("t3", "factor")),
    ]
    store = RegStore("z", ZERO, "c", SHAPE, epilogue=epilogue(("acc",), chain, "s"), m_guard=(lit(0), var("n")))
    shadowed = [Load("j", "ids", (lit(0),))] if outside else []
    ids, f = np.random.default_rng(5).integers(0, 16, 16).astype(np.int32), numbers(11, 16)
    inputs = {**GIVEN, "f": (16,), "ids": ((16,), "i32"), "size": (Dim("n"),)}
    arrays = {**ARRAYS, "f": f, "ids": ids, "size": np.zeros(11, np.float32)}
    got = run(warp([*shadowed, *loaded(), store], inputs, {"z": (16, 8)}), arrays)["z"]
    gathered = {"column": f[ids[:8]][None, :], "row": f[ids][:, None], "nothing": f[ids[5]]}[by]
    np.testing.assert_array_equal(got[:11], ((PRODUCT + 4) * gathered)[:11])


# ---------------------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("stmts", "what"),
    [
        ([*loaded()[:3], MmaSyncPtx("c", "a", "b", (16, 8, 64), "f16")], "m16n8k64"),
        ([*loaded()[:3], multiply(kind="f64")], "f64"),
        ([*loaded()[:2], fragment("c", "c", "f16"), multiply()], "'c' is C of f16 in 2 registers, not C of f32 in 4"),
        ([multiply()], "there is no fragment 'a'"),
        ([fragment("q", "q", "f16")], "the role 'q'"),
        ([*loaded(), RegStore("x", ZERO, "c", SHAPE)], "no output"),
        ([*loaded(), LdmatrixLoad("a", "x", ZERO, "a")], "no shared array"),
        ([Smem("s", (16, 20), "__half"), *loaded(), LdmatrixLoad("a", "s", ZERO, "a", ldm=20)], "not aligned"),
        ([Smem("s", (16, 64), "__half"), *loaded(), LdmatrixLoad("a", "s", ZERO, "a", ldm=64, swizzle="B9")], "'B9'"),
        ([*loaded(), RegStore("z", ZERO, "c", SHAPE, fragment_layout="m7")], "'m7'"),
        (
            [*loaded(), fragment("f", "c", "f32", count=2), Loop(axis("r", var("n")), (multiply(c="f[r]"),))],
            "depends on a loop",
        ),
    ],
)  # fmt: skip
def test_what_no_tensor_core_does_is_an_error(stmts: list[Any], what: str) -> None:
    error = refused(lambda: warp(stmts, {**GIVEN, "e": ((var("n"),), "f32")}, {"z": (16, 8)}))
    assert what in str(error)
    assert error.statement
