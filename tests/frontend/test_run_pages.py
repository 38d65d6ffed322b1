"""`ptxc run` and `ptxc verify` of kernels with paged buffers and indirect inputs."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kernel_ir import Assign, Load, Write, op, tile
from lowering_lab import AT, LOAD, compiled, kernel_graph
from test_lower_pages import paged_graph

from ptxc.cli import main
from ptxc.errors import CompileError
from ptxc.reference.buffers import problem_of
from ptxc.reference.execution import Settings, execute, load
from ptxc.reference.steps import Step, read_steps

CHECKS = frozenset({"memory", "race", "init", "sync"})

#: Whether one page holds all, the axis, whether a position says where writing begins, whether two elements at once.
CASES = [
    (whole, axis, start, vector)
    for whole, axis, start in [
        (False, 0, False),
        (True, 0, False),
        (False, 1, False),
        (False, 0, True),
        (True, 0, True),
    ]
    for vector in (False, True)
]


def indirect_graph() -> Any:
    """``y = x + z`` backwards, where ``x`` is one of several."""
    body = [LOAD, Load("b", "z", (op("-", 63, AT),)), Assign("s", "add", ("a", "b")), Write("y", (AT,), "s")]
    inputs, hints = {"x": (64,), "z": (64,)}, {"cuda.indirect_inputs": ["x"]}
    return kernel_graph(tile({"i": 64}, body), inputs, {"y": (64,)}, hints=hints)


def saved(graph: Any, path: Path) -> str:
    path.write_text(json.dumps(graph.to_dict(), default=str))
    return str(path)


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    """A command's exit status and what it printed."""

    def run(*args: object) -> tuple[int, str]:
        status = main([str(arg) for arg in args])
        out, err = capsys.readouterr()
        return status, out + err

    return run


Said = Callable[..., tuple[int, str]]


@pytest.mark.parametrize(("whole", "axis", "start", "vector"), CASES)
def test_paged_buffers_are_right(whole: bool, axis: int, start: bool, vector: bool, said: Said, tmp_path: Path) -> None:
    path = saved(paged_graph(whole, axis, start, vector), tmp_path / "k.json")
    status, out = said("verify", path, "--no-nvcc", "--rtol", "0")
    assert (status, out.splitlines()[-1].partition(";")[0]) == (0, "right")
    for at in (0, 4, 5, 13) if start else ():
        np.savez(tmp_path / "in.npz", at=np.array([at]))
        assert said("run", path, "--inputs", tmp_path / "in.npz")[0] == 0


@pytest.mark.needs("nvcc")
@pytest.mark.parametrize(
    "graph", [paged_graph(*CASES[0]), paged_graph(*CASES[4]), paged_graph(*CASES[7]), indirect_graph()]
)
def test_nvccs_ptx_takes_the_same_tables(graph: Any, said: Said, tmp_path: Path) -> None:
    status, out = said("verify", saved(graph, tmp_path / "k.json"))
    assert (status, out.splitlines()[-1].partition(";")[0]) == (0, "right")
    assert out.count("ptxc, nvcc") == 1
    assert "not counted" not in out


def test_indirect_inputs_are_right(said: Said, tmp_path: Path) -> None:
    status, out = said("verify", saved(indirect_graph(), tmp_path / "k.json"), "--no-nvcc")
    assert (status, out.splitlines()[-1].partition(";")[0]) == (0, "right")


@pytest.mark.needs("nvcc")
def test_a_start_that_the_kernel_does_not_list(said: Said, tmp_path: Path) -> None:
    """Then it is a parameter behind the outputs."""
    graph = paged_graph(False, 0, True, False)
    node = graph.nodes["y"]
    node.inputs = [name for name in node.inputs if name != "at"]
    launch = compiled(graph).launch
    assert launch is not None
    (start,) = (parameter for parameter in launch.parameters if parameter.role == "start")
    assert (start.name, start.type, start.dtype, start.shape) == ("at", "u64", "i64", (1,))
    status, out = said("verify", saved(graph, tmp_path / "k.json"))
    assert (status, out.splitlines()[-1].partition(";")[0]) == (0, "right")
    assert out.count("ptxc, nvcc") == 1


def test_the_launch_description_says_how_pages_lie() -> None:
    launch = compiled(paged_graph(False, 1, False, False)).launch
    assert launch is not None
    x, y = launch.to_dict()["parameters"]
    paging = {"axis": 1, "extent": 5, "shape": (6, 5), "start": None}
    assert (x["buffer"], x["shape"], x["paging"]) == ("x", (6, 20), {**paging, "written": False})
    assert (y["buffer"], y["paging"]["written"]) == ("y", True)
    launch = compiled(paged_graph(True, 0, True, False)).launch
    assert launch is not None
    assert launch.parameters[2].paging is not None
    assert launch.parameters[2].paging.start == "at"
    launch = compiled(indirect_graph()).launch
    assert launch is not None
    assert [(p.name, p.buffer, p.dtype, p.shape) for p in launch.parameters[:3]] == [
        ("x__table", "x", "f32", (64,)), ("x__sel", "x", "i32", ()), ("x__slot", "x", "", ()),
    ]  # fmt: skip


