"""Branches, calls, barriers and warp operations: who runs what, with whom."""

from __future__ import annotations

import numpy as np
import pytest
from ptx_lab import HEADER, REGISTERS, evaluate, kernel, launch, run, u32

from ptxc.device import device
from ptxc.errors import InputError, UnsupportedError

STORE = "mul.wide.u32 %d10, %r0, 4; add.u64 %d10, %d10, %d0; st.global.u32 [%d10], %r10;"


def results(body: str, block: int = 32, grid: int = 1, declarations: str = "") -> list[int]:
    """``%r10`` of every thread after ``body``."""
    out = np.zeros(block * grid, np.uint32)
    run(f"{body}\n{STORE}", [out], grid=grid, block=block, declarations=declarations)
    values: list[int] = out.tolist()
    return values


def test_divergence_and_reconvergence() -> None:
    body = """
    mov.u32 %r10, 0; and.b32 %r11, %r1, 1; setp.eq.u32 %p0, %r11, 0;
    @%p0 bra EVEN; add.u32 %r10, %r10, 100; bra JOIN;
    EVEN: add.u32 %r10, %r10, 200;
    JOIN: activemask.b32 %r12; popc.b32 %r13, %r12; add.u32 %r10, %r10, %r13;"""
    assert results(body) == [232 if lane % 2 == 0 else 132 for lane in range(32)]


