"""``cp.async``: copies to shared memory whose data arrives only when they are waited for (PTX ISA 9.7.10.28).

The source is read when the copy is issued and written when its thread waits for the group that it belongs to, which
is as late as hardware may be. A copy that no one waits for never arrives.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from ptxc.sim.access import Piece, load, resolve
from ptxc.sim.binding import Action, Modifiers, Reader, reader
from ptxc.sim.bulk import arrive_when_copied, bulk_copy
from ptxc.sim.machine import Active, Machine
from ptxc.sim.mbarrier import write_landed
from ptxc.sim.movement import address_reader
from ptxc.sim.program import Immediate, Instruction, Register
from ptxc.sim.scalar import TYPES, Array, Index, Mask, container

_HINTS = {"ca", "cg", "L2::cache_hint", "L2::64B", "L2::128B", "L2::256B"}


@dataclass(slots=True)
class _Copy:
    """One instruction's copies: ``values`` go to ``piece`` of shared memory; ``groups`` are their threads' groups.

    ``number`` counts the instructions.
    """

    piece: Piece
    values: Array
    groups: Array
    number: int


@dataclass(slots=True)
class CopyQueue:
    """The copies in flight, oldest first; ``committed`` counts each thread's groups, ``issued`` all instructions."""

    threads: int
    pending: list[_Copy] = field(default_factory=list)
    issued: int = 0
    committed: Array = field(default_factory=lambda: np.zeros(0, np.int32))

    def __post_init__(self) -> None:
        self.committed = np.zeros(self.threads, np.int32)

    def issue(self, m: Machine, piece: Piece, values: Array) -> None:
        """Start copying ``values`` (of a container type) to ``piece``."""
        if m.checks.race is not None:
            m.checks.race.async_issued(m, piece, values.dtype.itemsize)
        self.pending.append(_Copy(piece, values, self.committed[piece.slots], self.issued))
        self.issued += 1

    def commit(self, active: Active) -> None:
        """Close the current group of the ``active`` threads."""
        self.committed[active.index] += 1

    def wait(self, m: Machine, active: Active, allowed: int | None, before: int | None = None) -> None:
        """Finish all but the ``allowed`` youngest groups of the ``active`` threads; None: everything issued.

        ``before`` leaves out what was issued since ``issued`` had that value.
        """
        waits = np.zeros(self.threads, np.bool_)
        waits[active.index] = True
        left: list[_Copy] = []
        for copy in self.pending:
            done = waits[copy.piece.slots]
            if before is not None and copy.number >= before:
                done = np.zeros_like(done)
            if allowed is not None:
                done = done & (copy.groups < self.committed[copy.piece.slots] - allowed)
            if done.all():
                write_landed(m, copy.piece, copy.values)
            elif done.any():
                write_landed(m, _part(copy.piece, done), copy.values[done])
                rest = ~done
                left.append(_Copy(_part(copy.piece, rest), copy.values[rest], copy.groups[rest], copy.number))
            else:
                left.append(copy)
        self.pending = left


def _part(piece: Piece, chosen: Mask) -> Piece:
    return Piece(piece.region, piece.offsets[chosen], None, piece.slots[chosen])


def _copy_async(instruction: Instruction) -> Action:
    m = Modifiers(instruction)
    m.choice(("async",))
    bulk_group = "bulk" in m.left and not {"commit_group", "wait_group"}.isdisjoint(m.left)
    if bulk_group:
        raise instruction.unsupported("groups of bulk copies")
    if m.flag("commit_group"):
        return lambda machine, active: machine.copies.commit(active)
    if m.flag("wait_all"):
        return lambda machine, active: machine.copies.wait(machine, active, None)
    if m.flag("wait_group"):
        return _wait_group(instruction)
    if m.flag("bulk"):
        return bulk_copy(instruction, m)
    if m.flag("mbarrier"):
        return arrive_when_copied(instruction, m)
    m.skip(_HINTS)
    m.choice(("shared", "shared::cta"))
    m.choice(("global",))
    m.finish()
    return _start_copy(instruction)


def _wait_group(instruction: Instruction) -> Action:
    count = instruction.operands[0]
    if not isinstance(count, Immediate):
        raise instruction.wrong("the number of groups is a constant")
    return lambda m, active: m.copies.wait(m, active, count.value)


def _start_copy(instruction: Instruction) -> Action:
    target = address_reader(instruction.operands[0], instruction)
    source = address_reader(instruction.operands[1], instruction)
    size = instruction.operands[2]
    if not isinstance(size, Immediate) or size.value not in {4, 8, 16}:
        raise instruction.wrong("cp.async copies 4, 8 or 16 bytes")
    width = size.value
    valid = _valid_bytes(instruction, width)

    def act(m: Machine, active: Active) -> None:
        sources = m.compress(source(m, active), active)
        targets = m.compress(target(m, active), active)
        count = active.index.size
        if sources.size == 1:
            sources = np.repeat(sources, count)
        if valid is None:
            values = load(m, active, "global", sources, width)
        else:
            amounts = np.broadcast_to(m.compress(valid(m, active), active), (count,))
            values = _load_partly(m, active, sources, amounts, width)
        pieces = resolve(m, active, "shared", targets, width, "cp.async to")
        if m.profile is not None:
            m.profile.access(m, active, pieces, width)
        for piece in pieces:
            m.copies.issue(m, piece, values if piece.where is None else values[piece.where])

    return act


def _valid_bytes(instruction: Instruction, width: int) -> Reader | None:
    """How many bytes are copied, the rest being zero: ``src-size``, or ``ignore-src`` as all or nothing."""
    operands = len(instruction.operands) - ("L2::cache_hint" in instruction.modifiers)
    if operands < 4:
        return None
    operand = instruction.operands[3]
    if isinstance(operand, Register) and operand.type.kind == "pred":
        ignored = reader(operand, TYPES["pred"], instruction)
        return lambda m, active: np.where(ignored(m, active), np.uint32(0), np.uint32(width))
    return reader(operand, TYPES["u32"], instruction)


def _load_partly(m: Machine, active: Active, sources: Array, amounts: Array, width: int) -> Array:
    """The first ``amounts`` bytes at ``sources``, filled up with zeros; nothing beyond them is read."""
    values = np.zeros(sources.size, container(width))
    too_many = amounts > width
    if too_many.any():
        m.report("memory", "src-size", f"src-size exceeds the {width} bytes of the copy", active.index[too_many])
    for amount in np.unique(np.minimum(amounts, width)).tolist():
        where: Index = np.flatnonzero(np.minimum(amounts, width) == amount)
        octets = np.zeros((where.size, width), np.uint8)
        chosen = Active(active.index[where], False)
        unit = amount & -amount
        for at in range(0, amount, unit or 1):
            part = load(m, chosen, "global", sources[where] + at, unit)
            octets[:, at : at + unit] = part.view(np.uint8).reshape(-1, unit)
        values[where] = octets.reshape(-1).view(container(width))
    return values


COPIES = {"cp": _copy_async}
"""The asynchronous copies."""
