"""Loads, stores, address spaces, atomics and asynchronous copies."""

from __future__ import annotations

import numpy as np
import pytest
from ptx_lab import HEADER, REGISTERS, evaluate, f16, f32, kernel, launch, run, u32

from ptxc.device import device
from ptxc.errors import UnsupportedError, UsageError


def test_every_width_and_sign_extension() -> None:
    source = np.array([0x81, 0xFF, 0x7F, 0x80, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12], np.uint8)
    out = np.zeros(8, np.uint64)
    body = """
    setp.ne.u32 %p0, %r0, 0; @%p0 bra END;
    ld.global.s8 %r10, [%d0]; cvt.s64.s32 %d10, %r10; st.global.u64 [%d1], %d10;
    ld.global.u8 %r10, [%d0]; cvt.u64.u32 %d10, %r10; st.global.u64 [%d1+8], %d10;
    ld.global.s16 %d10, [%d0]; st.global.u64 [%d1+16], %d10;
    ld.global.u16 %h1, [%d0+2]; cvt.u64.u16 %d10, %h1; st.global.u64 [%d1+24], %d10;
    ld.global.s32 %d10, [%d0]; st.global.u64 [%d1+32], %d10;
    ld.global.b64 %d10, [%d0+8]; st.global.b64 [%d1+40], %d10;
    st.global.u8 [%d1+48], %r10;
    st.global.v2.u16 [%d1+56], {%h1, %h1};
    END:"""
    run(body, [source, out])
    word = int.from_bytes(source[:4].tobytes(), "little")
    assert out.tolist() == [
        2**64 - 127, 0x81, 2**64 - 127, 0x807F, word | 0xFFFFFFFF << 32,
        int.from_bytes(source[8:].tobytes(), "little"), 0x81, 0x807F807F,
    ]  # fmt: skip


def test_vectors_and_128_bits() -> None:
    source = np.arange(64, dtype=np.float32)
    out = np.zeros(64, np.float32)
    body = """
    setp.ge.u32 %p0, %r0, 4; @%p0 bra END;
    mul.wide.u32 %d10, %r0, 64; add.s64 %d11, %d10, %d0; add.s64 %d12, %d10, %d1;
    ld.global.v4.f32 {%f0, %f1, %f2, %f3}, [%d11];
    st.global.v4.f32 [%d12], {%f3, %f2, %f1, %f0};
    ld.global.v2.f64 {%e0, %e1}, [%d11+16];
    st.global.v2.f64 [%d12+16], {%e1, %e0};
    ld.global.b128 %q0, [%d11+32]; mov.b128 {%d13, %d14}, %q0; mov.b128 %q1, {%d14, %d13};
    st.global.b128 [%d12+32], %q1;
    ld.global.v2.b32 {_, %r10}, [%d11+48]; st.global.b32 [%d12+48], %r10;
    END:"""
    run(body, [source, out])
    rows = source.reshape(4, 16)
    want = np.concatenate(
        [rows[:, 3::-1], rows[:, [6, 7, 4, 5]], rows[:, [10, 11, 8, 9]], rows[:, 13:14], np.zeros((4, 3))], 1
    )
    assert np.array_equal(out.reshape(4, 16), want)


def test_eight_element_vectors() -> None:
    source, out = np.arange(32, dtype=np.float32), np.zeros(32, np.float32)
    names = ", ".join(f"%f{at}" for at in range(8))
    body = f"""
    setp.ge.u32 %p0, %r0, 4; @%p0 bra END;
    mul.wide.u32 %d10, %r0, 32; add.s64 %d11, %d10, %d0; add.s64 %d12, %d10, %d1;
    ld.global.v8.f32 {{{names}}}, [%d11]; st.global.v8.f32 [%d12], {{{names}}};
    END:"""
    run(body, [source, out])
    assert np.array_equal(source, out)


def test_moves_pack_and_unpack() -> None:
    got = evaluate(
        "mov.b64 %d10, {%a, %b}; mov.b64 {%r10, %r11}, %d10; sub.u32 %res, %r11, %r10;", "u4", u32(1), u32(5)
    )
    assert got.tolist() == [4]
    got = evaluate("mov.b32 {%h1, %h2}, %a; mov.b32 %res, {%h2, %h1};", "u4", u32(0x12345678))
    assert got.tolist() == [0x56781234]
    assert evaluate("mov.f32 %res, 0f40490FDB;", "f4").tolist() == [float(np.float32(np.pi))] * 32
    assert evaluate("mov.f32 %res, 1.5;", "f4").tolist() == [1.5] * 32
    assert evaluate("mov.f64 %res, 0d3FF8000000000000;", "f8").tolist() == [1.5] * 32
    assert evaluate("mov.b32 %res, -2;", "i4").tolist() == [-2] * 32


