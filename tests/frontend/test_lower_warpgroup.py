"""Bulk copies, barriers in memory, and a warpgroup's products: what each statement becomes, and what is refused."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import pytest
from emmy.compiler.graph import Graph
from emmy.compiler.ir.elementwise import ElementwiseImpl
from emmy.compiler.ir.expr import Builtin
from emmy.compiler.ir.kernel import ir
from kernel_ir import (
    Cond,
    CpAsyncCommit,
    CpAsyncCopy,
    CpAsyncWait,
    FragmentApply,
    LdmatrixLoad,
    Let,
    MbarrierArrive,
    MbarrierArriveExpectTx,
    MbarrierInit,
    MbarrierWait,
    RegFragment,
    RegStore,
    SetMaxNReg,
    Smem,
    StridedLoop,
    Sync,
    TmaDescriptor,
    TmaLoad,
    WgmmaCommit,
    WgmmaDescriptor,
    WgmmaFence,
    WgmmaMma,
    WgmmaWait,
    axis,
    dtype,
    lit,
    op,
    tile,
    var,
)
from lowering_lab import compiled, kernel_graph, refused

from ptxc.compilation import CompiledKernel
from ptxc.driver import common_target, link
from ptxc.errors import CompileError, DivergenceError, InputError, TargetError, UnsupportedError, UsageError
from ptxc.ir import opcodes
from ptxc.ir.kernel import Instr
from ptxc.ir.values import Const
from ptxc.toolchain import assemble

TID = Builtin("thread_idx.x")
SLAB = Smem("slab", (128, 64), "__half", align=1024)
BF16_SLAB = Smem("bf16_slab", (128, 64), "__nv_bfloat16", align=1024)
BARS = Smem("bars", (2,), "unsigned long long")
MAP = TmaDescriptor("map", "x", (), (64, 64), "B128", "__half")


def kernel(*stmts: Any, threads: int = 128, shape: tuple[Any, ...] = (128, 64), **fields: Any) -> Graph:
    """A kernel of one warpgroup over an x of f16, whose result is 64 x 64 f32."""
    body = tile({"i": threads}, [SLAB, BARS, *stmts], threads, **fields)
    return kernel_graph(body, {"x": (shape, "f16")}, {"y": ((64, 64), "f32")})


def instrs(built: CompiledKernel, row: opcodes.Opcode) -> list[Instr]:
    return [instr for instr in built.kernel.instrs() if instr.op is row]


def lines(graph: Graph, pattern: str, target: str = "sm_90") -> list[str]:
    """The lines of the PTX that hold ``pattern``."""
    return [line.strip() for line in compiled(graph, target).ptx.splitlines() if re.search(pattern, line)]


# ----------------------------------------------------------------------------------------------- copies and barriers


@pytest.mark.parametrize(
    ("shape", "box"),
    [((512,), (64,)), ((128, 64), (64, 64)), ((2, 64, 64), (1, 64, 64)), ((2, 3, 64, 64), (1, 1, 64, 64)),
     ((2, 3, 4, 64, 64), (1, 1, 1, 64, 64))],
)  # fmt: skip
def test_a_box_of_any_rank(shape: tuple[int, ...], box: tuple[int, ...]) -> None:
    """Coordinates stand innermost first."""
    rank = len(box)
    described = TmaDescriptor("map", "x", (), box, "B128", "__half")
    coords = tuple(lit(7 + at) for at in range(rank))
    graph = kernel(described, TmaLoad("slab", (lit(64), lit(0)), "map", coords, "bars", lit(1)), shape=shape)
    built = compiled(graph)
    (copy,) = instrs(built, opcodes.BULK_TENSOR)
    assert copy.mods[0] == f"{rank}d"
    moved = {instr.results[0]: instr.operands[0] for instr in instrs(built, opcodes.MOV)}
    assert [moved[operand].bits for operand in copy.operands[2:-1]] == [6 + rank - at for at in range(rank)]  # type: ignore[union-attr, index]
    assert str(copy.operands[0]) == "Mem(base=Sym(name='slab'), offset=8192)"
    assert str(copy.operands[-1]) == "Mem(base=Sym(name='bars'), offset=8)"
    assert ".param .u64 .ptr .global .align 64 map" in built.ptx
    assert built.target == "sm_90"
    assert str(built.version) == "8.6"


def test_barriers() -> None:
    graph = kernel(
        MbarrierInit("bars", 3, lit(0)),
        MbarrierArriveExpectTx("bars", 8192, lit(0)),
        MbarrierArrive("bars", lit(1)),
        MbarrierWait("bars", op("%", var("i"), 2), lit(1)),
    )
    found = lines(graph, "mbarrier|fence|bra|^.L.*wait")
    assert re.sub(r"%\w+|\$\w+", "#", "\n".join(found)) == "\n".join(
        [
            "mbarrier.init.shared.b64 [bars], 3;",
            "fence.proxy.async.shared::cta;",
            "mbarrier.arrive.expect_tx.shared.b64 #, [bars], 8192;",
            "fence.proxy.async.shared::cta;",
            "mbarrier.arrive.shared.b64 #, [bars+8];",
            "#:",
            "mbarrier.try_wait.parity.shared.b64 #, [bars+8], #;",
            "@!# bra #;",
        ]
    )


# ---------------------------------------------------------------------------------------------------- the launch


def test_the_launch_describes_tensor_maps() -> None:
    built = compiled(kernel(MAP, TmaLoad("slab", (lit(0), lit(0)), "map", (lit(0), lit(0)), "bars")))
    assert built.launch is not None
    (described,) = built.launch.tensor_maps
    assert (described.buffer, described.data_type, described.swizzle) == ("x", "FLOAT16", "128B")
    assert (described.dims, described.strides, described.box) == ((64, 128), (128,), (64, 64))
    assert described.element_strides == (1, 1)
    (parameter,) = [p for p in built.launch.parameters if p.role == "tensor_map"]
    assert (parameter.name, parameter.type) == ("map", "u64")


@pytest.mark.parametrize(
    ("kind", "name", "data_type"),
    [
        ("f16x2", "__half2", "UINT32"),
        ("bf16", "__nv_bfloat16", "BFLOAT16"),
        ("f8e4m3", "__nv_fp8_e4m3", "UINT8"),
        ("u8", "unsigned char", "UINT8"),
        ("f4e2m1x2", "unsigned char", "UINT8"),
    ],
)
def test_element_types_of_tensor_maps(kind: str, name: str, data_type: str) -> None:
    described = TmaDescriptor("map", "x", (), (32, 16), "NONE", name)
    built = compiled(kernel_graph(tile({"i": 32}, [described], 32), {"x": ((64, 64), kind)}, {"y": (4,)}))
    assert built.launch is not None
    assert [described.data_type for described in built.launch.tensor_maps] == [data_type]


def test_an_indirect_input_has_no_tensor_map() -> None:
    body, shape = tile({"i": 32}, [MAP], 32), ((128, 64), "f16")
    error = refused(lambda: kernel_graph(body, {"x": shape}, {"y": (4,)}, hints={"cuda.indirect_inputs": ["x"]}))
    assert "the input 'x' is indirect" in str(error)
    assert "TmaDescriptor map" in error.statement


@pytest.mark.parametrize(
    ("shape", "box", "dims", "strides"),
    [
        ((128, 256), (64, 4, 64), (64, 4, 128), (128, 512)),
        ((64, 512, 1), (64, 32), (512, 64), (1024,)),
        ((1, 1, 320, 1), (1, 16, 32), (320, 1, 1), (640, 640)),
        (("n", 256), (64, 64), (256, "n"), (512,)),
        ((3, "n", 64), (1, 64, 64), (64, "n", 3), (128, "(n * 128)")),
    ],
)
def test_shapes_that_tensor_maps_give_other_ranks(shape: Any, box: Any, dims: Any, strides: Any) -> None:
    from emmy.compiler.dim import Dim

    sizes = tuple(Dim(size) if isinstance(size, str) else size for size in shape)
    uses = [Cond(op("<", var("n"), 1), (Sync(),))] if "n" in shape else []
    built = compiled(kernel(TmaDescriptor("map", "x", (), box, "NONE", "__half"), *uses, shape=sizes))
    assert built.launch is not None
    (described,) = built.launch.tensor_maps
    assert (described.dims, described.strides) == (dims, strides)
    assert described.box == box[::-1]


# ------------------------------------------------------------------------------------------------------ products


def accumulators(n: int, prefix: str = "c") -> list[Any]:
    return [RegFragment(f"{prefix}{j}", "c", (64, n, 16), dtype("f32"), nregs=4) for j in range(n // 8)]


def product(n: int, prefix: str = "c", slab: str = "slab", **fields: Any) -> list[Any]:
    """The descriptors of a product and the product."""
    frags = tuple(f"{prefix}{j}" for j in range(n // 8))
    operand = {} if "a_frag" in fields else {"a_desc": "da"}
    return [
        WgmmaDescriptor("da", slab, lit(0), "B128", 16, 1024),
        WgmmaDescriptor("db", slab, lit(4096), "B128", 16, 1024),
        WgmmaMma(frags, "db", (64, n, 16), **operand, **fields),
    ]


def stores(n: int, prefix: str = "c") -> list[Any]:
    row = op("*", op("/", TID, 32), 16)
    return [
        RegStore("y", (row, lit(8 * j)), f"{prefix}{j}", (64, n, 16), ldm=64, fragment_layout="wgmma")
        for j in range(min(n, 64) // 8)
    ]


ENDS = [WgmmaCommit(), WgmmaWait(0)]


@pytest.mark.parametrize("kind", ["f16", "bf16"])
@pytest.mark.parametrize("n", range(8, 257, 8))
def test_products_of_every_width(n: int, kind: str) -> None:
    slab = "bf16_slab" if kind == "bf16" else "slab"
    body = [*accumulators(n), WgmmaFence(), *product(n, slab=slab, ab_dtype=kind, trans_b=1), *ENDS, *stores(n)]
    (line,) = lines(kernel(BF16_SLAB, *body), "wgmma.mma")
    registers = ", ".join(f"%f{at}" for at in range(n // 2))
    start = f"wgmma.mma_async.sync.aligned.m64n{n}k16.f32.{kind}.{kind} {{{registers}}}, "
    assert line.startswith(start)
    assert re.fullmatch(r"%rd\d+, %rd\d+, %p\d+, 1, 1, 0, 1;", line[len(start) :])


def test_a_product_with_a_in_registers_and_no_sum() -> None:
    a = [RegFragment("a", "a", (64, 16, 16), dtype("f16"), nregs=4)]
    load = LdmatrixLoad("a", "slab", (lit(0), lit(0)), "a", ldm=64)
    body = [*a, *accumulators(16), load, WgmmaFence(), *product(16, a_frag="a", scale_d=0), *ENDS, *stores(16)]
    (line,) = lines(kernel(*body), "wgmma.mma")
    assert re.search(r" \{%f0, [^}]*%f7\}, \{%r\d+, %r\d+, %r\d+, %r\d+\}, %rd\d+, (%p\d+), 1, 1, 0;", line)
    assert lines(kernel(*body), r"mov.pred %p\d+, 0;")


def test_the_descriptor_is_emmys() -> None:
    built = compiled(kernel(*accumulators(8), WgmmaFence(), *product(8, trans_a=1), *ENDS, *stores(8)))
    (either,) = {instr.operands[1] for instr in instrs(built, opcodes.OR) if instr.mods == ("b64",)}
    bits = either.bits % 2**64  # type: ignore[union-attr]
    assert bits == ir.wgmma_descriptor_bits(0, 16, 1024, 1)
    steps = {i.operands[1] for i in instrs(built, opcodes.ADD) if i.mods == ("s64",)}
    (step,) = (step for step in steps if isinstance(step, Const))
    assert step.bits == 4096 * 2 >> 4


def loop(*body: Any) -> Any:
    return StridedLoop(axis("k", 4096), lit(0), lit(64), tuple(body), unroll=False)


def in_order(built: CompiledKernel, *rows: opcodes.Opcode) -> str:
    return " ".join(instr.op.name.removeprefix("wgmma.") for instr in built.kernel.instrs() if instr.op in rows)


WGMMA_ROWS = (opcodes.WGMMA_FENCE, opcodes.WGMMA, opcodes.WGMMA_COMMIT, opcodes.WGMMA_WAIT)


def test_accumulators_of_a_loop_are_the_same_registers_all_the_way() -> None:
    built = compiled(kernel(*accumulators(32), loop(WgmmaFence(), *product(32), *product(32), *ENDS), *stores(32)))
    assert in_order(built, *WGMMA_ROWS) == " ".join(["fence mma_async mma_async commit_group wait_group"] * 4)
    held = {instr.results for instr in built.kernel.instrs() if instr.op in WGMMA_ROWS and instr.results}
    assert len(held) == 1
    moved = [instr for instr in instrs(built, opcodes.MOV) if instr.results[0] in next(iter(held))]
    assert len(moved) == 16, "the zeros, before the loop"


def test_products_that_run_on_while_the_next_are_issued() -> None:
    """As Emmy's deepest pipeline: all but the newest group are waited for, at last all."""
    last = Cond(op("<", op("+", var("k"), 64), 4096), (WgmmaWait(1),), (WgmmaWait(0),))
    graph = kernel(*accumulators(32), loop(WgmmaFence(), *product(32), WgmmaCommit(), last, Sync()), *stores(32))
    built = compiled(graph)
    held = {instr.results for instr in built.kernel.instrs() if instr.op in WGMMA_ROWS and instr.results}
    assert len(held) == 1
    moved = [instr for instr in instrs(built, opcodes.MOV) if instr.results[0] in next(iter(held))]
    assert len(moved) == 16


