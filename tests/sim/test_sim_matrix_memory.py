"""``ldmatrix``, ``stmatrix``, ``movmatrix`` and ``setmaxnreg``."""

from __future__ import annotations

import numpy as np
import pytest
from matrix_lab import Array, clean, found, load, registers, store

from ptxc.errors import InputError, UnsupportedError

RNG = np.random.default_rng(3)
PITCH = 48
"""Bytes from row to row: they need not be contiguous."""

FILL = f"""
    .shared .align 16 .b8 tile[{32 * PITCH}];
    mul.lo.u32 %r40, %r1, {PITCH}; mov.u32 %r41, tile; add.u32 %r42, %r41, %r40;
"""


def fragment(matrix: Array, lane: int, transposed: bool) -> int:
    """The register that ``lane`` gets of an 8 x 8 matrix: two elements of row ``lane / 4`` (figure 104)."""
    matrix = matrix.T if transposed else matrix
    row, column = lane // 4, lane % 4 * 2
    return int(matrix[row, column]) | int(matrix[row, column + 1]) << 16


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("trans", ["", ".trans"])
def test_load(count: int, trans: str) -> None:
    matrices = RNG.integers(0, 1 << 16, (4, 8, 8)).astype(np.uint16)
    out = np.zeros((32, count), np.uint32)
    body = f"""{FILL}
    {load(1, 10, 4)} st.shared.v4.b32 [%r42], {registers(10, 4)}; bar.sync 0;
    ldmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 {registers(20, count)}, [%r42];
    {store(0, 20, count)}"""
    clean([out, matrices.reshape(32, 8)], body)
    want = [[fragment(matrices[at], lane, bool(trans)) for at in range(count)] for lane in range(32)]
    assert out.tolist() == want


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("trans", ["", ".trans"])
def test_store(count: int, trans: str) -> None:
    held = RNG.integers(0, 1 << 32, (32, count)).astype(np.uint32)
    out = np.zeros((32, 4), np.uint32)
    body = f"""{FILL}
    mov.b32 %r5, 0; st.shared.v4.b32 [%r42], {{%r5, %r5, %r5, %r5}}; bar.sync 0;
    {load(1, 20, count)} cvta.shared.u64 %d10, 0; cvt.u64.u32 %d11, %r42; add.u64 %d10, %d10, %d11;
    stmatrix.sync.aligned.m8n8.x{count}{trans}.b16 [%d10], {registers(20, count)}; bar.sync 0;
    ld.shared.v4.b32 {registers(10, 4)}, [%r42]; {store(0, 10, 4)}"""
    clean([out, held], body)
    matrices = out.view(np.uint16).reshape(4, 8, 8)
    for at in range(count):
        assert [fragment(matrices[at], lane, bool(trans)) for lane in range(32)] == held[:, at].tolist()
    assert not matrices[count:].any()


def test_move() -> None:
    matrix = RNG.integers(0, 1 << 16, (8, 8)).astype(np.uint16)
    held = np.array([[fragment(matrix, lane, False)] for lane in range(32)], np.uint32)
    out = np.zeros((32, 1), np.uint32)
    body = f"{load(1, 10, 1)} movmatrix.sync.aligned.m8n8.trans.b16 %r11, %r10; {store(0, 11, 1)}"
    clean([out, held], body)
    assert out[:, 0].tolist() == [fragment(matrix, lane, True) for lane in range(32)]


WITHOUT_BARRIER = f"""{FILL}
    st.shared.v4.b32 [%r42], {{%r1, %r1, %r1, %r1}}; xor.b32 %r42, %r42, 0;
    ldmatrix.sync.aligned.m8n8.x4.shared.b16 {registers(20, 4)}, [%r42];
    """


def test_rows_of_other_lanes_need_a_barrier() -> None:
    result = found([np.zeros(1, np.uint32)], WITHOUT_BARRIER)
    (finding,) = result.findings
    assert finding.check == "race"
    assert finding.instruction.startswith("ldmatrix")
    ordered = WITHOUT_BARRIER.replace("xor.b32 %r42, %r42, 0;", "bar.warp.sync 0xffffffff;")
    assert not found([np.zeros(1, np.uint32)], ordered).findings
    after = f"{ordered} st.shared.b32 [%r42], %r20;"
    (finding,) = found([np.zeros(1, np.uint32)], after).findings
    assert "overwrites what another thread reads" in finding.message


def test_misplaced_rows() -> None:
    zero = [np.zeros(1, np.uint32)]
    read = "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r20, %r21, %r22, %r23}, "
    fill = f"{FILL} st.shared.v4.b32 [%r42], {{%r1, %r1, %r1, %r1}}; bar.sync 0;"
    result = found(zero, f"{fill} {read} [%r42+4];")
    assert "misaligned" in result.findings[0].message
    result = found(zero, f"{fill} {read} [%r42+{32 * PITCH}];")
    assert "is outside of every" in result.findings[0].message
    result = found(zero, f"{FILL} {read} [%r42];")
    assert "never written" in result.findings[0].message
    result = found([np.zeros(4, np.uint32)], read.replace(".shared", "") + "[%d0];")
    assert "outside of shared memory" in result.findings[0].message


def test_other_forms_are_named() -> None:
    zero = [np.zeros(1, np.uint32)]
    with pytest.raises(UnsupportedError, match="m8n8"):
        found(zero, "ldmatrix.sync.aligned.m16n16.x1.trans.shared.b8 {%r20, %r21}, [%r1];")
    with pytest.raises(InputError, match="2 registers are expected"):
        found(zero, "ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%r20}, [%r1];")


def test_register_counts() -> None:
    zero = [np.zeros(1, np.uint32)]
    clean(zero, "setmaxnreg.dec.sync.aligned.u32 40; setmaxnreg.inc.sync.aligned.u32 232;", block=128)
    for count in (20, 44, 264):
        with pytest.raises(InputError, match="multiple of 8 from 24 to 256"):
            found(zero, f"setmaxnreg.dec.sync.aligned.u32 {count};")
