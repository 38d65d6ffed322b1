"""``wgmma``: every N, every layout in shared memory, and what goes wrong when it is not waited for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from matrix_lab import Array, clean, found, line_of, words
from test_sim_bulk import swizzle_table
from test_sim_mma import a_8bit_k32, a_16bit_k16, a_tf32_k8, random_bits

from ptxc.errors import InputError

RNG = np.random.default_rng(5)
MODES = {"NONE": 0, "128B": 1, "64B": 2, "32B": 3}
SIZE = 49152
A_AT, B_AT = 0, 16384
PITCH = {"128B": 128, "64B": 64, "32B": 32}


def descriptor(start: int, leading: int, stride: int, mode: str, base: int = 0) -> int:
    return start >> 4 | leading >> 4 << 16 | stride >> 4 << 32 | base << 49 | MODES[mode] << 62


def place(image: Array, start: int, data: bytes, mode: str) -> None:
    """Store lines of data as the tables of PTX ISA 5.5.7 swizzle them; ``start`` begins a pattern."""
    units = np.frombuffer(data, np.uint8).reshape(-1, 8, 16)
    table = swizzle_table(mode)
    for at, line in enumerate(units):
        image[start + at * 128 : start + at * 128 + 128] = line[table[at % len(table)]].reshape(-1)


def k_major(image: Array, start: int, matrix: Array, mode: str) -> int:
    """Store ``[rows, k]`` with K contiguous; the descriptor."""
    rows, k = matrix.shape
    if mode == "NONE":
        # 8 rows of 16 bytes are contiguous; then the next 8 rows, then what comes next along K (figure 163).
        per_unit = 16 // matrix.itemsize
        cores = matrix.reshape(rows // 8, 8, k // per_unit, per_unit).transpose(2, 0, 1, 3)
        data = np.ascontiguousarray(cores).view(np.uint8).reshape(-1)
        image[start : start + data.size] = data
        return descriptor(start, rows * 16, 128, mode)
    row = np.zeros((rows, PITCH[mode]), np.uint8)
    row[:, : k * matrix.itemsize] = np.ascontiguousarray(matrix).view(np.uint8)
    place(image, start, row.tobytes(), mode)
    return descriptor(start, 16, 8 * PITCH[mode], mode)


def mn_major(image: Array, start: int, matrix: Array, mode: str) -> int:
    """Store ``[rows, k]`` with the rows contiguous; the descriptor."""
    rows, k = matrix.shape
    if mode == "NONE":
        # 8 elements of a column, for 8 columns; then the next 8 rows, then the next 8 columns (figure 162).
        cores = matrix.reshape(rows // 8, 8, k // 8, 8).transpose(2, 0, 3, 1)
        data = np.ascontiguousarray(cores).view(np.uint8).reshape(-1)
        image[start : start + data.size] = data
        return descriptor(start, rows * 16, 128, mode)
    width = PITCH[mode] // 2
    padded = np.zeros((-(-rows // width) * width, k), matrix.dtype)
    padded[:rows] = matrix
    blocks = padded.reshape(-1, width, k).transpose(0, 2, 1)
    place(image, start, blocks.tobytes(), mode)
    return descriptor(start, PITCH[mode] * k, 8 * PITCH[mode], mode)


FILL = f"""
    .shared .align 1024 .b8 tile[{SIZE}]; mov.u32 %r40, tile; shl.b32 %r41, %r1, 4;
    FILL: setp.ge.u32 %p1, %r41, {SIZE}; @%p1 bra FILLED;
    cvt.u64.u32 %d20, %r41; add.u64 %d20, %d20, %d1; ld.global.v4.b32 {{%r42, %r43, %r44, %r45}}, [%d20];
    add.u32 %r46, %r41, %r40; st.shared.v4.b32 [%r46], {{%r42, %r43, %r44, %r45}};
    shl.b32 %r47, %r3, 4; add.u32 %r41, %r41, %r47; bra FILL;
    FILLED: fence.proxy.async.shared::cta; bar.sync 0;
    ld.global.u64 %d10, [%d2]; ld.global.u64 %d11, [%d2+8]; setp.eq.u32 %p2, %r1, 999; setp.ne.u32 %p3, %r1, 999;
