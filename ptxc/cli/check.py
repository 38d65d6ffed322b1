"""``ptxc check``: whether kernels compile, and why not."""

from __future__ import annotations

import argparse

from ptxc.cli.arguments import (
    Commands,
    add_cache_option,
    add_code_options,
    add_pass_options,
    add_schedule_options,
    add_sources,
    examples,
    require_sources,
)

_DESCRIPTION = """\
Compiles kernels and writes nothing: exit status 0 and silence if all of them compile, else a line for each that does
not and exit status 2. No GPU and no CUDA is needed.

FILE is a graph of Emmy's Kernel IR as `ptxc compile` takes it."""

_EXAMPLES = (
    ("ptxc check kernels/*.json", "all of these"),
    ("ptxc check k.ir.json --target sm_80", "for an older GPU, with less shared memory"),
)


def add(commands: Commands) -> None:
    """Make the command's parser."""
    parser = commands.add_parser(
        "check",
        help="say what is wrong with kernels, or nothing",
        description=_DESCRIPTION,
        epilog=examples(_EXAMPLES),
        usage="ptxc check FILE... [option...]",
    )
    parser.set_defaults(run=run)
    add_sources(parser, "a graph of Kernel IR as JSON, or - for standard input")
    add_code_options(parser)
    add_schedule_options(parser)
    add_pass_options(parser)
    add_cache_option(parser)


def run(args: argparse.Namespace) -> int:
    """Compile all files; the exit status is that of the worst."""
    require_sources(args)
    from ptxc.cli.session import compile_all

    return compile_all(args, "checking")
