"""Expands the tile's coordinates into arithmetic on the thread's and the CTA's number.

A CTA has ``cells`` consecutive cells of the tile, one a thread; a cell's number decoded by the axes' extents, innermost
first, gives its coordinates. Where the innermost axes together make up exactly one CTA, they are decoded from the
thread's number and the rest from the CTA's, so that no cell number is ever computed, outer coordinates are visibly the
same for a whole CTA, and 32 bits suffice for any grid::

    %i, %j, %inside = tile.coords.cells=128.aux=0 %m, 128        %cta = mov.u32 %ctaid.x
                                                           ->    %tid = mov.u32 %tid.x
                                                                 %inside = setp.lt.s32 %cta, %m     (i = cta, j = tid)

Otherwise the cell's number is ``cta * cells + tid``, in 64 bits where the tile may have more than 2^31 cells. Auxiliary
threads (``aux``) beyond the cells take the coordinates of the CTA's first cells. The last quotient is the outermost
coordinate; the cell lies inside the tile if it is below that axis's extent.

Grouped rasterisation visits ``group`` tiles of one axis (extent a) before the other axis (extent b) advances, so that
CTAs that run together share operands. The last group may be smaller: with ``sub`` the pair's common number::

    first = sub / (group * b) * group              size = min(group, a - first)
    grouped = first + sub % (group * b) % size     other = sub % (group * b) / size
"""

from __future__ import annotations

import math

from ptxc.ir import opcodes
from ptxc.ir.builder import Builder
from ptxc.ir.kernel import Block, Instr, Kernel
from ptxc.ir.types import B32, B64, Type
from ptxc.ir.values import TRUE, Const, Operand, Sym, Value, integer

_INT_MAX = 2**31 - 1


def run(kernel: Kernel) -> None:
    """Replace every ``tile.coords``."""
    for block in kernel.blocks:
        if opcodes.TILE_COORDS in [instr.op for instr in block.instrs]:
            _rewrite(kernel, block)


def _rewrite(kernel: Kernel, block: Block) -> None:
    instrs, block.instrs = block.instrs, []
    builder = Builder(kernel, block)
    for instr in instrs:
        if instr.op is opcodes.TILE_COORDS:
            builder.loc = instr.loc
            _Expansion(builder, instr).write()
        else:
            block.instrs.append(instr)


