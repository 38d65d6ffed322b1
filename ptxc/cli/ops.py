"""``ptxc ops``: which operations of Kernel IR are compiled."""

from __future__ import annotations

import argparse
import textwrap
from dataclasses import asdict
from itertools import groupby
from typing import TYPE_CHECKING

from ptxc.cli.arguments import Commands, examples
from ptxc.cli.files import show
from ptxc.cli.messages import table

if TYPE_CHECKING:
    from ptxc.frontend.operations import Operation

_DESCRIPTION = """\
Lists what Kernel IR is made of, and what of it ptxc compiles: statements, expressions and their operators, functions
and built-in variables, elementwise operations, accumulations, element types. The list is made from the installed Emmy
and from the tables of the compiler."""

_EXAMPLES = (
    ("ptxc ops", "everything"),
    ("ptxc ops statement", "one kind"),
    ("ptxc ops --missing", "what is not supported"),
    ("ptxc ops --json", "for programs"),
)

#: The kinds, in the order of the list, and what several of a kind are called.
KINDS = {
    "statement": "statements",
    "expression": "expressions",
    "operator": "operators of expressions",
    "function": "functions in expressions",
    "built-in": "built-in variables",
    "elementwise": "elementwise operations",
    "accumulation": "accumulations",
    "element-type": "element types",
}

_WIDTH = 120


def add(commands: Commands) -> None:
    """Make the command's parser."""
    parser = commands.add_parser(
        "ops",
        help="list which operations of Kernel IR are supported",
        description=_DESCRIPTION,
        epilog=examples(_EXAMPLES),
        usage="ptxc ops [KIND] [option...]",
    )
    parser.add_argument(
        "kind", nargs="?", choices=tuple(KINDS), metavar="KIND", help=f"only this kind: {', '.join(KINDS)}"
    )
    parser.add_argument("--missing", action="store_true", help="only what is not supported")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the list."""
    from ptxc.frontend.operations import operations

    found = [operation for operation in operations() if args.kind in (None, operation.kind)]
    show(_as_json(found, args.missing) if args.json else _as_text(found, args.missing))
    return 0


def _as_json(found: list[Operation], missing: bool) -> str:
    import json

    rows = [json.dumps(asdict(operation)) for operation in found if not (missing and operation.supported)]
    return f'{{"emmy": {json.dumps(_version())}, "operations": [\n' + ",\n".join(rows) + "\n]}"


def _as_text(found: list[Operation], missing: bool) -> str:
    total = sum(operation.supported for operation in found)
    parts = [f"ptxc compiles {total} of {len(found)} operations of Kernel IR in Emmy {_version()}."]
    for kind, group in groupby(found, key=lambda operation: operation.kind):
        rows = list(group)
        supported = sum(operation.supported for operation in rows)
        shown = [operation for operation in rows if not (missing and operation.supported)]
        parts.append(f"{KINDS[kind]}: {supported} of {len(rows)}")
        if shown:
            parts[-1] += "\n" + textwrap.indent(_table(shown), "  ")
    return "\n\n".join(parts)


def _table(rows: list[Operation]) -> str:
    width = max(len(operation.name) for operation in rows)
    notes = [textwrap.shorten(operation.note, _WIDTH - width - 9, placeholder="...") for operation in rows]
    return table(
        [
            (operation.name, "yes" if operation.supported else "no", note)
            for operation, note in zip(rows, notes, strict=True)
        ]
    )


def _version() -> str:
    import importlib.metadata

    return importlib.metadata.version("emmy-ml")
