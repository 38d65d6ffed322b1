"""Statements with bodies: the tile, loops, conditions.

A loop becomes a block that tests at its end (the test before it only where it may not run at all)::

    for (i = start; i < end; i += step) body          before:
                                                        bra start < end, loop(start, carried), exit(carried)
                                                      loop(i, carried):
                                                        body
                                                        bra i + step < end, loop(i + step, carried'), exit(carried')
                                                      exit(carried):

``carried`` are the names that the body assigns (accumulators, states). It is unrolled here (how far says
:mod:`ptxc.frontend.unrolling`), because a body lowered again for ``i + step`` finds its addresses in the memo: only
their constant part differs.

Sources: ``emmy.compiler.ir.stmt.blocks`` and ``Tile`` of ``emmy.compiler.ir.kernel.ir``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from emmy.compiler.ir.kernel.ir import (
    BlockScaleLoad,
    FragmentApply,
    FragmentPromote,
    FragmentRepack,
    FragmentRowReduce,
    LdmatrixLoad,
    MmaSyncPtx,
    RegFragment,
    Tile,
    TreeHalve,
    WarpBroadcast,
    WarpShuffle,
    WgmmaMma,
    WgmmaWait,
)
from emmy.compiler.ir.stmt import Accum, Assign, Cond, Init, Let, Load, Loop, Select, StridedLoop

from ptxc.errors import InputError, UnsupportedError
from ptxc.frontend import convert, unrolling
from ptxc.frontend.dtypes import F32_T, element_type
from ptxc.frontend.elementwise import COMBINES
from ptxc.frontend.fragments.registers import know_family, selects_fragments, stem
from ptxc.frontend.fragments.registers import possible_names as fragment_names
from ptxc.frontend.linear import INT_MAX, INT_MIN, Linear, constant
from ptxc.frontend.scope import Typed
from ptxc.ir import opcodes
from ptxc.ir.kernel import Block
from ptxc.ir.types import B32, PRED
from ptxc.ir.values import FALSE, TRUE, Const, Operand, Value

if TYPE_CHECKING:
    from ptxc.frontend.lower import Lowering

# ------------------------------------------------------------------------------------------------------------ tile


def tile(k: Lowering, stmt: Tile, path: str) -> None:
    """Bind the coordinates of this thread's cell, and run the body where the cell lies inside the tile.

    As the last statement it leaves it to a later pass how threads outside are kept from having an effect.
    """
    e, b = k.expressions, k.builder
    if "." in path:
        raise InputError("a tile inside of the tile", hint="a kernel is one Tile, after what must run before it")
    names = [axis.name for axis in stmt.axes]
    if len(set(names)) < len(names):
        raise InputError(f"two axes of one name among {', '.join(names)}", hint="rename one")
    # Of a loop an extent below 0 is one that does not run. A tile has cells.
    extents = [_extent(k, axis).within(0, INT_MAX) for axis in stmt.axes]
    coordinates = [k.kernel.value(B32, axis.name) for axis in stmt.axes]
    inside = k.kernel.value(PRED, "inside")
    mods = [f"cells={k.signature.cells}", f"aux={stmt.aux_threads}", *_raster(stmt)]
    operands = tuple(e.register(extent, 32) for extent in extents)
    b.multi(opcodes.TILE_COORDS, tuple(mods), (*coordinates, inside), operands)
    k.names.push()
    for axis, extent, value in zip(stmt.axes, extents, coordinates, strict=True):
        e.note(value, 0, max(extent.hi - 1, 0))
        k.coordinate(axis.name, e.registers.linear(value))
    if stmt is k.last:
        b.effect(opcodes.TILE_GUARD, (), (inside,))
        k.body(stmt.body, f"{path}.body")
    else:
        _branch(k, inside, stmt.body, (), f"{path}.body", "")
    k.names.pop()


def _raster(stmt: Tile) -> list[str]:
    """The grouped visiting order as modifiers, where Emmy's conditions for it hold."""
    if not (stmt.raster_group and stmt.raster_axes):
        return []
    names = [axis.name for axis in stmt.axes]
    m, n = stmt.raster_axes
    if m not in names or n not in names or names.index(n) != names.index(m) + 1:
        return []
    grouped, other = names.index(m), names.index(n)
    if stmt.raster_orient != "m":
        grouped, other = other, grouped
    group = stmt.raster_group
    extent = stmt.axes[grouped].extent
    if stmt.is_static_grid:
        group = min(group, extent.as_static())
    return [f"group={group}", f"grouped={grouped}", f"other={other}"] if group > 1 else []


