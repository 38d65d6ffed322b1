"""Compiled kernels and machine code from the store are those that were put there."""

from __future__ import annotations

import gc
import json
import os
import pickle
import re
import time
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT

import ptxc
from ptxc import driver, version
from ptxc.compilation import CompiledKernel, Options
from ptxc.driver import Kernels, compile_kernel, compile_module, graph_of
from ptxc.errors import CompileError, ToolchainError
from ptxc.frontend.reader import KernelNode, kernel_nodes
from ptxc.ir.kernel import Kernel
from ptxc.ir.text import format_kernel
from ptxc.launch import Launch
from ptxc.store import Store, digest
from ptxc.store import kernels as store_kernels
from ptxc.store.assemblies import assemble_kept

KERNELS = sorted((ROOT / "golden").glob("*/kernel.ir.json"))
ROW_SUM = ROOT / "golden" / "row_sum_tree" / "kernel.ir.json"
TWO_KERNELS = ROOT / "tests" / "cli" / "data" / "two_kernels.json"


@pytest.fixture
def compilations(kept: Store, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The kernels that were really compiled."""
    names, really = [], driver._compile

    def compile(node: KernelNode, *rest: Any, **named: Any) -> CompiledKernel:
        names.append(node.name)
        return really(node, *rest, **named)

    monkeypatch.setattr(driver, "_compile", compile)
    return names


def kernel(path: Path) -> tuple[KernelNode, Any]:
    graph = graph_of(path)
    return kernel_nodes(graph)[0], graph


def test_a_kernel_is_compiled_once(compilations: list[str]) -> None:
    first, again = (compile_kernel(*kernel(ROW_SUM)) for _ in range(2))
    assert len(compilations) == 1
    assert first == again == compile_kernel(*kernel(ROW_SUM), Options(cache=False))


@pytest.mark.parametrize("path", KERNELS, ids=lambda path: path.parent.name)
def test_it_is_the_same_kernel(path: Path, compilations: list[str]) -> None:
    compiled = 0
    for target in ("sm_70", "sm_80", "sm_90", "sm_120"):
        try:
            fresh = ptxc.compile(path, target=target, cache=False)
        except CompileError as error:
            for _ in range(2):  # errors are not kept
                with pytest.raises(type(error), match=re.escape(str(error))):
                    ptxc.compile(path, target=target)
            continue
        compiled += 1
        assert ptxc.compile(path, target=target) == fresh
        compilations.clear()
        assert ptxc.compile(path, target=target) == fresh
        assert [compile_kernel(*kernel(path), Options(target=target))] == fresh[:1]
        assert not compilations
    assert compiled


def test_every_option_that_decides_the_text_counts(compilations: list[str]) -> None:
    options: list[dict[str, Any]] = [
        {},
        {"target": "sm_90"},
        {"ptx_version": "8.0"},
        {"math": "fast"},
        {"fma": False},
        {"opt": 0},
        {"opt": 1},
        {"disable": ("cse",)},
        {"disable": ("cse", "hoist")},
    ]
    for _ in range(2):
        for some in options:
            ptxc.compile(ROW_SUM, **some)
    assert len(compilations) == len(options)
    ptxc.compile(ROW_SUM, disable=["hoist", "cse", "cse"])  # in any order
    assert len(compilations) == len(options)


@pytest.mark.parametrize(
    "options",
    [{"cache": False}, {"verify_each": True}, {"time_passes": True}, {"stop_after": "cse"}, {"observe": print}],
    ids=lambda options: next(iter(options)),
)
def test_what_watches_a_compilation_compiles(options: dict[str, Any], kept: Store, compilations: list[str]) -> None:
    if "observe" in options:
        options = {"observe": lambda *_: None}
    for _ in range(2):
        ptxc.compile(ROW_SUM, **options)
    assert len(compilations) == 2
    assert not list(kept.entries())


def test_other_code_makes_other_entries(compilations: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    ptxc.compile(ROW_SUM)
    monkeypatch.setattr(store_kernels, "code_version", lambda: "newer")
    ptxc.compile(ROW_SUM)
    assert len(compilations) == 2


def test_the_code_version_is_of_every_source_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ptxc.store.settings import code_version

    monkeypatch.setattr(version, "LOADED", time.time() + 1000)
    package = tmp_path / "ptxc"
    (tmp_path / "passes").mkdir()
    (package / "cli").mkdir(parents=True)
    (package / "passes").symlink_to("../passes")
    files = [package / "__init__.py", package / "cli" / "a.py", tmp_path / "passes" / "b.py"]
    for file in files:
        file.write_text("x = 1\n")
    monkeypatch.setattr(version, "__file__", str(files[0]))
    versions = {code_version.__wrapped__()}
    for file in files:
        file.write_text("x = 2\n")  # of the same length
        versions.add(code_version.__wrapped__())
    files[1].rename(package / "cli" / "c.py")
    versions.add(code_version.__wrapped__())
    (package / "cli" / "notes.txt").write_text("")
    versions.add(code_version.__wrapped__())
    assert len(versions) == 5


def test_sources_that_changed_after_they_were_loaded_have_no_common_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ptxc.store.settings import code_version

    file = tmp_path / "a.py"
    file.write_text("x = 1\n")
    monkeypatch.setattr(version, "__file__", str(tmp_path / "__init__.py"))
    monkeypatch.setattr(version, "LOADED", time.time() + 10)
    assert code_version.__wrapped__() == code_version.__wrapped__()
    monkeypatch.setattr(version, "LOADED", file.stat().st_mtime)
    assert code_version.__wrapped__() != code_version.__wrapped__()
    os.utime(file, (0, 0))  # as where another file took its place
    assert code_version.__wrapped__() != code_version.__wrapped__()


def test_damage_is_repaired(kept: Store, compilations: list[str]) -> None:
    fresh = ptxc.compile(ROW_SUM)
    for entry in list(kept.entries()):
        Path(entry.path).write_bytes(Path(entry.path).read_bytes()[:100])
    assert ptxc.compile(ROW_SUM) == fresh
    assert len(compilations) == 2
    assert kept.verify() == (2, [])
    assert ptxc.compile(ROW_SUM) == fresh
    assert len(compilations) == 2


def test_the_ir_is_made_once_when_it_is_asked_for(compilations: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    made, really = [], driver.compile_op

    def compile(*args: Any, **named: Any) -> CompiledKernel:
        made.append(named)
        return really(*args, **named)

    monkeypatch.setattr(driver, "compile_op", compile)
    (fresh,), (found,) = ptxc.compile(ROW_SUM), ptxc.compile(ROW_SUM)
    assert len(compilations) == len(made) == 1
    assert format_kernel(found.kernel) == format_kernel(fresh.kernel)
    assert found.kernel is found.kernel
    assert fresh.kernel is fresh.kernel
    assert len(made) == 3


def test_a_kernel_is_pickled(kept: Store) -> None:
    kernels = [ptxc.compile(ROW_SUM, cache=cache)[0] for cache in (False, True, True)]
    for kernel in kernels:
        again = pickle.loads(pickle.dumps(kernel))
        assert again == kernel
        assert format_kernel(again.kernel) == format_kernel(kernels[0].kernel)


def test_kernels_from_the_store_are_linked(compilations: list[str]) -> None:
    fresh = compile_module(TWO_KERNELS, cache=False)
    assert [compile_module(TWO_KERNELS) for _ in range(2)] == [fresh, fresh]
    assert len(compilations) == 4
    assert fresh.ptx.count(".visible .entry") == 2


def test_a_changed_file_is_read(tmp_path: Path, compilations: list[str]) -> None:
    file = tmp_path / "k.json"
    file.write_bytes(ROW_SUM.read_bytes())
    (first,) = ptxc.compile(file)
    file.write_text(json.dumps(json.loads(ROW_SUM.read_text()), indent=1))
    assert ptxc.compile(file) == [first]
    assert len(compilations) == 1
    file.write_text(ROW_SUM.read_text().replace("k_y_reduce", "k_other"))
    assert ptxc.compile(file)[0].name == "k_other"


def test_a_file_that_is_known_is_not_read(kept: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    fresh = ptxc.compile(TWO_KERNELS)
    monkeypatch.setattr(driver, "graph_of", lambda _: pytest.fail("it is known"))
    kernels = Kernels(TWO_KERNELS, Options())
    assert kernels.names == [kernel.name for kernel in fresh]
    assert kernels.compile_all() == fresh


@pytest.mark.usefixtures("kept")
def test_a_file_is_parsed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    times = count()
    monkeypatch.setattr(driver, "graph_of", lambda source: (next(times), graph_of(source))[1])
    kernels = Kernels(TWO_KERNELS, Options())
    kernels.compile_all()
    assert kernels.graph is kernels.program
    assert next(times) == 1


@pytest.mark.parametrize("path", KERNELS, ids=lambda path: path.parent.name)
def test_launch_descriptions_come_back(path: Path) -> None:
    from dataclasses import asdict

    for target in ("sm_70", "sm_90", "sm_120"):
        try:
            kernels = ptxc.compile(path, target=target)
        except CompileError:
            continue
        for compiled in kernels:
            assert compiled.launch is not None
            assert Launch.from_dict(json.loads(json.dumps(asdict(compiled.launch)))) == compiled.launch


@pytest.mark.parametrize("from_file", [True, False])
def test_a_hit_takes_less_than_2_ms(kept: Store, from_file: bool) -> None:
    node, graph = kernel(ROW_SUM)
    compile_kernel(node, graph)
    ptxc.compile(ROW_SUM)
    times = []
    for _ in range(30):
        start = time.process_time()
        _ = ptxc.compile(ROW_SUM) if from_file else compile_kernel(node, graph)
        times.append(time.process_time() - start)
    assert min(times) < 2e-3


# ------------------------------------------------------------------------------------------------------------ assembly


@pytest.mark.needs("ptxas")
def test_machine_code_is_made_once(kept: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    (compiled,) = ptxc.compile(ROW_SUM, target="sm_80")
    first = assemble_kept(compiled.ptx, "sm_80")
    debug = assemble_kept(compiled.ptx, "sm_80", options=["-lineinfo"])
    monkeypatch.setattr("ptxc.store.assemblies.assemble", lambda *_, **__: pytest.fail("it is known"))
    assert assemble_kept(compiled.ptx, "sm_80") == first
    assert assemble_kept(compiled.ptx, "sm_80", options=["-lineinfo"]) == debug
    monkeypatch.setattr("ptxc.store.assemblies.tool_versions", lambda _: "another")
    with pytest.raises(pytest.fail.Exception):
        assemble_kept(compiled.ptx, "sm_80")


@pytest.mark.needs("ptxas")
def test_an_entry_of_another_form_is_none(kept: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    (compiled,) = ptxc.compile(ROW_SUM, target="sm_80")
    first = assemble_kept(compiled.ptx, "sm_80")
    (entry,) = [entry for entry in kept.entries() if entry.kind == "cubin"]
    value = kept.read(entry)
    assert value is not None
    for used in value.facts["kernels"].values():
        used["color"] = 1
    kept.put("cubin", entry.key, value)
    assert assemble_kept(compiled.ptx, "sm_80").cubin == first.cubin
    monkeypatch.setattr("ptxc.store.assemblies.SCHEMA", "another")
    monkeypatch.setattr("ptxc.store.assemblies.assemble", lambda *_, **__: pytest.fail("it is unknown"))
    with pytest.raises(pytest.fail.Exception):
        assemble_kept(compiled.ptx, "sm_80")


def test_a_value_that_cannot_be_read_is_made_again(kept: Store) -> None:
    def read(value: dict[str, int]) -> int:
        return value["a"]

    key = digest("x")
    assert kept.find("json", key, lambda: {"b": 1}) == {"b": 1}
    assert kept.find("json", key, lambda: {"a": 2}, read=read) == 2
    assert kept.find("json", key, lambda: {"a": 3}, read=read) == 2


@pytest.mark.needs("ptxas")
def test_a_refusal_is_not_kept(kept: Store) -> None:
    for _ in range(2):
        with pytest.raises(ToolchainError):
            assemble_kept("no ptx", "sm_80")
    assert not list(kept.entries())


def test_only_a_compilation_that_is_watched_keeps_its_ir() -> None:
    (plain,), (watched,) = ptxc.compile(ROW_SUM, cache=False), ptxc.compile(ROW_SUM, verify_each=True)
    assert not isinstance(plain.ir, Kernel)
    assert isinstance(watched.ir, Kernel)
    assert format_kernel(plain.kernel) == format_kernel(watched.kernel)


def test_a_compilation_leaves_the_garbage_collector_nothing() -> None:
    node, graph = kernel(ROOT / "golden" / "softmax_rows" / "kernel.ir.json")  # the blocks of loops hold each other
    options = Options(cache=False)
    compile_kernel(node, graph, options)
    gc.collect()
    assert compile_kernel(node, graph, options).ptx
    assert gc.collect() == 0
