"""Statements in which threads act together: barriers, asynchronous copies, shuffles, tree reductions.

Sources: ``Sync``, ``CpAsync*``, ``WarpShuffle``, ``WarpBroadcast`` and ``TreeHalve`` of ``emmy.compiler.ir.kernel.ir``,
``render_merge_program`` of ``emmy.compiler.ir.stmt.base``; PTX ISA "Parallel Synchronization and Communication".
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from emmy.compiler.ir.kernel.ir import (
    CpAsyncCommit,
    CpAsyncCopy,
    CpAsyncWait,
    Sync,
    TreeHalve,
    WarpBroadcast,
    WarpShuffle,
)

from ptxc.errors import InputError
from ptxc.frontend import elementwise
from ptxc.frontend.convert import convert
from ptxc.frontend.dtypes import F32_T, F64_T, ElementType, element_type, same_bits
from ptxc.frontend.linear import Linear, constant
from ptxc.frontend.scope import Typed
from ptxc.ir import opcodes
from ptxc.ir.types import B16, B32, B64, F32, F64
from ptxc.ir.values import FALSE, TRUE, Operand, integer

if TYPE_CHECKING:
    from ptxc.frontend.lower import Lowering

_WARP = 32
#: The mask of a whole warp.
ALL_LANES = integer(B32, -1)


def sync(k: Lowering, stmt: Sync, path: str) -> None:
    """A barrier of the CTA, of the warp, or of ``count`` threads at a numbered one."""
    if stmt.warp:
        if stmt.barrier_id:
            raise InputError("a warp's barrier has no number", hint="let barrier_id be 0, or the barrier be the CTA's")
        k.builder.effect(opcodes.BAR_WARP, (), (ALL_LANES,))
        return
    _barrier(k, stmt.barrier_id, stmt.count)


def _barrier(k: Lowering, number: int, count: int | None) -> None:
    if number == 0:
        k.builder.effect(opcodes.BAR, ("sync",), (integer(B32, 0),))
        return
    if not 0 < number < 16:
        raise InputError(f"there is no barrier {number}", hint="a CTA has barriers 0 to 15")
    if count is None or count <= 0 or count % _WARP or count > k.signature.threads:
        raise InputError(
            f"barrier {number} waits for {count} threads",
            hint=f"a numbered barrier waits for a multiple of {_WARP}, at most the CTA's {k.signature.threads}",
        )
    k.builder.effect(opcodes.BAR, ("sync",), (integer(B32, number), integer(B32, count)))


# ---------------------------------------------------------------------------------------------- asynchronous copies


def copy(k: Lowering, stmt: CpAsyncCopy, path: str) -> None:
    """``nbytes`` from global to shared memory; zeros where ``valid`` (of 16-byte copies) does not hold.

    Nothing is read there, so that the address may be anything: rows beyond the last need not be the last one's, and all
    of them share a pointer.
    """
    if stmt.nbytes not in (4, 8, 16):
        raise InputError(f"a copy of {stmt.nbytes} bytes", hint="cp.async copies 4, 8 or 16")
    e, memory = k.expressions, k.memory
    if stmt.smem not in k.signature.shared:
        raise InputError(f"{stmt.smem!r} is not a shared array", hint="cp.async copies to a Smem of the kernel")
    flat = memory.flat_index(stmt.smem, stmt.smem_index)
    if stmt.lane_index is not None:
        if len(stmt.lane_index) != 2:
            raise InputError(f"a lane index of {len(stmt.lane_index)} parts", hint="it is a row and a column")
        row, column = stmt.lane_index
        columns = constant(int(k.signature.shared[stmt.smem].extents[-1]))
        lane = e.registers.add(e.multiply(e.integer(row), columns), e.integer(column))
        flat = e.registers.add(flat, lane)
    if stmt.src in k.signature.shared:
        raise InputError(f"{stmt.src!r} is no buffer of global memory", hint="cp.async copies into shared memory")
    held, given = memory.type_of(stmt.smem), memory.type_of(stmt.src)
    if not same_bits(given, held):
        hint = "cp.async converts nothing: declare both with one type"
        raise InputError(f"a copy of {given.name} to {stmt.smem!r}, which is {held.name}", hint=hint)
    memory.align(stmt.smem, flat, max(1, stmt.nbytes // held.nbytes))
    destination = memory.address(stmt.smem, memory.swizzled(stmt.swizzle, flat))
    origin = memory.flat_index(stmt.src, stmt.src_index)
    memory.align(stmt.src, origin, max(1, stmt.nbytes // given.nbytes))
    size = integer(B32, stmt.nbytes)
    valid: Operand = TRUE
    if stmt.valid is not None and stmt.nbytes == 16:
        valid, origin = e.condition(stmt.valid), e.where(stmt.valid, origin)
    operands: tuple[Operand, ...] = (destination, memory.address(stmt.src, origin), size)
    if valid == FALSE:
        operands = (*operands, integer(B32, 0))
    elif valid != TRUE:
        operands = (*operands, k.builder.selp("b32", size, integer(B32, 0), valid, "valid"))
    cache = "cg" if stmt.nbytes == 16 else "ca"
    k.builder.effect(opcodes.CP_ASYNC, (cache, "shared", "global"), operands)


def commit(k: Lowering, stmt: CpAsyncCommit, path: str) -> None:
    """The copies so far become one group."""
    k.builder.effect(opcodes.CP_ASYNC_COMMIT)


def wait(k: Lowering, stmt: CpAsyncWait, path: str) -> None:
    """Wait until at most ``group`` groups are pending."""
    if not isinstance(stmt.group, int) or stmt.group < 0:
        raise InputError(f"a wait for {stmt.group} groups", hint="0 or more may be pending")
    k.builder.effect(opcodes.CP_ASYNC_WAIT, (), (integer(B32, stmt.group),))


# ------------------------------------------------------------------------------------------------------- shuffles


def shuffle(k: Lowering, stmt: WarpShuffle, path: str) -> None:
    """Combine a state over aligned groups of ``length`` lanes: a butterfly, or with ``prefix`` an inclusive scan.

    Each step brings another lane's state into ``state_b`` and runs ``combine_states``.
    """
    length = _lanes(stmt.length)
    _butterfly(k, stmt.state, stmt.state_b, stmt.combine_states, length, element_type(stmt.dtype.name), stmt.prefix)


def _lanes(length: Any) -> int:
    if not isinstance(length, int) or not 0 < length <= _WARP or length & (length - 1):
        raise InputError(f"a shuffle among {length} lanes", hint="a group has 1, 2, 4, 8, 16 or 32 lanes")
    return length


def _butterfly(
    k: Lowering, state: tuple[str, ...], state_b: tuple[str, ...], program: Iterable[Any], length: int,
    type: ElementType, prefix: bool,
) -> None:  # fmt: skip
    if length == 1:
        return
    e = k.expressions
    mask = k.builder.emit(opcodes.ACTIVEMASK, ("b32",), B32, (), "mask")
    distance = 1 if prefix else length // 2
    while 0 < distance < length:
        mode, clamp = ("up", (_WARP - length) << 8) if prefix else ("bfly", 31)
        others = [
            convert(k.builder, exchange(k, k.names.typed(name), mode, integer(B32, distance), clamp, mask), type)
            for name in state
        ]
        merged = _merge(k, program, state, state_b, others, type)
        if prefix:
            reached = e.compare(">=", e.modulo(e.special("tid.x"), constant(length)), constant(distance))
            merged = [
                e.select_typed(reached, new, k.names.typed(name)) for new, name in zip(merged, state, strict=True)
            ]
        for name, value in zip(state, merged, strict=True):
            k.assign(name, value)
        distance = distance * 2 if prefix else distance // 2


def _merge(
    k: Lowering, program: Iterable[Any], state: tuple[str, ...], state_b: tuple[str, ...], others: list[Typed],
    type: ElementType,
) -> list[Typed]:  # fmt: skip
    """The state after ``program``, whose assignments to the state's names update it and to others are temporaries.

    It runs in ``type``; the results are in the types that the state's names were declared with.
    """
    if len(state) != len(state_b):
        what = f"{len(state)} states are combined with {len(state_b)}"
        raise InputError(what, hint="name one of state_b for each of state")
    declared = [k.names.typed(name).type for name in state]
    k.names.push()
    for name, value, old in zip(state_b, others, state, strict=True):
        k.declare(old, k.names.typed(old))
        k.declare(name, value)
    for step in program:
        args = tuple(convert(k.builder, k.value(name), type) for name in step.args)
        value = elementwise.assign(k.builder, step.op.name, args, type, k.arithmetic, step.name)
        at = state.index(step.name) if step.name in state else -1
        k.declare(step.name, convert(k.builder, value, declared[at]) if at >= 0 else value)
    results = [k.names.typed(name) for name in state]
    k.names.pop()
    return results


def broadcast(k: Lowering, stmt: WarpBroadcast, path: str) -> None:
    """The last lane's state in each aligned group of ``length`` lanes, to all of the group."""
    length = _lanes(stmt.length)
    mask = k.builder.emit(opcodes.ACTIVEMASK, ("b32",), B32, (), "mask")
    clamp = ((_WARP - length) << 8) | 31
    for name in stmt.state:
        k.assign(name, exchange(k, k.names.typed(name), "idx", integer(B32, length - 1), clamp, mask))


