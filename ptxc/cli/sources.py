"""From what was given on the command line to compiled kernels, a source at a time.

A source is a path or ``-``: a graph of Kernel IR as JSON or, with ``--start-at``, kernels in the text form of ptxc's
own IR.
"""

from __future__ import annotations

import gzip
import io
import os
import re
import time
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import pairwise
from typing import Protocol

from ptxc.cli.files import STDIO, stem
from ptxc.compilation import CompiledKernel, Observer, Options
from ptxc.driver import Kernels
from ptxc.errors import CompileError, InputError, InternalError, UsageError
from ptxc.ir.kernel import Kernel


class Watcher(Protocol):
    """Sees a kernel after each pass, and what became of it in the end."""

    def __call__(self, rank: int, name: str, kernel: Kernel) -> None:
        """See the kernel as pass ``name`` left it."""

    def finish(self, kernel: CompiledKernel) -> None:
        """See the compiled kernel."""


#: Called with a source and the names of its kernels; gives what watches each.
Watchers = Callable[["Source", Sequence[str]], Iterable[Watcher | None]]


@dataclass
class Source:
    """One input, and how it is to be compiled."""

    given: str
    options: Options
    #: The pass to start at, where the source is IR.
    start_at: str = ""
    #: Whether the user named the target; else IR's own counts.
    target_given: bool = False

    @property
    def name(self) -> str:
        """What errors call it."""
        return "<stdin>" if self.given == STDIO else self.given

    @property
    def flows(self) -> bool:
        """Whether it can be read only once: standard input, a pipe."""
        known = os.path.isfile(self.given) or os.path.isdir(self.given) or not os.path.exists(self.given)
        return self.given == STDIO or not known

    @cached_property
    def data(self) -> bytes:
        """Its bytes, packed or not as they are; of a source that flows, no more than the reader takes.

        Raises InputError.
        """
        from ptxc.frontend.jsonfile import MAX_BYTES, standard_input

        try:
            if self.given == STDIO:
                return standard_input().read(MAX_BYTES + 1)
            with open(self.given, "rb") as file:
                return file.read(MAX_BYTES + 1)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            hint = "give a file that can be read, or - for standard input"
            raise InputError(f"cannot read the file: {reason}", hint=hint) from error

    @cached_property
    def kernels(self) -> Kernels:
        """Its kernels, where it is a graph."""
        if self.given == self.options.golden:
            return Kernels(None, self.options)
        return Kernels(io.BytesIO(self.data) if self.flows else self.given, self.options)

    def text(self) -> str:
        """Its text, unpacked. Raises InputError."""
        data = self.data
        try:
            return (gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data).decode()
        except (OSError, ValueError, EOFError, zlib.error) as error:
            reason = getattr(error, "strerror", None) or error
            raise InputError(f"cannot read the file: {reason}", hint="give IR text, plain or gzip") from error


@dataclass(frozen=True)
class Job:
    """One kernel of a source, ready to be compiled."""

    kernel: str
    compile: Callable[[Options, Observer | None], CompiledKernel]


@dataclass
class Outcome:
    """What became of a source. With an error there may still be kernels that compiled."""

    kernels: list[CompiledKernel] = field(default_factory=list)
    errors: list[CompileError] = field(default_factory=list)
    #: CPU seconds of reading.
    seconds: float = 0.0


def compile_source(source: Source, watchers: Watchers | None = None) -> Outcome:
    """Compile every kernel of a source, and go on after one that fails."""
    outcome = Outcome()
    try:
        if source.options.time_passes:
            _load(source)
        start = time.process_time()
        jobs = _jobs(source)
        outcome.seconds = time.process_time() - start
        watching = list(watchers(source, [job.kernel for job in jobs])) if watchers else [None] * len(jobs)
    except CompileError as error:
        outcome.errors.append(error.at(file=source.name))
        return outcome
    for job, watcher in zip(jobs, watching, strict=True):
        try:
            kernel = job.compile(source.options, watcher)
            outcome.kernels.append(kernel)
            if watcher is not None:
                watcher.finish(kernel)
        except InternalError as error:
            outcome.errors.append(_with_reproducer(error, job, source.options).at(file=source.name))
        except CompileError as error:
            outcome.errors.append(error.at(file=source.name))
    return outcome


