"""Which CTAs of a grid are executed, where all would take too long."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from ptxc.errors import UsageError
from ptxc.sim.geometry import Dim3


@dataclass(frozen=True, slots=True)
class Sample:
    """Which CTAs of a grid to execute: all, ``count`` of them spread evenly, or those of ``numbers``.

    CTAs are numbered along x, then y, then z.
    """

    count: int | None = None
    numbers: tuple[int, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Sample:
        """``all``, a count, or numbers with commas (one number too: ``7,``). Raises UsageError."""
        if text == "all":
            return cls()
        try:
            numbers = tuple(int(part) for part in text.split(",") if part)
        except ValueError:
            numbers = ()
        if not numbers or min(numbers) < 0 or (numbers == (0,) and "," not in text):
            raise UsageError(
                f"no CTAs are called {text!r}", hint="give all, how many (8), or which (0,3,5; 3, for one)"
            )
        if len(set(numbers)) < len(numbers):  # run twice, a CTA would seem to race with itself
            twice = Counter(numbers).most_common(1)[0][0]
            raise UsageError(f"CTA {twice} is given twice, {text!r}", hint="give each once")
        return cls(numbers=numbers) if "," in text else cls(count=numbers[0])

    @property
    def is_all(self) -> bool:
        """Whether no CTA is left out, whatever the grid."""
        return self.count is None and not self.numbers

    def places(self, grid: Dim3) -> list[Dim3] | None:
        """The CTAs of ``grid``; None for all. Raises UsageError for a number outside of it."""
        total = math.prod(grid)
        if self.is_all or (self.count is not None and self.count >= total):
            return None
        chosen: Iterable[int] = self.numbers
        if self.count is not None:
            chosen = np.unique(np.linspace(0, total - 1, self.count).round().astype(np.int64)).tolist()
        for number in chosen:
            if number >= total:
                raise UsageError(f"there is no CTA {number}, the grid has {total}")
        return [(n % grid[0], n // grid[0] % grid[1], n // (grid[0] * grid[1])) for n in chosen]


ALL = Sample()
