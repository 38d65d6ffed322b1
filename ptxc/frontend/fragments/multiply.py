"""``mma.sync``, and what prepares its operands from accumulators or folds them, in registers."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from emmy.compiler.ir.kernel.ir import FragmentPromote, FragmentRepack, LdmatrixLoad, MmaSyncPtx

from ptxc.errors import InputError, UnsupportedError
from ptxc.frontend.dtypes import BF16_T, E2M1X2_T, E4M3_T, E5M2_T, F16_T, F32_T, element_type
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


_THERE_ARE = (
    "there are f16 into f32 or f16 (m8n8k4, m16n8k8, m16n8k16), bf16 into f32 (m16n8k8, m16n8k16), fp8 (m16n8k32) "
    "and fp4 (m16n8k64) into f32"
)
#: The repackings that there are, by layout, type and role, and their parts: m8n8k4's are four columns or rows of 16.
_REPACKINGS = {
    ("m16n8k16", "f16", "a"): range(1), ("m16n8k16", "bf16", "a"): range(1), ("m16n8k16", "f16", "b"): range(1),
    ("m8n8k4", "f16", "a"): range(4), ("m8n8k4", "f16", "b"): range(4),
}  # fmt: skip
#: The registers of a fragment of m16n8k16 that a load fills, and of its kin of bytes, by role.
_LOADED = {"a": 4, "b": 2}
#: The element types of multiplicands by PTX's names.
_ELEMENTS = {"f16": F16_T, "bf16": BF16_T, "e4m3": E4M3_T, "e5m2": E5M2_T, "e2m1": E2M1X2_T}


def load(k: Lowering, stmt: LdmatrixLoad, path: str) -> None:
    """Fill a fragment, or two, from memory."""
    _check_load(k, stmt)
    if stmt.fragment_layout == "m8n8k4":
        for name in stmt.defines():
            registers.expect(k, name, stmt.role, F16_T, 2)
        volta.load(k, stmt)
        return
    type = registers.fragment(k, stmt.frag).element
    for name in stmt.defines():
        registers.expect(k, name, stmt.role, type, _LOADED[stmt.role])
    if stmt.scale_buffer is not None:
        scaled.load(k, stmt, type)
    elif type.nbytes == 1:
        raw.load(k, stmt, type)
    elif stmt.staged and not stmt.byte_slab:
        shared.load(k, stmt, type)
    else:
        direct.load(k, stmt, type)


def _check_load(k: Lowering, stmt: LdmatrixLoad) -> None:
    """Raises InputError or UnsupportedError where the fields of a load contradict each other.

    Emmy's CUDA ignores what it does not expect, so what such a load was to do is not known.
    """
    if stmt.fragment_layout not in ("m16n8k16", "m8n8k4"):
        hint = "they are those of m16n8k16 or m8n8k4"
        raise UnsupportedError(f"a load of fragments of the layout {stmt.fragment_layout!r}", hint=hint)
    if stmt.role not in _LOADED:
        raise InputError(f"a load of the role {stmt.role!r}", hint="it fills a or b")
    if stmt.staged and stmt.src_buffer not in k.signature.shared:
        hint = "a load that is staged reads shared memory only"
        raise InputError(f"{stmt.src_buffer!r} is no shared array", hint=hint)
    if not stmt.staged and (stmt.pair_frag is not None or stmt.swizzle != "NONE" or stmt.byte_slab):
        hint = "pairs, swizzles and slabs of bytes are those of shared memory: set staged, or drop them"
        raise InputError("a load straight from memory of a pair, a swizzle or a slab of bytes", hint=hint)
    if stmt.staged and (stmt.gmem_guard is not None or stmt.k_zero is not None):
        hint = "what fills a slab sees to its edges: drop gmem_guard and k_zero"
        raise InputError("a load from a slab that ends at an edge", hint=hint)
    if stmt.byte_slab and (stmt.pair_frag is not None or stmt.swizzle != "NONE" or stmt.fragment_layout != "m16n8k16"):
        hint = "it is read one fragment of m16n8k16 at a time, as it lies"
        raise InputError("a load from a slab of bytes that is paired, swizzled or of m8n8k4", hint=hint)
    if not stmt.byte_slab and (stmt.scale_buffer is not None or stmt.scale_index or stmt.scale_ldm):
        raise InputError("a scaled load from no slab of bytes", hint="set byte_slab, or drop the scales")
    if stmt.byte_slab and stmt.scale_buffer is None and (stmt.scale_index or stmt.scale_ldm):
        raise InputError("a place of scales without scales", hint="name a scale_buffer")
    if stmt.pair_frag is not None and stmt.pair_frag == stmt.frag:
        raise InputError(f"two fragments are loaded into {stmt.frag!r}", hint="name another pair_frag")


def multiply(k: Lowering, stmt: MmaSyncPtx, path: str) -> None:
    """``c += a * b``, with the blocks' scales where they are given. Raises UnsupportedError for other products."""
    block_scaled = stmt.block_scaled
    mods = _product(stmt.shape, stmt.ab_dtype, stmt.c_dtype, stmt.b_row_major, block_scaled)
    if block_scaled != (stmt.ab_dtype == "e2m1") or (stmt.sfa_frag is None) != (stmt.sfb_frag is None):
        m, n, depth = stmt.shape
        what = f"mma m{m}n{n}k{depth} of {stmt.ab_dtype}"
        raise InputError(what, hint="the product of e2m1, and no other, takes two scales")
    groups = mma_groups(mods)
    given: list[Operand] = []
    ab, c = _ELEMENTS[stmt.ab_dtype], F32_T if stmt.c_dtype == "f32" else F16_T
    parts = (("a", stmt.a_frag, ab), ("b", stmt.b_frag, ab), ("c", stmt.c_frag, c))
    for (role, name, element), (count, _) in zip(parts, groups.operands, strict=False):
        registers.expect(k, name, role, element, count)
        given += registers.operands(k, name)
    if block_scaled:
        given += _scales(k, str(stmt.sfa_frag), scaled.THREAD_A) + _scales(k, str(stmt.sfb_frag), scaled.THREAD_B)
    ((count, bank),) = groups.results
    hint = registers.stem(stmt.c_frag)
    results = k.kernel.values(bank, hint, count)
    k.builder.multi(opcodes.MMA, mods, results, tuple(given))
    registers.assign(k, stmt.c_frag, results)


