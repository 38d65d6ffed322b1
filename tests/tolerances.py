"""How far what a kernel computes may be off: from the types it rounds to and the lengths of its sums, not by trial."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

#: The unit roundoff of the types that elements are rounded to.
ROUNDOFF = {"f64": 2.0**-53, "f32": 2.0**-24, "f16": 2.0**-11, "bf16": 2.0**-8, "f8e4m3": 2.0**-4, "f8e5m2": 2.0**-3}

#: The longest chain of products that is summed in f16 before it goes to an f32.
CHUNK = 64


def of_sum(length: int, roundoff: float) -> float:
    """For a sum of ``length`` products of random numbers, relative to the root mean square of such sums.

    Added up in a type of roundoff u, it is off by some ``sqrt(n) * u`` of the sum of their magnitudes in the middle,
    and hardly by four times as much; that sum is ``sqrt(n)`` of a typical result. Hence ``4 * n * u``.
    """
    return 4 * length * roundoff


def of_terms(terms: NDArray[Any], roundoff: float, roundings: int = 0) -> NDArray[np.float64]:
    """At worst and absolute, for sums of ``terms`` over the first axis, in any order.

    Each addition, all but one of the terms or so many ``roundings``, rounds a partial sum, which is at most the sum of
    the magnitudes. Twice that, as rounding errors multiply and what is expected is rounded as well.
    """
    wide = np.abs(terms.astype(np.float64)).sum(0)
    found: NDArray[np.float64] = 2 * (roundings or len(terms) - 1) * roundoff * wide
    return found


def of_kernel(op: Any, outputs: Iterable[str], inputs: Mapping[str, NDArray[Any]]) -> float:
    """For a kernel with outputs of these types, relative to the larger of an element and the root mean square.

    The length of a sum is at most the largest dimension of an input, its type f32. Where fragments are promoted, the
    chunks are summed in f16: what a chunk is off by is relative to the magnitude of its own sum, and of those errors
    the root counts. What is rounded on the way to a 16-bit type (a fragment made of an accumulator, a tile in shared
    memory, the values of an epilogue) and the result each add a few roundoffs of that type.
    """
    length = max(max(array.shape, default=1) for array in inputs.values())
    kinds = {type(stmt).__name__ for stmt in op.body.iter()}
    halves = any(array.dtype.itemsize <= 2 for array in inputs.values())
    found = of_sum(length, ROUNDOFF["f32"]) + 4 * max(ROUNDOFF.get(dtype, 0.0) for dtype in outputs)
    found += 4 * math.sqrt(CHUNK) * ROUNDOFF["f16"] if "FragmentPromote" in kinds else 0.0
    return found + (8 * ROUNDOFF["f16"] if halves else 0.0)
