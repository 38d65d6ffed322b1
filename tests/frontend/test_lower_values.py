"""What statements without a body compute: loads, operations in every element type, conversions, selections, stores."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from emmy.compiler.ir.expr import CastExpr, Literal, TernaryExpr, Var
from lowering_lab import (
    DTYPES,
    Accum,
    Array,
    Assign,
    Cases,
    Cond,
    Init,
    Let,
    Load,
    Loop,
    Select,
    SelectBranch,
    Write,
    axis,
    compiled,
    dtype,
    kernel_graph,
    lit,
    of_bfloat,
    op,
    run,
    run_emmy,
    tile,
    to_bfloat,
    var,
)

from ptxc.errors import CompileError, InputError, UnsupportedError
from ptxc.frontend.elementwise import ARITY, COMPARISONS

INTEGERS = ("u8", "i16", "u16", "i32", "u32", "i64", "u64")
COUNT = 64

# ------------------------------------------------------------------------------------------------------ on floats

_erf = np.vectorize(__import__("math").erf)
#: What each operation means.
FLOATS: dict[str, Callable[..., Any]] = {
    "add": np.add, "subtract": np.subtract, "multiply": np.multiply, "divide": np.divide,
    "floor_divide": np.floor_divide, "mod": np.mod, "divide_rn_f32": np.divide, "maximum": np.maximum,
    "minimum": np.minimum, "pow": np.power, "negative": np.negative, "copy": np.positive, "pad": np.positive,
    "square": np.square, "reciprocal": np.reciprocal, "relu": lambda x: np.maximum(x, 0), "exp": np.exp,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)), "exp_fast": np.exp, "log": np.log, "rsqrt": lambda x: x**-0.5,
    "sin": np.sin, "cos": np.cos, "tanh": np.tanh, "sqrt": np.sqrt, "erf": _erf, "floor": np.floor, "abs": np.abs,
    "bitwise_and": np.logical_and, "bitwise_or": np.logical_or, "bitwise_not": np.logical_not, "where": np.where,
    "equal": np.equal, "not_equal": np.not_equal, "greater": np.greater, "less": np.less,
    "greater_equal": np.greater_equal, "less_equal": np.less_equal,
}  # fmt: skip
#: What takes positive numbers only.
POSITIVE = {"log", "rsqrt", "sqrt", "pow"}
#: What Emmy's CUDA has no form of on floats.
ONLY_PTXC = {"floor_divide", "mod"}


def floats(kind: str) -> dict[str, tuple[str, Array]]:
    """Inputs of a float type; some numbers are equal, some zero."""
    random = np.random.default_rng(7)
    x, y, z = (np.round(random.uniform(-4, 4, COUNT), 2) for _ in range(3))
    x[:8] = y[:8]
    x[5:10], y[8:12] = 0, 0.5
    arrays = {"x": x, "y": y, "z": z, "p": np.abs(x) + 0.25, "q": np.abs(z) + 0.5}
    if kind == "bf16":
        return {name: (kind, to_bfloat(array)) for name, array in arrays.items()}
    return {name: (kind, array.astype(DTYPES[kind])) for name, array in arrays.items()}


def float_cases(kind: str, emmy: bool = False) -> Cases:
    """Every operation on operands of one float type, with its result's type stated or not."""
    inputs = floats(kind)
    cases = Cases(COUNT, inputs)
    numbers = {
        name: (of_bfloat(array) if kind == "bf16" else array).astype(np.float64) for name, (_, array) in inputs.items()
    }
    for name, arity in ARITY.items():
        if emmy and name in ONLY_PTXC:
            continue
        operands = (("p", "q") if name in POSITIVE else ("x", "q" if "div" in name or name == "mod" else "y", "z"))[
            :arity
        ]
        if name == "reciprocal":
            operands = ("q",)
        with np.errstate(all="ignore"):
            expected = FLOATS[name](*(numbers[operand] for operand in operands))
        stated: tuple[str | None, ...] = (None, "f32") if name == "bitwise_not" else (None, "f32", "f16")
        for result in stated:
            to = result or ("f16" if kind == "f16" else "f32")
            v = cases.fresh()
            stmt = Assign(v, name, operands, dtype=dtype(result) if result else None)
            if name == "bitwise_not" and kind == "f16" and result is None:
                continue  # a mask that became f16 is refused, as Emmy does
            near = 3e-3 if "f16" in (to, kind) else 2e-6
            cases.add(f"{name} of {kind} as {result}", [stmt], v, to, expected, near)
    return cases