@cache
def _product(shape: tuple[int, ...], ab: str, c: str, b_row_major: bool, block_scaled: bool) -> tuple[str, ...]:
    """The modifiers of a product. Raises UnsupportedError for one that there is not."""
    if len(shape) != 3:
        raise UnsupportedError(f"mma of the shape {shape}", hint="a product has three extents")
    m, n, depth = shape
    product = f"m{m}n{n}k{depth}"
    by_rows = b_row_major and shape == (8, 8, 4)
    if (shape, ab, c) not in _PRODUCTS or b_row_major != by_rows:
        raise UnsupportedError(f"mma {product} of {ab} into {c} is not supported yet", hint=_THERE_ARE)
    kind, scale = (BLOCK_SCALED, ("ue4m3",)) if block_scaled else ((), ())
    orders = ("row", "row" if by_rows else "col")
    return ("sync", "aligned", *kind, product, *orders, c, ab, ab, c, *scale)


def _scales(k: Lowering, name: str, thread: int) -> list[Operand]:
    """A scale operand: its register, the byte that is its first, the thread that supplies it."""
    if registers.fragment(k, name).registers:
        raise InputError(f"{name!r} holds no scales", hint="scales are a fragment of nregs=0")
    return [*registers.operands(k, name), integer(B32, 0), integer(B32, thread)]


def promote(k: Lowering, stmt: FragmentPromote, path: str) -> None:
    """Add a packed f16 accumulator to its f32 one, and begin it anew at zero."""
    count = registers.accumulators(stmt.fragment_layout)
    registers.expect(k, stmt.src, "c", F16_T, count // 2)
    registers.expect(k, stmt.dst, "c", F32_T, count)
    if stmt.fragment_layout == "m8n8k4":
        volta.promote(k, stmt)
        return
    sums: list[Operand] = []
    totals = registers.read(k, stmt.dst)
    for at, word in enumerate(registers.operands(k, stmt.src)):
        sums += add_halves(k, word, totals[2 * at : 2 * at + 2], registers.stem(stmt.dst))
    registers.assign(k, stmt.dst, sums)
    registers.assign(k, stmt.src, [integer(B32, 0)] * (count // 2))


def repack(k: Lowering, stmt: FragmentRepack, path: str) -> None:
    """Accumulators as a fragment of multiplicands: two that are adjacent in k as one of A, or one as one of B.

    For A a lane's elements are the same. For B, and for all of m8n8k4, they come from other lanes.
    """
    parts = _REPACKINGS.get((stmt.fragment_layout, stmt.ab_dtype, stmt.role))
    if parts is None:
        hint = "there are f16 and bf16 as a, f16 as b on m16n8k16; f16 as either on m8n8k4"
        what = f"a repacking as {stmt.ab_dtype} of {stmt.role} on {stmt.fragment_layout} is not supported yet"
        raise UnsupportedError(what, hint=hint)
    if not isinstance(stmt.part, int) or stmt.part not in parts:
        raise InputError(f"the part {stmt.part} of a repacking", hint=f"the last one is {parts[-1]}")
    volta_layout = stmt.fragment_layout == "m8n8k4"
    if len(stmt.srcs) != (2 if stmt.role == "a" and not volta_layout else 1):
        hint = "A takes two, B one, m8n8k4 one for either"
        raise InputError(f"a repacking of {len(stmt.srcs)} accumulators", hint=hint)
    for name in stmt.srcs:
        registers.expect(k, name, "c", F32_T, registers.accumulators(stmt.fragment_layout))
    element = _ELEMENTS[stmt.ab_dtype]
    registers.expect(k, stmt.frag, stmt.role, element, 2 if volta_layout else _LOADED[stmt.role])
    if volta_layout:
        volta.repack(k, stmt)
        return
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
