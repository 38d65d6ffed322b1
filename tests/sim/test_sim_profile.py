"""The profile: what is counted for kernels whose counts are known by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from ptx_lab import kernel, launch

from ptxc.sim.profile import LineProfile, Profile, bank_passes, count_groups, kind_of, sectors
from ptxc.sim.program import Instruction


def profile(body: str, size: int = 4096, **options: Any) -> Profile:
    """The profile of a launch on one buffer of ``size`` words, whose address is in ``%d0``."""
    result = launch(kernel(body, ["u64 x"]), [np.zeros(size, np.uint32)], profile=True, **options)
    assert result.completed
    assert result.profile is not None
    return result.profile


def line(found: Profile, spelling: str) -> LineProfile:
    """The only line of an instruction."""
    (one,) = [item for item in found.lines if item.instruction == spelling]
    return one


def address(stride: int, offset: int = 0) -> str:
    """``%d9``: thread t's address in the buffer, t * stride + offset bytes."""
    return f"mul.wide.u32 %d8, %r0, {stride}; add.u64 %d9, %d0, %d8; add.u64 %d9, %d9, {offset};"


def test_nothing_is_counted_unless_asked() -> None:
    result = launch(kernel("", ["u64 x"]), [np.zeros(4, np.uint32)])
    assert result.profile is None


def test_warp_instructions_and_their_active_threads() -> None:
    found = profile("add.u32 %r10, %r0, 1;", grid=3, block=80)
    counted = line(found, "add.u32")
    assert (counted.warps, counted.threads) == (9, 240)
    # Each line of the entry is executed once by each warp: 10 instructions and the exit.
    assert (found.warps, found.threads) == (9 * 7, 240 * 7)
    assert found.active_lanes == pytest.approx(240 / 9)


def test_divergent_branches_count_apart() -> None:
    body = """
    setp.lt.u32 %p1, %r1, 8;
    @%p1 bra LOW;
    add.u32 %r10, %r0, 1;
    bra END;
    LOW: sub.u32 %r10, %r0, 1;
    END: xor.b32 %r11, %r10, 1;
    """
    found = profile(body, block=64)
    assert (line(found, "add.u32").warps, line(found, "add.u32").threads) == (2, 56)
    assert (line(found, "sub.u32").warps, line(found, "sub.u32").threads) == (1, 8)
    assert (line(found, "xor.b32").warps, line(found, "xor.b32").threads) == (2, 64)


def test_threads_whose_guard_is_false_are_not_active() -> None:
    found = profile("setp.lt.u32 %p1, %r1, 5; @%p1 add.u32 %r10, %r0, 1; @!%p1 sub.u32 %r10, %r0, 1;", block=32)
    assert line(found, "add.u32").threads == 5
    assert line(found, "sub.u32").threads == 27
    never = profile("setp.lt.u32 %p1, %r1, 0; @%p1 add.u32 %r10, %r0, 1;", block=32)
    assert (line(never, "add.u32").warps, line(never, "add.u32").threads) == (1, 0)


@pytest.mark.parametrize(
    ("stride", "offset", "type", "taken", "ideal"),
    [
        (4, 0, "u32", 4, 4),  # neighbours
        (4, 16, "u32", 5, 4),  # across a sector's edge
        (8, 0, "u32", 8, 4),  # every other word
        (32, 0, "u32", 32, 4),  # a sector each
        (128, 0, "u32", 32, 4),
        (0, 0, "u32", 1, 1),  # one word for all
        (1, 0, "u8", 1, 1),
        (16, 0, "v4.u32", 16, 16),
    ],
)
def test_sectors_of_global_loads(stride: int, offset: int, type: str, taken: int, ideal: int) -> None:
    target = "{%r10, %r11, %r12, %r13}" if type[0] == "v" else "%h0" if type == "u8" else "%r10"
    found = profile(f"{address(stride, offset)} ld.global.{type} {target}, [%d9];", block=32)
    traffic = line(found, f"ld.global.{type}").global_memory
    assert (traffic.requests, traffic.taken, traffic.ideal) == (1, taken, ideal)
    assert found.traffic("global") == traffic
    assert found.traffic("shared").requests == 0


def test_an_address_that_all_threads_share_is_one_request_a_warp() -> None:
    found = profile("ld.global.u32 %r10, [%d0];", grid=2, block=96)
    traffic = line(found, "ld.global.u32").global_memory
    assert (traffic.requests, traffic.taken, traffic.ideal) == (6, 6, 6)


def test_stores_atomics_and_copies_are_requests_too() -> None:
    shared = ".shared .align 16 .b8 tile[512]; mov.u32 %r20, tile; shl.b32 %r21, %r1, 4; add.u32 %r22, %r20, %r21;"
    body = f"""
    {shared}
    {address(16)}
    st.global.u32 [%d9], %r0;
    red.global.add.u32 [%d0], 1;
    cp.async.cg.shared.global [%r22], [%d9], 16;
    cp.async.wait_all;
    """
    found = profile(body, block=32)
    assert line(found, "st.global.u32").global_memory.taken == 16
    atomic = line(found, "red.global.add.u32").global_memory
    assert (atomic.requests, atomic.taken, atomic.ideal) == (1, 1, 1)
    copy = line(found, "cp.async.cg.shared.global")
    assert (copy.global_memory.requests, copy.global_memory.taken) == (1, 16)
    assert (copy.shared_memory.requests, copy.shared_memory.taken, copy.shared_memory.ideal) == (1, 4, 4)


