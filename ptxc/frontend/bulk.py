"""Bulk copies of a tensor's boxes into shared memory (TMA), and the barriers in memory that count what arrives.

A box is what one thread asks for and the hardware brings; a barrier's phase ends when as many threads have arrived,
and as many bytes, as were announced. Threads wait for the end of a phase by its parity, each in a loop of its own::

    wait:
      %done:pred = mbarrier.try_wait.parity.shared.b64 [bar], %parity
      bra %done, waited, wait

Source: ``Tma*``, ``Mbarrier*`` and ``SetMaxNReg`` of ``emmy.compiler.ir.kernel.ir``, ``_TMA_PRELUDE`` of
``emmy.compiler.ir.kernel.render``; PTX ISA, "mbarrier", "cp.async.bulk.tensor", "setmaxnreg". Emmy passes tensor maps
by address, not as ``__grid_constant__`` values, so that a launcher need not align a parameter of 128 bytes.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from emmy.compiler.ir.expr import Expr
from emmy.compiler.ir.kernel.ir import (
    MbarrierArrive,
    MbarrierArriveExpectTx,
    MbarrierInit,
    MbarrierWait,
    SetMaxNReg,
    TmaDescriptor,
    TmaLoad,
)

from ptxc.errors import InputError
from ptxc.frontend.dtypes import same_bits
from ptxc.frontend.fragments.registers import as_register
from ptxc.frontend.linear import constant
from ptxc.frontend.swizzles import of_map
from ptxc.ir import opcodes
from ptxc.ir.types import B32, B64, PRED
from ptxc.ir.values import Mem, Operand, integer

if TYPE_CHECKING:
    from ptxc.frontend.lower import Lowering

#: What shared memory that a bulk copy of a tensor fills is aligned to, in bytes.
_BOX_ALIGN = 128
#: The most arrivals and bytes that a phase can wait for.
_MOST_PENDING = 2**20 - 1


def descriptor(k: Lowering, stmt: TmaDescriptor, path: str) -> None:
    """A tensor map. It was declared with the kernel's interface; nothing happens where it stands."""


