"""Parsing arguments: argparse with errors of one line, and the options that several commands have."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn

from ptxc.cli.files import show
from ptxc.errors import CompileError, UsageError
from ptxc.target import PtxVersion, parse_target

#: What ``add_subparsers`` gives.
type Commands = argparse._SubParsersAction[Parser]

DEFAULT_TARGET = "sm_89"


class Parser(argparse.ArgumentParser):
    """An ArgumentParser whose errors are UsageErrors that say what was meant.

    Options cannot be abbreviated: a later option would change what a script's abbreviation means. Files may stand
    between options.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings, allow_abbrev=False, add_help=False, formatter_class=_Help)
        self.add_argument("-h", "--help", action="help", help="print this help")

    def error(self, message: str) -> NoReturn:
        """Raise a UsageError for argparse's ``message``."""
        what = message.removeprefix("argument ")
        raise UsageError(what, hint=f"see `{self.prog} --help`")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Parse ``args``, all of which must be known."""
        found, rest = super().parse_known_args(args, namespace)
        if "--" in rest:  # what follows it are files
            rest.remove("--")
        options = [] if args and "--" in args else [word for word in rest if word.startswith("-") and word != "-"]
        if options:
            name = options[0].partition("=")[0]
            hint = f"{near(name, self._option_string_actions)}see `{self.prog} --help`"
            raise UsageError(f"there is no option {name!r}", hint=hint)
        if rest and not hasattr(found, "sources"):
            self.error(f"{rest[0]!r} is one argument too many")
        if rest:
            found.sources += rest
        return found, []

    def _print_message(self, message: str, file: object = None) -> None:
        # Of --help and --version. argparse would keep to itself that they cannot be written.
        show(message.removesuffix("\n"))

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            question = near(str(value), action.choices)
            choices = ", ".join(map(str, action.choices))
            raise argparse.ArgumentError(action, f"no {value!r}; {question}it is one of {choices}")


class _Help(argparse.RawDescriptionHelpFormatter):
    """Help with room for the names of options, and a plain list of commands."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=26)

    def _format_action(self, action: argparse.Action) -> str:
        if not isinstance(action, argparse._SubParsersAction):
            return super()._format_action(action)
        return "".join(f"  {command.dest:12}{command.help}\n" for command in action._choices_actions)


def near(name: str, known: Iterable[str]) -> str:
    """``did you mean …? `` where something known is spelled nearly as ``name``, else nothing."""
    found = difflib.get_close_matches(name, list(known), n=1)
    return f"did you mean {found[0]}? " if found else ""


def examples(rows: Sequence[tuple[str, str]], closing: str = "") -> str:
    """The end of a help page: commands to try, with what each does."""
    width = max(len(command) for command, _ in rows)
    text = "examples:\n" + "\n".join(f"  {command:{width}}  {what}" for command, what in rows)
    return f"{text}\n\n{closing}" if closing else text


# ------------------------------------------------------------------------------------------------------- options


def add_sources(parser: Parser, what: str) -> None:
    """The files, ``args.sources``."""
    parser.add_argument("sources", nargs="*", metavar="FILE", help=what)


def require_sources(args: argparse.Namespace) -> None:
    """Raise UsageError where there is no file, or standard input twice; a golden file stands for what it records."""
    if not args.sources and args.golden:
        args.sources = [args.golden]
    if not args.sources:
        raise UsageError("no file is given", hint="name a file of Kernel IR, or - for standard input")
    if args.sources.count("-") > 1:
        raise UsageError("standard input is given twice", hint="give - once")


def add_code_options(parser: Parser) -> None:
    """What decides which code is made."""
    group = parser.add_argument_group("code")
    group.add_argument(
        "--target", type=_target, metavar="SM", help=f"the GPU: sm_80, sm_90a, sm_120, ... (default: {DEFAULT_TARGET})"
    )
    group.add_argument(
        "--ptx-version", type=_version, metavar="X.Y", help="the PTX version (default: the lowest that will do)"
    )
    group.add_argument(
        "--math",
        choices=("precise", "fast"),
        default="precise",
        help="precise: as CUDA's default; fast: as nvcc --use_fast_math (default: precise)",
    )
    group.add_argument(
        "--no-fma", action="store_true", help="do not fuse multiplications and additions, as nvcc --fmad=false"
    )


