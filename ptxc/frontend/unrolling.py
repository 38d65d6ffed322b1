"""How far a loop is unrolled: how many of its iterations become one.

Source: ``emmy.compiler.ir.stmt.blocks``, whose ``unroll`` is a hint.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from emmy.compiler.ir.expr import Expr
from emmy.compiler.ir.kernel.ir import MmaSyncPtx, WgmmaMma
from emmy.compiler.ir.stmt import Accum, Assign, Init, Let, Load, Loop, Select, StridedLoop, Write

from ptxc.target import parse_target

if TYPE_CHECKING:
    from ptxc.frontend.lower import Lowering

#: From how many statements on a body is not unrolled that Emmy does not want to be: one of them, or several together.
LARGE_BODY = 36
_LARGE_BODIES = 256

#: Up to how many statements small bodies become together, without products on tensor cores and with them.
_SMALL_BODIES = 128
_SMALL_PRODUCTS = 32

#: How many statements a product of bytes counts for on a Hopper, whose tensor cores multiply bytes for warpgroups only:
#: of a warp's the assembler makes conversions, products of halves and additions.
_CONVERTED_PRODUCT = 4

#: From how many iterations on a loop is written out whole without a hint only if that makes few statements: with small
#: bodies, as many loads would be under way.
_MANY = 32
_FEW_STATEMENTS = 32

#: Up to how many statements a loop is written out whole whose loads the loop around it does not change; how many words
#: of those may be kept, and how many registers are left for the rest; and how often the loop around must run at least.
_KEPT_BODIES = 256
_KEPT_WORDS = 64
_OTHER_REGISTERS = 40
_OFTEN = 8

#: The statements of which a loop may consist that comes in rounds: they compute, load and store, and none waits for
#: other threads.
_SIMPLE = frozenset((Accum, Assign, Init, Let, Load, Select, Write))


def unroll_factor(trips: int, cost: int, hinted: bool, multiplies: bool, keeps: bool = False) -> int:
    """How many iterations become one: ``trips`` for all of them, 1 for none.

    ``cost`` is the statements in the body, ``multiplies`` whether products on tensor cores are among them, ``keeps``
    whether the assembler is to keep loads in registers for the loop around this one (:func:`cost`). nvcc unrolls
    whatever Emmy hints at completely, which costs the assembler ten times the work for the same inner loop: four
    iterations are enough to hide the loop's own instructions, more of a small body, whose loads are to be under way
    together. Then the assembler, which would take registers for more, is told not to (:attr:`Block.unrolled`). A large
    body of products on tensor cores hides the loop's own instructions by itself, and two would need twice the
    registers; of scalar products, whose loads are as many, several pay. However Emmy hints, iterations of products
    together are no large body: the assembler would take twice the time for each two, and spill.
    """
    if trips == 0:
        return 1
    together = _SMALL_PRODUCTS if multiplies else _SMALL_BODIES
    whole = _SMALL_BODIES if hinted else together if trips < _MANY else _FEW_STATEMENTS
    if trips * cost <= (_KEPT_BODIES if keeps else whole):
        return trips
    most = 4
    if cost > (_LARGE_BODIES if hinted else LARGE_BODY):
        most = 1 if multiplies else _LARGE_BODIES // cost
    elif multiplies:
        most = min(most, _LARGE_BODIES // cost)
    return next(
        (at for at in range(16, 1, -1) if trips % at == 0 and (at <= most or (at > 4 and at * cost <= together))), 1
    )


def rounds(body: Any, cost: int, trips: int = 0, factor: int = 1) -> tuple[tuple[int, ...], int]:
    """How many iterations become one in the rounds that a loop comes in, none where it does not; and how often the body
    is written out in all.

    A loop that runs a number of times which the launch decides, or the thread (``trips`` 0), has rounds of one number,
    of a smaller one for what is left if they are small, and single iterations. One of a known number has rounds where
    clearly more become one so than with ``factor``: of a number that leaves nothing, if one up to a half larger does,
    and else what is left is written out.
    """
    if cost > LARGE_BODY or not all([type(stmt) in _SIMPLE for stmt in body]):
        return (), factor
    sizes = (16, 4) if 16 * cost <= _FEW_STATEMENTS else (8,) if 8 * cost <= _FEW_STATEMENTS else (4,)
    if not trips:
        return sizes, sum(sizes) + 1
    size = sizes[0]
    if 4 * factor > 3 * size or trips < 2 * size:
        return (), factor
    size = next((at for at in range(size, size * 3 // 2 + 1) if trips % at == 0), size)
    return (size,), size + trips % size


def cost(k: Lowering, body: Any, var: str = "") -> tuple[int, bool]:
    """The statements that a body becomes, and whether there are products on tensor cores among them.

    Nested ones are counted too, those of loops as often as they are written. If the body is that of a loop that runs
    often, ``var`` is its variable. Then loops in it whose loads it does not change are noted in ``k.kept``, as far as
    registers allow: written out whole, they are loaded once, in front of the loop around them.
    """
    key = id(body)
    found = k.costs.get(key)
    if found is None:
        total, multiplies = 0, False
        room = _room(k) if var else 0
        for stmt in body:
            total += 1
            kind = type(stmt)
            bodies = stmt.nested()
            if bodies:
                is_loop = kind in (Loop, StridedLoop)
                parts = [cost(k, nested, _repeated(stmt) if is_loop else "") for nested in bodies]
                inner, products = sum([part[0] for part in parts]), any([part[1] for part in parts])
                if is_loop:
                    words = _literal_trips(stmt) * _kept_words(k, stmt.body, body, var) if room > 0 else 0
                    if 0 < words <= room:
                        k.kept.add(id(stmt.body))
                        room -= words
                    inner *= _written(stmt, inner, products, id(stmt.body) in k.kept)
                total += inner
                multiplies |= products
            elif kind in (MmaSyncPtx, WgmmaMma):
                multiplies = True
                if kind is MmaSyncPtx and stmt.ab_dtype in ("e4m3", "e5m2") and 90 <= k.arithmetic.sm < 100:
                    total += _CONVERTED_PRODUCT - 1
        found = k.costs[key] = (total, multiplies)
    return found


def runs_often(trips: int) -> bool:
    """Whether a loop of so many iterations, 0 if nobody knows, is worth what is done once for all of them."""
    return not trips or trips >= _OFTEN


def _repeated(stmt: Loop | StridedLoop) -> str:
    """The variable of a loop that runs often, "" for another."""
    return stmt.axis.name if runs_often(_literal_trips(stmt)) else ""


def _room(k: Lowering) -> int:
    """How many words the loads of a loop's body may keep."""
    registers = parse_target(k.kernel.target).registers_per_sm // k.signature.threads
    return min(_KEPT_WORDS, registers - _OTHER_REGISTERS)


