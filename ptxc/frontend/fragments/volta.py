"""The fragments of ``mma.m8n8k4`` (sm_70): loads from memory, and exchanges between lanes.

One instruction is four products of 8 x 8 x 4, each of the lanes of which ``lane / 4 % 4`` is the same; Emmy lets them
be the quarters of a square of 16 x 16. A lane holds four elements along k of one row of A, or one column of B.

Source: ``_MMA_M8N8K4_PRELUDE`` of ``emmy.compiler.ir.kernel.render``; PTX ISA, "Matrix Fragments for mma.m8n8k4 with
.f16 floating point type".
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from emmy.compiler.ir.kernel.ir import FragmentPromote, FragmentRepack, LdmatrixLoad

from ptxc.errors import InputError, UnsupportedError
from ptxc.frontend.dtypes import F16_T, F32_T, element_type
from ptxc.frontend.fragments import lanes, registers
from ptxc.frontend.fragments.direct import Tile, guard, pair
from ptxc.frontend.fragments.pairs import add_halves, pack
from ptxc.frontend.fragments.shared import check_rows, row_stride
from ptxc.frontend.linear import Linear, constant
from ptxc.frontend.scope import Typed
from ptxc.frontend.threads import ALL_LANES, exchange
from ptxc.frontend.volta_slabs import CONGRUOUS, CROSSWISE
from ptxc.ir import opcodes
from ptxc.ir.kernel import Guard
from ptxc.ir.types import B32
from ptxc.ir.values import FALSE, Const, Mem, Operand, Value, integer

if TYPE_CHECKING:
    from ptxc.frontend.lower import Lowering


# ----------------------------------------------------------------------------------------------------------- loads


def load(k: Lowering, stmt: LdmatrixLoad) -> None:
    """Fill a fragment of f16, or two adjacent ones, from shared or global memory."""
    if stmt.staged and stmt.swizzle != "NONE":
        _load_pair(k, stmt)
        return
    if stmt.pair_frag is not None:
        raise InputError(
            "two fragments from a slab that is row-major", hint=f"pairs lie in {CROSSWISE} and {CONGRUOUS}"
        )
    tile = Tile(k, stmt, _outer(k, stmt), constant(0))
    if stmt.staged and tile.contiguous:
        check_rows(k, stmt, 4, "a lane reads four elements at once")
    source = k.memory.type_of(stmt.src_buffer)
    if tile.contiguous and source in (F16_T, F32_T) and (stmt.staged or (_in_fours(tile) and stmt.k_zero is None)):
        words = _four(k, stmt, tile)
    else:
        words = [pair(tile, 0, at, source, F16_T) for at in (0, 2)]
    registers.assign(k, stmt.frag, words)


def _outer(k: Lowering, stmt: LdmatrixLoad) -> Linear:
    """Which row of A, or column of B, the lane holds."""
    return lanes.of_bits(k, low=1, b3=8, b4=4) if stmt.role == "a" else lanes.of_bits(k, low=1, b2=8, b4=4)


def _in_fours(tile: Tile) -> bool:
    """Whether the lane's four elements begin at a multiple of four elements of the buffer, whatever row they are of."""
    parts = (tile.flat, tile.stride)
    return all(part.constant % 4 == 0 and all(c % 4 == 0 for c in part.terms.values()) for part in parts)


def _four(k: Lowering, stmt: LdmatrixLoad, tile: Tile) -> list[Operand]:
    """The lane's four elements in one load, or, of f32, two of them."""
    if tile.present == FALSE:
        return [integer(B32, 0)] * 2
    place = tile.place(tile.row(0), constant(0))
    source = k.memory.type_of(stmt.src_buffer)
    k.memory.align(stmt.src_buffer, place, 4)
    mem, inside = k.memory.address(stmt.src_buffer, place), guard(tile.present)
    if source is F16_T:
        return _words(k, stmt.src_buffer, mem, 2, inside)
    pairs = (_words(k, stmt.src_buffer, Mem(mem.base, mem.offset + at), 2, inside) for at in (0, 8))
    return [pack(k, low, high, F16_T.name) for low, high in pairs]


