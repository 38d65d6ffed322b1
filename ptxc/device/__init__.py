"""Running a kernel: one interface, whatever executes it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ptxc.errors import UsageError

if TYPE_CHECKING:
    from ptxc.sim.device import CpuDevice


def device(kind: str = "cpu") -> CpuDevice:
    """The device of that kind; ``cpu`` is the only one so far. Raises UsageError for any other name."""
    if not isinstance(kind, str) or kind != "cpu":
        shown = repr(kind) if isinstance(kind, str) else f"of type {type(kind).__name__}"
        raise UsageError(f"there is no device {shown}", hint="the CPU device is 'cpu'")
    from ptxc.sim.device import CpuDevice

    return CpuDevice()
