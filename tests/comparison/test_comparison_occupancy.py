"""Theoretical occupancy, against NVIDIA's own calculator and its published examples."""

from __future__ import annotations

from pathlib import Path

import pytest

from ptxc.comparison.occupancy import occupancy
from ptxc.target import TARGETS

ROWS = [
    tuple(int(word) for word in line.replace(":", "").split())
    for line in (Path(__file__).parent / "data" / "occupancy.txt").read_text().splitlines()
    if not line.startswith("#")
]


@pytest.mark.parametrize("sm", sorted({row[0] for row in ROWS}))
def test_as_nvidias_header_computes_it(sm: int) -> None:
    for _, threads, registers, shared, barriers, ctas in (row for row in ROWS if row[0] == sm):
        found = occupancy(TARGETS[f"sm_{sm}"], threads, registers, shared, barriers)
        assert found.ctas == ctas, (threads, registers, shared, barriers)
        assert found.warps == ctas * -(-threads // 32)


@pytest.mark.parametrize(
    ("target", "threads", "registers", "shared", "share", "limit"),
    [
        # Small kernels fill the multiprocessor, where CTAs are large enough.
        ("sm_80", 256, 32, 0, 1.0, "warps"), ("sm_80", 32, 16, 0, 0.5, "CTAs"), ("sm_86", 256, 32, 0, 1.0, "warps"),
        # 64 K registers: 128 a thread leave 16 warps, of 64 that sm_80 could hold and of 48 of sm_89.
        ("sm_80", 128, 128, 0, 0.25, "registers"), ("sm_89", 128, 128, 0, 16 / 48, "registers"),
        # 129 registers are allocated as 136: 15 warps fit, 3 in each of four partitions, so 12.
        ("sm_80", 32, 129, 0, 12 / 64, "registers"),
        # 48 KiB and the system's 1 KiB: three such CTAs in 164 KiB, two in 100.
        ("sm_80", 256, 32, 48 << 10, 24 / 64, "shared memory"), ("sm_89", 256, 32, 48 << 10, 16 / 48, "shared memory"),
        # Before sm_80 the system takes nothing: two in 96 KiB.
        ("sm_70", 256, 32, 48 << 10, 16 / 64, "shared memory"),
        # 1,024 threads with 65 registers, allocated as 72, need more than there are.
        ("sm_90", 1024, 65, 0, 0.0, "registers"),
    ],
)  # fmt: skip
def test_by_hand(target: str, threads: int, registers: int, shared: int, share: float, limit: str) -> None:
    found = occupancy(TARGETS[target], threads, registers, shared)
    assert found.share == pytest.approx(share)
    assert found.limit == limit


def test_named_barriers_are_shared() -> None:
    assert occupancy(TARGETS["sm_120"], 32, 16, 0, barriers=4).limit == "barriers"
    assert occupancy(TARGETS["sm_120"], 32, 16, 0, barriers=4).ctas == 6
    assert occupancy(TARGETS["sm_90"], 32, 16, 0, barriers=4).ctas == 16
    assert occupancy(TARGETS["sm_80"], 32, 16, 0, barriers=4).ctas == 32, "no limit before sm_90"