def _kept_words(k: Lowering, inner: Any, body: Any, var: str) -> int:
    """How many words that an inner loop loads are the same in all iterations of the loop around, of ``body``."""
    loads = [stmt for stmt in inner if type(stmt) is Load]
    if not loads or not all([type(stmt) in _SIMPLE for stmt in inner]):
        return 0
    changing = {var}.union(*[stmt.defines() for stmt in (*body, *inner)])
    kept = 0
    for load in loads:
        buffer = k.signature.buffers.get(load.input)
        # What is no expression is refused where the load is lowered.
        known = all([isinstance(entry, Expr) for entry in load.index])
        if buffer is None or buffer.written or not known:
            continue
        if changing.isdisjoint([name for entry in load.index for name in entry.free_vars()]):
            kept += len(load.names)
    return kept


def _written(stmt: Loop | StridedLoop, cost: int, multiplies: bool, keeps: bool) -> int:
    """How many times a loop's body is written out."""
    if not stmt.axis.extent.is_static or (type(stmt) is StridedLoop and stmt.end is not None):
        return rounds(stmt.body, cost)[1]
    trips = _literal_trips(stmt)
    factor = unroll_factor(trips, cost, stmt.unroll, multiplies, keeps)
    return rounds(stmt.body, cost, trips, factor)[1] if 1 < trips != factor else factor


def _literal_trips(stmt: Loop | StridedLoop) -> int:
    """How often a loop runs whose bounds are written as numbers, 0 for another."""
    if not stmt.axis.extent.is_static:
        return 0
    extent = int(stmt.axis.extent.as_static())
    if isinstance(stmt, Loop):
        return extent
    start, step = _literal(stmt.start), _literal(stmt.step)
    if stmt.end is not None or start is None or step is None or step < 1:
        return 0
    return max(-(-(extent - start) // step), 0)


def _literal(expr: Any) -> int | None:
    """The number that an expression spells, if it is nothing but a number."""
    value = expr if isinstance(expr, int) else getattr(expr, "value", None)
    return value if isinstance(value, int) else None
