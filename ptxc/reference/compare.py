"""How far an output is from what it should be."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ptxc.errors import UsageError
from ptxc.reference.buffers import Array, decoded
from ptxc.reference.codes import EIGHT_BITS, unpacked4

#: The relative error that is right, by element type, where nobody says.
TOLERANCES = {"f32": 1e-5, "f64": 1e-5, "f16": 2e-3, "bf16": 2e-2, "f8e4m3": 0.13, "f8e5m2": 0.26}

#: Binary places of the mantissa, with the hidden one, and the least exponent of a normal number (0.1 * 2^e).
_FORMATS = {
    "f16": (11, -13), "bf16": (8, -125), "f32": (24, -125), "f64": (53, -1021), "f8e4m3": (4, -5), "f8e5m2": (3, -13),
    "f4e2m1x2": (2, 1),
}  # fmt: skip

#: The largest numbers of types that what is expected, in float64, may exceed.
_LARGEST = {"f16": 65504.0, "bf16": 255 * 2.0**120, "f32": (2 - 2.0**-23) * 2.0**127}


@dataclass(frozen=True, slots=True)
class Tolerance:
    """An element is right within ``absolute + relative * scale``.

    The scale is the larger of the expected element's magnitude and the root of the expected elements' mean square:
    what cancels to nearly nothing is as inexact as what it is the sum of. ``relative`` None: that of the least exact of
    the element types, the output's own and those in ``types``, of the kernels' buffers and values; there floats of
    eight bits do not count, as what a kernel reads of them is exact. An output of them, or of pairs of e2m1, is right
    where it is a neighbour of what is expected. Where kernels sum up to ``half_sums`` products in f16, ``relative``
    None is at least ``4 * sqrt(n) * u`` with the roundoff u of f16: rounding n partial sums is off by some ``n * u`` of
    a product, hardly by four times as much, and a typical sum is ``sqrt(n)`` of one.
    """

    relative: float | None = None
    absolute: float = 0.0
    types: frozenset[str] = frozenset()
    half_sums: int = 0

    def of(self, dtype: str) -> float:
        """The relative tolerance for an output of a type."""
        if self.relative is not None:
            return self.relative
        if dtype not in TOLERANCES:
            return 0.0
        least = 4 * math.sqrt(self.half_sums) * 2.0**-11
        return max(least, *(TOLERANCES.get(type, 0.0) for type in (dtype, *(self.types - EIGHT_BITS))))


@dataclass(frozen=True, slots=True)
class Difference:
    """The differences of one output: how many elements are compared and wrong, and the largest of each kind.

    ``ulp`` counts units in the last place of the expected element. ``place`` is the index of the element with the
    largest relative one, if any, ``got`` and ``expected`` what is there.
    """

    name: str
    elements: int
    wrong: int
    absolute: float
    relative: float
    ulp: float
    place: tuple[int, ...] = ()
    got: float | int = 0.0
    expected: float | int = 0.0
    #: Wrong elements that are infinite where what is expected is finite, but too large for the type.
    overflowed: int = 0


def compare(
    name: str,
    got: Array,
    expected: Array,
    dtype: str,
    tolerance: Tolerance,
    where: NDArray[np.bool_] | None = None,
    rounded: Array | None = None,
) -> Difference:
    """Compare two arrays with elements of type ``dtype``, where ``where`` holds. NaN equals NaN, nothing else does.

    ``rounded`` is another array of what is expected: each element is compared with the nearer one, an infinite one left
    out. Numbers may be held in a wider type than ``dtype``; a byte of f4e2m1x2 is two elements. Raises UsageError for
    arrays of different sizes.
    """
    if got.size != expected.size:
        raise UsageError(f"{name!r} has {got.size} elements, {expected.size} are expected")
    expected = expected.reshape(got.shape)
    if dtype == "f4e2m1x2":
        # What nothing wrote is no byte in a reference; it is not compared.
        got, expected = (unpacked4(np.nan_to_num(array).astype(np.uint8)) for array in (got, expected))
        where = where if where is None else np.repeat(where, 2, axis=-1)
    elif rounded is not None:
        expected = _nearer(got, expected, rounded.reshape(got.shape), dtype)
    a, b = _numbers(got, dtype), _numbers(expected, dtype)
    chosen = np.ones(a.shape, np.bool_) if where is None else where
    if not chosen.any():
        return Difference(name, 0, 0, 0.0, 0.0, 0.0)
    same = ~chosen | (got == expected) | (np.isnan(a) & np.isnan(b))
    with np.errstate(all="ignore"):
        least = 0 if dtype in _FORMATS else 1  # integers that differ, though too large for float64 to tell
        absolute = np.where(same, 0.0, np.maximum(_no_nan(np.abs(a - b)), least))
        scale = np.maximum(np.abs(b), _root_mean_square(b[chosen]))
        relative = np.where(same, 0.0, _no_nan(absolute / scale))
        ulp = np.where(same, 0.0, absolute / _ulp(b, dtype))
        allowed = tolerance.absolute + tolerance.of(dtype) * np.where(np.isfinite(scale), scale, 0)
        if (dtype in EIGHT_BITS or dtype == "f4e2m1x2") and tolerance.relative is None:
            allowed = np.maximum(allowed, _ulp(b, dtype))
    wrong = ~same & ~(absolute <= allowed)
    found = Difference(
        name, int(chosen.sum()), int(wrong.sum()), float(absolute.max()), float(relative.max()), float(ulp.max()),
        overflowed=int((wrong & np.isinf(a) & np.isfinite(b) & (np.abs(b) > _LARGEST.get(dtype, np.inf))).sum()),
    )  # fmt: skip
    if not absolute.any():
        return found
    worst = np.unravel_index(int(relative.argmax()), relative.shape)
    place = tuple(int(at) for at in worst)
    if dtype not in _FORMATS:
        a, b = got, expected  # float64 does not have every integer
    return replace(found, place=place, got=_number(a[worst]), expected=_number(b[worst]))


def _number(element: Any) -> float | int:
    """An element for people; a float that is an integer's is one of a reference in float64."""
    return float(element) if isinstance(element, np.floating) else int(element)


