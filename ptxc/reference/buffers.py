"""The arrays of a run: sizes known at run time, given or random inputs, outputs that tell what was never written."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ptxc.errors import UnsupportedError, UsageError
from ptxc.launch import LaunchParameter, RuntimeInteger, TensorMap, evaluate
from ptxc.reference.codes import EIGHT_BITS, decode8, encode8
from ptxc.reference.steps import ASIDE, Step

Array = NDArray[Any]

#: What holds an element; floats that NumPy lacks are their bits, a pair of e2m1 is its byte.
DTYPES: dict[str, np.dtype[Any]] = {
    name: np.dtype(kind)
    for name, kind in {
        "f16": np.float16, "bf16": np.uint16, "f32": np.float32, "f64": np.float64, "bool": np.bool_,
        "f8e4m3": np.uint8, "f8e5m2": np.uint8, "f4e2m1x2": np.uint8,
        "i16": np.int16, "i32": np.int32, "i64": np.int64,
        "u8": np.uint8, "u16": np.uint16, "u32": np.uint32, "u64": np.uint64,
    }.items()
}  # fmt: skip

#: Floats that are held as their bits.
_BITS = EIGHT_BITS | {"bf16"}

#: What a runtime integer is where nothing says what it is.
DEFAULT_SIZE = 128

#: The greatest value of an integer parameter.
_MOST = 2**31 - 1

#: Of a random input with more elements than this, only the first and the last million are random, the rest zero.
DENSE = 1 << 26
_ENDS = 1 << 20

#: NaNs that no instruction makes, by their type: what outputs begin with.
_NANS = {
    "f16": 0x7E4D, "bf16": 0x7FCD, "f32": 0x7FC4D4D4, "f64": 0x7FFC4D4D4D4D4D4D, "f8e4m3": 0xFF, "f8e5m2": 0xFD,
}  # fmt: skip


def dtype_of(name: str) -> np.dtype[Any]:
    """NumPy's type for an element type. Raises UnsupportedError."""
    found = DTYPES.get(name)
    if found is None:
        raise UnsupportedError(f"buffers of type {name!r} are not run yet", hint=f"known are {', '.join(DTYPES)}")
    return found


def decoded(array: Array, dtype: str) -> Array:
    """The numbers in an array: those that bits of a float spell which NumPy lacks, else itself."""
    if dtype in EIGHT_BITS:
        return decode8(array, dtype)
    return (array.astype(np.uint32) << 16).view(np.float32) if dtype == "bf16" else array


def encoded(numbers: Array, dtype: str) -> Array:
    """Numbers as elements of a type, floats to nearest even."""
    with np.errstate(all="ignore"):
        if dtype in EIGHT_BITS:
            return encode8(numbers, dtype)
        if dtype != "bf16":
            return numbers.astype(dtype_of(dtype))
        bits = numbers.astype(np.float32).view(np.uint32)
        rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
        return np.where(np.isnan(numbers), 0x7FFF, rounded).astype(np.uint16)


# ------------------------------------------------------------------------------------------------ runtime integers


@dataclass(frozen=True, slots=True)
class Integer:
    """The value of a runtime integer, and where it comes from, for people."""

    value: int
    origin: str


def integers_of(
    steps: Sequence[Step], chosen: Mapping[str, int], given: Mapping[str, Array], default: int = DEFAULT_SIZE
) -> dict[str, Integer]:
    """The sizes known at run time: as ``chosen``, else from the shapes of ``given`` arrays, else ``default``.

    Raises UsageError for a chosen integer that no kernel has, and for sizes that contradict one another.
    """
    wanted: dict[str, list[RuntimeInteger]] = {}
    for step in steps:
        for integer in step.launch.runtime:
            if not integer.serial:
                wanted.setdefault(integer.name, []).append(integer)
    for name in chosen:
        if name not in wanted:
            known = f"it has {', '.join(wanted)}" if wanted else "all its sizes are fixed"
            raise UsageError(f"the kernel has no runtime integer {name!r}", hint=known)
    found = {name: _integer(name, rows, chosen, given, default) for name, rows in wanted.items()}
    for name, size in found.items():
        if size.value > _MOST:
            raise UsageError(f"{name} is {size.value}", hint=f"a kernel takes sizes up to {_MOST}")
    return found


def _integer(
    name: str, rows: Iterable[RuntimeInteger], chosen: Mapping[str, int], given: Mapping[str, Array], default: int
) -> Integer:
    found: list[Integer] = []
    if name in chosen:
        found.append(Integer(chosen[name], "as chosen"))
    for row in rows:
        for buffer, axis in row.sizes:
            if buffer in given and given[buffer].ndim > axis:
                found.append(Integer(given[buffer].shape[axis], f"dimension {axis} of {buffer}"))
    if not found:
        return Integer(default, "the default")
    for other in found[1:]:
        if other.value != found[0].value:
            first = found[0]
            what = f"{name} is {first.value} ({first.origin}) and {other.value} ({other.origin})"
            raise UsageError(what, hint="give arrays whose shapes agree")
    return found[0]


