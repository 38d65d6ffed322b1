"""The checks: faults seeded in small kernels must be found, each with its place; right kernels must be left alone."""

from __future__ import annotations

import numpy as np
import pytest
from ptx_lab import Array, kernel, launch

from ptxc.sim.findings import Finding

ALL = frozenset({"memory", "race", "init", "sync"})
TILE = """
    .shared .align 16 .b8 tile[512];
    mov.u32 %r10, tile; shl.b32 %r11, %r1, 2; add.u32 %r12, %r10, %r11; mul.wide.u32 %d10, %r0, 4;
    add.u64 %d11, %d10, %d0;
"""
"""``%r12`` is the thread's word of ``tile``, ``%d11`` its word of the first buffer."""


def findings(
    body: str,
    *,
    block: int = 64,
    grid: int = 1,
    size: int = 64,
    sanitize: frozenset[str] = ALL,
    args: list[Array] | None = None,
    declarations: str = "",
    **options: int,
) -> list[Finding]:
    """What a launch of ``body`` on buffers of ``size`` words finds."""
    arrays = args if args is not None else [np.zeros(size, np.uint32)]
    text = kernel(body, [f"u64 p{at}" for at in range(len(arrays))], declarations)
    return launch(text, arrays, grid, block, sanitize=sanitize, **options).findings


def line_of(body: str, marker: str) -> int:
    """The line of the module's text that holds ``marker``."""
    text = kernel(body, ["u64 p0"]).splitlines()
    return next(number for number, line in enumerate(text, 1) if marker in line)


def only(found: list[Finding], check: str, message: str) -> Finding:
    """The one finding there is."""
    assert [f.check for f in found] == [check], [str(f) for f in found]
    assert message in found[0].message, found[0].message
    assert found[0].check in str(found[0])
    return found[0]


# memory


def test_global_overrun_names_line_thread_and_buffer() -> None:
    body = f"""{TILE}
    st.global.u32 [%d11], 1;
    """
    found = only(findings(body, size=60), "memory", "bytes from the start of p0")
    assert found.line == line_of(body, "st.global")
    assert found.instruction == "st.global.u32"
    assert found.threads == (60, 61, 62, 63)
    assert found.count == 4
    assert found.address is not None
    assert found.space == "global"


def test_overrun_stops_the_launch_where_memory_is_not_checked() -> None:
    body = f"{TILE} st.global.u32 [%d11], 1; st.global.u32 [%d11+4096], 1;"
    result = launch(kernel(body, ["u64 p0"]), [np.zeros(60, np.uint32)], 1, 64)
    assert not result.completed
    assert len(result.findings) == 1


def test_checked_overrun_keeps_what_is_in_bounds() -> None:
    buffer, out = np.arange(8, dtype=np.uint32), np.full(64, 7, np.uint32)
    body = f"{TILE} ld.global.u32 %r20, [%d11]; add.u64 %d12, %d10, %d1; st.global.u32 [%d12], %r20;"
    found = findings(body, args=[buffer, out])
    assert [f.check for f in found] == ["memory"]
    assert out.tolist() == [*range(8), *[0] * 56]


def test_negative_index() -> None:
    found = only(findings(f"{TILE} ld.global.u32 %r20, [%d11+-4];"), "memory", ": 4 bytes before p0")
    assert found.threads == (0,)
    two = [np.zeros(64, np.uint32), np.zeros(64, np.uint32)]
    only(findings("st.global.u32 [%d1+-4], 1;", block=1, args=two), "memory", ": 4 bytes before p1")


def test_null_pointer() -> None:
    found = only(findings("mov.u64 %d20, 0; ld.global.u32 %r20, [%d20+16];"), "memory", "outside")
    assert found.address == 16


def test_neighbouring_buffers_are_not_reached() -> None:
    first, second = np.zeros(64, np.uint32), np.zeros(64, np.uint32)
    found = findings(f"{TILE} st.global.u32 [%d11+256], 1;", args=[first, second])
    assert [f.check for f in found] == ["memory"]
    assert not second.any()


