"""Builds that no compiler made."""

from __future__ import annotations

from typing import Any

from test_comparison_loops import code

from ptxc.comparison import Build, Comparison
from ptxc.comparison.occupancy import occupancy
from ptxc.comparison.work import Code, analyse
from ptxc.target import TARGETS
from ptxc.toolchain import Resources


def loop(body: str, before: str = "S2R R0", behind: str = "") -> Code:
    """A kernel with one loop."""
    first, *others = body.split("; ")
    lines = [before, f"{first} # loop", *others, "@P0 BRA loop", *filter(None, [behind]), "EXIT"]
    return analyse(code("\n".join(lines)))


def build(body: str = "FFMA R0", registers: int = 32, spilled: int = 0, seconds: float = 0.001, **more: Any) -> Build:
    """A build of a kernel with one loop."""
    used = Resources(registers, spilled, 0, 0, 0, {0: 380}, 1)
    fits = occupancy(TARGETS["sm_80"], 256, registers, 0)
    figures: dict[str, Any] = {"ptx_lines": 100, "ptxas_seconds": 0.02, **more}
    return Build("sm_80", seconds, resources=used, occupancy=fits, code=loop(body), **figures)


def pair(ours: Build | None, theirs: Build | None, name: str = "k", *notes: str) -> Comparison:
    """A comparison of two builds."""
    return Comparison(f"kernels/{name}.json", name, "sm_80", ours, theirs, notes)
