"""``ptxc compare``: ptxc's and nvcc's builds of the same kernels, side by side."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ptxc.cli.arguments import (
    Commands,
    add_cache_option,
    add_choice_of_passes,
    add_code_options,
    add_sources,
    examples,
    not_empty,
    number_of_jobs,
    options_of,
)
from ptxc.cli.files import show, write_all
from ptxc.cli.messages import complain, say
from ptxc.errors import CompileError, UsageError

if TYPE_CHECKING:
    from ptxc.comparison import Comparison
    from ptxc.compilation import Options
    from ptxc.corpus import Entry
    from ptxc.store import Store

_DESCRIPTION = """\
Builds kernels with ptxc and, from Emmy's CUDA text, with nvcc, and shows side by side what each takes: CPU time,
registers, spills, occupancy, instructions of machine code, and those for a unit of work in the hottest loop.

FILE is the JSON of a graph of Kernel IR, or a folder of them, in which MANIFEST.jsonl may name each kernel's target; a
folder that has neither is searched with all folders below it. One kernel is shown in full, of several a line each and a
summary. Needs nvcc, ptxas and nvdisasm. What nvcc and ptxas made is kept: a run that was interrupted goes on where it
was, and one after a change of ptxc only assembles what changed."""

_EXAMPLES = (
    ("ptxc compare k.ir.json --target sm_90", "one kernel in full"),
    ("ptxc compare kernels/ --json figures.json", "a folder, with all figures in a file"),
    ("ptxc compare kernels/ --picture ratios.svg", "and the ratios as a picture"),
)


def add(commands: Commands) -> None:
    """Make the command's parser."""
    parser = commands.add_parser(
        "compare",
        help="compare kernels with nvcc's builds: speed, registers, instructions",
        description=_DESCRIPTION,
        epilog=examples(_EXAMPLES, "docs/compare.md explains the figures."),
        usage="ptxc compare FILE... [option...]",
    )
    parser.set_defaults(run=run, verify_each=False, time_passes=False)
    add_sources(parser, "a graph of Kernel IR as JSON, or a folder of them")
    output = parser.add_argument_group("output")
    output.add_argument("--json", dest="figures", type=not_empty, metavar="PATH", help="write all figures")
    output.add_argument(
        "--picture", type=not_empty, metavar="PATH", help="draw the ratios, to a file that ends with .svg or .png"
    )
    work = parser.add_argument_group("work")
    work.add_argument("--jobs", type=number_of_jobs, metavar="N", help="kernels at a time (default: one for each CPU)")
    add_code_options(parser)
    add_choice_of_passes(parser)
    add_cache_option(parser)


def run(args: argparse.Namespace) -> int:
    """Build, compare, report."""
    from ptxc.cli.comparisons import report, to_json
    from ptxc.comparison import check_tools
    from ptxc.compilation import Options
    from ptxc.store import open_store

    by_path: dict[str, Entry] = {}
    for entry in _entries(args):
        by_path.setdefault(os.path.realpath(entry.path), entry)
    entries = list(by_path.values())
    if args.picture is not None:
        from ptxc.comparison.picture import check_picture, draw

        check_picture(Path(args.picture))
    check_tools()
    session = _Session(Options(**options_of(args)), open_store(not args.no_cache))
    status = session.run(entries, args.jobs or os.cpu_count() or 1)
    files: list[tuple[Path, str | bytes]] = []
    if args.figures is not None:
        files.append((Path(args.figures), to_json(session.rows) + "\n"))
    if args.picture is not None:
        files.append((Path(args.picture), draw(session.rows, Path(args.picture).suffix[1:])))
    write_all(files)
    if session.rows:
        show(report(session.rows))
    return status


def _entries(args: argparse.Namespace) -> Iterator[Entry]:
    """The kernels' files. Raises CompileError for what is none."""
    from ptxc.cli.arguments import DEFAULT_TARGET
    from ptxc.corpus import Entry, entries, family

    if not args.sources:
        raise UsageError("no file is given", hint="name files of Kernel IR, or a folder of them")
    for source in args.sources:
        if args.sources.count(source) > 1:
            raise UsageError(f"{source!r} is given twice", hint="give it once")
        path = Path(source)
        if not path.is_dir():
            if not path.exists():
                raise UsageError(f"there is no file {source!r}", hint="name files of Kernel IR, or a folder of them")
            yield Entry(path, "", args.target or DEFAULT_TARGET, family(path.stem))
            continue
        found = entries(path, args.target or DEFAULT_TARGET)
        if not found:
            raise UsageError(f"the folder {source!r} has no kernels: no file *.json with a graph of Kernel IR")
        for entry in found:
            yield entry._replace(target=args.target or entry.target)


@dataclass
class _Session:
    """The comparisons so far."""

    options: Options
    kept: Store
    rows: list[Comparison] = field(default_factory=list)

    def run(self, entries: Sequence[Entry], jobs: int) -> int:
        """Compare the kernels of all files, in their order; the exit status.

        On Ctrl-C what runs is waited for, nothing more is begun, and what there is by then is shown.
        """
        from ptxc.cli.progress import progress

        status = 0
        with ThreadPoolExecutor(jobs) as pool, progress(len(entries), "comparing") as advance:
            futures = [pool.submit(self._compare, entry) for entry in entries]
            for future in futures:
                future.add_done_callback(lambda _: advance())
            try:
                for future in futures:
                    status = max(status, self._take(future))
            except KeyboardInterrupt:
                pool.shutdown(cancel_futures=True)
                self.rows = [row for future in futures if _is_fine(future) for row in future.result()]
                from ptxc.cli.results import counted

                say(f"ptxc: interrupted after {counted(len(self.rows), 'kernel')}; the same command goes on from there")
                return 130
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
        return status

    def _compare(self, entry: Entry) -> list[Comparison]:
        from ptxc.comparison import compare_file

        return compare_file(entry.path, replace(self.options, target=entry.target), self.kept)

    def _take(self, future: Future[list[Comparison]]) -> int:
        """Add the rows of a file, or say what is wrong with it."""
        try:
            self.rows += future.result()
        except UsageError:
            raise
        except CompileError as error:
            complain(error)
            return error.exit_status
        return 0


def _is_fine(future: Future[list[Comparison]]) -> bool:
    return future.done() and not future.cancelled() and future.exception() is None
