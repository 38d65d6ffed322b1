"""What `ptxc run` and `ptxc verify` share: the way from files to memory, and execution."""

from __future__ import annotations

import argparse
import io
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ptxc.cli.arguments import options_of
from ptxc.cli.messages import complain, say
from ptxc.cli.progress import is_shown, share
from ptxc.errors import CompileError, InputError, InternalError, UsageError

if TYPE_CHECKING:
    from emmy.compiler.graph import Graph

    from ptxc.cli.results import Listing
    from ptxc.cli.sources import Source
    from ptxc.device.cuda import CudaDevice
    from ptxc.reference.buffers import Array, Problem
    from ptxc.reference.execution import Launched, Settings
    from ptxc.reference.sample import Sample
    from ptxc.reference.steps import Step

#: Seconds after which a bar shows how far a run is.
_PATIENCE = 0.5


@dataclass(frozen=True)
class Program:
    """What is executed: kernels in order, and the PTX text of each. ``statements`` gives those of a text's lines."""

    name: str
    steps: list[Step]
    texts: dict[str, str]
    statements: Callable[[], dict[int, str]] = dict
    #: What the texts are for, where ptxc compiled them.
    target: str = ""
    #: The Kernel IR that they come from, None for a PTX text.
    graph: Callable[[], Graph | None] = lambda: None

    def listing(self) -> Listing:
        """The lines of the texts, for findings."""
        from ptxc.cli.results import Listing

        return Listing({entry: text.splitlines() for entry, text in self.texts.items()}, self.statements)


def source_of(args: argparse.Namespace) -> Source:
    """The one source. Raises UsageError."""
    from ptxc.cli.sources import Source
    from ptxc.compilation import Options

    return Source(args.sources[0], Options(**options_of(args)), "", args.target is not None)


def aim(source: Source, device: CudaDevice | None) -> None:
    """Have a source compiled for the GPU that is to execute it, unless the user named a target.

    Raises TargetError for a GPU that ptxc does not compile for.
    """
    from ptxc.target import parse_target

    if device is not None and not source.target_given:
        source.options = replace(source.options, target=parse_target(device.description.sm).name)


def load(args: argparse.Namespace, device: CudaDevice | None = None) -> Program:
    """Read and compile what was given, for ``device`` if it is a GPU. Raises CompileError; of several errors all but
    one are said before."""
    source = source_of(args)
    try:
        head = source.data[:4096] if source.flows or Path(source.given).exists() else b""
    except InputError as error:
        error.at(file=source.name)
        raise
    if is_ptx(source.given, head):
        return _load_ptx(args, source)
    aim(source, device)
    return compiled(args, source)


def is_ptx(name: str, head: bytes) -> bool:
    """Whether a file is a PTX text, by its name or its first bytes."""
    return name.removesuffix(".gz").endswith(".ptx") or head.lstrip().startswith((b".version", b"//", b"/*"))


def _load_ptx(args: argparse.Namespace, source: Source) -> Program:
    given = [name for name in ("target", "ptx_version", "disable") if getattr(args, name)]
    given += ["no_fma"] if args.no_fma else []
    given += ["opt"] if args.opt != "2" else []
    given += ["math"] if args.math != "precise" else []
    if given:
        raise UsageError(f"--{given[0].replace('_', '-')} changes nothing in PTX, which is compiled already")
    if args.launch is None:
        hint = "give --launch FILE, a description as `ptxc compile --launch-json` writes it"
        raise UsageError("a PTX text does not say how to launch it", hint=hint, file=source.name)
    steps, text = read_launch(args.launch), source.text()
    return Program(source.name, steps, {step.entry: text for step in steps})


def compiled(args: argparse.Namespace, source: Source) -> Program:
    """The kernels of a graph, compiled into one module."""
    from ptxc.cli.sources import compile_source
    from ptxc.codegen.lines import statements_of_lines
    from ptxc.driver import common_target, link
    from ptxc.reference.steps import steps_of
    from ptxc.target import parse_target

    outcome = compile_source(source)
    _raise_last(outcome.errors, source, args.command_line)
    kernels = outcome.kernels
    ptx = link(kernels)
    version, target = max(kernel.version for kernel in kernels), common_target(kernels)

    def statements() -> dict[int, str]:
        return statements_of_lines([kernel.kernel for kernel in kernels], parse_target(target), version)

    steps = read_launch(args.launch) if args.launch is not None else steps_of(kernels)
    texts = {step.entry: ptx for step in steps}
    return Program(source.name, steps, texts, statements, target, lambda: source.kernels.graph)


