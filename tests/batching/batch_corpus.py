"""Many distinct candidates: python batch_corpus.py COUNT FILE writes them as JSON lines.

They are the schedules in the folders of kernels that are there: the benchmark problems under many pins, and Emmy's
recorded ones, each for its own GPU; once these are used up, the same under other options. Of kernels with one content
the first.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from conftest import ROOT, SHARED

from ptxc.compilation import Options
from ptxc.corpus import entries
from ptxc.driver import Kernels

_OPTIONS: tuple[dict[str, Any], ...] = ({}, {"math": "fast"}, {"fma": False}, {"opt": 1}, {"opt": 0})


def folders() -> list[Path]:
    """The corpus, and where benchmarks/corpus.py --recipes has drawn them, Emmy's recipes' kernels."""
    recipes = sorted(path for path in (ROOT / ".cache/corpus/recipes").glob("*") if path.is_dir())
    return [SHARED / "emmy-corpus", *recipes]


def kernels() -> list[tuple[Path, str]]:
    """The kernels' files and targets: those of the problems, and those of :func:`folders`."""
    problems = SHARED / "bench15"
    listed = json.loads((problems / "MANIFEST.json").read_text())["files"]
    found = [(entry.path, entry.target) for folder in folders() for entry in entries(folder)]
    return [*((problems / row["file"], row["targets"][0]) for row in listed), *found]


def distinct() -> Iterator[dict[str, Any]]:
    """Candidates, each with a key of its own."""
    seen: set[str | None] = set()
    for options in _OPTIONS:
        for path, target in kernels():
            chosen = Options(target=target, cache=False, **options)
            key = Kernels(path, chosen).key(0, chosen)
            if key is None or key not in seen:
                seen.add(key)
                yield {"file": str(path.resolve()), "target": target, "options": options}


def write(count: int, path: Path) -> None:
    """Write so many as JSON lines."""
    lines = [json.dumps(candidate) for candidate in islice(distinct(), count)]
    assert len(lines) == count, f"there are {len(lines)}"
    path.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    write(int(sys.argv[1]), Path(sys.argv[2]))
