"""The state of a batch of CTAs while it runs: threads, registers, memory.

Everything is an array with one element a thread slot. A value that is the same in all threads has one element
instead, and NumPy's broadcasting does the rest: loop counters, parameters and addresses that no thread changes cost
next to nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from ptxc.sim.findings import THREADS_NAMED, Finding, Findings
from ptxc.sim.geometry import Geometry
from ptxc.sim.memory import GlobalMemory, Region
from ptxc.sim.program import Extent, Instruction, Program
from ptxc.sim.scalar import Array, Index, Mask

if TYPE_CHECKING:
    from ptxc.sim.asynchronous import CopyQueue
    from ptxc.sim.global_race import GlobalRaceCheck
    from ptxc.sim.initialization import InitCheck
    from ptxc.sim.mbarrier import Mbarriers
    from ptxc.sim.order import Order
    from ptxc.sim.profile import Profile
    from ptxc.sim.proxy import ProxyCheck
    from ptxc.sim.race import SharedRaceCheck
    from ptxc.sim.wgmma import WarpgroupQueue


class Stop(Exception):
    """The launch cannot go on; the finding that says why is noted already."""


@dataclass(frozen=True, slots=True, eq=False)
class Active:
    """The threads that execute an instruction: their slots, in ascending order.

    ``full`` says that no other thread is left in the batch. Values then keep one element a slot, those of exited
    threads and padding being meaningless; otherwise they have one element for each of ``index``.
    """

    index: Index
    full: bool


@dataclass(slots=True)
class Checks:
    """The checkers that a launch asked for, each None when it is off. ``order`` is what the race checks look at."""

    init: InitCheck | None = None
    order: Order | None = None
    race: SharedRaceCheck | None = None
    global_race: GlobalRaceCheck | None = None
    proxy: ProxyCheck | None = None
    sync: bool = False
    memory: bool = False


@dataclass(slots=True)
class Machine:
    """A batch of CTAs.

    ``registers`` holds an array or None (never written) for each register of the program. Arrays are never changed
    in place, so that several registers may share one. ``watched`` are the registers of ``wgmma`` products.
    ``shared`` holds the batch's CTAs one behind the other, ``shared_stride`` bytes each, ``local`` likewise its
    threads. ``read_only`` are the regions that ``ld.global.nc`` reads, ``written`` those that something writes, with
    the first slot that does.
    """

    program: Program
    geometry: Geometry
    memory: GlobalMemory
    parameters: Region
    shared: Region
    shared_stride: int
    shared_extents: list[Extent]
    local: Region
    local_stride: int
    dynamic_shared: int
    findings: Findings
    copies: CopyQueue
    mbarriers: Mbarriers
    products: WarpgroupQueue
    checks: Checks
    profile: Profile | None = None
    registers: list[Array | None] = field(default_factory=list)
    live: Mask = field(default_factory=lambda: np.zeros(0, np.bool_))
    live_count: int = 0
    issued: int = 0
    watched: frozenset[int] = frozenset()
    instruction: Instruction | None = None
    read_only: dict[Region, Instruction] = field(default_factory=dict)
    written: dict[Region, tuple[Instruction, int]] = field(default_factory=dict)
    shared_base: Index = field(default_factory=lambda: np.zeros(0, np.intp))
    _special: dict[str, Array] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.registers = [None] * len(self.program.registers)
        self.watched = self.products.watched
        self.live = self.geometry.exists.copy()
        self.live_count = int(self.live.sum())
        self.shared_base = self.geometry.cta_of_slot * self.shared_stride

    @property
    def threads(self) -> int:
        """How many slots there are."""
        return self.geometry.threads

    @property
    def total_shared(self) -> int:
        """Bytes of shared memory that a CTA has, gaps left out."""
        return sum(extent.end - extent.start for extent in self.shared_extents)

    # Registers

    def undefined(self, index: int, active: Active) -> Array:
        """The value of a register that nothing has written: zero, and a finding where that is checked."""
        register = self.program.registers[index]
        if self.checks.init is not None:
            self.checks.init.never_written(self, register, active)
        return np.zeros(1, register.type.dtype)

    def write(self, index: int, values: Array, active: Active) -> None:
        """Set a register in the ``active`` threads to ``values``, which no one may change afterwards."""
        if index in self.watched:
            self.products.touched(self, index, active, writing=True)
        if self.checks.init is not None:
            self.checks.init.register_written(index, active)
        if active.full:
            self.registers[index] = values
            return
        old = self.registers[index]
        if old is None:
            new = np.zeros(self.threads, values.dtype)
        elif old.size == 1:
            new = np.repeat(old.view(values.dtype), self.threads)
        else:
            new = old.view(values.dtype).copy()
        new[active.index] = values
        self.registers[index] = new

    def compress(self, values: Array, active: Active) -> Array:
        """``values`` of an instruction, with one element for each of ``active.index`` (or one for all)."""
        if values.size == 1 or not active.full or active.index.size == self.threads:
            return values
        return values.take(active.index)

    def expand(self, values: Array, active: Active) -> Array:
        """``values`` with one element for each active thread, as an instruction's result must have."""
        if values.size == 1 or not active.full or active.index.size == self.threads:
            return values
        return self.spread(values, active)

    def spread(self, values: Array, active: Active) -> Array:
        """``values`` with one element a slot; slots that are not active hold zero or anything."""
        if values.size == self.threads:
            return values
        if values.size == 1:
            return np.repeat(values, self.threads)
        out = np.zeros(self.threads, values.dtype)
        out[active.index] = values
        return out

    def select(self, active: Active, condition: Array) -> Active | None:
        """Those ``active`` threads for which ``condition`` holds; None if there are none."""
        if condition.size == 1:
            return active if condition[0] else None
        condition = self.compress(condition, active)
        count = np.count_nonzero(condition)
        if count == active.index.size:
            return active
        return Active(active.index[condition], False) if count else None

    def special(self, name: str) -> Array:
        """The value of a special register."""
        found = self._special.get(name)
        if found is None:
            from ptxc.sim.special import SPECIAL_REGISTERS

            found = SPECIAL_REGISTERS[name](self)
            if "clock" not in name and "timer" not in name:
                self._special[name] = found
        return found

    # Faults

    def report(
        self,
        check: str,
        kind: str,
        message: str,
        slots: Index,
        *,
        address: int | None = None,
        space: str = "",
        instruction: Instruction | None = None,
    ) -> None:
        """Note a finding of the threads in ``slots`` (the first names the CTA) at the current instruction."""
        at = instruction or self.instruction
        cta, _ = self.geometry.place(int(slots[0])) if slots.size else ((0, 0, 0), 0)
        same = slots[slots // self.geometry.slots == slots[0] // self.geometry.slots] if slots.size else slots
        each = list(dict.fromkeys(same.tolist()))  # a thread may meet it several times at once
        threads = tuple(slot % self.geometry.slots for slot in each[:THREADS_NAMED])
        finding = Finding(
            check, message, at.line if at else 0, at.spelling if at else "", cta, threads, address, space,
            max(np.unique(slots).size, 1),
        )  # fmt: skip
        self.findings.add(finding, kind)
