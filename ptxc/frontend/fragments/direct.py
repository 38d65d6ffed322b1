"""Loads of fragments straight from memory: each lane reads its own elements and packs them.

That is how fragments come from global memory, and from shared arrays of bytes, which ``ldmatrix`` does not convert.

Where the tile hangs over an edge that ``gmem_guard`` gives, rows of A or columns of B beyond it read the last one
inside; a tile wholly outside is zero. Beyond the edge of k, which ``k_zero`` gives, elements are zero, as they are
summed. Nothing outside of the buffer is read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from emmy.compiler.ir.kernel.ir import LdmatrixLoad

from ptxc.errors import InputError
from ptxc.frontend import minifloat
from ptxc.frontend.convert import convert
from ptxc.frontend.dtypes import E2M1X2_T, F16_T, F32_T, FP8, ElementType
from ptxc.frontend.fragments import lanes, registers
from ptxc.frontend.fragments.pairs import pack, unpack
from ptxc.frontend.fragments.shared import row_stride
from ptxc.frontend.linear import Linear, constant
from ptxc.ir import opcodes
from ptxc.ir.kernel import Guard
from ptxc.ir.types import B16, B32
from ptxc.ir.values import FALSE, TRUE, Operand, Value, integer

if TYPE_CHECKING:
    from ptxc.frontend.lower import Lowering

#: Of each register, how many rows of the tile (A) and how many of k it lies past the lane's first.
_REGISTERS = {"a": ((0, 0), (8, 0), (0, 8), (8, 8)), "b": ((0, 0), (0, 8))}


def load(k: Lowering, stmt: LdmatrixLoad, type: ElementType) -> None:
    """Fill a fragment of the 16-bit elements ``type``; those of another type are converted."""
    source = k.memory.type_of(stmt.src_buffer)
    if source is E2M1X2_T:
        raise InputError(f"{stmt.src_buffer!r} holds packed fp4, which needs scales", hint="name a scale_buffer")
    tile = lane_tile(k, stmt, 2)
    words = [pair(tile, outer, inner, source, type) for outer, inner in _REGISTERS[stmt.role]]
    registers.assign(k, stmt.frag, words)


def lane_tile(k: Lowering, stmt: LdmatrixLoad, packed: int) -> Tile:
    """The tile of a lane of m16n8k*, of which ``packed`` elements follow each other in k before another lane's do."""
    return Tile(k, stmt, lanes.group(k), k.expressions.registers.scale(lanes.in_group(k), packed))


class Tile:
    """Where a lane's elements of a tile are: ``outer`` counts A's rows or B's columns, ``inner`` counts k.

    They are given from the lane's first element on. Slabs of shared memory have no edges: what fills them has seen to
    it.
    """

    def __init__(self, k: Lowering, stmt: LdmatrixLoad, outer: Linear, inner: Linear) -> None:
        e = k.expressions
        self.k = k
        self.name = stmt.src_buffer
        self.staged = stmt.staged
        self.flat = k.memory.flat_index(stmt.src_buffer, stmt.src_index)
        self.stride = row_stride(k, stmt.src_buffer, stmt.ldm)
        #: Whether elements that follow each other in k do in memory.
        self.contiguous = stmt.role == "a" or stmt.b_trans
        self.outer, self.inner = outer, inner
        self.last: Linear | None = None
        #: Whether the tile has anything inside of the edge.
        self.present: Operand = TRUE
        if stmt.gmem_guard is not None and not stmt.staged:
            left = self._left(stmt.gmem_guard)
            self.last = e.larger(e.registers.add(left, constant(1), -1), constant(0))
            self.present = e.compare(">", left, constant(0))
        self.k_left = self._left(stmt.k_zero) if stmt.k_zero is not None and not stmt.staged else None

    def _left(self, guard: Any) -> Linear:
        """How many elements from the tile's first on lie inside."""
        base, bound = edge(self.k, guard)
        return self.k.expressions.registers.add(bound, base, -1)

    def row(self, outer: int) -> Linear:
        """The row that is ``outer`` after the lane's first, or the last one inside."""
        row = self.k.expressions.registers.add(self.outer, constant(outer))
        return row if self.last is None else self.k.expressions.smaller(row, self.last)

    def along(self, inner: int) -> Linear:
        """The place in k that is ``inner`` after the lane's first."""
        return self.k.expressions.registers.add(self.inner, constant(inner))

    def inside(self, along: Linear) -> Operand:
        """Whether the element at ``along`` of k is there to be read."""
        if self.k_left is None:
            return self.present
        e = self.k.expressions
        return e.logical("&&", self.present, e.compare("<", along, self.k_left))

    def place(self, row: Linear, along: Linear) -> Linear:
        """The element's offset in the buffer."""
        e = self.k.expressions
        far, near = (row, along) if self.contiguous else (along, row)
        return e.registers.add(e.registers.add(self.flat, e.multiply(far, self.stride)), near)


