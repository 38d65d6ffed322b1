"""Instructions of SASS: their parts, kinds and work, and nvdisasm."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import ROOT

import ptxc
from ptxc.comparison.sass import Instruction, Kind, disassemble, parse
from ptxc.errors import ToolchainError
from ptxc.toolchain import assemble

DATA = Path(__file__).parent / "data"


def test_the_parts_of_an_instruction() -> None:
    one = Instruction.parse("@!P0 LDG.E.128.CONSTANT R4,[R2.64+0x10]")
    assert (one.predicate, one.opcode, one.operands) == ("@!P0", "LDG.E.128.CONSTANT", "R4,[R2.64+0x10]")
    assert (one.base, str(one)) == ("LDG", "@!P0 LDG.E.128.CONSTANT R4,[R2.64+0x10]")
    assert Instruction.parse("EXIT") == Instruction("", "EXIT", "")
    assert Instruction.parse("@P1 EXIT") == Instruction("@P1", "EXIT", "")


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("HMMA.16816.F32 R4,R8,R12,R4", Kind.TENSOR), ("HGMMA.64x64x16.F32 R24,gdesc[UR8],R24", Kind.TENSOR),
        ("FFMA R0,R1,R2,R0", Kind.FP32), ("MUFU.EX2 R0,R1", Kind.FP32), ("HFMA2 R0,R1,R2,R3", Kind.FP16),
        ("HFMA2.MMA R7,-RZ,RZ,0,0", Kind.INTEGER), ("HADD2.F32 R4,-RZ,R5.H0_H0", Kind.CONVERSION),
        ("IMAD.MOV.U32 R1,RZ,RZ,R2", Kind.INTEGER), ("DFMA R0,R2,R4,R6", Kind.FP64), ("F2FP.F16.F32.PACK_AB R0,R1,R2",
        Kind.CONVERSION), ("UIADD3 UR4,UR4,0x1,URZ", Kind.UNIFORM), ("R2UR UR4,R3", Kind.UNIFORM),
        ("LDGSTS.E.BYPASS.128 [R1],[R2.64]", Kind.GLOBAL), ("UTMALDG.2D [UR8],[UR4]", Kind.GLOBAL),
        ("LDSM.16.M88.4 R4,[R0]", Kind.SHARED), ("STL [R1],R4", Kind.LOCAL),
        ("BAR.SYNC.DEFER_BLOCKING 0x0", Kind.CONTROL),
        ("SYNCS.PHASECHK.TRANS64.TRYWAIT P0,[UR53],R5", Kind.CONTROL), ("SHFL.BFLY PT,R3,R0,0x10,0x1f", Kind.OTHER),
        ("S2R R0,SR_TID.X", Kind.OTHER), ("NOVELTY R0", Kind.OTHER),
    ],
)  # fmt: skip
def test_kinds(line: str, kind: Kind) -> None:
    assert Instruction.parse(line).kind is kind


@pytest.mark.parametrize(
    ("line", "products"),
    [
        ("HMMA.16816.F32 R4,R8,R12,R4", 1), ("HMMA.1688.F32 R4,R8,R12,R4", 0.5), ("IMMA.16832.S8.S8 R4,R8,R12,R4", 2),
        ("QMMA.16832.F32.E4M3.E4M3 R4,R8,R12,R4", 2), ("OMMA.SF.16864.F32.E2M1.E2M1.UE4M3.4X R4,R8,R12,R4", 4),
        ("HGMMA.64x128x16.F32 R24,gdesc[UR8],R24", 16), ("HMMA.884.F32.F32.STEP0 R4,R8,R12,R4", 0.125),
        ("DMMA.884 R0,R2,R4,R0", 0.125), ("HMMA.NOVEL R0", 1), ("FFMA R0,R1,R2,R0", 0),
    ],
)  # fmt: skip
def test_the_work_of_tensor_cores(line: str, products: float) -> None:
    assert Instruction.parse(line).products == products


def test_the_work_on_floats() -> None:
    lines = (
        "FFMA R0,R1,R2,R0\nFFMA2 R0,R2,R4,R0\nFSETP.GT.AND P0,PT,R0,R1,PT\nHADD2.F32 R4,-RZ,R5.H0_H0\nHADD2 R4,R4,R5"
    )
    assert [one.floats for one in parse(lines)] == [1, 2, 0, 0, 1]


def test_the_bytes_of_global_memory() -> None:
    lines = "LDG.E.128 R4,[R2.64]\nSTG.E.U16 [R2.64],R4\nLDG.E.U8.CONSTANT R4,[R2.64]\nLDG.E R4,[R2.64]"
    lines += (
        "\nLDGSTS.E.64 [R1],[R2.64]\nLDG.E.ENL2.256.CONSTANT R4,R8,[R2.64]\nLDS.128 R4,[R2]\nUTMALDG.2D [UR8],[UR4]"
    )
    assert [one.global_bytes for one in parse(lines)] == [16, 2, 1, 4, 8, 32, 0, 0]


@pytest.mark.needs("ptxas")
@pytest.mark.needs("nvdisasm")
def test_nvdisasm_tells_the_instructions() -> None:
    (kernel,) = ptxc.compile(ROOT / "golden" / "row_sum_tree" / "kernel.ir.json", target="sm_89")
    code = parse(disassemble(assemble(kernel.ptx, "sm_89").cubin)[kernel.name])
    assert {"LDG", "SHFL", "STS", "BAR", "EXIT"} <= {one.base for one in code}
    assert str(code[-1]) == "NOP"


@pytest.mark.needs("nvdisasm")
def test_nvdisasm_refuses_what_is_no_cubin() -> None:
    with pytest.raises(ToolchainError, match="nvdisasm fails: "):
        disassemble(b"odd")


def test_an_nvdisasm_that_says_something_else(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script = tmp_path / "nvdisasm"
    script.write_text("#!/bin/sh\necho '[{}]'\n")
    script.chmod(0o755)
    monkeypatch.setenv("PTXC_NVDISASM", str(script))
    with pytest.raises(ToolchainError, match=r"nvdisasm fails: .*; it must be of CUDA 13 or newer"):
        disassemble(b"odd")