def test_addresses_of_32_bits_wrap_around() -> None:
    out = np.zeros(32, np.uint32)
    body = """
    .shared .u32 tile[32];
    shl.b32 %r10, %r1, 2; mov.u32 %r11, tile; add.u32 %r12, %r11, %r10; st.shared.u32 [%r12], %r1; bar.sync 0;
    sub.u32 %r13, %r11, %r10; ld.shared.u32 %r14, [%r13+124];
    cvt.u64.u32 %d10, %r10; add.u64 %d10, %d10, %d0; st.global.u32 [%d10], %r14;"""
    run(body, [out])
    assert out.tolist() == list(range(31, -1, -1))


def test_spaces_and_generic_addresses() -> None:
    out = np.zeros(64, np.uint32)
    declarations = ".const .align 4 .u32 table[4] = {10, 20, 30, 40};\n.global .u32 counter = 7;\n"
    body = """
    .shared .align 4 .b8 tile[256]; .local .align 8 .b8 depot[16];
    shl.b32 %r10, %r1, 2;
    mov.u32 %r11, tile; add.u32 %r12, %r11, %r10; st.shared.u32 [%r12], %r1;
    mov.u64 %d10, tile; cvta.shared.u64 %d11, %d10; cvt.u64.u32 %d12, %r10; add.u64 %d13, %d11, %d12;
    ld.u32 %r13, [%d13];
    mov.u64 %d14, depot; st.local.u32 [%d14+4], %r13; cvta.local.u64 %d15, %d14; ld.u32 %r14, [%d15+4];
    isspacep.shared %p1, %d13; isspacep.local %p2, %d15; isspacep.global %p3, %d0; and.pred %p1, %p1, %p2;
    and.pred %p1, %p1, %p3; isspacep.shared %p2, %d15; not.pred %p2, %p2; and.pred %p1, %p1, %p2;
    and.b32 %r15, %r1, 3; shl.b32 %r15, %r15, 2; cvt.u64.u32 %d16, %r15;
    mov.u64 %d17, table; add.u64 %d17, %d17, %d16; ld.const.u32 %r16, [%d17];
    add.u32 %r14, %r14, %r16; ld.global.u32 %r17, [counter]; add.u32 %r14, %r14, %r17;
    cvta.to.shared.u64 %d18, %d13; cvt.u32.u64 %r18, %d18; sub.u32 %r18, %r18, %r12; add.u32 %r14, %r14, %r18;
    selp.u32 %r14, %r14, 0, %p1;
    add.u64 %d19, %d0, %d12; st.u32 [%d19], %r14;"""
    run(body, [out], block=64, declarations=declarations)
    at = np.arange(64)
    assert np.array_equal(out, at + np.array([10, 20, 30, 40])[at & 3] + 7)


def test_threads_access_different_spaces_at_once() -> None:
    source, out = np.arange(32, dtype=np.uint32) * 3, np.zeros(32, np.uint32)
    body = """
    .shared .u32 tile[32];
    shl.b32 %r10, %r1, 2; cvt.u64.u32 %d10, %r10; mov.u64 %d11, tile; add.u64 %d11, %d11, %d10;
    cvta.shared.u64 %d12, %d11; st.u32 [%d12], %r1;
    add.u64 %d13, %d0, %d10; and.b32 %r11, %r1, 1; setp.eq.u32 %p0, %r11, 0; selp.b64 %d14, %d12, %d13, %p0;
    ld.u32 %r12, [%d14]; add.u64 %d15, %d1, %d10; st.global.u32 [%d15], %r12;"""
    run(body, [source, out])
    at = np.arange(32)
    assert np.array_equal(out, np.where(at % 2 == 0, at, 3 * at))


def test_dynamic_shared_memory() -> None:
    out = np.zeros(32, np.uint32)
    body = """
    .shared .align 16 .b8 fixed[64];
    shl.b32 %r10, %r1, 2; mov.u32 %r11, pool; add.u32 %r11, %r11, %r10; st.shared.u32 [%r11], %r1;
    bar.sync 0;
    sub.u32 %r12, 31, %r1; shl.b32 %r12, %r12, 2; mov.u32 %r13, pool; add.u32 %r12, %r12, %r13;
    ld.shared.u32 %r14, [%r12]; mul.wide.u32 %d10, %r1, 4; add.u64 %d10, %d10, %d0; st.global.u32 [%d10], %r14;"""
    run(body, [out], shared=128, declarations=".extern .shared .align 16 .b8 pool[];\n")
    assert np.array_equal(out, np.arange(31, -1, -1))


