"""What is near enough for kernels: by the types of their buffers and values, and by what they sum in f16."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from emmy.compiler.ir.kernel.ir import Smem
from emmy.compiler.ir.stmt import Accum, Assign, Init, Let

from ptxc.reference.buffers import Problem
from ptxc.reference.compare import Tolerance
from ptxc.reference.values import element_type

if TYPE_CHECKING:
    from emmy.compiler.graph import Graph

#: The longest chain of products that Emmy sums in f16 before it goes to an f32.
CHUNK = 64


def tolerance_for(
    problem: Problem, graph: Graph | None = None, relative: float | None = None, absolute: float = 0.0
) -> Tolerance:
    """For the kernels of ``graph`` on the buffers of ``problem``; those given count where they are."""
    from ptxc.frontend.reader import kernel_nodes

    ops = [node.op for node in kernel_nodes(graph)] if graph is not None else []
    types = frozenset(buffer.dtype for buffer in problem.buffers.values()) | computed_types(ops)
    return Tolerance(relative, absolute, types, half_sums(ops, problem))


def computed_types(ops: Iterable[Any]) -> frozenset[str]:
    """The types that kernels say they compute in or keep values in, apart from their buffers'."""
    found = set()
    for op in ops:
        for stmt in op.body.iter():
            if isinstance(stmt, Accum | Assign | Init | Let | Smem) and stmt.dtype is not None:
                found.add(element_type(stmt.dtype if isinstance(stmt, Smem) else stmt.dtype.name))
    return frozenset(found)


def half_sums(ops: Iterable[Any], problem: Problem) -> int:
    """How many products a kernel sums in f16 at most, 0 where it sums none there.

    Tensor cores do with accumulators of f16: a chunk at a time where these are promoted, else at most the largest
    dimension of a buffer.
    """
    longest = 0
    for op in ops:
        stmts = list(op.body.iter())
        if any(getattr(stmt, "c_dtype", "") == "f16" for stmt in stmts):
            promoted = any(type(stmt).__name__ == "FragmentPromote" for stmt in stmts)
            sizes = [extent for buffer in problem.buffers.values() for extent in buffer.shape]
            longest = max(longest, CHUNK if promoted else max(sizes, default=1))
    return longest