def test_shared_overrun_into_the_next_variable() -> None:
    body = f"{TILE} .shared .b8 next[512]; st.shared.u32 [%r12+384], 1;"
    found = only(findings(body), "memory", "512 bytes from the start of tile, which has 512")
    assert found.space == "shared"
    assert found.threads[0] == 32
    far = only(findings(f"{TILE} st.shared.u32 [%r12+5000], 1;"), "memory", "5000 bytes from the start of tile")
    assert far.message.endswith("bytes from the start of tile, which has 512")


def test_dynamic_shared_overrun() -> None:
    body = "mov.u32 %r10, pool; st.shared.u32 [%r10+64], %r1;"
    declarations = ".extern .shared .align 16 .b8 pool[];\n"
    only(findings(body, declarations=declarations, shared=64, block=1), "memory", "dynamic shared memory, which has 64")


def test_local_overrun() -> None:
    body = ".local .align 4 .b8 depot[16]; mov.u64 %d20, depot; st.local.u32 [%d20+16], %r1;"
    only(findings(body), "memory", "depot")


@pytest.mark.parametrize("access", ["ld.global.v4.b32 {%r20, %r21, %r22, %r23}, [%d11];", "st.global.b64 [%d11], %d0;"])
def test_misaligned_global_access(access: str) -> None:
    found = only(findings(f"{TILE} {access}", size=256), "memory", "misaligned")
    assert found.threads[0] == 1


def test_misaligned_shared_access() -> None:
    only(findings(f"{TILE} st.shared.b64 [%r12], %d0;", sanitize=frozenset({"memory"})), "memory", "misaligned")


def test_misaligned_eight_word_vector() -> None:
    names = "{%r20, %r21, %r22, %r23, %r24, %r25, %r26, %r27}"
    found = findings(
        f"mul.wide.u32 %d10, %r1, 16; add.u64 %d11, %d0, %d10; ld.global.v8.b32 {names}, [%d11];", size=512
    )
    assert only(found, "memory", "misaligned").threads[0] == 1


def test_write_to_a_read_only_argument() -> None:
    buffer = np.zeros(64, np.uint32)
    buffer.flags.writeable = False
    only(findings(f"{TILE} st.global.u32 [%d11], 1;", args=[buffer]), "memory", "write to p0, which is read-only")
    assert not buffer.any()
    only(findings(f"{TILE} red.global.add.u32 [%d11], 1;", args=[buffer]), "memory", "read-only")


def test_write_to_constant_memory() -> None:
    body = "mov.u64 %d20, table; st.global.u32 [%d20], 1;"
    only(findings(body, declarations=".const .u32 table[4] = {1, 2, 3, 4};\n"), "memory", "write to table")


def test_write_to_what_is_loaded_as_read_only() -> None:
    body = f"""{TILE}
    ld.global.nc.u32 %r20, [%d11];
    st.global.u32 [%d11], %r20;"""
    found = only(findings(body), "memory", "ld.global.nc")
    assert found.line == line_of(body, "st.global")


def test_copy_of_more_bytes_than_it_has() -> None:
    body = f"{TILE} and.b32 %r13, %r12, -16; and.b64 %d12, %d11, -16; cp.async.cg.shared.global [%r13], [%d12], 16, 20;"
    only(findings(body, block=1), "memory", "src-size")


def test_asynchronous_copy_out_of_bounds() -> None:
    body = f"{TILE} cp.async.ca.shared.global [%r12], [%d11+256], 4; cp.async.wait_all;"
    only(findings(body), "memory", "outside of every global variable")
    body = f"{TILE} cp.async.ca.shared.global [%r12+512], [%d11], 4; cp.async.wait_all;"
    only(findings(body), "memory", "outside of every shared variable")


# init


def test_register_that_nothing_wrote() -> None:
    body = f"""{TILE}
    add.u32 %r20, %r21, 1;
    st.global.u32 [%d11], %r20;"""
    found = only(findings(body), "init", "reads register %r21")
    assert found.line == line_of(body, "add.u32 %r20")


def test_register_that_other_threads_wrote() -> None:
    body = f"{TILE} setp.lt.u32 %p0, %r1, 60; @%p0 mov.u32 %r20, 1; st.global.u32 [%d11], %r20;"
    assert only(findings(body), "init", "reads register %r20").threads == (60, 61, 62, 63)


