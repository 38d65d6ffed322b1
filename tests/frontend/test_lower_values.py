"""What operations compute, in every element type and in mixtures of them, against NumPy and against Emmy's CUDA."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from emmy.compiler.dtype import encode_f4
from kernel_ir import Assign, Let, Load, Write, dtype, op, tile, var
from lowering_lab import (
    AT,
    DTYPES,
    INTEGERS,
    Array,
    Cases,
    bits_of,
    compiled,
    integers,
    kernel_graph,
    of_bfloat,
    run_emmy,
    to_bfloat,
    wrap,
)

from ptxc.errors import CompileError, UnsupportedError
from ptxc.frontend.elementwise import ARITY, COMPARISONS

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
    **dict.fromkeys(("from_f8e4m3", "from_f8e5m2", "to_f8e4m3", "to_f8e5m2"), np.positive), "to_f4e2m1": encode_f4,
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


def test_the_sign_of_a_mixed_operation_shows_in_what_follows() -> None:
    """An i32 and a u32 make a u32, an i64 and a u32 an i64: as floats, the same bits are other numbers."""
    inputs: dict[str, tuple[str, Array]] = {
        kind: (kind, np.full(COUNT, -3).astype(DTYPES[kind])) for kind in ("i32", "u32", "i64", "u64", "i16", "u16")
    }
    cases = Cases(COUNT, inputs)
    for left, right in (("i32", "u32"), ("u32", "i64"), ("i64", "u64"), ("i16", "u16"), ("i32", "i64"), ("u16", "i32")):
        v, f = cases.fresh(), cases.fresh()
        total = wrap(apply("add", (left, right), inputs[left][1], inputs[right][1])[0], promoted(left, right))
        stmts = [Assign(v, "add", (left, right)), Assign(f, "copy", (v,), dtype=dtype("f32"))]
        cases.add(f"{left} and {right}", stmts, f, "f32", total.astype(np.float32))
    cases.check()


def indices() -> Cases:
    """An index is an int or, where a literal beyond 32768 is in it, a `long long`, however few bits hold it."""
    cases = Cases(COUNT, {})
    at = np.arange(COUNT, dtype=np.int64)
    for factor, long in ((3, False), (32768, False), (40000, True)):
        products = {"multiply": (at * factor) ** 2, "add": at * factor * 2, "square": (at * factor) ** 2}
        for name, exact in products.items():
            v, w = cases.fresh(), cases.fresh()
            stmts = [Let(v, op("*", AT, factor)), Assign(w, name, (v,) if name == "square" else (v, v))]
            whole = exact if long else exact.astype(np.int32)
            cases.add(f"{name} of {factor} times the index", stmts, w, "f32", whole.astype(np.float32))
    return cases


def test_an_index_is_computed_with_in_its_c_type() -> None:
    indices().check()


@pytest.mark.needs("nvcc")
def test_an_index_is_computed_with_as_emmys_cuda_does() -> None:
    indices().check(run_emmy)


@pytest.mark.needs("nvcc")
@pytest.mark.skipif(os.environ.get("PTXC_WHOLE_CORPUS") != "1", reason="takes nvcc some seconds: PTXC_WHOLE_CORPUS=1")
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


# --------------------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize("name", ["arange", "silu", "softplus", "gelu", "next", "from_f4e2m1", "arctan", "cumsum"])
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
