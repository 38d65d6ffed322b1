"""Unsigned integers of 32 and 64 bits in expressions: C's common type is unsigned, and arithmetic wraps around."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from emmy.compiler.ir.expr import CastExpr, TernaryExpr
from kernel_ir import Let, Load, Write, dtype, lit, op, tile, var
from lowering_lab import kernel_graph, run, run_emmy

A, B = var("a"), var("b")
TOP = 2**63 + 2**62
CASES = {
    # name: the expression of a and b, their types and values, the result's type, and what C computes
    "difference-divided": (op("/", op("-", A, B), 2), "u32 1", "u32 2", "u32", 2147483647),
    "difference-compared": (TernaryExpr(op("<", op("-", A, B), 5), lit(1), lit(0)), "u32 1", "u32 2", "i32", 0),
    "signed-with-unsigned": (TernaryExpr(op("<", A, B), lit(1), lit(0)), "i32 -1", "u32 2", "i32", 0),
    "long-with-unsigned": (TernaryExpr(op("<", A, B), lit(1), lit(0)), "i64 -1", "u32 2", "i32", 1),
    "wide-compared": (TernaryExpr(op("<", A, B), lit(1), lit(0)), f"u64 {2**63 + 5}", "u64 2", "i32", 0),
    "wide-divided": (op("/", A, 3), f"u64 {2**63 + 5}", "u64 2", "u64", (2**63 + 5) // 3),
    "shifted": (op(">>", op("-", 0, A), 4), "u32 16", "u32 0", "u32", 0x0FFFFFFF),
    "shifted-by-unsigned": (op(">>", A, B), "i32 -16", "u32 2", "i32", -4),
    "hash": (op("%", op("*", A, A), 7), "u32 100003", "u32 0", "u32", 100003 * 100003 % 2**32 % 7),
    "wide-to-float": (op("*", A, 1.0), f"u64 {TOP}", "u64 0", "f32", float(TOP)),
    "chosen": (op(">>", TernaryExpr(op("==", A, B), lit(0), op("-", A, B)), 1), "u32 1", "u32 2", "u32", 2147483647),
    "cast": (op(">>", CastExpr("unsigned int", A), 28), "i32 -1", "i32 0", "i32", 15),
    "literal-beyond-int": (op("/", op("-", A, 40000), 2), "u32 1", "u32 0", "i32", -19999),
}
NUMPY = {"u32": np.uint32, "u64": np.uint64, "i32": np.int32, "i64": np.int64, "f32": np.float32}


@pytest.mark.parametrize("name", CASES)
def test_unsigned(name: str) -> None:
    check(name, run)


@pytest.mark.needs("nvcc")
@pytest.mark.parametrize("name", CASES)
def test_unsigned_in_emmys_cuda(name: str) -> None:
    check(name, run_emmy)


def check(name: str, compiler: Callable[..., Mapping[str, Any]]) -> None:
    expr, a, b, result, expected = CASES[name]
    (a_type, a_value), (b_type, b_value) = a.split(), b.split()
    graph = kernel_graph(
        tile(
            {"i": 32},
            [
                Load("a", "x", (var("i"),)),
                Load("b", "z", (var("i"),)),
                Let("r", expr, dtype(result)),
                Write("y", (var("i"),), "r"),
            ],
            threads=32,
        ),
        {"x": ((32,), a_type), "z": ((32,), b_type)},
        {"y": ((32,), result)},
    )
    given = {
        "x": np.full(32, int(a_value), NUMPY[a_type]),
        "z": np.full(32, int(b_value), NUMPY[b_type]),
    }
    found = compiler(graph, given)["y"]
    assert found.tolist() == [expected] * 32


@pytest.mark.parametrize(
    ("to", "expected"), [("f32", 4e9), ("i64", 4_000_000_000), ("f64", 4e9), ("u64", 4_000_000_000)]
)
def test_a_constant_keeps_its_sign_in_a_conversion(to: str, expected: float) -> None:
    graph = kernel_graph(
        tile(
            {"i": 32},
            [
                Let("big", lit(4_000_000_000), dtype("u32")),
                Let("r", var("big"), dtype(to)),
                Write("y", (var("i"),), "r"),
            ],
            threads=32,
        ),
        {},
        {"y": ((32,), to)},
    )
    assert run(graph, {})["y"].tolist() == [expected] * 32


def small(emitter: Callable[..., Mapping[str, Any]], to: str, numbers: list[float]) -> list[int]:
    graph = kernel_graph(
        tile(
            {"i": 32},
            [Load("a", "x", (var("i"),)), Let("r", var("a"), dtype(to)), Write("y", (var("i"),), "r")],
            threads=32,
        ),
        {"x": (32,)},
        {"y": ((32,), to)},
    )
    given = np.resize(np.array(numbers, np.float32), 32)
    return list(emitter(graph, {"x": given})["y"].tolist()[: len(numbers)])


BEYOND = [-11.0, 300.5, -0.9, 70000.0, 5e9, -5e9, float("nan")]


@pytest.mark.needs("nvcc")
@pytest.mark.parametrize("to", ["u8", "u16", "i16", "u32", "i32"])
def test_floats_beyond_an_integer_type_become_what_cuda_makes_of_them(to: str) -> None:
    assert small(run, to, BEYOND) == small(run_emmy, to, BEYOND)


@pytest.mark.parametrize(("to", "expected"), [("u8", [0, 44, 0, 112]), ("i16", [-11, 300, 0, 4464])])
def test_floats_beyond_a_small_integer_type_keep_low_bits(to: str, expected: list[int]) -> None:
    assert small(run, to, BEYOND[:4]) == expected
