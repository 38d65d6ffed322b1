"""Conversions, constants, bindings, selections, accumulators and atomic additions in every element type."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from emmy.compiler.ir.expr import CastExpr, Literal, TernaryExpr, Var
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
    Write,
    axis,
    dtype,
    lit,
    op,
    tile,
    var,
)
from lowering_lab import (
    DTYPES,
    INTEGERS,
    Array,
    Cases,
    compiled,
    integers,
    kernel_graph,
    of_bfloat,
    run,
    run_emmy,
    to_bfloat,
    wrap,
)
from tolerances import ROUNDOFF, of_terms

from ptxc.errors import InputError, UnsupportedError

COUNT = 64

# ---------------------------------------------------------------------------------------------------- conversions

KINDS = ("f32", "f16", "bf16", "f64", *INTEGERS, "bool")


def c_convert(numbers: Array, source: str, to: str) -> Array:
    """C's conversion of numbers that the type can hold."""
    if source == "bf16":
        numbers = of_bfloat(numbers)
    if to == "bool":
        return np.asarray(numbers != 0)
    if to.startswith(("i", "u")):
        return wrap([int(x) for x in numbers], to)
    if to == "bf16":
        return of_bfloat(to_bfloat(numbers))
    with np.errstate(over="ignore"):
        return np.asarray(numbers.astype(DTYPES[to]))


def conversions() -> Iterator[tuple[str, str]]:
    return ((source, to) for source in KINDS for to in KINDS)


def sample(kind: str) -> Array:
    """Numbers of a type; floats small enough for any integer type, which C leaves undefined else."""
    if kind in INTEGERS:
        return integers(kind, 21)
    random = np.random.default_rng(22)
    if kind == "bool":
        return random.random(COUNT) < 0.5
    numbers = random.uniform(0, 127, COUNT)
    numbers[:8] = (0, -0.0, 0.5, 1, 1.5, 2.5, 100, 127)
    return to_bfloat(numbers) if kind == "bf16" else numbers.astype(DTYPES[kind])


def conversion_cases(pairs: Iterator[tuple[str, str]]) -> Cases:
    inputs = {f"x_{kind}": (kind, sample(kind)) for kind in KINDS}
    cases = Cases(COUNT, inputs)
    for source, to in pairs:
        x = inputs[f"x_{source}"][1]
        expected = c_convert(x, source, to)
        cases.add(f"store {source} to {to}", [], f"x_{source}", to, expected)
        v = cases.fresh()
        cases.add(f"let {source} be {to}", [Let(v, Var(f"x_{source}"), dtype=dtype(to))], v, to, expected)
    return cases


def test_conversions() -> None:
    conversion_cases(conversions()).check()


@pytest.mark.needs("nvcc")
def test_conversions_are_those_of_emmys_cuda() -> None:
    kinds = ("f32", "f16", "u8", "i16", "i32", "u32", "i64", "bool")
    pairs = [(source, to) for source in kinds for to in kinds if not ("f16" in (source, to) and source != to)]
    conversion_cases(iter([*pairs, ("f16", "f32"), ("f32", "f16")])).check(run_emmy)


def test_negative_floats_become_signed_integers() -> None:
    x = np.linspace(-100.9, 100.9, COUNT).astype(np.float32)
    cases = Cases(COUNT, {"x": ("f32", x)})
    for kind in ("i16", "i32", "i64"):
        cases.add(kind, [], "x", kind, np.trunc(x).astype(DTYPES[kind]))
        v = cases.fresh()
        cast = CastExpr({"i16": "short", "i32": "int", "i64": "long long"}[kind], var("x"))
        cases.add(f"cast to {kind}", [Let(v, cast, dtype=dtype(kind))], v, kind, np.trunc(x).astype(DTYPES[kind]))
    cases.check()


BITCASTS = [
    ("f32", "i32"), ("f32", "u32"), ("i32", "f32"), ("u32", "f32"), ("f16", "i16"), ("f16", "u16"), ("i16", "f16"),
    ("u16", "f16"), ("bf16", "u16"), ("u16", "bf16"), ("f16", "bf16"), ("i32", "u32"), ("i64", "u64"), ("u8", "u8"),
    ("f64", "i64"), ("i64", "f64"), ("f64", "u64"), ("i16", "u16"), ("u16", "i16"),
]  # fmt: skip


def test_bitcasts() -> None:
    inputs = {f"x_{kind}": (kind, sample(kind)) for kind in {source for source, _ in BITCASTS}}
    cases = Cases(COUNT, inputs)
    for source, to in BITCASTS:
        x, v = inputs[f"x_{source}"][1], cases.fresh()
        expected: Array = x.view(DTYPES[to])
        stmt = Assign(v, "bitcast", (f"x_{source}",), dtype=dtype(to))
        cases.add(f"{source} as {to}", [stmt], v, to, of_bfloat(expected) if to == "bf16" else expected)
    cases.check()