def load(k: Lowering, stmt: TmaLoad, path: str) -> None:
    """Ask for the box of ``desc`` at ``coords``; the barrier counts its bytes."""
    described = k.signature.tensor_maps.get(stmt.desc)
    address = k.memory.tensor_maps.get(stmt.desc)
    if described is None or address is None:
        raise InputError(f"there is no tensor map {stmt.desc!r}", hint="a TmaDescriptor of the kernel declares it")
    rank = len(described.box)
    if len(stmt.coords) != rank:
        raise InputError(
            f"{len(stmt.coords)} coordinates in the tensor map {stmt.desc!r}", hint=f"its boxes have {rank} dimensions"
        )
    if stmt.smem not in k.signature.shared:
        raise InputError(f"{stmt.smem!r} is no shared array", hint="a bulk copy fills shared memory")
    source, type = k.memory.type_of(described.buffer), k.memory.type_of(stmt.smem)
    if not same_bits(source, type):
        hint = "a bulk copy converts nothing: declare both with one type"
        raise InputError(f"boxes of {source.name} in {stmt.smem!r}, which is {type.name}", hint=hint)
    array, swizzle = k.signature.shared[stmt.smem], of_map(described.swizzle)
    if swizzle.mask and array.align < swizzle.align:
        hint = f"a slab of the swizzle {described.swizzle} is aligned to {swizzle.align}"
        raise InputError(f"{stmt.smem!r} is aligned to {array.align} bytes", hint=hint)
    flat, size = k.memory.flat_index(stmt.smem, stmt.smem_index), math.prod(described.box)
    held = math.prod(array.extents)
    if flat.hi < 0 or flat.lo + size > held:
        hint = f"it has {held}: begin earlier, or let the map's boxes be smaller"
        raise InputError(f"a box of {size} elements leaves {stmt.smem!r}, which it fills from {flat.lo} on", hint=hint)
    k.memory.align(stmt.smem, flat, max(1, _BOX_ALIGN // type.nbytes))
    e = k.expressions
    coordinates = tuple(as_register(k, e.register(e.integer(at), 32)) for at in reversed(stmt.coords))
    destination, barrier = k.memory.address(stmt.smem, flat), _barrier(k, stmt.mbar, stmt.mbar_slot)
    operands: tuple[Operand, ...] = (destination, address, *coordinates, barrier)
    mods = (f"{rank}d", "shared::cta", "global", "mbarrier::complete_tx::bytes")
    k.builder.effect(opcodes.BULK_TENSOR, mods, operands)


def init(k: Lowering, stmt: MbarrierInit, path: str) -> None:
    """Let a barrier's phases wait for ``count`` arrivals each."""
    count = _number(stmt.count, "arrivals")
    k.builder.effect(opcodes.MBARRIER_INIT, ("shared", "b64"), (_barrier(k, stmt.mbar, stmt.slot), count))


def arrive(k: Lowering, stmt: MbarrierArrive, path: str) -> None:
    """Arrive; what this thread read of shared memory so far, a bulk copy may overwrite then."""
    barrier = _barrier(k, stmt.mbar, stmt.slot)
    k.builder.effect(opcodes.FENCE_ASYNC, ("shared::cta",))
    k.builder.emit(opcodes.MBARRIER_ARRIVE, ("shared", "b64"), B64, (barrier,), "state")


def expect(k: Lowering, stmt: MbarrierArriveExpectTx, path: str) -> None:
    """Arrive, and let the phase wait for ``bytes_`` more."""
    barrier, count = _barrier(k, stmt.mbar, stmt.slot), _number(stmt.bytes_, "bytes")
    k.builder.effect(opcodes.FENCE_ASYNC, ("shared::cta",))
    k.builder.emit(opcodes.MBARRIER_EXPECT, ("shared", "b64"), B64, (barrier, count), "state")


def wait(k: Lowering, stmt: MbarrierWait, path: str) -> None:
    """Wait until the phase of parity ``phase`` has ended."""
    e, b = k.expressions, k.builder
    barrier, phase = _barrier(k, stmt.mbar, stmt.slot), e.integer(stmt.phase)
    if phase.hi < 0 or phase.lo > 1:
        raise InputError(f"a wait for a phase of the parity {phase.lo}", hint="a parity is 0 or 1")
    parity = e.register(phase, 32)
    again, after = b.new_block("wait"), b.new_block("waited")
    b.branch(again)
    b.start(again)
    done = b.kernel.value(PRED, "done")
    b.multi(opcodes.MBARRIER_TRY_WAIT, ("parity", "shared", "b64"), (done,), (barrier, parity))
    b.branch_if(done, after, again)
    b.start(after)


def registers(k: Lowering, stmt: SetMaxNReg, path: str) -> None:
    """Let this warpgroup's threads have ``count`` registers from here on: fewer, or more that others gave back."""
    if stmt.direction not in ("inc", "dec"):
        raise InputError(f"registers cannot be set by {stmt.direction!r}", hint="it is 'inc' or 'dec'")
    if not isinstance(stmt.count, int) or not 24 <= stmt.count <= 256 or stmt.count % 8:
        raise InputError(f"a thread cannot have {stmt.count} registers", hint="24 to 256, a multiple of 8")
    # The registers that all warps begin with are the pool that "inc" waits for: those of the whole multiprocessor, as
    # Emmy counts them. Without a number of CTAs, the assembler does not know how many it is and ignores the statement.
    k.kernel.ctas = 1
    k.builder.effect(opcodes.SETMAXNREG, (stmt.direction, "sync", "aligned", "u32"), (integer(B32, stmt.count),))


def _number(count: int, noun: str) -> Operand:
    if not isinstance(count, int) or not 0 < count <= _MOST_PENDING:
        raise InputError(f"a barrier cannot wait for {count} {noun}", hint=f"1 to {_MOST_PENDING}")
    return integer(B32, count)


def _barrier(k: Lowering, name: str, slot: Expr | None) -> Mem:
    """The address of a barrier: an element of a shared array of 64-bit integers."""
    array = k.signature.shared.get(name)
    if array is None or k.memory.type_of(name).name != "u64":
        hint = "a Smem of unsigned long long declares barriers"
        raise InputError(f"{name!r} is no array of barriers in shared memory", hint=hint)
    at = constant(0) if slot is None else k.expressions.integer(slot)
    count = math.prod(array.extents)
    if at.hi < 0 or at.lo >= count:
        raise InputError(f"slot {at.lo if at.lo == at.hi else at} of {name!r}", hint=f"it has {count} barriers")
    return k.memory.address(name, at)
