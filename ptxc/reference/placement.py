"""Where a launch's buffers lie: as they are, in pages, or behind a table of addresses.

Pages are allocations of their own, in an order that has nothing to do with their numbers, and a table has as many
entries as it needs. So an entry beyond it is an access outside of memory, and a wrong page is wrong numbers. An
indirect input is one of several candidates; the others hold what no kernel computes with.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from ptxc.device.cuda import CudaDevice, Pointers
from ptxc.errors import UsageError
from ptxc.launch import LaunchParameter, Paging, TensorMap
from ptxc.reference.buffers import Array, extents, unwritten_like
from ptxc.sim.device import CpuDevice
from ptxc.sim.findings import Finding
from ptxc.sim.tensor_map import DATA_TYPES
from ptxc.sim.tensor_map import TensorMap as DeviceMap

#: How many candidates an indirect input has, which of them each slot selects, and the slot that is asked for.
_CANDIDATES, _SELECTED, _SLOT = 4, (3, 1, 2), 1

#: How many pages may lie before a buffer: each is an allocation of its own.
_MOST_PAGES = 4096

#: PTX's names of the element types of tensor maps, by CUDA's: the first, where several have one.
_MAP_TYPES = {cuda: ptx for ptx, cuda in reversed(DATA_TYPES.items())}


class Placement:
    """The arguments of one launch. What it binds on the device is released at the end."""

    def __init__(
        self,
        device: CpuDevice | CudaDevice,
        arrays: Mapping[str, Array],
        integers: Mapping[str, int],
        maps: Iterable[TensorMap] = (),
    ) -> None:
        self._device, self._arrays, self._integers = device, arrays, integers
        self._maps = {item.name: item for item in maps}
        self._bound: list[Array] = []
        self._pages: list[Pages] = []

    def __enter__(self) -> Placement:
        return self

    def __exit__(self, *_: object) -> None:
        if isinstance(self._device, CpuDevice):
            for array in self._bound:
                self._device.release(array)

    def argument(self, parameter: LaunchParameter) -> Array | int | DeviceMap | Pointers:
        """What to pass for a parameter."""
        role = parameter.role
        if role == "runtime":
            return self._integers[parameter.name]
        if role == "slot":
            return _SLOT
        if role == "selector":
            return _constant(np.array(_SELECTED, np.int32))
        if role == "pages":
            return self._page_table(parameter)
        if role == "table":
            return self._candidates(parameter)
        if role == "tensor_map":
            return self._tensor_map(self._maps[parameter.name])
        return self._arrays[parameter.name]

    def collect(self) -> list[Finding]:
        """Bring what was written on pages to the buffers that these are; what was written beside them is a fault."""
        found = []
        for pages in self._pages:
            beside = pages.collect()
            if beside:
                message = f"{beside} elements of {pages.name}'s pages are written that are no part of the buffer"
                found.append(Finding("memory", message, count=0))
        return found

    def _table(self, arrays: Sequence[Array], names: Sequence[str], order: Iterable[int]) -> Array | Pointers:
        """A table of the addresses of ``arrays``, which get theirs in ``order``."""
        if isinstance(self._device, CudaDevice):
            return Pointers(tuple(arrays))
        self._bound += arrays
        addresses = {int(at): self._device.address(arrays[at], names[at]) for at in order}
        return _constant(np.array([addresses[at] for at in range(len(arrays))], np.uint64))

    def _tensor_map(self, item: TensorMap) -> DeviceMap:
        """The map of a buffer, as the device takes it."""
        dtype = _MAP_TYPES.get(item.data_type)
        if dtype is None:
            raise UsageError(
                f"the tensor map {item.name!r} is of {item.data_type!r}", hint=f"there is {', '.join(_MAP_TYPES)}"
            )
        dims, strides = extents(item.dims, self._integers), extents(item.strides, self._integers)
        buffer = self._arrays.get(item.buffer)
        if buffer is None:
            raise UsageError(
                f"the tensor map {item.name!r} describes {item.buffer!r}, which is no buffer of the kernel"
            )
        return DeviceMap(buffer, dims, strides, item.box, item.element_strides, item.swizzle, dtype)

    def _page_table(self, parameter: LaunchParameter) -> Array | Pointers:
        assert parameter.paging is not None
        name, paging = parameter.stands_for, parameter.paging
        pages = Pages(name, paging, self._arrays[name], self._start(paging), extents(paging.shape, self._integers))
        order = np.random.default_rng(zlib.crc32(name.encode())).permutation(len(pages.arrays))
        if paging.written:
            self._pages.append(pages)
        return self._table(pages.arrays, [f"page {at} of {name}" for at in range(len(order))], order)

    def _start(self, paging: Paging) -> int:
        if paging.start is None:
            return 0
        start = int(self._arrays[paging.start].reshape(-1)[0])
        most = _MOST_PAGES * paging.extent
        if not 0 <= start < most:
            raise UsageError(f"the start {paging.start!r} is {start}", hint=f"give a position from 0 to {most - 1}")
        return start

    def _candidates(self, parameter: LaunchParameter) -> Array | Pointers:
        name = parameter.stands_for
        arrays = [_constant(unwritten_like(self._arrays[name], parameter.dtype))] * _CANDIDATES
        names = [f"another candidate for {name}"] * _CANDIDATES
        arrays[_SELECTED[_SLOT]], names[_SELECTED[_SLOT]] = self._arrays[name], name
        return self._table(arrays, names, range(_CANDIDATES))


class Pages:
    """A paged buffer's pages: ``array`` along ``paging.axis``, from position ``start`` of the first page on.

    What lies beside it on its first and last page, and pages before these, are other positions of the same cache.
    """

    def __init__(self, name: str, paging: Paging, array: Array, start: int, shape: tuple[int, ...]) -> None:
        self.name, self._array, self._axis = name, array, paging.axis
        count = -(-(start + array.shape[paging.axis]) // paging.extent)
        along = shape[paging.axis]
        whole = (*array.shape[: paging.axis], count * along, *array.shape[paging.axis + 1 :])
        bits = np.dtype(f"u{array.dtype.itemsize}")
        self._marker = bits.type(_BESIDE & int(np.iinfo(bits).max))
        cache = np.full(whole, self._marker, bits).view(array.dtype)
        self._window = (*[slice(None)] * paging.axis, slice(start, start + array.shape[paging.axis]))
        self._beside: NDArray[np.bool_] = np.ones(whole, np.bool_)
        self._beside[self._window] = False
        cache[self._window] = array
        parts = np.split(cache, count, paging.axis) if count else []
        self.arrays = [np.ascontiguousarray(part) for part in parts]
        for page in self.arrays:
            page.flags.writeable = paging.written

    def collect(self) -> int:
        """Take what is on the pages to the array; how many elements beside it changed."""
        if not self.arrays:
            return 0
        cache = np.concatenate(self.arrays, self._axis)
        self._array[...] = cache[self._window]
        return int(np.count_nonzero(cache.view(self._marker.dtype)[self._beside] != self._marker))


#: The bits of what lies beside a buffer on its pages: a NaN of every float.
_BESIDE = 0x7FFD_5E5E_7FCD_7FCD


def _constant(array: Array) -> Array:
    array.flags.writeable = False
    return array
