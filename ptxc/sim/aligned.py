"""Instructions that the threads of whole warps execute together: ``.sync.aligned`` (PTX ISA 9.7.16 and 9.7.17).

The scheduler lets a block of them run only for warps of which all threads are there (``Block.gathers``); an action
here takes the threads as they come, warp by warp.
"""

from __future__ import annotations

import numpy as np

from ptxc.sim.binding import Reader, Writer
from ptxc.sim.machine import Active, Machine, Stop
from ptxc.sim.program import Instruction, Operand, Vector
from ptxc.sim.scalar import Array, Index

WARP, WARPGROUP = 32, 128

ALIGNED: dict[str, int] = {
    "mma": WARP, "ldmatrix": WARP, "stmatrix": WARP, "movmatrix": WARP, "setmaxnreg": WARP, "wgmma": WARPGROUP,
}  # fmt: skip
"""How many threads execute an instruction of each opcode together."""


def elements(operand: Operand) -> tuple[Operand, ...]:
    """The elements of a vector; anything else is a vector of one."""
    return operand.elements if isinstance(operand, Vector) else (operand,)


def whole(m: Machine, active: Active, size: int, instruction: Instruction) -> Index:
    """The slots of ``active``, which must be whole groups of ``size`` threads; where not, the launch stops."""
    index = active.index
    if active.full and index.size == m.threads and m.geometry.slots % size == 0:
        return index
    slots = m.geometry.slots
    per_cta = -(-slots // size)
    groups = np.arange(m.threads) // slots * per_cta + np.arange(m.threads) % slots // size
    counts = np.bincount(groups[index], minlength=per_cta * len(m.geometry.ctas))
    partial = (counts > 0) & (counts < size)
    if not partial.any():
        return index
    missing = partial[groups]
    missing[index] = False
    absent = np.flatnonzero(missing)
    what = "warp" if size == WARP else "warpgroup"
    message = f"these threads of a {what} exited, do not exist or are elsewhere while others execute an aligned {what}"
    m.report("sync", "aligned", f"{message} instruction", absent if absent.size else index, instruction=instruction)
    raise Stop


def rows(m: Machine, active: Active, values: Array) -> Array:
    """An operand of ``active`` threads, which are whole warps, as ``[warps, 32]``."""
    values = m.compress(values, active)
    if values.size == 1:
        return np.broadcast_to(values, (active.index.size // 32, 32))
    return values.reshape(-1, 32)


def read_registers(m: Machine, active: Active, readers: list[Reader]) -> Array:
    """The registers that ``readers`` read, as ``[warps, 32, n]``, contiguous."""
    first = readers[0](m, active)
    out = np.empty((active.index.size // 32, 32, len(readers)), first.dtype)
    for at, read in enumerate(readers):
        out[:, :, at] = rows(m, active, first if at == 0 else read(m, active))
    return out


def write_registers(m: Machine, active: Active, writers: list[Writer], values: Array) -> None:
    """Write ``values``, ``[warps, 32, n]``."""
    columns = np.ascontiguousarray(values.reshape(-1, len(writers)).T)
    for write, column in zip(writers, columns, strict=True):
        write(m, active, m.expand(column, active))