def test_what_threads_wrote_is_fenced_for_the_async_proxy() -> None:
    copy = CpAsyncCopy("slab", (lit(0), lit(0)), "x", (lit(0), lit(0)), 16)
    filled = [copy, CpAsyncCommit(), CpAsyncWait(0), Sync()]
    rest = [WgmmaFence(), *product(8), *ENDS]
    rows = (opcodes.FENCE_ASYNC, opcodes.BAR, *WGMMA_ROWS)
    once = "fence.proxy.async fence mma_async commit_group wait_group"
    assert in_order(compiled(kernel(*accumulators(8), *filled, *rest, *stores(8))), *rows) == f"bar {once}"
    assert in_order(compiled(kernel(*accumulators(8), *rest, *stores(8))), *rows) == once.partition(" ")[2]
    twice = compiled(kernel(*accumulators(8), *filled, *rest, *rest, *stores(8)))
    assert in_order(twice, *rows) == f"bar {once} {once.partition(' ')[2]}"


def test_a_fence_that_is_missing_is_added() -> None:
    built = compiled(kernel(*accumulators(8), *product(8), *ENDS, *stores(8)))
    assert in_order(built, *WGMMA_ROWS) == "fence mma_async commit_group wait_group"


@pytest.mark.needs("ptxas")
def test_a_warp_specialised_kernel() -> None:
    """A warpgroup copies, another multiplies; each tells the other by barriers, and they share out the registers."""
    linear = op("==", op("-", TID, 128), 0)
    slot, phase = op("%", op("/", var("k"), 64), 2), op("%", op("/", op("/", var("k"), 64), 2), 2)
    empty = Smem("empty", (2,), "unsigned long long")
    start = [MbarrierInit(name, 1, lit(at)) for name in ("bars", "empty") for at in (0, 1)]
    fill = [
        MbarrierWait("empty", op("-", 1, phase), slot),
        MbarrierArriveExpectTx("bars", 8192, slot),
        TmaLoad("slab", (op("*", slot, 64), lit(0)), "map", (lit(0), var("k")), "bars", slot),
    ]
    drain = [
        MbarrierWait("bars", phase, slot), WgmmaFence(), *product(32), *ENDS, Sync(1, 128),
        Cond(op("==", TID, 0), (MbarrierArrive("empty", slot),)),
    ]  # fmt: skip
    producer = (SetMaxNReg(40, "dec"), loop(Cond(linear, tuple(fill))))
    consumer = (SetMaxNReg(232, "inc"), loop(*drain), *stores(32))
    graph = kernel(
        MAP, empty, Cond(op("==", TID, 0), tuple(start)), Sync(), *accumulators(32),
        Cond(op(">=", TID, 128), producer, consumer), shape=(64, 4096), aux_threads=128,
    )  # fmt: skip
    built = compiled(graph)
    assert built.target == "sm_90a"
    assert built.launch is not None
    assert built.launch.block == (256, 1, 1)
    assert ".minnctapersm 1\n" in built.ptx
    assembly = assemble(built.ptx, built.target)
    assert not assembly.warnings
    used = assembly.kernels["k"]
    assert used.spill_stores == 0
    assert used.barriers == 2


