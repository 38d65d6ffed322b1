"""Stores of accumulators, with what is computed of each element on the way.

A lane holds pairs of adjacent columns: where the buffer keeps columns next to each other, a pair is one store. Where
the tile hangs over an edge (``m_guard``, ``n_guard``), each store, and what its elements load, happens only inside:
under a predicate, or, where much is computed of them, in a block of its own. That keeps what many elements need from
all being under way together, for which there are no registers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from emmy.compiler.ir.kernel.ir import ELEM_COL, ELEM_ROW, RegStore
from emmy.compiler.ir.pure.lam import Lambda
from emmy.compiler.ir.stmt import Assign, Load, Select

from ptxc.errors import InputError, UnsupportedError
from ptxc.frontend import elementwise, minifloat
from ptxc.frontend.convert import convert
from ptxc.frontend.dtypes import BF16_T, F16_T, F32_T, FP8, ElementType, element_type
from ptxc.frontend.fragments import lanes, registers
from ptxc.frontend.fragments.direct import edge, guard, is_multiple
from ptxc.frontend.fragments.pairs import pack
from ptxc.frontend.fragments.shared import row_stride, stated_stride
from ptxc.frontend.linear import Linear, constant
from ptxc.frontend.scope import Typed
from ptxc.frontend.threads import ALL_LANES, exchange
from ptxc.ir import opcodes
from ptxc.ir.types import B32
from ptxc.ir.values import FALSE, TRUE, Operand, Value, integer

if TYPE_CHECKING:
    from ptxc.frontend.lower import Lowering

#: The types whose pairs are one store; and how an atomic addition of a pair is spelled.
_PAIRS = (F16_T, BF16_T, F32_T, *FP8)
_ATOMIC_PAIR = {F16_T: ("noftz", "f16x2"), BF16_T: ("noftz", "bf16x2")}

#: From how many steps on an epilogue is computed in a block of its own (measured over Emmy's corpus).
_LONG_EPILOGUE = 6


class _Store:
    """A store of one accumulator, as far as its elements have it in common."""

    __slots__ = ("column_stride", "flat", "k", "loaded", "rounding", "row_stride", "stmt", "tile", "type")

    def __init__(self, k: Lowering, stmt: RegStore) -> None:
        _check(k, stmt)
        self.k = k
        self.stmt = stmt
        self.type = k.memory.type_of(stmt.dst_buffer)
        #: Elements from a row to the next, and from a column to the next.
        self.row_stride = _row_stride(k, stmt)
        self.column_stride = constant(1)
        if stmt.ldn:
            self.column_stride = stated_stride(stmt.ldn)
        elif stmt.col_dim is not None:
            self.column_stride = _stride_of(k, stmt.dst_buffer, stmt.col_dim)
        #: The offset in the buffer of the tile's first element.
        self.flat = k.memory.flat_index(stmt.dst_buffer, stmt.dst_index)
        self.tile = lanes.accumulator(k, stmt.fragment_layout, stmt.fragment_index if stmt.volta_interleaved else None)
        #: The epilogue's last step, if that only rounds to an fp8: the store does, two elements at once.
        self.rounding: Any = _last_rounding(stmt.epilogue, self.type) if self.type in FP8 else None
        #: What the epilogue has loaded already for the row at hand, by the step's identity.
        self.loaded: dict[int, Typed] = {}


def _last_rounding(epilogue: Lambda | None, target: ElementType) -> Any:
    """The last step of an epilogue if all that it does is to round the result to ``target``, else None."""
    last: Any = epilogue.body[-1] if epilogue is not None and epilogue.body else None
    if epilogue is None or type(last) is not Assign or last.dtype is None or last.name != epilogue.results[0]:
        return None
    rounds = last.op.name in elementwise.IDENTITIES and len(last.args) == 1
    return last if rounds and element_type(last.dtype.name) is target else None


def store(k: Lowering, stmt: RegStore, path: str) -> None:
    """Store a fragment, or four adjacent ones at once."""
    if any(cell.run for cell in stmt.run):
        raise InputError("a run of stores within a run", hint="name all cells in the first one's run")
    cells = [_Store(k, cell) for cell in (stmt, *stmt.run)]
    if stmt.run and _is_row_of_cells(cells):
        _store_run(cells)
        return
    for cell in cells:
        _store_cell(cell)


def _check(k: Lowering, stmt: RegStore) -> None:
    """Raise InputError where a store contradicts itself, or its fragments are no accumulators of its layout."""
    count = registers.accumulators(stmt.fragment_layout)
    for name in (stmt.frag, *stmt.extra_frags):
        registers.expect(k, name, "c", F32_T, count)
    if stmt.volta_interleaved and stmt.fragment_layout != "m8n8k4":
        hint = "only those of m8n8k4 are"
        raise InputError(f"interleaved accumulators of the layout {stmt.fragment_layout!r}", hint=hint)
    if stmt.volta_interleaved and not (len(stmt.fragment_index) == 2 and all(map(_is_int, stmt.fragment_index))):
        hint = "it is two numbers"
        raise InputError(f"the place {stmt.fragment_index!r} of an interleaved accumulator", hint=hint)
    params, fragments = 1 if stmt.epilogue is None else len(stmt.epilogue.params), 1 + len(stmt.extra_frags)
    if params < fragments:
        hint = "its first parameters are the fragment and all extra ones"
        raise InputError(f"an epilogue that takes {params} of {fragments} fragments", hint=hint)
    if stmt.swizzle != "NONE" and (stmt.dst_buffer not in k.signature.shared or stmt.atomic):
        hint = "plain stores to shared memory are swizzled: let it be NONE"
        raise InputError(f"an atomic store, or one to global memory, with the swizzle {stmt.swizzle!r}", hint=hint)


def _row_stride(k: Lowering, stmt: RegStore) -> Linear:
    """The elements from a row of the tile to the next."""
    if stmt.row_dim is not None and not stmt.ldm:
        return _stride_of(k, stmt.dst_buffer, stmt.row_dim)
    return row_stride(k, stmt.dst_buffer, stmt.ldm)


def _stride_of(k: Lowering, buffer: str, dim: int) -> Linear:
    """The elements between neighbours along a dimension of a buffer."""
    shared = k.signature.shared.get(buffer)
    shape = shared.extents if shared is not None else k.memory.buffer(buffer).shape
    if not _is_int(dim) or not 0 <= dim < len(shape):
        raise InputError(f"the dimension {dim!r} of {buffer!r}", hint=f"it has {len(shape)}, the first is 0")
    stride = constant(math.prod(size for size in shape[dim + 1 :] if isinstance(size, int)))
    for size in shape[dim + 1 :]:
        if not isinstance(size, int):
            stride = k.expressions.multiply(stride, k.expressions.integer(size.expr))
    return stride


def _is_int(value: Any) -> bool:
    return isinstance(value, int)


def _store_cell(s: _Store) -> None:
    """Each pair of columns by one store where it can be, else element by element."""
    ones = s.column_stride.constant == 1 and not s.column_stride.terms
    atomic_pair = not s.stmt.atomic or s.type in _ATOMIC_PAIR
    paired = s.stmt.n_guard is None and ones and s.type in _PAIRS and atomic_pair
    epilogue = s.stmt.epilogue
    long = epilogue is not None and len(epilogue.body) >= _LONG_EPILOGUE
    of_row = _row_loads(epilogue, 1 + len(s.stmt.extra_frags)) if epilogue is not None and long else []
    for first in range(0, len(s.tile.rows), 2):
        inside = _inside(s, first), _inside(s, first + 1)
        if long and inside[0] == inside[1] and isinstance(inside[0], Value):
            _store_where(s, of_row, first, inside[0], paired)
        else:
            _store_two(s, first, inside, paired)


def _row_loads(epilogue: Lambda, fragments: int) -> list[Load]:
    """The epilogue's loads that are the same for all elements of a row: their indices name nothing of its own, such as
    the elements of so many fragments."""
    steps: Iterable[Any] = epilogue.body
    own = {ELEM_COL, *epilogue.params[:fragments], *[step.name for step in steps]}
    return [
        step
        for step in steps
        if type(step) is Load and all([own.isdisjoint(index.free_vars()) for index in step.index])
    ]


def _store_where(s: _Store, of_row: Sequence[Load], first: int, predicate: Value, paired: bool) -> None:
    """Store two elements of a row in a block that only threads enter whose row is inside.

    In front of it is what other cells of the row have in common with this: addresses, and loads for any column.
    """
    k = s.k
    for element in (first, first + 1):
        k.memory.address(s.stmt.dst_buffer, k.memory.swizzled(s.stmt.swizzle, _place(s, element)))
    k.names.push()
    k.names.declare(ELEM_ROW, s.tile.rows[first])
    for step in of_row:
        s.loaded[id(step)] = _load(k, step, predicate)
    k.names.pop()
    k.when(predicate, lambda: _store_two(s, first, (TRUE, TRUE), paired))
    s.loaded.clear()


def _store_two(s: _Store, first: int, inside: tuple[Operand, Operand], paired: bool) -> None:
    """Store an element and its neighbour, each where it is inside; ``paired`` if one store can take both."""
    place = _place(s, first) if paired else None
    if place is not None and is_multiple(place, 2):
        if inside[0] != FALSE:
            _store_pair(s, first, place, inside[0])
        return
    for element, predicate in zip((first, first + 1), inside, strict=True):
        if predicate != FALSE:
            _store_element(s, element, predicate)


def _place(s: _Store, element: int) -> Linear:
    """The element's offset in the buffer."""
    e = s.k.expressions
    row = e.multiply(s.tile.rows[element], s.row_stride)
    column = e.multiply(s.tile.columns[element], s.column_stride)
    return e.registers.add(e.registers.add(s.flat, row), column)


