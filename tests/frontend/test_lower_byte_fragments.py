"""Fragments of bytes against NumPy: fp8 and fp4 as they are, decoded into 16-bit fragments, scaled by blocks.

What is multiplied has few digits, so that products and sums are exact whatever their order.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from emmy.compiler.dtype import decode_f4x2, decode_f8, encode_f8
from kernel_ir import (
    BlockScaleLoad,
    FragmentRepack,
    LdmatrixLoad,
    Load,
    MmaSyncPtx,
    RegFragment,
    RegStore,
    Smem,
    Sync,
    Write,
    dtype,
    lit,
    op,
    tile,
    var,
)
from lowering_lab import DTYPES, Array, compiled, kernel_graph, of_bfloat, refused, run, run_emmy, to_bfloat

from ptxc.errors import CompileError, InputError, TargetError, UnsupportedError
from ptxc.toolchain import assemble

AT = var("i")
ZERO = (lit(0), lit(0))
FP8 = {"f8e4m3": "e4m3", "f8e5m2": "e5m2"}
C_NAMES = {
    "f8e4m3": "__nv_fp8_e4m3", "f8e5m2": "__nv_fp8_e5m2", "f4e2m1x2": "unsigned char", "f16": "__half",
    "bf16": "__nv_bfloat16", "f32": "float",
}  # fmt: skip


def small(seed: int, *shape: int) -> Array:
    """Small multiples of 1/2."""
    return np.random.default_rng(seed).integers(-6, 7, shape) / np.float32(2)


def stored(values: Array, kind: str) -> Array:
    """Numbers as a buffer of a type holds them."""
    if kind in FP8:
        return encode_f8(values, kind)
    return to_bfloat(values) if kind == "bf16" else values.astype(DTYPES[kind])


def fill(array: str, buffer: str, count: int) -> list[Any]:
    """A warp copies a buffer to a shared array, element by element."""
    stmts: list[Any] = []
    for at in range(0, count, 32):
        index, name = (op("+", AT, at),), f"{array}{at}"
        stmts += [Load(name, buffer, index), Write(array, index, name)]
    return stmts


def warp(stmts: Iterable[Any], inputs: dict[str, Any], outputs: dict[str, Any] | None = None) -> Any:
    """A kernel of one warp."""
    return kernel_graph(tile({"i": 32}, stmts, 32), inputs, outputs or {"out": (16, 8)})


def fragment(name: str, role: str, kind: str, depth: int = 16, **fields: Any) -> Any:
    return RegFragment(name, role, (16, 8, depth), dtype(kind), **fields)


# ----------------------------------------------------------------------------------------------- products of bytes


def product(kind: str, trans: bool, staged: bool, depth: int = 64) -> Any:
    """``out = x @ y`` of fp8, y stored k by n or n by k; from shared memory or straight from global memory."""
    shape = (8, depth) if trans else (depth, 8)
    stmts: list[Any] = []
    a, b = ("sa", "sb") if staged else ("x", "y")
    if staged:
        stmts += [
            Smem("sa", (16, depth), C_NAMES[kind], align=16),
            Smem("sb", shape, C_NAMES[kind], align=16),
            *fill("sa", "x", 16 * depth),
            *fill("sb", "y", depth * 8),
            Sync(),
        ]
    stmts += [fragment("a", "a", kind, 32), fragment("b", "b", kind, 32), fragment("c", "c", "f32", 32)]
    for at in range(0, depth, 32):
        index = (lit(0), lit(at)) if trans else (lit(at), lit(0))
        how = {"staged": staged, "byte_slab": staged}
        stmts += [
            LdmatrixLoad("a", a, (lit(0), lit(at)), "a", ldm=depth, **how),
            LdmatrixLoad("b", b, index, "b", ldm=shape[1], b_trans=trans, **how),
            MmaSyncPtx("c", "a", "b", (16, 8, 32), FP8[kind]),
        ]
    stmts.append(RegStore("out", ZERO, "c", (16, 8)))
    return warp(stmts, {"x": ((16, depth), kind), "y": (shape, kind)})


@pytest.mark.parametrize("kind", FP8)
@pytest.mark.parametrize("trans", [False, True])
@pytest.mark.parametrize("staged", [False, True])
def test_a_product_of_fp8(kind: str, trans: bool, staged: bool) -> None:
    a, b = small(1, 16, 64), small(2, 64, 8)
    y = np.ascontiguousarray(b.T) if trans else b
    got = run(product(kind, trans, staged), {"x": stored(a, kind), "y": stored(y, kind)}, "sm_89")
    assert np.array_equal(got["out"], a @ b)


@pytest.mark.needs("nvcc")
@pytest.mark.parametrize("trans", [False, True])
def test_a_product_of_fp8_is_that_of_emmys_cuda(trans: bool) -> None:
    codes = np.random.default_rng(3).integers(0, 0x7E, (2, 16 * 64), dtype=np.uint8)
    codes |= np.random.default_rng(4).integers(0, 2, codes.shape, dtype=np.uint8) << 7
    arrays = {"x": codes[0].reshape(16, 64), "y": codes[1, : 8 * 64].reshape((8, 64) if trans else (64, 8))}
    graph = product("f8e4m3", trans, staged=True)
    mine, other = run(graph, arrays, "sm_89"), run_emmy(graph, arrays, "sm_89")
    assert np.array_equal(mine["out"].view(np.uint32), other["out"].view(np.uint32))


@pytest.mark.parametrize("trans", [False, True])
@pytest.mark.parametrize(("rows", "columns"), [(16, 8), (5, 8), (16, 3), (9, 1)])
def test_edges_of_a_product_of_fp8(trans: bool, rows: int, columns: int) -> None:
    """Rows and columns beyond the edges are neither read nor stored."""
    a, b = small(1, rows, 32), small(2, 32, columns)
    y = np.ascontiguousarray(b.T) if trans else b
    m, n = (lit(0), lit(rows)), (lit(0), lit(columns))
    stmts = [
        fragment("a", "a", "f8e4m3", 32),
        fragment("b", "b", "f8e4m3", 32),
        fragment("c", "c", "f32", 32),
        LdmatrixLoad("a", "x", ZERO, "a", staged=False, gmem_guard=m),
        LdmatrixLoad("b", "y", ZERO, "b", staged=False, b_trans=trans, gmem_guard=n),
        MmaSyncPtx("c", "a", "b", (16, 8, 32), "e4m3"),
        RegStore("out", ZERO, "c", (16, 8), m_guard=m, n_guard=n),
    ]
    inputs = {"x": (a.shape, "f8e4m3"), "y": (y.shape, "f8e4m3")}
    graph = warp(stmts, inputs, {"out": (rows, columns)})
    got = run(graph, {"x": stored(a, "f8e4m3"), "y": stored(y, "f8e4m3")}, "sm_89")
    assert np.array_equal(got["out"], a @ b)


def test_a_tile_beyond_the_edge_is_zero() -> None:
    """It reads nothing, wherever its addresses are."""
    guard = (lit(64), lit(20))
    stmts = [
        *[fragment(name, name, kind, 32) for name, kind in (("a", "f8e4m3"), ("b", "f8e4m3"), ("c", "f32"))],
        LdmatrixLoad("a", "x", (lit(64), lit(0)), "a", staged=False, gmem_guard=guard),
        LdmatrixLoad("b", "y", ZERO, "b", staged=False, b_trans=True),
        MmaSyncPtx("c", "a", "b", (16, 8, 32), "e4m3"),
        RegStore("out", ZERO, "c", (16, 8)),
    ]
    inputs = {"x": ((20, 32), "f8e4m3"), "y": ((8, 32), "f8e4m3")}
    full = np.full((20, 32), 0x38, np.uint8)
    got = run(warp(stmts, inputs), {"x": full, "y": full[:8]}, "sm_89")
    assert not got["out"].any()


# ------------------------------------------------------------------------------------------- decoded into 16 bits


def decoded(source: str, kind: str, role: str, trans: bool, staged: bool) -> Any:
    """``out = x @ y`` in f16 or bf16, one of the operands stored as ``source``."""
    kinds = {"a": source if role == "a" else kind, "b": source if role == "b" else kind}
    shape = (8, 16) if trans else (16, 8)
    stmts: list[Any] = []
    name = {"a": "x", "b": "y"}[role]
    if staged:
        extents = (16, 16) if role == "a" else shape
        stmts += [Smem("s", extents, C_NAMES[source], align=16), *fill("s", name, extents[0] * extents[1]), Sync()]
    stmts += [fragment("a", "a", kind), fragment("b", "b", kind), fragment("c", "c", "f32")]
    for side, buffer in (("a", "x"), ("b", "y")):
        slab = staged and side == role
        stmts.append(
            LdmatrixLoad(
                side,
                "s" if slab else buffer,
                ZERO,
                side,
                ldm=16 if side == "a" else shape[1],
                staged=slab,
                byte_slab=slab,
                b_trans=trans and side == "b",
            )
        )
    stmts += [MmaSyncPtx("c", "a", "b", (16, 8, 16), kind), RegStore("out", ZERO, "c", (16, 8))]
    return warp(stmts, {"x": ((16, 16), kinds["a"]), "y": (shape, kinds["b"])})


@pytest.mark.parametrize("target", ["sm_80", "sm_89"])
@pytest.mark.parametrize(
    ("source", "staged"), [*[(type, place) for type in FP8 for place in (False, True)], ("f32", False)]
)
@pytest.mark.parametrize("kind", ["f16", "bf16"])
@pytest.mark.parametrize(("role", "trans"), [("a", False), ("b", False), ("b", True)])
def test_a_fragment_of_another_type(source: str, kind: str, role: str, trans: bool, staged: bool, target: str) -> None:
    a, b = small(5, 16, 16), small(6, 16, 8)
    y = np.ascontiguousarray(b.T) if trans else b
    arrays = {"x": stored(a, source if role == "a" else kind), "y": stored(y, source if role == "b" else kind)}
    got = run(decoded(source, kind, role, trans, staged), arrays, target)
    assert np.array_equal(got["out"], a @ b)


# --------------------------------------------------------------------------------------------- scaled while loaded


def scaled(source: str, kind: str) -> Any:
    """``out`` is B, scaled: the product of the identity with B, a slab of 8 columns by 32 rows, its second half."""
    width = 16 if source == "f4e2m1x2" else 32
    scales = kind if source == "f4e2m1x2" else "f32"
    stmts = [
        Smem("s", (8, width), C_NAMES[source], align=16),
        Smem("scales", (8, 4), C_NAMES[scales], align=16),
        *fill("s", "y", 8 * width),
        *fill("scales", "z", 32),
        Sync(),
        *[fragment(name, name, kind if name != "c" else "f32") for name in "abc"],
        LdmatrixLoad("a", "x", ZERO, "a", staged=False),
        LdmatrixLoad(
            "b", "s", (lit(0), lit(width // 2)), "b", ldm=width, byte_slab=True, b_trans=True,
            scale_buffer="scales", scale_index=(lit(0), lit(1)), scale_ldm=4,
        ),
        MmaSyncPtx("c", "a", "b", (16, 8, 16), kind),
        RegStore("out", ZERO, "c", (16, 8)),
    ]  # fmt: skip
    return warp(stmts, {"x": ((16, 16), kind), "y": ((8, width), source), "z": ((32,), scales)})


def scaling(source: str, kind: str, seed: int) -> tuple[dict[str, Array], Array]:
    """Inputs of :func:`scaled`, any codes with any scales, and what NumPy makes of them."""
    random = np.random.default_rng(seed)
    codes = random.integers(0, 256, (8, 16 if source == "f4e2m1x2" else 32), dtype=np.uint8)
    factors = (np.exp2(random.uniform(-12, 7, (8, 4))) * random.choice([-1, 1], (8, 4))).astype(np.float32)
    if source == "f4e2m1x2":
        scales = stored(factors, kind)
        factors = of_bfloat(scales) if kind == "bf16" else scales.astype(np.float32)
        values = decode_f4x2(codes)
    else:
        codes[(codes & 0x7F) >= (0x7C if source == "f8e5m2" else 0x7F)] = 0  # an infinity or NaN would spoil its column
        scales, values = factors, decode_f8(codes, source)
    exact = values[:, 16:] * factors[:, 1:2]
    rounded = of_bfloat(to_bfloat(exact)) if kind == "bf16" else np.clip(exact, -65504, 65504).astype(np.float16)
    arrays = {"x": stored(np.eye(16, dtype=np.float32), kind), "y": codes, "z": scales.reshape(32)}
    return arrays, rounded.astype(np.float32).T


@pytest.mark.parametrize("target", ["sm_80", "sm_89", "sm_90"])
@pytest.mark.parametrize("kind", ["f16", "bf16"])
@pytest.mark.parametrize("source", [*FP8, "f4e2m1x2"])
def test_a_scaled_fragment(source: str, kind: str, target: str) -> None:
    for seed in range(3):
        arrays, want = scaling(source, kind, seed)
        got = run(scaled(source, kind), arrays, target)["out"]
        inside = np.abs(want) < 65504  # what is infinite in f16 spoils its column
        assert np.array_equal(got[:, inside.all(0)], want[:, inside.all(0)])
        assert inside.all(0).any()


@pytest.mark.needs("nvcc")
@pytest.mark.parametrize("kind", ["f16", "bf16"])
@pytest.mark.parametrize("source", ["f8e4m3", "f4e2m1x2"])
def test_a_scaled_fragment_is_that_of_emmys_cuda(source: str, kind: str) -> None:
    arrays, _ = scaling(source, kind, 7)
    graph = scaled(source, kind)
    mine, other = run(graph, arrays, "sm_80"), run_emmy(graph, arrays, "sm_80")
    assert np.array_equal(mine["out"].view(np.uint32), other["out"].view(np.uint32))


# ------------------------------------------------------------------------------------------------ blocks of scales


def block_scaled(depth: int = 128) -> Any:
    """``out = x @ y`` of packed fp4, y stored n by k, with one scale for each 16 elements of k."""
    half, blocks = depth // 2, depth // 16
    stmts: list[Any] = []
    for name, buffer, rows in (("sa", "x", 16), ("sb", "y", 8)):
        stmts += [
            Smem(name, (rows, half), "unsigned char", align=16),
            Smem(f"{name}_scales", (rows, blocks), "__nv_fp8_e4m3", align=16),
            *fill(name, buffer, rows * half),
            *fill(f"{name}_scales", f"{buffer}_scales", rows * blocks),
        ]
    stmts += [
        Sync(),
        fragment("a", "a", "f4e2m1x2", 64, nregs=4),
        fragment("b", "b", "f4e2m1x2", 64, nregs=2),
        fragment("c", "c", "f32", 64),
        fragment("fa", "a", "f8e4m3", 64, nregs=0),
        fragment("fb", "b", "f8e4m3", 64, nregs=0),
    ]
    for at in range(0, depth, 64):
        place = (lit(0), lit(at // 2))
        stmts += [
            BlockScaleLoad("fa", "sa_scales", (lit(0), lit(at // 16)), "a", ldm=blocks),
            BlockScaleLoad("fb", "sb_scales", (lit(0), lit(at // 16)), "b", ldm=blocks),
            LdmatrixLoad("a", "sa", place, "a", ldm=half, byte_slab=True),
            LdmatrixLoad("b", "sb", place, "b", ldm=half, byte_slab=True, b_trans=True),
            MmaSyncPtx("c", "a", "b", (16, 8, 64), "e2m1", sfa_frag="fa", sfb_frag="fb"),
        ]
    stmts.append(RegStore("out", ZERO, "c", (16, 8)))
    inputs = {"x": ((16, half), "f4e2m1x2"), "y": ((8, half), "f4e2m1x2")}
    inputs |= {"x_scales": ((16, blocks), "f8e4m3"), "y_scales": ((8, blocks), "f8e4m3")}
    return warp(stmts, inputs)


def test_a_product_that_scales_blocks() -> None:
    random = np.random.default_rng(8)
    arrays: dict[str, Array] = {}
    operands = []
    for name, rows in (("x", 16), ("y", 8)):
        codes = random.integers(0, 256, (rows, 64), dtype=np.uint8)
        factors = np.exp2(random.integers(-3, 3, (rows, 8))).astype(np.float32)
        arrays |= {name: codes, f"{name}_scales": encode_f8(factors, "f8e4m3")}
        operands.append(decode_f4x2(codes) * np.repeat(factors, 16, axis=1))
    got = run(block_scaled(), arrays, "sm_120a")
    assert np.array_equal(got["out"], operands[0] @ operands[1].T)


def test_a_product_that_scales_blocks_needs_its_architecture() -> None:
    error = refused(block_scaled, "sm_90")
    assert isinstance(error, TargetError)
    assert "sm_120a" in str(error)
    assert "MmaSyncPtx" in error.statement


@pytest.mark.parametrize(("target", "suited"), [("sm_120", "sm_120a"), ("sm_121", "sm_121a"), ("sm_121f", "sm_121f")])
def test_the_family_of_an_architecture_scales_blocks_too(target: str, suited: str) -> None:
    assert compiled(block_scaled(), target).target == suited


# ---------------------------------------------------------------------------------------------------- in registers


def repacked(role: str = "b", kind: str = "f16", sources: tuple[str, ...] = ("c",)) -> Any:
    """``out = x @ (y @ z)``, whose second operand goes from accumulators to a fragment of B."""
    stmts = [
        *[fragment(name, "a", "f16") for name in ("a", "y")],
        *[fragment(name, "b", "f16") for name in ("b", "z")],
        *[fragment(name, "c", "f32") for name in ("c", "d")],
        LdmatrixLoad("y", "y", ZERO, "a", staged=False),
        LdmatrixLoad("z", "z", ZERO, "b", staged=False),
        LdmatrixLoad("a", "x", ZERO, "a", staged=False),
        MmaSyncPtx("c", "y", "z", (16, 8, 16), "f16"),
        FragmentRepack("b", sources, ab_dtype=kind, role=role),
        MmaSyncPtx("d", "a", "b", (16, 8, 16), "f16"),
        RegStore("out", ZERO, "d", (16, 8)),
    ]
    return warp(stmts, {"x": ((16, 16), "f16"), "y": ((16, 16), "f16"), "z": ((16, 8), "f16")})


@pytest.mark.parametrize("target", ["sm_80", "sm_90"])
def test_an_accumulator_becomes_an_operand_b(target: str) -> None:
    x, y, z = (np.random.default_rng(seed).integers(-3, 4, (16, n)) for seed, n in ((9, 16), (10, 16), (11, 8)))
    got = run(repacked(), {"x": x, "y": y, "z": z}, target)
    assert np.array_equal(got["out"], x @ (y @ z))


@pytest.mark.needs("ptxas")
@pytest.mark.parametrize("target", ["sm_80", "sm_89", "sm_90", "sm_120a"])
def test_ptxas_takes_fragments_of_bytes(target: str) -> None:
    graphs = [repacked(), decoded("f8e5m2", "bf16", "b", False, True), decoded("f8e4m3", "f16", "a", False, True)]
    graphs += [scaled(source, kind) for source in ("f8e4m3", "f4e2m1x2") for kind in ("f16", "bf16")]
    if target != "sm_80":
        graphs += [product(kind, trans, staged) for kind in FP8 for trans in (False, True) for staged in (False, True)]
    if target == "sm_120a":
        graphs.append(block_scaled())
    for graph in graphs:
        assert not assemble(compiled(graph, target).ptx, target).warnings


# -------------------------------------------------------------------------------------------------------- errors


def loading(kind: str, source: str, load: Any, smem: str | None = None, inputs: Any = None) -> CompileError:
    """The error of one load of a fragment of ``kind`` from ``x`` or a slab."""
    slab = [Smem("s", (16, 32), smem)] if smem else []
    filled = fragment("f", load.role, kind, 16 if kind == "f16" else 32)
    stmts = [*slab, filled, load, Load("v", "x", (lit(0), lit(0))), Write("out", ZERO, "v")]
    return refused(lambda: warp(stmts, {"x": ((16, 32), source), **(inputs or {})}), "sm_89")


@pytest.mark.parametrize(
    ("kind", "source", "load", "what"),
    [
        ("f8e4m3", "f8e5m2", LdmatrixLoad("f", "x", ZERO, "a", staged=False), "'x' is f8e5m2, and the fragment 'f'"),
        ("f8e4m3", "f16", LdmatrixLoad("f", "x", ZERO, "a", staged=False), "'x' is f16, and the fragment"),
        (
            "f8e4m3",
            "f8e4m3",
            LdmatrixLoad("f", "x", ZERO, "a", staged=False, k_zero=(lit(0), lit(30))),
            "no load of bytes that masks k",
        ),
        ("f4e2m1x2", "f4e2m1x2", LdmatrixLoad("f", "x", ZERO, "a", staged=False), "filled from shared memory only"),
        ("f16", "f4e2m1x2", LdmatrixLoad("f", "x", ZERO, "b", staged=False), "packed fp4, which needs scales"),
    ],
)  # fmt: skip
def test_fragments_that_nothing_fills(kind: str, source: str, load: Any, what: str) -> None:
    error = loading(kind, source, load)
    assert isinstance(error, InputError | UnsupportedError)
    assert what in str(error)
    assert "LdmatrixLoad f <- x" in error.statement


@pytest.mark.parametrize(
    ("slab", "scales", "role", "trans", "what"),
    [
        ("f8e4m3", "f16", "b", True, "the scales 'z' are f16"),
        ("f4e2m1x2", "f32", "b", True, "the scales 'z' are f32"),
        ("f16", "f32", "b", True, "'s' is f16"),
        ("f8e4m3", "f32", "b", False, "a scaled load of f16 for b"),
        ("f8e4m3", "f32", "a", True, "a scaled load of f16 for a"),
    ],
)
def test_scaled_loads_that_there_are_not(slab: str, scales: str, role: str, trans: bool, what: str) -> None:
    load = LdmatrixLoad("f", "s", ZERO, role, 32, byte_slab=True, b_trans=trans, scale_buffer="z", scale_index=ZERO)
    error = loading("f16", "f32", load, C_NAMES[slab], {"z": ((16, 2), scales)})
    assert what in str(error)
    assert error.statement.startswith("body[0].body[2] ")


@pytest.mark.parametrize("fields", [{"pair_frag": "g"}, {"swizzle": "B128"}, {"staged": False}])
def test_slabs_of_bytes_are_plain(fields: dict[str, Any]) -> None:
    load = LdmatrixLoad("f", "s", ZERO, "b", 32, byte_slab=True, b_trans=True, **fields)
    assert "a slab of bytes" in str(loading("f8e4m3", "f32", load, "__nv_fp8_e4m3"))


@pytest.mark.parametrize(
    ("shape", "kind", "fields", "what"),
    [
        ((16, 8, 32), "f16", {}, "mma m16n8k32 of f16 into f32"),
        ((16, 8, 16), "e4m3", {}, "mma m16n8k16 of e4m3 into f32"),
        ((16, 8, 32), "e4m3", {"c_dtype": "f16"}, "mma m16n8k32 of e4m3 into f16"),
        ((16, 8, 64), "e2m1", {}, "the product of e2m1, and no other, takes two"),
        ((16, 8, 32), "e4m3", {"sfa_frag": "s", "sfb_frag": "s"}, "the product of e2m1, and no other, takes two"),
        ((16, 8, 64), "e2m1", {"sfa_frag": "s"}, "the product of e2m1, and no other, takes two"),
        ((16, 8, 64), "e2m1", {"sfa_frag": "a", "sfb_frag": "s"}, "'a' holds no scales"),
        ((16, 8, 64), "e2m1", {"sfa_frag": "s", "sfb_frag": "c"}, "'c' holds no scales"),
    ],
)
def test_products_that_no_atom_has(shape: tuple[int, int, int], kind: str, fields: dict[str, Any], what: str) -> None:
    stmts = [
        *[fragment(name, name, "f4e2m1x2", 64, nregs=registers) for name, registers in (("a", 4), ("b", 2))],
        fragment("c", "c", "f32"),
        fragment("s", "a", "f8e4m3", 64, nregs=0),
        MmaSyncPtx("c", "a", "b", shape, kind, **fields),
        RegStore("out", ZERO, "c", (16, 8)),
    ]
    error = refused(lambda: warp(stmts, {"x": (8,)}), "sm_120a")
    assert what in str(error)
    assert "MmaSyncPtx" in error.statement


@pytest.mark.parametrize(
    ("source", "role", "frag", "what"),
    [
        ("f16", "a", "s", "the scales of fp4 are f8e4m3"),
        ("f8e4m3", "c", "s", "scales of the role 'c'"),
        ("f8e4m3", "a", "a", "has several registers"),
    ],
)
def test_scales_that_there_are_not(source: str, role: str, frag: str, what: str) -> None:
    stmts = [
        fragment("a", "a", "f8e4m3", 32),
        fragment("s", "a", "f8e4m3", 64, nregs=0),
        BlockScaleLoad(frag, "x", ZERO, role, ldm=4),
        Load("v", "x", ZERO),
        Write("out", ZERO, "v"),
    ]
    error = refused(lambda: warp(stmts, {"x": ((16, 4), source)}), "sm_120a")
    assert what in str(error)
    assert "BlockScaleLoad" in error.statement


@pytest.mark.parametrize(
    ("role", "kind", "sources", "what"),
    [
        ("b", "bf16", ("c",), "a repacking as bf16 of b"),
        ("a", "e4m3", ("c", "c"), "a repacking as e4m3 of a"),
        ("b", "f16", ("c", "c"), "a repacking of 2 accumulators"),
        ("a", "f16", ("c",), "a repacking of 1 accumulators"),
    ],
)
def test_repackings_that_there_are_not(role: str, kind: str, sources: tuple[str, ...], what: str) -> None:
    assert what in str(refused(lambda: repacked(role, kind, sources), "sm_80"))


def test_a_product_of_fp8_needs_its_architecture() -> None:
    error = refused(lambda: product("f8e4m3", True, True), "sm_80")
    assert isinstance(error, TargetError)
    assert "m16n8k32" in str(error)


def test_bytes_that_follow_each_other_are_read_at_once() -> None:
    """Of A, and of B where k is contiguous, a register is one load; else it is four."""
    loads = {trans: compiled(product("f8e4m3", trans, True), "sm_89").ptx for trans in (False, True)}
    assert loads[True].count("ld.shared.b32") == 2 * (4 + 2)
    assert "ld.shared.u8" not in loads[True]
    assert loads[False].count("ld.shared.u8") == 2 * 2 * 4
