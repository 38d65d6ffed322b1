"""The scalar types of PTX and how the CPU device holds them in NumPy arrays.

A register holds one array of bits, one element a thread. The element's size is the register's width; the array's
dtype is that of whichever instruction wrote it, and a reader views the same bits as the dtype that its own type
names. Types that NumPy lacks are held as unsigned integers of their width (``bf16``, the packed pairs), 128-bit
values as ``complex128``, which here is nothing but a 16-byte container that NumPy copies bit for bit.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Bits = NDArray[np.unsignedinteger[Any]]
Index = NDArray[np.intp]
Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class PtxType:
    """One fundamental or packed type (PTX ISA 5.2). ``kind`` is one of b, u, s, f, bf, packed, pred."""

    name: str
    kind: str
    bits: int

    @cached_property
    def size(self) -> int:
        """Width in bytes; a predicate takes one."""
        return max(self.bits // 8, 1)

    @cached_property
    def dtype(self) -> np.dtype[Any]:
        """The NumPy type of an array that holds values of this type."""
        if self.kind == "pred":
            return np.dtype(np.bool_)
        if self.kind == "f":
            return np.dtype(f"f{self.size}")
        return container(self.size) if self.kind != "s" else np.dtype(f"i{self.size}")

    @property
    def is_integer(self) -> bool:
        """Whether integer arithmetic is meant (an untyped ``b`` counts)."""
        return self.kind in "bus"


def container(size: int) -> np.dtype[Any]:
    """The dtype that holds ``size`` bytes (1, 2, 4, 8 or 16) without giving them a meaning."""
    return np.dtype(np.complex128) if size == 16 else np.dtype(f"u{size}")


def _table() -> dict[str, PtxType]:
    rows = [PtxType(f"{kind}{bits}", kind, bits) for kind in "bus" for bits in (8, 16, 32, 64)]
    rows += [PtxType("b128", "b", 128), PtxType("pred", "pred", 1)]
    rows += [PtxType(f"f{bits}", "f", bits) for bits in (16, 32, 64)]
    rows += [PtxType("bf16", "bf", 16), PtxType("tf32", "packed", 32)]
    rows += [PtxType(name, "packed", 32) for name in ("f16x2", "bf16x2", "s16x2", "u16x2")]
    rows += [PtxType("f32x2", "packed", 64)]
    rows += [PtxType(name, "packed", 16) for name in ("e4m3x2", "e5m2x2", "e2m3x2", "e3m2x2", "ue8m0x2")]
    rows += [PtxType("e2m1x2", "packed", 8)]
    return {row.name: row for row in rows}


TYPES: dict[str, PtxType] = _table()
"""Every type by the name that a modifier spells, without its dot."""


HALVES = {"f16x2": "f16", "bf16x2": "bf16", "f32x2": "f32"}
"""The element of each packed pair of floats that has arithmetic of its own."""


def resize(values: Array, size: int, *, signed: bool) -> Array:
    """``values`` brought to ``size`` bytes an element: cut off, or extended by sign or zero (PTX ISA 9.4.1)."""
    have = values.dtype.itemsize
    if have == size:
        return values
    source = np.dtype(f"i{have}") if signed else container(have)
    target = np.dtype(f"i{size}") if signed else container(size)
    return values.view(source).astype(target)