def _inside(s: _Store, element: int) -> Operand:
    """Whether the element lies inside of the edges."""
    e = s.k.expressions
    inside: Operand = TRUE
    for given, at in ((s.stmt.m_guard, s.tile.rows[element]), (s.stmt.n_guard, s.tile.columns[element])):
        if given is not None:
            base, bound = edge(s.k, given)
            inside = e.logical("&&", inside, e.compare("<", e.registers.add(base, at), bound))
    return inside


def _store_pair(s: _Store, first: int, place: Linear, predicate: Operand) -> None:
    k, b = s.k, s.k.builder
    values = [_value(s, element, predicate) for element in (first, first + 1)]
    address = k.memory.address(s.stmt.dst_buffer, k.memory.swizzled(s.stmt.swizzle, place))
    space = k.memory.store_space(s.stmt.dst_buffer)
    if s.type is F32_T:
        words = tuple(convert(b, value, F32_T).operand for value in values)
        b.effect(opcodes.ST, (space, "v2", "f32"), (address, *words), guard=guard(predicate))
        return
    if s.stmt.atomic:
        word = _packed(k, values, s.type)
        b.effect(opcodes.RED, (space, "add", *_ATOMIC_PAIR[s.type]), (address, word), guard=guard(predicate))
    elif s.type in FP8:
        b.effect(opcodes.ST, (space, "b16"), (address, _packed_bytes(k, values, s.type)), guard=guard(predicate))
    else:
        b.effect(opcodes.ST, (space, "b32"), (address, _packed(k, values, s.type)), guard=guard(predicate))


