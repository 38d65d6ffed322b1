"""What each statement of Kernel IR does, and the table of all that can be evaluated.

Sources: ``emmy.compiler.ir.stmt.leaves``, ``emmy.compiler.ir.stmt.blocks``, ``emmy.compiler.ir.kernel.ir``: each
class's description and ``render``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from emmy.compiler.ir.expr import Expr, Literal
from emmy.compiler.ir.kernel.ir import (
    CpAsyncCommit,
    CpAsyncCopy,
    CpAsyncWait,
    SetMaxNReg,
    Smem,
    Tile,
    TreeHalve,
    WarpBroadcast,
    WarpShuffle,
)
from emmy.compiler.ir.stmt import Accum, Assign, Cond, Init, Let, Load, Loop, Select, StridedLoop, Write, ZeroPrologue

from ptxc.errors import InputError, UnsupportedError
from ptxc.reference import barriers, collective, fragment_memory, fragments, tma, warpgroup
from ptxc.reference.barriers import nothing
from ptxc.reference.buffers import DTYPES, Array
from ptxc.reference.evaluator import Evaluator
from ptxc.reference.expressions import Fixed, condition, evaluate, index_of
from ptxc.reference.layouts import CONGRUOUS, CROSSWISE, congruous, crosswise, swizzled
from ptxc.reference.memory import check_copied
from ptxc.reference.progress import Ready, Task, together, waits
from ptxc.reference.values import COMBINES, Value, element_type, index, promote

# ---------------------------------------------------------------------------------------------- loads and stores


def load(e: Evaluator, stmt: Load, path: str) -> None:
    """``names = input[index...]``: consecutive elements. Split, its halves fetch the elements and, later, name them."""
    if len(stmt.names) == 1:
        e.declare(stmt.names[0], _as(e, e.memory.read(stmt.input, e.flat(stmt.input, stmt.index)), stmt.dtype))
        return
    packed = [f"_v_{stmt.names[0]}__{at}" for at in range(len(stmt.names))]
    bind = e.assign if stmt.carried else e.declare
    if stmt.carried != "unpack":
        flat = e.flat(stmt.input, stmt.index)
        for at, name in enumerate(packed):
            bind(name, e.memory.read(stmt.input, flat + at))
    if stmt.carried != "load":
        for name, source in zip(stmt.names, packed, strict=True):
            bind(name, _as(e, e.find(source), stmt.dtype))


def _as(e: Evaluator, value: Value, dtype: Any) -> Value:
    """A loaded value in the type that the load states."""
    return value if dtype is None else e.numbers.convert(value, element_type(dtype.name))


def write(e: Evaluator, stmt: Write, path: str) -> None:
    """``output[index...] = values``, consecutive elements; or an atomic addition."""
    for place, name in zip(_written(e, stmt), stmt.values, strict=True):
        e.memory.write(stmt.output, place, e.find(name), add=stmt.atomic)


def _written(e: Evaluator, stmt: Write) -> Iterator[Array]:
    """The places of the values."""
    store, count = e.memory.store_of(stmt.output), len(stmt.values)
    if stmt.swizzle in (CROSSWISE, CONGRUOUS):
        row, column = (index_of(entry, e) for entry in stmt.index)
        kept, size = (crosswise, store.shape[0]) if stmt.swizzle == CROSSWISE else (congruous, store.shape[1])
        yield from (kept(row, column + at, size) for at in range(count))
        return
    flat = e.flat(stmt.output, stmt.index)
    together = _is_vector(store.type, count)
    start = swizzled(stmt.swizzle, flat)
    yield from (start + at if together else swizzled(stmt.swizzle, flat + at) for at in range(count))


def _is_vector(type: str, count: int) -> bool:
    """Whether Emmy's CUDA stores ``count`` elements at once, so that a swizzle moves them together."""
    return count in {"f32": (2, 4), "f16": (2, 4, 8)}.get(type, ())


