"""One GPU through NVIDIA's driver: memory, tensor maps, launches, times.

Needs NumPy and the package cuda-bindings, and nothing else of ptxc: `benchmarks/gpu` takes this file along to a machine
without ptxc. It is used in a child process alone (:mod:`ptxc.device.worker`), since what a faulty kernel leaves of a
process is of no use.

A :class:`Task` says everything in names of buffers: modules, launches, what the memory holds before. Sizes are numbers.
"""

from __future__ import annotations

import ctypes
import importlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

#: Called with what is about to be done: ``load``, ``run``, ``read``.
Stage = Callable[[str], None]

_DRIVER = "cuda.bindings.driver"

_LOG_BYTES = 1 << 13
#: Samples that are taken however long they take.
_FEWEST = 3


class GpuError(Exception):
    """Something that the driver refuses, or that went wrong on the GPU.

    ``kind`` is ``package`` (cuda-bindings is missing), ``driver`` (there is none), ``gpu`` (there is none), ``usage``
    (the caller's fault), ``kernel`` or ``deadline``.
    """

    def __init__(self, kind: str, what: str) -> None:
        super().__init__(kind, what)
        self.kind, self.what = kind, what


# ------------------------------------------------------------------------------------------------------ a task


@dataclass(frozen=True, slots=True)
class Address:
    """An argument: the address of a buffer."""

    buffer: str


@dataclass(frozen=True, slots=True)
class Value:
    """An argument passed by value: its bytes."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Table:
    """An argument: the address of a table of buffers' addresses."""

    buffers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Map:
    """An argument: a tensor map, 128 bytes in the GPU's memory, or ``by_value``.

    The fields are the arguments of ``cuTensorMapEncodeTiled``, dimensions innermost first, strides in bytes of all
    dimensions but the first; names stand for CUDA's constants that end in them.
    """

    buffer: str
    data_type: str
    dims: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    element_strides: tuple[int, ...]
    swizzle: str = "NONE"
    by_value: bool = False


type Argument = Address | Value | Table | Map


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch: the number of its module in the task, the entry's name, extents, bytes of dynamic shared memory.

    ``zero`` are buffers to be filled with zeros before it.
    """

    module: int
    entry: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared: int
    arguments: tuple[Argument, ...]
    zero: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Task:
    """What is to be done on the GPU: PTX texts or cubins, what buffers hold, and launches.

    Each of ``sequences`` is launched once, on the memory as it then is, or with ``samples`` timed that often, in turn
    with the others. ``read`` are the buffers whose contents are wanted back, after the last.
    """

    modules: tuple[bytes, ...]
    buffers: Mapping[str, Array]
    sequences: tuple[tuple[Launch, ...], ...]
    read: tuple[str, ...] = ()
    samples: int = 0
    warmup: int = 3
    #: Seconds after which no further samples are taken, once there are three of each sequence.
    patience: float = float("inf")
    #: Whether the L2 cache holds nothing of the buffers when a timed sequence begins.
    cold: bool = True


@dataclass(frozen=True, slots=True)
class Outcome:
    """Buffers that were asked for, and microseconds of each sample of each sequence."""

    arrays: dict[str, Array]
    times: list[list[float]] = field(default_factory=list)


# ------------------------------------------------------------------------------------------------------ the driver


class Driver:
    """NVIDIA's driver API, whose functions return what they give or raise GpuError."""

    def __init__(self) -> None:
        try:
            self.api: Any = importlib.import_module(_DRIVER)
        except ImportError as error:
            raise GpuError("package", str(error)) from error
        try:
            status, *_ = self.api.cuInit(0)
        except Exception as error:  # what is raised where libcuda is missing differs between releases
            raise GpuError("driver", " ".join(str(error).split()).rstrip(".")) from error
        if int(status):
            raise GpuError("gpu", f"cuInit: {self._text(status)}")

    def __call__(self, function: str, *arguments: Any) -> Any:
        """Call the API's ``function``: its result, a tuple of several, None where it has none."""
        status, *results = getattr(self.api, function)(*arguments)
        if int(status):
            raise GpuError("kernel", f"{function}: {self._text(status)}")
        return results[0] if len(results) == 1 else tuple(results) or None

    def _text(self, status: Any) -> str:
        """An error's name, and what the driver says of it."""
        parts = []
        for function in (self.api.cuGetErrorName, self.api.cuGetErrorString):
            found, text = function(status)
            parts += [] if int(found) else [text.decode()]
        return ": ".join(parts) or f"error {int(status)}"

    def constant(self, kind: str, name: str) -> Any:
        """``CU_TENSOR_MAP_SWIZZLE_64B`` for ``CUtensorMapSwizzle`` and that name. Raises GpuError."""
        found = getattr(getattr(self.api, kind), name, None)
        if found is None:
            raise GpuError("usage", f"the driver API has no {name}")
        return found


