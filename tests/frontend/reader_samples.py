"""Small graphs and comparisons that the tests of the reader share."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from emmy.compiler.graph import Graph
from emmy.compiler.ir.elementwise import ElementwiseImpl

from ptxc.errors import CompileError
from ptxc.frontend.reader import kernel_nodes, read_graph

DATA = Path(__file__).parent / "data" / "reader"

FILES = sorted(DATA.glob("*.json"))

INPUT = {"op": "InputOp", "op_fields": {}, "inputs": [], "outputs": [{"name": "z", "shape": [1]}]}


def load(path: Path) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(path.read_text())
    return data


def kernel(*body: str, **fields: Any) -> dict[str, Any]:
    """A graph of one kernel, from ``x`` to ``y``, with these statements."""
    x = {"op": "InputOp", "op_fields": {}, "inputs": [], "outputs": [{"name": "x", "shape": [4], "dtype": "f32"}]}
    op_fields = {"body": list(body), "name": "k", "zero_delegated": [], "serial": [], **fields}
    outputs = [{"name": "y", "shape": [4], "dtype": "f32"}]
    y = {"op": "KernelOp", "op_fields": op_fields, "inputs": ["x"], "outputs": outputs}
    return {"inputs": ["x"], "outputs": ["y"], "nodes": {"x": x, "y": y}}


def assert_same(ours: Any, emmys: Any, where: str = "") -> None:
    """Equal in every field and class: Emmy's own ``==`` leaves out windows, hints, and takes True for 1."""
    assert type(ours) is type(emmys), (where, ours, emmys)
    if isinstance(ours, ElementwiseImpl):
        assert ours.name == emmys.name, where
    elif isinstance(ours, Graph):
        assert_same(graph_state(ours), graph_state(emmys), where)
    elif dataclasses.is_dataclass(ours):
        for field in dataclasses.fields(ours):
            name = field.name
            assert_same(getattr(ours, name), getattr(emmys, name), f"{where}.{name}")
    elif isinstance(ours, Mapping):
        assert list(ours) == list(emmys), where
        for key in ours:
            assert_same(ours[key], emmys[key], f"{where}[{key}]")
    elif isinstance(ours, tuple | list):
        assert len(ours) == len(emmys), where
        for index, (one, other) in enumerate(zip(ours, emmys, strict=True)):
            assert_same(one, other, f"{where}[{index}]")
    else:
        assert ours == emmys or (ours != ours and emmys != emmys), (where, ours, emmys)


def graph_state(graph: Graph) -> dict[str, Any]:
    edges = {name: sorted(graph.users(name)) for node in graph.nodes.values() for name in node.buffer_names()}
    return {
        "inputs": graph.inputs,
        "outputs": graph.outputs,
        "hints": graph.hints,
        "nodes": graph.nodes,
        "edges": edges,
        "producers": {name: node.id if (node := graph.producer(name)) else None for name in edges},
    }


def outcome(source: Any) -> str:
    """Whether ``source`` is read or refused; every other exception is a fault."""
    try:
        read_graph(source)
    except CompileError as error:
        return "refused" if str(error).isprintable() else f"garbage in {error}"
    return "read"


def body_of(graph: Graph) -> tuple[Any, ...]:
    (node,) = kernel_nodes(graph)
    return node.op.body
