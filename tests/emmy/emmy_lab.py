"""Programs of Emmy's frontend, small golden files out of Emmy's own, and Emmy's command line in this process."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import emmy
import pytest
from emmy.compiler.dim import Dim
from emmy.compiler.graph import Graph
from emmy.compiler.ir.base import InputOp
from emmy.compiler.ir.cuda.ir import CudaOp
from emmy.compiler.ir.elementwise import ElementwiseImpl
from emmy.compiler.ir.frontend.ir import LinearOp, ReshapeOp, RmsNormOp, SdpaOp, TransposeOp
from emmy.compiler.ir.tensor.ir import ElementwiseOp
from emmy.compiler.pipeline.search.golden import GoldenFile
from emmy.compiler.tensor import Tensor

#: Emmy's golden files, one a card.
RECORDS = Path(emmy.__file__).parent / "compiler" / "pipeline" / "search" / "golden" / "records"

#: Ten recorded schedules on five cards: scalar code and each generation of tensor cores.
GOLDENS = [
    ("v100_sm70", "matmul.square.512.fp16"),
    ("v100_sm70", "reduce.k2048"),
    ("a100_sm80", "linear.o_proj.h4096"),
    ("a100_sm80", "pointwise.n4096.dynM"),
    ("rtx4090_sm89", "matmul.square.512"),
    ("rtx4090_sm89", "softmax.k2048"),
    ("h100_sm90", "matmul.square.512.fp16"),
    ("h100_sm90", "rms_norm.k2048.dynM"),
    ("rtx5090_sm120", "matmul.square.512.fp16"),
    ("rtx5090_sm120", "reduce.k8192"),
]


def golden_file(card: str, realization: str, folder: Path) -> Path:
    """A golden file that holds one row of a card's, the first of the name: Emmy takes its time over whole ones."""
    whole = GoldenFile.load(RECORDS / f"{card}.json", repository=False)
    row = next(row for row in whole.rows if row.name == realization)
    kernel = whole.kernel(row.kernel)
    programs = [whole.programs[kernel.traced]] if kernel.traced is not None else []
    kernel = replace(kernel, traced=0 if programs else None)
    small = replace(whole, programs=programs, kernels=[kernel], routing=[], rows=[row])
    return Path(small.dump(folder / f"{card}.{realization}.json", repository=False))


def linear(rows: int = 8, columns: int = 12, depth: int = 16) -> Graph:
    """``y = x @ w.T``."""
    return _Program().linear("x", "w", "y", (rows, depth), columns).graph(["y"])


def two_layers(seq: int = 4, dim: int = 8, heads: int = 2, hidden: int = 12, layers: int = 2) -> Graph:
    """A model's layers: norm, attention, residual, norm, MLP, residual."""
    program, x = _Program(), "x"
    program.input("x", 1, seq, dim)
    for layer in range(layers):
        x = program.layer(f"l{layer}_", x, (1, seq, dim), heads, hidden)
    return program.graph([x])


def tensor(name: str, *shape: int) -> Tensor:
    """A buffer of f32."""
    return Tensor(name, tuple(map(Dim, shape)))


class _Program:
    """A graph while it is made."""

    def __init__(self) -> None:
        self._graph = Graph()

    def graph(self, outputs: list[str]) -> Graph:
        self._graph.outputs = outputs
        return self._graph

    def input(self, name: str, *shape: int) -> str:
        self._graph.add_node(InputOp(), [], tensor(name, *shape))
        self._graph.inputs.append(name)
        return name

    def add(self, op: Any, inputs: list[str], name: str, *shape: int) -> str:
        return self._graph.add_node(op, [*inputs], tensor(name, *shape))

    def linear(self, x: str, weight: str, name: str, shape: tuple[int, ...], columns: int) -> _Program:
        if x not in self._graph.nodes:
            self.input(x, *shape)
        inputs = [x, self.input(weight, columns, shape[-1])]
        self.add(LinearOp(), inputs, name, *shape[:-1], columns)
        return self

    def layer(self, p: str, x: str, shape: tuple[int, int, int], heads: int, hidden: int) -> str:
        one, seq, dim = shape
        split = (one, seq, heads, dim // heads)
        norm = self.add(RmsNormOp(), [x, self.input(f"{p}norm1", dim)], f"{p}n1", *shape)
        parts = []
        for part in "qkv":
            self.linear(norm, f"{p}w{part}", f"{p}{part}", shape, dim)
            rows = self.add(ReshapeOp(shape=split), [f"{p}{part}"], f"{p}{part}_rows", *split)
            heads_first = (one, heads, seq, dim // heads)
            parts.append(self.add(TransposeOp(axes=(0, 2, 1, 3)), [rows], f"{p}{part}_heads", *heads_first))
        attention = self.add(SdpaOp(is_causal=True), parts, f"{p}a", one, heads, seq, dim // heads)
        rows = self.add(TransposeOp(axes=(0, 2, 1, 3)), [attention], f"{p}a_rows", *split)
        joined = self.add(ReshapeOp(shape=shape), [rows], f"{p}a_joined", *shape)
        self.linear(joined, f"{p}wo", f"{p}o", shape, dim)
        x = self.add(ElementwiseOp(ElementwiseImpl("add")), [x, f"{p}o"], f"{p}r1", *shape)
        norm = self.add(RmsNormOp(), [x, self.input(f"{p}norm2", dim)], f"{p}n2", *shape)
        self.linear(norm, f"{p}up", f"{p}u", shape, hidden)
        self.add(ElementwiseOp(ElementwiseImpl("relu")), [f"{p}u"], f"{p}act", one, seq, hidden)
        self.linear(f"{p}act", f"{p}down", f"{p}d", (one, seq, hidden), dim)
        return self.add(ElementwiseOp(ElementwiseImpl("add")), [x, f"{p}d"], f"{p}r2", *shape)


def cuda_ops(graph: Graph) -> list[CudaOp]:
    """The kernels of a graph that Emmy has lowered to the end."""
    return [node.op for node in graph.nodes.values() if isinstance(node.op, CudaOp)]


@contextmanager
def emmys_command_line(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> Iterator[list[Graph]]:
    """Emmy's command line set up in this process: what it shows is in the list, and what it sets is put back."""
    from emmy.commands import compile as command
    from emmy.compiler import target

    shown: list[Graph] = []

    def show(graph: Graph, stage: str) -> str:
        shown.append(graph)
        return ""

    environment = dict(os.environ)
    with monkeypatch.context() as patch:
        patch.setattr(command, "format_stage", show)
        patch.setattr(sys, "argv", ["emmy", *arguments])
        try:
            yield shown
        finally:
            target.set_target(None)
            os.environ.clear()
            os.environ.update(environment)
