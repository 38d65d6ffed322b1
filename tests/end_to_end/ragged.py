"""Cooperative kernels whose grid may be larger than they need: the kernels of the corpus, and variants of them."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from emmy.compiler.dim import Dim
from emmy.compiler.ir.kernel.ir import Tile
from emmy.compiler.ir.stmt import Body

import ptxc
from ptxc.compilation import CompiledKernel
from ptxc.driver import graph_of
from ptxc.frontend.reader import kernel_nodes

#: Opcodes at which the threads of a CTA or warp act together.
_TOGETHER = ("bar.", "barrier.", "shfl.", "vote.", "cp.async.")


def is_cooperative(kernel: CompiledKernel) -> bool:
    """Whether threads of the kernel wait for one another, exchange values or copy for one another."""
    return any(line.lstrip().startswith(_TOGETHER) for line in kernel.ptx.splitlines())


@dataclass(frozen=True)
class Ragged:
    """Kernels that check which of their threads have a cell, and the runtime integers that make them the original."""

    kernels: list[CompiledKernel]
    sizes: dict[str, int]


def ragged(files: list[Path], **options: Any) -> Ragged:
    """The kernels of ``files``, each with a grid that need not fit.

    Emmy has a kernel check that where its tile does not fill the last CTA, or is of a runtime size. What checks
    nothing as it is gets the outermost extent of its tile at run time.
    """
    kernels, sizes = [], {}
    for at, file in enumerate(files):
        graph = graph_of(file)
        (found,) = kernel_nodes(graph)
        node = graph.nodes[found.node_id]
        tile = next(stmt for stmt in node.op.body if type(stmt) is Tile)
        if tile.is_static_grid and tile.n_elements % (tile.block_threads or 256) == 0:
            first, *others = tile.axes
            name = f"outermost{at}"
            sizes[name] = first.extent.as_static()
            loose = replace(tile, axes=(replace(first, extent=Dim(name)), *others))
            node.op = copy.copy(node.op)
            body = Body(tuple(loose if stmt is tile else stmt for stmt in node.op.body))
            object.__setattr__(node.op, "body", body)
        kernels += ptxc.compile(graph, **options)
    return Ragged(kernels, sizes)
