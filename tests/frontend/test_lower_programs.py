"""Random programs of loops, conditions and accumulators: lowered and executed, against an interpreter of their C.

The interpreter runs all cells of the tile at once, each statement under the mask of the cells that reach it, with C's
scopes: a binding declares in the block that it stands in, an accumulation assigns to the innermost declaration.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np
import pytest
from emmy.compiler.dim import Dim
from emmy.compiler.graph import Graph
from emmy.compiler.ir.expr import BinaryExpr, CastExpr, Expr, Literal, TernaryExpr, Var
from emmy.compiler.ir.stmt import leaves
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
    Smem,
    StridedLoop,
    Write,
    axis,
    dtype,
    lit,
    op,
    tile,
    var,
)
from lowering_lab import DTYPES, Array, kernel_graph, run

PROGRAMS = int(os.environ.get("PTXC_PROGRAMS", "60"))

#: The tile is 8 by 8 cells; a row of ``y`` belongs to each.
ROWS = COLUMNS = 8
CELLS = ROWS * COLUMNS
SLOTS = 6
FLAT = op("+", op("*", var("i"), COLUMNS), var("j"))
#: The runtime size of a buffer's dimension.
SIZE = 5

# -------------------------------------------------------------------------------------------------- interpreting

_INTEGERS: dict[str, Callable[[Array, Array], Array]] = {
    "+": np.add, "-": np.subtract, "*": np.multiply, "/": lambda a, b: a // b, "%": lambda a, b: a % b,
}  # fmt: skip
_COMPARE: dict[str, Callable[[Array, Array], Array]] = {
    "<": np.less, "<=": np.less_equal, ">": np.greater, ">=": np.greater_equal, "==": np.equal, "!=": np.not_equal,
}  # fmt: skip
_FLOATS: dict[str, Callable[..., Array]] = {
    "add": np.add, "subtract": np.subtract, "multiply": np.multiply, "maximum": np.fmax, "minimum": np.fmin,
    "negative": lambda a: np.float32(0) - a, "copy": np.positive, "sum": np.add, "amax": np.fmax, "prod": np.multiply,
}  # fmt: skip
_NEUTRAL = {"add": 0.0, "sum": 0.0, "multiply": 1.0, "prod": 1.0, "maximum": -1e30, "amax": -1e30, "minimum": 1e30}


@dataclass
class Interpreter:
    """Executes statements on all cells."""

    x: Array
    y: Array
    scopes: list[dict[str, Array]] = field(default_factory=list)
    shared: dict[str, Array] = field(default_factory=dict)

    def find(self, name: str) -> dict[str, Array]:
        return next(scope for scope in reversed(self.scopes) if name in scope)

    def value(self, name: str) -> Array:
        return self.find(name)[name]

    def declare(self, name: str, value: Array, mask: Array) -> None:
        value = np.broadcast_to(value, CELLS)
        self.scopes[-1][name] = np.where(mask, value, np.zeros(1, value.dtype))

    def assign(self, name: str, value: Array, mask: Array) -> None:
        scope = self.find(name)
        scope[name] = np.where(mask, value.astype(scope[name].dtype), scope[name])

    def expr(self, expr: Expr) -> Array:
        match expr:
            case Literal(value=value):
                return np.full(CELLS, value, np.float32 if isinstance(value, float) else np.int64)
            case Var(name=name):
                return self.value(name)
            case CastExpr(expr=inner):
                return np.trunc(self.expr(inner)).astype(np.int64)
            case TernaryExpr(cond=cond, if_true=if_true, if_false=if_false):
                return np.where(self.expr(cond) != 0, self.expr(if_true), self.expr(if_false))
            case BinaryExpr(op=operator, left=left, right=right):
                return self.binary(operator, self.expr(left), self.expr(right))
        raise AssertionError(expr)

    def binary(self, operator: str, a: Array, b: Array) -> Array:
        if operator in ("&&", "||"):
            return np.asarray(np.logical_and(a, b) if operator == "&&" else np.logical_or(a, b))
        if "f" in (a.dtype.kind, b.dtype.kind):
            a, b = a.astype(np.float32), b.astype(np.float32)
        return (_COMPARE if operator in _COMPARE else _INTEGERS)[operator](a, b)

    def body(self, stmts: Iterable[Any], mask: Array, **names: Array) -> None:
        self.scopes.append(dict(names))
        for stmt in stmts:
            self.stmt(stmt, mask)
        self.scopes.pop()

    def stmt(self, stmt: Any, mask: Array) -> None:
        name = type(stmt).__name__.lower()
        getattr(self, "compute" if name == "assign" else name)(stmt, mask)

    def load(self, stmt: Any, mask: Array) -> None:
        index = [np.where(mask, self.expr(entry), 0) for entry in stmt.index]
        if stmt.input == "y":
            self.declare(stmt.name, self.y[index[0], index[1]], mask)
        else:
            buffer = self.shared.get(stmt.input, self.x)
            for at, name in enumerate(stmt.names):
                self.declare(name, buffer[index[0] + at], mask)

    def write(self, stmt: Any, mask: Array) -> None:
        index = tuple(self.expr(entry)[mask] for entry in stmt.index)
        buffer = self.y if stmt.output == "y" else self.shared[stmt.output]
        for at, name in enumerate(stmt.values):
            buffer[(*index[:-1], index[-1] + at)] = self.value(name)[mask]

    def smem(self, stmt: Any, mask: Array) -> None:
        self.shared[stmt.name] = np.zeros(stmt.extents, np.float32)

    def compute(self, stmt: Any, mask: Array) -> None:
        args = [self.value(name).astype(np.float32) for name in stmt.args]
        self.declare(stmt.name, _FLOATS[stmt.op.name](*args), mask)

    def init(self, stmt: Any, mask: Array) -> None:
        self.declare(stmt.name, np.full(CELLS, stmt.identity).astype(DTYPES[stmt.dtype.name]), mask)

    def let(self, stmt: Any, mask: Array) -> None:
        value = self.expr(stmt.value)
        self.declare(stmt.name, value.astype(DTYPES[stmt.dtype.name]) if stmt.dtype is not None else value, mask)

    def select(self, stmt: Any, mask: Array) -> None:
        chosen = self.value(stmt.branches[-1].value).astype(np.float32)
        for branch in reversed(stmt.branches[:-1]):
            chosen = np.where(self.expr(branch.select) != 0, self.value(branch.value).astype(np.float32), chosen)
        self.declare(stmt.name, chosen, mask)

    def accum(self, stmt: Any, mask: Array) -> None:
        kind = DTYPES[stmt.dtype.name] if stmt.dtype is not None else np.float32
        base: Array = self.value(stmt.base or stmt.name).astype(kind)
        self.assign(stmt.name, _FLOATS[stmt.op.name](base, self.value(stmt.value).astype(kind)), mask)

    def seed(self, stmt: Any, mask: Array) -> None:
        for inner in stmt.body:
            if isinstance(inner, leaves.Accum) and stmt.seed and inner.name not in self.scopes[-1]:
                kind = DTYPES[inner.dtype.name] if inner.dtype is not None else np.float32
                info = np.iinfo(np.int32)
                neutral = _NEUTRAL[inner.op.name]
                first = np.clip(neutral, info.min, info.max) if kind is np.int32 else neutral
                self.declare(inner.name, np.full(CELLS, first).astype(kind), mask)

    def loop(self, stmt: Any, mask: Array) -> None:
        self.seed(stmt, mask)
        extent = self.expr(stmt.axis.extent.expr)
        self.repeat(stmt, mask, np.zeros(CELLS, np.int64), extent, np.ones(CELLS, np.int64), {})

    def stridedloop(self, stmt: Any, mask: Array) -> None:
        self.seed(stmt, mask)
        start, step = self.expr(stmt.start), self.expr(stmt.step)
        end = self.expr(stmt.end if stmt.end is not None else stmt.axis.extent.expr)
        self.repeat(stmt, mask, start, end, step, {f"{stmt.axis.name}_end": end} if stmt.end is not None else {})

    def repeat(self, stmt: Any, mask: Array, at: Array, end: Array, step: Array, names: dict[str, Array]) -> None:
        while (running := mask & (at < end)).any():
            self.body(stmt.body, running, **{stmt.axis.name: at}, **names)
            at = at + step

    def cond(self, stmt: Any, mask: Array) -> None:
        holds = self.expr(stmt.cond) != 0
        self.body(stmt.body, mask & holds)
        self.body(stmt.else_body, mask & ~holds)


def interpret(body: Iterable[Any], x: Array) -> Array:
    """What ``y`` holds after the program."""
    run = Interpreter(x, np.full((CELLS, SLOTS), 7, np.float32))
    flat = np.arange(CELLS)
    with np.errstate(all="ignore"):
        run.body(body, np.ones(CELLS, np.bool_), i=flat // COLUMNS, j=flat % COLUMNS, n=np.full(CELLS, SIZE))
    return run.y


# ---------------------------------------------------------------------------------------------- making programs


class Maker:
    """Makes random programs whose names are all defined, and defined once in a scope."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.count = 0
        #: The names of the open scopes: floats, and integers with the largest that they can be.
        self.floats: list[dict[str, str]] = [{"one": "f32"}]
        self.integers: list[dict[str, int]] = [{"i": ROWS - 1, "j": COLUMNS - 1, "n": SIZE}]
        self.budget = 40
        #: Conditions made so far: statements share expressions.
        self.conditions: list[Expr] = []

    def fresh(self, stem: str) -> str:
        """A name that is new, or one of an outer scope that it shadows."""
        if self.random.random() < 0.15:
            outer = [name for scope in self.floats[1:-1] for name in scope if name not in self.floats[-1]]
            if outer:
                return self.random.choice(outer)
        self.count += 1
        return f"{stem}{self.count}"

    def any_float(self, but: str = "") -> str:
        return self.random.choice([name for scope in self.floats for name in scope if name != but])

    def accumulator(self) -> tuple[str, str] | None:
        """A float or an i32 that can be assigned to."""
        found = {name: kind for scope in self.floats for name, kind in scope.items() if name != "one"}
        return self.random.choice([*found.items()]) if found else None

    def integer(self, depth: int = 2) -> tuple[Expr, int]:
        """An expression that is not negative, and the largest value that it can have."""
        roll = self.random.random()
        if depth == 0 or roll < 0.3:
            names = {name: most for scope in self.integers for name, most in scope.items()}
            name = self.random.choice([*names])
            return var(name), names[name]
        if roll < 0.45:
            value = self.random.randrange(0, 9)
            return lit(value), value
        a, most_a = self.integer(depth - 1)
        b, most_b = self.integer(depth - 1)
        if roll < 0.65 and most_a + most_b < 1 << 20:
            return op("+", a, b), most_a + most_b
        if roll < 0.75 and most_a * most_b < 1 << 20:
            return op("*", a, b), most_a * most_b
        divisor = self.random.choice((1, 2, 3, 4, 8))
        return (op("/", a, divisor), most_a // divisor) if roll < 0.85 else (op("%", a, divisor), divisor - 1)

    def condition(self) -> Expr:
        """A condition, or once more one whose names are all known still."""
        known = {*chain(*self.floats, *self.integers)}
        again = [expr for expr in self.conditions if expr.free_vars() <= known]
        if again and self.random.random() < 0.3:
            return self.random.choice(again)
        self.conditions.append(self.new_condition())
        return self.conditions[-1]

    def new_condition(self) -> Expr:
        roll = self.random.random()
        number, most = self.integer()
        if roll < 0.3:
            return op(self.random.choice([*_COMPARE]), number, self.integer()[0])
        if roll < 0.45:
            return op(self.random.choice([*_COMPARE]), number, self.random.randrange(9))
        if roll < 0.6:
            return op(self.random.choice([*_COMPARE]), number, max(most - self.random.randrange(3), 0))
        if roll < 0.85:
            return op(self.random.choice("<>"), var(self.any_float()), float(self.random.randrange(-2, 9)))
        return op(self.random.choice(("&&", "||")), self.condition(), self.condition())

    # ------------------------------------------------------------------------------------------------ statements

    def body(self, depth: int, integers: dict[str, int] | None = None) -> tuple[Any, ...]:
        """The statements of one scope, which begins with ``integers``."""
        self.floats.append({})
        self.integers.append(integers or {})
        stmts: list[Any] = []
        for _ in range(self.random.randrange(1, 5)):
            self.budget -= 1
            if self.budget > 0:
                stmts += self.stmt(depth)
        self.floats.pop()
        self.integers.pop()
        return tuple(stmts)

    def stmt(self, depth: int) -> list[Any]:
        roll = self.random.random()
        if depth and roll < 0.45:
            return self.block(depth - 1)
        makers = (self.load, self.assign, self.assign, self.let, self.init, self.select, self.write, self.write,
                  self.accum, self.accum, self.reread, self.vector, self.slab)  # fmt: skip
        return self.random.choice(makers)()

    def declared(self, name: str, kind: str = "f32") -> str:
        self.floats[-1][name] = kind
        return name

    def load(self) -> list[Any]:
        index = op("%", self.integer()[0], 64)
        return [Load(self.declared(self.fresh("v")), "x", (index,))]

    def vector(self) -> list[Any]:
        count = self.random.choice((2, 4))
        names = tuple(self.fresh("w") for _ in range(count))
        if len(set(names)) < count:
            return []
        index = op("*", op("%", self.integer()[0], 64 // count), count)
        for name in names:
            self.declared(name)
        return [Load(names=names, input="x", index=(index,))]

    def slab(self) -> list[Any]:
        """A store into this cell's part of shared memory, and a load of it."""
        at = op("+", op("*", FLAT, 4), op("%", self.integer()[0], 4))
        value = self.any_float()
        return [Write("m", (at,), value), Load(self.declared(self.fresh("v")), "m", (op("*", FLAT, 4),))]

    def reread(self) -> list[Any]:
        """A load of what the cell wrote."""
        return [Load(self.declared(self.fresh("v")), "y", (FLAT, lit(self.random.randrange(SLOTS))))]

    def assign(self) -> list[Any]:
        name = self.fresh("t")
        operation = self.random.choice(("add", "subtract", "multiply", "maximum", "minimum", "negative", "copy"))
        args = tuple(self.any_float(name) for _ in range(1 if operation in ("negative", "copy") else 2))
        return [Assign(self.declared(name), operation, args)]

    def let(self) -> list[Any]:
        if self.random.random() < 0.5:
            self.count += 1
            name = f"e{self.count}"
            expr, most = self.integer(3)
            self.integers[-1][name] = most
            return [Let(name, expr, dtype=self.random.choice((None, dtype("i32"))))]
        name = self.fresh("l")
        choice = TernaryExpr(self.condition(), var(self.any_float(name)), var(self.any_float(name)))
        if name in choice.free_vars():
            return []
        return [Let(self.declared(name), choice, dtype=dtype("f32"))]

    def init(self) -> list[Any]:
        kind = self.random.choice(("f32", "f32", "i32"))
        name = self.fresh("a")
        return [Init(self.declared(name, kind), float(self.random.randrange(-3, 4)), dtype=dtype(kind))]

    def select(self) -> list[Any]:
        name = self.fresh("s")
        branches = [(self.any_float(name), self.condition()) for _ in range(self.random.randrange(1, 5))]
        if any(name in predicate.free_vars() for _, predicate in branches):
            return []
        stmt = Select(name, tuple(SelectBranch(value, predicate) for value, predicate in branches))
        self.declared(name)
        return [stmt]

    def write(self) -> list[Any]:
        if self.random.random() < 0.2:
            even = lit(self.random.randrange(SLOTS // 2) * 2)
            return [Write("y", (FLAT, even), values=(self.any_float(), self.any_float()))]
        slot = op("%", self.integer()[0], SLOTS) if self.random.random() < 0.4 else lit(self.random.randrange(SLOTS))
        return [Write("y", (FLAT, slot), self.any_float())]

    def accum(self) -> list[Any]:
        target = self.accumulator()
        if target is None:
            return []
        name, kind = target
        base = self.any_float() if kind == "f32" and self.random.random() < 0.2 else None
        operation = self.random.choice(("add", "maximum", "minimum", "sum", "multiply"))
        if kind == "i32":
            return [Accum(name, self.random.choice(self.i32()), "add", dtype=dtype("i32"))]
        return [Accum(name, self.any_float(), operation, base=base)]

    def i32(self) -> list[str]:
        return [name for scope in self.floats for name, kind in scope.items() if kind == "i32"]

    # --------------------------------------------------------------------------------------------------- blocks

    def block(self, depth: int) -> list[Any]:
        roll = self.random.random()
        if roll < 0.4:
            other = self.body(depth) if self.random.random() < 0.5 else ()
            return [Cond(self.condition(), self.body(depth), other)]
        self.count += 1
        name = f"k{self.count}"
        seed = self.random.random() < 0.6
        folds: list[Any] = []
        declared: dict[str, str] = {}
        if seed:
            for _ in range(self.random.randrange(1, 3)):
                fold = self.fresh("f")
                if fold not in self.floats[-1]:
                    declared[fold] = "f32"
                    folds.append((fold, self.random.choice(("add", "maximum", "minimum", "prod"))))
        before = dict(self.floats[-1])
        self.floats[-1].update(declared)
        make = self.strided if roll < 0.7 else self.counted
        stmt, most, names = make(name)
        inside = list(self.body(depth, {name: most, **names}))
        inside = [s for s in inside if not isinstance(s, leaves.Accum)] if seed else inside
        values = list(before) or ["one"]
        defined = [s.name for s in inside if isinstance(s, (leaves.Assign, leaves.Select))]
        for fold, operation in folds:
            choice = self.random.choice([*values, *defined])
            at = len(inside) if choice in defined else self.random.randrange(len(inside) + 1)
            if choice != fold and not any(fold in s.defines() for s in inside):
                inside.insert(at, Accum(fold, choice, operation))
            else:
                self.floats[-1] = before
                return []
        return [stmt(tuple(inside), seed)]

    def counted(self, name: str) -> tuple[Callable[..., Any], int, dict[str, int]]:
        static = self.random.random() < 0.7
        extent: Any = self.random.choice((1, 2, 3, 4, 5, 8, 12, 40)) if static else Dim("n")
        most = extent - 1 if static else SIZE - 1
        unroll = self.random.random() < 0.5
        return lambda body, seed: Loop(axis(name, extent), body, unroll=unroll, seed=seed), most, {}

    def strided(self, name: str) -> tuple[Callable[..., Any], int, dict[str, int]]:
        start = self.integer()[0] if self.random.random() < 0.6 else lit(self.random.randrange(4))
        step = lit(self.random.choice((1, 2, 3, 7)))
        if self.random.random() < 0.25:
            step = op("+", self.integer()[0], 1)
        end, most = self.integer() if self.random.random() < 0.5 else (None, 12)
        if most > 60:
            end, most = op("%", end, 20), 20
        extent = self.random.choice((4, 9, 12)) if end is None else 64
        unroll = self.random.random() < 0.5
        names = {f"{name}_end": most} if end is not None else {}
        most = max(most if end is not None else extent, 1)
        return lambda body, seed: StridedLoop(
            axis(name, extent), start, step, body, unroll=unroll, end=end, seed=seed
        ), most, names  # fmt: skip


def program(seed: int) -> tuple[Any, ...]:
    maker = Maker(seed)
    stmts = [Smem("m", (CELLS * 4,)), *(Write("m", (op("+", op("*", FLAT, 4), at),), "one") for at in range(4))]
    maker.floats.append({})
    for _ in range(7):
        stmts += maker.stmt(3)
    stmts += [Write("y", (FLAT, lit(0)), maker.any_float())]
    return (Init("one", 1.0, dtype=dtype("f32")), *stmts)


def graph_of(body: tuple[Any, ...], threads: int | None) -> Graph:
    axes = tile({"i": ROWS, "j": COLUMNS}, body, threads)
    takes_size = "'n'" in repr(axes)
    return kernel_graph(axes, {"x": (64,), "z": (Dim("n") if takes_size else SIZE,)}, {"y": (CELLS, SLOTS)})


X = np.random.default_rng(5).integers(-4, 9, 64).astype(np.float32)


def difference(seed: int) -> str:
    """How the compiled program differs from the interpreted one; empty where it does not."""
    body = program(seed)
    wanted = interpret(body, X)
    y = np.full((CELLS, SLOTS), 7, np.float32)
    threads = (64, 32, 128, None, 256)[seed % 5]
    got = run(graph_of(body, threads), {"x": X, "z": np.zeros(SIZE), "y": y}, fma=False)["y"]
    if np.array_equal(got, wanted, equal_nan=True):
        return ""
    at = tuple(int(v[0]) for v in np.nonzero(~((got == wanted) | (np.isnan(got) & np.isnan(wanted)))))
    listing = "\n".join(line for stmt in body for line in stmt.pretty())
    return f"program {seed}: y{list(at)} is {got[at]}, not {wanted[at]}, of\n{listing}"


@pytest.mark.parametrize("part", range(4))
def test_programs_do_what_their_c_does(part: int) -> None:
    for seed in range(part, PROGRAMS, 4):
        wrong = difference(seed)
        assert not wrong, wrong
