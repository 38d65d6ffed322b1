"""The swizzles of shared slabs, which spread the rows of a tile over the banks.

A swizzle exchanges the 16-byte chunks of a row by bits of the row's number: element ``e``, of 16 bits, is at
``e ^ (((e >> shift) & mask) << 3)``. Bulk copies and ``wgmma`` have three of them in hardware, with rows of 128, 64 and
32 bytes; ``@shift`` behind the name is one with longer rows, which only loads and stores of threads know.

Sources: ``LDMATRIX_SWIZZLE_XOR``, ``swizzle_xor`` and ``WGMMA_LAYOUT_TYPE`` of ``emmy.compiler.ir.kernel.ir``; CUDA
driver API, ``cuTensorMapEncodeTiled``; PTX ISA, "Matrix descriptor".
"""

from __future__ import annotations

from typing import NamedTuple

from ptxc.errors import InputError, UnsupportedError

#: The bits of an element's number in its chunk.
CHUNK_SHIFT = 3
#: How far a row of 128 bytes is above an element, in bits.
_ROW_SHIFT = 6


class Swizzle(NamedTuple):
    """One swizzle, and how the hardware names it."""

    #: Which bits of the row's number count.
    mask: int
    #: The layout type in a descriptor of ``wgmma``, and to how many bytes an array is aligned: eight rows.
    layout: int
    align: int
    #: The name of a tensor map's (after ``CU_TENSOR_MAP_SWIZZLE_``), and the most bytes of a row of its boxes (0: any).
    map_name: str
    row: int


SWIZZLES = {
    "NONE": Swizzle(0, 0, 16, "NONE", 0),
    "B32": Swizzle(1, 3, 256, "32B", 32),
    "B64": Swizzle(3, 2, 512, "64B", 64),
    "B128": Swizzle(7, 1, 1024, "128B", 128),
}


def hardware(mode: str) -> Swizzle:
    """The swizzle that hardware does of the mode ``mode``. Raises InputError where there is none."""
    found = SWIZZLES.get(mode.removesuffix(f"@{_ROW_SHIFT}")) if isinstance(mode, str) else None
    if found is None:
        raise InputError(f"hardware has no swizzle {mode!r}", hint=f"it has {', '.join(SWIZZLES)}")
    return found


def of_map(name: str) -> Swizzle:
    """The swizzle that tensor maps call ``name``."""
    return next(each for each in SWIZZLES.values() if each.map_name == name)


def shift_and_mask(mode: str) -> tuple[int, int]:
    """How far the row's bits are above an element, and which of them count; the mask is 0 where nothing is exchanged.

    Raises UnsupportedError for an unknown mode, InputError for a shift that sends two chunks to one place: a shift by
    the chunk's own bits makes the lowest of them 0, any greater one is undone from the highest bit down.
    """
    name, at, shift = mode.partition("@")
    found = SWIZZLES.get(name)
    if found is None:
        hint = f"layouts are {', '.join(SWIZZLES)}, and V70A and V70B on m8n8k4"
        raise UnsupportedError(f"the shared-memory layout {mode!r} is not supported yet", hint=hint)
    if not at:
        return _ROW_SHIFT, found.mask
    if not shift.isdecimal() or not CHUNK_SHIFT < int(shift) < 32 or not found.mask:
        hint = f"the shift is {CHUNK_SHIFT + 1} to 31, of any but NONE"
        raise InputError(f"the swizzle {mode!r} shifts by {shift!r}", hint=hint)
    return int(shift), found.mask
