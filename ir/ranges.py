"""Live ranges of registers, block by block."""

from __future__ import annotations

from ptxc.ir.kernel import Block


class Range:
    """Where a register is live."""

    __slots__ = ("parts", "through", "touched")

    def __init__(self) -> None:
        #: The first and the last position in a block that it is defined or used in.
        self.parts: dict[Block, tuple[int, int]] = {}
        #: A bit for each of these blocks, and for each that it is live all through.
        self.touched = 0
        self.through = 0

    def meets(self, other: Range) -> bool:
        """Whether both are live somewhere."""
        if self.through & (other.through | other.touched) or self.touched & other.through:
            return True
        if self.touched & other.touched:
            parts = self.parts
            for block, (begin, stop) in other.parts.items():
                mine = parts.get(block)
                # A value may be defined by the instruction that reads another for the last time.
                if mine is not None and (begin == mine[0] or (begin < mine[1] and mine[0] < stop)):
                    return True
        return False

    def join(self, other: Range) -> None:
        """Take in another one. The hull of two parts with a gap between is a little larger than they are: that only
        forbids more.
        """
        parts = self.parts
        for block, (begin, stop) in other.parts.items():
            mine = parts.get(block)
            parts[block] = (begin, stop) if mine is None else (min(begin, mine[0]), max(stop, mine[1]))
        self.touched |= other.touched
        self.through |= other.through
