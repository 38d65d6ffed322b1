"""Volta's tensor-core statements (m8n8k4) against NumPy, and against nvcc's PTX for Emmy's own CUDA.

Numbers are small integers, so products and sums are exact whatever their order.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from emmy.compiler.ir.elementwise import ElementwiseImpl
from emmy.compiler.ir.expr import FuncCallExpr
from emmy.compiler.ir.kernel import ir
from emmy.compiler.ir.pure.lam import Lambda
from emmy.compiler.ir.stmt import Assign, Body
from kernel_ir import (
    CpAsyncCopy,
    FragmentApply,
    FragmentPromote,
    FragmentRepack,
    FragmentRowReduce,
    LdmatrixLoad,
    Let,
    Load,
    Loop,
    MmaSyncPtx,
    RegFragment,
    RegStore,
    Smem,
    StridedLoop,
    Sync,
    Write,
    axis,
    dtype,
    lit,
    op,
    tile,
    var,
)
from lowering_lab import Array, compiled, kernel_graph, refused, run, run_emmy

TARGET = "sm_70"
SHAPE = (8, 8, 4)
LAYOUT = {"fragment_layout": "m8n8k4"}
I = var("i")  # noqa: E741 - the tile's axis
ZERO = (lit(0), lit(0))
NVCC = pytest.mark.needs("nvcc")


def numbers(seed: int, *shape: int) -> Array:
    """Small integers as floats."""
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(np.float32)


def fragment(name: str, role: str, kind: str = "f16", registers: int | None = None) -> Any:
    default = {"a": 2, "b": 2, "c": 8 if kind == "f32" else 4}.get(role, 1)
    return RegFragment(name, role, SHAPE, dtype(kind), nregs=registers or default)


def operand(name: str, buffer: str, index: tuple[Any, ...], role: str, **fields: Any) -> Any:
    return LdmatrixLoad(name, buffer, index, role, **LAYOUT, **fields)


def multiply(a: str = "a", b: str = "b", c: str = "c", **fields: Any) -> Any:
    return MmaSyncPtx(c, a, b, SHAPE, "f16", **fields)


def store(buffer: str, index: tuple[Any, ...], name: str, **fields: Any) -> Any:
    return RegStore(buffer, index, name, SHAPE, **LAYOUT, **fields)


def warp(stmts: Iterable[Any], inputs: dict[str, Any], outputs: dict[str, Any]) -> Any:
    """A kernel of one warp."""
    return kernel_graph(tile({"i": 32}, stmts, 32), inputs, outputs)


def fill(array: str, buffer: str, shape: tuple[int, int], run: int = 8, swizzle: str = "NONE") -> list[Any]:
    """A warp copies a matrix of f16 to a shared array, ``run`` elements of a row in one statement."""
    rows, columns = shape
    stmts: list[Any] = []
    for at in range(0, rows * columns, 32 * run):
        element = op("+", op("*", I, run), at)
        index = (op("/", element, columns), op("%", element, columns))
        names = tuple(f"{array}{at}_{part}" for part in range(run))
        stmts += [Load(names=names, input=buffer, index=index), Write(array, index, values=names, swizzle=swizzle)]
    return stmts


# --------------------------------------------------------------------------------------------------- slab layouts


def crosswise(row: Array, column: Array, rows: int) -> Array:
    """``emmy_volta_crosswise``."""
    vector = column >> 2
    permuted = (row & ~15) + ((row & 3) << 2) + (((row >> 2) ^ ((row & 16) >> 3)) & 3)
    place: Array = (vector * rows + (permuted ^ ((vector & 7) >> 1 & 3))) * 4 + (column & 3)
    return place


def congruous(row: Array, column: Array, columns: int) -> Array:
    """``emmy_volta_b_congruous``."""
    vector = column >> 3
    of_row = vector & 3
    permuted = ((row & 3) ^ of_row) | (vector & 4)
    place: Array = ((row & ~3) + of_row) * columns + ((vector & ~7) + permuted) * 8 + (column & 7)
    return place


PLACES = {"V70A": crosswise, "V70B": congruous}
FUNCTIONS = {"V70A": "emmy_volta_crosswise", "V70B": "emmy_volta_b_congruous"}
ROWS, COLUMNS = 64, 128


def expected_places(mode: str) -> Array:
    row, column = np.divmod(np.arange(ROWS * COLUMNS), COLUMNS)
    return PLACES[mode](row, column, ROWS if mode == "V70A" else COLUMNS)


@pytest.mark.parametrize("mode", ["V70A", "V70B"])
def test_the_layouts_are_functions_of_row_and_column(mode: str) -> None:
    extent = lit(ROWS if mode == "V70A" else COLUMNS)
    place = FuncCallExpr(FUNCTIONS[mode], (op("/", I, COLUMNS), op("%", I, COLUMNS), extent))
    body = [Let("at", place, dtype("i32")), Write("y", (I,), "at")]
    graph = kernel_graph(tile({"i": ROWS * COLUMNS}, body, 128), {}, {"y": ((ROWS * COLUMNS,), "i32")})
    np.testing.assert_array_equal(run(graph, {}, TARGET)["y"], expected_places(mode))
    assert sorted(expected_places(mode)) == list(range(ROWS * COLUMNS))


def slab_of(mode: str, together: int) -> Any:
    """A kernel that fills a slab in the layout ``mode`` and shows it as it lies."""
    show = StridedLoop(
        axis("n", ROWS * COLUMNS), I, lit(32), (Load("v", "s", (var("n"),)), Write("y", (var("n"),), "v"))
    )
    body = [
        Smem("s", (ROWS, COLUMNS), "__half", align=16),
        *fill("s", "x", (ROWS, COLUMNS), together, mode),
        Sync(),
        show,
    ]
    return warp(body, {"x": ((ROWS, COLUMNS), "f16")}, {"y": ((ROWS * COLUMNS,), "f16")})


@pytest.mark.parametrize("mode", ["V70A", "V70B"])
@pytest.mark.parametrize("together", [1, 2, 4, 8])
def test_writes_fill_slabs(mode: str, together: int) -> None:
    x = np.arange(ROWS * COLUMNS, dtype=np.uint16).view(np.float16).reshape(ROWS, COLUMNS)
    got = run(slab_of(mode, together), {"x": x}, TARGET)["y"].view(np.uint16)
    np.testing.assert_array_equal(got[expected_places(mode)], np.arange(ROWS * COLUMNS))


def test_eight_elements_are_two_stores_where_the_layout_keeps_four_together() -> None:
    ptx = compiled(slab_of("V70A", 8), TARGET).ptx
    assert ptx.count("ld.global.nc.v4.b32") == ROWS * COLUMNS // 256
    assert ptx.count("st.shared.v2.b32") == 2 * ROWS * COLUMNS // 256
    assert compiled(slab_of("V70B", 8), TARGET).ptx.count("st.shared.v4.b32") == ROWS * COLUMNS // 256


# ------------------------------------------------------------------------------------------------ straight from memory


def of_b(values: Array, trans: bool) -> Array:
    """B as it lies in memory."""
    return np.ascontiguousarray(values.T) if trans else values


def shape_of(depth: int, columns: int, trans: bool) -> tuple[int, int]:
    return (columns, depth) if trans else (depth, columns)


@pytest.mark.parametrize("source", ["f16", "f32"])
@pytest.mark.parametrize("trans", [False, True])
@pytest.mark.parametrize("depth", [12, 13])
def test_a_product_straight_from_global_memory(source: str, trans: bool, depth: int) -> None:
    a, b = numbers(3, 16, depth), numbers(4, depth, 16)
    stmts = [fragment("a", "a"), fragment("b", "b"), fragment("c", "c", "f32")]
    for at in range(0, 12, 4):
        index = (lit(0), lit(at)) if trans else (lit(at), lit(0))
        stmts += [
            operand("a", "x", (lit(0), lit(at)), "a", staged=False),
            operand("b", "y", index, "b", staged=False, b_trans=trans),
            multiply(),
        ]
    given = {"x": ((16, depth), source), "y": (shape_of(depth, 16, trans), source)}
    graph = warp([*stmts, store("z", ZERO, "c")], given, {"z": (16, 16)})
    got = run(graph, {"x": a, "y": of_b(b, trans)}, TARGET)
    np.testing.assert_array_equal(got["z"], a[:, :12] @ b[:12])
    vector = {"f16": "v2.b32", "f32": "v2.f32"}[source]
    assert (f"ld.global.nc.{vector}" in compiled(graph, TARGET).ptx) == (depth == 12)


@pytest.mark.parametrize("trans", [False, True])
@pytest.mark.parametrize("source", ["f16", "f32"])
@pytest.mark.parametrize(("rows", "columns", "depth"), [(16, 16, 4), (11, 5, 4), (1, 1, 3), (16, 9, 1), (9, 16, 2)])
def test_edges_of_a_tile_read_nothing_outside(trans: bool, source: str, rows: int, columns: int, depth: int) -> None:
    a, b = numbers(5, rows, depth), numbers(6, depth, columns)
    edge_k = {"k_zero": (lit(0), lit(depth))} if depth < 4 else {}
    stmts = [
        *[fragment("a", "a"), fragment("b", "b"), fragment("c", "c", "f32")],
        operand("a", "x", ZERO, "a", staged=False, gmem_guard=(lit(0), lit(rows)), **edge_k),
        operand("b", "y", ZERO, "b", staged=False, b_trans=trans, gmem_guard=(lit(0), lit(columns)), **edge_k),
        multiply(),
        store("z", ZERO, "c", m_guard=(lit(0), lit(rows)), n_guard=(lit(0), lit(columns))),
    ]
    given = {"x": ((rows, depth), source), "y": (shape_of(depth, columns, trans), source)}
    got = run(warp(stmts, given, {"z": (rows, columns)}), {"x": a, "y": of_b(b, trans)}, TARGET)
    np.testing.assert_array_equal(got["z"], a @ b)


@pytest.mark.parametrize("left", ["3", "n"])
def test_a_tile_wholly_outside_reads_nothing(left: str) -> None:
    bound = lit(3) if left == "3" else var("n")
    stmts = [
        *[fragment("a", "a"), fragment("b", "b"), fragment("c", "c", "f32")],
        operand("a", "x", (lit(16), lit(0)), "a", staged=False, gmem_guard=(lit(16), bound)),
        operand("b", "y", ZERO, "b", staged=False),
        multiply(),
        store("z", ZERO, "c"),
    ]
    given = {"x": ((3, 4), "f16"), "y": ((4, 16), "f16"), "e": ((bound if left == "n" else 3,), "f32")}
    arrays = {"x": numbers(1, 3, 4), "y": numbers(2, 4, 16), "e": np.zeros(3, np.float32)}
    np.testing.assert_array_equal(run(warp(stmts, given, {"z": (16, 16)}), arrays, TARGET)["z"], np.zeros((16, 16)))


# ------------------------------------------------------------------------------------------- through shared memory


@pytest.mark.parametrize("kind", ["f16", "f32"])
@pytest.mark.parametrize("trans", [False, True])
def test_a_product_through_a_row_major_slab(kind: str, trans: bool) -> None:
    a, b = numbers(7, 16, 16), numbers(8, 16, 16)
    name = {"f16": "__half", "f32": "float"}[kind]
    copy = [
        [Load(f"{array}{at}", buffer, (op("+", I, at),)), Write(array, (op("+", I, at),), f"{array}{at}")]
        for array, buffer in (("sa", "x"), ("sb", "y"))
        for at in range(0, 256, 32)
    ]
    stmts = [
        *[Smem("sa", (16, 16), name, align=16), Smem("sb", (16, 16), name, align=16)],
        *[stmt for pair in copy for stmt in pair],
        Sync(),
        *[fragment("a", "a"), fragment("b", "b"), fragment("c", "c", "f32")],
    ]
    for at in range(0, 16, 4):
        index = (lit(0), lit(at)) if trans else (lit(at), lit(0))
        loads = (
            operand("a", "sa", (lit(0), lit(at)), "a", ldm=16),
            operand("b", "sb", index, "b", ldm=16, b_trans=trans),
        )
        stmts += [*loads, multiply()]
    given = {"x": ((16, 16), kind), "y": ((16, 16), kind)}
    graph = warp([*stmts, store("z", ZERO, "c")], given, {"z": (16, 16)})
    np.testing.assert_array_equal(run(graph, {"x": a, "y": of_b(b, trans)}, TARGET)["z"], a @ b)


DEPTH = 32


def tiles() -> list[tuple[int, int]]:
    """The places of the tiles of 16 x 16 in a square of 32 x 32."""
    return [(m, n) for m in (0, 1) for n in (0, 1)]


def paired(trans: bool, rolled: bool = False, c: str = "f32", edges: tuple[int, int] = (32, 32)) -> Any:
    """A product of 32 x 32 x 32 whose operands lie in the slabs that are read in pairs."""
    k = var("k") if rolled else None
    mode = "V70A" if trans else "V70B"
    stmts = [
        *[Smem("sa", (32, DEPTH), "__half", align=16), Smem("sb", shape_of(DEPTH, 32, trans), "__half", align=16)],
        *fill("sa", "x", (32, DEPTH), 8, "V70A"),
        *fill("sb", "y", shape_of(DEPTH, 32, trans), 8, mode),
        Sync(),
        *[fragment(f"{role}{at}", role) for role in "ab" for at in (0, 1)],
        *[fragment(f"c{m}{n}", "c", c) for m, n in tiles()],
    ]

    def step(at: Any) -> list[Any]:
        index = (lit(0), at) if trans else (at, lit(0))
        return [
            operand("a0", "sa", (lit(0), at), "a", ldm=DEPTH, swizzle="V70A", pair_frag="a1"),
            operand("b0", "sb", index, "b", ldm=32, swizzle=mode, pair_frag="b1", b_trans=trans),
            *[multiply(f"a{m}", f"b{n}", f"c{m}{n}", b_row_major=not trans, c_dtype=c) for m in (0, 1) for n in (0, 1)],
        ]

    if k is not None:
        stmts.append(StridedLoop(axis("k", var("e")), lit(0), lit(4), tuple(step(k))))
    else:
        stmts += [stmt for at in range(0, DEPTH, 4) for stmt in step(lit(at))]
    stmts += promoted() if c == "f16" else []
    name = "t" if c == "f16" else "c"
    for m, n in tiles():
        row, column = lit(16 * m), lit(16 * n)
        guards = {
            "m_guard": (row, lit(edges[0])) if edges[0] < 32 else None,
            "n_guard": (column, lit(edges[1])) if edges[1] < 32 else None,
        }
        stmts.append(
            store("z", (row, column), f"{name}{m}{n}", volta_interleaved=True, fragment_index=(m, n), **guards)
        )
    given = {"x": ((32, DEPTH), "f16"), "y": (shape_of(DEPTH, 32, trans), "f16")}
    more = {"l": ((var("e"),), "f32")} if rolled else {}
    return warp(stmts, {**given, **more}, {"z": edges})


def promoted() -> list[Any]:
    """The accumulators of :func:`paired` as f32."""
    made = [(fragment(f"t{m}{n}", "c", "f32"), FragmentPromote(f"t{m}{n}", f"c{m}{n}", "m8n8k4")) for m, n in tiles()]
    return [stmt for pair in made for stmt in pair]


PAIR_A, PAIR_B = numbers(9, 32, DEPTH), numbers(10, DEPTH, 32)


@pytest.mark.parametrize("trans", [False, True])
@pytest.mark.parametrize("rolled", [False, True])
@pytest.mark.parametrize("c", ["f32", "f16"])
def test_pairs_of_fragments(trans: bool, rolled: bool, c: str) -> None:
    arrays = {"x": PAIR_A, "y": of_b(PAIR_B, trans), **({"l": np.zeros(DEPTH, np.float32)} if rolled else {})}
    got = run(paired(trans, rolled, c), arrays, TARGET)
    np.testing.assert_array_equal(got["z"], PAIR_A @ PAIR_B)


@NVCC
@pytest.mark.parametrize("trans", [False, True])
def test_pairs_of_fragments_are_those_of_emmys_cuda(trans: bool) -> None:
    arrays = {"x": PAIR_A, "y": of_b(PAIR_B, trans)}
    got = run_emmy(paired(trans, c="f16"), {name: array.astype(np.float16) for name, array in arrays.items()}, "sm_75")
    np.testing.assert_array_equal(got["z"], PAIR_A @ PAIR_B)


@pytest.mark.parametrize(("rows", "columns"), [(32, 32), (29, 32), (18, 27)])
def test_stores_of_interleaved_tiles_end_at_edges(rows: int, columns: int) -> None:
    graph = paired(False, edges=(rows, columns))
    got = run(graph, {"x": PAIR_A, "y": PAIR_B}, TARGET)
    np.testing.assert_array_equal(got["z"], (PAIR_A @ PAIR_B)[:rows, :columns])


# ------------------------------------------------------------------------------------------ accumulators in registers

GIVEN = {"x": ((16, 4), "f16"), "y": ((4, 16), "f16")}
A, B = numbers(11, 16, 4), numbers(12, 4, 16)
ARRAYS = {"x": A.astype(np.float16), "y": B.astype(np.float16)}
PRODUCT = A @ B


def loaded(c: str = "f32") -> list[Any]:
    """The product of ``x`` and ``y`` in ``c``."""
    return [
        *[fragment("a", "a"), fragment("b", "b"), fragment("c", "c", c)],
        operand("a", "x", ZERO, "a", staged=False),
        operand("b", "y", ZERO, "b", staged=False),
        multiply(c_dtype=c),
    ]


def applied(*stmts: Any, out: str = "c", more: dict[str, Any] | None = None, arrays: Any = None) -> Array:
    """What is stored of the product after ``stmts``."""
    graph = warp([*loaded(), *stmts, store("z", ZERO, out)], {**GIVEN, **(more or {})}, {"z": (16, 16)})
    return run(graph, {**ARRAYS, **(arrays or {})}, TARGET)["z"]


def apply(out: str, name: str, *args: tuple[Any, str], **fields: Any) -> Any:
    values, kinds = tuple(a for a, _ in args), tuple(k for _, k in args)
    return FragmentApply(out, ElementwiseImpl(name), values, kinds, layout=ir.M8N8K4, **fields)


def test_a_packed_accumulator_is_promoted_and_begins_anew() -> None:
    stmts = [
        *loaded("f16"),
        fragment("total", "c", "f32"),
        FragmentPromote("total", "c", "m8n8k4"),
        multiply(c_dtype="f16"),
        FragmentPromote("total", "c", "m8n8k4"),
        store("z", ZERO, "total"),
    ]
    graph = warp(stmts, GIVEN, {"z": (16, 16)})
    np.testing.assert_array_equal(run(graph, ARRAYS, TARGET)["z"], 2 * PRODUCT)
    assert compiled(graph, TARGET).ptx.count("shfl.sync") == 4


def repacked(role: str) -> Any:
    """``(x @ y) @ v``, or ``v @ (x @ y)``, whose inner product goes from one instruction to the other in registers."""
    stmts = [*loaded(), fragment("o", "c", "f32"), fragment("p", role), fragment("q", "b" if role == "a" else "a")]
    for part in range(4):
        index = (lit(4 * part), lit(0)) if role == "a" else (lit(0), lit(4 * part))
        stmts += [
            FragmentRepack("p", ("c",), "f16", "m8n8k4", part, role),
            operand("q", "v", index, "b" if role == "a" else "a", staged=False),
            multiply("p", "q", "o") if role == "a" else multiply("q", "p", "o"),
        ]
    return warp([*stmts, store("z", ZERO, "o")], {**GIVEN, "v": ((16, 16), "f16")}, {"z": (16, 16)})


OTHER = numbers(13, 16, 16)
REPACKED = {"a": PRODUCT @ OTHER, "b": OTHER @ PRODUCT}


@pytest.mark.parametrize("role", ["a", "b"])
def test_an_accumulator_becomes_a_multiplicand(role: str) -> None:
    got = run(repacked(role), {**ARRAYS, "v": OTHER}, TARGET)
    np.testing.assert_array_equal(got["z"], REPACKED[role])


@NVCC
@pytest.mark.parametrize("role", ["a", "b"])
def test_repacking_is_that_of_emmys_cuda(role: str) -> None:
    got = run_emmy(repacked(role), {**ARRAYS, "v": OTHER.astype(np.float16)}, "sm_75")
    np.testing.assert_array_equal(got["z"], REPACKED[role])


def test_elements_take_their_rows_values() -> None:
    stmts = [
        apply("d", "multiply", ("c", "frag"), (lit(2.0), "uniform")),
        FragmentRowReduce("top", "bot", ("c", "d"), ElementwiseImpl("add"), layout=ir.M8N8K4),
        apply("e", "multiply", ("c", "frag"), (("top", "bot"), "row")),
    ]
    np.testing.assert_array_equal(applied(*stmts, out="e"), PRODUCT * (3 * PRODUCT.sum(axis=1, keepdims=True)))


def test_elements_are_masked_by_their_place_in_the_matrix() -> None:
    later = op(">", var(ir.FRAG_COL), var(ir.FRAG_ROW))
    where = apply(
        "c", "where", (later, "coord"), (lit(-7.0), "uniform"), ("c", "frag"),
        in_place=True, row_base=lit(2), col_base=lit(5),
    )  # fmt: skip
    rows, columns = np.arange(16)[:, None] + 2, np.arange(16) + 5
    np.testing.assert_array_equal(applied(where), np.where(columns > rows, -7, PRODUCT))


def test_elements_take_what_lies_at_their_place() -> None:
    bias = numbers(14, 20, 18)
    index = (var(ir.FRAG_ROW), var(ir.FRAG_COL))
    add = apply("c", "add", ("c", "frag"), (("w", index), "gmem"), in_place=True, row_base=lit(3), col_base=lit(1))
    got = applied(add, more={"w": ((20, 18), "f16")}, arrays={"w": bias})
    np.testing.assert_array_equal(got, PRODUCT + bias[3:19, 1:17])


def test_loops_carry_accumulators() -> None:
    turns = Loop(
        axis("t", 100), (multiply(), apply("c", "multiply", ("c", "frag"), (lit(0.5), "uniform"), in_place=True))
    )
    expected = np.zeros((16, 16), np.float32)
    for _ in range(100):
        expected = (expected + PRODUCT) * np.float32(0.5)
    graph = warp([*loaded()[:-1], turns, store("z", ZERO, "c")], GIVEN, {"z": (16, 16)})
    np.testing.assert_allclose(run(graph, ARRAYS, TARGET)["z"], expected, rtol=1e-6)


# ---------------------------------------------------------------------------------------------------------- stores


@pytest.mark.parametrize("kind", ["f16", "f32"])
@pytest.mark.parametrize("width", [16, 17])
@pytest.mark.parametrize("atomic", [False, True])
def test_stores_round_to_the_buffers_type(kind: str, width: int, atomic: bool) -> None:
    graph = warp([*loaded(), store("z", ZERO, "c", atomic=atomic)], GIVEN, {"z": ((16, width), kind)})
    np.testing.assert_array_equal(run(graph, ARRAYS, TARGET)["z"][:, :16], PRODUCT)


def test_a_transposed_store() -> None:
    graph = warp([*loaded(), store("z", ZERO, "c", row_dim=1, col_dim=0)], GIVEN, {"z": (16, 16)})
    np.testing.assert_array_equal(run(graph, ARRAYS, TARGET)["z"], PRODUCT.T)


@pytest.mark.parametrize(("rows", "columns"), [(16, 16), (13, 16), (7, 5)])
def test_an_epilogue_loads_and_computes(rows: int, columns: int) -> None:
    row, column = var(ir.ELEM_ROW), var(ir.ELEM_COL)
    chain = [
        Load("bias", "w", (op("+", column, 1),)),
        Load("rest", "r", (row, column)),
        Assign("t", ElementwiseImpl("add"), ("acc", "bias")),
        Assign("u", ElementwiseImpl("multiply"), ("t", "rest")),
    ]
    finish = Lambda(params=("acc", ir.ELEM_ROW, ir.ELEM_COL), body=Body(tuple(chain)), results=("u",))
    edges = {
        "m_guard": (lit(0), lit(rows)) if rows < 16 else None,
        "n_guard": (lit(0), lit(columns)) if columns < 16 else None,
    }
    w, r = numbers(15, columns + 1), numbers(16, rows, columns)
    stmts = [*loaded(), store("z", ZERO, "c", epilogue=finish, **edges)]
    graph = warp(stmts, {**GIVEN, "w": ((columns + 1,), "f16"), "r": (rows, columns)}, {"z": (rows, columns)})
    got = run(graph, {**ARRAYS, "w": w, "r": r}, TARGET)
    np.testing.assert_array_equal(got["z"], (PRODUCT[:rows, :columns] + w[1:]) * r)


# ---------------------------------------------------------------------------------------------------------- errors

SLAB = Smem("s", (32, 32), "__half", align=16)
PAIR = [fragment("a", "a"), fragment("d", "a")]


@pytest.mark.parametrize("threads", [16, 48])
@pytest.mark.parametrize(
    ("stmts", "what"),
    [
        (loaded(), "mma takes whole warps"),
        ([fragment("h", "c"), *loaded()[:3], FragmentPromote("c", "h", "m8n8k4")], "shfl takes whole warps"),
        ([fragment("p", "a"), *loaded()[:3], FragmentRepack("p", ("c",), "f16", "m8n8k4")], "shfl takes whole warps"),
    ],
)
def test_a_warp_that_the_cta_does_not_fill_is_an_error(stmts: list[Any], what: str, threads: int) -> None:
    body = tile({"i": threads}, [*stmts, store("z", ZERO, "c")], threads)
    error = refused(lambda: kernel_graph(body, GIVEN, {"z": (16, 16)}), TARGET)
    assert f"{what}, and the CTA's {threads} threads are no multiple of 32" in str(error)


@pytest.mark.parametrize(
    ("stmts", "what"),
    [
        ([*loaded(), MmaSyncPtx("c", "a", "b", SHAPE, "bf16")], "m8n8k4 of bf16"),
        ([*loaded(), MmaSyncPtx("c", "a", "b", (16, 8, 16), "f16", b_row_major=True)], "m16n8k16"),
        ([*loaded(), multiply(c_dtype="f16")], "'c' is C of f32 in 8 registers, not C of f16 in 4"),
        ([fragment("a", "a", registers=4), operand("a", "x", ZERO, "a", staged=False)], "not A of f16 in 2"),
        ([fragment("a", "a", "bf16"), operand("a", "x", ZERO, "a", staged=False)], "is A of bf16 in 2"),
        ([SLAB, *PAIR, operand("a", "s", ZERO, "a", pair_frag="d")], "row-major"),
        ([SLAB, *PAIR, operand("a", "s", ZERO, "a", swizzle="V70A")], "two fragments"),
        ([SLAB, *PAIR, operand("a", "s", ZERO, "a", swizzle="V70B", pair_frag="d")], "'V70B'"),
        ([*PAIR, operand("a", "x", ZERO, "a", swizzle="V70A", pair_frag="d")], "'x' is no shared array"),
        ([*PAIR, Smem("s", (32, 32), "float"), operand("a", "s", ZERO, "a", swizzle="V70A", pair_frag="d")], "of f16"),
        ([SLAB, *loaded(), store("s", ZERO, "c", swizzle="V70A")], "only a Write"),
        ([SLAB, Load("v", "x", ZERO), Write("s", (lit(0),), "v", swizzle="V70A")], "two dimensions"),
        ([Load("v", "x", ZERO), Write("z", ZERO, "v", swizzle="V70B")], "no shared array"),
        ([Let("v", FuncCallExpr("emmy_volta_crosswise", (I, I)), dtype("i32"))], "three integers"),
        ([Let("v", FuncCallExpr("emmy_volta_b_congruous", (I, lit(0.5), I)), dtype("i32"))], "three integers"),
        ([*loaded(), fragment("p", "a"), FragmentRepack("p", ("c",), "f16", "m8n8k4", 4)], "the part 4 of a repacking"),
        ([*loaded(), fragment("p", "a"), FragmentRepack("p", ("c", "c"), "f16", "m8n8k4")], "of 2 accumulators"),
        ([*loaded("f16"), fragment("p", "a"), FragmentRepack("p", ("c",), "f16", "m8n8k4")], "not C of f32 in 8"),
        ([*loaded(), FragmentPromote("c", "c", "m8n8k4")], "'c' is C of f32 in 8 registers, not C of f16 in 4"),
        ([SLAB, CpAsyncCopy("s", ZERO, "x", ZERO, 8)], "sm_70"),
    ],
)  # fmt: skip
def test_what_volta_does_not_have_is_an_error(stmts: list[Any], what: str) -> None:
    error = refused(lambda: warp(stmts, GIVEN, {"z": (16, 16)}), TARGET)
    assert what in str(error)
    assert error.statement