@pytest.mark.parametrize("kind", ["f32", "f16", "bf16", "f64"])
@pytest.mark.parametrize("math", ["precise", "fast"])
def test_operations_on_floats(kind: str, math: str) -> None:
    float_cases(kind).check(math=math)


@pytest.mark.needs("nvcc")
@pytest.mark.parametrize("kind", ["f32", "f16"])
def test_operations_on_floats_are_those_of_emmys_cuda(kind: str) -> None:
    float_cases(kind, emmy=True).check(run_emmy)


def test_comparisons_and_masks_with_nan() -> None:
    nan = np.array([np.nan, 1.0, np.nan, 0.0] * 16, np.float32)
    one = np.array([1.0, 1.0, np.nan, -0.0] * 16, np.float32)
    cases = Cases(COUNT, {"x": ("f32", nan), "y": ("f32", one)})
    for name in (*COMPARISONS, "bitwise_and", "bitwise_or"):
        v = cases.fresh()
        cases.add(name, [Assign(v, name, ("x", "y"))], v, "f32", FLOATS[name](nan, one))
    for name, expected in (("maximum", np.fmax), ("minimum", np.fmin)):
        v = cases.fresh()
        cases.add(name, [Assign(v, name, ("x", "y"))], v, "f32", expected(nan, one))
    v = cases.fresh()
    cases.add("where", [Assign(v, "where", ("x", "y", "x"))], v, "f32", np.where(nan != 0, one, nan))
    v = cases.fresh()
    cases.add("bitwise_not", [Assign(v, "bitwise_not", ("x",))], v, "f32", nan == 0)
    v = cases.fresh()
    cases.add("relu", [Assign(v, "relu", ("x",))], v, "f32", np.fmax(nan, 0))
    cases.check()


# ---------------------------------------------------------------------------------------------------- on integers


def bits_of(kind: str) -> int:
    return int(kind[1:])


def wrap(value: Any, kind: str) -> Array:
    """Python integers wrapped into an integer type."""
    width = bits_of(kind)
    masked = [int(v) & ((1 << width) - 1) for v in value]
    if kind.startswith("i"):
        masked = [v - (1 << width) if v >> (width - 1) else v for v in masked]
    return np.array(masked, DTYPES[kind])


def c_type(*kinds: str) -> str:
    """C's common type of integer operands."""
    long = [kind for kind in kinds if bits_of(kind) == 64]
    return ("u64" if "u64" in long else "i64") if long else ("u32" if "u32" in kinds else "i32")


def promoted(*kinds: str) -> str:
    """The type that Emmy gives an operation of integers whose statement names none."""
    signed = max((bits_of(k) for k in kinds if k.startswith("i")), default=0)
    unsigned = max((bits_of(k) for k in kinds if k.startswith("u")), default=0)
    return f"u{unsigned}" if unsigned >= signed else f"i{signed}"


