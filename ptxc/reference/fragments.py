"""Fragments of matrices in the registers of a warp's lanes: declarations, products, elementwise operations, reductions.

A fragment is a value of the shape (lanes, elements of a lane), in float64 like all floats. So are accumulators, those
of f16 too: the evaluation says what a kernel means, and what an accumulator of f16 loses on the way is an error of the
kernel's, like any rounding; only where the evaluation is not exact are they rounded after each product.

Sources: ``RegFragment``, ``MmaSyncPtx``, ``Fragment*`` of ``emmy.compiler.ir.kernel.ir``, ``_MMA_SYNC_PRELUDE``,
``_MMA_M8N8K4_PRELUDE`` and ``_MMA_F4_BLOCK_PRELUDE`` of ``emmy.compiler.ir.kernel.render``; the PTX ISA, "Warp-level
Matrix Instructions".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from emmy.compiler.ir.expr import Expr
from emmy.compiler.ir.kernel.ir import (
    COORD,
    FRAG,
    FRAG_COL,
    FRAG_ROW,
    GMEM,
    ROW,
    FragmentApply,
    FragmentPromote,
    FragmentRepack,
    FragmentRowReduce,
    MmaSyncPtx,
    RegFragment,
)

from ptxc.errors import InputError, UnsupportedError
from ptxc.reference.buffers import Array
from ptxc.reference.expressions import condition, evaluate, index_of
from ptxc.reference.lane_maps import (
    ACCUMULATOR,
    VOLTA_B_BY_ROWS,
    VOLTA_C,
    VOLTA_C_HALF,
    VOLTA_COLUMN,
    VOLTA_COLUMNS,
    VOLTA_ROW,
    VOLTA_ROWS,
    VOLTA_WHOLE,
    LaneMap,
    operand_a,
    operand_b,
    volta_groups,
    volta_lanes,
)
from ptxc.reference.values import COMBINES, Value, index

if TYPE_CHECKING:
    from ptxc.reference.evaluator import Evaluator

#: Elements in a register of 32 bits, by the element's type; an accumulator of f32 has one.
PACKED = {"f16": 2, "bf16": 2, "f8e4m3": 4, "f8e5m2": 4, "f4e2m1x2": 8, "f32": 1}

#: Scales of blocks in a register, and the elements of a block.
SCALES, BLOCK = 4, 16

_VOLTA = "m8n8k4"


def declare(e: Evaluator, stmt: RegFragment, path: str) -> None:
    """A fragment, or ``count`` of them as ``name[0]`` and so on. Accumulators begin at zero."""
    if e.threads % 32:
        raise UnsupportedError(f"fragments are a whole warp's, a CTA of {e.threads} threads has a part of one")
    type = stmt.dtype.name
    if type not in PACKED:
        raise UnsupportedError(f"the reference has no fragments of {type}")
    value = Value(np.full((e.lanes, _elements(stmt)), 0.0 if stmt.role == "c" else np.nan), type)
    for name in [stmt.name] if stmt.count == 1 else [f"{stmt.name}[{at}]" for at in range(stmt.count)]:
        e.declare(name, value)


def _elements(stmt: RegFragment) -> int:
    """How many elements a lane has; where no registers are counted it is one register of scales."""
    if stmt.nregs is not None:
        return stmt.nregs * PACKED[stmt.dtype.name] if stmt.nregs else SCALES
    rows, columns, reduced = stmt.shape
    sizes: dict[str, int] = {"a": rows * reduced, "b": reduced * columns, "c": rows * columns}
    return sizes[stmt.role] // 32


def named(e: Evaluator, name: str) -> str:
    """``name``, its index a number where it is a variable."""
    stem, bracket, rest = name.partition("[")
    at = rest.removesuffix("]")
    if not bracket or at.isdigit():
        return name
    numbers = np.unique(e.numbers.as_index(e.find(at)))
    if numbers.size != 1:
        raise InputError(f"{name!r} is not the same fragment in all threads")
    return f"{stem}[{numbers[0]}]"


def fragment(e: Evaluator, name: str) -> Value:
    """The value of a fragment (lanes, elements). Raises InputError where it is none."""
    found = e.find(named(e, name))
    if found.array.ndim != 2:
        raise InputError(f"{name!r} is no fragment")
    return found


def put(e: Evaluator, name: str, array: Array) -> None:
    """Give a fragment new elements, rounded to its type where the evaluation is not exact."""
    target = named(e, name)
    type = fragment(e, target).type
    e.assign(target, Value(e.numbers.rounded(array, type), type))


# ------------------------------------------------------------------------------------------------------------ products


def mma(e: Evaluator, stmt: MmaSyncPtx, path: str) -> None:
    """``c += a @ b``, of each warp."""
    a, b, c = (fragment(e, name) for name in (stmt.a_frag, stmt.b_frag, stmt.c_frag))
    if stmt.shape == (8, 8, 4):
        put(e, stmt.c_frag, c.array + _volta_product(stmt, a, b))
        return
    left = operand_a(a.array.shape[1], PACKED[a.type]).matrices(a.array)
    right = operand_b(b.array.shape[1], PACKED[b.type]).matrices(b.array)
    if left.shape[2] != right.shape[1] or left.shape[2] != stmt.shape[2]:
        raise InputError(f"a product of shape {stmt.shape} of {left.shape[1:]} and {right.shape[1:]} matrices")
    if stmt.sfa_frag is not None and stmt.sfb_frag is not None:
        scales_a, scales_b = _scales(e, stmt.sfa_frag, stmt.sfb_frag)
        left = left * np.repeat(scales_a, BLOCK, axis=2)
        right = right * np.repeat(scales_b, BLOCK, axis=2).transpose(0, 2, 1)
    put(e, stmt.c_frag, c.array + ACCUMULATOR.elements(left @ right))


def _scales(e: Evaluator, a: str, b: str) -> tuple[Array, Array]:
    """The scales of blocks: (warps, rows of A, blocks) and (warps, columns of B, blocks).

    With thread selector 0 the first two lanes of each four hold rows of A, the second eight rows further; with selector
    1 the second lane holds the columns of B.
    """
    lanes_a, lanes_b = (fragment(e, name).array.reshape(-1, 8, 4, SCALES) for name in (a, b))
    return lanes_a[:, :, :2].transpose(0, 2, 1, 3).reshape(-1, 16, SCALES), lanes_b[:, :, 1]


def _volta_product(stmt: MmaSyncPtx, a: Value, b: Value) -> Array:
    left = VOLTA_ROWS.matrices(volta_groups(a.array))
    by = VOLTA_B_BY_ROWS if stmt.b_row_major else VOLTA_COLUMNS
    product = left @ by.matrices(volta_groups(b.array))
    return volta_lanes((VOLTA_C if stmt.c_dtype == "f32" else VOLTA_C_HALF).elements(product))


def promote(e: Evaluator, stmt: FragmentPromote, path: str) -> None:
    """``dst += src``, ``src = 0``: an accumulator of f16 into one of f32, whose lanes hold other elements on Volta."""
    source = fragment(e, stmt.src).array
    added = source
    if stmt.fragment_layout == _VOLTA:
        added = volta_lanes(VOLTA_C.elements(VOLTA_C_HALF.matrices(volta_groups(source))))
    put(e, stmt.dst, fragment(e, stmt.dst).array + added)
    put(e, stmt.src, np.zeros_like(source))


# --------------------------------------------------------------------------------------------------- of accumulators


def accumulator_map(elements: int) -> LaneMap:
    """The map of an accumulator of f32, by the elements of a lane."""
    return ACCUMULATOR if elements == 4 else VOLTA_WHOLE


def of_lanes(e: Evaluator, places: Array) -> Array:
    """What is said of each lane of a warp, for all lanes."""
    return np.tile(places, (e.lanes // 32, 1))


def apply(e: Evaluator, stmt: FragmentApply, path: str) -> None:
    """``out = post(op(args))`` of each element."""
    args = [_operand(e, stmt, arg, kind) for arg, kind in zip(stmt.args, stmt.kinds, strict=True)]
    value = e.numbers.assign(stmt.op.name, args, "f32")
    for step in stmt.post:
        value = e.numbers.assign(step.name, [value], "f32")
    array = np.broadcast_to(value.array, (e.lanes, stmt.layout.n_elems))
    if stmt.in_place or "[" in stmt.out:
        put(e, stmt.out, array)
    else:
        e.declare(stmt.out, Value(array, "f32"))


def _operand(e: Evaluator, stmt: FragmentApply, arg: Any, kind: str) -> Value:
    """An operand of each element: (lanes, elements), or (lanes, 1) and less where elements share it."""
    if kind == FRAG:
        return fragment(e, arg)
    if kind == ROW:
        rows = [e.numbers.convert(e.find(name), "f32").array for name in arg]
        return Value(np.stack([e.spread(rows[row]) for row in stmt.layout.elem_row], axis=1), "f32")
    if kind == COORD:
        holds = [e.spread(condition(arg, e)) for _ in _elementwise(e, stmt)]
        return Value(np.stack(holds, axis=1), "bool")
    if kind == GMEM:
        buffer, indices = arg
        read = [e.memory.read(buffer, e.flat(buffer, indices)) for _ in _elementwise(e, stmt)]
        return Value(np.stack([value.array for value in read], axis=1), read[0].type)
    value = evaluate(arg, e) if isinstance(arg, Expr) else e.find(arg)
    return value if value.array.size == 1 else Value(value.array[:, None], value.type)


def _elementwise(e: Evaluator, stmt: FragmentApply) -> Iterator[None]:
    """Each element of a lane in turn, its coordinates bound to their names."""
    where = accumulator_map(stmt.layout.n_elems)
    bases = {FRAG_ROW: stmt.row_base, FRAG_COL: stmt.col_base}
    starts = {name: index_of(base, e) for name, base in bases.items() if base is not None}
    offsets = {FRAG_ROW: of_lanes(e, where.row), FRAG_COL: of_lanes(e, where.column)}
    for at in range(stmt.layout.n_elems):
        with e.scope(**{name: index(start + offsets[name][:, at]) for name, start in starts.items()}):
            yield


_REDUCE: dict[str, Any] = {"add": np.add, "multiply": np.multiply, "maximum": np.fmax, "minimum": np.fmin}


def row_reduce(e: Evaluator, stmt: FragmentRowReduce, path: str) -> None:
    """``top`` and ``bot``: what each lane's two rows of fragments side by side combine to."""
    if stmt.op.name not in COMBINES:
        raise InputError(f"nothing reduces with {stmt.op.name!r}")
    where = accumulator_map(stmt.layout.n_elems)
    whole = np.concatenate([where.matrices(fragment(e, name).array) for name in stmt.frags], axis=2)
    rows = _REDUCE[COMBINES[stmt.op.name][0]].reduce(whole, axis=2)
    for name, row in ((stmt.top, 0), (stmt.bot, 1)):
        element = stmt.layout.elem_row.index(row)
        array = rows[:, where.row[:, element]].reshape(-1)
        e.declare(name, Value(e.numbers.rounded(array, "f32"), "f32"))


