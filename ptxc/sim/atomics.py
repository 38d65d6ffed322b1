"""Atomic operations (PTX ISA 9.7.15): ``atom`` and ``red``.

The threads of one instruction act one after the other, in ascending order; where several meet at one address, each
sees what those before it left.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ptxc.sim.access import Piece, resolve, writable
from ptxc.sim.binding import Action, Modifiers, Reader, reader, writer
from ptxc.sim.machine import Active, Machine
from ptxc.sim.movement import ORDERS, SCOPES, address_reader, space_of
from ptxc.sim.program import Instruction, Operand, Sink, Vector
from ptxc.sim.real import REAL
from ptxc.sim.rounding import flush
from ptxc.sim.scalar import Array, Index, PtxType

Combine = Callable[..., Array]

_OPERATIONS: dict[str, Combine] = {
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "exch": lambda old, b: b,
    "cas": lambda old, b, c: np.where(old == b, c, old),
    "add": np.add,
    "min": np.minimum,
    "max": np.maximum,
    "inc": lambda old, b: np.where(old >= b, np.zeros((), old.dtype), old + old.dtype.type(1)),
    "dec": lambda old, b: np.where((old == 0) | (old > b), b, old - old.dtype.type(1)),
}
_IN_PLACE = {"add": np.add, "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}
"""Operations that NumPy can do in place when nobody asks for the old values."""


@dataclass(frozen=True, slots=True)
class _Operation:
    """``combine`` gives the new value; ``in_place`` does the same where nobody asks for the old one.

    ``flushes`` says that global memory's unit flushes subnormal operands and results.
    """

    combine: Combine
    in_place: np.ufunc | None
    flushes: bool


def _combine(name: str, kind: PtxType, instruction: Instruction) -> Combine:
    """The operation of ``name`` on ``kind``: integers directly, floats as the instruction of that name does it."""
    if kind.is_integer or name in {"exch", "cas"}:
        return _OPERATIONS[name]
    plain = Instruction(instruction.line, name, (kind.name,), (Sink(),) * 3 if name != "fma" else (), instruction.guard)
    function = REAL[name](Modifiers(plain)).function

    def apply(old: Array, b: Array) -> Array:
        result = function(old, b)
        assert not isinstance(result, tuple)
        return result

    return apply


def _atomic(instruction: Instruction) -> Action:
    returns = instruction.opcode == "atom"
    m = Modifiers(instruction)
    address_operand = instruction.operands[1 if returns else 0]
    space = space_of(m, address_operand)
    name = m.choice(_OPERATIONS)
    m.skip(ORDERS | SCOPES | {"noftz", "L2::cache_hint"})
    count = int(m.choice(("v2", "v4", "v8"), "v1")[1:])
    kind = m.type()
    m.finish()
    if kind.bits == 128 and name != "exch":
        raise instruction.unsupported("128-bit compare-and-swap")
    address = address_reader(address_operand, instruction)
    operands = instruction.operands[2 if returns else 1 :]
    sources = [_vector(operand, kind, count, instruction) for operand in operands[: 2 if name == "cas" else 1]]
    targets = _parts(instruction.operands[0], count) if returns else ()
    writers = [writer(target, kind, instruction) for target in targets]
    ignored = all(isinstance(target, Sink) for target in targets)
    in_place = _IN_PLACE.get(name) if ignored and kind.is_integer else None
    operation = _Operation(_combine(name, kind, instruction), in_place, flushes=name == "add" and kind.name == "f32")

    def act(machine: Machine, active: Active) -> None:
        addresses = machine.compress(address(machine, active), active)
        if addresses.size == 1:
            addresses = np.repeat(addresses, active.index.size)
        for at in range(count):
            values = [_each(machine, active, reads[at]) for reads in sources]
            old = _apply(machine, active, space, addresses + at * kind.size, values, kind, operation)
            if writers:
                writers[at](machine, active, machine.expand(old, active))

    return act


def _parts(operand: Operand, count: int) -> tuple[Operand, ...]:
    return operand.elements if isinstance(operand, Vector) else (operand,) * count


def _vector(operand: Operand, kind: PtxType, count: int, instruction: Instruction) -> list[Reader]:
    return [reader(part, kind, instruction) for part in _parts(operand, count)]


def _each(m: Machine, active: Active, read: Reader) -> Array:
    values = m.compress(read(m, active), active)
    return np.repeat(values, active.index.size) if values.size == 1 else values


def _apply(
    m: Machine,
    active: Active,
    space: str,
    addresses: Array,
    values: list[Array],
    kind: PtxType,
    operation: _Operation,
) -> Array:
    """Do the operation at every address; the result is what each thread found there."""
    old = np.zeros(addresses.size, kind.dtype)
    pieces = resolve(m, active, space, addresses, kind.size, "atomic")
    if m.profile is not None:
        m.profile.access(m, active, pieces, kind.size)
    for piece in pieces:
        if not writable(m, piece):
            continue
        _checks(m, piece, kind.size)
        part = values if piece.where is None else [value[piece.where] for value in values]
        memory = piece.region.view(kind.size).view(kind.dtype)
        at = piece.offsets >> (kind.size.bit_length() - 1)
        if operation.in_place is not None:
            operation.in_place.at(memory, at, part[0])
            continue
        flushes = operation.flushes and piece.region.space == "global"
        found = _in_turn(memory, at, part, operation.combine, flushes)
        if piece.where is None:
            old = found
        else:
            old[piece.where] = found
    return old


def _in_turn(memory: Array, at: Index, values: list[Array], combine: Combine, flushes: bool) -> Array:
    """Operations on elements ``at`` of ``memory``: in round k those that are the k-th at their element."""
    found = np.zeros(at.size, memory.dtype)
    order = np.argsort(at, kind="stable")
    place = at[order]
    starts = np.flatnonzero(np.concatenate(([True], place[1:] != place[:-1])))
    lengths = np.diff(np.append(starts, at.size))
    turn = np.arange(at.size) - np.repeat(starts, lengths)
    by_turn = np.argsort(turn, kind="stable")
    bounds = np.append(np.flatnonzero(np.diff(turn[by_turn], prepend=-1)), at.size)
    for first, last in itertools.pairwise(bounds.tolist()):
        now = order[by_turn[first:last]]
        old = memory[at[now]]
        found[now] = old
        if flushes:
            memory[at[now]] = flush(combine(flush(old), flush(values[0][now])))
        else:
            memory[at[now]] = combine(old, *[value[now] for value in values])
    return found


def _checks(m: Machine, piece: Piece, size: int) -> None:
    if piece.region is m.shared:
        if m.checks.race is not None:
            m.checks.race.atomic(m, piece, size)
        if m.checks.init is not None:
            m.checks.init.shared_read(m, piece, size)
            m.checks.init.shared_written(piece.offsets, size)
    elif piece.region.space == "global" and m.checks.global_race is not None:
        m.checks.global_race.atomic(m, piece, size)


ATOMICS = {"atom": _atomic, "red": _atomic}
"""The atomic operations."""
