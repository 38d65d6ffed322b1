"""Bulk copies to shared memory (PTX ISA 9.7.10.28): ``cp.async.bulk``, ``cp.async.bulk.tensor``, and the arrival of
``cp.async`` copies at an mbarrier.

The source is read when a copy is issued. The data lands when a thread waits at the copy's mbarrier
(``ptxc.sim.mbarrier``); any access to it before is a race.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np

from ptxc.sim import tensor_map
from ptxc.sim.access import Piece, load
from ptxc.sim.binding import Action, Modifiers, Reader, reader
from ptxc.sim.machine import Active, Machine, Stop
from ptxc.sim.mbarrier import Landing, Target, write_landed
from ptxc.sim.mbarrier_ops import per_thread, space_in
from ptxc.sim.movement import address_reader
from ptxc.sim.program import WINDOWS, Instruction, Memory, Operand, Vector
from ptxc.sim.scalar import TYPES, Array, Index

_RANK = re.compile(r"([1-5])d$")
_COMPLETION = "mbarrier::complete_tx::bytes"


def bulk_copy(instruction: Instruction, m: Modifiers) -> Action:
    """``cp.async.bulk`` and ``cp.async.bulk.tensor`` from global to shared memory."""
    if "prefetch" in m.left:
        return lambda machine, active: None
    tensor = m.flag("tensor")
    rank = next((int(name[0]) for name in m.left if _RANK.match(name)), 0) if tensor else 0
    m.skip({f"{rank}d", "tile", "L2::cache_hint"})
    if m.left[:2] not in (["shared::cta", "global"], ["shared::cluster", "global"]):
        raise instruction.unsupported("this direction of a bulk copy")
    m.left = m.left[2:]
    m.choice((_COMPLETION,))
    m.finish()
    return _tensor_copy(instruction, rank) if tensor else _linear_copy(instruction)


def _issue(m: Machine, target: Target, at: int, start: int, data: Array, swizzle: str) -> None:
    """The thread at position ``at`` of ``target`` starts a copy of ``data`` to ``start`` in its CTA."""
    slot, cta = int(target.slots[at]), int(target.ctas[at])
    units = tensor_map.swizzled(start // 16 + np.arange(data.size // 16), swizzle) + cta * m.shared_stride // 16
    piece = Piece(m.shared, units * 16, None, np.full(units.size, slot, np.intp))
    values = data.view(np.complex128)
    if m.checks.race is not None:
        m.checks.race.async_issued(m, piece, 16)
    if m.checks.proxy is not None:
        m.checks.proxy.overwritten(m, piece, slot)
        m.checks.proxy.completes(m, target.object.address, slot)
    landing = Landing(cta, slot, data.size, 0, lambda machine: write_landed(machine, piece, values, bulk=True))
    m.mbarriers.track(target.object, landing)


def _fits(m: Machine, slot: int, start: int, size: int, alignment: int) -> bool:
    """Whether ``size`` bytes at ``start`` of shared memory are one variable's, and aligned; if not, a finding."""
    inside = any(extent.start <= start and start + size <= extent.end for extent in m.shared_extents)
    if inside and start % alignment == 0:
        return True
    message = f"bulk copy of {size} bytes is outside of every shared variable"
    if inside:
        message = f"bulk copy to an address that is misaligned (a multiple of {alignment} is needed)"
    m.report("memory", "bulk", message, np.array([slot]), address=start, space="shared")
    if not m.checks.memory:
        raise Stop
    return False


def _shared_address(instruction: Instruction, operand: Operand) -> Reader:
    """Addresses in shared memory, from its start: generic ones are brought down."""
    read = address_reader(operand, instruction)
    window = WINDOWS["shared"]

    def addresses(m: Machine, active: Active) -> Array:
        found = per_thread(m, active, read)
        return np.where(found >= window, found - window, found)

    return addresses


_Source = Callable[[Machine, Active], Callable[[int], tuple[Array, str, int] | None]]
"""For some threads: a function from a thread's position to the bytes, the swizzle and the alignment of its copy."""


def _copy_action(instruction: Instruction, barrier: Operand, source: _Source) -> Action:
    space = space_in(Modifiers(Instruction(instruction.line, "cp", (), ())), barrier)
    read_barrier = address_reader(barrier, instruction)
    read_target = _shared_address(instruction, instruction.operands[0])

    def act(m: Machine, active: Active) -> None:
        starts = read_target(m, active)
        barriers = per_thread(m, active, read_barrier)
        where = space or ("shared" if (barriers < WINDOWS["shared"]).all() else "")
        fetch = source(m, active)
        for target in m.mbarriers.find(m, active, where, barriers, instruction):
            for at, position in enumerate(target.where.tolist()):
                fetched = fetch(position)
                if fetched is None:
                    continue
                data, swizzle, alignment = fetched
                if _fits(m, int(target.slots[at]), int(starts[position]), data.size, alignment):
                    _issue(m, target, at, int(starts[position]), data, swizzle)

    return act