class Gpu:
    """A GPU, with a context of this process."""

    def __init__(self, driver: Driver, ordinal: int = 0) -> None:
        self._driver = driver
        count = driver("cuDeviceGetCount")
        if not 0 <= ordinal < count:
            raise GpuError("gpu", f"there is no GPU {ordinal}, the driver has {count}")
        self._device = driver("cuDeviceGet", ordinal)
        try:
            driver("cuCtxSetCurrent", driver("cuDevicePrimaryCtxRetain", self._device))
        except GpuError as error:
            raise GpuError("gpu", error.what) from error

    def describe(self) -> dict[str, Any]:
        """The GPU's ``name`` and ``sm`` (as in ``sm_90``), the driver's ``cuda`` release, bytes of the ``l2``."""
        name = self._driver("cuDeviceGetName", 128, self._device).split(b"\0")[0].decode()
        version = self._driver("cuDriverGetVersion")
        sm = f"sm_{self._attribute('COMPUTE_CAPABILITY_MAJOR')}{self._attribute('COMPUTE_CAPABILITY_MINOR')}"
        cuda = f"{version // 1000}.{version % 1000 // 10}"
        return {"name": name, "sm": sm, "cuda": cuda, "l2": self._attribute("L2_CACHE_SIZE")}

    def _attribute(self, name: str) -> int:
        attribute = self._driver.constant("CUdevice_attribute", f"CU_DEVICE_ATTRIBUTE_{name}")
        return int(self._driver("cuDeviceGetAttribute", attribute, self._device))

    def do(self, task: Task, stage: Stage) -> Outcome:
        """Do a task. Raises GpuError; of faults on the GPU this process does not recover."""
        stage("load")
        session = _Session(self._driver, task)
        try:
            launches = [[session.bound(launch) for launch in sequence] for sequence in task.sequences]
            if task.samples:
                return Outcome({}, self._times(task, launches, session, stage))
            stage("run")
            for sequence in launches:
                for launch in sequence:
                    launch.clear()
                    launch.start()
                self._driver("cuCtxSynchronize")
            stage("read")
            return Outcome({name: session.read(name) for name in task.read})
        finally:
            session.close()

    def _times(
        self, task: Task, sequences: Sequence[Sequence[_Bound]], session: _Session, stage: Stage
    ) -> list[list[float]]:
        """The times of the samples of each sequence, one sample of each after the other."""
        call = self._driver
        times: list[list[float]] = [[] for _ in sequences]
        # Twice the cache. Filling it also keeps the GPU busy until the events and launches behind it are queued.
        size = 2 * self._attribute("L2_CACHE_SIZE") if task.cold else 0
        other = session.allocate(size) if size else 0
        events: list[Any] = []
        try:
            for _ in range(2):
                events.append(call("cuEventCreate", 0))  # noqa: PERF401  # the second may fail
            before, after = events
            start = time.monotonic()
            for sample in range(-task.warmup, task.samples):
                if sample >= _FEWEST and time.monotonic() - start > task.patience:
                    break
                stage("run")
                for at, sequence in enumerate(sequences):
                    for launch in sequence:
                        launch.clear()
                    if size:
                        call("cuMemsetD8Async", other, 0, size, 0)
                    call("cuEventRecord", before, 0)
                    for launch in sequence:
                        launch.start()
                    call("cuEventRecord", after, 0)
                    call("cuCtxSynchronize")
                    if sample >= 0:
                        times[at].append(1000.0 * call("cuEventElapsedTime", before, after))
            return times
        finally:
            for event in events:
                call.api.cuEventDestroy(event)