def test_a_wrong_index_of_a_page_is_outside_of_the_table(said: Said, tmp_path: Path) -> None:
    """As for a launcher whose pages are longer than those that the kernel was compiled for."""
    path = saved(paged_graph(False, 0, False, False), tmp_path / "k.json")
    ptx, launch = tmp_path / "k.ptx", tmp_path / "l.json"
    assert said("compile", path, "-o", ptx, "--launch-json", launch)[0] == 0
    assert said("run", ptx, "--launch", launch)[0] == 0
    text = launch.read_text()
    launch.write_text(text.replace('"extent": 5', '"extent": 10').replace("[5, 6]", "[10, 6]"))
    status, out = said("run", ptx, "--launch", launch)
    assert status == 1
    assert (
        "load of 8 bytes is outside of every global variable: 16 bytes from the start of x__pages, which has 16" in out
    )


def mutated(graph: Any, pattern: str, behind: str, **given: Any) -> tuple[list[str], dict[str, Any]]:
    """What is found, and all arrays, where ``behind`` follows the first line of PTX that the pattern matches."""
    kernel = compiled(graph)
    assert kernel.launch is not None
    text, count = re.subn(pattern, rf"\g<0> {behind}", kernel.ptx, count=1)
    assert count == 1
    steps = [Step(kernel.name, kernel.launch)]
    arrays = problem_of(steps, {}, given).arrays()
    (launched,) = execute(load({kernel.name: text}), steps, arrays, {}, Settings(CHECKS))
    return [finding.message for finding in launched.result.findings], arrays


def test_a_wrong_page_is_seen_in_the_numbers() -> None:
    pattern = r"add\.s64 (%rd\d+), %rd\d+, %rd\d+;"
    found, arrays = mutated(paged_graph(False, 0, False, False), pattern, r"xor.b64 \1, \1, 8;")
    assert not found
    swapped = arrays["x"].reshape(2, 2, 5, 6)[:, ::-1].reshape(20, 6)
    assert not (arrays["x"] == arrays["y"]).any()
    assert (swapped == arrays["y"]).all()


def test_a_wrong_candidate_is_seen_in_the_numbers() -> None:
    pattern = r"ld\.global(?:\.nc)?\.[bus]32 (%r\d+), .*;"
    found, arrays = mutated(indirect_graph(), pattern, r"xor.b32 \1, \1, 2;")
    assert not found
    assert np.isnan(arrays["y"]).all()
    (message,) = {
        message.partition(":")[2] for message in mutated(indirect_graph(), pattern, r"add.s32 \1, \1, 3;")[0][:1]
    }
    assert message == " 32 bytes from the start of x__table, which has 32"


def test_writes_beside_the_buffer_on_its_pages_are_found() -> None:
    graph, pattern = paged_graph(False, 0, True, False), r"cvt\.u32\.u64 (%r\d+), %rd\d+;"
    found, _ = mutated(graph, pattern, r"add.s32 \1, \1, 1;", at=np.array([7]))
    assert found == ["6 elements of y's pages are written that are no part of the buffer"]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"paging": {', '"pagging": {', "k: the parameter 'x__pages' does not say how long its pages are"),
        ('"axis": 0', '"axis": 2', "kernels[0].parameters[0].paging.axis: the buffer has no axis 2"),
        ('"extent": 5', '"extent": 0', "kernels[0].parameters[0].paging.extent: a page has at least one element"),
        ('"shape": [5, 6]', '"shape": [5]', "paging.shape: a page has as many extents as the buffer"),
        ('"written": false', '"written": 1', "paging.written: true or false is needed here"),
        ('"start": null', '"start": 3', "paging.start: text or null is needed here"),
    ],
)
def test_launch_descriptions_that_do_not_fit(old: str, new: str, message: str) -> None:
    launch = compiled(paged_graph(False, 0, False, False)).launch
    assert launch is not None
    text = json.dumps({"name": "k", **launch.to_dict()})
    assert old in text
    with pytest.raises(CompileError) as caught:
        read_steps(text.replace(old, new))
    assert message in str(caught.value)


@pytest.mark.parametrize("start", [-1, 5 * 4096, 10**12])
def test_starts_that_are_no_position(start: int, said: Said, tmp_path: Path) -> None:
    path = saved(paged_graph(False, 0, True, False), tmp_path / "k.json")
    np.savez(tmp_path / "in.npz", at=np.array([start]))
    status, out = said("run", path, "--inputs", tmp_path / "in.npz")
    assert status == 2
    assert f"k: the start 'at' is {start}; give a position from 0 to 20479" in out


@pytest.mark.parametrize("graph", [paged_graph(*CASES[4]), paged_graph(*CASES[7]), indirect_graph()])
def test_a_gpu_takes_the_same_tables(graph: Any, said: Said, tmp_path: Path, fake_gpu: Path) -> None:
    status, out = said("verify", saved(graph, tmp_path / "k.json"), "--no-nvcc", "--device", "cuda")
    assert (status, out.splitlines()[-1].partition(";")[0]) == (0, "right")
    assert "PTX on Fake GPU" in out
