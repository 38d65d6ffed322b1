"""Threads outside the tile, sizes of zero, buffers that are only read: where a kernel must not go wrong silently."""

from __future__ import annotations

import numpy as np
import pytest
from emmy.compiler.dim import Dim
from emmy.compiler.ir.kernel import ir as _kernel
from kernel_ir import Accum, Assign, Let, Load, Loop, Smem, StridedLoop, Sync, Write, axis, dtype, lit, op, tile, var
from lowering_lab import compiled, kernel_graph, refused, run

import ptxc
from ptxc.errors import InputError
from ptxc.ir.text import format_kernel

ROWS = 5  # 320 cells in CTAs of 128: half of the last one is outside


def test_a_loaded_step_lets_threads_outside_leave_the_loop() -> None:
    graph = kernel_graph(
        tile(
            {"r": ROWS, "t": 64},
            [
                Load("s", "st", (var("r"),)),
                Smem("sm", (128,), "float"),
                StridedLoop(
                    axis("q", 64), start=lit(0), step=var("s"),
                    body=(Load("v", "x", (var("q"),)), Accum("acc", "v", "add")),
                ),
                Sync(),
                Write("y", (var("r"), var("t")), "acc"),
            ],
            threads=128,
        ),
        {"x": (64,), "st": ((ROWS,), "i32")},
        {"y": (ROWS, 64)},
    )  # fmt: skip
    steps = np.array([8, 1, 2, 4, 16], np.int32)
    found = run(graph, {"x": np.ones(64, np.float32), "st": steps})["y"]
    assert found[:, 0].tolist() == [8, 64, 32, 16, 4]


