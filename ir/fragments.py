"""The registers that a lane holds of a tensor core's operands (PTX ISA, "Warp-level matrix instructions").

An ``mma`` multiplies an A of m x k by a B of k x n and adds a C of m x n; the lanes of a warp hold equal shares of
each. A share is a *group* of registers, written in braces in PTX. Two f16 or bf16, four fp8 or eight fp4 elements are
packed in a b32 register.
"""

from __future__ import annotations

import re
from functools import cache
from typing import NamedTuple

from ptxc.ir.types import B32, B64, F32, PRED, Type

_SHAPE = re.compile(r"m(\d{1,3})n(\d{1,3})k(\d{1,3})").fullmatch
_LANES = 32
#: Bits of an element of each type that multiplicands and accumulators have.
BITS: dict[str, int] = {
    "f32": 32, "f16": 16, "bf16": 16, "e4m3": 8, "e5m2": 8, "e2m1": 4,
}  # fmt: skip
#: Modifiers that stand before the shape in the form whose scales are operands.
BLOCK_SCALED = ("kind::mxf4nvf4", "block_scale", "scale_vec::4X")


class Groups(NamedTuple):
    """The groups of an instruction's results and operands: how many registers each has, and their bank.

    A group of 0 registers is an integer constant, which is no group in PTX.
    """

    results: tuple[tuple[int, Type], ...]
    operands: tuple[tuple[int, Type], ...]


def _product(shape: str, d: str, a: str, *scale: str) -> tuple[str, ...]:
    """The modifiers of ``mma`` that multiplies two matrices of ``a`` and accumulates in ``d``."""
    kind = BLOCK_SCALED if scale else ()
    return ("sync", "aligned", *kind, shape, "row", "col", d, a, a, d, *scale)


#: The forms that ``mma`` has.
MMA_FORMS: tuple[tuple[str, ...], ...] = (
    *(
        _product(shape, d, a)
        for shape in ("m16n8k8", "m16n8k16")
        for d, a in (("f32", "f16"), ("f16", "f16"), ("f32", "bf16"))
    ),
    *(_product("m16n8k32", "f32", a) for a in ("e4m3", "e5m2")),
    _product("m16n8k64", "f32", "e2m1", "ue4m3"),
    *(
        ("sync", "aligned", "m8n8k4", a, b, d, "f16", "f16", d)
        for a in ("row", "col")
        for b in ("row", "col")
        for d in ("f16", "f32")
    ),
)


@cache
def mma_groups(mods: tuple[str, ...]) -> Groups:
    """The groups of ``mma.sync.aligned`` with these modifiers: D = A, B, C.

    Raises KeyError for modifiers that spell no shape or types.
    """
    shape = next(filter(None, map(_SHAPE, mods)), None)
    scaled = BLOCK_SCALED[0] in mods
    types = mods[-5:-1] if scaled else mods[-4:]
    if shape is None or len(types) != 4:
        raise KeyError(mods)
    m, n, k = map(int, shape.groups())
    d, a, b, c = (BITS[type] for type in types)
    # Volta's m8n8k4 is four products of as many quarters of a warp.
    lanes = _LANES // 4 if (m, n, k) == (8, 8, 4) else _LANES

    def share(elements: int, bits: int) -> tuple[int, Type]:
        return elements * bits // 32 // lanes, F32 if bits == 32 else B32

    # The scales of A and B, each with the numbers of a byte and of a thread that supply it.
    scales = ((1, B32), (0, B32), (0, B32)) * 2 if scaled else ()
    return Groups((share(m * n, d),), (share(m * k, a), share(k * n, b), share(m * n, c), *scales))


#: The forms that ``wgmma.mma_async`` has here: f16 or bf16 multiplicands, f32 accumulators.
WGMMA_FORMS: tuple[tuple[str, ...], ...] = tuple(
    ("sync", "aligned", f"m64n{n}k16", "f32", ab, ab) for ab in ("f16", "bf16") for n in range(8, 257, 8)
)
#: What a lane of the warpgroup's 128 holds of A, 64 x 16 of 16-bit elements.
WGMMA_A = 4


def wgmma_groups(mods: tuple[str, ...]) -> Groups:
    """The groups of ``wgmma.mma_async``: D = D, the descriptors of A and B, scale-d, and four integers.

    These are imm-scale-a, imm-scale-b (1 or -1), imm-trans-a and imm-trans-b. Raises KeyError for modifiers that
    spell no shape.
    """
    d = (_wgmma_accumulators(mods), F32)
    return Groups((d,), (d, (1, B64), (1, B64), (1, PRED), *((0, B32),) * 4))


def wgmma_rs_groups(mods: tuple[str, ...]) -> Groups:
    """The groups of ``wgmma.mma_async`` with A in registers: D, A = D, A, B's descriptor, scale-d, three integers."""
    d, a = (_wgmma_accumulators(mods), F32), (WGMMA_A, B32)
    return Groups((d, a), (d, a, (1, B64), (1, PRED), *((0, B32),) * 3))


def _wgmma_accumulators(mods: tuple[str, ...]) -> int:
    """How many of the 64 x n accumulators a lane of the warpgroup's 128 holds."""
    shape = next(filter(None, map(_SHAPE, mods)), None)
    if shape is None:
        raise KeyError(mods)
    return int(shape[1]) * int(shape[2]) // (4 * _LANES)
