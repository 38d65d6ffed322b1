"""What ptxc is to reach beside nvcc, and whether it does."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import NamedTuple

from compilation.costs import Cost

#: How many times less CPU than ``nvcc --ptx``: at the median, and of each kernel.
PTX_MEDIAN, PTX_LEAST = 50.0, 20.0
#: The share of the CPU of ``nvcc --cubin``, ptxas included: geometric mean, and of each kernel.
CUBIN_MEAN, CUBIN_MOST = 0.10, 0.50


class Bar(NamedTuple):
    """A figure over all kernels, and whether it is reached; ``bound`` says what is demanded."""

    name: str
    value: float
    bound: str
    reached: bool


def bars_of(costs: Sequence[Cost]) -> list[Bar]:
    """The bars that the figures tell of: none of tools that were left out."""
    ratios = [cost.ptx_ratio for cost in costs if cost.ptx_ratio is not None]
    shares = [cost.cubin_share for cost in costs if cost.cubin_share is not None]
    ptx, cubin = "to PTX: nvcc --ptx / ptxc", "to a cubin: (ptxc + ptxas) / nvcc --cubin"
    bars = []
    if ratios:
        bars += [
            _at_least(f"{ptx}, median", statistics.median(ratios), PTX_MEDIAN),
            _at_least(f"{ptx}, least", min(ratios), PTX_LEAST),
        ]
    if shares:
        bars += [
            _at_most(f"{cubin}, geometric mean", statistics.geometric_mean(shares), CUBIN_MEAN),
            _at_most(f"{cubin}, worst", max(shares), CUBIN_MOST),
        ]
    return bars


def _at_least(name: str, value: float, bound: float) -> Bar:
    return Bar(name, value, f"at least {bound:g}", value >= bound)


def _at_most(name: str, value: float, bound: float) -> Bar:
    return Bar(name, value, f"at most {bound:.2f}", value <= bound)
