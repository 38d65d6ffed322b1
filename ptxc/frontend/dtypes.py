"""Element types: Emmy's names for them, what they are in memory, and which register holds a value of one.

Sources: ``emmy.compiler.dtype`` (the names), ``dtype`` and ``render_target`` of ``emmy.compiler.backend.cuda``.
"""

from __future__ import annotations

from typing import Final

from ptxc.errors import UnsupportedError
from ptxc.ir.types import B16, B32, B64, F32, F64, PRED, Type


class ElementType:
    """One element type. Compared and hashed by identity: the module's are the only instances."""

    __slots__ = ("bank", "hi", "is_integer", "lo", "memory", "name", "nbytes", "signed")

    def __init__(
        self, name: str, bank: Type, memory: str, nbytes: int, lo: int | None = None, hi: int | None = None
    ) -> None:
        self.name = name
        #: The bank of a register that holds a value of it.
        self.bank = bank
        #: The PTX type of a load or store of one element.
        self.memory = memory
        self.nbytes = nbytes
        #: The least and greatest integer, None for floats.
        self.lo = lo
        self.hi = hi
        #: Whether C computes with it as an integer (bool is not one here: it is a predicate).
        self.is_integer = lo is not None
        #: Whether it is a signed integer.
        self.signed = lo is not None and lo < 0

    def __repr__(self) -> str:
        return self.name

    def fits(self, other: ElementType) -> bool:
        """Whether ``other`` has every value of this integer type."""
        if self.lo is None or self.hi is None or other.lo is None or other.hi is None:
            return False
        return other.lo <= self.lo and self.hi <= other.hi


def _integer(name: str, bits: int, signed: bool) -> ElementType:
    lo = -(2 ** (bits - 1)) if signed else 0
    return ElementType(name, B64 if bits == 64 else B32, f"{name.replace('i', 's')}", bits // 8, lo, lo + 2**bits - 1)


F32_T: Final = ElementType("f32", F32, "f32", 4)
F16_T: Final = ElementType("f16", B16, "b16", 2)
BF16_T: Final = ElementType("bf16", B16, "b16", 2)
F64_T: Final = ElementType("f64", F64, "f64", 8)
#: fp8: the bits, in the low byte of a register. Nothing computes in it; it is converted from and to.
E4M3_T: Final = ElementType("f8e4m3", B32, "u8", 1)
E5M2_T: Final = ElementType("f8e5m2", B32, "u8", 1)
#: Two e2m1 codes, the first in the low half. Emmy's CUDA spells it ``unsigned char``, and C computes with it as that.
E2M1X2_T: Final = ElementType("f4e2m1x2", B32, "u8", 1, 0, 255)
F16X2_T: Final = ElementType("f16x2", B32, "b32", 4)
BOOL_T: Final = ElementType("bool", PRED, "u8", 1)
I32_T: Final = _integer("i32", 32, True)
I64_T: Final = _integer("i64", 64, True)

_TYPES: dict[str, ElementType] = {
    t.name: t
    for t in (
        F32_T, F16_T, BF16_T, F64_T, E4M3_T, E5M2_T, E2M1X2_T, F16X2_T, BOOL_T, I32_T, I64_T,
        _integer("i16", 16, True), _integer("u8", 8, False), _integer("u16", 16, False),
        _integer("u32", 32, False), _integer("u64", 64, False),
    )
}  # fmt: skip

#: What C's names of types mean: ``CastExpr.dtype`` and ``Smem.dtype`` hold these.
_C_NAMES: dict[str, str] = {
    "float": "f32", "double": "f64", "half": "f16", "__half": "f16", "__half2": "f16x2", "__nv_bfloat16": "bf16",
    "bfloat16": "bf16", "__nv_fp8_e4m3": "f8e4m3", "__nv_fp8_e5m2": "f8e5m2",
    "short": "i16", "int": "i32", "long long": "i64", "unsigned char": "u8", "unsigned short": "u16",
    "unsigned int": "u32", "unsigned": "u32", "unsigned long long": "u64", "bool": "bool",
}  # fmt: skip


#: fp8, by the PTX name of a pair of its elements.
FP8: dict[ElementType, str] = {E4M3_T: "e4m3x2", E5M2_T: "e5m2x2"}


def element_type(name: str) -> ElementType:
    """The element type with Emmy's or C's ``name``. Raises UnsupportedError for an unknown one."""
    found = _TYPES.get(name) or _TYPES.get(_C_NAMES.get(name, ""))
    if found is None:
        raise UnsupportedError(f"element type {name!r} is not supported yet", hint=f"there are {', '.join(_TYPES)}")
    return found


def same_bits(one: ElementType, other: ElementType) -> bool:
    """Whether what copies bits may copy between arrays of these types. C has one name for ``u8`` and pairs of e2m1."""
    return one is other or {one.name, other.name} == {"u8", E2M1X2_T.name}


def slab_type(name: str) -> ElementType:
    """The element type of a shared array declared with C's ``name``.

    Emmy has one name for two types; it declares no slab of ``u8`` (``canonical_from_cuda_name``).
    """
    return E2M1X2_T if name == "unsigned char" else element_type(name)
