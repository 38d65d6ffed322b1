"""What kernels should compute: NumPy expressions, in float64."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def softmax(x: Array) -> Array:
    powers = np.exp(x - x.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def rms_norm(x: Array, w: Array) -> Array:
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * w


def l2_norm(x: Array) -> Array:
    return x / np.sqrt((x**2).sum(-1, keepdims=True) + 1e-12)


def attention(q: Array, k: Array, v: Array, causal: bool = False) -> Array:
    scores = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    if causal:
        scores = np.where(np.tri(scores.shape[-2], dtype=bool), scores, -np.inf)
    return softmax(scores) @ v


def loops(x: Array) -> Array:
    """Of the golden of that name: sums of parts of rows, a decaying sum, the extremes, the product of the first."""
    parts = [10 + row[t % 3 + 1 : 4 * t if t < 8 else 50 : 3].sum() for t, row in enumerate(x)]
    decayed = x @ 0.5 ** np.arange(x.shape[1])[::-1]
    return np.stack((parts, decayed, x.min(1), x.max(1), x[:, :4].prod(1)), 1)


def warp_predicates(x: Array) -> Array:
    """Some lanes get what the lane at the other end of their warp has."""
    warps, lane, warp = x.reshape(4, 32), np.arange(32), np.arange(4)[:, None]
    return np.where(((lane <= 7) & (warp != 2)) | (lane >= 24), warps[:, ::-1], warps).reshape(-1)


def scaled_pairs(numbers: Array, scales: Array) -> Array:
    """Rows of e2m1 with a scale for each 16 of them, whose sign does not count."""
    each: Array = np.repeat(np.abs(scales).reshape(len(numbers), -1), 16, axis=1)
    return np.multiply(numbers, each)


FUNCTIONS = {
    "loops": loops, "warp_predicates": warp_predicates, "scaled_pairs": scaled_pairs,
    "np": np, "softmax": softmax, "rms_norm": rms_norm, "l2_norm": l2_norm, "attention": attention,
    "erf": np.vectorize(math.erf),
}  # fmt: skip


def computed(expression: str, arrays: Mapping[str, Array]) -> Array:
    """The value of a NumPy expression over arrays and :data:`FUNCTIONS`."""
    doubles = {name: array.astype(np.float64) for name, array in arrays.items()}
    return np.asarray(eval(f"({expression})", dict(FUNCTIONS), doubles))