def pair(tile: Tile, outer: int, inner: int, source: ElementType, type: ElementType) -> Operand:
    """The two elements that follow each other in k, packed."""
    k = tile.k
    row = tile.row(outer)
    at = [tile.along(inner + j) for j in (0, 1)]
    inside = [tile.inside(each) for each in at]
    places = [tile.place(row, each) for each in at]
    if tile.contiguous and inside[0] == inside[1] and is_multiple(places[0], 2):
        if inside[0] == FALSE:
            return integer(B32, 0)
        if source is type:
            mods = (*k.memory.space(tile.name), "b32")
            address = k.memory.address(tile.name, places[0])
            return k.builder.emit(opcodes.LD, mods, B32, (address,), "frag", guard(inside[0]))
        if source in FP8:
            return _pair_of_fp8(tile, places[0], guard(inside[0]), source, type)
    halves = [_element(tile, place, predicate, type) for place, predicate in zip(places, inside, strict=True)]
    return k.builder.emit(opcodes.PACK, ("b32",), B32, tuple(halves), "frag")


def _pair_of_fp8(tile: Tile, place: Linear, when: Guard | None, source: ElementType, type: ElementType) -> Operand:
    """Two fp8 by one load, decoded together."""
    k = tile.k
    pair = minifloat.decode_pair(k.builder, load_bytes(k, tile.name, place, when), source)
    if type is F16_T:
        return pair
    low, high = (convert(k.builder, half, F32_T).operand for half in unpack(k, pair))
    return pack(k, low, high, type.name)


def load_bytes(k: Lowering, name: str, place: Linear, when: Guard | None = None) -> Value:
    """Two bytes that follow each other from an even offset on, in a b16."""
    k.memory.align(name, place, 2)
    mods = (*k.memory.space(name), "b16")
    return k.builder.emit(opcodes.LD, mods, B16, (k.memory.address(name, place),), "pair", when)


def _element(tile: Tile, place: Linear, predicate: Operand, type: ElementType) -> Operand:
    """One element in the fragment's type, 0 where ``predicate`` does not hold."""
    k = tile.k
    if predicate == FALSE:
        return registers.as_register(k, integer(type.bank, 0))
    loaded = k.memory.load(tile.name, k.memory.address(tile.name, place), "frag", guard(predicate))
    return registers.as_register(k, convert(k.builder, loaded, type).operand)


def edge(k: Lowering, given: Any) -> tuple[Linear, Linear]:
    """Where a tile begins, and where what it is a tile of ends."""
    if len(given) != 2:
        raise InputError(f"an edge of {len(given)} numbers", hint="it is where the tile begins, and the bound")
    base, bound = (k.expressions.integer(expr) for expr in given)
    return base, bound


def is_multiple(flat: Linear, of: int) -> bool:
    """Whether an offset is a multiple of ``of`` whatever the registers in it hold."""
    return flat.constant % of == 0 and not any([coefficient % of for coefficient in flat.terms.values()])


def guard(predicate: Operand) -> Guard | None:
    """The guard of what happens where ``predicate``, which is not FALSE, holds."""
    if predicate == TRUE:
        return None
    assert isinstance(predicate, Value)
    return Guard(predicate)