def _nearer(got: Array, expected: Array, rounded: Array, dtype: str) -> Array:
    """Of two expected arrays the elements that are nearer to what was got."""
    a, b, c = (_numbers(array, dtype) for array in (got, expected, rounded))
    with np.errstate(all="ignore"):
        nearer = np.isfinite(c) & (np.abs(a - c) < _no_nan(np.abs(a - b)))
    return np.where(nearer, c, b) if dtype in _FORMATS else np.where(nearer, rounded, expected)


def _no_nan(errors: NDArray[np.float64]) -> NDArray[np.float64]:
    """Errors of which those that are no number are infinite."""
    return np.where(np.isnan(errors), np.inf, errors)


def _numbers(array: Array, dtype: str) -> NDArray[np.float64]:
    # A reference holds numbers of any type in float64.
    held = array if array.dtype == np.float64 else decoded(array, dtype)
    return held.astype(np.float64)


def _root_mean_square(numbers: NDArray[np.float64]) -> float:
    finite = numbers[np.isfinite(numbers)]
    return float(np.sqrt(np.mean(np.square(finite)))) if finite.size else 0.0


def _ulp(numbers: NDArray[np.float64], dtype: str) -> NDArray[np.float64]:
    """The unit in the last place of each number, in ``dtype``."""
    known = _FORMATS.get(dtype)
    if known is None:
        return np.ones(numbers.shape)
    digits, least = known
    _, exponents = np.frexp(np.where(np.isfinite(numbers), numbers, 0))
    units: NDArray[np.float64] = np.ldexp(1.0, np.maximum(exponents, least) - digits)
    return units