def _tensor_copy(instruction: Instruction, rank: int) -> Action:
    _, source, barrier, *_ = instruction.operands
    if not isinstance(source, Memory) or len(source.index) != 1 or not isinstance(source.index[0], Vector):
        raise instruction.wrong("a tensor map and its coordinates are expected")
    coordinates = [reader(part, TYPES["s32"], instruction) for part in source.index[0].elements]
    if len(coordinates) != rank:
        raise instruction.wrong(f"{rank} coordinates are expected")
    read_map = address_reader(Memory(source.base, source.offset, source.space), instruction)
    space = "param" if source.space == "param" else ""

    def boxes(m: Machine, active: Active) -> Callable[[int], tuple[Array, str, int] | None]:
        places = per_thread(m, active, read_map)
        starts = np.stack([per_thread(m, active, read) for read in coordinates])

        def fetch(position: int) -> tuple[Array, str, int] | None:
            chosen = Active(active.index[position : position + 1], False)
            found = _map_at(m, chosen, space, int(places[position]), rank)
            if found is None:
                return None
            return found.copy_box(starts[:, position].tolist()), found.map.swizzle, 128

        return fetch

    return _copy_action(instruction, barrier, boxes)


def _map_at(m: Machine, active: Active, space: str, address: int, rank: int) -> tensor_map.BoundMap | None:
    words = [load(m, active, space, np.array([address + at]), 16)[:1] for at in range(0, tensor_map.SIZE, 16)]
    number = tensor_map.number_in(np.concatenate(words).tobytes())
    found = m.memory.tensor_maps.get(number) if number is not None else None
    if found is not None and len(found.map.dims) == rank:
        return found
    message = "there is no tensor map" if found is None else f"the tensor map has {len(found.map.dims)} dimensions"
    m.report("memory", "tensor map", message, active.index, address=address, space=space or "generic")
    if not m.checks.memory:
        raise Stop
    return None


def _linear_copy(instruction: Instruction) -> Action:
    _, source, amount, barrier, *_ = instruction.operands
    read_source = address_reader(source, instruction)
    read_amount = reader(amount, TYPES["u32"], instruction)

    def spans(m: Machine, active: Active) -> Callable[[int], tuple[Array, str, int] | None]:
        places, amounts = per_thread(m, active, read_source), per_thread(m, active, read_amount)

        def fetch(position: int) -> tuple[Array, str, int] | None:
            size = int(amounts[position])
            slot = active.index[position : position + 1]
            if size % 16:
                m.report("memory", "size", "the size of a bulk copy is a multiple of 16", slot)
                return None
            units: Index = np.arange(int(places[position]), int(places[position]) + size, 16)
            data = load(m, Active(np.repeat(slot, units.size), False), "global", units, 16)
            return data.view(np.uint8), "NONE", 16

        return fetch

    return _copy_action(instruction, barrier, spans)


def arrive_when_copied(instruction: Instruction, m: Modifiers) -> Action:
    """``cp.async.mbarrier.arrive``: an arrival when the thread's earlier ``cp.async`` copies are done (9.7.15.16.18).

    Without ``.noinc`` the phase expects one arrival more for it.
    """
    m.choice(("arrive",))
    counted = m.flag("noinc")
    space = space_in(m, instruction.operands[0])
    m.type("b64")
    m.finish()
    read = address_reader(instruction.operands[0], instruction)

    def act(machine: Machine, active: Active) -> None:
        addresses = machine.compress(read(machine, active), active)
        issued = machine.copies.issued
        for target in machine.mbarriers.find(machine, active, space, addresses, instruction):
            if not counted:
                np.add.at(target.object.pending, target.ctas, 1)
            for slot, cta in zip(target.slots.tolist(), target.ctas.tolist(), strict=True):
                one = Active(np.array([slot]), False)
                landing = Landing(cta, slot, 0, 1, _waits_for(one, issued))
                machine.mbarriers.track(target.object, landing)

    return act


def _waits_for(active: Active, issued: int) -> Callable[[Machine], None]:
    return lambda machine: machine.copies.wait(machine, active, None, before=issued)
