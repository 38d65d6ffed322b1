"""Emmy's own answers: its CUDA text of a graph's kernels, compiled by nvcc, and its NumPy evaluation of a program."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ptxc.errors import InputError, ToolchainError, UnsupportedError
from ptxc.frontend.emmys import emmys_failures, emmys_target
from ptxc.frontend.jsonfile import distinct_members
from ptxc.frontend.reader import read_wire
from ptxc.launch import Launch, LaunchParameter, RuntimeInteger
from ptxc.recursion import with_room
from ptxc.reference.buffers import Array, Problem, decoded
from ptxc.reference.steps import Step, in_order
from ptxc.toolchain import find_tool, run_timed, working_folder

if TYPE_CHECKING:
    from emmy.compiler.graph import Graph
    from emmy.compiler.ir.base import ConstantOp
    from emmy.compiler.ir.cuda.ir import CudaOp

    from ptxc.compilation import Options

#: Seconds that nvcc may take for a kernel.
TIME_LIMIT = 300.0

#: The target that stands in for one that CUDA 13's nvcc does not know any more.
NVCC_TARGETS = {"sm_70": "sm_75", "sm_72": "sm_75"}


# ---------------------------------------------------------------------------------------- its CUDA text, by nvcc


@dataclass(frozen=True, slots=True)
class CudaKernel:
    """A kernel as Emmy renders it: CUDA text, and how Emmy's launcher would launch it."""

    step: Step
    source: str
    #: Whether the text needs a target's own features (sm_90a).
    specific: bool


@dataclass(frozen=True, slots=True)
class CudaText:
    """A kernel as Emmy renders it, as far as it can be told without the sizes known at run time."""

    entry: str
    source: str
    specific: bool
    #: Threads of a CTA, and bytes of dynamic shared memory, as Emmy's launcher has them.
    threads: int
    dynamic_shared: int


def cuda_texts(graph: Graph, target: str) -> list[CudaText]:
    """Emmy's CUDA text of each kernel of a graph. Raises UnsupportedError where its lowering fails."""
    from emmy.compiler.ir.cuda.ir import resolve_dim

    ops = _cuda_ops(graph, target)
    with emmys_failures("CUDA lowering"):
        return [
            CudaText(
                op.kernel_name,
                op.kernel_source,
                _is_specific(op),
                math.prod(int(resolve_dim(extent, {})) for extent in op.block),
                _dynamic_shared(op),
            )
            for op in ops
        ]


def cuda_kernels(graph: Graph, target: str, problem: Problem) -> list[CudaKernel]:
    """The kernels of a graph by way of Emmy's CUDA lowering. Raises UnsupportedError where that fails."""
    ops = _cuda_ops(graph, target)
    with emmys_failures("CUDA lowering"):
        found = [CudaKernel(_step(op, problem), op.kernel_source, _is_specific(op)) for op in ops]
    order = in_order([kernel.step for kernel in found])
    return sorted(found, key=lambda kernel: order.index(kernel.step))


def _cuda_ops(graph: Graph, target: str) -> list[CudaOp]:
    """What Emmy's lowering makes of a graph. Raises UnsupportedError also where ``use_ptxc`` has it make PTX."""
    from emmy.compiler.ir.cuda.ir import CudaOp
    from emmy.compiler.ir.kernel import render
    from emmy.compiler.pipeline import Pipeline

    if render.render_kernelop.__module__ != render.__name__:
        raise UnsupportedError("there is no CUDA text of Emmy's inside use_ptxc", hint="ask for it outside")
    with emmys_failures("CUDA lowering"), emmys_target(target):
        lowered = with_room(lambda: Pipeline.build(["lowering/cuda"]).run(graph))
        return [node.op for node in lowered.nodes.values() if isinstance(node.op, CudaOp)]


def _is_specific(op: CudaOp) -> bool:
    from emmy.compiler.backend.plan import KernelSpec

    return bool(KernelSpec.from_op(op).arch_specific)


def _dynamic_shared(op: CudaOp) -> int:
    return op.smem_bytes if "extern __shared__" in op.kernel_source else 0


