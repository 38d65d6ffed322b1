"""Fragments of bytes: four fp8 elements, or four packed pairs of fp4, in each register.

Their elements are moved as they are. ``ldmatrix`` moves halves only, so each lane reads the bytes that it holds: four
at once where k runs through memory, else one by one (Emmy's ``_b8v`` and ``_b8`` helpers). PTX ISA, "Matrix Fragments
for mma.m16n8k32" and, with half as many bytes as elements, "mma.m16n8k64".
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from emmy.compiler.ir.kernel.ir import LdmatrixLoad

from ptxc.errors import InputError, UnsupportedError
from ptxc.frontend.dtypes import E2M1X2_T, ElementType
from ptxc.frontend.fragments import registers
from ptxc.frontend.fragments.direct import Tile, guard, is_multiple, lane_tile
from ptxc.frontend.fragments.shared import check_rows, check_source
from ptxc.frontend.linear import Linear, constant
from ptxc.ir import opcodes
from ptxc.ir.types import B32
from ptxc.ir.values import FALSE, Operand, Value, integer

if TYPE_CHECKING:
    from ptxc.frontend.lower import Lowering

#: Of each register, how many rows of the tile (A) and how many bytes of k it lies past the lane's first.
_REGISTERS = {"a": ((0, 0), (8, 0), (0, 16), (8, 16)), "b": ((0, 0), (0, 16))}
#: The bytes of a register.
_WORD = 4
#: Selectors of ``prmt``: the low bytes of both operands, the low halves of both.
_BYTES, _HALVES = integer(B32, 0x0040), integer(B32, 0x5410)


def load(k: Lowering, stmt: LdmatrixLoad, type: ElementType) -> None:
    """Fill a fragment of the one-byte elements ``type``, which the source holds too."""
    check_source(k, stmt, type)
    if stmt.staged and not stmt.byte_slab:
        raise InputError(f"a load of {type.name} by ldmatrix", hint="ldmatrix moves halves only: set byte_slab")
    if not stmt.staged and type is E2M1X2_T:
        raise UnsupportedError("fragments of fp4 are filled from shared memory only", hint="stage the operand")
    if stmt.k_zero is not None:
        raise UnsupportedError("there is no load of bytes that masks k", hint="let the tile divide k")
    tile = lane_tile(k, stmt, _WORD)
    if tile.staged and tile.contiguous:
        check_rows(k, stmt, _WORD, "a lane reads four bytes at once")
    registers.assign(k, stmt.frag, [_word(tile, outer, inner) for outer, inner in _REGISTERS[stmt.role]])


def _word(tile: Tile, outer: int, inner: int) -> Operand:
    """The four bytes that follow each other in k."""
    if tile.present == FALSE:
        return integer(B32, 0)
    row = tile.row(outer)
    if tile.staged and tile.contiguous:
        return _load(tile.k, tile.name, tile.place(row, tile.along(inner)), tile.present)
    places = [tile.place(row, tile.along(inner + at)) for at in range(_WORD)]
    return four_bytes(tile.k, tile.name, places, tile.present)


def _load(k: Lowering, name: str, place: Linear, predicate: Operand) -> Operand:
    """Four bytes that follow each other from a multiple of four on; 0 where ``predicate`` does not hold."""
    k.memory.align(name, place, _WORD)
    mods = (*k.memory.space(name), "b32")
    return k.builder.emit(opcodes.LD, mods, B32, (k.memory.address(name, place),), "frag", guard(predicate))


def four_bytes(k: Lowering, name: str, places: list[Linear], predicate: Operand) -> Operand:
    """The bytes at four offsets in one register, the first lowest; 0 where ``predicate`` does not hold."""
    b, memory = k.builder, k.memory
    step = places[1].same(k.expressions.registers.add(places[0], constant(1)))
    if step and is_multiple(places[0], _WORD):
        return _load(k, name, places[0], predicate)

    def byte(place: Linear) -> Value:
        mods = (*memory.space(name), "u8")
        return b.emit(opcodes.LD, mods, B32, (memory.address(name, place),), "byte", guard(predicate))

    pairs = [
        b.emit(opcodes.PRMT, ("b32",), B32, (byte(places[at]), byte(places[at + 1]), _BYTES), "pair") for at in (0, 2)
    ]
    return b.emit(opcodes.PRMT, ("b32",), B32, (*pairs, _HALVES), "frag")
