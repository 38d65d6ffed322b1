"""Compiles every kernel of Emmy's corpus for its card, assembles it, and shows what came of it.

    python benchmarks/corpus.py [FOLDER ...] [--recipes] [--only TEXT] [--nvcc] [--no-ptxas] [--target sm_89]
                                [--jobs N]

Each FOLDER (by default ../shared/emmy-corpus) holds kernels and a MANIFEST.jsonl, which names the card, the target and
the row of Emmy's golden file of each; a folder without one is compiled for --target. --recipes draws the kernels of
Emmy's recipes too, with ../shared/tools/emmy_corpus.py, once.

A row of the table is a family of kernels on a card: how many kernels there are, are compiled and are assembled; the
median and the most registers of a thread; how many kernels spill, and the bytes that they store and load; CPU
microseconds of ptxc for a PTX line (the better of two compilations; reading the file is no part of it); and with --nvcc
how many times more CPU `nvcc --ptx` takes for Emmy's CUDA text. A second table counts the errors by kind.

What ptxas and nvcc made is kept in ptxc's store (docs/cache.md). A run that was interrupted goes on where it was, and a
run after a change assembles what the change changed.

Exit status: 0, 1 if a kernel is not compiled or not assembled, 2 for wrong arguments, 130 when interrupted.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Generator, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from shared import SHARED

from ptxc.comparison.builds import compiled_by_nvcc, emmys_texts
from ptxc.compilation import Options
from ptxc.corpus import Entry, entries
from ptxc.driver import compile_kernel
from ptxc.errors import CompileError, ToolchainError, UnsupportedError
from ptxc.frontend.reader import kernel_nodes, read_graph
from ptxc.reference.emmy import NVCC_TARGETS
from ptxc.store import open_store
from ptxc.store.assemblies import assemble_kept

RECIPES = Path(__file__).resolve().parents[1] / ".cache" / "corpus" / "recipes"
_COMPILATIONS = 2
#: Characters of a line where the output is no terminal.
_WIDTH = 150


# --------------------------------------------------------------------------------------------------------- results


@dataclass
class Outcome:
    """What became of one kernel."""

    entry: Entry
    compiled: bool = False
    assembled: bool = False
    #: The kind of the error, and its text.
    error: str = ""
    message: str = ""
    lines: int = 0
    cpu_us: float = 0.0
    nvcc_us: float = 0.0
    registers: int = 0
    spill_stores: int = 0
    spill_loads: int = 0

    def fail(self, error: Exception) -> None:
        """Note an error."""
        kind = error.what if isinstance(error, CompileError) else str(error)
        self.error = f"{type(error).__name__}: {kind_of(kind)}"
        self.message = f"{self.entry.path.name}: {error}"


def kind_of(message: str) -> str:
    """A message without what differs between kernels: names, numbers, paths, what a tool quotes."""
    text = re.sub(r"'[^']*'|`[^`]*`", "'…'", message.splitlines()[0] if message else "")
    text = re.sub(r"/[\w./-]+", "…", text)
    return re.sub(r"(?<![\w.])\d+(?![\w.])", "N", text)[:100]


@dataclass
class Runner:
    """Compiles, assembles and measures kernels, one call each, in several threads."""

    with_ptxas: bool = True
    with_nvcc: bool = False
    stopped: bool = False
    #: Compilations are timed: one at a time.
    _alone: Lock = field(default_factory=Lock)

    def run(self, entry: Entry) -> Outcome:
        """What becomes of a kernel. Raises nothing that is the kernel's or a tool's fault."""
        outcome = Outcome(entry)
        if self.stopped:
            return outcome
        try:
            with self._alone:
                texts = self._compile(outcome)
            outcome.compiled = True
            if self.with_ptxas:
                for text, target in texts:
                    self._assemble(outcome, text, target)
                outcome.assembled = True
            if self.with_nvcc:
                outcome.nvcc_us = nvcc_us(entry)
        except Exception as error:  # a fault of ptxc is what this looks for
            outcome.fail(error)
        return outcome

    def _compile(self, outcome: Outcome) -> list[tuple[str, str]]:
        """The PTX of each kernel of the file and the target that it is for, which may be the card's own (sm_90a)."""
        graph = read_graph(outcome.entry.path)
        options = Options(target=outcome.entry.target, cache=False)
        best = float("inf")
        for _ in range(_COMPILATIONS):
            before = time.thread_time()
            kernels = [compile_kernel(node, graph, options) for node in kernel_nodes(graph)]
            best = min(best, time.thread_time() - before)
        outcome.cpu_us = best * 1e6
        outcome.lines = sum(kernel.stats.lines for kernel in kernels)
        return [(kernel.ptx, kernel.target) for kernel in kernels]

    def _assemble(self, outcome: Outcome, ptx: str, target: str) -> None:
        for used in assemble_kept(ptx, target).kernels.values():
            outcome.registers = max(outcome.registers, used.registers)
            outcome.spill_stores += used.spill_stores
            outcome.spill_loads += used.spill_loads