# -------------------------------------------------------------------------------------------------------- targets


@pytest.mark.parametrize(
    ("stmt", "target", "suited"),
    [
        (SetMaxNReg(40, "dec"), "sm_90", "sm_90a"),
        (SetMaxNReg(40, "dec"), "sm_90a", "sm_90a"),
        (SetMaxNReg(40, "dec"), "sm_100", "sm_100a"),
        (SetMaxNReg(40, "dec"), "sm_120", "sm_120a"),
        (SetMaxNReg(40, "dec"), "sm_120f", "sm_120f"),
        (WgmmaCommit(), "sm_90", "sm_90a"),
        (Sync(), "sm_90", "sm_90"),
    ],
)
def test_the_suffix_is_chosen_by_need(stmt: Any, target: str, suited: str) -> None:
    built = compiled(kernel(stmt), target)
    assert built.target == built.kernel.target == suited
    assert f".target {suited}\n" in built.ptx


@pytest.mark.parametrize(
    ("stmt", "target", "text"),
    [
        (WgmmaCommit(), "sm_100", "only sm_90a has"),
        (WgmmaCommit(), "sm_89", "only sm_90a has"),
        (MbarrierWait("bars", lit(0)), "sm_80", "which sm_90 brought"),
    ],
)
def test_a_target_without(stmt: Any, target: str, text: str) -> None:
    error = refused(lambda: kernel(stmt), target)
    assert isinstance(error, TargetError)
    assert text in str(error)


