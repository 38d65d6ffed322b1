"""Which kernels of ``../shared/bench15`` are compiled."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple


class Choice(NamedTuple):
    """A benchmark problem, its full-size kernel with the most statements, and all kernels of that one's launch."""

    problem: str
    largest: Path
    launch: tuple[Path, ...]


def choices(folder: Path, target: str, pattern: str = "") -> list[Choice]:
    """One for each problem that has such a kernel of scalar and cooperative operations, its file name with ``pattern``.

    ``folder`` has the manifest.
    """
    manifest = json.loads((folder / "MANIFEST.json").read_text())
    largest: dict[str, dict[str, Any]] = {}
    for entry in manifest["files"]:
        problem = entry["problem"]
        wanted = entry["core"] and entry["size"].startswith("full") and problem[0] != "x"
        if not wanted or target not in entry["targets"] or pattern not in entry["file"]:
            continue
        if problem not in largest or _statements(entry) > _statements(largest[problem]):
            largest[problem] = entry
    return [
        Choice(problem, folder / entry["file"], tuple(folder / file for file in _launch(manifest, entry, target)))
        for problem, entry in sorted(largest.items())
    ]


def _statements(entry: dict[str, Any]) -> int:
    return sum(entry["stmts"].values())


def _launch(manifest: dict[str, Any], entry: dict[str, Any], target: str) -> list[str]:
    """The files of the launch that a file belongs to, in order."""
    for launch in manifest["launches"]:
        if launch["target"] == target and entry["file"] in launch["sequence"]:
            return [str(file) for file in launch["sequence"]]
    return [str(entry["file"])]
