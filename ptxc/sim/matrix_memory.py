"""``ldmatrix``, ``stmatrix`` and ``movmatrix`` (PTX ISA 9.7.16.5.15 to 9.7.16.5.17): a warp moves 8 x 8 matrices.

Lanes 8i to 8i+7 give the addresses of the rows of the i-th matrix. What a lane reads and writes, for the race check,
is what it holds in the end: four bytes of a row, or with ``.trans`` two elements of a column.
"""

from __future__ import annotations

import numpy as np

from ptxc.sim.access import Piece, resolve, writable
from ptxc.sim.aligned import WARP, elements, read_registers, rows, whole, write_registers
from ptxc.sim.binding import Action, Modifiers, Reader, reader, writer
from ptxc.sim.machine import Active, Machine
from ptxc.sim.movement import address_reader, space_of
from ptxc.sim.program import Instruction
from ptxc.sim.scalar import TYPES, Array

_COUNTS = {"x1": 1, "x2": 2, "x4": 4}
_ROW = np.arange(32) // 4
_WORD = np.arange(32) % 4


def _form(instruction: Instruction, memory: int) -> tuple[int, bool, str, Reader]:
    """How many matrices, whether transposed, the space, and the addresses."""
    m = Modifiers(instruction)
    m.choice(("sync",))
    m.choice(("aligned",))
    m.choice(("m8n8",))
    count = _COUNTS[m.choice(_COUNTS)]
    transposed = m.flag("trans")
    space = space_of(m, instruction.operands[memory])
    if space not in {"", "shared"}:
        raise instruction.unsupported(f"space .{space}")
    m.type("b16")
    m.finish()
    if len(elements(instruction.operands[1 - memory])) != count:
        raise instruction.wrong(f"{count} registers are expected")
    return count, transposed, space, address_reader(instruction.operands[memory], instruction)


def _rows_of(m: Machine, active: Active, space: str, addresses: Array, count: int, what: str) -> Piece | None:
    """The rows of ``count`` matrices of each warp; None, behind a finding, if they are not in shared memory."""
    lanes = rows(m, active, addresses)[:, : 8 * count]
    slots = np.ascontiguousarray(active.index.reshape(-1, 32)[:, : 8 * count]).reshape(-1)
    pieces = resolve(m, Active(slots, False), space, np.ascontiguousarray(lanes).reshape(-1), 16, what)
    if m.profile is not None:
        m.profile.access(m, Active(slots, False), pieces, 16)
    if len(pieces) == 1 and pieces[0].region is m.shared and pieces[0].offsets.size == slots.size:
        return pieces[0]
    if any(piece.region is not m.shared for piece in pieces):
        m.report("memory", "space", f"{what} outside of shared memory", slots)
    return None


def _touched(piece: Piece, count: int, transposed: bool) -> Piece:
    """The four-byte words of the rows, each with the lane that holds it (with ``.trans`` two lanes do)."""
    words = (piece.offsets.reshape(-1, 8)[:, _ROW] + 4 * _WORD).reshape(-1)
    base = np.repeat(piece.slots.reshape(-1, 8 * count)[:, 0], count)[:, None]
    if not transposed:
        return Piece(piece.region, words, None, (base + np.arange(32)).reshape(-1))
    lanes = _WORD * 8 + _ROW // 2
    both = np.concatenate([(base + lanes).reshape(-1), (base + lanes + 4).reshape(-1)])
    return Piece(piece.region, np.tile(words, 2), None, both)


def _transposed(words: Array) -> Array:
    """u32 words ``[..., 8, 4]`` of 8 x 8 matrices of 16-bit elements, with rows and columns exchanged."""
    halves = words.view(np.uint16).swapaxes(-1, -2)
    return np.ascontiguousarray(halves).view(np.uint32)


def _load_matrix(instruction: Instruction) -> Action:
    count, transposed, space, address = _form(instruction, 1)
    writers = [writer(operand, TYPES["u32"], instruction) for operand in elements(instruction.operands[0])]

    def act(m: Machine, active: Active) -> None:
        whole(m, active, WARP, instruction)
        piece = _rows_of(m, active, space, address(m, active), count, "ldmatrix")
        if piece is None:
            write_registers(m, active, writers, np.zeros((active.index.size // 32, 32, count), np.uint32))
            return
        if m.checks.race is not None:
            m.checks.race.read(m, _touched(piece, count, transposed), 4)
        if m.checks.init is not None:
            m.checks.init.shared_read(m, piece, 16)
        if m.checks.proxy is not None:
            m.checks.proxy.loaded(piece)
        words = m.shared.view(16).take(piece.offsets >> 4).view(np.uint32).reshape(-1, count, 8, 4)
        if transposed:
            words = _transposed(words)
        write_registers(m, active, writers, words.reshape(-1, count, 32).transpose(0, 2, 1))

    return act


def _store_matrix(instruction: Instruction) -> Action:
    count, transposed, space, address = _form(instruction, 0)
    readers = [reader(operand, TYPES["u32"], instruction) for operand in elements(instruction.operands[1])]

    def act(m: Machine, active: Active) -> None:
        whole(m, active, WARP, instruction)
        registers = read_registers(m, active, readers)
        words = np.ascontiguousarray(registers.transpose(0, 2, 1)).reshape(-1, count, 8, 4)
        if transposed:
            words = _transposed(words)
        piece = _rows_of(m, active, space, address(m, active), count, "stmatrix")
        if piece is None or not writable(m, piece):
            return
        if m.checks.race is not None:
            m.checks.race.write(m, _touched(piece, count, False), 4)
        if m.checks.init is not None:
            m.checks.init.shared_written(piece.offsets, 16)
        if m.checks.proxy is not None:
            m.checks.proxy.written(piece)
        m.shared.view(16)[piece.offsets >> 4] = words.reshape(-1).view(np.complex128)

    return act


def _move_matrix(instruction: Instruction) -> Action:
    """``movmatrix.sync.aligned.m8n8.trans.b16``: a matrix transposed across the lanes."""
    m = Modifiers(instruction)
    for name in ("sync", "aligned", "m8n8", "trans"):
        m.choice((name,))
    m.type("b16")
    m.finish()
    write = writer(instruction.operands[0], TYPES["u32"], instruction)
    read = reader(instruction.operands[1], TYPES["u32"], instruction)

    def act(machine: Machine, active: Active) -> None:
        whole(machine, active, WARP, instruction)
        words = _transposed(read_registers(machine, active, [read]).reshape(-1, 8, 4))
        write_registers(machine, active, [write], words.reshape(-1, 32, 1))

    return act


def _set_registers(instruction: Instruction) -> Action:
    """``setmaxnreg``: a hint here; its operand is checked."""
    m = Modifiers(instruction)
    m.choice(("inc", "dec"))
    for name in ("sync", "aligned"):
        m.choice((name,))
    m.type("u32")
    m.finish()
    count = getattr(instruction.operands[0], "value", None)
    if not isinstance(count, int) or count % 8 or not 24 <= count <= 256:
        raise instruction.wrong("the number of registers is a constant, a multiple of 8 from 24 to 256")

    def act(machine: Machine, active: Active) -> None:
        whole(machine, active, WARP, instruction)

    return act


MATRIX_MEMORY = {
    "ldmatrix": _load_matrix, "stmatrix": _store_matrix, "movmatrix": _move_matrix, "setmaxnreg": _set_registers,
}  # fmt: skip
"""Matrices between memory and registers, and the register count."""