def _extent(k: Lowering, axis: Any) -> Linear:
    extent = axis.extent
    size = constant(extent.as_static()) if extent.is_static else k.expressions.integer(extent.expr)
    if size.hi < 1:
        raise InputError(f"axis {axis.name!r} has the extent {size.hi}", hint="an extent is at least 1")
    if not size.terms and size.constant > INT_MAX:
        raise InputError(f"axis {axis.name!r} has the extent {size.constant}", hint="coordinates are 32-bit integers")
    # Loop bounds and coordinates stay int, however large the literal.
    return size.as_wide(False).within(INT_MIN, INT_MAX)


# ----------------------------------------------------------------------------------------------------------- loops


def loop(k: Lowering, stmt: Loop, path: str) -> None:
    """``for axis in 0..extent``, its accumulators declared before it."""
    if stmt.carries:
        raise UnsupportedError("a loop that carries a state (Carry) has no form on a GPU", hint="Emmy lowers it away")
    _seed(k, stmt)
    end = _extent(k, stmt.axis)
    _iterate(k, stmt.axis.name, constant(0), end, constant(1), stmt.body, f"{path}.body", stmt.unroll)


def strided_loop(k: Lowering, stmt: StridedLoop, path: str) -> None:
    """``for (axis = start; axis < end; axis += step)``; a stated end can be read as ``<axis>_end`` in the body."""
    e = k.expressions
    _seed(k, stmt)
    start = e.integer(stmt.start)
    step = constant(stmt.step) if isinstance(stmt.step, int) else e.integer(stmt.step)
    if step.hi <= 0:
        raise InputError(f"the loop over {stmt.axis.name!r} steps by {step.hi}", hint="a step is at least 1")
    if step.lo < 1:
        # A loaded step is 0 in threads outside the tile, which would never leave the loop.
        step = e.larger(step, constant(1))
    k.names.push()
    if stmt.end is None:
        end = _extent(k, stmt.axis)
    else:
        end = e.integer(stmt.end)
        k.declare(f"{stmt.axis.name}_end", end)
    _iterate(k, stmt.axis.name, start, end, step, stmt.body, f"{path}.body", stmt.unroll)
    k.names.pop()


def _seed(k: Lowering, stmt: Loop | StridedLoop) -> None:
    """Declare what the loop's immediate body accumulates, at the operation's neutral element."""
    seen = set()
    for inner in stmt.body:
        if type(inner) is Accum and inner.name not in seen:
            seen.add(inner.name)
            combine = COMBINES.get(inner.op.name)
            if combine is None:
                raise InputError(
                    f"{inner.name!r} accumulates with {inner.op.name!r}, which has no neutral element",
                    hint=f"accumulate with one of {', '.join(COMBINES)}",
                )
            if stmt.seed:
                dtype = element_type(inner.dtype.name) if inner.dtype is not None else F32_T
                k.declare(inner.name, convert.constant(combine[1], dtype))


