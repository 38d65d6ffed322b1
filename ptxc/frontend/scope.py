"""Names of the Kernel IR and the SSA values that they stand for.

Emmy renders statements as C, so names are scoped as C's are: a binding declares a name in the block that it stands
in, an accumulation assigns to the innermost declaration. SSA form has no assignment: :class:`Names` maps each
name to its current value, and where control joins, names that a branch or a loop assigned become block parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from ptxc.errors import InputError
from ptxc.frontend.dtypes import ElementType
from ptxc.frontend.linear import Linear
from ptxc.ir.values import Operand

K = TypeVar("K")
V = TypeVar("V")


class ScopedMemo(dict[K, V]):
    """What is known where the lowering is; what became known inside a region is unknown after it."""

    __slots__ = ("_keys", "_marks")

    def __init__(self) -> None:
        super().__init__()
        #: The keys in the order in which they became known, and how many there were at each open region's begin.
        self._keys: list[K] = []
        self._marks: list[int] = []

    def enter(self) -> None:
        """A region begins."""
        self._marks.append(len(self._keys))

    def leave(self) -> None:
        """The innermost region ends: forget what became known in it."""
        mark = self._marks.pop()
        for key in self._keys[mark:]:
            self.pop(key, None)
        del self._keys[mark:]

    def remember(self, key: K, value: V) -> V:
        """Let ``value`` be found under ``key``. What was before is forgotten for good."""
        self[key] = value
        self._keys.append(key)
        return value


class Typed:
    """A value with its element type. A bool's operand is a predicate."""

    __slots__ = ("operand", "type")

    def __init__(self, operand: Operand, type: ElementType) -> None:
        self.operand = operand
        self.type = type

    def __repr__(self) -> str:
        return f"{self.operand!r}: {self.type.name}"


#: What a name stands for: a value, or an integer expression.
Entry = Typed | Linear


class Names:
    """What every name stands for where the lowering is, and what it stood for around the scopes that are open."""

    __slots__ = ("_shadowed", "entries")

    def __init__(self) -> None:
        self.entries: dict[str, Entry] = {}
        #: For each open scope, its names, with what they stood for outside.
        self._shadowed: list[dict[str, Entry | None]] = [{}]

    def push(self) -> None:
        """Open a scope."""
        self._shadowed.append({})

    def pop(self) -> None:
        """Close the innermost scope; its names are gone."""
        for name, outer in self._shadowed.pop().items():
            if outer is None:
                del self.entries[name]
            else:
                self.entries[name] = outer

    def declare(self, name: str, entry: Entry) -> None:
        """Bind ``name`` in the innermost scope, shadowing outer ones."""
        self._shadowed[-1].setdefault(name, self.entries.get(name))
        self.entries[name] = entry

    def declare_all(self, names: Sequence[str], entries: Sequence[Entry]) -> None:
        """:meth:`declare`, name by name."""
        shadowed, known = self._shadowed[-1], self.entries
        for name, entry in zip(names, entries, strict=True):
            shadowed.setdefault(name, known.get(name))
            known[name] = entry

    def find(self, name: str) -> Entry | None:
        """What ``name`` stands for, None where it is unknown."""
        return self.entries.get(name)

    def typed(self, name: str) -> Typed:
        """The value of ``name``, which must be one (not an index). Raises InputError where it is unknown."""
        entry = self.entries.get(name)
        if type(entry) is Typed:
            return entry
        what = f"{name!r} is not defined" if entry is None else f"{name!r} is an index, not a value"
        raise InputError(what, hint="a statement before this one must define it")

    def all_typed(self, names: Sequence[str]) -> list[Typed]:
        """:meth:`typed` of each of ``names``."""
        get = self.entries.get
        return [entry if type(entry := get(name)) is Typed else self.typed(name) for name in names]

    def assign(self, name: str, entry: Entry) -> None:
        """Replace the value of the innermost ``name``, which is known."""
        self.entries[name] = entry

    def assign_all(self, names: Sequence[str], entries: Sequence[Entry]) -> None:
        """:meth:`assign`, name by name."""
        self.entries.update(zip(names, entries, strict=True))
