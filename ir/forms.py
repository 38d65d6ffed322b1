"""The form of an instruction: what its opcode's row says of its modifiers, its results and its operands."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

from ptxc.ir import types
from ptxc.ir.opcodes import ATOM, BITCAST, TILE_COORDS, Opcode, Signature, bank, signature
from ptxc.ir.types import Type

_NUMBER = re.compile(r"[0-9]{1,9}").fullmatch
#: The state space of an address, by the modifier that says so; a bulk copy's barrier lies in shared memory.
_SPACES = {
    **{space: space for space in ("param", "global", "shared", "const", "local")},
    "shared::cta": "shared",
    "mbarrier::complete_tx::bytes": "shared",
}


class Slot(NamedTuple):
    """What an operand has to be: its letter in the row, its bank, and an address's state space."""

    letter: str
    bank: Type | None
    space: str = ""

    def __str__(self) -> str:
        return {"M": "an address", "I": "an integer constant"}.get(self.letter, str(self.bank))


class Form(NamedTuple):
    """What the instructions of one opcode with the same modifiers and numbers of operands have in common."""

    faults: tuple[tuple[int, str], ...]
    results: tuple[Type | None, ...] = ()
    operands: tuple[Slot, ...] = ()


@cache
def form_of(op: Opcode, mods: tuple[str, ...], results: int, operands: int) -> Form:
    """The form of instructions of ``op`` with these modifiers and so many results and operands."""
    faults = [(11, fault) for fault in _modifier_faults(op, mods)]
    if faults:
        return Form(tuple(faults))  # what follows reads the types
    name = ".".join((op.name, *mods))
    try:
        row = signature(op, mods) or _repeated(op, mods, operands)
    except KeyError:
        return Form(((11, f"there is no {name}"),))
    if op is TILE_COORDS and not _is_tile(
        {key: int(number) for key, number in (mod.split("=") for mod in mods)}, operands
    ):
        faults.append((11, f"{name} does not say how {operands} axes are tiled"))
    if op is BITCAST and len({bank.bits for bank in (*row.results, *row.operands) if bank}) > 1:
        faults.append((11, f"{name} changes the width"))
    least = row.least_operands + (op is ATOM and "cas" in mods)
    most = len(row.operands) - (op is ATOM and "cas" not in mods)
    if not least <= operands <= most:
        faults.append((12, f"{name} takes {count_of(least, most, 'operand')}, not {operands}"))
    least, most = row.least_results, len(row.results)
    if not least <= results <= most:
        faults.append((12, f"{name} has {count_of(least, most, 'result')}, not {results}"))
    return Form(tuple(faults)) if faults else Form((), row.results, _slots(row, mods))


def _is_tile(numbers: dict[str, int], axes: int) -> bool:
    """Whether the modifiers of ``tile.coords`` describe a tile with so many axes."""
    match sorted(numbers):
        case ["aux", "cells"]:
            return numbers["cells"] > 0
        case ["aux", "cells", "group", "grouped", "other"]:
            grouped, other = numbers["grouped"], numbers["other"]
            return numbers["cells"] > 0 and numbers["group"] > 0 and grouped != other and max(grouped, other) < axes
    return False


def count_of(least: int, most: int, noun: str) -> str:
    """``1 target``, ``2 to 3 operands``."""
    number = f"{least}" if least == most else f"{least} to {most}"
    return f"{number} {noun}{'s' * (most != 1)}"


def _repeated(op: Opcode, mods: tuple[str, ...], operands: int) -> Signature:
    """The signature of an operation with ``*`` letters when it has so many operands."""
    times = operands - sum(not letter.endswith("*") for letter in op.operands)
    kinds = [
        [letter[0] for letter in letters for _ in range(times if letter.endswith("*") else 1)]
        for letters in (op.results, op.operands)
    ]
    banks = [tuple(bank(letter, mods) for letter in letters) for letters in kinds]
    return Signature(banks[0], banks[1], len(banks[0]), len(banks[1]), tuple(kinds[1]))


def _slots(row: Signature, mods: tuple[str, ...]) -> tuple[Slot, ...]:
    spaces = iter([_SPACES[mod] for mod in mods if mod in _SPACES])
    return tuple(
        Slot(letter, bank, next(spaces, "") if letter in "MQ" else "")
        for letter, bank in zip(row.letters, row.operands)
    )


def _modifier_faults(op: Opcode, mods: tuple[str, ...]) -> Iterator[str]:
    names = [mod[: mod.find("=") + 1] or mod for mod in mods]
    for name, mod in zip(names, mods):
        if name not in op.modifiers:
            yield f"{op} has no modifier {mod}"
        elif name.endswith("=") and not _NUMBER(mod[len(name) :]):
            yield f"the modifier {name} of {op} takes a number"
    if op.forms:
        if mods not in op.forms:
            yield f"there is no {'.'.join((op.name, *mods))}"
        return
    count = 2 if "D" in op.results else int(not op.modifiers.isdisjoint(types.OF_MODIFIER))
    rest = names[: max(0, len(names) - count)]
    if len(names) - len(rest) < count or not types.OF_MODIFIER.keys() >= set(names[len(rest) :]):
        yield f"{op} ends in {'its type' if count == 1 else 'two types'}"
    if not types.OF_MODIFIER.keys().isdisjoint(rest):
        yield f"a type stands before other modifiers of {op}"
    if len(set(rest)) < len(rest):
        yield f"a modifier of {op} stands twice"
    if not {"v2", "v4"}.isdisjoint(rest[:-1]):
        yield "a vector form stands before its type"
