"""Which classes a file may name, and what their constructors take.

Everything here is derived from Emmy's own classes: the statements, expressions and types of Kernel IR are the
dataclasses of a fixed list of modules, and what a field may hold follows from its annotation. A class that a
newer Emmy adds to those modules is therefore read without a change here, and nothing else can be named.
"""

from __future__ import annotations

import dataclasses
import enum
import importlib
import inspect
import re
import typing
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from itertools import repeat
from types import NoneType, UnionType
from typing import Any

#: Where the classes of Kernel IR live; ``ir.tensor.ir`` holds the index maps of constants.
TERM_MODULES = (
    "emmy.compiler.dim",
    "emmy.compiler.dtype",
    "emmy.compiler.ir.axis",
    "emmy.compiler.ir.expr",
    "emmy.compiler.ir.stmt.leaves",
    "emmy.compiler.ir.stmt.blocks",
    "emmy.compiler.ir.pure.lam",
    "emmy.compiler.ir.kernel.ir",
    "emmy.compiler.ir.tensor.ir",
)
#: Where the operations of a graph's nodes live, the usual ones first: a module is imported when it is asked.
OP_MODULES = (
    "emmy.compiler.ir.base",
    "emmy.compiler.ir.kernel.ir",
    "emmy.compiler.ir.tensor.ir",
    "emmy.compiler.ir.frontend.ir",
    "emmy.compiler.ir.loop.ir",
    "emmy.compiler.ir.tile.ir",
    "emmy.compiler.ir.cuda.ir",
)
#: The longest text of a composite dimension, ``(((seq_len + 63) / 64) * 64)``.
MAX_DIM_TEXT = 512
#: A name that C, and so PTX, takes.
IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

_DIM_OPERATORS = frozenset({"+", "-", "*", "/", "//", "%"})


class Refusal(Exception):
    """A value or a text that Kernel IR does not have; whoever knows where it stands makes an InputError of it."""


def shown(value: object) -> str:
    """``value`` for a message: short, and on one line, whatever a file holds."""
    if isinstance(value, str) and len(value) > 40:
        return f"{value[:40]!r}..."
    if isinstance(value, int) and not has_64_bits(value):
        return f"an integer of {value.bit_length()} bits"
    if value is None or isinstance(value, str | int | float):
        return repr(value)
    if isinstance(value, tuple | list):
        return f"a {type(value).__name__} of {len(value)}"
    return f"a {type(value).__name__}"


def has_64_bits(value: int) -> bool:
    """Whether an integer type of the hardware holds ``value``."""
    return -(1 << 63) <= value < 1 << 64


# ------------------------------------------------------------------------------------------ what a field may hold


class Row:
    """The shape of a tuple: one kind for every element, or a kind for each."""

    __slots__ = ("kinds", "repeated")

    def __init__(self, kinds: Sequence[Kind], *, repeated: bool) -> None:
        self.kinds = kinds
        self.repeated = repeated

    def admits(self, values: tuple[Any, ...]) -> bool:
        """Whether ``values`` has this shape."""
        if self.repeated:
            (kind,) = self.kinds
            return kind.classes.issuperset(map(type, values)) or all(map(kind.admits, values))
        return len(values) == len(self.kinds) and all(k.admits(v) for k, v in zip(self.kinds, values))

    def spread(self, count: int) -> Iterable[Kind] | None:
        """The kind of each of ``count`` elements, None where the shape has another length."""
        if self.repeated:
            return repeat(self.kinds[0], count)
        return self.kinds if count == len(self.kinds) else None


