"""Block scales: what the product of fp4 takes beside its fragments, and operands that are scaled while they are loaded.

A tensor whose elements are too narrow for their range has one scale for each block of k. Either ``mma`` itself applies
the scales (``BlockScaleLoad``), or they are multiplied into a fragment of 16-bit elements (``LdmatrixLoad`` with a
``scale_buffer``): then B's slab is stored n by k, as bytes, and each lane decodes what it holds of it.

Sources: ``emmy_mma_load_sfa_f4``, ``emmy_mma_load_sfb_f4`` and the loaders ``f4s`` and ``f8s`` of Emmy's CUDA; PTX ISA,
"Block Scaling for mma.sync".
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from emmy.compiler.ir.kernel.ir import BlockScaleLoad, LdmatrixLoad

from ptxc.errors import InputError, UnsupportedError
from ptxc.frontend import minifloat
from ptxc.frontend.convert import convert
from ptxc.frontend.dtypes import BF16_T, E2M1X2_T, E4M3_T, F16_T, F32_T, FP8, ElementType
from ptxc.frontend.fragments import lanes, registers
from ptxc.frontend.fragments.direct import load_bytes
from ptxc.frontend.fragments.pairs import pack, unpack
from ptxc.frontend.fragments.raw import four_bytes
from ptxc.frontend.fragments.shared import check_rows, row_stride, stated_stride
from ptxc.frontend.linear import Linear, constant
from ptxc.frontend.scope import Typed
from ptxc.ir import opcodes
from ptxc.ir.types import B32, F32
from ptxc.ir.values import Operand, Value, integer

if TYPE_CHECKING:
    from ptxc.frontend.lower import Lowering

#: Which threads of a quad supply the scales of A (this one and the next) and of B. PTX calls them thread-ids; they must
#: be what ``mma`` is told.
THREAD_A, THREAD_B = 0, 1
#: The bytes of a scale register: one for each of the four blocks that the product spans.
_BLOCKS = 4


def load_scales(k: Lowering, stmt: BlockScaleLoad, path: str) -> None:
    """``frag`` holds the four scales of a row of A, or of a column of B, in the lanes that supply it; elsewhere 0.

    Lane ``l`` supplies row ``l / 4 + 8 * (l % 4)`` of A where ``l % 4`` is 0 or 1, and column ``l / 4`` of B where it
    is 1.
    """
    e = k.expressions
    source = k.memory.type_of(stmt.src_buffer)
    if source is not E4M3_T:
        raise InputError(f"{stmt.src_buffer!r} is {source.name}", hint="the scales of fp4 are f8e4m3 without a sign")
    if stmt.role not in ("a", "b"):
        raise InputError(f"scales of the role {stmt.role!r}", hint="they are those of a or b")
    if registers.fragment(k, stmt.frag).registers:
        raise InputError(f"{stmt.frag!r} has several registers", hint="scales are a fragment of nregs=0")
    row, quad = lanes.group(k), lanes.in_group(k)
    if stmt.role == "a":
        row = e.registers.add(row, quad, 8)
        supplies = e.compare("<", quad, constant(THREAD_A + 2))
    else:
        supplies = e.compare("==", quad, constant(THREAD_B))
    flat = k.memory.flat_index(stmt.src_buffer, stmt.src_index)
    first = e.registers.add(flat, e.multiply(row, stated_stride(stmt.ldm)))
    places = [e.registers.add(first, constant(at)) for at in range(_BLOCKS)]
    registers.assign(k, stmt.frag, [four_bytes(k, stmt.src_buffer, places, supplies)])


def load(k: Lowering, stmt: LdmatrixLoad, type: ElementType) -> None:
    """Fill a fragment of B of the 16-bit elements ``type`` with scaled elements of a slab of bytes."""
    source, scales = k.memory.type_of(stmt.src_buffer), k.memory.type_of(str(stmt.scale_buffer))
    if stmt.role != "b" or not stmt.b_trans or type not in (F16_T, BF16_T):
        raise UnsupportedError(
            f"a scaled load of {type.name} for {stmt.role}", hint="B, stored n by k, is scaled into f16 or bf16"
        )
    if source is E2M1X2_T:
        expected = type
    elif source in FP8:
        expected = F32_T
        check_rows(k, stmt, 2, "a lane reads two bytes at once")
    else:
        raise InputError(f"{stmt.src_buffer!r} is {source.name}", hint="a scaled slab holds fp8 or packed fp4")
    if scales is not expected:
        raise InputError(
            f"the scales {stmt.scale_buffer!r} are {scales.name}",
            hint=f"those of {source.name} that becomes {type.name} are {expected.name}",
        )
    scale = _scale(k, stmt)
    fill = _scaled_fp4 if source is E2M1X2_T else _scaled_fp8
    registers.assign(k, stmt.frag, [fill(k, stmt, source, type, scale, half) for half in (0, 1)])


def _scale(k: Lowering, stmt: LdmatrixLoad) -> Typed:
    """The scale of the lane's column: all that it holds of k lies in one block."""
    e, name = k.expressions, str(stmt.scale_buffer)
    flat = e.registers.add(
        k.memory.flat_index(name, stmt.scale_index), e.multiply(lanes.group(k), stated_stride(stmt.scale_ldm))
    )
    return k.memory.load(name, k.memory.address(name, flat), "scale")


