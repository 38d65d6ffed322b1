"""``ptxc compile``: kernels to PTX, and everything to look at on the way."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ptxc.cli.arguments import (
    Commands,
    add_cache_option,
    add_code_options,
    add_pass_options,
    add_schedule_options,
    add_sources,
    examples,
    not_empty,
    options_of,
    pass_list,
    require_sources,
)
from ptxc.cli.files import STDIO, distinct, is_folder, keep_inputs, make_folder, output_names, write_all
from ptxc.cli.messages import present, printable, table
from ptxc.errors import UsageError

if TYPE_CHECKING:
    from ptxc.cli.dumps import Dumps
    from ptxc.cli.sources import Source
    from ptxc.compilation import CompiledKernel
    from ptxc.toolchain import Assembly

_DESCRIPTION = """\
Compiles kernels to PTX, which goes to standard output unless -o names a file.

FILE is the JSON of a graph of Emmy's Kernel IR (Graph.to_dict()), plain or gzip, or - for standard input; a graph of an
earlier stage, a traced program too (Graph.to_wire()), goes through Emmy's passes first. The kernels of a graph become
the entries of one PTX module. Several files go to a folder, -o DIR: a/k.ir.json and b/k.ir.json become DIR/a/k.ptx and
DIR/b/k.ptx, files of one folder DIR/k.ptx. All are compiled, even if one fails."""

_EXAMPLES = (
    ("ptxc compile k.ir.json -o k.ptx --launch-json k.json", "the kernel, and how to launch it"),
    ("ptxc compile k.ir.json --target sm_90 --assemble", "registers, spills and memory, from ptxas"),
    ("ptxc compile kernels/*.json -o out", "many, in one process"),
    ("ptxc compile --golden G.json --realization NAME", "a schedule that Emmy has recorded"),
    ("ptxc compile k.ir.json --dump-dir dumps", "dumps/10-build.ir, ..., dumps/out.ptx"),
    ("ptxc compile k.ir.json --dump-changed >/dev/null", "what each pass changed"),
    ("ptxc compile dumps/50-simplify.ir --start-at cse", "the rest of the passes, after an edit"),
)

_SUFFIXES = {"ptx": ".ptx", "ir": ".ir", "cubin": ".cubin"}


def add(commands: Commands) -> None:
    """Make the command's parser."""
    parser = commands.add_parser(
        "compile",
        help="compile kernels to PTX",
        description=_DESCRIPTION,
        epilog=examples(_EXAMPLES),
        usage="ptxc compile FILE... [-o FILE|DIR] [option...]",
    )
    parser.set_defaults(run=run)
    add_sources(parser, "a graph of Kernel IR as JSON, or - for standard input")

    output = parser.add_argument_group("output")
    output.add_argument(
        "-o",
        "--output",
        type=not_empty,
        metavar="PATH",
        help="the file or folder to write (default: standard output)",
    )
    output.add_argument(
        "--emit", choices=tuple(_SUFFIXES), help="PTX, ptxc's IR after the last pass, or machine code (default: ptx)"
    )
    output.add_argument(
        "--split", action="store_true", help="a file for each kernel, DIR/KERNEL.ptx, not one module for all"
    )
    output.add_argument(
        "--launch-json",
        type=not_empty,
        metavar="PATH",
        help="write what a launcher needs: grid, block, parameters, memory to zero, runtime integers; of several "
        "files, a folder with one for each",
    )
    output.add_argument(
        "--assemble", action="store_true", help="run ptxas; report registers, spills, shared and constant bytes"
    )

    add_code_options(parser)
    add_schedule_options(parser)
    passes = add_pass_options(parser)
    passes.add_argument("--stop-after", type=not_empty, metavar="PASS", help="stop there, and print the IR")
    passes.add_argument("--start-at", type=not_empty, metavar="PASS", help="start there: FILE is IR, from a dump")
    add_cache_option(parser)

    dumps = parser.add_argument_group("looking at the IR")
    dumps.add_argument(
        "--dump-dir",
        type=not_empty,
        metavar="DIR",
        help="write the IR after each pass, out.ptx and launch.json; a folder each for several kernels or files",
    )
    dumps.add_argument(
        "--dump-after",
        type=pass_list,
        action="extend",
        default=[],
        metavar="PASS",
        help="show the IR after a pass, or after `all`, on standard error",
    )
    dumps.add_argument(
        "--dump-changed", action="store_true", help="show what each pass changes, as a diff, on standard error"
    )


