"""What ``wgmma.mma_async`` leaves to do until it is waited for (PTX ISA 9.7.17.5.2 and 9.7.17.7).

A product is computed when it is issued. Its registers get the result when it is waited for, as late as hardware may
do it; products in flight that accumulate in the same registers see each other's results. Until then the registers of
D must not be accessed, those of A not be written (9.7.17.7.3), and the matrices in shared memory not be written.
A ``wgmma.fence`` must stand before a warpgroup's first product, and between any other access to a product's registers
and the product (9.7.17.7.1). A ``mov`` is no access in this: nvcc begins products with copies of registers, behind the
fence, which are gone when ptxas has allocated them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from ptxc.sim.access import Piece
from ptxc.sim.machine import Active, Machine
from ptxc.sim.program import Instruction, Program, Register, Vector
from ptxc.sim.scalar import Array, Index, Mask


@dataclass(slots=True, eq=False)
class Product:
    """The part of one instruction that is in flight: ``values[r]`` will be in ``registers[r]`` of threads ``index``.

    ``reads`` are the bytes of shared memory that it reads, ``sources`` the registers of A.
    """

    instruction: Instruction
    index: Index
    registers: tuple[int, ...]
    sources: frozenset[int]
    values: Array
    groups: Array
    reads: Piece | None


def registers_of_products(program: Program) -> frozenset[int]:
    """The registers that some product of ``program`` has as D or A."""
    operands = [
        operand
        for item in program.instructions
        if item.opcode == "wgmma" and "mma_async" in item.modifiers
        for operand in item.operands
        if isinstance(operand, Vector)
    ]
    return frozenset(part.index for operand in operands for part in operand.elements if isinstance(part, Register))


@dataclass(slots=True)
class WarpgroupQueue:
    """The products in flight, oldest first.

    ``watched`` are all registers of products; ``committed`` counts each thread's groups, ``unfenced`` says for each
    watched register which threads must execute a fence before a product uses it.
    """

    threads: int
    watched: frozenset[int]
    pending: list[Product] = field(default_factory=list)
    committed: Array = field(default_factory=lambda: np.zeros(0, np.int32))
    unfenced: dict[int, Mask] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.committed = np.zeros(self.threads, np.int32)
        self.unfenced = {register: np.ones(self.threads, np.bool_) for register in sorted(self.watched)}

    def fence(self, active: Active) -> None:
        """``wgmma.fence``."""
        for threads in self.unfenced.values():
            threads[active.index] = False

    def check_fence(self, m: Machine, registers: Iterable[int], index: Index) -> None:
        """A finding if ``registers`` were accessed by threads ``index``, who begin a product, behind their fence."""
        if not m.checks.sync:
            return
        wrong = np.logical_or.reduce([self.unfenced[register][index] for register in registers])
        if wrong.any():
            m.report("sync", "fence", "no wgmma.fence orders the registers before it", index[wrong])

    def issue(self, m: Machine, product: Product) -> None:
        """Start ``product``; its groups are those of its threads."""
        if m.checks.race is not None and product.reads is not None:
            m.checks.race.async_read(m, product.reads, 16)
        self.pending.append(product)
        self._ordered((*product.registers, *product.sources), product.index)

    def _ordered(self, registers: Iterable[int], index: Index) -> None:
        """What products themselves do with ``registers`` needs no fence."""
        for register in registers:
            self.unfenced[register][index] = False

    def accumulated(self, registers: tuple[int, ...], index: Index) -> Array | None:
        """What products in flight leave in ``registers`` of threads ``index``; None if nothing."""
        for product in reversed(self.pending):
            if product.registers == registers:
                at = np.searchsorted(product.index, index)
                at = np.minimum(at, product.index.size - 1)
                if (product.index[at] == index).all():
                    return product.values if at.size == product.index.size else product.values[:, at]
        return None

    def wait(self, m: Machine, active: Active, allowed: int) -> None:
        """Finish all but the ``allowed`` youngest groups of the ``active`` threads."""
        waits = np.zeros(self.threads, np.bool_)
        waits[active.index] = True
        finished, left = [], []
        for product in self.pending:
            done = waits[product.index] & (product.groups < self.committed[product.index] - allowed)
            if done.any():
                finished.append(_part(product, done))
            if not done.all():
                left.append(_part(product, ~done))
        self.pending = left
        for product in finished:
            if m.checks.race is not None and product.reads is not None:
                m.checks.race.async_read_done(product.reads, 16)
            self._deliver(m, product, finished)

    def _deliver(self, m: Machine, product: Product, finished: list[Product]) -> None:
        """Write the results, unless a later product goes on with them."""
        latest = next(p for p in reversed(finished) if p.registers == product.registers)
        if latest is not product and np.array_equal(latest.index, product.index):
            return
        if self.accumulated(product.registers, product.index) is not None:
            return
        everyone = Active(product.index, product.index.size == m.live_count)
        for register, values in zip(product.registers, product.values, strict=True):
            m.write(register, m.expand(values, everyone), everyone)
        self._ordered(product.registers, product.index)

    def touched(self, m: Machine, register: int, active: Active, *, writing: bool) -> None:
        """Active threads access a watched register; a finding if a product in flight of one of them uses it."""
        if m.instruction is None or m.instruction.opcode != "mov":
            self.unfenced[register][active.index] = True
        for product in self.pending:
            if register not in product.registers and not (writing and register in product.sources):
                continue
            slots = np.intersect1d(product.index, active.index)
            if slots.size:
                verb = "writes" if writing else "reads"
                name = m.program.registers[register].name
                message = (
                    f"{verb} {name}, which the wgmma in line {product.instruction.line} uses and was not waited for"
                )
                m.report("race", "wgmma register", message, slots)
                return


def _part(product: Product, chosen: Mask) -> Product:
    if chosen.all():
        return product
    reads = product.reads
    if reads is not None:
        mine = np.isin(reads.slots, product.index[chosen])
        reads = Piece(reads.region, reads.offsets[mine], None, reads.slots[mine])
    return Product(
        product.instruction, product.index[chosen], product.registers, product.sources, product.values[:, chosen],
        product.groups[chosen], reads,
    )  # fmt: skip
