"""Kernels that are wrong: each is refused in one line that says what, where and what to do, without a traceback."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from emmy.compiler.dim import Dim
from emmy.compiler.graph import Graph
from emmy.compiler.ir.expr import Builtin, CastExpr, FuncCallExpr
from kernel_ir import (
    Accum,
    Assign,
    CpAsyncCopy,
    CpAsyncWait,
    Init,
    Let,
    Load,
    Loop,
    Smem,
    StridedLoop,
    Sync,
    Tile,
    TreeHalve,
    WarpBroadcast,
    WarpShuffle,
    Write,
    ZeroPrologue,
    axis,
    dtype,
    lit,
    op,
    tile,
    var,
)
from lowering_lab import AT, LOAD, WRITE, kernel_graph, pointwise, refused

from ptxc.errors import CompileError, InputError, TargetError, UnsupportedError

F32 = dtype("f32")
SUM = (Assign("s", "add", ("s", "o")),)


def over(axes: dict[str, Any], *stmts: Any, **fields: Any) -> Graph:
    """A kernel with a tile of these axes."""
    return kernel_graph(tile(axes, stmts or [LOAD, WRITE], **fields), {"x": (64,)}, {"y": (64,)})


def shared(*stmts: Any, size: int = 64) -> Graph:
    return pointwise(Smem("m", (size,)), Write("m", (AT,), "a"), Sync(), *stmts)


def tree(**fields: Any) -> Any:
    known = {"bufs": ("m",), "state": ("s",), "state_b": ("o",), "combine_states": SUM}
    return TreeHalve(**{**known, "length": 64, "tid_var": "i", **fields})


SEEDED = Init("s", 0.0, dtype=F32)

#: What is wrong, the kernel, the error's class and what its message has, in order.
BAD: dict[str, tuple[Callable[[], Graph], type[CompileError], str]] = {
    # Names.
    "undefined value": (
        lambda: pointwise(Assign("b", "exp", ("q",))),
        InputError,
        r"body\[0\].body\[1\] b = exp\(q\): 'q' is not defined",
    ),
    "undefined index": (
        lambda: pointwise(Load("b", "x", (var("q"),))),
        InputError,
        r"'q' is not defined; an axis, a loop",
    ),
    "used before it is defined": (
        lambda: pointwise(Assign("b", "exp", ("c",)), Assign("c", "exp", ("a",))),
        InputError,
        "'c' is not defined",
    ),
    "used after its scope": (
        lambda: pointwise(Loop(axis("k", 4), (Assign("b", "exp", ("a",)),)), Assign("c", "exp", ("b",))),
        InputError,
        "'b' is not defined",
    ),
    "unknown buffer": (
        lambda: pointwise(Load("b", "q", (AT,))),
        InputError,
        "'q' is neither a buffer of the kernel nor a shared array",
    ),
    "write to an unknown buffer": (lambda: pointwise(Write("q", (AT,), "a")), InputError, "'q' is neither a buffer"),
    "accumulator without a declaration": (lambda: pointwise(Accum("s", "a")), InputError, "'s' is not defined"),
    "state without a declaration": (lambda: pointwise(WarpBroadcast(("s",), 32)), InputError, "'s' is not defined"),
    "value where an index is needed": (
        lambda: pointwise(Load("b", "x", (var("a"),))),
        InputError,
        "the index a is a float; cast it to int",
    ),
    "index where a state is needed": (
        lambda: pointwise(WarpBroadcast(("i",), 32)),
        InputError,
        "'i' is an index, not a value",
    ),
    "name that is no identifier": (
        lambda: pointwise(Assign("b c", "exp", ("a",))),
        InputError,
        "'b c' is no name; names are letters",
    ),
    "name in Greek": (lambda: pointwise(Assign("α", "exp", ("a",))), InputError, "'α' is no name"),
    "empty name": (lambda: pointwise(Assign("", "exp", ("a",))), InputError, "'' is no name"),
    "axis in Greek": (lambda: over({"ι": 64}), InputError, "'ι' is no name"),
    "buffer in Greek": (
        lambda: kernel_graph(tile({"i": 64}, [Load("a", "ξ", (AT,)), WRITE]), {"ξ": (64,)}, {"y": (64,)}),
        InputError,
        "a parameter cannot be called 'ξ'; names are letters",
    ),
    "buffer that is a path": (
        lambda: kernel_graph(tile({"i": 64}, [Load("a", "w/0", (AT,)), WRITE]), {"w/0": (64,)}, {"y": (64,)}),
        InputError,
        "a parameter cannot be called 'w/0'",
    ),
    "buffer that is a constant of PTX": (
        lambda: kernel_graph(tile({"i": 64}, [Load("a", "WARP_SZ", (AT,)), WRITE]), {"WARP_SZ": (64,)}, {"y": (64,)}),
        InputError,
        "a parameter cannot be called 'WARP_SZ'; WARP_SZ is a constant of PTX",
    ),
    "kernel that is an underscore": (
        lambda: pointwise(name="_"),
        InputError,
        "a kernel cannot be called '_'; PTX has no name of an underscore alone",
    ),
    "kernel that is no identifier": (lambda: pointwise(name="k 1"), InputError, "a kernel cannot be called 'k 1'"),
    "kernel named like a buffer": (lambda: pointwise(name="x"), InputError, "called 'x'"),
    "shared array named like a buffer": (
        lambda: pointwise(Smem("x", (4,))),
        InputError,
        "called 'x' like a shared array; rename one",
    ),
    "shared array named like the pool": (
        lambda: pointwise(Smem("_smem_pool", (4,)), Smem("m", (20000,)), inputs={"x": (64,), "_smem_pool": (4,)}),
        InputError,
        "called '_smem_pool'",
    ),
    "shared arrays of one name": (
        lambda: pointwise(Smem("m", (4,)), Loop(axis("k", 2), (Smem("m", (4,)),))),
        InputError,
        "'m' is declared twice",
    ),
    "axis named like a size": (
        lambda: over({"n": Dim("n")}),
        InputError,
        "'n' is called like a size that the launch gives; rename the axis",
    ),
    "loop named like a size": (
        lambda: over({"i": 64}, Loop(axis("n", Dim("n")), (LOAD, WRITE))),
        InputError,
        "'n' is called like a size",
    ),
    "two axes of one name": (
        lambda: kernel_graph(Tile((axis("i", 8), axis("i", 8)), (LOAD, WRITE)), {"x": (64,)}, {"y": (64,)}),
        InputError,
        "two axes of one name among i, i; rename one",
    ),
    "two parameters of one name": (
        lambda: kernel_graph(tile({"i": Dim("x")}, [LOAD, WRITE]), {"x": (Dim("x"),)}, {"y": (64,)}),
        InputError,
        "two parameters are called 'x'",
    ),
    # Indices and types.
    "too many indices": (
        lambda: pointwise(Load("b", "x", (AT, AT))),
        InputError,
        "'x' has 1 dimensions but is indexed with 2; an index has one entry a dimension",
    ),
    "too few indices": (
        lambda: pointwise(Load("b", "w", (AT, AT)), inputs={"x": (64,), "w": (4, 4, 4)}),
        InputError,
        "'w' has 3 dimensions but is indexed with 2",
    ),
    "unknown operation": (
        lambda: pointwise(Assign("b", "arctan", ("a",))),
        UnsupportedError,
        "operation 'arctan' of f32 is not supported; see `ptxc ops`",
    ),
    "wrong number of operands": (
        lambda: pointwise(Assign("b", "add", ("a",))),
        InputError,
        "'add' takes 2 operands, not 1",
    ),
    "unknown operator": (lambda: pointwise(Let("b", op("**", AT, 2))), InputError, r"there is no operator '\*\*'"),
    "unknown operator on floats": (
        lambda: pointwise(Let("b", op("<<", var("a"), 2))),
        InputError,
        "only integers have bitwise operators",
    ),
    "unknown function": (
        lambda: pointwise(Let("b", FuncCallExpr("f", (var("a"),)))),
        UnsupportedError,
        "function 'f' is not supported yet",
    ),
    "function of nothing": (
        lambda: pointwise(Let("b", FuncCallExpr("exp", ()))),
        InputError,
        "'exp' takes 1 operands, not 0",
    ),
    "bits of a float": (
        lambda: pointwise(Let("b", FuncCallExpr("bitwise_count", (var("a"),)))),
        InputError,
        "'bitwise_count' takes one integer",
    ),
    "unknown built-in": (
        lambda: pointwise(Let("b", Builtin("thread_idx.w"))),
        InputError,
        "there is no built-in 'thread_idx.w'",
    ),
    "unknown type of a cast": (
        lambda: pointwise(Let("b", CastExpr("quux", AT))),
        UnsupportedError,
        "element type 'quux' is not supported yet",
    ),
    "atomic addition of bytes": (
        lambda: kernel_graph(
            tile({"i": 64}, [LOAD, Write("y", (AT,), "a", atomic=True)]), {"x": (64,)}, {"y": ((64,), "u8")}
        ),
        UnsupportedError,
        "there is no atomic addition of u8; atomics add f32",
    ),
    "complement of integers": (
        lambda: pointwise(Let("b", AT, dtype=dtype("i32")), Assign("c", "bitwise_not", ("b",), dtype=dtype("i32"))),
        UnsupportedError,
        "bitwise_not of i32",
    ),
    "accumulation without a neutral element": (
        lambda: pointwise(Loop(axis("k", 4), (Accum("s", "a", "subtract"),))),
        InputError,
        "'s' accumulates with 'subtract', which has no neutral element",
    ),
    "state carried as another type": (
        lambda: pointwise(
            Load(names=("p", "q"), input="x", index=(lit(0),)),
            Load(names=("h", "g"), input="w", index=(lit(0),)),
            Loop(axis("k", 40), (Load(names=("p", "q"), input="w", index=(lit(0),), carried="load"),)),
            inputs={"x": (64,), "w": ((64,), "f16")},
        ),
        InputError,
        "'_v_p",
    ),
    "unknown swizzle": (
        lambda: shared(Write("m", (AT,), "a", swizzle="B256")),
        UnsupportedError,
        "the shared-memory layout 'B256' is not supported yet",
    ),
    "swizzle with a bad shift": (
        lambda: shared(Write("m", (AT,), "a", swizzle="B128@z")),
        InputError,
        "the swizzle 'B128@z' shifts by 'z'",
    ),
    # Integers.
    "division by zero": (lambda: pointwise(Load("b", "x", (op("/", AT, 0),))), InputError, "a division by zero"),
    "remainder by zero": (
        lambda: pointwise(Load("b", "x", (op("%", AT, 0),))),
        InputError,
        "a remainder of a division by zero",
    ),
    "shift by a negative number": (
        lambda: pointwise(Load("b", "x", (op("<<", AT, -1),))),
        InputError,
        "a shift by -1; C defines shifts by 0 to the width",
    ),
    "shift by a huge number": (
        lambda: pointwise(Load("b", "x", (op("<<", AT, 2**40),))),
        InputError,
        "a shift by 1099511627776",
    ),
    "far element of a shared array": (
        lambda: shared(Load("b", "m", (lit(2**40),))),
        InputError,
        "element 1099511627776 of the shared array 'm'",
    ),
    "number beyond 64 bits": (
        lambda: pointwise(Load("b", "x", (op("*", AT, 2**70),))),
        InputError,
        "more than 64 bits",
    ),
    "number far beyond 64 bits": (lambda: pointwise(Let("b", lit(10**400))), InputError, "more than 64 bits"),
    # Loops and extents.
    "loop of no extent": (
        lambda: pointwise(Loop(axis("k", 0), (WRITE,))),
        InputError,
        "axis 'k' has the extent 0; an extent is at least 1",
    ),
    "loop of a negative extent": (
        lambda: pointwise(Loop(axis("k", -3), (WRITE,))),
        InputError,
        "axis 'k' has the extent -3",
    ),
    "tile of no extent": (lambda: over({"i": 0}), InputError, "axis 'i' has the extent 0"),
    "tile of a negative extent": (lambda: over({"i": -1}), InputError, "axis 'i' has the extent -1"),
    "loop that stands": (
        lambda: pointwise(StridedLoop(axis("k", 4), lit(0), lit(0), (WRITE,))),
        InputError,
        "the loop over 'k' steps by 0; a step is at least 1",
    ),
    "loop that goes back": (
        lambda: pointwise(StridedLoop(axis("k", 4), lit(0), lit(-2), (WRITE,))),
        InputError,
        "the loop over 'k' steps by -2",
    ),
    "grid too large": (lambda: over({"i": 2**33, "j": 2**10}, threads=32), InputError, "CTAs"),
    # The tile.
    "no tile": (
        lambda: kernel_graph((Sync(),), {}, {"y": (1,)}),
        InputError,
        "the kernel has 0 tiles at its top level; a kernel is one Tile",
    ),
    "no statement": (lambda: kernel_graph((), {}, {"y": (1,)}), InputError, "the kernel has 0 tiles"),
    "two tiles": (
        lambda: kernel_graph((tile({"i": 4}, ()), tile({"i": 4}, ())), {}, {"y": (1,)}),
        InputError,
        "the kernel has 2 tiles",
    ),
    "a tile in a tile": (lambda: pointwise(tile({"j": 4}, (WRITE,))), InputError, "tile"),
    "too many threads": (
        lambda: pointwise(threads=1056),
        InputError,
        "the tile asks for 1056 threads a CTA; the hardware runs 1 to 1024",
    ),
    "too many auxiliary threads": (
        lambda: over({"i": 64}, threads=1024, aux_threads=32),
        InputError,
        "the hardware runs 1 to 1024; choose a smaller block_threads or aux_threads",
    ),
    "no thread": (
        lambda: pointwise(threads=0),
        InputError,
        "the tile asks for 0 threads a CTA; block_threads is 1 or more",
    ),
    "fewer threads than none": (lambda: pointwise(threads=-128), InputError, "-128 threads a CTA; block_threads is 1"),
    "fewer auxiliary threads than none": (
        lambda: over({"i": 64}, threads=128, aux_threads=-32),
        InputError,
        "the tile asks for -32 auxiliary threads; aux_threads is 0 or more",
    ),
    # Threads together.
    "barrier with a high number": (
        lambda: pointwise(Sync(barrier_id=16, count=32)),
        InputError,
        "there is no barrier 16; a CTA has barriers 0 to 15",
    ),
    "barrier with a negative number": (
        lambda: pointwise(Sync(barrier_id=-1, count=32)),
        InputError,
        "there is no barrier -1",
    ),
    "barrier without a count": (lambda: pointwise(Sync(barrier_id=1)), InputError, "barrier 1 waits for None threads"),
    "barrier for half a warp": (
        lambda: pointwise(Sync(barrier_id=1, count=16)),
        InputError,
        "barrier 1 waits for 16 threads; a numbered barrier waits for a multiple of 32",
    ),
    "barrier for more than there are": (
        lambda: pointwise(Sync(barrier_id=1, count=96)),
        InputError,
        "barrier 1 waits for 96 threads; .*at most the CTA's 64",
    ),
    "numbered barrier of a warp": (
        lambda: pointwise(Sync(barrier_id=1, warp=True)),
        InputError,
        "a warp's barrier has no number",
    ),
    "shuffle among 3": (
        lambda: pointwise(SEEDED, WarpShuffle(("s",), ("o",), SUM, 3)),
        InputError,
        "a shuffle among 3 lanes; a group has 1, 2, 4, 8, 16 or 32 lanes",
    ),
    "shuffle among 64": (
        lambda: pointwise(SEEDED, WarpShuffle(("s",), ("o",), SUM, 64)),
        InputError,
        "a shuffle among 64 lanes",
    ),
    "shuffle among none": (
        lambda: pointwise(SEEDED, WarpShuffle(("s",), ("o",), SUM, 0)),
        InputError,
        "a shuffle among 0 lanes",
    ),
    "broadcast among 64": (
        lambda: pointwise(SEEDED, WarpBroadcast(("s",), 64)),
        InputError,
        "a shuffle among 64 lanes",
    ),
    "shuffle with a state too many": (
        lambda: pointwise(SEEDED, WarpShuffle(("s", "a"), ("o",), SUM, 4)),
        InputError,
        "2 states are combined with 1",
    ),
    "shuffle with an unknown operand": (
        lambda: pointwise(SEEDED, WarpShuffle(("s",), ("o",), (Assign("s", "add", ("s", "p")),), 4)),
        InputError,
        "'p' is not defined",
    ),
    "tree without its array": (
        lambda: pointwise(SEEDED, tree()),
        InputError,
        "'m' is no shared array of 64 partial states; a Smem declares it",
    ),
    "tree with a small array": (
        lambda: shared(SEEDED, tree(), size=60),
        InputError,
        "'m' is no shared array of 64 partial states",
    ),
    "segmented tree with a small array": (
        lambda: shared(SEEDED, tree(length=8, inner=("i", 9))),
        InputError,
        "'m' is no shared array of 72 partial states",
    ),
    "tree of nothing": (lambda: shared(SEEDED, tree(length=0)), InputError, "a tree over 0 partial states"),
    "tree that does not halve": (lambda: shared(SEEDED, tree(length=6)), InputError, "a tree over 6 partial states"),
    "tree of three warps": (
        lambda: shared(SEEDED, tree(length=3, tid_var="warp")),
        InputError,
        "a tree over 3 partial states; it folds halves: 1, 2, 4, 8, ... of them",
    ),
    "segmented tree that does not halve": (
        lambda: shared(SEEDED, tree(length=6, inner=("i", 4))),
        InputError,
        "a tree over 6 partial states",
    ),
    "tree with a state too many": (
        lambda: shared(SEEDED, tree(state=("s", "a"))),
        InputError,
        "1 arrays, 2 states and 1 others in a tree",
    ),
    "tree with an unknown thread": (lambda: shared(SEEDED, tree(tid_var="q")), InputError, "'q' is not defined"),
    "tree with half a barrier": (
        lambda: shared(SEEDED, tree(barrier_id=1, barrier_count=16)),
        InputError,
        "barrier 1 waits for 16 threads",
    ),
    "copy of 5 bytes": (
        lambda: pointwise(Smem("m", (64,)), CpAsyncCopy("m", (AT,), "x", (AT,), nbytes=5)),
        InputError,
        "a copy of 5 bytes; cp.async copies 4, 8 or 16",
    ),
    "copy to a buffer": (
        lambda: pointwise(CpAsyncCopy("y", (AT,), "x", (AT,))),
        InputError,
        "'y' is not a shared array",
    ),
    "copy from a shared array": (
        lambda: pointwise(Smem("m", (64,)), Smem("w", (64,)), CpAsyncCopy("m", (AT,), "w", (AT,))),
        InputError,
        "'w' is no buffer of global memory",
    ),
    "copy by a lane of three parts": (
        lambda: pointwise(Smem("m", (64,)), CpAsyncCopy("m", (AT,), "x", (AT,), lane_index=(AT, AT, AT))),
        InputError,
        "a lane index of 3 parts",
    ),
    "wait for less than none": (lambda: pointwise(CpAsyncWait(-1)), InputError, "a wait for -1 groups"),
    "zeros for no output": (
        lambda: kernel_graph(
            (ZeroPrologue("m", 4), tile({"i": 64}, [Smem("m", (4,)), LOAD, WRITE])), {"x": (64,)}, {"y": (64,)}
        ),
        InputError,
        "'m'",
    ),
    # Shared memory.
    "shared array of no extent": (
        lambda: pointwise(Smem("m", (4, 0))),
        InputError,
        r"the shared array 'm' has the extents \(4, 0\)",
    ),
    "shared array of an unknown type": (
        lambda: pointwise(Smem("m", (4,), "quux")),
        UnsupportedError,
        "Smem m: element type 'quux' is not supported yet",
    ),
    "shared array with an odd alignment": (
        lambda: pointwise(Smem("m", (4,), align=24)),
        InputError,
        "the shared array 'm' is aligned to 24 bytes; an alignment is a power of two",
    ),
    "shared array with a huge alignment": (
        lambda: pointwise(Smem("m", (4,), align=1 << 30)),
        InputError,
        "'m' is aligned to 1073741824 bytes; an alignment is a power of two, up to 1048576",
    ),
    "shared array beyond addresses": (
        lambda: pointwise(Smem("m", (2**40,))),
        TargetError,
        "the kernel uses 4398046511104 bytes of shared memory",
    ),
    # Vectors.
    "vector store that is misaligned": (
        lambda: pointwise(Write("y", (op("+", op("*", AT, 4), 1),), values=("a",) * 4)),
        InputError,
        "at once are not aligned",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_kernels_are_refused(name: str) -> None:
    make, kind, message = BAD[name]
    error = refused(make)
    assert re.search(message, str(error)), error
    assert type(error) is kind
    assert error.hint or kind is not InputError or len(error.what) < 60


def test_sizes_that_no_kernel_takes_are_refused() -> None:
    from emmy.compiler.dim import Dim

    graph = pointwise(inputs={"x": (64,), "z": (1024, Dim("nope"))})
    error = refused(lambda: graph)
    assert "the shape of 'z' has the size 'nope', which the kernel does not take" in str(error)
