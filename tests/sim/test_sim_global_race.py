"""The ``race`` check of global memory: threads of one CTA, CTAs, and the grid ahead."""

from __future__ import annotations

import numpy as np
import pytest
from ptx_lab import kernel, launch
from test_sim_checks import TILE, findings, line_of, only

from ptxc.sim.findings import Finding

FIRST = "setp.eq.u32 %p0, %r0, 0; "
"""``%p0``: the launch's first thread."""

EXCHANGE = f"""{TILE}
    st.global.u32 [%d11], %r1; ORDER
    xor.b32 %r20, %r1, OTHER; mul.wide.u32 %d12, %r20, 4; add.u64 %d12, %d12, %d0;
    ld.global.u32 %r21, [%d12];"""
"""Each thread writes its word of a buffer, then reads that of another."""


def exchange(order: str, other: int) -> str:
    return EXCHANGE.replace("ORDER", order).replace("OTHER", str(other))


# Threads of one CTA


@pytest.mark.parametrize("value", ["7", "%r1"])
def test_all_threads_write_one_word(value: str) -> None:
    """Though they write the same: the guard that names the one thread is missing."""
    body = f"""
    st.global.u32 [%d0], {value};"""
    found = only(findings(body), "race", "two threads write the same bytes at once")
    assert found.line == line_of(body, "st.global")
    assert (found.space, found.count) == ("global", 63)
    assert not findings(f"{FIRST} @%p0 st.global.u32 [%d0], 7;")


def test_read_after_write_without_a_barrier() -> None:
    body = exchange("", 33)
    found = only(findings(body), "race", "races with a write that no barrier orders before it")
    assert found.line == line_of(body, "ld.global")
    assert found.address is not None
    assert not findings(exchange("bar.sync 0;", 33))


def test_warp_barrier_orders_the_warp_only() -> None:
    assert not findings(exchange("bar.warp.sync 0xFFFFFFFF;", 1))
    only(findings(exchange("bar.warp.sync 0xFFFFFFFF;", 33)), "race", "races with a write")


def test_write_after_read_without_a_barrier() -> None:
    body = f"""{exchange("bar.sync 0;", 33)}
    st.global.u32 [%d11], 5;"""
    found = only(findings(body), "race", "overwrites what another thread reads")
    assert found.line == line_of(body, "st.global.u32 [%d11], 5")
    assert not findings(body.replace("[%d12];", "[%d12]; bar.sync 0;"))


def test_address_that_is_the_same_for_all_is_read_by_all() -> None:
    only(findings(f"ld.global.u32 %r10, [%d0]; {FIRST} @%p0 st.global.u32 [%d0], 1;"), "race", "overwrites")
    assert not findings(f"ld.global.u32 %r10, [%d0]; bar.sync 0; {FIRST} @%p0 st.global.u32 [%d0], 1;")


@pytest.mark.parametrize("first", ["@%p0", "@!%p0"])
def test_race_is_found_whichever_thread_comes_first(first: str) -> None:
    """One warp writes, the other reads; which of the two the device runs first depends on the branch."""
    body = f"""{TILE} setp.lt.u32 %p0, %r1, 32; {first} bra A;
    @%p0 st.global.u32 [%d11], 1; @!%p0 ld.global.u32 %r20, [%d11+-128]; bra B;
    A: @%p0 st.global.u32 [%d11], 1; @!%p0 ld.global.u32 %r20, [%d11+-128];
    B:"""
    assert [f.check for f in findings(body)] == ["race"]


def test_atomics_race_with_plain_accesses_only() -> None:
    add = "red.global.add.u32 [%d0], 1;"
    assert not findings(f"{add} {add} bar.sync 0; ld.global.u32 %r10, [%d0];")
    only(findings(f"{add} ld.global.u32 %r10, [%d0];"), "race", "races with a write")


def test_what_is_forgotten_between_ctas_and_batches_is_right() -> None:
    """A word a CTA, which its threads exchange over a barrier, in several batches; warp barriers keep clocks."""
    body = """mul.wide.u32 %d10, %r2, 4; add.u64 %d11, %d10, %d0; setp.eq.u32 %p0, %r1, 0;
    @%p0 st.global.u32 [%d11], %r2; bar.warp.sync 0xFFFFFFFF; BARRIER ld.global.u32 %r20, [%d11];"""
    assert not findings(body.replace("BARRIER", "bar.sync 0;"), grid=600, size=600)
    assert only(findings(body.replace("BARRIER", ""), grid=600, size=600), "race", "races").count == 600 * 32


# CTAs


def test_one_cta_reads_what_another_writes() -> None:
    """Whichever of them runs first: the first CTA reads the second's word, then the second the first's."""
    for neighbour in ("add.u32 %r10, %r0, 64", "sub.u32 %r10, %r0, 64"):
        body = f"""{TILE} st.global.u32 [%d11], 1; {neighbour}; and.b32 %r10, %r10, 127;
        mul.wide.u32 %d12, %r10, 4; add.u64 %d12, %d12, %d0; ld.global.u32 %r20, [%d12];"""
        found = findings(body, grid=2, size=128)
        assert only(found, "race", "one CTA writes and another reads the same bytes of p0").space == "global"


def test_ctas_may_read_what_none_writes() -> None:
    body = f"{TILE} ld.global.u32 %r20, [%d0]; add.u64 %d12, %d10, %d1; st.global.u32 [%d12], %r20;"
    assert not findings(body, grid=4, args=[np.zeros(1, np.uint32), np.zeros(256, np.uint32)])


@pytest.mark.parametrize("order", ["membar.gl;", "fence.acq_rel.gpu;", "ld.acquire.gpu.global.u32 %r30, [%d1];"])
def test_kernels_with_an_order_that_is_not_understood_are_left_alone(order: str) -> None:
    body = f"""{TILE} {order} st.global.u32 [%d11], 1; xor.b32 %r10, %r0, 64;
    mul.wide.u32 %d12, %r10, 4; add.u64 %d12, %d12, %d0; ld.global.u32 %r20, [%d12];"""
    assert not findings(body, grid=2, args=[np.zeros(128, np.uint32), np.zeros(1, np.uint32)])


# The grid ahead


def early(body: str, dependent: bool | None = None) -> list[Finding]:
    text = kernel(body, ["u64 p0"])
    return launch(text, [np.zeros(64, np.uint32)], 1, 64, sanitize={"race"}, dependent=dependent).findings


@pytest.mark.parametrize("access", ["ld.global.nc.u32 %r20, [%d11]", "st.global.u32 [%d11], 1",
                                    "red.global.add.u32 [%d11], 1"])  # fmt: skip
def test_access_before_the_grid_ahead_has_ended(access: str) -> None:
    body = f"{TILE} {access}; griddepcontrol.wait;"
    found = only(early(body), "race", "touches p0 before griddepcontrol.wait")
    assert found.instruction == access.split()[0]
    assert not early(body, dependent=False)
    assert not early(f"{TILE} griddepcontrol.wait; {access};")


def test_kernel_without_a_wait_may_be_launched_behind_its_predecessor_only() -> None:
    body = f"{TILE} st.global.u32 [%d11], 1;"
    assert not early(body)
    only(early(body, dependent=True), "race", "before griddepcontrol.wait")


def test_wait_of_other_threads_does_not_count() -> None:
    body = f"{TILE} setp.lt.u32 %p0, %r1, 32; @%p0 griddepcontrol.wait; st.global.u32 [%d11], 1;"
    assert only(early(body), "race", "before griddepcontrol.wait").threads[0] == 32