def add_cache_option(parser: argparse._ActionsContainer) -> None:
    """Whether results are kept."""
    parser.add_argument(
        "--no-cache",
        action="store_true",
        help="make everything anew and keep nothing (see `ptxc cache`)",
    )


def add_schedule_options(parser: Parser) -> None:
    """How a graph that is not Kernel IR yet becomes kernels."""
    group = parser.add_argument_group("schedule (of a graph that is not Kernel IR yet; docs/emmy.md)")
    group.add_argument(
        "--golden",
        type=not_empty,
        metavar="JSON",
        help="a golden file of Emmy's; without FILE, the kernel that its row is about",
    )
    group.add_argument("--realization", type=not_empty, metavar="NAME", help="the row of it whose schedule to take")
    group.add_argument(
        "--pins",
        type=_pin,
        action="append",
        default=[],
        metavar="KNOB=VALUE",
        help="pin one of Emmy's knobs; may be given several times",
    )
    group.add_argument("--separate", action="store_true", help="lower operations one by one, each to a kernel")


def add_pass_options(parser: Parser) -> argparse._ArgumentGroup:
    """What decides which passes run, and what is said of them."""
    group = add_choice_of_passes(parser)
    group.add_argument("--verify-each", action="store_true", help="check the IR after each pass")
    group.add_argument("--time-passes", action="store_true", help="say how long each pass takes")
    return group


def add_choice_of_passes(parser: Parser) -> argparse._ArgumentGroup:
    """Which passes run: what to leave out, to see which one makes a kernel wrong."""
    group = parser.add_argument_group("passes (`ptxc passes` lists them)")
    group.add_argument(
        "--opt",
        choices=("0", "1", "2"),
        default="2",
        help="0: the passes that a kernel needs; 1: those that make it smaller too; 2: all (default: 2)",
    )
    group.add_argument(
        "--disable",
        type=pass_list,
        action="extend",
        default=[],
        metavar="PASS",
        help="leave out an optional pass; may be given several times",
    )
    return group


def options_of(args: argparse.Namespace) -> dict[str, Any]:
    """The compilation's options (:class:`ptxc.compilation.Options`) out of those two groups. Raises UsageError."""
    from ptxc.passes.pipeline import Runner
    from ptxc.store import open_store

    open_store(not args.no_cache)  # what is wrong with its settings is no file's fault
    stop_after, start_at = getattr(args, "stop_after", None) or "", getattr(args, "start_at", None) or ""
    Runner(disabled=args.disable, stop_after=stop_after, start_at=start_at)
    return {
        "target": args.target or DEFAULT_TARGET,
        "ptx_version": args.ptx_version or "",
        "math": args.math,
        "fma": not args.no_fma,
        "opt": int(args.opt),
        "disable": tuple(args.disable),
        "stop_after": stop_after,
        "pins": dict(getattr(args, "pins", ())),
        "golden": getattr(args, "golden", None) or "",
        "realization": getattr(args, "realization", None) or "",
        "separate": getattr(args, "separate", False),
        "verify_each": args.verify_each,
        "time_passes": args.time_passes,
        "cache": not args.no_cache and getattr(args, "emit", None) != "ir",  # the store has no IR
    }


def pass_list(text: str) -> list[str]:
    """The passes in an option that may be given several times, or once with commas."""
    names = [name for name in text.split(",") if name]
    if not names:
        raise argparse.ArgumentTypeError("it names no pass; `ptxc passes` lists them")
    return names


def number_of_jobs(text: str) -> int:
    """How many are worked on at a time."""
    if not (text.isascii() and text.isdigit() and int(text)):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of kernels; give 1 or more")
    return int(text)


def not_empty(text: str) -> str:
    """A name, of a file for one; an empty one comes from a variable that a script did not set, and is refused."""
    if not text:
        raise argparse.ArgumentTypeError("it is empty")
    return text


def _pin(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is no pin; give KNOB=VALUE, such as TILE=n16/u2x4")
    return name, value


def _target(text: str) -> str:
    return _checked(parse_target, text)


def _version(text: str) -> str:
    return _checked(PtxVersion.parse, text)


def _checked(parse: Callable[[str], object], text: str) -> str:
    """``text``, when ``parse`` takes it."""
    try:
        parse(text)
    except CompileError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return text