@pytest.mark.parametrize(
    ("stride", "size", "passes", "ideal"),
    [
        (4, 4, 1, 1),  # each its own bank
        (8, 4, 2, 1),  # two words in every other bank
        (128, 4, 32, 1),  # all in one bank
        (132, 4, 1, 1),  # rows of 33 words
        (0, 4, 1, 1),  # one word for all
        (2, 2, 1, 1),  # two threads a word
        (8, 8, 2, 2),  # halves of the warp
        (16, 16, 4, 4),  # quarters
        (32, 16, 8, 4),
    ],
)
def test_passes_over_the_banks(stride: int, size: int, passes: int, ideal: int) -> None:
    lanes = np.arange(32)
    found = bank_passes(lanes * stride, lanes, size)
    assert (found.requests, found.taken, found.ideal) == (1, passes, ideal)
    both = np.arange(64)
    two = bank_passes(np.tile(lanes * stride, 2) + np.repeat([0, 8192], 32), both, size)
    assert (two.requests, two.taken, two.ideal) == (2, 2 * passes, 2 * ideal)


def test_bank_conflicts_of_a_kernel() -> None:
    body = """
    .shared .align 4 .b8 tile[8192];
    mov.u32 %r20, tile; mul.lo.u32 %r21, %r1, 128; add.u32 %r22, %r20, %r21;
    st.shared.u32 [%r22], %r1;
    bar.sync 0;
    ld.shared.u32 %r23, [%r20];
    """
    found = profile(body, block=64, grid=2)
    assert line(found, "st.shared.u32").shared_memory.taken == 4 * 32
    load = line(found, "ld.shared.u32").shared_memory
    assert (load.requests, load.taken, load.ideal) == (4, 4, 4)
    assert found.barriers() == 4
    assert found.hottest(1)[0].instruction == "st.shared.u32"


def test_sectors_and_groups() -> None:
    lanes = np.arange(64)
    assert count_groups(lanes, 32) == 2
    assert count_groups(lanes[:0], 32) == 0
    part = sectors(np.array([0, 4, 4, 1000]), np.array([0, 1, 33, 40]), 4)
    assert (part.requests, part.taken, part.ideal) == (2, 3, 2)


@pytest.mark.parametrize(
    ("spelling", "kind"),
    [
        ("ld.global.nc.f32", "load global"), ("ld.shared.v4.f32", "load shared"), ("ld.u32", "load generic"),
        ("st.shared::cta.f32", "store shared"), ("red.global.add.f32", "atomic global"), ("bar.sync", "barrier"),
        ("barrier.cta.sync.aligned", "barrier"), ("bar.warp.sync", "warp"), ("shfl.sync.bfly.b32", "warp"),
        ("activemask.b32", "warp"), ("bra.uni", "branch"), ("cp.async.ca.shared.global", "asynchronous copy"),
        ("setp.lt.s32", "logic"), ("lop3.b32", "logic"), ("cvt.rn.f32.s32", "convert"), ("mov.u32", "move"),
        ("fma.rn.f32", "float"), ("add.f16x2", "float"), ("mad.lo.s32", "integer"),
    ],
)  # fmt: skip
def test_kinds(spelling: str, kind: str) -> None:
    opcode, *modifiers = spelling.split(".")
    assert kind_of(Instruction(1, opcode, tuple(modifiers), ())) == kind


def test_all_of_it_as_plain_data() -> None:
    data = profile("ld.global.u32 %r10, [%d0];", block=32).to_dict()
    assert data["warp_instructions"] == sum(item["warps"] for item in data["lines"])
    assert data["thread_instructions"] == sum(kind["threads"] for kind in data["kinds"].values())
    assert data["global"] == {"requests": 1, "taken": 1, "ideal": 1}
    assert list(data["kinds"].values()) == sorted(data["kinds"].values(), key=lambda kind: -kind["warps"])
    assert Profile().active_lanes == 0


def test_matrices_have_kinds_of_their_own() -> None:
    body = """
    .shared .align 16 .b8 tile[512]; mov.u32 %r40, tile; shl.b32 %r41, %r1, 4; add.u32 %r40, %r40, %r41;
    st.shared.v4.b32 [%r40], {%r1, %r1, %r1, %r1}; bar.sync 0;
    ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r20, %r21, %r22, %r23}, [%r40];
    mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%r10, %r11, %r12, %r13}, {%r20, %r21, %r22, %r23},
        {%r20, %r21}, {%r20, %r21, %r22, %r23};"""
    result = launch(kernel(body), [np.zeros(1, np.uint32)] * 2, profile=True)
    assert result.profile is not None
    kinds = {line.instruction.partition(".")[0]: line for line in result.profile.lines}
    assert kinds["ldmatrix"].kind == "load shared"
    assert kinds["ldmatrix"].shared_memory.taken == 4
    assert kinds["mma"].kind == "matrix"
