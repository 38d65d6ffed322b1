"""The CPU device: load PTX, launch its entries on NumPy arrays, get back what was found.

device = CpuDevice()
module = device.load(ptx)
result = module.launch("kernel", (4, 1, 1), (128, 1, 1), [a, b, c, 17], sanitize={"race", "memory"})
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from ptxc.errors import InputError, UnsupportedError, UsageError
from ptxc.sim import arguments
from ptxc.sim import syntax as ast
from ptxc.sim.arguments import Argument
from ptxc.sim.asynchronous import CopyQueue
from ptxc.sim.findings import Finding, Findings
from ptxc.sim.geometry import Dim3, geometry, padded
from ptxc.sim.global_race import GlobalRaceCheck
from ptxc.sim.initialization import InitCheck
from ptxc.sim.kernel import Kernel, bind
from ptxc.sim.linker import Symbol, function_address, link
from ptxc.sim.machine import Checks, Machine, Stop
from ptxc.sim.mbarrier import Mbarriers
from ptxc.sim.memory import GlobalMemory, Region
from ptxc.sim.order import Order
from ptxc.sim.parser import parse
from ptxc.sim.profile import Profile
from ptxc.sim.program import Extent, Instruction, Parameter, Program
from ptxc.sim.proxy import ProxyCheck, uses_async_proxy
from ptxc.sim.race import SharedRaceCheck
from ptxc.sim.scalar import TYPES, Array
from ptxc.sim.scheduler import Scheduler
from ptxc.sim.tensor_map import BoundMap, TensorMap, encode
from ptxc.sim.wgmma import WarpgroupQueue, registers_of_products

#: Called with the CTAs done and to do; those that run count in part, as far as the batch before them tells.
Progress = Callable[[float, int], None]

BATCH_THREADS = 1 << 14
"""How many threads run together: enough to make NumPy's overhead small, few enough to stay in the cache."""

BATCH_BYTES = 1 << 29
"""What the registers, shared and local memory of a batch may take."""

DEFAULT_MAX_STEPS = 20_000_000
"""Instructions that a batch of CTAs may execute before the launch is given up as endless."""


@dataclass(slots=True)
class Statistics:
    """What a launch did. ``instructions`` counts what threads executed, ``issued`` what the device ran at once.

    ``opcodes`` counts what threads executed by spelling, branches and whatever else ends a block left out.
    """

    ctas: int = 0
    threads: int = 0
    batches: int = 0
    issued: int = 0
    instructions: int = 0
    opcodes: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class LaunchResult:
    """The end of a launch. ``completed`` is False where it stopped early; a finding says why."""

    findings: list[Finding]
    statistics: Statistics
    completed: bool
    profile: Profile | None = None


class CpuDevice:
    """A device that executes PTX on the CPU, with one global address space for all its modules."""

    def __init__(self) -> None:
        self._memory = GlobalMemory()

    def load(self, ptx: str) -> Module:
        """The module of a PTX text. Raises InputError where the text is not PTX."""
        if not isinstance(ptx, str):
            what = f"PTX text is a str, not of type {type(ptx).__name__}"
            raise UsageError(what, hint="give kernel.ptx, or Path(file).read_text()")
        return Module(self, self._memory, parse(ptx))

    def address(self, array: Array, name: str = "an array") -> int:
        """The device address of ``array``, which stays its memory from now on: for tables of pointers.

        Findings call it by ``name``. Raises UsageError for what is no contiguous array of numbers.
        """
        arguments.check_array(array, name)
        return self._memory.bind(array, name).start

    def release(self, array: Array) -> None:
        """Unmap ``array``, whose address was asked for; nothing else gets that address."""
        self._memory.release(array)


