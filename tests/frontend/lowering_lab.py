"""Small kernels of Emmy's statements, compiled and executed: what the tests of the lowering are made with."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from emmy.compiler.dtype import get as emmy_dtype
from emmy.compiler.graph import Graph, Hints
from emmy.compiler.ir.axis import Axis
from emmy.compiler.ir.base import ConstantOp, InputOp
from emmy.compiler.ir.expr import BinaryExpr, Expr, Literal, Var
from emmy.compiler.ir.kernel.ir import KernelOp, Tile
from emmy.compiler.ir.stmt import Body
from emmy.compiler.tensor import Tensor
from numpy.typing import NDArray

import ptxc
from ptxc.driver import CompiledKernel
from ptxc.launch import Launch, LaunchParameter, evaluate
from ptxc.sim.device import CpuDevice

Array = NDArray[Any]
#: A buffer's shape (of f32), or its shape and element type.
Spec = Any

#: NumPy's types for buffers; bfloat16 is its bits.
DTYPES = {
    "f16": np.float16, "bf16": np.uint16, "f32": np.float32, "f64": np.float64, "i16": np.int16, "i32": np.int32,
    "i64": np.int64, "u8": np.uint8, "u16": np.uint16, "u32": np.uint32, "u64": np.uint64, "bool": np.bool_,
}  # fmt: skip

SANITIZERS = ("memory", "race", "init", "sync")


# ------------------------------------------------------------------------------------------------------ building


def lit(value: int | float | Expr) -> Expr:
    """A literal of the number's own type."""
    if isinstance(value, Expr):
        return value
    return Literal(value, "float" if isinstance(value, float) else "int")


def op(operator: str, left: Any, right: Any) -> BinaryExpr:
    """``left operator right``; numbers become literals."""
    return BinaryExpr(operator, lit(left), lit(right))


def var(name: str) -> Var:
    return Var(name)


def axis(name: str, extent: Any) -> Axis:
    return Axis(name, extent)


def dtype(name: str) -> Any:
    """Emmy's element type of that name."""
    return emmy_dtype(name)


def tile(axes: Mapping[str, Any], body: Iterable[Any], threads: int | None = None, **fields: Any) -> Tile:
    """A tile over ``axes`` (name: extent)."""
    coordinates = tuple(Axis(name, extent) for name, extent in axes.items())
    return Tile(axes=coordinates, body=Body(tuple(body)), block_threads=threads, **fields)


def kernel_graph(
    body: Iterable[Any] | Tile, inputs: Mapping[str, Spec], outputs: Mapping[str, Spec], *,
    hints: Mapping[str, Any] | None = None, constants: Mapping[str, Any] | None = None, name: str = "k", **fields: Any,
) -> Graph:  # fmt: skip
    """A graph of one kernel. ``constants`` are the values of inputs that are scalar constants."""
    graph = Graph()
    for buffer, spec in inputs.items():
        known = constants is not None and buffer in constants
        made = ConstantOp(name=buffer, value=(constants or {})[buffer]) if known else InputOp()
        graph.add_node(made, [], output=_tensor(buffer, spec), node_id=buffer)
    tensors = tuple(_tensor(buffer, spec) for buffer, spec in outputs.items())
    stmts = Body((body,) if isinstance(body, Tile) else tuple(body))
    first = next(iter(outputs))
    graph.add_node(KernelOp(body=stmts, name=name, **fields), [*inputs], outputs=tensors, node_id=first)
    graph.inputs, graph.outputs = [*inputs], [*outputs]
    if hints:
        graph.hints = Hints.from_dict(dict(hints))
    return graph


def _tensor(name: str, spec: Spec) -> Tensor:
    shape, kind = spec if len(spec) == 2 and isinstance(spec[0], tuple) else (spec, "f32")
    return Tensor(name, tuple(shape), emmy_dtype(kind))


# ------------------------------------------------------------------------------------------------------ running


def compiled(graph: Graph, target: str = "sm_90", **options: Any) -> CompiledKernel:
    """The one kernel of a graph, compiled with the verifier on."""
    options.setdefault("verify_each", True)
    (kernel,) = ptxc.compile(graph, target=target, **options)
    return kernel


