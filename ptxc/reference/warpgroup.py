"""Products of matrices in shared memory by groups of four warps.

Sources: ``Wgmma*`` of ``emmy.compiler.ir.kernel.ir``; the PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions"
(register fragments, canonical layouts, matrix descriptor). A product is done at once, so there is nothing to wait for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from emmy.compiler.ir.kernel.ir import WgmmaCommit, WgmmaDescriptor, WgmmaFence, WgmmaMma, WgmmaWait

from ptxc.errors import InputError
from ptxc.reference.barriers import nothing
from ptxc.reference.buffers import Array
from ptxc.reference.expressions import index_of
from ptxc.reference.fragments import PACKED, fragment, put
from ptxc.reference.lane_maps import ACCUMULATOR, operand_a
from ptxc.reference.layouts import SWIZZLES, swizzled_bytes

if TYPE_CHECKING:
    from ptxc.reference.evaluator import Evaluator


class Matrix(NamedTuple):
    """A matrix in shared memory: the byte of the array where it begins, for each warp, and how it lies there."""

    smem: str
    start: Array
    swizzle: str
    leading: int
    stride: int


def describe(e: Evaluator, stmt: WgmmaDescriptor, path: str) -> None:
    """A descriptor: what begins at an element of a shared array."""
    store = e.memory.store_of(stmt.smem)
    at = e.spread(index_of(stmt.smem_index, e) if stmt.smem_index is not None else np.zeros((), np.int64))
    start = at.reshape(-1, 32)[:, 0] * store.width
    e.matrices[stmt.name] = Matrix(stmt.smem, start, stmt.swizzle.partition("@")[0], stmt.lbo_bytes, stmt.sbo_bytes)


def mma(e: Evaluator, stmt: WgmmaMma, path: str) -> None:
    """``c (+)= a @ b``: each warp has 16 of the group's 64 rows, as accumulators of 16 x 8 side by side."""
    _, columns, reduced = stmt.shape
    along = np.arange(reduced)
    if stmt.a_frag is not None:
        a = fragment(e, stmt.a_frag)
        left = operand_a(a.array.shape[1], PACKED[a.type]).matrices(a.array)
    else:
        warp = (e.tid.reshape(-1, 32)[:, 0] // 32) % 4
        rows = 16 * warp[:, None] + np.arange(16)
        left = _read(e, str(stmt.a_desc), rows[:, :, None], along[None, None, :], bool(stmt.trans_a))
    across = np.arange(columns)[None, None, :]
    right = _read(e, stmt.b_desc, across, along[None, :, None], bool(stmt.trans_b))
    product = left @ right
    for at, name in enumerate(stmt.c_frags):
        part = ACCUMULATOR.elements(product[:, :, 8 * at : 8 * at + 8])
        put(e, name, fragment(e, name).array + part if stmt.scale_d else part)


def _read(e: Evaluator, name: str, across: Array, along: Array, transposed: bool) -> Array:
    """The elements of each warp's matrix at places along the kept and the reduced dimension."""
    matrix: Matrix | None = e.matrices.get(name)
    if matrix is None:
        raise InputError(f"{name!r} is no descriptor of a matrix")
    store = e.memory.store_of(matrix.smem)
    offset = _offset(matrix, across, along, transposed)
    places = swizzled_bytes(matrix.swizzle, matrix.start[:, None, None] + offset) // store.width
    outside = (places < 0) | (places >= store.size)
    if outside.any():
        lane = int(outside.any(axis=(1, 2)).argmax()) * 32
        if e.mask is None or e.mask[lane]:
            e.memory.fault(lane, f"reads a matrix beyond the end of {matrix.smem}, which has {store.size} elements")
        places = np.where(outside, 0, places)
    base = e.number.reshape(-1, 32)[:, 0] * store.size
    return e.numbers.load(store.elements[places + base[:, None, None]], store.type).array


def _offset(matrix: Matrix, across: Array, along: Array, transposed: bool) -> Array:
    """The byte of an element of 16 bits from the matrix' begin, before the swizzle (the canonical layouts).

    What is together: without a swizzle 8 x 8 elements, rows of 16 bytes; with one, 8 rows of as many bytes as the
    pattern covers. A row runs along the reduced dimension, or along the kept one where the matrix is transposed.
    """
    pitch = 16 if matrix.swizzle == "NONE" else SWIZZLES[matrix.swizzle][0]
    offset: Array
    if not transposed:
        group = along // 8 * matrix.leading + along % 8 * 2 if matrix.swizzle == "NONE" else along * 2
        offset = across // 8 * matrix.stride + across % 8 * pitch + group
    elif matrix.swizzle == "NONE":
        offset = across // 8 * matrix.stride + across % 8 * 2 + along // 8 * matrix.leading + along % 8 * pitch
    else:
        run = pitch // 2
        offset = across // run * matrix.leading + across % run * 2 + along // 8 * matrix.stride + along % 8 * pitch
    return offset


STATEMENTS: dict[type, Callable[[Evaluator, Any, str], None]] = {
    WgmmaDescriptor: describe,
    WgmmaMma: mma,
    WgmmaFence: nothing,
    WgmmaCommit: nothing,
    WgmmaWait: nothing,
}
