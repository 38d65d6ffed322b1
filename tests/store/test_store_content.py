"""What of a kernel is in its key: all that reaches the output, and nothing else."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT

from ptxc.compilation import CompiledKernel, Options
from ptxc.driver import compile_kernel, graph_of
from ptxc.frontend.reader import KernelNode, kernel_nodes
from ptxc.store.content import content_key

GOLDEN = ROOT / "golden"
KERNELS = sorted(GOLDEN.glob("*/kernel.ir.json"))
ROW_SUM = GOLDEN / "row_sum_tree" / "kernel.ir.json"
MATMUL = GOLDEN / "mma_matmul_f16" / "kernel.ir.json"

#: What may be in quotes in a statement's text: a name, with a subscript where it is of a fragment.
_QUOTED = re.compile(r"'([A-Za-z_]\w*)(\[[^']*\])?'")

#: Where statements define temporaries, in their text.
_DEFINING = re.compile(r"(?:Assign|Accum|Init|Let|Select|RegFragment)\(name='(\w+)'|Load\(names=\(([^)]*)\)")


def text_of(path: Path) -> str:
    data = path.read_bytes()
    return (gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data).decode()


def kernel(source: Any) -> tuple[KernelNode, Any]:
    graph = graph_of(json.loads(source) if isinstance(source, str) else source)
    return kernel_nodes(graph)[0], graph


def key(source: Any) -> str:
    found = content_key(*kernel(source))
    assert found is not None
    return found


def compiled(source: Any, target: str = "sm_90") -> CompiledKernel:
    return compile_kernel(*kernel(source), Options(target=target, cache=False))


def temporaries(text: str) -> list[str]:
    found: dict[str, None] = {}
    for name, names in _DEFINING.findall(text):
        found.update(dict.fromkeys([name] if name else re.findall(r"'(\w+)'", names)))
    return list(found)


def renamed(text: str, names: dict[str, str]) -> str:
    return _QUOTED.sub(lambda match: f"'{names.get(match[1], match[1])}{match[2] or ''}'", text)


@pytest.mark.parametrize("path", KERNELS, ids=lambda path: path.parent.name)
def test_names_of_temporaries_do_not_matter(path: Path) -> None:
    text = text_of(path)
    names = temporaries(text)
    assert names
    # Emmy puts the statements of an epilogue in an order that follows their names.
    names.sort(reverse="Lambda(" not in text)
    other = renamed(text, {name: f"zz{at:03}" for at, name in enumerate(names)})
    assert other != text
    assert key(other) == key(text)
    target = next(target for target in ("sm_90", "sm_70", "sm_120") if _compiles(text, target))
    assert compiled(other, target) == compiled(text, target)


def _compiles(text: str, target: str) -> bool:
    try:
        return bool(compiled(text, target))
    except Exception:
        return False


@pytest.mark.parametrize(
    "name",
    [
        *("lane", "warp", "a1_end", "_v_in0__0", "__frow"),  # mean something
        *("then", "else", "join", "wait", "waited", "entry", "loop", "done", "inside", "outside"),  # name blocks
        *("k_y_reduce", "x", "y", "a0", "a1", "acc0_smem"),  # are called so
        *("add", "int", "f32", "exp", "tid", "ctaid", "t", "addr", "zero", "body"),
    ],
)
def test_a_temporary_may_have_any_name(name: str) -> None:
    """One that means something elsewhere makes another key, or the same output; never another kernel's output."""
    text = text_of(ROW_SUM)
    for old in temporaries(text):
        other = renamed(text, {old: name})
        try:
            result = compiled(other)
        except Exception:
            continue  # it clashes with another name
        if key(other) == key(text):
            assert result == compiled(text)


def test_the_layout_of_json_does_not_matter() -> None:
    text = text_of(MATMUL)
    graph = json.loads(text)
    turned = {name: graph[name] for name in reversed(graph)}
    turned["nodes"] = dict(reversed(graph["nodes"].items()))
    assert key(json.dumps(turned, indent=3)) == key(text)


def test_how_terms_are_shared_does_not_matter() -> None:
    node, graph = kernel(text_of(MATMUL))
    shared = content_key(node, graph)
    fresh: Any = _unshared(node.op.body)
    object.__setattr__(node.op, "body", type(node.op.body)(fresh))
    assert content_key(node, graph) == shared


def _unshared(value: Any) -> Any:
    """``value`` with no two terms in it that are one object."""
    import copy
    from dataclasses import fields, is_dataclass

    if isinstance(value, tuple):
        return type(value)(tuple([_unshared(item) for item in value]))
    if not is_dataclass(value) or type(value).__module__.endswith("dtype"):
        return value
    made = copy.copy(value)
    for field in fields(value):
        object.__setattr__(made, field.name, _unshared(getattr(value, field.name)))
    return made


def _replaced(old: str, new: str) -> str:
    text = text_of(ROW_SUM)
    assert old in text, old
    return text.replace(old, new)


def test_what_reaches_the_output_makes_another_key() -> None:
    text = text_of(ROW_SUM)
    graph = json.loads(text)
    keys = {key(text)}
    changes = [re.sub(r"\bk_y_reduce\b", "k_other", text)]
    changes += [re.sub(rf"\b{name}\b", f"{name}_other", text) for name in graph["inputs"] + graph["outputs"]]
    for name in sorted(set(re.findall(r"(?:Axis|Smem)\(name='(\w+)'", text))):
        changes.append(re.sub(rf"'{name}'", f"'{name}9'", text))
    changes.append(text.replace("ElementwiseImpl('add')", "ElementwiseImpl('maximum')"))
    hints = graph | {"hints": {"cuda.indirect_inputs": graph["inputs"]}}
    changes.append(json.dumps(hints))
    for change in changes:
        assert change != text
        keys.add(key(change))
    assert len(keys) == 1 + len(changes)


def test_every_number_makes_another_key() -> None:
    text = text_of(ROW_SUM)
    (body,) = (node["op_fields"]["body"] for node in json.loads(text)["nodes"].values() if node["op"] == "KernelOp")
    count, keys = 0, {key(text)}
    for match in re.finditer(r"(?<=value=)\d+", text):
        keys.add(key(f"{text[: match.start()]}{int(match[0]) + 12345 + count}{text[match.end() :]}"))
        count += 1
    assert body
    assert count
    assert len(keys) == count + 1


def test_numbers_that_python_calls_equal_are_not_the_same() -> None:
    node, graph = kernel(text_of(ROW_SUM))
    keys = []
    for value in (1, 1.0, True, -0.0, 0.0, "1", None):
        object.__setattr__(node.op, "zero_delegated", (value,))
        keys.append(content_key(node, graph))
    assert len(set(keys)) == len(keys)


def test_what_is_not_known_has_no_key() -> None:
    node, graph = kernel(text_of(ROW_SUM))
    object.__setattr__(node.op, "zero_delegated", (object(),))
    assert content_key(node, graph) is None


def test_a_deep_expression_has_a_key() -> None:
    from emmy.compiler.ir.expr import BinaryExpr, Literal

    node, graph = kernel(text_of(ROW_SUM))
    deep: Any = Literal(0, "int")
    for _ in range(3000):
        deep = BinaryExpr("+", deep, Literal(1, "int"))
    object.__setattr__(node.op, "zero_delegated", (deep,))
    assert content_key(node, graph) is not None
