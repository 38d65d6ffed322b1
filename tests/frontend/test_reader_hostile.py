"""Hostile files: nothing that a file says is run, and none takes minutes, the stack or the memory."""

from __future__ import annotations

import builtins
import copy
import io
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from emmy.compiler.ir.expr import BinaryExpr
from reader_samples import FILES, INPUT, body_of, kernel, outcome

from ptxc.errors import InputError
from ptxc.frontend import reader, reprs, vocabulary
from ptxc.frontend.reader import read_graph
from ptxc.frontend.reprs import MAX_DEPTH


def payloads(canary: Path) -> Iterator[str]:
    touch = f"__import__('os').system('touch {canary}')"
    yield touch
    yield f"().__class__.__base__.__subclasses__()[0]({touch})"
    yield f"Sync({touch})"
    yield f"Var(name={touch})"
    yield f"Var(name='a') if {touch} else 1"
    yield f"[{touch} for _ in (1,)]"
    yield f"(lambda: {touch})()"
    yield f"Load(names=('a',), input='x', index=({touch},))"
    yield f"Dim({touch})"
    yield f"ElementwiseImpl({touch})"
    yield f"dtype({touch})"
    yield f"Lambda(params=({touch},), body=(), results=())"
    yield f"<Level.GRID: {touch}>"
    yield f"f'{{{touch}}}'"
    yield f"Var(name='a'){touch}"
    yield f"IndexSource(input_idx={touch}, coord_map=())"
    yield f"Tile(axes=(), body=(), **{{'x': {touch}}})"
    yield f"open('{canary}', 'w')"


PLACES = [
    "nodes.y.op",
    "nodes.y.op_fields.body.0",
    "nodes.y.op_fields.name",
    "nodes.y.op_fields.serial",
    "nodes.y.op_fields.zero_delegated",
    "nodes.y.op_fields.zero_delegated.0",
    "nodes.y.op_fields.op",
    "nodes.y.hints.x",
    "nodes.y.outputs.0.shape.0",
    "nodes.y.outputs.0.name",
    "nodes.y.outputs.0.dtype",
    "nodes.c.op_fields.context_value",
    "nodes.c.op_fields.value",
    "nodes.c.op_fields.name",
    "nodes.c.op_fields.source_path",
    "nodes.c.op_fields.source_shape.0",
    "nodes.c.op_fields.load_ops.0.__op__",
    "nodes.c.op_fields.load_ops.0.fields.op",
    "nodes.c.op_fields.load_ops.1.fields.sources.0",
    "nodes.c.op_fields.load_ops.1.fields.out_shape.0",
    "nodes.c.op_fields.load_ops.1.fields.out_shape.0.__dim__",
    "nodes.c.op_fields.load_ops.1.fields.out_shape.0.__dim__.expr",
    "nodes.c.op_fields.source_graph.__graph__.nodes.s.op_fields.name",
    "hints.x",
    "hints.y.0",
]


