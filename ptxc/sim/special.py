"""The special registers (PTX ISA 10): one row each, a function of the machine.

A value that is the same in all threads has one element, any other one a thread slot. What only real hardware knows
(which SM, how many) has the value of a device with one SM; the clocks count executed instructions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from ptxc.sim.scalar import Array

if TYPE_CHECKING:
    from ptxc.sim.machine import Machine

Row = Callable[["Machine"], Array]


def _u32(value: int) -> Array:
    return np.array([value & 0xFFFFFFFF], np.uint32)


def _u64(value: int) -> Array:
    return np.array([value & (1 << 64) - 1], np.uint64)


def _axis(vector: str, axis: int) -> Row:
    def row(m: Machine) -> Array:
        values: Array = getattr(m.geometry, vector)[axis]
        return values

    return row


def _constant(value: int) -> Row:
    return lambda m: _u32(value)


def _lane_mask(function: Callable[[Array], Array]) -> Row:
    def row(m: Machine) -> Array:
        lane = m.geometry.lane.astype(np.uint64)
        return (function(np.uint64(1) << lane) & np.uint64(0xFFFFFFFF)).astype(np.uint32)

    return row


def _rows() -> dict[str, Row]:
    rows: dict[str, Row] = {}
    for name in ("tid", "ntid", "ctaid", "nctaid"):
        rows |= {f"{name}.{c}": _axis(name, at) for at, c in enumerate("xyz")}
    for c in "xyz":
        rows[f"clusterid.{c}"] = rows[f"ctaid.{c}"]
        rows[f"nclusterid.{c}"] = rows[f"nctaid.{c}"]
        rows[f"cluster_ctaid.{c}"] = _constant(0)
        rows[f"cluster_nctaid.{c}"] = _constant(1)
    rows |= {
        "laneid": lambda m: m.geometry.lane,
        "warpid": lambda m: m.geometry.warp,
        "nwarpid": lambda m: _u32(m.geometry.slots // 32),
        "warpsz": _constant(32),
        "smid": _constant(0),
        "nsmid": _constant(1),
        "gridid": lambda m: _u64(0),
        "is_explicit_cluster": lambda m: np.array([False]),
        "cluster_ctarank": _constant(0),
        "cluster_nctarank": _constant(1),
        "lanemask_eq": _lane_mask(lambda bit: bit),
        "lanemask_lt": _lane_mask(lambda bit: bit - np.uint64(1)),
        "lanemask_le": _lane_mask(lambda bit: bit * np.uint64(2) - np.uint64(1)),
        "lanemask_gt": _lane_mask(lambda bit: ~(bit * np.uint64(2) - np.uint64(1))),
        "lanemask_ge": _lane_mask(lambda bit: ~(bit - np.uint64(1))),
        "clock": lambda m: _u32(m.issued),
        "clock_hi": lambda m: _u32(m.issued >> 32),
        "clock64": lambda m: _u64(m.issued),
        "globaltimer": lambda m: _u64(m.issued),
        "globaltimer_lo": lambda m: _u32(m.issued),
        "globaltimer_hi": lambda m: _u32(m.issued >> 32),
        "dynamic_smem_size": lambda m: _u32(m.dynamic_shared),
        "total_smem_size": lambda m: _u32(m.total_shared),
        "aggr_smem_size": lambda m: _u32(m.total_shared),
        "reserved_smem_offset_begin": _constant(0),
        "reserved_smem_offset_end": _constant(0),
        "reserved_smem_offset_cap": _constant(0),
    }
    return rows


SPECIAL_REGISTERS: dict[str, Row] = _rows()
"""Each special register's value, by its name without the percent sign."""