def _step(op: CudaOp, problem: Problem) -> Step:
    """How Emmy launches a kernel; extents are numbers already."""
    from emmy.compiler.ir.cuda.ir import resolve_dim

    parameters = []
    maps = [problem.maps[item.name] for item in op.tma_descriptors]
    indirect = {given: (table, selector, f"{given}__slot") for given, table, selector, _ in op.indirect_args}
    names = [name for given in op.arg_order for name in indirect.get(given, (given,))]
    for name in names:
        if name in problem.maps:
            parameters.append(LaunchParameter(name, "tensor_map", "u64"))
            continue
        if name in problem.placed:
            parameters.append(problem.placed[name])
            continue
        buffer = problem.buffers.get(name)
        if buffer is None:
            raise UnsupportedError(f"Emmy's kernel has a parameter {name!r} that is no buffer", kernel=op.kernel_name)
        role = "zero" if name in op.zero_prologues else "output" if buffer.written else "input"
        parameters.append(LaunchParameter(name, role, "u64", buffer.dtype, buffer.shape))
    serial = dict(op.serial)
    parameters += [LaunchParameter(name, "runtime", "u32") for name in op.runtime_args]
    grid = [int(resolve_dim(extent, problem.integers)) for extent in op.grid]
    block = [int(resolve_dim(extent, problem.integers)) for extent in op.block]
    launch = Launch(
        grid=(grid[0], grid[1], grid[2]),
        block=(block[0], block[1], block[2]),
        dynamic_shared=_dynamic_shared(op),
        static_shared=0,
        parameters=tuple(parameters),
        runtime=tuple(RuntimeInteger(name, (), serial.get(name, 0)) for name in op.runtime_args),
        zero=tuple(op.zero_outputs),
        tensor_maps=tuple(maps),
    )
    return Step(op.kernel_name, launch)


def nvcc_ptx(kernel: CudaKernel, target: str, options: Sequence[str] = ()) -> str:
    """nvcc's PTX of a kernel. Raises ToolchainError where there is no nvcc, or it refuses the text."""
    try:
        return compile_cuda(kernel.source, suffixed(target, kernel.specific), options)[0]
    except ToolchainError as error:
        error.at(kernel=kernel.step.entry)
        raise


def nvcc_options(options: Options) -> list[str]:
    """What nvcc is told so that its arithmetic is that of ptxc's ``options``."""
    told = ["-use_fast_math"] if options.math == "fast" else []
    return told if options.fma else [*told, "--fmad=false"]


def suffixed(target: str, specific: bool) -> str:
    """The target that nvcc is to compile for: with its own features where the text needs them."""
    return f"{target}a" if specific and not target.endswith("a") else target


def compile_cuda(source: str, arch: str, options: Sequence[str] = ()) -> tuple[str, float]:
    """nvcc's PTX of a CUDA text, and the CPU seconds that it took, its children's too. Raises ToolchainError."""
    ptx, seconds = _nvcc(source, arch, "ptx", options)
    return ptx.decode(), seconds


def assemble_cuda(source: str, arch: str, options: Sequence[str] = ()) -> tuple[bytes, float]:
    """As `compile_cuda`, the whole way to machine code, which is Emmy's own: ``nvcc --cubin``."""
    return _nvcc(source, arch, "cubin", options)


def _nvcc(source: str, arch: str, form: str, options: Sequence[str]) -> tuple[bytes, float]:
    nvcc = find_tool("nvcc")
    with working_folder() as folder:
        file = folder / "kernel.cu"
        file.write_text(source, encoding="utf-8")
        output = file.with_suffix(f".{form}")
        command = [str(nvcc), f"--{form}", f"-arch={arch}", *options, "-o", str(output), str(file)]
        status, said, seconds = run_timed(command, TIME_LIMIT)
        if status or not output.exists():
            said = said.strip().replace(str(file), "kernel.cu")
            raise ToolchainError(f"nvcc refuses Emmy's CUDA text for {arch}: {said[:500] or 'it said nothing'}")
        return output.read_bytes(), seconds


