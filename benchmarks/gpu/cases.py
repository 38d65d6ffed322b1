"""The cases of a prepared folder: what their buffers hold, what is launched, what is expected; and whether it is whole.

`prepare.py` writes them, `run.py` reads them; this file lies beside `run.py` in a prepared folder.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ptxc.device.gpu import Address, Argument, Launch, Map, Task, Value

Array = NDArray[Any]

MANIFEST = "manifest.json"
BUILDS = ("ptxc", "nvcc")
#: The most that a folder may hold, in bytes.
MOST_BYTES = 60_000_000
#: Samples of a build, and seconds after which a case gets no more of them.
SAMPLES, PATIENCE = 20, 1.5

#: Inputs repeat after so many elements: a prime, so that rows and tiles differ.
PERIOD = 65537

#: What holds the elements of each type.
DTYPES = {
    "f16": "f2", "bf16": "u2", "f32": "f4", "f64": "f8", "bool": "?", "f8e4m3": "u1", "f8e5m2": "u1", "f4e2m1x2": "u1",
    "i16": "i2", "i32": "i4", "i64": "i8", "u8": "u1", "u16": "u2", "u32": "u4", "u64": "u8",
}  # fmt: skip

#: The codes of eight-bit floats below this are those of magnitudes below 1.
_BELOW_ONE = {"f8e4m3": 0x38, "f8e5m2": 0x3C}


# --------------------------------------------------------------------------------------------- what buffers hold


def hashed(seed: int, count: int) -> NDArray[np.uint32]:
    """So many words that look random: the same everywhere, as integers are."""
    words: NDArray[np.uint32] = np.arange(count, dtype=np.uint32) + np.uint32(seed * 0x9E3779B9 & 0xFFFFFFFF)
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        words ^= words >> np.uint32(shift)
        words *= np.uint32(factor)
    words ^= words >> np.uint32(16)
    return words


def numbers(dtype: str, seed: int, width: float) -> Array:
    """A period of elements of a type. Floats are uniform in -width to width, a power of two; integers are 0 to 3, as
    they may be indices, unsigned ones of any value."""
    words = hashed(seed, PERIOD)
    if dtype in ("f16", "bf16", "f32", "f64"):
        exact = ((words >> np.uint32(8)).astype(np.float32) * np.float32(2.0**-23) - np.float32(1)) * np.float32(width)
        return rounded(exact) if dtype == "bf16" else exact.astype(DTYPES[dtype])
    if dtype in _BELOW_ONE:
        return (words & 0x80 | (words & 0x7F) % _BELOW_ONE[dtype]).astype(np.uint8)
    if dtype == "bool":
        return (words & 1).astype(np.bool_)
    return (words & 3 if dtype.startswith("i") else words).astype(DTYPES[dtype])


def rounded(numbers: NDArray[np.float32]) -> NDArray[np.uint16]:
    """The bits of numbers as bf16, to nearest even."""
    bits = numbers.view(np.uint32)
    return ((bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))) >> np.uint32(16)).astype(np.uint16)


def contents(buffer: Mapping[str, Any]) -> Array:
    """What a buffer holds at first: its ``fill`` is ``numbers``, ``bytes`` (as hexadecimal digits), ``zeros``, or
    ``unwritten``, which sets all bits: NaN, or a number that no kernel here leaves."""
    dtype, shape = np.dtype(DTYPES[buffer["dtype"]]), tuple(buffer["shape"])
    fill, size = buffer["fill"], math.prod(shape)
    if fill["kind"] == "numbers":
        return np.resize(numbers(buffer["dtype"], fill["seed"], fill["width"]), size).reshape(shape)
    if fill["kind"] == "bytes":
        return np.frombuffer(bytes.fromhex(fill["bytes"]), dtype).reshape(shape)
    byte = {"zeros": 0x00, "unwritten": 0xFF}[fill["kind"]]
    return np.full(size * dtype.itemsize, byte, np.uint8).view(dtype).reshape(shape)


def decoded(array: Array, dtype: str) -> NDArray[np.float64]:
    """The numbers that an output's elements are."""
    if dtype == "bf16":
        array = (array.astype(np.uint32) << np.uint32(16)).view(np.float32)
    with np.errstate(invalid="ignore"):
        return array.astype(np.float64)


# ------------------------------------------------------------------------------------------------------- the folder


class FolderError(Exception):
    """The folder is not what was prepared."""


@dataclass(frozen=True)
class Case:
    """A case of the manifest."""

    folder: Path
    entry: dict[str, Any]

    @property
    def name(self) -> str:
        """The case's name, in the manifest and the results."""
        return str(self.entry["name"])

    @property
    def outputs(self) -> dict[str, dict[str, Any]]:
        """What is compared, by buffer: ``tolerance`` and the keys of the expected elements."""
        return dict(self.entry["outputs"])

    def buffers(self) -> dict[str, Array]:
        """What the buffers hold before the first launch."""
        return {name: contents(buffer) for name, buffer in self.entry["buffers"].items()}

    def modules(self, build: str, kind: str) -> tuple[bytes, ...]:
        """The PTX texts or the cubins (``kind``) of a build."""
        return tuple((self.folder / module[kind]).read_bytes() for module in self.entry["builds"][build]["modules"])

    def launches(self, build: str, first: int = 0) -> tuple[Launch, ...]:
        """A build's launches; ``first`` is the number of its first module in the task."""
        return tuple(
            Launch(
                first + item["module"], item["entry"], _three(item["grid"]), _three(item["block"]), item["shared"],
                tuple(map(argument, item["arguments"])), tuple(item["zero"]),
            )
            for item in self.entry["builds"][build]["launches"]
        )  # fmt: skip

    def check_task(self, build: str, kind: str, buffers: Mapping[str, Array]) -> Task:
        """The task of launching a build once."""
        return Task(self.modules(build, kind), buffers, (self.launches(build),), tuple(self.outputs))

    def timing_task(self, kind: str, buffers: Mapping[str, Array]) -> Task:
        """The task of timing both builds in turn."""
        modules: tuple[bytes, ...] = ()
        sequences = []
        for build in BUILDS:
            sequences.append(self.launches(build, len(modules)))
            modules += self.modules(build, kind)
        return Task(modules, buffers, tuple(sequences), samples=SAMPLES, patience=PATIENCE)

    def expected(self, output: str) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """The places of an output's elements that are known, and what is expected there."""
        item = self.outputs[output]
        with np.load(self.folder / item["file"]) as file:
            values = file[f"{output}.values"].astype(np.float64).reshape(-1)
            places = file[f"{output}.places"] if f"{output}.places" in file.files else np.arange(values.size)
        return places.astype(np.int64), values


