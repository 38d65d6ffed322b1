"""The launch descriptions of all kernels of the corpus are what Emmy derives for them (the ``.meta.json`` files)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest
from bench15 import FOLDER, manifest
from emmy.compiler.ir.base import ConstantOp

from ptxc.frontend.launches import launch_of
from ptxc.frontend.reader import kernel_nodes, read_graph
from ptxc.frontend.signature import signature_of
from ptxc.launch import Launch, LaunchParameter, evaluate

#: Emmy's kinds of arguments, where ptxc has another name.
KINDS = {"zero": "zero_init_target", "tensor_map": "tma_descriptor"}

FILES = sorted((entry["problem"], entry["file"]) for entry in manifest()["files"])
PROBLEMS = [
    pytest.param([file for _, file in found], id=problem) for problem, found in groupby(FILES, key=itemgetter(0))
]


def launches(file: str) -> Iterator[Launch]:
    """The launch descriptions of a file, made without compiling it."""
    graph = read_graph(FOLDER / file)
    constants = {name: node.op for name, node in graph.nodes.items() if isinstance(node.op, ConstantOp)}
    for kernel in kernel_nodes(graph):
        yield launch_of(signature_of(kernel.op, kernel.node_id, graph.hints.to_dict(), constants))


def described(launch: Launch, sizes: dict[str, int]) -> dict[str, Any]:
    """A launch description in the words of Emmy's, its expressions evaluated."""
    arguments = [argument(parameter, sizes) for parameter in launch.parameters if parameter.role != "runtime"]
    runtime = [parameter.name for parameter in launch.parameters if parameter.role == "runtime"]
    assert [integer.name for integer in launch.runtime] == runtime
    assert launch.parameters[len(arguments) :] == tuple(p for p in launch.parameters if p.role == "runtime")
    return {
        "grid": [evaluate(extent, sizes) for extent in launch.grid],
        "block": list(launch.block),
        "smem_bytes": launch.dynamic_shared or launch.static_shared,
        "smem_dynamic": launch.dynamic_shared > 0,
        "args": arguments,
        "runtime_args": runtime,
        "zero_outputs": list(launch.zero),
        "zero_prologues": [p.name for p in launch.parameters if p.role == "zero"],
    }


def argument(parameter: LaunchParameter, sizes: dict[str, int]) -> dict[str, Any]:
    found: dict[str, Any] = {"name": parameter.name, "kind": KINDS.get(parameter.role, parameter.role)}
    if parameter.dtype and parameter.role != "zero":
        found |= {"dtype": parameter.dtype}
    if parameter.dtype:
        found |= {"shape": [evaluate(extent, sizes) for extent in parameter.shape]}
    if parameter.role == "constant":
        value = parameter.value
        found |= {"value": evaluate(value, sizes) if isinstance(value, str) else value}
    return found


def expected(meta: dict[str, Any], sizes: dict[str, int]) -> dict[str, Any]:
    """Emmy's description, its expressions evaluated."""
    arguments = []
    for argument in meta["args"]:
        found: dict[str, Any] = {key: argument[key] for key in ("name", "kind", "dtype") if argument[key] is not None}
        if argument["shape"] is not None:
            found["shape"] = [evaluate(extent, sizes) for extent in argument["shape"]]
        if argument["kind"] == "constant":
            value = argument.get("context_value")
            found["value"] = argument["value"] if value is None else evaluate(value, sizes)
        if argument["kind"] == "zero_init_target":
            del found["dtype"]  # Emmy says f32 of what only its size in words is known of
        arguments.append(found)
    keys = ("block", "smem_bytes", "smem_dynamic", "runtime_args", "zero_outputs", "zero_prologues")
    return {
        "grid": [evaluate(extent, sizes) for extent in meta["grid_expr"]],
        "args": arguments,
        **{key: meta[key] for key in keys},
    }


@pytest.mark.parametrize("files", PROBLEMS)
def test_launch(files: list[str]) -> None:
    for file in files:
        meta = json.loads(Path(FOLDER / file).with_suffix(".meta.json").read_text())
        (launch,) = launches(file)
        bound: dict[str, int] = meta["bindings"]
        for sizes in (bound, {name: 3 * size + 1 for name, size in bound.items()}):
            assert described(launch, sizes) == expected(meta, sizes), (file, sizes)
        assert [evaluate(extent, bound) for extent in launch.grid] == meta["grid"], file
