"""The memory of an evaluation: buffers and shared arrays, read and written by all threads at once.

A place is the number of an element, counted row by row. Places are arrays of one place a thread, or of several: then
their first axis are the threads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from emmy.compiler.ir.expr import Expr

from ptxc.errors import InputError, UnsupportedError
from ptxc.reference.buffers import DTYPES, Array, encoded
from ptxc.reference.expressions import evaluate
from ptxc.reference.values import FLOATS, Value, index

if TYPE_CHECKING:
    from ptxc.reference.evaluator import Evaluator


@dataclass(slots=True)
class Store:
    """A buffer or shared array: its elements in one dimension, ``size`` of them a CTA where it is shared."""

    name: str
    type: str
    shape: tuple[Any, ...]
    elements: Array
    size: int
    shared: bool = False

    @property
    def width(self) -> int:
        """Bytes of an element."""
        return DTYPES[self.type].itemsize


class Memory:
    """What the threads of an evaluation read and write; accesses out of bounds are ``faults``."""

    def __init__(self, threads: Evaluator) -> None:
        self._e = threads
        self.stores: dict[str, Store] = {}
        self.faults: list[str] = []

    def store_of(self, name: str) -> Store:
        """A buffer or shared array. Raises InputError."""
        found = self.stores.get(name)
        if found is None:
            raise InputError(f"{name!r} is neither a buffer nor a shared array")
        return found

    def place(self, buffer: str, indices: tuple[Expr, ...]) -> Value:
        """The place of ``buffer[indices]``, row by row; a single index is one already.

        It is a ``long long`` where an index is, or where the buffer has more elements than an int counts.
        """
        entries = [evaluate(entry, self._e) for entry in indices]
        if not entries:
            return index(0)
        if len(entries) == 1:
            return entries[0] if entries[0].is_integer else index(self._e.numbers.as_index(entries[0]))
        store = self.store_of(buffer)
        if len(store.shape) != len(entries):
            raise InputError(f"{buffer!r} has {len(store.shape)} dimensions but {len(entries)} indices")
        flat, *rest = (self._e.numbers.as_index(entry) for entry in entries)
        for size, entry in zip(store.shape[1:], rest, strict=True):
            flat = flat * size + entry
        far = not store.shared and store.size > np.iinfo(np.int32).max
        return index(flat, long=far or any(entry.is_long for entry in entries))

    def flat(self, buffer: str, indices: tuple[Expr, ...]) -> Array:
        """:meth:`place` as a number."""
        return self._e.numbers.as_index(self.place(buffer, indices))

    def stride(self, buffer: str, dimension: int) -> int:
        """How many elements a step along a dimension of a buffer passes."""
        return int(np.prod(self.store_of(buffer).shape[dimension + 1 :], dtype=np.int64))

    def read(self, name: str, flat: Array, where: Array | None = None) -> Value:
        """The elements at places; zero in threads that take no part, and where ``where`` does not hold."""
        store = self.store_of(name)
        flat = self._spread(flat)
        taking, at = self._places(store, flat, where, "reads")
        found = self._e.numbers.load(store.elements[at], store.type)
        if taking.size == flat.size:
            return Value(found.array.reshape(flat.shape), store.type)
        array = np.zeros(flat.size, found.array.dtype)
        array[taking] = found.array
        return Value(array.reshape(flat.shape), store.type)

    def write(self, name: str, flat: Array, value: Value, where: Array | None = None, *, add: bool = False) -> None:
        """Store ``value``, or add it to what is there, in threads that take part and where ``where`` holds."""
        store = self.store_of(name)
        flat = self._spread(flat)
        taking, at = self._places(store, flat, where, "writes")
        array = self._e.numbers.convert(value, store.type).array
        array = np.broadcast_to(array, flat.shape).reshape(-1)[taking]
        if add:
            self._add(store, at, array)
        else:
            store.elements[at] = self.stored(store, array)

    def stored(self, store: Store, array: Array) -> Array:
        """Numbers of a store's type as its elements."""
        if store.elements.dtype == np.float64 or store.type not in FLOATS:
            return array
        return encoded(array, store.type)

    def _spread(self, flat: Array) -> Array:
        return np.broadcast_to(flat, self._e.lanes) if flat.ndim < 2 else flat

    def _places(self, store: Store, flat: Array, where: Array | None, what: str) -> tuple[Array, Array]:
        """Which of the places are accessed, inside of the store's bounds, and where; others are faults."""
        each = flat.size // self._e.lanes
        takes = self._e.mask if self._e.mask is None or each == 1 else np.repeat(self._e.mask, each)
        if where is not None:
            wanted = np.broadcast_to(where, flat.shape).reshape(-1)
            takes = wanted if takes is None else takes & wanted
        taking = np.arange(flat.size) if takes is None else np.flatnonzero(takes)
        at = flat.reshape(-1)[taking]
        inside = (at >= 0) & (at < store.size)
        if not inside.all():
            first = int(np.flatnonzero(~inside)[0])
            self.fault(int(taking[first]) // each, f"{what} {store.name}[{at[first]}], which has {store.size} elements")
            taking, at = taking[inside], at[inside]
        return taking, at + self._e.number[taking // each] * store.size if store.shared else at

    def fault(self, lane: int, what: str) -> None:
        """Note what a thread does wrong; once for each statement."""
        place = self._e.path
        if not any(fault.startswith(f"{place}:") for fault in self.faults):
            self.faults.append(f"{place}: thread {self._e.tid[lane]} of CTA {self._e.cta[lane]} {what}")

    def _add(self, store: Store, at: Array, array: Array) -> None:
        """Add to elements, some of which several threads may add to: in float64, rounded at the end."""
        if store.type not in FLOATS:
            np.add.at(store.elements, at, array)
            return
        places, which = np.unique(at, return_inverse=True)
        sums = self._e.numbers.load(store.elements[places], store.type).array.copy()
        np.add.at(sums, which, array)
        store.elements[places] = self.stored(store, sums)


def check_copied(source: str, target: str) -> None:
    """Raise UnsupportedError where a copy is no copy of elements."""
    if source != target and {source, target} != {"u8", "f4e2m1x2"}:
        raise UnsupportedError("the reference does not copy between arrays of different types")