def run(graph: Graph, arrays: Mapping[str, Any], target: str = "sm_90", **options: Any) -> dict[str, Array]:
    """What the kernel of ``graph`` writes, given its inputs; the CPU device must find nothing wrong."""
    kernel = compiled(graph, target, **options)
    assert kernel.launch is not None
    return launch(kernel.ptx, kernel.name, kernel.launch, arrays)


def launch(
    ptx: str, name: str, description: Launch, arrays: Mapping[str, Any], sanitize: Iterable[str] = SANITIZERS,
    device: CpuDevice | None = None,
) -> dict[str, Array]:  # fmt: skip
    """Execute an entry. ``arrays`` holds inputs, runtime integers, and whatever else parameters stand for."""
    given = dict(arrays)
    sizes = {item.name: _size(item.name, item.sizes, given) for item in description.runtime}
    outputs: dict[str, Array] = {}
    for parameter in description.parameters:
        if parameter.role in ("output", "zero") and parameter.name not in given:
            outputs[parameter.name] = _fresh(parameter, sizes, parameter.name in description.zero)
    module = (device or CpuDevice()).load(ptx)
    result = module.launch(
        name,
        [evaluate(extent, sizes) for extent in description.grid],
        description.block,
        [_argument(p, given, outputs, sizes) for p in description.parameters],
        shared=description.dynamic_shared,
        sanitize=tuple(sanitize),
    )
    assert not result.findings, "\n".join(map(str, result.findings))
    assert result.completed
    return outputs | {name: given[name] for name in (p.name for p in description.parameters) if name in given}


def _size(name: str, places: Sequence[tuple[str, int]], given: Mapping[str, Any]) -> int:
    if name in given:
        return int(given[name])
    found = {given[buffer].shape[at] for buffer, at in places if buffer in given}
    assert len(found) == 1, f"{name} is {sorted(found)}"
    return int(found.pop())


def _fresh(parameter: LaunchParameter, sizes: dict[str, int], zero: bool) -> Array:
    kind = np.dtype(DTYPES[parameter.dtype])
    shape = [evaluate(extent, sizes) for extent in parameter.shape]
    return np.full(shape, 0 if zero else np.nan if kind.kind == "f" else 77, kind)


def _argument(
    parameter: LaunchParameter, given: dict[str, Any], outputs: dict[str, Array], sizes: dict[str, int]
) -> Any:
    if parameter.role == "runtime":
        return sizes[parameter.name]
    if parameter.name in outputs:
        return outputs[parameter.name]
    if parameter.role == "constant" and parameter.name not in given:
        number = evaluate(parameter.value, sizes) if isinstance(parameter.value, str) else parameter.value
        return np.full([evaluate(extent, sizes) for extent in parameter.shape], number, DTYPES[parameter.dtype])
    value = given[parameter.name]
    if isinstance(value, np.ndarray) and parameter.role == "input":
        value = np.ascontiguousarray(value, DTYPES[parameter.dtype]).view()
        value.flags.writeable = False
    return value


# -------------------------------------------------------------------------------------------- Emmy's own kernel


def run_emmy(graph: Graph, arrays: Mapping[str, Any], target: str = "sm_90") -> dict[str, Array]:
    """What nvcc's PTX for Emmy's CUDA text of the same kernel writes. Needs nvcc."""
    kernel = compiled(graph, target)
    assert kernel.launch is not None
    ptx = nvcc_ptx(emmy_source(graph, target), target)
    return launch(ptx, kernel.name, kernel.launch, arrays, sanitize=("memory",))


def emmy_source(graph: Graph, target: str = "sm_90") -> str:
    """Emmy's CUDA text for the kernel of ``graph``."""
    from emmy.compiler.ir.cuda.ir import CudaOp
    from emmy.compiler.pipeline import Pipeline
    from emmy.compiler.target import parse_sm, set_target

    set_target(parse_sm(target))
    lowered = Pipeline.build(["lowering/cuda"]).run(graph)
    (source,) = [node.op.kernel_source for node in lowered.nodes.values() if isinstance(node.op, CudaOp)]
    return str(source)


@cache
def nvcc_ptx(source: str, target: str) -> str:
    """nvcc's PTX for CUDA text."""
    with TemporaryDirectory() as folder:
        path = Path(folder, "k.cu")
        path.write_text(source)
        command = ["nvcc", "--ptx", f"-arch={target}", "-o", str(path.with_suffix(".ptx")), str(path)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{done.stderr}\n{source}"
        return path.with_suffix(".ptx").read_text()
