"""``wgmma``: products that the four warps of a warpgroup issue together and that go on by themselves.

A warp's part of the 64 x n accumulators are n / 8 ordinary accumulators of 16 x 8 side by side. Which of them products
hold, from their fence to the wait, is :mod:`.flights`'; the operands in shared memory are named by descriptors of 64
bits. Source: ``Wgmma*`` of ``emmy.compiler.ir.kernel.ir``; PTX ISA, "Asynchronous warpgroup level matrix instructions"
and "Matrix descriptor".

Products read shared memory through the async proxy: what threads wrote themselves (``st``, ``cp.async``) needs a fence
between, also where a barrier comes between (PTX ISA, "Async proxy"). Emmy's CUDA has none; here it stands before
``wgmma.fence``.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from emmy.compiler.ir.kernel.ir import WgmmaCommit, WgmmaDescriptor, WgmmaFence, WgmmaMma, WgmmaWait

from ptxc.errors import InputError, UnsupportedError
from ptxc.frontend.dtypes import F32_T, ElementType, element_type
from ptxc.frontend.fragments import registers
from ptxc.frontend.scope import Typed
from ptxc.frontend.swizzles import hardware
from ptxc.ir import opcodes
from ptxc.ir.types import B32, B64, PRED
from ptxc.ir.values import FALSE, TRUE, Operand, Sym, Value, integer

if TYPE_CHECKING:
    from ptxc.frontend.lower import Lowering

#: Addresses and offsets in a descriptor count 16 bytes, in 14 bits.
_UNIT_SHIFT, _FIELD = 4, 14
#: What shared memory a warpgroup's product may find written otherwise than by bulk copies.
_WRITES = (opcodes.ST, opcodes.CP_ASYNC, opcodes.BAR, opcodes.BAR_WARP)


def descriptor(k: Lowering, stmt: WgmmaDescriptor, path: str) -> None:
    """``name``: where a matrix begins in shared memory, and how far apart its core matrices of 8 x 16 bytes are."""
    swizzle = hardware(stmt.swizzle)
    array = k.signature.shared.get(stmt.smem)
    if array is None:
        raise InputError(f"{stmt.smem!r} is no shared array", hint="a descriptor names shared memory")
    if array.align < swizzle.align and swizzle.align > 1 << _UNIT_SHIFT:
        hint = f"a slab of the swizzle {stmt.swizzle} is aligned to {swizzle.align}"
        raise InputError(f"{stmt.smem!r} is aligned to {array.align} bytes", hint=hint)
    bits = swizzle.layout << 62
    for name, offset, place in (("leading", stmt.lbo_bytes, 16), ("stride", stmt.sbo_bytes, 32)):
        if not isinstance(offset, int) or offset % (1 << _UNIT_SHIFT) or not 0 <= offset < 1 << _FIELD + _UNIT_SHIFT:
            raise InputError(f"a {name} byte offset of {offset}", hint="a multiple of 16 below 262144")
        bits |= offset >> _UNIT_SHIFT << place
    flat = k.memory.flat_index(stmt.smem, () if stmt.smem_index is None else (stmt.smem_index,))
    k.memory.align(stmt.smem, flat, (1 << _UNIT_SHIFT) // k.memory.type_of(stmt.smem).nbytes)
    held = math.prod(array.extents)
    if flat.lo >= held:
        raise InputError(f"a matrix begins at element {flat.lo} of {stmt.smem!r}", hint=f"it has {held}")
    base, offset = k.memory.address(stmt.smem, flat)
    if offset < 0 or offset % (1 << _UNIT_SHIFT):
        raise InputError(f"a matrix begins at byte {offset} of {stmt.smem!r}", hint="it begins at a multiple of 16")
    value = _descriptor(k, base, bits)
    if offset:
        # The address stays below 2^18: nothing is carried out of its field.
        step = integer(B64, offset >> _UNIT_SHIFT)
        value = k.builder.binary(opcodes.ADD, "s64", value, step, stmt.name)
    k.matrices[stmt.name] = k.memory.type_of(stmt.smem)
    k.declare(stmt.name, Typed(value, element_type("u64")))


def _descriptor(k: Lowering, base: Value | Sym, bits: int) -> Value:
    """The descriptor of a matrix at ``base``."""
    e, b = k.expressions, k.builder

    def write() -> Value:
        address = b.unary(opcodes.MOV, "u32", base, base.name) if isinstance(base, Sym) else base
        field = (address, integer(B32, _UNIT_SHIFT), integer(B32, _FIELD))
        start = b.cvt("u64.u32", b.emit(opcodes.BFE, ("u32",), B32, field, "start"), "start")
        return b.binary(opcodes.OR, "b64", start, integer(B64, bits), "matrix")

    return e.memoised(("matrix", base, bits), write)


def fence(k: Lowering, stmt: WgmmaFence, path: str) -> None:
    """What happened to registers and shared memory so far comes before the products that follow."""
    if k.signature.written_operands and _unordered(k):
        k.builder.effect(opcodes.FENCE_ASYNC, ("shared::cta",))
    k.flights.fence()


def _unordered(k: Lowering) -> bool:
    """Whether something was written since the last fence of the async proxy, as far as the block tells."""
    for instr in reversed(k.builder.block.instrs):
        if instr.op is opcodes.FENCE_ASYNC:
            return False
        if instr.op in _WRITES:
            return True
    return True


def multiply(k: Lowering, stmt: WgmmaMma, path: str) -> None:
    """``c += a * b``, or ``c = a * b`` without ``scale_d``."""
    mods = ("sync", "aligned", f"m64n{stmt.shape[1]}k16", "f32", stmt.ab_dtype, stmt.ab_dtype)
    if mods not in opcodes.WGMMA.forms:
        raise UnsupportedError(f"wgmma of {stmt.ab_dtype} is not supported yet", hint="of f16 and bf16 it is")
    if not {stmt.scale_d, stmt.trans_a, stmt.trans_b} <= {0, 1}:
        flags = f"scale_d={stmt.scale_d}, trans_a={stmt.trans_a}, trans_b={stmt.trans_b}"
        raise InputError(f"wgmma with {flags}", hint="each is 0 or 1")
    type = element_type(stmt.ab_dtype)
    names = [name for fragment in stmt.c_frags for name in _held(k, fragment, "c", F32_T)]
    if len(set(names)) < len(names):
        raise InputError("wgmma adds to an accumulator twice", hint="name as many different fragments as there are")
    wide, scale = _matrix(k, stmt.b_desc, type), _scale(k, stmt.scale_d)
    one, transposed = integer(B32, 1), integer(B32, stmt.trans_b)
    rest: tuple[Operand, ...]
    if stmt.a_frag is None:
        op = opcodes.WGMMA
        rest = (_matrix(k, stmt.a_desc or "", type), wide, scale, one, one, integer(B32, stmt.trans_a), transposed)
    else:
        op = opcodes.WGMMA_RS
        names += _held(k, stmt.a_frag, "a", type)
        rest = (wide, scale, one, one, transposed)
    taken = k.flights.take(names)
    results = tuple([k.kernel.value(value.type, value.hint) for value in taken])
    k.builder.multi(op, mods, results, (*taken, *rest))
    k.flights.give(names, list(results))


def _held(k: Lowering, name: str, role: str, type: ElementType) -> tuple[str, ...]:
    """The registers of a fragment of the product: four f32 of an accumulator, four packed pairs of A."""
    registers.expect(k, name, role, type, 4)
    return registers.names_in_flight(k, name)


def _matrix(k: Lowering, name: str, type: ElementType) -> Operand:
    """The descriptor ``name``, which must be one of a matrix of ``type``."""
    value = k.value(name)
    operand, held = value.operand, value.type
    found = k.matrices.get(name)
    if found is None or held.name != "u64":
        raise InputError(f"{name!r} is no descriptor", hint="a WgmmaDescriptor before this statement makes one")
    if found is not type:
        hint = "the product takes its bits: convert what fills it, or declare both with one type"
        raise InputError(f"{name!r} describes a slab of {found.name}, not of {type.name}", hint=hint)
    return operand


def _scale(k: Lowering, scale: int) -> Value:
    """The predicate whether the accumulators count."""
    constant = TRUE if scale else FALSE
    return k.expressions.memoised(
        ("scale", scale), lambda: k.builder.emit(opcodes.MOV, ("pred",), PRED, (constant,), "scale")
    )


def commit(k: Lowering, stmt: WgmmaCommit, path: str) -> None:
    """The products so far become one group."""
    k.builder.effect(opcodes.WGMMA_COMMIT, ("sync", "aligned"))


def wait(k: Lowering, stmt: WgmmaWait, path: str) -> None:
    """Wait until at most ``group`` groups are pending."""
    if not isinstance(stmt.group, int) or not 0 <= stmt.group < 8:
        raise InputError(f"a wait for all but {stmt.group} groups", hint="0 to 7 may be pending")
    k.flights.wait(stmt.group)
