"""The whole compilation: from a graph of Emmy's to PTX text, one step a line in :func:`compile_kernel`."""

from __future__ import annotations

import copy
import gc
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from ptxc.errors import CompileError, InputError, InternalError, UsageError
from ptxc.ir.kernel import Kernel
from ptxc.launch import Launch
from ptxc.recursion import with_room
from ptxc.target import PtxVersion, Target, parse_target

if TYPE_CHECKING:
    from emmy.compiler.graph import Graph
    from emmy.compiler.ir.base import ConstantOp
    from emmy.compiler.ir.kernel.ir import KernelOp

    from ptxc.frontend.reader import KernelNode
    from ptxc.passes.pipeline import Clock, PassTime
    from ptxc.plan import Plan


#: Called with the rank and name of a pass, and the kernel after it.
Observer = Callable[[int, str, Kernel], None]


#: How options are given, for errors.
_EXAMPLES = {
    "target": "target='sm_90'", "ptx_version": "ptx_version='8.0'", "stop_after": "stop_after='cse'",
    "golden": "golden='golden.json'", "realization": "realization='matmul.square.512'",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Options:
    """What a compilation may be told. The command line's options of the same names."""

    target: str = "sm_89"
    #: ``"8.0"``; empty for the lowest that has what the kernel uses.
    ptx_version: str = ""
    #: ``precise``: CUDA's default arithmetic. ``fast``: ``nvcc --use_fast_math``.
    math: str = "precise"
    #: Whether multiplications and additions may be fused.
    fma: bool = True
    #: The optimisation level: 0 only has the passes that a kernel needs, 1 those that make it smaller too, 2 all.
    opt: int = 2
    #: Passes to leave out.
    disable: tuple[str, ...] = ()
    #: The pass after which to stop; then there is no PTX text.
    stop_after: str = ""
    #: Check the IR after each pass.
    verify_each: bool = False
    #: For a graph that is not Kernel IR yet: Emmy's knobs by name, which decide its schedule.
    pins: Mapping[str, str] = field(default_factory=dict)
    #: And a golden file of Emmy's, with the row in it whose recorded schedule to take.
    golden: str = ""
    realization: str = ""
    #: And whether its operations are lowered one by one, each to a kernel, where Emmy would fuse what it can.
    separate: bool = False
    #: Measure each step's CPU time. Reading that clock takes microseconds, which add up in a small kernel.
    time_passes: bool = False
    #: Keep the result, and take one that is kept (docs/cache.md). What watches the compilation never is.
    cache: bool = True

    def __post_init__(self) -> None:
        if self.math not in ("precise", "fast"):
            raise UsageError(f"there is no math mode {self.math!r}", hint="it is 'precise' or 'fast'")
        for name in ("target", "ptx_version", "stop_after", "golden", "realization"):
            value = getattr(self, name)
            if not isinstance(value, str):
                raise UsageError(f"{name} is a str, not {value!r}", hint=f"as in {_EXAMPLES[name]}")
        if self.opt not in (0, 1, 2):
            raise UsageError(f"there is no optimisation level {self.opt!r}", hint="it is 0, 1 or 2")
        if not isinstance(self.pins, Mapping) or not all(isinstance(text, str) for text in self.pins):
            raise UsageError(f"pins is a mapping of names, not {self.pins!r}", hint="as in pins={'TILE': 'n16/u2x4'}")
        names = self.disable
        if isinstance(names, str) or not isinstance(names, Collection) or not all(isinstance(n, str) for n in names):
            raise UsageError(f"disable is a tuple of passes' names, not {names!r}", hint="as in disable=('cse',)")

    @property
    def has_schedule(self) -> bool:
        """Whether something is said of how a graph becomes kernels."""
        return bool(self.pins or self.golden or self.realization or self.separate)

    def is_watched(self, observe: Observer | None = None) -> bool:
        """Whether someone watches how the result is made, or times that, or wants no text but IR."""
        return observe is not None or self.verify_each or self.time_passes or bool(self.stop_after)

    def is_kept(self, observe: Observer | None = None) -> bool:
        """Whether the result may come from the store."""
        return self.cache and not self.is_watched(observe)


@dataclass(frozen=True, slots=True)
class Stats:
    """What is known of a compilation."""

    #: The steps' CPU times; empty unless :attr:`Options.time_passes` is set.
    passes: tuple[PassTime, ...]
    lines: int
    #: Registers of each bank, and how many are live at once at most.
    registers: dict[str, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class CompiledKernel:
    """One compiled kernel. ``ptx`` is a whole module; empty where the pipeline was stopped before the end."""

    name: str
    ptx: str
    launch: Launch | None
    stats: Stats
    #: The kernel's IR where its compilation was watched, else what compiles it once more: see :attr:`kernel`.
    ir: Kernel | Callable[[], CompiledKernel] = field(repr=False, compare=False)
    version: PtxVersion
    #: What the text's ``.target`` says: the target asked for, with its suffix where the kernel needs that.
    target: str

    @property
    def kernel(self) -> Kernel:
        """The IR after the last pass. Few ask for it, so it is not kept but made now."""
        return self.ir if isinstance(self.ir, Kernel) else self.ir().kernel


@dataclass(frozen=True, slots=True)
class CompiledModule:
    """All kernels of a graph in one PTX text, and how to launch them; ``plan`` is None where there is no text."""

    ptx: str
    kernels: tuple[CompiledKernel, ...]
    plan: Plan | None = None


def compile(source: Any, *, observe: Observer | None = None, **options: Any) -> list[CompiledKernel]:
    """Compile every kernel of a graph, each to a PTX module of its own.

    ``source`` is Emmy's ``Graph``, a path (``-`` is standard input), an open binary file or the mapping that JSON
    gave, of any of Emmy's stages before CUDA: what is not Kernel IR goes through Emmy's passes first. None stands for
    the graph of the options ``golden`` and ``realization``. ``options`` are the fields of :class:`Options`.
    ``observe(rank, name, kernel)`` sees each kernel after each pass. Raises CompileError (:mod:`ptxc.errors`) for what
    cannot be compiled.
    """
    from ptxc.frontend.reader import kernel_nodes
    from ptxc.store.kernels import KernelFile

    chosen = make_options(options)
    is_file = isinstance(source, str | os.PathLike) and os.path.isfile(source)
    if is_file and chosen.is_kept(observe) and not chosen.has_schedule:
        file = KernelFile(source, chosen.cache)
        if file.kernels:  # else it is of a stage before
            return [file.compile(index, chosen) for index in range(len(file.kernels))]
    graph = _kernels_of_source(source, chosen)
    return [compile_kernel(node, graph, chosen, observe) for node in kernel_nodes(graph)]


def compile_module(source: Any, *, observe: Observer | None = None, **options: Any) -> CompiledModule:
    """Compile every kernel of a graph into one PTX module. Arguments and errors are those of :func:`compile`."""
    from ptxc.frontend.reader import kernel_nodes
    from ptxc.plan import plan_of

    chosen = make_options(options)
    graph = _kernels_of_source(source, chosen)
    kernels = [compile_kernel(node, graph, chosen, observe) for node in kernel_nodes(graph)]
    ptx = link(kernels, chosen)
    return CompiledModule(ptx, tuple(kernels), plan_of(graph, kernels) if ptx else None)


_HINT_APART = "compile them to a file each: --split, or in Python ptxc.compile"


def link(kernels: Sequence[CompiledKernel], options: Options) -> str:
    """One PTX text with all kernels' entries, in the newest version that one of them needs.

    Raises UsageError for two kernels of one name.
    """
    from ptxc.codegen.ptx import join_modules

    names = [kernel.name for kernel in kernels]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"two kernels are called {name!r}", hint=_HINT_APART)
    if any(not kernel.ptx for kernel in kernels):
        return ""
    version = max(kernel.version for kernel in kernels)
    return join_modules([kernel.ptx for kernel in kernels], parse_target(target_of(kernels)), version)


def target_of(kernels: Sequence[CompiledKernel]) -> str:
    """The target of a module with all these kernels: one that needs its architecture's own features decides for all.

    Raises UsageError for kernels that are made for different GPUs.
    """
    targets = sorted({kernel.target for kernel in kernels}, key=lambda name: (len(name), name))
    if len({parse_target(name).sm for name in targets}) > 1:
        raise UsageError(f"the kernels are made for {' and '.join(targets)}", hint="--split makes a file of each")
    return targets[-1]


def graph_of(source: Any) -> Graph:
    """Emmy's graph for what the API takes as one. Raises InputError or UnsupportedError."""
    from emmy.compiler.graph import Graph

    from ptxc.frontend.reader import read_graph

    if isinstance(source, Graph):
        return source
    if not isinstance(source, str | os.PathLike | Mapping) and not hasattr(source, "read"):
        hint = "give Emmy's Graph, a path, an open binary file or the mapping that JSON gave"
        raise InputError(f"the source of a kernel cannot be of type {type(source).__name__}", hint=hint)
    if isinstance(source, str) and re.match(r'\s*\{\s*"', source) and not os.path.exists(source):
        raise InputError("the source is JSON text, where a path is expected", hint="give json.loads of the text")
    return read_graph(source)


def _kernels_of_source(source: Any, options: Options) -> Graph:
    return kernels_of(None if source is None and options.golden else graph_of(source), options)


def kernels_of(graph: Graph | None, options: Options) -> Graph:
    """The Kernel IR of a graph of any stage, by Emmy's passes where it is of an earlier one; see
    :func:`ptxc.frontend.stages.kernel_graph` for the errors."""
    from ptxc.frontend.stages import Schedule, kernel_graph

    schedule = Schedule(options.pins, options.math == "fast", options.golden, options.realization, options.separate)
    return kernel_graph(graph, schedule, options.target)


def compile_kernel(
    node: KernelNode, graph: Graph, options: Options | None = None, observe: Observer | None = None
) -> CompiledKernel:
    """Compile one kernel. Raises CompileError with the kernel's name, and the statement where one is at fault."""
    from ptxc.store.kernels import compile_kept

    chosen = options or Options()
    if chosen.is_kept(observe):
        return compile_kept(node, graph, chosen, lambda: _compile(node, graph, chosen, None))
    return _compile(node, graph, chosen, observe)


def _compile(node: KernelNode, graph: Graph, options: Options, observe: Observer | None) -> CompiledKernel:
    """Compile one kernel, whatever is kept."""
    with _faults_named("the frontend", node.op.name or node.node_id):
        op = _with_buffers(node, graph)
        hints, constants = graph.hints.to_dict(), _constants(graph)
    return compile_op(op, node.node_id, hints, constants, options, observe)


def compile_op(
    op: KernelOp, node_id: str, hints: Mapping[str, Any], constants: Mapping[str, ConstantOp], options: Options,
    observe: Observer | None = None, *, runtime: tuple[str, ...] | None = None, with_ir: bool = False,
) -> CompiledKernel:  # fmt: skip
    """Compile one kernel that knows its buffers: ``op.inputs`` and ``op.outputs`` hold their tensors.

    ``hints`` are the graph's, ``constants`` its scalar constants by name; ``runtime`` is the order of the runtime
    integers where another launcher decides it. The IR stays ``with_ir``, and where the compilation is watched. Errors
    are those of :func:`compile_kernel`.
    """
    from ptxc.codegen.ptx import suited_target
    from ptxc.frontend.lower import lower
    from ptxc.frontend.math import Arithmetic
    from ptxc.frontend.signature import check_shared, launch_of, signature_of, with_runtime
    from ptxc.passes.pipeline import BUILD, Clock

    target = parse_target(options.target)
    arithmetic = Arithmetic(fast=options.math == "fast", fma=options.fma, sm=target.sm)

    def build() -> tuple[Kernel, Launch]:
        signature = signature_of(op, node_id, hints, constants)
        if runtime is not None:
            signature = with_runtime(signature, runtime)
        check_shared(signature, target)
        kernel = lower(op, signature, target.name, arithmetic)
        kernel.target = suited_target(kernel, target).name
        if signature.pool and not kernel.ctas and not _has_products(kernel):
            kernel.ctas = target.resident_ctas(signature.threads, signature.shared_bytes)
        return kernel, launch_of(signature)

    with _without_garbage_collection():
        with _faults_named("the frontend", op.name or node_id):
            clock = Clock(options.time_passes)
            kernel, launch = with_room(build)
            clock.lap(BUILD[1], kernel)
        if observe is not None:
            observe(*BUILD, kernel)
        compiled = _finish(kernel, launch, parse_target(kernel.target), options, observe, clock)
        if with_ir or options.is_watched(observe):
            return compiled
        kernel.take_apart()
        again = partial(compile_op, op, node_id, hints, constants, options, runtime=runtime, with_ir=True)
        return replace(compiled, ir=again)


def _has_products(kernel: Kernel) -> bool:
    """Whether tensor cores multiply. The assembler gives such kernels the registers that they need by itself, and with
    a number of CTAs in front of it spills to keep to that, or takes all registers that it leaves."""
    from ptxc.ir.opcodes import PRODUCTS

    return not PRODUCTS.isdisjoint([instr.op for block in kernel.blocks for instr in block.instrs])


def _with_buffers(node: KernelNode, graph: Graph) -> KernelOp:
    """The kernel with the buffers of its node in the graph.

    The KernelOp of a graph made in Python may have nothing but their names yet, and calls whatever its body names a
    buffer. Raises InputError where the graph does not say what an input is.
    """
    edges = graph.nodes[node.node_id]
    inputs = {name: graph.buffer(name) for name in edges.inputs}
    for name, tensor in inputs.items():
        if tensor is None:
            raise InputError(f"no node of the graph writes the input {name!r}", hint="add the node that does")
    op = copy.copy(node.op)
    object.__setattr__(op, "inputs", inputs)
    object.__setattr__(op, "outputs", dict(zip(edges.buffer_names(), edges.outputs)))
    return op


@contextmanager
def _faults_named(step: str, kernel: str) -> Iterator[None]:
    """Complete errors with the kernel's name, and make an InternalError of anything else that ``step`` raises."""
    try:
        yield
    except CompileError as error:
        error.at(kernel=kernel)
        raise
    except Exception as fault:
        raise InternalError(f"{step} failed: {type(fault).__name__}: {fault}", kernel=kernel) from fault


@contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """No collections while a kernel is compiled: nearly all that it allocates lives until its end, so they would
    walk all of it, and of Emmy's IR, several times to find nothing (a fifth of the time)."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _constants(graph: Graph) -> dict[str, ConstantOp]:
    """The graph's constants, by the name of their buffer."""
    from emmy.compiler.ir.base import ConstantOp

    return {name: node.op for name, node in graph.nodes.items() if isinstance(node.op, ConstantOp)}


def compile_ir(
    text: str, *, name: str = "", start_at: str = "", observe: Observer | None = None, **options: Any
) -> CompiledKernel:
    """Compile a kernel in the IR's text form, from pass ``start_at`` on (all passes by default).

    ``name`` is the file it came from, for errors. The target that the text names counts. Raises InputError for text
    that is not a kernel, that the verifier refuses or that is past SSA form where ``start_at`` needs it, or not there.
    """
    from ptxc.codegen.ptx import suited_target
    from ptxc.ir.text import parse_kernel
    from ptxc.ir.verify import check
    from ptxc.passes.pipeline import BUILD, Clock

    chosen = make_options(options)
    try:
        clock = Clock(chosen.time_passes)
        kernel = parse_kernel(text, name)
        clock.lap(BUILD[1], kernel)
        target = parse_target(kernel.target)
        check(kernel, error=InputError)
        target = suited_target(kernel, target)
        kernel.target = target.name
        _check_form(kernel, start_at)
    except CompileError as error:
        error.at(file=name)
        raise
    return _finish(kernel, None, target, chosen, observe, clock, start_at)


def _check_form(kernel: Kernel, start_at: str) -> None:
    """Raise InputError unless ``kernel`` is in SSA form exactly if ``start_at`` is a pass that works on that."""
    from ptxc.passes.pipeline import PIPELINE, PRINT, check_name

    if not start_at:
        return
    check_name(start_at, PRINT)
    names = [item.name for item in PIPELINE]
    last = names.index("leave-ssa")
    if kernel.ssa and start_at not in names[: last + 1]:
        raise InputError("the IR is in SSA form", hint=f"start at {names[last]!r} or before it")
    if not kernel.ssa and start_at in names[: last + 1]:
        raise InputError("the IR has left SSA form", hint=f"start at {names[last + 1]!r}, or at {PRINT!r}")


def _finish(
    kernel: Kernel, launch: Launch | None, target: Target, options: Options, observe: Observer | None, clock: Clock,
    start_at: str = "",
) -> CompiledKernel:  # fmt: skip
    """The passes, and the text."""
    from ptxc.codegen.ptx import print_module
    from ptxc.passes.pipeline import PRINT, Runner

    runner = Runner(
        opt=options.opt,
        disabled=options.disable,
        stop_after=options.stop_after,
        start_at=start_at,
        verify=options.verify_each,
        observe=observe,
        clock=clock,
    )
    with _faults_named("a pass", kernel.name):
        runner.run(kernel)
    with _faults_named("printing PTX", kernel.name):
        version = _version(kernel, target, options)
        ptx = "" if kernel.ssa else print_module([kernel], target, version)
        clock.lap(PRINT, kernel)
    stats = Stats(
        passes=tuple(clock.laps),
        lines=ptx.count("\n"),
        registers={bank.name: counts for bank, counts in kernel.registers.items()},
    )
    return CompiledKernel(kernel.name, ptx, launch, stats, kernel, version, kernel.target)


def _version(kernel: Kernel, target: Target, options: Options) -> PtxVersion:
    """The PTX version to write: the one asked for, or the lowest that will do."""
    from ptxc.codegen.ptx import needed_version

    needed = needed_version([kernel], target)
    version = PtxVersion.parse(options.ptx_version) if options.ptx_version else needed
    if version < needed:
        raise UsageError(
            f"the kernel needs PTX {needed}, not {version}", hint=f"leave out --ptx-version, or give {needed} or newer"
        )
    return version


def make_options(options: Mapping[str, Any]) -> Options:
    """The options of these names. Raises UsageError for one that there is not."""
    try:
        return Options(**options)
    except TypeError:
        unknown = sorted(set(options) - set(Options.__dataclass_fields__))
        raise UsageError(
            f"there is no option {unknown[0]!r}", hint=f"options are {', '.join(Options.__dataclass_fields__)}"
        ) from None
