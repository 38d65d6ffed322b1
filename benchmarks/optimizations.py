"""What each optimisation is worth: kernels with all of them, and with one left out.

    python benchmarks/optimizations.py [FOLDER ...] [--only TEXT] [--sample N] [--configurations TEXT]
                                       [--jobs N] [--json FILE] [--target sm_89]

Each FOLDER (by default ../shared/emmy-corpus) holds kernels and a MANIFEST.jsonl that names the target of each. Each
kernel is compiled as it is (--opt 2); without each of the optional passes (--disable PASS); at --opt 0 and 1; and
without each of the frontend's optimisations that have no switch, by the patches of benchmarks/frontend_without.py (in
the pure-Python build of ptxc alone). Each build is assembled and disassembled.

A row of the table is a configuration: how many kernels there are of it; then, as the geometric mean of the kernels'
ratios to the build as it is, with the greatest in parentheses: PTX lines, CPU time of ptxc and of ptxas, registers of a
thread, SASS in all, and SASS for a unit of work in the hottest loop (docs/compare.md), of those whose hottest loops are
alike; and bytes that all kernels spill, and the kernels that do. The first row has totals instead of ratios.

What ptxas made is kept where `ptxc compare` keeps it: a run that was interrupted goes on where it was, and after a
change only what it changed is assembled. Kernels for sm_70 are built for sm_75, as CUDA 13 knows no older GPU; those
that need more shared memory than it has are left out.

Exit status: 0, 1 if a kernel is not built in some configuration, 2 for wrong arguments, 130 when interrupted.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import statistics
import sys
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

from frontend_without import WITHOUT
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from shared import SHARED

from ptxc import is_compiled
from ptxc.comparison import Build
from ptxc.comparison.builds import build_of, timed_compilation
from ptxc.comparison.work import alike, common_unit
from ptxc.compilation import Options
from ptxc.corpus import Entry, entries
from ptxc.driver import graph_of
from ptxc.errors import CompileError
from ptxc.frontend.reader import kernel_nodes
from ptxc.passes.pipeline import PIPELINE, TOP_LEVEL
from ptxc.reference.emmy import NVCC_TARGETS
from ptxc.store import Store, open_store
from ptxc.toolchain import find_tool

#: Characters of a line where the output is no terminal.
_WIDTH = 200


# -------------------------------------------------------------------------------------------------- configurations


class Configuration(NamedTuple):
    """A way to compile: options that differ, and what holds meanwhile."""

    name: str
    options: dict[str, Any] = {}  # noqa: RUF012
    patched: Callable[[], AbstractContextManager[None]] = nullcontext


#: What the others are compared with.
AS_IT_IS = Configuration("as it is")


def configurations() -> list[Configuration]:
    """All of them, :data:`AS_IT_IS` first."""
    optional = [item.name for item in PIPELINE if not item.required]
    return [
        AS_IT_IS,
        *(Configuration(f"without {name}", {"disable": (name,)}) for name in optional),
        *(Configuration(f"--opt {level}", {"opt": level}) for level in reversed(range(TOP_LEVEL))),
        *(Configuration(f"without {name}", patched=without.applied) for name, without in WITHOUT.items()),
    ]


# ---------------------------------------------------------------------------------------------------------- builds


@dataclass
class Row:
    """One kernel: its build in each configuration, by name, and why there is none."""

    file: str
    kernel: str
    target: str
    builds: dict[str, Build] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    #: Whether a build is missing that there should be.
    failed: bool = False


@dataclass
class Builder:
    """Builds kernels, one file each call, in several threads."""

    kept: Store
    wanted: Sequence[Configuration]
    stopped: bool = False
    #: Compilations are timed, and patches hold for all threads: one at a time.
    _alone: Lock = field(default_factory=Lock)

    def rows(self, entry: Entry) -> list[Row]:
        """The kernels of a file. What cannot be built is a note."""
        if self.stopped:
            return []
        target = NVCC_TARGETS.get(entry.target, entry.target)
        try:
            graph = graph_of(entry.path)
            nodes = list(kernel_nodes(graph))
        except CompileError as error:
            return [Row(entry.path.name, "", target, notes=[str(error)], failed=True)]
        found = []
        for node in nodes:
            row = Row(entry.path.name, node.op.name or node.node_id, target)
            for wanted in self.wanted:
                try:
                    with self._alone, wanted.patched():
                        kernel, seconds = timed_compilation(node, graph, Options(target=target, **wanted.options))
                    row.builds[wanted.name] = build_of(kernel, seconds, self.kept)
                except CompileError as error:
                    row.notes.append(f"{wanted.name}: {error}")
                    # A kernel for sm_70 may need more shared memory than sm_75 has.
                    row.failed = row.failed or wanted is not AS_IT_IS or target == entry.target
                    if wanted is AS_IT_IS:
                        break
            found.append(row)
        return found


def build_all(chosen: Sequence[Entry], builder: Builder, jobs: int, console: Console) -> tuple[list[Row], bool]:
    """The kernels of all files in their order, and whether that was interrupted: then of those that were done."""
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    rows: list[Row] = []
    with Progress(*columns, console=console, transient=True) as bar, ThreadPoolExecutor(jobs) as pool:
        task = bar.add_task("kernels", total=len(chosen))
        futures: list[Future[list[Row]]] = [pool.submit(builder.rows, entry) for entry in chosen]
        try:
            for future in futures:
                rows += future.result()
                bar.advance(task)
        except KeyboardInterrupt:
            builder.stopped = True
            pool.shutdown(cancel_futures=True)
            return rows, True
    return rows, False


def sample(chosen: Sequence[Entry], count: int) -> list[Entry]:
    """So many of the kernels, the same ones each time: of each family on each card one, then of each a second, ..."""
    groups: dict[tuple[str, str], list[Entry]] = {}
    for entry in sorted(chosen, key=lambda entry: hashlib.sha256(entry.path.name.encode()).digest()):
        groups.setdefault((entry.card, entry.family), []).append(entry)
    turns = [(turn, key, entry) for key, group in groups.items() for turn, entry in enumerate(group)]
    taken = {entry for _, _, entry in sorted(turns)[:count]}
    return [entry for entry in chosen if entry in taken]


# --------------------------------------------------------------------------------------------------------- figures


class Ratio(NamedTuple):
    """The geometric mean of the kernels' ratios to their builds as they are, and the kernel with the greatest."""

    mean: float
    worst: float
    kernel: str

    @staticmethod
    def of(ratios: Iterable[tuple[float, str]]) -> Ratio | None:
        """Of ratios with the names of their kernels; None of none."""
        known = sorted(ratios)
        return Ratio(statistics.geometric_mean(ratio for ratio, _ in known), *known[-1]) if known else None


