"""The scheduler: which threads run which block next.

Threads at the same block run together, whatever warp or CTA they are in. Of all blocks at which threads are ready,
the one of the lowest rank runs (``ptxc.sim.cfg``), so that threads meet again where their paths join; nothing relies
on that but the speed and ``activemask``. Threads that wait, at a barrier or for the other lanes of a warp operation,
are not ready until what they wait for has happened; if none is ready and some wait, that is a deadlock.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ptxc.sim import warp
from ptxc.sim.barrier import Barriers
from ptxc.sim.kernel import BarrierEnd, Block, Branch, CollectiveEnd, Exit, FallThrough, IndexedBranch, Kernel, Trap
from ptxc.sim.machine import Active, Machine, Stop
from ptxc.sim.scalar import Array, Index

TICK = 2000
"""How many instructions are issued between two reports of how far a batch is: some hundredths of a second."""

PATIENCE = 64
"""How many blocks of loops that may wait for other threads run before those threads get a turn."""


@dataclass(frozen=True, slots=True, eq=False)
class _Waiting:
    """Threads that wait for other lanes, and the block where they go on."""

    collective: warp.Collective
    active: Active
    next_block: int


class Scheduler:
    """Runs one batch of CTAs to its end."""

    def __init__(self, kernel: Kernel, m: Machine, max_steps: int, tick: Callable[[int], None] | None = None) -> None:
        """``tick`` is called now and then with the instructions that were issued."""
        self._kernel = kernel
        self._m = m
        self._limit = max_steps
        self._tick = tick
        #: When to look up from the work: the one comparison serves the limit and the reports.
        self._pause = max_steps if tick is None else min(TICK, max_steps)
        self._ready: dict[int, list[Active]] = {}
        self._barriers = Barriers(m)
        self._lanes: dict[str, list[_Waiting]] = {}
        self._gathering: dict[int, Index] = {}
        self._polled = 0
        self.threads_executed = [0] * len(kernel.blocks)

    def run(self) -> None:
        """Until every thread has exited. Raises Stop where that cannot be; the finding is noted then."""
        m = self._m
        self._ready[0] = [Active(np.flatnonzero(m.live), True)]
        blocks = self._kernel.blocks
        while self._ready:
            at = self._choose()
            active = self._join(self._ready.pop(at))
            if blocks[at].gathers and not active.full:
                active = self._gather(at, active, blocks[at].gathers)
            if active.index.size:
                self._run_block(at, blocks[at], active)
            if m.issued > self._pause:
                self._look_up(active)
            if not self._ready:
                self._finish()

    def _look_up(self, active: Active) -> None:
        issued = self._m.issued
        if issued > self._limit:
            self._out_of_steps(active)
        if self._tick is not None:
            self._tick(issued)
            self._pause = min(issued + TICK, self._limit)

    def _choose(self) -> int:
        if len(self._ready) == 1:
            return next(iter(self._ready))
        blocks = self._kernel.blocks
        by_rank = sorted(self._ready, key=lambda at: blocks[at].rank)
        if blocks[by_rank[0]].polls:
            self._polled += 1
            if self._polled % PATIENCE == 0:
                return by_rank[self._polled // PATIENCE % len(by_rank)]
        return by_rank[0]

    def _join(self, parts: list[Active]) -> Active:
        """One set of threads out of several, and whether that is all there are."""
        index = parts[0].index
        if len(parts) > 1:
            index = np.sort(np.concatenate([part.index for part in parts]))
        full = index.size == self._m.live_count
        return parts[0] if len(parts) == 1 and parts[0].full == full else Active(index, full)

    def _gather(self, at: int, active: Active, size: int) -> Active:
        """Those of ``active`` whose group of ``size`` threads is at block ``at`` as a whole; the others wait."""
        m = self._m
        waiting = self._gathering.pop(at, None)
        if waiting is not None:
            active = self._join([active, Active(waiting, False)])
        here = np.zeros(m.threads, np.bool_)
        here[active.index] = True
        groups = (here | ~m.live).reshape(len(m.geometry.ctas), -1)
        pad = -groups.shape[1] % size
        complete = np.pad(groups, ((0, 0), (0, pad)), constant_values=True).reshape(-1, size).all(1)
        goes = np.repeat(complete, size).reshape(groups.shape[0], -1)[:, : groups.shape[1]].reshape(-1)[active.index]
        if goes.all():
            return active
        self._gathering[at] = active.index[~goes]
        return Active(active.index[goes], False)

    def _run_block(self, at: int, block: Block, active: Active) -> None:
        m = self._m
        self.threads_executed[at] += active.index.size
        if m.profile is not None:
            m.profile.block(block, active)
        for instruction, action in block.actions:
            m.instruction = instruction
            action(m, active)
        m.issued += block.length
        m.instruction = block.last
        self._END[type(block.end)](self, at, block, active)

    def _send(self, at: int, active: Active) -> None:
        self._ready.setdefault(at, []).append(active)

    # How a block ends

    def _fall_through(self, at: int, block: Block, active: Active) -> None:
        self._send(at + 1, active)

    def _split(self, block: Block, active: Active) -> tuple[Active | None, Active | None]:
        """The threads in which the block's last instruction's guard holds, and the others."""
        if block.guard is None:
            return active, None
        condition = block.guard(self._m, active)
        return self._m.select(active, condition), self._m.select(active, ~condition)

    def _branch(self, at: int, block: Block, active: Active) -> None:
        assert isinstance(block.end, Branch)
        taken, others = self._split(block, active)
        if taken is not None:
            self._send(block.end.target, taken)
        if others is not None:
            self._send(at + 1, others)

    def _indexed_branch(self, at: int, block: Block, active: Active) -> None:
        assert isinstance(block.end, IndexedBranch)
        m = self._m
        taken, others = self._split(block, active)
        if others is not None:
            self._send(at + 1, others)
        if taken is None:
            return
        targets = block.end.targets
        choice = block.end.index(m, taken)
        for number, target in enumerate(targets):
            part = m.select(taken, choice == number)
            if part is not None:
                self._send(target, part)
        beyond = m.select(taken, choice >= len(targets))
        if beyond is not None:
            m.report("trap", "brx", f"the index exceeds the {len(targets)} targets", beyond.index)
            raise Stop

    def _exit(self, at: int, block: Block, active: Active) -> None:
        m = self._m
        leaving, others = self._split(block, active)
        if others is not None:
            self._send(at + 1, others)
        if leaving is None:
            return
        m.live[leaving.index] = False
        m.live_count -= leaving.index.size
        if others is None and leaving.full:
            return
        if m.checks.order is not None:
            m.checks.order.exited(leaving.index)
        for name in {name for name, _ in self._barriers.waiting}:
            self._resume(self._barriers.release(name))
        for key in list(self._lanes):
            self._meet(key)
        for at, index in list(self._gathering.items()):
            del self._gathering[at]
            self._send(at, Active(index, index.size == m.live_count))

    def _trap(self, at: int, block: Block, active: Active) -> None:
        trapped, others = self._split(block, active)
        if others is not None:
            self._send(at + 1, others)
        if trapped is not None:
            self._m.report("trap", "trap", "the kernel executes a trap", trapped.index)
            raise Stop

    def _barrier(self, at: int, block: Block, active: Active) -> None:
        assert isinstance(block.end, BarrierEnd)
        arriving, others = self._split(block, active)
        if others is not None:
            self._send(at + 1, others)
        if arriving is not None:
            self._resume(self._barriers.arrive(block.end.operation, arriving, at + 1))

    def _resume(self, going: list[tuple[int, Index]]) -> None:
        for at, index in going:
            self._send(at, Active(index, index.size == self._m.live_count))

    # Warp operations

    def _collective(self, at: int, block: Block, active: Active) -> None:
        assert isinstance(block.end, CollectiveEnd)
        m, collective = self._m, block.end.collective
        taking, others = self._split(block, active)
        if others is not None:
            self._send(at + 1, others)
        if taking is None:
            return
        if collective.mask is None or (collective.key not in self._lanes and self._all_here(collective, taking)):
            warp.execute(m, [(collective, taking)])
            self._send(at + 1, taking)
            return
        self._lanes.setdefault(collective.key, []).append(_Waiting(collective, taking, at + 1))
        self._meet(collective.key)

    def _all_here(self, collective: warp.Collective, active: Active) -> bool:
        m = self._m
        assert collective.mask is not None
        masks = m.compress(collective.mask(m, active), active)
        here = warp.ballot(m, active)
        if m.checks.sync:
            self._check_mask(collective, active, masks)
        if masks.size == 1 and (masks[0] & ~here == 0).all():
            return True
        return not self._absent(masks, here, active.index).any()

    def _absent(self, masks: Array, here: Array, index: Index) -> Array:
        """For each thread, the lanes that its mask names, that have not exited, and that are not ``here``."""
        live = warp.mask_bits(self._m.live)
        return masks & (live & ~here)[index // 32]

    def _check_mask(self, collective: warp.Collective, active: Active, masks: Array) -> None:
        m = self._m
        index = active.index
        masks = np.broadcast_to(masks, index.shape)
        outside = (masks >> (index % 32).astype(np.uint32) & np.uint32(1)) == 0
        if outside.any():
            message = "the mask does not name the thread that executes it"
            m.report("sync", "own lane", message, index[outside], instruction=collective.instruction)
        gone = warp.mask_bits(m.geometry.exists & ~m.live)[index // 32] & masks
        if gone.any():
            message = "the mask names threads that have exited"
            m.report("sync", "exited lanes", message, index[gone != 0], instruction=collective.instruction)

    def _meet(self, key: str) -> None:
        """Let those go whose mask's threads are all waiting at operations of this key, with the same mask."""
        m = self._m
        waiting = self._lanes.pop(key, [])
        masks = np.zeros(m.threads, np.uint32)
        here = np.zeros(m.threads, np.bool_)
        for entry in waiting:
            assert entry.collective.mask is not None
            masks[entry.active.index] = m.compress(entry.collective.mask(m, entry.active), entry.active)
            here[entry.active.index] = True
        index = np.flatnonzero(here)
        lanes = masks.reshape(-1, 32)
        same = np.zeros(m.threads, np.uint32)
        for lane in range(32):
            agrees = (lanes == lanes[:, lane : lane + 1]) & here.reshape(-1, 32)
            same[lane::32] = warp.mask_bits(agrees)
        live = warp.mask_bits(m.live)[index // 32]
        goes = np.zeros(m.threads, np.bool_)
        goes[index] = (masks[index] & live & ~same[index]) == 0
        parts, left = [], []
        for entry in waiting:
            chosen = goes[entry.active.index]
            if chosen.any():
                part = Active(entry.active.index[chosen], False)
                parts.append((entry.collective, part))
                self._send(entry.next_block, part)
            if not chosen.all():
                rest = Active(entry.active.index[~chosen], False)
                left.append(_Waiting(entry.collective, rest, entry.next_block))
        if left:
            self._lanes[key] = left
        if parts:
            warp.execute(m, parts)

    # The end

    def _finish(self) -> None:
        m = self._m
        if not m.live_count:
            return
        for name, entry in self._barriers.waiting:
            message = f"waits at barrier {name}, which can never complete: {self._elsewhere(entry.index)}"
            m.report("sync", f"barrier {name}", message, entry.index, instruction=entry.operation.instruction)
        for key, waiting in self._lanes.items():
            for lanes in waiting:
                message = f"waits for lanes that never come: {self._elsewhere(lanes.active.index)}"
                m.report("sync", key, message, lanes.active.index, instruction=lanes.collective.instruction)
        for at, index in self._gathering.items():
            message = f"waits for threads that never come: {self._elsewhere(index)}"
            instruction = self._kernel.blocks[at].first
            m.report("sync", f"gather {at}", message, index, instruction=instruction)
        raise Stop

    def _elsewhere(self, index: Index) -> str:
        """Where the other threads of the first waiting thread's CTA are."""
        m = self._m
        slots = m.geometry.slots
        first = int(index[0]) // slots * slots
        exists, live = m.geometry.exists[first : first + slots], m.live[first : first + slots]
        parts = [f"{int((exists & ~live).sum())} threads of its CTA have exited"]
        places = [(f"barrier {name}", e.operation.instruction.line, e.index) for name, e in self._barriers.waiting]
        for waiting in self._lanes.values():
            places += [(w.collective.key, w.collective.instruction.line, w.active.index) for w in waiting]
        for block, waiting_here in self._gathering.items():
            first_here = self._kernel.blocks[block].first
            places.append((first_here.spelling, first_here.line, waiting_here))
        for what, line, at in places:
            count = int(((at >= first) & (at < first + slots)).sum())
            if count:
                parts.append(f"{count} wait at {what} in line {line}")
        return ", ".join(parts)

    def _out_of_steps(self, active: Active) -> None:
        message = f"the step limit of {self._limit} instructions is reached; is there an endless loop?"
        self._m.report("limit", "steps", message, active.index)
        raise Stop

    _END: ClassVar[dict[type, Callable[[Scheduler, int, Block, Active], None]]] = {
        FallThrough: _fall_through,
        Branch: _branch,
        IndexedBranch: _indexed_branch,
        Exit: _exit,
        Trap: _trap,
        BarrierEnd: _barrier,
        CollectiveEnd: _collective,
    }
