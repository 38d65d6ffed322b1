"""Running a kernel: one interface, whatever executes it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, overload

from ptxc.errors import UsageError

if TYPE_CHECKING:
    from ptxc.device.cuda import CudaDevice
    from ptxc.sim.device import CpuDevice

#: What :func:`device` knows.
KINDS = ("cpu", "cuda")

#: Seconds that a launch on a GPU may take, where nobody says.
DEADLINE = 10.0


@overload
def device(kind: Literal["cpu"] = "cpu") -> CpuDevice: ...
@overload
def device(kind: Literal["cuda"], *, deadline: float = ..., ordinal: int = ...) -> CudaDevice: ...
def device(kind: str = "cpu", **options: Any) -> CpuDevice | CudaDevice:
    """The device of that kind: ``cpu``, which executes PTX without a GPU, or ``cuda``, an NVIDIA GPU.

    Of a GPU, ``ordinal`` is its number, and ``deadline`` the seconds that a launch may take. Raises UsageError for any
    other name, DeviceError where there is no GPU, or no package to use it with.
    """
    if not isinstance(kind, str) or kind not in KINDS:
        shown = repr(kind) if isinstance(kind, str) else f"of type {type(kind).__name__}"
        raise UsageError(f"there is no device {shown}", hint="the CPU device is 'cpu', a GPU of NVIDIA's 'cuda'")
    if kind == "cuda":
        from ptxc.device.cuda import CudaDevice

        return CudaDevice(**options)
    if options:
        raise UsageError(f"the CPU device has no option {next(iter(options))!r}", hint="leave it out")
    from ptxc.sim.device import CpuDevice

    return CpuDevice()