def exchange(k: Lowering, value: Typed, mode: str, lane: Operand, clamp: int, mask: Operand) -> Typed:
    """Another lane's ``value``, whatever its type."""
    b, bank = k.builder, value.type.bank

    def move(word: Operand) -> Operand:
        operands = (word, lane, integer(B32, clamp), mask)
        return b.emit(opcodes.SHFL, ("sync", mode, "b32"), B32, operands, "other")

    operand = value.operand
    if bank is F32:
        word = b.emit(opcodes.BITCAST, ("b32", "f32"), B32, (operand,), "word")
        return Typed(b.emit(opcodes.BITCAST, ("f32", "b32"), F32, (move(word),), "other"), F32_T)
    if bank is B32:
        return Typed(move(operand), value.type)
    if bank is B16:
        word = b.emit(opcodes.PACK, ("b32",), B32, (operand, operand), "word")
        halves = k.kernel.values(B16, "other", 2)
        b.multi(opcodes.UNPACK, ("b32",), halves, (move(word),))
        return Typed(halves[0], value.type)
    if bank in (B64, F64):
        wide = operand if bank is B64 else b.emit(opcodes.BITCAST, ("b64", "f64"), B64, (operand,), "word")
        high = b.binary(opcodes.SHR, "b64", wide, integer(B32, 32))
        low_moved, high_moved = move(b.cvt("u32.u64", wide)), move(b.cvt("u32.u64", high))
        raised = b.binary(opcodes.SHL, "b64", b.cvt("u64.u32", high_moved), integer(B32, 32))
        joined = b.binary(opcodes.OR, "b64", raised, b.cvt("u64.u32", low_moved))
        if bank is B64:
            return Typed(joined, value.type)
        return Typed(b.emit(opcodes.BITCAST, ("f64", "b64"), F64, (joined,), "other"), F64_T)
    flag = convert(b, value, element_type("i32"))
    return convert(b, Typed(move(flag.operand), flag.type), value.type)