def test_one_kernel_decides_the_target_of_a_module() -> None:
    def built(name: str, *stmts: Any, target: str = "sm_90") -> CompiledKernel:
        body = tile({"i": 128}, stmts, 128)
        return compiled(kernel_graph(body, {"x": ((4,), "f16")}, {"y": ((4,), "f32")}, name=name), target)

    kernels = [built("a", Sync()), built("b", WgmmaCommit())]
    assert [kernel.target for kernel in kernels] == ["sm_90", "sm_90a"]
    assert ".target sm_90a\n" in link(kernels)
    with pytest.raises(UsageError, match="made for sm_80 and sm_90a"):
        common_target([built("c", Sync(), target="sm_80"), kernels[1]])


# --------------------------------------------------------------------------------------------------------- errors


def box(*extents: int, swizzle: str = "NONE") -> Any:
    return TmaDescriptor("map", "x", (), extents, swizzle, "__half")


def copied(*coords: Any, smem: str = "slab", at: int = 0, desc: str = "map", slot: int = 0) -> list[Any]:
    return [MAP, TmaLoad(smem, (lit(0), lit(at)), desc, tuple(map(lit, coords)), "bars", lit(slot))]


def described(**changed: Any) -> list[Any]:
    fields = {"name": "d", "smem": "slab", "smem_index": lit(0), "swizzle": "B128", "lbo_bytes": 16, "sbo_bytes": 1024}
    return [WgmmaDescriptor(**(fields | changed))]


