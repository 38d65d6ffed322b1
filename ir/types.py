"""The types of virtual registers: PTX's register banks.

A bank fixes the width only; whether 32 bits are signed, unsigned or two packed halves is the instruction's business,
as in PTX (``add.s32`` and ``add.u32`` both take ``.b32`` registers). Integers narrower than 32 bits live in ``B32``
(C promotes them), f16, bf16 and packed pairs of fp8 in ``B16``, packed pairs of f16 and bf16 in ``B32``.
"""

from __future__ import annotations

from typing import Final


class Type:
    """One register bank. Compared and hashed by identity: the module's constants are the only instances."""

    __slots__ = ("bits", "is_float", "name", "prefix", "words")

    def __init__(self, name: str, bits: int, prefix: str, is_float: bool = False) -> None:
        self.name = name
        self.bits = bits
        #: The 32-bit registers that a value takes. Predicates have their own.
        self.words = 0 if bits == 1 else max(bits // 32, 1)
        #: How PTX text names the bank's registers: ``%r0``, ``%fd0``, …
        self.prefix = prefix
        self.is_float = is_float

    def __repr__(self) -> str:
        return self.name


PRED: Final = Type("pred", 1, "p")
B16: Final = Type("b16", 16, "rs")
B32: Final = Type("b32", 32, "r")
B64: Final = Type("b64", 64, "rd")
F32: Final = Type("f32", 32, "f", is_float=True)
F64: Final = Type("f64", 64, "fd", is_float=True)

#: Every bank, in the order in which PTX text declares them.
BANKS: tuple[Type, ...] = (PRED, B16, B32, B64, F32, F64)

BY_NAME: dict[str, Type] = {bank.name: bank for bank in BANKS}

#: The bank that holds a value of a PTX instruction type (the last modifier of most instructions).
OF_MODIFIER: dict[str, Type] = {
    "pred": PRED,
    "b8": B16, "u8": B32, "s8": B32,
    "b16": B16, "u16": B16, "s16": B16, "f16": B16, "bf16": B16, "e4m3x2": B16, "e5m2x2": B16,
    "b32": B32, "u32": B32, "s32": B32, "f16x2": B32, "bf16x2": B32,
    "b64": B64, "u64": B64, "s64": B64,
    "f32": F32,
    "f64": F64,
}  # fmt: skip

#: Bytes of memory that one element of a PTX instruction type takes.
BYTES: dict[str, int] = {
    "b8": 1, "u8": 1, "s8": 1,
    "b16": 2, "u16": 2, "s16": 2, "f16": 2, "bf16": 2,
    "b32": 4, "u32": 4, "s32": 4, "f32": 4, "f16x2": 4, "bf16x2": 4,
    "b64": 8, "u64": 8, "s64": 8, "f64": 8,
}  # fmt: skip
