"""The syntax tree of a PTX module: what the text says, before names are resolved.

One instruction keeps its opcode and modifiers split at the dots, its operands as small trees, and its line, which
every error and finding names. Scopes nest as the braces do, because inline assembly repeats the names of registers
and labels in its own braces.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Name:
    """An identifier: a register, a special register, a variable, a label, a function, or the sink ``_``."""

    text: str


@dataclass(frozen=True, slots=True)
class Number:
    """A literal. ``bits`` is 0 for an integer, 32 or 64 where ``value`` is the exact pattern of a float."""

    value: int
    bits: int = 0


@dataclass(frozen=True, slots=True)
class Vector:
    """``{a, b, ...}``."""

    elements: tuple[Operand, ...]


@dataclass(frozen=True, slots=True)
class Address:
    """``[base + offset]``; ``base`` is None for an absolute address; ``index`` is the second part of ``[a, {..}]``."""

    base: Name | None
    offset: int
    index: tuple[Operand, ...] = ()


@dataclass(frozen=True, slots=True)
class Negated:
    """``!p``, and ``-%r`` is not PTX: only predicates are negated."""

    operand: Name


@dataclass(frozen=True, slots=True)
class Pair:
    """``d|p``: the two destinations of ``shfl``, ``setp``, ``match`` and ``elect``."""

    first: Operand
    second: Operand


@dataclass(frozen=True, slots=True)
class SymbolOffset:
    """``symbol + constant`` where an instruction takes the address of a variable."""

    symbol: Name
    offset: int


@dataclass(frozen=True, slots=True)
class Arguments:
    """``(a, b)`` of a call."""

    elements: tuple[Operand, ...]


Operand = Name | Number | Vector | Address | Negated | Pair | SymbolOffset | Arguments


@dataclass(frozen=True, slots=True)
class Guard:
    """``@p`` or ``@!p``."""

    name: str
    negated: bool


@dataclass(frozen=True, slots=True)
class Instruction:
    """One statement: ``@guard opcode.modifiers operands;``."""

    line: int
    opcode: str
    modifiers: tuple[str, ...]
    operands: tuple[Operand, ...]
    guard: Guard | None = None

    @property
    def spelling(self) -> str:
        """The opcode with its modifiers, as written."""
        return ".".join((self.opcode, *self.modifiers))


@dataclass(frozen=True, slots=True)
class Label:
    """``name:``."""

    name: str
    line: int


@dataclass(frozen=True, slots=True)
class Registers:
    """``.reg .type name<count>;`` declares ``name0`` ... ; without a count, ``name`` itself (``count`` is None)."""

    type: str
    vector: int
    name: str
    count: int | None


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable or parameter in a state space.

    ``count`` is the number of elements, None for an array of unknown size (``extern .shared x[]``); ``initial`` holds
    numbers and symbols, one an element, and may be shorter than ``count``.
    """

    space: str
    type: str
    name: str
    count: int | None
    align: int
    initial: tuple[Operand, ...] = ()
    line: int = 0
    pointer: bool = False


@dataclass(frozen=True, slots=True)
class LabelList:
    """``name: .branchtargets l0, l1;`` or ``.calltargets``."""

    name: str
    targets: tuple[str, ...]


@dataclass(slots=True)
class Scope:
    """The statements between two braces, in order."""

    items: list[Item] = field(default_factory=list)


Item = Instruction | Label | Registers | Variable | LabelList | Scope


@dataclass(slots=True)
class Function:
    """An ``.entry`` or a ``.func``; ``body`` is None for a declaration. ``limits`` holds ``maxntid`` and its kin."""

    name: str
    entry: bool
    returns: list[Variable | Registers]
    parameters: list[Variable | Registers]
    body: Scope | None
    line: int
    limits: dict[str, tuple[int, ...]] = field(default_factory=dict)


@dataclass(slots=True)
class Module:
    """One PTX text."""

    version: str
    target: str
    variables: list[Variable]
    functions: dict[str, Function]
    aliases: dict[str, str] = field(default_factory=dict)
