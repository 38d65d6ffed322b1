"""Folders of kernels: which there are, and the GPU that each is for."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from ptxc.errors import InputError, TargetError
from ptxc.target import parse_target

MANIFEST = "MANIFEST.jsonl"

#: What a line of it holds.
_KEYS = ("file", "card", "target", "row")


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
    Without one, all its ``*.json`` are meant but ``launch.json``, ``*.launch.json`` and ``*.meta.json``, which describe
    launches; where it has none, the graphs in the folders below it.
    """
    if (folder / MANIFEST).exists():
        rows = list(_rows(folder / MANIFEST))
        return [Entry(folder / row["file"], row["card"], row["target"], family(row["row"])) for row in rows]
    here = [path for path in sorted(folder.glob("*.json")) if _may_be_graph(path)]
    paths = here or [path for path in sorted(folder.rglob("*.json")) if _may_be_graph(path) and _says_graph(path)]
    return [Entry(path, folder.name, target, family(path.stem)) for path in paths]


def _may_be_graph(path: Path) -> bool:
    return path.name != "launch.json" and not path.name.endswith((".launch.json", ".meta.json"))


def _says_graph(path: Path) -> bool:
    """Whether the text of a file is a graph's, by one word; folders of folders hold much else."""
    try:
        return path.is_file() and b'"nodes"' in path.read_bytes()
    except OSError:
        return False


def _rows(manifest: Path) -> Iterator[dict[str, Any]]:
    for number, line in enumerate(manifest.read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise _odd(manifest, number, f"is no JSON: {error}") from error
        missing = [key for key in _KEYS if not (isinstance(row, dict) and isinstance(row.get(key), str))]
        if missing:
            raise _odd(manifest, number, f"has no text {json.dumps(missing[0])}")
        try:
            parse_target(row["target"])
        except TargetError as error:
            raise _odd(manifest, number, f"has a target that is none: {error.what}", error.hint) from error
        if not (manifest.parent / row["file"]).is_file():
            raise _odd(manifest, number, f"names a file that is not there: {row['file']!r}", "write it from the folder")
        yield row


def _odd(manifest: Path, number: int, what: str, hint: str = "") -> InputError:
    """The error for a line of a manifest."""
    hint = hint or 'a line is an object with the texts "file", "card", "target" and "row"'
    return InputError(f"line {number} {what}", hint=hint, file=str(manifest))


def family(row: str) -> str:
    """What a row of a golden file is about: its kernel's name without numbers, or its first part.

    ``llama31.k_linear_mean_reduce_cdec1e.dynamic.9e5c`` is of the family ``linear_mean_reduce``, ``matmul.square.512``
    of ``matmul``.
    """
    named = re.search(r"(?:^|\.)k_(\w+?)_[0-9a-f]{6}(?:\.|$)", row)
    return named[1] if named else row.partition(".")[0].removeprefix("k_")