def test_parameters_by_value_and_pointer_tables() -> None:
    cpu = device("cpu")
    a, b, out = np.arange(4, dtype=np.float32), np.arange(4, dtype=np.float32) * 10, np.zeros(4, np.float32)
    text = f"""{HEADER}.visible .entry k(.param .u64 table, .param .u64 out, .param .align 8 .b8 pair[16],
        .param .f32 x, .param .u8 small, .param .s16 short) {{{REGISTERS}
    ld.param.u64 %d0, [table]; ld.param.u64 %d1, [out]; ld.param.u32 %r10, [pair+8]; ld.param.f32 %f10, [x];
    ld.param.u8 %r20, [small]; ld.param.s16 %r21, [short];
    mov.u32 %r1, %tid.x; mul.wide.u32 %d10, %r1, 4;
    ld.global.u64 %d2, [%d0]; ld.global.u64 %d3, [%d0+8]; add.u64 %d2, %d2, %d10; add.u64 %d3, %d3, %d10;
    ld.global.f32 %f1, [%d2]; ld.global.f32 %f2, [%d3]; add.f32 %f1, %f1, %f2; add.f32 %f1, %f1, %f10;
    add.u32 %r10, %r10, %r20; add.u32 %r10, %r10, %r21;
    cvt.rn.f32.u32 %f3, %r10; add.f32 %f1, %f1, %f3;
    add.u64 %d1, %d1, %d10; st.global.f32 [%d1], %f1; ret; }}"""
    table = np.array([cpu.address(a), cpu.address(b)], np.uint64)
    by_value = np.array([1, 2, 300, 4], np.uint32)
    result = cpu.load(text).launch("k", [1], [4], [table, out, by_value, 0.5, 200, -100])
    assert result.completed
    assert not result.findings
    assert out.tolist() == [11 * at + 0.5 + 400 for at in range(4)]


def test_arguments_that_do_not_fit() -> None:
    module = device("cpu").load(kernel("", ["u64 x", "u32 n"]))
    array = np.zeros(4, np.float32)
    with pytest.raises(UsageError, match="2 parameters"):
        module.launch("k", [1], [32], [array])
    with pytest.raises(UsageError, match="not contiguous"):
        module.launch("k", [1], [32], [np.zeros((4, 4))[:, 1], 1])
    with pytest.raises(UsageError, match="no argument"):
        module.launch("k", [1], [32], [array, "text"])  # type: ignore[list-item]
    with pytest.raises(UsageError, match="grid"):
        module.launch("k", [0], [32], [array, 1])
    with pytest.raises(UsageError, match="unknown check"):
        module.launch("k", [1], [32], [array, 1], sanitize=["everything"])
    with pytest.raises(UsageError, match="outside of the grid"):
        module.launch("k", [2], [32], [array, 1], ctas=[(2, 0, 0)])
    with pytest.raises(UsageError, match="more than"):
        module.launch("k", [2], [1025], [array, 1])
    fixed = device("cpu").load(f"{HEADER}.entry k() .reqntid 64, 1, 1 {{ ret; }}")
    with pytest.raises(UsageError, match="must be launched with"):
        fixed.launch("k", [1], [32], [])
    clustered = device("cpu").load(f"{HEADER}.entry k() .reqnctapercluster 2, 1, 1 {{ ret; }}")
    with pytest.raises(UnsupportedError, match="clusters"):
        clustered.launch("k", [2], [32], [])


# Atomics


def test_atomics_return_what_they_found() -> None:
    counter, out = np.zeros(1, np.uint32), np.zeros(256, np.uint32)
    body = """
    atom.global.add.u32 %r10, [%d0], 1;
    mul.wide.u32 %d10, %r0, 4; add.u64 %d10, %d10, %d1; st.global.u32 [%d10], %r10;"""
    run(body, [counter, out], grid=2, block=128)
    assert counter[0] == 256
    assert np.array_equal(np.sort(out), np.arange(256))


