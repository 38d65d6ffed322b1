"""What a kernel is, as a digest: two kernels that have one are compiled to the same bytes.

The digest is of everything that a compilation reads: the statements, the buffers' types and shapes, the constants'
values, the hints. Left out is what temporaries are called, since those names do not reach the output: registers are
numbered in the order of their use. Names that do reach it stay: of the kernel, of parameters, of shared arrays, and of
loops, which name labels.

A name is a temporary's if a statement defines it (:data:`_DEFINED`) and if it appears nowhere but where the table
:data:`_NAMED` says that values and fragments are named; the first of them becomes #0 wherever it appears, the second
#1. A use that the table lacks, in a statement that a later Emmy has, keeps a name as it is: then kernels that differ in
that name alone have two digests, and no kernel has another one's.

Emmy shares expressions between statements in memory as it pleases. So each different term is written once, after those
that are in it, which stand in it as their numbers; that is quick, too.
"""

from __future__ import annotations

import enum
import hashlib
import json
import marshal
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields, is_dataclass
from functools import cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from ptxc.errors import InputError
from ptxc.recursion import with_room

if TYPE_CHECKING:
    from emmy.compiler.graph import Graph
    from emmy.compiler.ir.stmt.base import Stmt

    from ptxc.frontend.reader import KernelNode

#: The fields in which statements define names.
_DEFINED = {
    "Load": ("names",),
    "Assign": ("name",),
    "Accum": ("name",),
    "Init": ("name",),
    "Let": ("name",),
    "Select": ("name",),
    "WarpShuffle": ("state_b",),
    "TreeHalve": ("state_b",),
    "RegFragment": ("name",),
    "FragmentApply": ("out",),
    "FragmentRowReduce": ("top", "bot"),
    "WgmmaDescriptor": ("name",),
}

#: The fields in which statements and expressions name values and fragments, those that define them included.
_NAMED = {
    "Var": ("name",),
    "Load": ("names",),
    "Assign": ("name", "args"),
    "Accum": ("name", "value", "base"),
    "Init": ("name",),
    "Let": ("name",),
    "Select": ("name",),
    "SelectBranch": ("value",),
    "Write": ("values",),
    "WarpShuffle": ("state", "state_b"),
    "WarpBroadcast": ("state",),
    "TreeHalve": ("state", "state_b"),
    "RegFragment": ("name",),
    "FragmentApply": ("out", "args"),
    "FragmentRowReduce": ("top", "bot", "frags"),
    "FragmentPromote": ("dst", "src"),
    "FragmentRepack": ("frag", "srcs"),
    "BlockScaleLoad": ("frag",),
    "LdmatrixLoad": ("frag", "pair_frag"),
    "MmaSyncPtx": ("c_frag", "a_frag", "b_frag", "sfa_frag", "sfb_frag"),
    "WgmmaDescriptor": ("name",),
    "WgmmaMma": ("c_frags", "a_frag", "a_desc", "b_desc"),
    "RegStore": ("frag", "extra_frags"),
    "Lambda": ("params", "results"),
}

#: Names that mean something to the compiler, or that name blocks, whose labels are in the text: they stay.
_SPECIAL = frozenset(
    ("lane", "warp", "entry", "then", "else", "join", "wait", "waited", "loop", "done", "inside", "outside")
)
_SPECIAL_FORM = re.compile("__.*|_v_.*|.*_end")

_IDENTIFIER = re.compile(r"[A-Za-z_]\w*")

#: Types whose values are written as Python does; what is equal in Python (1, 1.0 and True) is not the same.
_PLAIN = frozenset({int, float, bool, type(None)})


class _Strange(Exception):
    """A value of which it is not known what about it decides the output."""


def content_key(node: KernelNode, graph: Graph) -> str | None:
    """The digest of a kernel; None for one that holds what this module does not know, and is compiled each time."""
    try:
        return with_room(lambda: _key(node, graph))
    except (_Strange, InputError):
        return None


def _key(node: KernelNode, graph: Graph) -> str:
    temporaries = frozenset(_temporaries(node.op.body))
    form = _Form(temporaries)
    terms = form.kernel(node, graph)
    clash = temporaries & form.other_names()
    if clash:
        terms = _Form(temporaries - clash).kernel(node, graph)
    return hashlib.sha256(marshal.dumps(terms, 2)).hexdigest()  # in this version what is equal has the same bytes


def _temporaries(stmts: Iterable[Stmt]) -> Iterator[str]:
    """The names that statements define, as far as they can be other names without any effect."""
    for stmt in stmts:
        for field in _DEFINED.get(type(stmt).__name__, ()):
            value = getattr(stmt, field)
            yield from _plain_names((value,) if isinstance(value, str) else value)
        for body in (*stmt.nested(), getattr(stmt, "combine_states", ())):
            yield from _temporaries(body)
        epilogue = getattr(stmt, "epilogue", None)
        if epilogue is not None:
            yield from _plain_names(epilogue.params)
            yield from _temporaries(epilogue.body)


def _plain_names(names: Iterable[str]) -> Iterator[str]:
    """Those of ``names`` that mean nothing to the compiler."""
    return (name for name in names if name not in _SPECIAL and not _SPECIAL_FORM.fullmatch(name))


