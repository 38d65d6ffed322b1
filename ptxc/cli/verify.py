"""``ptxc verify``: three independent answers, compared."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
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
from ptxc.cli.files import read, show
from ptxc.cli.messages import table

if TYPE_CHECKING:
    from ptxc.cli.results import Listing
    from ptxc.reference.buffers import Array
    from ptxc.reference.execution import Launched
    from ptxc.reference.steps import Step
    from ptxc.reference.verification import Verification

_DESCRIPTION = """\
Computes a graph's kernels in three ways and compares what they write. FILE is a graph as `ptxc compile` takes it.

  reference  Kernel IR evaluated directly in float64, with no code generated; or Emmy's NumPy evaluation of the program
             that the kernels come from, --program
  ptxc       ptxc's PTX on the CPU device, with all checks, or on a GPU: --device cuda
  nvcc       Emmy's CUDA text by way of nvcc, where that is found, on the same device

A grid that would take minutes is executed in part, which the last line says; --ctas all executes all.

Exit status 0 if all agree and nothing is found, 1 if not, 2 for an error of the input or the usage."""

_EXAMPLES = (
    ("ptxc verify k.ir.json", "on random inputs"),
    ("ptxc verify k.ir.json --set seq_len=50 --target sm_90", "one size, one GPU"),
    ("ptxc verify k.ir.json --ctas 16", "a kernel too large to execute whole"),
    ("ptxc verify k.ir.json --program rmsnorm.json", "against what the program means"),
)

#: How findings begin. Those in nvcc's PTX are faults of Emmy's CUDA text, and do not make ptxc's wrong.
_WHOSE = {"ptxc": "", "nvcc": "not counted, of nvcc's PTX: "}


def add(commands: Commands) -> None:
    """Make the command's parser."""
    parser = commands.add_parser(
        "verify",
        help="compare kernels with a reference and with nvcc's",
        description=_DESCRIPTION,
        epilog=examples(_EXAMPLES, "docs/cpu-device.md explains the findings and the figures, docs/gpu.md GPUs."),
        usage="ptxc verify FILE [option...]",
    )
    parser.set_defaults(run=run, launch=None, verify_each=False, time_passes=False)
    add_sources(parser, "a graph of Kernel IR as JSON, or - for standard input")
    executing.add_memory_options(parser)
    comparing = parser.add_argument_group("comparing")
    comparing.add_argument(
        "--program", type=not_empty, metavar="JSON", help="the program that the kernels compute, in Emmy's wire form"
    )
    comparing.add_argument("--no-nvcc", action="store_true", help="leave nvcc out")
    executing.add_tolerance_options(comparing)
    executing.add_execution_options(parser, "all, or what takes seconds where all take minutes")
    output = parser.add_argument_group("output")
    output.add_argument("--json", action="store_true", help="print JSON")
    add_code_options(parser)
    add_schedule_options(parser)
    add_choice_of_passes(parser)
    add_cache_option(parser)


def run(args: argparse.Namespace) -> int:
    """Compute, compare, report."""
    from ptxc.reference.emmy import is_program, nvcc_options
    from ptxc.reference.verification import PTXC, Verification

    executing.one_source(args)
    settings = executing.settings_of(args)
    device, source = executing.device_of(args), launching.source_of(args)
    launching.aim(source, device)
    program = launching.compiled(args, source)
    problem = launching.problem_for(args, program.steps)
    if device is None and args.ctas is None:
        settings = replace(settings, sample=launching.affordable(program, problem, settings))
    programs = {PTXC: program}

    def runner(
        who: str, texts: Mapping[str, str], steps: Sequence[Step], arrays: Mapping[str, Array]
    ) -> list[Launched]:
        name = f"nvcc's PTX of {source.name}"
        executed = programs.setdefault(who, launching.Program(name, list(steps), dict(texts)))
        return launching.execute(executed, arrays, problem, settings, f"running {who}'s PTX", device)

    gpu = device.description.name if device else ""
    verification = Verification(problem, executing.tolerance_of(args, problem, program), settings, runner, gpu)
    if args.program is not None:
        read(args.program, verification.evaluate_program)
    elif source.kernels.program is not None and is_program(source.kernels.program):
        verification.evaluate_graph(source.kernels.program)
    else:
        verification.evaluate(source.kernels.graph, program.steps)
    launching.note_empty(verification.execute(PTXC, program.texts, program.steps))
    if not args.no_nvcc:
        verification.compile_with_nvcc(source.kernels.graph, program.target, nvcc_options(source.options))
    verification.check()
    listings = {who: programs[who].listing() for who in {found.who for found in verification.findings}}
    show((_json if args.json else _text)(verification, listings))
    return int(bool(verification.wrong))


def _text(verification: Verification, listings: Mapping[str, Listing]) -> str:
    """The report for people."""
    from ptxc.cli.results import differences_table

    rows = [((d.name, f"{who}, {other}"), d) for who, other, d in verification.differences]
    parts = [table(list(verification.notes.items())), differences_table(rows, ("output", "compared"))]
    if verification.faults:
        parts.append("\n".join(verification.faults))
    parts += [
        f"{_WHOSE[found.who]}{listings[found.who].finding_text(found.kernel, found.finding)}"
        for found in verification.findings
    ]
    wrong = verification.wrong
    verdict = f"wrong: {', '.join(wrong)}" if wrong else "right"
    executed, there_are = verification.ctas
    verdict += f", as far as {executed:,} of {there_are:,} CTAs tell" if executed < there_are and not wrong else ""
    verdict += "; ptxc equals nvcc, bit by bit" if verification.identical else ""
    return "\n\n".join([*parts, verdict])


def _json(verification: Verification, listings: Mapping[str, Listing]) -> str:
    """The report for programs."""
    from ptxc.cli.jsontext import dumps

    compared = [{"of": who, "against": other, **asdict(d)} for who, other, d in verification.differences]
    found = [
        {"of": found.who, **listings[found.who].finding_dict(found.kernel, found.finding)}
        for found in verification.findings
    ]
    report = {
        "right": not verification.wrong,
        "answers": verification.notes,
        "integers": verification.problem.integers,
        "ctas": dict(zip(("executed", "all"), verification.ctas)),
        "differences": compared,
        "equals_nvcc": verification.identical,
        "faults": verification.faults,
        "findings": found,
    }
    return dumps(report)
