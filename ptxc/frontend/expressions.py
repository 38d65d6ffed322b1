"""Emmy's expressions: indices and coordinates, conditions, and the float arithmetic that appears between them.

A signed integer expression becomes a :class:`Linear`; anything else a :class:`Typed` value, unsigned integers of 32
bits or more among them: their arithmetic wraps around, which sums do not express. Registers are written only when
an address, a comparison or an operation needs one (:meth:`Expressions.register`), and the same one again where the
same expression comes back.

Source: ``emmy.compiler.ir.expr``, each node's ``render``; the C types are those of the CUDA text.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, TypeVar

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
from ptxc.frontend import convert, elementwise, volta_slabs
from ptxc.frontend.dtypes import BOOL_T, F32_T, F64_T, I32_T, I64_T, ElementType, element_type
from ptxc.frontend.integers import Integers, check_constant
from ptxc.frontend.linear import LONG_MAX, LONG_MIN, Linear, constant
from ptxc.frontend.math import Arithmetic
from ptxc.frontend.scope import Entry, Names, ScopedMemo, Typed
from ptxc.ir import opcodes
from ptxc.ir.builder import Builder
from ptxc.ir.opcodes import Opcode
from ptxc.ir.types import PRED
from ptxc.ir.values import FALSE, TRUE, Const, Operand, Sym, Value, real

#: Comparisons, and what each says of ``left - right``.
_COMPARE = {"<": "lt", "<=": "le", ">": "gt", ">=": "ge", "==": "eq", "!=": "ne"}
_FLOATS = frozenset(("f16", "bf16", "f32", "f64"))


T = TypeVar("T")
V = TypeVar("V", Linear, Typed, Linear | Typed)


class Expressions(Integers):
    """Lowers expressions at the place where ``builder`` writes."""

    def __init__(
        self,
        builder: Builder,
        names: Names,
        arithmetic: Arithmetic,
        flat_index: Callable[[str, tuple[Expr, ...]], Linear],
        threads: int,
    ) -> None:
        super().__init__(builder)
        self.names = names
        self.arithmetic = arithmetic
        self.flat_index = flat_index
        self.threads = threads
        #: What was lowered, by identity, as Emmy's trees share subtrees; and what the names in it stood for.
        self._lowered: ScopedMemo[Hashable, tuple[Linear | Typed, dict[str, Entry | None]]] = ScopedMemo()
        #: The names that the expression being lowered mentions.
        self._mentioned: dict[str, Entry | None] = {}
        self._literals: dict[int, Linear] = {}

    # -------------------------------------------------------------------------------------------------- scopes

    def enter(self) -> None:
        """See :meth:`Integers.enter`."""
        super().enter()
        self._lowered.enter()

    def leave(self) -> None:
        """See :meth:`Integers.leave`."""
        super().leave()
        self._lowered.leave()

    # ------------------------------------------------------------------------------------------------- lowering

    def lower(self, expr: Expr) -> Linear | Typed:
        """The value of any expression. Raises InputError for an undefined name or operands that do not fit."""
        if type(expr) is Literal:  # the two commonest, which nothing is gained by recalling
            return self._literal(expr)
        if type(expr) is Var:
            return self._var(expr)
        return self.recall(id(expr), _LOWER.get(type(expr), Expressions._unknown), expr)

    def recall(self, key: Hashable, lower: Callable[[Expressions, T], V], what: T) -> V:
        """``lower(self, what)``, or what it gave for ``key`` before if the names that it mentions mean the same still.

        The caller must keep what ``key`` identifies alive, and use it for one kind of value.
        """
        known = self._lowered.get(key)
        if known is not None:
            value, names = known
            entries = self.names.entries
            for name, entry in names.items():
                if entries.get(name) is not entry:
                    break
            else:
                self._mentioned.update(names)
                return value  # type: ignore[return-value]
        around = self._mentioned
        mentioned = self._mentioned = {}
        found = lower(self, what)
        self._lowered.remember(key, (found, mentioned))
        around.update(mentioned)
        self._mentioned = around
        return found

    def integer(self, expr: Expr) -> Linear:
        """The value of an expression that must be an integer (a float is cut toward zero, as C does)."""
        return self.as_linear(self.lower(expr))

    def subscript(self, expr: Expr) -> Linear:
        """The value of an index. Raises InputError for a float, which C does not take for one."""
        value = self.lower(expr)
        if type(value) is Linear:
            return value
        if isinstance(value, Typed) and not (value.type.is_integer or value.type is BOOL_T):
            raise InputError(f"the index {expr.pretty()} is a float", hint="cast it to int")
        return self.as_linear(value)

    def where(self, condition: Expr, a: Linear) -> Linear:
        """What ``a`` is where a condition holds; elsewhere it may be anything."""
        if type(condition) is BinaryExpr and condition.op == "&&":
            return self.where(condition.right, self.where(condition.left, a))
        if type(condition) is BinaryExpr and condition.op == "<":
            less, than = self.lower(condition.left), self.lower(condition.right)
            if isinstance(less, Linear) and isinstance(than, Linear):
                return self.knowing(a, less, than)
        return a

    def integer_of(self, name: str) -> Linear:
        """The value of a name that must be an integer."""
        return self.as_linear(self._var(Var(name)))

    def as_linear(self, value: Linear | Typed) -> Linear:
        """A value as an integer expression."""
        if isinstance(value, Linear):
            return value
        if value.type.is_integer:
            return self._integer_value(value)
        return self._integer_value(convert.convert(self.builder, value, I32_T))

    def typed(self, expr: Expr) -> Typed:
        """The value of an expression in a register of its C type."""
        return self.as_typed(self.lower(expr))

    def as_typed(self, value: Linear | Typed) -> Typed:
        """A value in a register of its C type, even where its range needs fewer bits."""
        if isinstance(value, Typed):
            return value
        return Typed(self.register(value, 64 if value.wide else 32), I64_T if value.wide else I32_T)

    def condition(self, expr: Expr) -> Operand:
        """Whether an expression is true: a predicate, or the constant TRUE or FALSE where ranges decide it."""
        return self.as_condition(self.lower(expr))

    def as_condition(self, value: Linear | Typed) -> Operand:
        """A value as C's ``if`` takes it: not equal to zero."""
        if isinstance(value, Linear):
            return self.compare("!=", value, constant(0))
        if value.type is BOOL_T:
            return value.operand
        return convert.truth(self.builder, value)

    def _unknown(self, expr: object) -> Linear | Typed:
        raise UnsupportedError(f"expression {type(expr).__name__} is not supported yet", hint="see `ptxc ops`")

    def _literal(self, expr: Literal) -> Linear | Typed:
        if isinstance(expr.value, float) or expr.dtype == "float":
            return Typed(real(F32_T.bank, float(expr.value)), F32_T)
        value = int(expr.value)
        known = self._literals.get(value)
        if known is None:
            if not LONG_MIN <= value <= LONG_MAX:
                raise InputError("a number of more than 64 bits", hint="indices have 64 at most")
            known = self._literals[value] = constant(value)
        return known

    def _var(self, expr: Var) -> Linear | Typed:
        name: str = expr.name
        entry = self._mentioned[name] = self.names.entries.get(name)
        if entry is not None:
            if isinstance(entry, Typed) and entry.type.is_integer and not _wraps(entry.type):
                return self._integer_value(entry)
            return entry
        if name == "lane":
            return self.modulo(self.special("tid.x"), constant(32))
        if name == "warp":
            return self.divide(self.special("tid.x"), constant(32))
        raise InputError(
            f"{name!r} is not defined", hint="an axis, a loop or a statement before this one must define it"
        )

    def _integer_value(self, value: Typed) -> Linear:
        """An integer in a register as an expression; small types become int, u32 a long long."""
        operand, type = value.operand, value.type
        if isinstance(operand, Const):
            return constant(convert.number(operand, type), type.nbytes == 8 or type.name == "u32")
        assert isinstance(operand, Value)
        assert type.lo is not None
        assert type.hi is not None
        if type.name == "u32":
            operand = self.extend(operand, signed=False)
        self.note(operand, type.lo, min(type.hi, LONG_MAX))
        return self.registers.linear(operand, wide=operand.type.bits == 64)

    def _builtin(self, expr: Builtin) -> Linear:
        name: str = expr.name
        if name == "warp_size":
            return constant(32)
        kind, _, axis = name.partition(".")
        special = {"thread_idx": "tid", "block_idx": "ctaid", "block_dim": "ntid", "grid_dim": "nctaid"}.get(kind)
        if special is None or axis not in ("x", "y", "z"):
            hint = "there are thread_idx, block_idx, block_dim and grid_dim, of .x, .y and .z, and warp_size"
            raise InputError(f"there is no built-in {name!r}", hint=hint)
        return self.special(f"{special}.{axis}")

    def special(self, name: str) -> Linear:
        """A special register. Launches are one-dimensional, so the y and z ones are known."""
        kind, _, axis = name.partition(".")
        if axis != "x":
            return constant(0 if kind in ("tid", "ctaid") else 1)
        if kind == "ntid":
            return constant(self.threads)
        key = ("special", name)
        value = self.memo.get(key)
        if value is None:
            hint = {"tid": "tid", "ctaid": "cta", "nctaid": "ctas"}[kind]
            value = self.memo.remember(key, self.builder.unary(opcodes.MOV, "u32", Sym(f"%{name}"), hint))
            least, most = (0, self.threads - 1) if kind == "tid" else (0 if kind == "ctaid" else 1, 2**31 - 1)
            self.note(value, least, most, depth=0)
        return self.registers.linear(value)

    # ---------------------------------------------------------------------------------------------- operations

    def _binary(self, expr: BinaryExpr) -> Linear | Typed:
        op: str = expr.op
        if op == "&&" or op == "||":
            return Typed(self.logical(op, self.condition(expr.left), self.condition(expr.right)), BOOL_T)
        left, right = self.lower(expr.left), self.lower(expr.right)
        if not (type(left) is Linear and type(right) is Linear):
            left, right = self._number(left), self._number(right)
        if not (isinstance(left, Linear) and isinstance(right, Linear)):
            if not (_is_integer(left) and _is_integer(right)):
                return self._float_binary(op, left, right)
            if not self._common_integer(left, *(() if op in ("<<", ">>") else (right,))).signed:
                return self._unsigned_binary(op, left, right)
            left, right = self.as_linear(left), self.as_linear(right)
        if op in _COMPARE:
            return Typed(self.compare(op, left, right), BOOL_T)
        return self.arithmetic_op(op, left, right)

    def _number(self, value: Linear | Typed) -> Linear | Typed:
        """An operand: C's promotion of a bool to 0 or 1, and of small integers to int."""
        if isinstance(value, Typed) and (value.type is BOOL_T or (value.type.is_integer and not _wraps(value.type))):
            return self.as_linear(value)
        return value

    def _common_integer(self, *values: Linear | Typed) -> ElementType:
        """C's common type of integer operands."""
        kinds = (v.type if isinstance(v, Typed) else I64_T if v.wide else I32_T for v in values)
        return elementwise.c_type(tuple(Typed(TRUE, kind) for kind in kinds))

    def arithmetic_op(self, op: str, left: Linear, right: Linear) -> Linear:
        """An integer operation in C's meaning (division cuts toward zero)."""
        match op:
            case "+":
                return self.registers.add(left, right)
            case "-":
                return self.registers.add(left, right, -1)
            case "*":
                return self.multiply(left, right)
            case "/" | "//":
                return self.divide(left, right)
            case "%":
                return self.modulo(left, right)
            case "<<" | ">>" | "&" | "|" | "^":
                return self.bitwise(op, left, right)
        raise InputError(f"there is no operator {op!r}", hint="see `ptxc ops`")

    def _unsigned_binary(self, op: str, left: Linear | Typed, right: Linear | Typed) -> Typed:
        """An operation whose C type is unsigned: it wraps around, and compares and divides without a sign."""
        name = elementwise.OF_INTEGER_OPERATOR.get(op)
        if name is None:
            raise InputError(f"there is no operator {op!r}", hint="see `ptxc ops`")
        a, b = self.as_typed(left), self.as_typed(right)
        if isinstance(b.operand, Const):
            check_constant(op, b.operand.bits)
        return elementwise.exact(self.builder, name, (a, b))

    def _float_binary(self, op: str, left: Linear | Typed, right: Linear | Typed) -> Typed:
        type = self._common_float(left, right)
        a, b = (self.to(value, type) for value in (left, right))
        if op in _COMPARE:
            return Typed(elementwise.compare(self.builder, _COMPARE[op], a, b), BOOL_T)
        name = elementwise.OF_OPERATOR.get(op)
        if name is None:
            raise InputError(f"{op!r} of floats", hint="only integers have bitwise operators")
        return elementwise.compute(self.builder, name, (a, b), type, self.arithmetic)

    def _common_float(self, *values: Linear | Typed) -> ElementType:
        """C's common type of operands of which one is a float."""
        types = [v.type for v in values if isinstance(v, Typed) and v.type.name in _FLOATS]
        if any(isinstance(v, Typed) and v.type.name == "f64" for v in values):
            return F64_T
        if types and all(t is types[0] for t in types) and len(types) == len(values):
            return types[0]
        return F32_T

    def to(self, value: Linear | Typed, type: ElementType) -> Typed:
        """``value`` converted as C's assignment to a variable of ``type`` does."""
        if isinstance(value, Linear) and not type.is_integer:
            # The number is the same in as few bits as hold it, and sooner a float.
            value = Typed(self.register(value), I64_T if self.bits(value) == 64 else I32_T)
        return convert.convert(self.builder, self.as_typed(value), type)

    def _ternary(self, expr: TernaryExpr) -> Linear | Typed:
        predicate = self.condition(expr.cond)
        # Both are needed even where only one can be chosen: its type is what C makes of both.
        a, b = self._number(self.lower(expr.if_true)), self._number(self.lower(expr.if_false))
        type = self._common_integer(a, b) if _is_integer(a) and _is_integer(b) else self._common_float(a, b)
        if not type.signed:
            return self.select_typed(predicate, self.to(a, type), self.to(b, type))
        left, right = self.as_linear(a), self.as_linear(b)
        if isinstance(predicate, Const):
            return (left if predicate == TRUE else right).as_wide(left.wide or right.wide)
        return self._minimum(expr.cond, left, right) or self.select(predicate, left, right)

    def select_typed(self, predicate: Operand, a: Typed, b: Typed) -> Typed:
        """``a`` where ``predicate`` holds, else ``b``, both of one type."""
        if isinstance(predicate, Const):
            return a if predicate == TRUE else b
        if a.operand == b.operand:
            return a
        if a.type is BOOL_T:
            chosen = self.logical("&&", predicate, a.operand)
            other = self.logical("&&", self.negate(predicate), b.operand)
            return Typed(self.logical("||", chosen, other), BOOL_T)
        suffix = a.type.bank.name
        return Typed(self.builder.selp(suffix, a.operand, b.operand, predicate), a.type)

    def _minimum(self, condition: Expr, a: Linear, b: Linear) -> Linear | None:
        """``(a < n) ? a : n - 1`` as a minimum: how Emmy keeps an index inside an extent."""
        if not (isinstance(condition, BinaryExpr) and condition.op == "<"):
            return None
        left, bound = self.lower(condition.left), self.lower(condition.right)
        if not (isinstance(left, Linear) and isinstance(bound, Linear) and left.same(a)):
            return None
        last = self.registers.add(bound, constant(1), -1)
        return self.smaller(a, b) if last.same(b) else None

    def logical(self, op: str, a: Operand, b: Operand) -> Operand:
        """``a && b`` or ``a || b`` of predicates."""
        decisive = FALSE if op == "&&" else TRUE
        if decisive in (a, b):
            return decisive
        if isinstance(a, Const):
            return b
        if isinstance(b, Const) or a is b:
            return a
        opcode = opcodes.AND if op == "&&" else opcodes.OR
        return self._predicate((op, a, b), opcode, a, b)

    def negate(self, predicate: Operand) -> Operand:
        """The opposite of a predicate."""
        if isinstance(predicate, Const):
            return FALSE if predicate == TRUE else TRUE
        return self._predicate(("!", predicate), opcodes.NOT, predicate)

    def _predicate(self, key: Hashable, op: Opcode, *operands: Operand) -> Value:
        """``op`` of predicates, remembered under ``key``."""
        value = self.memo.get(key)
        if value is None:
            value = self.memo.remember(key, self.builder.emit(op, ("pred",), PRED, operands, "p"))
            self.note(value, 0, 1, max(map(self.depth_of, operands)))
        return value

    def _cast(self, expr: CastExpr) -> Linear | Typed:
        type = element_type(expr.dtype)
        value = self.lower(expr.expr)
        if isinstance(value, Linear) and type in (I32_T, I64_T):
            fits = value.lo >= -(2**31) and value.hi < 2**31
            if type is I64_T or fits or not value.wide:
                return value.as_wide(type is I64_T)
            return self._integer_value(Typed(self.register(value, 32), I32_T))
        converted = self.to(value, type)
        return self._integer_value(converted) if type.is_integer and not _wraps(type) else converted

    def _call(self, expr: FuncCallExpr) -> Linear | Typed:
        args = [self.lower(arg) for arg in expr.args]
        if expr.name == "bitwise_count":
            return self._count_bits(args)
        if expr.name in volta_slabs.FUNCTIONS:
            return self._place_in_slab(expr.name, args)
        if expr.name not in elementwise.FUNCTIONS:
            raise UnsupportedError(f"function {expr.name!r} is not supported yet", hint="see `ptxc ops`")
        floats = tuple(self.to(arg, F32_T) for arg in args)
        return elementwise.compute(self.builder, elementwise.FUNCTIONS[expr.name], floats, F32_T, self.arithmetic)

    def _place_in_slab(self, name: str, args: list[Linear | Typed]) -> Linear:
        """An element's place in a Volta slab, an int of a row, a column and an extent."""
        numbers = [self._number(arg) for arg in args]
        if len(numbers) != 3 or not all(_is_integer(number) for number in numbers):
            what = f"{name!r} takes three integers, not {len(args)} such operands"
            raise InputError(what, hint="they are a row, a column and an extent")
        row, column, extent = map(self.as_linear, numbers)
        return volta_slabs.FUNCTIONS[name](self, row, column, extent)

    def _count_bits(self, args: list[Linear | Typed]) -> Linear:
        """The set bits of an integer as wide as C has it."""
        number = self._number(args[0]) if len(args) == 1 else None
        if number is None or not _is_integer(number):
            raise InputError("'bitwise_count' takes one integer", hint="give it one operand, which is no float")
        return self._integer_value(elementwise.popcount(self.builder, self.as_typed(number)))

    def _flat_index(self, expr: FlatIndex) -> Linear:
        return self.flat_index(expr.buffer, expr.index)


def _wraps(type: ElementType) -> bool:
    """Whether C computes with values of the type without a sign."""
    return type.name in ("u32", "u64")


def _is_integer(value: Linear | Typed) -> bool:
    return isinstance(value, Linear) or value.type.is_integer


_LOWER: dict[type, Callable[[Expressions, Any], Linear | Typed]] = {
    Literal: Expressions._literal,
    Var: Expressions._var,
    Builtin: Expressions._builtin,
    BinaryExpr: Expressions._binary,
    TernaryExpr: Expressions._ternary,
    CastExpr: Expressions._cast,
    FuncCallExpr: Expressions._call,
    FlatIndex: Expressions._flat_index,
}
