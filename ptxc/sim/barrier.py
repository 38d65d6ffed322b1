"""CTA barriers (PTX ISA 9.7.15.1): ``bar`` and ``barrier``, with ids, thread counts, arrival and reduction.

A warp arrives at a barrier when all of its threads that have not exited have; it then counts as 32 threads. A barrier
without a count completes when every warp that still has threads has arrived, one with a count as soon as so many have.
Of warps that come at once, those of lower numbers come first.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from ptxc.sim.binding import Action, Modifiers, Reader, Writer, reader, writer
from ptxc.sim.machine import Active, Machine
from ptxc.sim.program import Instruction
from ptxc.sim.scalar import TYPES, Array, Index, Mask

_NAMES = 16
CLUSTER = 1 << 16
"""The barrier that stands for that of a cluster of one CTA: no program can name it."""


@dataclass(frozen=True, slots=True, eq=False)
class BarrierOperation:
    """One barrier instruction. ``count`` is None for all threads of the CTA; ``reduce`` is popc, and, or, or empty."""

    instruction: Instruction
    name: Reader
    count: Reader | None
    waits: bool
    aligned: bool
    reduce: str = ""
    predicate: Reader | None = None
    result: Writer | None = None


def barrier_operation(instruction: Instruction) -> BarrierOperation:
    """The barrier of a ``bar`` or ``barrier`` instruction (``bar.warp`` is another thing)."""
    m = Modifiers(instruction)
    if m.flag("cluster"):
        return _cluster_wait(instruction, m)
    m.skip({"cta"})
    action = m.choice(("sync", "arrive", "red"))
    aligned = m.flag("aligned") or instruction.opcode == "bar"
    operands = list(instruction.operands)
    reduce, predicate, result = "", None, None
    if action == "red":
        reduce = m.choice(("popc", "and", "or"))
        kind = m.type("u32 pred")
        result = writer(operands.pop(0), kind, instruction)
        predicate = reader(operands.pop(), TYPES["pred"], instruction)
    m.finish()
    name = reader(operands[0], TYPES["u32"], instruction)
    count = reader(operands[1], TYPES["u32"], instruction) if len(operands) > 1 else None
    return BarrierOperation(instruction, name, count, action != "arrive", aligned, reduce, predicate, result)


def _cluster_wait(instruction: Instruction, m: Modifiers) -> BarrierOperation:
    """``barrier.cluster.wait`` (9.7.15.3): the threads of the only CTA meet here; their arrival does not wait."""
    m.choice(("wait",))
    m.skip({"acquire"})
    aligned = m.flag("aligned")
    m.finish()
    name = np.array([CLUSTER], np.uint32)
    return BarrierOperation(instruction, lambda machine, active: name, None, True, aligned)


def cluster_arrive(instruction: Instruction) -> Action:
    """``barrier.cluster.arrive``: what it orders is ordered by the wait that must follow."""
    m = Modifiers(instruction)
    m.choice(("cluster",))
    m.choice(("arrive",))
    m.skip({"release", "relaxed", "aligned"})
    m.finish()
    return lambda machine, active: None


@dataclass(frozen=True, slots=True, eq=False)
class Waiting:
    """Threads that wait at a barrier, and the block where they go on."""

    operation: BarrierOperation
    index: Index
    next_block: int


@dataclass(slots=True)
class _State:
    """One barrier of every CTA of the batch: who has arrived, who waits, how many threads are expected.

    ``expected`` is 0 for all threads; ``values`` are the predicates of a reduction.
    """

    arrived: Mask
    expected: Array
    values: Mask
    waiting: list[Waiting] = field(default_factory=list)


class Barriers:
    """The sixteen barriers of every CTA of a batch."""

    def __init__(self, m: Machine) -> None:
        self._m = m
        self._states: dict[int, _State] = {}

    @property
    def waiting(self) -> list[tuple[int, Waiting]]:
        """Every thread that waits, with the barrier's id."""
        return [(name, entry) for name, state in self._states.items() for entry in state.waiting]

    def arrive(self, operation: BarrierOperation, active: Active, next_block: int) -> list[tuple[int, Index]]:
        """``active`` threads execute ``operation``. Returns who goes on now, and at which block."""
        m = self._m
        names = m.compress(operation.name(m, active), active)
        going: list[tuple[int, Index]] = []
        for name in np.unique(names).tolist():
            chosen = m.select(active, operation.name(m, active) == name)
            if chosen is None:
                continue
            if name >= _NAMES and name != CLUSTER:
                m.report("sync", "barrier id", f"barrier {name} does not exist", chosen.index)
            for part in self._parts(int(name), operation, chosen):
                going += self._arrive(int(name), operation, part, next_block)
        return going

    def _parts(self, name: int, operation: BarrierOperation, active: Active) -> list[Active]:
        """Those who arrive at once, in parts of which none has more threads than the barrier still waits for.

        Where more come than it is for, it completes without the others, who wait for its next round.
        """
        if operation.count is None:
            return [active]
        m = self._m
        here = np.zeros(m.threads, np.bool_)
        here[active.index] = True
        known = self._states.get(name)
        arrived = here if known is None else here | known.arrived
        in_cta = arrived.reshape(-1, 32).any(1).reshape(len(m.geometry.ctas), -1).sum(1) * 32
        if (in_cta[m.geometry.cta_of_slot[active.index]] <= m.compress(operation.count(m, active), active)).all():
            return [active]
        warps = np.unique(active.index >> 5)
        cta = warps * 32 // m.geometry.slots
        turn = np.zeros(m.threads // 32, np.intp)
        turn[warps] = np.arange(warps.size) - np.searchsorted(cta, cta)
        turns = turn[active.index >> 5]
        return [Active(active.index[turns == at], False) for at in range(int(turns.max()) + 1)]

    def _arrive(
        self, name: int, operation: BarrierOperation, active: Active, next_block: int
    ) -> list[tuple[int, Index]]:
        m = self._m
        if active.full and operation.count is None and operation.waits and not operation.reduce:
            state = self._states.get(name)
            if state is None or not state.arrived.any():
                self._completed(name, operation)
                return [(next_block, active.index)]
        state = self._states.get(name)
        if state is None:
            ctas = len(m.geometry.ctas)
            nobody = np.zeros(m.threads, np.bool_)
            state = _State(nobody, np.zeros(ctas, np.int64), nobody.copy())
            self._states[name] = state
        self._note(state, operation, active)
        going = []
        if not operation.waits and m.checks.order is not None:
            m.checks.order.arrived(name, active.index)
        if operation.waits:
            state.waiting.append(Waiting(operation, active.index, next_block))
        else:
            going.append((next_block, active.index))
        return going + self.release(name)

    def _note(self, state: _State, operation: BarrierOperation, active: Active) -> None:
        m = self._m
        index = active.index
        again = state.arrived[index]
        if again.any() and m.checks.sync:
            m.report("sync", "arrived twice", "arrives again before the barrier completed", index[again])
        state.arrived[index] = True
        if operation.predicate is not None:
            state.values[index] = m.compress(operation.predicate(m, active), active)
        ctas = m.geometry.cta_of_slot[index]
        counts: Array = np.zeros(1, np.int64)
        if operation.count is not None:
            counts = m.compress(operation.count(m, active), active).astype(np.int64)
            bad = np.broadcast_to((counts % 32 != 0) | (counts == 0), index.shape)
            if bad.any():
                m.report("sync", "count", "the thread count is no multiple of 32", index[bad])
        state.expected[ctas] = counts

    def release(self, name: int) -> list[tuple[int, Index]]:
        """Complete the barrier in every CTA where it can. Returns who goes on, and at which block."""
        m, state = self._m, self._states[name]
        live = m.live.reshape(-1, 32)
        arrived = state.arrived.reshape(-1, 32)
        warps = (arrived | ~live).all(1) & arrived.any(1)
        alive = live.any(1)
        shape = (len(m.geometry.ctas), -1)
        counts = warps.reshape(shape).sum(1) * 32
        everyone = (warps | ~alive).reshape(shape).all(1) & (counts > 0)
        ready = np.where(state.expected > 0, counts >= state.expected, everyone)
        if not ready.any():
            return []
        return self._release(name, state, ready)

    def _release(self, name: int, state: _State, ready: Mask) -> list[tuple[int, Index]]:
        m = self._m
        here = np.repeat(ready, m.geometry.slots)
        going, left = [], []
        instructions: dict[BarrierOperation, Mask] = {}
        waiting = np.zeros(m.threads, np.bool_)
        for entry in state.waiting:
            goes = here[entry.index]
            if not goes.all():
                left.append(Waiting(entry.operation, entry.index[~goes], entry.next_block))
            if goes.any():
                index = entry.index[goes]
                going.append((entry.next_block, index))
                waiting[index] = True
                if entry.operation.result is not None:
                    self._write_result(state, entry.operation, Active(index, False))
                instructions.setdefault(entry.operation, np.zeros(m.threads, np.bool_))[index] = True
        state.waiting = left
        for operation, executing in instructions.items():
            self._check_aligned(operation, executing, state.arrived)
        if m.checks.order is not None:
            m.checks.order.barrier(m, name, state.arrived & here, waiting)
        state.arrived &= ~here
        state.expected[ready] = 0
        return going

    def _write_result(self, state: _State, operation: BarrierOperation, active: Active) -> None:
        m = self._m
        shape = (len(m.geometry.ctas), m.geometry.slots)
        arrived = state.arrived.reshape(shape)
        true = (state.values & state.arrived).reshape(shape)
        assert operation.result is not None
        result: Array
        if operation.reduce == "popc":
            result = true.sum(1).astype(np.uint32)
        elif operation.reduce == "and":
            result = (true == arrived).all(1)
        else:
            result = true.any(1)
        operation.result(m, active, result[m.geometry.cta_of_slot[active.index]])

    def _completed(self, name: int, operation: BarrierOperation) -> None:
        """A barrier that every thread reached together completes."""
        m = self._m
        if m.checks.order is not None:
            m.checks.order.barrier(m, name, m.live, m.live)
        self._check_aligned(operation, m.live, m.live)

    def _check_aligned(self, operation: BarrierOperation, executing: Mask, arrived: Mask) -> None:
        """An aligned instruction is for all threads of its warps; its barrier, without a count, for all of the CTA."""
        m = self._m
        if not m.checks.sync or not operation.aligned:
            return
        warps = np.repeat(executing.reshape(-1, 32).any(1), 32)
        missing = warps & ~executing
        if operation.count is None:
            ctas = executing.reshape(-1, m.geometry.slots).any(1)
            missing |= np.repeat(ctas, m.geometry.slots) & ~arrived
        slots = np.flatnonzero(missing & m.geometry.exists)
        if slots.size:
            message = "these threads exited or are elsewhere while others execute an aligned barrier"
            m.report("sync", "aligned", message, slots, instruction=operation.instruction)
