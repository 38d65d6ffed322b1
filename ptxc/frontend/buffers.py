"""The global buffers of a kernel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from emmy.compiler.dim import Dim

#: Extents, each a number or one of Emmy's symbolic dimensions.
Shape = tuple[int | Dim, ...]


@dataclass(frozen=True, slots=True)
class Buffer:
    """A global buffer that the kernel reads or writes."""

    name: str
    dtype: str
    shape: Shape
    written: bool
    #: The element of a scalar constant: a number, or Emmy's expression over the runtime integers.
    value: Any = None