#: What is compared as ratios.
FIGURES: dict[str, Callable[[Build], float]] = {
    "PTX lines": lambda build: build.ptx_lines,
    "ptxc CPU": lambda build: build.ptx_seconds,
    "ptxas CPU": lambda build: build.ptxas_seconds,
    "registers": lambda build: build.resources.registers,
    "SASS": lambda build: build.code.size,
}
PER_WORK = "SASS for work"


@dataclass
class Effect:
    """What a configuration makes of all kernels that are built with it and as they are."""

    name: str
    kernels: int
    #: By the names of :data:`FIGURES`, and :data:`PER_WORK`.
    ratios: dict[str, Ratio | None]
    #: Bytes that these kernels spill, and how many do; the same as they are.
    spilled: tuple[int, int]
    spilling: tuple[int, int]


def effect(rows: Iterable[Row], name: str) -> Effect:
    """The effect of the configuration of that name."""
    pairs = [
        (row, row.builds[name], row.builds[AS_IT_IS.name]) for row in rows if {name, AS_IT_IS.name} <= {*row.builds}
    ]
    ratios = {
        figure: Ratio.of((of(build) / of(usual), row.file) for row, build, usual in pairs)
        for figure, of in FIGURES.items()
    }
    ratios[PER_WORK] = Ratio.of((ratio, row.file) for row, *both in pairs if (ratio := per_work(*both)) is not None)
    spilled = [[build.spilled for build in builds] for builds in zip(*(both for _, *both in pairs))] or [[], []]
    ours, usual = spilled
    return Effect(name, len(pairs), ratios, (sum(ours), sum(usual)), (sum(map(bool, ours)), sum(map(bool, usual))))


def per_work(build: Build, usual: Build) -> float | None:
    """How many times the SASS for a unit of work in the hottest region, None where the regions are not alike."""
    unit = common_unit([build.code, usual.code])
    ours, theirs = build.code.hottest(unit), usual.code.hottest(unit)
    return ours.per_work(unit) / theirs.per_work(unit) if alike(ours, theirs, unit) else None


# ---------------------------------------------------------------------------------------------------------- output


