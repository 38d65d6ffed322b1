"""Integer index expressions in a normal form: a sum of registers times constants, plus a constant.

Emmy spells an address as a tree of additions, products, divisions and remainders over the tile's coordinates, and
spells much of it again in every statement. Here each expression becomes a :class:`Linear`, in which equal expressions
look equal and terms that cancel are gone. The value range of every register is known, so that

    ((a * 16 + b) * 4) / 64    is    a       where b is below 16
    ((a * 16 + b) * 4) % 64    is    4 * b

and no division is left. The arithmetic is exact (Python's integers); a C ``int`` expression that could leave 32 bits
would be undefined in Emmy's CUDA, so ranges of such expressions are cut to 32 bits.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from math import gcd
from typing import Final, NamedTuple

from ptxc.ir.values import Value

INT_MIN: Final = -(2**31)
INT_MAX: Final = 2**31 - 1
LONG_MIN: Final = -(2**63)
LONG_MAX: Final = 2**63 - 1


class Atom(NamedTuple):
    """What is known of a register that terms are made of."""

    lo: int
    hi: int
    #: Orders the terms of a sum: registers of outer loops first, so that their part of it leaves the loop.
    rank: int


class Linear:
    """``sum(coefficient * register) + constant``. Immutable; made by :class:`Registers` and :func:`constant`."""

    __slots__ = ("_range", "constant", "registers", "terms", "wide")

    def __init__(
        self, registers: Registers | None, terms: dict[Value, int], constant: int, wide: bool,
        range: tuple[int, int] | None,
    ) -> None:  # fmt: skip
        #: What knows the registers' ranges; None for a constant.
        self.registers = registers
        self.terms = terms
        self.constant = constant
        #: Whether C computes it in 64 bits.
        self.wide = wide
        self._range = range

    @property
    def range(self) -> tuple[int, int]:
        """The least and the greatest value that it can have. Most are never asked for, so it is computed late."""
        found = self._range
        if found is None:
            found = (self.constant, self.constant)
            if self.registers is not None:
                found = self.registers.range_of(self.terms, self.constant, self.wide)
            self._range = found
        return found

    @property
    def lo(self) -> int:
        """The least value that it can have."""
        return (self._range or self.range)[0]

    @property
    def hi(self) -> int:
        """The greatest value that it can have."""
        return (self._range or self.range)[1]

    def same(self, other: Linear) -> bool:
        """Whether both always have the same value."""
        return self.constant == other.constant and self.terms == other.terms

    def as_wide(self, wide: bool) -> Linear:
        """The same value, computed in 64 bits or in 32."""
        return self if wide == self.wide else Linear(self.registers, self.terms, self.constant, wide, self._range)

    def within(self, lo: int, hi: int) -> Linear:
        """The same value, which is known to lie in [lo, hi] too."""
        mine = self.range
        return Linear(self.registers, self.terms, self.constant, self.wide, (max(lo, mine[0]), min(hi, mine[1])))

    def __repr__(self) -> str:
        parts = [f"{c}*{v}" for v, c in self.terms.items()]
        return " + ".join([*parts, str(self.constant)]) + f" in [{self.lo}, {self.hi}]"


@lru_cache(4096, typed=True)
def constant(value: int, wide: bool | None = None) -> Linear:
    """A constant. Where its C type is not given, that of a literal: ``long long`` beyond 32768 in magnitude, as Emmy
    spells those."""
    return Linear(None, {}, value, abs(value) > 32768 if wide is None else wide, None)


class Registers:
    """The registers that terms are made of, with what is known of them; and arithmetic on sums of them."""

    def __init__(self) -> None:
        self._atoms: dict[Value, Atom] = {}

    def add_atom(self, value: Value, lo: int, hi: int, depth: int) -> None:
        """Let sums contain ``value``, which lies in [lo, hi] and is defined inside ``depth`` loops."""
        if value not in self._atoms:
            self._atoms[value] = Atom(lo, hi, (depth << 32) + len(self._atoms))

    def atom(self, value: Value) -> Atom:
        """What is known of ``value``."""
        return self._atoms[value]

    def linear(self, value: Value, wide: bool = False) -> Linear:
        """The sum that is just ``value``."""
        lo, hi, _ = self._atoms[value]
        return Linear(self, {value: 1}, 0, wide, (lo, hi))

    def ordered(self, terms: dict[Value, int]) -> list[tuple[Value, int]]:
        """The terms with registers of outer loops first."""
        if len(terms) < 2:
            return list(terms.items())
        atoms = self._atoms
        return sorted(terms.items(), key=lambda term: atoms[term[0]].rank)

    def depth(self, value: Value) -> int:
        """How many loops the definition of ``value`` is in."""
        return self._atoms[value].rank >> 32

    def depth_if_known(self, value: Value, default: int) -> int:
        """:meth:`depth`, or ``default`` for a value that nothing is known of."""
        atom = self._atoms.get(value)
        return atom.rank >> 32 if atom is not None else default

    def make(self, terms: dict[Value, int], offset: int, wide: bool) -> Linear:
        """The sum of ``terms`` (none with coefficient 0) and ``offset``."""
        return Linear(self, terms, offset, wide, None)

    def range_of(self, terms: dict[Value, int], offset: int, wide: bool) -> tuple[int, int]:
        """The range of a sum."""
        lo = hi = offset
        atoms = self._atoms
        for value, coefficient in terms.items():
            least, most, _ = atoms[value]
            if coefficient > 0:
                lo += coefficient * least
                hi += coefficient * most
            else:
                lo += coefficient * most
                hi += coefficient * least
        if not wide and (lo < INT_MIN or hi > INT_MAX):
            # Outside these the C expression overflows, which Emmy's CUDA leaves undefined.
            lo, hi = max(lo, INT_MIN), min(hi, INT_MAX)
            if lo > hi:
                lo, hi = INT_MIN, INT_MAX
        return lo, hi

    def add(self, a: Linear, b: Linear, factor: int = 1) -> Linear:
        """``a + factor * b``."""
        wide = a.wide or b.wide
        if not b.terms or factor == 0:
            return Linear(self, a.terms, a.constant + factor * b.constant, wide, None)
        if not a.terms and factor == 1:
            return Linear(self, b.terms, a.constant + b.constant, wide, None)
        if a.terms.keys().isdisjoint(b.terms):
            more = b.terms if factor == 1 else {value: factor * coefficient for value, coefficient in b.terms.items()}
            return Linear(self, a.terms | more, a.constant + factor * b.constant, wide, None)
        terms = dict(a.terms)
        _accumulate(terms, b.terms, factor)
        return Linear(self, terms, a.constant + factor * b.constant, wide, None)

    def weighted(self, entries: Sequence[Linear], weights: Sequence[int], wide: bool) -> Linear:
        """``sum(weight * entry)``, in 64 bits if an entry is or ``wide`` says so."""
        terms: dict[Value, int] = {}
        offset = 0
        for entry, weight in zip(entries, weights, strict=True):
            offset += weight * entry.constant
            wide = wide or entry.wide
            if not terms:
                terms = {value: weight * coefficient for value, coefficient in entry.terms.items()} if weight else {}
            elif entry.terms:
                _accumulate(terms, entry.terms, weight)
        return Linear(self, terms, offset, wide, None)

    def scale(self, a: Linear, factor: int, wide: bool = False) -> Linear:
        """``factor * a``, in 64 bits if ``a`` is or ``wide`` says so."""
        wide = wide or a.wide
        if factor == 0:
            return Linear(self, {}, 0, wide, None)
        if factor == 1 and wide == a.wide:
            return a
        return Linear(self, {v: c * factor for v, c in a.terms.items()}, a.constant * factor, wide, None)

    def split(self, a: Linear, divisor: int) -> tuple[Linear, Linear]:
        """``(q, r)`` with ``a = divisor * q + r``, every term of ``a`` in q that can be.

        The range of r is exact: where ``a`` fits its C type, r need not.
        """
        quotient, rest = divmod(a.constant, divisor)
        multiples: dict[Value, int] = {}
        others: dict[Value, int] = {}
        for value, coefficient in a.terms.items():
            if coefficient % divisor:
                others[value] = coefficient
            else:
                multiples[value] = coefficient // divisor
        exact = self.range_of(others, rest, True)
        return Linear(self, multiples, quotient, a.wide, None), Linear(self, others, rest, a.wide, exact)


def _accumulate(terms: dict[Value, int], more: dict[Value, int], factor: int) -> None:
    """Add ``factor * more`` to ``terms``."""
    for value, coefficient in more.items():
        total = terms.get(value, 0) + factor * coefficient
        if total:
            terms[value] = total
        else:
            terms.pop(value, None)


def common_factor(terms: Iterable[int], divisor: int) -> int:
    """The greatest common divisor of the coefficients and ``divisor``."""
    factor = divisor
    for coefficient in terms:
        factor = gcd(factor, coefficient)
    return factor