def _packed(k: Lowering, values: list[Typed], type: ElementType) -> Operand:
    """A pair of 16-bit elements of two values."""
    if all([value.type is type for value in values]):
        halves = tuple([registers.as_register(k, value.operand) for value in values])
        return k.builder.emit(opcodes.PACK, ("b32",), B32, halves, "pair")
    low, high = [convert(k.builder, value, F32_T).operand for value in values]
    return pack(k, low, high, type.name)


def _packed_bytes(k: Lowering, values: list[Typed], type: ElementType) -> Operand:
    """A pair of fp8 elements of two values."""
    b = k.builder
    if minifloat.has_fp8(b) and all([value.type is not type for value in values]):
        low, high = [convert(b, value, F32_T).operand for value in values]
        return minifloat.encode_pair(b, low, high, type, "pair")
    low, high = [convert(b, value, type).operand for value in values]
    both = b.emit(opcodes.PRMT, ("b32",), B32, (low, high, integer(B32, 0x0040)), "pair")
    return b.cvt("u16.u32", both, "pair")


def _store_element(s: _Store, element: int, predicate: Operand) -> None:
    memory = s.k.memory
    value = _value(s, element, predicate)
    place = _place(s, element)
    if s.stmt.atomic:
        memory.store_atomic(s.stmt.dst_buffer, memory.address(s.stmt.dst_buffer, place), value, guard(predicate))
        return
    address = memory.address(s.stmt.dst_buffer, memory.swizzled(s.stmt.swizzle, place))
    memory.store(s.stmt.dst_buffer, address, value, guard(predicate))


# ------------------------------------------------------------------------------------------------------- epilogues


def _value(s: _Store, element: int, predicate: Operand) -> Typed:
    """What is stored of an element: itself, or what the epilogue makes of it and of those of the extra fragments."""
    k, stmt = s.k, s.stmt
    held = [k.names.typed(registers.names(k, name)[element]) for name in (stmt.frag, *stmt.extra_frags)]
    if stmt.epilogue is None:
        return held[0]
    k.names.push()
    for name, place in ((ELEM_ROW, s.tile.rows[element]), (ELEM_COL, s.tile.columns[element])):
        k.names.declare(name, place)
    for name, value in zip(stmt.epilogue.params, held, strict=False):
        k.names.declare(name, value)
    steps: Iterable[Any] = stmt.epilogue.body
    for step in steps:
        if id(step) in s.loaded:
            k.names.declare(step.name, s.loaded[id(step)])
            continue
        if step is s.rounding:
            k.names.declare(step.name, k.value(step.args[0]))
            continue
        what = _STEPS.get(type(step))
        if what is None:
            hint = f"an epilogue holds {', '.join(kind.__name__ for kind in _STEPS)}"
            raise UnsupportedError(f"{type(step).__name__} in an epilogue is not supported yet", hint=hint)
        k.names.declare(step.name, what(k, step, predicate))
    value = k.value(stmt.epilogue.results[0])
    k.names.pop()
    return value


