"""Instruction -> closure: how operands are read and written, once decided when a kernel is loaded.

``reader`` and ``writer`` turn an operand into a function of the machine and the active threads. ``bind_pure`` joins
them around a function of NumPy arrays, which is all that an arithmetic instruction is.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np

from ptxc.sim.machine import Active, Machine
from ptxc.sim.parser import decode_float
from ptxc.sim.program import CARRY, Immediate, Instruction, Negated, Operand, Pair, Register, Sink, Special
from ptxc.sim.scalar import TYPES, Array, PtxType, resize

Action = Callable[[Machine, Active], None]
Reader = Callable[[Machine, Active], Array]
Writer = Callable[[Machine, Active, Array], None]


@dataclass(frozen=True, slots=True)
class Pure:
    """An instruction that is a function of its source operands.

    ``function`` takes one array a source, of the dtype of the source's type and with one element or one a thread,
    and returns the result, or a tuple where there are several ``results``. ``relaxed`` lets registers be wider than
    the types (PTX ISA 9.4.1). ``carry_in`` and ``carry_out`` append the carry flag to the sources and results.
    """

    results: tuple[PtxType, ...]
    sources: tuple[PtxType, ...]
    function: Callable[..., Array | tuple[Array, ...]]
    relaxed: bool = False
    carry_in: bool = False
    carry_out: bool = False


@dataclass(slots=True)
class Modifiers:
    """The modifiers of an instruction, taken one by one; what nobody takes is an error, never ignored."""

    instruction: Instruction
    left: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.left = list(self.instruction.modifiers)

    def flag(self, name: str) -> bool:
        """Whether ``name`` is given."""
        if name in self.left:
            self.left.remove(name)
            return True
        return False

    def choice(self, names: Iterable[str], default: str | None = None) -> str:
        """The first modifier that is one of ``names``; without one, ``default``, and UnsupportedError if None."""
        for name in self.left:
            if name in names:
                self.left.remove(name)
                return name
        if default is None:
            raise self.instruction.unsupported(f"this form; one of {', '.join(sorted(names))} is expected")
        return default

    def skip(self, names: Iterable[str]) -> None:
        """Take hints that change no result."""
        self.left = [name for name in self.left if name not in names]

    def types(self) -> list[PtxType]:
        """All modifiers that are types, in order."""
        found = [TYPES[name] for name in self.left if name in TYPES]
        self.left = [name for name in self.left if name not in TYPES]
        return found

    def type(self, allowed: str = "") -> PtxType:
        """The only type; ``allowed`` are the type's possible kinds or names, separated by blanks, any if empty."""
        found = self.types()
        if len(found) != 1:
            raise self.instruction.unsupported("this form; one type is expected")
        if allowed and found[0].kind not in allowed.split() and found[0].name not in allowed.split():
            raise self.instruction.unsupported(f"type .{found[0].name}")
        return found[0]

    def finish(self) -> None:
        """Raise UnsupportedError if a modifier is left."""
        if self.left:
            raise self.instruction.unsupported(f"modifier .{self.left[0]}")


def immediate(operand: Immediate, kind: PtxType) -> Array:
    """A constant as ``kind`` holds it, one element (PTX ISA 4.5)."""
    if kind.kind == "pred":
        return np.array([operand.value != 0])
    mask = (1 << kind.bits) - 1
    if kind.kind == "f" and kind.bits >= 32:
        value = decode_float(operand.value, operand.bits) if operand.bits else float(operand.value)
        if operand.bits == 64 or not operand.bits:
            return np.array([value]).astype(kind.dtype)
        return np.array([operand.value], np.uint32).view(np.float32).astype(kind.dtype)
    pattern = operand.value
    if operand.bits == 64 and kind.bits == 32:
        # A decimal constant where 32 untyped bits are asked for is a single-precision one.
        pattern = struct.unpack("<I", struct.pack("<f", decode_float(operand.value, 64)))[0]
    return np.array([pattern & mask], f"u{kind.size}").view(kind.dtype)


def reader(operand: Operand, kind: PtxType, instruction: Instruction, *, relaxed: bool = False) -> Reader:
    """How ``operand`` is read as ``kind``: one element, or one a thread as ``Active`` says."""
    if isinstance(operand, Immediate):
        value = immediate(operand, kind)
        return lambda m, active: value
    if isinstance(operand, Special):
        return _special_reader(operand, kind)
    if isinstance(operand, Negated):
        inner = reader(operand.register, kind, instruction)
        return lambda m, active: ~inner(m, active)
    if not isinstance(operand, Register):
        raise instruction.wrong(f"a register or a constant is expected as .{kind.name}")
    _check_width(operand, kind, instruction, relaxed)
    return _register_reader(operand, kind)


