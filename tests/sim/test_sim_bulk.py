"""Bulk copies: boxes of tensors in every swizzle mode, out of bounds, and what goes wrong without their mbarrier."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from matrix_lab import Array, clean, found, line_of

from ptxc.errors import UnsupportedError, UsageError
from ptxc.sim.tensor_map import TensorMap

RNG = np.random.default_rng(11)

SETUP = """
    .shared .align 1024 .b8 tile[{bytes}]; .shared .align 8 .b64 bar;
    mov.u32 %r40, tile; mov.u32 %r41, bar; setp.eq.u32 %p0, %r1, 0;
    @%p0 mbarrier.init.shared::cta.b64 [%r41], 1; fence.proxy.async.shared::cta; bar.sync 0; @!%p0 bra WAIT;
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r41], {expected};
"""
WAIT = "WAIT: {.reg .pred P; again: mbarrier.try_wait.parity.shared.b64 P, [%r41], 0; @!P bra again;}\n"
DUMP = """
    mov.u32 %r50, %r1;
    COPY: setp.ge.u32 %p1, %r50, {words}; @%p1 bra END;
    shl.b32 %r51, %r50, 2; add.u32 %r52, %r51, %r40; ld.shared.u32 %r53, [%r52];
    cvt.u64.u32 %d20, %r51; add.u64 %d20, %d20, %d0; st.global.u32 [%d20], %r53;
    add.u32 %r50, %r50, 32; bra COPY; END:"""


def copy(rank: int, source: str = "%d1", direction: str = "shared::cluster") -> str:
    """The instruction that nvcc emits, with coordinates in %r20, %r21, ..."""
    coordinates = ", ".join(f"%r{20 + at}" for at in range(rank))
    name = f"cp.async.bulk.tensor.{rank}d.{direction}.global.tile.mbarrier::complete_tx::bytes"
    return f"{name} [%r40], [{source}, {{{coordinates}}}], [%r41];\n"


def body_of(item: TensorMap, start: tuple[int, ...], expected: int | None = None) -> str:
    size = item.box_bytes
    setup = SETUP.format(bytes=size, expected=size if expected is None else expected)
    moves = "".join(f"mov.b32 %r{20 + at}, {value};" for at, value in enumerate(start))
    return f"{setup}{moves}\n{copy(len(start))}{WAIT}{DUMP.format(words=size // 4)}"


def box_of(tensor: Array, start: tuple[int, ...], box: tuple[int, ...], steps: tuple[int, ...]) -> Array:
    """The box, element by element; the first index is the innermost."""
    counts = [-(-n // step) for n, step in zip(box, steps, strict=True)]
    out = np.zeros(counts[::-1], tensor.dtype)
    for index in np.ndindex(*counts[::-1]):
        at = [first + i * step for first, i, step in zip(start, index[::-1], steps, strict=True)]
        if all(0 <= x < n for x, n in zip(at, tensor.shape[::-1], strict=True)):
            out[index] = tensor[tuple(at[::-1])]
    return out


def swizzle_table(mode: str) -> list[list[int]]:
    """The tables of PTX ISA 5.5.7: which 16-byte unit of each 128-byte line is stored where."""
    lines = {"NONE": ["01234567"], "32B": ["01234567", "10325476"],
             "64B": ["01234567", "10325476", "23016745", "32107654"],
             "128B": ["01234567", "10325476", "23016745", "32107654",
                      "45670123", "54761032", "67452301", "76543210"]}[mode]  # fmt: skip
    return [[int(x) for x in line] for line in lines]


def stored(box: Array, mode: str) -> Array:
    """The box's bytes as they lie in shared memory."""
    units = np.frombuffer(box.tobytes(), np.uint8).reshape(-1, 8, 16)
    table = swizzle_table(mode)
    return np.concatenate([line[table[at % len(table)]] for at, line in enumerate(units)]).reshape(-1)


def tensor_map(tensor: Array, box: tuple[int, ...], **options: Any) -> TensorMap:
    strides = list(tensor.strides[::-1][1:])
    return TensorMap(tensor, tensor.shape[::-1], strides, box, **options)


