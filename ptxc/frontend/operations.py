"""Which operations of Kernel IR are compiled: the table behind ``ptxc ops``.

Nothing here is a list of names. What there is comes from Emmy's code: its classes, and what its CUDA text has a form
for. What is supported comes from the tables that the lowering itself uses, and from trying: an operator or an
elementwise operation is lowered into a scratch kernel.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator
from typing import Any

from emmy.compiler import dtype as emmy_types
from emmy.compiler.ir import elementwise as emmy_elementwise
from emmy.compiler.ir import expr as emmy_expr
from emmy.compiler.ir import stmt as emmy_stmt
from emmy.compiler.ir.elementwise import ElementwiseImpl
from emmy.compiler.ir.expr import BinaryExpr, Expr, FuncCallExpr, Var
from emmy.compiler.ir.kernel import ir as emmy_kernel_ir
from emmy.compiler.ir.kernel import render as emmy_render
from emmy.compiler.ir.stmt import Stmt, op_to_expr

from ptxc.errors import CompileError
from ptxc.frontend import elementwise
from ptxc.frontend.dtypes import F16_T, F32_T, I32_T, ElementType, element_type
from ptxc.frontend.expressions import _LOWER, Expressions
from ptxc.frontend.linear import Linear
from ptxc.frontend.math import Arithmetic
from ptxc.frontend.scope import Names, Typed
from ptxc.frontend.statements import STATEMENTS
from ptxc.ir.builder import Builder
from ptxc.ir.kernel import Block, Kernel


@dataclasses.dataclass(frozen=True, slots=True)
class Operation:
    """One operation, operator or type of Kernel IR. ``note`` says what it is or in which types it is computed."""

    kind: str
    name: str
    supported: bool
    note: str = ""


def operations() -> list[Operation]:
    """All operations of the installed Emmy's Kernel IR, by kind and name."""
    kinds = (_statements, _expressions, _operators, _functions, _builtins, _elementwise, _accumulations, _types)
    return [operation for kind in kinds for operation in sorted(kind(), key=lambda o: (o.name.lower(), o.name))]


# ---------------------------------------------------------------------------------------------- Emmy's vocabulary


def _subclasses(base: Any) -> Iterator[Any]:
    for cls in base.__subclasses__():
        yield cls
        yield from _subclasses(cls)


def statement_classes() -> list[Any]:
    """The statements that a KernelOp may hold: those with a CUDA text (others are gone before that stage)."""
    modules = (emmy_kernel_ir.__name__, emmy_stmt.__name__)
    found = (cls for cls in dict.fromkeys(_subclasses(Stmt)) if cls.__module__.startswith(modules))
    return [cls for cls in found if cls.render is not Stmt.render and dataclasses.is_dataclass(cls)]


def elementwise_names() -> list[str]:
    """The elementwise operations that Emmy's CUDA text has a form for, in floats or in integers."""
    import numpy as np

    known = {*vars(np), *emmy_elementwise._NAME_TO_FN}
    names = [name for name in sorted(known) if emmy_elementwise.is_elementwise(name)]
    return [name for name in names if name == "bitcast" or _cuda_forms(name)]


def _cuda_forms(name: str) -> list[Expr]:
    """What Emmy makes of an elementwise operation for CUDA, in floats and in integers."""
    inputs: list[Expr] = [Var(f"x{at}") for at in range(ElementwiseImpl(name).arity)]
    forms = []
    for type in (None, "i32"):
        try:
            forms.append(op_to_expr(name, inputs, dtype=type))
        except (NotImplementedError, ValueError, IndexError):
            continue
    return forms


def function_names() -> set[str]:
    """The functions that an expression may call: those with a CUDA spelling, and those that ptxc knows besides."""
    called = {
        term.name
        for name in elementwise_names()
        if name != "bitcast"
        for form in _cuda_forms(name)
        for term in _terms(form)
        if isinstance(term, FuncCallExpr)
    }
    return called | emmy_render._INTRINSIC_TO_CUDA.keys() | elementwise.FUNCTIONS.keys()


def _terms(expr: Any) -> list[Any]:
    return list(expr.subterms())


def accumulation_names() -> list[str]:
    """The operations that Emmy's CUDA text can accumulate by."""
    canonical = emmy_elementwise._REDUCE_CANON
    return [name for name, combine in canonical.items() if combine in emmy_elementwise._REDUCE_SPELLING]


# ---------------------------------------------------------------------------------------------- what is supported