def nvcc_us(entry: Entry) -> float:
    """CPU microseconds of nvcc, 0 where it does not take Emmy's text, or Emmy gives none: that is no fault of ptxc."""
    # What it makes for the next target is as much work.
    options, kept = Options(target=NVCC_TARGETS.get(entry.target, entry.target)), open_store()
    try:
        texts = emmys_texts(entry.path.read_bytes(), options, kept)
        return sum(compiled_by_nvcc(text, options, kept)[1] for text in texts) * 1e6
    except (UnsupportedError, ToolchainError):
        return 0.0


def run_all(chosen: Sequence[Entry], runner: Runner, jobs: int, console: Console) -> Generator[Outcome]:
    """The outcomes as they come. When this ends early, what runs still is waited for, the rest is not begun."""
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=console, transient=True) as bar, ThreadPoolExecutor(jobs) as pool:
        task = bar.add_task("kernels", total=len(chosen))
        futures = [pool.submit(runner.run, entry) for entry in chosen]
        try:
            for future in as_completed(futures):
                bar.advance(task)
                yield future.result()
        finally:
            runner.stopped = True
            pool.shutdown(cancel_futures=True)


# --------------------------------------------------------------------------------------------------------- recipes


def draw_recipes(folder: Path, console: Console) -> list[Path]:
    """The folders of the kernels that Emmy's recipes name, one for each golden file, drawn where they are not yet."""
    import emmy

    tool = SHARED / "tools" / "emmy_corpus.py"
    goldens = sorted(Path(str(emmy.__file__)).parent.glob("recipes/*/golden/*.json"))
    found = []
    for golden in goldens:
        place = folder / f"{golden.parent.parent.name}.{golden.stem}"
        if not place.is_dir():
            console.print(f"drawing {place.name}", style="dim")
            unfinished = place.with_name(f"{place.name}.part")
            subprocess.run(["rm", "-rf", str(unfinished)], check=True)
            subprocess.run([sys.executable, str(tool), str(unfinished), str(golden)], check=True)
            unfinished.rename(place)
        found.append(place)
    return found


# ---------------------------------------------------------------------------------------------------------- tables


def table(outcomes: Iterable[Outcome], with_nvcc: bool) -> Table:
    """The figures of each family of kernels on each card, and of all."""
    groups: dict[tuple[str, str], list[Outcome]] = {}
    for outcome in outcomes:
        for key in ((outcome.entry.card, outcome.entry.family), (outcome.entry.card, ""), ("all", "")):
            groups.setdefault(key, []).append(outcome)
    made = Table(box=None, header_style="bold")
    made.add_column("card", no_wrap=True)
    made.add_column("family", no_wrap=True)
    heads = ["kernels", "compiled", "assembled", "registers", "most", "spilling", "bytes", "µs/line"]
    for head in [*heads, *(["nvcc"] if with_nvcc else [])]:
        made.add_column(head, justify="right")
    for (card, kind), group in sorted(groups.items(), key=lambda item: (item[0][0] == "all", item[0])):
        cells = _cells(group)
        made.add_row(card, kind or "[bold]all", *(cells if with_nvcc else cells[:-1]))
    return made