def _load(k: Lowering, step: Load, predicate: Operand) -> Typed:
    """An element of a buffer: integers as they are, all floats as f32."""
    source = k.memory.type_of(step.input)
    type = element_type(step.dtype.name) if step.dtype is not None else source
    loaded = k.memory.load(step.input, k.memory.locate(step.input, step.index), step.name, guard(predicate))
    return convert(k.builder, loaded, type if type.is_integer else F32_T)


def _assign(k: Lowering, step: Assign, predicate: Operand) -> Typed:
    args = tuple([k.value(name) for name in step.args])
    type = element_type(step.dtype.name) if step.dtype is not None else None
    return elementwise.assign(k.builder, step.op.name, args, type, k.arithmetic, step.name)


def _select(k: Lowering, step: Select, predicate: Operand) -> Typed:
    """The value of the first branch whose condition holds, else of the last, as an f32."""
    values = [convert(k.builder, k.value(branch.value), F32_T) for branch in step.branches]
    chosen = values[-1]
    for branch, value in zip(reversed(step.branches[:-1]), reversed(values[:-1]), strict=True):
        chosen = k.expressions.select_typed(k.expressions.condition(branch.select), value, chosen)
    return chosen


_STEPS: dict[type, Callable[[Lowering, Any, Operand], Typed]] = {Load: _load, Assign: _assign, Select: _select}


# ------------------------------------------------------------------------------------------------ four cells at once


def _is_row_of_cells(cells: list[_Store]) -> bool:
    """Whether four plain stores of 16-bit elements are side by side in rows that are aligned to 16 bytes.

    Else they are stored one by one, each where it says.
    """
    first, add = cells[0], cells[0].k.expressions.registers.add
    return len(cells) == 4 and all(
        cell.stmt.dst_buffer == first.stmt.dst_buffer
        and cell.type in (F16_T, BF16_T)
        and cell.stmt.fragment_layout != "m8n8k4"
        and cell.stmt.swizzle == "NONE"
        and not (cell.stmt.atomic or cell.stmt.m_guard or cell.stmt.n_guard)
        and cell.row_stride.same(first.row_stride)
        and not cell.row_stride.terms
        and cell.row_stride.constant % 8 == 0
        and cell.column_stride.same(constant(1))
        and cell.flat.same(add(first.flat, constant(8 * at)))
        for at, cell in enumerate(cells)
    )


def _store_run(cells: list[_Store]) -> None:
    """Four cells side by side, in 16-byte stores.

    Lane ``t`` of a quad holds columns ``2t, 2t+1`` of each cell. In round ``r`` it sends its pair of cell ``t^r`` to
    lane ``t^r`` and receives that lane's pair of cell ``t``. So it comes to hold all eight columns of a row of cell
    ``t``.
    """
    s = cells[0]
    k, e, b = s.k, s.k.expressions, s.k.builder
    turn = [e.compare("==", lanes.in_group(k), constant(lane)) for lane in range(3)]

    def pick(words: list[Operand]) -> Operand:
        """The word of this lane's number in its quad."""
        chosen = words[3]
        for lane in (2, 1, 0):
            chosen = b.selp("b32", words[lane], chosen, turn[lane], "pick")
        return chosen

    words = [_pairs_of(cell) for cell in cells]
    for row in (0, 1):
        mine = [word[row] for word in words]
        received = [pick(mine)]
        for distance in (1, 2, 3):
            sent = Typed(pick([mine[lane ^ distance] for lane in range(4)]), element_type("u32"))
            received.append(exchange(k, sent, "bfly", integer(B32, distance), 31, ALL_LANES).operand)
        columns = tuple(pick([received[lane ^ column] for lane in range(4)]) for column in range(4))
        place = e.registers.add(s.flat, e.multiply(s.tile.rows[2 * row], s.row_stride))
        place = e.registers.add(place, e.registers.scale(lanes.in_group(k), 8))
        k.memory.align(s.stmt.dst_buffer, place, 8)
        space = k.memory.store_space(s.stmt.dst_buffer)
        b.effect(opcodes.ST, (space, "v4", "b32"), (k.memory.address(s.stmt.dst_buffer, place), *columns))


def _pairs_of(s: _Store) -> list[Operand]:
    """The lane's packed pair of each row of a cell."""
    return [_packed(s.k, [_value(s, element, TRUE) for element in (row, row + 1)], s.type) for row in (0, 2)]
