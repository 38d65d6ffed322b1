"""``mma.sync``: every shape and type, against NumPy's products."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from matrix_lab import Array, collect, execute, found, spread, words

from ptxc.errors import InputError, UnsupportedError
from ptxc.sim.convert import decoded, encoded

# Places of elements, from the figures and formulas of PTX ISA 9.7.16.5


def a_16bit_k16(lane: int, i: int) -> tuple[int, int]:
    row = lane >> 2 if i in {0, 1, 4, 5} else (lane >> 2) + 8
    return row, lane % 4 * 2 + (i & 1) + (8 if i >= 4 else 0)


def b_16bit_k16(lane: int, i: int) -> tuple[int, int]:
    return lane % 4 * 2 + (i & 1) + (8 if i >= 2 else 0), lane >> 2


def a_16bit_k8(lane: int, i: int) -> tuple[int, int]:
    return (lane >> 2 if i < 2 else (lane >> 2) + 8), lane % 4 * 2 + (i & 1)


def b_16bit_k8(lane: int, i: int) -> tuple[int, int]:
    return lane % 4 * 2 + i, lane >> 2


def a_tf32_k8(lane: int, i: int) -> tuple[int, int]:
    return (lane >> 2 if i in {0, 2} else (lane >> 2) + 8), (lane % 4 if i < 2 else lane % 4 + 4)


def b_tf32_k8(lane: int, i: int) -> tuple[int, int]:
    return (lane % 4 if i == 0 else lane % 4 + 4), lane >> 2


def a_tf32_k4(lane: int, i: int) -> tuple[int, int]:
    return (lane >> 2 if i == 0 else (lane >> 2) + 8), lane % 4


def b_tf32_k4(lane: int, i: int) -> tuple[int, int]:
    return lane % 4, lane >> 2


def a_8bit_k32(lane: int, i: int) -> tuple[int, int]:
    row = lane >> 2 if i < 4 or 8 <= i < 12 else (lane >> 2) + 8
    return row, lane % 4 * 4 + (i & 3) + (16 if i >= 8 else 0)


def b_8bit_k32(lane: int, i: int) -> tuple[int, int]:
    return lane % 4 * 4 + (i & 3) + (16 if i >= 4 else 0), lane >> 2


def a_8bit_k16(lane: int, i: int) -> tuple[int, int]:
    return (lane >> 2 if i < 4 else (lane >> 2) + 8), lane % 4 * 4 + (i & 3)


def b_8bit_k16(lane: int, i: int) -> tuple[int, int]:
    return lane % 4 * 4 + i, lane >> 2


def a_4bit_k64(lane: int, i: int) -> tuple[int, int]:
    row = lane >> 2 if i < 8 or 16 <= i < 24 else (lane >> 2) + 8
    return row, lane % 4 * 8 + (i & 7) + (32 if i >= 16 else 0)


def b_4bit_k64(lane: int, i: int) -> tuple[int, int]:
    return lane % 4 * 8 + (i & 7) + (32 if i >= 8 else 0), lane >> 2


def c_16x8(lane: int, i: int) -> tuple[int, int]:
    return (lane >> 2 if i < 2 else (lane >> 2) + 8), lane % 4 * 2 + (i & 1)


SHAPES: dict[str, tuple[Any, Any, int]] = {
    "m16n8k16 16": (a_16bit_k16, b_16bit_k16, 16), "m16n8k8 16": (a_16bit_k8, b_16bit_k8, 8),
    "m16n8k8 32": (a_tf32_k8, b_tf32_k8, 8), "m16n8k4 32": (a_tf32_k4, b_tf32_k4, 4),
    "m16n8k32 8": (a_8bit_k32, b_8bit_k32, 32), "m16n8k16 8": (a_8bit_k16, b_8bit_k16, 16),
}  # fmt: skip

RNG = np.random.default_rng(7)


def random_bits(element: str, shape: tuple[int, int]) -> tuple[Array, Array]:
    """Random elements as their patterns, and their values."""
    values = RNG.standard_normal(shape) * 2
    if element == "f16":
        half = values.astype(np.float16)
        return half, half.astype(np.float64)
    if element == "bf16":
        bits = encoded(values, "bf16", "rn").astype(np.uint16)
        return bits, (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    if element == "tf32":
        single = (values.astype(np.float32).view(np.uint32) & 0xFFFFE000).view(np.float32)
        return single, single.astype(np.float64)
    if element in {"s8", "u8"}:
        whole = RNG.integers(0, 256, shape).astype(np.uint8).view(np.int8 if element == "s8" else np.uint8)
        return whole, whole.astype(np.float64)
    bits = encoded(values, element, "rn").astype(np.uint8)
    return bits, decoded(bits, element)


@pytest.mark.parametrize(
    ("shape", "types"),
    [
        ("m16n8k16", "f32.f16.f16.f32"), ("m16n8k16", "f16.f16.f16.f16"), ("m16n8k8", "f32.f16.f16.f32"),
        ("m16n8k8", "f16.f16.f16.f16"), ("m16n8k16", "f32.bf16.bf16.f32"), ("m16n8k8", "f32.bf16.bf16.f32"),
        ("m16n8k8", "f32.tf32.tf32.f32"), ("m16n8k4", "f32.tf32.tf32.f32"), ("m16n8k32", "f32.e4m3.e4m3.f32"),
        ("m16n8k32", "f32.e5m2.e4m3.f32"), ("m16n8k32", "f16.e4m3.e5m2.f16"), ("m16n8k16", "f32.e5m2.e5m2.f32"),
        ("m16n8k32", "s32.s8.s8.s32"), ("m16n8k16", "s32.u8.s8.s32"),
    ],
)  # fmt: skip
def test_every_shape_and_type(shape: str, types: str) -> None:
    d, a, b, c = types.split(".")
    width = {"f16": 16, "bf16": 16, "tf32": 32}.get(a, 8)
    place_a, place_b, k = SHAPES[f"{shape} {width}"]
    bits_a, left = random_bits(a, (16, k))
    bits_b, right = random_bits(b, (k, 8))
    kind = {"f32": "f4", "f16": "f2", "s32": "i4"}[c]
    added = (RNG.standard_normal((16, 8)) * 100).astype(kind)
    sources = [
        words(spread(bits_a, 16 * k // 32, place_a)),
        words(spread(bits_b, k * 8 // 32, place_b)),
        words(spread(added, 4, c_16x8)),
    ]
    text = f"mma.sync.aligned.{shape}.row.col.{types} {{D}}, {{A}}, {{B}}, {{C}};"
    out = execute(text, sources, 2 if d == "f16" else 4)
    got = collect(out.view({"f32": "f4", "f16": "f2", "s32": "i4"}[d]), (16, 8), c_16x8)
    assert np.array_equal(got, (left @ right + added).astype(got.dtype))


@pytest.mark.parametrize("layouts", ["row.row", "row.col", "col.row", "col.col"])
@pytest.mark.parametrize("types", ["f32.f16.f16.f32", "f16.f16.f16.f16", "f32.f16.f16.f16"])
def test_four_products_of_volta(layouts: str, types: str) -> None:
    d, _, _, c = types.split(".")
    row_a, row_b = (name == "row" for name in layouts.split("."))
    a = RNG.standard_normal((4, 8, 4)).astype(np.float16)
    b = RNG.standard_normal((4, 4, 8)).astype(np.float16)
    added = RNG.standard_normal((4, 8, 8)).astype("f4" if c == "f32" else "f2")
    held: list[Array] = [np.zeros((32, 4), np.float16), np.zeros((32, 4), np.float16), np.zeros((32, 8), added.dtype)]

    def c_place(kind: str, lane: int, i: int) -> tuple[int, int]:
        if kind == "f16":
            return (lane % 4 if lane < 16 else lane % 4 + 4), i
        x = (lane & 1) + (i & 2)
        return (x if lane < 16 else x + 4), (i & 4) + (lane & 2) + (i & 1)

    for lane in range(32):
        product, upper = lane % 16 // 4, 0 if lane < 16 else 4
        for i in range(4):
            held[0][lane, i] = a[product][(lane % 4 + upper, i) if row_a else (i + upper, lane % 4)]
            held[1][lane, i] = b[product][(lane % 4, i + upper) if row_b else (i, lane % 4 + upper)]
        for i in range(8):
            held[2][lane, i] = added[product][c_place(c, lane, i)]
    text = f"mma.sync.aligned.m8n8k4.{layouts}.{types} {{D}}, {{A}}, {{B}}, {{C}};"
    out = execute(text, [words(x) for x in held], 8 if d == "f32" else 4).view("f4" if d == "f32" else "f2")
    want = (a.astype(np.float64) @ b.astype(np.float64) + added).astype(out.dtype)
    for lane in range(32):
        for i in range(8):
            assert out[lane, i] == want[lane % 16 // 4][c_place(d, lane, i)]


@pytest.mark.parametrize("thread_a", [0, 1])
@pytest.mark.parametrize("thread_b", [0, 3])
@pytest.mark.parametrize(
    ("kind", "scale", "byte"),
    [("mxf4nvf4", "4X ue4m3", 0), ("mxf4nvf4", "2X ue8m0", 2), ("mxf4", "2X ue8m0", 0)],
)
def test_block_scaled_fp4(kind: str, scale: str, byte: int, thread_a: int, thread_b: int) -> None:
    vector, scale_type = int(scale[0]), scale.split()[1]
    bits_a, left = random_bits("e2m1", (16, 64))
    bits_b, right = random_bits("e2m1", (64, 8))
    low = 110 if scale_type == "ue8m0" else 0x20
    data_a = RNG.integers(low, low + 30, (32, 4)).astype(np.uint8)
    data_b = RNG.integers(low, low + 30, (32, 4)).astype(np.uint8)

    def value(octet: int) -> float:
        if scale_type == "ue8m0":
            return float(2.0 ** (octet - 127))
        return float((8 + (octet & 7)) * 2.0 ** ((octet >> 3) - 10))

    for k in range(64):
        at = byte + k // (64 // vector)
        for row in range(16):
            lane = row % 8 * 4 + 2 * thread_a + (row >= 8)
            left[row, k] *= value(int(data_a[lane, at]))
        for column in range(8):
            right[k, column] *= value(int(data_b[4 * column + thread_b, at]))
    added = RNG.standard_normal((16, 8)).astype(np.float32)
    nibbles_a, nibbles_b = spread(bits_a, 32, a_4bit_k64), spread(bits_b, 16, b_4bit_k64)
    sources = [
        words(nibbles_a[:, ::2] | nibbles_a[:, 1::2] << 4), words(nibbles_b[:, ::2] | nibbles_b[:, 1::2] << 4),
        words(spread(added, 4, c_16x8)), words(data_a), words(data_b),
    ]  # fmt: skip
    name = f"kind::{kind}.block_scale.scale_vec::{vector}X.f32.e2m1.e2m1.f32.{scale_type}"
    selectors = f"{{E}}, {{{byte}, {thread_a}}}, {{F}}, {{{byte}, {thread_b}}}"
    out = execute(f"mma.sync.aligned.m16n8k64.row.col.{name} {{D}}, {{A}}, {{B}}, {{C}}, {selectors};", sources, 4)
    got = collect(out.view(np.float32), (16, 8), c_16x8)
    assert np.array_equal(got, (left @ right + added).astype(np.float32))


def test_integers_saturate_or_wrap() -> None:
    ones = np.full((32, 16), 127, np.int8)
    added = np.full((32, 4), 2**31 - 1, np.int32)
    sources = [words(ones), words(ones[:, :8]), words(added)]
    text = "mma.sync.aligned.m16n8k32.row.col{sat}.s32.s8.s8.s32 {D}, {A}, {B}, {C};"
    wrapped = execute(text.replace("{sat}", ""), sources, 4).view(np.int32)
    saturated = execute(text.replace("{sat}", ".satfinite"), sources, 4).view(np.int32)
    assert (wrapped == -(2**31) - 1 + 32 * 127 * 127).all()
    assert (saturated == 2**31 - 1).all()


def test_nan_is_the_canonical_one() -> None:
    a = np.zeros((32, 8), np.float16)
    a[:] = np.inf
    b = np.zeros((32, 4), np.float16)
    text = "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {D}, {A}, {B}, {C};"
    assert (execute(text, [words(a), words(b), np.zeros((32, 4), np.uint32)], 4) == 0x7FFFFFFF).all()


PRODUCT = "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%r10,%r11,%r12,%r13}, {%r1,%r1,%r1,%r1}, {%r1,%r1}, {%r1,%r1,%r1,%r1};"  # fmt: skip # noqa: E501


def test_lanes_that_a_branch_parted_meet_before_a_product() -> None:
    body = f"""
    and.b32 %r5, %r1, 1; setp.eq.u32 %p0, %r5, 0; @%p0 bra EVEN;
    add.u32 %r6, %r1, 1;
    EVEN: {PRODUCT}"""
    result = found([np.zeros(1, np.uint32)], body)
    assert result.completed
    assert not result.findings


def test_missing_lanes_are_found() -> None:
    body = f"setp.eq.u32 %p0, %r1, 5; @%p0 bra END;\n{PRODUCT}\nEND:"
    result = found([np.zeros(1, np.uint32)], body)
    assert not result.completed
    (finding,) = result.findings
    assert finding.check == "sync"
    assert "mma" in finding.instruction
    assert finding.threads == (5,)
    body = f"setp.eq.u32 %p0, %r1, 5; @%p0 bra OTHER;\n{PRODUCT}\nbra END; OTHER: bar.sync 0; END:"
    result = found([np.zeros(1, np.uint32)], body)
    assert not result.completed
    assert any("waits for threads that never come" in finding.message for finding in result.findings)


def test_what_is_not_executed_is_named() -> None:
    zero = [np.zeros(1, np.uint32)]
    with pytest.raises(UnsupportedError, match="shape"):
        found(zero, PRODUCT.replace("m16n8k8", "m16n8k32"))
    with pytest.raises(InputError, match="no product of these types"):
        found(zero, PRODUCT.replace("tf32.tf32", "tf32.s8"))
    with pytest.raises(InputError, match="4 registers are expected, 2 given"):
        found(zero, PRODUCT.replace("{%r1,%r1,%r1,%r1}, {%r1,%r1}", "{%r1,%r1}, {%r1,%r1}"))
