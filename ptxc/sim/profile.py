"""The profile of a launch: what was executed how often, and how its memory accesses fell.

A warp instruction is one instruction executed by a warp's threads together. Threads that a branch parted and that
the scheduler has not joined again execute it apart, and count apart: what a GPU's scheduler would join may differ.

Global memory is counted in sectors of 32 bytes: how many a request of a warp touches, and in how few its bytes would
fit. Shared memory has 32 banks of 4 bytes: a request takes as many passes as a bank has different words of it;
accesses of 8 and 16 bytes are made by half and quarter warps.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from ptxc.sim.convert import CONVERT
from ptxc.sim.logic import LOGIC
from ptxc.sim.program import Instruction
from ptxc.sim.warp import COLLECTIVES, WARP_STATE

if TYPE_CHECKING:
    from ptxc.sim.access import Piece
    from ptxc.sim.kernel import Block
    from ptxc.sim.machine import Active, Machine
    from ptxc.sim.scalar import Array, Index

SECTOR = 32
"""Bytes of a sector of global memory."""

BANKS = 32
"""Banks of shared memory, of 4 bytes each."""


@dataclass(slots=True)
class Traffic:
    """Requests of warps to a memory, the sectors or passes that they took, and the fewest that would have done."""

    requests: int = 0
    taken: int = 0
    ideal: int = 0

    def add(self, other: Traffic) -> None:
        """Count ``other`` in."""
        self.requests += other.requests
        self.taken += other.taken
        self.ideal += other.ideal


@dataclass(slots=True)
class LineProfile:
    """An instruction of a line of the PTX text: how often warps executed it, and the threads that were active then."""

    line: int
    instruction: str
    kind: str
    warps: int = 0
    threads: int = 0
    global_memory: Traffic = field(default_factory=Traffic)
    shared_memory: Traffic = field(default_factory=Traffic)


class Profile:
    """Counts over all batches of a launch, by line of the text, and by instruction where a line has several."""

    def __init__(self) -> None:
        self._lines: dict[tuple[int, str], LineProfile] = {}
        self._seen: tuple[Active | None, int] = (None, 0)

    @property
    def lines(self) -> list[LineProfile]:
        """Every line that was executed, in the text's order."""
        return sorted(self._lines.values(), key=lambda line: line.line)

    def _line(self, instruction: Instruction) -> LineProfile:
        key = (instruction.line, instruction.spelling)
        found = self._lines.get(key)
        if found is None:
            found = self._lines[key] = LineProfile(*key, kind_of(instruction))
        return found

    # ------------------------------------------------------------------------------- what the device reports

    def block(self, block: Block, active: Active) -> None:
        """``active`` threads execute a block."""
        warps, threads = self._warps(active), active.index.size
        instructions = [instruction for instruction, _ in block.actions]
        if len(instructions) < block.length:
            instructions.append(block.last)
        for instruction in instructions:
            line = self._line(instruction)
            line.warps += warps
            line.threads += threads

    def _warps(self, active: Active) -> int:
        """How many warps ``active`` threads are of."""
        if self._seen[0] is not active:
            self._seen = (active, count_groups(active.index, 32))
        return self._seen[1]

    def predicated_off(self, instruction: Instruction, threads: int) -> None:
        """So many of the threads that execute ``instruction`` do not, as its guard is false."""
        self._line(instruction).threads -= threads

    def access(self, m: Machine, active: Active, pieces: Iterable[Piece], size: int) -> None:
        """The current instruction accesses ``size`` bytes at each place of ``pieces``."""
        if m.instruction is None:
            return
        line = self._line(m.instruction)
        for piece in pieces:
            if piece.region is m.shared:
                line.shared_memory.add(bank_passes(piece.offsets, piece.slots, size))
            elif piece.region.space == "global":
                alike = piece.slots.size == 1 and piece.where is None
                warps = self._warps(active) if alike else 1
                line.global_memory.add(_times(sectors(piece.offsets, piece.slots, size), warps))

    # ------------------------------------------------------------------------------------------- what it says

    def kinds(self) -> dict[str, tuple[int, int]]:
        """Warp instructions and active threads by kind, the most frequent first."""
        found: dict[str, tuple[int, int]] = {}
        for line in self._lines.values():
            warps, threads = found.get(line.kind, (0, 0))
            found[line.kind] = (warps + line.warps, threads + line.threads)
        return dict(sorted(found.items(), key=lambda item: (-item[1][0], item[0])))

    @property
    def warps(self) -> int:
        """Warp instructions."""
        return sum(line.warps for line in self._lines.values())

    @property
    def threads(self) -> int:
        """Instructions of threads."""
        return sum(line.threads for line in self._lines.values())

    @property
    def active_lanes(self) -> float:
        """How many of a warp's 32 lanes are active in an instruction, on average."""
        return self.threads / self.warps if self.warps else 0.0

    def barriers(self) -> int:
        """How often a warp executed a barrier of its CTA."""
        return sum(line.warps for line in self._lines.values() if line.kind == "barrier")

    def traffic(self, memory: str) -> Traffic:
        """The requests of all lines to ``global`` or ``shared`` memory."""
        total = Traffic()
        for line in self._lines.values():
            total.add(line.global_memory if memory == "global" else line.shared_memory)
        return total

    def hottest(self, count: int) -> list[LineProfile]:
        """The lines with the most warp instructions and extra passes."""
        return sorted(self._lines.values(), key=lambda line: (-_cost(line), line.line))[:count]

    def to_dict(self) -> dict[str, Any]:
        """All of it, as JSON takes it."""
        kinds = {kind: {"warps": warps, "threads": threads} for kind, (warps, threads) in self.kinds().items()}
        return {
            "warp_instructions": self.warps,
            "thread_instructions": self.threads,
            "active_lanes": self.active_lanes,
            "barriers": self.barriers(),
            "global": asdict(self.traffic("global")),
            "shared": asdict(self.traffic("shared")),
            "kinds": kinds,
            "lines": [asdict(line) for line in self.lines],
        }


