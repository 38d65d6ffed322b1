"""Element types, conversions and operations of the reference, against NumPy and C's rules."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from emmy.compiler.dtype import F4_VALUES, decode_f8, encode_f4, encode_f8
from emmy.compiler.ir.expr import BinaryExpr, Builtin, CastExpr, Expr, FlatIndex, FuncCallExpr, TernaryExpr
from kernel_ir import Let, Load, Write, dtype, lit, op, tile, var
from reference_lab import Node, evaluated, floats, graph_of, prepared

from ptxc.errors import InputError, UnsupportedError
from ptxc.frontend.elementwise import ARITY
from ptxc.frontend.elementwise import COMBINES as COMPILED
from ptxc.recursion import with_room
from ptxc.reference import expressions
from ptxc.reference.buffers import DTYPES
from ptxc.reference.codes import EIGHT_BITS, decode4, decode8, encode4, encode8
from ptxc.reference.evaluator import Evaluator
from ptxc.reference.values import COMBINES, Numbers, Value, c_type, element_type, index, promote, quotient, remainder

EXACT = Numbers(exact=True)
ROUNDED = Numbers(exact=False)


def only(found: Value) -> tuple[float, str]:
    """The one number of a value, and its type."""
    return found.array.item(), found.type


def value(type: str, *numbers: float) -> Value:
    return Value(np.array(numbers).astype(EXACT.dtype(type)), type)


def test_every_operation_that_compiles_is_known() -> None:
    for name, arity in ARITY.items():
        result = EXACT.assign(name, [value("f32", 0.5, 2.0)] * arity, None)
        assert result.type == "f32", name
    assert COMBINES == COMPILED


@pytest.mark.parametrize(
    ("name", "args", "expected"),
    [
        ("divide", (7, 2), 3.5), ("floor_divide", (-7, 2), -4), ("mod", (-7, 2), 1), ("maximum", (np.nan, 2), 2),
        ("minimum", (np.nan, 2), 2), ("relu", (-3,), 0), ("relu", (np.nan,), 0), ("sigmoid", (0,), 0.5),
        ("rsqrt", (4,), 0.5), ("square", (3,), 9), ("reciprocal", (4,), 0.25), ("negative", (3,), -3),
        ("erf", (0,), 0), ("floor", (-1.5,), -2), ("abs", (-2,), 2), ("pow", (2, 3), 8), ("where", (0, 1, 2), 2),
        ("where", (0.5, 1, 2), 1), ("bitwise_and", (2, 0), 0), ("bitwise_or", (2, 0), 1), ("bitwise_not", (0,), 1),
        ("less", (1, 2), 1), ("equal", (1, 2), 0), ("not_equal", (np.nan, np.nan), 1), ("greater_equal", (2, 2), 1),
    ],
)  # fmt: skip
def test_operations_on_floats(name: str, args: tuple[float, ...], expected: float) -> None:
    result = EXACT.assign(name, [value("f32", arg) for arg in args], None)
    assert result.array[0] == expected


def test_an_index_has_a_c_type() -> None:
    """That of an int, or of a `long long` where a literal beyond 32768 is in it."""
    short, long = index([65535]), index([65535], long=True)
    assert (short.is_long, long.is_long) == (False, True)
    assert EXACT.assign("square", [short], None).array[0] == np.float32(65535**2 - 2**32)
    assert EXACT.assign("square", [long], None).array[0] == 65535**2
    assert EXACT.assign("bitcast", [index([0x3F800000])], "f32").array[0] == 1
    with pytest.raises(InputError, match="bitcast"):
        EXACT.assign("bitcast", [long], "f32")


def test_integers_compute_as_c_does() -> None:
    a, b = np.array([7, -7, 7, -7, 5]), np.array([2, 2, -2, -2, 0])
    assert quotient(a, b).tolist() == [3, -3, -3, 3, 0]
    assert remainder(a, b).tolist() == [1, -1, 1, -1, 5]
    assert EXACT.assign("add", [value("i32", 2**31 - 1), value("i32", 1)], None).array[0] == -(2**31)
    assert EXACT.assign("multiply", [value("u16", 300), value("u16", 300)], None).array[0] == 300 * 300 % 2**16
    assert EXACT.assign("right_shift", [value("i32", -8), value("i32", 1)], None).array[0] == -4
    assert EXACT.assign("bitwise_count", [value("i32", -1)], dtype("i32").name).array[0] == 32
    assert EXACT.assign("bitwise_count", [value("i64", -1)], "i64").array[0] == 64
    compared = EXACT.assign("less", [value("u32", 2**32 - 1), value("u32", 1)], None)
    assert (compared.type, compared.array[0]) == ("f32", 0)
    assert only(EXACT.assign("square", [value("i32", 3)], None)) == (9, "f32")
    assert (
        EXACT.assign("where", [value("f32", 1), value("i64", 2**60 + 1), value("i64", 0)], "i64").array[0] == 2**60 + 1
    )
    assert EXACT.assign("copy", [value("i64", 2**60 + 1)], "i64").array[0] == 2**60 + 1


@pytest.mark.parametrize(
    ("name", "types", "expected"),
    [
        ("add", ("u16", "u32"), "u32"), ("add", ("u64", "i32"), "u64"), ("add", ("i64", "u32"), "i64"),
        ("add", ("i32", "f32"), "f32"), ("exp", ("i32",), "f32"), ("add", ("f16", "f16"), "f16"),
        ("add", ("f16", "f32"), "f32"), ("less", ("i32", "i32"), "f32"), ("add", ("index", "i32"), "i32"),
    ],
)  # fmt: skip
def test_promotion(name: str, types: tuple[str, ...], expected: str) -> None:
    assert promote(name, [value(type, 1) for type in types]) == expected


@pytest.mark.parametrize("type", ["i32", "i64", "u32", "u64"])
def test_integers_that_are_computed_in_f32_lose_what_it_lacks(type: str) -> None:
    a, b = value(type, 2**24 + 1), value(type, 5)
    assert only(EXACT.assign("maximum", [a, b], type)) == (2**24, type)
    assert only(EXACT.assign("minimum", [a, a], None)) == (2**24 + 1, "f32")
    assert only(EXACT.combine("add", a, value("f32", 0.5), type)) == (2**24, type)


def test_c_types() -> None:
    assert c_type([value("u8", 1), value("i16", 1)]) == "i32"
    assert c_type([value("i32", 1), value("u32", 1)]) == "u32"
    assert c_type([value("i64", 1), value("u32", 1)]) == "i64"
    assert c_type([value("i64", 1), value("u64", 1)]) == "u64"
    assert element_type("unsigned long long") == "u64"
    assert element_type("__nv_fp8_e4m3") == "f8e4m3"
    with pytest.raises(UnsupportedError, match="f16x2"):
        element_type("f16x2")


@pytest.mark.parametrize("source", DTYPES)
@pytest.mark.parametrize("to", DTYPES)
def test_conversions_of_small_numbers(source: str, to: str) -> None:
    numbers = [0, 1, 96] if source != "bool" else [0, 1, 1]
    expected = [float(n != 0) if to == "bool" else float(n) for n in numbers]
    for kind in (EXACT, ROUNDED):
        converted = kind.convert(value(source, *numbers), to)
        assert (converted.type, converted.array.astype(float).tolist()) == (to, expected)


def test_conversions_cut_wrap_and_round() -> None:
    assert EXACT.convert(value("f32", 2.75, -2.75, np.nan), "i32").array.tolist() == [2, -2, 0]
    assert EXACT.convert(value("i64", 2**40 + 5), "i32").array.tolist() == [5]
    assert EXACT.convert(value("i32", -1), "u64").array.tolist() == [2**64 - 1]
    assert EXACT.convert(value("f64", 2.0**63), "u64").array.tolist() == [2**63]
    assert ROUNDED.convert(value("f32", 1 + 2**-12), "f16").array.tolist() == [1]
    assert ROUNDED.convert(value("f32", 1 + 2**-7), "bf16").array.tolist() == [1 + 2**-7]
    assert ROUNDED.convert(value("f32", 1 + 2**-9), "bf16").array.tolist() == [1]
    assert EXACT.convert(value("f32", 1 + 2**-12), "f16").array.tolist() == [1 + 2**-12]
    assert ROUNDED.constant(0.1, "f64").array[0] == np.float32(0.1)


def test_operations_are_rounded_to_their_types() -> None:
    third = ROUNDED.assign("divide", [value("f32", 1), value("f32", 3)], None)
    assert third.array[0] == np.float32(1) / np.float32(3)
    half = ROUNDED.assign("divide", [value("f16", 1), value("f16", 3)], None)
    assert (half.type, half.array[0]) == ("f16", np.float16(1 / 3))
    assert EXACT.assign("divide", [value("f16", 1), value("f16", 3)], None).array[0] == 1 / 3
    stated = ROUNDED.assign("divide", [value("f32", 1), value("f32", 3)], "bf16")
    assert stated.array[0] == 0.333984375


@pytest.mark.parametrize("type", sorted(EIGHT_BITS))
def test_codes_of_eight_bits(type: str) -> None:
    """Every code, what lies in the middle of two, and beyond them all; as Emmy's own NumPy reads and rounds them."""
    codes = np.arange(256).astype(np.uint8)
    numbers = decode8(codes, type)
    assert np.array_equal(numbers, decode_f8(codes, type).astype(np.float64), equal_nan=True)
    finite = numbers[np.isfinite(numbers)]
    tried = np.concatenate([finite, (finite[1:] + finite[:-1]) / 2, [1e9, -1e9, np.inf, np.nan, 1e-9, -1e-9]])
    assert np.array_equal(encode8(tried, type), encode_f8(tried, type))
    for kind in (EXACT, ROUNDED):
        assert only(kind.assign(f"to_{type}", [value("f32", 0.3)], type))[0] in finite
        assert kind.assign(f"from_{type}", [value(type, 1.5)], "f16").array.tolist() == [1.5]


