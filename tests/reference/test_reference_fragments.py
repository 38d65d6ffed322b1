"""Fragments: which lane holds what, loads, products, elementwise operations, stores; each against NumPy."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from emmy.compiler.ir.elementwise import ElementwiseImpl
from emmy.compiler.ir.kernel.ir import COORD, ELEM_COL, ELEM_ROW, FRAG, GMEM, M8N8K4, ROW, UNIFORM
from emmy.compiler.ir.pure.lam import Lambda
from kernel_ir import (
    Assign,
    BlockScaleLoad,
    Cond,
    CpAsyncCopy,
    FragmentApply,
    FragmentPromote,
    FragmentRepack,
    FragmentRowReduce,
    LdmatrixLoad,
    Let,
    Load,
    Loop,
    MmaSyncPtx,
    RegFragment,
    RegStore,
    Select,
    SelectBranch,
    Smem,
    StridedLoop,
    Write,
    axis,
    dtype,
    lit,
    op,
    var,
)
from reference_lab import computed

from ptxc.errors import InputError, UnsupportedError
from ptxc.reference.buffers import decoded, encoded
from ptxc.reference.codes import decode4, encode4
from ptxc.reference.lane_maps import ACCUMULATOR, operand_a, operand_b

Array = Any
T = var("t")
Z = (lit(0), lit(0))


def halves(*shape: int, seed: int = 1) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float16)


def bits(numbers: Array, kind: str) -> tuple[Array, str]:
    return encoded(numbers, kind), kind


def real(item: tuple[Array, str]) -> Array:
    return decoded(*item).astype(np.float64)


def regs(**fragments: tuple[str, str]) -> list[Any]:
    """Declarations of m16n8k16: name = (role, type)."""
    return [RegFragment(name, role, (16, 8, 16), dtype(kind)) for name, (role, kind) in fragments.items()]


def elementwise(name: str) -> Any:
    return ElementwiseImpl(name)


def direct(frag: str, source: str, role: str, **fields: Any) -> Any:
    return LdmatrixLoad(frag, source, fields.pop("at", Z), role, staged=False, **fields)


def staged(slab: str, source: str, rows: int, columns: int, swizzle: str = "NONE") -> list[Any]:
    """A shared array of f16 with all of a source, copied in runs of eight."""
    at = op("*", var("c"), 8)
    place = (op("/", at, columns), op("%", at, columns))
    fill = CpAsyncCopy(slab, place, source, place, 16, swizzle)
    loop = StridedLoop(axis("c", rows * columns // 8), T, lit(32), (fill,))
    return [Smem(slab, (rows, columns), "__half", 1024), loop]


# ---------------------------------------------------------------------------------------------------------- lane maps


def test_lane_maps_are_those_of_the_isa() -> None:
    """The formulas of the PTX ISA, element by element."""
    for lane in range(32):
        group, thread = lane >> 2, lane % 4
        for i in range(8):
            assert operand_a(8, 2).row[lane, i] == (group if i < 2 or 4 <= i < 6 else group + 8)
            assert operand_a(8, 2).column[lane, i] == thread * 2 + (i & 1) + (8 if i >= 4 else 0)
            assert operand_b(8, 4).row[lane, i] == thread * 4 + (i & 3) + (16 if i >= 4 else 0)
            assert operand_b(8, 4).column[lane, i] == group
        for i in range(4):
            assert operand_b(4, 2).row[lane, i] == thread * 2 + (i & 1) + (8 if i >= 2 else 0)
            assert ACCUMULATOR.row[lane, i] == (group if i < 2 else group + 8)
            assert ACCUMULATOR.column[lane, i] == thread * 2 + (i & 1)
        for i in range(16):
            assert operand_a(16, 4).row[lane, i] == (group if i < 4 or 8 <= i < 12 else group + 8)
            assert operand_a(16, 4).column[lane, i] == thread * 4 + (i & 3) + (16 if i >= 8 else 0)
        for i in range(32):
            assert operand_a(32, 8).row[lane, i] == (group if i < 8 or 16 <= i < 24 else group + 8)
            assert operand_a(32, 8).column[lane, i] == thread * 8 + (i & 7) + (32 if i >= 16 else 0)


# ----------------------------------------------------------------------------------------------------------- products


@pytest.mark.parametrize(
    ("kind", "name", "k"),
    [("f16", "f16", 16), ("f16", "f16", 8), ("bf16", "bf16", 16), ("f8e4m3", "e4m3", 32), ("f8e5m2", "e5m2", 32)],
)
@pytest.mark.parametrize("trans", [False, True])
def test_a_product_of_direct_loads(kind: str, name: str, k: int, trans: bool) -> None:
    a, b = bits(halves(16, k), kind), bits(halves(k, 8, seed=2), kind)
    stored = (np.ascontiguousarray(b[0].T), kind) if trans else b
    shape = (16, 8, k)
    body = [
        *[RegFragment(n, n, shape, dtype("f32" if n == "c" else kind)) for n in "abc"],
        direct("a", "p", "a", ldm=k), direct("b", "q", "b", b_trans=trans),
        MmaSyncPtx("c", "a", "b", shape, name), MmaSyncPtx("c", "a", "b", shape, name),
        RegStore("y", Z, "c", shape),
    ]  # fmt: skip
    y = computed(body, {"p": a, "q": stored}, ((16, 8), "f32"))
    assert np.allclose(y, 2 * real(a) @ real(b), rtol=1e-14)
    assert computed(body, {"p": a, "q": stored}, ((16, 8), "f32"), exact=False).dtype == np.float32


def test_every_warp_has_its_own() -> None:
    a, b = halves(64, 16), halves(16, 8, seed=2)
    row = op("*", op("/", T, 32), 16)
    body = [
        *regs(a=("a", "f16"), b=("b", "f16"), c=("c", "f32")),
        direct("a", "p", "a", at=(row, lit(0))), direct("b", "q", "b"),
        MmaSyncPtx("c", "a", "b", (16, 8, 16)), RegStore("y", (row, lit(0)), "c", (16, 8, 16)),
    ]  # fmt: skip
    y = computed(body, {"p": a, "q": b}, ((64, 8), "f32"), threads=128)
    assert np.allclose(y, a.astype(float) @ b, rtol=1e-14)


def test_a_family_of_fragments() -> None:
    a, b = halves(16, 16), halves(16, 32, seed=2)
    shape, cell = (16, 8, 16), op("*", var("r"), 8)
    body = [
        *regs(a=("a", "f16")),
        RegFragment("b", "b", shape, dtype("f16"), 4), RegFragment("c", "c", shape, dtype("f32"), 4),
        direct("a", "p", "a"),
        Loop(axis("r", 4), (direct("b[r]", "q", "b", at=(lit(0), cell)), MmaSyncPtx("c[r]", "a", "b[r]", shape))),
        RegStore("y", Z, "c[0]", shape), RegStore("y", (lit(0), lit(8)), "c[1]", shape),
        Loop(axis("r", 2), (RegStore("y", (lit(0), op("+", cell, 16)), "c[2]", shape),)),
    ]  # fmt: skip
    body[-1] = RegStore("y", (lit(0), lit(16)), "c[2]", shape)
    body.append(RegStore("y", (lit(0), lit(24)), "c[3]", shape))
    assert np.allclose(computed(body, {"p": a, "q": b}, ((16, 32), "f32")), a.astype(float) @ b, rtol=1e-14)
    wrong = [*regs(a=("a", "f16")), direct("a[t]", "p", "a")]
    with pytest.raises(InputError, match="is not the same fragment in all threads"):
        computed(wrong, {"p": a}, ((1,), "f32"))


def test_an_accumulator_of_f16_is_promoted() -> None:
    a, b, shape = halves(16, 16), halves(16, 8, seed=2), (16, 8, 16)
    body = [
        *regs(a=("a", "f16"), b=("b", "f16"), h=("c", "f16"), c=("c", "f32")),
        direct("a", "p", "a"), direct("b", "q", "b"),
        MmaSyncPtx("h", "a", "b", shape, c_dtype="f16"), FragmentPromote("c", "h"),
        MmaSyncPtx("h", "a", "b", shape, c_dtype="f16"), FragmentPromote("c", "h"), FragmentPromote("c", "h"),
        RegStore("y", Z, "c", shape),
    ]  # fmt: skip
    assert np.allclose(computed(body, {"p": a, "q": b}, ((16, 8), "f32")), 2 * (a.astype(float) @ b), rtol=1e-14)
    rounded = computed(body, {"p": a, "q": b}, ((16, 8), "f32"), exact=False)
    assert np.array_equal(rounded, 2 * (a.astype(float) @ b).astype(np.float16).astype(np.float32))


def test_threads_that_take_no_part_keep_their_fragments() -> None:
    a, b, shape = halves(16, 16), halves(16, 8, seed=2), (16, 8, 16)
    body = [
        *regs(a=("a", "f16"), b=("b", "f16"), c=("c", "f32")),
        direct("a", "p", "a"), direct("b", "q", "b"),
        Cond(op("<", T, 32), (MmaSyncPtx("c", "a", "b", shape),)),
        RegStore("y", (op("*", op("/", T, 32), 16), lit(0)), "c", shape),
    ]  # fmt: skip
    y = computed(body, {"p": a, "q": b}, ((32, 8), "f32"), threads=64)
    assert np.allclose(y[:16], a.astype(float) @ b, rtol=1e-14)
    assert (y[16:] == 0).all()


@pytest.mark.parametrize("trans", [True, False])
def test_a_product_with_scales_of_blocks(trans: bool) -> None:
    """Four bits: pairs in bytes, a scale for each 16 of a row of A and of a column of B."""
    rng = np.random.default_rng(3)
    codes_a, codes_b = encode4(rng.standard_normal((16, 64)) * 3), encode4(rng.standard_normal((8, 64)) * 3)
    scales = {name: bits(np.abs(rng.standard_normal((n, 4))), "f8e4m3") for name, n in (("sa", 16), ("sb", 8))}
    packed = {"p": codes_a, "q": codes_b}
    inputs = {n: ((c[:, ::2] | c[:, 1::2] << 4).astype(np.uint8), "f4e2m1x2") for n, c in packed.items()} | scales
    shape, four = (16, 8, 64), dtype("f4e2m1x2")

    def slab(name: str, source: str, kind: str, rows: int, columns: int) -> list[Any]:
        at = (op("/", var("c"), columns), op("%", var("c"), columns))
        copy = (Load(f"v{name}", source, at), Write(name, at, f"v{name}"))
        return [Smem(name, (rows, columns), kind), StridedLoop(axis("c", rows * columns), T, lit(32), copy)]

    body = [
        RegFragment("a", "a", shape, four, nregs=4), RegFragment("b", "b", shape, four, nregs=2),
        RegFragment("fa", "a", shape, four, nregs=0), RegFragment("fb", "a", shape, four, nregs=0),
        RegFragment("c", "c", shape, dtype("f32"), nregs=4),
        *slab("ps", "p", "unsigned char", 16, 32), *slab("qs", "q", "unsigned char", 8, 32),
        *slab("ss", "sa", "__nv_fp8_e4m3", 16, 4), *slab("ts", "sb", "__nv_fp8_e4m3", 8, 4),
        LdmatrixLoad("a", "ps", Z, "a", 32, byte_slab=True),
        LdmatrixLoad("b", "qs", Z, "b", 32, b_trans=True, byte_slab=True),
        BlockScaleLoad("fa", "ss", Z, "a", 4), BlockScaleLoad("fb", "ts", Z, "b", 4),
        MmaSyncPtx("c", "a", "b", shape, "e2m1", sfa_frag="fa", sfb_frag="fb"), RegStore("y", Z, "c", shape),
    ]  # fmt: skip
    y = computed(body, inputs, ((16, 8), "f32"))
    a = decode4(codes_a) * np.repeat(real(scales["sa"]), 16, axis=1)
    b = decode4(codes_b) * np.repeat(real(scales["sb"]), 16, axis=1)
    assert np.allclose(y, a @ b.T, rtol=1e-12)


# ---------------------------------------------------------------------------------------------------- loads of modern


@pytest.mark.parametrize("swizzle", ["NONE", "B32", "B64", "B128", "B128@7"])
@pytest.mark.parametrize("trans", [False, True])
@pytest.mark.parametrize("pair", [False, True])
def test_staged_operands(swizzle: str, trans: bool, pair: bool) -> None:
    """Tiles within larger arrays, copied with a swizzle and read through it."""
    a, b = halves(32, 64), halves(64, 64, seed=2)
    row, at = lit(16), lit(32)
    place = (lit(16), at) if trans else (at, lit(16))
    body = [
        *regs(a=("a", "f16"), b=("b", "f16"), b2=("b", "f16"), c=("c", "f32"), c2=("c", "f32")),
        *staged("sa", "p", 32, 64, swizzle), *staged("sb", "q", 64, 64, swizzle),
        LdmatrixLoad("a", "sa", (row, at), "a", 64, swizzle),
        LdmatrixLoad("b", "sb", place, "b", 64, swizzle, b_trans=trans, pair_frag="b2" if pair else None),
        MmaSyncPtx("c", "a", "b", (16, 8, 16)), RegStore("y", Z, "c", (16, 8, 16)),
    ]  # fmt: skip
    if pair:
        body += [MmaSyncPtx("c2", "a", "b2", (16, 8, 16)), RegStore("y", (lit(0), lit(8)), "c2", (16, 8, 16))]
    y = computed(body, {"p": a, "q": b}, ((16, 16), "f32"))
    used = b[16:32, 32:48].T if trans else b[32:48, 16:32]
    expected = a[16:, 32:48].astype(float) @ used
    columns = 16 if pair else 8
    assert np.allclose(y[:, :columns], expected[:, :columns], rtol=1e-13)


@pytest.mark.parametrize("layout", ["m16n8k16", "m8n8k4"])
@pytest.mark.parametrize("trans", [False, True])
@pytest.mark.parametrize(("left", "k_left"), [(5, None), (0, None), (-3, 3), (None, 3), (6, 3), (99, 99)])
def test_direct_loads_at_an_edge(layout: str, trans: bool, left: int | None, k_left: int | None) -> None:
    """Beyond the kept dimension the last element is read again, beyond the reduced one there is zero."""
    volta = layout == "m8n8k4"
    rows, columns, k = (16, 16, 4) if volta else (16, 8, 16)
    a, b = halves(rows, k), halves(k, columns, seed=2)
    shape = (8, 8, 4) if volta else (16, 8, 16)
    counts = {"a": 2, "b": 2, "c": 8} if volta else dict.fromkeys("abc")
    guards = {
        "gmem_guard": None if left is None else (lit(7), lit(7 + left)),
        "k_zero": None if k_left is None else (lit(2), lit(2 + k_left)),
        "fragment_layout": layout,
    }
    body = [
        *[RegFragment(n, n, shape, dtype("f32" if n == "c" else "f16"), nregs=counts[n]) for n in "abc"],
        direct("a", "p", "a", **guards), direct("b", "q", "b", b_trans=trans, **guards),
        MmaSyncPtx("c", "a", "b", shape), RegStore("y", Z, "c", shape, fragment_layout=layout),
    ]  # fmt: skip
    stored = np.ascontiguousarray(b.T) if trans else b
    y = computed(body, {"p": a, "q": stored}, ((rows, columns), "f32"))
    x, w = a.astype(float), b.astype(float)
    if left is not None:
        x, w = x[np.minimum(np.arange(rows), max(left - 1, 0))], w[:, np.minimum(np.arange(columns), max(left - 1, 0))]
        x, w = (x, w) if left > 0 else (0 * x, 0 * w)
    if k_left is not None:
        x = np.where(np.arange(k) < k_left, x, 0)
    assert np.allclose(y, x @ w, rtol=1e-13)


def bytes_slab(name: str, source: str, kind: str, shape: tuple[int, int], pitch: int) -> list[Any]:
    rows, columns = shape
    at = (op("/", var("c"), columns), op("%", var("c"), columns))
    copy = (Load(f"v{name}", source, at), Write(name, at, f"v{name}"))
    return [Smem(name, (rows, pitch), kind, 16), StridedLoop(axis("c", rows * columns), T, lit(32), copy)]


@pytest.mark.parametrize("kind", ["f8e4m3", "f8e5m2"])
@pytest.mark.parametrize("trans", [False, True])
@pytest.mark.parametrize("to", ["f16", "bf16"])
def test_bytes_become_an_operand_of_16_bits(kind: str, trans: bool, to: str) -> None:
    a, b = bits(halves(16, 16), to), bits(halves(16, 8, seed=2), kind)
    stored = (np.ascontiguousarray(b[0].T), kind) if trans else b
    name = {"f8e4m3": "__nv_fp8_e4m3", "f8e5m2": "__nv_fp8_e5m2"}[kind]
    body = [
        *regs(a=("a", to), b=("b", to), c=("c", "f32")),
        *bytes_slab("sb", "q", name, stored[0].shape, 32),
        direct("a", "p", "a"), LdmatrixLoad("b", "sb", Z, "b", 32, b_trans=trans, byte_slab=True),
        MmaSyncPtx("c", "a", "b", (16, 8, 16), to), RegStore("y", Z, "c", (16, 8, 16)),
    ]  # fmt: skip
    assert np.allclose(computed(body, {"p": a, "q": stored}, ((16, 8), "f32")), real(a) @ real(b), rtol=1e-13)


@pytest.mark.parametrize("kind", ["f8e4m3", "f4e2m1x2"])
def test_bytes_with_a_scale_of_each_block(kind: str) -> None:
    """A byte's block is the tile's row; pairs have a scale for each 16, of the fragment's type."""
    a, k = halves(16, 16), 32
    numbers = np.random.default_rng(5).standard_normal((8, k)) * 2
    if kind == "f8e4m3":
        b, values, name = bits(numbers, kind), real(bits(numbers, kind)), "__nv_fp8_e4m3"
        scales: Array = np.abs(halves(8, 2, seed=4)).astype(np.float32)
        body_scale = Smem("ss", (8, 2), "float")
    else:
        codes = encode4(numbers)
        b, values = ((codes[:, ::2] | codes[:, 1::2] << 4).astype(np.uint8), kind), decode4(codes)
        name = "unsigned char"
        scales = np.abs(halves(8, 2, seed=4))
        body_scale = Smem("ss", (8, 2), "__half")
    step = 16 if kind == "f8e4m3" else 8
    at = (op("/", T, 2), op("%", T, 2))
    body = [
        *regs(a=("a", "f16"), b=("b", "f16"), c=("c", "f32")),
        body_scale, *bytes_slab("sb", "q", name, b[0].shape, 48),
        Cond(op("<", T, 16), (Load("v", "s", at), Write("ss", at, "v"))),
        direct("a", "p", "a"),
        LdmatrixLoad(
            "b", "sb", (lit(0), lit(step)), "b", 48, b_trans=True, byte_slab=True, scale_buffer="ss",
            scale_index=(lit(0), lit(1)), scale_ldm=2,
        ),
        MmaSyncPtx("c", "a", "b", (16, 8, 16)), RegStore("y", Z, "c", (16, 8, 16)),
    ]  # fmt: skip
    y = computed(body, {"p": a, "q": b, "s": scales}, ((16, 8), "f32"))
    expected = a.astype(float) @ (values[:, 16:] * scales[:, 1:].astype(float)).T
    assert np.allclose(y, expected, rtol=1e-12)