@pytest.mark.parametrize(
    ("args", "kind"), [(("x",), "i16"), (("x",), "f64"), (("x",), None), (("x", "x"), "i32"), ((), "i32")]
)
def test_bitcasts_need_one_operand_and_a_type_as_large(args: tuple[str, ...], kind: str | None) -> None:
    stmts = [Load("x", "x", (var("i"),)), Assign("v", "bitcast", args, dtype=dtype(kind) if kind else None)]
    with pytest.raises(InputError, match="bitcast"):
        compiled(kernel_graph(tile({"i": 8}, [*stmts, Write("y", (var("i"),), "v")]), {"x": (8,)}, {"y": (8,)}))


# ------------------------------------------------------------------------------------------ constants, let, select


@pytest.mark.parametrize("kind", KINDS)
def test_constants_in_every_type(kind: str) -> None:
    cases = Cases(COUNT, {"x": ("f32", np.zeros(COUNT, np.float32))})
    for number in (0.0, 1.0, 5.75, -3.5, 3e9, -1e30, 1e30, 0.1):
        rounded = float(np.float32(number))
        if kind == "bool":
            expected: Any = rounded != 0
        elif kind in INTEGERS:
            info = np.iinfo(DTYPES[kind])
            expected = np.array(min(max(int(rounded), info.min), info.max), DTYPES[kind])
        else:
            with np.errstate(over="ignore"):
                expected = (
                    np.float32(rounded).astype(DTYPES[kind])
                    if kind != "bf16"
                    else of_bfloat(to_bfloat(np.array([rounded])))
                )
        for label, stmt in (
            ("init", Init("", number, dtype=dtype(kind))),
            ("let", Let("", Literal(number, "float"), dtype=dtype(kind))),
        ):
            v = cases.fresh()
            named = Init(v, number, dtype=dtype(kind)) if label == "init" else Let(v, stmt.value, dtype=dtype(kind))
            cases.add(f"{label} {number}", [named], v, kind, expected)
    cases.check()


