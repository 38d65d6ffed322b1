"""Moving data (PTX ISA 9.7.10): ``mov``, ``ld``, ``st``, ``cvta``, ``isspacep``, and the hints that move nothing."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ptxc.sim.access import aligned, load, store
from ptxc.sim.binding import Action, Modifiers, Pure, Reader, bind_pure, reader, writer
from ptxc.sim.machine import Active, Machine
from ptxc.sim.program import WINDOW_SIZE, WINDOWS, Instruction, Memory, Operand, Vector
from ptxc.sim.scalar import TYPES, Array, Mask, PtxType, container

SPACES = {
    "global": "global", "const": "const", "local": "local", "shared": "shared", "shared::cta": "shared",
    "param": "param", "param::entry": "param", "param::func": "local",
}  # fmt: skip
"""The space that a modifier names."""

_CACHE_HINTS = {
    "ca", "cg", "cs", "lu", "cv", "wb", "wt", "weak", "unified", "nc",
    "L1::evict_normal", "L1::evict_unchanged", "L1::evict_first", "L1::evict_last", "L1::no_allocate",
    "L2::evict_normal", "L2::evict_first", "L2::evict_last", "L2::cache_hint", "L2::64B", "L2::128B", "L2::256B",
}  # fmt: skip
SCOPES = {"cta", "cluster", "gpu", "sys"}
ORDERS = {"volatile", "relaxed", "acquire", "release", "acq_rel", "mmio"}


def address_reader(operand: Operand, instruction: Instruction) -> Reader:
    """The addresses that ``[base + offset]`` names, as int64: one, or one a thread; a 32-bit sum wraps around."""
    if not isinstance(operand, Memory) or operand.index:
        raise instruction.wrong("an address is expected")
    if operand.base is None:
        constant = np.array([operand.offset], np.int64)
        return lambda m, active: constant
    kind = TYPES["u64" if operand.base.type.bits == 64 else "u32"]
    read = reader(operand.base, kind, instruction)
    if kind.bits == 64:
        wide = np.int64(operand.offset)
        return lambda m, active: read(m, active).view(np.int64) + wide
    short = np.uint32(operand.offset & 0xFFFFFFFF)
    return lambda m, active: (read(m, active) + short).astype(np.int64)


def space_of(m: Modifiers, operand: Operand) -> str:
    """The space that a memory instruction accesses: its modifier, or empty for generic addressing.

    A parameter of an inlined call lives in local memory, whatever the modifier says.
    """
    given = SPACES[m.choice(SPACES, "")] if any(name in SPACES for name in m.left) else ""
    named = operand.space if isinstance(operand, Memory) else ""
    return "local" if given == "param" and named == "local" else given or named


def _elements(operand: Operand, count: int, instruction: Instruction) -> tuple[Operand, ...]:
    if count == 1 and not isinstance(operand, Vector):
        return (operand,)
    if not isinstance(operand, Vector) or len(operand.elements) != count:
        raise instruction.wrong(f"a vector of {count} is expected")
    return operand.elements


def _memory_form(m: Modifiers) -> tuple[str, int, PtxType, bool]:
    """Space, vector length, type, and whether ``.nc`` is given."""
    operand = next(o for o in m.instruction.operands if isinstance(o, Memory))
    read_only = m.flag("nc")
    space = space_of(m, operand)
    m.skip(_CACHE_HINTS | SCOPES | ORDERS)
    count = int(m.choice(("v2", "v4", "v8"), "v1")[1:])
    kind = m.type()
    m.finish()
    return space, count, kind, read_only


def _load(instruction: Instruction) -> Action:
    space, count, kind, read_only = _memory_form(Modifiers(instruction))
    address = address_reader(instruction.operands[1], instruction)
    targets = [
        writer(operand, kind, instruction, relaxed=True)
        for operand in _elements(instruction.operands[0], count, instruction)
    ]
    size = kind.size * count

    def act(m: Machine, active: Active) -> None:
        addresses = m.compress(address(m, active), active)
        if read_only and m.checks.memory:
            _note_read_only(m, addresses)
        if count == 1:
            loaded = load(m, active, space, addresses, size)
            targets[0](m, active, m.expand(loaded.view(kind.dtype), active))
            return
        for write, column in zip(targets, _load_vector(m, active, space, addresses, kind, count), strict=True):
            write(m, active, m.expand(column, active))

    return act


def _load_vector(m: Machine, active: Active, space: str, addresses: Array, kind: PtxType, count: int) -> list[Array]:
    """The elements of a vector load, one array each; the whole vector must be aligned."""
    parts = []
    per_part = _align_vector(m, active, space, addresses, kind, count, "load")
    for start in range(0, count, per_part):
        place = addresses + start * kind.size
        rows = load(m, active, space, place, kind.size * per_part).view(kind.dtype).reshape(-1, per_part)
        parts += [np.ascontiguousarray(rows[:, at]) for at in range(per_part)]
    return parts


def _align_vector(
    m: Machine, active: Active, space: str, addresses: Array, kind: PtxType, count: int, what: str
) -> int:
    """How many elements are accessed at once: up to 16 bytes. A longer vector's alignment is checked here."""
    if kind.size * count > 16:
        slots = active.index if addresses.size > 1 else active.index[:1]
        aligned(m, space, addresses, slots, kind.size * count, what)
    return min(count, 16 // kind.size)


def _note_read_only(m: Machine, addresses: Array) -> None:
    region = m.memory.find(int(addresses[0])) if addresses.size else None
    if region is not None and m.instruction is not None:
        m.read_only.setdefault(region, m.instruction)


def _store(instruction: Instruction) -> Action:
    space, count, kind, _ = _memory_form(Modifiers(instruction))
    address = address_reader(instruction.operands[0], instruction)
    sources = [
        reader(operand, kind, instruction, relaxed=True)
        for operand in _elements(instruction.operands[1], count, instruction)
    ]

    def act(m: Machine, active: Active) -> None:
        addresses = m.compress(address(m, active), active)
        values = [m.compress(read(m, active), active) for read in sources]
        if addresses.size == 1:
            addresses = np.repeat(addresses, active.index.size)
        if count == 1:
            store(m, active, space, addresses, values[0].view(container(kind.size)))
            return
        per_part = _align_vector(m, active, space, addresses, kind, count, "store")
        for start in range(0, count, per_part):
            rows = np.empty((active.index.size, per_part), kind.dtype)
            for at in range(per_part):
                rows[:, at] = values[start + at]
            packed = rows.reshape(-1).view(container(kind.size * per_part))
            store(m, active, space, addresses + start * kind.size, packed)

    return act


# mov


def _move(instruction: Instruction) -> Action:
    m = Modifiers(instruction)
    kind = m.type()
    m.finish()
    if len(instruction.operands) != 2:
        raise instruction.wrong("mov has two operands")
    target, source = instruction.operands
    if isinstance(target, Vector) and isinstance(source, Vector):
        pairs = zip(target.elements, source.elements, strict=True)
        moves = [bind_pure(_with_operands(instruction, pair), _copy(kind)) for pair in pairs]

        def act(machine: Machine, active: Active) -> None:
            for move in moves:
                move(machine, active)

        return act
    if isinstance(source, Vector):
        return _pack(instruction, kind, target, source)
    if isinstance(target, Vector):
        return _unpack(instruction, kind, target, source)
    return bind_pure(instruction, _copy(kind))


def _copy(kind: PtxType) -> Pure:
    return Pure((kind,), (kind,), lambda a: a)


def _with_operands(instruction: Instruction, operands: tuple[Operand, ...]) -> Instruction:
    return Instruction(instruction.line, instruction.opcode, instruction.modifiers, operands, instruction.guard)


def _part_type(kind: PtxType, count: int, instruction: Instruction) -> PtxType:
    part = TYPES.get(f"b{kind.bits // count}")
    if part is None:
        raise instruction.wrong(f"{count} elements do not make .{kind.name}")
    return part


def _pack(instruction: Instruction, kind: PtxType, target: Operand, source: Vector) -> Action:
    """``mov.b64 d, {lo, hi}``: the first element is the lowest."""
    count = len(source.elements)
    part = _part_type(kind, count, instruction)
    readers = [reader(element, part, instruction) for element in source.elements]
    write = writer(target, kind, instruction)

    def act(m: Machine, active: Active) -> None:
        values = [read(m, active) for read in readers]
        length = max(value.size for value in values)
        rows = np.empty((length, count), part.dtype)
        for at, value in enumerate(values):
            rows[:, at] = value
        write(m, active, rows.reshape(-1).view(kind.dtype))

    return act


def _unpack(instruction: Instruction, kind: PtxType, target: Vector, source: Operand) -> Action:
    count = len(target.elements)
    part = _part_type(kind, count, instruction)
    read = reader(source, kind, instruction)
    writers = [writer(element, part, instruction) for element in target.elements]

    def act(m: Machine, active: Active) -> None:
        rows = np.ascontiguousarray(read(m, active)).view(part.dtype).reshape(-1, count)
        for at, write in enumerate(writers):
            write(m, active, np.ascontiguousarray(rows[:, at]))

    return act


# Addresses


def _convert_address(instruction: Instruction) -> Action:
    """``cvta``: generic from a space's address, or with ``.to`` the other way."""
    m = Modifiers(instruction)
    to_space = m.flag("to")
    space = SPACES[m.choice(SPACES)]
    kind = m.type("u32 u64")
    m.finish()
    window = np.array([WINDOWS.get(space, 0) if kind.bits == 64 else 0], kind.dtype)
    source = instruction.operands[1]
    if isinstance(source, Memory):
        raise instruction.wrong("cvta takes a register or a variable")
    function: Callable[[Array], Array] = (lambda a: a - window) if to_space else (lambda a: a + window)
    return bind_pure(instruction, Pure((kind,), (kind,), function))


def _is_space(instruction: Instruction) -> Action:
    m = Modifiers(instruction)
    space = SPACES[m.choice(SPACES)]
    m.finish()
    names = ["", *WINDOWS]

    def test(a: Array) -> Array:
        window = a // np.uint64(WINDOW_SIZE)
        inside: Mask = window == names.index(space) if space in WINDOWS else window > len(WINDOWS)
        return inside

    return bind_pure(instruction, Pure((TYPES["pred"],), (TYPES["u64"],), test))


def nothing(instruction: Instruction) -> Action:
    """An instruction that changes nothing that a program can see."""
    return lambda m, active: None


def _create_policy(instruction: Instruction) -> Action:
    """A cache policy is a hint: any value does."""
    write = writer(instruction.operands[0], TYPES["b64"], instruction)
    return lambda m, active: write(m, active, np.zeros(1, np.uint64))


MOVEMENT: dict[str, Callable[[Instruction], Action]] = {
    "mov": _move,
    "ld": _load,
    "ldu": _load,
    "st": _store,
    "cvta": _convert_address,
    "isspacep": _is_space,
    "prefetch": nothing,
    "prefetchu": nothing,
    "discard": nothing,
    "applypriority": nothing,
    "createpolicy": _create_policy,
}
"""Opcodes that move data."""
