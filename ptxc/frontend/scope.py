"""Names of the Kernel IR and the SSA values that they stand for.

Emmy renders statements as C, so names are scoped as C's are: a binding declares a name in the block that it stands
in, an accumulation assigns to the innermost declaration. SSA form has no assignment: :class:`Names` maps each
name to its current value, and where control joins, names that a branch or a loop assigned become block parameters.
"""

from __future__ import annotations

from typing import NamedTuple

from ptxc.errors import InputError
from ptxc.frontend.dtypes import ElementType
from ptxc.frontend.linear import Linear
from ptxc.ir.values import Operand


class Typed(NamedTuple):
    """A value with its element type. A bool's operand is a predicate."""

    operand: Operand
    type: ElementType


#: What a name stands for: a value, or an integer expression.
Entry = Typed | Linear


class Names:
    """The scopes that are open, innermost last."""

    __slots__ = ("_scopes",)

    def __init__(self) -> None:
        self._scopes: list[dict[str, Entry]] = [{}]

    def push(self) -> None:
        """Open a scope."""
        self._scopes.append({})

    def pop(self) -> None:
        """Close the innermost scope; its names are gone."""
        self._scopes.pop()

    def declare(self, name: str, entry: Entry) -> None:
        """Bind ``name`` in the innermost scope, shadowing outer ones."""
        self._scopes[-1][name] = entry

    def find(self, name: str) -> Entry | None:
        """What ``name`` stands for, None where it is unknown."""
        for scope in reversed(self._scopes):
            entry = scope.get(name)
            if entry is not None:
                return entry
        return None

    def typed(self, name: str) -> Typed:
        """The value of ``name``, which must be one (not an index). Raises InputError where it is unknown."""
        entry = self.find(name)
        if isinstance(entry, Typed):
            return entry
        what = f"{name!r} is not defined" if entry is None else f"{name!r} is an index, not a value"
        raise InputError(what, hint="a statement before this one must define it")

    def assign(self, name: str, entry: Entry) -> None:
        """Replace the value of the innermost ``name``."""
        for scope in reversed(self._scopes):
            if name in scope:
                scope[name] = entry
                return
        raise InputError(f"{name!r} is assigned but not declared", hint="its loop or an Init must declare it")
