"""Fragments from memory and to it.

What each lane of a fragment holds says which element of the tile in memory it reads; so one rule stands for all the
ways in which Emmy's CUDA gets it there (``ldmatrix`` with and without transposition, gathers of bytes, direct loads).

Sources: ``LdmatrixLoad``, ``BlockScaleLoad`` and ``RegStore`` of ``emmy.compiler.ir.kernel.ir``, and the helpers
``emmy_mma_load_*``, ``emmy_mma884_load_*`` and ``emmy_ldmatrix_*`` of ``emmy.compiler.ir.kernel.render``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from emmy.compiler.ir.expr import Expr
from emmy.compiler.ir.kernel.ir import ELEM_COL, ELEM_ROW, BlockScaleLoad, LdmatrixLoad, RegStore
from emmy.compiler.ir.stmt import Load, Select

from ptxc.errors import InputError, UnsupportedError
from ptxc.reference.buffers import Array
from ptxc.reference.codes import decode4
from ptxc.reference.expressions import condition, index_of
from ptxc.reference.fragments import BLOCK, PACKED, SCALES, accumulator_map, fragment, of_lanes, put
from ptxc.reference.lane_maps import (
    LANE,
    VOLTA_COLUMN,
    VOLTA_PAIR_C,
    VOLTA_PAIR_COLUMN,
    VOLTA_PAIR_FOUR,
    VOLTA_PAIR_ROW,
    VOLTA_ROW,
    operand_a,
    operand_b,
)
from ptxc.reference.layouts import CONGRUOUS, CROSSWISE, congruous, crosswise, swizzled
from ptxc.reference.values import INTEGERS, Value, element_type, index

if TYPE_CHECKING:
    from ptxc.reference.evaluator import Evaluator

_FOUR = np.arange(4)


def load(e: Evaluator, stmt: LdmatrixLoad, path: str) -> None:
    """A fragment of a tile in memory, or two of neighbouring tiles.

    The tile's places count along the kept dimension (``across``: rows of A, columns of B) and along the reduced one.
    """
    if stmt.swizzle in (CROSSWISE, CONGRUOUS):
        _load_volta_pair(e, stmt)
        return
    across, along = _tile_places(e, stmt)
    put(e, stmt.frag, _elements(e, stmt, across, along))
    if stmt.pair_frag is not None:
        put(e, stmt.pair_frag, _elements(e, stmt, across + 8, along))


def _tile_places(e: Evaluator, stmt: LdmatrixLoad) -> tuple[Array, Array]:
    """Which elements of the tile each lane holds: (lanes, elements) along the kept and the reduced dimension."""
    if stmt.fragment_layout == "m8n8k4":
        kept = VOLTA_ROW if stmt.role == "a" else VOLTA_COLUMN
        return of_lanes(e, np.broadcast_to(kept, (32, 4))), of_lanes(e, np.broadcast_to(_FOUR, (32, 4)))
    target = fragment(e, stmt.frag)
    each, packed = target.array.shape[1], PACKED[target.type]
    if stmt.role == "a":
        where = operand_a(each, packed)
        return of_lanes(e, where.row), of_lanes(e, where.column)
    where = operand_b(each, packed)
    return of_lanes(e, where.column), of_lanes(e, where.row)


def _elements(e: Evaluator, stmt: LdmatrixLoad, across: Array, along: Array) -> Array:
    """The elements of a tile at places, in the fragment's type."""
    type = fragment(e, stmt.frag).type
    across, along, inside = _bounded(e, stmt, across, along)
    store = e.memory.store_of(stmt.src_buffer)
    stride = stmt.ldm or int(store.shape[-1])
    start = e.spread(e.flat(stmt.src_buffer, stmt.src_index))[:, None]
    pairs = store.type == "f4e2m1x2"
    step = along >> 1 if pairs else along
    contiguous = stmt.role == "a" or stmt.b_trans
    places = start + (across * stride + step if contiguous else step * stride + across)
    value = e.memory.read(stmt.src_buffer, swizzled(stmt.swizzle, places), inside)
    if pairs:
        value = Value(decode4(np.where(along & 1, value.array >> 4, value.array & 15)), "f32")
    if stmt.scale_buffer is not None:
        value = e.numbers.assign("multiply", [value, _block_scale(e, stmt, across, along, pairs)], "f32")
    return value.array if type == "f4e2m1x2" else e.numbers.convert(value, type).array