def _words(k: Lowering, buffer: str, mem: Mem, count: int, inside: Guard | None = None) -> list[Operand]:
    """So many registers in one load; zeros where ``inside`` does not hold."""
    type = F32_T.bank if k.memory.type_of(buffer) is F32_T else B32
    results = k.kernel.values(type, "frag", count)
    k.builder.multi(opcodes.LD, (*k.memory.space(buffer), f"v{count}", type.name), results, (mem,), guard=inside)
    return list(results)


def _load_pair(k: Lowering, stmt: LdmatrixLoad) -> None:
    """Two adjacent fragments in one load of 16 bytes, from a slab in the layout that it was made for."""
    shared = k.signature.shared.get(stmt.src_buffer)
    if shared is None or stmt.pair_frag is None or len(stmt.src_index) != 2 or len(shared.extents) != 2:
        hint = "it takes a shared array of two dimensions, and two fragments"
        raise InputError(f"a load from a slab of the layout {stmt.swizzle!r}", hint=hint)
    if k.memory.type_of(stmt.src_buffer) is not F16_T:
        raise InputError(f"a slab of {shared.dtype} in the layout {stmt.swizzle!r}", hint="such slabs are of f16")
    along_k = stmt.role == "a" or stmt.b_trans
    if stmt.swizzle != (CROSSWISE if along_k else CONGRUOUS):
        raise UnsupportedError(
            f"a fragment of {stmt.role} from the layout {stmt.swizzle!r} is not supported yet",
            hint=f"A and a transposed B are read from {CROSSWISE}, another B from {CONGRUOUS}",
        )
    row, column = (k.expressions.integer(index) for index in stmt.src_index)
    place = _crosswise(k, stmt, row, column, int(shared.extents[0])) if along_k else _congruous(k, stmt, row, column)
    k.memory.align(stmt.src_buffer, place, 8)
    words = _words(k, stmt.src_buffer, k.memory.address(stmt.src_buffer, place), 4)
    if along_k:
        words = _halves_in_order(k, column, words)
    registers.assign(k, stmt.frag, words[:2])
    registers.assign(k, stmt.pair_frag, words[2:])


def _crosswise(k: Lowering, stmt: LdmatrixLoad, row: Linear, at: Linear, rows: int) -> Linear:
    """Where the lane's two runs of four begin, for the tile that begins at ``row`` and at ``at`` of k.

    Which of two places next to each other depends on bits of the lane's number and of k. What bit 2 is for A, bit 3 is
    for B.
    """
    e = k.expressions
    odd = e.modulo(e.divide(at, constant(16)), constant(2))
    if odd.terms:
        own = _own_places(k, stmt.role, odd)
    else:
        own = e.once(("crosswise", stmt.role, odd.constant), lambda: lanes.in_one(k, _own_places(k, stmt.role, odd)))
    return e.registers.add(e.registers.add(own, row, 4), e.divide(at, constant(4)), 4 * rows)


def _own_places(k: Lowering, role: str, odd: Linear) -> Linear:
    """How far from the tile's first element the lane's runs begin; ``odd``: whether bit 4 of k is set."""
    e = k.expressions
    half = e.bitwise("^", lanes.bit(k, 2 if role == "a" else 3), lanes.bit(k, 4))
    if odd.terms or odd.constant:
        half = e.bitwise("^", half, odd)
    return e.registers.add(lanes.of_bits(k, low=16, b4=64), half, 8)


def _halves_in_order(k: Lowering, at: Linear, words: list[Operand]) -> list[Operand]:
    """The two runs that a crosswise load brings: the second is first where bit 3 of k is set."""
    e = k.expressions
    swapped = e.compare("!=", e.modulo(e.divide(at, constant(8)), constant(2)), constant(0))
    if isinstance(swapped, Const):
        return words if swapped == FALSE else words[2:] + words[:2]
    return [k.builder.selp("b32", words[word ^ 2], words[word], swapped, "frag") for word in range(4)]


def _congruous(k: Lowering, stmt: LdmatrixLoad, row: Linear, column: Linear) -> Linear:
    """Where the lane's eight columns of a row begin, for the tile that begins at ``row`` of k and ``column``."""
    e = k.expressions
    stride = row_stride(k, stmt.src_buffer, stmt.ldm).constant

    def lanes_place() -> Linear:
        in_row = e.modulo(e.divide(lanes.lane(k), constant(8)), constant(4))
        vector = e.bitwise("^", lanes.in_group(k), in_row)
        return lanes.in_one(k, e.registers.add(e.registers.scale(in_row, stride), vector, 8))

    own = e.once(("congruous", stride), lanes_place)
    return e.registers.add(e.registers.add(own, row, stride), column)


