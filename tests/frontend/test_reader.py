"""The reader: what Emmy reads is read the same, and what is no graph is refused with its place."""

from __future__ import annotations

import copy
import gzip
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from emmy.compiler.dim import Dim
from emmy.compiler.graph import Graph
from emmy.compiler.ir.expr import BinaryExpr, Literal, Var
from emmy.compiler.ir.kernel.ir import KernelOp
from reader_samples import FILES, INPUT, assert_same, body_of, kernel, load

from ptxc.errors import InputError, UnsupportedError
from ptxc.frontend import jsonfile
from ptxc.frontend.reader import kernel_nodes, read_graph

#: Set to read all files of the corpus, not every tenth.
EVERY_FILE = "PTXC_WHOLE_CORPUS"


def check_against_emmy(path: Path) -> bool:
    """Whether Emmy can read the file at all; where it can, that ptxc reads the same graph."""
    graph = read_graph(path)
    data = load(path)
    assert json.loads(json.dumps(graph.to_dict(), default=str)) == data
    try:
        expected = Graph.from_dict(data)
    except NameError:
        return False
    assert_same(graph, expected, path.name)
    return True


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_reads_what_emmy_reads(path: Path) -> None:
    assert check_against_emmy(path) or path.stem == "zero_prologue"


def test_reads_the_corpus_as_emmy_does(shared: Path) -> None:
    files = sorted(shared.glob("emmy-corpus/*.json"))
    files += sorted(p for p in shared.glob("bench15/kernels/**/*.json") if not p.name.endswith(".meta.json"))
    assert files
    for path in files if os.environ.get(EVERY_FILE) else files[::10]:
        if not check_against_emmy(path):
            text = path.read_text()
            assert "FlatIndex(" in text or "ZeroPrologue(" in text


def test_composite_dimensions_are_expressions() -> None:
    data = kernel("Sync()")
    data["nodes"]["x"]["outputs"][0]["shape"] = [4, "n", "(((n + 63) / 64) * 64)"]
    graph = read_graph(data)
    shape = graph.nodes["x"].outputs[0].shape
    rounded = BinaryExpr("*", BinaryExpr("/", Var("n") + Literal(63, "int"), Literal(64, "int")), Literal(64, "int"))
    assert shape == (Dim(4), Dim("n"), Dim(rounded))
    assert isinstance(shape[2].expr, BinaryExpr)
    assert shape[2].expr.eval({"n": 65}) == 128
    assert Graph.from_dict(data).nodes["x"].outputs[0].shape[2] == Dim("(((n + 63) / 64) * 64)")
    assert graph.to_dict()["nodes"]["x"] == data["nodes"]["x"]


def test_older_dumps_have_one_output() -> None:
    data = kernel("Sync()")
    data["nodes"]["y"]["output"] = data["nodes"]["y"].pop("outputs")[0]
    assert_same(read_graph(data), Graph.from_dict(data))


def test_hints_constants_and_several_outputs_are_read_as_emmy_does() -> None:
    data = kernel("Sync()", serial=["Axis(name='s', extent=Dim(4), window=None)"], zero_delegated=["z"])
    data["hints"] = {"a.b": [1, {"c": "Var(name='x')"}]}
    data["nodes"]["y"]["hints"] = {"d": None}
    data["nodes"]["y"]["outputs"].append({"name": "y2", "shape": [], "dtype": "bf16"})
    fields = {
        "name": "c",
        "value": float("-inf"),
        "load_ops": [{"__op__": "ReshapeOp", "fields": {"shape": [1, "n", {"__dim__": {"expr": "n * 2", "hint": 3}}]}}],
        "source_parts": [["a", [1, 2]]],
    }
    c = {"op": "ConstantOp", "op_fields": fields, "inputs": [], "outputs": [{"name": "c", "shape": [1]}]}
    runtime = {**c, "op_fields": {"name": "r", "context_value": "BinaryExpr('*', Var('n'), Literal(2, 'int'))"}}
    data["nodes"] |= {"c": c, "r": {**runtime, "outputs": [{"name": "r", "shape": [1]}]}}
    data["nodes"]["y"]["inputs"] += ["c", "r"]
    data["outputs"].append("y2")
    assert_same(read_graph(data), Graph.from_dict(data))


def test_nodes_keep_their_order_whatever_their_edges() -> None:
    data = kernel("Sync()")
    data["nodes"] = dict(reversed(data["nodes"].items()))
    graph = read_graph(data)
    assert list(graph.nodes) == ["y", "x"]
    assert_same(graph, Graph.from_dict(data))


def test_kernels_come_in_node_order_with_their_tensors() -> None:
    data = kernel("Sync()")
    data["nodes"]["z"] = copy.deepcopy(data["nodes"]["y"])
    data["nodes"]["z"] |= {"inputs": ["y"], "outputs": [{"name": "z", "shape": ["n"], "dtype": "f16"}]}
    graph = read_graph(data)
    nodes = kernel_nodes(graph)
    assert [node.node_id for node in nodes] == ["y", "z"]
    assert all(isinstance(node.op, KernelOp) for node in nodes)
    assert dict(nodes[1].op.inputs) == {"y": graph.nodes["y"].outputs[0]}
    assert nodes[1].op.outputs["z"].dtype.name == "f16"