@pytest.mark.parametrize(
    ("operation", "start", "operand", "want"),
    [
        ("add.u32", 5, "%r1", 5 + 496),
        ("min.s32", 100, "%r1", 0),
        ("max.u32", 3, "%r1", 31),
        ("and.b32", 0xFFFF, "%r1", 0),
        ("or.b32", 64, "%r1", 95),
        ("xor.b32", 1, "%r1", 1),
        ("inc.u32", 0, "9", 2),
        ("dec.u32", 0, "9", 8),
    ],
)
def test_reductions(operation: str, start: int, operand: str, want: int) -> None:
    for opcode, result in (("red", ""), ("atom", "%r10, ")):
        for space, address in (("global", "[%d0]"), ("shared", "[cell]")):
            value = np.array([start], np.uint32)
            body = f"""
            .shared .u32 cell;
            setp.eq.u32 %p0, %r1, 0; ld.global.u32 %r12, [%d0]; @%p0 st.shared.u32 [cell], %r12; bar.sync 0;
            {opcode}.{space}.{operation} {result}{address}, {operand}; bar.sync 0;"""
            if space == "shared":
                body += "ld.shared.u32 %r11, [cell]; @%p0 st.global.u32 [%d0], %r11;"
            run(body, [value])
            assert value[0] == want, (opcode, space)


def test_compare_and_swap_lets_one_thread_win() -> None:
    lock, out = np.zeros(1, np.uint32), np.zeros(32, np.uint32)
    body = """
    add.u32 %r10, %r1, 1; atom.global.cas.b32 %r11, [%d0], 0, %r10; atom.global.exch.b32 %r12, [%d0], %r10;
    mul.wide.u32 %d10, %r0, 4; add.u64 %d10, %d10, %d1; st.global.u32 [%d10], %r11;"""
    run(body, [lock, out])
    assert (out == 0).sum() == 1
    assert lock[0] == 32


def test_float_atomics() -> None:
    cells = np.zeros(1, np.float32)
    run("atom.global.add.f32 %f1, [%d0], 0f3F800000;", [cells])
    assert cells[0] == 32
    tiny = f32(1)
    run("atom.global.add.f32 %f1, [%d0], 0f00000001;", [tiny])
    assert tiny[0] == 0, "the global unit flushes subnormals"
    body = """.shared .f32 cell; setp.eq.u32 %p0, %r1, 0; @%p0 st.shared.f32 [cell], 0f00000000; bar.sync 0;
    red.shared.add.f32 [cell], 0f00000001; bar.sync 0; ld.shared.f32 %f1, [cell]; @%p0 st.global.f32 [%d0], %f1;"""
    run(body, [tiny])
    assert tiny.view(np.uint32)[0] == 32, "the shared unit does not"
    doubles = np.array([0.5])
    run("red.global.add.f64 [%d0], 0d3FF0000000000000;", [doubles])
    assert doubles[0] == 32.5
    halves = f16(1, 2)
    run("mov.b32 %r10, 0x3C003C00; red.global.add.noftz.f16x2 [%d0], %r10;", [halves])
    assert halves.tolist() == [33, 34]


def test_vector_reduction() -> None:
    cells = np.zeros(4, np.float32)
    run("mov.f32 %f1, 1.0; mov.f32 %f2, 2.0; red.global.add.v4.f32 [%d0], {%f1, %f2, %f1, %f2};", [cells])
    assert cells.tolist() == [32, 64, 32, 64]


# Asynchronous copies

COPY = """
    .shared .align 16 .b8 tile[1024];
    mov.u32 %r10, tile; shl.b32 %r11, %r1, 4; add.u32 %r12, %r10, %r11; cvt.u64.u32 %d10, %r11;
    add.u64 %d11, %d0, %d10; add.u64 %d12, %d1, %d10;
"""


def test_copies_arrive_when_waited_for() -> None:
    source, out = np.arange(128, dtype=np.float32), np.zeros(128, np.float32)
    body = f"""{COPY}
    mov.f32 %f0, 0fBF800000; st.shared.v4.f32 [%r12], {{%f0, %f0, %f0, %f0}};
    cp.async.cg.shared.global [%r12], [%d11], 16; cp.async.commit_group;
    ld.shared.v4.f32 {{%f1, %f2, %f3, %f4}}, [%r12]; st.global.v4.f32 [%d12], {{%f1, %f2, %f3, %f4}};
    cp.async.wait_group 0; WAITED
    """
    run(body.replace("WAITED", ""), [source, out])
    assert (out == -1).all(), "nothing arrived before the wait"
    store = "ld.shared.v4.f32 {%f1, %f2, %f3, %f4}, [%r12]; st.global.v4.f32 [%d12], {%f1, %f2, %f3, %f4};"
    run(body.replace("WAITED", store), [source, out])
    assert np.array_equal(out, source)