def _quotient(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


INTEGER_OPS: dict[str, Callable[[int, int], int]] = {
    "add": lambda a, b: a + b, "subtract": lambda a, b: a - b, "multiply": lambda a, b: a * b,
    "floor_divide": _quotient, "remainder": lambda a, b: a - b * _quotient(a, b),
    "mod": lambda a, b: a - b * _quotient(a, b), "left_shift": lambda a, b: a << b, "right_shift": lambda a, b: a >> b,
    "bitwise_and": lambda a, b: a & b, "bitwise_or": lambda a, b: a | b, "bitwise_xor": lambda a, b: a ^ b,
}  # fmt: skip


def integers(kind: str, seed: int) -> Array:
    """Integers of a type: any, small ones and those at the ends."""
    random = np.random.default_rng(seed)
    info = np.iinfo(DTYPES[kind])
    small = random.integers(max(-9, info.min), 10, COUNT)
    whole = random.integers(info.min, info.max, COUNT, DTYPES[kind], endpoint=True)
    ends = np.array([info.min, info.max], whole.dtype)[random.integers(0, 2, COUNT)]
    return np.choose(random.integers(0, 3, COUNT), [whole, small.astype(whole.dtype), ends])


def apply(name: str, kinds: tuple[str, str], a: Array, b: Array) -> tuple[Array, str]:
    """C's value of ``a name b``, and its type."""
    common = c_type(kinds[0]) if "shift" in name else c_type(*kinds)
    left = wrap(a, common)
    right = b if "shift" in name else wrap(b, common)
    values = [INTEGER_OPS[name](int(x), int(y)) for x, y in zip(left, right)]
    return wrap(values, common), common


def defined(name: str, kinds: tuple[str, str], a: Array, b: Array) -> Array:
    """``b``, changed where C leaves the operation undefined (overflow of signed numbers wraps on the hardware)."""
    if "shift" in name:
        return (b.astype(np.uint64) % np.uint64(bits_of(c_type(kinds[0])))).astype(b.dtype)
    if name in ("floor_divide", "remainder", "mod"):
        common = c_type(*kinds)
        lowest = wrap(a, common) == np.iinfo(DTYPES[common]).min
        return np.where((b == 0) | (lowest & (wrap(b, common) == -1)), 3, b).astype(b.dtype)
    return b


def integer_cases(pairs: list[tuple[str, str]]) -> Cases:
    """Every integer operation on operands of each pair of types."""
    inputs: dict[str, tuple[str, Array]] = {}
    todo = []
    for left, right in pairs:
        for name in INTEGER_OPS:
            a, b = integers(left, 3), integers(right, 5)
            b = defined(name, (left, right), a, b)
            x, y = f"x{left}", f"y{len(inputs)}"
            for known, (kind, array) in inputs.items():
                if known.startswith("y") and kind == right and np.array_equal(array, b):
                    y = known
            inputs[x], inputs[y] = (left, a), (right, b)
            todo.append((name, (left, right), x, y))
    cases = Cases(COUNT, inputs)
    for name, kinds, x, y in todo:
        expected, _ = apply(name, kinds, inputs[x][1], inputs[y][1])
        for result in (None, "i32", "u8"):
            to = result or promoted(*kinds)
            v = cases.fresh()
            stmt = Assign(v, name, (x, y), dtype=dtype(result) if result else None)
            cases.add(f"{kinds[0]} {name} {kinds[1]} as {result}", [stmt], v, to, wrap(expected, to))
    return cases


MIXED = [("u8", "i32"), ("i16", "u16"), ("i32", "u32"), ("u32", "i64"), ("i64", "u64"), ("i32", "i64"), ("u16", "u64")]


@pytest.mark.parametrize("kind", INTEGERS)
def test_operations_on_integers(kind: str) -> None:
    integer_cases([(kind, kind)]).check()


def test_operations_on_mixed_integers() -> None:
    integer_cases(MIXED).check()


@pytest.mark.needs("nvcc")
@pytest.mark.skipif(os.environ.get("PTXC_TEST_ALL") != "1", reason="takes nvcc some seconds: PTXC_TEST_ALL=1")
def test_operations_on_integers_are_those_of_emmys_cuda() -> None:
    integer_cases([(kind, kind) for kind in INTEGERS]).check(run_emmy)
    integer_cases(MIXED).check(run_emmy)


def counted(kinds: tuple[str, ...] = INTEGERS) -> Cases:
    """The other operations on integers: what C computes of them as such though the result may be a float."""
    inputs = {kind: (kind, integers(kind, 11)) for kind in kinds}
    inputs |= {f"{kind}b": (kind, integers(kind, 12)) for kind in kinds}
    cases = Cases(COUNT, inputs)
    for kind in kinds:
        a, b = inputs[kind][1], inputs[f"{kind}b"][1]
        for result in ("i32", "i64", None):
            to = result or kind
            width = 64 if bits_of(to) == 64 else 32
            expected = [(int(x) & ((1 << width) - 1)).bit_count() for x in a]
            v = cases.fresh()
            stmt = Assign(v, "bitwise_count", (kind,), dtype=dtype(result) if result else None)
            cases.add(f"bitwise_count {kind} as {result}", [stmt], v, to, np.array(expected))
        for name in COMPARISONS:
            v = cases.fresh()
            cases.add(f"{name} {kind}", [Assign(v, name, (kind, f"{kind}b"))], v, "i32", FLOATS[name](a, b))
        for name in ("copy", "pad"):
            v = cases.fresh()
            cases.add(f"{name} {kind}", [Assign(v, name, (kind,), dtype=dtype(kind))], v, kind, a)
        v = cases.fresh()
        chosen = Assign(v, "where", (f"{kind}b", kind, f"{kind}b"), dtype=dtype(kind))
        cases.add(f"where {kind}", [chosen], v, kind, np.where(b != 0, a, b))
        v, common = cases.fresh(), c_type(kind)
        square = Assign(v, "square", (kind,), dtype=dtype(kind))
        cases.add(f"square {kind}", [square], v, kind, wrap([int(x) ** 2 for x in a], kind))
        v = cases.fresh()
        total = wrap([int(x) + int(y) for x, y in zip(a, b)], common).astype(np.float32)
        cases.add(f"add {kind} as f32", [Assign(v, "add", (kind, f"{kind}b"), dtype=dtype("f32"))], v, "f32", total)
    return cases


def test_other_operations_on_integers() -> None:
    counted().check()


@pytest.mark.needs("nvcc")
def test_other_operations_on_integers_are_those_of_emmys_cuda() -> None:
    counted(("u8", "i16", "i32", "u32", "i64")).check(run_emmy)


def test_integers_that_compute_as_floats() -> None:
    x = np.array([-7, 0, 3, 100] * 16, np.int32)
    cases = Cases(COUNT, {"x": ("i32", x), "y": ("i32", np.full(COUNT, 2, np.int32))})
    for name, expected in (("divide", x / 2), ("abs", np.abs(x)), ("negative", -x), ("relu", np.maximum(x, 0))):
        v = cases.fresh()
        cases.add(name, [Assign(v, name, ("x", "y")[: ARITY[name]])], v, "f32", expected)
    v = cases.fresh()
    cases.add("maximum", [Assign(v, "maximum", ("x", "y"), dtype=dtype("i32"))], v, "i32", np.maximum(x, 2))
    cases.check()


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


# ------------------------------------------------------------------------------------------------ errors, atomics


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
    near = {"bf16": 0.05, "f16": 5e-3}.get(kind, 1e-6)
    np.testing.assert_allclose(of_bfloat(got) if kind == "bf16" else got, total, rtol=near)


@pytest.mark.parametrize("kind", ["i16", "u8", "u16", "bool"])
def test_there_are_no_atomic_additions_of_small_types(kind: str) -> None:
    body = [Load("v", "x", (var("i"),)), Write("y", (lit(0),), "v", atomic=True)]
    with pytest.raises(UnsupportedError, match=f"there is no atomic addition of {kind}; atomics add f32"):
        compiled(kernel_graph(tile({"i": 8}, body), {"x": ((8,), kind)}, {"y": ((1,), kind)}))


@pytest.mark.parametrize("name", ["arange", "silu", "softplus", "gelu", "next", "from_f8e4m3", "arctan", "cumsum"])
def test_operations_without_a_form_are_unsupported(name: str) -> None:
    body = [Load("v", "x", (var("i"),)), Assign("w", name, ("v",)), Write("y", (var("i"),), "w")]
    with pytest.raises(UnsupportedError, match=f"operation '{name}' of f32 is not supported; see `ptxc ops`"):
        compiled(kernel_graph(tile({"i": 8}, body), {"x": (8,)}, {"y": (8,)}))


@pytest.mark.parametrize("name", [*ARITY, "remainder", "left_shift", "bitwise_xor", "bitwise_count"])
@pytest.mark.parametrize("kind", ["f32", "f16", "i32"])
def test_operations_with_a_wrong_number_of_operands_are_refused(name: str, kind: str) -> None:
    for count in range(5):
        body = [Load("v", "x", (var("i"),)), Assign("w", name, ("v",) * count, dtype=dtype(kind))]
        graph = kernel_graph(tile({"i": 8}, [*body, Write("y", (var("i"),), "w")]), {"x": ((8,), kind)}, {"y": (8,)})
        if count != ARITY.get(name, 1 if name == "bitwise_count" else 2):
            with pytest.raises(CompileError, match=r"operand|not supported|bitwise_not") as caught:
                compiled(graph)
            assert caught.value.exit_status == 2
