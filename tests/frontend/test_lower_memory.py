"""Buffers and shared arrays: vectors, addresses of every size and sign, swizzled slabs, copies."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from emmy.compiler.dim import Dim
from emmy.compiler.ir.expr import Builtin, FlatIndex, TernaryExpr
from kernel_ir import (
    Accum,
    Assign,
    Cond,
    CpAsyncCommit,
    CpAsyncCopy,
    CpAsyncWait,
    Let,
    Load,
    Loop,
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
from lowering_lab import AT, DTYPES, LOAD, Array, compiled, kernel_graph, run

import ptxc
from ptxc.ir.text import format_kernel

I32, I64 = dtype("i32"), dtype("i64")
#: What a kernel costs on the CPU device whose buffers take gigabytes: nothing may walk them.
PLAIN = ("memory",)

# -------------------------------------------------------------------------------------------------------- vectors


def copied(kind: str, to: str, count: int, shared: bool = False, stated: str | None = None) -> tuple[Array, Array, str]:
    """A buffer copied by accesses of ``count`` elements: what went in, what came out, and the PTX."""
    names = tuple(f"v{at}" for at in range(count))
    first = (op("*", AT, count),)
    through = []
    if shared:
        c_name = {"f32": "float", "f16": "__half", "i32": "int", "i64": "long long"}[kind]
        through = [Smem("m", (64 * count,), c_name), Write("m", first, values=names), Sync()]
        through.append(Load(names=names, input="m", index=first))
    load = Load(names=names, input="x", index=first, dtype=dtype(stated) if stated else None)
    body = [load, *through, Write("y", first, values=names)]
    graph = kernel_graph(tile({"i": 64}, body, 64), {"x": ((64 * count,), kind)}, {"y": ((64 * count,), to)})
    x: Array = np.random.default_rng(4).integers(-99, 99, 64 * count).astype(DTYPES[kind])
    return x, run(graph, {"x": x})["y"], compiled(graph).ptx


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize(
    ("kind", "count", "loads"),
    [
        ("f32", 2, "v2.f32"), ("f32", 4, "v4.f32"), ("f16", 2, "b32"), ("f16", 4, "v2.b32"), ("f16", 8, "v4.b32"),
        ("f32", 3, "f32"), ("f32", 8, "f32"), ("f16", 3, "b16"), ("i32", 2, "s32"), ("i32", 4, "s32"),
        ("i64", 2, "s64"),
    ],
)  # fmt: skip
def test_vectors(kind: str, count: int, loads: str, shared: bool) -> None:
    x, y, ptx = copied(kind, kind, count, shared)
    np.testing.assert_array_equal(x, y)
    words = 1 if loads.startswith("v") or loads == "b32" else count
    assert ptx.count(f"ld.global.nc.{loads}") == words
    if shared:
        assert ptx.count(f"ld.shared.{loads}") == words


@pytest.mark.parametrize(
    ("kind", "to", "count", "stated"),
    [
        ("f32", "f16", 4, None), ("f16", "f32", 8, None), ("i32", "f32", 4, None), ("f32", "i32", 4, None),
        ("i32", "i64", 2, None), ("f16", "f32", 4, "f32"), ("f32", "f16", 2, "f16"), ("i64", "f16", 8, None),
    ],
)  # fmt: skip
def test_vectors_that_convert(kind: str, to: str, count: int, stated: str | None) -> None:
    x, y, _ = copied(kind, to, count, stated=stated)
    np.testing.assert_array_equal(x.astype(DTYPES[to]), y)


def test_a_static_array_is_aligned_for_the_vectors_read_from_it() -> None:
    first = op("*", AT, 4)
    names = ("p", "q", "r", "s")
    body = [
        Smem("odd", (5,)), Smem("m", (256,)), Write("m", (AT,), "a"), Sync(), Write("odd", (op("%", AT, 5),), "a"),
        Cond(op("<", AT, 16), (Load(names=names, input="m", index=(first,)), Write("y", (first,), values=names))),
    ]  # fmt: skip
    kernel = compiled(kernel_graph(tile({"i": 64}, [LOAD, *body], 64), {"x": (64,)}, {"y": (64,)}))
    assert ".shared .align 4 .b8 odd[20];" in kernel.ptx
    assert ".shared .align 16 .b8 m[1024];" in kernel.ptx


def test_what_a_kernel_writes_is_not_read_through_the_read_only_path() -> None:
    body = [LOAD, Load("b", "y", (AT,)), Assign("c", "add", ("a", "b")), Write("y", (AT,), "c")]
    graph = kernel_graph(tile({"i": 64}, body), {"x": (64,)}, {"y": (64,)})
    ptx = compiled(graph).ptx
    assert ptx.count("ld.global.nc.f32") == 1
    assert ptx.count("ld.global.f32") == 1
    got = run(graph, {"x": np.arange(64), "y": np.full(64, 5, np.float32)})["y"]
    np.testing.assert_array_equal(got, np.arange(64) + 5)


@pytest.mark.parametrize(
    ("index", "shape", "divides"),
    [
        # a0 / 20 * 480 + a0 % 20 * 24 + a1 is the cell's own number
        ((op("/", AT, 20), op("%", AT, 20), var("j")), (4, 20, 24), False),
        ((op("/", AT, 20), op("/", op("%", AT, 20), 4), op("%", op("%", AT, 20), 4), var("j")), (4, 5, 4, 24), False),
        ((op("/", op("+", AT, 3), 20), op("%", op("+", AT, 3), 20), var("j")), (4, 20, 24), False),
        # Rows longer than what is divided: nothing to put together.
        ((op("/", AT, 20), op("%", AT, 20), var("j")), (4, 21, 24), True),
        ((op("/", AT, 20), op("%", op("+", AT, 1), 20), var("j")), (4, 20, 24), True),
    ],
)
@pytest.mark.parametrize("flat", [False, True])
def test_what_was_taken_apart_is_put_together(
    index: tuple[Any, ...], shape: tuple[int, ...], divides: bool, flat: bool
) -> None:
    at: Any = index
    if flat:
        total, stride = lit(0), 1
        for entry, size in zip(index[::-1], shape[::-1], strict=True):
            total, stride = op("+", total, op("*", entry, stride)), stride * size
        at = (total,)
    body = tile({"i": 64, "j": 24}, [Load("v", "x", at), Write("y", (AT, var("j")), "v")], 256)
    graph = kernel_graph(body, {"x": shape}, {"y": (64, 24)})
    x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    expected = np.empty((64, 24), np.float32)
    for i in range(64):
        for j in range(24):
            place = [int(entry.eval({"i": i, "j": j})) for entry in index]
            expected[i, j] = x[tuple(place)]
    np.testing.assert_array_equal(run(graph, {"x": x})["y"], expected)
    ptx = compiled(graph).ptx
    assert ("mul.hi" in ptx) is divides, ptx


# ------------------------------------------------------------------------------------------------------ addresses


def gathered(index: Any, shape: tuple[Any, ...] = (64,), before: tuple[Any, ...] = (), **arrays: Any) -> Array:
    """``x[index]`` of each cell, where ``x`` counts."""
    x = np.arange(np.prod([64 if isinstance(size, Dim) else size for size in shape])).astype(np.float32)
    inputs: dict[str, Any] = {"x": shape, **dict.fromkeys(arrays, ((64,), "i32"))}
    stmts = [*before, Load("v", "x", index if isinstance(index, tuple) else (index,)), Write("y", (AT,), "v")]
    graph = kernel_graph(tile({"i": 64}, stmts), inputs, {"y": (64,)})
    return run(graph, {"x": x, **arrays})["y"]


def test_indices_that_fall() -> None:
    i = np.arange(64)
    for index, expected in (
        (op("-", 63, AT), 63 - i),
        (op("-", op("-", 70, 7), AT), 63 - i),
        (op("+", op("*", op("%", AT, 8), -8), 56), 56 - i % 8 * 8),
        (op("-", op("*", op("/", AT, 8), 8), op("-", op("%", AT, 8), 7)), i // 8 * 8 + 7 - i % 8),
        (op("-", AT, op("*", op("/", AT, 2), 2)), i % 2),
        (op("+", op("-", 0, AT), 63), 63 - i),
        (op("*", op("-", AT, 63), -1), 63 - i),
    ):
        np.testing.assert_array_equal(gathered(index), expected)


def test_indices_loaded_from_memory() -> None:
    n = np.random.default_rng(6).integers(-32, 32, 64).astype(np.int32)
    before = (Load("k", "n", (AT,)),)
    np.testing.assert_array_equal(gathered(op("+", var("k"), 32), before=before, n=n), n + 32)
    np.testing.assert_array_equal(gathered(op("-", 31, var("k")), before=before, n=n), 31 - n)
    product = op("%", op("*", var("k"), var("k")), 64)
    np.testing.assert_array_equal(gathered(product, before=before, n=n), n.astype(int) ** 2 % 64)


def test_indices_in_many_dimensions() -> None:
    i = np.arange(64)
    a, b, c = op("/", AT, 16), op("%", op("/", AT, 4), 4), op("%", AT, 4)
    np.testing.assert_array_equal(gathered((a, b, c), (4, 4, 4)), i)
    np.testing.assert_array_equal(gathered((c, lit(0), a, b), (4, 1, 4, 4)), i % 4 * 16 + i // 4)
    np.testing.assert_array_equal(gathered((op("-", 3, a), c, op("-", 3, b)), (4, 4, 4)),
                                  (3 - i // 16) * 16 + i % 4 * 4 + 3 - i // 4 % 4)  # fmt: skip
    np.testing.assert_array_equal(gathered((), ()), np.zeros(64))


def test_dynamic_strides() -> None:
    """A buffer whose rows are as long as a size that the launch gives."""
    n, m = 7, 5
    x = np.arange(3 * n * m * 2, dtype=np.float32).reshape(3, n, m, 2)
    body = [
        Load("v", "x", (lit(1), op("%", AT, var("n")), op("%", AT, var("m")), op("%", AT, 2))),
        Load("w", "x", (lit(2), op("-", op("-", var("n"), 1), op("%", AT, 4)), op("-", var("m"), 1), lit(0))),
        Write("y", (lit(0), AT), "v"),
        Write("y", (lit(1), AT), "w"),
    ]
    graph = kernel_graph(tile({"i": 64}, body), {"x": (3, Dim("n"), Dim("m"), 2)}, {"y": (2, 64)})
    i = np.arange(64)
    expected = np.stack([x[1, i % n, i % m, i % 2], x[2, n - 1 - i % 4, m - 1, 0]])
    np.testing.assert_array_equal(run(graph, {"x": x})["y"], expected)


def test_dynamic_strides_of_expressions() -> None:
    n = 6
    rows, columns = Dim(op("+", op("*", var("n"), 2), 1)), Dim(op("//", op("+", var("n"), 3), 4))
    x = np.arange((2 * n + 1) * 2 * 3, dtype=np.float32).reshape(2 * n + 1, 2, 3)
    row = op("%", AT, op("+", op("*", var("n"), 2), 1))
    body = [Load("v", "x", (row, op("%", AT, 2), op("%", AT, 3))), Write("y", (AT,), "v")]
    graph = kernel_graph(tile({"i": 64}, body), {"x": (rows, columns, 3), "z": (Dim("n"),)}, {"y": (64,)})
    i = np.arange(64)
    got = run(graph, {"x": x, "z": np.zeros(n)})["y"]
    np.testing.assert_array_equal(got, x[i % 13, i % 2, i % 3])


@pytest.mark.parametrize("size", [2**31 - 1, 2**31, 2**31 + 12345, 2**32 + 2**20])
def test_buffers_of_more_elements_than_an_int_counts(size: int) -> None:
    """Bytes, of which no page is touched but those that the kernel reaches."""
    columns = 2**16
    x = np.zeros((size // columns, columns), np.uint8)
    last = size // columns - 1
    row = op("-", last, op("*", AT, last // 63))
    column = op("-", columns - 1, AT)
    i = np.arange(64)
    x[last - i * (last // 63), columns - 1 - i] = i + 1
    body = [Load("v", "x", (row, column)), Write("x2", (op("*", AT, last // 63), AT), "v"), Write("y", (AT,), "v")]
    graph = kernel_graph(tile({"i": 64}, body), {"x": (x.shape, "u8")}, {"y": ((64,), "u8"), "x2": (x.shape, "u8")})
    other = np.zeros(x.shape, x.dtype)
    got = run(graph, {"x": x, "x2": other}, sanitize=PLAIN)
    np.testing.assert_array_equal(got["y"], i + 1)
    np.testing.assert_array_equal(other[i * (last // 63), i], i + 1)


def test_flat_indices_beyond_an_int() -> None:
    x = np.zeros(2**32 + 4096, np.uint8)
    i = np.arange(64)
    x[i * 2**26 + 2**16 + i] = i + 1
    x[2**32 + i] = 100 + i
    stmts = [
        Let("wide", op("*", AT, 2**26), dtype=I64),
        Load("v", "x", (op("+", op("+", var("wide"), AT), 2**16),)),
        Load("w", "x", (op("+", AT, 2**32),)),
        Load("u", "x", (op("-", op("+", AT, 2**33), 2**32),)),
    ]
    stmts += [Write("y", (lit(at), AT), name) for at, name in enumerate("vwu")]
    graph = kernel_graph(tile({"i": 64}, stmts), {"x": (x.shape, "u8")}, {"y": ((3, 64), "u8")})
    got = run(graph, {"x": x}, sanitize=PLAIN)["y"]
    np.testing.assert_array_equal(got, [i + 1, 100 + i, 100 + i])


def test_offsets_beyond_an_int_of_bytes() -> None:
    """Fewer elements than 2**31, more bytes."""
    x = np.zeros(2**29 + 4096, np.float32)
    i = np.arange(64)
    x[2**29 + i] = i
    x[2**29 - 64 + i] = -i
    here = op("+", AT, 2**29)
    stmts = [Load("v", "x", (here,)), Load("w", "x", (op("-", here, 64),))]
    stmts += [Load("u", "x", (op("+", op("*", AT, 8388608), op("-", AT, op("*", AT, 8388608))),))]
    stmts += [Write("y", (lit(at), AT), name) for at, name in enumerate("vwu")]
    graph = kernel_graph(tile({"i": 64}, stmts), {"x": x.shape}, {"y": (3, 64)})
    got = run(graph, {"x": x}, sanitize=PLAIN)["y"]
    np.testing.assert_array_equal(got, [i, -i, np.zeros(64)])


def loop_over(index: tuple[Any, ...], shape: tuple[int, ...], trips: int = 37) -> tuple[Any, list[str]]:
    """A graph whose loop sums ``x[index]`` over ``k``, and the PTX of the loop's body."""
    loop = Loop(axis("k", trips), (Load("v", "x", index), Accum("s", "v", "add")))
    graph = kernel_graph(tile({"i": 64}, [loop, Write("y", (AT,), "s")], 64), {"x": shape}, {"y": (64,)})
    body = compiled(graph).ptx.partition("loop_k:\n")[2].partition(" bra ")[0]
    return graph, [line.split()[0] for line in body.splitlines()]


