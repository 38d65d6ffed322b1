"""What tensor cores of one warp do not do is refused where the statement stands, with what to do instead.

Each of these kernels was compiled to something else than it says, or stopped the compiler, before it was an error. For
warpgroups and bulk copies see ``test_lower_warpgroup.py``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from emmy.compiler.graph import Graph
from emmy.compiler.ir.elementwise import ElementwiseImpl
from emmy.compiler.ir.kernel import ir
from emmy.compiler.ir.pure.lam import Lambda
from emmy.compiler.ir.stmt import Assign, Body
from kernel_ir import (
    BlockScaleLoad,
    CpAsyncCopy,
    CpAsyncWait,
    FragmentApply,
    FragmentPromote,
    FragmentRepack,
    FragmentRowReduce,
    LdmatrixLoad,
    Load,
    Loop,
    MmaSyncPtx,
    RegFragment,
    RegStore,
    Smem,
    Write,
    axis,
    dtype,
    lit,
    tile,
)
from lowering_lab import compiled, kernel_graph, refused

from ptxc.errors import DivergenceError, InputError, UnsupportedError

SHAPE, VOLTA_SHAPE, BYTES_SHAPE = (16, 8, 16), (8, 8, 4), (16, 8, 32)
ZERO = (lit(0), lit(0))
EDGE = (lit(0), lit(9))
VOLTA = {"fragment_layout": "m8n8k4"}
ADD, MAX = ElementwiseImpl("add"), ElementwiseImpl("maximum")
Stmts = list[Any]


def fragment(name: str, role: str, kind: str = "f16", shape: Any = SHAPE, **fields: Any) -> Any:
    return RegFragment(name, role, shape, dtype(kind), **fields)


def slab(kind: str = "__half", columns: int = 16) -> Any:
    return Smem("s", (16, columns), kind, align=16)


def load(name: str = "a", role: str = "a", **fields: Any) -> Any:
    return LdmatrixLoad(name, "s", ZERO, role, **fields)


def direct(name: str = "a", role: str = "a", source: str = "x", **fields: Any) -> Any:
    return LdmatrixLoad(name, source, ZERO, role, staged=False, **fields)


def multiply(a: str = "a", b: str = "b", c: str = "c", kind: str = "f16", shape: Any = SHAPE, **fields: Any) -> Any:
    return MmaSyncPtx(c, a, b, shape, kind, **fields)


def apply(*args: tuple[Any, str], out: str = "e", name: str = "add", **fields: Any) -> Any:
    return FragmentApply(out, ElementwiseImpl(name), tuple(a for a, _ in args), tuple(k for _, k in args), **fields)


def store(name: str = "c", **fields: Any) -> Any:
    return RegStore("z", ZERO, name, SHAPE, **fields)


def warp(*stmts: Any, threads: int = 32) -> Graph:
    """A kernel of one warp."""
    inputs = {"x": ((16, 16), "f16"), "y": ((16, 8), "f16"), "bytes": ((16, 32), "f8e4m3"), "w": ((16, 16), "f32")}
    return kernel_graph(tile({"i": threads}, stmts, threads), inputs, {"z": (16, 8)})


#: Fragments of each role, and accumulators of each type.
ABC = [fragment("a", "a"), fragment("b", "b"), fragment("c", "c", "f32"), fragment("d", "c", "f32"), fragment("h", "c")]
FAMILY = [*ABC, fragment("f", "c", "f32", count=2)]
HALVES = [*ABC, slab()]
BYTES = [fragment("f", "a", "f8e4m3", BYTES_SHAPE), slab("__nv_fp8_e4m3", 32)]
SCALES = [fragment("q", "a", "f8e4m3", (16, 8, 64), nregs=0)]
VOLTA_ABC = [
    *[fragment(name, name[0], shape=VOLTA_SHAPE, nregs=2) for name in ("a", "b")],
    fragment("c", "c", "f32", VOLTA_SHAPE, nregs=8),
]
C, ONE = ("c", "frag"), (lit(1.0), "uniform")


def test_what_the_errors_are_about_is_compiled() -> None:
    """The kernels below differ from these by what they are refused for."""
    total = Lambda.closing(("p", "q"), Body((Assign("t", ADD, ("p", "q")),)), ("t",))
    compiled(warp(*HALVES, load(), load("b", "b", swizzle="B32@4"), multiply(), apply(C, ONE), store("e")), "sm_90")
    compiled(warp(*ABC, FragmentRepack("a", ("c", "d")), FragmentPromote("c", "h"), store(ldm=8, row_dim=0)), "sm_90")
    compiled(warp(*BYTES, load("f", byte_slab=True), *ABC, store(extra_frags=("d",), epilogue=total)), "sm_90")
    compiled(warp(*FAMILY, Loop(axis("r", 2), (multiply(c="f[r]"),)), store("f[1]")), "sm_90")
    compiled(warp(slab(), CpAsyncCopy("s", ZERO, "x", ZERO, 16), CpAsyncWait(0)), "sm_90")


# --------------------------------------------------------------------------------------------------- declarations

DECLARED: dict[str, Any] = {
    "a family of 0 fragments": fragment("f", "c", "f32", count=0),
    "a family of 256 fragments": fragment("f", "c", "f32", count=256),
    "a fragment of A of f32": fragment("f", "a", "f32"),
    "a fragment of C of bf16": fragment("f", "c", "bf16"),
    "a fragment of C of f64": fragment("f", "c", "f64"),
    "a fragment of 9 registers": fragment("f", "c", "f32", nregs=9),
    "a fragment of -1 registers": fragment("f", "a", nregs=-1),
    "a fragment of 0 registers": fragment("f", "c", "f32", nregs=0),
    "a lane's share of m3n8k16": fragment("f", "a", shape=(3, 8, 16)),
    "'f g' is no name of a fragment": fragment("f g", "a"),
    "'f[0]' is no name of a fragment": fragment("f[0]", "a"),
}


@pytest.mark.parametrize("what", DECLARED)
def test_fragments_that_there_are_not(what: str) -> None:
    check([DECLARED[what]], what)


def check(stmts: Stmts, what: str, target: str = "sm_90") -> None:
    error = refused(lambda: warp(*stmts), target)
    assert isinstance(error, InputError | UnsupportedError)
    assert what in str(error)
    assert error.hint
    assert error.statement


def test_a_shape_is_three_numbers() -> None:
    error = refused(lambda: warp(fragment("f", "c", "f32", (16, 8))))
    assert "a fragment of the shape (16, 8)" in str(error)


MEMBERS = {
    "f": "'f' is a family of 2 fragments",
    "f[2]": "there is no f[2] in the family 'f'; its members are f[0] to f[1]",
    "f[-1]": "'f[-1]' is no name of a fragment",
    "f[": "'f[' is no name of a fragment",
    "f[0": "'f[0' is no name of a fragment",
    "f[0][1]": "'f[0][1]' is no name of a fragment",
    "f[²]": "'f[²]' is no name of a fragment",
    "c[0]": "'c' is one fragment",
}


@pytest.mark.parametrize("name", MEMBERS)
@pytest.mark.parametrize("use", [lambda name: multiply(c=name), store, lambda name: FragmentPromote(name, "h")])
def test_members_of_families_that_there_are_not(name: str, use: Any) -> None:
    check([*FAMILY, use(name)], MEMBERS[name])


def test_a_loop_beyond_its_family() -> None:
    check([*FAMILY, Loop(axis("r", 3), (multiply(c="f[r]"),))], "there is no f[2] in the family 'f'")


def test_a_family_is_not_loaded_at_once() -> None:
    check([fragment("f", "a", count=2), direct("f")], "'f' is a family of 2 fragments")
    family = replace(SCALES[0], count=2)
    check([family, BlockScaleLoad("q", "bytes", ZERO, "a", ldm=32)], "'q' is a family of 2 fragments", "sm_120a")


# ---------------------------------------------------------------------------------------------------------- loads

LOADS: list[tuple[Stmts, str]] = [
    ([*HALVES, load(role="c")], "a load of the role 'c'"),
    ([*HALVES, load(fragment_layout="m7")], "a load of fragments of the layout 'm7'"),
    ([*HALVES, load(role="b")], "'a' is A of f16 in 4 registers, not B of f16 in 2 registers"),
    ([*HALVES, load("c")], "'c' is C of f32 in 4 registers, not A of f32"),
    ([*HALVES, load("b", "b", pair_frag="b")], "two fragments are loaded into 'b'"),
    ([*HALVES, load("b", "b", pair_frag="a")], "'a' is A of f16 in 4 registers, not B of f16 in 2 registers"),
    ([*HALVES, load(gmem_guard=EDGE)], "a load from a slab that ends at an edge"),
    ([*HALVES, load(k_zero=EDGE)], "a load from a slab that ends at an edge"),
    ([*HALVES, load(scale_buffer="s")], "a scaled load from no slab of bytes"),
    ([*ABC, slab("__nv_bfloat16"), load()], "'s' is bf16, and the fragment 'a' of f16 takes its bits"),
    ([*ABC, slab("float"), load()], "'s' is f32, and the fragment 'a' of f16 takes its bits"),
    ([*HALVES, load(swizzle="B128@3")], "the swizzle 'B128@3' shifts by '3'"),
    ([*HALVES, load(swizzle="B128@")], "the swizzle 'B128@' shifts by ''"),
    ([*HALVES, load(swizzle="B128@²")], "the swizzle 'B128@²' shifts by '²'"),
    ([*HALVES, load(swizzle="NONE@7")], "the swizzle 'NONE@7' shifts by '7'"),
    ([*HALVES, load(ldm=-8)], "rows that are -8 elements apart"),
    ([*HALVES, load(ldm=16.0)], "rows that are 16.0 elements apart"),
    ([*HALVES, load(ldm="16")], "rows that are '16' elements apart"),
    ([*ABC, direct("b", "b", "y", pair_frag="b1")], "a load straight from memory of a pair"),
    ([*ABC, direct(swizzle="B128")], "a load straight from memory of a pair, a swizzle"),
    ([*ABC, direct(byte_slab=True)], "a load straight from memory of a pair, a swizzle or a slab of bytes"),
    ([*ABC, direct(gmem_guard=EDGE[:1])], "an edge of 1 numbers"),
    ([*ABC, direct(k_zero=(*EDGE, lit(1)))], "an edge of 3 numbers"),
    ([*BYTES, load("f")], "a load of f8e4m3 by ldmatrix"),
    ([*BYTES, load("f", byte_slab=True, ldm=30)], "rows of 's' are 30 elements apart"),
    ([*BYTES, load("f", byte_slab=True, scale_ldm=4)], "a place of scales without scales"),
    ([*SCALES, *BYTES, load("q", byte_slab=True)], "'q' is A of f8e4m3 in 0 registers"),
    ([*SCALES, BlockScaleLoad("q", "bytes", ZERO, "a", ldm=-1)], "rows that are -1 elements apart"),
]  # fmt: skip


@pytest.mark.parametrize(("stmts", "what"), LOADS, ids=[what for _, what in LOADS])
def test_loads_that_there_are_not(stmts: Stmts, what: str) -> None:
    check(stmts, what)


@pytest.mark.parametrize(
    ("stmts", "what"),
    [
        ([slab(columns=18), load(**VOLTA)], "rows of 's' are 18 elements apart"),
        ([slab(), load(role="b", **VOLTA)], "'a' is A of f16 in 2 registers, not B of f16"),
        ([slab("__nv_fp8_e4m3", 32), load(byte_slab=True, **VOLTA)], "paired, swizzled or of m8n8k4"),
        ([FragmentRepack("a", ("c",), "f16", "m8n8k4", 1.0)], "the part 1.0 of a repacking"),
        ([FragmentRepack("a", ("c",), "bf16", "m8n8k4")], "a repacking as bf16 of a on m8n8k4"),
        ([store(volta_interleaved=True, fragment_index=(0,), **VOLTA)], "the place (0,) of an interleaved"),
        ([store()], "'c' is C of f32 in 8 registers, not C of f32 in 4"),
        ([apply(C, ONE)], "'c' is C of f32 in 8 registers, not C of f32 in 4"),
        ([FragmentRowReduce("t", "u", ("c",), MAX)], "'c' is C of f32 in 8 registers, not C of f32 in 4"),
    ],
)
def test_what_volta_does_not_do(stmts: Stmts, what: str) -> None:
    check([*VOLTA_ABC, *stmts], what, "sm_70")


# ------------------------------------------------------------------------------------- products, and what follows

PRODUCTS: list[tuple[Stmts, str]] = [
    ([multiply("b", "a")], "'b' is B of f16 in 2 registers, not A of f16 in 4"),
    ([multiply(kind="bf16")], "'a' is A of f16 in 4 registers, not A of bf16"),
    ([multiply(c="a")], "'a' is A of f16 in 4 registers, not C of f32"),
    ([multiply("c")], "'c' is C of f32 in 4 registers, not A of f16"),
    ([FragmentPromote("d", "c")], "'c' is C of f32 in 4 registers, not C of f16 in 2"),
    ([FragmentPromote("h", "h")], "'h' is C of f16 in 2 registers, not C of f32 in 4"),
    ([FragmentRepack("b", ("c", "d"))], "'b' is B of f16 in 2 registers, not A of f16"),
    ([FragmentRepack("a", ("c", "a"))], "'a' is A of f16 in 4 registers, not C of f32"),
    ([FragmentRepack("a", ("c", "d"), "bf16")], "'a' is A of f16 in 4 registers, not A of bf16"),
    ([FragmentRepack("a", ("c", "d"), part=1)], "the part 1 of a repacking"),
    ([apply(("a", "frag"), ONE)], "'a' is A of f16 in 4 registers, not C of f32"),
    ([apply(C, ONE, out="b", in_place=True)], "'b' is B of f16 in 2 registers, not C of f32"),
    ([apply(C, ("c", "what"))], "an operand of the kind 'what'"),
    ([apply((lit(1), "frag"), ONE)], "an operand of the kind 'frag' that is Literal"),
    ([apply(C, ("pq", "row"))], "an operand of the kind 'row' that is 'pq'"),
    ([apply(C, (3, "row"))], "an operand of the kind 'row' that is 3"),
    ([apply(C, ("w", "gmem"))], "an operand of the kind 'gmem' that is 'w'"),
    ([apply(C, (3, "uniform"))], "an operand of the kind 'uniform' that is 3"),
    ([apply(C, ONE, out="e f")], "'e f' is no name of a fragment"),
    ([apply(C, ONE, layout=ir.M8N8K4)], "'c' is C of f32 in 4 registers, not C of f32 in 8"),
    ([apply(C, ONE, layout=replace(ir.M16N8, n_elems=6))], "a layout of accumulators that no product has"),
    ([FragmentRowReduce("t", "u", ("a",), MAX)], "'a' is A of f16 in 4 registers, not C of f32"),
    ([FragmentRowReduce("t", "u", ("h",), MAX)], "'h' is C of f16 in 2 registers, not C of f32"),
    ([FragmentRowReduce("t", "t", ("c",), MAX)], "a reduction of 1 fragments to 't' and 't'"),
]  # fmt: skip


@pytest.mark.parametrize(("stmts", "what"), PRODUCTS, ids=[what for _, what in PRODUCTS])
def test_products_and_operations_that_there_are_not(stmts: Stmts, what: str) -> None:
    check([*ABC, *stmts], what)


@pytest.mark.parametrize("shape", [(16, 8), (16, 8, 16, 2)])
def test_products_of_other_shapes(shape: tuple[int, ...]) -> None:
    error = refused(lambda: warp(*ABC, multiply(shape=shape)))
    assert isinstance(error, UnsupportedError)
    assert "a product has three extents" in str(error)


def test_scales_are_no_accumulators() -> None:
    check([*SCALES, apply(("q", "frag"), ONE)], "'q' is A of f8e4m3 in 0 registers, not C of f32")


# --------------------------------------------------------------------------------------------------------- stores

SUM = Lambda.closing(("p", "q"), Body((Assign("t", ADD, ("p", "q")),)), ("t",))
F32_SLAB = Smem("s", (16, 16), "float", align=16)
STORES: list[tuple[Stmts, str]] = [
    ([store("a")], "'a' is A of f16 in 4 registers, not C of f32"),
    ([store("h")], "a FragmentPromote adds packed accumulators to those of f32"),
    ([store(run=(store("h"), store(), store()))], "'h' is C of f16 in 2 registers, not C of f32"),
    ([store(run=(store(run=(store(),)),))], "a run of stores within a run"),
    ([store(**VOLTA)], "'c' is C of f32 in 4 registers, not C of f32 in 8"),
    ([store(volta_interleaved=True)], "interleaved accumulators of the layout 'm16n8k16'"),
    ([store(extra_frags=("d",))], "an epilogue that takes 1 of 2 fragments"),
    ([store(epilogue=SUM, extra_frags=("d", "c"))], "an epilogue that takes 2 of 3 fragments"),
    ([store(row_dim=2)], "the dimension 2 of 'z'"),
    ([store(row_dim=0, col_dim=-1)], "the dimension -1 of 'z'"),
    ([store(ldm=-8)], "rows that are -8 elements apart"),
    ([store(ldn="n")], "rows that are 'n' elements apart"),
    ([store(swizzle="B128")], "an atomic store, or one to global memory, with the swizzle 'B128'"),
    ([F32_SLAB, RegStore("s", ZERO, "c", SHAPE, atomic=True, swizzle="B128")], "an atomic store, or one to global"),
    ([store(m_guard=EDGE[:1])], "an edge of 1 numbers"),
    ([store(n_guard=(*EDGE, lit(1)))], "an edge of 3 numbers"),
]


@pytest.mark.parametrize(("stmts", "what"), STORES, ids=[what for _, what in STORES])
def test_stores_that_there_are_not(stmts: Stmts, what: str) -> None:
    check([*ABC, *stmts], what)


def test_every_cell_of_a_run_counts() -> None:
    """Not only the first: what the others add to must be zero before the launch, and what they store to is no page."""
    built = compiled(warp(*ABC, store(run=(store(atomic=True),))), "sm_90")
    assert built.launch is not None
    assert built.launch.zero == ("z",)
    other = RegStore("p", ZERO, "c", SHAPE)
    body, outputs = tile({"i": 32}, [*ABC, store(run=(other,))], 32), {"z": (16, 8), "p": (16, 8)}
    paged = {"cuda.paged_buffers": [["p", 0, 8, None]]}
    error = refused(lambda: kernel_graph(body, {}, outputs, hints=paged))
    assert "RegStore takes the address of the paged buffer 'p'" in str(error)


# ----------------------------------------------------------------------------------------------- copies for slabs


@pytest.mark.parametrize(
    ("stmt", "what"),
    [
        (CpAsyncCopy("s", ZERO, "x", ZERO, 16, swizzle="B64@3"), "the swizzle 'B64@3' shifts by '3'"),
        (CpAsyncCopy("s", ZERO, "w", ZERO, 16), "a copy of f32 to 's', which is f16"),
        (CpAsyncWait(1.5), "a wait for 1.5 groups"),
    ],
)
def test_copies_that_there_are_not(stmt: Any, what: str) -> None:
    check([slab(), stmt], what)


def test_a_write_to_a_swizzle_that_there_is_not() -> None:
    check([slab(), Load("v", "x", ZERO), Write("s", ZERO, "v", swizzle="B32@2")], "the swizzle 'B32@2' shifts by '2'")


# ---------------------------------------------------------------------------------------------------- whole warps

WHOLE: dict[str, Stmts] = {
    "ldmatrix": [*HALVES, load(), multiply(), store()],
    "mma": [*ABC, multiply(), store()],
    "shfl": [*ABC, FragmentRowReduce("t", "u", ("c",), MAX), apply(C, (("t", "u"), "row")), store("e")],
}


@pytest.mark.parametrize("threads", [16, 48])
@pytest.mark.parametrize("name", WHOLE)
def test_a_warp_that_the_cta_does_not_fill(name: str, threads: int) -> None:
    error = refused(lambda: warp(*WHOLE[name], threads=threads))
    assert isinstance(error, DivergenceError)
    assert f"{name} takes whole warps, and the CTA's {threads} threads are no multiple of 32" in str(error)
    assert error.hint == "give the tile a multiple of 32 threads"
    assert error.statement