def _load(source: Source) -> None:
    """Import what takes long, so that times are those of the work."""
    import ptxc.ir.verify  # noqa: F401

    if not source.start_at:
        from ptxc.frontend import lower  # noqa: F401
        from ptxc.frontend.vocabulary import op_class, term_classes

        op_class("")
        term_classes()


def _jobs(source: Source) -> list[Job]:
    """The kernels of a source. Whatever goes wrong while it is read is a CompileError."""
    is_ir = source.given.removesuffix(".gz").endswith(".ir")
    if is_ir and not source.start_at:
        raise UsageError("this is IR, not Kernel IR", hint=_where_to_start(source.given))
    if source.start_at and source.given.removesuffix(".gz").endswith(".json"):
        raise UsageError("--start-at takes IR, as --dump-dir and --emit ir write it", hint="leave it out for a graph")
    try:
        return _ir_jobs(source) if source.start_at else _graph_jobs(source)
    except CompileError:
        raise
    except Exception as fault:
        raise internal_error("reading", fault) from fault


def internal_error(doing: str, fault: Exception) -> InternalError:
    """The error for an exception that nobody expected."""
    error = InternalError(f"{doing} failed: {type(fault).__name__}: {fault}")
    error.__cause__ = fault
    return error


def _graph_jobs(source: Source) -> list[Job]:
    kernels = source.kernels
    return [Job(name, partial(kernels.compile, number)) for number, name in enumerate(kernels.names)]


def _ir_jobs(source: Source) -> list[Job]:
    from ptxc.ir.text import NAME

    jobs = []
    for text in split_kernels(source.text()):
        match = re.search(rf"^kernel ({NAME}) ", text, re.MULTILINE)
        jobs.append(Job(match[1] if match else "", partial(_compile_ir, source, text)))
    return jobs


def _compile_ir(source: Source, text: str, options: Options, observer: Observer | None) -> CompiledKernel:
    from ptxc.driver import compile_ir

    chosen = {name: getattr(options, name) for name in Options.__dataclass_fields__}
    kernel = compile_ir(text, name=source.name, start_at=source.start_at, observe=observer, **chosen)
    # The suffix is the kernel's own need.
    if source.target_given and kernel.target not in (options.target, f"{options.target}a"):
        hint = "leave out --target, or compile the Kernel IR again"
        raise UsageError(f"the IR is made for {kernel.target}, not for {options.target}", hint=hint)
    return kernel


def split_kernels(text: str) -> list[str]:
    """The kernels of an IR text, each after so many empty lines that its lines keep their numbers."""
    starts = [0, *[match.start() for match in re.finditer(r"^kernel ", text, re.MULTILINE)][1:], len(text)]
    return ["\n" * text.count("\n", 0, start) + text[start:end] for start, end in pairwise(starts)]


def _where_to_start(given: str) -> str:
    """How to go on with an IR file, as far as its name says after which pass it was written."""
    from ptxc.passes.pipeline import BUILD, PIPELINE, PRINT

    steps = [BUILD[1], *(item.name for item in PIPELINE), PRINT]
    done = re.sub(r"^\d+-", "", stem(given))
    if done in steps[:-1]:
        return f"give the pass to go on with: ptxc compile --start-at {steps[steps.index(done) + 1]}"
    return "give the first pass to run: ptxc compile --start-at PASS"


def _with_reproducer(error: InternalError, job: Job, options: Options) -> InternalError:
    """``error`` with the IR from before the pass at fault: compiles again, with the verifier on, to get it."""
    if error.reproducer:
        return error
    try:
        job.compile(replace(options, verify_each=True), None)
    except InternalError as found:
        error.reproducer = found.reproducer
        if found.what != error.what:
            error.what += f" (checked after each pass: {found.what})"
    except Exception as odd:
        error.add_note(f"Compiling again gave {type(odd).__name__}: {odd}")
    return error