def test_register_that_both_branches_write_is_fine() -> None:
    body = f"""{TILE} setp.lt.u32 %p0, %r1, 60; @%p0 bra A; mov.u32 %r20, 1; bra B; A: mov.u32 %r20, 2;
    B: st.global.u32 [%d11], %r20;"""
    assert not findings(body)


def test_predicate_that_nothing_wrote() -> None:
    only(findings(f"{TILE} @%p5 st.global.u32 [%d11], 1;"), "init", "reads register %p5")


def test_shared_memory_that_nothing_wrote() -> None:
    body = f"""{TILE}
    st.shared.u32 [%r12], %r1; bar.sync 0;
    ld.shared.u32 %r20, [%r12+4];
    """
    found = only(findings(body), "init", "never written")
    assert found.line == line_of(body, "ld.shared")
    assert found.threads == (63,)
    assert found.address == 256


def test_vector_of_which_a_part_was_written() -> None:
    body = (
        f"{TILE} shl.b32 %r13, %r1, 3; add.u32 %r13, %r13, %r10; st.shared.u16 [%r13], 1; ld.shared.b64 %d20, [%r13];"
    )
    only(findings(body), "init", "8 bytes")


def test_shared_memory_of_another_cta_counts_for_nothing() -> None:
    body = f"{TILE} setp.eq.u32 %p0, %r2, 0; @%p0 st.shared.u32 [%r12], 1; ld.shared.u32 %r20, [%r12];"
    assert only(findings(body, grid=2), "init", "never written").cta == (1, 0, 0)


def test_copy_that_was_not_waited_for_has_written_nothing() -> None:
    body = f"{TILE} cp.async.ca.shared.global [%r12], [%d11], 4; cp.async.commit_group; ld.shared.u32 %r20, [%r12];"
    only(findings(body, sanitize=frozenset({"init"})), "init", "never written")
    waited = body.replace("ld.shared", "cp.async.wait_group 0; ld.shared")
    assert not findings(waited)


def test_atomic_on_shared_memory_that_nothing_wrote() -> None:
    only(findings(f"{TILE} red.shared.add.u32 [%r10], 1;"), "init", "never written")
    once = f"{TILE} red.shared.add.u32 [%r10], 1; bar.sync 0;\nld.shared.u32 %r20, [%r10];"
    assert only(findings(once), "init", "never written").instruction == "red.shared.add.u32"


# race

EXCHANGE = """
    st.shared.u32 [%r12], %r1; BARRIER
    xor.b32 %r20, %r11, OTHER; add.u32 %r20, %r20, %r10; ld.shared.u32 %r21, [%r20];"""


def exchange(barrier: str, other: int) -> str:
    """Each thread writes its word, then reads that of thread ``id ^ other``."""
    return TILE + EXCHANGE.replace("BARRIER", barrier and f"{barrier};").replace("OTHER", str(4 * other))


def test_read_after_write_without_a_barrier() -> None:
    body = exchange("", 33)
    found = only(findings(body), "race", "races with a write")
    assert found.line == line_of(body, "ld.shared")
    assert "thread" in found.message
    assert not findings(exchange("bar.sync 0", 33))


def test_write_after_read_without_a_barrier() -> None:
    body = f"""{exchange("bar.sync 0", 1)}
    st.shared.u32 [%r12], %r21;"""
    found = only(findings(body), "race", "overwrites what another thread reads")
    assert found.line == line_of(body, "st.shared.u32 [%r12], %r21")
    assert not findings(body.replace("ld.shared.u32 %r21, [%r20];", "ld.shared.u32 %r21, [%r20]; bar.sync 0;"))


def test_two_writes_at_once() -> None:
    only(findings(f"{TILE} and.b32 %r20, %r12, -8; st.shared.u32 [%r20], %r1;"), "race", "write the same bytes at once")


def test_two_writes_by_different_instructions() -> None:
    body = f"""{TILE} setp.eq.u32 %p0, %r1, 0; @%p0 st.shared.u32 [%r10+400], 1;
    setp.eq.u32 %p1, %r1, 1; @%p1 st.shared.u32 [%r10+400], 1;"""
    only(findings(body), "race", "races with a write")


