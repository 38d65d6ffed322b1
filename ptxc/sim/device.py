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
from ptxc.sim import syntax as ast
from ptxc.sim.asynchronous import CopyQueue
from ptxc.sim.findings import CHECKS, Finding, Findings
from ptxc.sim.geometry import Dim3, geometry, padded
from ptxc.sim.initialization import InitCheck
from ptxc.sim.kernel import Kernel, bind
from ptxc.sim.linker import Symbol, function_address, link
from ptxc.sim.machine import Checks, Machine, Stop
from ptxc.sim.mbarrier import Mbarriers
from ptxc.sim.memory import GlobalMemory, Region
from ptxc.sim.parser import parse
from ptxc.sim.profile import Profile
from ptxc.sim.program import Extent, Instruction, Parameter, Program
from ptxc.sim.proxy import ProxyCheck, has_async_readers
from ptxc.sim.race import GlobalRaceCheck, SharedRaceCheck
from ptxc.sim.scalar import TYPES, Array
from ptxc.sim.scheduler import Scheduler
from ptxc.sim.tensor_map import BoundMap, TensorMap, encode
from ptxc.sim.wgmma import WarpgroupQueue

Argument = Array | np.generic | int | float | bytes | TensorMap

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
        return Module(self._memory, parse(ptx))

    def address(self, array: Array) -> int:
        """The device address of ``array``, which stays its memory from now on: for tables of pointers.

        Raises UsageError if the array is not contiguous.
        """
        return self._memory.bind(array, "an array").start


class Module:
    """A loaded PTX text; its initialised variables live as long as it does."""

    def __init__(self, memory: GlobalMemory, tree: ast.Module) -> None:
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
        grid: Sequence[int],
        block: Sequence[int],
        args: Sequence[Argument],
        *,
        shared: int = 0,
        ctas: Iterable[Sequence[int]] | None = None,
        sanitize: Iterable[str] = (),
        max_steps: int = DEFAULT_MAX_STEPS,
        profile: bool = False,
        progress: Callable[[int, int], None] | None = None,
    ) -> LaunchResult:
        """Execute entry ``name`` with ``grid`` CTAs of ``block`` threads (up to three extents each).

        ``args`` come in parameter order: an array for a pointer (written in place; read-only if its ``writeable``
        flag is off), a number for a scalar, an array or bytes for a parameter declared as an array, an int for a
        pointer that is a device address, a TensorMap for a pointer or an array of 128 bytes. ``shared`` is the
        dynamic shared memory in bytes. ``ctas`` are the CTAs to
        execute, all of them by default. ``sanitize`` names checks of ``CHECKS``. ``profile`` asks for the result's
        profile. ``progress`` is called with the CTAs done and to do.

        Raises UsageError for arguments that do not fit, InputError and UnsupportedError for the text's faults.
        Faults of the kernel's execution are findings of the result.
        """
        run = _Launch(self._memory, self._kernel(name), _dim3(grid, "grid"), _dim3(block, "block"), shared)
        chosen = frozenset(sanitize)
        if not chosen <= CHECKS:
            raise UsageError(f"unknown check {min(chosen - CHECKS)!r}", hint=f"there are {', '.join(sorted(CHECKS))}")
        places = run.places(ctas)
        run.profile = Profile() if profile else None
        return run.run(list(args), places, chosen, max_steps, progress)


