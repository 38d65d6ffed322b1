"""The options of `ptxc run` and `ptxc verify` that say what is executed, how, and what is near enough."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from ptxc.cli.arguments import Parser, near, not_empty, require_sources
from ptxc.device import DEADLINE, KINDS
from ptxc.errors import UsageError

if TYPE_CHECKING:
    from ptxc.cli.launching import Program
    from ptxc.device.cuda import CudaDevice
    from ptxc.reference.buffers import Problem
    from ptxc.reference.compare import Tolerance
    from ptxc.reference.execution import Settings

CHECKS = ("memory", "race", "init", "sync")


def add_memory_options(parser: Parser) -> argparse._ArgumentGroup:
    """What the buffers hold, and how large they are."""
    group = parser.add_argument_group("memory")
    group.add_argument("--inputs", type=not_empty, metavar="NPZ", help="arrays by buffer; what is left out is random")
    group.add_argument("--seed", type=natural, default=0, metavar="N", help="of the random inputs (default: 0)")
    group.add_argument(
        "--set",
        dest="integers",
        type=_assignment,
        action="append",
        default=[],
        metavar="NAME=N",
        help="a size known at run time (default: from the inputs' shapes, else 128)",
    )
    return group


def add_tolerance_options(group: argparse._ArgumentGroup) -> None:
    """What is near enough."""
    group.add_argument(
        "--rtol",
        type=_tolerance,
        metavar="X",
        help="relative to the larger of an element and the root mean square (default: 1e-5; 2e-3 where a buffer is "
        "f16, 2e-2 where one is bf16, more where f16 is summed in)",
    )
    group.add_argument("--atol", type=_tolerance, metavar="X", help="absolute, added to that (default: 0)")


def add_execution_options(parser: Parser, ctas: str = "all") -> argparse._ArgumentGroup:
    """What is executed and watched, and by which device; ``ctas`` says how many CTAs are where none are named."""
    group = parser.add_argument_group("execution")
    group.add_argument(
        "--device", choices=KINDS, default="cpu", help="cpu: executes PTX here; cuda: a GPU of NVIDIA's (default: cpu)"
    )
    group.add_argument(
        "--deadline",
        type=_seconds,
        metavar="SECONDS",
        help=f"on a GPU, what a launch may take (default: {DEADLINE:g})",
    )
    group.add_argument(
        "--ctas",
        metavar="all|N|i,j,k",
        help=f"all CTAs, N spread over the grid, or those of these numbers (default: {ctas})",
    )
    group.add_argument(
        "--sanitize",
        type=_checks,
        metavar="all|none|CHECK,...",
        help=f"what to check: {', '.join(CHECKS)} (default: all)",
    )
    group.add_argument(
        "--max-steps",
        type=natural,
        metavar="N",
        help="instructions that a batch of CTAs may execute (default: 20000000)",
    )
    return group


def natural(text: str) -> int:
    """A number of at least 0."""
    if not (text.isascii() and text.isdigit()):
        raise argparse.ArgumentTypeError(f"{text!r} is no number")
    return int(text)


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is no time; give seconds such as 10")
    return value


def _tolerance(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is no tolerance; give a number such as 1e-5")
    return value


def _assignment(text: str) -> tuple[str, int]:
    name, _, value = text.partition("=")
    if not name.isidentifier() or not (value.isascii() and value.isdigit()):
        raise argparse.ArgumentTypeError(f"{text!r} is no size; give NAME=N, such as seq_len=50")
    return name, int(value)


def _checks(text: str) -> frozenset[str]:
    if text in ("all", "none"):
        return frozenset(CHECKS if text == "all" else ())
    chosen = [name for name in text.split(",") if name]
    if not chosen:
        raise argparse.ArgumentTypeError(f"it names no check; it is all, none, or some of {', '.join(CHECKS)}")
    for name in chosen:
        if name not in CHECKS:
            question = near(name, CHECKS)
            raise argparse.ArgumentTypeError(f"no {name!r}; {question}it is all, none, or some of {', '.join(CHECKS)}")
    return frozenset(chosen)


def one_source(args: argparse.Namespace) -> None:
    """Raise UsageError unless there is one file."""
    require_sources(args)
    if len(args.sources) > 1:
        raise UsageError(f"{len(args.sources)} files are given", hint="give one; a graph may hold several kernels")


def tolerance_of(args: argparse.Namespace, problem: Problem, program: Program | None) -> Tolerance:
    """What is near enough, for the kernels of ``program`` on the buffers of ``problem``."""
    from ptxc.reference.tolerances import tolerance_for

    graph = program.graph() if program is not None else None
    return tolerance_for(problem, graph, args.rtol, args.atol or 0.0)


def settings_of(args: argparse.Namespace) -> Settings:
    """How to execute. Raises UsageError."""
    from ptxc.reference.execution import Settings
    from ptxc.reference.sample import Sample
    from ptxc.sim.device import DEFAULT_MAX_STEPS

    repeat = getattr(args, "repeat", None)
    if args.device == "cuda":
        _refuse_checks(args)
        return Settings(repeat=repeat or 0)
    for name, value in (("deadline", args.deadline), ("repeat", repeat)):
        if value is not None:
            raise UsageError(f"--{name} changes nothing on the CPU device", hint="it is for --device cuda")
    limit = DEFAULT_MAX_STEPS if args.max_steps is None else args.max_steps
    checks = frozenset(CHECKS) if args.sanitize is None else args.sanitize
    return Settings(
        checks, Sample.parse("all" if args.ctas is None else args.ctas), limit, getattr(args, "profile", False)
    )


def _refuse_checks(args: argparse.Namespace) -> None:
    """Raise UsageError for what a GPU cannot be asked."""
    asked = {
        "--sanitize": bool(args.sanitize),
        "--ctas": args.ctas is not None,
        "--max-steps": args.max_steps is not None,
        "--profile": getattr(args, "profile", False),
    }
    for option, given in asked.items():
        if given:
            raise UsageError(f"a GPU has no {option}", hint="leave it out, or use the CPU device")


def device_of(args: argparse.Namespace) -> CudaDevice | None:
    """The GPU that was asked for, None for the CPU device. Raises DeviceError where there is none."""
    if args.device != "cuda":
        return None
    from ptxc.device.cuda import CudaDevice

    return CudaDevice(DEADLINE if args.deadline is None else args.deadline)
