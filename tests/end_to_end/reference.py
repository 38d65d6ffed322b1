"""Random inputs for compiled kernels."""

from __future__ import annotations

import zlib
from collections.abc import Iterable

import numpy as np
from launching import DTYPES, Arrays

from ptxc.compilation import CompiledKernel
from ptxc.launch import evaluate


def inputs(kernels: Iterable[CompiledKernel], sizes: dict[str, int], step: float = 0.0, tag: str = "") -> Arrays:
    """Random inputs for kernels that run one after the other: what none of them writes. Multiples of ``step``.

    ``tag`` is part of what seeds them."""
    arrays: Arrays = {}
    written: set[str] = set()
    for kernel in kernels:
        assert kernel.launch is not None
        for parameter in kernel.launch.parameters:
            if parameter.role == "input" and parameter.name not in written:
                shape = [evaluate(extent, sizes) for extent in parameter.shape]
                random = np.random.default_rng(zlib.crc32(f"{tag}{parameter.name}".encode()))
                values = random.standard_normal(shape)
                values = np.round(values / step) * step if step else values
                arrays[parameter.name] = values.astype(DTYPES[parameter.dtype])
            elif parameter.role == "output":
                written.add(parameter.name)
    return arrays