def test_loops_with_different_trip_counts_reconverge_behind_them() -> None:
    body = """
    mov.u32 %r10, 0; mov.u32 %r11, 0;
    LOOP: setp.ge.u32 %p0, %r11, %r1; @%p0 bra DONE;
    add.u32 %r10, %r10, %r11; add.u32 %r11, %r11, 1; bra LOOP;
    DONE: activemask.b32 %r12; popc.b32 %r13, %r12; mad.lo.u32 %r10, %r13, 1000, %r10;"""
    assert results(body) == [32000 + lane * (lane - 1) // 2 for lane in range(32)]


def test_blocks_out_of_line_reconverge_all_the_same() -> None:
    # nvcc puts unlikely blocks behind the end: running the lowest program counter first would part the threads.
    body = """
    mov.u32 %r10, 0; setp.lt.u32 %p0, %r1, 7; @%p0 bra FAR;
    JOIN: activemask.b32 %r12; popc.b32 %r13, %r12; add.u32 %r10, %r10, %r13; bra STORE;
    FAR: mov.u32 %r10, 1000; bra JOIN;
    STORE:"""
    assert results(body) == [1032] * 7 + [32] * 25


def test_nested_loops_with_early_exits() -> None:
    body = """
    mov.u32 %r10, 0; mov.u32 %r11, 0;
    OUTER: setp.ge.u32 %p0, %r11, 5; @%p0 bra DONE; mov.u32 %r12, 0;
    INNER: setp.gt.u32 %p1, %r12, %r1; @%p1 bra NEXT;
    add.u32 %r10, %r10, 1; setp.gt.u32 %p2, %r10, 20; @%p2 bra DONE; add.u32 %r12, %r12, 1; bra INNER;
    NEXT: add.u32 %r11, %r11, 1; bra OUTER;
    DONE: activemask.b32 %r13; popc.b32 %r13, %r13; mad.lo.u32 %r10, %r13, 100, %r10;"""
    assert results(body) == [3200 + min(5 * (lane + 1), 21) for lane in range(32)]


def test_indexed_branches() -> None:
    body = """
    and.b32 %r11, %r1, 3; mov.u32 %r10, 99;
    TABLE: .branchtargets A, B, C;
    setp.ne.u32 %p0, %r11, 3; @%p0 brx.idx %r11, TABLE; bra JOIN;
    A: mov.u32 %r10, 10; bra JOIN;
    B: mov.u32 %r10, 20; bra JOIN;
    C: mov.u32 %r10, 30;
    JOIN: activemask.b32 %r12; setp.ne.u32 %p1, %r12, 0xFFFFFFFF; @%p1 mov.u32 %r10, 0;"""
    assert results(body) == [[10, 20, 30, 99][lane & 3] for lane in range(32)]


def test_predication_and_guards() -> None:
    body = """
    setp.lt.u32 %p0, %r1, 10; mov.u32 %r10, 1; @%p0 mov.u32 %r10, 2; @!%p0 add.u32 %r10, %r10, 4;
    setp.eq.u32 %p1, %r1, 5; @%p1 bra SKIP; add.u32 %r10, %r10, 10; SKIP:"""
    assert results(body) == [(2 if lane < 10 else 5) + (0 if lane == 5 else 10) for lane in range(32)]


def test_exit_of_some_threads() -> None:
    body = "setp.ge.u32 %p0, %r1, 8; mov.u32 %r10, 1; @%p0 exit; activemask.b32 %r11; popc.b32 %r10, %r11;"
    assert results(body) == [8] * 8 + [0] * 24


def test_partial_blocks_and_dimensions() -> None:
    out = np.zeros(2 * 2 * 3 * 5, np.uint32)
    body = """
    mov.u32 %r10, %tid.y; mov.u32 %r11, %tid.z; mov.u32 %r12, %ntid.x; mov.u32 %r13, %ntid.y;
    mad.lo.u32 %r14, %r11, %r13, %r10; mad.lo.u32 %r14, %r14, %r12, %r1;
    mov.u32 %r15, %ctaid.y; mad.lo.u32 %r16, %r15, 15, %r14; mov.u32 %r17, %ctaid.x; mad.lo.u32 %r16, %r17, 30, %r16;
    mov.u32 %r18, %laneid; mul.wide.u32 %d10, %r16, 4; add.u64 %d10, %d10, %d0; st.global.u32 [%d10], %r18;"""
    result = launch(kernel(body, ["u64 x"]), [out], (2, 2), (5, 3, 1))
    assert not result.findings
    assert out.tolist() == list(range(15)) * 4


def test_functions_are_called_with_both_kinds_of_parameters() -> None:
    declarations = """
    .func (.param .b32 result) square(.param .b32 x) {
        .reg .b32 %r<3>; .reg .pred %p<2>;
        ld.param.b32 %r0, [x]; setp.eq.u32 %p0, %r0, 3; @%p0 ret;
        mul.lo.u32 %r1, %r0, %r0; st.param.b32 [result], %r1; ret;
    }
    .func (.reg .u32 sum) add3(.reg .u32 a, .reg .u32 b) { add.u32 sum, a, b; add.u32 sum, sum, 3; ret; }
    """
    body = """
    { .param .b32 p; .param .b32 q; st.param.b32 [q], 7; st.param.b32 [p], %r1;
      call.uni (q), square, (p); ld.param.b32 %r11, [q]; }
    { .param .b32 p; .param .b32 q; st.param.b32 [q], 0; st.param.b32 [p], %r11;
      call.uni (q), square, (p); ld.param.b32 %r12, [q]; }
    setp.lt.u32 %p3, %r1, 4; mov.u32 %r10, %r12; @%p3 call (%r10), add3, (%r12, 100);"""
    squares = [7 if lane == 3 else lane * lane for lane in range(32)]
    want = [x * x if x != 3 else 0 for x in squares]
    assert results(body, declarations=declarations) == [w + 103 if lane < 4 else w for lane, w in enumerate(want)]


def test_recursion_and_unknown_functions_are_refused() -> None:
    text = kernel("call f;", [], ".func f() { call f; ret; }\n")
    with pytest.raises(UnsupportedError, match="recursive"):
        launch(text, [])
    with pytest.raises(UnsupportedError, match="no body"):
        launch(kernel("call g;", [], ".extern .func g();\n"), [])


def test_scopes_repeat_names() -> None:
    body = """
    mov.u32 %r10, 1;
    { .reg .b32 tmp; mov.u32 tmp, 5; setp.eq.u32 %p0, %r1, 0; @%p0 bra DONE; add.u32 %r10, %r10, tmp; DONE: }
    { .reg .b32 tmp; mov.u32 tmp, 50; setp.eq.u32 %p0, %r1, 1; @%p0 bra DONE; add.u32 %r10, %r10, tmp; DONE: }"""
    assert results(body) == [51, 6] + [56] * 30


def test_unknown_instructions_are_named_with_their_line() -> None:
    with pytest.raises(UnsupportedError, match=r"PTX line \d+: tcgen05.alloc"):
        launch(kernel("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r1], 32;"), [np.zeros(1), np.zeros(1)])
    with pytest.raises(UnsupportedError, match=r"modifier \.strange"):
        launch(kernel("add.strange.u32 %r1, %r1, %r1;"), [np.zeros(1), np.zeros(1)])
    with pytest.raises(InputError, match="'%zz' is not declared"):
        launch(kernel("add.u32 %zz, %r1, %r1;"), [np.zeros(1), np.zeros(1)])
    with pytest.raises(InputError, match=r"line 4: expected"):
        device("cpu").load(HEADER + ".visible entry k() { ret; }")
    with pytest.raises(InputError, match="wants"):
        launch(kernel("add.u32 %d1, %r1, %r1;"), [np.zeros(1), np.zeros(1)])


def test_entries_and_errors_of_the_module() -> None:
    text = f"{HEADER}.entry a() {{ ret; }} .entry b(.param .u64 x) {{{REGISTERS} ret; }} .func f() {{ ret; }}"
    module = device("cpu").load(text)
    assert module.entries == ["a", "b"]
    assert module.target == "sm_90a"
    assert module.launch("a", [1], [1], []).completed
    with pytest.raises(InputError, match="no entry 'c'"):
        module.launch("c", [1], [1], [])


# Barriers


def test_barrier_orders_threads_of_other_warps() -> None:
    body = """
    .shared .u32 tile[128];
    shl.b32 %r11, %r1, 2; mov.u32 %r12, tile; add.u32 %r13, %r12, %r11; st.shared.u32 [%r13], %r1;
    bar.sync 0;
    sub.u32 %r14, 127, %r1; shl.b32 %r14, %r14, 2; add.u32 %r14, %r14, %r12; ld.shared.u32 %r10, [%r14];"""
    assert results(body, 128, 3) == list(range(127, -1, -1)) * 3


def test_barriers_under_uniform_divergence_of_warps() -> None:
    # Warp 0 waits at one barrier instruction, the others at another one of the same name.
    body = """
    .shared .u32 cell;
    setp.lt.u32 %p0, %r1, 32; @%p0 bra FIRST;
    barrier.sync 1; ld.shared.u32 %r10, [cell]; bra JOIN;
    FIRST: setp.eq.u32 %p1, %r1, 0; @%p1 st.shared.u32 [cell], 42; barrier.sync 1; mov.u32 %r10, 7;
    JOIN:"""
    assert results(body, 96) == [7] * 32 + [42] * 64


def test_named_barriers_with_counts() -> None:
    body = """
    .shared .u32 cells[2];
    shr.u32 %r11, %r1, 6; mov.u32 %r12, cells; shl.b32 %r13, %r11, 2; add.u32 %r13, %r13, %r12;
    and.b32 %r14, %r1, 63; setp.eq.u32 %p0, %r14, 0; add.u32 %r15, %r11, 1;
    @%p0 st.shared.u32 [%r13], %r15; bar.sync %r15, 64; ld.shared.u32 %r10, [%r13];"""
    assert results(body, 128) == [1] * 64 + [2] * 64


def test_producers_arrive_and_consumers_wait() -> None:
    body = """
    .shared .u32 cell;
    setp.ge.u32 %p0, %r1, 32; @%p0 bra CONSUMER;
    setp.eq.u32 %p1, %r1, 0; @%p1 st.shared.u32 [cell], 5; bar.arrive 2, 64; mov.u32 %r10, 1; bra JOIN;
    CONSUMER: bar.sync 2, 64; ld.shared.u32 %r10, [cell];
    JOIN:"""
    assert results(body, 64) == [1] * 32 + [5] * 32


def test_barrier_reductions() -> None:
    predicate = "setp.lt.u32 %p0, %r1, 40; "
    assert results(predicate + "bar.red.popc.u32 %r10, 0, %p0;", 64) == [40] * 64
    assert results(predicate + "bar.red.popc.u32 %r10, 0, !%p0;", 64) == [24] * 64
    for operation, want in (("and", 0), ("or", 1)):
        body = predicate + f"bar.red.{operation}.pred %p1, 0, %p0; selp.u32 %r10, 1, 0, %p1;"
        assert results(body, 64) == [want] * 64


def test_barrier_does_not_wait_for_exited_threads() -> None:
    body = "setp.ge.u32 %p0, %r1, 32; @%p0 exit; bar.sync 0; mov.u32 %r10, 1;"
    assert results(body, 96) == [1] * 32 + [0] * 64


def test_threads_spin_until_another_writes() -> None:
    body = """
    .shared .u32 flag;
    setp.eq.u32 %p0, %r1, 0; @%p0 st.shared.u32 [flag], 0; bar.sync 0;
    setp.eq.u32 %p1, %r1, 63; mov.u32 %r10, 0; @%p1 bra SET;
    SPIN: ld.volatile.shared.u32 %r11, [flag]; add.u32 %r10, %r10, 1; setp.eq.u32 %p2, %r11, 0; @%p2 bra SPIN;
    bra DONE;
    SET: st.volatile.shared.u32 [flag], 1;
    DONE: setp.gt.u32 %p3, %r10, 0; selp.u32 %r10, 1, 0, %p3;"""
    assert results(body, 64) == [1] * 63 + [0]


# Warp operations


@pytest.mark.parametrize("sync", ["", ".sync"])
def test_shuffles(sync: str) -> None:
    mask = ", 0xFFFFFFFF" if sync else ""
    lanes = list(range(32))

    def shuffle(mode: str, b: str, c: str) -> list[int]:
        body = f"shfl{sync}.{mode}.b32 %r11|%p0, %r1, {b}, {c}{mask};"
        return results(f"{body} selp.u32 %r12, 100, 0, %p0; add.u32 %r10, %r11, %r12;")

    assert shuffle("up", "3", "0") == [lane if lane < 3 else lane - 3 + 100 for lane in lanes]
    assert shuffle("down", "3", "31") == [lane + 103 if lane < 29 else lane for lane in lanes]
    assert shuffle("bfly", "5", "31") == [(lane ^ 5) + 100 for lane in lanes]
    assert shuffle("idx", "6", "31") == [106] * 32
    # Segments of 8 lanes: the mask 0x18 in the upper half of c.
    assert shuffle("idx", "3", "0x181F") == [(lane & 24) + 3 + 100 for lane in lanes]
    assert shuffle("down", "2", "0x1807") == [lane + 102 if lane % 8 < 6 else lane for lane in lanes]
    assert shuffle("up", "2", "0x1800") == [lane + 98 if lane % 8 >= 2 else lane for lane in lanes]
    assert shuffle("bfly", "16", "0x1807") == [lane if lane < 16 else lane - 16 + 100 for lane in lanes]
    # The lane that each thread asks for may differ.
    assert shuffle("idx", "%r1", "31") == [lane + 100 for lane in lanes]


def test_shuffles_of_a_part_of_the_warp() -> None:
    body = """
    mov.u32 %r10, 0; setp.ge.u32 %p0, %r1, 8; @%p0 bra JOIN;
    activemask.b32 %r11; shfl.sync.bfly.b32 %r10, %r1, 4, 31, %r11;
    JOIN:"""
    assert results(body) == [4, 5, 6, 7, 0, 1, 2, 3] + [0] * 24
    assert results("activemask.b32 %r11; shfl.sync.down.b32 %r10, %r1, 1, 31, %r11;", 8)[:7] == list(range(1, 8))


def test_parts_of_a_warp_meet_at_different_instructions() -> None:
    # Both arms execute a shuffle with the full mask: they wait for each other.
    body = """
    setp.lt.u32 %p0, %r1, 16; @%p0 bra LOW;
    add.u32 %r12, %r1, 1000; shfl.sync.bfly.b32 %r10, %r12, 16, 31, 0xFFFFFFFF; bra JOIN;
    LOW: add.u32 %r12, %r1, 500; shfl.sync.bfly.b32 %r10, %r12, 16, 31, 0xFFFFFFFF;
    JOIN:"""
    assert results(body) == [1016 + lane for lane in range(16)] + [500 + lane for lane in range(16)]


def test_lanes_wait_for_those_that_come_later() -> None:
    body = """
    .shared .u32 cell;
    setp.eq.u32 %p0, %r1, 31; @!%p0 bra WAIT;
    st.shared.u32 [cell], 9; bar.warp.sync 0xFFFFFFFF; mov.u32 %r10, 1; bra JOIN;
    WAIT: bar.warp.sync 0xFFFFFFFF; ld.shared.u32 %r10, [cell];
    JOIN:"""
    assert results(body) == [9] * 31 + [1]


def test_votes() -> None:
    predicate = "setp.lt.u32 %p0, %r1, 5; "
    assert results(predicate + "vote.sync.ballot.b32 %r10, %p0, 0xFFFFFFFF;", 64) == [31] * 32 + [0] * 32
    assert results(predicate + "vote.ballot.b32 %r10, !%p0;") == [0xFFFFFFE0] * 32
    for mode, want in (("all", [0, 0]), ("any", [1, 0]), ("uni", [0, 1])):
        body = predicate + f"vote.sync.{mode}.pred %p1, %p0, 0xFFFFFFFF; selp.u32 %r10, 1, 0, %p1;"
        assert results(body, 64) == [want[0]] * 32 + [want[1]] * 32, mode
    split = """
    setp.lt.u32 %p0, %r1, 16; setp.lt.u32 %p1, %r1, 3; @%p0 bra LOW;
    vote.sync.ballot.b32 %r10, %p1, 0xFFFF0000; bra JOIN; LOW: vote.sync.ballot.b32 %r10, %p1, 0xFFFF; JOIN:"""
    assert results(split) == [7] * 16 + [0] * 16


def test_matches() -> None:
    body = "and.b32 %r11, %r1, 3; match.any.sync.b32 %r10, %r11, 0xFFFFFFFF;"
    assert results(body) == [0x11111111 << (lane & 3) for lane in range(32)]
    body = "shr.u32 %r11, %r1, 5; match.all.sync.b32 %r12|%p0, %r11, 0xFFFFFFFF; selp.u32 %r10, %r12, 1, %p0;"
    assert results(body, 64) == [0xFFFFFFFF] * 64
    body = "cvt.u64.u32 %d20, %r1; match.all.sync.b64 %r12|%p0, %d20, 0xFFFFFFFF; selp.u32 %r10, 7, %r12, %p0;"
    assert results(body) == [0] * 32


def test_warp_reductions() -> None:
    for operation, want in (("add.u32", 496), ("max.u32", 31), ("min.s32", 0), ("or.b32", 31), ("xor.b32", 0)):
        assert results(f"redux.sync.{operation} %r10, %r1, 0xFFFFFFFF;") == [want] * 32, operation
    float_lane = "cvt.rn.f32.u32 %f1, %r1; sub.f32 %f1, 0f41300000, %f1;"
    for operation, want in (("min", 2**32 - 20), ("max", 11), ("min.abs", 0), ("max.abs.NaN", 20)):
        body = f"{float_lane} redux.sync.{operation}.f32 %f2, %f1, 0xFFFFFFFF; cvt.rzi.s32.f32 %r10, %f2;"
        assert results(body) == [want] * 32, operation
    body = "setp.lt.u32 %p0, %r1, 4; mov.u32 %r10, 0; @%p0 redux.sync.add.s32 %r10, %r1, 0xF;"
    assert results(body) == [6] * 4 + [0] * 28


def test_election() -> None:
    body = "elect.sync %r11|%p0, 0xFFFFFFFF; selp.u32 %r12, 100, 0, %p0; add.u32 %r10, %r11, %r12;"
    assert results(body) == [100] + [0] * 31
    body = "setp.lt.u32 %p1, %r1, 5; mov.u32 %r10, 9; @%p1 bra END; elect.sync %r10|%p0, 0xFFFFFFE0; END:"
    assert results(body) == [9] * 5 + [5] * 27


def test_special_registers() -> None:
    lanes = range(64)
    for name, want in {
        "laneid": [lane % 32 for lane in lanes],
        "warpid": [lane // 32 for lane in lanes],
        "lanemask_eq": [1 << lane % 32 for lane in lanes],
        "lanemask_lt": [(1 << lane % 32) - 1 for lane in lanes],
        "lanemask_le": [(2 << lane % 32) - 1 for lane in lanes],
        "lanemask_gt": [0xFFFFFFFF & ~((2 << lane % 32) - 1) for lane in lanes],
        "lanemask_ge": [0xFFFFFFFF & ~((1 << lane % 32) - 1) for lane in lanes],
        "nwarpid": [2] * 64,
        "nctaid.x": [1] * 64,
        "ntid.x": [64] * 64,
    }.items():
        assert results(f"mov.u32 %r10, %{name};", 64) == want, name
    assert results("mov.u32 %r10, WARP_SZ;") == [32] * 32
    clocks = "mov.u32 %r11, %clock; nanosleep.u32 5; mov.u32 %r12, %clock; sub.u32 %r10, %r12, %r11;"
    assert all(value < 1000 for value in results(clocks))


def test_instructions_that_change_nothing() -> None:
    body = """
    membar.gl; fence.acq_rel.gpu; fence.proxy.async; griddepcontrol.wait; griddepcontrol.launch_dependents;
    prefetch.global.L2 [%d0]; createpolicy.fractional.L2::evict_last.b64 %d20, 1.0; mov.u32 %r10, 3;"""
    assert results(body) == [3] * 32


def test_evaluate_reads_its_operands() -> None:
    assert evaluate("add.u32 %res, %a, %b;", "u4", u32(1, 2, 3), u32(10)).tolist() == [11, 12, 13]