def test_overlapping_bytes_of_different_widths() -> None:
    body = f"""{TILE} setp.eq.u32 %p0, %r1, 0; @%p0 st.shared.u32 [%r10+400], 1;
    setp.eq.u32 %p1, %r1, 1; @%p1 st.shared.u8 [%r10+403], 1;"""
    only(findings(body), "race", "races with a write")
    beside = body.replace("st.shared.u32 [%r10+400]", "st.shared.u16 [%r10+400]")
    assert not findings(beside)


def test_warp_barrier_orders_a_warp_and_no_more() -> None:
    assert not findings(exchange("bar.warp.sync 0xFFFFFFFF", 1))
    only(findings(exchange("bar.warp.sync 0xFFFFFFFF", 33)), "race", "races with a write")


def test_warp_barrier_orders_the_lanes_of_its_mask() -> None:
    halves = "setp.lt.u32 %p0, %r1, 16; selp.u32 %r30, 0xFFFF, 0xFFFF0000, %p0; bar.warp.sync %r30"
    assert not findings(exchange(halves, 1), block=32)
    only(findings(exchange(halves, 16), block=32), "race", "races with a write")


def test_shuffle_orders_reads_and_not_writes() -> None:
    shuffle = "shfl.sync.bfly.b32 %r31, %r1, 1, 31, 0xFFFFFFFF"
    only(findings(exchange(shuffle, 1)), "race", "races with a write")
    body = f"{exchange('bar.sync 0', 1)} {shuffle}; st.shared.u32 [%r12], %r21;"
    assert not findings(body)
    body = f"{exchange('bar.sync 0', 33)} {shuffle}; st.shared.u32 [%r12], %r21;"
    only(findings(body), "race", "overwrites what another thread reads")


def test_named_barriers_order_those_who_take_part() -> None:
    pairs = "shr.u32 %r30, %r1, 6; add.u32 %r30, %r30, 1; bar.sync %r30, 64"
    assert not findings(exchange(pairs, 33), block=128, size=128)
    only(findings(exchange(pairs, 65), block=128, size=128), "race", "races with a write")


def test_arrival_orders_what_came_before_it() -> None:
    body = f"""{TILE}
    setp.lt.u32 %p0, %r1, 32; @!%p0 bra CONSUMER;
    st.shared.u32 [%r12], %r1; bar.arrive 1, 64; LATER bra JOIN;
    CONSUMER: bar.sync 1, 64; ld.shared.u32 %r20, [%r12+-128];
    JOIN:"""
    assert not findings(body.replace("LATER", ""))
    only(findings(body.replace("LATER", "st.shared.u32 [%r12], 5;")), "race", "races with a write")


def test_transitive_order_through_two_barriers() -> None:
    body = f"""{TILE}
    shr.u32 %r30, %r1, 5; setp.eq.u32 %p0, %r30, 0; setp.eq.u32 %p1, %r30, 1; setp.eq.u32 %p2, %r30, 2;
    @%p0 st.shared.u32 [%r12], %r1; @%p2 bra THIRD;
    bar.sync 1, 64; @%p0 bra JOIN;
    bar.sync 2, 64; bra JOIN;
    THIRD: bar.sync 2, 64; ld.shared.u32 %r20, [%r12+-256];
    JOIN:"""
    assert not findings(body, block=96, size=96)
    only(findings(body.replace("bar.sync 1, 64; ", ""), block=96, size=96), "race", "races with a write")


def test_exited_threads_are_not_ordered_by_later_barriers() -> None:
    body = f"""{TILE} st.shared.u32 [%r12], %r1; SYNC
    setp.lt.u32 %p0, %r1, 32; @%p0 exit; barrier.sync 0; ld.shared.u32 %r20, [%r12+-128];"""
    only(findings(body.replace("SYNC", "")), "race", "races with a write")
    assert not findings(body.replace("SYNC", "barrier.sync 0;"))
    body = f"""{TILE} st.shared.u32 [%r12], %r1; bar.sync 0; xor.b32 %r20, %r11, 128; add.u32 %r20, %r20, %r10;
    ld.shared.u32 %r21, [%r20]; SYNC setp.lt.u32 %p0, %r1, 32; @%p0 exit; barrier.sync 0; st.shared.u32 [%r12], 1;"""
    only(findings(body.replace("SYNC", "")), "race", "overwrites what another thread reads")
    assert not findings(body.replace("SYNC", "bar.sync 0;"))