def _column(k: Lowering, stmt: LdmatrixLoad, along: Linear) -> Linear:
    """The offset of the byte ``along`` of the lane's column."""
    e = k.expressions
    flat = k.memory.flat_index(stmt.src_buffer, stmt.src_index)
    flat = e.registers.add(flat, e.multiply(lanes.group(k), row_stride(k, stmt.src_buffer, stmt.ldm)))
    return e.registers.add(flat, along)


def _scaled_fp8(
    k: Lowering, stmt: LdmatrixLoad, source: ElementType, type: ElementType, scale: Typed, half: int
) -> Operand:
    """Two elements that follow each other: times the scale in f32, then rounded once."""
    e, b = k.expressions, k.builder
    place = _column(k, stmt, e.registers.add(e.registers.scale(lanes.in_group(k), 2), constant(8 * half)))
    pair = load_bytes(k, stmt.src_buffer, place)
    halves = unpack(k, minifloat.decode_pair(b, pair, source))
    low, high = (
        b.emit(opcodes.MUL, k.arithmetic.mods("f32"), F32, (convert(b, value, F32_T).operand, scale.operand), "scaled")
        for value in halves
    )
    return pack(k, low, high, type.name)


def _scaled_fp4(
    k: Lowering, stmt: LdmatrixLoad, source: ElementType, type: ElementType, scale: Typed, half: int
) -> Operand:
    """The two elements of a byte, times the scale in the fragment's type.

    An e2m1's magnitude in the place of a 16-bit float's last exponent bits and first fraction bit is the number without
    the exponent's bias; a product with a power of two puts that right, denormals too.
    """
    e, b = k.expressions, k.builder
    place = _column(k, stmt, e.registers.add(lanes.in_group(k), constant(4 * half)))
    name = stmt.src_buffer
    byte = b.emit(opcodes.LD, (*k.memory.space(name), "u8"), B32, (k.memory.address(name, place),), "byte")
    # The low code in the low half, the high one in the high half.
    codes = b.emit(opcodes.MAD, ("lo", "u32"), B32, (byte, integer(B32, 1 << 12), byte), "codes")
    shift, unbias = (9, 0x7400) if type is F16_T else (6, 0x7E80)
    magnitude = b.binary(opcodes.AND, "b32", codes, integer(B32, 0x00070007), "codes")
    magnitude = b.binary(opcodes.SHL, "b32", magnitude, integer(B32, shift), "pair")
    sign = b.binary(opcodes.AND, "b32", codes, integer(B32, 0x00080008), "sign")
    sign = b.binary(opcodes.SHL, "b32", sign, integer(B32, 12), "sign")
    pair = b.binary(opcodes.OR, "b32", magnitude, sign, "pair")
    values = _multiply_pairs(k, pair, integer(B32, unbias * 0x10001), type)
    both = b.emit(opcodes.PACK, ("b32",), B32, (scale.operand, scale.operand), "scales")
    return _multiply_pairs(k, values, both, type)


def _multiply_pairs(k: Lowering, a: Operand, c: Operand, type: ElementType) -> Value:
    """The product of pairs of f16 or bf16. That of bf16 is a sum with -0: a product alone came with sm_90."""
    b = k.builder
    factor = registers.as_register(k, c)
    if type is F16_T:
        return b.emit(opcodes.MUL, ("rn", "f16x2"), B32, (a, factor), "pair")
    zero = registers.as_register(k, integer(B32, 0x80008000))
    return b.emit(opcodes.FMA, ("rn", "bf16x2"), B32, (a, factor, zero), "pair")
