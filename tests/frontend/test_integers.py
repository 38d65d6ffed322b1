"""Integer expressions against C: random trees, lowered, executed on many lanes, compared with what C says.

C leaves much undefined (overflow, division by zero, shifts by too much). Lanes on which an expression does any of it
are not compared, those on which a part that C would not evaluate does it still are.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from emmy.compiler.dim import Dim
from emmy.compiler.ir.expr import BinaryExpr, CastExpr, Expr, FuncCallExpr, Literal, TernaryExpr, Var
from kernel_ir import Let, Load, Write, dtype, lit, op, tile, var
from lowering_lab import kernel_graph, run
from numpy.typing import NDArray

from ptxc.errors import InputError
from ptxc.frontend.dtypes import BOOL_T, I32_T, I64_T, element_type
from ptxc.frontend.expressions import Expressions
from ptxc.frontend.linear import INT_MAX, INT_MIN, LONG_MAX, LONG_MIN, Linear
from ptxc.frontend.math import Arithmetic
from ptxc.frontend.scope import Names, Typed
from ptxc.ir.builder import Builder
from ptxc.ir.kernel import Block, Instr, Kernel
from ptxc.ir.types import B32, B64, PRED, Type
from ptxc.ir.values import Const, Operand, Value

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

LANES = 64

# ---------------------------------------------------------------------------------------------------- C's meaning


@dataclass(frozen=True)
class C:
    """A C value on every lane. ``bad``: evaluating it is undefined; ``dead``: some part of it, evaluated or not, is."""

    long: bool
    value: Ints
    bad: Bools
    dead: Bools


def _limits(long: bool) -> tuple[int, int]:
    return (LONG_MIN, LONG_MAX) if long else (INT_MIN, INT_MAX)


def _checked(long: bool, value: Ints, about: NDArray[np.float64]) -> tuple[Ints, Bools]:
    """An arithmetic result, wrapped, and where it overflows. ``about`` is the exact one, nearly."""
    if long:
        return value, np.abs(about) >= 2.0**63 * (1 - 2.0**-40)
    return value.astype(np.int32).astype(np.int64), (value < INT_MIN) | (value > INT_MAX) | (np.abs(about) > 2.0**62)


def _divide(a: Ints, b: Ints) -> tuple[Ints, Ints, Bools]:
    """Quotient toward zero, remainder, and where they are undefined."""
    bad = (b == 0) | ((b == -1) & (a == LONG_MIN))
    safe = np.where(bad, 1, b)
    quotient = a // safe
    rest = a - quotient * safe
    wrong = (rest != 0) & ((rest < 0) != (a < 0))
    quotient = quotient + wrong
    return quotient, a - quotient * safe, bad


_COMPARE: dict[str, Callable[[Ints, Ints], Bools]] = {
    "<": np.less, "<=": np.less_equal, ">": np.greater, ">=": np.greater_equal, "==": np.equal, "!=": np.not_equal,
}  # fmt: skip


def meaning(expr: Expr, names: dict[str, C]) -> C:
    """What C says of ``expr``."""
    none = np.zeros(LANES, np.bool_)
    match expr:
        case Literal(value=number):
            return C(abs(int(number)) > 32768, np.full(LANES, int(number), np.int64), none, none)
        case Var(name=name):
            return names[name]
        case CastExpr(dtype=dtype, expr=inner):
            a = meaning(inner, names)
            value = a.value if dtype == "long long" else a.value.astype(np.int32).astype(np.int64)
            return C(dtype == "long long", value, a.bad, a.dead)
        case FuncCallExpr(args=(argument,)):
            a = meaning(argument, names)
            bits = a.value.view(np.uint64) & np.uint64(2**64 - 1 if a.long else 2**32 - 1)
            return C(False, np.bitwise_count(bits).astype(np.int64), a.bad, a.dead)
        case TernaryExpr(cond=cond, if_true=if_true, if_false=if_false):
            p, a, b = (meaning(part, names) for part in (cond, if_true, if_false))
            chosen = p.value != 0
            bad = p.bad | np.where(chosen, a.bad, b.bad)
            return C(a.long or b.long, np.where(chosen, a.value, b.value), bad, p.dead | a.dead | b.dead)
        case BinaryExpr(op=operator, left=left, right=right):
            return _binary(operator, meaning(left, names), meaning(right, names))
    raise AssertionError(expr)


def _binary(operator: str, a: C, b: C) -> C:
    dead = a.dead | b.dead
    if operator in ("&&", "||"):
        left, right = a.value != 0, b.value != 0
        more = left if operator == "&&" else ~left
        value = left & right if operator == "&&" else left | right
        return C(False, value.astype(np.int64), a.bad | (more & b.bad), dead)
    if operator in _COMPARE:
        return C(False, _COMPARE[operator](a.value, b.value).astype(np.int64), a.bad | b.bad, dead)
    long = a.long or b.long
    x, y = a.value, b.value
    about_x, about_y = x.astype(np.float64), y.astype(np.float64)
    match operator:
        case "+":
            value, bad = _checked(long, x + y, about_x + about_y)
        case "-":
            value, bad = _checked(long, x - y, about_x - about_y)
        case "*":
            value, bad = _checked(long, x * y, about_x * about_y)
        case "/" | "//" | "%":
            quotient, rest, bad = _divide(x, y)
            bad |= (quotient > _limits(long)[1]) & (not long)
            value = rest if operator == "%" else quotient
        case "<<":
            long = a.long
            bad = (y < 0) | (y >= (64 if long else 32))
            shift = np.where(bad, 0, y)
            value, over = _checked(long, x << shift, about_x * 2.0**shift)
            bad |= over
        case ">>":
            long = a.long
            bad = (y < 0) | (y >= (64 if long else 32))
            value = x >> np.where(bad, 0, y)
        case _:
            value = {"&": np.bitwise_and, "|": np.bitwise_or, "^": np.bitwise_xor}[operator](x, y)
            bad = np.zeros(LANES, np.bool_)
    return C(long, value, a.bad | b.bad | bad, dead | bad)


# ------------------------------------------------------------------------------------------- executing the lowering


class Machine:
    """Executes straight-line integer IR on all lanes. Registers hold signed numbers; predicates are 0 and 1."""

    def __init__(self) -> None:
        self.registers: dict[Value, Ints] = {}

    def run(self, block: Block, start: int) -> None:
        for instr in block.instrs[start:]:
            operands = [self.operand(operand) for operand in instr.operands]
            self.registers[instr.result] = _wrapped(self.execute(instr, *operands), instr.result.type)

    def operand(self, operand: Operand) -> Ints:
        if isinstance(operand, Value):
            return self.registers[operand]
        assert isinstance(operand, Const)
        return np.full(LANES, abs(operand.bits) if operand.type is PRED else operand.bits, np.int64)

    def execute(self, instr: Instr, *args: Ints) -> Ints:
        name, type = instr.op.name, instr.mods[-1]
        bits = int("".join(filter(str.isdigit, type)) or 1)
        unsigned = [arg.view(np.uint64) & np.uint64((1 << bits) - 1) for arg in args]
        x = args[0]
        if name == "cvt":
            return unsigned[0].view(np.int64) if type.startswith("u") else x
        if name in ("div", "rem"):
            if type.startswith("u"):
                divisor = np.where(unsigned[1] == 0, np.uint64(1), unsigned[1])
                pair = np.divmod(unsigned[0], divisor)
                return pair[name == "rem"].view(np.int64)
            quotient, rest, _ = _divide(x, args[1])
            return rest if name == "rem" else quotient
        if name in ("min", "max") and type.startswith("u"):
            return np.where((unsigned[0] < unsigned[1]) == (name == "min"), x, args[1])
        if name == "shr" and type.startswith(("u", "b")):
            shift = args[1].view(np.uint64)
            return np.where(shift >= bits, 0, unsigned[0] >> np.minimum(shift, np.uint64(63))).view(np.int64)
        if name == "popc":
            return np.bitwise_count(unsigned[0]).astype(np.int64)
        if name == "setp":
            compare = _RELATION[instr.mods[0]]
            return np.asarray(compare(*(args if type.startswith("s") else unsigned))).astype(np.int64)
        return _PLAIN[name](*args)


_RELATION = dict(zip(("lt", "le", "gt", "ge", "eq", "ne"), _COMPARE.values()))
_PLAIN: dict[str, Callable[..., Ints]] = {
    "mov": lambda x: x,
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
    "mad": lambda x, y, z: x * y + z,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "not": lambda x: 1 - x,
    "shl": lambda x, n: np.where(n.view(np.uint64) > 63, 0, x << (n & 63)),
    "shr": lambda x, n: x >> np.where(n.view(np.uint64) > 63, 63, n),
    "selp": lambda x, y, p: np.where(p != 0, x, y),
}


def _wrapped(value: Ints, type: Type) -> Ints:
    return value.astype(np.int32).astype(np.int64) if type is B32 else value.astype(np.int64)


# -------------------------------------------------------------------------------------------------- random expressions

#: The names that expressions read: what they are, and their least and greatest value.
COORDINATES = {"a": (0, 6), "b": (0, 127), "c": (0, 31), "k": (-5, 100), "r": (0, INT_MAX - 1), "j": (8, 4096)}
RUNTIME = {"n": (1, INT_MAX), "m": (1, INT_MAX)}
LOADED = {"x": "i32", "y": "i32", "z": "i64", "u": "u8", "s": "i16", "h": "u16"}

SMALL = (0, 1, 2, 3, 4, 5, 7, 8, 12, 16, 31, 32, 63, 64, 100, 128, 256, 1000, 4096, 32767, 32768)
LARGE = (32769, 40000, 65535, 65536, 2**31 - 1, 2**31, 2**31 + 7, 2**33, 2**40)


class Trees:
    """Makes random expressions."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def literal(self) -> Expr:
        value = self.random.choice(SMALL if self.random.random() < 0.85 else LARGE)
        return Literal(-value if self.random.random() < 0.15 else value, "int")

    def leaf(self) -> Expr:
        roll = self.random.random()
        if roll < 0.3:
            return self.literal()
        if roll < 0.75:
            return Var(self.random.choice([*COORDINATES]))
        return Var(self.random.choice([*RUNTIME, *LOADED]))

    def tree(self, depth: int) -> Expr:
        """An expression of at most so many levels, of the shapes that addresses have more often than of others."""
        pick = self.random.random
        if depth == 0 or pick() < 0.1:
            return self.leaf()
        roll = pick()
        if roll < 0.45:
            right = self.tree(depth - 1) if pick() < 0.6 else self.literal()
            return op(self.random.choice("++-**"), self.tree(depth - 1), right)
        if roll < 0.70:
            divisor = Literal(self.random.choice(SMALL[1:]), "int") if pick() < 0.8 else self.tree(depth - 1)
            return op(self.random.choice(("/", "//", "%", "%")), self.tree(depth - 1), divisor)
        if roll < 0.78:
            amount = Literal(self.random.randrange(0, 12), "int") if pick() < 0.8 else self.tree(depth - 1)
            return op(self.random.choice(("<<", ">>")), self.tree(depth - 1), amount)
        if roll < 0.85:
            right = Literal(2 ** self.random.randrange(12) - 1, "int") if pick() < 0.6 else self.tree(depth - 1)
            return op(self.random.choice("&&|^"), self.tree(depth - 1), right)
        if roll < 0.90:
            if pick() < 0.4:
                return self.clamp(depth)
            return TernaryExpr(self.condition(depth - 1), self.tree(depth - 1), self.tree(depth - 1))
        if roll < 0.94:
            return self.condition(depth)
        if roll < 0.98:
            return CastExpr(self.random.choice(("int", "long long")), self.tree(depth - 1))
        return FuncCallExpr("bitwise_count", (self.tree(depth - 1),))

    def clamp(self, depth: int) -> Expr:
        """``(i < n) ? i : n - 1``, as Emmy keeps an index inside; now and then almost."""
        index, bound = self.tree(depth - 1), self.tree(0)
        last = op("-", bound, self.random.choice((1, 1, 1, 0, 2)))
        return TernaryExpr(op(self.random.choice(("<", "<", "<", "<=")), index, bound), index, last)

    def condition(self, depth: int) -> Expr:
        if depth > 1 and self.random.random() < 0.3:
            return op(self.random.choice(("&&", "||")), self.condition(depth - 1), self.condition(depth - 1))
        inner = max(depth - 1, 0)
        right = self.tree(inner) if self.random.random() < 0.7 else self.literal()
        return op(self.random.choice([*_COMPARE]), self.tree(inner), right)


