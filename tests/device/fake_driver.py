"""What `cuda.bindings.driver` is to ptxc, without a GPU: the CPU device executes what is launched.

It takes what the real one takes: wrapped integers in lists, the address of an array of addresses of arguments. With
``FAKE_GPU`` in the environment something is wrong: ``none`` (no GPU), ``hang`` (no launch ends), ``crash`` (the process
ends), ``slow`` (starting takes long). ``FAKE_LOG`` is a file that gets a line for each call that does something, and
of large grids so many CTAs as ``FAKE_CTAS`` says are executed.
"""

from __future__ import annotations

import ctypes
import enum
import os
import signal
import time
from typing import Any

import numpy as np

from ptxc.errors import CompileError, UsageError
from ptxc.reference.sample import Sample
from ptxc.sim import tensor_map
from ptxc.sim.device import CpuDevice, Module
from ptxc.sim.tensor_map import BoundMap, TensorMap

FAULT = os.environ.get("FAKE_GPU", "")
CTAS = int(os.environ["FAKE_CTAS"]) if "FAKE_CTAS" in os.environ else None
CAPABILITY = (9, 0)
L2 = 1 << 10


class CUresult(enum.IntEnum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_INVALID_VALUE = 1
    CUDA_ERROR_NO_DEVICE = 100
    CUDA_ERROR_INVALID_PTX = 218
    CUDA_ERROR_NOT_FOUND = 500
    CUDA_ERROR_ILLEGAL_ADDRESS = 700


class CUdevice_attribute(enum.IntEnum):
    CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE = 38
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR = 75
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR = 76


class CUjit_option(enum.IntEnum):
    CU_JIT_ERROR_LOG_BUFFER = 5
    CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES = 6


class CUfunction_attribute(enum.IntEnum):
    CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES = 8


class CUtensorMapDataType(enum.IntEnum):
    CU_TENSOR_MAP_DATA_TYPE_UINT8 = 0
    CU_TENSOR_MAP_DATA_TYPE_UINT32 = 2
    CU_TENSOR_MAP_DATA_TYPE_FLOAT16 = 6
    CU_TENSOR_MAP_DATA_TYPE_FLOAT32 = 7
    CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 = 9


class CUtensorMapInterleave(enum.IntEnum):
    CU_TENSOR_MAP_INTERLEAVE_NONE = 0


class CUtensorMapSwizzle(enum.IntEnum):
    CU_TENSOR_MAP_SWIZZLE_NONE = 0
    CU_TENSOR_MAP_SWIZZLE_32B = 1
    CU_TENSOR_MAP_SWIZZLE_64B = 2
    CU_TENSOR_MAP_SWIZZLE_128B = 3


class CUtensorMapL2promotion(enum.IntEnum):
    CU_TENSOR_MAP_L2_PROMOTION_NONE = 0


class CUtensorMapFloatOOBfill(enum.IntEnum):
    CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE = 0


class cuuint64_t(int):
    pass


class cuuint32_t(int):
    pass


class CUtensorMap:
    def __init__(self, data: bytes) -> None:
        self.opaque = [cuuint64_t(word) for word in np.frombuffer(data, np.uint64)]


_TYPES = {"UINT8": "u8", "UINT32": "u32", "FLOAT16": "f16", "FLOAT32": "f32", "BFLOAT16": "bf16"}
_OK = CUresult.CUDA_SUCCESS
_device = CpuDevice()
_memory: dict[int, Any] = {}
_maps: dict[int, BoundMap] = {}
_shared: dict[int, int] = {}
_state = {"status": _OK, "clock": 0.0}


def _log(*words: object) -> None:
    if "FAKE_LOG" in os.environ:
        with open(os.environ["FAKE_LOG"], "a") as file:
            print(*words, file=file)


def _at(address: int, size: int) -> Any:
    """The bytes at an address."""
    start = max(key for key in _memory if key <= address)
    assert address - start + size <= _memory[start].size, "outside of the allocation"
    return _memory[start][address - start : address - start + size]


def cuInit(flags: int) -> tuple[CUresult]:
    if FAULT == "slow":
        time.sleep(60)
    return (CUresult.CUDA_ERROR_NO_DEVICE if FAULT == "none" else _OK,)


def cuGetErrorName(error: CUresult) -> tuple[CUresult, bytes]:
    return _OK, error.name.encode()


def cuGetErrorString(error: CUresult) -> tuple[CUresult, bytes]:
    return _OK, error.name.removeprefix("CUDA_ERROR_").replace("_", " ").lower().encode()


def cuDeviceGetCount() -> tuple[CUresult, int]:
    return _OK, 1


def cuDeviceGet(ordinal: int) -> tuple[CUresult, int]:
    return _OK, ordinal


def cuDevicePrimaryCtxRetain(device: int) -> tuple[CUresult, str]:
    return _OK, "context"


def cuCtxSetCurrent(context: str) -> tuple[CUresult]:
    assert context == "context"
    return (_OK,)


def cuDeviceGetName(length: int, device: int) -> tuple[CUresult, bytes]:
    return _OK, b"Fake GPU".ljust(length, b"\0")


def cuDriverGetVersion() -> tuple[CUresult, int]:
    return _OK, 13010


def cuDeviceGetAttribute(attribute: CUdevice_attribute, device: int) -> tuple[CUresult, int]:
    if attribute == CUdevice_attribute.CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE:
        return _OK, L2
    return _OK, CAPABILITY[attribute - CUdevice_attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR]


def cuMemAlloc(size: int) -> tuple[CUresult, int]:
    assert size > 0
    array = np.full(size, 0xCD, np.uint8)
    address = _device.address(array, f"allocation {len(_memory)}")
    _memory[address] = array
    return _OK, address


def cuMemFree(address: int) -> tuple[CUresult]:
    _device.release(_memory.pop(address))
    _log("free")
    return (_OK,)


def cuMemcpyHtoD(to: int, source: int, size: int) -> tuple[CUresult]:
    _at(to, size)[:] = np.frombuffer(ctypes.string_at(source, size), np.uint8)
    return (_OK,)


def cuMemcpyDtoH(to: int, source: int, size: int) -> tuple[CUresult]:
    ctypes.memmove(to, _at(source, size).tobytes(), size)
    return (_state["status"],)  # type: ignore[return-value]


def cuMemsetD8Async(to: int, value: int, size: int, stream: int) -> tuple[CUresult]:
    _at(to, size)[:] = value
    _log("memset", size)
    return (_OK,)


def cuModuleLoadDataEx(
    image: bytes, count: int, options: list[CUjit_option], values: list[Any]
) -> tuple[CUresult, Module | None]:
    assert count == len(options) == len(values)
    assert image.endswith(b"\0")
    try:
        return _OK, _device.load(image.rstrip(b"\0").removeprefix(b"\x7fELF").decode())
    except CompileError as error:
        said = str(error).encode()[: values[1] - 1]
        values[0][: len(said)] = said
        return CUresult.CUDA_ERROR_INVALID_PTX, None


def cuModuleUnload(module: Module) -> tuple[CUresult]:
    _log("unload")
    return (_OK,)


def cuModuleGetFunction(module: Module, name: bytes) -> tuple[CUresult, tuple[Module, str] | None]:
    if name.decode() not in module.entries:
        return CUresult.CUDA_ERROR_NOT_FOUND, None
    return _OK, (module, name.decode())


def cuFuncSetAttribute(function: tuple[Module, str], attribute: CUfunction_attribute, value: int) -> tuple[CUresult]:
    _shared[id(function[0])] = value
    return (_OK,)


def cuFuncGetParamInfo(function: tuple[Module, str], at: int) -> tuple[CUresult, int, int]:
    parameters = function[0].program(function[1]).parameters
    if at >= len(parameters):
        return CUresult.CUDA_ERROR_INVALID_VALUE, 0, 0
    return _OK, parameters[at].offset, parameters[at].size


def cuLaunchKernel(
    function: tuple[Module, str], gx: int, gy: int, gz: int, bx: int, by: int, bz: int, shared: int, stream: int,
    parameters: int, extra: int,
) -> tuple[CUresult]:  # fmt: skip
    module, name = function
    declared = module.program(name).parameters
    pointers = np.frombuffer(ctypes.string_at(parameters, 8 * len(declared)) if declared else b"", np.uint64)
    args = [ctypes.string_at(int(at), item.size) for at, item in zip(pointers, declared, strict=True)]
    _log("launch", name, *(int.from_bytes(arg, "little") for arg in args if len(arg) == 4))
    if shared > 48 << 10 and _shared.get(id(module), 0) < shared:
        return (CUresult.CUDA_ERROR_INVALID_VALUE,)
    if FAULT == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    _device._memory.tensor_maps.update(_maps)
    ctas = Sample(CTAS).places((gx, gy, gz))
    try:
        result = module.launch(name, (gx, gy, gz), (bx, by, bz), args, shared=shared, ctas=ctas, sanitize=["memory"])
    except UsageError:
        return (CUresult.CUDA_ERROR_INVALID_VALUE,)
    if result.findings:
        _state["status"] = CUresult.CUDA_ERROR_ILLEGAL_ADDRESS
    return (_OK,)


def cuCtxSynchronize() -> tuple[CUresult]:
    while FAULT == "hang":
        time.sleep(0.1)
    return (_state["status"],)  # type: ignore[return-value]


def cuEventCreate(flags: int) -> tuple[CUresult, dict[str, float]]:
    return _OK, {}


def cuEventDestroy(event: dict[str, float]) -> tuple[CUresult]:
    return (_OK,)


def cuEventRecord(event: dict[str, float], stream: int) -> tuple[CUresult]:
    _state["clock"] += 0.001  # each event is a microsecond behind the one before
    event["at"] = _state["clock"]
    _log("event")
    return (_OK,)


def cuEventElapsedTime(start: dict[str, float], end: dict[str, float]) -> tuple[CUresult, float]:
    return _OK, end["at"] - start["at"]


def cuTensorMapEncodeTiled(
    data_type: CUtensorMapDataType, rank: int, address: int, dims: list[cuuint64_t], strides: list[cuuint64_t],
    box: list[cuuint32_t], element_strides: list[cuuint32_t], interleave: CUtensorMapInterleave,
    swizzle: CUtensorMapSwizzle, promotion: CUtensorMapL2promotion, fill: CUtensorMapFloatOOBfill,
) -> tuple[CUresult, CUtensorMap | None]:  # fmt: skip
    assert all(isinstance(extent, cuuint64_t) for extent in (*dims, *strides))
    assert all(isinstance(extent, cuuint32_t) for extent in (*box, *element_strides))
    assert (len(dims), len(strides), len(box), len(element_strides)) == (rank, rank - 1, rank, rank)
    dtype = _TYPES[data_type.name.removeprefix("CU_TENSOR_MAP_DATA_TYPE_")]
    mode = swizzle.name.removeprefix("CU_TENSOR_MAP_SWIZZLE_")
    try:
        item = TensorMap(_memory[address], dims, strides, box, element_strides, mode, dtype)
    except UsageError:
        return CUresult.CUDA_ERROR_INVALID_VALUE, None
    _maps[len(_maps)] = BoundMap(item, _device._memory.bind(_memory[address], "a tensor"))
    return _OK, CUtensorMap(tensor_map.encode(len(_maps) - 1))