def copy(e: Evaluator, stmt: CpAsyncCopy, path: str) -> None:
    """``nbytes`` from global to shared memory, at once; zeros where ``valid`` (of 16-byte copies) does not hold."""
    flat = e.flat(stmt.smem, stmt.smem_index)
    source, target = e.memory.store_of(stmt.src), e.memory.store_of(stmt.smem)
    if stmt.lane_index is not None:
        row, column = (index_of(entry, e) for entry in stmt.lane_index)
        flat = flat + row * target.shape[-1] + column
    check_copied(source.type, target.type)
    steps = np.arange(stmt.nbytes // source.width)
    places = e.spread(e.flat(stmt.src, stmt.src_index))[:, None] + steps
    valid = condition(stmt.valid, e) if stmt.valid is not None and stmt.nbytes == 16 else None
    value = e.memory.read(stmt.src, places, None if valid is None else e.spread(valid)[:, None])
    e.memory.write(stmt.smem, e.spread(swizzled(stmt.swizzle, flat))[:, None] + steps, Value(value.array, target.type))


def zero_prologue(e: Evaluator, stmt: ZeroPrologue, path: str) -> None:
    """Zero 32-bit words of another kernel's accumulator."""
    store = e.memory.store_of(stmt.dst)
    store.elements[: 4 * stmt.words // DTYPES[store.type].itemsize] = 0


# -------------------------------------------------------------------------------------------------------- values


def assign(e: Evaluator, stmt: Assign, path: str) -> None:
    """``name = op(args)``."""
    type = element_type(stmt.dtype.name) if stmt.dtype is not None else None
    e.declare(stmt.name, e.numbers.assign(stmt.op.name, [e.find(name) for name in stmt.args], type))


def accum(e: Evaluator, stmt: Accum, path: str) -> None:
    """``name = op(base, value)``, the base being ``name`` itself unless another is named."""
    type = element_type(stmt.dtype.name) if stmt.dtype is not None else "f32"
    base = e.find(stmt.base if stmt.base is not None else stmt.name)
    e.assign(stmt.name, e.numbers.combine(stmt.op.name, base, e.find(stmt.value), type))


def init(e: Evaluator, stmt: Init, path: str) -> None:
    """``name = identity``, a declaration."""
    e.declare(stmt.name, e.numbers.constant(float(stmt.identity), element_type(stmt.dtype.name)))


def let(e: Evaluator, stmt: Let, path: str) -> None:
    """``name = expression``; without a type it has the expression's own."""
    if stmt.dtype is None:
        e.declare(stmt.name, evaluate(stmt.value, e))
        return
    type = element_type(stmt.dtype.name)
    if isinstance(stmt.value, Literal):
        e.declare(stmt.name, e.numbers.constant(float(stmt.value.value), type))
    else:
        e.declare(stmt.name, e.numbers.convert(evaluate(stmt.value, e), type))


def select(e: Evaluator, stmt: Select, path: str) -> None:
    """``name`` is the value of the first branch whose predicate holds, else of the last branch."""
    values = [e.find(branch.value) for branch in stmt.branches]
    type = promote("add", values)
    chosen = e.numbers.convert(values[-1], type).array
    for branch, value in zip(reversed(stmt.branches[:-1]), reversed(values[:-1]), strict=True):
        chosen = np.where(condition(branch.select, e), e.numbers.convert(value, type).array, chosen)
    e.declare(stmt.name, Value(chosen, type))


# ------------------------------------------------------------------------------------------------------- control


def tile(e: Evaluator, stmt: Tile, path: str) -> Iterator[Ready]:
    """Bind the coordinates of each thread's cell, and run the body in the threads whose cell lies in the tile."""
    if stmt.aux_threads:
        cell = e.cta * e.cells + e.tid % e.cells
    else:
        cell = e.cta * e.threads + e.tid
    names = {axis.name: index(at) for axis, at in zip(stmt.axes, coordinates(e, stmt, cell), strict=True)}
    e.fixed = Fixed({*names, *e.integers} - _bound(stmt))
    with e.taking(cell < e.total) as any_left, e.scope(**names):
        e.barriers.whole = np.bincount(e.number[barriers.taking_part(e)], minlength=e.barriers.ctas)
        if any_left:
            yield from e.body(stmt.body, f"{path}.body")


def _bound(stmt: Tile) -> set[str]:
    """The names that the statements of a tile bind."""
    inner = list(stmt.body.iter())
    names = {name for statement in inner for name in statement.defines()}
    return names | {statement.axis.name for statement in inner if isinstance(statement, Loop | StridedLoop)}


def coordinates(e: Evaluator, stmt: Tile, cell: Array) -> list[Array]:
    """The coordinates of cells: row by row, but in groups of rows (or columns) of CTA tiles where that is asked."""
    places, rest = [], cell
    for extent in reversed(e.extents):
        places.append(rest % extent)
        rest = rest // extent
    places.reverse()
    grouped = _grouped(e, stmt)
    if grouped is None:
        return places
    at, other, group = grouped
    rows, columns = e.extents[at], e.extents[other]
    inner = int(np.prod(e.extents[max(at, other) + 1 :], dtype=np.int64))
    sub = cell // inner % (rows * columns)
    first = sub // (group * columns) * group
    in_group, height = sub % (group * columns), np.minimum(group, rows - first)
    places[at], places[other] = first + in_group % height, in_group // height
    return places


def _grouped(e: Evaluator, stmt: Tile) -> tuple[int, int, int] | None:
    """The axis that is visited in groups, its neighbour, and the size of a group; None for plain order."""
    names = [axis.name for axis in stmt.axes]
    if not stmt.raster_group or not stmt.raster_axes or not {*stmt.raster_axes} <= {*names}:
        return None
    m, n = (names.index(name) for name in stmt.raster_axes)
    if n != m + 1:
        return None
    at, other = (m, n) if stmt.raster_orient == "m" else (n, m)
    group = min(stmt.raster_group, e.extents[at]) if stmt.is_static_grid else stmt.raster_group
    return (at, other, group) if group > 1 else None


def loop(e: Evaluator, stmt: Loop, path: str) -> Iterator[Ready]:
    """``for axis in 0..extent``, its accumulators declared before it."""
    if stmt.carries:
        raise UnsupportedError("the reference does not evaluate a loop that carries a state")
    _seed(e, stmt)
    for at in range(e.extent(stmt.axis)):
        with e.scope(**{stmt.axis.name: index(at)}):
            yield from e.body(stmt.body, f"{path}.body")


def strided_loop(e: Evaluator, stmt: StridedLoop, path: str) -> Iterator[Ready]:
    """``for (axis = start; axis < end; axis += step)``; the body may read a stated end as ``<axis>_end``."""
    _seed(e, stmt)
    step = index_of(stmt.step, e) if isinstance(stmt.step, Expr) else np.asarray(stmt.step)
    end = np.asarray(e.extent(stmt.axis)) if stmt.end is None else index_of(stmt.end, e)
    if (step <= 0).any():
        raise InputError("a loop's step is at least 1")
    for at in _steps(e, index_of(stmt.start, e), end, step):
        with (
            e.taking(at < end) as any_left,
            e.scope(**{stmt.axis.name: index(at), f"{stmt.axis.name}_end": index(end)}),
        ):
            if not any_left:
                return
            yield from e.body(stmt.body, f"{path}.body")


def _steps(e: Evaluator, at: Array, end: Array, step: Array) -> Iterator[Array]:
    while (at < end).any():
        yield at
        at = at + step


def _seed(e: Evaluator, stmt: Loop | StridedLoop) -> None:
    """Declare what the loop's immediate body accumulates, at the operation's neutral element."""
    seeded = set()
    for inner in stmt.body:
        if isinstance(inner, Accum) and stmt.seed and inner.name not in seeded:
            seeded.add(inner.name)
            if inner.op.name not in COMBINES:
                raise InputError(f"nothing accumulates with {inner.op.name!r}")
            type = element_type(inner.dtype.name) if inner.dtype is not None else "f32"
            e.declare(inner.name, e.numbers.constant(COMBINES[inner.op.name][1], type))


def cond(e: Evaluator, stmt: Cond, path: str) -> Iterator[Ready]:
    """``if (cond) body else else_body``; each by itself where one waits for the other."""
    holds = condition(stmt.cond, e)
    branches = [(holds, stmt.body, f"{path}.body"), (~holds, stmt.else_body, f"{path}.else_body")]
    tasks: list[Task] = []
    parts = bool(stmt.else_body) and (waits(stmt.body) or waits(stmt.else_body))
    for mask, body, place in branches:
        with e.taking(mask) as any_left, e.scope():
            if any_left and parts and e.mask is not None:
                tasks.append(Task(e, e.mask, body, place))
            elif any_left:
                yield from e.body(body, place)
    if tasks:
        yield from together(e, tasks)


#: Every statement that can be evaluated.
STATEMENTS: dict[type, Callable[[Evaluator, Any, str], Iterator[Ready] | None]] = {
    Load: load,
    Write: write,
    Assign: assign,
    Accum: accum,
    Init: init,
    Let: let,
    Select: select,
    Smem: nothing,
    ZeroPrologue: zero_prologue,
    Tile: tile,
    Loop: loop,
    StridedLoop: strided_loop,
    Cond: cond,
    SetMaxNReg: nothing,
    CpAsyncCopy: copy,
    CpAsyncCommit: nothing,
    CpAsyncWait: nothing,
    WarpShuffle: collective.shuffle,
    WarpBroadcast: collective.broadcast,
    TreeHalve: collective.tree,
    **barriers.STATEMENTS,
    **fragments.STATEMENTS,
    **fragment_memory.STATEMENTS,
    **tma.STATEMENTS,
    **warpgroup.STATEMENTS,
}
