"""Folders of kernels: which there are, and the GPU that each is for."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from ptxc.errors import InputError

MANIFEST = "MANIFEST.jsonl"


class Entry(NamedTuple):
    """One kernel of a corpus."""

    path: Path
    card: str
    target: str
    family: str


def entries(folder: Path, target: str = "sm_89") -> list[Entry]:
    """The kernels of a folder, in the order of its manifest; ``target`` is for those of a folder without one.

    A manifest is a file ``MANIFEST.jsonl`` with an object a line: ``file``, the ``card`` that the kernel was tuned for,
    its ``target`` and the ``row`` of Emmy's golden file that it is from. Raises InputError for any other.
    """
    if (folder / MANIFEST).exists():
        rows = _rows(folder / MANIFEST)
        return [Entry(folder / row["file"], row["card"], row["target"], family(row["row"])) for row in rows]
    return [Entry(path, folder.name, target, family(path.stem)) for path in sorted(folder.glob("*.json"))]


def _rows(manifest: Path) -> Iterator[dict[str, Any]]:
    for number, line in enumerate(manifest.read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            whole = all(isinstance(row[key], str) for key in ("file", "card", "target", "row"))
        except (ValueError, TypeError, LookupError):
            whole = False
        if not whole:
            hint = 'a line is an object with the texts "file", "card", "target" and "row"'
            raise InputError(f"line {number} names no kernel", hint=hint, file=str(manifest))
        yield row


def family(row: str) -> str:
    """What a row of a golden file is about: its kernel's name without numbers, or its first part.

    ``llama31.k_linear_mean_reduce_cdec1e.dynamic.9e5c`` is of the family ``linear_mean_reduce``, ``matmul.square.512``
    of ``matmul``.
    """
    named = re.search(r"(?:^|\.)k_(\w+?)_[0-9a-f]{6}(?:\.|$)", row)
    return named[1] if named else row.partition(".")[0].removeprefix("k_")