def test_codes_of_four_bits() -> None:
    numbers = decode4(np.arange(16))
    assert numbers.tolist() == list(F4_VALUES)
    tried = np.concatenate([numbers, (numbers[1:8] + numbers[:7]) / 2, [100.0, -100.0]])
    assert np.array_equal(encode4(tried), encode_f4(tried))
    result = EXACT.assign("to_f4e2m1", [value("f32", -1.5)], "i32")
    assert (result.type, result.array.tolist()) == ("i32", [11])
    assert only(EXACT.convert(value("f4e2m1x2", 0x21), "i32")) == (0x21, "i32")


def test_bits_as_another_type() -> None:
    assert EXACT.assign("bitcast", [value("f32", 1.0)], "u32").array[0] == 0x3F800000
    assert only(EXACT.assign("bitcast", [value("u16", 0x3C00)], "f16")) == (1.0, "f16")
    assert only(EXACT.assign("bitcast", [value("u16", 0x3F80)], "bf16")) == (1.0, "bf16")
    for args, type in (([value("f32", 1)], "u16"), ([value("f32", 1)], None), ([], "u32")):
        with pytest.raises(InputError, match="bitcast"):
            EXACT.assign("bitcast", args, type)


@pytest.mark.parametrize(
    ("name", "type", "expected"),
    [
        ("add", "f32", 5.0),
        ("maximum", "f32", 3.0),
        ("multiply", "i32", 6),
        ("minimum", "i32", 2),
        ("sum", "bool", True),
    ],
)
def test_accumulations(name: str, type: str, expected: Any) -> None:
    kind = type if type != "bool" else "i32"
    result = EXACT.combine(name, value(kind, 2), value(kind, 3), type)
    assert (result.type, result.array[0]) == (type, expected)