# ------------------------------------------------------------------------------------------------- tree reductions


def tree(k: Lowering, stmt: TreeHalve, path: str) -> None:
    """Combine ``length`` partial states in shared memory into the first; every thread then holds it.

    Keyed by ``warp`` the slab holds one partial a warp: warp 0 folds it with a butterfly, one barrier follows. Else
    threads fold the upper half onto the lower, a barrier after each step; with ``inner`` the slab is segments, folded
    slot by slot.
    """
    length = stmt.length
    if not isinstance(length, int) or length < 1 or length & (length - 1):
        raise InputError(f"a tree over {length} partial states", hint="it folds halves: 1, 2, 4, 8, ... of them")
    if not len(stmt.bufs) == len(stmt.state) == len(stmt.state_b):
        what = f"{len(stmt.bufs)} arrays, {len(stmt.state)} states and {len(stmt.state_b)} others in a tree"
        raise InputError(what, hint="each state has an array and another to be combined with")
    slots = length * (stmt.inner[1] if stmt.inner is not None else 1)
    for buffer in stmt.bufs:
        array = k.signature.shared.get(buffer)
        if array is None or math.prod(array.extents) < slots:
            raise InputError(f"{buffer!r} is no shared array of {slots} partial states", hint="a Smem declares it")
    if stmt.tid_var == "warp" and stmt.inner is None and stmt.barrier_id == 0 and length <= _WARP:
        _tree_in_warp(k, stmt)
    else:
        _tree_in_block(k, stmt, length)
    root = k.expressions.integer_of(stmt.inner[0]) if stmt.inner is not None else constant(0)
    for buffer, name in zip(stmt.bufs, stmt.state, strict=True):
        value = k.memory.load(buffer, k.memory.address(buffer, root), name)
        k.assign(name, convert(k.builder, value, k.names.typed(name).type))