@pytest.mark.parametrize("swizzle", ["NONE", "32B", "64B", "128B"])
@pytest.mark.parametrize("start", [(0, 0), (16, 3), (-8, -2), (56, 60), (100, 0)])
def test_swizzle_and_bounds(swizzle: str, start: tuple[int, int]) -> None:
    tensor = RNG.standard_normal((64, 64)).astype(np.float16)
    row = {"NONE": 64, "32B": 16, "64B": 32, "128B": 64}[swizzle]
    item = tensor_map(tensor, (row, 16), swizzle=swizzle)
    out = np.zeros(item.box_bytes, np.uint8)
    clean([out, item], body_of(item, start))
    assert np.array_equal(out, stored(box_of(tensor, start, (row, 16), (1, 1)), swizzle))


@pytest.mark.parametrize(
    ("shape", "box", "start", "steps"),
    [((256,), (128,), (64,), (1,)), ((5, 6, 32), (16, 3, 4), (16, 2, -1), (1, 1, 1)),
     ((3, 4, 5, 16), (16, 2, 2, 2), (0, 4, 1, 2), (1, 1, 1, 1)),
     ((2, 3, 4, 5, 8), (8, 2, 2, 2, 2), (0, 1, 2, 2, 0), (1, 1, 1, 1, 1)),
     ((32, 64), (32, 16), (1, 3), (2, 4)), ((32, 64), (32, 16), (-3, -1), (2, 4))],
)  # fmt: skip
def test_ranks_and_element_strides(
    shape: tuple[int, ...], box: tuple[int, ...], start: tuple[int, ...], steps: tuple[int, ...]
) -> None:
    tensor = RNG.integers(1, 1 << 32, shape).astype(np.uint32)
    item = tensor_map(tensor, box, element_strides=steps, dtype="u32")
    out = np.zeros(item.box_bytes, np.uint8)
    clean([out, item], body_of(item, start))
    assert np.array_equal(out, np.frombuffer(box_of(tensor, start, box, steps).tobytes(), np.uint8))


def test_a_map_among_the_parameters_and_many_ctas() -> None:
    tensor = RNG.standard_normal((64, 64)).astype(np.float32)
    item = TensorMap(tensor, (64, 64), (256,), (32, 8), dtype="f32")
    out = np.zeros((8, 8, 32), np.float32)
    body = (
        SETUP.format(bytes=1024, expected=1024)
        + f"""
    shl.b32 %r21, %r2, 3; mov.b32 %r20, 32; mov.b64 %d30, m; cvta.param.u64 %d31, %d30; prefetch.param.tensormap [%d30];
    fence.proxy.tensormap::generic.acquire.gpu [%d31], 128;
    {copy(2, "%d31", "shared::cta")}{WAIT}
    mul.wide.u32 %d21, %r2, 1024; ld.param.u64 %d0, [out]; add.u64 %d0, %d0, %d21;{DUMP.format(words=256)}"""
    )
    text_parameters = ["u64 out"]
    from ptx_lab import kernel, launch

    text = kernel(body, text_parameters).replace(".param .u64 out)", ".param .u64 out, .param .align 64 .b8 m[128])")
    result = launch(text, [out, item], grid=8, sanitize=["memory", "race", "init", "sync"])
    assert not result.findings, [str(finding) for finding in result.findings]
    assert np.array_equal(out, tensor.reshape(8, 8, 64)[:, :, 32:])


def test_linear() -> None:
    source, out = RNG.integers(0, 256, 4096).astype(np.uint8), np.zeros(1024, np.uint8)
    body = SETUP.format(bytes=1024, expected=1024) + (
        "add.u64 %d10, %d1, 512; mov.u32 %r20, 1024;\n"
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r40], [%d10], %r20, [%r41];\n"
    ) + WAIT + DUMP.format(words=256)  # fmt: skip
    clean([out, source], body)
    assert np.array_equal(out, source[512:1536])
    (finding,) = found([out, source], body.replace("%d1, 512", "%d1, 4096")).findings[:1]
    assert finding.check == "memory"


