"""Memory as the CPU device holds it: regions of bytes, and the global address space that maps to them.

Every buffer of a launch is a region of its own, with a gap of unmapped addresses behind it, so that running over its
end meets nothing. Regions are views of the caller's arrays: a store is seen there at once, and nothing is copied.
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ptxc.errors import UsageError
from ptxc.sim.scalar import Array, container

GLOBAL_BASE = 0x7F00_0000_0000
"""The first global address."""

GAP = 1 << 16
"""Unmapped bytes behind each allocation, at least."""

_ALIGNMENT = 1 << 10


@dataclass(slots=True, eq=False)
class Region:
    """``data`` (uint8, one dimension) at addresses ``start`` up to ``start + len(data)`` of ``space``."""

    name: str
    space: str
    start: int
    data: NDArray[np.uint8]
    writable: bool = True
    keep: Any = None
    _views: dict[int, Array] = field(default_factory=dict)

    @property
    def end(self) -> int:
        """The address behind the last byte."""
        return self.start + self.data.size

    def view(self, size: int) -> Array:
        """The bytes as elements of ``size`` bytes (1, 2, 4, 8, 16); a rest that fills no element is left out."""
        found = self._views.get(size)
        if found is None:
            found = self.data[: self.data.size // size * size].view(container(size))
            self._views[size] = found
        return found


class GlobalMemory:
    """The global address space: an allocator that never gives an address twice, and a map back to regions."""

    def __init__(self) -> None:
        self._next = GLOBAL_BASE
        self._starts: list[int] = []
        self._regions: list[Region] = []
        self._by_array: dict[int, Region] = {}

    @property
    def count(self) -> int:
        """How many regions are mapped."""
        return len(self._regions)

    def bind(self, array: Array, name: str) -> Region:
        """The region that is ``array``'s memory, the same one each time it is asked for.

        It is writable if the array is now. Raises UsageError if ``array`` is not contiguous.
        """
        known = self._by_array.get(id(array))
        if known is not None and known.keep is array:
            known.writable = array.flags.writeable
            return known
        if not array.flags.c_contiguous:
            hint = "pass numpy.ascontiguousarray of it, which is a copy: what is written is there"
            raise UsageError(f"the array for {name} is not contiguous", hint=hint)
        region = self.add(name, "global", array.reshape(-1).view(np.uint8), array.flags.writeable)
        region.keep = array
        self._by_array[id(array)] = region
        return region

    def add(self, name: str, space: str, data: NDArray[np.uint8], writable: bool) -> Region:
        """Map ``data`` at fresh addresses."""
        region = Region(name, space, self._next, data, writable)
        self._starts.append(region.start)
        self._regions.append(region)
        self._next = -(-(region.end + GAP) // _ALIGNMENT) * _ALIGNMENT
        return region

    def release(self, array: Array) -> None:
        """Unmap the region that is ``array``'s memory, if there is one."""
        region = self._by_array.get(id(array))
        if region is not None and region.keep is array:
            self.remove(region)

    def remove(self, region: Region) -> None:
        """Unmap ``region``; its addresses stay unused."""
        at = self._regions.index(region)
        del self._regions[at], self._starts[at]
        self._by_array.pop(id(region.keep), None)

    def find(self, address: int) -> Region | None:
        """The region with the greatest start at or below ``address``, whether or not it reaches so far."""
        at = bisect.bisect_right(self._starts, address) - 1
        return self._regions[at] if at >= 0 else None

    def start_above(self, address: int) -> int:
        """The start of the first region above ``address``; beyond all addresses if there is none."""
        at = bisect.bisect_right(self._starts, address)
        return self._starts[at] if at < len(self._starts) else 1 << 63
