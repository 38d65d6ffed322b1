"""An NVIDIA GPU: load PTX or a cubin, launch its entries on NumPy arrays, time them.

device = CudaDevice(deadline=10.0)
module = device.load(kernel.ptx)
module.launch("kernel", (4, 1, 1), (128, 1, 1), [a, b, c, 17], shared=0)
module.time("kernel", (4, 1, 1), (128, 1, 1), [a, b, c, 17]).median

The interface is the CPU device's, without its checks. Everything on the GPU happens in a child process
(:mod:`ptxc.device.worker`): a kernel that hangs or faults is a DeviceError.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ptxc.device import DEADLINE
from ptxc.device.gpu import Address, GpuError, Launch, Map, Outcome, Table, Task, Value
from ptxc.device.gpu import Argument as Passed
from ptxc.device.worker import Worker
from ptxc.errors import DeviceError, InputError, UsageError
from ptxc.sim import arguments
from ptxc.sim.device import LaunchResult, Statistics
from ptxc.sim.parser import parse
from ptxc.sim.program import Parameter
from ptxc.sim.scalar import TYPES, Array
from ptxc.sim.syntax import Variable
from ptxc.sim.tensor_map import DATA_TYPES, TensorMap

#: How a cubin begins, which is an ELF file.
_ELF = b"\x7fELF"

_WITHOUT = "without a GPU, use the CPU device: --device cpu, ptxc.device('cpu')"
_HINTS = {
    "package": "install it: pip install 'ptxc[cuda]'",
    "driver": f"install NVIDIA's driver, whose library libcuda.so.1 the system's loader must find; {_WITHOUT}",
    "gpu": f"`nvidia-smi` shows what the driver sees; {_WITHOUT}",
    "deadline": "the kernel hangs, or needs a longer --deadline (deadline=...); `ptxc run --device cpu` says where a "
    "barrier cannot complete",
    "kernel": "`ptxc run --device cpu` says where a kernel leaves its buffers",
}
_WHAT = {
    "package": "the package cuda-bindings is not installed",
    "driver": "there is no NVIDIA driver: libcuda.so.1 was looked for",
    "gpu": "there is no GPU to use",
}


@dataclass(frozen=True, slots=True)
class Pointers:
    """An argument: the address of a table that holds the addresses of ``arrays``."""

    arrays: tuple[Array, ...]


type Argument = arguments.Argument | Pointers


@dataclass(frozen=True, slots=True)
class Timing:
    """Microseconds that a launch takes on the GPU, each sample's."""

    samples: tuple[float, ...]

    @property
    def median(self) -> float:
        """The median of the samples."""
        return statistics.median(self.samples)


@dataclass(frozen=True, slots=True)
class Description:
    """A GPU: its ``name``, its target (``sm_90``), the ``cuda`` release that the driver is for, bytes of L2 cache."""

    name: str
    sm: str
    cuda: str
    l2: int


class CudaDevice:
    """A GPU. Raises DeviceError where there is none, or no driver or package to use it with.

    ``deadline`` are the seconds that a launch may take, ``ordinal`` is the GPU's number.
    """

    def __init__(self, deadline: float = DEADLINE, ordinal: int = 0) -> None:
        if not isinstance(deadline, int | float) or not 0 < deadline < float("inf"):
            raise UsageError(f"the deadline is {deadline!r}", hint="give seconds, as in deadline=10")
        self.deadline = float(deadline)
        self._worker = Worker(arguments.natural(ordinal, "ordinal, the GPU's number,"))
        self.description = self._describe()

    def _describe(self) -> Description:
        try:
            return Description(**self._worker.describe())
        except GpuError as error:
            raise device_error(error) from error

    def load(self, image: str | bytes) -> Module:
        """The module of a PTX text or a cubin, which the GPU sees with the first launch.

        Raises InputError where a text is not PTX.
        """
        if isinstance(image, bytes) and not image.startswith(_ELF):
            image = image.decode(errors="replace")
        if not isinstance(image, str | bytes):
            what = f"PTX text is a str and a cubin is bytes, not of type {type(image).__name__}"
            raise UsageError(what, hint="give kernel.ptx, or Path(file).read_text()")
        return Module(self, image)

    def do(self, task: Task, entry: str) -> Outcome:
        """Have the child do a task, errors of which name ``entry``. Raises UsageError or DeviceError."""
        try:
            return self._worker.do(task, self.deadline)
        except GpuError as error:
            raise device_error(error, entry) from error

    def close(self) -> None:
        """End the child process; the next launch starts another."""
        self._worker.close()


