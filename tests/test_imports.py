"""Imports run one way: between the parts of the package, and between modules."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import networkx as nx
import pytest
from conftest import ROOT

#: The package's parts, its folders and the files beside them. Each imports from the rows above its own and from itself,
#: whether at the top, in a function or for types alone.
LAYERS = (
    ("errors",),
    ("recursion",),
    ("launch", "target"),
    ("toolchain", "version"),
    ("ir", "corpus"),
    ("codegen", "frontend", "passes", "sim"),
    ("compilation", "device"),
    ("reference", "store"),
    ("plan",),
    ("driver",),
    ("comparison", "emmy"),
    ("batching",),
    ("cli",),
    ("__init__", "__main__"),
)

#: Imports that close a circle of modules on purpose, in functions, so that they are done when all is loaded.
LATE = {
    ("ptxc.device.__init__", "ptxc.device.cuda"): "`device` is the package's own function, and knows each device",
    ("ptxc.ir.kernel", "ptxc.ir.text"): "the repr of an instruction is its text",
    ("ptxc.reference.evaluator", "ptxc.reference.statements"): "the table of statements, which evaluate statements",
    ("ptxc.reference.fragment_memory", "ptxc.reference.statements"): "a store's epilogue assigns",
}


class Import(NamedTuple):
    """Something that a module imports."""

    module: str
    line: int
    imported: str
    #: Whether it is for types alone, and never done.
    for_types: bool


@cache
def modules() -> dict[str, Path]:
    """The package's modules, by name."""
    links = [path for path in (ROOT / "ptxc").iterdir() if path.is_symlink()]
    files = [file for folder in (ROOT / "ptxc", *links) for file in folder.rglob("*.py")]
    return {".".join(file.relative_to(ROOT).with_suffix("").parts): file for file in sorted(files)}


@cache
def imports() -> list[Import]:
    """All that modules of the package import from one another."""
    return [found for module, path in modules().items() for found in _imports(module, ast.parse(path.read_text()))]


def _imports(module: str, tree: ast.Module) -> Iterator[Import]:
    blocks = [node for node in ast.walk(tree) if isinstance(node, ast.If) and _is_for_types(node.test)]
    for_types = {inner for block in blocks for statement in block.body for inner in ast.walk(statement)}
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}:{node.lineno} is relative"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        for name in names:
            if name.partition(".")[0] == "ptxc":
                yield Import(module, getattr(node, "lineno", 0), _module(name), node in for_types)


def _is_for_types(test: ast.expr) -> bool:
    return isinstance(test, ast.Name) and test.id == "TYPE_CHECKING"


def _module(name: str) -> str:
    """The module that is imported for ``name``, which is one or something in one."""
    candidates = (name, f"{name}.__init__", name.rpartition(".")[0], f"{name.rpartition('.')[0]}.__init__")
    return next(candidate for candidate in candidates if candidate in modules())


def part(module: str) -> str:
    return module.split(".")[1]


def test_each_part_has_its_layer() -> None:
    placed = [name for row in LAYERS for name in row]
    assert sorted(placed) == sorted({part(module) for module in modules()})


def test_parts_import_from_the_layers_below() -> None:
    layer = {name: at for at, row in enumerate(LAYERS) for name in row}
    wrong = [
        f"{found.module}, line {found.line}: {found.imported}"
        for found in imports()
        if part(found.module) != part(found.imported) and layer[part(found.imported)] >= layer[part(found.module)]
    ]
    assert not wrong, "imports from a layer that is not below"


def test_modules_import_each_other_in_no_circle() -> None:
    done = {(found.module, found.imported) for found in imports() if not found.for_types}
    circles = [sorted(found) for found in nx.strongly_connected_components(nx.DiGraph(done - LATE.keys()))]
    assert not [circle for circle in circles if len(circle) > 1]
    for late in LATE:
        assert late in done, f"{late} is no import"
        assert nx.has_path(nx.DiGraph(done), late[1], late[0]), f"{late} closes no circle"


@pytest.mark.parametrize(
    "text", ["from ptxc.driver import link", "def f():\n    from ptxc import driver", "import ptxc.driver"]
)
def test_imports_are_found(text: str) -> None:
    (found,) = _imports("ptxc.store.kernels", ast.parse(text))
    assert found.imported == "ptxc.driver"