def test_nothing_in_a_file_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No evaluator is called, Python's or Emmy's, and no payload touches its file, wherever it stands."""
    sub = {"inputs": [], "outputs": [], "nodes": {"s": {**INPUT, "op": "ConstantOp", "op_fields": {"name": "s"}}}}
    ops = [
        {"__op__": "ElementwiseOp", "fields": {"op": "add"}},
        {"__op__": "IndexMapOp", "fields": {"sources": [""], "out_shape": [{"__dim__": {"expr": "n"}}]}},
    ]
    fields = {"name": "c", "load_ops": ops, "source_shape": [1], "source_graph": {"__graph__": sub}}
    base = kernel("Sync()", zero_delegated=["z"])
    base["nodes"]["c"] = {
        "op": "ConstantOp",
        "op_fields": fields,
        "inputs": [],
        "outputs": [{"name": "c", "shape": []}],
    }
    base["nodes"]["y"]["hints"] = {}
    base["hints"] = {"y": [1]}
    for path in FILES:
        read_graph(path)  # Python's own eval resolves the annotations of Emmy's classes, once.
    for cls in vocabulary.term_classes().values():
        vocabulary.constructor_of(cls)
    vocabulary.op_class("NoSuchOp")  # Looks through every module of operations; importing them executes code.

    def forbidden(*arguments: Any) -> Any:
        raise AssertionError(f"evaluated {arguments[0]!r}")

    canary = tmp_path / "canary"
    with monkeypatch.context() as patch:
        for name in ("eval", "exec", "compile"):
            patch.setattr(builtins, name, forbidden)
        patch.setattr("emmy.compiler.graph._eval_stmt", forbidden)
        for place in PLACES:
            for payload in payloads(canary):
                data = copy.deepcopy(base)
                *parents, last = place.split(".")
                target: Any = data
                for key in parents:
                    target = target[int(key)] if isinstance(target, list) else target[key]
                target[int(last) if isinstance(target, list) else last] = payload
                assert outcome(data) in ("read", "refused")
    assert not canary.exists()


VAR = "Var(name='a')"


def chain(levels: int) -> str:
    return "BinaryExpr(op='+', left=" * levels + VAR + ", right=Literal(value=1, dtype='int'))" * levels


def depth_of(expression: Any) -> int:
    levels = 0
    while isinstance(expression, BinaryExpr):
        expression, levels = expression.left, levels + 1
    return levels


def lambda_over(expression: str) -> str:
    body = f"(Load(names=('q',), input='x', index=({expression},), dtype=None), Let(name='z', value={expression}))"
    return (
        "RegStore(dst_buffer='y', dst_index=(), frag='f', shape=(1, 2, 3), "
        f"epilogue=Lambda(params=('a',), body={body}, results=('z',)))"
    )


@pytest.mark.parametrize("levels", [100, 1000, MAX_DEPTH - 10])
def test_deep_expressions_are_read(levels: int) -> None:
    limit = sys.getrecursionlimit()
    graph = read_graph(kernel(f"Let(name='v', value={chain(levels)}, dtype=None)"))
    assert depth_of(body_of(graph)[0].value) == levels
    epilogue = body_of(read_graph(kernel(lambda_over(chain(levels)))))[0].epilogue
    assert depth_of(epilogue.body[0].value) == levels
    nested = "Cond(cond=Var(name='a'), body=(" * (levels // 2 - 1) + "Sync()" + ",))" * (levels // 2 - 1)
    assert len(list(body_of(read_graph(kernel(nested)))))
    assert sys.getrecursionlimit() == limit


@pytest.mark.parametrize(
    "text",
    [
        "(" * 10**6,
        "(" * 10**6 + ")" * 10**6,
        "(" * 10**6 + ",)" * 10**6,
        "Sync(" * 10**6,
        f"Let(name='v', value={chain(MAX_DEPTH + 10)})",
        "Smem(name='s', extents=(" + "9" * 10**6 + ",))",
        "Smem(name='s', extents=(0." + "9" * 10**6 + ",))",
        "Smem(name='s', extents=(9**9**9,))",
        "Smem(name='s', extents=(" + "1," * 10**5 + "'x'))",
        "Smem(name='" + "a" * 10**6,
        "Smem(name='" + "\\" * (10**6 + 1) + "', extents=())",
        "a" * 10**6,
        "a" * 10**6 + "(",
        "Sync(" + "a" * 10**6 + "=1)",
        "Sync()" + " " * 10**6 + "!",
        "Sync(" + "''" * 10**6 + ")",
        "Cond(" * 4 + "Sync()," * 10**5,
        "," * 10**6,
        "<" * 10**6,
        "<a.b: " + "x" * 10**6 + ">",
        "\0" * 10**6,
        "\ud800" * 10**6,
    ],
    ids=lambda text: f"{text[:20]!r}",
)
def test_hostile_statements_end_soon(text: str) -> None:
    before = time.monotonic()
    with pytest.raises(InputError) as caught:
        read_graph(kernel(text))
    assert len(str(caught.value)) < 500
    assert time.monotonic() - before < 5


def test_a_deep_expression_is_read_or_refused_soon() -> None:
    """How deep Emmy's own constructors can go depends on the Python."""
    before = time.monotonic()
    deep = "FlatIndex(buffer='x', index=(" * 900 + "Var(name='a')" + ",))" * 900
    assert outcome(kernel(lambda_over(deep))) in ("read", "refused")
    assert time.monotonic() - before < 5


