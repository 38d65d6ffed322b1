"""Graphs of any stage are compiled: by Emmy's passes, under pins, by a recorded schedule, an operation a kernel."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from emmy.compiler import target as emmys
from emmy.compiler.context import Context
from emmy.compiler.graph import Graph
from emmy.compiler.ir.base import InputOp
from emmy.compiler.ir.elementwise import ElementwiseImpl
from emmy.compiler.ir.tensor.ir import ElementwiseOp
from emmy.compiler.pipeline import CUDA_PASSES, LOOP_PASSES, TENSOR_PASSES, TILE_PASSES, Pipeline
from emmy.compiler.pipeline.search.golden import evidence_scope
from emmy.compiler.pipeline.search.pins import pinned_knobs
from emmy_lab import golden_file, linear, tensor, two_layers

import ptxc
from ptxc.cli import main
from ptxc.compilation import Options
from ptxc.driver import kernels_of
from ptxc.errors import CompileError, InputError, UnsupportedError, UsageError
from ptxc.frontend.reader import kernel_nodes, read_graph
from ptxc.frontend.stages import _check_pins, _groups, _name_apart
from ptxc.plan import OnDevice, Plan, plan_of, run


def through(passes: list[str]) -> Graph:
    """A linear layer after some of Emmy's passes."""
    emmys.set_target((8, 0))
    try:
        with evidence_scope([]), pinned_knobs({"FAST_MATH": 0}):
            return Pipeline.build(passes).run(linear(), ctx=Context.from_target((8, 0)))
    finally:
        emmys.set_target(None)


def as_dict(graph: Graph) -> Any:
    return json.loads(json.dumps(graph.to_dict(), default=str))


@pytest.fixture(scope="module")
def expected() -> str:
    (kernel,) = ptxc.compile(linear(), target="sm_80")
    return kernel.ptx


@pytest.fixture(scope="module")
def loops() -> str:
    """The wire form of a linear layer as loops."""
    return json.dumps(through(LOOP_PASSES).to_wire())


# ------------------------------------------------------------------------------------------------------- stages


def test_every_stage_gives_the_same_kernel(expected: str) -> None:
    loops = through(LOOP_PASSES)
    sources = (as_dict(linear()), linear().to_wire(), as_dict(through(TENSOR_PASSES)), loops, as_dict(loops))
    for source in (*sources, loops.to_wire(), through(TILE_PASSES[:-1]), through(TILE_PASSES)):
        (kernel,) = ptxc.compile(source, target="sm_80")
        assert kernel.ptx == expected


def test_a_wire_form_is_read_by_a_process_that_has_imported_nothing_of_emmys(tmp_path: Path) -> None:
    for name, passes in (("tensor", TENSOR_PASSES), ("loop", LOOP_PASSES)):
        (tmp_path / f"{name}.json").write_text(json.dumps(through(passes).to_wire()))
        program = "import sys; from ptxc.frontend.reader import read_graph; read_graph(sys.argv[1])"
        done = subprocess.run(
            [sys.executable, "-P", "-c", program, str(tmp_path / f"{name}.json")], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr


def test_stages_that_are_not_compiled() -> None:
    with pytest.raises(UnsupportedError, match="TileOp is of Emmy's tile stage"):
        ptxc.compile(as_dict(through(TILE_PASSES)))
    cuda = through(CUDA_PASSES)
    with pytest.raises(UnsupportedError, match="the graph is CUDA already"):
        ptxc.compile(cuda)
    with pytest.raises(UnsupportedError, match="CudaOp is of Emmy's cuda stage"):
        ptxc.compile(as_dict(cuda))


def test_a_wire_form_names_no_function_of_numpy() -> None:
    wire = linear().to_wire()
    bad = {"id": "z", "op": "tensor.elementwise", "attrs": {"op": "load"}, "inputs": ["x"]}
    wire["nodes"].append({**bad, "outputs": [["z", "f32", [8, 16]]]})
    with pytest.raises(InputError, match="no elementwise operation 'load'"):
        ptxc.compile(wire)
    with pytest.raises(InputError, match="no program of Emmy's"):
        ptxc.compile({"nodes": [1], "inputs": [], "outputs": []})


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ("1/0", "ZeroDivisionError"),
        ("1%0", "ZeroDivisionError"),
        ("1<<(1<<33)", "shifts by something else than a number below 64"),
        ("1 << 2*8589934592", "shifts by something else"),
        ("a1 << 64", "shifts by something else"),
        (f"a1 + {1 << 64}", "a number of more than 64 bits"),
        (1 << 64, "an integer of 65 bits where 64 are enough"),
    ],
)
def test_a_wire_form_is_bounded(loops: str, index: str | int, message: str) -> None:
    whole = '"index": ["a0", "a1"]'
    assert whole in loops
    with pytest.raises(InputError) as raised:
        read_graph(json.loads(loops.replace(whole, f'"index": ["a0", {json.dumps(index)}]')))
    assert message in str(raised.value)
    read_graph(json.loads(loops.replace(whole, '"index": ["a0", "(a1 << 3) / 8"]')))