def argument(item: Sequence[Any]) -> Argument:
    """An argument: ``["address", buffer]``, ``["value", hexadecimal digits]`` or ``["map", its fields]``."""
    kind, value = item
    if kind == "address":
        return Address(value)
    if kind == "value":
        return Value(bytes.fromhex(value))
    dims, strides, box, steps = (tuple(value[key]) for key in ("dims", "strides", "box", "element_strides"))
    return Map(value["buffer"], value["data_type"], dims, strides, box, steps, value["swizzle"])


def _three(extents: Sequence[int]) -> tuple[int, int, int]:
    x, y, z = extents
    return x, y, z


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest. Raises FolderError."""
    try:
        content: dict[str, Any] = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise FolderError(f"{folder / MANIFEST} cannot be read: {error}") from error
    return content


def check_files(folder: Path, manifest: Mapping[str, Any]) -> int:
    """Hold every file against the manifest; how many bytes there are. Raises FolderError."""
    total = (folder / MANIFEST).stat().st_size
    for name, digest in manifest["files"].items():
        try:
            data = (folder / name).read_bytes()
        except OSError as error:
            raise FolderError(f"{name} cannot be read: {error.strerror}") from error
        if hashlib.sha256(data).hexdigest() != digest:
            raise FolderError(f"{name} is not the file that was prepared")
        total += len(data)
    if total > MOST_BYTES:
        raise FolderError(f"the folder has {total:,} bytes, more than {MOST_BYTES:,}")
    return total


def check_case(case: Case) -> None:
    """All of a case that can be checked without a GPU. Raises FolderError."""
    buffers = case.buffers()
    for name, buffer in case.entry["buffers"].items():
        if hashlib.sha256(buffers[name].tobytes()).hexdigest() != buffer["sha256"]:
            raise FolderError(f"{case.name}: {name} does not come out as it was prepared")
    for output in case.outputs:
        places, values = case.expected(output)
        if not len(places) == len(values) > 0 or places.max() >= buffers[output].size or not np.isfinite(values).all():
            raise FolderError(f"{case.name}: what is expected of {output} does not fit it")
    for build in BUILDS:
        task = case.check_task(build, "cubin", buffers)
        texts = case.modules(build, "ptx")
        if not all(image.startswith(b"\x7fELF") for image in task.modules):
            raise FolderError(f"{case.name}: a cubin of {build}'s is none")
        for launch in task.sequences[0]:
            _check_launch(f"{case.name}: {build}: {launch.entry}", launch, texts[launch.module].decode(), buffers)


def _check_launch(where: str, launch: Launch, ptx: str, buffers: Mapping[str, Array]) -> None:
    """Hold a launch against its entry. Raises FolderError."""
    entry = re.search(rf"\.entry\s+{re.escape(launch.entry)}\s*\((.*?)\)", ptx, re.DOTALL)
    if entry is None:
        raise FolderError(f"{where}: the PTX has no such entry")
    sizes = [int(bits) // 8 for bits in re.findall(r"\.param\s+(?:\.align\s+\d+\s+)?\.[a-z](\d+)\b", entry[1])]
    given = [len(item.data) if isinstance(item, Value) else 8 for item in launch.arguments]
    if sizes != given:
        raise FolderError(f"{where}: its parameters have {sizes} bytes, the arguments {given}")
    named = [item.buffer for item in launch.arguments if isinstance(item, Address | Map)]
    for name in (*named, *launch.zero):
        if name not in buffers:
            raise FolderError(f"{where}: there is no buffer {name!r}")
    if min(*launch.grid, *launch.block) < 1 or math.prod(launch.block) > 1024 or launch.shared > 227 << 10:
        raise FolderError(f"{where}: no GPU takes {launch.grid}, {launch.block}, {launch.shared} bytes")
    for item in launch.arguments:
        if isinstance(item, Map):
            _check_map(where, item, buffers[item.buffer])


def _check_map(where: str, item: Map, buffer: Array) -> None:
    """What cuTensorMapEncodeTiled asks for. Raises FolderError."""
    rank = len(item.dims)
    size = buffer.dtype.itemsize
    reach = sum((extent - 1) * step for extent, step in zip(item.dims, (size, *item.strides), strict=True)) + size
    sound = (
        1 <= rank <= 5
        and (len(item.strides), len(item.box), len(item.element_strides)) == (rank - 1, rank, rank)
        and all(1 <= extent <= 256 for extent in item.box)
        and all(stride % 16 == 0 and stride < 1 << 40 for stride in item.strides)
        and all(1 <= extent <= 1 << 32 for extent in item.dims)
        and item.box[0] * size % 16 == 0
        and reach <= buffer.nbytes
    )
    if not sound:
        raise FolderError(f"{where}: CUDA does not take the tensor map {item}")
