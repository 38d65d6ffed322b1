"""Operations on each element of an accumulator, and reductions of its rows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from emmy.compiler.ir.expr import Expr
from emmy.compiler.ir.kernel.ir import (
    COORD,
    FRAG,
    FRAG_COL,
    FRAG_ROW,
    GMEM,
    M8N8K4,
    M16N8,
    ROW,
    UNIFORM,
    FragLayout,
    FragmentApply,
    FragmentRowReduce,
)

from ptxc.errors import InputError, UnsupportedError
from ptxc.frontend import elementwise
from ptxc.frontend.convert import convert
from ptxc.frontend.dtypes import F32_T
from ptxc.frontend.fragments import lanes, registers
from ptxc.frontend.scope import Typed
from ptxc.frontend.threads import ALL_LANES, exchange
from ptxc.ir.types import B32
from ptxc.ir.values import Operand, integer

if TYPE_CHECKING:
    from ptxc.frontend.lower import Lowering

_LAYOUTS = {"m16n8k16": M16N8, "m8n8k4": M8N8K4}


class _Form(NamedTuple):
    """What an operand of a kind is: of a type, or parts of types."""

    types: Any
    what: str


_FORMS = {
    FRAG: _Form(str, "a fragment's name"),
    ROW: _Form((str, str), "the names of two numbers"),
    UNIFORM: _Form(str | Expr, "a name or an expression"),
    COORD: _Form(Expr, "an expression"),
    GMEM: _Form((str, tuple | list), "a buffer's name and an index"),
}


def apply(k: Lowering, stmt: FragmentApply, path: str) -> None:
    """``out[i] = op(args...)`` of every element, in f32."""
    layout = _layout_name(stmt.layout)
    count = registers.accumulators(layout)
    _check_operands(stmt)
    taken = [arg for arg, kind in zip(stmt.args, stmt.kinds, strict=True) if kind == FRAG]
    for name in (*taken, *((stmt.out,) if stmt.in_place else ())):
        registers.expect(k, name, "c", F32_T, count)
    results: list[Operand] = []
    for element in range(count):
        with _element(k, stmt, layout, element):
            results.append(_compute(k, stmt, element).operand)
    if stmt.in_place:
        registers.assign(k, stmt.out, results)
    else:
        registers.introduce(k, stmt.out, registers.Fragment(count, F32_T, "c"), results)


def _check_operands(stmt: FragmentApply) -> None:
    """Raises InputError where an operand is not what its kind says."""
    for arg, kind in zip(stmt.args, stmt.kinds, strict=True):
        form = _FORMS.get(kind)
        if form is None:
            raise InputError(f"an operand of the kind {kind!r}", hint=f"kinds are {', '.join(_FORMS)}")
        parts = arg if isinstance(form.types, tuple) else (arg,)
        types = form.types if isinstance(form.types, tuple) else (form.types,)
        if not isinstance(parts, tuple | list) or len(parts) != len(types) or not all(map(isinstance, parts, types)):
            raise InputError(f"an operand of the kind {kind!r} that is {arg!r}", hint=f"it is {form.what}")


def _layout_name(layout: FragLayout) -> str:
    """The name of a layout. Raises UnsupportedError for one that no atom has."""
    for name, known in _LAYOUTS.items():
        if layout == known:
            return name
    hint = "the statement's layout is M16N8 or M8N8K4 as Emmy has them"
    raise UnsupportedError("a layout of accumulators that no product has", hint=hint)


@contextmanager
def _element(k: Lowering, stmt: FragmentApply, layout: str, element: int) -> Iterator[None]:
    """Where the names of an element's coordinates stand for those of element ``element``."""
    if not {COORD, GMEM}.intersection(stmt.kinds):
        yield
        return
    e = k.expressions
    tile = lanes.accumulator(k, layout)
    k.names.push()
    for name, base, offsets in ((FRAG_ROW, stmt.row_base, tile.rows), (FRAG_COL, stmt.col_base, tile.columns)):
        if base is not None:
            k.names.declare(name, e.registers.add(e.integer(base), offsets[element]))
    yield
    k.names.pop()


def _compute(k: Lowering, stmt: FragmentApply, element: int) -> Typed:
    args = tuple(_argument(k, stmt, arg, kind, element) for arg, kind in zip(stmt.args, stmt.kinds, strict=True))
    value = elementwise.compute(k.builder, stmt.op.name, args, F32_T, k.arithmetic, registers.stem(stmt.out))
    for op in stmt.post:
        value = elementwise.compute(k.builder, op.name, (value,), F32_T, k.arithmetic, registers.stem(stmt.out))
    return value


def _argument(k: Lowering, stmt: FragmentApply, arg: Any, kind: str, element: int) -> Typed:
    """An operand for one element: an f32, or a predicate over its coordinates."""
    e, b = k.expressions, k.builder
    if kind == FRAG:
        return k.names.typed(registers.names(k, arg)[element])
    if kind == ROW:
        return k.names.typed(arg[stmt.layout.elem_row[element]])
    if kind == GMEM:
        buffer, index = arg
        return convert(b, k.memory.load(buffer, k.memory.locate(buffer, index), "bias"), F32_T)
    if isinstance(arg, Expr):
        value = e.typed(arg)
        return value if kind == COORD else convert(b, value, F32_T)
    return convert(b, k.value(arg), F32_T)


def reduce_rows(k: Lowering, stmt: FragmentRowReduce, path: str) -> None:
    """Fold the rows of a tile of accumulators side by side: first a lane's own elements, then those of other lanes.

    Afterwards every lane has what its rows amount to, under the names ``top`` and ``bot``.
    """
    if not stmt.frags or stmt.top == stmt.bot:
        hint = "name the fragments to fold, and two results"
        raise InputError(f"a reduction of {len(stmt.frags)} fragments to {stmt.top!r} and {stmt.bot!r}", hint=hint)
    count = registers.accumulators(_layout_name(stmt.layout))
    for fragment in stmt.frags:
        registers.expect(k, fragment, "c", F32_T, count)
    for row, name in enumerate((stmt.top, stmt.bot)):
        values = [
            k.names.typed(register)
            for fragment in stmt.frags
            for at, register in zip(stmt.layout.elem_row, registers.names(k, fragment), strict=True)
            if at == row
        ]
        total = values[0]
        for value in values[1:]:
            total = _combine(k, stmt, total, value, name)
        for distance in stmt.layout.reduce_xors:
            other = exchange(k, total, "bfly", integer(B32, distance), 31, ALL_LANES)
            total = _combine(k, stmt, total, other, name)
        k.declare(name, total)


def _combine(k: Lowering, stmt: FragmentRowReduce, left: Typed, right: Typed, hint: str) -> Typed:
    return elementwise.combine(k.builder, stmt.op.name, left, right, F32_T, k.arithmetic, hint)