def _bounded(e: Evaluator, stmt: LdmatrixLoad, across: Array, along: Array) -> tuple[Array, Array, Array | None]:
    """Places within the bounds of a direct load, and which of them are read.

    Beyond the bound of the kept dimension the last element inside is read instead; beyond that of the reduced one, and
    where nothing of the tile is inside, there is zero.
    """
    inside: Array | None = None
    if stmt.gmem_guard is not None:
        left = _left(e, stmt.gmem_guard)
        across = np.minimum(across, np.maximum(left - 1, 0))
        inside = np.broadcast_to(left > 0, across.shape)
    if stmt.k_zero is not None:
        within = along < _left(e, stmt.k_zero)
        inside = within if inside is None else inside & within
    return across, along, inside


def _left(e: Evaluator, guard: tuple[Expr, Expr]) -> Array:
    """How many elements there are from the base on, for each lane: (lanes, 1)."""
    base, bound = (index_of(entry, e) for entry in guard)
    return e.spread(bound - base)[:, None]


def _block_scale(e: Evaluator, stmt: LdmatrixLoad, across: Array, along: Array, pairs: bool) -> Value:
    """The scale of each element's block. A block of bytes holds the whole tile, one of pairs 16 elements."""
    assert stmt.scale_buffer is not None
    start = e.spread(e.flat(stmt.scale_buffer, stmt.scale_index))[:, None]
    block = along // BLOCK if pairs else 0
    return e.memory.read(stmt.scale_buffer, start + across * stmt.scale_ldm + block)


def _load_volta_pair(e: Evaluator, stmt: LdmatrixLoad) -> None:
    """Two fragments of m8n8k4 from an array that is kept crosswise (rows of A, or columns of B), or congruous."""
    if len(stmt.src_index) != 2 or stmt.pair_frag is None:
        raise InputError(f"the layout {stmt.swizzle} is read by row and column, two fragments at once")
    row, column = (e.spread(index_of(entry, e))[:, None] for entry in stmt.src_index)
    store = e.memory.store_of(stmt.src_buffer)
    for at, name in enumerate((stmt.frag, stmt.pair_frag)):
        if stmt.swizzle == CROSSWISE:
            kept = VOLTA_PAIR_ROW if stmt.role == "a" else VOLTA_PAIR_COLUMN
            places = crosswise(row + of_lanes(e, kept + 4 * at), column + _FOUR, int(store.shape[0]))
        else:
            four = of_lanes(e, VOLTA_PAIR_FOUR + 4 * at + _FOUR)
            places = congruous(row + of_lanes(e, LANE & 3), column + four, stmt.ldm or int(store.shape[-1]))
        put(e, name, e.numbers.convert(e.memory.read(stmt.src_buffer, places), "f16").array)


def load_scales(e: Evaluator, stmt: BlockScaleLoad, path: str) -> None:
    """Four scales of a row of A or a column of B, in the lanes whose scales the product takes; zero in others.

    A scale is a ue4m3, which has no sign.
    """
    lane = np.arange(32)
    kept = lane // 4 + 8 * (lane % 4) if stmt.role == "a" else lane // 4
    supplies = lane % 4 < 2 if stmt.role == "a" else lane % 4 == 1
    start = e.spread(e.flat(stmt.src_buffer, stmt.src_index))[:, None]
    places = start + of_lanes(e, kept[:, None]) * stmt.ldm + np.arange(SCALES)
    where = of_lanes(e, supplies[:, None])
    put(e, stmt.frag, np.abs(e.memory.read(stmt.src_buffer, places, where).array))


# ------------------------------------------------------------------------------------------------------------- stores


