"""Small kernels of Emmy's statements, and their evaluation: what the tests of the reference are made with."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from emmy.compiler.graph import Graph
from emmy.compiler.ir import stmt as _stmt
from emmy.compiler.ir.base import InputOp
from emmy.compiler.ir.kernel import ir as _kernel
from emmy.compiler.tensor import Tensor
from kernel_ir import KernelOp, Spec, tensor, tile

import ptxc
from ptxc.frontend.reader import kernel_nodes
from ptxc.launch import Launch, LaunchParameter, RuntimeInteger
from ptxc.reference import evaluator
from ptxc.reference.buffers import Array, Problem, integers_of, problem_of
from ptxc.reference.evaluator import Evaluation, evaluate_kernels
from ptxc.reference.sample import ALL, Sample
from ptxc.reference.steps import Step, steps_of


@dataclass
class Node:
    """A kernel of a graph: what it reads and what it writes, by name and spec."""

    body: Any
    reads: tuple[str, ...]
    writes: Mapping[str, Spec]
    name: str = "k"
    zero_delegated: tuple[str, ...] = ()


def graph_of(inputs: Mapping[str, Spec], *nodes: Node) -> Graph:
    """A graph of kernels."""
    graph = Graph()
    for buffer, spec in inputs.items():
        graph.add_node(InputOp(), [], output=tensor(buffer, spec), node_id=buffer)
    for node in nodes:
        body = _stmt.Body((node.body,) if isinstance(node.body, _kernel.Tile) else tuple(node.body))
        kernel = KernelOp(body=body, name=node.name, zero_delegated=node.zero_delegated)
        tensors = tuple(tensor(buffer, spec) for buffer, spec in node.writes.items())
        graph.add_node(kernel, list(node.reads), outputs=tensors, node_id=next(iter(node.writes)))
    graph.inputs, graph.outputs = [*inputs], [buffer for node in nodes for buffer in node.writes]
    return graph


def prepared(
    graph: Graph, given: Mapping[str, Array] | None = None, **sizes: int
) -> tuple[list[Any], list[Step], Problem]:
    """The kernels of a graph in order, their steps, and their memory."""
    compiled = ptxc.compile(graph)
    steps = steps_of(compiled)
    integers = integers_of(steps, sizes, given or {})
    problem = problem_of(steps, {name: integer.value for name, integer in integers.items()}, given or {})
    ops = {node.op.name: node.op for node in kernel_nodes(graph)}
    return [ops[step.entry] for step in steps], steps, problem


def evaluable(
    graph: Graph, given: Mapping[str, Array] | None = None, **sizes: int
) -> tuple[list[Any], list[Step], Problem]:
    """The same of kernels that need not compile, in the order of the graph's nodes."""
    steps, ops = [], []
    names = {name for node in graph.nodes.values() for tensor in node.outputs for name in _symbols(tensor)}
    for kernel in kernel_nodes(graph):
        node = graph.nodes[kernel.node_id]
        buffers = [(name, "input", graph.buffer(name)) for name in node.inputs]
        buffers += [(name, "output", tensor) for name, tensor in zip(node.buffer_names(), node.outputs, strict=True)]
        parameters = [_parameter(graph, name, role, tensor) for name, role, tensor in buffers]
        runtime = tuple(_integer_of(name, buffers) for name in sorted(names))
        zero = tuple(evaluator.zeroed(kernel.op))
        launch = Launch((1, 1, 1), (1, 1, 1), 0, 0, tuple(parameters), runtime, zero)
        steps.append(Step(kernel.op.name, launch))
        ops.append(kernel.op)
    integers = integers_of(steps, sizes, given or {})
    values = {name: integer.value for name, integer in integers.items()}
    return ops, steps, problem_of(steps, values, given or {})


def _symbols(tensor: Tensor) -> set[str]:
    return {name for size in tensor.shape if not size.is_static for name in size.expr.free_vars()}


def _parameter(graph: Graph, name: str, role: str, tensor: Any) -> LaunchParameter:
    shape = tuple(size.as_static() if size.is_static else size.expr.pretty() for size in tensor.shape)
    value = getattr(graph.nodes[name].op, "value", None) if name in graph.nodes else None
    role = "constant" if isinstance(value, int | float) and role == "input" else role
    return LaunchParameter(name, role, "u64", tensor.dtype.name, shape, value if role == "constant" else None)


def _integer_of(name: str, buffers: Iterable[tuple[str, str, Any]]) -> RuntimeInteger:
    sizes = [
        (buffer, axis)
        for buffer, _, tensor in buffers
        for axis, size in enumerate(tensor.shape)
        if not size.is_static and size.expr.pretty() == name
    ]
    return RuntimeInteger(name, tuple(sizes))


def evaluated(
    graph: Graph, given: Mapping[str, Array], *, exact: bool = True, sample: Sample = ALL, **sizes: int
) -> Evaluation:
    """What the kernels of a graph mean."""
    ops, _, problem = prepared(graph, given, **sizes)
    return evaluate_kernels(ops, problem, exact=exact, sample=sample)


def output(body: Any, inputs: Mapping[str, Array], spec: Spec, **fields: Any) -> Array:
    """What a kernel of one output ``y`` writes there, without a fault."""
    specs = {name: (array.shape, _KINDS[str(array.dtype)]) for name, array in inputs.items()}
    evaluation = evaluated(graph_of(specs, Node(body, tuple(inputs), {"y": spec})), inputs, **fields)
    assert evaluation.faults == []
    return evaluation.outputs["y"]


def computed(body: Iterable[Any], inputs: Mapping[str, Any], spec: Spec, threads: int = 32, **options: Any) -> Array:
    """What a CTA of a kernel writes to ``y``, which need not compile.

    Inputs are arrays, or (array, element type) where the array holds bits.
    """
    aux = options.pop("aux_threads", 0)
    pairs = {
        name: item if isinstance(item, tuple) else (item, _KINDS[str(item.dtype)]) for name, item in inputs.items()
    }
    specs = {name: (array.shape, kind) for name, (array, kind) in pairs.items()}
    whole = tile({"t": threads}, [*body], threads, aux_threads=aux)
    graph = graph_of(specs, Node(whole, tuple(inputs), {"y": spec}))
    ops, _, problem = evaluable(graph, {name: array for name, (array, _) in pairs.items()})
    evaluation = evaluate_kernels(ops, problem, **options)
    assert evaluation.faults == []
    return evaluation.outputs["y"]


_KINDS = {
    "float32": "f32", "float16": "f16", "float64": "f64", "uint16": "bf16", "int32": "i32", "int64": "i64",
    "bool": "bool", "uint8": "u8", "int16": "i16", "uint32": "u32", "uint64": "u64",
}  # fmt: skip


def floats(*shape: int, seed: int = 1) -> Array:
    """Random f32."""
    return np.random.default_rng(seed).standard_normal(shape, np.float32)
