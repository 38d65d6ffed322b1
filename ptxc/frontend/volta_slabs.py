"""Where Volta's layouts of shared slabs keep an element, as integer expressions of its row and column.

Volta has no ``ldmatrix``: a lane reads two fragments' worth of a slab with one 16-byte load, and these layouts put
what it reads next to each other and what the lanes of a quarter warp read into different banks.

Source: ``emmy_volta_crosswise`` and ``emmy_volta_b_congruous`` of ``_MMA_M8N8K4_PRELUDE`` in
``emmy.compiler.ir.kernel.render``; ``smem_layout_index`` of ``emmy.compiler.ir.kernel.ir``.
"""

from __future__ import annotations

from collections.abc import Callable

from ptxc.errors import InputError
from ptxc.frontend.integers import Integers
from ptxc.frontend.linear import Linear, constant

CROSSWISE, CONGRUOUS = "V70A", "V70B"
#: The layouts, and how many elements along a row stay together.
RUNS = {CROSSWISE: 4, CONGRUOUS: 8}


def crosswise(e: Integers, row: Linear, column: Linear, rows: Linear) -> Linear:
    """The layout of A, and of a transposed B: four columns of all ``rows`` rows, then the next four.

    Within 16 rows, the row's two low bits become the high ones. The others stay below them, mixed with the row's bit
    4 and with the column's bits 3 and 4.
    """
    low = e.bitwise("&", row, constant(15))
    high = e.registers.scale(_field(e, row, 0, 2), 4)
    mixed = _xor(e, _field(e, row, 2, 2), e.registers.scale(_field(e, row, 4, 1), 2))
    mixed = _xor(e, mixed, _field(e, column, 3, 2))
    permuted = e.registers.add(e.registers.add(e.registers.add(row, low, -1), high), mixed)
    vectors = e.multiply(e.bitwise(">>", column, constant(2)), rows)
    return e.registers.add(_field(e, column, 0, 2), e.registers.add(vectors, permuted), 4)


def congruous(e: Integers, row: Linear, column: Linear, columns: Linear) -> Linear:
    """The layout of B as it is: row-major, where vectors of eight columns trade places within four rows.

    The vector's two low bits say in which of the four rows it lies, and, mixed with those of its own row, at which
    place there.
    """
    vector = e.bitwise(">>", column, constant(3))
    of_row, of_vector = _field(e, row, 0, 2), _field(e, vector, 0, 2)
    physical_row = e.registers.add(e.registers.add(row, of_row, -1), of_vector)
    physical_vector = e.registers.add(e.registers.add(vector, of_vector, -1), _xor(e, of_row, of_vector))
    place = e.registers.add(e.multiply(physical_row, columns), physical_vector, 8)
    return e.registers.add(place, _field(e, column, 0, 3))


def _field(e: Integers, a: Linear, first: int, bits: int) -> Linear:
    """So many bits of ``a`` from bit ``first`` on."""
    return e.bitwise("&", e.bitwise(">>", a, constant(first)) if first else a, constant((1 << bits) - 1))


def _xor(e: Integers, a: Linear, b: Linear) -> Linear:
    """``a ^ b``, which is no instruction where one of them is 0."""
    for one, other in ((a, b), (b, a)):
        if not one.terms and one.constant == 0:
            return other
    return e.bitwise("^", a, b)


#: The functions' names in Emmy's expressions.
FUNCTIONS: dict[str, Callable[[Integers, Linear, Linear, Linear], Linear]] = {
    "emmy_volta_crosswise": crosswise,
    "emmy_volta_b_congruous": congruous,
}


def place(e: Integers, mode: str, index: list[Linear], shape: tuple[int, ...]) -> Linear:
    """Where a slab of ``shape`` in the layout ``mode`` keeps the element ``index``. Raises InputError."""
    if len(index) != 2 or len(shape) != 2:
        hint = "the layout mixes a row with a column: the slab and its index have two dimensions"
        raise InputError(f"an index of {len(index)} parts into a slab of the layout {mode!r}", hint=hint)
    row, column = index
    rows, columns = map(constant, shape)
    return crosswise(e, row, column, rows) if mode == CROSSWISE else congruous(e, row, column, columns)