def _dim3(extents: Sequence[int], what: str) -> Dim3:
    full = tuple(int(n) for n in (*extents, 1, 1, 1)[:3])
    if len(extents) > 3 or any(n < 1 for n in full):
        raise UsageError(f"the {what} {tuple(extents)} is not one to three positive extents")
    return full[0], full[1], full[2]


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
        limits = self._program.limits
        limit = math.prod(limits.get("maxntid", (1024,)))
        if math.prod(block) > limit:
            raise UsageError(f"{math.prod(block)} threads are more than the {limit} that a CTA of this entry may have")
        required = limits.get("reqntid")
        if required is not None and _dim3(required, "required block") != block:
            raise UsageError(f"the entry must be launched with blocks of {required} threads, not {block}")
        if math.prod(limits.get("reqnctapercluster", ())) > 1:
            raise UnsupportedError("the CPU device does not execute clusters of several CTAs")

    def places(self, ctas: Iterable[Sequence[int]] | None) -> list[Dim3]:
        """The CTAs to execute, in the order of their linear ids."""
        gx, gy, gz = self._grid
        if ctas is None:
            return [(x, y, z) for z in range(gz) for y in range(gy) for x in range(gx)]
        chosen = [_coordinates(cta) for cta in ctas]
        for x, y, z in chosen:
            if not (0 <= x < gx and 0 <= y < gy and 0 <= z < gz):
                raise UsageError(f"CTA {(x, y, z)} is outside of the grid {self._grid}")
        return chosen

    def run(
        self,
        args: list[Argument],
        places: list[Dim3],
        checks: frozenset[str],
        max_steps: int,
        progress: Callable[[int, int], None] | None,
    ) -> LaunchResult:
        regions, parameters = self._bind(args)
        if "race" in checks:
            self._global_race = GlobalRaceCheck(self._program)
        size = self._batch_size()
        completed = True
        try:
            with np.errstate(all="ignore"):
                for start in range(0, len(places), size):
                    self._run_batch(places[start : start + size], parameters, checks, max_steps)
                    if progress is not None:
                        progress(min(start + size, len(places)), len(places))
        except Stop:
            completed = False
        finally:
            for region in regions:
                self._memory.remove(region)
            self._memory.tensor_maps.clear()
        return LaunchResult(self._findings.list(), self._statistics, completed, self.profile)

    def _bind(self, args: list[Argument]) -> tuple[list[Region], Region]:
        """The parameter bank, and the regions that exist for this launch only."""
        declared = self._program.parameters
        if len(args) != len(declared):
            raise UsageError(f"{len(args)} arguments are given, the entry has {len(declared)} parameters")
        data = np.zeros(max((p.offset + p.size for p in declared), default=0), np.uint8)
        fresh: list[Region] = []
        for parameter, value in zip(declared, args, strict=True):
            if isinstance(value, TensorMap):
                value = self._encode_map(value, parameter, fresh)
            if isinstance(value, np.ndarray) and not parameter.array:
                value = self._bind_array(value, parameter.name, fresh).start
            raw = _bytes_of(parameter, value)
            data[parameter.offset : parameter.offset + len(raw)] = np.frombuffer(raw, np.uint8)
        return fresh, Region("parameters", "param", 0, data, False)

    def _bind_array(self, array: Array, name: str, fresh: list[Region]) -> Region:
        before = self._memory.count
        region = self._memory.bind(array, name)
        if self._memory.count > before:
            fresh.append(region)
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

    def _run_batch(self, ctas: list[Dim3], parameters: Region, checks: frozenset[str], max_steps: int) -> None:
        where = geometry(ctas, self._block, self._grid)
        base = self._program.dynamic_shared
        extents = [*self._program.shared, Extent("dynamic shared memory", base, base + self._shared)]
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
            products=WarpgroupQueue(where.threads),
            checks=Checks(sync="sync" in checks, memory="memory" in checks, global_race=self._global_race),
            profile=self.profile,
        )
        if "init" in checks:
            m.checks.init = InitCheck(m.shared.data.size, m.threads)
        if "race" in checks:
            m.checks.race = SharedRaceCheck(m)
            if has_async_readers(m.program):
                m.checks.proxy = ProxyCheck(m.shared.data.size, m.threads)
        scheduler = Scheduler(self._kernel, m, max_steps)
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


def _coordinates(cta: Sequence[int]) -> Dim3:
    full = tuple(int(n) for n in (*cta, 0, 0, 0)[:3])
    return full[0], full[1], full[2]


def _bytes_of(parameter: Parameter, value: Argument) -> bytes:
    if parameter.array:
        raw = value if isinstance(value, bytes) else np.asarray(value).tobytes()
    elif isinstance(value, bytes):
        raw = value
    elif parameter.type.kind == "f":
        raw = np.array([value]).astype(parameter.type.dtype).tobytes()
    elif isinstance(value, np.floating):
        raw = value.tobytes()
    elif isinstance(value, int | np.integer):
        raw = (int(value) & (1 << 8 * parameter.size) - 1).to_bytes(parameter.size, "little")
    else:
        raise UsageError(f"{value!r} is no argument for parameter {parameter.name} of type .{parameter.type.name}")
    if len(raw) != parameter.size:
        raise UsageError(f"parameter {parameter.name} has {parameter.size} bytes, its argument {len(raw)}")
    return raw