def test_waiting_for_all_but_the_youngest_group() -> None:
    source, out = np.arange(256, dtype=np.float32), np.zeros(256, np.float32)
    body = f"""{COPY}
    mov.f32 %f0, 0fBF800000; st.shared.v4.f32 [%r12], {{%f0, %f0, %f0, %f0}};
    st.shared.v4.f32 [%r12+512], {{%f0, %f0, %f0, %f0}};
    cp.async.ca.shared.global [%r12], [%d11], 16; cp.async.commit_group;
    cp.async.ca.shared.global [%r12+512], [%d11+512], 16; cp.async.commit_group;
    cp.async.wait_group 1;
    ld.shared.v4.f32 {{%f1, %f2, %f3, %f4}}, [%r12]; st.global.v4.f32 [%d12], {{%f1, %f2, %f3, %f4}};
    ld.shared.v4.f32 {{%f1, %f2, %f3, %f4}}, [%r12+512]; st.global.v4.f32 [%d12+512], {{%f1, %f2, %f3, %f4}};
    """
    run(body, [source, out])
    assert np.array_equal(out[:128], source[:128])
    assert (out[128:] == -1).all()
    run(body.replace("wait_group 1", "wait_all"), [source, out])
    assert np.array_equal(out, source)


@pytest.mark.parametrize("width", [4, 8, 16])
def test_short_copies_are_filled_with_zeros(width: int) -> None:
    source, out = np.arange(1, 513, dtype=np.uint8), np.zeros(512, np.uint8)
    hint = "cg" if width == 16 else "ca"
    body = f"""{COPY}
    mov.b32 %r20, -1; st.shared.v4.b32 [%r12], {{%r20, %r20, %r20, %r20}};
    rem.u32 %r21, %r1, {width}; cp.async.{hint}.shared.global [%r12], [%d11], {width}, %r21; cp.async.wait_all;
    ld.shared.v4.b32 {{%r22, %r23, %r24, %r25}}, [%r12]; st.global.v4.b32 [%d12], {{%r22, %r23, %r24, %r25}};"""
    run(body, [source, out])
    for lane, (given, got) in enumerate(zip(source.reshape(32, 16), out.reshape(32, 16), strict=True)):
        valid = lane % width
        assert got.tolist() == [*given[:valid].tolist(), *[0] * (width - valid), *[255] * (16 - width)]


def test_ignored_sources_are_not_read() -> None:
    source, out = np.arange(64, dtype=np.float32), np.zeros(128, np.float32)
    body = f"""{COPY}
    setp.ge.u32 %p1, %r1, 16;
    cp.async.cg.shared.global [%r12], [%d11], 16, %p1; cp.async.wait_all;
    ld.shared.v4.f32 {{%f1, %f2, %f3, %f4}}, [%r12]; st.global.v4.f32 [%d12], {{%f1, %f2, %f3, %f4}};"""
    run(body, [source, out], sanitize={"memory"})
    assert np.array_equal(out, np.concatenate([source, np.zeros(64)]))


def test_sampled_ctas_write_only_their_part() -> None:
    out = np.zeros(8 * 32, np.uint32)
    body = "mul.wide.u32 %d10, %r0, 4; add.u64 %d10, %d10, %d0; st.global.u32 [%d10], 1;"
    result = launch(kernel(body, ["u64 x"]), [out], 8, 32, ctas=[(1, 0, 0), (6, 0, 0)])
    assert result.statistics.ctas == 2
    assert np.flatnonzero(out.reshape(8, 32).sum(1)).tolist() == [1, 6]


def test_many_ctas_run_in_bounded_batches() -> None:
    out = np.zeros(1000 * 64, np.uint32)
    seen: list[tuple[int, int]] = []
    body = "mul.wide.u32 %d10, %r0, 4; add.u64 %d10, %d10, %d0; st.global.u32 [%d10], %r2;"
    result = launch(kernel(body, ["u64 x"]), [out], 1000, 64, progress=lambda done, total: seen.append((done, total)))
    assert result.statistics.batches > 1
    assert seen[-1] == (1000, 1000)
    assert len(seen) == result.statistics.batches
    assert np.array_equal(out, np.repeat(np.arange(1000), 64))
