"""The ``init`` check: a read of a register or of shared memory that nothing has written."""

from __future__ import annotations

import numpy as np

from ptxc.sim.access import Piece
from ptxc.sim.machine import Active, Machine
from ptxc.sim.program import Register
from ptxc.sim.scalar import Index, Mask

_WRITTEN = 0x0101010101010101


class InitCheck:
    """What a batch has written: one flag a byte of shared memory, and for some registers one a thread.

    A register that a ``full`` set of threads wrote is defined for good; only those first written by some threads
    need a mask.
    """

    def __init__(self, shared_bytes: int, threads: int) -> None:
        self._threads = threads
        self._shared = np.zeros(shared_bytes, np.uint8)
        self._partly: dict[int, Mask] = {}
        self._wholly: set[int] = set()

    # Registers

    def register_written(self, index: int, active: Active) -> None:
        """Note that ``active`` threads wrote register ``index``."""
        if index in self._wholly:
            return
        if active.full:
            self._wholly.add(index)
            self._partly.pop(index, None)
            return
        mask = self._partly.get(index)
        if mask is None:
            mask = self._partly[index] = np.zeros(self._threads, np.bool_)
        mask[active.index] = True

    def register_read(self, m: Machine, register: Register, active: Active) -> None:
        """A finding for those ``active`` threads that never wrote ``register``."""
        mask = self._partly.get(register.index)
        if mask is None:
            return
        written = mask[active.index]
        if not written.all():
            self._report(m, register, active.index[~written])

    def never_written(self, m: Machine, register: Register, active: Active) -> None:
        """A finding: no thread ever wrote ``register``."""
        self._report(m, register, active.index)

    def _report(self, m: Machine, register: Register, slots: Index) -> None:
        message = f"reads register {register.name}, which nothing has written"
        m.report("init", f"register {register.name}", message, slots)

    # Shared memory

    def shared_written(self, offsets: Index, size: int) -> None:
        """Note a write of ``size`` bytes at each of ``offsets`` of the batch's shared memory."""
        for flags, at in self._words(offsets, size):
            flags[at] = _WRITTEN & (1 << 8 * flags.itemsize) - 1

    def shared_read(self, m: Machine, piece: Piece, size: int) -> None:
        """A finding for each read of a byte that nothing has written."""
        for flags, at in self._words(piece.offsets, size):
            written = flags[at] == _WRITTEN & (1 << 8 * flags.itemsize) - 1
            if not written.all():
                first = int(np.argmin(written))
                address = int(piece.offsets[first]) % m.shared_stride
                message = f"reads {size} bytes of shared memory of which some were never written"
                m.report("init", "shared", message, piece.slots[~written], address=address, space="shared")
                return

    def _words(self, offsets: Index, size: int) -> list[tuple[np.ndarray, Index]]:
        """The flags of an access as words of its size; 16 bytes are two words."""
        width = min(size, 8)
        flags = self._shared.view(f"u{width}")
        at = offsets >> (width.bit_length() - 1)
        return [(flags, at + step) for step in range(size // width)]