# -------------------------------------------------------------------------------------------------------------- Volta


def volta_regs(**fragments: tuple[str, str, int]) -> list[Any]:
    return [RegFragment(n, role, (8, 8, 4), dtype(kind), nregs=count) for n, (role, kind, count) in fragments.items()]


@pytest.mark.parametrize("trans", [False, True])
def test_volta_operands_of_shared_memory(trans: bool) -> None:
    """Plain arrays; an accumulator of f16 and its promotion."""
    a, b = halves(16, 8), halves(8, 16, seed=2)
    stored = np.ascontiguousarray(b.T) if trans else b
    volta: dict[str, Any] = {"fragment_layout": "m8n8k4"}
    place = (lit(0), var("k")) if trans else (var("k"), lit(0))
    body = [
        *volta_regs(a=("a", "f16", 2), b=("b", "f16", 2), h=("c", "f16", 4), c=("c", "f32", 8)),
        *staged("sa", "p", 16, 8), *staged("sb", "q", *stored.shape),
        StridedLoop(axis("k", 8), lit(0), lit(4), (
            LdmatrixLoad("a", "sa", (lit(0), var("k")), "a", 8, **volta),
            LdmatrixLoad("b", "sb", place, "b", stored.shape[1], b_trans=trans, **volta),
            MmaSyncPtx("h", "a", "b", (8, 8, 4), c_dtype="f16"),
        )),
        FragmentPromote("c", "h", **volta), FragmentPromote("c", "h", **volta),
        RegStore("y", Z, "c", (8, 8, 4), **volta),
    ]  # fmt: skip
    y = computed(body, {"p": a, "q": stored}, ((16, 16), "f32"))
    assert np.allclose(y, a.astype(float) @ b, rtol=1e-13)


