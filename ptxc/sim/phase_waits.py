"""Threads that wait at mbarriers, until the phase is over, or until nothing else can happen.

``try_wait`` may suspend a thread and may give up; both are up to the system (PTX ISA 9.7.15.16.19). Here a thread that
waits goes on when the phase is over. Where no thread can go on, all that wait get ``false``, as if their time were
up, and mostly try again; when that has happened often with no mbarrier changed in between, the kernel hangs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ptxc.sim.findings import missing
from ptxc.sim.machine import Active, Machine
from ptxc.sim.mbarrier_ops import PhaseWait, per_thread
from ptxc.sim.scalar import Index, Mask

TIMEOUTS = 64
"""How often threads may find a wait fruitless, with nothing changed, until that is a hang."""


@dataclass(frozen=True, slots=True, eq=False)
class Parked:
    """Threads at a wait, and the block where they go on."""

    wait: PhaseWait
    active: Active
    next_block: int


class PhaseWaits:
    """All threads of a batch that wait at mbarriers."""

    def __init__(self, m: Machine) -> None:
        self._m = m
        self._seen = -1
        self._seen_at_timeout = -1
        self._timeouts = 0
        self.parked: list[Parked] = []

    def arrive(self, wait: PhaseWait, active: Active, next_block: int) -> list[tuple[int, Index]]:
        """``active`` threads execute ``wait``. Returns who goes on, and where."""
        return self._try(Parked(wait, active, next_block))

    def poll(self) -> list[tuple[int, Index]]:
        """Who goes on since mbarriers changed."""
        changes = self._m.mbarriers.changes
        if not self.parked or changes == self._seen:
            return []
        self._seen = changes
        waiting, self.parked = self.parked, []
        return [entry for parked in waiting for entry in self._try(parked)]

    def give_up(self) -> list[tuple[int, Index]]:
        """Nothing else can run: everyone who waits is told that the phase is not over. Empty if that is a hang."""
        changes = self._m.mbarriers.changes
        self._timeouts = self._timeouts + 1 if changes == self._seen_at_timeout else 0
        self._seen_at_timeout = changes
        if self._timeouts >= TIMEOUTS:
            return []
        waiting, self.parked = self.parked, []
        for parked in waiting:
            self._finish(parked, np.zeros(parked.active.index.size, np.bool_))
        return [(parked.next_block, parked.active.index) for parked in waiting]

    def _try(self, parked: Parked) -> list[tuple[int, Index]]:
        m, wait, active = self._m, parked.wait, parked.active
        m.instruction = wait.instruction
        wanted = per_thread(m, active, wait.wanted)
        addresses = m.compress(wait.address(m, active), active)
        over = np.zeros(active.index.size, np.bool_)
        for target in m.mbarriers.find(m, active, wait.space, addresses, wait.instruction):
            over[target.where] = m.mbarriers.passed(m, target, wanted[target.where], parity=wait.parity)
        if over.all():
            self._finish(parked, over)
            return [(parked.next_block, active.index)]
        rest = Active(active.index[~over], False)
        self.parked.append(Parked(wait, rest, parked.next_block))
        if not over.any():
            return []
        part = Parked(wait, Active(active.index[over], False), parked.next_block)
        self._finish(part, np.ones(part.active.index.size, np.bool_))
        return [(part.next_block, part.active.index)]

    def _finish(self, parked: Parked, over: Mask) -> None:
        m, active = self._m, parked.active
        write_as = Active(active.index, active.full and active.index.size == m.live_count)
        parked.wait.write(m, write_as, m.expand(over, write_as))

    def report(self, elsewhere: str) -> None:
        """Findings that say what the waiting threads wait for."""
        m = self._m
        for parked in self.parked:
            wait, active = parked.wait, parked.active
            addresses = m.compress(wait.address(m, active), active)
            wanted = per_thread(m, active, wait.wanted)
            reason = "no mbarrier is there"
            for target in m.mbarriers.find(m, active, wait.space, addresses, wait.instruction)[:1]:
                known, cta = target.object, int(target.ctas[0])
                lack = missing(int(known.pending[cta]), int(known.bytes[cta]))
                reason = f"phase {int(known.phase[cta])} of the mbarrier at shared {known.address:#x} {lack}"
            which = f"a phase of parity {int(wanted[0])}" if wait.parity else "a phase"
            message = f"waits for {which}, which can never complete: {reason}; {elsewhere}"
            m.report("sync", "mbarrier", message, active.index, instruction=wait.instruction)
