"""The whole compilation: from a graph of Emmy's to PTX text, one step a line in :func:`compile_kernel`."""

from __future__ import annotations

import copy
import gc
import io
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from ptxc.compilation import Again, CompiledKernel, Observer, Options, Stats, make_options
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
    from ptxc.passes.pipeline import Clock
    from ptxc.plan import Plan


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
    return _kernels_of_source(source, options, observe).compile_all(observe)


def compile_module(source: Any, *, observe: Observer | None = None, **options: Any) -> CompiledModule:
    """Compile every kernel of a graph into one PTX module. Arguments and errors are those of :func:`compile`."""
    from ptxc.plan import plan_of

    given = _kernels_of_source(source, options, observe)
    kernels = given.compile_all(observe)
    ptx = link(kernels)
    return CompiledModule(ptx, tuple(kernels), plan_of(given.graph, kernels) if ptx else None)


def _kernels_of_source(source: Any, options: Mapping[str, Any], observe: Observer | None) -> Kernels:
    chosen = make_options(options)
    return Kernels(source, chosen if observe is None else replace(chosen, cache=False))


class Kernels:
    """The kernels of a source. It is read when that is needed, once: not for what the store has of a file."""

    def __init__(self, source: Any, options: Options) -> None:
        """``source`` is what :func:`compile` takes. Of ``options``, those count here that say how a graph becomes
        kernels, and whether anything is kept."""
        self.options = options
        self._source = source

    @property
    def names(self) -> list[str]:
        """The kernels' names. Raises CompileError for a source that cannot be read, or that gives no kernels."""
        return [name for name, _ in self._known]

    def key(self, number: int, options: Options) -> str | None:
        """The digest of the kernel of this number and of all options that decide its text; None for one that has none.

        Raises CompileError.
        """
        from ptxc.store.content import content_key
        from ptxc.store.kernels import key_of

        content = self._known[number][1] or content_key(self._nodes[number], self.graph)
        return None if content is None else key_of(content, options)

    def compile(self, number: int, options: Options, observe: Observer | None = None) -> CompiledKernel:
        """Compile the kernel of this number. Raises CompileError."""
        from ptxc.store.kernels import kept

        content = self._known[number][1]
        if content is None or not options.is_kept(observe):
            return compile_kernel(self._nodes[number], self.graph, options, observe)
        return kept(content, options, partial(self._make, number))

    def _make(self, number: int, options: Options, *, with_ir: bool = False) -> CompiledKernel:
        """Compile the kernel of this number, whatever is kept: only now a file is read."""
        return _compile(self._nodes[number], self.graph, options, with_ir=with_ir)

    def compile_all(self, observe: Observer | None = None) -> list[CompiledKernel]:
        """Compile every kernel. Raises CompileError."""
        return [self.compile(number, self.options, observe) for number in range(len(self.names))]

    @property
    def program(self) -> Graph | None:
        """Emmy's graph as it was given; None where it is the one that a golden file records. Raises CompileError."""
        return None if self._source is None and self.options.golden else self._program

    @cached_property
    def graph(self) -> Graph:
        """Their Kernel IR, by Emmy's passes where the graph is of an earlier stage. Raises CompileError."""
        return kernels_of(self.program, self.options)

    @cached_property
    def _program(self) -> Graph:
        if self._bytes is None:
            return graph_of(self._source)
        with self._named():
            return graph_of(io.BytesIO(self._bytes))

    @cached_property
    def _bytes(self) -> bytes | None:
        """A file's bytes, packed or not as they are."""
        from ptxc.frontend.jsonfile import read_bytes

        is_path = isinstance(self._source, str | os.PathLike)
        if not (os.path.isfile(self._source) if is_path else hasattr(self._source, "read")):
            return None  # a graph, standard input, or nothing that is a source
        with self._named():
            return read_bytes(self._source)

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Complete errors with the file's name."""
        from ptxc.frontend.jsonfile import file_name

        try:
            yield
        except CompileError as error:
            error.at(file=file_name(self._source))
            raise

    @cached_property
    def _known(self) -> list[tuple[str, str | None]]:
        """Each kernel's name, and the digest of its content where the store knows the file."""
        from ptxc.frontend.jsonfile import file_name
        from ptxc.store.kernels import contents

        if self.options.is_kept() and not self.options.has_schedule and self._bytes is not None:
            name = os.path.basename(file_name(self._source))
            found = contents(self._bytes, lambda: self._program, name)
            if found:  # else it is of a stage before
                return found
        return [(node.name, None) for node in self._nodes]

    @cached_property
    def _nodes(self) -> list[KernelNode]:
        from ptxc.frontend.reader import kernel_nodes

        return kernel_nodes(self.graph)


_HINT_APART = "compile them to a file each: --split, or in Python ptxc.compile"


def link(kernels: Sequence[CompiledKernel]) -> str:
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
    return join_modules([kernel.ptx for kernel in kernels], parse_target(common_target(kernels)), version)


def common_target(kernels: Sequence[CompiledKernel]) -> str:
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
    from ptxc.store.kernels import content_of, kept

    chosen = options or Options()
    if not chosen.is_kept(observe):
        return _compile(node, graph, chosen, observe)
    return kept(content_of(node, graph), chosen, partial(_compile, node, graph))


def _compile(
    node: KernelNode, graph: Graph, options: Options, observe: Observer | None = None, *, with_ir: bool = False
) -> CompiledKernel:
    """Compile one kernel, whatever is kept."""
    with _faults_named("the frontend", node.op.name or node.node_id):
        op = _with_buffers(node, graph)
        hints, constants = graph.hints.to_dict(), _constants(graph)
    return compile_op(op, node.node_id, hints, constants, options, observe, with_ir=with_ir)


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
    from ptxc.frontend.launches import launch_of
    from ptxc.frontend.lower import lower
    from ptxc.frontend.math import Arithmetic
    from ptxc.frontend.signature import check_shared, signature_of, with_runtime
    from ptxc.passes.pipeline import BUILD, Clock
    from ptxc.passes.pressure import loads_in_time

    target = parse_target(options.target)
    arithmetic = Arithmetic(fast=options.math == "fast", fma=options.fma, sm=target.sm)

    def build() -> tuple[Kernel, Launch]:
        signature = signature_of(op, node_id, hints, constants)
        if runtime is not None:
            signature = with_runtime(signature, runtime)
        check_shared(signature, target)
        kernel = lower(op, signature, target.name, arithmetic)
        kernel.target = suited_target(kernel, target).name
        if signature.pool and not kernel.ctas and not loads_in_time(kernel):
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
        return replace(compiled, ir=Again(again))


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
        registers={bank.name: count for bank, count in kernel.registers.items()},
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