class Module:
    """A loaded PTX text; its initialised variables live as long as it does."""

    def __init__(self, device: CpuDevice, memory: GlobalMemory, tree: ast.Module) -> None:
        self.device = device
        self._memory = memory
        self._tree = tree
        self._symbols: dict[str, Symbol] = {}
        self._kernels: dict[str, Kernel] = {}
        for at, name in enumerate(tree.functions):
            self._symbols[name] = Symbol("function", function_address(at))
        self._place_variables()

    @property
    def entries(self) -> list[str]:
        """The names of the entries, in the text's order."""
        return [name for name, function in self._tree.functions.items() if function.entry]

    @property
    def target(self) -> str:
        """The text's ``.target``."""
        return self._tree.target

    def program(self, name: str) -> Program:
        """The linked program of an entry. Raises InputError if there is none of that name."""
        return self._kernel(name).program

    def _kernel(self, name: str) -> Kernel:
        found = self._kernels.get(name)
        if found is None:
            found = bind(link(self._tree, name, self._symbols))
            self._kernels[name] = found
        return found

    def _place_variables(self) -> None:
        placed: list[tuple[ast.Variable, Region]] = []
        for variable in self._tree.variables:
            if variable.space == "shared":
                continue
            size = TYPES[variable.type].size * (variable.count or 0)
            region = self._memory.add(
                variable.name, variable.space, np.zeros(size, np.uint8), variable.space == "global"
            )
            self._symbols[variable.name] = Symbol(variable.space, region.start)
            placed.append((variable, region))
        for variable, region in placed:
            values = [self._initial(variable, value) for value in variable.initial]
            region.data[: len(b"".join(values))] = np.frombuffer(b"".join(values), np.uint8)

    def _initial(self, variable: ast.Variable, value: ast.Operand) -> bytes:
        kind = TYPES[variable.type]
        if isinstance(value, ast.Number):
            if kind.kind != "f" or value.bits == kind.bits:
                return (value.value & (1 << kind.bits) - 1).to_bytes(kind.size, "little")
            number = struct.unpack("<d", value.value.to_bytes(8, "little"))[0] if value.bits == 64 else value.value
            return np.array([number]).astype(kind.dtype).tobytes()
        name, offset = (value.symbol.text, value.offset) if isinstance(value, ast.SymbolOffset) else ("", 0)
        if isinstance(value, ast.Name):
            name = value.text
        if name not in self._symbols:
            raise InputError(f"PTX line {variable.line}: the initial value of {variable.name} is not a constant")
        return (self._symbols[name].address + offset & (1 << kind.bits) - 1).to_bytes(kind.size, "little")

    def launch(
        self,
        name: str,
        grid: int | Sequence[int],
        block: int | Sequence[int],
        args: Sequence[Argument],
        *,
        shared: int = 0,
        ctas: Iterable[int | Sequence[int]] | None = None,
        sanitize: Iterable[str] = (),
        max_steps: int = DEFAULT_MAX_STEPS,
        profile: bool = False,
        dependent: bool | None = None,
        progress: Progress | None = None,
    ) -> LaunchResult:
        """Execute entry ``name`` with ``grid`` CTAs of ``block`` threads (up to three extents each, or a number).

        ``args`` come in parameter order: an array for a pointer (written in place; read-only if its ``writeable``
        flag is off), a number for a scalar, an array or bytes for a parameter declared as an array, an int for a
        pointer that is a device address, a TensorMap for a pointer or an array of 128 bytes. ``shared`` is the
        dynamic shared memory in bytes. ``ctas`` are the CTAs to
        execute, all of them by default. ``sanitize`` names checks of ``CHECKS``. ``profile`` asks for the result's
        profile. ``dependent`` says that the grid ahead may still run when this one begins (programmatic dependent
        launch), None that it may if the entry has a ``griddepcontrol.wait``. ``progress`` is called with the CTAs done
        and to do, now and then while a batch of them runs too.

        Raises UsageError for arguments that do not fit, InputError and UnsupportedError for the text's faults.
        Faults of the kernel's execution are findings of the result.
        """
        if not isinstance(name, str):
            hint = f"entries are {', '.join(self.entries)}"
            raise UsageError(f"an entry's name is a str, not of type {type(name).__name__}", hint=hint)
        kernel, limit = self._kernel(name), arguments.natural(max_steps, "max_steps", 1)
        extents = arguments.extents(grid, "grid"), arguments.extents(block, "block")
        run = _Launch(self._memory, kernel, *extents, arguments.shared_bytes(shared))
        chosen, places = arguments.checks(sanitize), run.places(ctas)
        run.profile = Profile() if profile else None
        run.dependent = dependent
        return run.run(args, places, chosen, limit, progress)


