"""Tensor copies, barriers in shared memory, threads that go on by themselves, products of warp groups."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from emmy.compiler.ir.kernel.ir import WgmmaCommit, WgmmaFence, WgmmaWait
from kernel_ir import (
    Cond,
    CpAsyncCopy,
    LdmatrixLoad,
    Let,
    Load,
    MbarrierArrive,
    MbarrierArriveExpectTx,
    MbarrierInit,
    MbarrierWait,
    RegFragment,
    RegStore,
    SetMaxNReg,
    Smem,
    StridedLoop,
    Sync,
    TmaDescriptor,
    TmaLoad,
    WgmmaDescriptor,
    WgmmaMma,
    Write,
    axis,
    dtype,
    lit,
    op,
    tile,
    var,
)
from reference_lab import Node, computed, evaluable, floats, graph_of

from ptxc.errors import InputError, UnsupportedError
from ptxc.reference.evaluator import evaluate_kernels

Array = Any
T, THREAD = var("t"), op("+", var("lane"), op("*", var("warp"), 32))
ZERO = lit(0)


def first(*body: Any) -> Any:
    """What only thread 0 does."""
    return Cond(op("==", T, 0), body)


def halves(*shape: int, seed: int = 1) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float16)


def copied(size: int, width: int, *load: Any, slots: int = 1) -> list[Any]:
    """One copy of ``size`` elements that all wait for."""
    return [
        Smem("bar", (slots,), "unsigned long long"),
        first(MbarrierInit("bar", 1), MbarrierArriveExpectTx("bar", size * width), *load),
        MbarrierWait("bar", ZERO),
    ]


def out(slab: str, size: int) -> Any:
    """The first elements of a shared array, to ``y``."""
    place = (var("i"),)
    return StridedLoop(axis("i", size), T, lit(32), (Load("v", slab, place), Write("y", place, "v")))


# ------------------------------------------------------------------------------------------------------ tensor copies


@pytest.mark.parametrize(
    ("shape", "box", "at"),
    [
        ((40,), (16,), (8,)), ((9, 24), (4, 8), (2, 16)), ((9, 24), (4, 8), (7, 20)), ((9, 24), (4, 8), (-2, -3)),
        ((3, 5, 8), (1, 4, 8), (2, 3, 0)), ((2, 3, 4, 8), (1, 2, 3, 4), (1, 2, 2, 5)),
        ((2, 2, 3, 4, 8), (1, 1, 2, 2, 8), (1, 1, 2, 3, 0)),
    ],
)  # fmt: skip
def test_a_box_of_a_tensor(shape: tuple[int, ...], box: tuple[int, ...], at: tuple[int, ...]) -> None:
    """Zeros stand for what lies outside of the tensor."""
    x, size = floats(*shape), int(np.prod(box))
    body = [
        TmaDescriptor("d", "x", (), box), Smem("s", (2, size), "float"),
        *copied(size, 4, TmaLoad("s", (ZERO, ZERO), "d", tuple(lit(n) for n in at), "bar")), out("s", size),
    ]  # fmt: skip
    padded = np.pad(x, [(8, 8)] * x.ndim)
    expected = padded[tuple(slice(8 + n, 8 + n + extent) for n, extent in zip(at, box, strict=True))]
    assert np.array_equal(computed(body, {"x": x}, ((size,), "f32")), expected.reshape(-1))


@pytest.mark.parametrize(("swizzle", "width"), [("B128", 64), ("B64", 32), ("B32", 16)])
def test_a_swizzled_box_in_two_halves(swizzle: str, width: int) -> None:
    """The last dimension is split, and 16 bytes of a row are exchanged by the row."""
    x = halves(12, 2 * width)
    size = 8 * 2 * width
    body = [
        TmaDescriptor("d", "x", (), (8, 2, width), swizzle), Smem("s", (8, 2 * width), "__half", 1024),
        *copied(size, 2, TmaLoad("s", (ZERO, ZERO), "d", (lit(2), ZERO, ZERO), "bar")), out("s", size),
    ]  # fmt: skip
    y = computed(body, {"x": x}, ((size,), "f16")).astype(np.float16)
    lines, mask = x[2:10].reshape(-1), {"B128": 7, "B64": 3, "B32": 1}[swizzle]
    for at in range(size):
        address = 2 * at
        address ^= ((address >> 7) & mask) << 4
        assert y[address // 2] == lines[at]


def test_the_last_dimension_of_one_element_is_none() -> None:
    x = floats(6, 8).reshape(6, 8, 1)
    body = [
        TmaDescriptor("d", "x", (), (2, 8)), Smem("s", (2, 8), "float"),
        *copied(16, 4, TmaLoad("s", (ZERO, ZERO), "d", (lit(4), ZERO), "bar")), out("s", 16),
    ]  # fmt: skip
    assert np.array_equal(computed(body, {"x": x}, ((16,), "f32")), x[4:].reshape(-1))


def test_copies_that_are_none() -> None:
    x = floats(6, 8)
    with pytest.raises(InputError, match=r"a box \[4\] of 'x', whose shape is \[6, 8\]"):
        computed([TmaDescriptor("d", "x", (), (4,))], {"x": x}, ((1,), "f32"))
    load = TmaLoad("s", (ZERO, ZERO), "d", (ZERO, ZERO), "bar")
    with pytest.raises(InputError, match="'d' is no tensor map"):
        computed([Smem("s", (2, 8), "float"), *copied(16, 4, load)], {"x": x}, ((1,), "f32"))
    made = [TmaDescriptor("d", "x", (), (2, 8)), Smem("s", (2, 8), "float")]
    short = TmaLoad("s", (ZERO, ZERO), "d", (ZERO,), "bar")
    with pytest.raises(InputError, match="has 2 dimensions but 1 coordinates"):
        computed([*made, *copied(16, 4, short)], {"x": x}, ((1,), "f32"))
    other = [made[0], Smem("s", (2, 8), "__half")]
    with pytest.raises(UnsupportedError, match="different types"):
        computed([*other, *copied(16, 4, load)], {"x": x}, ((1,), "f32"))


def test_a_copy_beyond_a_shared_array_is_a_fault() -> None:
    body = [
        TmaDescriptor("d", "x", (), (2, 8)), Smem("s", (2, 8), "float"),
        *copied(16, 4, TmaLoad("s", (lit(1), ZERO), "d", (ZERO, ZERO), "bar")),
    ]  # fmt: skip
    graph = graph_of({"x": (6, 8)}, Node(tile({"t": 32}, body, 32), ("x",), {"y": (1,)}))
    ops, _, problem = evaluable(graph)
    (fault,) = evaluate_kernels(ops, problem).faults
    assert fault.endswith("thread 0 of CTA 0 copies beyond the end of s, which has 16 elements")


# ----------------------------------------------------------------------------------------------------------- barriers


def test_phases_of_a_barrier() -> None:
    """A ring of two: each round fills one slot and waits for its parity."""
    x, k = floats(6, 32), var("k")
    slot, phase = op("%", k, 2), op("%", op("/", k, 2), 2)
    place = op("+", op("*", slot, 32), T)
    body = [
        TmaDescriptor("d", "x", (), (1, 32)), Smem("s", (2, 32), "float"), Smem("bar", (2,), "unsigned long long"),
        first(MbarrierInit("bar", 1, ZERO), MbarrierInit("bar", 1, lit(1))),
        StridedLoop(axis("k", 6), ZERO, lit(1), (
            first(
                MbarrierArriveExpectTx("bar", 128, slot), TmaLoad("s", (slot, ZERO), "d", (k, ZERO), "bar", slot)
            ),
            MbarrierWait("bar", phase, slot),
            Load("v", "s", (place,)), Write("y", (k, T), "v"),
        )),
    ]  # fmt: skip
    assert np.array_equal(computed(body, {"x": x}, ((6, 32), "f32")), x)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ([MbarrierWait("bar", ZERO)], "used before it is initialised"),
        ([first(MbarrierArrive("bar"))], "used before it is initialised"),
        ([first(MbarrierInit("bar", 1)), MbarrierWait("bar", ZERO)],
         r"body\[0\].body\[\d\] MbarrierWait: threads wait for what never happens: "
         r"phase 0 of the mbarrier bar\[0\] lacks 1 arrivals and 0 bytes"),
        ([first(MbarrierInit("bar", 1), MbarrierArriveExpectTx("bar", 4)), MbarrierWait("bar", ZERO)],
         r"phase 0 of the mbarrier bar\[0\] lacks 0 arrivals and 4 bytes"),
        ([first(MbarrierInit("bar", 2)), MbarrierArrive("bar")], "more threads arrive at an mbarrier than it counts"),
        ([first(MbarrierInit("bar", 1, lit(2)))], "'bar' has 2 mbarriers, none at 2"),
    ],
)  # fmt: skip
def test_waits_that_do_not_end(body: list[Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        computed([Smem("bar", (2,), "unsigned long long"), *body], {"x": floats(4)}, ((1,), "f32"))


def test_a_phase_that_is_over_does_not_wait() -> None:
    body = [
        Smem("bar", (1,), "unsigned long long"), first(MbarrierInit("bar", 32)), MbarrierWait("bar", lit(1)),
        MbarrierArrive("bar"), MbarrierWait("bar", ZERO), Let("v", lit(3.0)), Write("y", (T,), "v"),
    ]  # fmt: skip
    assert (computed(body, {"x": floats(1)}, ((32,), "f32")) == 3).all()


# ------------------------------------------------------------------------------------------------ threads by themselves


def specialised(ring: int, rounds: int, *, empty: bool = True, threads: int = 64) -> list[Any]:
    """A warp that copies rows ahead of the others, which add them up and give their slot back."""
    k, compute = var("k"), op("<", THREAD, threads)
    elected = op("==", THREAD, threads)
    ahead = op("+", k, ring - 1)
    fill = op("%", ahead, ring)
    wait = MbarrierWait("empty", op("%", op("-", op("/", ahead, ring), 1), 2), fill)

    def copy(row: Any, slot: Any) -> tuple[Any, ...]:
        return (
            MbarrierArriveExpectTx("full", 4 * threads, slot),
            TmaLoad("s", (slot, ZERO), "d", (row, ZERO), "full", slot),
        )

    prime = [Cond(elected, copy(lit(at), lit(at))) for at in range(ring - 1)]
    produce = Cond(elected, (*([Cond(op(">=", k, 1), (wait,))] if empty else []), *copy(ahead, fill)))
    slot = op("%", k, ring)
    consume = (
        MbarrierWait("full", op("%", op("/", k, ring), 2), slot),
        Load("v", "s", (op("+", op("*", slot, threads), T),)), Write("y", (k, T), "v"),
        Sync(1, threads),
        Cond(op("==", THREAD, 0), (MbarrierArrive("empty", slot),)),
    )  # fmt: skip
    inits = [MbarrierInit(name, 1, lit(at)) for name in ("full", "empty") for at in range(ring)]
    return [
        TmaDescriptor("d", "x", (), (1, threads)), Smem("s", (ring, threads), "float"),
        Smem("full", (ring,), "unsigned long long"), Smem("empty", (ring,), "unsigned long long"),
        Cond(op("==", THREAD, 0), tuple(inits)), Sync(),
        Cond(
            compute,
            (SetMaxNReg(240, "inc"), StridedLoop(axis("k", rounds), ZERO, lit(1), consume)),
            (SetMaxNReg(24, "dec"), *prime, StridedLoop(axis("k", rounds), ZERO, lit(1), (produce,))),
        ),
    ]  # fmt: skip


@pytest.mark.parametrize("ring", [1, 2, 3])
def test_a_producer_and_its_consumers(ring: int) -> None:
    x = floats(7 + ring, 64)
    y = computed(specialised(ring, 7), {"x": x}, ((7, 64), "f32"), threads=64, aux_threads=32)
    assert np.array_equal(y, x[:7])


def test_a_producer_that_does_not_wait_runs_over_its_consumers() -> None:
    x = floats(10, 64)
    body = specialised(2, 7, empty=False)
    with pytest.raises(InputError, match="threads wait for what never happens"):
        computed(body, {"x": x}, ((7, 64), "f32"), threads=64, aux_threads=32)


def test_branches_meet_at_a_barrier() -> None:
    """Each half hands the other a value, back and forth by way of a barrier of both."""
    low = op("<", T, 32)
    other = op("-", lit(63), T)

    def give(array: str, value: str) -> tuple[Any, ...]:
        return (Write(array, (T,), value), Sync(2, 64), Load(f"{value}x", array, (other,)))

    def half(number: int) -> tuple[Any, ...]:
        return (*give("s", "a"), *give("r", "ax"), Sync(), Write("y", (T, lit(number)), "axx"))

    body = [
        Smem("s", (64,), "float"), Smem("r", (64,), "float"), Load("a", "x", (T,)),
        Cond(low, half(0), half(1)),
    ]  # fmt: skip
    x = floats(64)
    y = computed(body, {"x": x}, ((64, 2), "f32"), threads=64)
    assert np.array_equal(y[:32, 0], x[:32])
    assert np.array_equal(y[32:, 1], x[32:])
    alone = [Cond(low, (Sync(2, 64),), (Sync(3, 64),))]
    with pytest.raises(InputError, match=r"Sync: threads wait .*: 32 of 64 threads are at barrier [23]"):
        computed(alone, {"x": x}, ((1,), "f32"), threads=64)


def test_threads_beyond_the_end_have_left() -> None:
    """The last CTA has half of its threads; the branches of the others meet all the same."""
    half = (Sync(), Let("v", lit(1.0)), Write("y", (T,), "v"))
    body = [Cond(op("==", op("%", T, 2), 0), half, half)]
    graph = graph_of({"x": (1,)}, Node(tile({"t": 48}, body, 32), ("x",), {"y": (48,)}))
    ops, _, problem = evaluable(graph)
    assert (evaluate_kernels(ops, problem).outputs["y"] == 1).all()


def test_conditions_within_branches_wait_too() -> None:
    """Four quarters, the inner conditions parted within the outer ones, all meet at one barrier."""
    inner = Cond(op("==", op("%", op("/", T, 32), 2), 0), (Sync(1, 128),), (Sync(1, 128), Sync(1, 64)))
    body = [
        Cond(op("<", T, 64), (inner,), (Sync(1, 128), Cond(op("<", T, 96), (Sync(2, 32),)), Cond(
            op("<", T, 96), (), (Sync(1, 64),)))),
        Let("v", lit(1.0)), Write("y", (T,), "v"),
    ]  # fmt: skip
    assert (computed(body, {"x": floats(1)}, ((128,), "f32"), threads=128) == 1).all()


# ------------------------------------------------------------------------------------------- products of warp groups

GROUP: dict[str, Any] = {"threads": 128}


def slab(name: str, source: str, shape: tuple[int, int], place: Any) -> list[Any]:
    """A shared array of f16, filled in runs of eight where ``place`` says for a row and the run's first column."""
    rows, columns = shape
    at = op("*", var("c"), 8)
    row, column = op("/", at, columns), op("%", at, columns)
    fill = CpAsyncCopy(name, (place(row, column),), source, (row, column), 16)
    loop = StridedLoop(axis("c", rows * columns // 8), T, lit(128), (fill,))
    return [Smem(name, (rows, max(columns, 64)), "__half", 1024), loop]


def plus(*terms: Any) -> Any:
    total = terms[0]
    for term in terms[1:]:
        total = op("+", total, term)
    return total


def lines(swizzle: str, rows: int) -> Any:
    """Rows as wide as the pattern one below the other, exchanged by the row; further columns after all rows."""
    width = {"B128": 64, "B64": 32, "B32": 16}[swizzle]
    mask = {"B128": 7, "B64": 3, "B32": 1}[swizzle]

    def place(row: Any, column: Any) -> Any:
        flat = plus(op("*", op("/", column, width), rows * width), op("*", row, width), op("%", column, width))
        return op("^", flat, op("<<", op("&", op(">>", flat, 6), mask), 3))

    return place


def cores(rows: int) -> Any:
    """Blocks of eight rows of 16 bytes, those of the same columns together."""

    def place(row: Any, column: Any) -> Any:
        return plus(op("*", op("/", column, 8), rows * 8), op("*", op("/", row, 8), 64), op("*", op("%", row, 8), 8))

    return place


def fragments(n: int) -> tuple[list[Any], tuple[str, ...]]:
    names = tuple(f"c{at}" for at in range(n // 8))
    return [RegFragment(name, "c", (64, n, 16), dtype("f32"), nregs=4) for name in names], names


def stores(names: tuple[str, ...]) -> list[Any]:
    row = op("*", op("/", T, 32), 16)
    return [
        RegStore("y", (row, lit(8 * at)), name, (64, 8, 16), fragment_layout="wgmma") for at, name in enumerate(names)
    ]


DONE = (WgmmaCommit(), WgmmaWait(0))


@pytest.mark.parametrize("swizzle", ["NONE", "B32", "B64", "B128"])
@pytest.mark.parametrize("trans", [False, True])
def test_both_operands_in_shared_memory(swizzle: str, trans: bool) -> None:
    """A and B along the reduced dimension, or across it, in each layout; two steps of it."""
    n, k = 32, 32
    a, b = halves(64, k), halves(k, n, seed=2)
    p, q = (a.T, b) if trans else (a, b.T)  # the rows of the slabs
    rows = {"p": p.shape[0], "q": q.shape[0]}
    body = []
    for name, array in (("p", p), ("q", q)):
        place = cores(rows[name]) if swizzle == "NONE" else lines(swizzle, rows[name])
        body += slab(f"s{name}", name, array.shape, place)
    declared, names = fragments(n)
    body += [*declared, WgmmaFence()]
    width = {"NONE": 16, "B32": 32, "B64": 64, "B128": 128}[swizzle]
    for step in range(k // 16):
        for name in "pq":
            if trans:
                # Rows are along k: eight of them are a stride, the next columns a leading offset.
                eight, next_columns = 8 * width, rows[name] * width
                start = 16 * step * width // 2
                leading, stride = (eight, next_columns) if swizzle == "NONE" else (next_columns, eight)
            else:
                start = (2 * step * rows[name] * 8) if swizzle == "NONE" else _columns(step, width, rows[name])
                leading, stride = rows[name] * 16, 8 * width
            body.append(WgmmaDescriptor(f"d{name}", f"s{name}", lit(start), swizzle, leading, stride))
        mma = WgmmaMma(names, "dq", (64, n, 16), a_desc="dp", trans_a=int(trans), trans_b=int(trans))
        body += [mma, *DONE]
    inputs = {"p": np.ascontiguousarray(p), "q": np.ascontiguousarray(q)}
    y = computed([*body, *stores(names)], inputs, ((64, n), "f32"), **GROUP)
    assert np.allclose(y, a.astype(float) @ b, rtol=1e-12)


def _columns(step: int, width: int, rows: int) -> int:
    """Where the 16 columns of a step begin in an array of :func:`lines`."""
    column = 16 * step
    return column // (width // 2) * rows * (width // 2) + column % (width // 2)


def test_the_left_operand_in_registers() -> None:
    """Old accumulators are added to, or not."""
    a, b = halves(64, 16), halves(16, 16, seed=2)
    declared, names = fragments(16)
    row = op("*", op("/", T, 32), 16)
    body = [
        *declared, RegFragment("a", "a", (64, 64, 16), dtype("f16"), nregs=4),
        LdmatrixLoad("a", "p", (row, ZERO), "a", staged=False), *slab("sq", "q", (16, 16), lines("B32", 16)),
        WgmmaDescriptor("d", "sq", None, "B32", 512, 256),
        *[WgmmaMma(names, "d", (64, 16, 16), a_frag="a", trans_b=1)] * 2,
        *DONE, *stores(names),
    ]  # fmt: skip
    expected = a.astype(float) @ b
    assert np.allclose(computed(body, {"p": a, "q": b}, ((64, 16), "f32"), **GROUP), 2 * expected, rtol=1e-12)
    again = WgmmaMma(names, "d", (64, 16, 16), a_frag="a", trans_b=1, scale_d=0)
    body.insert(body.index(DONE[0]), again)
    assert np.allclose(computed(body, {"p": a, "q": b}, ((64, 16), "f32"), **GROUP), expected, rtol=1e-12)


def test_products_of_no_matrix() -> None:
    declared, names = fragments(8)
    mma = WgmmaMma(names, "d", (64, 8, 16), a_desc="d")
    with pytest.raises(InputError, match="'d' is no descriptor of a matrix"):
        computed([*declared, mma], {"p": halves(4)}, ((1,), "f32"), **GROUP)
    body = [*declared, Smem("s", (16, 16), "__half"), WgmmaDescriptor("d", "s", ZERO, "B32", 512, 256), mma]
    graph = graph_of({"x": (1,)}, Node(tile({"t": 128}, body, 128), ("x",), {"y": (1,)}))
    ops, _, problem = evaluable(graph)
    (fault,) = evaluate_kernels(ops, problem).faults
    assert "reads a matrix beyond the end of s, which has 256 elements" in fault
