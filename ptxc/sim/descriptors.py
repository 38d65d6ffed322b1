"""Matrices in shared memory that a ``wgmma`` finds by a descriptor (PTX ISA 9.7.17.5.1.2).

A matrix is made of 16-byte units: eight 16-bit elements along K (K-major) or along M or N (MN-major). The canonical
layouts of 9.7.17.5.1.2.1.3 say where each unit is; the swizzle then exchanges units by their address.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np

from ptxc.sim.scalar import Array, Index

_WIDTHS = (1, 8, 4, 2)
"""How many units a swizzle exchanges, by the descriptor's mode: none, 128, 64, 32 bytes."""


@dataclass(frozen=True, slots=True)
class Layout:
    """What a descriptor says but the start address: offsets in units, base offset, and the swizzle's width in units."""

    leading: int
    stride: int
    base: int
    width: int

    @classmethod
    def of(cls, descriptor: int) -> Layout:
        """Of the 64 bits of 9.7.17.5.1.2.2."""
        return cls(
            descriptor >> 16 & 0x3FFF, descriptor >> 32 & 0x3FFF, descriptor >> 49 & 7, _WIDTHS[descriptor >> 62 & 3]
        )


@cache
def units(layout: Layout, rows: int, depth: int, per_unit: int, k_major: bool) -> Index:
    """Where each unit of a matrix of ``rows`` (of M or N) and ``depth`` (K) is, in units from the start, unswizzled.

    ``[rows, depth / per_unit]`` if K-major, else ``[rows / per_unit, depth]``.
    """
    width, leading, stride = layout.width, layout.leading, layout.stride
    if k_major:
        row, unit = np.arange(rows)[:, None], np.arange(depth // per_unit)[None, :]
        if width == 1:
            return row % 8 + row // 8 * stride + unit * leading
        return row % 8 * width + row // 8 * stride + unit
    unit, k = np.arange(rows // per_unit)[:, None], np.arange(depth)[None, :]
    if width == 1:
        return unit * stride + k % 8 + k // 8 * leading
    return unit % width + unit // width * leading + k % 8 * width + k // 8 * stride


def addresses(descriptors: Array, rows: int, depth: int, per_unit: int, k_major: bool) -> Index:
    """The units of one matrix for each of ``descriptors``, by their number in shared memory, ``[n, *units]``."""
    starts = (descriptors & np.uint64(0x3FFF)).astype(np.intp)
    layouts = descriptors >> np.uint64(14)
    parts = []
    for start, bits in zip(starts.tolist(), layouts.tolist(), strict=True):
        layout = Layout.of(bits << 14)
        found = start + units(layout, rows, depth, per_unit, k_major)
        if layout.width > 1:
            # Bits 4 to 6 of the address are exchanged by bits 7 to 9, counted from where the pattern starts.
            found = found ^ ((found >> 3) - layout.base & layout.width - 1)
        parts.append(found)
    return np.stack(parts)