def test_a_wire_form_has_the_bounds_of_kernel_ir(loops: str) -> None:
    wire = json.loads(loops)
    wire["nodes"][0]["outputs"][0][2] = [1] * 65
    with pytest.raises(InputError, match="'w' has more than 64 dimensions"):
        read_graph(wire)
    with pytest.raises(InputError, match="more, or deeper, terms than ptxc reads"):
        read_graph({"nodes": [{}] * 1_300_000})


def test_emmy_is_left_as_it_was(expected: str) -> None:
    emmys.set_target((9, 0))
    try:
        assert ptxc.compile(linear(), target="sm_80")[0].ptx == expected
        assert emmys.compute_capability() == (9, 0)
    finally:
        emmys.set_target(None)


def test_what_the_environment_pins_has_no_part_in_it(expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"EMMY_WORK": "t64", "EMMY_KNOBS": "REDUCE=coop", "EMMY_TILE@n0": "no", "EMMY_X": "1"}.items():
        monkeypatch.setenv(name, value)
    before = dict(os.environ)
    assert ptxc.compile(linear(), target="sm_80")[0].ptx == expected
    assert dict(os.environ) == before


# ------------------------------------------------------------------------------------------------ pins and goldens


def test_pins(expected: str) -> None:
    (kernel,) = ptxc.compile(linear(), target="sm_80", pins={"WORK": "t64", "REDUCE": "coop"})
    assert kernel.launch is not None
    assert kernel.launch.block == (64, 1, 1)
    assert kernel.ptx != expected
    with pytest.raises(UsageError, match="Emmy does not take WORK=t32 realized t128"):
        _check_pins({"WORK": "t32"}, kernels_of(linear(), Options(target="sm_80")))
    for pins, message in (
        ({"REDUCE": "nonsense"}, "REDUCE cannot be 'nonsense'"),
        ({"WORK": "zz"}, "WORK cannot be 'zz'"),
        ({"FAST_MATH": "perhaps"}, "FAST_MATH cannot be 'perhaps'"),
        ({"FOO": "x"}, "Emmy has no knob 'FOO'"),
        ({"TIL": "x"}, "Emmy has no knob 'TIL'; did you mean TILE?"),
    ):
        with pytest.raises(UsageError) as raised:
            ptxc.compile(linear(), target="sm_80", pins=pins)
        assert message in str(raised.value)
    with pytest.raises(UsageError, match=r"leave out separate \(--separate\)"):
        ptxc.compile(kernels_of(linear(), Options(target="sm_80")), separate=True)
    for golden, realization, given in (
        ("", "x", "the realization (--realization)"),
        ("x", "", "the golden file (--golden)"),
        ("x", "x", "the golden file (--golden) and the realization (--realization)"),
    ):
        with pytest.raises(UsageError) as raised:
            ptxc.compile(kernels_of(linear(), Options(target="sm_80")), golden=golden, realization=realization)
        assert str(raised.value).endswith(f"leave out {given}")
    with pytest.raises(UsageError, match="Kernel IR, which has its schedule"):
        ptxc.compile(kernels_of(linear(), Options(target="sm_80")), pins={"WORK": "t64"})
    for options in ({"pins": "WORK=t64"}, {"golden": None}, {"realization": "x"}):
        with pytest.raises(UsageError):
            ptxc.compile(linear(), **options)
    with pytest.raises(InputError, match="cannot be of type NoneType"):
        ptxc.compile(None)