def run(args: argparse.Namespace) -> int:
    """Compile all files; the exit status is that of the worst."""
    require_sources(args)
    plan = _Plan(args)
    from ptxc.cli.session import compile_all

    return compile_all(args, "compiling", plan.watch, plan.deliver)


class _Plan:
    """What is written where."""

    def __init__(self, args: argparse.Namespace) -> None:
        """Raises UsageError for options that do not fit together."""
        many = len(args.sources) > 1
        self.emit: str = args.emit or ("ir" if args.stop_after else "ptx")
        self.split: bool = args.split
        self.assemble: bool = args.assemble
        self.cache: bool = not args.no_cache
        self.output: str = args.output or STDIO
        self.launch: str | None = args.launch_json
        self.dump_dir: str | None = args.dump_dir
        self.dump_after: list[str] = args.dump_after
        self.dump_changed: bool = args.dump_changed
        #: Whether ``output`` is a folder, and ``launch`` one.
        self.to_folder = many or self.split or is_folder(self.output)
        self.launch_to_folder = self.launch is not None and (many or is_folder(self.launch))
        self.names = output_names(args.sources)
        self._check(args, many)

    def _check(self, args: argparse.Namespace, many: bool) -> None:
        if self.output == STDIO and (many or self.split):
            what = "several files need" if many else "--split needs"
            raise UsageError(f"{what} a folder for their output", hint="give -o DIR")
        if args.stop_after and (self.emit != "ir" or self.assemble):
            option = "--assemble" if self.assemble else f"--emit {self.emit}"
            raise UsageError(f"--stop-after leaves no PTX for {option}", hint="leave one of them out")
        if self.emit == "cubin" and self.output == STDIO and sys.stdout is not None and sys.stdout.isatty():
            raise UsageError("machine code is nothing for a terminal", hint="give -o FILE")
        if self.launch is not None and args.start_at:
            raise UsageError("IR does not say how to launch it", hint="give --launch-json with the Kernel IR")
        if args.start_at and (args.math != "precise" or args.no_fma):
            option = "--no-fma" if args.no_fma else f"--math {args.math}"
            raise UsageError(f"{option} changes nothing in IR, which has its arithmetic", hint=f"leave {option} out")
        if self.launch == STDIO and (many or self.output == STDIO):
            raise UsageError("standard output cannot take --launch-json too", hint="name a file, or give -o")
        self._check_passes(args)
        if self.assemble or self.emit == "cubin":
            from ptxc.toolchain import find_ptxas

            find_ptxas()

    def _check_passes(self, args: argparse.Namespace) -> None:
        from ptxc.cli.dumps import ALL
        from ptxc.passes.pipeline import BUILD, PIPELINE, PRINT, check_name

        options_of(args)  # checks the other options' names
        steps = [BUILD[1], *(item.name for item in PIPELINE), PRINT]
        first, last = steps.index(args.start_at or BUILD[1]), steps.index(args.stop_after or PRINT)
        for name in self.dump_after:
            if name == ALL:
                continue
            check_name(name, BUILD[1])
            at = steps.index(name)
            early, late = at < first and f"--start-at {args.start_at}", at > last and f"--stop-after {args.stop_after}"
            low = at > 0 and name != PRINT and PIPELINE[at - 1].level > int(args.opt) and f"--opt {args.opt}"
            if why := (name in args.disable and f"--disable {name}") or low or early or late:
                raise UsageError(f"--dump-after {name} shows nothing: with {why} it does not run", hint="leave one out")

    def watch(self, source: Source, kernels: Sequence[str]) -> Iterable[Dumps | None]:
        """What observes the kernels of a source."""
        from ptxc.cli.dumps import Dumps

        several = len(self.names) > 1
        for name, folder in zip(kernels, distinct(kernels), strict=True):
            if self.dump_dir is None and not self.dump_after and not self.dump_changed:
                yield None
                continue
            place = None
            if self.dump_dir is not None:
                parts = [self.names[source.given]] if several else []
                place = Path(self.dump_dir, *parts, *([folder] if len(kernels) > 1 else []))
            label = f"{source.name}: {name}" if several else name
            yield Dumps(
                label,
                folder=place,
                after=self.dump_after,
                changed=self.dump_changed,
                start_at=source.start_at,
                inputs=list(self.names),
            )

    def deliver(self, source: Source, kernels: Sequence[CompiledKernel]) -> None:
        """Write what a source gave. Raises CompileError."""
        if self.split:
            files = distinct([kernel.name for kernel in kernels])
            modules = [(file, [kernel]) for file, kernel in zip(files, kernels, strict=True)]
        else:
            modules = [("", list(kernels))]
        contents: list[tuple[Path, str | bytes]] = []
        reports = []
        for file, module in modules:
            content, assembled = self._content(module, f"{printable(source.name)}: " if len(self.names) > 1 else "")
            contents.append((self._place(source, file), content))
            reports += assembled
        if self.launch is not None:
            from ptxc.cli.dumps import launch_json

            contents.append(
                (
                    self._launch_place(source, self.launch),
                    launch_json(kernels, source.kernels.graph if len(kernels) > 1 else None),
                )
            )
        write_all(contents)
        for report in reports:
            present(report)

    def _place(self, source: Source, kernel: str) -> Path:
        """The file for a module; ``kernel`` is its kernel's name if it has a file of its own."""
        path = Path(self.output)
        if self.to_folder:
            path = path / self.names[source.given]
            if kernel:
                path = (path if len(self.names) > 1 else Path(self.output)) / kernel
            path = path.with_name(path.name + _SUFFIXES[self.emit])
            make_folder(path.parent)
        keep_inputs(path, list(self.names), "the output", "give -o another name")
        return path

    def _launch_place(self, source: Source, given: str) -> Path:
        """The file for the launch description, where ``--launch-json`` is ``given``."""
        place = Path(given)
        if self.launch_to_folder:
            place = place / f"{self.names[source.given]}.launch.json"
            make_folder(place.parent)
        keep_inputs(place, list(self.names), "the launch description", "give --launch-json another name")
        return place

    def _content(self, kernels: list[CompiledKernel], label: str) -> tuple[str | bytes, list[str]]:
        """A file's content, and where that is asked for what ptxas reports of it, which begins with ``label``."""
        if self.emit == "ir":
            from ptxc.ir.text import format_kernel

            return "\n".join(format_kernel(kernel.kernel) for kernel in kernels), []
        from ptxc.driver import common_target, link

        ptx, target = link(kernels), common_target(kernels)
        assembly: Assembly | None = None
        if self.assemble or self.emit == "cubin":
            from ptxc.store.assemblies import assemble_kept

            assembly = assemble_kept(ptx, target, cache=self.cache)
        content = assembly.cubin if assembly is not None and self.emit == "cubin" else ptx
        return content, [_report(assembly, target, label)] if assembly is not None and self.assemble else []


def _report(assembly: Assembly, target: str, label: str) -> str:
    """What kernels use."""
    rows = [("kernel", "registers", "spill stores", "spill loads", "stack", "shared", "constant", "barriers")]
    for name, used in assembly.kernels.items():
        figures = (used.registers, used.spill_stores, used.spill_loads, used.stack, used.shared, used.constant)
        rows.append((name, *map(str, figures), str(used.barriers)))  # type: ignore[arg-type]
    warnings = "".join(f"ptxc: warning: {label}ptxas: {printable(warning)}\n" for warning in assembly.warnings)
    return f"{warnings}{label}ptxas for {target}, sizes in bytes:\n{table(rows, right=range(1, 8))}"
