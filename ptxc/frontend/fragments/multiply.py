"""``mma.sync``, and what prepares its operands from accumulators or folds them, in registers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from emmy.compiler.ir.kernel.ir import FragmentPromote, FragmentRepack, LdmatrixLoad, MmaSyncPtx

from ptxc.errors import InputError, UnsupportedError
from ptxc.frontend.dtypes import element_type
from ptxc.frontend.fragments import direct, lanes, raw, registers, scaled, shared, volta
from ptxc.frontend.fragments.pairs import add_halves, pack
from ptxc.frontend.linear import constant
from ptxc.frontend.scope import Typed
from ptxc.frontend.threads import exchange
from ptxc.ir import opcodes
from ptxc.ir.fragments import BLOCK_SCALED, mma_groups
from ptxc.ir.types import B32
from ptxc.ir.values import Operand, integer

if TYPE_CHECKING:
    from ptxc.frontend.lower import Lowering

#: The products that Emmy's atoms have, with the types of multiplicands and accumulators.
_PRODUCTS = frozenset(
    (shape, ab, c)
    for shape, pairs in {
        (8, 8, 4): (("f16", "f32"), ("f16", "f16")),
        (16, 8, 8): (("f16", "f32"), ("f16", "f16"), ("bf16", "f32")),
        (16, 8, 16): (("f16", "f32"), ("f16", "f16"), ("bf16", "f32")),
        (16, 8, 32): (("e4m3", "f32"), ("e5m2", "f32")),
        (16, 8, 64): (("e2m1", "f32"),),
    }.items()
    for ab, c in pairs
)


def load(k: Lowering, stmt: LdmatrixLoad, path: str) -> None:
    """Fill a fragment, or two, from memory."""
    if stmt.fragment_layout == "m8n8k4" and not stmt.byte_slab:
        volta.load(k, stmt)
        return
    if stmt.fragment_layout != "m16n8k16":
        raise UnsupportedError("this load of a fragment is not supported yet")
    type = element_type(registers.fragment(k, stmt.frag).dtype)
    if stmt.byte_slab:
        if stmt.pair_frag is not None or stmt.swizzle != "NONE" or not stmt.staged:
            raise InputError("a slab of bytes that is paired, swizzled or not in shared memory")
        if stmt.scale_buffer is not None:
            scaled.load(k, stmt, type)
            return
    if type.nbytes == 1:
        raw.load(k, stmt, type)
    elif stmt.staged and not stmt.byte_slab:
        shared.load(k, stmt)
    else:
        direct.load(k, stmt, type)


def multiply(k: Lowering, stmt: MmaSyncPtx, path: str) -> None:
    """``c += a * b``, with the blocks' scales where they are given. Raises UnsupportedError for other products."""
    m, n, depth = stmt.shape
    product = f"m{m}n{n}k{depth}"
    by_rows = stmt.b_row_major and stmt.shape == (8, 8, 4)
    if (stmt.shape, stmt.ab_dtype, stmt.c_dtype) not in _PRODUCTS or stmt.b_row_major != by_rows:
        raise UnsupportedError(f"mma {product} of {stmt.ab_dtype} into {stmt.c_dtype} is not supported yet")
    if stmt.block_scaled != (stmt.ab_dtype == "e2m1") or (stmt.sfa_frag is None) != (stmt.sfb_frag is None):
        raise InputError(
            f"mma {product} of {stmt.ab_dtype}", hint="the product of e2m1, and no other, takes two scales"
        )
    kind, scale = (BLOCK_SCALED, ("ue4m3",)) if stmt.block_scaled else ((), ())
    orders = ("row", "row" if by_rows else "col")
    types = (stmt.c_dtype, stmt.ab_dtype, stmt.ab_dtype, stmt.c_dtype)
    mods = ("sync", "aligned", *kind, product, *orders, *types, *scale)
    groups = mma_groups(mods)
    given: list[Operand] = []
    for name, (count, bank) in zip((stmt.a_frag, stmt.b_frag, stmt.c_frag), groups.operands, strict=False):
        held = registers.operands(k, name)
        if len(held) != count or any(value.type is not bank for value in held):
            wanted = f"{count} registers of {bank}"
            raise InputError(f"the fragment {name!r} does not fit {product}", hint=f"it takes {wanted}")
        given += held
    if stmt.block_scaled:
        given += _scales(k, str(stmt.sfa_frag), scaled.THREAD_A) + _scales(k, str(stmt.sfb_frag), scaled.THREAD_B)
    ((count, bank),) = groups.results
    results = tuple(k.kernel.value(bank, registers.stem(stmt.c_frag)) for _ in range(count))
    k.builder.multi(opcodes.MMA, mods, results, tuple(given))
    registers.assign(k, stmt.c_frag, list(results))