def _times(traffic: Traffic, warps: int) -> Traffic:
    """The same in each of ``warps``."""
    return Traffic(traffic.requests * warps, traffic.taken * warps, traffic.ideal * warps)


def _cost(line: LineProfile) -> int:
    extra = sum(memory.taken - memory.requests for memory in (line.global_memory, line.shared_memory))
    return line.warps + max(extra, 0)


def count_groups(slots: Index, size: int) -> int:
    """How many groups of ``size`` slots ``slots``, in ascending order, are of."""
    return 1 + int(np.count_nonzero(np.diff(slots // size))) if slots.size else 0


def sectors(offsets: Array, slots: Index, size: int) -> Traffic:
    """The sectors that requests of warps touch: thread ``slots[i]`` accesses ``size`` bytes at ``offsets[i]``."""
    warp = slots >> 5
    touched = np.unique((warp << 48) | offsets // SECTOR).size
    elements = np.unique((warp << 48) | offsets // size) >> 48
    _, counts = np.unique(elements, return_counts=True)
    return Traffic(counts.size, touched, int((-(-counts * size // SECTOR)).sum()))


def bank_passes(offsets: Array, slots: Index, size: int) -> Traffic:
    """The passes that requests to shared memory take, and how many groups of lanes there are to serve."""
    words = max(size // 4, 1)
    group = slots // (32 // words)
    each = np.arange(words)
    keys = np.unique(((group << 32)[:, None] | ((offsets >> 2)[:, None] + each)).reshape(-1))
    owner, word = keys >> 32, keys & 0xFFFFFFFF
    first = int(owner[0])
    counts = np.bincount((owner - first) * BANKS + word % BANKS)
    rows = np.zeros(-(-counts.size // BANKS) * BANKS, np.int64)
    rows[: counts.size] = counts
    passes = rows.reshape(-1, BANKS).max(1)
    return Traffic(count_groups(slots, 32), int(passes.sum()), int(np.count_nonzero(passes)))


# ------------------------------------------------------------------------------------------------------- kinds

_SPACES = ("global", "shared", "shared::cta", "local", "param", "const")
_ACCESS = {"ld": "load", "ldu": "load", "st": "store", "atom": "atomic", "red": "atomic"}
_MATRICES = {"ldmatrix": "load shared", "stmatrix": "store shared"}
_KINDS: dict[str, Container[str]] = {
    "branch": {"bra", "brx", "exit", "ret", "trap", "call"},
    "warp": {*COLLECTIVES, *WARP_STATE},
    "matrix": {"mma", "wgmma", "movmatrix"},
    "barrier": {"mbarrier"},
    "move": {"mov", "cvta"},
    "logic": LOGIC,
    "convert": CONVERT,
}
_FLOATS = {"f16", "f16x2", "bf16", "bf16x2", "f32", "f32x2", "f64"}


def kind_of(instruction: Instruction) -> str:
    """What an instruction is counted as: ``load global``, ``float``, ``integer``, ``barrier``, ..."""
    opcode, modifiers = instruction.opcode, instruction.modifiers
    if opcode in _ACCESS:
        space = next((name.partition("::")[0] for name in modifiers if name in _SPACES), "generic")
        return f"{_ACCESS[opcode]} {space}"
    if opcode in _MATRICES:
        return _MATRICES[opcode]
    if opcode == "cp":
        return "asynchronous copy"
    if opcode in {"bar", "barrier"}:
        return "warp" if "warp" in modifiers else "barrier"
    for kind, opcodes in _KINDS.items():
        if opcode in opcodes:
            return kind
    return "float" if not _FLOATS.isdisjoint(modifiers) else "integer"
