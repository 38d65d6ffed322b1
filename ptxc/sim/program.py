"""The linked program of one entry: every name resolved, every call inlined, ready to be bound to NumPy functions.

Registers are numbers into one register file, variables are addresses in their state space, labels know the
instruction that they stand before. Addresses of the spaces other than global are offsets from zero; a generic
address adds the space's window (``WINDOWS``).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ptxc.errors import InputError, UnsupportedError
from ptxc.sim.scalar import TYPES, PtxType

WINDOWS: dict[str, int] = {"shared": 1 << 40, "local": 2 << 40, "param": 3 << 40, "function": 4 << 40}
"""Where each space lies among the generic addresses; global and const addresses are generic already."""

WINDOW_SIZE = 1 << 40


@dataclass(frozen=True, slots=True)
class Register:
    """One register, by its number in the register file."""

    index: int
    type: PtxType
    name: str


CARRY = Register(0, TYPES["pred"], "CC.CF")
"""The carry flag: register 0 of every program (PTX ISA 9.7.2)."""


@dataclass(frozen=True, slots=True)
class Immediate:
    """A constant: an integer, or the exact pattern of a float of ``bits`` bits."""

    value: int
    bits: int = 0


@dataclass(frozen=True, slots=True)
class Special:
    """A special register, named without its percent sign."""

    name: str


@dataclass(frozen=True, slots=True)
class Memory:
    """``[base + offset]``; ``space`` is the space of the variable that it names, empty where ``base`` is a register."""

    base: Register | None
    offset: int
    space: str
    index: tuple[Operand, ...] = ()


@dataclass(frozen=True, slots=True)
class Negated:
    """The complement of a predicate."""

    register: Register


@dataclass(frozen=True, slots=True)
class Vector:
    """A vector operand."""

    elements: tuple[Operand, ...]


@dataclass(frozen=True, slots=True)
class Pair:
    """Two destinations, ``d|p``."""

    first: Operand
    second: Operand


@dataclass(frozen=True, slots=True)
class Sink:
    """``_``: a destination that is thrown away."""


@dataclass(slots=True, eq=False)
class Label:
    """A place in the program; ``index`` is the instruction that follows, -1 until it is placed."""

    name: str
    index: int = -1


@dataclass(frozen=True, slots=True)
class LabelTable:
    """The targets of a ``brx.idx``."""

    labels: tuple[Label, ...]


Operand = Register | Immediate | Special | Memory | Negated | Vector | Pair | Sink | Label | LabelTable


@dataclass(frozen=True, slots=True)
class Instruction:
    """One resolved instruction. ``guard`` is a predicate and whether its complement is meant."""

    line: int
    opcode: str
    modifiers: tuple[str, ...]
    operands: tuple[Operand, ...]
    guard: Register | Negated | None = None

    @property
    def spelling(self) -> str:
        """The opcode with its modifiers, as written."""
        return ".".join((self.opcode, *self.modifiers))

    def unsupported(self, what: str) -> UnsupportedError:
        """The error that ``what`` of this instruction is not executed."""
        return UnsupportedError(f"the CPU device does not execute {what}", statement=self.place)

    def wrong(self, what: str) -> InputError:
        """The error that this instruction is not PTX."""
        return InputError(what, statement=self.place)

    @property
    def place(self) -> str:
        """``PTX line N: opcode``, for errors and findings."""
        return f"PTX line {self.line}: {self.spelling}"


@dataclass(frozen=True, slots=True)
class Extent:
    """The bytes ``start`` to ``end`` of a variable in its space."""

    name: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Parameter:
    """An entry's parameter: ``size`` bytes at ``offset`` of the parameter bank; ``array`` if declared as one."""

    name: str
    type: PtxType
    offset: int
    size: int
    array: bool


@dataclass(slots=True)
class Program:
    """What one entry executes."""

    name: str
    instructions: list[Instruction] = field(default_factory=list)
    registers: list[Register] = field(default_factory=lambda: [CARRY])
    parameters: list[Parameter] = field(default_factory=list)
    shared: list[Extent] = field(default_factory=list)
    dynamic_shared: int = 0
    local: list[Extent] = field(default_factory=list)
    limits: dict[str, tuple[int, ...]] = field(default_factory=dict)
