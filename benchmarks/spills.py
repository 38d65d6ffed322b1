"""Registers and spills of ptxc's kernels beside those of nvcc's build of Emmy's CUDA text, as ptxas tells them.

    python benchmarks/spills.py [--target sm_89 ...] [--only TEXT] [--step N] [--tool FILE] [--results FILE]

Every kernel of ``../shared/bench15`` that ptxc compiles, for each of its targets, is built both ways. What is known
already is read from the results' file and not built again: nvcc's figures belong to the input file, ptxc's to its PTX.
Prints the kernels that spill more than nvcc's do, those that take over 8 registers more, and totals.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import sys
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import batched
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tests" / "end_to_end")]

from bench15 import FOLDER, entries  # noqa: E402
from emmy_cuda import TOOL, resources  # noqa: E402

import ptxc  # noqa: E402
from ptxc.toolchain import Resources, assemble  # noqa: E402

#: Two compilers at a time; nvcc gets this many files a call, as Emmy takes a second to start.
PROCESSES, BATCH = 2, 8

#: Where figures are kept, for the next run.
RESULTS = Path(tempfile.gettempdir(), "ptxc-spills.jsonl")

#: How many registers more are worth a line.
TOLERANCE = 8


@dataclass(frozen=True, slots=True)
class Figures:
    """Registers of a thread, and the bytes that it spills, stored and loaded."""

    registers: int
    spill: int

    @staticmethod
    def of(used: Resources) -> Figures:
        """The figures among what ptxas tells."""
        return Figures(used.registers, used.spill_stores + used.spill_loads)


class Results:
    """A file of figures, one JSON line each, by what they were measured on."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: dict[str, Figures] = {}
        for line in path.read_text().splitlines() if path.exists() else ():
            key, registers, spill = json.loads(line)
            self._known[key] = Figures(registers, spill)

    def __contains__(self, key: str) -> bool:
        return key in self._known

    def __getitem__(self, key: str) -> Figures:
        return self._known[key]

    def add(self, key: str, used: Resources) -> None:
        """Note figures, in the file too."""
        found = self._known[key] = Figures.of(used)
        with self._path.open("a") as file:
            file.write(json.dumps([key, found.registers, found.spill]) + "\n")


@dataclass(frozen=True, slots=True)
class Job:
    """A kernel for a target, its PTX by ptxc, and the keys of both builds' figures."""

    file: str
    target: str
    name: str
    ptx: str
    ours: str
    theirs: str


def jobs(targets: Sequence[str], only: str, step: int) -> list[Job]:
    """What to compare: each input once for each target, however many schedules came to it."""
    found = {}
    for file, entry in [item for item in entries().items() if only in item[0]][::step]:
        if "ZeroPrologue" in entry["non_core"]:
            continue  # Emmy 0.3.22 cannot read it back
        source = hashlib.sha256((FOLDER / file).read_bytes()).hexdigest()
        for target in entry["targets"]:
            theirs = f"nvcc {target} {source}"
            if target in targets and theirs not in found:
                (kernel,) = ptxc.compile(FOLDER / file, target=target)
                ours = f"ptxc {target} {hashlib.sha256(kernel.ptx.encode()).hexdigest()}"
                found[theirs] = Job(file, target, kernel.name, kernel.ptx, ours, theirs)
    return list(found.values())


def measure(jobs: Iterable[Job], results: Results, tool: Path) -> None:
    """Build what is not known yet."""

    def build_ours(job: Job) -> None:
        results.add(job.ours, assemble(job.ptx, job.target).kernels[job.name])

    def build_theirs(batch: Sequence[Job]) -> None:
        for job, used in zip(batch, resources([job.file for job in batch], batch[0].target, tool), strict=True):
            results.add(job.theirs, used)

    with ThreadPoolExecutor(PROCESSES) as pool:
        futures = [pool.submit(build_ours, job) for job in jobs if job.ours not in results]
        for target in sorted({job.target for job in jobs}):
            missing = [job for job in jobs if job.target == target and job.theirs not in results]
            futures += [pool.submit(build_theirs, batch) for batch in batched(missing, BATCH)]
        for number, future in enumerate(futures, 1):
            future.result()
            print(f"\r{number} of {len(futures)} built", end="", file=sys.stderr)
    print(file=sys.stderr)


def report(jobs: Sequence[Job], results: Results) -> None:
    """Print the comparison."""
    pairs = [(job, results[job.ours], results[job.theirs]) for job in jobs]
    spilling = [(job, ours, theirs) for job, ours, theirs in pairs if ours.spill > theirs.spill]
    hungry = [pair for pair in pairs if pair[1].registers > pair[2].registers + TOLERANCE]
    for title, found in (("spills more than nvcc's", spilling), (f"over {TOLERANCE} registers more", hungry)):
        print(f"\n{len(found)} kernels: {title}\n\nregisters nvcc   spill nvcc   kernel")
        for job, ours, theirs in sorted(found, key=lambda pair: pair[0].file):
            numbers = f"{ours.registers:9} {theirs.registers:4} {ours.spill:7} {theirs.spill:4}"
            print(f"{numbers}   {job.target} {job.file.removeprefix('kernels/')}")
    print("\ntarget   kernels   spill: ptxc nvcc   registers: fewer same more, geometric mean of ptxc / nvcc")
    for target in sorted({job.target for job in jobs}, key=lambda target: int(target[3:])):
        own = [(ours, theirs) for job, ours, theirs in pairs if job.target == target]
        logs = [math.log(ours.registers / theirs.registers) for ours, theirs in own]
        spills = [sum(figures[side].spill > 0 for figures in own) for side in (0, 1)]
        signs = [sum((log > 0) - (log < 0) == sign for log in logs) for sign in (-1, 0, 1)]
        mean = math.exp(sum(logs) / len(logs))
        print(
            f"{target:6} {len(own):9} {spills[0]:13} {spills[1]:4} {signs[0]:18} {signs[1]:4} {signs[2]:4} {mean:10.3f}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", action="append", metavar="sm_NN", help="one target or several; sm_89 by default")
    parser.add_argument("--only", default="", metavar="TEXT", help="files with this in their names")
    parser.add_argument("--step", type=int, default=1, metavar="N", help="every N-th file")
    parser.add_argument("--tool", type=Path, default=TOOL, help="emmy_reference.py, which has Emmy's CUDA text built")
    parser.add_argument("--results", type=Path, default=RESULTS, help="the file of figures")
    arguments = parser.parse_args()
    chosen = jobs(arguments.target or ["sm_89"], arguments.only, arguments.step)
    results = Results(arguments.results)
    measure(chosen, results, arguments.tool)
    report(chosen, results)


if __name__ == "__main__":
    main()