def test_let_takes_the_type_of_its_expression() -> None:
    i = np.arange(COUNT)
    x = np.linspace(-2, 2, COUNT).astype(np.float32)
    h = x.astype(np.float16)
    cases = Cases(COUNT, {"x": ("f32", x), "h": ("f16", h), "n": ("i32", (i * 3).astype(np.int32))})
    table: tuple[tuple[str, Any, str, Any], ...] = (
        ("number", 1.5, "f32", 1.5),
        ("coordinate", op("+", op("*", var("i"), 3), 1), "i32", i * 3 + 1),
        ("wide", op("*", var("i"), 2**31), "i64", i * 2**31),
        ("sum of floats", op("+", var("x"), 1.0), "f32", x + np.float32(1)),
        ("sum of halves", op("+", var("h"), var("h")), "f16", h + h),
        ("half and float", op("*", var("h"), var("x")), "f32", h.astype(np.float32) * x),
        ("int and float", op("/", var("n"), 2.0), "f32", (i * 3 / 2).astype(np.float32)),
        ("division of ints", op("/", var("n"), 2), "i32", i * 3 // 2),
        ("comparison", op("<", var("x"), 0.5), "i32", x < 0.5),
        ("ternary", TernaryExpr(op(">", var("x"), 0.0), var("x"), lit(0.0)), "f32", np.maximum(x, 0)),
        ("mixed ternary", TernaryExpr(op(">", var("i"), 9), var("n"), var("x")), "f32", np.where(i > 9, i * 3, x)),
        ("decided ternary", TernaryExpr(op(">=", var("i"), 0), var("n"), var("x")), "f32", i * 3),
        ("not a number", op("&&", var("x"), op("!=", var("n"), 6)), "bool", (x != 0) & (i != 2)),
    )
    for label, expr, kind, expected in table:
        v = cases.fresh()
        cases.add(label, [Let(v, expr)], v, kind, expected)
    cases.check()


def branches(*pairs: tuple[str, Any]) -> tuple[SelectBranch, ...]:
    return tuple(SelectBranch(value, predicate) for value, predicate in pairs)


def test_select() -> None:
    i = np.arange(COUNT)
    x, y = np.linspace(-2, 2, COUNT).astype(np.float32), np.linspace(5, 6, COUNT).astype(np.float32)
    big = np.arange(COUNT, dtype=np.int32) + 2**30 + 1
    inputs = {"x": ("f32", x), "y": ("f32", y), "n": ("i32", big), "m": ("i64", big + np.int64(2**40))}
    inputs |= {"h": ("f16", x.astype(np.float16)), "g": ("f16", y.astype(np.float16))}
    cases = Cases(COUNT, inputs)
    first, second = op("<", var("i"), 10), op("<", var("i"), 20)
    half, four = inputs["h"][1].astype(np.float32), np.where(i < 10, x, np.where(i < 20, y, np.where(i == 33, x, y)))
    table: tuple[tuple[str, tuple[Any, ...], str, Any], ...] = (
        ("one", branches(("x", first)), "f32", x),
        ("two", branches(("x", first), ("y", second)), "f32", np.where(i < 10, x, y)),
        ("the first that holds", branches(("x", second), ("y", first), ("h", first)), "f32", np.where(i < 20, x, half)),
        ("four", branches(("x", first), ("y", second), ("x", op("==", var("i"), 33)), ("y", first)), "f32", four),
        ("halves", branches(("h", first), ("g", second)), "f16", np.where(i < 10, inputs["h"][1], inputs["g"][1])),
        ("half and float", branches(("h", first), ("y", second)), "f32", np.where(i < 10, inputs["h"][1], y)),
        ("ints", branches(("n", first), ("m", second)), "i64", np.where(i < 10, big, big + np.int64(2**40))),
        ("int and float", branches(("n", first), ("y", second)), "f32", np.where(i < 10, big.astype(np.float32), y)),
        ("decided", branches(("y", op("<", var("i"), COUNT)), ("x", first)), "f32", y),
        ("value as predicate", branches(("y", op(">", var("x"), 0.0)), ("x", first)), "f32", np.where(x > 0, y, x)),
    )
    for label, chosen, kind, expected in table:
        v = cases.fresh()
        cases.add(label, [Select(v, chosen)], v, kind, expected)
    cases.check()


# ---------------------------------------------------------------------------------------------------- accumulators

COMBINING: dict[str, Any] = {
    "add": np.add, "sum": np.add, "multiply": np.multiply, "prod": np.multiply, "maximum": np.maximum,
    "amax": np.maximum, "minimum": np.minimum,
}  # fmt: skip
#: The same names, each for what it means.
CANONICAL = {"sum": "add", "prod": "multiply", "amax": "maximum"}
STEPS: dict[str, Callable[[int, int], int]] = {
    "add": lambda a, b: a + b, "multiply": lambda a, b: a * b, "maximum": max, "minimum": min,
}  # fmt: skip


def folded(kind: str, name: str, rows: Array) -> Array:
    """The fold of the rows, step by step in the accumulator's type."""
    canonical = CANONICAL.get(name, name)
    neutral = {"add": 0, "multiply": 1}.get(canonical)
    if kind in INTEGERS:
        info = np.iinfo(DTYPES[kind])
        whole = [neutral if neutral is not None else (info.min if canonical == "maximum" else info.max)] * COUNT
        for row in rows:
            whole = [int(v) for v in wrap([STEPS[canonical](int(a), int(b)) for a, b in zip(whole, row)], kind)]
        return np.array(whole, DTYPES[kind])
    numbers = of_bfloat(rows) if kind == "bf16" else rows
    with np.errstate(over="ignore"):
        first = neutral if neutral is not None else (-1e30 if canonical == "maximum" else 1e30)
        total = np.full(COUNT, first, numbers.dtype)
        for row in numbers:
            total = COMBINING[name](total, row)
            if kind == "bf16":
                total = of_bfloat(to_bfloat(total))
    return total


@pytest.mark.parametrize("kind", ["f32", "f16", "bf16", "f64", *INTEGERS])
def test_accumulators_of_every_type(kind: str) -> None:
    if kind in INTEGERS:
        rows = np.stack([integers(kind, seed) for seed in range(4)])
    else:
        numbers = np.round(np.random.default_rng(3).uniform(-2, 2, (4, COUNT)), 2)
        rows = to_bfloat(numbers) if kind == "bf16" else numbers.astype(DTYPES[kind])
    body: list[Any] = []
    for name in COMBINING:
        load = Load("v", "x", (var("k"), var("i")))
        body.append(Loop(axis("k", 4), (load, Accum(f"a_{name}", "v", name, dtype=dtype(kind)))))
    body += [Write("y", (lit(at), var("i")), f"a_{name}") for at, name in enumerate(COMBINING)]
    shapes = {"x": ((4, COUNT), kind)}, {"y": ((len(COMBINING), COUNT), kind)}
    got = run(kernel_graph(tile({"i": COUNT}, body), *shapes), {"x": rows})["y"]
    for row, name in zip(got, COMBINING):
        if kind == "bf16":
            row = of_bfloat(row)
        np.testing.assert_array_equal(row, folded(kind, name, rows), err_msg=f"{name} of {kind}")


def test_an_accumulator_converts_what_it_adds() -> None:
    i = np.arange(COUNT)
    x = np.linspace(-3, 3, COUNT).astype(np.float32)
    body: list[Any] = [Load("x", "x", (var("i"),)), Load("h", "h", (var("i"),)), Init("half", 0.5, dtype=dtype("f32"))]
    for name, value, kind, base in (
        ("a", "h", "f32", None), ("b", "x", "f16", None), ("c", "x", "i32", None), ("d", "x", None, "half"),
        ("e", "i", "i64", None),
    ):  # fmt: skip
        stated = dtype(kind) if kind else None
        body.append(Loop(axis("k", 3), (Accum(name, value, "add", dtype=stated, base=base),)))
    kinds = {"a": "f32", "b": "f16", "c": "i32", "d": "f32", "e": "i64"}
    body += [Write(f"y_{name}", (var("i"),), name) for name in kinds]
    graph = kernel_graph(
        tile({"i": COUNT}, body),
        {"x": (COUNT,), "h": ((COUNT,), "f16")},
        {f"y_{name}": ((COUNT,), kind) for name, kind in kinds.items()},
    )
    h = x.astype(np.float16)
    got = run(graph, {"x": x, "h": h})
    np.testing.assert_array_equal(got["y_a"], h.astype(np.float32) + h + h)
    halves = np.zeros(COUNT, np.float16)
    whole = np.zeros(COUNT, np.int32)
    for _ in range(3):
        halves = halves + h
        whole = np.trunc(whole.astype(np.float32) + x).astype(np.int32)
    np.testing.assert_array_equal(got["y_b"], halves)
    np.testing.assert_array_equal(got["y_c"], whole)
    np.testing.assert_array_equal(got["y_d"], np.float32(0.5) + x)
    np.testing.assert_array_equal(got["y_e"], 3 * i)


def test_an_accumulation_outside_of_a_loop_needs_a_declaration_and_a_known_operation() -> None:
    load, write = Load("x", "x", (var("i"),)), Write("y", (var("i"),), "s")

    def graph(*stmts: Any) -> Any:
        return kernel_graph(tile({"i": 8}, [load, *stmts, write]), {"x": (8,)}, {"y": (8,)})

    inside = Cond(op("<", var("i"), 4), (Accum("s", "x", "add"),))
    x = np.arange(8, dtype=np.float32)
    got = run(graph(Init("s", 2.0, dtype=dtype("f32")), inside), {"x": x})["y"]
    np.testing.assert_array_equal(got, np.where(x < 4, x + 2, 2))
    with pytest.raises(InputError, match="not defined"):
        compiled(graph(inside))
    other = Cond(op("<", var("i"), 4), (Accum("s", "x", "subtract"),))
    with pytest.raises(InputError, match="nothing accumulates with 'subtract'"):
        compiled(graph(Init("s", 2.0, dtype=dtype("f32")), other))


# -------------------------------------------------------------------------------------------------------- atomics


@pytest.mark.parametrize("kind", ["f32", "f16", "bf16", "f64", "i32", "u32", "i64", "u64"])
def test_atomic_additions(kind: str) -> None:
    x = sample(kind)
    numbers = of_bfloat(x) if kind == "bf16" else x
    body = [Load("v", "x", (var("i"),)), Write("y", (op("%", var("i"), 4),), "v", atomic=True)]
    graph = kernel_graph(tile({"i": COUNT}, body), {"x": ((COUNT,), kind)}, {"y": ((4,), kind)})
    kernel = compiled(graph)
    assert kernel.launch is not None
    assert kernel.launch.zero == ("y",)
    got = run(graph, {"x": x})["y"]
    if kind in INTEGERS:
        expected = [wrap([sum(int(v) for v in numbers[at::4])], kind)[0] for at in range(4)]
        np.testing.assert_array_equal(got, expected)
        return
    total = numbers.astype(np.float64).reshape(-1, 4).sum(0)
    near = of_terms(numbers.reshape(-1, 4), ROUNDOFF[kind])
    assert (np.abs((of_bfloat(got) if kind == "bf16" else got) - total) <= near).all()


@pytest.mark.parametrize("kind", ["i16", "u8", "u16", "bool"])
def test_there_are_no_atomic_additions_of_small_types(kind: str) -> None:
    body = [Load("v", "x", (var("i"),)), Write("y", (lit(0),), "v", atomic=True)]
    with pytest.raises(UnsupportedError, match=f"there is no atomic addition of {kind}; atomics add f32"):
        compiled(kernel_graph(tile({"i": 8}, body), {"x": ((8,), kind)}, {"y": ((1,), kind)}))
