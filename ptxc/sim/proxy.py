"""Stores to shared memory that a ``wgmma`` reads: the one is done in the generic proxy, the other in the async proxy.

Between them a ``fence.proxy.async`` is needed (PTX ISA 9.7.17.4), beside what orders the threads: executed by the
thread that wrote, behind its store, or by one that reads, behind the barrier. What bulk copies bring is written in the
async proxy already.
"""

from __future__ import annotations

import numpy as np

from ptxc.sim.access import Piece
from ptxc.sim.binding import Action
from ptxc.sim.machine import Active, Machine
from ptxc.sim.program import Instruction, Program
from ptxc.sim.scalar import Index

_UNIT = 16


def has_async_readers(program: Program) -> bool:
    """Whether some instruction of ``program`` reads shared memory in the async proxy."""
    return any(item.opcode == "wgmma" and "mma_async" in item.modifiers for item in program.instructions)


class ProxyCheck:
    """For each 16 bytes of a batch's shared memory: the last thread that stored there, and when.

    Time counts stores and fences. ``_fenced`` is when each thread last executed a fence.
    """

    def __init__(self, shared_bytes: int, threads: int) -> None:
        self._time = 1
        self._writer = np.zeros(shared_bytes // _UNIT, np.int32)
        self._written = np.zeros(shared_bytes // _UNIT, np.int64)
        self._fenced = np.zeros(threads, np.int64)

    def written(self, piece: Piece) -> None:
        """The threads of ``piece`` store there in the generic proxy."""
        self._time += 1
        at = piece.offsets // _UNIT
        self._writer[at] = piece.slots
        self._written[at] = self._time

    def landed(self, piece: Piece) -> None:
        """A bulk copy has written to ``piece``."""
        self._written[piece.offsets // _UNIT] = 0

    def fenced(self, slots: Index) -> None:
        """Threads ``slots`` execute ``fence.proxy.async``."""
        self._time += 1
        self._fenced[slots] = self._time

    def read(self, m: Machine, piece: Piece, readers: Index) -> None:
        """A ``wgmma`` of threads ``readers`` reads the units of ``piece``."""
        at = piece.offsets // _UNIT
        written = self._written[at]
        latest = self._fenced[readers].max()
        wrong = (written > latest) & (written > self._fenced[self._writer[at]])
        if wrong.any():
            first = int(np.argmax(wrong))
            writer = int(self._writer[at[first]]) % m.geometry.slots
            message = f"reads what thread {writer} stored, with no fence.proxy.async between"
            address = int(piece.offsets[first]) % m.shared_stride
            m.report("race", "proxy", message, np.unique(piece.slots[wrong]), address=address, space="shared")


def fence(instruction: Instruction) -> Action:
    """``fence`` and ``membar``: of effect for the checks only, as threads' accesses are in order anyway."""
    between = "proxy" in instruction.modifiers and any(name.startswith("async") for name in instruction.modifiers)

    def act(m: Machine, active: Active) -> None:
        if between and m.checks.proxy is not None:
            m.checks.proxy.fenced(active.index)

    return act
