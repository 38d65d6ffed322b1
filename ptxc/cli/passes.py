"""``ptxc passes``: what the compiler does, step by step, and why in this order."""

from __future__ import annotations

import argparse
import ast
from importlib.resources import files

from ptxc.cli.arguments import Commands, examples
from ptxc.cli.files import show
from ptxc.cli.messages import table

_DESCRIPTION = """\
Lists the steps in which a kernel is compiled, and why they come in this order. With the name of a pass, says what it
does in full, with the IR before and after it."""

_EXAMPLES = (
    ("ptxc passes", "the list"),
    ("ptxc passes early-exit", "one pass"),
)


def add(commands: Commands) -> None:
    """Make the command's parser."""
    parser = commands.add_parser(
        "passes",
        help="list the compiler's passes, and the reasons for their order",
        description=_DESCRIPTION,
        epilog=examples(_EXAMPLES),
        usage="ptxc passes [PASS]",
    )
    parser.add_argument("name", nargs="?", metavar="PASS", help="the pass to explain")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the list, or one pass."""
    show(_explained(args.name) if args.name else _listed())
    return 0


def _listed() -> str:
    from ptxc.passes.pipeline import BUILD, PIPELINE, PRINT

    rows = [("rank", "step", "", "what it does")]
    rows.append((str(BUILD[0]), BUILD[1], "", "turn a kernel of Emmy's Kernel IR into ptxc's own IR, in SSA form"))
    rows += [
        (str(item.rank), item.name, "" if item.required else f"optional, --opt {item.level}", item.summary)
        for item in PIPELINE
    ]
    rows.append(("", PRINT, "", "write the IR as PTX"))
    reasons = [("step", "after", "because")]
    for item in PIPELINE:
        reasons += [(item.name, other, reason) for other, reason in item.after]
    return "\n".join(
        (
            "A kernel is compiled in these steps, one after another; those between build and print are the passes.",
            "An optional one makes the code better, a kernel is right without it.",
            "",
            table(rows, right=(0,)),
            "",
            "Why in this order:",
            "",
            table(reasons),
            "",
            "Between two steps a kernel is text (docs/ir.md explains it) that can be read, changed, and compiled on:",
            "",
            table(_USES),
            "",
            "`ptxc passes PASS` explains a pass.",
        )
    )


_USES = (
    ("  ptxc compile K.json --dump-dir DIR", "writes it after each step: DIR/10-build.ir, DIR/20-collectives.ir, ..."),
    ("  ptxc compile K.json --dump-changed", "shows what each pass changes"),
    ("  ptxc compile K.json --disable PASS", "leaves out an optional pass; --opt 0 leaves out all, --opt 1 some"),
    ("  ptxc compile K.json --stop-after STEP", "prints it as it is after a step"),
    ("  ptxc compile K.ir --start-at PASS", "goes on with a pass, or with `print`"),
)


def _explained(name: str) -> str:
    from ptxc.passes.pipeline import PIPELINE, check_name

    check_name(name)
    item = next(item for item in PIPELINE if item.name == name)
    need = "always runs" if item.required else f"from --opt {item.level} on; can be left out, --disable {name}"
    before = [f"It comes after {other}: {reason}." for other, reason in item.after]
    later = [
        f"{other.name} comes after it: {reason}."
        for other in PIPELINE
        for first, reason in other.after
        if first == name
    ]
    order = "\n".join((*before, *later))
    facts = f"{item.rank}-{name}: {item.summary} ({need})"
    return "\n\n".join(filter(None, (facts, order, _head(item.module.__name__))))


def _head(module: str) -> str:
    """A module's docstring, from its source: a compiled module has none."""
    source = files("ptxc").joinpath(*module.split(".")[1:-1], f"{module.rpartition('.')[2]}.py")
    return ast.get_docstring(ast.parse(source.read_text(encoding="utf-8"))) or ""
