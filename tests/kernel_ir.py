"""Emmy's statements and expressions, as tests write them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from emmy.compiler.dtype import get
from emmy.compiler.ir import stmt as _stmt
from emmy.compiler.ir.axis import Axis
from emmy.compiler.ir.expr import BinaryExpr, Expr, Literal, Var
from emmy.compiler.ir.kernel import ir as _kernel
from emmy.compiler.tensor import Tensor

#: A buffer's shape (of f32), or its shape and element type.
Spec = Any

#: The statements, whose constructors take more than their annotations say (bodies as tuples, operations by name).
Accum: Any = _stmt.Accum
Assign: Any = _stmt.Assign
BlockScaleLoad: Any = _kernel.BlockScaleLoad
Cond: Any = _stmt.Cond
CpAsyncCommit: Any = _kernel.CpAsyncCommit
CpAsyncCopy: Any = _kernel.CpAsyncCopy
CpAsyncWait: Any = _kernel.CpAsyncWait
FragmentApply: Any = _kernel.FragmentApply
FragmentPromote: Any = _kernel.FragmentPromote
FragmentRepack: Any = _kernel.FragmentRepack
FragmentRowReduce: Any = _kernel.FragmentRowReduce
Init: Any = _stmt.Init
KernelOp: Any = _kernel.KernelOp
LdmatrixLoad: Any = _kernel.LdmatrixLoad
Let: Any = _stmt.Let
Load: Any = _stmt.Load
Loop: Any = _stmt.Loop
MbarrierArrive: Any = _kernel.MbarrierArrive
MbarrierArriveExpectTx: Any = _kernel.MbarrierArriveExpectTx
MbarrierInit: Any = _kernel.MbarrierInit
MbarrierWait: Any = _kernel.MbarrierWait
MmaSyncPtx: Any = _kernel.MmaSyncPtx
RegFragment: Any = _kernel.RegFragment
RegStore: Any = _kernel.RegStore
Select: Any = _stmt.Select
SelectBranch: Any = _stmt.SelectBranch
SetMaxNReg: Any = _kernel.SetMaxNReg
Smem: Any = _kernel.Smem
StridedLoop: Any = _stmt.StridedLoop
Sync: Any = _kernel.Sync
Tile: Any = _kernel.Tile
TmaDescriptor: Any = _kernel.TmaDescriptor
TmaLoad: Any = _kernel.TmaLoad
TreeHalve: Any = _kernel.TreeHalve
WarpBroadcast: Any = _kernel.WarpBroadcast
WarpShuffle: Any = _kernel.WarpShuffle
WgmmaCommit: Any = _kernel.WgmmaCommit
WgmmaDescriptor: Any = _kernel.WgmmaDescriptor
WgmmaFence: Any = _kernel.WgmmaFence
WgmmaMma: Any = _kernel.WgmmaMma
WgmmaWait: Any = _kernel.WgmmaWait
Write: Any = _stmt.Write
ZeroPrologue: Any = _stmt.ZeroPrologue


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
    return get(name)


def tile(axes: Mapping[str, Any], body: Iterable[Any], threads: int | None = None, **fields: Any) -> Any:
    """A tile over ``axes`` (name: extent)."""
    coordinates = tuple(Axis(name, extent) for name, extent in axes.items())
    return Tile(axes=coordinates, body=tuple(body), block_threads=threads, **fields)


def tensor(name: str, spec: Spec) -> Tensor:
    """A buffer."""
    shape, kind = spec if len(spec) == 2 and isinstance(spec[0], tuple) else (spec, "f32")
    return Tensor(name, tuple(shape), get(kind))