def device_error(error: GpuError, kernel: str = "") -> DeviceError | UsageError:
    """An error of the GPU's, for people."""
    if error.kind == "usage":
        return UsageError(error.what, kernel=kernel)
    what = f"{_WHAT[error.kind]} ({error.what})" if error.kind in _WHAT else error.what
    return DeviceError(what, hint=_HINTS[error.kind], kernel=kernel)


class Module:
    """A loaded PTX text or cubin."""

    def __init__(self, device: CudaDevice, image: str | bytes) -> None:
        self.device = device
        self._image = image.encode() if isinstance(image, str) else image
        self._parameters = _parameters(image) if isinstance(image, str) else None

    @property
    def entries(self) -> list[str]:
        """The names of a PTX text's entries, in its order; of a cubin they are not known here."""
        return list(self._parameters or ())

    def launch(
        self,
        name: str,
        grid: int | Sequence[int],
        block: int | Sequence[int],
        args: Sequence[Argument],
        *,
        shared: int = 0,
    ) -> LaunchResult:
        """Launch entry ``name`` with ``grid`` CTAs of ``block`` threads, and wait for its end.

        ``args`` come in parameter order, as the CPU device takes them: an array for a pointer (copied to the GPU and
        back; only to it if its ``writeable`` flag is off), a number for a scalar, an array or bytes for a parameter
        declared as an array, a TensorMap, :class:`Pointers`. A cubin does not say what its parameters are: there an int
        is 32 bits, a float is f32, and NumPy's scalars are what they are. ``shared`` is the dynamic shared memory in
        bytes. The result has no findings, which a GPU does not make, and is complete.

        Raises UsageError for arguments that do not fit, DeviceError for a launch that fails or misses the deadline.
        """
        plan = self._plan(name, grid, block, args, shared, ())
        outcome = self.device.do(plan.task((plan.launch,)), name)
        for key, array in outcome.arrays.items():
            plan.arrays[key][...] = array
        ctas = math.prod(plan.launch.grid)
        return LaunchResult([], Statistics(ctas, ctas * math.prod(plan.launch.block)), completed=True)

    def time(
        self,
        name: str,
        grid: int | Sequence[int],
        block: int | Sequence[int],
        args: Sequence[Argument],
        *,
        shared: int = 0,
        zero: Sequence[Array] = (),
        repeat: int = 20,
        warmup: int = 3,
        cold: bool = True,
    ) -> Timing:
        """The time of ``repeat`` launches, after ``warmup`` others, by events before and after each.

        The arguments are those of :meth:`launch`; the arrays stay as they are. Those in ``zero`` are filled with zeros
        on the GPU before each launch, and with ``cold`` the L2 cache with something else; neither is timed.
        """
        repeat = arguments.natural(repeat, "repeat", 1)
        plan = self._plan(name, grid, block, args, shared, zero)
        task = plan.task((plan.launch,), samples=repeat, warmup=arguments.natural(warmup, "warmup"), cold=cold)
        return Timing(tuple(self.device.do(task, name).times[0]))

    def _plan(
        self,
        name: str,
        grid: int | Sequence[int],
        block: int | Sequence[int],
        args: Sequence[Argument],
        shared: int,
        zero: Sequence[Array],
    ) -> _Plan:
        plan = _Plan(self._image)
        passed = plan.arguments(args, self._entry(name))
        extents = arguments.extents(grid, "grid"), arguments.extents(block, "block")
        cleared = tuple(map(plan.name, zero))
        plan.launch = Launch(0, name, *extents, arguments.shared_bytes(shared), passed, cleared)
        return plan

    def _entry(self, name: str) -> list[Parameter] | None:
        """The parameters of an entry; None of a cubin's. Raises InputError for an entry that a text does not have."""
        if self._parameters is None:
            return None
        if name not in self._parameters:
            raise InputError(f"the PTX has no entry {name!r}", hint=f"it has {', '.join(self._parameters)}")
        return self._parameters[name]