def values(generator: np.random.Generator, lo: int, hi: int) -> Ints:
    """Values of a range on all lanes: any, small ones, those at its ends."""
    anywhere = generator.integers(lo, hi, LANES, np.int64, endpoint=True)
    near = np.clip(generator.integers(-40, 40, LANES), lo, hi)
    ends = np.where(generator.random(LANES) < 0.5, lo, hi)
    return np.choose(generator.integers(0, 4, LANES), [anywhere, near, near, ends])


@dataclass
class Lab:
    """An empty kernel whose names have values, to lower expressions in and to execute them."""

    seed: int
    names: Names = field(default_factory=Names)
    meanings: dict[str, C] = field(default_factory=dict)
    machine: Machine = field(default_factory=Machine)

    def __post_init__(self) -> None:
        kernel = Kernel("k", "sm_90", 128)
        self.block = Block("entry")
        kernel.blocks.append(self.block)
        self.e = Expressions(Builder(kernel, self.block), self.names, Arithmetic(), _no_buffers, 128)
        generator = np.random.default_rng(self.seed)
        none = np.zeros(LANES, np.bool_)
        for name, (lo, hi) in {**COORDINATES, **RUNTIME}.items():
            register = kernel.value(B32, name)
            self.machine.registers[register] = values(generator, lo, hi)
            self.names.declare(name, self.e.registers.linear(self.e.note(register, lo, hi)))
            self.meanings[name] = C(False, self.machine.registers[register], none, none)
        for name, kind in LOADED.items():
            type = element_type(kind)
            assert type.lo is not None
            assert type.hi is not None
            register = kernel.value(type.bank, name)
            self.machine.registers[register] = values(generator, type.lo, type.hi)
            self.names.declare(name, Typed(register, type))
            self.meanings[name] = C(type.bank is B64, self.machine.registers[register], none, none)
        self.done = 0
        #: Expressions are remembered by their identity, so they must live.
        self.alive: list[Expr] = []

    def execute(self, expr: Expr) -> tuple[bool, Ints]:
        """The value of ``expr`` as ptxc computes it, and whether it is a ``long long``."""
        self.alive.append(expr)
        typed = self.e.typed(expr)
        self.machine.run(self.block, self.done)
        self.done = len(self.block.instrs)
        assert typed.type in (I32_T, I64_T, BOOL_T)
        return typed.type is I64_T, self.machine.operand(typed.operand)

    def fault(self, expr: Expr) -> str:
        """What is wrong with ``expr``; empty where nothing is."""
        wanted = meaning(expr, self.meanings)
        try:
            long, got = self.execute(expr)
        except InputError as error:  # a literal that C leaves undefined, found at compile time
            return "" if wanted.dead.all() else f"{expr.pretty()}: {error}"
        wrong = (got != wanted.value) & ~wanted.bad
        if long and not wanted.long:
            return f"{expr.pretty()}: is long"
        if not wrong.any():
            return ""
        lane = int(np.flatnonzero(wrong)[0])
        inputs = {name: int(self.meanings[name].value[lane]) for name in sorted(expr.free_vars())}
        return f"{expr.pretty()} is {wanted.value[lane]}, not {got[lane]}, for {inputs}"

    def unsound(self, expr: Expr) -> str:
        """A register whose value is outside of the range that is claimed for it, where all of ``expr`` is defined."""
        live = ~meaning(expr, self.meanings).dead
        for value, atom in self.e.registers._atoms.items():
            numbers = self.machine.registers[value][live]
            if numbers.size and not (atom.lo <= numbers.min() and numbers.max() <= atom.hi):
                least, most = numbers.min(), numbers.max()
                return f"{value} of {expr.pretty()} is in [{least}, {most}], not [{atom.lo}, {atom.hi}]"
        return ""


