"""Launches compiled kernels on the CPU device, knowing of them what their launch descriptions say and no more."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ptxc.compilation import CompiledKernel
from ptxc.launch import Launch, LaunchParameter, evaluate
from ptxc.reference.sample import Sample
from ptxc.sim.device import CpuDevice

Array = NDArray[Any]
Arrays = MutableMapping[str, Array]

#: The types of buffers; bfloat16 is its bits.
DTYPES = {
    "f16": np.float16, "bf16": np.uint16, "f32": np.float32, "f64": np.float64,
    "i32": np.int32, "i64": np.int64, "u8": np.uint8, "bool": np.bool_,
}  # fmt: skip

#: All that the CPU device can find.
SANITIZERS = ("memory", "race", "init", "sync")


def run(
    kernels: Sequence[CompiledKernel], arrays: Arrays, sanitize: Sequence[str] = SANITIZERS, *,
    ctas: int | None = None, more: int = 0, sizes: Mapping[str, int] | None = None,
) -> list[str]:  # fmt: skip
    """Launch kernels one after the other on ``arrays``, which hold the inputs and get all that is written.

    Returns what the device found. A buffer that is written begins as what no kernel should leave there. ``ctas``: no
    more than so many of them, spread over the grid. ``more``: so many more CTAs than the kernels need.
    ``sizes`` are runtime integers that no shape says.
    """
    device = CpuDevice()
    launches = [kernel.launch for kernel in kernels]
    assert all(launches)
    integers = [_allocate(launch, arrays, sizes or {}) for launch in launches if launch]
    found: list[str] = []
    for kernel, launch, values in zip(kernels, launches, integers, strict=True):
        assert launch is not None
        for name in launch.zero:
            arrays[name][...] = 0
        x, y, z = (evaluate(extent, values) for extent in launch.grid)
        result = device.load(kernel.ptx).launch(
            kernel.name,
            (x + more, y, z),
            launch.block,
            [values[p.name] if p.role == "runtime" else _argument(p, arrays, values) for p in launch.parameters],
            shared=launch.dynamic_shared,
            ctas=Sample(ctas).places((x, y, z)),
            sanitize=sanitize,
        )
        found += map(str, result.findings)
        assert result.completed or found
    return found


def integers(launch: Launch, arrays: Mapping[str, Array], sizes: Mapping[str, int]) -> dict[str, int]:
    """The runtime integers: of ``sizes``, else from the shapes of the arrays that are there."""
    values = {}
    for integer in launch.runtime:
        if integer.name in sizes:
            values[integer.name] = sizes[integer.name]
            continue
        found = {arrays[name].shape[axis] for name, axis in integer.sizes if name in arrays}
        assert len(found) == 1, f"{integer.name} is {sorted(found)}"
        values[integer.name] = found.pop()
    return values


def _allocate(launch: Launch, arrays: Arrays, given: Mapping[str, int]) -> dict[str, int]:
    """Make the arrays that the launch writes and nobody has made yet."""
    sizes = integers(launch, arrays, given)
    for parameter in launch.parameters:
        if parameter.role == "output" and parameter.name not in arrays:
            dtype = np.dtype(DTYPES[parameter.dtype])
            shape = [evaluate(extent, sizes) for extent in parameter.shape]
            arrays[parameter.name] = np.full(shape, np.nan if dtype.kind == "f" else 77, dtype)
    return sizes


def _argument(parameter: LaunchParameter, arrays: Arrays, sizes: dict[str, int]) -> Array:
    if parameter.role == "constant":
        value = parameter.value
        number = evaluate(value, sizes) if isinstance(value, str) else value
        return np.full([evaluate(extent, sizes) for extent in parameter.shape], number, DTYPES[parameter.dtype])
    array = arrays[parameter.name]
    if parameter.role == "input":
        array = array.view()
        array.flags.writeable = False
    return array


def written(array: Array) -> NDArray[np.bool_]:
    """Which elements of a buffer of floats that began as no numbers hold one."""
    return ~np.isnan(array)


def error(value: Array, reference: Array, where: NDArray[np.bool_] | None = None) -> float:
    """The largest error of an element, relative to its reference or to the root of their mean square where that is
    larger; infinite where a value is no number. ``where``: of these elements alone."""
    reference = reference.astype(np.float64)
    difference = np.abs(value.astype(np.float64).reshape(reference.shape) - reference)
    scale = np.maximum(np.abs(reference), np.sqrt(np.mean(np.square(reference))) + 1e-300)
    relative = difference / scale
    worst = float(np.max(relative if where is None else relative[where.reshape(relative.shape)], initial=0.0))
    return np.inf if np.isnan(worst) else worst