def test_an_integer_accumulates_floats_in_f32() -> None:
    assert EXACT.combine("add", value("i32", 1), value("f32", 1.75), "i32").array[0] == 2
    with pytest.raises(InputError, match="nothing accumulates with 'subtract'"):
        EXACT.combine("subtract", value("f32", 1), value("f32", 1), "f32")


# ----------------------------------------------------------------------------------------------------- expressions


def evaluate(expr: Expr, kind: str = "f32", count: int = 4) -> list[float]:
    """The values of an expression over the axis ``i`` and ``x``, a float that is i + 0.5."""
    body = [Load("x", "x", (var("i"),)), Let("v", expr), Write("y", (var("i"),), "v")]
    x = np.arange(count, dtype=np.float32) + np.float32(0.5)
    graph = graph_of({"x": (count,)}, Node(tile({"i": count}, body), ("x",), {"y": ((count,), kind)}))
    result: list[float] = evaluated(graph, {"x": x}).outputs["y"].tolist()
    return result


UNSIGNED = CastExpr("unsigned int", var("i"))


@pytest.mark.parametrize(
    ("expr", "expected"),
    [
        (op("/", op("-", var("i"), 2), 2), [-1, 0, 0, 0]),
        (op("//", op("-", var("i"), 2), 2), [-1, 0, 0, 0]),
        (op("%", op("-", var("i"), 2), 2), [0, -1, 0, 1]),
        (op("^", op("<<", var("i"), 2), op("|", op("&", var("i"), 1), 2)), [2, 7, 10, 15]),
        (op(">>", op("-", var("i"), 4), 1), [-2, -2, -1, -1]),
        (op("*", var("x"), 2.0), [1, 3, 5, 7]),
        (op("/", var("x"), lit(2)), [0.25, 0.75, 1.25, 1.75]),
        (op("//", var("x"), lit(2)), [0, 0, 1, 1]),
        (op("%", var("x"), lit(2)), [0.5, 1.5, 0.5, 1.5]),
        (op("<", var("x"), 2), [1, 1, 0, 0]),
        (op("&&", op(">=", var("i"), 1), op("!=", var("i"), 2)), [0, 1, 0, 1]),
        (op("||", op("==", var("i"), 0), op("<=", lit(3), var("i"))), [1, 0, 0, 1]),
        (TernaryExpr(op("<", var("i"), 2), var("i"), lit(9)), [0, 1, 9, 9]),
        (TernaryExpr(op("<", var("i"), 2), var("x"), lit(9)), [0.5, 1.5, 9, 9]),
        (CastExpr("int", var("x")), [0, 1, 2, 3]),
        (CastExpr("float", var("i")), [0, 1, 2, 3]),
        (op("-", UNSIGNED, 9), [2**32 - 9, 2**32 - 8, 2**32 - 7, 2**32 - 6]),
        (op("-", UNSIGNED, 40000), [-40000, -39999, -39998, -39997]),
        (op(">", op("-", UNSIGNED, 9), 0), [1, 1, 1, 1]),
        (op("/", op("-", UNSIGNED, 9), 2), [2**31 - 5, 2**31 - 4, 2**31 - 4, 2**31 - 3]),
        (op(">>", op("-", UNSIGNED, 9), 1), [2**31 - 5, 2**31 - 4, 2**31 - 4, 2**31 - 3]),
        (TernaryExpr(op("<", var("i"), 2), UNSIGNED, op("-", var("i"), 5)), [0, 1, 2**32 - 3, 2**32 - 2]),
        (op("+", FlatIndex("x", (op("-", var("i"), 5),)), UNSIGNED), [2**32 - 5, 2**32 - 3, 2**32 - 1, 1]),
        (op("+", FlatIndex("x", (op("-", var("i"), 40000),)), UNSIGNED), [-40000, -39998, -39996, -39994]),
        (FuncCallExpr("fmax", (var("x"), lit(2))), [2, 2, 2.5, 3.5]),
        (FuncCallExpr("bitwise_count", (var("i"),)), [0, 1, 1, 2]),
        (FlatIndex("x", (var("i"),)), [0, 1, 2, 3]),
        (Builtin("block_dim.x"), [256] * 4),
        (Builtin("block_dim.y"), [1] * 4),
        (Builtin("block_idx.z"), [0] * 4),
        (Builtin("grid_dim.x"), [1] * 4),
        (Builtin("warp_size"), [32] * 4),
        (op("+", var("lane"), op("*", var("warp"), 100)), [0, 1, 2, 3]),
    ],
    ids=lambda item: item.pretty() if isinstance(item, Expr) else "",
)
def test_expressions(expr: Expr, expected: list[float]) -> None:
    assert evaluate(expr) == expected


