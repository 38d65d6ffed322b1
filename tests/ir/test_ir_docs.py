"""docs/ir.md: its example is a kernel, and its lists are those of the code. ``make goldens`` rewrites them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

from conftest import ROOT, docstrings

from ptxc.errors import InputError
from ptxc.ir import opcodes, types, verify
from ptxc.ir.opcodes import OPCODES, WGMMA, Opcode
from ptxc.ir.text import format_kernel, parse_kernel
from ptxc.target import Requirement

PAGE = ROOT / "docs" / "ir.md"


def test_the_example_is_a_kernel() -> None:
    example = PAGE.read_text().split("```\n")[1]
    kernel = parse_kernel(example)
    verify.check(kernel, error=InputError)
    assert format_kernel(kernel) == example.split("\n", 1)[1]


@docstrings
def test_the_lists_are_those_of_the_code(golden: Callable[[Path, str | None], None]) -> None:
    page = PAGE.read_text()
    for source, lines in (("ir/verify.py", invariants()), ("ir/opcodes.py", table())):
        mark = f"<!-- from {source}; make goldens -->\n"
        before, rest = page.split(mark)
        after = rest.split("<!-- end -->\n", 1)[1]
        page = f"{before}{mark}{''.join(f'{line}\n' for line in lines)}<!-- end -->\n{after}"
    golden(PAGE, page)


def invariants() -> Iterator[str]:
    """The head of the verifier without its first paragraph, as Markdown."""
    for line in (verify.__doc__ or "").rstrip().split("\n\n", 1)[1].replace("``", "`").splitlines():
        yield f"**{line}**\n" if re.fullmatch(r"[A-Z][a-z ]+", line) else line


def table() -> Iterator[str]:
    """The letters of signatures, then a row for each opcode."""
    head = (opcodes.__doc__ or "").split("\n====")[1]
    yield "| letter | stands for |"
    yield "|---|---|"
    for letter, meaning in re.findall(r"^(\S(?:, \S)*) +(.*)$", head.partition("\n")[2], re.MULTILINE):
        yield f"| `{letter}` | {meaning.replace('``', '`')} |"
    yield ""
    yield "| instruction | results = operands | effect | modifiers | since | meaning |"
    yield "|---|---|---|---|---|---|"
    for op in OPCODES.values():
        cells = (f"`{op}`", f"`{signature(op)}`", op.effect, modifiers(op), since(op), op.doc.replace("|", r"\|"))
        yield f"| {' | '.join(cells)} |"


def signature(op: Opcode) -> str:
    return f"{' '.join(op.results)} = {' '.join(op.operands)}".strip()


def modifiers(op: Opcode) -> str:
    """The modifiers, types after the others and in the order of ``types.OF_MODIFIER``."""
    others = sorted(op.modifiers - types.OF_MODIFIER.keys())
    if op.forms == WGMMA.forms:
        others = ["m64n8k16 to m64n256k16", *(name for name in others if not name.startswith("m64"))]
    return " ".join([*others, *(name for name in types.OF_MODIFIER if name in op.modifiers)])


def since(op: Opcode) -> str:
    late = [("", op.needs), *((f"{name}: ", need) for name, need in op.by_modifier.items())]
    return "; ".join(f"{name}{version(need)}" for name, need in late if need != Requirement())


def version(need: Requirement) -> str:
    sm = f"{' '.join(need.only)}, " if need.only else f"sm_{need.sm}, " if need.sm else ""
    return f"{sm}PTX {need.ptx[0]}.{need.ptx[1]}"
