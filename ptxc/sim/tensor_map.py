"""Tensor maps: what ``cp.async.bulk.tensor`` copies from (PTX ISA 5.5), and how a launch passes them.

To a kernel a tensor map is 128 opaque bytes. Here they hold a number by which the device finds the map again, so that
a copy of them, in a parameter or in global memory, is as good.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ptxc.errors import UsageError
from ptxc.sim.memory import Region
from ptxc.sim.scalar import TYPES, Array

SIZE = 128
_MAGIC = b"ptxc tensor map."
SWIZZLES = {"NONE": 0, "32B": 1, "64B": 3, "128B": 7}
"""The bits of a 16-byte unit's address that the swizzle exchanges, by mode (5.5.7)."""

#: CUDA's names of the element types, after ``CU_TENSOR_MAP_DATA_TYPE_``, by PTX's.
DATA_TYPES = {
    "f16": "FLOAT16", "bf16": "BFLOAT16", "f32": "FLOAT32", "f64": "FLOAT64", "s32": "INT32", "u32": "UINT32",
    "s64": "INT64", "u64": "UINT64", "u16": "UINT16", "u8": "UINT8", "e4m3": "UINT8", "e5m2": "UINT8",
    "tf32": "TFLOAT32",
}  # fmt: skip

_SIZES = {"e4m3": 1, "e5m2": 1, "tf32": 4}


@dataclass(frozen=True, eq=False)
class TensorMap:
    """A tensor in ``buffer`` and the box of it that one instruction copies, as ``cuTensorMapEncodeTiled`` takes them.

    Extents are in elements, the innermost first. ``strides`` are bytes, one for each dimension but the innermost.
    ``dtype`` is a PTX type. Elements outside of the tensor are zero. Raises UsageError for what CUDA refuses.
    """

    buffer: Array
    dims: Sequence[int]
    strides: Sequence[int]
    box: Sequence[int]
    element_strides: Sequence[int] = ()
    swizzle: str = "NONE"
    dtype: str = "f16"

    def __post_init__(self) -> None:
        rank = len(self.dims)
        if not 1 <= rank <= 5 or len(self.strides) != rank - 1 or len(self.box) != rank:
            raise UsageError("a tensor map has one to five dimensions, as many box extents, and one stride fewer")
        if self.element_strides and len(self.element_strides) != rank:
            raise UsageError("a tensor map has an element stride for each dimension, or none")
        if self.swizzle not in SWIZZLES:
            raise UsageError(f"unknown swizzle {self.swizzle!r}", hint=f"there are {', '.join(SWIZZLES)}")
        if any(not 1 <= n <= 256 for n in self.box):
            raise UsageError(f"the extents of the box {tuple(self.box)} are not between 1 and 256")
        if any(not 1 <= n <= 8 for n in self.steps):
            raise UsageError("element strides are between 1 and 8")
        if any(stride % 16 for stride in self.strides):
            raise UsageError("the strides of a tensor map are multiples of 16 bytes")
        inner = self.counts[0] * self.element_size
        if inner % 16 or (self.swizzle != "NONE" and inner > int(self.swizzle[:-1])):
            raise UsageError(f"a box of {inner} bytes in a row does not fit swizzle {self.swizzle}")
        if self._end > self.buffer.nbytes:
            raise UsageError(f"the tensor reaches to byte {self._end}, its buffer has {self.buffer.nbytes}")

    @property
    def element_size(self) -> int:
        """Bytes an element."""
        return _SIZES.get(self.dtype) or TYPES[self.dtype].size

    @property
    def steps(self) -> tuple[int, ...]:
        """The element strides, ones if none are given."""
        return tuple(self.element_strides) or (1,) * len(self.dims)

    @property
    def counts(self) -> tuple[int, ...]:
        """How many elements of the box are copied along each dimension (5.5.3.2)."""
        return tuple(-(-extent // step) for extent, step in zip(self.box, self.steps, strict=True))

    @property
    def _end(self) -> int:
        steps = (self.element_size, *self.strides)
        return sum((n - 1) * stride for n, stride in zip(self.dims, steps, strict=True)) + self.element_size

    @property
    def box_bytes(self) -> int:
        """What one copy brings."""
        return int(np.prod(self.counts)) * self.element_size


@dataclass(frozen=True, slots=True, eq=False)
class BoundMap:
    """A tensor map whose buffer has device addresses: ``region``."""

    map: TensorMap
    region: Region

    def copy_box(self, start: Sequence[int]) -> Array:
        """The bytes of the box at coordinates ``start`` (innermost first), rows one behind the other."""
        item = self.map
        size = item.element_size
        data = self.region.data[: self.region.data.size // size * size].view(f"u{size}")
        strides = (size, *item.strides)
        tensor = np.lib.stride_tricks.as_strided(data, tuple(item.dims)[::-1], strides[::-1])
        box = np.zeros(item.counts[::-1], data.dtype)
        inside, source = [], []
        for at, extent, count, step in zip(start, item.dims, item.counts, item.steps, strict=True):
            low, high = max(0, -(at // step)), min(count, -((at - extent) // step))
            if low >= high:
                return box.reshape(-1).view(np.uint8)
            inside.append(slice(low, high))
            source.append(slice(at + low * step, at + (high - 1) * step + 1, step))
        box[tuple(inside[::-1])] = tensor[tuple(source[::-1])]
        return box.reshape(-1).view(np.uint8)


def swizzled(units: Array, mode: str) -> Array:
    """Where 16-byte units of shared memory (by their address / 16) go in a swizzle mode (5.5.7)."""
    moved: Array = units ^ (units >> 3 & SWIZZLES[mode])
    return moved


def encode(number: int) -> bytes:
    """The 128 bytes of the device's tensor map ``number``."""
    return (_MAGIC + struct.pack("<Q", number)).ljust(SIZE, b"\0")


def number_in(raw: bytes) -> int | None:
    """The number that 128 bytes hold; None if they are no tensor map."""
    return int(struct.unpack_from("<Q", raw, len(_MAGIC))[0]) if raw.startswith(_MAGIC) else None
