"""Integer arithmetic on index expressions, and the registers that hold their values.

The registers written so far are remembered by what they hold (:attr:`Integers.memo`), so that an expression that
comes back costs a look-up. What was remembered inside a block is forgotten when control leaves it: its registers do
not reach further.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeVar

from ptxc.errors import InputError
from ptxc.frontend.linear import INT_MAX, INT_MIN, LONG_MAX, LONG_MIN, Linear, Registers, common_factor, constant
from ptxc.frontend.scope import ScopedMemo
from ptxc.ir import opcodes
from ptxc.ir.builder import Builder
from ptxc.ir.opcodes import Opcode
from ptxc.ir.types import B32, B64, PRED
from ptxc.ir.values import FALSE, TRUE, Operand, Value, integer

T = TypeVar("T")


class Integers:
    """Integer operations, written where ``builder`` writes."""

    def __init__(self, builder: Builder) -> None:
        self.builder = builder
        self.registers = Registers()
        self.memo: ScopedMemo[Hashable, Value] = ScopedMemo()
        #: What else was made of registers: see :meth:`once`.
        self._made: ScopedMemo[Hashable, Any] = ScopedMemo()
        #: Of what each minimum is the smaller.
        self._minima: dict[Value, tuple[Linear, Linear]] = {}
        #: Remainders: what was divided, by what, and the key of the quotient.
        self._remainders: dict[Value, tuple[Linear, int, Hashable]] = {}
        #: How many loops surround the place that is being written.
        self.depth = 0

    # -------------------------------------------------------------------------------------------- remembering

    def enter(self) -> None:
        """What is remembered from here on is forgotten at the matching :meth:`leave`."""
        self.memo.enter()
        self._made.enter()

    def leave(self) -> None:
        """Forget what was remembered since the matching :meth:`enter`."""
        self.memo.leave()
        self._made.leave()

    def memoised(self, key: Hashable, write: Callable[[], Value]) -> Value:
        """The register remembered under ``key``, written by ``write`` if there is none."""
        value = self.memo.get(key)
        return value if value is not None else self.memo.remember(key, write())

    def once(self, key: Hashable, make: Callable[[], T]) -> T:
        """What ``make`` gives, or what it gave for ``key`` where the lowering is: it must depend on ``key`` alone."""
        made: T | None = self._made.get(key)
        return made if made is not None else self._made.remember(key, make())

    def note(self, value: Value, lo: int, hi: int, depth: int | None = None) -> Value:
        """Let index expressions contain ``value``, which lies in [lo, hi].

        It changes in as many of the loops around this place as ``depth`` says, by default in all of them.
        """
        self.registers.add_atom(value, lo, hi, self.depth if depth is None else depth)
        return value

    def _derive(self, value: Value, lo: int, hi: int, *sources: Linear, depth: int = 0) -> Value:
        """:meth:`note` a value computed of ``sources``: it need not change in a loop in which none of them does.

        ``depth`` is that of what else it was computed of.
        """
        if self.depth:
            depths = [self.registers.depth(term) for source in sources for term in source.terms]
            depth = max([depth, *depths])
        return self.note(value, lo, hi, depth)

    def depth_of(self, predicate: Operand) -> int:
        """In how many of the loops around this place a predicate changes; in all where that is not known."""
        if not self.depth or not isinstance(predicate, Value):
            return 0
        return self.registers.depth_if_known(predicate, self.depth)

    def changes(self, a: Linear) -> bool:
        """Whether the innermost loop around this place changes ``a``."""
        return bool(self.depth) and any([self.registers.depth(value) == self.depth for value in a.terms])

    # ------------------------------------------------------------------------------------------------ registers

    def bits(self, a: Linear) -> int:
        """The width that ``a`` is computed in: 64 only where C does and its range needs it."""
        return 64 if a.wide and not INT_MIN <= a.lo <= a.hi <= INT_MAX else 32

    def register(self, a: Linear, bits: int = 0) -> Operand:
        """``a`` in a register of ``bits`` (by default those that it needs), or as a constant."""
        bits = bits or self.bits(a)
        type = B64 if bits == 64 else B32
        if not a.terms:
            return integer(type, a.constant)
        if bits == 64 and self.bits(a) == 32:
            # Not remembered as a sum of 64 bits: it is one only where the 32 suffice, which C leaves to the kernel.
            narrow = self.register(a, 32)
            assert isinstance(narrow, Value)
            return self.extend(narrow, signed=a.lo < 0)
        key = (bits, a.constant, *self.registers.ordered(a.terms))
        value = self.memo.get(key)
        if value is None:
            value = self._write_sum(a, bits)
            if key not in self.memo:
                self.memo.remember(key, value)
        return value

    def _write_sum(self, a: Linear, bits: int) -> Value:
        total: Value | None = None
        terms = self.registers.ordered(a.terms)
        for count, (value, coefficient) in enumerate(terms, 1):
            key = (bits, 0, *terms[:count])
            partial = self.memo.get(key)
            if partial is None:
                partial = self._add_term(total, value, coefficient, bits)
                if partial is not value:
                    self.memo.remember(key, partial)
            total = partial
        assert total is not None
        if a.constant:
            type = B64 if bits == 64 else B32
            total = self.builder.binary(opcodes.ADD, f"s{bits}", total, integer(type, a.constant))
        return total

    def _add_term(self, total: Value | None, value: Value, coefficient: int, bits: int) -> Value:
        """``total + coefficient * value`` in a register of ``bits``."""
        type = B64 if bits == 64 else B32
        if bits == 64 and value.type is B32:
            if coefficient == 1 or not INT_MIN <= coefficient <= INT_MAX:
                value = self.extend(value, signed=self.registers.atom(value).lo < 0)
            else:
                factor = integer(B32, coefficient)
                if total is None:
                    return self.builder.emit(opcodes.MUL, ("wide", "s32"), B64, (value, factor))
                return self.builder.emit(opcodes.MAD, ("wide", "s32"), B64, (value, factor, total))
        elif bits == 32 and value.type is B64:
            value = self.memoised(("low", value), lambda: self.builder.cvt("u32.u64", value))
        if coefficient == 1:
            return value if total is None else self.builder.binary(opcodes.ADD, f"s{bits}", total, value)
        if coefficient == -1 and total is not None:
            return self.builder.binary(opcodes.SUB, f"s{bits}", total, value)
        factor = integer(type, coefficient)
        if total is None:
            return self.builder.emit(opcodes.MUL, ("lo", f"s{bits}"), type, (value, factor))
        return self.builder.emit(opcodes.MAD, ("lo", f"s{bits}"), type, (value, factor, total))

    def extend(self, value: Value, *, signed: bool) -> Value:
        """A 32-bit register in 64 bits."""
        suffix = "s64.s32" if signed else "u64.u32"
        return self.memoised((suffix, value), lambda: self.builder.cvt(suffix, value))

    # --------------------------------------------------------------------------------------------- arithmetic

    def multiply(self, a: Linear, b: Linear) -> Linear:
        """``a * b``."""
        wide = a.wide or b.wide
        if not b.terms:
            return self.registers.scale(a, b.constant, wide)
        if not a.terms:
            return self.registers.scale(b, a.constant, wide)
        if len(a.terms) == 1 < len(b.terms) or a.constant == 0 != b.constant:
            a, b = b, a
        # A sum times one register: term by term, so that equal products meet again.
        corners = [x * y for x in (a.lo, a.hi) for y in (b.lo, b.hi)]
        return self._operation("*", opcodes.MUL, ("lo",), a, b, min(corners), max(corners))

    def divide(self, a: Linear, b: Linear) -> Linear:
        """``a / b`` toward zero."""
        if not b.terms:
            check_constant("/", b.constant)
            if not a.terms:
                return constant(_truncate(a.constant, b.constant), a.wide or b.wide)
            if a.lo >= 0 and b.constant > 0:
                return self._divide_by_constant(a, b.constant).as_wide(a.wide or b.wide)
        if a.lo >= 0 and b.lo > a.hi:
            return constant(0, a.wide or b.wide)
        # C does not define a division by 0, so a divisor that is not negative is at least 1.
        bounds = [_truncate(x, y) for x in (a.lo, a.hi) for y in (b.lo or 1, b.hi) if y] + [0]
        if b.lo < 0:
            bounds += [a.lo, a.hi, -a.lo, -a.hi]
        return self._operation("/", opcodes.DIV, (), a, b, min(bounds), max(bounds))

    def _divide_by_constant(self, a: Linear, divisor: int) -> Linear:
        quotient, rest = self.registers.split(a, divisor)
        if not self._is_natural(rest):
            quotient, rest = constant(0), a
        if rest.hi < divisor:
            return quotient
        factor = common_factor(rest.terms.values(), divisor)
        if factor > 1:
            rest = self.registers.split(rest, factor)[0]
        divided = self._operation(
            "/", opcodes.DIV, (), rest, constant(divisor // factor), 0, rest.hi // (divisor // factor)
        )
        return self.registers.add(quotient, divided)

    @staticmethod
    def _is_natural(part: Linear) -> bool:
        """Whether part of a sum, unlike the whole not known to fit its C type, does, and is not negative."""
        return part.lo >= 0 and part.hi <= (LONG_MAX if part.wide else INT_MAX)

    def modulo(self, a: Linear, b: Linear) -> Linear:
        """``a % b``, with the sign of ``a``."""
        if not b.terms:
            check_constant("%", b.constant)
            if not a.terms:
                return constant(a.constant - b.constant * _truncate(a.constant, b.constant), a.wide or b.wide)
            if a.lo >= 0 and b.constant > 0:
                return self._modulo_constant(a, b.constant).as_wide(a.wide or b.wide)
        if a.lo >= 0 and b.lo > a.hi:
            return a.as_wide(a.wide or b.wide)
        most = max(abs(b.lo), abs(b.hi)) - 1
        lo, hi = (max(a.lo, -most) if a.lo < 0 else 0), (min(a.hi, most) if a.hi > 0 else 0)
        return self._operation("%", opcodes.REM, (), a, b, lo, hi)

    def _modulo_constant(self, a: Linear, divisor: int) -> Linear:
        rest = self.registers.split(a, divisor)[1]
        if not self._is_natural(rest):
            rest = a
        if rest.hi < divisor:
            return rest
        factor = common_factor(rest.terms.values(), divisor)
        if factor == 1:
            return self._remainder(rest, divisor)
        quotient, low = self.registers.split(rest, factor)
        return self.registers.add(low, self._remainder(quotient, divisor // factor), factor)

    def _remainder(self, a: Linear, divisor: int) -> Linear:
        by = constant(divisor)
        found = self._operation("%", opcodes.REM, (), a, by, 0, divisor - 1)
        (value,) = found.terms
        bits = value.type.bits
        key = _operation_key("/", opcodes.DIV, bits, a, by, self.register(a, bits), self.register(by, bits))
        self._remainders[value] = (a, divisor, key)
        return found

    def put_together(self, a: Linear) -> Linear:
        """``a``, in which ``m * d * (x / d) + m * (x % d)`` has become ``m * x``."""
        terms = a.terms
        if self._remainders.keys().isdisjoint(terms):
            return a
        for value in [value for value in terms if value in self._remainders]:
            divided, divisor, key = self._remainders[value]
            quotient = self.memo.get(key)
            if quotient is not None and terms.get(quotient) == divisor * terms[value]:
                return self.put_together(self._with_instead(a, (value, quotient), divided, terms[value]))
        return a

    def smaller(self, a: Linear, b: Linear) -> Linear:
        """The smaller of two."""
        if a.hi <= b.lo:
            return a.as_wide(a.wide or b.wide)
        if b.hi <= a.lo:
            return b.as_wide(a.wide or b.wide)
        found = self._operation("min", opcodes.MIN, (), a, b, min(a.lo, b.lo), min(a.hi, b.hi))
        (value,) = found.terms
        self._minima[value] = (a, b)
        return found

    def knowing(self, a: Linear, less: Linear, than: Linear) -> Linear:
        """What ``a`` is where ``less < than``: elsewhere it may be anything.

        There, ``min(less, than - 1)`` is ``less``.
        """
        for value in [value for value in a.terms if value in self._minima]:
            first, second = self._minima[value]
            if first.same(less) and self.registers.add(second, constant(1)).same(than):
                return self._with_instead(a, (value,), less, a.terms[value]).within(*a.range)
        return a

    def _with_instead(self, a: Linear, gone: Sequence[Value], by: Linear, factor: int) -> Linear:
        """``a`` with ``factor * by`` in the place of the terms of some registers."""
        others = {value: coefficient for value, coefficient in a.terms.items() if value not in gone}
        rest = self.registers.make(others, a.constant, a.wide)
        return self.registers.add(rest, by, factor).as_wide(a.wide)

    def larger(self, a: Linear, b: Linear) -> Linear:
        """The larger of two."""
        if a.lo >= b.hi:
            return a.as_wide(a.wide or b.wide)
        if b.lo >= a.hi:
            return b.as_wide(a.wide or b.wide)
        return self._operation("max", opcodes.MAX, (), a, b, max(a.lo, b.lo), max(a.hi, b.hi))

    def bitwise(self, op: str, a: Linear, b: Linear) -> Linear:
        """``& | ^ << >>``, arithmetic shifts."""
        if not b.terms:
            check_constant(op, b.constant)
        wide = a.wide if op in ("<<", ">>") else a.wide or b.wide
        if not a.terms and not b.terms:
            return constant(_BITWISE[op](a.constant, b.constant), wide)
        if op in ("<<", ">>") and not b.terms and 0 <= b.constant < 63:
            if op == "<<":
                return self.registers.scale(a, 1 << b.constant)
            if a.lo >= 0:
                return self.divide(a, constant(1 << b.constant, wide))
        if op == "&" and a.lo >= 0 and not b.terms and b.constant & (b.constant + 1) == 0 and b.constant >= 0:
            return self.modulo(a, constant(b.constant + 1, wide))
        if op in ("<<", ">>"):
            return self._shift(op, a, b)
        lo, hi = (LONG_MIN, LONG_MAX) if wide else (INT_MIN, INT_MAX)
        positives = [x.hi for x in (a, b) if x.lo >= 0]
        if op == "&" and positives:
            lo, hi = 0, min(positives)
        elif len(positives) == 2:
            lo, hi = 0, (1 << max(positives).bit_length()) - 1
        opcode = {"&": opcodes.AND, "|": opcodes.OR, "^": opcodes.XOR}[op]
        return self._operation(op, opcode, (), a, b, lo, hi)

    def _shift(self, op: str, a: Linear, b: Linear) -> Linear:
        bits = 64 if op == "<<" and a.wide else self.bits(a)
        left, by = self.register(a, bits), self.register(b, 32)
        opcode, suffix = (opcodes.SHL, f"b{bits}") if op == "<<" else (opcodes.SHR, f"s{bits}")
        value = self.memoised((op, bits, left, by), lambda: self.builder.binary(opcode, suffix, left, by))
        lo, hi = (a.lo, a.hi) if op == ">>" and a.lo >= 0 else (-(1 << (bits - 1)), (1 << (bits - 1)) - 1)
        self._derive(value, 0 if a.lo >= 0 and op == ">>" else lo, hi, a, b)
        return self.registers.linear(value, a.wide)

    def _operation(
        self, name: str, op: Opcode, mods: tuple[str, ...], a: Linear, b: Linear, lo: int, hi: int
    ) -> Linear:
        """``a op b`` in a register of its own, whose range is [lo, hi]."""
        wide = a.wide or b.wide
        if not wide:
            lo, hi = max(lo, INT_MIN), min(hi, INT_MAX)
        bits = 64 if max(self.bits(a), self.bits(b)) == 64 or (wide and not INT_MIN <= lo <= hi <= INT_MAX) else 32
        left, right = self.register(a, bits), self.register(b, bits)
        key = _operation_key(name, op, bits, a, b, left, right)
        value = self.memo.get(key)
        if value is None:
            type = B64 if bits == 64 else B32
            value = self.memo.remember(key, self.builder.emit(op, (*mods, f"{key[1]}{bits}"), type, (left, right)))
            self._derive(value, lo, hi, a, b)
        return self.registers.linear(value, wide)

    def select(self, predicate: Operand, a: Linear, b: Linear) -> Linear:
        """``a`` where ``predicate`` holds, else ``b``."""
        if a.same(b):
            return a.as_wide(a.wide or b.wide)
        bits = max(self.bits(a), self.bits(b))
        left, right = self.register(a, bits), self.register(b, bits)
        value = self.memoised(
            ("?", predicate, left, right), lambda: self.builder.selp(f"b{bits}", left, right, predicate)
        )
        self._derive(value, min(a.lo, b.lo), max(a.hi, b.hi), a, b, depth=self.depth_of(predicate))
        return self.registers.linear(value, a.wide or b.wide)

    # -------------------------------------------------------------------------------------------- comparisons

    def compare(self, op: str, a: Linear, b: Linear) -> Operand:
        """Whether ``a op b``: a predicate, or TRUE or FALSE where the ranges decide it."""
        difference = self.registers.add(a, b, -1)
        decided = _decide(op, difference.lo, difference.hi)
        if decided is None:
            decided = _decide(op, a.lo - b.hi, a.hi - b.lo)
        if decided is not None:
            return TRUE if decided else FALSE
        if not b.terms and a.constant:
            # The constants together on the right: the register of the sum alone serves other comparisons too.
            least, most = (LONG_MIN, LONG_MAX) if a.wide or b.wide else (INT_MIN, INT_MAX)
            lo, hi = self.registers.range_of(a.terms, 0, True)
            moved = b.constant - a.constant
            if least <= lo and hi <= most and least <= moved <= most:
                a, b = self.registers.make(a.terms, 0, a.wide), constant(moved, b.wide)
        if not b.terms:
            a, b = self._reduced(op, a, b)
        bits = max(self.bits(a), self.bits(b))
        left, right = self.register(a, bits), self.register(b, bits)
        relation = {"<": "lt", "<=": "le", ">": "gt", ">=": "ge", "==": "eq", "!=": "ne"}[op]
        key = (op, bits, left, right)
        value = self.memo.get(key)
        if value is None:
            value = self.builder.emit(opcodes.SETP, (relation, f"s{bits}"), PRED, (left, right), "p")
            self.memo.remember(key, value)
            self._derive(value, 0, 1, a, b)
        return value

    def _reduced(self, op: str, a: Linear, b: Linear) -> tuple[Linear, Linear]:
        """The sides of ``a op b``, with b constant, without the factor that all terms of ``a`` have."""
        factor = math.gcd(*a.terms.values())
        if factor <= 1 or a.constant or (op in ("==", "!=") and b.constant % factor):
            return a, b
        # 4x < 5 where x < 2, 4x > 5 where x > 1.
        bound = -(-b.constant // factor) if op in ("<", ">=") else b.constant // factor
        terms = {value: coefficient // factor for value, coefficient in a.terms.items()}
        return self.registers.make(terms, 0, a.wide), constant(bound, b.wide)


def _operation_key(
    name: str, op: Opcode, bits: int, a: Linear, b: Linear, left: Operand, right: Operand
) -> tuple[str, str, int, Operand, Operand]:
    """What ``a op b`` is remembered under, ``left`` and ``right`` in registers; the kind is ``u``, ``s`` or ``b``."""
    unsigned = op in (opcodes.DIV, opcodes.REM) and a.lo >= 0 and b.lo >= 0
    kind = "b" if op in (opcodes.AND, opcodes.OR, opcodes.XOR) else "u" if unsigned else "s"
    return name, kind, bits, left, right


def check_constant(op: str, right: int) -> None:
    """Raises InputError where C does not define ``op`` with a right operand that is the constant ``right``."""
    if op in ("/", "//", "%") and right == 0:
        what = "a remainder of a division by zero" if op == "%" else "a division by zero"
        raise InputError(what, hint="C does not define it: check what the divisor was made of")
    if op in ("<<", ">>") and not 0 <= right < 2**31:
        raise InputError(f"a shift by {right}", hint="C defines shifts by 0 to the width only")


def _truncate(a: int, b: int) -> int:
    quotient = abs(a) // abs(b)
    return quotient if (a < 0) == (b < 0) else -quotient


def _decide(op: str, lo: int, hi: int) -> bool | None:
    """Whether ``d op 0`` is the same for every d in [lo, hi]."""
    match op:
        case "<":
            return True if hi < 0 else False if lo >= 0 else None
        case "<=":
            return True if hi <= 0 else False if lo > 0 else None
        case ">":
            return True if lo > 0 else False if hi <= 0 else None
        case ">=":
            return True if lo >= 0 else False if hi < 0 else None
        case "==":
            return False if lo > 0 or hi < 0 else True if lo == hi else None
        case _:
            return True if lo > 0 or hi < 0 else False if lo == hi else None


_BITWISE: dict[str, Callable[[int, int], int]] = {
    "&": lambda a, b: a & b,
    "|": lambda a, b: a | b,
    "^": lambda a, b: a ^ b,
    "<<": lambda a, b: a << min(b, 64),
    ">>": lambda a, b: a >> min(b, 64),
}
