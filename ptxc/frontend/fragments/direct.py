"""Loads of fragments straight from global memory: each lane reads its own elements and packs them.

Where the tile hangs over an edge that ``gmem_guard`` gives, rows of A or columns of B beyond it read the last one
inside; a tile wholly outside is zero. Beyond the edge of k, which ``k_zero`` gives, elements are zero, as they are
summed. Nothing outside of the buffer is read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from emmy.compiler.ir.kernel.ir import LdmatrixLoad

from ptxc.errors import UnsupportedError
from ptxc.frontend.convert import convert
from ptxc.frontend.dtypes import ElementType, element_type
from ptxc.frontend.fragments import lanes, registers
from ptxc.frontend.fragments.shared import row_stride
from ptxc.frontend.linear import Linear, constant
from ptxc.ir import opcodes
from ptxc.ir.kernel import Guard
from ptxc.ir.types import B32
from ptxc.ir.values import FALSE, TRUE, Operand, Value, integer

if TYPE_CHECKING:
    from ptxc.frontend.lower import Lowering

#: Of each register, how many rows of the tile (A) and how many of k it lies past the lane's first.
_REGISTERS = {"a": ((0, 0), (8, 0), (0, 8), (8, 8)), "b": ((0, 0), (0, 8))}


def load(k: Lowering, stmt: LdmatrixLoad) -> None:
    """Fill a fragment of 16-bit elements."""
    type = element_type(registers.fragment(k, stmt.frag).dtype)
    if type.nbytes != 2:
        raise UnsupportedError(f"a fragment of {type.name} from global memory is not supported yet")
    tile = Tile(k, stmt, lanes.group(k), k.expressions.registers.scale(lanes.in_group(k), 2))
    words = [tile.word(outer, inner, type) for outer, inner in _REGISTERS[stmt.role]]
    registers.assign(k, stmt.frag, words)


class Tile:
    """A lane's elements of the tile: ``outer`` counts A's rows or B's columns, ``inner`` counts k.

    Slabs of shared memory have no edges: what fills them has seen to it.
    """

    def __init__(self, k: Lowering, stmt: LdmatrixLoad, outer: Linear, inner: Linear) -> None:
        e = k.expressions
        self.k = k
        self.name = stmt.src_buffer
        self.flat = k.memory.flat_index(stmt.src_buffer, stmt.src_index)
        self.stride = row_stride(k, stmt.src_buffer, stmt.ldm)
        #: Whether elements that follow each other in k do in memory.
        self.contiguous = stmt.role == "a" or stmt.b_trans
        self.outer, self.inner = outer, inner
        self.last: Linear | None = None
        self.present: Operand = TRUE
        if stmt.gmem_guard is not None and not stmt.staged:
            left = self._left(stmt.gmem_guard)
            self.last = e.larger(e.registers.add(left, constant(1), -1), constant(0))
            self.present = e.compare(">", left, constant(0))
        self.k_left = self._left(stmt.k_zero) if stmt.k_zero is not None and not stmt.staged else None

    def _left(self, guard: tuple[object, object]) -> Linear:
        """How many elements from the tile's first on lie inside."""
        e = self.k.expressions
        base, bound = (e.integer(expr) for expr in guard)  # type: ignore[arg-type]
        return e.registers.add(bound, base, -1)

    def row(self, outer: int) -> Linear:
        """The row of A, or column of B, so many past the lane's first, or the last that is inside."""
        e = self.k.expressions
        row = e.registers.add(self.outer, constant(outer))
        return row if self.last is None else e.smaller(row, self.last)

    def word(self, outer: int, inner: int, type: ElementType) -> Operand:
        """The two elements that follow each other in k, packed."""
        k, e = self.k, self.k.expressions
        row = self.row(outer)
        at = [e.registers.add(self.inner, constant(inner + j)) for j in (0, 1)]
        inside = [self._inside(each) for each in at]
        places = [self.place(row, each) for each in at]
        source = k.memory.type_of(self.name)
        if self.contiguous and source is type and inside[0] == inside[1] and _is_even(places[0]):
            return self._pair(places[0], inside[0])
        halves = [self._element(place, predicate, type) for place, predicate in zip(places, inside, strict=True)]
        return k.builder.emit(opcodes.PACK, ("b32",), B32, tuple(halves), "frag")

    def _inside(self, at: Linear) -> Operand:
        """Whether the element at ``at`` of k is there to be read."""
        if self.k_left is None:
            return self.present
        e = self.k.expressions
        return e.logical("&&", self.present, e.compare("<", at, self.k_left))

    def place(self, row: Linear, at: Linear) -> Linear:
        """The element's offset in the buffer."""
        e = self.k.expressions
        far, near = (row, at) if self.contiguous else (at, row)
        return e.registers.add(e.registers.add(self.flat, e.multiply(far, self.stride)), near)

    def _pair(self, place: Linear, predicate: Operand) -> Operand:
        """Two elements by one load."""
        k = self.k
        if predicate == FALSE:
            return integer(B32, 0)
        mods = (*k.memory.space(self.name), "b32")
        return k.builder.emit(opcodes.LD, mods, B32, (k.memory.address(self.name, place),), "frag", guard(predicate))

    def _element(self, place: Linear, predicate: Operand, type: ElementType) -> Operand:
        """One element in the fragment's type, 0 where ``predicate`` does not hold."""
        k = self.k
        if predicate == FALSE:
            return registers.as_register(k, integer(type.bank, 0))
        loaded = k.memory.load(self.name, k.memory.address(self.name, place), "frag", guard(predicate))
        return registers.as_register(k, convert(k.builder, loaded, type).operand)


def _is_even(flat: Linear) -> bool:
    """Whether an offset is a multiple of 2 whatever the registers in it hold."""
    return flat.constant % 2 == 0 and all(coefficient % 2 == 0 for coefficient in flat.terms.values())


def guard(predicate: Operand) -> Guard | None:
    """The guard of what happens where ``predicate``, which is not FALSE, holds."""
    if predicate == TRUE:
        return None
    assert isinstance(predicate, Value)
    return Guard(predicate)