def repack(e: Evaluator, stmt: FragmentRepack, path: str) -> None:
    """Accumulators as an operand: two side by side as A, one as B; on Volta four columns or rows of one."""
    target = fragment(e, stmt.frag)
    sources = [fragment(e, name).array for name in stmt.srcs]
    if stmt.fragment_layout == _VOLTA:
        (whole,) = (VOLTA_WHOLE.matrices(source) for source in sources)
        four = 4 * stmt.part + np.arange(4)
        found = whole[:, VOLTA_ROW, four] if stmt.role == "a" else whole[:, four, VOLTA_COLUMN]
        put(e, stmt.frag, found.reshape(-1, 4))
        return
    whole = np.concatenate([ACCUMULATOR.matrices(source) for source in sources], axis=2)
    where = (operand_a if stmt.role == "a" else operand_b)(target.array.shape[1], PACKED[target.type])
    if whole.shape[1:] != (where.rows, where.columns):
        raise InputError(f"{stmt.frag!r} is no fragment of a {whole.shape[1]} x {whole.shape[2]} matrix")
    put(e, stmt.frag, where.elements(whole))


STATEMENTS: dict[type, Callable[[Evaluator, Any, str], None]] = {
    RegFragment: declare,
    MmaSyncPtx: mma,
    FragmentPromote: promote,
    FragmentApply: apply,
    FragmentRowReduce: row_reduce,
    FragmentRepack: repack,
}
