"""Compiling all that was given, with what is said meanwhile and at the end."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence

from ptxc.cli import faults
from ptxc.cli.arguments import options_of
from ptxc.cli.messages import complain, present, say, table
from ptxc.cli.progress import progress
from ptxc.cli.sources import Outcome, Source, Watchers, compile_source, internal_error
from ptxc.compilation import CompiledKernel, Options
from ptxc.errors import CompileError, InternalError

#: Takes what a source gave; raises CompileError.
Deliver = Callable[[Source, Sequence[CompiledKernel]], None]


def compile_all(
    args: argparse.Namespace, what: str, watchers: Watchers | None = None, deliver: Deliver | None = None
) -> int:
    """Compile ``args.sources``, hand each that has no error to ``deliver``, report the errors of the others.

    Returns the exit status of the worst. ``what`` names the work in the progress bar.
    """
    options = Options(**options_of(args))
    times = _Times()
    status = failed = 0
    with progress(len(args.sources), what) as advance:
        for given in args.sources:
            source = Source(given, options, getattr(args, "start_at", None) or "", args.target is not None)
            outcome = compile_source(source, watchers)
            if deliver is not None and not outcome.errors:
                _deliver(deliver, source, outcome)
            for error in outcome.errors:
                status = max(status, error.exit_status)
                if isinstance(error, InternalError):
                    faults.report(error, source, args.command_line)
                else:
                    complain(error)
            failed += bool(outcome.errors)
            times.add(outcome)
            advance()
    if failed and len(args.sources) > 1:
        say(f"ptxc: {failed} of {len(args.sources)} files failed")
    if args.time_passes:
        present(times.text())
    return status


def _deliver(deliver: Deliver, source: Source, outcome: Outcome) -> None:
    """Deliver what a source gave; what goes wrong becomes its error."""
    try:
        deliver(source, outcome.kernels)
    except CompileError as error:
        outcome.errors.append(error.at(file=source.name))
    except BrokenPipeError:
        raise
    except Exception as fault:
        outcome.errors.append(internal_error("writing", fault).at(file=source.name))


class _Times:
    """CPU time of each step, over all kernels."""

    def __init__(self) -> None:
        self.kernels = 0
        self.reading = 0.0
        self.steps: dict[str, tuple[float, int]] = {}

    def add(self, outcome: Outcome) -> None:
        """Add a source's."""
        self.reading += outcome.seconds
        for kernel in outcome.kernels:
            self.kernels += 1
            for name, seconds, instructions in kernel.stats.passes:
                before = self.steps.get(name, (0.0, 0))
                self.steps[name] = (before[0] + seconds, before[1] + instructions)

    def text(self) -> str:
        """The table."""
        total = self.reading + sum(seconds for seconds, _ in self.steps.values())
        rows = [("step", "CPU ms", "share", "instructions after")]
        timed = [("read", self.reading, ""), *((name, time, str(size)) for name, (time, size) in self.steps.items())]
        for name, seconds, size in (*timed, ("total", total, "")):
            share = 100 * seconds / total if total else 0.0
            rows.append((name, f"{1000 * seconds:.2f}", f"{share:.0f} %", size))
        kernels = "1 kernel" if self.kernels == 1 else f"{self.kernels} kernels"
        return f"{kernels}, not counting the imports:\n{table(rows, right=(1, 2, 3))}"
