"""The global buffers of a kernel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Buffer:
    """A global buffer that the kernel reads or writes. ``shape`` holds numbers and Emmy's symbolic dimensions."""

    name: str
    dtype: str
    shape: tuple[Any, ...]
    written: bool
    #: The element of a scalar constant: a number, or Emmy's expression over the runtime integers.
    value: Any = None