class _Session:
    """The memory and the modules of a task."""

    def __init__(self, driver: Driver, task: Task) -> None:
        self._driver, self._task = driver, task
        self._allocated: list[int] = []
        self._loaded: list[Any] = []
        self._at: dict[str, int] = {}
        try:
            self._loaded = [_load(driver, image) for image in task.modules]
            for name, array in task.buffers.items():
                self._at[name] = self.store(array)
        except BaseException:
            self.close()
            raise

    def allocate(self, size: int) -> int:
        """The address of so many bytes."""
        self._allocated.append(int(self._driver("cuMemAlloc", max(size, 1))))
        return self._allocated[-1]

    def store(self, array: Array) -> int:
        """The address of a copy of ``array``."""
        array = np.ascontiguousarray(array)
        address = self.allocate(array.nbytes)
        if array.nbytes:
            self._driver("cuMemcpyHtoD", address, array.ctypes.data, array.nbytes)
        return address

    def read(self, name: str) -> Array:
        """What a buffer holds now."""
        array = np.empty_like(self._task.buffers[name], order="C")
        if array.nbytes:
            self._driver("cuMemcpyDtoH", array.ctypes.data, self._at[name], array.nbytes)
        return array

    def bound(self, launch: Launch) -> _Bound:
        """A launch with addresses for names."""
        call = self._driver
        function = call("cuModuleGetFunction", self._loaded[launch.module], launch.entry.encode())
        if launch.shared:  # with the static, it may be more than the 48 KiB that need no asking
            attribute = "CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES"
            call("cuFuncSetAttribute", function, call.constant("CUfunction_attribute", attribute), launch.shared)
        values = [self._argument(argument) for argument in launch.arguments]
        self._check(function, launch.entry, values)
        cleared = [(self._at[name], self._task.buffers[name].nbytes) for name in launch.zero]
        return _Bound(call, launch, function, values, cleared)

    def _argument(self, argument: Argument) -> bytes:
        """The bytes of a parameter."""
        if isinstance(argument, Value):
            return argument.data
        if isinstance(argument, Address):
            return _pointer(self._at[argument.buffer])
        if isinstance(argument, Table):
            return _pointer(self.store(np.array([self._at[name] for name in argument.buffers], np.uint64)))
        encoded = encode_map(self._driver, argument, self._at[argument.buffer])
        return encoded if argument.by_value else _pointer(self.store(np.frombuffer(encoded, np.uint8)))

    def _check(self, function: Any, entry: str, values: Sequence[bytes]) -> None:
        """Raise GpuError where the arguments' sizes are not the entry's, as far as the driver tells them."""
        api = self._driver.api
        if not hasattr(api, "cuFuncGetParamInfo"):
            return
        for at in range(len(values) + 1):
            status, _, size = api.cuFuncGetParamInfo(function, at)
            given = len(values[at]) if at < len(values) else 0
            wanted = 0 if int(status) else int(size)
            if given != wanted and not (at == 0 and int(status)):  # a driver that cannot tell says so of the first
                raise GpuError("usage", f"parameter {at} of {entry} has {wanted} bytes, its argument {given}")
            if int(status):
                return

    def close(self) -> None:
        """Give back memory and modules, whatever state the GPU is in."""
        for address in self._allocated:
            self._driver.api.cuMemFree(address)
        for module in self._loaded:
            self._driver.api.cuModuleUnload(module)
        self._allocated, self._loaded = [], []


class _Bound:
    """A launch whose arguments lie ready."""

    def __init__(
        self, driver: Driver, launch: Launch, function: Any, values: Sequence[bytes], cleared: Sequence[tuple[int, int]]
    ) -> None:
        self._driver, self._launch, self._function, self._cleared = driver, launch, function, cleared
        # cuLaunchKernel takes the address of an array with the address of each argument; both must live until then.
        self._values = [ctypes.create_string_buffer(value, len(value)) for value in values]
        self._pointers = np.array([ctypes.addressof(value) for value in self._values], np.uint64)

    def clear(self) -> None:
        """Fill with zeros what must hold them before the launch."""
        for address, size in self._cleared:
            if size:
                self._driver("cuMemsetD8Async", address, 0, size, 0)

    def start(self) -> None:
        """Launch, without waiting for the end."""
        item, parameters = self._launch, self._pointers.ctypes.data if self._pointers.size else 0
        self._driver("cuLaunchKernel", self._function, *item.grid, *item.block, item.shared, 0, parameters, 0)


def _pointer(address: int) -> bytes:
    return address.to_bytes(8, "little")


def _load(driver: Driver, image: bytes) -> Any:
    """The module of a PTX text or a cubin. Raises GpuError with what the driver's assembler says."""
    log = bytearray(_LOG_BYTES)
    names = ("CU_JIT_ERROR_LOG_BUFFER", "CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES")
    options = [driver.constant("CUjit_option", name) for name in names]
    try:
        return driver("cuModuleLoadDataEx", image + b"\0", len(options), options, [log, len(log)])
    except GpuError as error:
        said = " ".join(bytes(log).split(b"\0")[0].decode(errors="replace").split())
        raise GpuError("kernel", f"{error.what}: {said}" if said else error.what) from error


def encode_map(driver: Driver, item: Map, address: int) -> bytes:
    """The 128 bytes of a tensor map whose buffer is at ``address``. Raises GpuError for one that CUDA refuses."""
    api = driver.api
    encoded = driver(
        "cuTensorMapEncodeTiled",
        driver.constant("CUtensorMapDataType", f"CU_TENSOR_MAP_DATA_TYPE_{item.data_type}"),
        len(item.dims),
        address,
        [api.cuuint64_t(extent) for extent in item.dims],
        [api.cuuint64_t(stride) for stride in item.strides],
        [api.cuuint32_t(extent) for extent in item.box],
        [api.cuuint32_t(step) for step in item.element_strides or (1,) * len(item.dims)],
        driver.constant("CUtensorMapInterleave", "CU_TENSOR_MAP_INTERLEAVE_NONE"),
        driver.constant("CUtensorMapSwizzle", f"CU_TENSOR_MAP_SWIZZLE_{item.swizzle}"),
        driver.constant("CUtensorMapL2promotion", "CU_TENSOR_MAP_L2_PROMOTION_NONE"),
        driver.constant("CUtensorMapFloatOOBfill", "CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE"),
    )
    return np.array([int(word) for word in encoded.opaque], np.uint64).tobytes()