TENSOR = RNG.standard_normal((64, 64)).astype(np.float16)


def faults(change: tuple[str, str], expected: int | None = None) -> tuple[str, Any]:
    item = tensor_map(TENSOR, (64, 16), swizzle="128B")
    body = body_of(item, (0, 0), expected)
    assert change[0] in body
    body = body.replace(*change)
    return body, found([np.zeros(item.box_bytes, np.uint8), item], body)


def test_a_missing_wait() -> None:
    body, result = faults((WAIT, "WAIT:\n"))
    finding = next(f for f in result.findings if f.check == "race")
    assert "touches what a cp.async writes that was not waited for" in finding.message
    assert finding.line == line_of(body, "ld.shared.u32", 2)


def test_a_wrong_parity() -> None:
    """The phase before the first one counts as over: the wait is none."""
    body, result = faults(("[%r41], 0; @!P", "[%r41], 1; @!P"))
    finding = next(f for f in result.findings if f.check == "race")
    assert "touches what a cp.async writes" in finding.message
    assert finding.line == line_of(body, "ld.shared.u32", 2)


def test_missing_and_wrong_expectations() -> None:
    body, result = faults(
        ("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r41], 2048;", "mbarrier.arrive.shared.b64 _, [%r41];")
    )
    finding = next(f for f in result.findings if f.check == "race")
    assert finding.line == line_of(body, "ld.shared.u32", 2)
    body, result = faults(("], 2048;", "], 2064;"))
    assert not result.completed
    (finding,) = result.findings
    assert "lacks 0 arrivals and 16 bytes" in finding.message
    assert finding.line == line_of(body, "try_wait", 2)
    _, result = faults(("], 2048;", "], 2032;"))
    (finding,) = result.findings
    assert "the mbarrier at shared 0x840 has got 16 bytes too many; " in finding.message


def test_only_the_waiting_threads_are_ordered() -> None:
    """Warp 1 reads what warp 0 alone has waited for."""
    item = tensor_map(TENSOR, (64, 16))
    body = body_of(item, (0, 0)).replace("WAIT: {", "WAIT: setp.ge.u32 %p2, %r1, 32; @%p2 bra READ; {")
    body = body.replace("mov.u32 %r50, %r1;", "READ: mov.u32 %r50, %r1;")
    result = found([np.zeros(2048, np.uint8), item], body, block=64)
    assert any(f.check == "race" for f in result.findings)


FENCE = "fence.proxy.async.shared::cta;"
AGAIN = f"""bar.sync 0; @!%p0 bra END2; {FENCE} mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r41], 2048; {copy(2)}
    more: mbarrier.try_wait.parity.shared.b64 %p3, [%r41], 1; @!%p3 bra more; END2:"""


def test_overwriting_what_is_still_read() -> None:
    item = tensor_map(TENSOR, (64, 16))
    ordered = f"{body_of(item, (0, 0))} {AGAIN}"
    assert not found([np.zeros(2048, np.uint8), item], ordered).findings
    result = found([np.zeros(2048, np.uint8), item], ordered.replace("bar.sync 0; @!%p0 bra END2", "@!%p0 bra END2"))
    assert any("overwrites what another thread reads" in finding.message for finding in result.findings)


@pytest.mark.parametrize(("access", "verb"), [("", "loaded"), ("st.shared.u32 [%r52], %r53;", "stored")])
def test_overwriting_needs_a_fence_of_the_proxies(access: str, verb: str) -> None:
    """By who issues the copy, or by who accessed the place before."""
    item = tensor_map(TENSOR, (64, 16))
    before = body_of(item, (0, 0)).replace("bra COPY;", f"{access} bra COPY;")
    for good in (AGAIN, f"{FENCE} {AGAIN.replace(FENCE, '')}"):
        assert not found([np.zeros(2048, np.uint8), item], f"{before} {good}").findings
    late = AGAIN.replace(FENCE, "").replace("more:", f"{FENCE} more:")
    for wrong in (AGAIN.replace(FENCE, ""), late):
        findings = found([np.zeros(2048, np.uint8), item], f"{before} {wrong}").findings
        assert findings
        assert {finding.check for finding in findings} == {"race"}
        assert f"{verb}, with no fence.proxy.async between" in findings[0].message
        assert findings[0].instruction.startswith("cp.async.bulk")


