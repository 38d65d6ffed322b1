"""``ptxc run``: a kernel on the CPU device, with everything that it checks, or on a GPU."""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ptxc.cli import executing, launching
from ptxc.cli.arguments import (
    Commands,
    add_cache_option,
    add_choice_of_passes,
    add_code_options,
    add_schedule_options,
    add_sources,
    examples,
    not_empty,
)
from ptxc.cli.files import STDIO, show, write
from ptxc.cli.messages import say
from ptxc.errors import UsageError

if TYPE_CHECKING:
    from ptxc.cli.results import Report
    from ptxc.reference.buffers import Array, Problem
    from ptxc.reference.execution import Launched, Settings

_DESCRIPTION = """\
Executes kernels on the CPU device, which needs no GPU, and says what it finds: accesses outside of memory, races,
reads of what nobody wrote, barriers that cannot complete. Exit status 0 if nothing is wrong, 1 for findings or outputs
that differ from --expect, 2 for an error of the input or the usage. With --device cuda a GPU executes them, which
checks nothing; a kernel that hangs there or faults is an error.

FILE is a graph of Emmy's Kernel IR as `ptxc compile` takes it, whose kernels run one after the other on the same
memory, or a PTX text, for which --launch says how to launch it."""

_EXAMPLES = (
    ("ptxc run k.ir.json", "on random inputs, with all checks"),
    ("ptxc run k.ir.json --set seq_len=50 --inputs in.npz --expect out.npz", "compared"),
    ("ptxc run k.ptx --launch k.launch.json -o out.npz", "any PTX, nvcc's too"),
    ("ptxc run k.ir.json --ctas 16 --sanitize none --profile", "a sample, profiled"),
    ("ptxc run k.ir.json --device cuda --repeat 100", "on a GPU, timed"),
)


def add(commands: Commands) -> None:
    """Make the command's parser."""
    parser = commands.add_parser(
        "run",
        help="execute kernels without a GPU, and check them; or on one",
        description=_DESCRIPTION,
        epilog=examples(_EXAMPLES, "docs/cpu-device.md explains the findings and the profile, docs/gpu.md GPUs."),
        usage="ptxc run FILE [option...]",
    )
    parser.set_defaults(run=run, verify_each=False, time_passes=False)
    add_sources(parser, "a graph of Kernel IR as JSON, a PTX text, or - for standard input")
    memory = executing.add_memory_options(parser)
    memory.add_argument(
        "--launch", type=not_empty, metavar="JSON", help="how to launch, as --launch-json wrote it; needed for PTX"
    )
    comparing = parser.add_argument_group("comparing")
    comparing.add_argument("--expect", type=not_empty, metavar="NPZ", help="what outputs should hold: arrays by buffer")
    executing.add_tolerance_options(comparing)
    execution = executing.add_execution_options(parser)
    execution.add_argument(
        "--repeat", type=executing.natural, metavar="N", help="on a GPU, time N more launches of each kernel"
    )
    execution.add_argument("--profile", action="store_true", help="count instructions, sectors, bank conflicts")
    output = parser.add_argument_group("output")
    output.add_argument(
        "-o", "--output", type=not_empty, metavar="NPZ", help="write all that kernels wrote: arrays by buffer"
    )
    output.add_argument("--json", action="store_true", help="print JSON")
    output.add_argument("--supported", action="store_true", help="list the instructions that the device executes")
    add_code_options(parser)
    add_schedule_options(parser)
    add_choice_of_passes(parser)
    add_cache_option(parser)


def run(args: argparse.Namespace) -> int:
    """Execute, and report."""
    if args.supported:
        return _list_supported()
    _check(args)
    settings = executing.settings_of(args)
    device = executing.device_of(args)
    program = launching.load(args, device)
    expected = launching.read_arrays(args.expect) if args.expect is not None else {}
    problem = launching.problem_for(args, program.steps)
    if args.expect is not None:
        _check_expected(args.expect, expected, problem, settings)
    arrays = problem.arrays()
    launched = launching.execute(program, arrays, problem, settings, device=device)
    launching.note_empty(launched)

    report = _report(problem, arrays, program, launched, settings, device.description.name if device else "")
    tolerance = executing.tolerance_of(args, problem, program if expected else None)
    report.compare(expected, tolerance, sampled=not settings.sample.is_all)
    if args.output is not None:
        write(Path(args.output), launching.npz(report.outputs()))
    show(report.json() if args.json else report.text())
    return report.status


def _list_supported() -> int:
    from ptxc.cli.messages import table
    from ptxc.sim.kernel import supported

    show(table([(kind, ", ".join(opcodes)) for kind, opcodes in supported().items()]))
    return 0


def _check(args: argparse.Namespace) -> None:
    """Raise UsageError for options that do not fit together."""
    executing.one_source(args)
    if args.expect is None and (args.rtol is not None or args.atol is not None):
        option = "--rtol" if args.rtol is not None else "--atol"
        raise UsageError(f"{option} changes nothing without --expect", hint="leave it out")
    if args.output == STDIO:
        raise UsageError("standard output has the report", hint="give -o FILE.npz")


def _check_expected(file: str, expected: Mapping[str, Array], problem: Problem, settings: Settings) -> None:
    """Raise UsageError for an array that is no output, or that a sample of the CTAs cannot give, or for none."""
    known = {buffer.name: buffer for buffer in problem.written}
    if not expected:
        hint = f"give arrays by the names of outputs, {', '.join(known)}"
        raise UsageError("no array is in the file, so that nothing would be compared", hint=hint, file=file)
    for name, array in expected.items():
        buffer = known.get(name)
        if buffer is None:
            hint = f"outputs are {', '.join(known)}"
            raise UsageError(f"{name!r} is expected, but no kernel writes it", hint=hint)
        if array.size != math.prod(buffer.shape):
            raise UsageError(f"{name!r} has {math.prod(buffer.shape)} elements, {array.size} are expected")
        if buffer.zeroed and not settings.sample.is_all:
            what = f"all CTAs add to {name!r}, so that a part of them cannot be compared"
            raise UsageError(what, hint="give --ctas all")


def _report(
    problem: Problem,
    arrays: Mapping[str, Array],
    program: launching.Program,
    launched: list[Launched],
    settings: Settings,
    gpu: str,
) -> Report:
    from ptxc.cli.results import Report

    report = Report(problem, arrays, program.listing(), launched, settings.sanitize, gpu)
    if settings.sample.is_all and report.completed:
        for name, count, total in report.unwritten():
            say(f"ptxc: note: {count} of {total} elements of {name} were never written")
    return report
