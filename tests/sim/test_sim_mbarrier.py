"""mbarriers: phases, counts, tokens, waits, and what goes wrong with them."""

from __future__ import annotations

import numpy as np
import pytest
from matrix_lab import clean, found, line_of

from ptxc.errors import InputError, UnsupportedError

SETUP = """
    .shared .align 8 .b64 bar; .shared .align 16 .b32 cell[64]; .reg .pred %pw;
    mov.u32 %r40, bar; mov.u32 %r41, cell;
    setp.eq.u32 %p0, %r1, 0; shl.b32 %r42, %r1, 2; mul.wide.u32 %d20, %r1, 4; add.u64 %d20, %d20, %d0;
"""
ZERO = [np.zeros(64, np.uint32)]


def wait(parity: str, label: str = "wait") -> str:
    """The loop that nvcc and Emmy make of a wait."""
    text = f"{{.reg .pred P; {label}: mbarrier.try_wait.parity.shared::cta.b64 P, [%r40], {parity}; @!P bra {label};}}"
    return text + "\n"


def init(count: int) -> str:
    """Thread 0 initialises, all see it."""
    return f"{SETUP} @%p0 mbarrier.init.shared::cta.b64 [%r40], {count}; bar.sync 0;\n"


def test_arrivals_order_memory() -> None:
    out = np.zeros(64, np.uint32)
    body = f"""{init(64)}
    add.u32 %r43, %r41, %r42; st.shared.u32 [%r43], %r1;
    mbarrier.arrive.shared::cta.b64 _, [%r40]; {wait("0")}
    xor.b32 %r44, %r42, 252; add.u32 %r44, %r44, %r41; ld.shared.u32 %r45, [%r44]; st.global.u32 [%d20], %r45;"""
    clean([out], body, block=64)
    assert out.tolist() == list(range(63, -1, -1))


def test_without_the_wait_it_is_a_race() -> None:
    body = f"""{init(64)}
    add.u32 %r43, %r41, %r42; st.shared.u32 [%r43], %r1;
    mbarrier.arrive.shared::cta.b64 _, [%r40];
    xor.b32 %r44, %r42, 252; add.u32 %r44, %r44, %r41; ld.shared.u32 %r45, [%r44]; st.global.u32 [%d20], %r45;"""
    (finding,) = found(ZERO, body, block=64).findings
    assert finding.check == "race"
    assert "races with a write" in finding.message


def test_many_phases_and_both_parities() -> None:
    """Warp 0 fills a slot that warp 1 empties, with a barrier each way."""
    out = np.zeros(8, np.uint32)
    body = """
    .shared .align 8 .b64 bars[2]; .shared .align 16 .b32 cell[64];
    mov.u32 %r40, bars; mov.u32 %r41, cell; setp.eq.u32 %p0, %r1, 0; mov.u32 %r10, 0;
    @%p0 mbarrier.init.shared.b64 [%r40], 32; @%p0 mbarrier.init.shared.b64 [%r40+8], 32;
    fence.mbarrier_init.release.cluster; bar.sync 0;
    and.b32 %r20, %r1, 31; shl.b32 %r20, %r20, 2; xor.b32 %r22, %r20, 124;
    add.u32 %r20, %r20, %r41; add.u32 %r22, %r22, %r41;
    setp.ge.u32 %p1, %r1, 32; @%p1 bra CONSUMER;
    PRODUCER: and.b32 %r11, %r10, 1; xor.b32 %r12, %r11, 1;
    empty: mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 %p2, [%r40+8], %r12, 1000; @!%p2 bra empty;
    add.u32 %r21, %r10, %r1; st.shared.u32 [%r20], %r21;
    mbarrier.arrive.release.cta.shared::cta.b64 %d10, [%r40];
    add.u32 %r10, %r10, 1; setp.lt.u32 %p3, %r10, 8; @%p3 bra PRODUCER; bra END;
    CONSUMER: and.b32 %r11, %r10, 1;
    full: mbarrier.test_wait.parity.shared.b64 %p2, [%r40], %r11; @!%p2 bra full;
    ld.shared.u32 %r23, [%r22];
    mbarrier.arrive.shared.b64 %d10, [%r40+8];
    setp.ne.u32 %p4, %r1, 63; @%p4 bra NEXT;
    mul.wide.u32 %d20, %r10, 4; add.u64 %d20, %d20, %d0; st.global.u32 [%d20], %r23;
    NEXT: add.u32 %r10, %r10, 1; setp.lt.u32 %p3, %r10, 8; @%p3 bra CONSUMER;
    END:"""
    clean([out], body, block=64)
    assert out.tolist() == list(range(8))
    arrive = "mbarrier.arrive.shared.b64 %d10, [%r40+8];"
    early = body.replace(arrive, "").replace("ld.shared.u32 %r23", f"{arrive} ld.shared.u32 %r23")
    assert early != body
    assert any(f.check == "race" for f in found([out], early, block=64).findings)


def test_state_tokens() -> None:
    out = np.zeros(32, np.uint32)
    body = f"""{init(33)}
    mbarrier.arrive.shared.b64 %d10, [%r40]; mbarrier.test_wait.shared.b64 %p1, [%r40], %d10;
    mbarrier.pending_count.b64 %r20, %d10;
    @%p0 mbarrier.arrive.shared.b64 %d11, [%r40], 1;
    again: mbarrier.try_wait.shared.b64 %p2, [%r40], %d10; @!%p2 bra again;
    selp.u32 %r21, 100, 0, %p1; add.u32 %r20, %r20, %r21; st.global.u32 [%d20], %r20;"""
    clean([out], body)
    assert out.tolist() == [33] * 32


