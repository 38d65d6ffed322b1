"""Barriers with a thread count at which more threads arrive than they are for."""

from __future__ import annotations

from test_sim_checks import exchange, findings, only


def test_count_of_half_the_threads_orders_each_half() -> None:
    """Four warps come at once: the first two complete the barrier, then the others."""
    half = "bar.sync 1, 64"
    assert not findings(exchange(half, 33), block=128, size=128)
    only(findings(exchange(half, 65), block=128, size=128), "race", "races with a write")


def test_warps_that_are_left_over_wait() -> None:
    found = only(findings("bar.sync 1, 64;", block=96, grid=2), "sync", "can never complete")
    assert found.threads[0] == 64
    assert found.count == 64


def test_warps_that_come_late_complete_what_others_began() -> None:
    """Warps 0 and 1 wait for 96 threads; then 2 and 3 come at once, of which one is left over."""
    body = """setp.lt.u32 %p0, %r1, 64; @!%p0 bra LATER; bar.sync 1, 96; bra END;
    LATER: mov.u32 %r10, 1; bar.sync 1, 96; END:"""
    found = only(findings(body, block=128), "sync", "can never complete")
    assert (found.threads[0], found.count) == (96, 32)


def test_rounds_of_a_barrier_follow_one_another() -> None:
    assert not findings("bar.sync 1, 32; bar.sync 1, 32;", block=256)


def test_reduction_is_over_those_of_one_round() -> None:
    """Each pair of warps counts its own threads."""
    body = """setp.ge.u32 %p0, %r1, 64; bar.red.popc.u32 %r10, 1, 64, %p0;
    setp.lt.u32 %p1, %r1, 64; selp.u32 %r11, 0, 64, %p1; setp.ne.u32 %p2, %r10, %r11; @%p2 trap;"""
    assert not findings(body, block=128)
