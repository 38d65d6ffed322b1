"""The ``mbarrier`` instructions and ``mapa`` (PTX ISA 9.7.15.16): init, inval, arrive, expect_tx, waits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ptxc.sim.binding import Action, Modifiers, Pure, Reader, Writer, bind_pure, reader, writer
from ptxc.sim.machine import Active, Machine
from ptxc.sim.mbarrier import Target
from ptxc.sim.movement import ORDERS, SCOPES, address_reader
from ptxc.sim.program import Immediate, Instruction, Memory, Operand, Sink
from ptxc.sim.scalar import TYPES, Array

WAITS = ("test_wait", "try_wait")
_SHARED = {"shared": "shared", "shared::cta": "shared", "shared::cluster": "shared"}


@dataclass(frozen=True, slots=True, eq=False)
class PhaseWait:
    """``test_wait`` or ``try_wait``: ``wanted`` is a parity or a state token, ``write`` sets whether it is over."""

    instruction: Instruction
    address: Reader
    space: str
    wanted: Reader
    parity: bool
    write: Writer


def space_in(m: Modifiers, operand: Operand) -> str:
    """The space of an mbarrier's address: shared, or empty for a generic one. A cluster is this CTA alone."""
    given = _SHARED[m.choice(_SHARED, "")] if any(name in _SHARED for name in m.left) else ""
    return given or (operand.space if isinstance(operand, Memory) else "")


def phase_wait(instruction: Instruction) -> PhaseWait:
    """The wait of an instruction that is one."""
    m = Modifiers(instruction)
    m.choice(WAITS)
    parity = m.flag("parity")
    m.skip(ORDERS | SCOPES)
    target, address, wanted, *_ = instruction.operands
    space = space_in(m, address)
    m.type("b64")
    m.finish()
    kind = TYPES["u32" if parity else "u64"]
    return PhaseWait(
        instruction, address_reader(address, instruction), space, reader(wanted, kind, instruction), parity,
        writer(target, TYPES["pred"], instruction),
    )  # fmt: skip


def per_thread(m: Machine, active: Active, read: Reader) -> Array:
    """An operand with one element for each active thread."""
    return np.broadcast_to(m.compress(read(m, active), active), active.index.shape)


def _constant(value: int) -> Reader:
    values = np.array([value], np.uint32)
    return lambda m, active: values


_Change = Callable[[Machine, Target, Array], None]


def _each(instruction: Instruction, m: Modifiers, change: _Change, *, fresh: bool = False) -> Action:
    """``change`` every mbarrier that threads name, with the operand behind its address (1 if there is none)."""
    address, *rest = instruction.operands
    space = space_in(m, address)
    m.type("b64")
    m.finish()
    read_address = address_reader(address, instruction)
    read = reader(rest[0], TYPES["u32"], instruction) if rest else _constant(1)

    def act(machine: Machine, active: Active) -> None:
        values = per_thread(machine, active, read).astype(np.int64)
        addresses = machine.compress(read_address(machine, active), active)
        for target in machine.mbarriers.find(machine, active, space, addresses, instruction, fresh=fresh):
            change(machine, target, values[target.where])

    return act


def _invalidate(machine: Machine, target: Target, values: Array) -> None:
    target.object.valid[target.ctas] = False


def _arrive(instruction: Instruction, m: Modifiers, drop: bool) -> Action:
    expects = m.flag("expect_tx")
    if m.flag("noComplete"):
        raise instruction.unsupported("modifier .noComplete")
    m.skip(ORDERS | SCOPES)
    state, address, *rest = instruction.operands
    if not isinstance(address, Memory):
        # Without a destination: the form for other CTAs of a cluster.
        state, address, rest = Sink(), state, [address, *rest]
    space = space_in(m, address)
    m.type("b64")
    m.finish()
    write = writer(state, TYPES["b64"], instruction)
    read_address = address_reader(address, instruction)
    read = reader(rest[0], TYPES["u32"], instruction) if rest else _constant(1)

    def act(machine: Machine, active: Active) -> None:
        values = per_thread(machine, active, read).astype(np.int64)
        tokens = np.zeros(active.index.size, np.uint64)
        addresses = machine.compress(read_address(machine, active), active)
        for target in machine.mbarriers.find(machine, active, space, addresses, instruction):
            amounts = values[target.where]
            if expects:
                machine.mbarriers.expect(machine, target, amounts)
                amounts = np.ones_like(amounts)
            tokens[target.where] = machine.mbarriers.arrive(machine, target, amounts, drop=drop)
        write(machine, active, machine.expand(tokens, active))

    return act


def _mbarrier(instruction: Instruction) -> Action:
    """All but the waits, which may block."""
    m = Modifiers(instruction)
    name = m.choice(("init", "inval", "arrive", "arrive_drop", "expect_tx", "complete_tx", "pending_count"))
    if name == "arrive" or name == "arrive_drop":
        return _arrive(instruction, m, name == "arrive_drop")
    if name == "init":
        return _each(instruction, m, lambda machine, target, n: machine.mbarriers.init(machine, target, n), fresh=True)
    if name == "inval":
        return _each(instruction, m, _invalidate)
    if name == "pending_count":
        kinds = (TYPES["u32"],), (TYPES["u64"],)
        return bind_pure(instruction, Pure(*kinds, lambda a: (a >> np.uint64(32)).astype(np.uint32)))
    if name == "complete_tx":
        raise instruction.unsupported("mbarrier.complete_tx")
    m.skip(ORDERS | SCOPES)
    return _each(instruction, m, lambda machine, target, n: machine.mbarriers.expect(machine, target, n))


def _map_address(instruction: Instruction) -> Action:
    """``mapa`` (9.7.10.26): in a cluster of one CTA, rank 0 has the same addresses."""
    m = Modifiers(instruction)
    m.skip({"shared::cluster"})
    kind = m.type("u32 u64")
    m.finish()
    rank = instruction.operands[2]
    if isinstance(rank, Immediate) and rank.value:
        raise instruction.wrong("the cluster has one CTA")
    return bind_pure(instruction, Pure((kind,), (kind, TYPES["u32"]), lambda a, b: a))


MBARRIERS = {"mbarrier": _mbarrier, "mapa": _map_address}
"""mbarriers, and addresses in clusters."""
