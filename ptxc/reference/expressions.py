"""Expressions of Kernel IR, evaluated for all threads at once.

Source: ``emmy.compiler.ir.expr``; the meaning is that of the C text that each node renders, read as a tree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol

import numpy as np
from emmy.compiler.ir.expr import (
    BinaryExpr,
    Builtin,
    CastExpr,
    Expr,
    FlatIndex,
    FuncCallExpr,
    Literal,
    TernaryExpr,
    Var,
)

from ptxc.errors import InputError, UnsupportedError
from ptxc.reference.buffers import Array
from ptxc.reference.layouts import congruous, crosswise
from ptxc.reference.values import FLOATS, Numbers, Value, c_type, element_type, index, quotient, remainder


class Names(Protocol):
    """Where expressions find what names mean, and how buffers are laid out."""

    numbers: Numbers
    builtins: dict[str, Value]
    fixed: Fixed

    def find(self, name: str) -> Value:
        """The value of a name. Raises InputError."""

    def place(self, buffer: str, indices: tuple[Expr, ...]) -> Value:
        """The offset of an element in a buffer, an index."""


class Fixed:
    """The values of expressions over names that keep their values, so that each is evaluated once.

    The expressions are told apart by their identity: whoever evaluates them keeps them.
    """

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._names = frozenset(names)
        self._values: dict[int, Value | None] = {}

    def evaluate(self, expr: Expr, names: Names, rule: Callable[[Any, Names], Value]) -> Value:
        """The value of an expression by its rule, or as it was found before."""
        known = self._values.get(id(expr), self)
        if isinstance(known, Value):
            return known
        value = rule(expr, names)
        if known is self:
            self._values[id(expr)] = value if expr.free_vars() <= self._names else None
        return value


def evaluate(expr: Expr, names: Names) -> Value:
    """The value of an expression. Raises UnsupportedError for one that the reference does not know."""
    rule = _RULES.get(type(expr))
    if rule is None:
        raise UnsupportedError(f"the reference does not evaluate {type(expr).__name__}")
    return names.fixed.evaluate(expr, names, rule)


def index_of(expr: Expr, names: Names) -> Array:
    """The value of an expression as an index."""
    return names.numbers.as_index(evaluate(expr, names))


def condition(expr: Expr, names: Names) -> Array:
    """Whether an expression is true."""
    result: Array = evaluate(expr, names).array != 0
    return result


def _literal(expr: Literal, names: Names) -> Value:
    if isinstance(expr.value, float) or expr.dtype == "float":
        return names.numbers.constant(float(expr.value), "f32")
    # Emmy spells those beyond 32768 as `long long`.
    return index(int(expr.value), long=abs(int(expr.value)) > 32768)


def _var(expr: Var, names: Names) -> Value:
    return names.find(expr.name)


def _builtin(expr: Builtin, names: Names) -> Value:
    found = names.builtins.get(expr.name)
    if found is None:
        raise InputError(f"there is no built-in {expr.name!r}")
    return found


def _binary(expr: BinaryExpr, names: Names) -> Value:
    left, right = evaluate(expr.left, names), evaluate(expr.right, names)
    op = expr.op
    if op in ("&&", "||"):
        function = np.logical_and if op == "&&" else np.logical_or
        return Value(function(left.array != 0, right.array != 0), "bool")
    if left.type not in FLOATS and right.type not in FLOATS:
        return _whole(op, left, right, names.numbers)
    common = _common_float(left, right)
    if op in _COMPARE:
        a, b = (names.numbers.convert(value, common).array for value in (left, right))
        return Value(_COMPARE[op](a, b), "bool")
    if op not in _REAL:
        raise InputError(f"{op!r} of floats")
    return names.numbers.compute(_REAL[op], (left, right), common)


def _whole(op: str, left: Value, right: Value, numbers: Numbers) -> Value:
    """An operation of integers in C's common type: where that has no sign it wraps around, else it is exact."""
    common = c_type((left,) if op in ("<<", ">>") else (left, right))
    a, b = (_as_integer(value, common, numbers) for value in (left, right))
    if op in _COMPARE:
        return Value(_COMPARE[op](a, b), "bool")
    function = _WHOLE.get(op)
    if function is None:
        raise InputError(f"there is no operator {op!r}")
    return _integer(function(a, b), common)


def _as_integer(value: Value, common: str, numbers: Numbers) -> Array:
    """An integer in a type of C's arithmetic; as an index, without wrapping, where that has a sign."""
    return numbers.convert(value, common).array if common.startswith("u") else numbers.as_index(value)


def _integer(array: Array, common: str) -> Value:
    """What :func:`_as_integer` gave, or an operation on such."""
    return Value(array, common) if common.startswith("u") else index(array, long=common == "i64")


def _common_float(*values: Value) -> str:
    """C's common type of operands of which one is a float."""
    types = {value.type for value in values}
    if "f64" in types:
        return "f64"
    return types.pop() if len(types) == 1 else "f32"


def _ternary(expr: TernaryExpr, names: Names) -> Value:
    chosen = condition(expr.cond, names)
    a, b = evaluate(expr.if_true, names), evaluate(expr.if_false, names)
    if a.type in FLOATS or b.type in FLOATS:
        common = _common_float(a, b)
        a, b = names.numbers.convert(a, common), names.numbers.convert(b, common)
        return Value(np.where(chosen, a.array, b.array), common)
    common = c_type((a, b))
    whole = np.where(chosen, *(_as_integer(value, common, names.numbers) for value in (a, b)))
    return _integer(whole, common)


def _cast(expr: CastExpr, names: Names) -> Value:
    return names.numbers.convert(evaluate(expr.expr, names), element_type(expr.dtype))


def _call(expr: FuncCallExpr, names: Names) -> Value:
    args = [evaluate(arg, names) for arg in expr.args]
    if expr.name in _LAYOUTS:
        row, column, size = (names.numbers.as_index(arg) for arg in args)
        return index(_LAYOUTS[expr.name](row, column, size))
    if expr.name == "bitwise_count":
        return names.numbers.assign(expr.name, args, "i32")
    return names.numbers.compute(expr.name, args, "f32")


def _flat_index(expr: FlatIndex, names: Names) -> Value:
    return names.place(expr.buffer, expr.index)


_COMPARE: dict[str, Callable[..., Any]] = {
    "<": np.less, "<=": np.less_equal, ">": np.greater, ">=": np.greater_equal, "==": np.equal, "!=": np.not_equal,
}  # fmt: skip

_WHOLE: dict[str, Callable[..., Any]] = {
    "+": np.add, "-": np.subtract, "*": np.multiply, "/": quotient, "//": quotient, "%": remainder,
    "<<": np.left_shift, ">>": np.right_shift, "&": np.bitwise_and, "|": np.bitwise_or, "^": np.bitwise_xor,
}  # fmt: skip

_LAYOUTS: dict[str, Callable[..., Any]] = {
    "emmy_volta_crosswise": crosswise,
    "emmy_volta_b_congruous": congruous,
}

_REAL = {"+": "add", "-": "subtract", "*": "multiply", "/": "divide", "//": "floor_divide", "%": "mod"}

_RULES: dict[type, Callable[[Any, Names], Value]] = {
    Literal: _literal,
    Var: _var,
    Builtin: _builtin,
    BinaryExpr: _binary,
    TernaryExpr: _ternary,
    CastExpr: _cast,
    FuncCallExpr: _call,
    FlatIndex: _flat_index,
}