@pytest.mark.parametrize("trans", [False, True])
def test_volta_operands_in_pairs(trans: bool) -> None:
    """A 32 x 32 tile from arrays that are kept crosswise, and congruous."""
    a, b = halves(64, 32), halves(32, 64, seed=2)
    stored = np.ascontiguousarray(b.T) if trans else b
    at = op("*", var("c"), 8)

    def fill(slab: str, source: str, shape: tuple[int, int], swizzle: str) -> list[Any]:
        rows, columns = shape
        place = (op("/", at, columns), op("%", at, columns))
        names = tuple(f"{slab}{i}" for i in range(8))
        copy = (Load(names=names, input=source, index=place), Write(slab, place, values=names, swizzle=swizzle))
        return [
            Smem(slab, (rows, columns), "__half", 16),
            StridedLoop(axis("c", rows * columns // 8), T, lit(32), copy),
        ]

    volta: dict[str, Any] = {"fragment_layout": "m8n8k4"}
    kept = (lit(32), var("k")) if trans else (var("k"), lit(32))
    cells = [(m, n) for m in range(2) for n in range(2)]
    body = [
        *volta_regs(**{f"a{i}": ("a", "f16", 2) for i in range(2)}, **{f"b{i}": ("b", "f16", 2) for i in range(2)}),
        *volta_regs(**{f"c{m}{n}": ("c", "f32", 8) for m, n in cells}),
        *fill("sa", "p", (64, 32), "V70A"), *fill("sb", "q", stored.shape, "V70A" if trans else "V70B"),
        StridedLoop(axis("k", 32), lit(0), lit(4), (
            LdmatrixLoad("a0", "sa", (lit(32), var("k")), "a", 32, "V70A", pair_frag="a1", **volta),
            LdmatrixLoad(
                "b0", "sb", kept, "b", stored.shape[1], "V70A" if trans else "V70B", b_trans=trans, pair_frag="b1",
                **volta,
            ),
            *[MmaSyncPtx(f"c{m}{n}", f"a{m}", f"b{n}", (8, 8, 4), b_row_major=not trans) for m, n in cells],
        )),
        *[
            RegStore(
                "y", (lit(16 * m), lit(16 * n)), f"c{m}{n}", (8, 8, 4), volta_interleaved=True, fragment_index=(m, n),
                **volta,
            )
            for m, n in cells
        ],
    ]  # fmt: skip
    y = computed(body, {"p": a, "q": stored}, ((32, 32), "f32"))
    assert np.allclose(y, a[32:].astype(float) @ b[:, 32:], rtol=1e-12)


@pytest.mark.parametrize("role", ["a", "b"])
def test_volta_accumulators_as_operands(role: str) -> None:
    p, q, r = halves(16, 4), halves(4, 16, seed=2), halves(16, 16, seed=3)
    volta: dict[str, Any] = {"fragment_layout": "m8n8k4"}
    body = [
        *volta_regs(a=("a", "f16", 2), b=("b", "f16", 2), c=("c", "f32", 8), d=("c", "f32", 8)),
        direct("a", "p", "a", **volta), direct("b", "q", "b", **volta), MmaSyncPtx("c", "a", "b", (8, 8, 4)),
    ]  # fmt: skip
    for part in range(4):
        other = (lit(4 * part), lit(0)) if role == "a" else (lit(0), lit(4 * part))
        body += [
            FragmentRepack(role, ("c",), part=part, role=role, **volta),
            direct("b" if role == "a" else "a", "r", "b" if role == "a" else "a", at=other, **volta),
            MmaSyncPtx("d", "a", "b", (8, 8, 4)),
        ]
    body.append(RegStore("y", Z, "d", (8, 8, 4), **volta))
    y = computed(body, {"p": p, "q": q, "r": r}, ((16, 16), "f32"))
    c, r = p.astype(float) @ q, r.astype(float)
    assert np.allclose(y, c @ r if role == "a" else r @ c, rtol=1e-12)


# ------------------------------------------------------------------------------------------- elementwise, reductions


def product(*rest: Any, **inputs: Array) -> tuple[list[Any], dict[str, Array], Array]:
    """A kernel whose ``c`` is p @ q, and what that is."""
    a, b = halves(16, 16), halves(16, 8, seed=2)
    body = [
        *regs(a=("a", "f16"), b=("b", "f16"), c=("c", "f32")),
        direct("a", "p", "a"), direct("b", "q", "b"), MmaSyncPtx("c", "a", "b", (16, 8, 16)), *rest,
    ]  # fmt: skip
    return body, {"p": a, "q": b, **inputs}, a.astype(float) @ b


def stored(name: str = "c", **fields: Any) -> Any:
    return RegStore("y", Z, name, (16, 8, 16), **fields)


def test_operands_of_elementwise_operations() -> None:
    bias, scale = halves(40, 30, seed=7), halves(1, seed=8)
    row, column = var("__frow"), var("__fcol")
    body, inputs, c = product(
        Load("s", "scale", (lit(0),)),
        FragmentApply("d", elementwise("multiply"), ("c", "s"), (FRAG, UNIFORM)),
        FragmentApply("d", elementwise("add"), ("d", lit(2.0)), (FRAG, UNIFORM), in_place=True),
        FragmentApply(
            "d", elementwise("where"), (op(">", column, row), lit(-9.0), "d"), (COORD, UNIFORM, FRAG), in_place=True,
            row_base=lit(2), col_base=lit(1),
        ),
        FragmentApply(
            "e", elementwise("add"), ("d", ("bias", (op("+", row, 1), column))), (FRAG, GMEM),
            post=(elementwise("relu"), elementwise("square")), row_base=lit(3), col_base=lit(4),
        ),
        stored("e"),
        bias=bias, scale=scale,
    )  # fmt: skip
    y = computed(body, inputs, ((16, 8), "f32"))
    i, j = np.indices((16, 8))
    d = np.where(j + 1 > i + 2, -9.0, c * scale.astype(float) + 2)
    expected = np.maximum(d + bias[4:20, 4:12].astype(float), 0) ** 2
    assert np.allclose(y, expected, rtol=1e-12)


def test_rows_of_fragments() -> None:
    body, inputs, c = product(
        FragmentApply("d", elementwise("multiply"), ("c", lit(-2.0)), (FRAG, UNIFORM)),
        FragmentRowReduce("m0", "m1", ("c", "d"), elementwise("maximum")),
        FragmentRowReduce("s0", "s1", ("c",), elementwise("add")),
        FragmentApply("e", elementwise("subtract"), ("c", ("m0", "m1")), (FRAG, ROW)),
        FragmentApply("e", elementwise("multiply"), ("e", ("s0", "s1")), (FRAG, ROW), in_place=True),
        stored("e"),
    )
    y = computed(body, inputs, ((16, 8), "f32"))
    most = np.concatenate([c, -2 * c], axis=1).max(1, keepdims=True)
    assert np.allclose(y, (c - most) * c.sum(1, keepdims=True), rtol=1e-12)
    with pytest.raises(InputError, match="nothing reduces with 'divide'"):
        computed([*body, FragmentRowReduce("u", "v", ("c",), elementwise("divide"))], inputs, ((16, 8), "f32"))


def test_rows_of_volta_fragments() -> None:
    p, q = halves(16, 4), halves(4, 16, seed=2)
    volta: dict[str, Any] = {"fragment_layout": "m8n8k4"}
    body = [
        *volta_regs(a=("a", "f16", 2), b=("b", "f16", 2), c=("c", "f32", 8)),
        direct("a", "p", "a", **volta), direct("b", "q", "b", **volta), MmaSyncPtx("c", "a", "b", (8, 8, 4)),
        FragmentRowReduce("s0", "s1", ("c",), elementwise("add"), M8N8K4),
        FragmentApply("d", elementwise("divide"), ("c", ("s0", "s1")), (FRAG, ROW), layout=M8N8K4),
        FragmentApply(
            "d", elementwise("where"), (op("==", var("__fcol"), var("__frow")), lit(1.0), "d"), (COORD, UNIFORM, FRAG),
            in_place=True, layout=M8N8K4, row_base=lit(0), col_base=lit(0),
        ),
        RegStore("y", Z, "d", (8, 8, 4), **volta),
    ]  # fmt: skip
    y = computed(body, {"p": p, "q": q}, ((16, 16), "f32"))
    c = p.astype(float) @ q
    expected = c / c.sum(1, keepdims=True)
    np.fill_diagonal(expected, 1)
    assert np.allclose(y, expected, rtol=1e-10)


def test_accumulators_as_operands() -> None:
    x, shape = halves(16, 8, seed=9), (16, 8, 16)
    body, inputs, c = product(
        FragmentApply("d", elementwise("multiply"), ("c", lit(0.5)), (FRAG, UNIFORM)),
        FragmentRepack("a", ("c", "d")), direct("b", "x", "b"), RegFragment("e", "c", shape, dtype("f32")),
        MmaSyncPtx("e", "a", "b", shape),
        RegFragment("b2", "b", shape, dtype("f16")), FragmentRepack("b2", ("d",), role="b"),
        MmaSyncPtx("e", "a", "b2", shape),
        stored("e"),
        x=x,
    )  # fmt: skip
    a = np.concatenate([c, c / 2], axis=1)
    assert np.allclose(computed(body, inputs, ((16, 8), "f32")), a @ x + a @ (c / 2), rtol=1e-12)
    with pytest.raises(InputError, match="'a' is no fragment of a 16 x 8 matrix"):
        computed([*body, FragmentRepack("a", ("c",))], inputs, ((16, 8), "f32"))


# ------------------------------------------------------------------------------------------------------------- stores


def test_an_epilogue_reads_each_elements_place() -> None:
    row, column = var(ELEM_ROW), var(ELEM_COL)
    table = np.arange(128, dtype=np.int32).reshape(16, 8)
    bias, scale = halves(20, 8, seed=7), halves(8, 16, seed=8)
    steps = [
        Load("b", "bias", (op("+", row, 4), column)), Load("s", "scale", (column, row)),
        Load("n", "table", (row, column)),
        Assign("u", "multiply", ("x", "s")), Assign("v", "add", ("u", "b")), Assign("w", "add", ("v", "z")),
        Assign("k", "bitwise_and", ("n", "n"), dtype=dtype("i32")), Assign("f", "copy", ("k",), dtype=dtype("f32")),
        Select("o", (SelectBranch("w", op("<", op("+", row, column), 9)), SelectBranch("f", op("==", lit(1), 1)))),
    ]  # fmt: skip
    epilogue = Lambda.closing(("x", "z"), steps, ("o",))
    body, inputs, c = product(
        FragmentApply("d", elementwise("square"), ("c",), (FRAG,)),
        stored(epilogue=epilogue, extra_frags=("d",)),
        bias=bias, scale=scale, table=table,
    )  # fmt: skip
    y = computed(body, inputs, ((16, 8), "f32"))
    i, j = np.indices((16, 8))
    expected = np.where(i + j < 9, c * scale.astype(float).T + bias[4:].astype(float) + c**2, table)
    assert np.allclose(y, expected, rtol=1e-12)


def test_guards_hold_back_stores_and_what_their_epilogues_read() -> None:
    epilogue = Lambda.closing(
        ("x",), [Load("b", "bias", (var(ELEM_ROW), var(ELEM_COL))), Assign("o", "add", ("x", "b"))], ("o",)
    )
    bias = halves(10, 5, seed=7)
    body, inputs, c = product(
        stored(epilogue=epilogue, m_guard=(lit(90), lit(100)), n_guard=(lit(2), lit(7)), ldm=5), bias=bias
    )
    y = computed(body, inputs, ((10, 5), "f32"))
    assert np.allclose(y, c[:10, :5] + bias.astype(float), rtol=1e-12)
    body, inputs, c = product(stored(m_guard=(lit(0), lit(3))))
    y = computed(body, inputs, ((16, 8), "f32"))
    assert np.allclose(y[:3], c[:3], rtol=1e-12)
    assert np.isnan(y[3:]).all()


def test_strides_of_stores() -> None:
    body, inputs, c = product(stored(ldm=1, ldn=16))
    assert np.allclose(computed(body, inputs, ((8, 16), "f32")), c.T)
    body, inputs, c = product(RegStore("y", (*Z, lit(0)), "c", (16, 8, 16), row_dim=0, col_dim=2))
    assert np.allclose(computed(body, inputs, ((16, 2, 8), "f32"))[:, 0], c)


def test_atomic_stores_add() -> None:
    body, inputs, c = product(stored(atomic=True), stored(atomic=True))
    assert np.allclose(computed(body, inputs, ((16, 8), "f32")), 2 * c)
    rounded = computed(body, inputs, ((16, 8), "f16"), exact=False)
    assert rounded.dtype == np.float16


def test_stores_that_run_along_columns() -> None:
    run = tuple(RegStore("y", (lit(0), lit(8 * at)), "c", (16, 8, 16)) for at in (1, 2, 3))
    body, inputs, c = product(stored(run=run))
    assert np.allclose(computed(body, inputs, ((16, 32), "f16")), np.tile(c, 4))


@pytest.mark.parametrize("swizzle", ["NONE", "B32"])
def test_stores_to_shared_memory(swizzle: str) -> None:
    """An accumulator that becomes the A of another product by way of a swizzled array."""
    x, shape = halves(16, 8, seed=9), (16, 8, 16)
    body, inputs, c = product(
        Smem("s", (16, 16), "__half", 256),
        RegStore("s", Z, "c", shape, swizzle=swizzle), RegStore("s", (lit(0), lit(8)), "c", shape, swizzle=swizzle),
        LdmatrixLoad("a", "s", Z, "a", 16, swizzle), direct("b", "x", "b"),
        RegFragment("e", "c", shape, dtype("f32")), MmaSyncPtx("e", "a", "b", shape), stored("e"),
        x=x,
    )  # fmt: skip
    assert np.allclose(computed(body, inputs, ((16, 8), "f32")), np.tile(c, 2) @ x, rtol=1e-12)


# ------------------------------------------------------------------------------------------------------------- faults


@pytest.mark.parametrize(
    ("body", "error", "message"),
    [
        ([RegFragment("a", "a", (16, 8, 16), dtype("i32"))], UnsupportedError, "no fragments of i32"),
        ([Let("c", lit(1.0)), stored()], InputError, "'c' is no fragment"),
        ([*regs(a=("a", "f16"), b=("b", "f16"), c=("c", "f32")), MmaSyncPtx("c", "a", "b", (16, 8, 32))], InputError,
         "a product of shape"),
        ([Smem("s", (16, 16), "__half"), *regs(a=("a", "f16")), LdmatrixLoad("a", "s", Z, "a", 16, "V70A")], InputError,
         "is read by row and column, two fragments at once"),
    ],
)  # fmt: skip
def test_what_is_no_fragment(body: Iterable[Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        computed(body, {"p": halves(16, 16)}, ((16, 8), "f32"))


def test_a_part_of_a_warp_has_no_fragments() -> None:
    with pytest.raises(UnsupportedError, match="a CTA of 16 threads has a part of one"):
        computed(regs(a=("a", "f16")), {"p": halves(4)}, ((1,), "f32"), threads=16)
