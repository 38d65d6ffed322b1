"""Statements: every class of Kernel IR is read from its repr, and everything else is refused with its place."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from emmy.compiler.dim import Dim
from emmy.compiler.ir.elementwise import ElementwiseImpl
from emmy.compiler.ir.expr import BinaryExpr, Expr, Literal, Var
from reader_samples import assert_same, kernel

from ptxc.errors import InputError
from ptxc.frontend import vocabulary
from ptxc.frontend.reader import read_graph
from ptxc.frontend.reprs import Budget, TermReader
from ptxc.frontend.vocabulary import Kind, Refusal

ASSIGN = "Assign(name='v', op=ElementwiseImpl('add'), args=('a', 'b'), dtype=None)"


def term(text: str) -> Any:
    return TermReader(Budget()).read(text)


def random_value(kind: Kind, rng: random.Random, depth: int) -> Any:
    """Any value that a field of this kind may hold; small where ``depth`` runs out."""
    choices: list[Callable[[], Any]] = []
    scalars = {int: 3, float: rng.choice([0.5, -1e30]), str: "a", bool: True}
    choices += [partial(lambda value: value, v) for cls, v in scalars.items() if cls in kind.classes]
    choices += [lambda: None] if type(None) in kind.classes else []
    choices += [partial(random_term, base, rng, depth) for base in kind.bases]
    for row in kind.rows:
        kinds = [row.kinds[0]] * rng.randrange(3 if depth > 0 else 1) if row.repeated else row.kinds
        choices.append(partial(lambda row_kinds: tuple(random_value(k, rng, depth - 1) for k in row_kinds), kinds))
    return rng.choice(choices)()


def random_term(base: type, rng: random.Random, depth: int) -> Any:
    """Any object of ``base`` that a statement's text can spell."""
    if base is ElementwiseImpl:
        return ElementwiseImpl(rng.choice(["add", "maximum", "exp"]))
    if base is np.dtype:
        return np.dtype("float32")
    if base.__name__ == "DataType":
        from emmy.compiler.dtype import F16, F32, F16x2

        return rng.choice([F16, F32, F16x2])
    if base is Dim:
        extents: list[int | str | Expr] = [8, "n", BinaryExpr("*", Var("n"), Literal(2, "int"))]
        return Dim(rng.choice(extents))
    particular = ("WgmmaMma", "Select")
    subclasses = [c for n, c in vocabulary.term_classes().items() if issubclass(c, base) and n not in particular]
    leaves = [c for c in subclasses if c.__name__ in ("Var", "Sync", "Axis", "Lambda", "IndexSource", "FragLayout")]
    return random_instance(rng.choice(leaves if depth <= 0 and leaves else subclasses), rng, depth)


def random_instance(cls: type, rng: random.Random, depth: int) -> Any:
    fields = vocabulary.constructor_of(cls).fields
    for _ in range(200):
        values = {name: random_value(kind, rng, depth - 1) for name, kind in fields.items()}
        try:
            return cls(**values)
        except (TypeError, ValueError):
            # The class checks more than its annotations say.
            continue
    pytest.skip(f"no {cls.__name__} by chance")


#: These have tests of their own, allow few values, or are no terms.
PARTICULAR = {"DataType", "StructuredType", "Dim", "ElementwiseImpl", "WgmmaMma", "SimplifyCtx"}


@pytest.mark.parametrize("name", sorted(vocabulary.term_classes().keys() - PARTICULAR))
def test_every_class_of_kernel_ir_is_read_from_its_repr(name: str) -> None:
    cls = vocabulary.term_classes()[name]
    rng = random.Random(name)
    for _ in range(20):
        made = random_instance(cls, rng, 3)
        assert_same(term(repr(made)), made, name)


def test_every_field_of_kernel_ir_can_hold_something() -> None:
    for cls in vocabulary.term_classes().values():
        for name, kind in vocabulary.constructor_of(cls).fields.items():
            if cls.__name__ != "SimplifyCtx":
                assert kind.classes or kind.bases or kind.rows, (cls, name)