def extents(shape: Sequence[int | str], integers: Mapping[str, int]) -> tuple[int, ...]:
    """A shape or grid whose extents may be expressions over the runtime integers.

    Raises UsageError for an expression that cannot be evaluated.
    """
    try:
        found = tuple(evaluate(extent, integers) for extent in shape)
    except UsageError as error:
        what = f"the extents {list(shape)} cannot be computed from {dict(integers)}: {error.what}"
        raise UsageError(what) from error
    if min(found, default=0) < 0:
        raise UsageError(f"the extents {list(shape)} are {list(found)} for {dict(integers)}", hint="choose other sizes")
    return found


# ---------------------------------------------------------------------------------------------------------- arrays


@dataclass(frozen=True, slots=True)
class Buffer:
    """One buffer of a run. ``zeroed``: it begins as zeros, as kernels add to it."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    written: bool
    zeroed: bool


@dataclass(frozen=True, slots=True)
class Problem:
    """What a run begins with.

    ``begin`` holds the arrays that something is known of before it, inputs for the most part; ``origins`` says of each
    whether it is ``given``, ``constant`` or ``random``.
    """

    integers: dict[str, int]
    buffers: dict[str, Buffer]
    begin: dict[str, Array]
    origins: dict[str, str]
    #: The parameters that stand for a buffer by a table of addresses, by their names.
    placed: dict[str, LaunchParameter]
    #: What tensor maps describe, by the names of their parameters.
    maps: dict[str, TensorMap] = field(default_factory=dict)

    @property
    def written(self) -> list[Buffer]:
        """The buffers that kernels write, in the order of their parameters."""
        return [buffer for buffer in self.buffers.values() if buffer.written]

    def arrays(self) -> dict[str, Array]:
        """Arrays for a run: what no kernel writes is read-only, outputs hold what no kernel leaves there."""
        arrays = {}
        for name, buffer in self.buffers.items():
            if not buffer.written:
                arrays[name] = self.begin[name].view()
                arrays[name].flags.writeable = False
            elif name in self.begin:
                arrays[name] = self.begin[name].copy()
            else:
                with _room_for(buffer):
                    arrays[name] = _unwritten(buffer)
        return arrays

    def is_written(self, name: str, array: Array) -> NDArray[np.bool_]:
        """Which elements of an array of :meth:`arrays` were written; all, where it did not begin as unwritten."""
        buffer = self.buffers[name]
        if buffer.zeroed or name in self.begin:
            return np.ones(array.shape, np.bool_)
        bits = np.dtype(f"u{array.dtype.itemsize}")
        changed: NDArray[np.bool_] = array.view(bits) != _unwritten_bits(buffer.dtype)
        return changed


def problem_of(
    steps: Sequence[Step], integers: Mapping[str, int], given: Mapping[str, Array], seed: int = 0
) -> Problem:
    """The memory that ``steps`` need: ``given`` arrays, constants from the launch description, random numbers.

    Raises UsageError for arrays that do not fit.
    """
    buffers = _declared(steps, integers)
    for name in given:
        if name not in buffers:
            raise UsageError(f"no kernel has a buffer {name!r}", hint=f"buffers are {', '.join(buffers)}")
    begin = {name: _fitting(buffers[name], array) for name, array in given.items()}
    origins = dict.fromkeys(begin, "given")
    parameters = [parameter for step in steps for parameter in step.launch.parameters]
    constants = {p.name: p for p in parameters if p.role == "constant"}
    pagings = [p.paging for p in parameters if p.paging is not None]
    starts = {paging.start: paging.extent for paging in pagings if paging.start is not None}
    for name, buffer in buffers.items():
        if name in begin or buffer.written:
            continue
        origins[name] = "constant" if name in constants else "random"
        if name in constants:
            begin[name] = _constant(buffer, constants[name], integers)
        else:
            # Some page or other: a position on the first one alone would not show that pages are taken for one another.
            with _room_for(buffer):
                begin[name] = _random(buffer, seed, most=3 * starts[name] if name in starts else 3)
    placed = {p.name: p for p in parameters if p.buffer}
    maps = {item.name: item for step in steps for item in step.launch.tensor_maps}
    return Problem(dict(integers), buffers, begin, origins, placed, maps)


def _declared(steps: Sequence[Step], integers: Mapping[str, int]) -> dict[str, Buffer]:
    """Every buffer; what a kernel zeroes for another is as that one declares it."""
    found: dict[str, Buffer] = {}
    zeroed = {name for step in steps for name in step.launch.zero}
    written = {name for step in steps for name in step.names("output", "zero")}
    parameters = [parameter for step in steps for parameter in step.launch.parameters]
    for parameter in sorted(parameters, key=lambda p: p.role == "zero"):
        name = parameter.stands_for
        if parameter.role in ASIDE or (name in found and parameter.role == "zero"):
            continue
        dtype_of(parameter.dtype)
        shape = extents(parameter.shape, integers)
        buffer = Buffer(name, parameter.dtype, shape, name in written, name in zeroed)
        known = found.setdefault(name, buffer)
        if known != buffer:
            what = f"the buffer {name!r} is {described(known)} for one kernel and {described(buffer)} for another"
            raise UsageError(what, hint="kernels that share a buffer declare it alike")
    return {p.stands_for: found[p.stands_for] for p in parameters if p.stands_for in found}


@contextmanager
def _room_for(buffer: Buffer) -> Iterator[None]:
    """Raise UsageError where there is no memory for a buffer."""
    try:
        yield
    except (MemoryError, ValueError) as error:  # ValueError where there could not be so much
        what = f"there is no memory for {buffer.name!r}, which is {described(buffer)}"
        raise UsageError(what, hint="choose smaller sizes") from error


def described(buffer: Buffer) -> str:
    """``f32[37, 100]``."""
    return f"{buffer.dtype}[{', '.join(map(str, buffer.shape))}]"


def _fitting(buffer: Buffer, array: Array) -> Array:
    """A given array in the buffer's type. Raises UsageError where shape or type do not fit."""
    wanted = dtype_of(buffer.dtype)
    if array.shape != buffer.shape:
        what = f"the array for {buffer.name!r} has the shape {list(array.shape)}, not {list(buffer.shape)}"
        raise UsageError(what, hint="sizes known at run time come from --set, else from the shapes")
    if array.dtype == wanted:
        return np.ascontiguousarray(array)
    if buffer.dtype in _BITS and array.dtype.kind == "f":
        return encoded(array, buffer.dtype)
    if buffer.dtype in _BITS or not np.can_cast(array.dtype, wanted, "same_kind"):
        what = f"the array for {buffer.name!r} has the type {array.dtype}, which does not become {buffer.dtype}"
        hint = f"give numbers, or the bits as {wanted}" if buffer.dtype in _BITS else f"convert it to {wanted}"
        raise UsageError(what, hint=hint)
    return np.ascontiguousarray(array, wanted)


