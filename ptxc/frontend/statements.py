"""What each statement without a body means, and the table of all statements.

Sources: ``emmy.compiler.ir.stmt.leaves`` and ``emmy.compiler.ir.kernel.ir``, each class's ``render``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from emmy.compiler.ir.expr import Literal
from emmy.compiler.ir.kernel.ir import (
    BlockScaleLoad,
    CpAsyncCommit,
    CpAsyncCopy,
    CpAsyncWait,
    FragmentApply,
    FragmentPromote,
    FragmentRepack,
    FragmentRowReduce,
    LdmatrixLoad,
    MbarrierArrive,
    MbarrierArriveExpectTx,
    MbarrierInit,
    MbarrierWait,
    MmaSyncPtx,
    RegFragment,
    RegStore,
    SetMaxNReg,
    Smem,
    Sync,
    Tile,
    TmaDescriptor,
    TmaLoad,
    TreeHalve,
    WarpBroadcast,
    WarpShuffle,
    WgmmaCommit,
    WgmmaDescriptor,
    WgmmaFence,
    WgmmaMma,
    WgmmaWait,
)
from emmy.compiler.ir.stmt import Accum, Assign, Cond, Init, Let, Load, Loop, Select, StridedLoop, Write, ZeroPrologue

from ptxc.errors import InputError
from ptxc.frontend import bulk, control, convert, elementwise, threads
from ptxc.frontend.dtypes import F32_T, I32_T, element_type
from ptxc.frontend.fragments import apply, multiply, registers, scaled, store, warpgroup
from ptxc.frontend.linear import Linear, constant
from ptxc.frontend.memory import vector_width
from ptxc.frontend.scope import Typed
from ptxc.frontend.volta_slabs import RUNS
from ptxc.ir import opcodes
from ptxc.ir.types import B32
from ptxc.ir.values import Value, integer

if TYPE_CHECKING:
    from ptxc.frontend.lower import Lowering


def load(k: Lowering, stmt: Load, path: str) -> None:
    """``names = input[index...]``: consecutive elements, in one access where their type has vectors."""
    source = k.memory.type_of(stmt.input)
    type = element_type(stmt.dtype.name) if stmt.dtype is not None else source
    names: tuple[str, ...] = stmt.names
    if len(names) == 1:
        mem = k.memory.locate(stmt.input, stmt.index)
        k.declare(names[0], convert.convert(k.builder, k.memory.load(stmt.input, mem, names[0]), type))
        return
    page = k.signature.paged.get(stmt.input)
    if not vector_width(type, len(names)) or type is not source or (page is not None and not page.whole):
        for at, name in enumerate(names):
            mem = k.memory.locate(stmt.input, stmt.index, plus=at)
            k.declare(name, convert.convert(k.builder, k.memory.load(stmt.input, mem, name), type))
        return
    _load_vector(k, stmt)


def _load_vector(k: Lowering, stmt: Load) -> None:
    """A vector load. Split over a loop's back edge, its halves are a load of the packed registers (kept under names
    of their own) and, later, the elements out of them."""
    type = k.memory.type_of(stmt.input)
    names: tuple[str, ...] = stmt.names
    words = len(names) if type is F32_T else len(names) // 2
    packed = [f"_v_{names[0]}__{at}" for at in range(words)]
    word_type = F32_T if type is F32_T else element_type("u32")
    if stmt.carried != "unpack":
        mem = k.memory.locate(stmt.input, stmt.index, count=len(names))
        hint = f"{names[0]}.v" if words < len(names) else names[0]
        ahead = stmt.carried == "load" and k.expressions.changes(k.memory.flat_index(stmt.input, stmt.index))
        loaded = k.memory.load_vector(stmt.input, mem, type, len(names), hint, ahead=ahead)
        for name, word in zip(packed, loaded, strict=True):
            (k.assign if stmt.carried else k.declare)(name, Typed(word, word_type))
        if stmt.carried:
            return
    words_now = [k.value(name).operand for name in packed]
    for name, element in zip(names, k.memory.unpack(words_now, type, names), strict=True):
        (k.assign if stmt.carried else k.declare)(name, element)


def write(k: Lowering, stmt: Write, path: str) -> None:
    """``output[index...] = values``, or an atomic addition; in one access where the type has vectors.

    A slab's layout may keep fewer elements together: then they are as many accesses as it takes.
    """
    values = [k.value(name) for name in stmt.values]
    type = k.memory.type_of(stmt.output)
    if stmt.atomic:
        mem = k.memory.locate(stmt.output, stmt.index, stmt.swizzle)
        k.memory.store_atomic(stmt.output, mem, values[0])
        return
    page = k.signature.paged.get(stmt.output)
    if len(values) > 1 and vector_width(type, len(values)) and (page is None or page.whole):
        run = min(len(values), RUNS.get(stmt.swizzle, len(values)))
        for at in range(0, len(values), run):
            mem = k.memory.locate(stmt.output, stmt.index, stmt.swizzle, plus=at, count=run)
            together = [convert.convert(k.builder, value, type) for value in values[at : at + run]]
            k.memory.store_vector(stmt.output, mem, together)
        return
    for at, value in enumerate(values):
        mem = k.memory.locate(stmt.output, stmt.index, stmt.swizzle, plus=at)
        k.memory.store(stmt.output, mem, value)


def assign(k: Lowering, stmt: Assign, path: str) -> None:
    """``name = op(args)``."""
    args = tuple([k.value(name) for name in stmt.args])
    type = element_type(stmt.dtype.name) if stmt.dtype is not None else None
    value = elementwise.assign(k.builder, stmt.op.name, args, type, k.arithmetic, stmt.name)
    k.declare(stmt.name, value)


def accum(k: Lowering, stmt: Accum, path: str) -> None:
    """``name = op(base, value)``, the base being ``name`` itself unless another is named."""
    type = element_type(stmt.dtype.name) if stmt.dtype is not None else F32_T
    base = k.value(stmt.base if stmt.base is not None else stmt.name)
    total = elementwise.combine(k.builder, stmt.op.name, base, k.value(stmt.value), type, k.arithmetic, stmt.name)
    declared = k.names.typed(stmt.name).type
    k.assign(stmt.name, convert.convert(k.builder, total, declared))


def init(k: Lowering, stmt: Init, path: str) -> None:
    """``name = identity``, a declaration."""
    k.declare(stmt.name, convert.constant(float(stmt.identity), element_type(stmt.dtype.name)))


def let(k: Lowering, stmt: Let, path: str) -> None:
    """``name = expression``; without a type it has the expression's own."""
    e = k.expressions
    if stmt.dtype is None:
        k.declare(stmt.name, e.lower(stmt.value))
        return
    type = element_type(stmt.dtype.name)
    if isinstance(stmt.value, Literal):
        k.declare(stmt.name, convert.constant(float(stmt.value.value), type))
    else:
        value = e.lower(stmt.value)
        converted = e.to(value, type)
        if isinstance(value, Linear) and type is I32_T and isinstance(converted.operand, Value) and e.bits(value) == 32:
            e.note(converted.operand, value.lo, value.hi)  # addresses need to know that a place is not negative
        k.declare(stmt.name, converted)