def test_dropping_out() -> None:
    body = f"""{init(32)}
    setp.ge.u32 %p1, %r1, 16; @%p1 mbarrier.arrive_drop.shared.b64 %d10, [%r40]; @%p1 bra END;
    mbarrier.arrive.shared.b64 %d10, [%r40]; {wait("0")}
    mbarrier.arrive.shared.b64 %d10, [%r40]; {wait("1", "second")} END:"""
    clean(ZERO, body)


@pytest.mark.parametrize(
    ("arrivals", "parity", "missing"),
    [("", "0", "phase 0 of the mbarrier at shared 0x0 lacks 1 arrivals and 0 bytes"),
     ("@%p0 mbarrier.arrive.shared.b64 _, [%r40];", "1", "phase 1 of the mbarrier at shared 0x0 lacks 1 arrivals"),
     ("@%p0 mbarrier.arrive.expect_tx.shared.b64 _, [%r40], 64;", "0", "lacks 0 arrivals and 64 bytes")],
)  # fmt: skip
def test_a_wait_that_hangs(arrivals: str, parity: str, missing: str) -> None:
    body = f"{init(1)}{arrivals}\n{wait(parity)}"
    result = found(ZERO, body)
    assert not result.completed
    (finding,) = result.findings
    assert finding.check == "sync"
    assert finding.instruction.startswith("mbarrier.try_wait")
    assert finding.line == line_of(body, "try_wait")
    assert missing in finding.message
    assert result.statistics.issued < 10_000


def test_a_wait_that_gives_up() -> None:
    out = np.zeros(1, np.uint32)
    body = f"""{init(1)}
    mov.u32 %r10, 0;
    again: mbarrier.try_wait.parity.shared.b64 %p1, [%r40], 0; add.u32 %r10, %r10, 1;
    setp.lt.u32 %p2, %r10, 10; @%p2 bra again; @%p0 st.global.u32 [%d0], %r10;"""
    clean([out], body)
    assert out[0] == 10


def test_misuse() -> None:
    def messages(body: str) -> list[str]:
        return [finding.message for finding in found(ZERO, body).findings]

    assert "no mbarrier was initialised" in messages(f"{SETUP} mbarrier.arrive.shared.b64 _, [%r40];")[0]
    assert "initialised again" in messages(f"{init(1)} @%p0 mbarrier.init.shared.b64 [%r40], 1;")[0]
    assert not messages(f"{init(1)} @%p0 mbarrier.inval.shared.b64 [%r40]; @%p0 mbarrier.init.shared.b64 [%r40], 1;")
    assert "not between 1" in messages(f"{SETUP} @%p0 mbarrier.init.shared.b64 [%r40], 0;")[0]
    assert "misaligned" in messages(f"{SETUP} @%p0 mbarrier.init.shared.b64 [%r41+4], 1;")[0]
    unordered = f"{init(32)} mbarrier.arrive.shared.b64 _, [%r40];".replace("bar.sync 0;", "")
    assert "no barrier behind its initialisation" in messages(unordered)[0]
    unordered = f"{init(1)} @%p0 mbarrier.arrive.shared.b64 _, [%r40]; {wait('0')}".replace("bar.sync 0;", "")
    assert "no barrier behind its initialisation" in messages(unordered)[0]
    more = "@%p0 mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%r40], 16; mbarrier.arrive.shared.b64 _, [%r40];"
    assert "more arrivals" in messages(f"{init(1)} {more}")[0]


def test_copies_arrive_at_mbarriers() -> None:
    source, out = np.arange(32, dtype=np.uint32) * 7, np.zeros(32, np.uint32)
    body = f"""{init(32)}
    add.u32 %r43, %r41, %r42; mul.wide.u32 %d21, %r1, 4; add.u64 %d22, %d21, %d1;
    cp.async.ca.shared.global [%r43], [%d22], 4; cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%r40];
    {wait("0")} xor.b32 %r44, %r42, 124; add.u32 %r44, %r44, %r41; ld.shared.u32 %r45, [%r44];
    st.global.u32 [%d20], %r45;"""
    clean([out, source], body)
    assert np.array_equal(out, source[::-1])
    counting = body.replace(".noinc", "").replace(wait("0"), f"mbarrier.arrive.shared.b64 _, [%r40]; {wait('0')}")
    out[:] = 0
    clean([out, source], counting)
    assert np.array_equal(out, source[::-1])
    findings = found([out, source], body.replace(wait("0"), "")).findings
    assert "touches what a cp.async writes" in findings[0].message


def test_clusters_of_one() -> None:
    out = np.zeros(32, np.uint32)
    body = f"""{init(32)}
    mapa.shared::cluster.u32 %r45, %r40, 0; mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r45];
    {wait("0")} mov.u32 %r46, %cluster_ctarank; st.global.u32 [%d20], %r46;"""
    clean([out], body)


def test_cluster_barriers() -> None:
    out = np.zeros(64, np.uint32)
    body = f"""{SETUP} add.u32 %r43, %r41, %r42; st.shared.u32 [%r43], %r1;
    barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;
    xor.b32 %r44, %r42, 252; add.u32 %r44, %r44, %r41; ld.shared.u32 %r45, [%r44]; st.global.u32 [%d20], %r45;"""
    clean([out], body, block=64)
    assert out.tolist() == list(range(63, -1, -1))
    (finding,) = found([out], body.replace("barrier.cluster.wait.acquire.aligned;", ""), block=64).findings
    assert finding.check == "race"


def test_other_forms_are_named() -> None:
    with pytest.raises(UnsupportedError, match="noComplete"):
        found(ZERO, f"{SETUP} mbarrier.arrive.noComplete.shared.b64 %d10, [%r40], 1;")
    with pytest.raises(InputError, match="one CTA"):
        found(ZERO, f"{SETUP} mapa.shared::cluster.u32 %r45, %r40, 1;")