def _constant(buffer: Buffer, parameter: LaunchParameter, integers: Mapping[str, int]) -> Array:
    """The buffer of a constant: a number, an expression over the runtime integers, or ``inf`` and ``nan``."""
    value = parameter.value
    if isinstance(value, str):
        value = float(value) if value in ("inf", "-inf", "nan") else extents([value], integers)[0]
    if value is None:
        raise UsageError(f"the constant {buffer.name!r} has no value", hint="give it with the inputs")
    return encoded(np.full(buffer.shape, value, np.float64 if isinstance(value, float) else None), buffer.dtype)


def _random(buffer: Buffer, seed: int, most: int = 3) -> Array:
    """Random elements, by the buffer's name and the seed alone.

    Floats are normally distributed; unsigned integers use their whole range; signed ones, which may be indices, lie
    in 0 to ``most``.
    """
    random = np.random.default_rng([seed, zlib.crc32(buffer.name.encode())])
    dtype, size = dtype_of(buffer.dtype), math.prod(buffer.shape)

    def numbers(count: int) -> Array:
        if dtype.kind == "f" or buffer.dtype in _BITS:
            return encoded(random.standard_normal(count, np.float32), buffer.dtype)
        if dtype.kind == "b":
            return random.random(count) < 0.5
        high = most if dtype.kind == "i" else int(np.iinfo(dtype).max)
        return random.integers(0, high, count, dtype, endpoint=True)

    if size <= DENSE:
        return numbers(size).reshape(buffer.shape)
    array: Array = np.zeros(size, dtype)
    array[:_ENDS], array[-_ENDS:] = numbers(_ENDS), numbers(_ENDS)
    return array.reshape(buffer.shape)


def _unwritten(buffer: Buffer) -> Array:
    dtype = dtype_of(buffer.dtype)
    if buffer.zeroed:
        return np.zeros(buffer.shape, dtype)
    return np.full(buffer.shape, _unwritten_bits(buffer.dtype), f"u{dtype.itemsize}").view(dtype)


def unwritten_like(array: Array, dtype: str) -> Array:
    """An array of the same shape that holds what no kernel leaves."""
    return np.full(array.shape, _unwritten_bits(dtype), f"u{array.dtype.itemsize}").view(array.dtype)


def _unwritten_bits(dtype: str) -> int:
    known = _NANS.get(dtype)
    return known if known is not None else int.from_bytes(b"\x4d" * dtype_of(dtype).itemsize)
