"""The same kernel shape at growing statement counts, to show that the time grows linearly."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

from compilation.timing import best_ms
from ptxc.compilation import Options
from ptxc.driver import compile_kernel
from ptxc.frontend.reader import KernelNode, kernel_nodes, read_graph

#: Statement counts of the series.
SIZES = (1250, 2500, 5000, 10000, 20000)
#: Statements of one cell of the kernel's body.
_PER_CELL = 5
_F32 = "DataType(name='f32', np=dtype('float32'), nbytes=4)"


class Size(NamedTuple):
    """One point of the series."""

    statements: int
    lines: int
    ms: float


def growth(target: str, sizes: Sequence[int] = SIZES) -> list[Size]:
    """What ptxc takes for a kernel at growing size: loads, arithmetic, loops, conditions."""
    rows = []
    for size in sizes:
        work = partial(compile_kernel, *_large_kernel(size), Options(target=target, cache=False))
        lines = work().stats.lines
        rows.append(Size(size, lines, best_ms(work, 3)))
    return rows


def _large_kernel(statements: int) -> tuple[KernelNode, Any]:
    """A kernel of so many statements: cells that load, compute, accumulate in a loop and store under a condition."""
    cells = []
    for index in range(statements // _PER_CELL):
        row = f"BinaryExpr('+', Var('a0'), Literal({index * 64}, 'int'))"
        cells += [
            f"Load(names=('x{index}',), input='x', index=({row},), dtype={_F32}, carried='')",
            f"Loop(axis=Axis(name='k{index}', extent=Dim(64), window=None), body=("
            f"Accum(name='s{index}', value='x{index}', op=ElementwiseImpl('add'), dtype={_F32}, axes=(), base=None),),"
            " unroll=False, seed=True)",
            f"Cond(cond=BinaryExpr('<', Var('a0'), Literal({index % 60 + 1}, 'int')), body=("
            f"Write(output='y', index=({row},), values=('s{index}',), value_dtype={_F32}, atomic=False,"
            " swizzle='NONE'),), else_body=())",
        ]
    tile = (
        f"Tile(axes=(Axis(name='a0', extent=Dim(64), window=None),), body=({', '.join(cells)},), block_threads=64,"
        " aux_threads=0, raster_axes=None, raster_group=None, raster_orient='m')"
    )
    size = statements * 64
    buffer = {"shape": [size], "dtype": "f32"}
    fields = {"body": [tile], "name": "k_large", "zero_delegated": [], "serial": []}
    graph = read_graph(
        {
            "inputs": ["x"],
            "outputs": ["y"],
            "nodes": {
                "x": {"op": "InputOp", "op_fields": {}, "inputs": [], "outputs": [{"name": "x", **buffer}]},
                "y": {"op": "KernelOp", "op_fields": fields, "inputs": ["x"], "outputs": [{"name": "y", **buffer}]},
            },
        }
    )
    (node,) = kernel_nodes(graph)
    return node, graph