def test_an_offset_beyond_an_immediate_leaves_the_loop() -> None:
    for place in (2**21 - 1 - 15 * 64, 2**21, 3 * 2**20 + 5):  # 16 iterations a round
        graph, body = loop_over((op("+", op("+", AT, op("*", var("k"), 64)), place),), (4 * 2**20,))
        x = np.zeros(4 * 2**20, np.float32)
        x[place : place + 37 * 64] = np.arange(37 * 64)
        np.testing.assert_array_equal(run(graph, {"x": x})["y"], x[place : place + 37 * 64].reshape(37, 64).sum(0))
        assert body.count("add.s64") == 1, place
        assert compiled(graph).ptx.count("add.s64") == (3 if place < 2**21 else 4)


def test_offsets_far_below_leave_the_loop_too() -> None:
    below = op("-", op("+", AT, op("*", op("+", var("k"), 40000), 64)), 2**21 + 1)
    graph, body = loop_over((below,), (2**22,))
    x: Array = np.arange(2**22) % 251
    first = 64 * 40000 - 2**21 - 1
    expected = x[first : first + 37 * 64].reshape(37, 64).sum(0)
    np.testing.assert_array_equal(run(graph, {"x": x.astype(np.float32)})["y"], expected)
    assert body.count("add.s64") == 1


