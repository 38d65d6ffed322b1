"""What a process does once so that compilations in those forked from it are quick."""

from __future__ import annotations

import gc
import importlib
from contextlib import suppress
from typing import Any

from ptxc.errors import CompileError

_F32 = "DataType(name='f32', np=dtype('float32'), nbytes=4)"

#: A kernel of the commonest statements: y[i] is the sum of 4 times x[i], if i < 60.
_BODY = (
    f"Load(names=('x0',), input='x', index=(Var('a0'),), dtype={_F32}, carried='')",
    "Loop(axis=Axis(name='k', extent=Dim(4), window=None), body=("
    f"Accum(name='s', value='x0', op=ElementwiseImpl('add'), dtype={_F32}, axes=(), base=None),),"
    " unroll=False, seed=True)",
    f"Assign(name='v', op=ElementwiseImpl('add'), args=('s', 'x0'), dtype={_F32})",
    "Cond(cond=BinaryExpr('<', Var('a0'), Literal(60, 'int')), body=("
    f"Write(output='y', index=(Var('a0'),), values=('v',), value_dtype={_F32}, atomic=False, swizzle='NONE'),),"
    " else_body=())",
)
_TILE = (
    f"Tile(axes=(Axis(name='a0', extent=Dim(64), window=None),), body=({', '.join(_BODY)},), block_threads=64,"
    " aux_threads=0, raster_axes=None, raster_group=None, raster_orient='m')"
)
_FIELDS = {"body": [_TILE], "name": "k_warm", "zero_delegated": [], "serial": []}
_BUFFER = {"shape": [64], "dtype": "f32"}
_X = {"op": "InputOp", "op_fields": {}, "inputs": [], "outputs": [{"name": "x", **_BUFFER}]}
_Y = {"op": "KernelOp", "op_fields": _FIELDS, "inputs": ["x"], "outputs": [{"name": "y", **_BUFFER}]}
GRAPH: dict[str, Any] = {"inputs": ["x"], "outputs": ["y"], "nodes": {"x": _X, "y": _Y}}


def warm_up() -> None:
    """Import what compiles and assembles, fill its caches by compiling a kernel, keep all of it from collections."""
    from ptxc.batching.candidates import task_of
    from ptxc.batching.job import build
    from ptxc.compilation import Options
    from ptxc.store import code_version
    from ptxc.toolchain import tool_versions

    importlib.import_module("ptxc.store.assemblies")
    build(task_of(GRAPH, 0, Options(cache=False), False, ""))
    code_version()
    with suppress(CompileError):  # there need not be one
        tool_versions("ptxas")
    gc.collect()
    gc.freeze()  # a collection in a child would copy all of it