def test_a_recorded_schedule(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(golden_file("a100_sm80", "reduce.k2048", tmp_path))
    (kernel,) = ptxc.compile(None, target="sm_80", golden=path, realization="reduce.k2048")
    told = ["compile", "--golden", path, "--realization", "k2048", "--target", "sm_80"]
    assert main(told) == 0
    assert capsys.readouterr().out == kernel.ptx
    recorded = json.loads(Path(path).read_text())["rows"][0]["knobs"]
    (op,) = [node.op for node in kernel_nodes(kernels_of(None, Options("sm_80", golden=path, realization="k2048")))]
    assert {name: str(op.knobs[name]) for name in recorded} == recorded
    other = json.loads(Path(path).read_text())
    other["rows"][0]["knobs"]["WRK"] = "t64"
    odd = str(tmp_path / "odd.json")
    Path(odd).write_text(json.dumps(other))
    for more, message in (
        (["--realization", "nosuch"], "no realization is called 'nosuch'"),
        (["--golden", "absent.json"], "cannot read 'absent.json'"),
        (["--golden", __file__], "this is no golden file of Emmy's"),
        (["--pins", "WORK"], "'WORK' is no pin; give KNOB=VALUE"),
        (["--golden", odd], "the row 'reduce.k2048': Emmy has no knob 'WRK'; did you mean WORK?"),
        (["--realization", ""], "--realization: it is empty"),
    ):
        assert main([*told, *more]) == 2
        said = capsys.readouterr().err
        assert message in said
        assert said.count("\n") == 1


# ------------------------------------------------------------------------------- several kernels, and their plan


def test_groups_end_in_what_reduces() -> None:
    groups = _groups(two_layers(layers=1))
    ends = ("n1", "q", "k", "v", "a", "o", "r1", "n2", "u", "d", "r2")
    assert {group[-1] for group in groups} == {f"l0_{name}" for name in ends}
    along = {group[-1]: set(group) for group in groups}
    assert along["l0_a"] == {"l0_a", *(f"l0_{part}_{way}" for part in "qkv" for way in ("rows", "heads"))}
    assert along["l0_o"] == {"l0_a_rows", "l0_a_joined", "l0_o"}
    assert along["l0_d"] == {"l0_act", "l0_d"}


@pytest.fixture(scope="module")
def layers() -> tuple[Graph, ptxc.CompiledModule]:
    """Two layers, and what they become."""
    program = two_layers()
    return program, ptxc.compile_module(program, target="sm_80", separate=True)


def inputs_of(program: Graph) -> dict[str, Any]:
    random = np.random.default_rng(0)
    shapes = {name: program.nodes[name].output.shape for name in program.inputs}
    return {n: random.standard_normal([d.as_static() for d in shape], np.float32) for n, shape in shapes.items()}


def by_numpy(program: Graph, inputs: dict[str, Any]) -> dict[str, Any]:
    """Every value of a program, by its operations' NumPy forms in float64."""
    values = {name: array.astype(np.float64) for name, array in inputs.items()}
    for node_id in program.topological_order():
        node = program.nodes[node_id]
        if not isinstance(node.op, InputOp):
            values[node_id] = node.op.forward(*(values[name] for name in node.inputs))
    return values


def test_two_layers_are_executed_kernel_by_kernel(layers: tuple[Graph, ptxc.CompiledModule]) -> None:
    program, module = layers
    plan = module.plan
    assert plan is not None
    assert len(plan.steps) == len(module.kernels) == 22
    assert len({kernel.name for kernel in module.kernels}) == 22
    inputs = inputs_of(program)
    expected = by_numpy(program, inputs)
    got = run(plan, module.ptx, inputs, device=OnDevice("cpu", ("memory", "race", "init", "sync")), keep=True)
    assert plan.named("output") == ["l1_r2"]
    assert set(got) == {"l1_r2", *plan.named("temporary")}
    for name, array in got.items():
        assert np.allclose(array, expected[name].reshape(array.shape), rtol=1e-4, atol=1e-5), name
    assert list(run(plan, module.ptx, inputs)) == ["l1_r2"]


def test_a_plan_is_json(layers: tuple[Graph, ptxc.CompiledModule]) -> None:
    program, module = layers
    plan = module.plan
    assert plan is not None
    assert Plan.from_json(json.dumps(plan.to_dict())) == plan
    buffers = {buffer.name: buffer for buffer in plan.buffers}
    assert buffers["l0_u"].role == "temporary"
    assert buffers["l0_u"].bytes({}) == 4 * 12 * 4
    assert set(plan.named("input")) == set(program.inputs)
    assert {buffer.role for buffer in plan.buffers if buffer.value is not None} == {"constant"}
    written: set[str] = set(plan.named("input", "constant"))
    for step in plan.steps:
        assert written.issuperset(step.names("input", "constant"))
        written.update(step.names("output"))
    for bad in ('{"kernels": [{"name": "k", "grid": [1], "block": [1]}]}', "[]", "{"):
        with pytest.raises(InputError):
            Plan.from_json(bad)


def test_what_a_plan_needs(layers: tuple[Graph, ptxc.CompiledModule]) -> None:
    _, module = layers
    assert module.plan is not None
    with pytest.raises(UsageError, match="there is no array for 'x'"):
        run(module.plan, module.ptx, {})
    with pytest.raises(UsageError, match="there is no device 'abacus'"):
        run(module.plan, module.ptx, {}, device="abacus")


def test_the_command_line_runs_and_verifies_a_program(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, plan = tmp_path / "p.json", tmp_path / "plan.json"
    file.write_text(json.dumps(chain().to_wire()))
    told = [str(file), "--separate", "--target", "sm_80"]
    assert main(["compile", *told, "-o", str(tmp_path / "p.ptx"), "--launch-json", str(plan)]) == 0
    described = json.loads(plan.read_text())
    assert [buffer["role"] for buffer in described["buffers"]].count("temporary") == 1
    assert main(["run", str(tmp_path / "p.ptx"), "--launch", str(plan)]) == 0
    capsys.readouterr()
    assert main(["verify", *told, "--no-nvcc", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert {row["name"] for row in report["differences"]} == {"t", "y"}
    assert report["answers"]["reference"] == "Emmy's NumPy evaluation of the program, in float64"
    assert main(["run", *told]) == 0


def chain() -> Graph:
    """Two sums, one of the other: two kernels where they are separated, as both are read."""
    graph = Graph()
    for name in ("x", "z"):
        graph.add_node(InputOp(), [], tensor(name, 4, 8))
    graph.add_node(ElementwiseOp(ElementwiseImpl("add")), ["x", "z"], tensor("t", 4, 8))
    graph.add_node(ElementwiseOp(ElementwiseImpl("multiply")), ["t", "t"], tensor("s", 4, 8))
    graph.add_node(ElementwiseOp(ElementwiseImpl("add")), ["s", "t"], tensor("y", 4, 8))
    graph.inputs, graph.outputs = ["x", "z"], ["y"]
    return graph


def test_kernels_of_one_name_are_told_apart() -> None:
    graph = kernels_of(chain(), Options(target="sm_80", separate=True))
    first, second = kernel_nodes(graph)
    object.__setattr__(second.op, "name", first.op.name)
    _name_apart(graph)
    assert [kernel.op.name for kernel in kernel_nodes(graph)] == [first.op.name, f"{first.op.name}_2"]
    assert plan_of(graph, ptxc.compile(graph, target="sm_80")).named("temporary") == ["t"]


def test_only_programs_are_separated() -> None:
    with pytest.raises(CompileError, match="a graph of the loop stage is not separated"):
        ptxc.compile(through(LOOP_PASSES), separate=True)
