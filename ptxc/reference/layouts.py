"""Where a shared array keeps what is at a row and column of it: the layouts that avoid conflicts of banks.

Sources: ``LDMATRIX_SWIZZLE_XOR`` and ``smem_layout_index`` of ``emmy.compiler.ir.kernel.ir``, ``emmy_volta_crosswise``
and ``emmy_volta_b_congruous`` of ``emmy.compiler.ir.kernel.render``; the PTX ISA, "Swizzling modes".
"""

from __future__ import annotations

from ptxc.errors import UnsupportedError
from ptxc.reference.buffers import Array

#: XOR swizzles: the bytes of a row that the pattern covers, and the mask of the bits that are exchanged.
SWIZZLES = {"B128": (128, 7), "B64": (64, 3), "B32": (32, 1)}

#: The layouts of Volta's operands.
CROSSWISE, CONGRUOUS = "V70A", "V70B"


def swizzled(mode: str, flat: Array) -> Array:
    """The place of an element of 16 bits: ``i`` is kept at ``i ^ (((i >> shift) & mask) << 3)``; ``B128@7`` names
    another shift than 6."""
    name, _, shift = mode.partition("@")
    if mode == "NONE":
        return flat
    if name not in SWIZZLES:
        raise UnsupportedError(f"the reference does not know the layout {mode!r}")
    result: Array = flat ^ (((flat >> (int(shift) if shift else 6)) & SWIZZLES[name][1]) << 3)
    return result


def swizzled_bytes(mode: str, address: Array) -> Array:
    """The address where tensor copies and tensor cores keep a byte: in units of 16, which they exchange by row."""
    if mode == "NONE":
        return address
    if mode not in SWIZZLES:
        raise UnsupportedError(f"the reference does not know the layout {mode!r}")
    result: Array = address ^ (((address >> 7) & SWIZZLES[mode][1]) << 4)
    return result


def crosswise(row: Array, column: Array, rows: int) -> Array:
    """Volta's layout of an operand whose reduced dimension are the columns, of ``rows`` rows."""
    group = column >> 2
    place = (row & ~15) + ((row & 3) << 2) + (((row >> 2) ^ ((row & 16) >> 3)) & 3)
    place = place ^ (((group & 7) >> 1) & 3)
    result: Array = (group * rows + place) * 4 + (column & 3)
    return result


def congruous(row: Array, column: Array, columns: int) -> Array:
    """Volta's layout of an operand whose reduced dimension are the rows, of ``columns`` columns."""
    group = column >> 3
    place = ((row & 3) ^ (group & 3)) | (group & 4)
    result: Array = ((row & ~3) + (group & 3)) * columns + ((group & ~7) + place) * 8 + (column & 7)
    return result
