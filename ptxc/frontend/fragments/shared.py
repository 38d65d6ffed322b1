"""Loads of fragments from shared memory by ``ldmatrix`` (PTX ISA, "Warp-level matrix load instruction").

A matrix is 8 rows of 8 halves. Lane ``8 * j + i`` gives the address of row ``i`` of the matrix ``j``, and register
``j`` of each lane receives its share of that matrix: two halves of one row, or with ``trans`` of one column.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from emmy.compiler.ir.kernel.ir import LdmatrixLoad

from ptxc.errors import InputError
from ptxc.frontend.dtypes import ElementType
from ptxc.frontend.fragments import lanes, registers
from ptxc.frontend.linear import INT_MAX, Linear, constant
from ptxc.ir import opcodes
from ptxc.ir.types import B32

if TYPE_CHECKING:
    from ptxc.frontend.lower import Lowering

_EIGHT = constant(8)
_SIXTEEN = constant(16)


def load(k: Lowering, stmt: LdmatrixLoad, type: ElementType) -> None:
    """Fill a fragment of A (16 x 16), of B (16 x 8), or two adjacent ones of B at once, of the 16-bit ``type``."""
    memory = k.memory
    check_source(k, stmt, type)
    check_rows(k, stmt, 8, "ldmatrix reads rows of 16 bytes")
    stride = row_stride(k, stmt.src_buffer, stmt.ldm)
    e = k.expressions
    paired = stmt.pair_frag is not None
    key = ("ldmatrix", stmt.role, stmt.b_trans, paired, stride.constant, *stride.terms.items())
    own, trans, count = e.once(key, lambda: _lane_offset(k, stmt, stride))
    flat = e.registers.add(memory.flat_index(stmt.src_buffer, stmt.src_index), own)
    memory.align(stmt.src_buffer, flat, 8)
    address = memory.address(stmt.src_buffer, memory.swizzled(stmt.swizzle, flat))
    results = k.kernel.values(B32, registers.stem(stmt.frag), count)
    mods = ("sync", "aligned", "m8n8", f"x{count}", *(("trans",) if trans else ()), "shared", "b16")
    k.builder.multi(opcodes.LDMATRIX, mods, results, (address,))
    if stmt.pair_frag is None:
        registers.assign(k, stmt.frag, results)
    else:
        registers.assign(k, stmt.frag, results[:2])
        registers.assign(k, stmt.pair_frag, results[2:])


def _lane_offset(k: Lowering, stmt: LdmatrixLoad, stride: Linear) -> tuple[Linear, bool, int]:
    """How far from the tile's first element the lane's row is, whether matrices are transposed, and their number."""
    row, column, trans, count = _rows(k, stmt)
    e = k.expressions
    return e.registers.add(e.multiply(row, stride), column), trans, count


def _rows(k: Lowering, stmt: LdmatrixLoad) -> tuple[Linear, Linear, bool, int]:
    """Which row and column of the tile the lane addresses, whether matrices are transposed, and their number.

    A row-major A is read as it is. So is a B that is stored n by k, which is the column-major B that ``mma`` takes;
    one that is stored k by n is transposed on the way. Of a pair, the lanes from 16 on address the second fragment: 8
    rows further, or 8 columns.
    """
    e = k.expressions
    lane = lanes.lane(k)
    low, high = e.modulo(lane, _SIXTEEN), e.registers.scale(e.divide(lane, _SIXTEEN), 8)
    if stmt.role == "a":
        if stmt.pair_frag is not None:
            raise InputError("a pair of A's fragments in one load", hint="only fragments of B are loaded in pairs")
        return low, high, False, 4
    if not stmt.b_trans:
        return low, high if stmt.pair_frag is not None else constant(0), True, 2 if stmt.pair_frag is None else 4
    row = e.modulo(lane, _EIGHT)
    column = e.registers.scale(e.modulo(e.divide(lane, _EIGHT), constant(2)), 8)
    if stmt.pair_frag is None:
        return row, column, False, 2
    return e.registers.add(row, high), column, False, 4


def check_source(k: Lowering, stmt: LdmatrixLoad, type: ElementType) -> None:
    """Raise InputError where a load that converts nothing reads other elements than those of its fragment."""
    source = k.memory.type_of(stmt.src_buffer)
    if source is not type:
        raise InputError(
            f"{stmt.src_buffer!r} is {source.name}, and the fragment {stmt.frag!r} of {type.name} takes its bits",
            hint="convert what fills it, or declare both with one type",
        )


def check_rows(k: Lowering, stmt: LdmatrixLoad, count: int, why: str) -> None:
    """Raise InputError where the rows of a shared array are not a multiple of ``count`` elements apart."""
    stride = row_stride(k, stmt.src_buffer, stmt.ldm).constant
    if stride % count:
        raise InputError(
            f"rows of {stmt.src_buffer!r} are {stride} elements apart, so loads are not aligned",
            hint=f"{why}: make the stride a multiple of {count}",
        )


def stated_stride(stated: Any) -> Linear:
    """The elements from one row to the next as a statement says. Raises InputError for what is no such number."""
    if not isinstance(stated, int) or not 0 <= stated <= INT_MAX:
        raise InputError(f"rows that are {stated!r} elements apart", hint="a stride is an int of 0 or more")
    return constant(stated)


def row_stride(k: Lowering, buffer: str, stated: Any) -> Linear:
    """The elements from one row of a buffer to the next: as stated, or its last extent."""
    if stated:
        return stated_stride(stated)
    shared = k.signature.shared.get(buffer)
    shape = shared.extents if shared is not None else k.memory.buffer(buffer).shape
    last = shape[-1]
    return constant(last) if isinstance(last, int) else k.expressions.integer(last.expr)
