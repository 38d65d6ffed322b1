"""Numbers of eight and four bits: what each code of f8e4m3, f8e5m2 and e2m1 stands for, and rounding to them.

Sources: the PTX ISA, "Alternate floating-point data formats"; ``emmy.compiler.dtype`` for the order of a packed pair,
and ``cuda_fp8.h`` for what does not fit (it saturates).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

#: The types whose elements are codes of eight bits; a value of one is always a number that a code stands for.
EIGHT_BITS = frozenset({"f8e4m3", "f8e5m2"})

#: Bits of the mantissa, and what is subtracted from the exponent.
_FIELDS = {"f8e4m3": (3, 7), "f8e5m2": (2, 15)}


def _numbers(type: str) -> NDArray[np.float64]:
    """The number of each of the 256 codes."""
    places, bias = _FIELDS[type]
    codes = np.arange(128)
    exponent, mantissa = codes >> places, codes & ((1 << places) - 1)
    hidden = np.where(exponent == 0, 0, 1 << places)
    numbers = np.ldexp((hidden + mantissa).astype(np.float64), np.maximum(exponent, 1) - bias - places)
    if type == "f8e4m3":
        numbers[0x7F] = np.nan
    else:
        numbers[0x7C] = np.inf
        numbers[0x7D:] = np.nan
    return np.concatenate([numbers, -numbers])


_TABLES = {type: _numbers(type) for type in sorted(EIGHT_BITS)}

#: The numbers of e2m1 in the order of their codes.
_FOUR = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
_FOUR = np.concatenate([_FOUR, -_FOUR])


def decode8(codes: Array, type: str) -> NDArray[np.float64]:
    """The numbers that codes of an eight-bit type stand for."""
    return _TABLES[type][codes]


def encode8(numbers: Array, type: str) -> NDArray[np.uint8]:
    """The nearest codes, ties to even; the greatest finite number for what is beyond it."""
    table = _TABLES[type][:128]
    codes = _nearest(np.abs(numbers), table[np.isfinite(table)])
    codes = np.where(np.isnan(numbers), 0x7F, codes | (np.signbit(numbers) << 7))
    return codes.astype(np.uint8)


def encode4(numbers: Array) -> NDArray[np.uint8]:
    """The nearest codes of e2m1, ties to even; 6 for what is beyond it."""
    codes = _nearest(np.abs(numbers), _FOUR[:8]) | (np.signbit(numbers) << 3)
    return codes.astype(np.uint8)


def decode4(codes: Array) -> NDArray[np.float64]:
    """The numbers that codes of e2m1 stand for."""
    return _FOUR[codes]


def unpacked4(pairs: Array) -> NDArray[np.float64]:
    """The numbers in bytes that hold two codes of e2m1 each, the first one in the low bits; the last axis doubles."""
    codes = np.stack((pairs & 15, pairs >> 4), -1)
    return decode4(codes.reshape(*pairs.shape[:-1], -1))


def _nearest(numbers: Array, table: NDArray[np.float64]) -> NDArray[np.int64]:
    """The places in an ascending table of what is nearest; of two that are as near, the even place."""
    middles = (table[1:] + table[:-1]) / 2
    below, above = np.searchsorted(middles, numbers, "left"), np.searchsorted(middles, numbers, "right")
    return np.where((below != above) & (below % 2 == 1), above, below)