class _Form:
    """Writes terms down, each different one once."""

    def __init__(self, temporaries: frozenset[str]) -> None:
        self._temporaries = temporaries
        #: The number of each temporary's name.
        self._names: dict[str, int] = {}
        #: Strings where no temporary is named.
        self._others: set[str] = set()
        #: The different terms so far; those in them stand as numbers.
        self._terms: dict[tuple[str | int, ...], int] = {}
        #: What objects stand as, by their identities, which stay theirs as long as the objects are held here.
        self._known: dict[int, str | int] = {}
        self._held: list[Any] = []

    def kernel(self, node: KernelNode, graph: Graph) -> tuple[Any, ...]:
        """A kernel and what is around it: texts and numbers, and all terms in the order of their numbers."""
        op, edges = node.op, graph.nodes[node.node_id]
        parts: list[str | int] = [node.node_id, type(op).__name__]
        parts += [self.number(getattr(op, field.name)) for field in fields(op) if field.name not in op.wire_skip]
        for name in edges.inputs:
            parts += ["in", name, self.number(graph.buffer(name)), *self._constant(graph, name)]
        for name, tensor in zip(edges.buffer_names(), edges.outputs):
            parts += ["out", name, self.number(tensor), *self._constant(graph, name)]
        self._others.update(part for part in parts if isinstance(part, str))
        try:
            hints = json.dumps(graph.hints.to_dict(), sort_keys=True)
        except (TypeError, ValueError) as error:
            raise _Strange from error
        self._others.add(hints)
        return parts, hints, list(self._terms)

    def _constant(self, graph: Graph, name: str) -> list[str | int]:
        """What is known of the value of a buffer that is constant."""
        from emmy.compiler.ir.base import ConstantOp

        node = graph.nodes.get(name)
        if node is None or not isinstance(node.op, ConstantOp):
            return []
        return [self.number(node.op.value), self.number(node.op.context_value)]

    def other_names(self) -> set[str]:
        """The names that stand where no temporary is named, alone or within other text."""
        texts = [text for text in self._others if not text.isidentifier()]
        return self._others.union(*(_IDENTIFIER.findall(text) for text in texts))

    def number(self, value: Any) -> str | int:
        """How ``value`` stands in the term that it is in: as the number of its own term, or as text."""
        known = self._known
        found = known.get(id(value))
        if found is not None:
            return found
        kind: Any = type(value)
        if kind is str:
            self._others.add(value)
            found = f"'{value}"
        elif kind in _PLAIN:
            found = repr(value)
        else:
            shape = _shape(kind)
            if shape.is_plain:  # nearly always, and in line, as this is where the time goes
                number = self.number
                term = (shape.name, *[known.get(id(item)) or number(item) for item in shape.get(value)])
            else:
                term = self._term(shape, value)
            found = self._terms.setdefault(term, len(self._terms) + 1)  # no number is false
        known[id(value)] = found
        self._held.append(value)
        return found

    def _term(self, shape: _Shape, value: Any) -> tuple[str | int, ...]:
        """The term that an object is which is not all in what is in it."""
        if shape.text is not None:
            return (shape.name, shape.text(value))
        if shape.is_size:  # the names in it are those of sizes
            self._others.update(value.expr.free_vars())
        items = [
            self._name(item) if is_name else self.number(item) for item, is_name in zip(shape.get(value), shape.named)
        ]
        return (shape.name, *items)

    def _name(self, value: Any) -> str | int:
        """The same where temporaries are named; a fragment's name may have a subscript."""
        if type(value) is tuple:
            term = ("names", *[self._name(item) for item in value])
            return self._terms.setdefault(term, len(self._terms) + 1)
        if type(value) is not str:
            return self.number(value)
        name, bracket, subscript = value.partition("[")
        if name not in self._temporaries:
            return self.number(value)
        if bracket:
            self._others.add(subscript)
        return f"#{self._names.setdefault(name, len(self._names))}{bracket}{subscript}"


class _Shape(NamedTuple):
    """How objects of a class are written."""

    name: str
    #: What is in them, in order.
    get: Callable[[Any], Iterable[Any]] = iter
    #: For each of that whether it names temporaries.
    named: tuple[bool, ...] = ()
    is_size: bool = False
    #: All about an object, in place of what is in it.
    text: Callable[[Any], str] | None = None
    #: Whether none of that holds.
    is_plain: bool = True


@cache
def _shape(kind: type) -> _Shape:
    import numpy as np
    from emmy.compiler.dim import Dim
    from emmy.compiler.ir.elementwise import ElementwiseImpl

    full_name = f"{kind.__module__}.{kind.__qualname__}"
    if issubclass(kind, tuple | list):
        return _Shape(full_name)
    if issubclass(kind, ElementwiseImpl | enum.Enum):
        return _Shape(full_name, text=attrgetter("name"), is_plain=False)
    if issubclass(kind, np.dtype):
        return _Shape("dtype", text=attrgetter("str"), is_plain=False)
    if not is_dataclass(kind):
        raise _Strange(kind)
    names = [field.name for field in fields(kind)]
    named = tuple(name in _NAMED.get(kind.__name__, ()) for name in names)
    if issubclass(kind, Dim) or any(named):
        return _Shape(full_name, _getter(names), named, is_size=issubclass(kind, Dim), is_plain=False)
    return _Shape(full_name, _getter(names))


def _getter(names: list[str]) -> Callable[[Any], tuple[Any, ...]]:
    """What reads fields, always as a tuple."""
    if len(names) > 1:
        return attrgetter(*names)
    return lambda value: tuple(getattr(value, name) for name in names)