def test_work_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reprs.Budget.__init__, "__defaults__", (4_000_000,))
    pure = ", ".join(f"Pre(name='p{i}', carrier='a', index=())" for i in range(500))
    wide = "FuncCallExpr('f', (" + "Var('b'), " * 10_000 + "))"
    costly = [
        f"Smem(name='s', extents=({'1,' * 300_000}))",
        f"RegStore('y', (), 'f', (1, 2, 3), epilogue=Lambda(params=('a',), body=({pure}), results=('a',)))",
        f"Let('v', {chain(1900).replace(VAR, wide)})",
    ]
    for text in costly:
        with pytest.raises(InputError, match="more, or deeper, terms than ptxc reads"):
            read_graph(kernel(text))
    many = {f"n{i}": {**INPUT, "outputs": [{"name": "z", "shape": [1]}]} for i in range(10_000)}
    with pytest.raises(InputError, match="more, or deeper, terms than ptxc reads"):
        read_graph({**kernel("Sync()"), "nodes": many})


def test_graphs_inside_graphs_are_bounded() -> None:
    constant: dict[str, Any] = {
        "op": "ConstantOp",
        "op_fields": {"name": "c"},
        "inputs": [],
        "outputs": [{"name": "c", "shape": []}],
    }
    for _ in range(reader.MAX_NESTING + 1):
        graph = {"inputs": [], "outputs": [], "nodes": {"c": constant}}
        constant = {**constant, "op_fields": {"name": "c", "source_graph": {"__graph__": graph}}}
    with pytest.raises(InputError, match="more than 8 operations inside one another"):
        read_graph({"inputs": [], "outputs": [], "nodes": {"c": constant}})


def mutated(data: bytes, rng: random.Random) -> bytes:
    """``data`` with a few bytes, tokens or pieces changed."""
    for _ in range(rng.randrange(1, 4)):
        at, to = sorted(rng.randrange(len(data) + 1) for _ in range(2))
        match rng.randrange(6):
            case 0:
                data = data[:at] + bytes([rng.randrange(256)]) + data[at + 1 :]
            case 1:
                data = data[:at]
            case 2:
                data = data[:at] + data[min(to, at + 30) :]
            case 3:
                data = data[:at] + data[at : at + rng.randrange(200)] + data[at:]
            case 4:
                tokens = [b"(", b")", b",", b"'", b"None", b"-1", b"1e999", b"Var(name='a')", b"[]", b"{}", b'"', b"\\"]
                data = data[:at] + rng.choice(tokens) + data[at + rng.randrange(3) :]
            case 5:
                words = [w for w in data.replace(b"(", b" ").replace(b"=", b" ").split() if w.isalnum()]
                if words:
                    data = data.replace(rng.choice(words), rng.choice(words), rng.randrange(1, 3))
        if not data:
            break
    return data


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_broken_files_raise_only_our_errors(path: Path) -> None:
    rng = random.Random(path.stem)
    original = path.read_bytes()
    outcomes = Counter(outcome(io.BytesIO(mutated(original, rng))) for _ in range(200))
    for _ in range(200):
        data = json.loads(original)
        (fields,) = (node["op_fields"] for node in data["nodes"].values() if node["op"] == "KernelOp")
        statement = rng.randrange(len(fields["body"]))
        fields["body"][statement] = mutated(fields["body"][statement].encode(), rng).decode("latin-1")
        outcomes[outcome(data)] += 1
    assert outcomes.keys() == {"read", "refused"}