def table(rows: Sequence[Row], wanted: Sequence[Configuration]) -> Table:
    """A line for each configuration; the text is a table of Markdown too."""
    made = Table(box=box.MARKDOWN)
    made.add_column("configuration", no_wrap=True)
    for head in ("kernels", *FIGURES, PER_WORK, "bytes spilled", "spilling"):
        made.add_column(head, justify="right", no_wrap=True)
    for one in wanted:
        found = effect(rows, one.name)
        cells = [_cell(found.ratios[figure]) for figure in (*FIGURES, PER_WORK)]
        spills = [f"{ours} / {usual}" for ours, usual in (found.spilled, found.spilling)]
        if one.name == AS_IT_IS.name:
            cells, spills = _totals(rows), [str(found.spilled[0]), str(found.spilling[0])]
        made.add_row(one.name, str(found.kernels), *cells, *spills)
    return made


def _cell(ratio: Ratio | None) -> str:
    return f"{ratio.mean:.3f} ({ratio.worst:.2f})" if ratio else "-"


def _totals(rows: Sequence[Row]) -> list[str]:
    """What the builds as they are take together, in the order of the columns."""
    builds = [row.builds[AS_IT_IS.name] for row in rows if AS_IT_IS.name in row.builds]
    lines, ptxc, ptxas, registers, sass = (sum(map(of, builds)) for of in FIGURES.values())
    return [f"{lines:,}", f"{ptxc:.2f} s", f"{ptxas:.1f} s", f"{registers:,}", f"{sass:,}", ""]


def to_dict(rows: Sequence[Row], wanted: Sequence[Configuration]) -> dict[str, Any]:
    """All figures, as JSON takes them: the effects, and of each kernel and configuration what they are made of."""

    def figures(row: Row, name: str) -> dict[str, Any]:
        build, usual = row.builds[name], row.builds.get(AS_IT_IS.name)
        known = {figure: of(build) for figure, of in FIGURES.items()}
        return known | {"spilled": build.spilled, PER_WORK: per_work(build, usual) if usual else None}

    effects = []
    for one in wanted:
        found = effect(rows, one.name)
        ratios = {figure: ratio._asdict() if ratio else None for figure, ratio in found.ratios.items()}
        effects.append(vars(found) | {"ratios": ratios})
    kernels = [
        {
            "file": row.file, "kernel": row.kernel, "target": row.target, "notes": row.notes,
            "builds": {name: figures(row, name) for name in row.builds},
        }
        for row in rows
    ]  # fmt: skip
    return {"effects": effects, "kernels": kernels}


def arguments(given: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*", type=Path, metavar="FOLDER", help="folders of kernels")
    parser.add_argument("--only", default="", metavar="TEXT", help="only files whose name or family contains TEXT")
    parser.add_argument("--sample", type=int, metavar="N", help="only so many kernels, of all cards and families")
    parser.add_argument(
        "--configurations", default="", metavar="TEXT", help="only those whose name contains TEXT, beside the usual one"
    )
    parser.add_argument("--target", default="sm_89", help="the target of folders without a manifest")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="assemblers at a time")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures")
    return parser.parse_args(given)


def main(given: Sequence[str] | None = None) -> int:
    args = arguments(given)
    console, messages = Console(width=None if sys.stdout.isatty() else _WIDTH), Console(stderr=True)
    try:
        for tool in ("ptxas", "nvdisasm"):
            find_tool(tool)
        folders = args.folders or [SHARED / "emmy-corpus"]
        chosen = [entry for folder in folders for entry in entries(folder, args.target)]
    except CompileError as error:
        messages.print(str(error), style="red")
        return 2
    chosen = [entry for entry in chosen if args.only in entry.path.name or args.only in entry.family]
    if args.sample is not None:
        chosen = sample(chosen, args.sample)
    wanted = [one for one in configurations() if one is AS_IT_IS or args.configurations in one.name]
    if is_compiled():  # its functions call each other directly: a patch would have no effect
        wanted = [one for one in wanted if one.patched is nullcontext]
    if not chosen:
        messages.print("there is no such kernel", style="red")
        return 2
    rows, interrupted = build_all(chosen, Builder(open_store(), wanted), max(1, args.jobs), messages)
    console.print(table(rows, wanted))
    if args.json is not None:
        args.json.write_text(json.dumps(to_dict(rows, wanted), indent=1) + "\n")
    for row in rows:
        for note in row.notes:
            messages.print(f"{row.file}: {note}", style="dim", markup=False)
    if interrupted:
        messages.print(f"interrupted after {len(rows)} of {len(chosen)} kernels; run it again to go on")
        return 130
    return int(any(row.failed for row in rows))


if __name__ == "__main__":
    raise SystemExit(main())