def _parameters(ptx: str) -> dict[str, list[Parameter]]:
    """The parameters of each entry of a PTX text; their offsets do not matter here."""
    found = {}
    for name, function in parse(ptx).functions.items():
        variables = [item for item in function.parameters if isinstance(item, Variable)]
        if function.entry:
            found[name] = [
                Parameter(item.name, TYPES[item.type], 0, TYPES[item.type].size * (item.count or 0), item.count != 1)
                for item in variables
            ]
    return found


class _Plan:
    """A launch, and the arrays that its buffers are."""

    launch: Launch

    def __init__(self, image: bytes) -> None:
        self._image = image
        self.arrays: dict[str, Array] = {}
        self._names: dict[tuple[int, int], str] = {}

    def task(self, sequence: tuple[Launch, ...], **how: Any) -> Task:
        """The task of launching ``sequence``."""
        read = tuple(name for name, array in self.arrays.items() if array.flags.writeable)
        return Task((self._image,), self.arrays, (sequence,), read, **how)

    def arguments(self, args: Sequence[Argument], parameters: Sequence[Parameter] | None) -> tuple[Passed, ...]:
        """The arguments in names of buffers. Raises UsageError for those that do not fit."""
        if parameters is None:
            return tuple(self._guessed(value, f"argument {at}") for at, value in enumerate(args))
        given = arguments.counted(args, parameters)  # type: ignore[arg-type]  # it counts anything
        return tuple(self._passed(parameter, value) for parameter, value in zip(parameters, given, strict=True))

    def name(self, array: Array, what: str = "an array") -> str:
        """The buffer that ``array`` is, the same one each time. Raises UsageError for what is no contiguous array."""
        arguments.check_array(array, what)
        if not array.flags.c_contiguous:
            hint = "pass numpy.ascontiguousarray of it, which is a copy: what is written is there"
            raise UsageError(f"the array for {what} is not contiguous", hint=hint)
        name = self._names.setdefault((array.ctypes.data, array.nbytes), f"b{len(self._names)}")
        if name not in self.arrays or array.flags.writeable:
            self.arrays[name] = array
        return name

    def _passed(self, parameter: Parameter, value: Argument) -> Passed:
        if isinstance(value, TensorMap):
            return self._map(value, parameter.name, by_value=parameter.array)
        if isinstance(value, Pointers):
            return Table(tuple(self.name(array, parameter.name) for array in value.arrays))
        if arguments.is_memory(parameter, value):
            assert isinstance(value, np.ndarray)
            return Address(self.name(value, parameter.name))
        return Value(arguments.encoded(parameter, value))

    def _guessed(self, value: Argument, what: str) -> Passed:
        """An argument for a parameter of which nothing is known."""
        if isinstance(value, np.ndarray):
            return Address(self.name(value, what))
        if isinstance(value, TensorMap):
            return self._map(value, what, by_value=False)
        if isinstance(value, Pointers):
            return Table(tuple(self.name(array, what) for array in value.arrays))
        kind = TYPES["f32" if isinstance(value, float) else "u32"]
        if isinstance(value, bytes | np.generic):
            return Value(value if isinstance(value, bytes) else value.tobytes())
        return Value(arguments.encoded(Parameter(what, kind, 0, kind.size, False), value))

    def _map(self, item: TensorMap, what: str, *, by_value: bool) -> Map:
        if item.dtype not in DATA_TYPES:
            raise UsageError(f"no tensor map has elements of type {item.dtype}", hint=f"{', '.join(DATA_TYPES)} do")
        name = self.name(item.buffer, f"the tensor of {what}")
        dims, strides, box, steps = (tuple(map(int, row)) for row in (item.dims, item.strides, item.box, item.steps))
        return Map(name, DATA_TYPES[item.dtype], dims, strides, box, steps, item.swizzle, by_value)
