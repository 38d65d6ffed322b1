"""The corpus ``bench15`` of kernels that lies beside the repository: 15 problems, as Emmy scheduled them.

Its README says what the files hold; ``MANIFEST.json`` lists them, and the sequences of kernels that compute a problem.
"""

from __future__ import annotations

import json
import math
import os
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from conftest import SHARED
from launching import Array, Arrays

import ptxc
from ptxc.compilation import CompiledKernel

FOLDER = SHARED / "bench15"

#: Whether to run the tests on all of the corpus, not on a sample.
WHOLE = os.environ.get("PTXC_WHOLE_CORPUS") == "1"

#: What ptxc compiles beside the core of the Kernel IR.
BEYOND_CORE = {"Let", "Select", "WarpBroadcast", "ZeroPrologue"}

#: Launches with more elements than this in an input or the outputs take the CPU device too long.
MAX_INPUT, MAX_OUTPUT = 4_000_000, 300_000

#: Of a single launch of more threads than this, some CTAs are executed.
MAX_THREADS = 400_000

#: Launches of more threads than this are left to the run of the whole corpus.
MAX_SAMPLE = 100_000


@dataclass(frozen=True, slots=True)
class Run:
    """A problem of one size, under one schedule, for one target: kernels to launch one after the other."""

    problem: str
    size: str
    variant: str
    target: str
    files: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.schedule}.{self.target}"

    @property
    def name(self) -> str:
        """The problem and its size."""
        return f"{self.problem}.{self.size}"

    @property
    def schedule(self) -> str:
        """All but the target."""
        return f"{self.name}.{self.variant}"

    @property
    def sampled(self) -> int | None:
        """How many CTAs to execute, where all are too many: of one kernel that adds to nothing."""
        (first, *others) = (entries()[file] for file in self.files)
        if others or first["zero_outputs"] or self.threads <= MAX_THREADS:
            return None
        return int(MAX_THREADS // math.prod(first["block"]))

    @property
    def share(self) -> float:
        """The part of the CTAs that is executed."""
        total: int = math.prod(entries()[self.files[0]]["grid"])
        return (self.sampled or total) / total

    @property
    def threads(self) -> int:
        """How many threads the kernels have together."""
        return sum(math.prod(entries()[file]["grid"]) * math.prod(entries()[file]["block"]) for file in self.files)

    def compile(self) -> list[CompiledKernel]:
        """The kernels, compiled."""
        return [kernel for file in self.files for kernel in ptxc.compile(FOLDER / file, target=self.target)]


def code(kernels: Iterable[CompiledKernel]) -> str:
    """The kernels' PTX without what names the target: for many, the same is made for several."""
    return "".join(kernel.ptx.partition(".address_size")[2] for kernel in kernels)


@cache
def manifest() -> dict[str, Any]:
    """The manifest; one of nothing where the corpus is not here."""
    if not FOLDER.is_dir():
        return {"files": [], "launches": [], "references": {}}
    content: dict[str, Any] = json.loads((FOLDER / "MANIFEST.json").read_text())
    return content


@cache
def entries() -> dict[str, dict[str, Any]]:
    """What the manifest says of each file that ptxc compiles."""
    return {entry["file"]: entry for entry in manifest()["files"] if set(entry["non_core"]) <= BEYOND_CORE}


def runs() -> Iterator[Run]:
    """All runs of kernels that ptxc compiles."""
    for launch in manifest()["launches"]:
        if entries().keys() >= set(launch["sequence"]):
            files = tuple(launch["sequence"])
            yield Run(launch["problem"], launch["size"], launch["variant"], launch["target"], files)


def executable() -> Iterator[Run]:
    """Runs that have a reference and are small enough for the CPU device."""
    for run in runs():
        if reference_file(run).exists():
            inputs, outputs = reference(run)
            if max((a.size for a in inputs.values()), default=0) <= MAX_INPUT and (
                sum(a.size for a in outputs.values()) <= MAX_OUTPUT
            ):
                yield run


def reference_file(run: Run) -> Path:
    """Where the inputs of a run and what it should compute are."""
    return FOLDER / "ref" / f"{run.name}.npz"


@cache
def _numbers(file: Path) -> dict[str, Array]:
    with np.load(file) as numbers:
        return {name: numbers[name] for name in numbers.files}


def reference(run: Run) -> tuple[Arrays, dict[str, Array]]:
    """The inputs of a run, and what its outputs should be, in float64."""
    numbers = _numbers(reference_file(run))
    inputs = {name.removeprefix("in_"): numbers[name] for name in numbers if name.startswith("in_")}
    return inputs, {name.removeprefix("out64_"): numbers[name] for name in numbers if name.startswith("out64_")}


def schedules(runs: Iterable[Run]) -> Iterator[tuple[str, list[Run]]]:
    """Runs by what they compute, from which size, under which schedule: one of them for each target."""
    for name, found in groupby(sorted(runs, key=str), key=lambda run: run.schedule):
        yield name, list(found)


def sample(runs: Iterable[Run]) -> list[Run]:
    """Some of the runs, the same ones each time: each size, schedule and target of each problem, where it is small."""
    if WHOLE:
        return list(runs)
    seen: set[tuple[str, str]] = set()
    chosen = []
    for run in sorted(runs, key=lambda run: zlib.crc32(str(run).encode())):
        if run.threads > MAX_SAMPLE or run.size.startswith("full"):
            continue
        new = {(run.problem, part) for part in (run.size, run.variant, run.target)} - seen
        if new:
            chosen.append(run)
            seen |= new
    return sorted(chosen, key=str)