class _Launch:
    def __init__(self, memory: GlobalMemory, kernel: Kernel, grid: Dim3, block: Dim3, shared: int) -> None:
        self._memory = memory
        self._kernel = kernel
        self._program = kernel.program
        self._grid = grid
        self._block = block
        self._shared = shared
        self._findings = Findings()
        self._global_race: GlobalRaceCheck | None = None
        self._read_only: dict[Region, Instruction] = {}
        self._statistics = Statistics()
        self.profile: Profile | None = None
        self.dependent: bool | None = None
        arguments.block_of(block, self._program.limits)
        if math.prod(self._program.limits.get("reqnctapercluster", ())) > 1:
            raise UnsupportedError("the CPU device does not execute clusters of several CTAs")

    def places(self, ctas: Iterable[int | Sequence[int]] | None) -> list[Dim3]:
        """The CTAs to execute, in the order of their linear ids."""
        if ctas is not None:
            return arguments.coordinates(ctas, self._grid)
        gx, gy, gz = self._grid
        return [(x, y, z) for z in range(gz) for y in range(gy) for x in range(gx)]

    def run(
        self,
        args: Sequence[Argument],
        places: list[Dim3],
        checks: frozenset[str],
        max_steps: int,
        progress: Progress | None,
    ) -> LaunchResult:
        regions, parameters = self._bind(args)
        if "race" in checks:
            dependent = self._waits_for_grid() if self.dependent is None else self.dependent
            self._global_race = GlobalRaceCheck(self._program, dependent)
        size = self._batch_size()
        completed = True
        try:
            with np.errstate(all="ignore"):
                for start in range(0, len(places), size):
                    batch = places[start : start + size]
                    tick = self._ticker(start, len(batch), len(places), progress) if progress is not None else None
                    self._run_batch(batch, parameters, checks, max_steps, tick)
                    if progress is not None:
                        progress(start + len(batch), len(places))
        except Stop:
            completed = False
        finally:
            self._forget(regions)
            self._memory.tensor_maps.clear()
        return LaunchResult(self._findings.list(), self._statistics, completed, self.profile)

    def _waits_for_grid(self) -> bool:
        waits = (item for item in self._program.instructions if item.opcode == "griddepcontrol")
        return any("wait" in item.modifiers for item in waits)

    def _ticker(self, start: int, ctas: int, total: int, progress: Progress) -> Callable[[int], None]:
        """Reports how far a batch is: a batch takes as many instructions as those before it, so the first says 0."""
        batches, issued_before = self._statistics.batches, self._statistics.issued
        expected = issued_before / batches if batches else math.inf

        def tick(issued: int) -> None:
            progress(start + ctas * min(issued / expected, 1.0), total)

        return tick

    def _bind(self, args: Sequence[Argument]) -> tuple[list[Region], Region]:
        """The regions that exist for this launch only, and the parameter bank."""
        declared = self._program.parameters
        given = list(zip(declared, arguments.counted(args, declared), strict=True))
        data = np.zeros(max((p.offset + p.size for p in declared), default=0), np.uint8)
        fresh: list[Region] = []
        try:
            for parameter, value in given:
                raw = arguments.encoded(parameter, self._address(parameter, value, fresh))
                data[parameter.offset : parameter.offset + len(raw)] = np.frombuffer(raw, np.uint8)
        except UsageError:
            self._forget(fresh)
            raise
        return fresh, Region("parameters", "param", 0, data, False)

    def _address(self, parameter: Parameter, value: Argument, fresh: list[Region]) -> Argument:
        """An argument, or the address of the array that it is; a region made for it is added to ``fresh``."""
        if isinstance(value, TensorMap):
            return self._encode_map(value, parameter, fresh)
        if not arguments.is_memory(parameter, value):
            return value
        assert isinstance(value, np.ndarray)
        return self._bind_array(value, parameter.name, fresh).start

    def _bind_array(self, array: Array, name: str, fresh: list[Region]) -> Region:
        before = self._memory.count
        region = self._memory.bind(array, name)
        if self._memory.count > before:
            fresh.append(region)
        elif region not in fresh:
            region.name = name  # its address was asked for under some other name
        return region

    def _encode_map(self, value: TensorMap, parameter: Parameter, fresh: list[Region]) -> Argument:
        """The bytes of a tensor map, or for a pointer parameter where in global memory they are."""
        maps = self._memory.tensor_maps
        number = len(maps)
        maps[number] = BoundMap(value, self._bind_array(value.buffer, f"the tensor of {parameter.name}", fresh))
        if parameter.array:
            return encode(number)
        region = self._memory.add(parameter.name, "global", np.frombuffer(encode(number), np.uint8), False)
        fresh.append(region)
        return region.start

    def _forget(self, regions: list[Region]) -> None:
        for region in regions:
            self._memory.remove(region)

    def _batch_size(self) -> int:
        slots = padded(self._block)
        registers = sum(register.type.size for register in self._program.registers)
        per_cta = slots * (registers + self._local_stride) + self._shared_stride
        return max(1, min(BATCH_THREADS // slots, BATCH_BYTES // max(per_cta, 1)))

    @property
    def _local_stride(self) -> int:
        ends = [extent.end for extent in self._program.local]
        return -(-max(ends, default=0) // 16) * 16

    @property
    def _shared_stride(self) -> int:
        return -(-(self._program.dynamic_shared + self._shared) // 1024) * 1024

    def _run_batch(
        self,
        ctas: list[Dim3],
        parameters: Region,
        checks: frozenset[str],
        max_steps: int,
        tick: Callable[[int], None] | None,
    ) -> None:
        where = geometry(ctas, self._block, self._grid)
        base = self._program.dynamic_shared
        extents = list(self._program.shared)
        if self._shared or not extents:
            extents.append(Extent("dynamic shared memory", base, base + self._shared))
        m = Machine(
            program=self._program,
            geometry=where,
            memory=self._memory,
            parameters=parameters,
            shared=Region("shared", "shared", 0, np.zeros(self._shared_stride * len(ctas), np.uint8)),
            shared_stride=self._shared_stride,
            shared_extents=extents,
            local=Region("local", "local", 0, np.zeros(self._local_stride * where.threads, np.uint8)),
            local_stride=self._local_stride,
            dynamic_shared=self._shared,
            findings=self._findings,
            copies=CopyQueue(where.threads),
            mbarriers=Mbarriers(len(ctas)),
            products=WarpgroupQueue(where.threads, registers_of_products(self._program)),
            checks=Checks(sync="sync" in checks, memory="memory" in checks, global_race=self._global_race),
            profile=self.profile,
        )
        if "init" in checks:
            m.checks.init = InitCheck(m.shared.data.size, m.threads)
        if self._global_race is not None:
            order = m.checks.order = Order(m)
            m.checks.race = SharedRaceCheck(m, order)
            self._global_race.begin(order)
            if uses_async_proxy(m.program):
                m.checks.proxy = ProxyCheck(m.shared.data.size, m.threads, len(ctas))
        scheduler = Scheduler(self._kernel, m, max_steps, tick)
        try:
            scheduler.run()
        finally:
            self._count(m, scheduler)
            self._check_read_only(m)

    def _check_read_only(self, m: Machine) -> None:
        """A buffer that ``ld.global.nc`` reads must not be written while the kernel runs (PTX ISA 9.7.10.9)."""
        self._read_only.update(m.read_only)
        for region, (instruction, slot) in m.written.items():
            reader = self._read_only.get(region)
            if reader is not None:
                message = f"writes {region.name}, which {reader.spelling} in line {reader.line} reads as read-only"
                m.report("memory", "read-only", message, np.array([slot]), instruction=instruction)

    def _count(self, m: Machine, scheduler: Scheduler) -> None:
        total = self._statistics
        total.batches += 1
        total.ctas += len(m.geometry.ctas)
        total.threads += int(m.geometry.exists.sum())
        total.issued += m.issued
        for block, threads in zip(self._kernel.blocks, scheduler.threads_executed, strict=True):
            if not threads:
                continue
            total.instructions += block.length * threads
            for instruction, _ in block.actions:
                total.opcodes[instruction.spelling] = total.opcodes.get(instruction.spelling, 0) + threads