def test_rows_far_apart_share_a_pointer_in_an_unrolled_loop() -> None:
    _graph, body = loop_over((op("*", var("k"), 2**22),), (2**22 * 99 + 1,), trips=99)
    assert body.count("ld.global.nc.f32") == 16
    assert body.count("add.s64") <= 2


def test_what_an_outer_condition_chooses_leaves_the_loop() -> None:
    chosen = TernaryExpr(op("&&", op("<", AT, 32), op("<", lit(3), AT)), AT, lit(7))
    graph, body = loop_over((chosen, var("k")), (64, 64))
    x: Array = np.random.default_rng(3).integers(-9, 9, (64, 64)).astype(np.float32)
    rows = [i if 3 < i < 32 else 7 for i in range(64)]
    np.testing.assert_array_equal(run(graph, {"x": x})["y"], x[rows, :37].sum(1))
    assert not {"mad.lo.s32", "mul.lo.s32", "selp.b32"}.intersection(body)


def test_symbolic_buffers_that_may_be_large_are_addressed_in_64_bits() -> None:
    rows = Dim("n")
    body = [Load("v", "x", (op("-", op("-", var("n"), 1), AT), op("-", 2**19 - 1, AT))), Write("y", (AT,), "v")]
    graph = kernel_graph(tile({"i": 64}, body), {"x": ((rows, 2**19), "u8")}, {"y": ((64,), "u8")})
    x = np.zeros((4200, 2**19), np.uint8)
    i = np.arange(64)
    x[4199 - i, 2**19 - 1 - i] = i + 1
    np.testing.assert_array_equal(run(graph, {"x": x}, sanitize=PLAIN)["y"], i + 1)