# ------------------------------------------------------------------------------------------- exchanges between lanes


def promote(k: Lowering, stmt: FragmentPromote) -> None:
    """Add a packed f16 accumulator to its f32 one, and begin it anew at zero.

    The f16 accumulator of a lane is a whole row; the f32 one is halves of two. Of each pair of words, a lane keeps one
    and trades the other with the lane whose number differs in bit 1.
    """
    b = k.builder
    held = registers.operands(k, stmt.src)
    totals = registers.read(k, stmt.dst)
    second = _is_set(k, 1)
    sums: list[Operand] = []
    for low, high in (held[:2], held[2:]):
        kept, sent = b.selp("b32", high, low, second, "kept"), b.selp("b32", low, high, second, "sent")
        received = _exchange(k, sent, "bfly", integer(B32, 2))
        words = b.selp("b32", received, kept, second, "pair"), b.selp("b32", kept, received, second, "pair")
        for word in words:
            sums += add_halves(k, word, totals[len(sums) : len(sums) + 2], registers.stem(stmt.dst))
    registers.assign(k, stmt.dst, sums)
    registers.assign(k, stmt.src, [integer(B32, 0)] * len(held))


def repack(k: Lowering, stmt: FragmentRepack) -> None:
    """Four columns (for A) or rows (for B) of an accumulator of 16 x 16, the slice ``part``, as a fragment."""
    held = [value.operand for value in registers.read(k, stmt.srcs[0])]
    registers.assign(k, stmt.frag, (_to_a if stmt.role == "a" else _to_b)(k, stmt.part, held))


def _to_a(k: Lowering, part: int, held: list[Operand]) -> list[Operand]:
    """Four columns of the lane's row of A: they are pairs of two lanes of the product that has these columns."""
    e, b = k.expressions, k.builder
    half = 4 * (part & 1)
    low, high = (pack(k, held[at], held[at + 1], "f16") for at in (half, half + 2))
    source = e.registers.add(lanes.of_bits(k, b0=1, b3=8, b4=16), constant(4 * (part >> 1)))
    words: list[Operand] = []
    for distance in (0, 2):
        lane = e.register(e.registers.add(source, constant(distance)), 32)
        first, second = (_exchange(k, word, "idx", lane) for word in (low, high))
        words.append(b.selp("b32", second, first, _is_set(k, 1), "frag"))
    return words


def _to_b(k: Lowering, part: int, held: list[Operand]) -> list[Operand]:
    """Four rows of the lane's column of B, each a half of a pair of columns that another lane has."""
    e, b = k.expressions, k.builder
    source = e.registers.add(lanes.of_bits(k, b1=2, b2=4), constant(16 * (part & 1) + 8 * (part >> 1)))
    rows = [e.register(e.registers.add(source, constant(row)), 32) for row in (0, 1)]
    # Of both pairs the low halves, or both high ones.
    picked = b.selp("b32", integer(B32, 0x7632), integer(B32, 0x5410), _is_set(k, 0), "pick")
    words: list[Operand] = []
    for at in (0, 2):
        near, far = (pack(k, held[first], held[first + 1], "f16") for first in (at, at + 4))
        pairs = [
            b.selp("b32", _exchange(k, far, "idx", lane), _exchange(k, near, "idx", lane), _is_set(k, 4), "pair")
            for lane in rows
        ]
        words.append(b.emit(opcodes.PRMT, ("b32",), B32, (*pairs, picked), "frag"))
    return words


def _is_set(k: Lowering, at: int) -> Value:
    """Whether the bit ``at`` of the lane's number is set."""
    predicate = k.expressions.compare("!=", lanes.bit(k, at), constant(0))
    assert isinstance(predicate, Value)
    return predicate


def _exchange(k: Lowering, word: Operand, mode: str, lane: Operand) -> Operand:
    """The ``word`` of another lane. All lanes of the warp take part."""
    return exchange(k, Typed(word, element_type("u32")), mode, lane, 31, ALL_LANES).operand