def test_the_bytes_beside_need_no_fence() -> None:
    """What is copied there for the first time, or beside what threads use."""
    item = tensor_map(TENSOR, (64, 16))
    body = body_of(item, (0, 0)).replace("tile[2048]", "tile[4096]")
    store = "add.u32 %r55, %r40, 2048; @%p0 st.shared.u32 [%r55], %r1; mov.b32 %r20"
    assert "mov.b32 %r20" in body
    assert not found([np.zeros(2048, np.uint8), item], body.replace("mov.b32 %r20", store)).findings
    inside = store.replace("%r40, 2048", "%r40, 2032")
    (finding,) = found([np.zeros(2048, np.uint8), item], body.replace("mov.b32 %r20", inside)).findings
    assert "overwrites what thread 0 stored" in finding.message


def test_mbarriers_need_a_fence_too() -> None:
    item = tensor_map(TENSOR, (64, 16))
    body = body_of(item, (0, 0))
    for good in ("fence.mbarrier_init.release.cluster;", "fence.proxy.async;", "fence.proxy.async.global; " + FENCE):
        assert not found([np.zeros(2048, np.uint8), item], body.replace(FENCE, good)).findings
    behind = body.replace(FENCE, "").replace("mbarrier.arrive", f"{FENCE} mbarrier.arrive")
    assert not found([np.zeros(2048, np.uint8), item], behind).findings
    (finding,) = found([np.zeros(2048, np.uint8), item], body.replace(FENCE, "")).findings
    assert "completes at an mbarrier with no fence.proxy.async behind its initialisation" in finding.message
    assert finding.instruction.startswith("cp.async.bulk")
    (finding,) = found([np.zeros(2048, np.uint8), item], body.replace(FENCE, "fence.acq_rel.cta;")).findings
    assert finding.check == "race"


def test_misplaced_copies() -> None:
    _, result = faults(("mov.u32 %r40, tile;", "mov.u32 %r40, tile; add.u32 %r40, %r40, 1024;"))
    assert any("outside of every shared" in finding.message for finding in result.findings)
    item = tensor_map(TENSOR, (64, 16))
    body = body_of(item, (0, 0)).replace(f"tile[{item.box_bytes}]", "tile[4096]")
    result = found([np.zeros(2048, np.uint8), item], body.replace("%r40, tile;", "%r40, tile; add.u32 %r40, %r40, 16;"))
    assert any("misaligned" in finding.message for finding in result.findings)
    result = found([np.zeros(2048, np.uint8), np.zeros(128, np.uint8)], body)
    assert any("there is no tensor map" in finding.message for finding in result.findings)


def test_maps_that_cuda_refuses() -> None:
    good: dict[str, Any] = {"dims": (64, 64), "strides": (128,), "box": (64, 8)}
    for name, value, message in [
        ("box", (64,), "as many box"), ("box", (512, 8), "between 1 and 256"), ("strides", (120,), "multiples of 16"),
        ("swizzle", "96B", "unknown swizzle"), ("swizzle", "64B", "does not fit"), ("box", (4, 8), "does not fit"),
        ("dims", (64, 65), "its buffer has 8192"), ("element_strides", (9, 1), "between 1 and 8"),
        ("element_strides", (1,), "for each dimension"),
    ]:  # fmt: skip
        with pytest.raises(UsageError, match=message):
            TensorMap(TENSOR, **{**good, name: value})


def test_other_forms_are_named() -> None:
    item = tensor_map(TENSOR, (64, 16))
    body = body_of(item, (0, 0))
    for form in (".im2col.", ".tile.multicast::cluster."):
        with pytest.raises(UnsupportedError):
            found([np.zeros(2048, np.uint8), item], body.replace(".tile.", form))
    with pytest.raises(UnsupportedError, match="groups of bulk"):
        found([np.zeros(1, np.uint32)], "cp.async.bulk.commit_group;")