def _raise_last(errors: list[CompileError], source: Source, command_line: str) -> None:
    """Say all errors but the last, and raise that one."""
    from ptxc.cli import faults

    for error in errors:
        if isinstance(error, InternalError):
            faults.report(error, source, command_line)
            raise SystemExit(error.exit_status)
    for error in errors[:-1]:
        complain(error)
    if errors:
        raise errors[-1]


def read_launch(name: str) -> list[Step]:
    """The steps of a launch description's file."""
    from ptxc.cli.files import read
    from ptxc.reference.steps import read_steps

    return read(name, read_steps)


def read_arrays(name: str) -> dict[str, Array]:
    """The arrays of an .npz file. Raises UsageError or InputError."""
    import numpy as np

    hint = "write it with numpy.savez"
    try:
        file = np.load(name, allow_pickle=False)
        if not isinstance(file, np.lib.npyio.NpzFile):
            raise InputError("this is no .npz file but a single array", hint=hint, file=name)
        with file:
            return {key: file[key] for key in file.files}
    except OSError as error:
        raise UsageError(f"cannot read {name!r}: {error.strerror or error}") from error
    except ValueError as error:
        # NumPy offers to unpickle what it does not know.
        odd = "pickle" in str(error)
        what = "this is no .npz file" if not odd else "this is no .npz file, or one of Python objects"
        raise InputError(what if odd else f"{what}: {error}", hint=hint, file=name) from error
    except (EOFError, zipfile.BadZipFile, zlib.error, KeyError, AttributeError) as error:
        raise InputError(f"this is no .npz file: {error}", hint=hint, file=name) from error


def npz(arrays: Mapping[str, Array]) -> bytes:
    """The bytes of an .npz file."""
    import numpy as np

    file = io.BytesIO()
    np.savez(file, allow_pickle=False, **dict(arrays))
    return file.getvalue()


def problem_for(args: argparse.Namespace, steps: list[Step]) -> Problem:
    """The memory of a run; says what was chosen for the user."""
    from ptxc.reference.buffers import integers_of, problem_of

    given = read_arrays(args.inputs) if args.inputs is not None else {}
    integers = integers_of(steps, dict(args.integers), given)
    for name, integer in integers.items():
        if integer.origin == "the default":
            say(f"ptxc: note: {name} is {integer.value}, the default; choose with --set {name}=N")
    return problem_of(steps, {name: integer.value for name, integer in integers.items()}, given, args.seed)


def execute(
    program: Program,
    arrays: Mapping[str, Array],
    problem: Problem,
    settings: Settings,
    what: str = "running",
    device: CudaDevice | None = None,
) -> list[Launched]:
    """Execute a program on a GPU, else on the CPU device, with a bar that shows how far it is."""
    from ptxc.reference import execution

    with _named(program):
        modules = execution.load(program.texts, device)
        with _bar(what) as report:
            return execution.execute(modules, program.steps, arrays, problem.integers, settings, report)


def affordable(program: Program, problem: Problem, settings: Settings) -> Sample:
    """All CTAs, or as many as the CPU device can execute in seconds (:func:`ptxc.reference.execution.affordable`)."""
    from ptxc.reference import execution

    with _named(program):
        modules = execution.load(program.texts)
        return execution.affordable(modules, program.steps, problem.arrays(), problem.integers, settings)


@contextmanager
def _named(program: Program) -> Iterator[None]:
    """Complete errors with the name of the program's file."""
    try:
        yield
    except CompileError as error:
        error.at(file=program.name)
        raise


def note_empty(launched: list[Launched]) -> None:
    """Say which kernels were not launched."""
    for launch in launched:
        if not launch.ctas:
            say(f"ptxc: note: the grid of {launch.step.entry} has no CTAs, so that nothing is launched")


@contextmanager
def _bar(what: str) -> Iterator[Callable[[float, int], None] | None]:
    """A bar that is told of CTAs done and in all. It appears when there is something to wait for.

    None where there is no terminal to show it on: then no one need tell.
    """
    if not is_shown():
        yield None
        return
    start, show = time.monotonic(), None
    with ExitStack() as stack:

        def report(done: float, total: int) -> None:
            nonlocal show
            if show is None:
                if time.monotonic() - start < _PATIENCE:
                    return
                show = stack.enter_context(share(what))
            show(done / total)

        yield report
