"""The command line, ``ptxc COMMAND ...``: argument parsing and printing, one module a command.

Standard output carries what a command is for (PTX, a table, a script) and nothing else; whatever is said about it goes
to standard error. Exit statuses: 0, 2 for an error of the input or the usage, 70 for a fault of ptxc, 130 and 143 where
Ctrl-C or a kill ended it, 141 where the reader of its output went away.

To add a command, write a module here with ``add(commands)``, which makes the command's parser and says what runs it,
and name it in :data:`COMMANDS`. What commands share: :mod:`~ptxc.cli.arguments` (parsing, groups of options),
:mod:`~ptxc.cli.session` (reading and compiling what was given), :mod:`~ptxc.cli.files` (writing),
:mod:`~ptxc.cli.messages` (errors and tables), :mod:`~ptxc.cli.streams` (standard input, output, error). A module
imports what takes time (Emmy, NumPy, networkx, rich) only when its command runs; this one imports next to nothing
before :func:`main` can catch Ctrl-C.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ptxc.cli import streams
from ptxc.errors import CompileError, StoreWarning, UsageError

if TYPE_CHECKING:
    from types import FrameType

    from ptxc.cli.arguments import Commands, Parser

COMMANDS = ("compile", "batch", "check", "run", "verify", "compare", "emmy", "cache", "passes", "ops", "completion")

_DESCRIPTION = """\
Compiles Emmy's scheduled Kernel IR to NVIDIA PTX, without nvcc or LLVM.

The input is the JSON that Emmy's Graph.to_dict() gives for a graph of Kernel IR, plain or gzip."""

_EXAMPLES = (
    ("ptxc kernel.ir.json > kernel.ptx", "short for: ptxc compile kernel.ir.json"),
    ("ptxc compile kernel.ir.json --target sm_90 --assemble", "and what ptxas makes of it"),
    ("ptxc check kernels/*.json", "only errors"),
    ("ptxc passes", "what the compiler does, step by step"),
)


def build() -> tuple[Parser, Commands]:
    """The parser of the whole command line, and the commands in it."""
    from ptxc.cli.arguments import Parser, examples
    from ptxc.version import __version__, is_compiled

    parser = Parser(
        prog="ptxc",
        usage="ptxc COMMAND ... | ptxc KERNEL.json",
        description=_DESCRIPTION,
        epilog=examples(_EXAMPLES, "`ptxc COMMAND --help` explains a command's options."),
    )
    version = f"ptxc {__version__} ({'compiled' if is_compiled() else 'pure Python'})"
    parser.add_argument("--version", action="version", version=version, help="print ptxc's version")
    commands = parser.add_subparsers(title="commands", metavar="", required=True, prog="ptxc")
    for command in COMMANDS:
        importlib.import_module(f"ptxc.cli.{command}").add(commands)
    return parser, commands


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line ``argv`` (the process's by default) and return the exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    with streams.occupied():
        return _status(arguments)


def _status(arguments: list[str]) -> int:
    """Run the command line, say what goes wrong, and return the exit status."""
    try:
        with _ended_by_kill(), _warnings_said():
            status = _run(arguments)
            streams.flush()
            return status
    except CompileError as error:
        from ptxc.cli.messages import complain

        complain(error)
        return error.exit_status
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except BrokenPipeError:
        return 128 + signal.SIGPIPE
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0
    except Exception as fault:
        from ptxc.cli.faults import report_crash

        return report_crash(fault, arguments)
    finally:
        streams.forget()


def _run(arguments: list[str]) -> int:
    """Parse and run."""
    import shlex

    parser, commands = build()
    try:
        args = parser.parse_args(_with_command(arguments, commands))
    except SystemExit:  # after --help and --version
        return 0
    args.command_line = shlex.join(["ptxc", *arguments])
    status: int = args.run(args)
    return status


def _with_command(arguments: list[str], commands: Commands) -> list[str]:
    """``arguments`` with the command that they leave out: a file's name or an option first means ``compile``."""
    if not arguments:
        hint = "`ptxc KERNEL.json` compiles a kernel, `ptxc --help` lists the commands"
        raise UsageError("no command and no file", hint=hint)
    first = arguments[0]
    if first in (*commands.choices, "-h", "--help", "--version"):
        return arguments
    if first == "help":
        return [*arguments[1:], "--help"]
    if first.startswith("-") or "." in first or os.sep in first or os.path.exists(first):
        return ["compile", *arguments]
    from ptxc.cli.arguments import near

    question = near(first, commands.choices)
    raise UsageError(f"no command and no file is called {first!r}", hint=f"{question}`ptxc --help` lists the commands")


@contextmanager
def _ended_by_kill() -> Iterator[None]:
    """SIGTERM ends the process as an exception does, so that no half-written file stays."""

    def end(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _warnings_said() -> Iterator[None]:
    """Say the store's warnings as ptxc's own; others appear as Python shows them."""
    import warnings

    with warnings.catch_warnings():
        shown = warnings.showwarning

        def show(message: Warning | str, *where: Any, **more: Any) -> None:
            if not isinstance(message, StoreWarning):
                shown(message, *where, **more)
                return
            from ptxc.cli.messages import printable, say

            say(f"ptxc: warning: {printable(str(message))}")

        warnings.simplefilter("always", StoreWarning)
        warnings.showwarning = show
        yield
