"""Copies of boxes of tensors into shared memory.

Sources: ``TmaDescriptor`` and ``TmaLoad`` of ``emmy.compiler.ir.kernel.ir``, ``tma_descriptor`` of Emmy's
``passes/lowering/kernel/_stage.py``, the PTX ISA, "Tensors" (bounding box, out-of-boundary access, swizzling modes).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from emmy.compiler.ir.kernel.ir import TmaDescriptor, TmaLoad

from ptxc.errors import InputError
from ptxc.reference.barriers import barriers_at, taking_part
from ptxc.reference.buffers import Array
from ptxc.reference.expressions import index_of
from ptxc.reference.layouts import swizzled_bytes
from ptxc.reference.memory import check_copied

if TYPE_CHECKING:
    from ptxc.reference.evaluator import Evaluator


@dataclass(frozen=True, slots=True)
class TensorMap:
    """A tensor in global memory, outermost dimension first, and the box that is copied of it at once.

    ``offsets`` has a row for each element of the box, in the order in which the box lies in shared memory.
    """

    buffer: str
    shape: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: str
    offsets: Array


def describe(e: Evaluator, stmt: TmaDescriptor, path: str) -> None:
    """A tensor map; its tensor is the buffer, the last dimension split in two where the box has one more.

    Where the buffer has one more, its last dimension has one element.
    """
    shape = tuple(int(size) for size in e.memory.store_of(stmt.src_buf).shape)
    box = tuple(stmt.box_extents)
    while len(shape) > len(box) and shape[-1] == 1:
        shape = shape[:-1]
    if len(box) == len(shape) + 1 and shape[-1] % box[-1] == 0:
        shape = (*shape[:-1], shape[-1] // box[-1], box[-1])
    if len(box) != len(shape) or not 1 <= len(box) <= 5:
        raise InputError(f"a box {list(box)} of {stmt.src_buf!r}, whose shape is {list(shape)}")
    if 0 in shape:
        raise InputError(f"{stmt.src_buf!r} has no elements", hint="a tensor map describes at least one")
    offsets = np.stack([axis.reshape(-1) for axis in np.indices(box)], axis=1)
    e.tensor_maps[stmt.name] = TensorMap(stmt.src_buf, shape, box, stmt.swizzle, offsets)


def load(e: Evaluator, stmt: TmaLoad, path: str) -> None:
    """The box at ``coords`` to shared memory, zeros for what lies outside of the tensor; its bytes count at once."""
    found: TensorMap | None = e.tensor_maps.get(stmt.desc)
    if found is None:
        raise InputError(f"{stmt.desc!r} is no tensor map")
    source, target = e.memory.store_of(found.buffer), e.memory.store_of(stmt.smem)
    check_copied(source.type, target.type)
    lanes = taking_part(e)
    start = np.stack([e.spread(index_of(entry, e))[lanes] for entry in stmt.coords], axis=1)
    if start.shape[1] != len(found.box):
        raise InputError(f"{stmt.desc!r} has {len(found.box)} dimensions but {start.shape[1]} coordinates")
    at = start[:, None, :] + found.offsets
    inside = ((at >= 0) & (at < found.shape)).all(axis=2)
    strides = np.array([int(np.prod(found.shape[axis + 1 :])) for axis in range(len(found.shape))])
    elements = e.numbers.load(source.elements[np.where(inside, at @ strides, 0)], source.type).array
    elements = np.where(inside, elements, np.zeros((), elements.dtype))
    _deposit(e, stmt, found, lanes, elements)
    barrier, slots = barriers_at(e, stmt.mbar, stmt.mbar_slot)
    barrier.note(slots, 0, -found.offsets.shape[0] * source.width)


def _deposit(e: Evaluator, stmt: TmaLoad, found: TensorMap, lanes: Array, elements: Array) -> None:
    """Write boxes (lanes, elements of the box), one after the other element for element but for the swizzle."""
    target = e.memory.store_of(stmt.smem)
    first = e.spread(e.flat(stmt.smem, stmt.smem_index))[lanes]
    address = (first[:, None] + np.arange(elements.shape[1])) * target.width
    places = swizzled_bytes(found.swizzle, address) // target.width
    outside = (places < 0) | (places >= target.size)
    if outside.any():
        lane = int(lanes[outside.any(axis=1).argmax()])
        e.memory.fault(lane, f"copies beyond the end of {stmt.smem}, which has {target.size} elements")
        return
    target.elements[places + (e.number[lanes] * target.size)[:, None]] = e.memory.stored(target, elements)


STATEMENTS: dict[type, Callable[[Evaluator, Any, str], None]] = {TmaDescriptor: describe, TmaLoad: load}
