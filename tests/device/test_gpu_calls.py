"""What `ptxc/device/gpu.py` passes to the driver API, held against the signatures of cuda-bindings itself.

cuda-bindings converts the arguments of a call before it looks for libcuda. So without a driver a call with arguments of
the right types fails for want of libcuda, and any other with a TypeError.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ptxc.device.gpu import Address, Driver, Gpu, GpuError, Launch, Map, Table, Task, Value

api: Any = pytest.importorskip("cuda.bindings.driver")

#: What functions give that give something.
RESULTS = {
    "cuDeviceGetCount": 1,
    "cuDeviceGet": api.CUdevice(0),
    "cuDevicePrimaryCtxRetain": api.CUcontext(0),
    "cuDeviceGetName": b"None\0\0",
    "cuDriverGetVersion": 13020,
    "cuDeviceGetAttribute": 9,
    "cuMemAlloc": api.CUdeviceptr(4096),
    "cuModuleLoadDataEx": api.CUmodule(0),
    "cuModuleGetFunction": api.CUfunction(0),
    "cuEventCreate": api.CUevent(0),
    "cuEventElapsedTime": 0.5,
    "cuTensorMapEncodeTiled": api.CUtensorMap(),
}


class Checked:
    """cuda-bindings, whose functions check their arguments and do nothing."""

    def __init__(self) -> None:
        self.called: list[str] = []
        self.failing = ""

    def __getattr__(self, name: str) -> Any:
        found = getattr(api, name)
        if not name.startswith("cu") or isinstance(found, type):
            return found

        def call(*arguments: object) -> tuple[Any, ...]:
            self.called.append(name)
            with pytest.raises(RuntimeError, match="cuda"):  # there is no libcuda
                found(*arguments)
            if name == "cuFuncGetParamInfo" or name == self.failing:
                return api.CUresult.CUDA_ERROR_INVALID_VALUE, 0, 0
            if name in ("cuGetErrorName", "cuGetErrorString"):
                return api.CUresult.CUDA_SUCCESS, b"said"
            return api.CUresult.CUDA_SUCCESS, *([RESULTS[name]] if name in RESULTS else [])

        return call


@pytest.fixture
def driver() -> Driver:
    try:
        api.cuInit(0)
    except RuntimeError:
        made = Driver.__new__(Driver)
        made.api = Checked()
        return made
    pytest.skip("there is a driver, which would be called")


def task(**how: Any) -> Task:
    """A task with all that there is."""
    buffers: dict[str, NDArray[Any]] = {
        "x": np.zeros((8, 8), np.float16),
        "y": np.zeros(4, np.float32),
        "empty": np.zeros(0, np.int32),
    }
    item = Map("x", "FLOAT16", (8, 8), (16,), (8, 8), (1, 1), "NONE")
    arguments = (Address("y"), Value(b"\1\0\0\0"), Table(("x", "y")), item)
    launch = Launch(0, "k", (2, 1, 1), (32, 1, 1), 100_000, arguments, ("y", "empty"))
    return Task((b".version 8.0",), buffers, ((launch,), (launch,)), ("y", "empty"), **how)


def test_every_call_has_arguments_of_the_right_types(driver: Driver) -> None:
    gpu = Gpu(driver)
    assert gpu.describe() == {"name": "None", "sm": "sm_99", "cuda": "13.2", "l2": 9}
    stages: list[str] = []
    outcome = gpu.do(task(), stages.append)
    assert outcome.arrays.keys() == {"y", "empty"}
    outcome = gpu.do(task(samples=3, warmup=1), stages.append)
    assert outcome.times == [[500.0] * 3] * 2
    assert stages == ["load", "run", "read", "load", *["run"] * 4]
    called = set(driver.api.called)
    assert called >= {*RESULTS, "cuLaunchKernel", "cuMemsetD8Async", "cuEventRecord", "cuFuncSetAttribute", "cuMemFree"}
    assert driver.api.called.count("cuMemAlloc") == driver.api.called.count("cuMemFree")
    assert driver.api.called.count("cuEventCreate") == driver.api.called.count("cuEventDestroy") == 2


def test_an_error_has_the_drivers_words(driver: Driver) -> None:
    gpu = Gpu(driver)
    driver.api.failing = "cuLaunchKernel"
    with pytest.raises(GpuError, match="cuLaunchKernel: said: said"):
        gpu.do(task(), lambda _: None)
    assert driver.api.called.count("cuMemAlloc") == driver.api.called.count("cuMemFree")
    assert driver.api.called[-1] == "cuModuleUnload"