class Kind:
    """What a field may hold: the meaning of its annotation.

    ``classes`` are exact classes, so that True is no integer; ``bases`` admit their subclasses too, which
    ``admits`` adds to ``classes`` as it meets them. ``rows`` are the shapes of tuples.
    """

    __slots__ = ("bases", "classes", "rows", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self.classes: set[type] = set()
        self.bases: tuple[type, ...] = ()
        self.rows: tuple[Row, ...] = ()

    def admits(self, value: object) -> bool:
        """Whether a field of this kind may hold ``value``."""
        cls = type(value)
        if cls in self.classes:
            return True
        if isinstance(value, self.bases):
            self.classes.add(cls)
            return True
        return isinstance(value, tuple) and any(row.admits(value) for row in self.rows)

    def elements(self, count: int) -> Iterable[Kind]:
        """The kinds of the elements of a tuple of ``count``. Raises Refusal where no such tuple fits."""
        for row in self.rows:
            kinds = row.spread(count)
            if kinds is not None:
                return kinds
        raise Refusal(f"must be {self.text}, not {count} elements")

    def _add(self, annotation: Any) -> None:
        """Admit what one member of a union names; a mapping or a callable admits nothing."""
        from emmy.compiler.ir.expr import Expr
        from emmy.compiler.ir.stmt import Body, Stmt

        if annotation in (int, str, bool, NoneType):
            self.classes.add(annotation)
        elif annotation is float:
            self.classes |= {float, int}
        elif annotation in (object, Any):
            # An untyped field of Kernel IR holds names, numbers, expressions and rows of them, no statement.
            self.classes |= {str, int, float, bool, NoneType}
            self.bases += (Expr,)
            self.rows += (Row((self,), repeated=True),)
        elif annotation is tuple:
            self.rows += (Row((kind_of(object),), repeated=True),)
        elif annotation is Body:
            self.rows += (Row((kind_of(Stmt),), repeated=True),)
        elif typing.get_origin(annotation) is tuple:
            arguments = typing.get_args(annotation)
            kinds = [kind_of(argument) for argument in arguments if argument is not ...]
            self.rows += (Row(kinds, repeated=... in arguments),)
        elif isinstance(annotation, type):
            self.bases += (annotation,)


@cache
def kind_of(annotation: Any) -> Kind:
    """The kind that a resolved annotation describes."""
    is_union = typing.get_origin(annotation) in (typing.Union, UnionType)
    spelled = getattr(annotation, "__name__", "") if isinstance(annotation, type) else ""
    kind = Kind(spelled or re.sub(r"(?:\w+\.)+(?=\w)", "", str(annotation)))
    for member in typing.get_args(annotation) if is_union else (annotation,):
        kind._add(member)
    return kind


# ------------------------------------------------------------------------------------------------- constructors


class Call:
    """One way of writing a constructor's call: these fields, in this order."""

    __slots__ = ("_by_position", "constructor", "kinds", "names")

    def __init__(self, constructor: Constructor, names: Sequence[str]) -> None:
        self.constructor = constructor
        self.names = names
        self.kinds = [constructor.fields[name] for name in names]
        self._by_position = list(names) == constructor.positional[: len(names)]

    def build(self, values: Sequence[Any], **more: Any) -> Any:
        """The object with these values. Raises Refusal for a value that its field does not take."""
        for value, kind in zip(values, self.kinds):
            if type(value) not in kind.classes and not kind.admits(value):
                raise Refusal(self._mismatch(values))
        make = self.constructor.make
        try:
            return make(*values, **more) if self._by_position else make(**dict(zip(self.names, values)), **more)
        except (RecursionError, Refusal):
            raise
        except Exception as error:
            # Emmy's classes check themselves, with whatever exception is at hand.
            raise Refusal(f"{self.constructor.name}: {str(error)[:200]}") from error

    def _mismatch(self, values: Sequence[Any]) -> str:
        """What is wrong with the first value that does not fit."""
        fields = zip(self.names, self.kinds, values)
        name, kind, value = next(field for field in fields if not field[1].admits(field[2]))
        return f"{self.constructor.name}.{name} must be {kind.text}, not {shown(value)}"


@dataclasses.dataclass(frozen=True, slots=True)
class Constructor:
    """A class that a file may name: its fields, those that need no name in a call, and those that must be there."""

    name: str
    make: Callable[..., Any]
    fields: dict[str, Kind]
    positional: list[str]
    required: frozenset[str]
    #: Whether it makes an expression: a value, of which equal ones may be one object.
    is_expression: bool = False

    def call(self, positional: int, keys: Sequence[str]) -> Call:
        """The call with so many values without a name, then these names.

        Raises Refusal for unknown, missing or repeated fields.
        """
        if positional > len(self.positional):
            raise Refusal(f"{self.name} takes {len(self.positional)} values without a name, not {positional}")
        names = [*self.positional[:positional], *keys]
        if unknown := [name for name in names if name not in self.fields]:
            raise Refusal(f"{self.name} has no field {shown(unknown[0])}")
        if len(set(names)) < len(names):
            raise Refusal(f"{self.name} is given a field twice")
        if missing := sorted(self.required.difference(names)):
            raise Refusal(f"{self.name} needs its field {missing[0]!r}")
        return Call(self, names)


@cache
def constructor_of(cls: Any) -> Constructor:
    """How ``cls`` is built, from its signature and annotations, without the fields that never travel."""
    from emmy.compiler.ir.expr import Expr

    dataclass_params = getattr(cls, "__dataclass_params__", None)
    has_own_init = dataclass_params is None or not dataclass_params.init
    hints = typing.get_type_hints(cls.__init__ if has_own_init else cls, localns=_annotation_names())
    skipped: frozenset[str] = getattr(cls, "wire_skip", frozenset())
    parameters = [p for p in inspect.signature(cls).parameters.values() if p.name not in skipped]
    return Constructor(
        name=cls.__name__,
        make=_CHECKED[cls.__name__](cls) if cls.__name__ in _CHECKED else cls,
        fields={p.name: kind_of(hints[p.name]) for p in parameters},
        positional=[p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD],
        required=frozenset(p.name for p in parameters if p.default is p.empty),
        is_expression=issubclass(cls, Expr),
    )


@cache
def constructor(name: str) -> Constructor:
    """The constructor that a statement calls ``name``. Raises Refusal for any other name."""
    if name == "dtype":
        return Constructor("dtype", _numpy_dtype, {"name": kind_of(str)}, ["name"], frozenset({"name"}))
    cls = term_classes().get(name)
    if cls is None:
        raise Refusal(f"Kernel IR has no {shown(name)}")
    return constructor_of(cls)


def enum_member(name: str, member: str) -> Any:
    """The member that ``<name.member: ...>`` spells. Raises Refusal where there is none."""
    cls: Any = _classes_in(TERM_MODULES, enum.Enum).get(name)
    if cls is None or member not in cls.__members__:
        raise Refusal(f"Kernel IR has no {shown(f'{name}.{member}')}")
    return cls.__members__[member]


def op_class(name: str) -> Any:
    """The class of a node's operation, None for a name that Emmy does not have."""
    from emmy.compiler.ir.base import Op

    for module in OP_MODULES:
        cls = _classes_in((module,), Op).get(name)
        if cls is not None:
            return cls
    return None


def import_operations() -> None:
    """Import all of :data:`OP_MODULES`: Emmy reads the wire form of those operations only whose modules are loaded."""
    for module in OP_MODULES:
        importlib.import_module(module)


# ------------------------------------------------------------------- constructors that check more than their fields


def dim(value: Any, hint: int | None = None) -> Any:
    """Emmy's Dim. Text that is no name is the expression it spells, where Emmy would make a variable of it.

    Raises Refusal for text that is neither.
    """
    from emmy.compiler.dim import Dim

    if isinstance(value, str) and not IDENTIFIER.fullmatch(value):
        value = _dim_expression(value)
    return Dim(value, hint=hint)


def _dim_expression(text: str) -> Any:
    """The arithmetic over sizes that ``text`` spells."""
    from emmy.compiler.ir.expr import BinaryExpr, Literal, Var, parse

    if len(text) > MAX_DIM_TEXT or not text.isascii():
        raise Refusal(f"the text of a dimension is at most {MAX_DIM_TEXT} ASCII characters")
    try:
        expression: Any = parse(text)
    except ValueError as error:
        raise Refusal(f"the dimension {shown(text)} is no expression over sizes") from error
    for term in expression.subterms():
        match term:
            case Var(name) if IDENTIFIER.fullmatch(name):
                pass
            case Literal(value, "int") if has_64_bits(int(value)):
                pass
            case BinaryExpr(operator) if operator in _DIM_OPERATORS:
                pass
            case _:
                raise Refusal(f"the dimension {shown(text)} is more than sizes and + - * / %")
    return expression


def elementwise(name: str) -> Any:
    """Emmy's ElementwiseImpl, which by itself takes any attribute of numpy for an operation.

    Raises Refusal for a name that is no elementwise function.
    """
    from emmy.compiler.ir.elementwise import ElementwiseImpl

    if name not in _elementwise_names():
        raise Refusal(f"there is no elementwise operation {shown(name)}")
    return ElementwiseImpl(name)


@cache
def _elementwise_names() -> frozenset[str]:
    """numpy's universal functions and what Emmy adds to them."""
    import numpy as np
    from emmy.compiler.ir import elementwise as emmys

    ufuncs = {name for name, value in vars(np).items() if isinstance(value, np.ufunc)}
    traits = emmys.ElementwiseImpl._ASSOCIATIVE | emmys.ElementwiseImpl._SELECTING
    return frozenset(ufuncs | traits | emmys._NAME_TO_FN.keys() | emmys._ALIASES.keys())


def _numpy_dtype(name: str) -> Any:
    """The numpy dtype of one of Emmy's element types."""
    known = _numpy_dtypes()
    if name not in known:
        raise Refusal(f"dtype({shown(name)}) is none of {', '.join(sorted(known))}")
    return known[name]


@cache
def _numpy_dtypes() -> dict[str, Any]:
    from emmy.compiler import dtype

    return {str(t.np): t.np for t in vars(dtype).values() if isinstance(t, dtype.DataType)}


def _data_type(cls: Any) -> Callable[..., Any]:
    """The constructor of ``cls``, a DataType, for the element types that Emmy has."""
    from emmy.compiler import dtype

    def make(*values: Any, **fields: Any) -> Any:
        made = cls(*values, **fields)
        known = dtype.get(made.name)
        if type(known) is not cls or known != made:
            raise Refusal(f"{cls.__name__} {shown(made.name)} differs from Emmy's type of that name")
        return known

    return make


_CHECKED: dict[str, Callable[[Any], Callable[..., Any]]] = {
    "DataType": _data_type,
    "StructuredType": _data_type,
    "ElementwiseImpl": lambda _: elementwise,
    "Dim": lambda _: dim,
}


# --------------------------------------------------------------------------------------- finding Emmy's classes


@cache
def term_classes() -> dict[str, type]:
    """The classes that a statement's text may call, by name."""
    from emmy.compiler.ir.base import Op
    from emmy.compiler.ir.elementwise import ElementwiseImpl

    classes = _classes_in(TERM_MODULES, object)
    terms = {n: c for n, c in classes.items() if dataclasses.is_dataclass(c) and not issubclass(c, Op)}
    return terms | {"ElementwiseImpl": ElementwiseImpl}


@cache
def _classes_in(modules: tuple[str, ...], base: type) -> dict[str, type]:
    """The classes under ``base`` that ``modules`` define, by name."""
    return {
        name: value
        for module in map(importlib.import_module, modules)
        for name, value in vars(module).items()
        if isinstance(value, type) and issubclass(value, base) and value.__module__ == module.__name__
    }


@cache
def _annotation_names() -> dict[str, Any]:
    """Names in annotations, those among them that Emmy imports for type checkers only."""
    from emmy.compiler.graph import Graph
    from emmy.compiler.ir.expr import Expr
    from emmy.compiler.tensor import Tensor

    return {**term_classes(), "Graph": Graph, "Expr": Expr, "Tensor": Tensor}