def _cells(group: Sequence[Outcome]) -> list[str]:
    compiled = [outcome for outcome in group if outcome.compiled]
    assembled = [outcome for outcome in group if outcome.assembled]
    registers = sorted(outcome.registers for outcome in assembled) or [0]
    spills = [outcome.spill_stores + outcome.spill_loads for outcome in assembled]
    lines = sum(outcome.lines for outcome in compiled)
    timed = [outcome for outcome in compiled if outcome.nvcc_us]
    ratio = sum(outcome.nvcc_us for outcome in timed) / max(1.0, sum(outcome.cpu_us for outcome in timed))
    return [
        str(len(group)),
        str(len(compiled)),
        str(len(assembled)),
        f"{statistics.median(registers):.0f}",
        str(registers[-1]),
        str(sum(map(bool, spills))),
        str(sum(spills)),
        f"{sum(outcome.cpu_us for outcome in compiled) / lines:.1f}" if lines else "",
        f"{ratio:.0f}x" if timed else "",
    ]


def errors(outcomes: Iterable[Outcome]) -> Table:
    """The kinds of errors, the most frequent first, each with an example."""
    failed = [outcome for outcome in sorted(outcomes, key=lambda outcome: outcome.entry) if outcome.error]
    counts = Counter(outcome.error for outcome in failed)
    examples = {outcome.error: outcome.message for outcome in reversed(failed)}
    made = Table("errors", "kind", "for example", box=None, header_style="bold")
    for kind, count in counts.most_common():
        made.add_row(str(count), kind, examples[kind])
    return made


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*", type=Path, metavar="FOLDER", help="folders of kernels")
    parser.add_argument(
        "--recipes", action="store_true", help="draw the kernels of Emmy's recipes, and compile them too"
    )
    parser.add_argument("--only", default="", metavar="TEXT", help="only files whose name or family contains TEXT")
    parser.add_argument("--nvcc", action="store_true", help="time nvcc too, some seconds a kernel")
    parser.add_argument("--no-ptxas", action="store_true", help="compile only")
    parser.add_argument("--target", default="sm_89", help="the target of folders without a manifest")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="assemblers at a time")
    return parser.parse_args()


def main() -> int:
    args = arguments()
    console, messages = Console(width=None if sys.stdout.isatty() else _WIDTH), Console(stderr=True)
    folders = args.folders or [SHARED / "emmy-corpus"]
    if args.recipes:
        folders += draw_recipes(RECIPES, messages)
    for folder in folders:
        if not folder.is_dir():
            messages.print(f"{folder} is no folder of kernels", style="red")
            return 2
    chosen = [entry for folder in folders for entry in entries(folder, args.target)]
    chosen = [entry for entry in chosen if args.only in entry.path.name or args.only in entry.family]
    runner = Runner(not args.no_ptxas, args.nvcc)
    outcomes: list[Outcome] = []
    interrupted = False
    try:
        outcomes.extend(run_all(chosen, runner, max(1, args.jobs), messages))
    except KeyboardInterrupt:
        interrupted = True
    console.print(table(outcomes, args.nvcc))
    if any(outcome.error for outcome in outcomes):
        console.print()
        console.print(errors(outcomes))
    if interrupted:
        messages.print(f"interrupted after {len(outcomes)} of {len(chosen)} kernels; run it again to go on")
        return 130
    return int(any(outcome.error for outcome in outcomes))


if __name__ == "__main__":
    raise SystemExit(main())