def _scales(k: Lowering, name: str, thread: int) -> list[Operand]:
    """A scale operand: its register, the byte that is its first, the thread that supplies it."""
    held = registers.operands(k, name)
    if len(held) != 1 or held[0].type is not B32:
        raise InputError(f"{name!r} holds no scales", hint="scales are a fragment of nregs=0")
    return [*held, integer(B32, 0), integer(B32, thread)]


def promote(k: Lowering, stmt: FragmentPromote, path: str) -> None:
    """Add a packed f16 accumulator to its f32 one, and begin it anew at zero."""
    if stmt.fragment_layout == "m8n8k4":
        volta.promote(k, stmt)
        return
    if stmt.fragment_layout != "m16n8k16":
        raise UnsupportedError("this promotion of an accumulator is not supported yet")
    sums: list[Operand] = []
    totals = registers.read(k, stmt.dst)
    for at, word in enumerate(registers.operands(k, stmt.src)):
        sums += add_halves(k, word, totals[2 * at : 2 * at + 2], registers.stem(stmt.dst))
    registers.assign(k, stmt.dst, sums)
    registers.assign(k, stmt.src, [integer(B32, 0)] * registers.fragment(k, stmt.src).registers)


def repack(k: Lowering, stmt: FragmentRepack, path: str) -> None:
    """Accumulators as a fragment of multiplicands: two that are adjacent in k as one of A, or one as one of B.

    For A a lane's elements are the same. For B, and for all of m8n8k4, they come from other lanes.
    """
    if stmt.fragment_layout == "m8n8k4":
        volta.repack(k, stmt)
        return
    dtypes = {"a": ("f16", "bf16"), "b": ("f16",)}.get(stmt.role, ())
    if stmt.fragment_layout != "m16n8k16" or stmt.ab_dtype not in dtypes:
        raise UnsupportedError(f"a repacking as {stmt.ab_dtype} of {stmt.role} is not supported yet")
    if len(stmt.srcs) != (2 if stmt.role == "a" else 1):
        raise InputError(f"a repacking of {len(stmt.srcs)} accumulators", hint="A takes two, B one")
    words: list[Operand] = []
    for name in stmt.srcs:
        values = [value.operand for value in registers.read(k, name)]
        words += [pack(k, values[at], values[at + 1], stmt.ab_dtype) for at in (0, 2)]
    registers.assign(k, stmt.frag, words if stmt.role == "a" else [_column_of(k, word) for word in words])


def _column_of(k: Lowering, word: Operand) -> Operand:
    """Of a half of an accumulator, whose lanes hold pairs of columns, the pair of rows that a lane of B holds.

    They are the rows ``2 * t`` and ``2 * t + 1`` of the column ``g``, for the lane ``4 * g + t``: halves of what the
    lanes ``8 * t + g / 2`` and four more hold (Emmy's ``emmy_c_to_b_f16``).
    """
    e, b = k.expressions, k.builder
    group = lanes.group(k)
    source = e.registers.add(e.divide(group, constant(2)), lanes.in_group(k), 8)
    typed = Typed(word, element_type("u32"))
    first, second = (
        exchange(k, typed, "idx", e.register(e.registers.add(source, constant(at)), 32), 31, integer(B32, -1)).operand
        for at in (0, 4)
    )
    odd = e.compare("==", e.modulo(group, constant(2)), constant(1))
    selector = b.selp("b32", integer(B32, 0x7632), integer(B32, 0x5410), odd, "halves")
    return b.emit(opcodes.PRMT, ("b32",), B32, (first, second, selector), "pair")