def test_expressions_as_deep_as_are_read() -> None:
    deep: Expr = var("i")
    for _ in range(1900):
        deep = op("^", deep, var("i"))
    kernel = tile({"i": 4}, [Load("a", "x", (deep,)), Write("y", (var("i"),), "a")])
    x = floats(4)
    graph = with_room(lambda: graph_of({"x": (4,)}, Node(kernel, ("x",), {"y": (4,)})))
    assert np.array_equal(evaluated(graph, {"x": x}).outputs["y"], x)


def test_expressions_that_are_none() -> None:
    class Odd(BinaryExpr):
        pass

    with pytest.raises(UnsupportedError, match="does not evaluate Odd"):
        _direct(Odd("+", lit(1), lit(2)))
    with pytest.raises(InputError, match="there is no built-in 'thread_idx'"):
        _direct(Builtin("thread_idx"))


def _direct(expr: Expr) -> None:
    graph = graph_of({"x": (4,)}, Node(tile({"i": 4}, [Write("y", (var("i"),), "i")]), ("x",), {"y": (4,)}))
    (kernel,), _, problem = prepared(graph, {"x": floats(4)})
    expressions.evaluate(expr, Evaluator(kernel, problem, problem.arrays(), {}, exact=True))


def test_an_index_is_no_element_type() -> None:
    assert index(3).is_integer
    assert only(EXACT.convert(index(3), "f32")) == (3.0, "f32")
