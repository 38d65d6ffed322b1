"""``ptxc emmy``: Emmy's own command line, with ptxc and ptxas where it would call nvcc."""

from __future__ import annotations

import argparse
import sys

from ptxc.cli.arguments import Commands, examples
from ptxc.cli.messages import say
from ptxc.errors import CompileError, UnsupportedError, UsageError

_DESCRIPTION = """\
Runs Emmy's command line as `emmy ARGUMENT...` does, but its CUDA backend builds kernels with ptxc and ptxas: nvcc is
not called, and what Emmy shows as CUDA is PTX. Graphs, schedules and launches are Emmy's. The cubins are in Emmy's
cache, under names that nvcc's never have. The exit status is Emmy's, or 2 where ptxc refuses a kernel."""

_EXAMPLES = (
    ("ptxc emmy compile --golden G.json --realization NAME --target sm_80", "a recorded schedule, as PTX"),
    ("ptxc emmy run --golden G.json --realization NAME --bench", "measured, on this machine's GPU; needs torch"),
    ("ptxc emmy compile --help", "Emmy's help"),
)


def add(commands: Commands) -> None:
    """Make the command's parser."""
    parser = commands.add_parser(
        "emmy",
        help="run Emmy's command line with ptxc as its compiler",
        description=_DESCRIPTION,
        epilog=examples(_EXAMPLES, "docs/emmy.md explains autotuning with it."),
        usage="ptxc emmy COMMAND [argument...]",
    )
    parser.add_argument(
        "arguments", nargs=argparse.REMAINDER, metavar="ARGUMENT", help="Emmy's command and its options"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run Emmy; its exit status."""
    if not args.arguments:
        raise UsageError("no command of Emmy's is given", hint="see `ptxc emmy --help`")
    from emmy.emmy import main

    from ptxc.emmy import use_ptxc

    before = sys.argv
    sys.argv = ["emmy", *args.arguments]
    try:
        with use_ptxc():
            main()  # type: ignore[no-untyped-call]
    except CompileError:
        raise
    except Exception as error:  # Emmy raises whatever is at hand
        raise UnsupportedError(f"Emmy fails: {type(error).__name__}: {str(error)[:500]}") from error
    except SystemExit as end:
        if isinstance(end.code, str):
            say(end.code)
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    finally:
        sys.argv = before
    return 0