def _tree_in_warp(k: Lowering, stmt: TreeHalve) -> None:
    e, b = k.expressions, k.builder
    type = element_type(stmt.dtype.name)
    tid = e.special("tid.x")
    warp, lane = e.divide(tid, constant(_WARP)), e.modulo(tid, constant(_WARP))

    def fold() -> None:
        for buffer, name in zip(stmt.bufs, stmt.state, strict=True):
            mem = k.memory.address(buffer, e.modulo(lane, constant(stmt.length)))
            k.declare(name, convert(b, k.memory.load(buffer, mem, name), type))
        _butterfly(k, stmt.state, stmt.state_b, stmt.combine_states, stmt.length, type, False)
        k.when(e.compare("==", lane, constant(0)), lambda: _store_states(k, stmt, constant(0)))

    if stmt.length > 1:
        k.when(e.compare("==", warp, constant(0)), fold)
    _barrier(k, 0, None)


def _tree_in_block(k: Lowering, stmt: TreeHalve, length: int) -> None:
    e = k.expressions
    type = element_type(stmt.dtype.name)
    thread = e.integer_of(stmt.tid_var)
    scale = stmt.inner[1] if stmt.inner is not None else 1
    base = e.integer_of(stmt.inner[0]) if stmt.inner is not None else constant(0)
    slot = e.registers.add(e.registers.scale(thread, scale), base)
    half = length // 2
    while half:
        above = e.registers.add(slot, constant(half * scale))

        def fold(above: Linear = above) -> None:
            others = [k.memory.load(buf, k.memory.address(buf, above), sb) for buf, sb in zip(stmt.bufs, stmt.state_b)]
            for buffer, name in zip(stmt.bufs, stmt.state, strict=True):
                mine = k.memory.load(buffer, k.memory.address(buffer, slot), name)
                k.declare(name, convert(k.builder, mine, type))
            others = [convert(k.builder, other, type) for other in others]
            merged = _merge(k, stmt.combine_states, stmt.state, stmt.state_b, others, type)
            for name, value in zip(stmt.state, merged, strict=True):
                k.assign(name, value)
            _store_states(k, stmt, slot)

        k.when(e.compare("<", thread, constant(half)), fold)
        _barrier(k, stmt.barrier_id, stmt.barrier_count)
        half //= 2


def _store_states(k: Lowering, stmt: TreeHalve, at: Linear) -> None:
    for buffer, name in zip(stmt.bufs, stmt.state, strict=True):
        k.memory.store(buffer, k.memory.address(buffer, at), k.names.typed(name))
