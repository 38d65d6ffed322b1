"""The ``race`` check of global memory: by the threads of one CTA as in shared memory, and by different CTAs.

Nothing that the device understands orders the CTAs of a launch. So two of them race when they touch the same byte, one
of them writes and not both are atomic, whenever that was. What ``ld.global.nc`` reads is left to the ``memory`` check.

A grid may also be launched before the one ahead of it has ended (programmatic dependent launch). What it touches before
its ``griddepcontrol.wait`` races with that one.

Fences, volatile accesses and those with an order make an order that is not understood: in kernels that have any, only
what two CTAs write is watched.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ptxc.sim.access import Piece
from ptxc.sim.binding import Action, Modifiers
from ptxc.sim.machine import Active, Machine
from ptxc.sim.memory import Region
from ptxc.sim.order import Order
from ptxc.sim.program import Instruction, Program
from ptxc.sim.race import Watch, granule, granules
from ptxc.sim.scalar import Array, Index, Mask

_SEVERAL = np.iinfo(np.int32).min
_WRITTEN = "two CTAs write the same bytes of {}, not both atomically"
_TOUCHED = "one CTA writes and another reads the same bytes of {}"
_ORDERED = {"acquire", "release", "acq_rel", "sc"}
_STRONG = _ORDERED | {"volatile", "relaxed", "mmio"}


def _orders_memory(item: Instruction) -> bool:
    """Whether an instruction orders accesses of global memory in a way that is not understood here."""
    if item.opcode in {"membar", "fence"}:
        return "proxy" not in item.modifiers
    return not (_STRONG if item.opcode in {"ld", "st"} else _ORDERED).isdisjoint(item.modifiers)


@dataclass(frozen=True, slots=True, eq=False)
class _Memory:
    """What is known of each granule of a region.

    ``writers``: 0 for nobody, the CTA's number (from 1) for a plain write, its negative for an atomic one,
    ``_SEVERAL`` for atomics of several CTAs. ``readers``: 0, a CTA, or ``_SEVERAL``. ``owners``: the CTA whose threads
    ``watch`` knows of.
    """

    region: Region
    writers: Array
    readers: Array
    owners: Array
    watch: Watch

    @classmethod
    def of(cls, region: Region, unit: int, order: Order) -> _Memory:
        count = -(-region.data.size // unit)
        writers, readers, owners = (np.zeros(count, np.int32) for _ in range(3))
        return cls(region, writers, readers, owners, Watch(order, unit, count))


class GlobalRaceCheck:
    """The accesses of a launch to the global memory that it may write, over all its batches.

    ``dependent``: the grid ahead of it may still run when it begins.
    """

    def __init__(self, program: Program, dependent: bool) -> None:
        self._dependent = dependent
        self._has_waited = np.zeros(0, np.bool_)
        self._unit = granule(program)
        self._finely = not any(map(_orders_memory, program.instructions))
        self._known: dict[int, _Memory] = {}
        self._order: Order | None = None

    def begin(self, order: Order) -> None:
        """The next batch, of other CTAs, begins."""
        self._order = order
        self._has_waited = np.zeros(order.era.size, np.bool_)
        for known in self._known.values():
            known.watch.begin(order)

    def grid_waited(self, active: Active) -> None:
        """The ``active`` threads have waited for the grid ahead."""
        self._has_waited[active.index] = True

    def read(self, m: Machine, active: Active, piece: Piece, size: int) -> None:
        """Plain reads of ``size`` bytes. A piece of one address that all ``active`` threads read names the first."""
        self._after_grid_wait(m, piece)
        if not self._finely or not piece.region.writable or (m.instruction and "nc" in m.instruction.modifiers):
            return
        if piece.slots.size == 1 and piece.where is None:
            piece = Piece(piece.region, np.repeat(piece.offsets, active.index.size), None, active.index)
        known, at, slots, mine = self._granules(m, piece, size)
        races = (known.writers[at] != 0) & (np.abs(known.writers[at]) != mine)
        before = known.readers[at]
        known.readers[at] = np.where((before == 0) | (before == mine), mine, _SEVERAL)
        mixed = known.readers[at] != mine
        known.readers[at[mixed]] = _SEVERAL
        self._report(m, piece, "between CTAs", _TOUCHED, at, slots, races)
        known.watch.read(m, piece, *_own(known, at, slots, mine))

    def write(self, m: Machine, piece: Piece, size: int) -> None:
        """Plain writes of ``size`` bytes."""
        self._after_grid_wait(m, piece)
        known, at, slots, mine = self._granules(m, piece, size)
        before = known.writers[at]
        races = (before != 0) & (np.abs(before) != mine)
        known.writers[at] = mine
        races |= known.writers[at] != mine
        self._report(m, piece, "global", _WRITTEN, at, slots, races)
        if self._finely:
            self._against_readers(m, piece, known, at, slots, mine)
            known.watch.write(m, piece, *_own(known, at, slots, mine))

    def atomic(self, m: Machine, piece: Piece, size: int) -> None:
        """Atomic writes of ``size`` bytes; they race with plain accesses only."""
        self._after_grid_wait(m, piece)
        known, at, slots, mine = self._granules(m, piece, size)
        before = known.writers[at]
        races = (before > 0) & (before != mine)
        known.writers[at] = np.where((before == 0) | (before == -mine), -mine, _SEVERAL)
        mixed = known.writers[at] != -mine
        known.writers[at[mixed]] = _SEVERAL
        self._report(m, piece, "global", _WRITTEN, at, slots, races)
        if self._finely:
            self._against_readers(m, piece, known, at, slots, mine)
            known.watch.atomic(m, piece, *_own(known, at, slots, mine))

    def _after_grid_wait(self, m: Machine, piece: Piece) -> None:
        if not self._dependent:
            return
        early = ~self._has_waited[piece.slots]
        if early.any():
            address = piece.region.start + int(piece.offsets[early][0])
            message = f"touches {piece.region.name} before griddepcontrol.wait: the grid ahead may still run"
            m.report("race", "before wait", message, piece.slots[early], address=address, space="global")

    def _granules(self, m: Machine, piece: Piece, size: int) -> tuple[_Memory, Index, Array, Array]:
        """What is known of a region, and each access as its granules, with the thread and the CTA's number."""
        known = self._known.get(id(piece.region))
        if known is None:
            assert self._order is not None
            known = self._known[id(piece.region)] = _Memory.of(piece.region, self._unit, self._order)
        at, slots = granules(piece, size, self._unit)
        return known, at, slots, m.geometry.number_of_slot[slots].astype(np.int32) + 1

    def _against_readers(self, m: Machine, piece: Piece, known: _Memory, at: Index, slots: Array, mine: Array) -> None:
        readers = known.readers[at]
        races = (readers != 0) & (readers != mine)
        self._report(m, piece, "between CTAs", _TOUCHED, at, slots, races)

    def _report(self, m: Machine, piece: Piece, kind: str, what: str, at: Index, slots: Array, races: Mask) -> None:
        if races.any():
            address = piece.region.start + int(at[races][0]) * self._unit
            chosen = slots[races].astype(np.intp)
            m.report("race", kind, what.format(piece.region.name), chosen, address=address, space="global")


def _grid_control(instruction: Instruction) -> Action:
    m = Modifiers(instruction)
    waits = m.choice(("wait", "launch_dependents")) == "wait"
    m.finish()

    def act(machine: Machine, active: Active) -> None:
        if waits and machine.checks.global_race is not None:
            machine.checks.global_race.grid_waited(active)

    return act


GRID = {"griddepcontrol": _grid_control}
"""What orders a grid behind the one ahead of it."""


def _own(known: _Memory, at: Index, slots: Array, mine: Array) -> tuple[Index, Array]:
    """The accesses that ``known.watch`` is to be told of: of one CTA for each granule, others being forgotten.

    What two CTAs touch is a race between them already if one writes.
    """
    new = known.owners[at] != mine
    if new.any():
        known.owners[at[new]] = mine[new]
        known.watch.forget(at[new])
        own = known.owners[at] == mine
        at, slots = at[own], slots[own]
    return at, slots