class _Scratch:
    """A kernel in which an operation is lowered to see whether it can be."""

    def __init__(self) -> None:
        self.kernel = Kernel("scratch", "sm_90", 32)
        block = Block("entry")
        self.kernel.blocks.append(block)
        self.builder = Builder(self.kernel, block)
        self.arithmetic = Arithmetic(fast=False, fma=True, sm=90)

    def value(self, type: ElementType) -> Typed:
        """A value of which nothing but the type is known."""
        return Typed(self.kernel.value(type.bank, "x"), type)

    def expression(self, expr: Expr, **types: ElementType) -> Linear | Typed:
        """The value of an expression over variables of those types."""
        names = Names()
        for name, type in types.items():
            names.declare(name, self.value(type))
        return Expressions(self.builder, names, self.arithmetic, _no_buffer, 32).lower(expr)

    def assign(self, name: str, type: ElementType) -> Typed:
        """The result of an elementwise operation of operands of that type."""
        args = tuple(self.value(type) for _ in range(ElementwiseImpl(name).arity))
        to = type if name == "bitcast" else None
        return elementwise.assign(self.builder, name, args, to, self.arithmetic, "x")


def _no_buffer(buffer: str, index: tuple[Expr, ...]) -> Linear:
    """The place of an element, which expressions of variables and numbers have none of."""
    raise AssertionError(f"an expression of names alone reads {buffer}")


def _works(attempt: Callable[..., object], *arguments: object, **more: object) -> bool:
    """Whether the lowering takes what ``attempt`` gives it."""
    try:
        attempt(*arguments, **more)
    except CompileError:
        return False
    return True


def _statements() -> Iterator[Operation]:
    for cls in statement_classes():
        yield Operation("statement", cls.__name__, cls in STATEMENTS, _summary(cls))


def _expressions() -> Iterator[Operation]:
    for cls in dict.fromkeys(_subclasses(Expr)):
        yield Operation("expression", cls.__name__, cls in _LOWER, _summary(cls))


def _operators() -> Iterator[Operation]:
    for operator in emmy_expr._PRECEDENCE:
        expr = BinaryExpr(operator, Var("x"), Var("y"))
        kinds = [
            kind
            for kind, type in (("integers", I32_T), ("floats", F32_T))
            if _works(_Scratch().expression, expr, x=type, y=type)
        ]
        yield Operation("operator", operator, bool(kinds), f"of {' and '.join(kinds)}" if kinds else "")


def _functions() -> Iterator[Operation]:
    for name in function_names():
        supported = name in elementwise.FUNCTIONS or _works(
            _Scratch().expression, FuncCallExpr(name, (Var("x"),)), x=I32_T
        )
        yield Operation("function", name, supported)


def _builtins() -> Iterator[Operation]:
    for name in emmy_expr.BUILTINS:
        yield Operation("built-in", name, _works(_Scratch().expression, emmy_expr.Builtin(name)))


def _elementwise() -> Iterator[Operation]:
    for name in elementwise_names():
        types = [type.name for type in (F32_T, F16_T, I32_T) if _computes(name, type)]
        note = f"in {', '.join(types).replace(I32_T.name, 'integers')}" if types else ""
        yield Operation(
            "elementwise", name, bool(types), "the same bits in another type" if name == "bitcast" else note
        )


def _computes(name: str, type: ElementType) -> bool:
    """Whether an operation of operands of ``type`` is computed in that type, and not in f32."""
    if type is F16_T and name not in elementwise.NATIVE_F16:
        return False
    if type.is_integer and name in elementwise.EXACT:
        return True
    try:
        return _Scratch().assign(name, type).type.is_integer is type.is_integer
    except CompileError:
        return False


def _accumulations() -> Iterator[Operation]:
    for name in accumulation_names():
        known = elementwise.COMBINES.get(name)
        yield Operation("accumulation", name, known is not None, f"starts at {known[1]:g}" if known else "")


def _types() -> Iterator[Operation]:
    for type in vars(emmy_types).values():
        if isinstance(type, emmy_types.DataType):
            size = f"{type.nbytes} byte{'s' * (type.nbytes > 1)}"
            name = type.name
            yield Operation("element-type", name, _works(element_type, name), size)


def _summary(cls: type) -> str:
    """The first sentence of Emmy's description of a class."""
    text = " ".join(re.sub(r"``|\*\*|:\w+:`~?[.\w]*`", "", cls.__doc__ or "").partition("\n\n")[0].split())
    return re.split(r"\.(?: (?=[A-Z])|$)", text)[0]
