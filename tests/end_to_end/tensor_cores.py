"""Kernels of Emmy's corpus that use tensor cores and TMA, as nvcc compiles them, on the CPU device."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from conftest import SHARED
from launching import Array, error

from ptxc.launch import evaluate
from ptxc.sim.convert import decoded
from ptxc.sim.device import CpuDevice, LaunchResult
from ptxc.sim.tensor_map import TensorMap

FOLDER = SHARED / "emmy-corpus"
TENSOR = {"MmaSyncPtx", "WgmmaMma", "TmaLoad"}

#: The value of sizes that are known at run time.
SIZE = 128

DTYPES: dict[str, type] = {"f16": np.float16, "f32": np.float32, "bf16": np.uint16, "bool": np.uint8}
SWIZZLES = {"NONE": "NONE", "B32": "32B", "B64": "64B", "B128": "128B"}


@cache
def manifest() -> dict[str, dict[str, Any]]:
    """The corpus's kernels with tensor cores or TMA, by file."""
    path = FOLDER / "MANIFEST.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []
    return {row["file"]: row for row in rows if not TENSOR.isdisjoint(row["ops"])}


def compile_with_nvcc(file: str, folder: Path) -> tuple[str, dict[str, Any]]:
    """nvcc's PTX of Emmy's text of a kernel, and how it is launched. CUDA 13 knows no sm_70; sm_75 takes its place."""
    target = {"sm_70": "sm_75"}.get(manifest()[file]["target"], manifest()[file]["target"])
    tool = SHARED / "tools" / "emmy_reference.py"
    command = [sys.executable, tool, FOLDER / file, "--target", target, "--out", folder, "--ptx"]
    subprocess.run(command, check=True, capture_output=True)
    stem = folder / file.removesuffix(".json")
    return Path(f"{stem}.ptx").read_text(), json.loads(Path(f"{stem}.meta.json").read_text())


@dataclass(slots=True)
class Run:
    """A launch that has ended: its arrays by name, the outputs being NaN where nothing was written."""

    arrays: dict[str, Array]
    output: str
    result: LaunchResult