def _no_buffers(name: str, index: tuple[Expr, ...]) -> Linear:
    raise AssertionError(name)


def subterms(expr: Expr) -> list[Expr]:
    return list(expr.subterms())  # type: ignore[no-untyped-call]


def smallest(expr: Expr, fault: Callable[[Expr], str]) -> str:
    """The fault of the smallest part of ``expr`` that has one."""
    parts = sorted(subterms(expr), key=lambda part: len(subterms(part)))
    return next(filter(None, map(fault, parts)), "")


def trees(seed: int, count: int) -> Iterator[Expr]:
    made = Trees(seed)
    for _ in range(count):
        yield made.tree(made.random.randrange(1, 5))


# ---------------------------------------------------------------------------------------------------------- tests


@pytest.mark.parametrize("seed", range(8))
def test_expressions_mean_what_c_says(seed: int) -> None:
    for at, expr in enumerate(trees(seed, 500)):
        if at % 25 == 0:
            lab = Lab(seed * 1000 + at)
        if lab.fault(expr):
            pytest.fail(smallest(expr, Lab(seed * 1000 + at - at % 25).fault) or lab.fault(expr))


@pytest.mark.parametrize("seed", range(100, 104))
def test_ranges_hold(seed: int) -> None:
    def unsound(expr: Expr) -> str:
        lab = Lab(seed)
        try:
            value = lab.e.lower(expr)
            lab.e.as_typed(value)
        except InputError:
            return ""
        lab.machine.run(lab.block, 0)
        if isinstance(value, Linear):
            wanted = meaning(expr, lab.meanings)
            numbers = wanted.value[~wanted.dead]
            if numbers.size and not value.lo <= numbers.min() <= numbers.max() <= value.hi:
                return f"{expr.pretty()} is in [{numbers.min()}, {numbers.max()}], not [{value.lo}, {value.hi}]"
        return lab.unsound(expr)

    for expr in trees(seed, 250):
        if unsound(expr):
            pytest.fail(smallest(expr, unsound))