def select(k: Lowering, stmt: Select, path: str) -> None:
    """``name`` is the value of the first branch whose predicate holds, else of the last branch."""
    values = [k.value(branch.value) for branch in stmt.branches]
    type = elementwise.promote("add", tuple(values))
    chosen = convert.convert(k.builder, values[-1], type)
    for branch, value in zip(reversed(stmt.branches[:-1]), reversed(values[:-1]), strict=True):
        predicate = k.expressions.condition(branch.select)
        chosen = k.expressions.select_typed(predicate, convert.convert(k.builder, value, type), chosen)
    k.declare(stmt.name, chosen)


def smem(k: Lowering, stmt: Smem, path: str) -> None:
    """A shared array. It was declared with the kernel's interface; nothing happens where it stands."""


def zero_prologue(k: Lowering, stmt: ZeroPrologue, path: str) -> None:
    """Zero ``words`` 32-bit words of another kernel's accumulator, all threads of the grid together."""
    e, b = k.expressions, k.builder
    pointer = k.memory.pointers.get(stmt.dst)
    if pointer is None:
        hint = "what a kernel zeroes is among its node's outputs"
        raise InputError(f"{stmt.dst!r} is not an output of the kernel", hint=hint)
    registers = e.registers
    start = registers.add(e.special("tid.x"), registers.scale(e.special("ctaid.x"), k.signature.threads))
    step = e.register(registers.scale(e.special("nctaid.x"), k.signature.threads), 32)

    def store(index: Linear) -> None:
        mem = k.memory.global_address(pointer, index, 4)
        b.effect(opcodes.ST, ("global", "b32"), (mem, integer(B32, 0)))

    control.counted(k, start, constant(int(stmt.words)), step, store)


#: Every statement that compiles, and what lowers it.
STATEMENTS: dict[type, Callable[[Lowering, Any, str], None]] = {
    Load: load,
    Write: write,
    Assign: assign,
    Accum: accum,
    Init: init,
    Let: let,
    Select: select,
    Smem: smem,
    ZeroPrologue: zero_prologue,
    Tile: control.tile,
    Loop: control.loop,
    StridedLoop: control.strided_loop,
    Cond: control.cond,
    Sync: threads.sync,
    CpAsyncCopy: threads.copy,
    CpAsyncCommit: threads.commit,
    CpAsyncWait: threads.wait,
    WarpShuffle: threads.shuffle,
    WarpBroadcast: threads.broadcast,
    TreeHalve: threads.tree,
    RegFragment: registers.declare,
    BlockScaleLoad: scaled.load_scales,
    LdmatrixLoad: multiply.load,
    MmaSyncPtx: multiply.multiply,
    FragmentPromote: multiply.promote,
    FragmentRepack: multiply.repack,
    FragmentApply: apply.apply,
    FragmentRowReduce: apply.reduce_rows,
    RegStore: store.store,
    TmaDescriptor: bulk.descriptor,
    TmaLoad: bulk.load,
    MbarrierInit: bulk.init,
    MbarrierArrive: bulk.arrive,
    MbarrierArriveExpectTx: bulk.expect,
    MbarrierWait: bulk.wait,
    SetMaxNReg: bulk.registers,
    WgmmaDescriptor: warpgroup.descriptor,
    WgmmaFence: warpgroup.fence,
    WgmmaMma: warpgroup.multiply,
    WgmmaCommit: warpgroup.commit,
    WgmmaWait: warpgroup.wait,
}