def _check_width(register: Register, kind: PtxType, instruction: Instruction, relaxed: bool) -> None:
    have, want = register.type, kind
    fits = have.bits == want.bits or (relaxed and have.bits > want.bits and have.kind != "pred")
    if not fits or (have.kind == "pred") != (want.kind == "pred"):
        raise instruction.wrong(f"register {register.name} is .{have.name}, the instruction wants .{want.name}")


def _register_reader(register: Register, kind: PtxType) -> Reader:
    index, dtype, size = register.index, kind.dtype, kind.size
    narrow = register.type.size != size

    def read(m: Machine, active: Active) -> Array:
        values = m.registers[index]
        if index in m.watched:
            m.products.touched(m, index, active, writing=False)
        if values is None:
            values = m.undefined(index, active)
        elif m.checks.init is not None:
            m.checks.init.register_read(m, register, active)
        if narrow:
            values = resize(values, size, signed=False)
        if values.dtype is not dtype:
            values = values.view(dtype)
        return values if active.full or values.size == 1 else values.take(active.index)

    return read


def _special_reader(operand: Special, kind: PtxType) -> Reader:
    def read(m: Machine, active: Active) -> Array:
        values = m.special(operand.name)
        if values.dtype.itemsize != kind.size:
            values = resize(values, kind.size, signed=False)
        values = values.view(kind.dtype)
        return values if active.full or values.size == 1 else values.take(active.index)

    return read


def writer(operand: Operand, kind: PtxType, instruction: Instruction, *, relaxed: bool = False) -> Writer:
    """How a result of ``kind`` is written to ``operand``; a wider register is filled up by ``kind``'s sign."""
    if isinstance(operand, Sink):
        return lambda m, active, values: None
    if not isinstance(operand, Register):
        raise instruction.wrong("a register is expected as destination")
    _check_width(operand, kind, instruction, relaxed)
    index, size, signed = operand.index, operand.type.size, kind.kind == "s"
    if size == kind.size:
        return lambda m, active, values: m.write(index, values, active)
    return lambda m, active, values: m.write(index, resize(values, size, signed=signed), active)


def bind_pure(instruction: Instruction, pure: Pure) -> Action:
    """The action of an instruction that is ``pure``."""
    operands = [part for operand in instruction.operands for part in _split_pair(operand)]
    count = len(pure.results) + len(pure.sources)
    if len(operands) != count:
        raise instruction.wrong(f"{count} operands are expected, {len(operands)} given")
    relaxed = pure.relaxed
    writers = [
        writer(operand, kind, instruction, relaxed=relaxed)
        for operand, kind in zip(operands, pure.results, strict=False)
    ]
    readers = [
        reader(operand, kind, instruction, relaxed=relaxed)
        for operand, kind in zip(operands[len(writers) :], pure.sources, strict=True)
    ]
    if pure.carry_in:
        readers.append(reader(CARRY, TYPES["pred"], instruction))
    if pure.carry_out:
        writers.append(writer(CARRY, TYPES["pred"], instruction))
    function = pure.function
    if len(writers) == 1:
        return _single_result(function, writers[0], readers)

    def act(m: Machine, active: Active) -> None:
        results = function(*[read(m, active) for read in readers])
        for write, values in zip(writers, results, strict=True):
            write(m, active, values)

    return act


def _split_pair(operand: Operand) -> tuple[Operand, ...]:
    return (operand.first, operand.second) if isinstance(operand, Pair) else (operand,)


def _single_result(function: Callable[..., Array | tuple[Array, ...]], write: Writer, readers: list[Reader]) -> Action:
    if len(readers) == 2:
        first, second = readers

        def act_two(m: Machine, active: Active) -> None:
            write(m, active, function(first(m, active), second(m, active)))  # type: ignore[arg-type]

        return act_two

    def act(m: Machine, active: Active) -> None:
        write(m, active, function(*[read(m, active) for read in readers]))  # type: ignore[arg-type]

    return act


def guarded(action: Action, guard: Register | Negated | None, instruction: Instruction) -> Action:
    """``action`` for those threads only in which ``guard`` holds."""
    if guard is None:
        return action
    condition = reader(guard, TYPES["pred"], instruction)

    def act(m: Machine, active: Active) -> None:
        chosen = m.select(active, condition(m, active))
        if m.profile is not None:
            m.profile.predicated_off(instruction, active.index.size - (chosen.index.size if chosen is not None else 0))
        if chosen is not None:
            action(m, chosen)

    return act
