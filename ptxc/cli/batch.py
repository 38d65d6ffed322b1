"""``ptxc batch``: thousands of candidates."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from ptxc.cli.arguments import (
    Commands,
    add_cache_option,
    add_choice_of_passes,
    add_code_options,
    add_schedule_options,
    examples,
    not_empty,
    number_of_jobs,
    options_of,
)
from ptxc.cli.messages import printable, say
from ptxc.errors import UsageError

if TYPE_CHECKING:
    from ptxc.batching import Progress, Summary

_DESCRIPTION = """\
Compiles many candidates side by side to a folder, whatever becomes of each.

INPUT is the JSON of a graph of Kernel IR, a folder of them (where MANIFEST.jsonl names each one's target), JSON lines
(*.jsonl, *.ndjson), each a graph or {"file": NAME, "target": SM, "options": {...}}, or - for JSON lines from standard
input. DIR/results.jsonl gets a line for each kernel: key, status, error, registers, spills, shared memory, occupancy,
times; DIR/KEY.ptx and DIR/KEY.cubin are what was made. The same command goes on after a kill.

Exit status 0 if all is well, 1 if candidates failed, 2 for an error of the usage, 130 after Ctrl-C."""

_EXAMPLES = (
    ("ptxc batch kernels/ --out built --jobs 8", "a folder, eight at a time"),
    ("ptxc batch tiles.jsonl --out built --assemble", "and registers, spills, occupancy"),
    ("tune.py | ptxc batch - --out built --time-limit 20", "what a program writes, 20 s each at most"),
    ("ptxc batch kernels/ --out built --check 4", "four CTAs of each executed and compared"),
    ("ptxc batch kernels/ --out built --retry-failed", "once more what failed"),
)


def add(commands: Commands) -> None:
    """Make the command's parser."""
    parser = commands.add_parser(
        "batch",
        help="compile thousands of candidates, and go on after a kill",
        description=_DESCRIPTION,
        epilog=examples(_EXAMPLES, "docs/batch.md explains the results."),
        usage="ptxc batch INPUT... --out DIR [option...]",
    )
    parser.set_defaults(run=run, time_passes=False)
    parser.add_argument("sources", nargs="*", metavar="INPUT", help="a graph, a folder, JSON lines, or -")
    output = parser.add_argument_group("output")
    output.add_argument("--out", type=not_empty, metavar="DIR", required=True, help="the folder of the results")
    output.add_argument("--assemble", action="store_true", help="run ptxas: machine code, registers, spills, occupancy")
    output.add_argument(
        "--check",
        type=not_empty,
        metavar="all|N",
        help="execute so many CTAs of each kernel on the CPU device, and compare with what it means",
    )
    output.add_argument("--retry-failed", action="store_true", help="try again what failed in an earlier run")
    work = parser.add_argument_group("work")
    work.add_argument("--jobs", type=number_of_jobs, metavar="N", help="processes (default: one for each CPU)")
    work.add_argument(
        "--scheduler", type=not_empty, metavar="ADDRESS", help="work on the Dask cluster of this scheduler: tcp://..."
    )
    work.add_argument(
        "--time-limit", type=_seconds, default=300.0, metavar="SECONDS", help="for each candidate (default: 300)"
    )
    work.add_argument(
        "--memory-limit", type=_size, default=4 << 30, metavar="SIZE", help="for each, as in 512M (default: 4G)"
    )
    add_code_options(parser)
    add_schedule_options(parser)
    passes = add_choice_of_passes(parser)
    passes.add_argument("--verify-each", action="store_true", help="check the IR after each pass")
    add_cache_option(parser)


def _seconds(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no time; give seconds, as in 20 or 0.5") from None


def _size(text: str) -> int:
    from ptxc.store.settings import limit_of

    try:
        return limit_of(text)
    except UsageError:
        raise argparse.ArgumentTypeError(f"{text!r} is no size; give it as in 512M or 4G") from None


def run(args: argparse.Namespace) -> int:
    """Compile all candidates; the exit status."""
    from ptxc.batching import Limits, batch
    from ptxc.batching.candidates import candidates_in, count
    from ptxc.batching.pool import dask_cluster
    from ptxc.cli.progress import tally

    _check(args)
    limits = Limits(args.time_limit, args.memory_limit)
    total = count(args.sources)
    with ExitStack() as stack:
        executor = stack.enter_context(dask_cluster(args.scheduler)) if args.scheduler else None
        shown = _Shown()
        update = stack.enter_context(tally(total, "compiling"))
        try:
            batch(
                candidates_in(args.sources, args.target),
                args.out,
                executor=executor,
                jobs=args.jobs,
                assemble=args.assemble,
                check=args.check or "",
                limits=limits,
                retry_failed=args.retry_failed,
                progress=shown.through(update),
                **options_of(args),
            )
        except KeyboardInterrupt:
            stack.close()
            say(f"ptxc: interrupted after {shown.summary.total} candidates; the same command goes on from there")
            return 130
    if shown.summary.why:
        more = "" if shown.summary.failed == 1 else " (the first that failed)"
        say(f"ptxc: error: {printable(shown.summary.why)}{more}")
    say(shown.text(args.out))
    return int(shown.summary.failed > 0)


def _check(args: argparse.Namespace) -> None:
    """Raise CompileError for what will not do."""
    if not args.sources:
        raise UsageError("no input is given", hint="name files of Kernel IR, folders, JSON lines, or -")
    if args.sources.count("-") > 1:
        raise UsageError("standard input is given twice", hint="give - once")
    if args.jobs and args.scheduler:
        raise UsageError("--jobs changes nothing with --scheduler", hint="the cluster's workers say how many")
    if args.assemble and not args.scheduler:
        from ptxc.toolchain import find_ptxas

        find_ptxas()


class _Shown:
    """What is shown of a batch."""

    def __init__(self) -> None:
        from ptxc.batching import Summary

        self.summary = Summary()
        self._started = time.monotonic()

    def through(self, update: Callable[[int, int, float], None]) -> Progress:
        """What hands the figures on to a bar."""

        def progress(summary: Summary) -> None:
            self.summary = summary
            made = summary.total - summary.before
            update(summary.total, summary.failed, made / max(1e-3, time.monotonic() - self._started))

        return progress

    def text(self, out: str) -> str:
        """The summary at the end."""
        found = self.summary
        kinds = [f"{count} {_NAMES[status]}" for status, count in sorted(found.failures.items())]
        failed = f"{found.failed} failed" + (f" ({', '.join(kinds)})" if kinds else "")
        parts = [f"{found.ok} compiled", failed]
        parts += [f"{found.before} of them in earlier runs"] if found.before else []
        parts += [f"{found.duplicates} equal to others"] if found.duplicates else []
        made = found.total - found.before
        rate = f"{found.seconds:.1f} s, {made / max(1e-3, found.seconds):.1f}/s"
        given = "1 candidate" if found.total == 1 else f"{found.total} candidates"
        return f"ptxc: {given}: {', '.join(parts)}; {rate}; results in {Path(out, 'results.jsonl')}"


#: How the summary calls failures.
_NAMES = {
    "error": "by errors",
    "wrong": "by their checks",
    "timeout": "by the time limit",
    "memory": "by the memory limit",
    "crash": "by crashes",
}