def _iterate(
    k: Lowering, var: str, start: Linear, end: Linear, step: Linear, body: Any, path: str, hinted: bool
) -> None:
    e = k.expressions
    first = e.compare("<", start, end)
    if first == FALSE:
        return
    if e.compare(">=", e.registers.add(start, step), end) == TRUE:
        _once(k, first, {var: start}, body, path)
        return
    least, trips = _trips(k, start, end, step)
    cost, multiplies = unrolling.cost(k, body, var if unrolling.runs_often(trips) else "")
    factor = unrolling.unroll_factor(trips, cost, hinted, multiplies, id(body) in k.kept)
    if least < trips and (least + 1 < trips or factor < trips):
        # Unless it is written out but for its last iteration, how often it runs is for a test to say.
        trips, factor = 0, 1
    if trips and selects_fragments(k, body, var):
        # Registers have no address: which of a family of fragments is meant must be known.
        factor = trips
    elif k.copies * factor * cost > _MOST_STATEMENTS:
        # Then how often it runs must be the same for all threads.
        trips, factor = trips if least == trips else 0, 1
    k.copies *= factor
    whole: list[tuple[int, Linear]] = []
    if factor == trips:
        for trip in range(least):
            k.scoped(body, path, {var: e.registers.add(start, step, trip)})
        if least < trips:
            last = e.registers.add(start, step, least)
            _once(k, e.compare("<", last, end), {var: last}, body, path)
    else:
        rounds, written = unrolling.rounds(body, cost, trips, factor)
        if k.copies * written * cost > _MOST_STATEMENTS:
            rounds = ()
        whole = _whole_rounds(k, start, end, step, trips, rounds)
        for size, stop in whole or [(factor, end)]:
            first = e.compare("<", start, stop)
            header = _loop_block(
                k, var, start, stop, step, first, size, assigned(k, body),
                lambda index: k.scoped(body, path, {var: index}),
            )  # fmt: skip
            header.unrolled = bool(whole) or factor > 1 or cost > unrolling.LARGE_BODY
            start = stop
    k.copies //= factor
    if whole and start is not end:
        _iterate(k, var, start, end, step, body, path, hinted)


def _whole_rounds(
    k: Lowering, start: Linear, end: Linear, step: Linear, trips: int, sizes: Iterable[int]
) -> list[tuple[int, Linear]]:
    """Rounds of so many iterations, each with how far a loop goes in them. Nothing where nobody can tell.

    What is left of a known number is not among them.
    """
    if trips:
        rests = [(size, trips % size) for size in sizes]
        return [(size, k.expressions.registers.add(start, step, trips - rest) if rest else end) for size, rest in rests]
    stops = [(size, stop) for size in sizes if (stop := _end_of_rounds(k, start, end, step, size)) is not None]
    return [*stops, (1, end)] if stops else []


def _end_of_rounds(k: Lowering, start: Linear, end: Linear, step: Linear, size: int) -> Linear | None:
    """How far a loop goes in whole rounds of so many iterations; None where nobody can tell."""
    e, stride = k.expressions, step.constant * size
    # Both are ints, however large what they are made of may be.
    way = e.registers.add(end.as_wide(True), start, -1).within(end.lo - start.hi, end.hi - start.lo)
    if step.terms or not INT_MIN <= way.lo <= way.hi <= INT_MAX or stride > INT_MAX:
        return None
    # A loop that does not run has a way below 0.
    rounds = e.divide(e.larger(way.as_wide(False), constant(0)), constant(stride))
    return e.registers.add(start, rounds, stride).within(start.lo, max(start.hi, end.hi))


def counted(k: Lowering, start: Linear, end: Linear, step: Operand, body: Callable[[Linear], None]) -> None:
    """A loop that carries nothing, for code that no statement spells."""
    e = k.expressions
    if isinstance(step, Const):
        stride = constant(step.bits)
    else:
        assert isinstance(step, Value)
        stride = e.registers.linear(e.note(step, 1, INT_MAX))
    first = e.compare("<", start, end)
    if first != FALSE:
        _loop_block(k, "i", start, end, stride, first, 1, (), body)