def store(e: Evaluator, stmt: RegStore, path: str) -> None:
    """Each element of an accumulator to ``dst[base + row * ldm + column * ldn]``, after its epilogue."""
    for cell in (replace(stmt, run=()), *stmt.run):
        _store(e, cell)


def _store(e: Evaluator, stmt: RegStore) -> None:
    row, column = _coordinates(e, stmt)
    inside = np.ones(row.shape, np.bool_)
    for guard, offset in ((stmt.m_guard, row), (stmt.n_guard, column)):
        if guard is not None:
            inside &= offset < _left(e, guard)
    value = fragment(e, stmt.frag)
    if stmt.epilogue is not None:
        value = _epilogue(e, stmt, row, column, inside)
    shape = e.memory.store_of(stmt.dst_buffer).shape
    across = stmt.ldm or (int(shape[-1]) if stmt.row_dim is None else e.memory.stride(stmt.dst_buffer, stmt.row_dim))
    along = stmt.ldn or (1 if stmt.col_dim is None else e.memory.stride(stmt.dst_buffer, stmt.col_dim))
    start = e.spread(e.flat(stmt.dst_buffer, stmt.dst_index))[:, None]
    places = swizzled(stmt.swizzle, start + row * across + column * along)
    e.memory.write(stmt.dst_buffer, places, value, inside, add=stmt.atomic)


def _coordinates(e: Evaluator, stmt: RegStore) -> tuple[Array, Array]:
    """The row and column of each element, from the cell that the statement names.

    A cell of Volta's interleaved 32 x 32 accumulator begins four rows or columns after the first, not 16.
    """
    if stmt.volta_interleaved:
        row, column = VOLTA_PAIR_C
        down, right = (12 * (at & 1) for at in stmt.fragment_index)
        return of_lanes(e, row - down), of_lanes(e, column - right)
    where = accumulator_map(fragment(e, stmt.frag).array.shape[1])
    return of_lanes(e, where.row), of_lanes(e, where.column)


def _epilogue(e: Evaluator, stmt: RegStore, row: Array, column: Array, inside: Array) -> Value:
    """What the epilogue makes of each element; it reads nothing where the element is not stored."""
    lambda_ = stmt.epilogue
    assert lambda_ is not None
    fragments = [fragment(e, name).array for name in (stmt.frag, *stmt.extra_frags)]
    results = []
    for at in range(row.shape[1]):
        names = {ELEM_ROW: index(row[:, at]), ELEM_COL: index(column[:, at])}
        names |= {name: Value(array[:, at], "f32") for name, array in zip(lambda_.params, fragments, strict=False)}
        with e.taking(inside[:, at]), e.scope(**names):
            for inner in lambda_.body:
                _epilogue_step(e, inner)
            results.append(e.find(lambda_.results[0]))
    return Value(np.stack([e.spread(result.array) for result in results], axis=1), results[0].type)


def _epilogue_step(e: Evaluator, stmt: Any) -> None:
    """One statement of an epilogue: floats are widened to f32 where they are read and chosen."""
    from ptxc.reference.statements import assign

    if isinstance(stmt, Load):
        value = e.memory.read(stmt.input, e.flat(stmt.input, stmt.index))
        stated = element_type(stmt.dtype.name) if stmt.dtype is not None else value.type
        e.declare(stmt.name, e.numbers.convert(value, stated if stated in INTEGERS else "f32"))
    elif isinstance(stmt, Select):
        *others, last = stmt.branches
        chosen = e.numbers.convert(e.find(last.value), "f32").array
        for branch in reversed(others):
            value = e.numbers.convert(e.find(branch.value), "f32")
            chosen = np.where(condition(branch.select, e), value.array, chosen)
        e.declare(stmt.name, Value(chosen, "f32"))
    elif hasattr(stmt, "op"):
        assign(e, stmt, e.path)
    else:
        raise UnsupportedError(f"the reference does not evaluate {type(stmt).__name__} in an epilogue")


STATEMENTS: dict[type, Callable[[Evaluator, Any, str], None]] = {
    LdmatrixLoad: load,
    BlockScaleLoad: load_scales,
    RegStore: store,
}