class _Expansion:
    """The expansion of one instruction."""

    def __init__(self, builder: Builder, instr: Instr) -> None:
        self.builder = builder
        self.extents = instr.operands
        #: The cells of the tile, 0 where the launch gives their number.
        self.total = math.prod(extent.bits if isinstance(extent, Const) else 0 for extent in self.extents)
        *self.coordinates, self.inside = instr.results
        options = {name: int(number) for name, _, number in (mod.partition("=") for mod in instr.mods)}
        self.cells, self.aux = options["cells"], options["aux"]
        self.group, self.grouped, self.other = (options.get(name, 0) for name in ("group", "grouped", "other"))

    def write(self) -> None:
        """Write the coordinates and whether the cell is inside."""
        builder = self.builder
        tid: Operand = builder.unary(opcodes.MOV, "u32", Sym("%tid.x"), "tid")
        if self.aux:
            tid = builder.binary(opcodes.REM, "u32", tid, integer(B32, self.cells), "cell")
        cta = builder.unary(opcodes.MOV, "u32", Sym("%ctaid.x"), "cta")
        split = self.whole_axes()
        if split is not None:
            self.decode(tid, split, len(self.extents), "u32")
            rest = self.decode(cta, 0, split, "u32")
            self.write_inside(cta if rest is None else rest, split, "s32")
        else:
            number, suffix = self.cell_number(cta, tid)
            rest = self.decode(number, 0, len(self.extents), suffix)
            self.write_inside(number if rest is None else rest, len(self.extents), suffix.replace("u", "s"))

    def whole_axes(self) -> int | None:
        """The first of the innermost axes whose extents multiply to the cells of a CTA; None if none do."""
        product = 1
        for position in reversed(range(len(self.extents))):
            if product == self.cells and not (self.group and max(self.grouped, self.other) > position):
                return position + 1
            extent = self.extents[position]
            if not isinstance(extent, Const):
                return None
            product *= extent.bits
        return 0 if product == self.cells and not self.group else None

    def cell_number(self, cta: Operand, tid: Operand) -> tuple[Operand, str]:
        """``cta * cells + tid`` and its type: 64 bits where some cell's number does not fit in 32."""
        cells = integer(B32, self.cells)
        builder = self.builder
        # The last CTA's numbers go past the total by less than its cells.
        if self.total and self.total + self.cells <= _INT_MAX:
            return builder.emit(opcodes.MAD, ("lo", "s32"), B32, (cta, cells, tid), "cell"), "u32"
        wide = builder.cvt("u64.u32", tid)
        return builder.emit(opcodes.MAD, ("wide", "u32"), B64, (cta, cells, wide), "cell"), "u64"

    # --------------------------------------------------------------------------------------------------- decoding

    def decode(self, number: Operand, first: int, last: int, suffix: str) -> Operand | None:
        """Split ``number`` into the coordinates of axes ``first`` to ``last``, innermost first.

        Gives the outermost quotient, which is below its axis's extent for cells inside the tile; None where there is
        no axis.
        """
        outermost: Operand | None = None
        position = last - 1
        while position >= first:
            if self.group and position == max(self.grouped, self.other):
                outermost, number = self.decode_pair(number, position - 1, first, suffix)
                position -= 2
                continue
            if position == first:
                self.bind(position, number, suffix)
                return number
            extent = self.widened(self.extents[position], suffix)
            self.bind(position, self.builder.binary(opcodes.REM, suffix, number, extent), suffix)
            number = outermost = self.builder.binary(opcodes.DIV, suffix, number, extent)
            position -= 1
        return outermost

    def decode_pair(self, number: Operand, m: int, first: int, suffix: str) -> tuple[Operand, Operand]:
        """The coordinates of the grouped pair at positions m and m + 1; the row-major quotient and what is left."""
        builder = self.builder
        rows, columns = (self.widened(self.extents[at], suffix) for at in (m, m + 1))
        outermost = builder.binary(opcodes.DIV, suffix, number, columns)
        rest = number
        if m > first:
            both = self.product(rows, columns, suffix)
            rest = builder.binary(opcodes.DIV, suffix, number, both)
            number = builder.binary(opcodes.REM, suffix, number, both, "sub")
            outermost = rest
        a, b = (self.extents[at] for at in (self.grouped, self.other))
        stripe = self.product(integer(self.bank(suffix), self.group), self.widened(b, suffix), suffix)
        index = builder.binary(opcodes.DIV, suffix, number, stripe, "group")
        within = builder.binary(opcodes.REM, suffix, number, stripe, "within")
        start = builder.binary(opcodes.MUL, f"lo.{suffix}", index, integer(self.bank(suffix), self.group), "first")
        size: Operand = integer(self.bank(suffix), self.group)
        if not (isinstance(a, Const) and a.bits % self.group == 0):
            left = builder.binary(opcodes.SUB, suffix, self.widened(a, suffix), start)
            size = builder.binary(opcodes.MIN, suffix, left, size, "size")
        inner = builder.binary(opcodes.REM, suffix, within, size)
        self.bind(self.grouped, builder.binary(opcodes.ADD, suffix, start, inner), suffix)
        self.bind(self.other, builder.binary(opcodes.DIV, suffix, within, size), suffix)
        return outermost, rest

    def bind(self, position: int, value: Operand, suffix: str) -> None:
        """Give a coordinate its value."""
        op, mods = (opcodes.MOV, ("u32",)) if suffix == "u32" else (opcodes.CVT, ("u32", "u64"))
        self.define(op, mods, self.coordinates[position], value)

    def write_inside(self, quotient: Operand, axes: int, suffix: str) -> None:
        """Whether the outermost quotient is below the outermost extent; always where the grid fits exactly."""
        if self.total and self.total % self.cells == 0:
            self.define(opcodes.MOV, ("pred",), self.inside, TRUE)
            return
        # A tile without axes, or whose CTA is all of it, is one CTA.
        extent = self.extents[0] if axes else integer(B32, 1)
        self.define(opcodes.SETP, ("lt", suffix), self.inside, quotient, self.widened(extent, suffix))

    # ----------------------------------------------------------------------------------------------- conveniences

    def define(self, op: opcodes.Opcode, mods: tuple[str, ...], result: Value, *operands: Operand) -> None:
        self.builder.multi(op, mods, (result,), operands)

    @staticmethod
    def bank(suffix: str) -> Type:
        return B32 if suffix.endswith("32") else B64

    def widened(self, extent: Operand, suffix: str) -> Operand:
        """An extent in the width that the cell's number has."""
        if suffix.endswith("32"):
            return extent
        return integer(B64, extent.bits) if isinstance(extent, Const) else self.builder.cvt("u64.u32", extent)

    def product(self, a: Operand, b: Operand, suffix: str) -> Operand:
        if isinstance(a, Const) and isinstance(b, Const):
            return integer(self.bank(suffix), a.bits * b.bits)
        return self.builder.binary(opcodes.MUL, f"lo.{suffix}", a, b)