def _loop_block(
    k: Lowering, var: str, start: Linear, end: Linear, step: Linear, first: Operand, factor: int,
    carried_names: Iterable[str], body: Callable[[Linear], None],
) -> Block:  # fmt: skip
    """Write the blocks of a loop whose body runs ``factor`` times a round; return the first of them.

    ``first``: whether it runs at all.
    """
    e, b = k.expressions, k.builder
    stride = e.registers.scale(step, factor)
    unit = _unit(start, end, stride)
    limit, advance = e.register(_in_units(k, end, unit), 32), e.register(_in_units(k, stride, unit), 32)
    carried = _variables(k, carried_names)
    entries = k.names.all_typed(carried)
    before = [entry.operand for entry in entries]
    index = k.kernel.value(B32, var if unit == 1 else f"{var}_by_{unit}")
    header = b.new_block(f"loop.{var}")
    exit_block = b.new_block(f"done.{var}")
    values = [k.kernel.value(entry.type.bank, stem(name)) for name, entry in zip(carried, entries, strict=True)]
    header.params = [index, *values]
    entry_args = [e.register(_in_units(k, start, unit), 32), *before]
    if first == TRUE:
        b.branch(header, entry_args)
    else:
        b.branch_if(first, header, exit_block, entry_args, before)
    loc = b.loc
    b.start(header)
    _rebind(k, carried, values)
    before_flights = {**k.flights.state}
    held = _held(k)
    k.flights.begin_loop([name for name in carried if name in held])
    with k.region():
        e.depth += 1
        last = max(end.hi - 1 - (factor - 1) * max(step.lo, 1), start.lo)
        e.note(index, start.lo // unit, last // unit)
        current = e.registers.scale(e.registers.linear(index), unit)
        for turn in range(factor):
            body(e.registers.add(current, step, turn))
        e.depth -= 1
    b.loc = loc
    after = [entry.operand for entry in k.names.all_typed(carried)]
    following = b.binary(opcodes.ADD, "s32", index, advance, index.hint)
    again = b.setp("lt.s32", following, limit)
    b.branch_if(again, header, exit_block, [following, *after], after if first != TRUE else [])
    if first != TRUE:
        k.flights.join(before_flights)
        exit_block.params = [k.kernel.value(value.type, value.hint) for value in values]
        after = list(exit_block.params)
    b.start(exit_block)
    _rebind(k, carried, after)
    return header


def _unit(start: Linear, end: Linear, stride: Linear) -> int:
    """What a loop's index is always a multiple of: counted in it, quotients and remainders of the index are exact.

    An end that is not constant has to be divided, which must be a shift of what does not overflow.
    """
    if start.terms or stride.terms:
        return 1
    unit = math.gcd(start.constant, stride.constant)
    if end.terms and (unit & (unit - 1) or end.lo < 0 or end.hi > INT_MAX - unit):
        return 1
    return unit


def _in_units(k: Lowering, value: Linear, unit: int) -> Linear:
    """``value / unit``, rounded up."""
    if unit == 1:
        return value
    if not value.terms:
        return constant(-(-value.constant // unit))
    return k.expressions.divide(k.expressions.registers.add(value, constant(unit - 1)), constant(unit))


def _variables(k: Lowering, names: Iterable[str]) -> list[str]:
    """Those of ``names`` that are known here as values: what is not is declared inside, or an error there."""
    entries = k.names.entries
    return [name for name in names if type(entries.get(name)) is Typed]


def _rebind(k: Lowering, names: list[str], operands: Iterable[Operand]) -> None:
    entries = zip(k.names.all_typed(names), operands, strict=True)
    k.names.assign_all(names, [Typed(operand, entry.type) for entry, operand in entries])


#: Statements that assign to fragments declared before.
_FRAGMENT_WRITERS = frozenset(
    (BlockScaleLoad, LdmatrixLoad, MmaSyncPtx, FragmentApply, FragmentPromote, FragmentRepack, WgmmaMma)
)

#: How many statements a loop's body may become when it and the loops around it are unrolled.
_MOST_STATEMENTS = 8192


def _trips(k: Lowering, start: Linear, end: Linear, step: Linear) -> tuple[int, int]:
    """How often the loop runs at least and at most; (0, 0) where that is not known.

    It is where each thread starts elsewhere in the first step: the same for all where the steps divide the way, once
    more for some where they do not.
    """
    if step.terms:
        return 0, 0
    # Both fit an int, and the difference need not.
    way = k.expressions.registers.add(end.as_wide(True), start, -1)
    least, most = -(-way.lo // step.constant), -(-way.hi // step.constant)
    return (least, most) if 0 < least <= most else (0, 0)


# ------------------------------------------------------------------------------------------------------ conditions


def cond(k: Lowering, stmt: Cond, path: str) -> None:
    """``if (cond) body else else_body``."""
    predicate = k.expressions.condition(stmt.cond)
    if isinstance(predicate, Const):
        chosen, suffix = (stmt.body, "body") if predicate == TRUE else (stmt.else_body, "else_body")
        k.scoped(chosen, f"{path}.{suffix}")
        return
    _branch(k, predicate, stmt.body, stmt.else_body, f"{path}.body", f"{path}.else_body")


def _once(k: Lowering, predicate: Operand, binding: dict[str, Linear], body: Any, path: str) -> None:
    """A loop that runs at most once."""
    if predicate == TRUE:
        k.scoped(body, path, binding)
    else:
        _branch(k, predicate, body, (), path, "", binding)


def _branch(
    k: Lowering, predicate: Operand, body: Any, else_body: Any, path: str, else_path: str,
    binding: dict[str, Linear] | None = None,
) -> None:  # fmt: skip
    """Blocks for a condition; where they join, names that either side assigned are block parameters."""
    b = k.builder
    names = _variables(k, dict.fromkeys((*assigned(k, body), *assigned(k, else_body))))
    before = [entry.operand for entry in k.names.all_typed(names)]
    then, join = b.new_block("then"), b.new_block("join")
    otherwise = b.new_block("else") if else_body else join
    loc = b.loc
    b.branch_if(predicate, then, otherwise, (), () if else_body else before)
    flights = {**k.flights.state}
    b.start(then)
    with k.region():
        k.scoped(body, path, binding)
    b.loc = loc
    b.branch(join, [entry.operand for entry in k.names.all_typed(names)])
    _rebind(k, names, before)
    flights, k.flights.state = k.flights.state, flights
    if else_body:
        b.start(otherwise)
        with k.region():
            k.scoped(else_body, else_path)
        b.loc = loc
        b.branch(join, [entry.operand for entry in k.names.all_typed(names)])
    k.flights.join(flights)
    entries = k.names.all_typed(names)
    join.params = [k.kernel.value(entry.type.bank, stem(name)) for name, entry in zip(names, entries, strict=True)]
    b.start(join)
    _rebind(k, names, join.params)


# -------------------------------------------------------------------------------------------------------- analysis


def assigned(k: Lowering, body: Any) -> tuple[str, ...]:
    """Names declared outside ``body`` that its statements may assign, in order of appearance."""
    key = id(body)
    found = k.assigned.get(key)
    if found is None:
        free: dict[str, None] = {}
        declared: set[str] = set()
        for stmt in body:
            _scan(k, stmt, free, declared)
        found = k.assigned[key] = tuple(free)
    return found


def _held(k: Lowering) -> dict[str, None]:
    """The registers that products of the kernel hold while they run."""
    count, held = k.held
    if count != len(k.fragments):  # which names there can be depends on what is declared
        held = dict.fromkeys(name for fragment in k.signature.held for name in fragment_names(k, fragment))
        k.held = (len(k.fragments), held)
    return held


def _scan(k: Lowering, stmt: Any, free: dict[str, None], declared: set[str]) -> None:
    """Add what ``stmt`` assigns to ``free`` and what it declares to ``declared``."""
    kind = type(stmt)  # not isinstance: Emmy's classes answer that twenty times slower
    names: Iterable[str] = ()
    if kind is FragmentApply and not stmt.in_place:
        declared.update(fragment_names(k, stmt.out))
    elif kind in _FRAGMENT_WRITERS:
        written = stmt.defines()
        if kind is WgmmaMma and stmt.a_frag is not None:
            written = (*written, stmt.a_frag)
        names = [name for fragment in written for name in fragment_names(k, fragment)]
    elif kind is Accum:
        names = (stmt.name,)
    elif kind in (WarpShuffle, WarpBroadcast, TreeHalve):
        names = stmt.state
    elif kind is Load:
        packed = [f"_v_{stmt.names[0]}__{at}" for at in range(len(stmt.names))] if len(stmt.names) > 1 else []
        if stmt.carried:
            names = packed if stmt.carried == "load" else stmt.names
        else:
            declared.update(stmt.names)
            declared.update(packed)
    elif kind in (Loop, StridedLoop):
        if stmt.seed:
            declared.update(inner.name for inner in stmt.body if type(inner) is Accum)
        names = assigned(k, stmt.body)
    elif kind in (Cond, Tile):
        names = [name for inner in stmt.nested() for name in assigned(k, inner)]
    elif kind in (Assign, Init, Let, Select):
        declared.add(stmt.name)
    elif kind is RegFragment:
        # The statements after it, which are looked at next, choose members by variables.
        know_family(k, stmt.name, stmt.count)
        declared.update(fragment_names(k, stmt.name))
    elif kind is FragmentRowReduce:
        declared.update((stmt.top, stmt.bot))
    elif kind is WgmmaWait:
        names = _held(k)
    for name in names:
        if name not in declared:
            free[name] = None