def test_asynchronous_copy_is_a_write_until_waited_for() -> None:
    copy = f"{TILE} cp.async.ca.shared.global [%r12], [%d11], 4; cp.async.commit_group; WAIT bar.sync 0;"
    read = "xor.b32 %r20, %r11, 4; add.u32 %r20, %r20, %r10; ld.shared.u32 %r21, [%r20];"
    only(findings(copy.replace("WAIT", "") + read, sanitize=frozenset({"race"})), "race", "not waited for")
    assert not findings(copy.replace("WAIT", "cp.async.wait_group 0;") + read)
    late = copy.replace("WAIT", "").replace("bar.sync 0;", "bar.sync 0; cp.async.wait_all;") + read
    only(findings(late), "race", "races with a write")


def test_asynchronous_copy_over_what_others_read() -> None:
    body = f"""{exchange("bar.sync 0", 1)}
    cp.async.ca.shared.global [%r12], [%d11], 4; cp.async.wait_all;"""
    only(findings(body), "race", "overwrites what another thread reads")


def test_atomics_race_with_plain_accesses_only() -> None:
    start = f"{TILE} setp.eq.u32 %p0, %r1, 0; @%p0 st.shared.u32 [%r10], 0; bar.sync 0;"
    atomic = "red.shared.add.u32 [%r10], 1;"
    assert not findings(f"{start} {atomic} {atomic} bar.sync 0; ld.shared.u32 %r20, [%r10];")
    only(findings(f"{start} {atomic} ld.shared.u32 %r20, [%r10];"), "race", "races with a write")
    only(
        findings(start.replace("bar.sync 0;", "") + atomic, sanitize=frozenset({"race"})), "race", "races with a write"
    )
    only(findings(f"{start} ld.shared.u32 %r20, [%r10]; {atomic}"), "race", "overwrites what another thread reads")


def test_two_ctas_write_the_same_global_bytes() -> None:
    body = "mul.wide.u32 %d10, %r1, 4; add.u64 %d11, %d10, %d0; st.global.u32 [%d11], %r2;"
    found = only(findings(body, grid=2), "race", "two CTAs write the same bytes of p0")
    assert found.space == "global"
    assert not findings(body, grid=1)
    assert not findings(body.replace("st.global.u32", "red.global.add.u32"), grid=300)
    mixed = body + "\nred.global.add.u32 [%d11], 1;"
    assert [f.check for f in findings(mixed, grid=2)] == ["race", "race"]


def test_global_race_between_batches() -> None:
    body = """setp.eq.u32 %p0, %r0, 0; @%p0 st.global.u32 [%d0], 1;
    setp.eq.u32 %p1, %r0, 63999; @%p1 st.global.u32 [%d0], 1;"""
    assert only(findings(body, grid=1000), "race", "two CTAs").cta == (999, 0, 0)


# sync


def test_barrier_that_some_threads_never_reach() -> None:
    body = f"""{TILE} setp.lt.u32 %p0, %r1, 32; @%p0 bra A;
    bar.sync 1, 64;
    A: bar.sync 2, 64;"""
    found = findings(body)
    assert {f.check for f in found} == {"sync"}
    assert {f.line for f in found} == {line_of(body, "bar.sync 1"), line_of(body, "A: bar.sync 2")}
    assert all("never complete" in f.message for f in found)
    assert any("32 wait at barrier 1" in f.message for f in found)


def test_barrier_with_a_count_that_is_never_reached() -> None:
    found = only(findings("bar.sync 1, 128;"), "sync", "never complete")
    assert found.count == 64


def test_barrier_with_a_count_that_is_no_multiple_of_the_warp() -> None:
    assert "multiple of 32" in findings("bar.sync 1, 40;")[0].message


def test_deadlock_is_found_without_any_check() -> None:
    result = launch(kernel("bar.sync 1, 128;", ["u64 p"]), [np.zeros(1)], 2, 64)
    assert not result.completed
    assert [f.check for f in result.findings] == ["sync"]