def test_divisions_that_the_ranges_decide_are_gone() -> None:
    """As docs/optimizations.md tells: of ((i * 16 + j) * 4) / 64 and its remainder i and 4 * j are left."""
    flat = op("*", op("+", op("*", AT, 16), var("j")), 4)
    index = op("+", op("*", op("/", flat, 64), 64), op("%", flat, 64))
    stmts = [Load("v", "x", (index,)), Load("w", "x", (op("+", index, 1),)), Assign("s", "add", ("v", "w"))]
    graph = kernel_graph(
        tile({"i": 4, "j": 16}, [*stmts, Write("y", (AT, var("j")), "s")]), {"x": (256,)}, {"y": (4, 16)}
    )
    (kernel,) = ptxc.compile(graph, stop_after="build")
    text = format_kernel(kernel.kernel)
    assert " div." not in text
    assert " rem." not in text
    assert text.count("add.s64") == 2, "one address for both loads, and that of the store"
    x = np.arange(256)
    np.testing.assert_array_equal(run(graph, {"x": x})["y"].ravel(), 2 * x[::4] + 1)


def test_an_offset_computed_once_serves_several_accesses() -> None:
    flat = Let("o", FlatIndex("x", (op("/", AT, 8), op("%", AT, 8))))
    stmts = [
        flat,
        Load("v", "x", (var("o"),)),
        Load("w", "x", (op("-", 63, var("o")),)),
        Assign("s", "add", ("v", "w")),
    ]
    graph = kernel_graph(tile({"i": 64}, [*stmts, Write("y", (AT,), "s")]), {"x": (8, 8)}, {"y": (64,)})
    np.testing.assert_array_equal(run(graph, {"x": np.arange(64).reshape(8, 8)})["y"], np.full(64, 63))