"""
WAIT = "wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;\n"


def vector(count: int) -> str:
    return "{" + ", ".join(f"%acc{at}" for at in range(count)) + "}"


def dump(count: int) -> str:
    stores = "".join(f"st.global.b32 [%d22+{4 * at}], %acc{at};\n" for at in range(count))
    return f"mul.wide.u32 %d21, %r1, {4 * count}; add.u64 %d22, %d0, %d21;\n{stores}"


def product_of(
    instruction: str, image: Array, descriptors: list[int], count: int, setup: str = "", extra: tuple[Array, ...] = ()
) -> Array:
    """What 128 threads hold in ``count`` registers after ``instruction``, where ``{D}`` stands for them."""
    out = np.zeros((128, count), np.uint32)
    body = f"""{FILL} .reg .b32 %acc<{count}>; {setup}
    wgmma.fence.sync.aligned; {instruction.replace("{D}", vector(count))} {WAIT} {dump(count)}"""
    clean([out, image, np.array(descriptors, np.uint64), *extra], body, block=128)
    return out


def collect_d(out: Array, n: int, dtype: str) -> Array:
    """D from figure 154: warp w has rows 16w to 16w + 15."""
    lanes = out.view(dtype)
    matrix = np.zeros((64, n), lanes.dtype)
    for thread in range(128):
        warp, lane = divmod(thread, 32)
        for i in range(n // 2):
            row = warp * 16 + lane // 4 + (8 if i % 4 >= 2 else 0)
            matrix[row, i // 4 * 8 + lane % 4 * 2 + i % 2] = lanes[thread, i]
    return matrix


@pytest.mark.parametrize("n", range(8, 264, 8))
def test_every_n(n: int) -> None:
    a, b = RNG.standard_normal((64, 16)).astype(np.float16), RNG.standard_normal((n, 16)).astype(np.float16)
    image = np.zeros(SIZE, np.uint8)
    given = [k_major(image, A_AT, a, "32B"), k_major(image, B_AT, b, "32B")]
    text = f"wgmma.mma_async.sync.aligned.m64n{n}k16.f32.f16.f16 {{D}}, %d10, %d11, %p2, 1, 1, 0, 0;"
    got = collect_d(product_of(text, image, given, n // 2), n, "f4")
    assert np.array_equal(got, (a.astype(np.float64) @ b.T.astype(np.float64)).astype(np.float32))


@pytest.mark.parametrize("mode_a", MODES)
@pytest.mark.parametrize("mode_b", MODES)
@pytest.mark.parametrize("majors", [(0, 0), (0, 1), (1, 0), (1, 1)])
def test_layouts_in_shared_memory(mode_a: str, mode_b: str, majors: tuple[int, int]) -> None:
    a, b = RNG.standard_normal((64, 16)).astype(np.float16), RNG.standard_normal((128, 16)).astype(np.float16)
    image = np.zeros(SIZE, np.uint8)
    given = [
        (mn_major if majors[0] else k_major)(image, A_AT, a, mode_a),
        (mn_major if majors[1] else k_major)(image, B_AT, b, mode_b),
    ]
    text = (
        f"wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {{D}}, %d10, %d11, %p2, 1, -1, {majors[0]}, {majors[1]};"
    )
    got = collect_d(product_of(text, image, given, 64), 128, "f4")
    assert np.array_equal(got, -(a.astype(np.float64) @ b.T.astype(np.float64)).astype(np.float32))


def test_steps_along_k_in_a_swizzled_tile_and_a_base_offset() -> None:
    """A tile of 64 elements along K: the start address moves by 32 bytes a step, into the swizzle's pattern."""
    a, b = RNG.standard_normal((64, 64)).astype(np.float16), RNG.standard_normal((64, 64)).astype(np.float16)
    image = np.zeros(SIZE, np.uint8)
    given = [k_major(image, A_AT, a, "128B"), k_major(image, B_AT + 1024, b, "128B")]
    steps = "".join(
        f"wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {{D}}, %d10, %d11, {'%p3' if step else '%p2'}, 1, 1, 0, 0;"
        "add.u64 %d10, %d10, 2; add.u64 %d11, %d11, 2;\n"
        for step in range(4)
    )
    got = collect_d(product_of(steps, image, given, 32), 64, "f4")
    total = np.zeros((64, 64), np.float32)
    for k in range(0, 64, 16):
        total = (a[:, k : k + 16].astype(np.float64) @ b[:, k : k + 16].T.astype(np.float64) + total).astype(np.float32)
    assert np.array_equal(got, total)
    moved = np.zeros(SIZE, np.uint8)
    # The pattern starts at 256 instead of at a multiple of 1024: base offset 2.
    k_major(moved, A_AT + 256, a, "128B")
    k_major(moved, B_AT, b, "128B")
    given = [descriptor(256, 16, 1024, "128B", 2), descriptor(B_AT, 16, 1024, "128B")]
    assert np.array_equal(collect_d(product_of(steps, moved, given, 32), 64, "f4"), total)