def execute(ptx: str, meta: dict[str, Any], ctas: int) -> Run:
    """Launch ``ctas`` CTAs, spread evenly over the grid, on random inputs and with all checks."""
    sizes = dict.fromkeys(meta["runtime_args"], SIZE)
    generator = np.random.default_rng(1)
    buffers = [argument for argument in meta["args"] if argument["kind"] != "tensor_map"]
    arrays = {a["name"]: _random(generator, a["dtype"], [_size(n, sizes) for n in a["shape"]]) for a in buffers}
    outputs = [a["name"] for a in buffers if a["kind"] == "output"]
    for name in outputs:
        arrays[name][...] = 0x7FC0 if arrays[name].dtype == np.uint16 else np.nan
    maps = {item["name"]: tensor_map(arrays[item["src"]], item["box"], item["swizzle"]) for item in meta["tensor_maps"]}
    arguments: list[Any] = [maps.get(a["name"], arrays.get(a["name"])) for a in meta["args"]]
    grid = [_size(extent, sizes) for extent in meta["grid"]]
    count = math.prod(grid)
    chosen = sorted({at * (count - 1) // max(ctas - 1, 1) for at in range(ctas)})
    module = CpuDevice().load(ptx)
    result = module.launch(
        module.entries[0],
        grid,
        meta["block"],
        [*arguments, *sizes.values()],
        shared=meta["smem_bytes"] if ".extern .shared" in ptx else 0,
        ctas=[(at % grid[0], at // grid[0] % grid[1], at // (grid[0] * grid[1])) for at in chosen],
        sanitize=["memory", "race", "init", "sync"],
    )
    return Run(arrays, outputs[0], result)


def _size(extent: int | str, sizes: dict[str, int]) -> int:
    return extent if isinstance(extent, int) else int(evaluate(extent, sizes))


def _random(generator: np.random.Generator, dtype: str, shape: list[int]) -> Array:
    count = math.prod(shape)
    if dtype not in DTYPES or dtype == "bool":
        return np.resize(generator.integers(0, 0x70, min(count, 1 << 20)), count).astype(np.uint8).reshape(shape)
    values = np.resize(generator.standard_normal(min(count, 1 << 22)).astype(np.float32), count).reshape(shape)
    return (values.view(np.uint32) >> 16).astype(np.uint16) if dtype == "bf16" else values.astype(DTYPES[dtype])


def tensor_map(array: Array, box: Sequence[int], swizzle: str) -> TensorMap:
    """As Emmy's runtime encodes it: extents of one go; rows that a box cuts in pieces are an extent more."""
    shape = list(array.shape)
    while len(shape) > len(box):
        shape = [n for n in shape if n > 1] if 1 in shape else [shape[0] * shape[1], *shape[2:]]
    while len(shape) < len(box):
        shape = [*shape[:-1], shape[-1] // box[-1], box[-1]]
    strides = [array.itemsize * math.prod(shape[at:]) for at in range(1, len(shape))]
    dtype = {1: "u8", 2: "f16", 4: "f32"}[array.itemsize]
    return TensorMap(array, shape[::-1], strides[::-1], list(box)[::-1], swizzle=SWIZZLES[swizzle], dtype=dtype)


# What they compute


def values(array: Array) -> Array:
    """An array's numbers; bfloat16 is held as its bits."""
    wide = (array.astype(np.uint32) << 16).view(np.float32) if array.dtype == np.uint16 else array
    return wide.astype(np.float64)


def error_of(run: Run, row: str) -> float:
    """The largest error of what was written, relative to the larger of an element and the root mean square."""
    got = values(run.arrays[run.output])
    got = got.reshape(-1, *got.shape[-2:])
    written = ~np.isnan(got)
    assert written.any()
    if "attention" in row:
        want = _attention(run, written, causal="causal" in row)
    elif "nvfp4" in row:
        want = _four_bits(run)[None]
    else:
        want = _product(run, written)[None]
    return error(got[written], want[written])


def _product(run: Run, written: Array) -> Array:
    """``x0 @ x1``, ``x0 @ x1.T`` or ``input @ linear_wt + p_bias``, where something was written."""
    arrays, shape = run.arrays, written.shape[1:]
    left, right = (values(arrays[n]) for n in (("x0", "x1") if "x0" in arrays else ("input", "linear_wt")))
    right = right if right.shape == (left.shape[1], shape[1]) else right.T
    rows, columns = np.flatnonzero(written[0].any(1)), np.flatnonzero(written[0].any(0))
    want = np.full(shape, np.nan)
    want[np.ix_(rows, columns)] = left[rows] @ right[:, columns]
    return want + values(arrays["p_bias"]) if "p_bias" in arrays else want


def _attention(run: Run, written: Array, *, causal: bool) -> Array:
    q, k, v = (values(run.arrays[name]) for name in ("x0", "x1", "x2"))
    q, k, v = (x.reshape(-1, *x.shape[-2:]) for x in (q, k, v))
    scale = float(run.arrays["scaled_dot_product_attention_scale"][0])
    want = np.full(written.shape, np.nan)
    for head in np.flatnonzero(written.any((1, 2))):
        source = head * k.shape[0] // q.shape[0]
        scores = q[head] @ k[source].T * scale
        if causal:
            rows, columns = np.indices(scores.shape)
            scores[columns > rows] = -np.inf
        weights = np.exp(scores - scores.max(1, keepdims=True))
        want[head] = weights / weights.sum(1, keepdims=True) @ v[source]
    return want


def _four_bits(run: Run) -> Array:
    """A product of fp4 matrices, 16 elements to a scale, and a scale for each matrix; with what is added, if it is."""
    octets = [array for array in run.arrays.values() if array.dtype == np.uint8]
    scale_b, scale_a, b, a = octets
    factor = math.prod(float(x.reshape(-1)[0]) for x in run.arrays.values() if x.dtype == np.float32)
    left, right = _dequantised(a, scale_a), _dequantised(b, scale_b)
    want = left @ right.T * factor
    added = values(run.arrays["add"]) if "add" in run.arrays and run.output != "add" else np.zeros(1)
    total: Array = want + added
    return total


def _dequantised(pairs: Array, scales: Array) -> Array:
    rows = pairs.shape[0]
    elements = np.stack((decoded(pairs & 15, "e2m1"), decoded(pairs >> 4, "e2m1")), -1).reshape(rows, -1)
    found: Array = elements * np.repeat(decoded(scales.reshape(rows, -1), "e4m3"), 16, 1)
    return found