def test_wgmma_is_read_from_its_repr() -> None:
    text = (
        "WgmmaMma(c_frags=('c0',), b_desc='b', shape=(64, 8, 16), ab_dtype='f16', a_desc='a', a_frag=None, "
        "scale_d=1, trans_a=0, trans_b=0)"
    )
    assert repr(term(text)) == text


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1),
        ("-1", -1),
        ("18446744073709551615", 2**64 - 1),
        ("-9223372036854775808", -(2**63)),
        ("1e-05", 1e-5),
        ("-1e+30", -1e30),
        ("1.7976931348623157e+308", 1.7976931348623157e308),
        ("inf", float("inf")),
        ("-inf", float("-inf")),
        ("True", True),
        ("None", None),
        ("''", ""),
        ('"it\'s"', "it's"),
        (
            repr("\\ ' \" \n\r\t \x00 \x7f \u2028 \ud800 \U0001f600"),
            "\\ ' \" \n\r\t \x00 \x7f \u2028 \ud800 \U0001f600",
        ),
        ("'(,)='", "(,)="),
        ("()", ()),
        ("(1,)", (1,)),
        (" ( 1 , 'a', ( ) ) ".replace(" ,", ","), (1, "a", ())),
        ("dtype('float32')", np.dtype("float32")),
        ("Dim(32)", Dim(32)),
        ("Dim('n')", Dim("n")),
        ("Var('a')", Var("a")),
        ("Var( name='a')", Var("a")),
    ],
)
def test_values(text: str, value: Any) -> None:
    assert_same(term(text), value)


def test_not_a_number_is_read() -> None:
    assert term("nan") != term("nan")