# -------------------------------------------------------------------------------------------------- shared arrays


@pytest.mark.parametrize("pool", [False, True])
@pytest.mark.parametrize("kind", ["float", "__half", "int", "short", "unsigned char", "double", "long long", "bool"])
def test_shared_arrays_of_every_type(kind: str, pool: bool) -> None:
    more = [Smem("more", (16384,)), Write("more", (AT,), "a")] if pool else []
    body = [LOAD, Smem("first", (3,), "unsigned char"), *more, Smem("m", (64,), kind), Write("m", (AT,), "a")]
    body += [Write("first", (op("%", AT, 3),), "a"), Sync(), Load("b", "m", (op("-", 63, AT),)), Write("y", (AT,), "b")]
    graph = kernel_graph(tile({"i": 64}, body, 64), {"x": (64,)}, {"y": (64,)})
    kernel = compiled(graph)
    assert kernel.launch is not None
    assert bool(kernel.launch.dynamic_shared) == pool
    got = run(graph, {"x": np.arange(64)}, sanitize=("memory", "init", "sync"))["y"]
    np.testing.assert_array_equal(got, np.arange(64)[::-1] > 0 if kind == "bool" else np.arange(64)[::-1])


@pytest.mark.parametrize("pool", [False, True])
def test_shared_indices_whose_parts_are_negative(pool: bool) -> None:
    """The array lies at address 0: a part of the sum below it must not become an address of its own."""
    size = 16384 if pool else 64
    i = np.arange(64)
    k = var("k")
    for index, expected in (
        (op("-", 63, AT), 63 - i),
        (op("+", op("-", AT, 70), 70), i),
        (op("+", op("*", AT, -1), 63), 63 - i),
        (op("-", op("*", op("/", AT, 8), 8), op("-", op("%", AT, 8), 7)), i // 8 * 8 + 7 - i % 8),
        (op("-", op("+", k, 40), op("/", AT, 2)), 45 - i // 2),
        (op("+", op("-", op("*", k, 8), op("/", AT, 8)), 16), 56 - i // 8),
        (op("+", op("-", op("/", AT, 8), op("*", k, 8)), 45), i // 8 + 5),
        (op("%", op("+", op("*", k, AT), 3), 64), (5 * i + 3) % 64),
    ):
        for hinted in (False, True):
            inside = (Load("b", "m", (index,)), Write("y", (AT,), "b"))
            loop = Loop(axis("k", 6), inside, unroll=hinted)
            body = [LOAD, Smem("m", (size,)), Write("m", (AT,), "a"), Sync(), loop]
            graph = kernel_graph(tile({"i": 64}, body, 64), {"x": (64,)}, {"y": (64,)})
            np.testing.assert_array_equal(run(graph, {"x": i}, sanitize=("memory", "init"))["y"], expected)


def test_shared_arrays_in_a_pool_do_not_overlap() -> None:
    arrays = [("a1", (5,), "unsigned char", 0), ("b1", (7000,), "float", 0), ("c1", (9,), "short", 128),
              ("d1", (3, 5000), "__half", 16), ("e1", (64,), "double", 0)]  # fmt: skip
    body: list[Any] = [LOAD, *(Smem(name, shape, kind, align) for name, shape, kind, align in arrays)]
    ends = {"a1": (lit(4),), "b1": (lit(6999),), "c1": (lit(8),), "d1": (lit(2), lit(4999)), "e1": (lit(63),)}
    begins = {"a1": (lit(0),), "b1": (lit(0),), "c1": (lit(0),), "d1": (lit(0), lit(0)), "e1": (lit(0),)}
    for number, name in enumerate(ends):
        body += [Let(f"n{number}", lit(number + 1), dtype=I32), Let(f"m{number}", lit(number + 51), dtype=I32)]
        body.append(
            Cond(op("==", AT, number), (Write(name, ends[name], f"n{number}"), Write(name, begins[name], f"m{number}")))
        )
    body.append(Sync())
    for number, name in enumerate(ends):
        body += [Load(f"v{number}", name, ends[name]), Write("y", (lit(number),), f"v{number}")]
        body += [Load(f"w{number}", name, begins[name]), Write("y", (lit(number + 5),), f"w{number}")]
    graph = kernel_graph(tile({"i": 64}, body, 64), {"x": (64,)}, {"y": (10,)})
    got = run(graph, {"x": np.zeros(64)}, sanitize=("memory", "init"))["y"]
    np.testing.assert_array_equal(got, [1, 2, 3, 4, 5, 51, 52, 53, 54, 55])


# ------------------------------------------------------------------------------------------------------- swizzles

MODES = {"NONE": (0, 0), "B128": (6, 7), "B64": (6, 3), "B32": (6, 1), "B128@7": (7, 7), "B64@5": (5, 3),
         "B32@8": (8, 1), "B128@9": (9, 7)}  # fmt: skip


def swizzled(element: Array, mode: str) -> Array:
    """Where Emmy's ``emmy_swizzle_*`` puts an element."""
    shift, mask = MODES[mode]
    return np.asarray(element ^ ((element >> shift & mask) << 3))


def stored(mode: str, kind: str, fill: list[Any], columns: int) -> Array:
    """The slab of 32 rows after ``fill``, as it lies in shared memory."""
    c_name = {"f32": "float", "f16": "__half"}[kind]
    drain = Loop(axis("d", 32 * columns // 128), (
        Load("b", "m", (op("+", op("*", var("d"), 128), var("t")),)),
        Write("y", (op("+", op("*", var("d"), 128), var("t")),), "b"),
    ))  # fmt: skip
    body = [Smem("m", (32, columns), c_name, 1024), *fill, CpAsyncCommit(), CpAsyncWait(0), Sync(), drain]
    graph = kernel_graph(tile({"t": 128}, body, 128), {"x": ((32, columns), kind)}, {"y": ((32 * columns,), kind)})
    x = np.arange(32 * columns).reshape(32, columns) % 2048
    return run(graph, {"x": x})["y"].astype(int)


@pytest.mark.parametrize("kind", ["f32", "f16"])
@pytest.mark.parametrize("columns", [16, 24, 64, 128])
@pytest.mark.parametrize("mode", MODES)
def test_swizzled_slabs(mode: str, columns: int, kind: str) -> None:
    flat = np.arange(32 * columns)
    expected = np.empty_like(flat)
    expected[swizzled(flat, mode)] = flat % 2048
    t, c = var("t"), var("c")
    scalar = (
        Load("w", "x", (op("/", c, columns), op("%", c, columns))),
        Write("m", (op("/", c, columns), op("%", c, columns)), "w", swizzle=mode),
    )
    np.testing.assert_array_equal(
        stored(mode, kind, [StridedLoop(axis("c", 32 * columns), t, lit(128), scalar)], columns), expected
    )
    for count in (2, 4, 8) if kind == "f16" else (2, 4):
        names = tuple(f"v{at}" for at in range(count))
        at = op("/", op("*", c, count), columns), op("%", op("*", c, count), columns)
        vector = (Load(names=names, input="x", index=at), Write("m", at, values=names, swizzle=mode))
        loop = StridedLoop(axis("c", 32 * columns // count), t, lit(128), vector)
        np.testing.assert_array_equal(stored(mode, kind, [loop], columns), expected)
        nbytes = count * (2 if kind == "f16" else 4)
        copy = CpAsyncCopy("m", at, "x", at, nbytes=nbytes, swizzle=mode)
        loop = StridedLoop(axis("c", 32 * columns // count), t, lit(128), (copy,))
        np.testing.assert_array_equal(stored(mode, kind, [loop], columns), expected)


@pytest.mark.parametrize("mode", ["NONE", "B128", "B64", "B128@7"])
@pytest.mark.parametrize("columns", [32, 64, 128])
def test_copies_by_lane_and_stripe(mode: str, columns: int) -> None:
    flat = np.arange(32 * columns)
    expected = np.empty_like(flat)
    expected[swizzled(flat, mode)] = flat % 2048
    rows = 512 // columns
    lane = op("*", var("t"), 4)
    row, column = op("/", lane, columns), op("%", lane, columns)
    copies = [
        CpAsyncCopy(
            "m", (lit(stripe * rows), lit(0)), "x", (op("+", row, stripe * rows), column), nbytes=16, swizzle=mode,
            lane_index=(row, column), lane_rows=rows,
        )
        for stripe in range(32 // rows)
    ]  # fmt: skip
    np.testing.assert_array_equal(stored(mode, "f32", copies, columns), expected)


@pytest.mark.parametrize("nbytes", [4, 8, 16])
def test_copies_that_are_valid_in_part(nbytes: int) -> None:
    """Only copies of 16 bytes look at ``valid``."""
    count = nbytes // 4
    first = op("*", AT, count)
    copy = CpAsyncCopy("m", (first,), "x", (first,), nbytes=nbytes, valid=op("<", AT, 40))
    never = CpAsyncCopy("n", (first,), "x", (first,), nbytes=nbytes, valid=op("<", AT, 0))
    always = CpAsyncCopy("o", (first,), "x", (first,), nbytes=nbytes, valid=op("<", AT, 64))
    body = [*(Smem(name, (64 * count,), align=16) for name in "mno"), copy, never, always]
    body += [CpAsyncCommit(), CpAsyncWait(0), Sync()]
    body += [stmt for at, name in enumerate("mno") for stmt in (
        Load(f"v{name}", name, (op("-", 64 * count - 1, AT),)), Write("y", (lit(at), AT), f"v{name}"))]  # fmt: skip
    graph = kernel_graph(tile({"i": 64}, body, 64), {"x": (64 * count,)}, {"y": (3, 64)})
    x = np.arange(64 * count) + 1.0
    expected = np.stack([x, x, x])
    if nbytes == 16:
        expected[0, 160:] = expected[1] = 0
    np.testing.assert_array_equal(run(graph, {"x": x})["y"], expected[:, ::-1][:, :64])


def test_rows_that_are_not_copied_have_addresses_like_others() -> None:
    """Emmy has rows beyond the last read the last one; a copy that is not valid reads none, and all share a pointer."""
    last = op("-", var("n"), 1)

    def clamped(row: Any, valid: Any) -> list[Any]:
        index = (TernaryExpr(op("<", row, var("n")), row, last), op("*", op("%", AT, 8), 4))
        return [CpAsyncCopy("m", (lit(0), op("*", AT, 4)), "x", index, nbytes=16, valid=valid)]

    def graph_of(valid: Any) -> Any:
        rows = [op("+", op("/", AT, 8), 8 * at) for at in range(4)]
        body = [Let("rows", var("n"), dtype=I32), Smem("m", (4, 256), align=16)]
        for at, row in enumerate(rows):
            (copy,) = clamped(row, valid(row))
            body.append(dataclasses.replace(copy, smem_index=(lit(at), op("*", AT, 4))))
        body += [CpAsyncCommit(), CpAsyncWait(0), Sync()]
        load = Load("v", "m", (var("k"), op("+", op("*", AT, 4), var("j"))))
        store = Write("y", (var("k"), op("/", AT, 8), op("+", op("*", op("%", AT, 8), 4), var("j"))), "v")
        body.append(Loop(axis("k", 4), (Loop(axis("j", 4), (load, store)),)))
        return kernel_graph(tile({"i": 64}, body, 64), {"x": ((Dim("n"), 32), "f32")}, {"y": (4, 8, 32)})

    graph = graph_of(lambda row: op("<", row, var("n")))
    assert "min.s32" not in compiled(graph).ptx
    assert "+3072], 16, " in compiled(graph).ptx
    further = graph_of(lambda row: op("&&", op("<=", lit(0), row), op("<", row, var("n"))))
    assert "min.s32" not in compiled(further).ptx
    # A row that is copied though it is not below n is read where Emmy says.
    beyond = (lambda row: op("<", row, 99), lambda row: op("<", row, op("+", var("n"), 1)),
              lambda row: op("<", row, op("+", var("n"), 0.5)))  # fmt: skip
    for valid in beyond:
        assert "min.s32" in compiled(graph_of(valid)).ptx
    for size in (1, 7, 8, 17, 32):
        x = np.random.default_rng(size).normal(size=(size, 32)).astype(np.float32)
        expected = np.zeros((32, 32), np.float32)
        expected[:size] = x[:32]
        np.testing.assert_array_equal(run(graph, {"x": x})["y"].reshape(32, 32), expected)
        expected[size:] = x[-1]
        everywhere = graph_of(lambda row: op("<", row, 99))
        np.testing.assert_array_equal(run(everywhere, {"x": x})["y"].reshape(32, 32), expected)


def test_built_ins_are_the_launchs() -> None:
    names = [f"{kind}.{axis_at}" for kind in ("thread_idx", "block_idx", "block_dim", "grid_dim") for axis_at in "xyz"]
    body = []
    for at, name in enumerate((*names, "warp_size")):
        body += [Let(f"b{at}", Builtin(name), dtype=I32), Write("y", (lit(at), AT), f"b{at}")]
    got = run(kernel_graph(tile({"i": 96}, body, 32), {}, {"y": ((13, 96), "i32")}), {})["y"]
    i = np.arange(96)
    wanted: list[Any] = [i % 32, 0, 0, i // 32, 0, 0, 32, 1, 1, 3, 1, 1, 32]
    for row, expected in zip(got, wanted):
        np.testing.assert_array_equal(row, np.broadcast_to(expected, 96))


def test_the_accumulators_of_a_vector_are_added_one_by_one() -> None:
    """Four sums over columns, the vectors converted from halves."""
    names = ("p", "q", "r", "s")
    load = Load(names=names, input="x", index=(var("k"), op("*", AT, 4)))
    sums = [Accum(f"s_{name}", name) for name in names]
    body = [
        Loop(axis("k", 12), (load, *sums)),
        Write("y", (op("*", AT, 4),), values=tuple(f"s_{name}" for name in names)),
    ]
    x = np.random.default_rng(9).integers(-9, 9, (12, 64)).astype(np.float16)
    graph = kernel_graph(tile({"i": 16}, body), {"x": (x.shape, "f16")}, {"y": (64,)})
    np.testing.assert_array_equal(run(graph, {"x": x})["y"], x.astype(np.float32).sum(0))