LOOSE = Smem("loose", (128, 64), "__half", align=128)
FLOATS = Smem("floats", (64, 64), "float", align=1024)
A = RegFragment("a", "a", (64, 16, 16), dtype("f16"), nregs=4)
BF16_A = RegFragment("a", "a", (64, 16, 16), dtype("bf16"), nregs=4)
HALF_C = RegFragment("c0", "c", (64, 8, 16), dtype("f16"), nregs=4)
#: A kernel's statements, and what the error says.
REFUSED: list[tuple[Iterable[Any], type[CompileError], str]] = [
    (copied(0), InputError, "1 coordinates in the tensor map 'map'"),
    (copied(0, 0, 0), InputError, "its boxes have 2 dimensions"),
    (copied(0, 0, desc="other"), InputError, "there is no tensor map 'other'"),
    (copied(0, 0, smem="x"), InputError, "'x' is no shared array"),
    (copied(0, 0, at=8), InputError, "64 elements of 'slab' at once are not aligned"),
    (copied(0, 0, at=4160), InputError, "a box of 4096 elements leaves 'slab', which it fills from 4160 on"),
    (copied(0, 0, at=-64), InputError, "which it fills from -64 on"),
    ([FLOATS, *copied(0, 0, smem="floats")], InputError, "boxes of f16 in 'floats', which is f32"),
    ([LOOSE, *copied(0, 0, smem="loose")], InputError, "a slab of the swizzle 128B is aligned to 1024"),
    (copied(0, 0, slot=2), InputError, "slot 2 of 'bars'"),
    (copied(0, 0, slot=-1), InputError, "it has 2 barriers"),
    ([box(64)], InputError, "boxes of 1 dimensions in 'x', whose shape is (128, 64)"),
    ([box(1, 1, 1, 64, 64)], InputError, "boxes of 5 dimensions"),
    ([box(1, 1, 1, 1, 64, 64)], InputError, "1 to 5 extents"),
    ([box(512, 64)], InputError, "each 1 to 256"),
    ([box(64, 4)], InputError, "a row of a box is 8 bytes"),
    ([box(64, 64, swizzle="B64")], InputError, "at most 64"),
    ([box(64, 64, swizzle="B16")], InputError, "hardware has no swizzle 'B16'"),
    ([box(64, 64, swizzle="B128@7")], InputError, "hardware has no swizzle 'B128@7'"),
    ([TmaDescriptor("map", "x", (), (64, 32), "B64", "float")], InputError, "a tensor map of f32 over 'x'"),
    ([TmaDescriptor("map", "z", (), (64, 64))], InputError, "'z' is no buffer of the kernel"),
    ([MAP, box(32, 64)], InputError, "the tensor map 'map' is declared twice"),
    ([MbarrierInit("slab", 1)], InputError, "'slab' is no array of barriers"),
    ([MbarrierInit("bars", 0)], InputError, "a barrier cannot wait for 0 arrivals"),
    ([MbarrierInit("bars", 1, lit(2))], InputError, "slot 2 of 'bars'"),
    ([MbarrierArriveExpectTx("bars", 2**20)], InputError, "a barrier cannot wait for 1048576 bytes"),
    ([SetMaxNReg(41, "inc")], InputError, "a thread cannot have 41 registers"),
    ([SetMaxNReg(40, "up")], InputError, "registers cannot be set by 'up'"),
    (described(swizzle="B256"), InputError, "hardware has no swizzle 'B256'"),
    (described(swizzle="B64@7"), InputError, "hardware has no swizzle 'B64@7'"),
    (described(smem_index=lit(8192)), InputError, "a matrix begins at element 8192 of 'slab'"),
    (described(lbo_bytes=16.0), InputError, "a leading byte offset of 16.0"),
    (described(sbo_bytes="16"), InputError, "a stride byte offset of 16"),
    ([MbarrierWait("bars", lit(2))], InputError, "a wait for a phase of the parity 2"),
    ([MbarrierWait("bars", lit(-1))], InputError, "a wait for a phase of the parity -1"),
    (described(smem="x"), InputError, "'x' is no shared array"),
    ([LOOSE, *described(smem="loose")], InputError, "'loose' is aligned to 128 bytes"),
    (described(smem_index=lit(4)), InputError, "8 elements of 'slab' at once are not aligned"),
    (described(sbo_bytes=1000), InputError, "a stride byte offset of 1000"),
    (described(lbo_bytes=1 << 18), InputError, "a leading byte offset of 262144"),
    ([WgmmaWait(-1)], InputError, "a wait for all but -1 groups"),
    (product(8), InputError, "there is no fragment 'c0'"),
    ([*accumulators(8), *product(8, ab_dtype="e4m3")], UnsupportedError, "wgmma of e4m3"),
    ([*accumulators(8), *product(8, ab_dtype="bf16")], InputError, "'db' describes a slab of f16, not of bf16"),
    ([*accumulators(8), *product(8, scale_d=2)], InputError, "wgmma with scale_d=2"),
    ([HALF_C, *product(8)], InputError, "'c0' is C of f16 in 4 registers, not C of f32"),
    ([*accumulators(8), BF16_A, *product(8, a_frag="a")], InputError, "'a' is A of bf16 in 4 registers, not A of f16"),
    (
        [*accumulators(8), *product(16)[:2], WgmmaMma(("c0", "c0"), "db", (64, 16, 16), a_desc="da")],
        InputError, "wgmma adds to an accumulator twice",
    ),
    (
        [*accumulators(8), *product(8)[:1], Let("db", lit(3), dtype("u64")), product(8)[-1]],
        InputError, "'db' is no descriptor",
    ),
    ([*accumulators(8), *product(8, a_frag="c0")], InputError, "'c0' is C of f32 in 4 registers, not A of f16"),
    ([*accumulators(8), *product(8), *stores(8)], InputError, "the fragment 'c0' is held by wgmma"),
    ([*accumulators(8), *product(8), WgmmaCommit(), *accumulators(8)], InputError, "is declared again"),
    (
        [*accumulators(8), Cond(op("<", TID, 128), (A, *product(8, a_frag="a"))), WgmmaWait(0)],
        InputError, "out of scope while wgmma may hold it",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("stmts", "kind", "text"), REFUSED, ids=[text for _, _, text in REFUSED])
def test_refused(stmts: Iterable[Any], kind: type[CompileError], text: str) -> None:
    error = refused(lambda: kernel(*stmts))
    assert isinstance(error, kind)
    assert text in str(error)
    assert error.statement
    assert error.hint


@pytest.mark.parametrize("threads", [64, 96, 192])
@pytest.mark.parametrize(
    ("stmts", "name"),
    [
        ([*accumulators(8), *product(8), *ENDS, *stores(8)], "wgmma.fence"),
        ([WgmmaCommit()], "wgmma.commit_group"),
        ([SetMaxNReg(40, "dec")], "setmaxnreg"),
    ],
)
def test_a_warpgroup_that_the_cta_does_not_fill(stmts: list[Any], name: str, threads: int) -> None:
    error = refused(lambda: kernel(*stmts, threads=threads))
    assert isinstance(error, DivergenceError)
    what = f"{name} takes whole warpgroups, and the CTA's {threads} threads are no multiple of 128"
    assert what in str(error)
    assert error.hint == "give the tile a multiple of 128 threads"


def test_a_whole_warpgroup_beside_a_part_of_one_multiplies() -> None:
    """The warps that a branch leaves out, as those that copy only, need not be a warpgroup."""
    whole = Cond(op("<", TID, 128), (*accumulators(8), *product(8), *ENDS, *stores(8)))
    assert lines(kernel(whole, threads=192), "wgmma.mma")


def test_registers_that_a_product_holds_when_the_loop_comes_round_are_refused() -> None:
    halve = FragmentApply("c0", ElementwiseImpl("multiply"), ("c0", lit(0.5)), ("frag", "uniform"), in_place=True)
    odd = StridedLoop(axis("k", 67), lit(0), lit(1), (halve, WgmmaFence(), *product(8), WgmmaCommit()), unroll=False)
    error = refused(lambda: kernel(*accumulators(8), odd, WgmmaWait(0)))
    assert "is in flight, which no wgmma.wait_group has ended" in str(error)
    assert "FragmentApply" in error.statement


def test_a_product_under_a_branch_of_lanes_is_refused() -> None:
    error = refused(lambda: kernel(*accumulators(8), Cond(op("==", TID, 0), (*product(8), *ENDS))))
    assert "only some threads of a warp reach" in str(error)