def test_importing_the_reader_imports_neither_emmy_nor_numpy() -> None:
    code = "import sys, ptxc.frontend.reader; sys.exit(any(m in sys.modules for m in ('emmy', 'numpy')))"
    assert subprocess.run([sys.executable, "-P", "-c", code], check=False).returncode == 0


def test_paths_files_and_standard_input_plain_and_gzip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = read_graph(kernel("Sync()"))
    plain = json.dumps(kernel("Sync()")).encode()
    for data in (plain, gzip.compress(plain), b"\xef\xbb\xbf" + plain):
        path = tmp_path / "kernel"
        path.write_bytes(data)
        assert_same(read_graph(path), expected)
        assert_same(read_graph(str(path)), expected)
        assert_same(read_graph(io.BytesIO(data)), expected)
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
        assert_same(read_graph("-"), expected)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "the file is empty"),
        (b" \n", "the file is empty"),
        (b"\xff\xfe{\x00", "not UTF-8 text at byte 0"),
        (b"{", "not JSON: Expecting property name .* line 1 column 2"),
        (b"[]", "a JSON object is needed here, not a list of 0"),
        (b"null", "a JSON object is needed here, not None"),
        (b"{}", "nodes: a JSON object is needed here, not None"),
        (b'{"nodes": 1}', "nodes: a JSON object is needed here, not 1"),
        (b'{"nodes": [1]}', "this is no program of Emmy's"),
        (b'{"nodes": NaN}', "not nan"),
        (b'{"nodes": {}, "nodes": {}}', "names 'nodes' twice"),
        (b"[" * 100_000, "the JSON nests too deeply"),
        (b'{"a":' * 100_000, "the JSON nests too deeply"),
        (b'{"a": ' + b"9" * 1_000_000 + b"}", "a number of thousands of digits"),
        (gzip.compress(b"{}" * 100, mtime=0)[:-9], "the gzip data is damaged"),
        (b"\x1f\x8b" + b"?" * 20, "the gzip data is damaged"),
    ],
)
def test_what_is_no_graph(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "it.json"
    path.write_bytes(data)
    with pytest.raises(InputError, match=message) as caught:
        read_graph(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert caught.value.hint


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    for source in (tmp_path / "none", tmp_path, "a\0b"):
        with pytest.raises(InputError, match="cannot read the file") as caught:
            read_graph(source)
        assert str(caught.value).isprintable()
    with pytest.raises(InputError, match="open as text"):
        read_graph(io.StringIO("{}"))  # type: ignore[arg-type]


def test_standard_input_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"?")))
    with pytest.raises(InputError, match=r"^<stdin>: not JSON"):
        read_graph("-")


def test_files_are_bounded_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jsonfile, "MAX_BYTES", 1 << 20)
    read_graph(io.BytesIO(json.dumps(kernel("Sync()" + " " * 1_000_000)).encode()))
    for data in (b" " * ((1 << 20) + 1), gzip.compress(b" " * (100 << 20))):
        with pytest.raises(InputError, match="more than 1 MiB"):
            read_graph(io.BytesIO(data))


