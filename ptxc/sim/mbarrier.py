"""mbarriers (PTX ISA 9.7.15.16): objects in shared memory that count arrivals and bytes of asynchronous copies.

A phase completes when no arrival and no byte is pending; the next one then expects as many arrivals again. What an
asynchronous copy brings lands as late as it may: when a thread waits at the mbarrier that the copy completes at, all
arrivals are there and only bytes are missing. A copy that no one waits for never lands.

An arrival releases and a successful wait acquires (9.7.15.16.16 and 9.7.15.16.19), which the race check is told, warp
by warp.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from ptxc.sim.access import Piece, resolve
from ptxc.sim.machine import Active, Machine
from ptxc.sim.program import Instruction
from ptxc.sim.scalar import Array, Index, Mask

LARGEST = (1 << 20) - 1
"""The largest count of arrivals or bytes (9.7.15.16.3)."""


@dataclass(frozen=True, slots=True, eq=False)
class Landing:
    """What will happen when the data of an asynchronous copy arrives: ``land`` writes it, ``size`` bytes are done.

    ``slot`` is the thread that issued the copy. A thread's ``cp.async`` copies count as an arrival (``arrivals``).
    """

    cta: int
    slot: int
    size: int
    arrivals: int
    land: Callable[[Machine], None]


@dataclass(slots=True, eq=False)
class Mbarrier:
    """The objects at one address of every CTA: arrays with one element a CTA.

    ``maker`` is the thread that initialised it, ``made`` the era and the time of the race check when it did.
    """

    address: int
    valid: Mask
    expected: Array
    pending: Array
    bytes: Array
    phase: Array
    maker: Index
    made: tuple[Array, Array]
    landings: list[Landing] = field(default_factory=list)

    @classmethod
    def at(cls, address: int, ctas: int) -> Mbarrier:
        """No object in any of ``ctas``."""
        zero = np.zeros(ctas, np.int64)
        made = np.zeros(ctas, np.int32), np.zeros(ctas, np.int32)
        return cls(
            address, np.zeros(ctas, np.bool_), zero, zero.copy(), zero.copy(), zero.copy(), zero.astype(np.intp), made
        )


@dataclass(frozen=True, slots=True, eq=False)
class Target:
    """The threads of an instruction that name one mbarrier: their positions among its threads, slots and CTAs."""

    object: Mbarrier
    where: Index
    slots: Index
    ctas: Index


class Mbarriers:
    """All mbarriers of a batch. ``changes`` counts what may let a waiting thread go on."""

    def __init__(self, ctas: int) -> None:
        self._ctas = ctas
        self._objects: dict[int, Mbarrier] = {}
        self.changes = 0

    def find(
        self, m: Machine, active: Active, space: str, addresses: Array, instruction: Instruction, *, fresh: bool = False
    ) -> list[Target]:
        """The mbarriers that ``active`` threads name, without those that are not initialised (unless ``fresh``)."""
        pieces = resolve(m, active, space, addresses, 8, "mbarrier")
        found = []
        for piece in pieces:
            if piece.region is not m.shared:
                m.report("memory", "space", "an mbarrier outside of shared memory", piece.slots)
                continue
            if m.checks.race is not None and fresh:
                m.checks.race.write(m, piece, 8)
            if m.checks.init is not None and fresh:
                m.checks.init.shared_written(piece.offsets, 8)
            ctas, inside = np.divmod(piece.offsets, m.shared_stride)
            for address in np.unique(inside).tolist():
                chosen = np.flatnonzero(inside == address)
                where = chosen if piece.where is None else piece.where[chosen]
                target = Target(self._object(int(address)), where, piece.slots[chosen], ctas[chosen])
                found += [target] if fresh else self._valid(m, target, instruction)
        return found

    def _object(self, address: int) -> Mbarrier:
        return self._objects.setdefault(address, Mbarrier.at(address, self._ctas))

    def _valid(self, m: Machine, target: Target, instruction: Instruction) -> list[Target]:
        valid = target.object.valid[target.ctas]
        if m.checks.order is not None:
            self._check_order(m, target, instruction)
        if valid.all():
            return [target]
        message = "no mbarrier was initialised here"
        m.report("sync", "invalid", message, target.slots[~valid], address=target.object.address, space="shared",
                 instruction=instruction)  # fmt: skip
        if not valid.any():
            return []
        return [Target(target.object, target.where[valid], target.slots[valid], target.ctas[valid])]

    def _check_order(self, m: Machine, target: Target, instruction: Instruction) -> None:
        known, ctas = target.object, target.ctas
        assert m.checks.order is not None
        era, time = known.made
        ordered = m.checks.order.ordered(target.slots, known.maker[ctas], era[ctas], time[ctas])
        wrong = known.valid[ctas] & ~ordered
        if wrong.any():
            message = "uses an mbarrier with no barrier behind its initialisation"
            m.report("race", "initialisation", message, target.slots[wrong], address=known.address, space="shared",
                     instruction=instruction)  # fmt: skip

    # What changes them

    def init(self, m: Machine, target: Target, counts: Array) -> None:
        """``mbarrier.init``."""
        known, ctas = target.object, target.ctas
        wrong = (counts < 1) | (counts > LARGEST)
        if wrong.any():
            m.report("sync", "count", f"the count is not between 1 and {LARGEST}", target.slots[wrong])
        again = known.valid[ctas]
        if again.any():
            m.report("sync", "again", "a valid mbarrier is initialised again", target.slots[again])
        known.valid[ctas] = True
        known.expected[ctas] = known.pending[ctas] = counts
        known.phase[ctas] = known.bytes[ctas] = 0
        known.maker[ctas] = target.slots
        if m.checks.order is not None:
            known.made[0][ctas], known.made[1][ctas] = m.checks.order.now(target.slots)
        if m.checks.proxy is not None:
            m.checks.proxy.initialised(known.address, target.slots, ctas)
        self.changes += 1

    def expect(self, m: Machine, target: Target, amounts: Array) -> None:
        """``expect_tx``: more bytes are pending in the current phase."""
        np.add.at(target.object.bytes, target.ctas, amounts)
        too_many = np.abs(target.object.bytes[target.ctas]) > LARGEST
        if too_many.any():
            m.report("sync", "bytes", f"more than {LARGEST} bytes are pending", target.slots[too_many])

    def arrive(self, m: Machine, target: Target, counts: Array, *, drop: bool = False) -> Array:
        """Threads arrive, each ``counts`` times. Returns the phase and what was pending before, as a state token."""
        known, ctas = target.object, target.ctas
        token = (known.pending[ctas] << 32) | known.phase[ctas]
        if m.checks.order is not None:
            m.checks.order.release(known.address, target.slots)
        if drop:
            np.subtract.at(known.expected, ctas, counts)
        left = np.bincount(ctas, counts, self._ctas).astype(np.int64)
        while left.any():
            taken = np.minimum(left, known.pending)
            known.pending -= taken
            left -= taken
            self._complete(m, known)
            stuck = (left > 0) & (known.pending == 0)
            if stuck.any():
                message = "more arrivals than the phase of the mbarrier expects"
                m.report("sync", "arrivals", message, target.slots[stuck[ctas]])
                break
        self.changes += 1
        return token.astype(np.uint64)

    def track(self, known: Mbarrier, landing: Landing) -> None:
        """An asynchronous copy will complete at ``known``."""
        known.landings.append(landing)
        self.changes += 1

    def _complete(self, m: Machine, known: Mbarrier) -> None:
        done = known.valid & (known.pending == 0) & (known.bytes == 0)
        if done.any():
            known.phase[done] += 1
            known.pending[done] = known.expected[done]
            if m.checks.order is not None:
                m.checks.order.publish(known.address, np.flatnonzero(done))

    # Waiting

    def passed(self, m: Machine, target: Target, wanted: Array, *, parity: bool) -> Mask:
        """Which threads' phase has completed: that of parity ``wanted``, or of the state token ``wanted``."""
        known, ctas = target.object, target.ctas
        done = self._over(known, ctas, wanted, parity)
        if not done.all() and known.landings:
            self._land(m, known, np.unique(ctas[~done]))
            done = self._over(known, ctas, wanted, parity)
        if m.checks.order is not None and done.any():
            m.checks.order.acquire(known.address, target.slots[done])
        return done

    def _over(self, known: Mbarrier, ctas: Index, wanted: Array, parity: bool) -> Mask:
        phase = known.phase[ctas]
        over: Mask = (phase & 1 != wanted) if parity else (phase != (wanted.astype(np.int64) & 0xFFFFFFFF))
        return over

    def _land(self, m: Machine, known: Mbarrier, ctas: Index) -> None:
        """What copies bring to ``ctas`` arrives, where nothing else is missing."""
        deferred = np.bincount([x.cta for x in known.landings], [x.arrivals for x in known.landings], self._ctas)
        ready = known.pending <= deferred
        ready &= (known.bytes != 0) | (deferred > 0)
        due = set(ctas[ready[ctas]].tolist())
        landing = [entry for entry in known.landings if entry.cta in due]
        known.landings = [entry for entry in known.landings if entry.cta not in due]
        for entry in landing:
            entry.land(m)
            known.bytes[entry.cta] -= entry.size
            known.pending[entry.cta] -= entry.arrivals
            if m.checks.order is not None:
                m.checks.order.release(known.address, np.array([entry.slot]))
        if landing:
            self._complete(m, known)
            self.changes += 1


def write_landed(m: Machine, piece: Piece, values: Array, *, bulk: bool = False) -> None:
    """Data of an asynchronous copy arrives in shared memory; that of a ``bulk`` one in the async proxy."""
    size = values.dtype.itemsize
    if m.checks.race is not None:
        m.checks.race.async_arrived(piece, size)
    if m.checks.init is not None:
        m.checks.init.shared_written(piece.offsets, size)
    if m.checks.proxy is not None:
        (m.checks.proxy.landed if bulk else m.checks.proxy.written)(piece)
    piece.region.view(size)[piece.offsets >> (size.bit_length() - 1)] = values