def lowers(expr: Expr) -> bool:
    """Whether an expression has no part that is known to be undefined where ``a`` is 0 or 1, and is no literal, which a
    ``Let`` of a type spells as a float."""
    lab = Lab(0)
    narrow = lab.e.note(Value(B32, "narrow"), 0, 1)
    lab.names.declare("a", lab.e.registers.linear(narrow))
    if isinstance(expr, Literal):
        return False
    try:
        lab.e.typed(expr)
    except InputError:
        return False
    return True


@pytest.mark.parametrize("seed", range(200, 206))
def test_expressions_keep_their_meaning_through_the_passes(seed: int) -> None:
    """Whole kernels, executed: the passes divide by constants without dividing, move and merge what is equal."""
    generator = np.random.default_rng(seed)
    cell = np.arange(LANES, dtype=np.int64)
    none = np.zeros(LANES, np.bool_)
    arrays: dict[str, Ints] = {}
    kinds = {**LOADED, **dict.fromkeys(("b", "k", "r", "j"), "i32")}
    for name, kind in kinds.items():
        type = element_type(kind)
        lo, hi = COORDINATES.get(name, (type.lo, type.hi))
        assert lo is not None
        assert hi is not None
        arrays[name] = values(generator, lo, hi)
    known = {name: C(kind == "i64", arrays[name], none, none) for name, kind in kinds.items()}
    known |= {"a": C(False, cell // 32, none, none), "c": C(False, cell % 32, none, none)}
    known |= {name: C(False, np.full(LANES, size), none, none) for name, size in (("n", 37), ("m", 2))}
    exprs = [expr for expr in trees(seed, 90) if lowers(expr)]
    at = op("+", op("*", var("a"), 32), var("c"))
    body: list[Any] = [Load(name, f"in_{name}", (at,)) for name in kinds]
    for number, expr in enumerate(exprs):
        body += [Let(f"v{number}", expr, dtype=dtype("i64")), Write("y", (lit(number), at), f"v{number}")]
    inputs: dict[str, Any] = {f"in_{name}": ((LANES,), kind) for name, kind in kinds.items()}
    inputs |= {"z1": (Dim("n"),), "z2": (Dim("m"),)}
    uses = [Let("used", op("+", var("n"), var("m")))]
    graph = kernel_graph(tile({"a": 2, "c": 32}, [*uses, *body]), inputs, {"y": ((len(exprs), LANES), "i64")})
    given = {f"in_{name}": array for name, array in arrays.items()}
    got = run(graph, {**given, "z1": np.zeros(37), "z2": np.zeros(2)})["y"]
    for number, expr in enumerate(exprs):
        wanted = meaning(expr, known)
        wrong = (got[number] != wanted.value) & ~wanted.bad
        assert not wrong.any(), f"{expr.pretty()} is {wanted.value[wrong][0]}, not {got[number][wrong][0]}"