@pytest.mark.parametrize("types", ["f32.bf16.bf16", "f16.f16.f16", "f32.tf32.tf32", "f32.e4m3.e5m2", "f16.e5m2.e4m3", "s32.u8.s8"])  # fmt: skip # noqa: E501
@pytest.mark.parametrize("in_registers", [False, True])
def test_types_and_registers(types: str, in_registers: bool) -> None:
    d, kind_a, kind_b = types.split(".")
    k = {"bf16": 16, "f16": 16, "tf32": 8}.get(kind_a, 32)
    (bits_a, a), (bits_b, b) = random_bits(kind_a, (64, k)), random_bits(kind_b, (64, k))
    added = (RNG.standard_normal((64, 64)) * 10).astype({"f32": "f4", "f16": "f2", "s32": "i4"}[d])
    image = np.zeros(SIZE, np.uint8)
    given = [k_major(image, A_AT, bits_a, "NONE"), k_major(image, B_AT, bits_b, "NONE")]
    place_a = {16: a_16bit_k16, 8: a_tf32_k8, 32: a_8bit_k32}[k]
    held = np.zeros((128, 16 * k // 32), bits_a.dtype)
    start = np.zeros((128, 32), added.dtype)
    for thread in range(128):
        warp, lane = divmod(thread, 32)
        for i in range(held.shape[1]):
            row, column = place_a(lane, i)
            held[thread, i] = bits_a[16 * warp + row, column]
        for i in range(32):
            row = 16 * warp + lane // 4 + (8 if i % 4 >= 2 else 0)
            start[thread, i] = added[row, i // 4 * 8 + lane % 4 * 2 + i % 2]
    count = words(start).shape[1]
    loads = "mul.wide.u32 %d23, %r1, 16; add.u64 %d23, %d23, %d3; ld.global.v4.b32 {%r50, %r51, %r52, %r53}, [%d23];"
    loads += f"mul.wide.u32 %d24, %r1, {4 * count}; add.u64 %d24, %d24, %d4;"
    loads += "".join(f"ld.global.b32 %acc{at}, [%d24+{4 * at}];" for at in range(count))
    operand = "{%r50, %r51, %r52, %r53}" if in_registers else "%d10"
    options = {"s": "", "f": ", -1, 1"}[d[0]]
    if kind_a in {"bf16", "f16"}:
        options += ", 0" if in_registers else ", 0, 0"
    text = f"wgmma.mma_async.sync.aligned.m64n64k{k}.{types} {{D}}, {operand}, %d11, %p3{options};"
    out = product_of(text, image, given, count, loads, (words(held), words(start)))
    want = (a @ b.T) * (-1 if options else 1) + added
    assert np.array_equal(collect_d(out, 64, added.dtype.str), want.astype(added.dtype))


ONE = "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%acc0, %acc1, %acc2, %acc3}, %d10, %d11, %p2, 1, 1, 0, 0;"
TWO = ONE.replace("%acc0, %acc1, %acc2, %acc3", "%acc4, %acc5, %acc6, %acc7")


def faults(code: str, **options: Any) -> tuple[str, Any]:
    image = np.zeros(SIZE, np.uint8)
    a = np.ones((64, 16), np.float16)
    given = [k_major(image, A_AT, a, "32B"), k_major(image, B_AT, a[:8], "32B")]
    fence = "" if "wgmma.fence" in code else "wgmma.fence.sync.aligned;"
    body = f"{FILL} .reg .f32 %acc<8>; {fence}\n{code}"
    block = options.pop("block", 128)
    return body, found([np.zeros(128, np.float32), image, np.array(given, np.uint64)], body, block=block)


USE = "mul.wide.u32 %d22, %r1, 4; add.u64 %d22, %d22, %d0;\nst.global.f32 [%d22], %acc0;"


def test_registers_before_the_wait() -> None:
    body, result = faults(f"{ONE} wgmma.commit_group.sync.aligned;\n{USE}")
    finding = result.findings[0]
    assert finding.check == "race"
    assert len(set(finding.threads)) == len(finding.threads) <= finding.count
    assert "reads %acc0, which the wgmma in line" in finding.message
    assert finding.line == line_of(body, "st.global.f32 [%d22], %acc0", 3)
    body, result = faults(f"{ONE} wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 1;\n{USE}")
    assert "reads %acc0" in result.findings[0].message
    _, result = faults(f"{ONE} {WAIT}\n{USE}")
    assert not result.findings
    _, result = faults(f"{ONE}\nmov.f32 %acc1, 0f00000000;\n{WAIT}")
    assert "writes %acc1" in result.findings[0].message
    registers = ONE.replace("%d10,", "{%r50, %r51, %r52, %r53},").replace(", 0, 0;", ", 0;")
    start = "mov.b32 %r50, 0; mov.b32 %r51, 0; mov.b32 %r52, 0; mov.b32 %r53, 0;"
    _, result = faults(f"{start} wgmma.fence.sync.aligned; {registers}\nmov.b32 %r51, %r50;\n{WAIT}")
    (finding,) = result.findings
    assert "writes %r51" in finding.message


def test_some_groups_may_be_left() -> None:
    commit = "wgmma.commit_group.sync.aligned;"
    code = f"{ONE}{commit}{TWO}{commit} wgmma.wait_group.sync.aligned 1;\n{USE}"
    assert not faults(code)[1].findings
    other = USE.replace("%acc0", "%acc4")
    assert "reads %acc4" in faults(f"{code}\n{other}")[1].findings[0].message
    assert not faults(f"{code} wgmma.wait_group.sync.aligned 0;\n{other}")[1].findings


def test_shared_memory_before_the_wait() -> None:
    write = "setp.eq.u32 %p4, %r1, 0;\n@%p4 st.shared.u32 [%r40+64], %r1;"
    body, result = faults(f"{ONE} bar.sync 0; {write}\n{WAIT}")
    (finding,) = result.findings
    assert finding.check == "race"
    assert len(set(finding.threads)) == len(finding.threads) <= finding.count
    assert "overwrites what a wgmma reads that was not waited for" in finding.message
    assert finding.line == line_of(body, "@%p4 st.shared.u32", 3)
    assert not faults(f"{ONE} {WAIT} bar.sync 0; {write}")[1].findings
    unordered = f"{ONE} {WAIT} {write}".replace("setp.eq.u32 %p4, %r1, 0", "setp.eq.u32 %p4, %r1, 64")
    assert "overwrites what another thread reads" in faults(unordered)[1].findings[0].message


def test_what_is_missing_before_it() -> None:
    _, result = faults(f"{ONE} {WAIT}")
    assert not result.findings
    image = np.zeros(SIZE, np.uint8)
    args = [np.zeros(128, np.float32), image, np.array([descriptor(0, 16, 256, "32B")] * 2, np.uint64)]
    result = found(args, f"{FILL} .reg .f32 %acc<8>; {ONE} {WAIT}", block=128)
    assert "no wgmma.fence" in result.findings[0].message
    no_barrier = FILL.replace("bar.sync 0;", "")
    result = found(args, f"{no_barrier} .reg .f32 %acc<8>; wgmma.fence.sync.aligned; {ONE} {WAIT}", block=128)
    assert any(finding.check == "race" for finding in result.findings)
    unwritten = FILL.replace("st.shared.v4.b32 [%r46]", "@%p1 st.shared.v4.b32 [%r46]")
    result = found(args, f"{unwritten} .reg .f32 %acc<8>; wgmma.fence.sync.aligned; {ONE} {WAIT}", block=128)
    (finding,) = [finding for finding in result.findings if finding.check == "init"]
    assert (finding.threads, finding.count) == ((0,), 1)
    args[2] = np.array([descriptor(SIZE - 256, 16, 256, "32B")] * 2, np.uint64)
    result = found(args, f"{FILL} .reg .f32 %acc<8>; wgmma.fence.sync.aligned; {ONE} {WAIT}", block=128)
    assert any("reaches outside" in finding.message for finding in result.findings)


FENCE = "wgmma.fence.sync.aligned;"


@pytest.mark.parametrize("access", ["add.f32 %acc1, %acc2, %acc2;", "add.f32 %acc7, %acc1, %acc1;"])
def test_registers_need_a_fence_before_each_product(access: str) -> None:
    """PTX ISA 9.7.17.7.1: between another access to a product's registers, be it a read, and the product."""
    first = f"{FENCE} {ONE} {WAIT}"
    _, result = faults(f"{first} {access} {ONE} {WAIT}")
    (finding,) = result.findings
    assert finding.check == "sync"
    assert "no wgmma.fence orders the registers" in finding.message
    assert not faults(f"{first} {access} {FENCE} {ONE} {WAIT}")[1].findings
    _, result = faults(f"{first} {FENCE} {access} {ONE} {WAIT}")
    assert len(result.findings) == 1


def test_products_that_follow_one_another_need_no_fence() -> None:
    assert not faults(f"{FENCE} {ONE} {ONE} {WAIT} {ONE} {WAIT}")[1].findings
    assert not faults(f"{FENCE} {ONE} {TWO} {WAIT} {ONE} {WAIT}")[1].findings
    other = "add.f32 %acc5, %acc2, %acc2;"
    _, result = faults(f"{FENCE} {ONE} {WAIT} {other} {ONE} {WAIT}")
    assert len(result.findings) == 1  # %acc2 was read
    other = "add.f32 %acc5, %acc6, %acc6;"
    start = "mov.f32 %acc6, 0f3F800000;"
    assert not faults(f"{start} {FENCE} {ONE} {WAIT} {other} {ONE} {WAIT}")[1].findings


def test_copies_of_registers_need_no_fence() -> None:
    """nvcc puts them between the fence and the product."""
    assert not faults(f"{FENCE} mov.f32 %acc0, 0f00000000; mov.f32 %acc1, %acc0; {ONE} {WAIT}")[1].findings


def test_registers_of_a_need_a_fence_too() -> None:
    a = ONE.replace("%d10,", "{%r50, %r51, %r52, %r53},").replace(", 0, 0;", ", 0;")
    start = "mov.b32 %r50, 0; mov.b32 %r51, 0; mov.b32 %r52, 0; mov.b32 %r53, 0;"
    assert not faults(f"{start} {FENCE} {a} {WAIT}")[1].findings
    _, result = faults(f"{start} {FENCE} {a} {WAIT} add.u32 %r52, %r1, 0; {a} {WAIT}")
    (finding,) = result.findings
    assert "no wgmma.fence orders the registers" in finding.message


def test_stores_need_a_proxy_fence() -> None:
    args = [
        np.zeros(128, np.float32),
        np.zeros(SIZE, np.uint8),
        np.array([descriptor(0, 16, 256, "32B")] * 2, np.uint64),
    ]
    code = f".reg .f32 %acc<8>; wgmma.fence.sync.aligned; {ONE} {WAIT}"
    fence = "fence.proxy.async.shared::cta;"
    (finding,) = found(args, f"{FILL.replace(fence, '')} {code}", block=128).findings
    assert "with no fence.proxy.async between" in finding.message
    assert finding.instruction.startswith("wgmma.mma_async")
    assert not found(args, f"{FILL} {code}", block=128).findings
    behind = FILL.replace(fence, "").replace("bar.sync 0;", f"bar.sync 0; {fence}")
    assert not found(args, f"{behind} {code}", block=128).findings


def test_a_warpgroup_is_four_warps() -> None:
    _, result = faults(f"setp.ge.u32 %p4, %r1, 96; @%p4 bra END; {ONE} {WAIT} END:")
    assert not result.completed
    assert any("warpgroup" in finding.message for finding in result.findings)
    _, result = faults(
        f"setp.ge.u32 %p4, %r1, 128; @%p4 bra END; wgmma.fence.sync.aligned; {ONE} {WAIT} END:", block=160
    )
    assert not result.findings


def test_wrong_operands() -> None:
    for old, new, message in [
        ("%acc2, %acc3}", "%acc2}", "4 registers are expected, 3 given"),
        (" 1, 1, 0, 0;", " 2, 1, 0, 0;", "scale is 1"),
        (" 1, 1, 0, 0;", " 1, 1, 0;", "not those of a wgmma"), ("n8k16", "n12k16", "no such shape"),
        ("f32.f16.f16", "f32.tf32.tf32", "no such shape"),
    ]:  # fmt: skip
        with pytest.raises(InputError, match=message):
            faults(f"{ONE.replace(old, new)} {WAIT}")
