"""SASS, the machine code of NVIDIA's GPUs, as `nvdisasm` tells it: instructions, their kinds, the work that they do.

A function's code is kept as text, an instruction a line in the order of their addresses, 16 bytes each since Volta:
``@!P0 BRA 0x270``. Addresses count from the function's first instruction.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Any, Final

from ptxc.errors import ToolchainError
from ptxc.toolchain import find_tool, run_timed, working_folder

#: Bytes of an instruction.
SIZE: Final = 16

_TIME_LIMIT: Final = 120.0


class Kind(StrEnum):
    """What an instruction is for."""

    TENSOR = "tensor"
    FP32 = "fp32"
    FP16 = "fp16"
    FP64 = "fp64"
    INTEGER = "integer"
    CONVERSION = "conversion"
    UNIFORM = "uniform"
    GLOBAL = "global memory"
    SHARED = "shared memory"
    LOCAL = "local memory"
    CONTROL = "control"
    OTHER = "other"


#: The kind of each opcode, by its part before the first dot. What is in no row is ``other``: shuffles, votes, special
#: registers, constant memory.
_KINDS: Final = {
    opcode: kind
    for kind, opcodes in {
        Kind.TENSOR: "HMMA IMMA DMMA BMMA QMMA OMMA HGMMA IGMMA QGMMA BGMMA UTCHMMA UTCIMMA UTCQMMA UTCOMMA",
        Kind.FP32: "FADD FMUL FFMA FMNMX FMNMX3 FADD2 FMUL2 FFMA2 FSEL FSET FSETP FCHK FSWZADD MUFU",
        Kind.FP16: "HADD2 HMUL2 HFMA2 HMNMX2 HSET2 HSETP2",
        Kind.FP64: "DADD DMUL DFMA DMNMX DSETP",
        Kind.INTEGER: "IADD IADD3 IADD32I IABS IDP IMAD IMUL IMNMX VIMNMX VIMNMX3 VIADD VIADDMNMX VABSDIFF ISETP ISET "
        "LEA LOP LOP3 PLOP3 SHF SHL SHR BMSK BREV FLO POPC SGXT PRMT SEL MOV P2R R2P",
        Kind.CONVERSION: "F2F F2FP F2I F2IP I2F I2FP I2I I2IP FRND",
        Kind.UNIFORM: "R2UR S2UR LDCU",  # and what begins with U
        Kind.GLOBAL: "LD ST LDG STG LDGSTS ATOM ATOMG RED REDG REDAS UTMALDG UTMASTG UTMAREDG UTMAPF UBLKCP UBLKRED "
        "UBLKPF CCTL",
        Kind.SHARED: "LDS STS LDSM STSM ATOMS MOVM",
        Kind.LOCAL: "LDL STL",
        Kind.CONTROL: "BRA BRX JMP JMX CALL RET EXIT BREAK BSSY BSYNC BMOV WARPSYNC YIELD NOP KILL BPT BAR B2R DEPBAR "
        "LDGDEPBAR LDTRAM MEMBAR FENCE ERRBAR CCTLL NANOSLEEP WARPGROUP SYNCS ARRIVES ELECT ACQBULK ENDCOLLECTIVE "
        "UCGABAR_ARV UCGABAR_WAIT UTMACMDFLUSH UTMACCTL USETMAXREG PREEXIT",
    }.items()
    for opcode in opcodes.split()
}

#: Arithmetic on floats that counts as work, and that on two floats at once; comparisons and selections do not count.
_FLOAT_WORK: Final = frozenset(
    ("FADD", "FMUL", "FFMA", "FMNMX", "MUFU", "DADD", "DMUL", "DFMA", "DMNMX", "HADD2", "HMUL2", "HFMA2", "HMNMX2")
)
_DOUBLE_WORK: Final = frozenset(("FADD2", "FMUL2", "FFMA2", "FMNMX3"))

#: Multiply-adds of a warp that are one unit of a tensor core's work: an HMMA.16816.
_TENSOR_UNIT: Final = 16 * 8 * 16


@dataclass(frozen=True)
class Instruction:
    """One instruction: ``@!P0``, ``LDG.E.128``, ``R4,[R2.64+0x10]``."""

    predicate: str
    opcode: str
    operands: str

    @classmethod
    def parse(cls, line: str) -> Instruction:
        """The instruction of a line."""
        head, _, rest = line.strip().partition(" ")
        predicate = head if head.startswith("@") else ""
        opcode, _, operands = rest.partition(" ") if predicate else (head, "", rest)
        return cls(predicate, opcode, operands)

    def __str__(self) -> str:
        return " ".join(filter(None, (self.predicate, self.opcode, self.operands)))

    @cached_property
    def base(self) -> str:
        """The opcode without what follows its first dot."""
        return self.opcode.partition(".")[0]

    @property
    def kind(self) -> Kind:
        """What the instruction is for."""
        if self._converts:
            return Kind.CONVERSION
        if self._moves:
            return Kind.INTEGER
        return _KINDS.get(self.base) or (Kind.UNIFORM if self.base.startswith("U") else Kind.OTHER)

    @property
    def _converts(self) -> bool:
        """``HADD2.F32 R4, -RZ, R5.H0_H0`` is how an f16 becomes an f32."""
        return self.base == "HADD2" and ".F32" in self.opcode

    @property
    def _moves(self) -> bool:
        """``HFMA2.MMA R7, -RZ, RZ, 0, 0`` is how a constant comes to a register beside the integer units."""
        return self.base == "HFMA2" and ",-RZ,RZ," in self.operands.replace(" ", "")

    @property
    def floats(self) -> int:
        """Operations on floats that a thread does, of all widths; one on a pair of f16 is one."""
        if self._converts or self._moves:
            return 0
        return 1 if self.base in _FLOAT_WORK else 2 if self.base in _DOUBLE_WORK else 0

    @property
    def products(self) -> float:
        """A warp's work in tensor cores, as a number of HMMA.16816.

        The shape stands in the opcode: ``HMMA.16816.F32`` is 16 x 8 x 16. That of ``HGMMA.64x128x16`` is a warpgroup's.
        """
        if self.kind is not Kind.TENSOR:
            return 0.0
        if match := re.search(r"\.(\d+)x(\d+)x(\d+)", self.opcode):
            m, n, k = map(int, match.groups())
            return m * n * k / 4 / _TENSOR_UNIT
        if match := re.search(r"\.(8|16)(8)(\d+)", self.opcode):
            m, n, k = map(int, match.groups())
            return m * n * k / _TENSOR_UNIT
        return 1.0

    @property
    def global_bytes(self) -> int:
        """Bytes of global memory that a thread loads or stores. Of bulk copies (UTMALDG) SASS does not tell them: 0."""
        return self._width if self.base in ("LDG", "STG", "LDGSTS", "LD", "ST") else 0

    @property
    def stores(self) -> bool:
        """Whether it stores :attr:`global_bytes`."""
        return self.base in ("STG", "ST")

    @property
    def _width(self) -> int:
        parts = self.opcode.split(".")[1:]
        for width in (256, 128, 64):
            if str(width) in parts:
                return width // 8
        return 1 if {"U8", "S8"} & set(parts) else 2 if {"U16", "S16"} & set(parts) else 4


def parse(text: str) -> list[Instruction]:
    """The instructions of a function's text."""
    return [Instruction.parse(line) for line in text.splitlines()]


def disassemble(cubin: bytes) -> dict[str, str]:
    """The text of each function in a cubin. Raises ToolchainError where there is no nvdisasm, or it fails."""
    nvdisasm = find_tool("nvdisasm")
    with working_folder() as folder:
        file = folder / "kernel.cubin"
        file.write_bytes(cubin)
        status, said, _ = run_timed([str(nvdisasm), "-json", str(file)], _TIME_LIMIT)
    try:
        if status:
            raise ValueError(said.strip()[-300:] or f"it ended with status {status}")
        functions: Sequence[dict[str, Any]] = json.loads(said)[1]
        return {function["function-name"]: _text(function["sass-instructions"]) for function in functions}
    except (ValueError, LookupError, TypeError) as error:
        hint = "" if status else "it must be of CUDA 13 or newer: pip install -U nvidia-cuda-nvdisasm"
        raise ToolchainError(f"{nvdisasm} fails: {error}", hint=hint) from error


def _text(instructions: Sequence[dict[str, Any]]) -> str:
    keys = ("predicate", "opcode", "operands")
    return "\n".join(" ".join(row[key] for key in keys if row.get(key)) for row in instructions)