@pytest.mark.parametrize("kind", ["step", "start"])
def test_threads_outside_leave_loops_behind_a_barrier_too(kind: str) -> None:
    """What is loaded before the barrier decides how often a loop behind it runs, where threads outside have none."""
    at = var("i")

    def body(name: str, total: str) -> tuple[Load, Accum]:
        return Load(name, "x", (op("%", var("k"), 64),)), Accum(total, name, "add")

    def strided(name: str, total: str) -> StridedLoop:
        return StridedLoop(axis("k", 16), lit(0), var("n"), body(name, total))

    sums = [Assign("s1", "add", ("a0", "a1")), Assign("s2", "add", ("s1", "a2"))]
    loads = [Load("n", "z", (at,)), *(Load(f"a{each}", "x", (op("+", at, each),)) for each in range(3)), *sums]
    shared = [Smem("m", (64,)), Write("m", (op("%", at, 64),), "s2")]
    if kind == "step":
        stmts = [loads[0], strided("u", "p"), *loads[1:], *shared, Sync(), strided("v", "s")]
    else:
        first = Let("from", op("-", 10**7, op("&", var("n"), 7)), dtype=dtype("i32"))
        loop = StridedLoop(axis("k", 10**7), var("from"), lit(1), body("v", "s"))
        stmts = [loads[0], first, *loads[1:], *shared, Sync(), loop]
    graph = kernel_graph(
        tile({"i": Dim("rows")}, [*stmts, Assign("r", "add", ("s", "s2")), Write("y", (at,), "r")], 64),
        {"x": ((200,), "f32"), "z": ((Dim("rows"),), "i32")}, {"y": ((Dim("rows"),), "f32")},
    )  # fmt: skip
    z = np.arange(1, 41, dtype=np.int32)
    found = run(graph, {"x": np.ones(200, np.float32), "z": z})["y"]
    np.testing.assert_array_equal(found, 3 + (-(-16 // z) if kind == "step" else z & 7))


def test_a_loaded_bound_around_a_barrier_names_the_load() -> None:
    body = (Sync(), Load("v", "x", (var("q"),)), Accum("acc", "v", "add"))
    graph = kernel_graph(
        tile(
            {"r": ROWS, "t": 64},
            [
                Load("n", "len", (lit(0),)),
                Smem("sm", (128,), "float"),
                Let("acc", lit(0.0), dtype("f32")),
                StridedLoop(axis("q", 64), start=lit(0), step=1, end=var("n"), seed=False, body=body),
                Write("y", (var("r"), var("t")), "acc"),
            ],
            threads=128,
        ),
        {"x": (64,), "len": ((1,), "i32")},
        {"y": (ROWS, 64)},
    )
    error = refused(lambda: graph)
    assert "depends on %n, which threads outside the tile do not load" in error.what


def test_a_loop_over_no_elements_reads_none() -> None:
    n = Dim("n")
    loop = Loop(axis("k", n), (Load("v", "x", (var("k"),)), Accum("acc", "v", "add")))
    graph = kernel_graph(tile({"i": 32}, [loop, Write("y", (var("i"),), "acc")], threads=32), {"x": (n,)}, {"y": (32,)})
    kernel = compiled(graph)
    result = np.full(32, 7, np.float32)
    x = np.full(4, 9, np.float32)
    report = ptxc.device("cpu").load(kernel.ptx).launch("k", (1, 1, 1), (32, 1, 1), [x, result, 0])
    assert report.completed
    assert not report.findings
    assert result.tolist() == [0] * 32


def test_a_write_to_an_input_is_refused() -> None:
    graph = kernel_graph(
        tile(
            {"i": 32},
            [
                Load("a", "x", (var("i"),)),
                Assign("b", "add", ("a", "a")),
                Write("x", (var("i"),), "b"),
                Load("c", "x", (var("i"),)),
                Write("y", (var("i"),), "c"),
            ],
            threads=32,
        ),
        {"x": (32,)},
        {"y": (32,)},
    )
    error = refused(lambda: graph)
    assert "'x' is written but is no output of the kernel" in error.what


def test_an_offset_beyond_32_bits_before_a_constant_brings_it_back() -> None:
    # x[(i * 32768 - 32768) + j] of 2^31 - 1 elements: the terms' sum needs 33 bits, the whole 31.
    index = op("+", op("-", op("*", var("i"), 32768), 32768), var("j"))
    graph = kernel_graph(
        tile({"i": 65536, "j": 65535}, [Load("a", "x", (index,)), Write("y", (var("j"),), "a")], threads=128),
        {"x": (2**31 - 1,)},
        {"y": (65535,)},
    )
    text = compiled(graph).ptx
    assert "add.s32" not in text.replace("add.s32 %r0", "")
    assert "mad.lo.s64" in text


def test_an_extent_of_more_than_32_bits_is_refused() -> None:
    graph = kernel_graph(
        tile({"i": 2**31}, [Load("a", "x", (var("i"),)), Write("y", (var("i"),), "a")], threads=128),
        {"x": (2**31,)},
        {"y": (2**31,)},
    )
    error = refused(lambda: graph)
    assert "axis 'i' has the extent 2147483648" in error.what


def test_loops_in_loops_are_not_unrolled_without_end() -> None:
    body: tuple[object, ...] = (Load("v", "x", (lit(0),)), Accum("acc", "v", "add"))
    for depth in range(16):
        body = (Loop(axis(f"k{depth}", 2), body),)
    graph = kernel_graph(tile({"i": 32}, [*body, Write("y", (var("i"),), "i")], threads=32), {"x": (4,)}, {"y": (32,)})
    (kernel,) = ptxc.compile(graph)
    assert len(kernel.ptx.splitlines()) < 40_000


def test_passes_that_begin_too_late_do_not_print_what_ptx_lacks() -> None:
    graph = kernel_graph(
        tile({"i": 40}, [Load("a", "x", (var("i"),)), Write("y", (var("i"),), "a")], threads=32),
        {"x": (40,)},
        {"y": (40,)},
    )
    (kernel,) = ptxc.compile(graph, stop_after="build")
    text = format_kernel(kernel.kernel)
    assert ptxc.compile_ir(text, start_at="collectives").ptx
    with pytest.raises(InputError, match=r"PTX has no tile\.coords; start at the pass 'collectives'"):
        ptxc.compile_ir(text, start_at="simplify")


def test_a_number_where_an_expression_must_stand_is_refused() -> None:
    store = _kernel.RegStore(dst_buffer="y", dst_index=(8,), frag="f", shape=(16, 8, 16))
    graph = kernel_graph(tile({"i": 32}, [store], threads=32), {"x": (Dim("n"),)}, {"y": (32,)})
    error = refused(lambda: graph)
    assert "RegStore holds a value of type int where an expression must stand" in error.what


@pytest.mark.parametrize("entry", [0, None, "q", 1.5])
def test_what_is_no_expression_is_refused_where_it_is_loaded(entry: object) -> None:
    loads = (Load("v", "x", (entry, var("k"))), Accum("d", "v", "add"))
    loop = Loop(axis("j", 50), (Loop(axis("k", 64), loads), Accum("s", "d", "add")))
    store = Write("y", (var("i"),), "s")
    error = refused(lambda: kernel_graph(tile({"i": 64}, [loop, store], 64), {"x": (64, 64)}, {"y": (64,)}))
    assert "Load" in (error.statement or "")