def test_enum_members_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    from emmy.compiler.ir.schedule.choices import Level

    member = next(iter(Level))
    with pytest.raises(Refusal, match=r"Kernel IR has no 'Level\."):
        term(repr(member))
    modules = (*vocabulary.TERM_MODULES, "emmy.compiler.ir.schedule.choices")
    monkeypatch.setattr(vocabulary, "TERM_MODULES", modules)
    assert term(repr(member)) is member
    with pytest.raises(Refusal, match="Kernel IR has no"):
        term("<Level.mro: 1>")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the text ends too early"),
        ("Sync(", "the text ends too early, at character 5"),
        ("Sync() Sync()", "a comma is missing, at character 7"),
        ("Sync(),", "a comma is missing, at character 6"),
        ("Sync(), Sync()", "more than one value"),
        ("Sync())", r"unexpected '\)'"),
        ("x=Sync()", "more than one value"),
        ("(Sync())", r"\(x,\) where it holds one"),
        ("(a=1,)", "a tuple holds values without names"),
        ("Sync", "'Sync' is no value"),
        ("'Sync()'", "must be Stmt, not 'Sync"),
        ("1", "must be Stmt, not 1"),
        ("Var(name='a')", "must be Stmt, not a Var"),
        ("Foo()", "Kernel IR has no 'Foo'"),
        ("KernelOp()", "Kernel IR has no 'KernelOp'"),
        ("Body(())", "Kernel IR has no 'Body'"),
        ("replace(Sync())", "Kernel IR has no 'replace'"),
        ("Sync(foo=1)", "Sync has no field 'foo'"),
        ("Sync(barrier_id=1, barrier_id=1)", "given a field twice"),
        ("Sync(1, barrier_id=1)", "given a field twice"),
        ("Sync(barrier_id=1, 2)", "a value without a field's name"),
        ("Sync(1, 2, True, 4)", "takes 3 values without a name"),
        ("Sync(**x)", "unexpected character"),
        ("Sync(*())", "unexpected character"),
        ("Sync(barrier_id=True)", "Sync.barrier_id must be int, not True"),
        ("Sync(count='a')", r"Sync.count must be int \| None, not 'a'"),
        ("Loop(axis=Axis('i', Dim(4)))", "Loop needs its field 'body'"),
        ("Loop(axis='i', body=())", "Loop.axis must be Axis, not 'i'"),
        ("Loop(axis=Axis('i', Dim(4)), body=Sync())", "Loop.body must be Body, not a Sync"),
        ("Loop(axis=Axis('i', Dim(4)), body=(Var('a'),))", "Loop.body must be Body, not a tuple of 1"),
        ("Loop(axis=Axis('i', 4), body=())", "Axis.extent must be Dim, not 4"),
        ("Tile(axes=('i',), body=())", r"Tile.axes must be tuple\[Axis, ...\], not a tuple of 1"),
        ("Tile(axes=Axis('i', Dim(4)), body=())", r"Tile.axes must be tuple\[Axis, ...\], not a Axis"),
        ("Tile(axes=(), body=(), aux_threads=1)", "Tile: Tile.aux_threads requires"),
        ("Let(name=1, value=Var('a'))", "Let.name must be str, not 1"),
        ("Let(name='v', value=Literal(value='x'))", r"Literal.value must be int \| float \| bool, not 'x'"),
        ("Let(name='v', value=BinaryExpr('+', Var('a'), Sync()))", "BinaryExpr.right must be Expr, not a Sync"),
        ("CpAsyncCopy('s', (Sync(),), 'x', ())", "CpAsyncCopy.smem_index must be tuple"),
        ("RegFragment('f', 'a', (1, 2), DataType('f32', dtype('float32'), 4))", "RegFragment.shape must be tuple"),
        ("Load(names=(), input='x', index=())", "Load: Load.names must be non-empty"),
        ("Load(input='x', index=())", "Load: Load requires"),
        (ASSIGN.replace("add", "save"), "there is no elementwise operation 'save'"),
        (ASSIGN.replace("add", "__class__"), "there is no elementwise operation"),
        (ASSIGN.replace("None", "DataType('f99', dtype('float32'), 4)"), "DataType: unknown dtype"),
        (ASSIGN.replace("None", "DataType('f32', dtype('float16'), 2)"), "differs from Emmy's type"),
        (ASSIGN.replace("None", "DataType('f32', dtype('O'), 2)"), r"dtype\('O'\) is none of bool, float16"),
        ("Smem(name='s', extents=(9**9,))", "a comma is missing|unexpected character"),
        ("Smem(name='s', extents=(18446744073709551616,))", "is no number of Kernel IR, at character 24"),
        ("Smem(name='s', extents=(1_0,))", "'1_0' is no number"),
        ("Smem(name='s', extents=(0x10,))", "'0x10' is no number"),
        ("Smem(name='s', extents=(007,))", "'007' is no number"),
        ("Smem(name='s', extents=(1j,))", "'1j' is no number"),
        ("Smem(name='s', extents=(1-1,))", "a comma is missing"),
        ("Smem(name='s', extents=(--1,))", "unexpected character"),
        ("Smem(name='s', extents=[1])", "unexpected character"),
        ("Smem(name='s', extents={1})", "unexpected character"),
        ("Smem(name='s' 't', extents=())", "a comma is missing"),
        ("Smem(name=f'{x}', extents=())", "'f' is no value"),
        ("Smem(name='\\q', extents=())", "a backslash that repr does not write"),
        ("Smem(name='\n', extents=())", "unexpected character"),
        ("Smem(name='s', extents=(x for x in y))", "'x' is no value"),
        ("Smem(name='s', extents=lambda: 1)", "'lambda' is no value"),
        ("Smem(name='s', extents=Dim.mro())", "'Dim' is no value"),
        ("Smem(name='s', extents=()[0])", "a comma is missing|unexpected character"),
        ("Smem(name='s', extents=__builtins__)", "'__builtins__' is no value"),
        ("().__class__.__base__.__subclasses__()", "unexpected character|a comma is missing"),
        ("Dim('(n')", "the dimension '\\(n' is no expression over sizes"),
        ("Dim('exp(n)')", "is more than sizes"),
        ("Dim('n < 4')", "is more than sizes"),
        ("Dim('n.x * 2')", "is more than sizes"),
        ("Dim('n * 1.5')", "is more than sizes"),
        (f"Dim('{'n+' * 300}n')", "at most 512 ASCII characters"),
    ],
)
def test_what_is_no_statement(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        read_graph(kernel("Sync()", text))
    assert caught.value.statement == "nodes.y.op_fields.body[1]"
    assert "\n" not in str(caught.value)


def test_errors_point_into_the_statement(tmp_path: Path) -> None:
    text = "Cond(cond=Var(name='a'), body=(Sync(), Sync(count='a')), else_body=())"
    path = tmp_path / "k.json"
    path.write_text(json.dumps(kernel(text)))
    with pytest.raises(InputError) as caught:
        read_graph(path)
    assert str(caught.value) == (
        f"{path}: nodes.y.op_fields.body[0]: Sync.count must be int | None, not 'a', at character "
        f"{text.index('Sync(count')}, near \"Sync(count='a')), else_body=()\"; "
        "give the JSON of Emmy's Graph.to_dict(), unchanged"
    )