def test_aligned_barrier_in_divergent_code() -> None:
    body = f"""{TILE} setp.eq.u32 %p0, %r1, 3; @%p0 bra A;
    bar.sync 0; bra B;
    A: bar.sync 0;
    B:"""
    assert all("aligned" in f.message for f in findings(body))
    assert findings(body)
    assert not findings(body.replace("bar.sync", "barrier.sync"))


def test_aligned_barrier_after_some_threads_exited() -> None:
    body = "setp.ge.u32 %p0, %r1, 50; @%p0 exit; bar.sync 0;"
    found = only(findings(body), "sync", "exited")
    assert found.threads[0] == 50
    assert not findings("setp.ge.u32 %p0, %r1, 50; @%p0 exit; barrier.sync 0;")


def test_barrier_after_some_threads_of_the_cta_are_gone_waits_not() -> None:
    result = launch(kernel("setp.ge.u32 %p0, %r1, 32; @%p0 exit; bar.sync 0;", ["u64 p"]), [np.zeros(1)], 1, 64)
    assert result.completed


def test_barrier_that_does_not_exist() -> None:
    assert "does not exist" in findings("mov.u32 %r10, 17; barrier.sync %r10;")[0].message


def test_arriving_twice() -> None:
    found = findings("setp.lt.u32 %p0, %r1, 32; @%p0 bar.arrive 1, 96; @%p0 bar.arrive 1, 96;")
    assert [f.message for f in found] == ["arrives again before the barrier completed"]


def test_shuffle_that_waits_for_threads_that_never_come() -> None:
    body = """setp.lt.u32 %p0, %r1, 16; @%p0 bra A; bar.warp.sync 0xFFFFFFFF; bra B;
    A: shfl.sync.idx.b32 %r10, %r1, 0, 31, 0xFFFFFFFF; B:"""
    found = findings(body, block=32)
    assert {f.check for f in found} == {"sync"}
    assert all("lanes that never come" in f.message for f in found)
    assert len(found) == 2


def test_warp_barrier_whose_mask_names_waiting_threads() -> None:
    body = "setp.lt.u32 %p0, %r1, 16; @%p0 bar.warp.sync 0xFFFFFFFF; bar.sync 0;"
    found = findings(body, block=32)
    assert any("lanes that never come" in f.message and "16 wait at barrier 0" in f.message for f in found)


def test_mask_that_names_exited_threads() -> None:
    body = "setp.ge.u32 %p0, %r1, 16; @%p0 exit; shfl.sync.bfly.b32 %r10, %r1, 1, 31, 0xFFFFFFFF;"
    only(findings(body, block=32), "sync", "have exited")


def test_mask_without_the_executing_thread() -> None:
    only(findings("shfl.sync.bfly.b32 %r10, %r1, 1, 31, 0xFFFF;", block=32), "sync", "does not name the thread")


def test_shuffle_from_a_lane_that_takes_no_part() -> None:
    body = "setp.lt.u32 %p0, %r1, 16; @%p0 shfl.sync.idx.b32 %r10, %r1, 20, 31, 0xFFFF;"
    found = only(findings(body, block=32), "sync", "does not take part")
    assert found.count == 16


def test_endless_loop() -> None:
    result = launch(kernel("LOOP: bra LOOP;", ["u64 p"]), [np.zeros(1)], 1, 32, max_steps=1000)
    assert not result.completed
    assert only(result.findings, "limit", "step limit of 1000").line > 0


def test_trap() -> None:
    result = launch(kernel("setp.eq.u32 %p0, %r1, 5; @%p0 trap;", ["u64 p"]), [np.zeros(1)], 1, 32)
    assert not result.completed
    assert result.findings[0].threads == (5,)


def test_checks_that_are_off_find_nothing() -> None:
    for check, body in {
        "race": exchange("", 33),
        "init": f"{TILE} add.u32 %r20, %r21, 1; ld.shared.u32 %r20, [%r12];",
        "sync": "setp.ge.u32 %p0, %r1, 50; @%p0 exit; bar.sync 0;",
    }.items():
        assert {f.check for f in findings(body)} == {check}
        assert not findings(body, sanitize=ALL - {check})
