"""Theoretical occupancy: the share of a multiprocessor's warps that can be resident at once.

The rules are those of `cuda_occupancy.h` (CUDA 13.0), which the occupancy calculator of Nsight Compute and
`cudaOccupancyMaxActiveBlocksPerMultiprocessor` follow; tests compare with what that header computes. The numbers:

===============================  ======================================================  ==============================
number                           value                                                   source
===============================  ======================================================  ==============================
warps, CTAs an SM; shared        `ptxc.target.Target`                                    CUDA C++ Programming Guide,
memory an SM; registers an SM                                                            technical specifications per
                                                                                         compute capability
unit of a warp's registers       256                                                     cudaOccRegAllocationGranularity
partitions of an SM, among       4                                                       cudaOccSubPartitionsPer-
which warps, so registers, go                                                            Multiprocessor
unit of shared memory            256 bytes on sm_7x, 128 since                           cudaOccSMemAllocation-
                                                                                         Granularity
shared memory that the system    1 KiB of each CTA since sm_80                           Programming Guide (compute
takes                                                                                    capability 8.x and later)
named barriers of an SM          2 for each CTA that fits; 1 on sm_101, sm_110, sm_12x;  cudaOccMaxBlocksPerSM-
                                 a limit since sm_90                                     BlockBarrierLimit
===============================  ======================================================  ==============================

The carve-out of shared memory from the L1 cache is taken as large as the hardware has it.
"""

from __future__ import annotations

from dataclasses import dataclass

from ptxc.target import Target


@dataclass(frozen=True, slots=True)
class Occupancy:
    """What fits a multiprocessor."""

    ctas: int
    warps: int
    #: Warps of those that it could hold, 0 to 1.
    share: float
    #: What allows no more: ``registers``, ``shared memory``, ``warps``, ``CTAs``, ``barriers``.
    limit: str


def occupancy(target: Target, threads: int, registers: int, shared: int, barriers: int = 1) -> Occupancy:
    """The occupancy of CTAs of so many threads, registers a thread, bytes of shared memory and named barriers."""
    warps = -(-threads // 32)
    limits = {
        "warps": target.max_warps_per_sm // warps,
        "CTAs": target.max_blocks_per_sm,
        "registers": target.ctas_with_registers(threads, registers) if registers else target.max_blocks_per_sm,
        "shared memory": target.ctas_with_shared(shared),
        "barriers": _by_barriers(target, barriers),
    }
    limit = min(limits, key=limits.__getitem__)
    ctas = limits[limit]
    return Occupancy(ctas, ctas * warps, ctas * warps / target.max_warps_per_sm, limit)


def _by_barriers(target: Target, barriers: int) -> int:
    if target.sm < 90 or not barriers:
        return target.max_blocks_per_sm
    for_each = 1 if target.sm in (101, 110) or target.sm >= 120 else 2
    return target.max_blocks_per_sm * for_each // barriers