# ----------------------------------------------------------------------------------------- a program, by NumPy


def evaluate_program(text: str | bytes, problem: Problem) -> dict[str, Array]:
    """What a program in Emmy's wire form computes, in float64, by each operation's own NumPy form.

    Every buffer that an operation writes is in it. Raises InputError for what is no program or has inputs that the
    kernels do not have.
    """
    try:
        value = json.loads(text, object_pairs_hook=distinct_members)
    except (ValueError, RecursionError) as error:
        hint = "give the wire form of the frontend program, Graph.to_wire()"
        raise InputError(f"this is no program of Emmy's: {error}", hint=hint) from error
    return _evaluated(value, problem)


def evaluate_graph(graph: Graph, problem: Problem) -> dict[str, Array]:
    """The same of a program that is a graph (:func:`is_program`)."""
    return _evaluated(graph.to_wire(), problem)


def is_program(graph: Graph) -> bool:
    """Whether all operations of a graph have a NumPy form: those of Emmy's frontend and tensor stages."""
    return all(node.op.dialect is None for node in graph.nodes.values())


def _evaluated(wire: Any, problem: Problem) -> dict[str, Array]:
    graph = read_wire(_bound(wire, problem.integers))
    try:
        with np.errstate(all="ignore"):
            return _walk(graph, problem)
    except InputError:
        raise
    except Exception as error:  # an operation's NumPy form may raise anything
        raise InputError(f"Emmy's NumPy evaluation fails: {type(error).__name__}: {error}") from error


def _bound(value: Any, integers: Mapping[str, int]) -> Any:
    """A wire form whose symbolic sizes are numbers."""
    if isinstance(value, dict):
        if "sym" in value and value["sym"] in integers:
            return integers[value["sym"]]
        return {key: _bound(item, integers) for key, item in value.items()}
    return [_bound(item, integers) for item in value] if isinstance(value, list) else value


def _walk(graph: Graph, problem: Problem) -> dict[str, Array]:
    from emmy.compiler.ir.base import ConstantOp, InputOp

    values: dict[str, Array] = {}
    for node_id in graph.topological_order():
        node = graph.nodes[node_id]
        if isinstance(node.op, InputOp) or (node_id in problem.begin and isinstance(node.op, ConstantOp)):
            values[node_id] = _input(node_id, problem)
        elif isinstance(node.op, ConstantOp):
            values[node_id] = _constant(node.op, problem)
        else:
            results = node.op.forward(*(values[name] for name in node.inputs))
            rows = results if isinstance(results, tuple) else (results,)
            for name, tensor, result in zip(node.buffer_names(), node.outputs, rows, strict=True):
                shape = tuple(_extent(extent, problem) for extent in tensor.shape)
                whole = tensor.dtype.np.kind in "iub" and tensor.dtype.name != "bf16"
                array = np.asarray(result, tensor.dtype.np if whole else np.float64)
                values[name] = array.reshape(shape) if math.prod(shape) == array.size else array
    inputs = {node_id for node_id, node in graph.nodes.items() if isinstance(node.op, InputOp | ConstantOp)}
    return {name: value for name, value in values.items() if name not in inputs}


def _constant(op: ConstantOp, problem: Problem) -> Array:
    """A scalar constant's one element."""
    value: Any = op.value
    if value is None and op.context_value is not None:
        value = op.context_value.eval(dict(problem.integers))  # type: ignore[attr-defined]  # every node has eval
    if value is None:
        raise InputError(f"the program's constant {op.name!r} has no value", hint="give it with the inputs")
    return np.asarray([value], np.float64)


def _extent(extent: Any, problem: Problem) -> int:
    return int(extent.expr.eval(dict(problem.integers)))


def _input(name: str, problem: Problem) -> Array:
    """An input in float64, or as it is where it is no float."""
    if name not in problem.begin:
        raise InputError(f"the program's input {name!r} is no input of the kernels")
    array = decoded(problem.begin[name], problem.buffers[name].dtype)
    return array.astype(np.float64) if array.dtype.kind == "f" else array
