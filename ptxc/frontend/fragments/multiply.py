"""``mma.sync``, and what prepares its operands from accumulators or folds them, in registers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from emmy.compiler.ir.kernel.ir import FragmentPromote, FragmentRepack, LdmatrixLoad, MmaSyncPtx

from ptxc.errors import InputError, UnsupportedError
from ptxc.frontend.fragments import direct, registers, shared
from ptxc.ir import opcodes
from ptxc.ir.types import B16, B32, F32
from ptxc.ir.values import Operand, integer

if TYPE_CHECKING:
    from ptxc.frontend.lower import Lowering

#: The products that PTX has, with the types of multiplicands and accumulators.
_PRODUCTS = frozenset(
    (shape, ab, c)
    for shape, pairs in {
        (16, 8, 8): (("f16", "f32"), ("f16", "f16"), ("bf16", "f32")),
        (16, 8, 16): (("f16", "f32"), ("f16", "f16"), ("bf16", "f32")),
    }.items()
    for ab, c in pairs
)


def load(k: Lowering, stmt: LdmatrixLoad, path: str) -> None:
    """Fill a fragment, or two, from memory."""
    if stmt.fragment_layout != "m16n8k16" or stmt.byte_slab:
        raise UnsupportedError("this load of a fragment is not supported yet")
    (shared if stmt.staged else direct).load(k, stmt)


def multiply(k: Lowering, stmt: MmaSyncPtx, path: str) -> None:
    """``c += a * b``. Raises InputError for shapes and types that PTX has no product of."""
    m, n, depth = stmt.shape
    if (stmt.shape, stmt.ab_dtype, stmt.c_dtype) not in _PRODUCTS or stmt.block_scaled or stmt.b_row_major:
        raise UnsupportedError(f"mma m{m}n{n}k{depth} of {stmt.ab_dtype} into {stmt.c_dtype} is not supported yet")
    mods = (
        "sync", "aligned", f"m{m}n{n}k{depth}", "row", "col", stmt.c_dtype, stmt.ab_dtype, stmt.ab_dtype, stmt.c_dtype,
    )  # fmt: skip
    groups = opcodes.MMA.groups(mods) if opcodes.MMA.groups is not None else None
    assert groups is not None
    given: list[Operand] = []
    for name, (count, bank) in zip((stmt.a_frag, stmt.b_frag, stmt.c_frag), groups.operands, strict=False):
        held = registers.operands(k, name)
        if len(held) != count or any(value.type is not bank for value in held):
            wanted = f"{count} registers of {bank}"
            raise InputError(f"the fragment {name!r} does not fit m{m}n{n}k{depth}", hint=f"it takes {wanted}")
        given += held
    ((count, bank),) = groups.results
    results = tuple(k.kernel.value(bank, registers.stem(stmt.c_frag)) for _ in range(count))
    k.builder.multi(opcodes.MMA, mods, results, tuple(given))
    registers.assign(k, stmt.c_frag, list(results))


def promote(k: Lowering, stmt: FragmentPromote, path: str) -> None:
    """Add a packed f16 accumulator to its f32 one, and begin it anew at zero."""
    if stmt.fragment_layout != "m16n8k16":
        raise UnsupportedError("this promotion of an accumulator is not supported yet")
    b = k.builder
    sums: list[Operand] = []
    totals = registers.read(k, stmt.dst)
    for at, word in enumerate(registers.operands(k, stmt.src)):
        halves = (k.kernel.value(B16, "half"), k.kernel.value(B16, "half"))
        b.multi(opcodes.UNPACK, ("b32",), halves, (word,))
        for half, total in zip(halves, totals[2 * at : 2 * at + 2], strict=True):
            wide = b.cvt("f32.f16", half, registers.stem(stmt.dst))
            sums.append(
                b.emit(opcodes.ADD, k.arithmetic.mods("f32"), F32, (total.operand, wide), registers.stem(stmt.dst))
            )
    registers.assign(k, stmt.dst, sums)
    registers.assign(k, stmt.src, [integer(B32, 0)] * registers.fragment(k, stmt.src).registers)


def repack(k: Lowering, stmt: FragmentRepack, path: str) -> None:
    """Two accumulators that are adjacent in k as one fragment of A: a lane's elements are the same."""
    if stmt.fragment_layout != "m16n8k16" or stmt.role != "a" or len(stmt.srcs) != 2:
        raise UnsupportedError("this repacking of an accumulator is not supported yet")
    words: list[Operand] = []
    for name in stmt.srcs:
        values = [value.operand for value in registers.read(k, name)]
        words += [pack(k, values[at], values[at + 1], stmt.ab_dtype) for at in (0, 2)]
    registers.assign(k, stmt.frag, words)


def pack(k: Lowering, low: Operand, high: Operand, dtype: str) -> Operand:
    """Two f32 rounded to a pair of ``dtype`` (f16 or bf16)."""
    b = k.builder
    if k.arithmetic.sm >= 80:
        return b.emit(opcodes.PACK_CVT, ("rn", f"{dtype}x2", "f32"), B32, (high, low), "pair")
    halves = tuple(b.cvt(f"rn.{dtype}.f32", half, "half") for half in (low, high))
    return b.emit(opcodes.PACK, ("b32",), B32, halves, "pair")