def changed(path: str, value: Any) -> dict[str, Any]:
    """The graph of one kernel with ``value`` at the dotted path; Ellipsis removes what is there."""
    data = kernel("Sync()")
    *parents, last = path.split(".")
    place: Any = data
    for key in parents:
        place = place[int(key)] if isinstance(place, list) else place[key]
    last = int(last) if isinstance(place, list) else last  # type: ignore[assignment]
    if value is ...:
        del place[last]
    else:
        place[last] = value
    return data


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("inputs", ..., "^inputs: a list of buffer names is needed here"),
        ("outputs", "y", "^outputs: a list of buffer names is needed here"),
        ("outputs", ["q"], "^outputs: no node writes 'q'"),
        ("outputs", ["y", "y"], "^outputs: a buffer is named twice"),
        ("inputs", [1], "^inputs: a list of buffer names"),
        ("hints", [], "^hints: a JSON object is needed here, not a list of 0"),
        ("nodes.y", None, r"^nodes\.y: a JSON object is needed here, not None"),
        ("nodes.y.op", ..., r"^nodes\.y\.op_fields: Emmy has no operation None"),
        ("nodes.y.op", "os.system", "Emmy has no operation 'os.system'"),
        ("nodes.y.op", "Graph", "Emmy has no operation 'Graph'"),
        ("nodes.y.op", "__class__", "Emmy has no operation"),
        ("nodes.y.op_fields", [], r"^nodes\.y\.op_fields: a JSON object is needed here"),
        ("nodes.y.op_fields.body", "Sync()", r"body: must be Body, not a Sync"),
        ("nodes.y.op_fields.body", [["Sync()"]], r"body\[0\]: must be Stmt, not 1 elements"),
        ("nodes.y.op_fields.body", [None], r"body\[0\]: must be Stmt, not None"),
        ("nodes.y.op_fields.body", [{"a": 1}], r"body\[0\]: an object here is a __dim__"),
        ("nodes.y.op_fields.name", 1, "name: must be str, not 1"),
        ("nodes.y.op_fields.name", "k;", "the name 'k;' is no C identifier"),
        ("nodes.y.op_fields.foo", 1, "KernelOp has no field 'foo'"),
        ("nodes.y.op_fields.inputs", {}, "KernelOp has no field 'inputs'"),
        ("nodes.y.op_fields.knobs", {}, "KernelOp has no field 'knobs'"),
        ("nodes.y.op_fields.serial", ["Sync()"], r"serial\[0\]: must be Axis, not a Sync"),
        ("nodes.y.op_fields.serial", 1 << 1000, "serial: an integer of 1001 bits"),
        ("nodes.y.inputs", ["q"], r"^nodes\.y: no node writes the input 'q'"),
        ("nodes.y.inputs", ["y"], r"^nodes\.y: the node reads what is computed from its own output"),
        ("nodes.x.inputs", ["y"], "computed from its own output"),
        ("nodes.y.inputs", {"x": 1}, r"^nodes\.y\.inputs: a list of buffer names"),
        ("nodes.y.outputs", [], r"^nodes\.y\.outputs: a list of tensors"),
        ("nodes.y.outputs", ..., r"^nodes\.y\.outputs\[0\]: a JSON object is needed here"),
        ("nodes.y.outputs.0.name", ..., "a tensor has a name, a shape and a dtype"),
        ("nodes.y.outputs.0.shape", 4, "a tensor has a name, a shape and a dtype"),
        ("nodes.y.outputs.0.shape", [-1], "a size or an expression over sizes, not -1"),
        ("nodes.y.outputs.0.shape", [True], "a size or an expression over sizes, not True"),
        ("nodes.y.outputs.0.shape", [2**63], "a size or an expression over sizes"),
        ("nodes.y.outputs.0.shape", [1.5], "a size or an expression over sizes, not 1.5"),
        ("nodes.y.outputs.0.shape", ["__import__('os')"], "is no expression over sizes"),
        ("nodes.y.outputs.0.shape", [1] * 65, "more than 64 dimensions"),
        ("nodes.y.outputs.0.dtype", "f99", "Emmy has no element type 'f99'"),
        ("nodes.y.hints", 1, r"^nodes\.y\.hints: a JSON object"),
        ("nodes.a b", INPUT, r"^nodes\['a b'\]: the name 'a b' is no C identifier"),
        ("nodes.\x1b[31m", INPUT, r"^nodes\['\\x1b\[31m'\]: the name"),
        ("nodes." + "z" * 10**6, {**INPUT, "op": "?"}, r"^nodes\['z{40}'...\]\.op_fields: Emmy has no"),
    ],
)
def test_graphs_that_are_wrong(path: str, value: Any, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        read_graph(changed(path, value))
    text = str(caught.value)
    assert text.isprintable()
    assert len(text) < 500


def test_a_buffer_has_one_writer() -> None:
    data = kernel("Sync()")
    data["nodes"]["y"]["outputs"].append({"name": "x", "shape": [1]})
    with pytest.raises(InputError, match=r"^nodes\.y: 'x' is written by the node 'x' too"):
        read_graph(data)
    data["nodes"]["y"]["outputs"][1]["name"] = "y"
    with pytest.raises(InputError, match="two outputs of one name"):
        read_graph(data)


@pytest.mark.parametrize(("op", "stage"), [("TileOp", "tile"), ("CudaOp", "cuda")])
def test_graphs_of_another_stage(op: str, stage: str) -> None:
    with pytest.raises(UnsupportedError, match=f"{op} is of Emmy's {stage} stage") as caught:
        read_graph(changed("nodes.y.op", op))
    assert "lowering/kernel" in caught.value.hint
    with pytest.raises(UnsupportedError, match="no node holds a KernelOp, only InputOp"):
        read_graph(changed("nodes.y", {**INPUT, "outputs": [{"name": "y", "shape": [1]}]}))


@pytest.mark.parametrize(
    "value",
    [True, 1.5, [], {"sym": 1}, {"sym": "n", "hint": "x"}, {"sym": "n", "more": 1}, {"expr": "n +"}, {}],
)
def test_dimensions_in_fields_that_are_wrong(value: Any) -> None:
    op = {
        "op": "ReshapeOp",
        "op_fields": {"shape": [{"__dim__": value}]},
        "inputs": [],
        "outputs": [{"name": "r", "shape": [1]}],
    }
    with pytest.raises(InputError, match=r"^nodes\.r\.op_fields\.shape\[0\]: .*dimension"):
        read_graph(changed("nodes.r", op))


def test_a_dict_that_never_was_json_holds_statements_themselves() -> None:
    graph = read_graph(kernel("Sync()"))
    assert body_of(read_graph(graph.to_dict())) == body_of(graph)
    with pytest.raises(InputError, match=r"body\[0\]: must be Stmt, not a object"):
        read_graph(kernel(object()))  # type: ignore[arg-type]
