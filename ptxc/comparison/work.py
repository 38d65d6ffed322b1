"""The hottest region of a kernel's SASS, and what it takes for a unit of the work that it is there to do.

Two builds unroll a loop differently, so that neither the instructions of its body nor those of an iteration compare.
Instructions for a unit of work do:

- `PRODUCT`, where either build has tensor core instructions: 2,048 multiply-adds of a warp, an HMMA.16816;
- `FLOAT`, else, where a loop of either build has arithmetic on floats: one such instruction (FFMA, FADD, FMUL, FMNMX,
  MUFU, ..., of any width);
- `WORD`, else, where a loop moves global memory: 4 bytes that a thread loads or stores (LDG, STG, LDGSTS);
- `KERNEL`, else: the whole kernel is one unit.

The *hottest* loop is, of the loops with such work that contain no other loop with such work, the one with most of it;
of equals the first. If two builds' hottest loops do not do the same, the hottest that do are compared
(:func:`hottest_of`). Loops inside it that lack the work, as those that wait for an mbarrier or elect a thread, are
part of it. Where a build has no loop with the work, as its compiler unrolled it away, all instructions of the kernel
that can be reached are its region. A kernel without any loop is that in both builds, and `FLOAT`, `WORD` or `KERNEL`
is chosen by what the kernel has as a whole.

Each instruction counts once, whether or not all threads or all iterations execute it: a guarded block counts in full.
The address of a load that is hoisted out of the loop counts nothing, as it should.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from ptxc.comparison.loops import Loop, loops, reached, size
from ptxc.comparison.sass import SIZE, Instruction, Kind


class Unit(StrEnum):
    """What a kernel's work is counted in."""

    PRODUCT = "product"
    FLOAT = "float"
    WORD = "word"
    KERNEL = "kernel"


#: How many times the global memory for a unit of work two loops that do the same may differ by.
ALIKE = 1.1


@dataclass(frozen=True)
class Region:
    """A loop, or the kernel as a whole: its instructions by kind, and the work that they do."""

    #: The address of the loop's first instruction; None for the whole kernel.
    address: int | None
    #: How many loops it is in, itself included.
    depth: int
    instructions: int
    kinds: Mapping[Kind, int]
    #: The work in each unit.
    work: Mapping[Unit, float]
    #: The words of global memory that are stored, of those in ``work``.
    stored: float
    #: Which loops, by their place among the kernel's, are in it and in no loop between.
    inner: tuple[int, ...] = ()

    def per_work(self, unit: Unit, kind: Kind | None = None) -> float:
        """Instructions, all or of one kind, for a unit of work, of which there must be some."""
        return (self.instructions if kind is None else self.kinds.get(kind, 0)) / self.work[unit]


@dataclass(frozen=True)
class Code:
    """The SASS of one kernel."""

    #: Instructions in all, without the padding at the end.
    size: int
    #: What can be reached of them.
    whole: Region
    #: Outer ones before those in them.
    loops: tuple[Region, ...]

    def works(self, unit: Unit, *, in_loops: bool = False) -> bool:
        """Whether the kernel, or a loop of it, does such work."""
        return any(region.work[unit] for region in (self.loops if in_loops else (self.whole,)))

    def working(self, unit: Unit) -> list[Region]:
        """The loops with such work that contain no other loop with such work."""
        if unit is Unit.KERNEL:
            return []
        return [
            loop for loop in self.loops if loop.work[unit] and not any(self.loops[at].work[unit] for at in loop.inner)
        ]

    def hottest(self, unit: Unit) -> Region:
        """The hottest loop, or the whole kernel."""
        return max(self.working(unit), key=lambda loop: loop.work[unit], default=self.whole)


def analyse(instructions: Sequence[Instruction]) -> Code:
    """The figures of a kernel's SASS."""
    found = loops(instructions)
    whole = Loop(0, reached(instructions), depth=0)
    regions = tuple(_region(instructions, loop, [found.index(inner) for inner in loop.inner]) for loop in found)
    return Code(size(instructions), _region(instructions, whole, None), regions)


def _region(instructions: Sequence[Instruction], loop: Loop, inner: Collection[int] | None) -> Region:
    """The figures of a loop, or of the whole kernel where ``inner`` is None."""
    body = [instructions[at] for at in loop.body]
    work = {
        Unit.PRODUCT: sum(one.products for one in body),
        Unit.FLOAT: float(sum(one.floats for one in body)),
        Unit.WORD: sum(one.global_bytes for one in body) / 4,
        Unit.KERNEL: 1.0,
    }
    address = loop.head * SIZE if inner is not None else None
    stored = sum(one.global_bytes for one in body if one.stores) / 4
    return Region(address, loop.depth, len(body), Counter(one.kind for one in body), work, stored, tuple(inner or ()))


def common_unit(builds: Sequence[Code]) -> Unit:
    """The unit in which the work of all builds of a kernel is counted."""
    if all(code.works(Unit.PRODUCT) for code in builds):
        return Unit.PRODUCT
    shared = [unit for unit in (Unit.FLOAT, Unit.WORD) if all(code.works(unit) for code in builds)]
    in_loops = [unit for unit in shared if any(code.works(unit, in_loops=True) for code in builds)]
    return next(iter([*in_loops, *shared]), Unit.KERNEL)


def hottest_of(ours: Code, theirs: Code, unit: Unit) -> tuple[Region, Region]:
    """What to compare of two builds of a kernel: their hottest regions.

    Where these are not alike, as bodies are unrolled differently and another of the kernel's loops has most work then,
    the hottest of our loops that are alike to one of theirs, and that; each must have half of the hottest one's work.
    """
    hottest = ours.hottest(unit), theirs.hottest(unit)
    if alike(*hottest, unit):
        return hottest
    hot = [
        [loop for loop in code.working(unit) if 2 * loop.work[unit] >= most.work[unit]]
        for code, most in zip((ours, theirs), hottest, strict=True)
    ]
    pairs = [(one, other) for one in hot[0] for other in hot[1] if alike(one, other, unit)]
    return max(pairs, key=lambda pair: (pair[0].work[unit], pair[1].work[unit]), default=hottest)


def alike(one: Region, other: Region, unit: Unit) -> bool:
    """Whether the hottest regions of two builds are of one sort: both loops or both kernels, that load and store as
    much global memory for a unit of work. Where they are not, a loop is unrolled away in one, or work moved out of it.
    """
    if (one.address is None) != (other.address is None):
        return False
    words = [region.work[Unit.WORD] / region.work[unit] for region in (one, other)]
    stored = [region.stored / region.work[unit] for region in (one, other)]
    return max(words) <= ALIKE * min(words) and max(stored) <= ALIKE * min(stored)
