"""The memory of a run, the launches that it is made for, and comparing what they leave."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import ROOT
from kernel_ir import Load, Write, tile, var
from reference_lab import Node, floats, graph_of, prepared

import ptxc
from ptxc.errors import InputError, UnsupportedError, UsageError
from ptxc.launch import Launch, LaunchParameter, RuntimeInteger
from ptxc.reference import buffers
from ptxc.reference.buffers import DTYPES, Problem, decoded, dtype_of, encoded, extents, integers_of, problem_of
from ptxc.reference.compare import Difference, Tolerance, compare
from ptxc.reference.execution import Settings, execute, load
from ptxc.reference.sample import Sample
from ptxc.reference.steps import Step, in_order, read_steps, steps_of


def step(entry: str = "k", *parameters: LaunchParameter, grid: Any = 1, zero: tuple[str, ...] = (),
         runtime: tuple[RuntimeInteger, ...] = ()) -> Step:  # fmt: skip
    return Step(entry, Launch((grid, 1, 1), (32, 1, 1), 0, 0, parameters, runtime, zero))


def buffer(name: str, role: str = "input", dtype: str = "f32", shape: tuple[Any, ...] = (4,), value: Any = None) -> Any:
    return LaunchParameter(name, role, "u64", dtype, shape, value)


def problem(*parameters: LaunchParameter, seed: int = 0, given: Any = None, **sizes: int) -> Problem:
    return problem_of([step("k", *parameters)], sizes, given or {}, seed)


# ------------------------------------------------------------------------------------------------ runtime integers

N = RuntimeInteger("n", (("x", 0), ("w", 1)))


def test_sizes_are_chosen_taken_from_shapes_or_the_default() -> None:
    steps = [step("k", runtime=(N,))]
    assert integers_of(steps, {"n": 7}, {})["n"].value == 7
    assert integers_of(steps, {}, {"w": np.zeros((2, 9))})["n"] == (buffers.Integer(9, "dimension 1 of w"))
    assert integers_of(steps, {}, {})["n"] == buffers.Integer(128, "the default")
    assert integers_of([step("k", runtime=(RuntimeInteger("i", (), serial=3),))], {}, {}) == {}


@pytest.mark.parametrize(
    ("chosen", "given", "message"),
    [
        ({"m": 7}, {}, "the kernel has no runtime integer 'm'; it has n"),
        ({"n": 7}, {"x": np.zeros(8)}, r"n is 7 \(as chosen\) and 8 \(dimension 0 of x\)"),
        ({}, {"x": np.zeros(8), "w": np.zeros((1, 9))}, r"n is 8 \(dimension 0 of x\) and 9 \(dimension 1 of w\)"),
    ],
)
def test_sizes_that_contradict(chosen: dict[str, int], given: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        integers_of([step("k", runtime=(N,))], chosen, given)


def test_a_kernel_of_fixed_sizes_has_none() -> None:
    with pytest.raises(UsageError, match="all its sizes are fixed"):
        integers_of([step()], {"n": 1}, {})


def test_extents_are_expressions() -> None:
    assert extents(["((n + 31) / 32)", 2], {"n": 33}) == (2, 2)
    assert extents(["(" * 1900 + "n" + " + 1)" * 1900], {"n": 33}) == (1933,)
    for odd in ("m + 1", "n +", "n / 0"):
        with pytest.raises(UsageError, match="cannot be computed"):
            extents([odd], {"n": 1})


# ---------------------------------------------------------------------------------------------------------- arrays


@pytest.mark.parametrize("dtype", DTYPES)
def test_random_inputs_depend_on_the_name_and_the_seed_alone(dtype: str) -> None:
    x, y = buffer("x", dtype=dtype, shape=(64,)), buffer("y", dtype=dtype, shape=(64,))
    one = problem(x, y).begin
    assert one["x"].dtype == DTYPES[dtype]
    assert np.array_equal(one["x"], problem(buffer("x", dtype=dtype, shape=(8, 8))).begin["x"].reshape(-1))
    assert not np.array_equal(one["x"], one["y"])
    assert not np.array_equal(one["x"], problem(x, seed=1).begin["x"])
    if dtype[0] == "i":
        assert set(one["x"].tolist()) == {0, 1, 2, 3}
    if dtype[0] == "u":
        assert one["x"].max() > np.iinfo(DTYPES[dtype]).max // 2
    numbers = decoded(one["x"], dtype).astype(float)
    assert np.isfinite(numbers).all()


def test_a_huge_input_is_random_at_its_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buffers, "DENSE", 100)
    monkeypatch.setattr(buffers, "_ENDS", 10)
    x = problem(buffer("x", shape=(200,))).begin["x"]
    assert (x[10:190] == 0).all()
    assert (x[:10] != 0).all()
    assert (x[190:] != 0).all()


@pytest.mark.parametrize(
    ("value", "expected"), [(2.5, 2.5), (3, 3), ("n * 2", 10), ("inf", np.inf), ("-inf", -np.inf), ("nan", np.nan)]
)
def test_constants(value: Any, expected: float) -> None:
    made = problem(buffer("c", "constant", shape=(1,), value=value), n=5)
    assert np.array_equal(made.begin["c"], np.array([expected], np.float32), equal_nan=True)
    assert made.origins == {"c": "constant"}
    given = problem(buffer("c", "constant", shape=(1,), value=value), given={"c": np.array([7.0])}, n=5)
    assert given.begin["c"].tolist() == [7]
    assert given.origins == {"c": "given"}


def test_a_constant_without_a_value_must_be_given() -> None:
    with pytest.raises(UsageError, match="the constant 'c' has no value; give it with the inputs"):
        problem(buffer("c", "constant"))


@pytest.mark.parametrize(
    ("dtype", "given"),
    [
        ("f32", np.arange(4.0)), ("f64", np.arange(4, dtype=np.float32)), ("i32", np.arange(4)), ("f32", np.arange(4)),
        ("bf16", np.arange(4.0)), ("bf16", encoded(np.arange(4.0), "bf16")), ("bool", np.array([True] * 4)),
        ("f32", np.arange(8, dtype=np.float32)[::2] / 2),
    ],
)  # fmt: skip
def test_given_arrays_become_the_buffers_type(dtype: str, given: Any) -> None:
    array = problem(buffer("x", dtype=dtype), given={"x": given}).begin["x"]
    assert array.dtype == DTYPES[dtype]
    assert array.flags.c_contiguous
    expected = [1] * 4 if dtype == "bool" else [0, 1, 2, 3]
    assert decoded(array, dtype).tolist() == expected


@pytest.mark.parametrize(
    ("dtype", "given", "message"),
    [
        ("f32", np.zeros(5), r"the array for 'x' has the shape \[5\], not \[4\]"),
        ("i32", np.zeros(4), "has the type float64, which does not become i32; convert it to int32"),
        ("bf16", np.zeros(4, np.int32), "has the type int32, which does not become bf16; give numbers, or the bits"),
        ("f32", np.array(["a"] * 4), "which does not become f32"),
    ],
)
def test_given_arrays_that_do_not_fit(dtype: str, given: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        problem(buffer("x", dtype=dtype), given={"x": given})


def test_arrays_that_no_kernel_has() -> None:
    with pytest.raises(UsageError, match="no kernel has a buffer 'z'; buffers are x"):
        problem(buffer("x"), given={"z": np.zeros(4)})


def test_kernels_that_declare_a_buffer_differently() -> None:
    steps = [step("a", buffer("t", "output")), step("b", buffer("t", shape=(2, 2)))]
    with pytest.raises(UsageError, match=r"'t' is f32\[4\] for one kernel and f32\[2, 2\] for another"):
        problem_of(steps, {}, {})


def test_what_a_kernel_zeroes_for_another_is_as_that_declares_it() -> None:
    steps = [step("a", buffer("acc", "zero", "i32")), step("b", buffer("acc", "output", shape=(2, 2)))]
    assert problem_of(steps, {}, {}).buffers["acc"].shape == (2, 2)
    assert problem_of(steps[:1], {}, {}).buffers["acc"].dtype == "i32"


def test_unknown_element_types() -> None:
    with pytest.raises(UnsupportedError, match="buffers of type 'f16x2' are not run yet"):
        dtype_of("f16x2")


@pytest.mark.parametrize("dtype", DTYPES)
def test_outputs_tell_what_was_never_written(dtype: str) -> None:
    made = problem(buffer("x", dtype=dtype), buffer("y", "output", dtype))
    arrays = made.arrays()
    assert not arrays["x"].flags.writeable
    y = arrays["y"]
    assert not made.is_written("y", y).any()
    y[1] = decoded(y, dtype)[1] if dtype == "f32" else 0
    y[2] = encoded(np.array([np.nan]), dtype)[0] if dtype[-2:] in ("16", "32", "64") and dtype[0] in "fb" else 1
    assert made.is_written("y", y).tolist()[2:] == [True, False]


def test_what_is_added_to_begins_as_zeros_and_what_is_given_as_it_is() -> None:
    steps = [step("k", buffer("y", "output"), buffer("z", "output"), zero=("y",))]
    made = problem_of(steps, {}, {"z": np.arange(4.0)})
    arrays = made.arrays()
    assert arrays["y"].tolist() == [0] * 4
    assert arrays["z"].tolist() == [0, 1, 2, 3]
    assert made.is_written("y", arrays["y"]).all()
    assert made.is_written("z", arrays["z"]).all()
    arrays["z"][0] = 9
    assert made.begin["z"][0] == 0


# ----------------------------------------------------------------------------------------------------------- steps


def test_writers_come_before_readers_and_zeroing_before_adding() -> None:
    zero, add = step("zero", buffer("acc", "zero")), step("add", buffer("t"), buffer("acc", "output"))
    first, last = step("first", buffer("t", "output")), step("last", buffer("acc"))
    for given in ([last, add, first, zero], [zero, first, add, last], [add, zero, last, first]):
        names = [item.entry for item in in_order(given)]
        assert names.index("zero") < names.index("add") < names.index("last")
        assert names.index("first") < names.index("add")
    assert [item.entry for item in in_order([step("b"), step("a")])] == ["b", "a"]


def test_kernels_that_need_one_another() -> None:
    steps = [step("a", buffer("x"), buffer("y", "output")), step("b", buffer("y"), buffer("x", "output"))]
    with pytest.raises(InputError, match="the kernels a and b each need what the other writes"):
        in_order(steps)


def test_parameters_that_cannot_be_passed_yet() -> None:
    with pytest.raises(UnsupportedError, match="k: parameter 'm' is of the kind 'surface', which is not run yet"):
        in_order([step("k", buffer("m", "surface"))])
    description = {**GOOD, "parameters": [{"name": "m", "role": "surface"}]}
    with pytest.raises(UnsupportedError, match="'surface'"):
        read_steps(json.dumps(description))


def test_a_tensor_map_must_be_described() -> None:
    with pytest.raises(InputError, match="k: nothing says what the tensor map 'm' describes"):
        in_order([step("k", buffer("m", "tensor_map"))])


@pytest.mark.parametrize("name", ["row_sum_dynamic", "sum_split_atomic", "scalar_add", "matmul_pipeline_raster"])
def test_a_launch_description_reads_back(name: str) -> None:
    steps = steps_of(ptxc.compile(ROOT / "golden" / name / "kernel.ir.json"))
    text = json.dumps({"kernels": [{"name": item.entry, **item.launch.to_dict()} for item in steps]})
    assert read_steps(text) == steps
    alone = json.dumps({"name": steps[0].entry, **steps[0].launch.to_dict()})
    assert read_steps(alone) == steps[:1]


GOOD: dict[str, Any] = {
    "name": "k",
    "grid": [1, 1, 1],
    "block": [32, 1, 1],
    "parameters": [],
    "runtime": [],
    "zero": [],
}

MAP: dict[str, Any] = {
    "name": "m", "buffer": "a", "data_type": "FLOAT16", "dims": [4, 4], "strides": [8], "box": [4, 4],
    "element_strides": [1, 1], "swizzle": "NONE",
}  # fmt: skip


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "the launch description is no JSON"),
        ("[" * 100_000, "the launch description is no JSON"),
        ("[]", r"kernels\[0\]: an object is needed here"),
        ('{"kernels": []}', "lists no kernels"),
        ('{"kernels": 1}', "lists no kernels"),
        ({"name": 1}, r"kernels\[0\].name: text is needed here"),
        ({"grid": []}, r"kernels\[0\].grid: 3 numbers of at least 0, or expressions, are needed here"),
        ({"grid": [1, 1, 1, 1]}, "3 numbers of at least 0"),
        ({"grid": [-1]}, "3 numbers of at least 0"),
        ({"grid": [1, 1]}, "3 numbers of at least 0"),
        ({"block": [32, 0, 1]}, r"kernels\[0\].block: 3 numbers of at least 1"),
        ({"grid": [1, "n", 1]}, "only the grid's first extent may be an expression"),
        ({"block": ["n", 1, 1]}, "only the grid's first extent may be an expression"),
        ({"block": None}, r"kernels\[0\].block: a list is needed here"),
        ({"dynamic_shared": "1"}, r"kernels\[0\].dynamic_shared: an integer is needed here"),
        ({"parameters": [1]}, r"kernels\[0\].parameters\[0\]: an object is needed here"),
        ({"parameters": [{"name": "x"}]}, r"kernels\[0\].parameters\[0\].role: text is needed here"),
        ({"parameters": [{"name": "x", "role": "input", "shape": [None]}]}, "numbers or expressions are needed here"),
        ({"parameters": [{"name": "x", "role": "input", "value": []}]}, "an integer or a number or text or null"),
        ({"runtime": [{"name": "n"}]}, r"kernels\[0\].runtime\[0\].sizes: a list is needed here"),
        ({"runtime": [{"name": "n", "sizes": [["x", True]]}]}, r"pairs \[buffer, dimension\] are needed here"),
        ({"runtime": [{"name": "n", "sizes": [["x", 0]]}]}, "there is no dimension 0 of a buffer 'x'"),
        ({"runtime": [{"name": "n", "sizes": [], "serial": -1}]}, r"runtime\[0\].serial: a number of at least 0"),
        ({"parameters": [{"name": "n", "role": "runtime", "type": "u32"}]}, "nothing says which size 'n' is"),
        ({"parameters": [{"name": "n", "role": "input", "type": "u8"}]}, r"type: 'u8' is none of u64, u32"),
        ({"zero": ["zz"]}, r"kernels\[0\].zero\[0\]: there is no buffer 'zz'"),
        ({"zero": [1]}, r"kernels\[0\].zero: a list of texts is needed here"),
        ({"target": 5}, r"kernels\[0\].target: text is needed here"),
        ({"target": "sm_1"}, r"kernels\[0\].target: "),
        ({"static_shared": -1}, r"kernels\[0\].static_shared: a number of at least 0"),
        ({"tensor_maps": [{**MAP, "dims": []}]}, r"tensor_maps\[0\].dims: 1 to 5 dimensions"),
        ({"tensor_maps": [{**MAP, "dims": [0, 4]}]}, r"tensor_maps\[0\].dims: 2 numbers of at least 1"),
        ({"tensor_maps": [{**MAP, "strides": []}]}, r"tensor_maps\[0\].strides: 1 numbers"),
        ({"tensor_maps": [{**MAP, "box": [0, 4]}]}, r"tensor_maps\[0\].box: 2 numbers of at least 1"),
        ({"tensor_maps": [{**MAP, "oob_fill": "x"}]}, r"tensor_maps\[0\].oob_fill: 'x' is none of NONE"),
        ({"tensor_maps": [{**MAP, "swizzle": "16B"}]}, r"tensor_maps\[0\].swizzle: '16B' is none of NONE, 32B"),
        ({"tensor_maps": [MAP]}, r"tensor_maps\[0\].buffer: there is no buffer 'a'"),
        ({"runtime": [{"name": "n", "sizes": [1]}]}, r"pairs \[buffer, dimension\] are needed here"),
    ],
)  # fmt: skip
def test_launch_descriptions_that_are_none(text: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_steps(text if isinstance(text, str) else json.dumps({**GOOD, **text}))


# ---------------------------------------------------------------------------------------------------------- samples


@pytest.mark.parametrize(
    ("text", "grid", "expected"),
    [
        ("all", (3, 2, 1), None),
        ("8", (3, 2, 1), None),
        ("2", (3, 2, 1), [(0, 0, 0), (2, 1, 0)]),
        ("3", (5, 1, 1), [(0, 0, 0), (2, 0, 0), (4, 0, 0)]),
        ("1", (5, 1, 1), [(0, 0, 0)]),
        ("4,1", (3, 2, 2), [(1, 1, 0), (1, 0, 0)]),
        ("7,", (3, 2, 2), [(1, 0, 1)]),
        ("0,", (3, 1, 1), [(0, 0, 0)]),
    ],
)
def test_samples_of_the_ctas(text: str, grid: tuple[int, int, int], expected: Any) -> None:
    assert Sample.parse(text).places(grid) == expected


@pytest.mark.parametrize("text", ["", "x", "0", "-1", "1,x", ",", "1.5"])
def test_texts_that_are_no_sample(text: str) -> None:
    with pytest.raises(UsageError, match="no CTAs are called"):
        Sample.parse(text)


def test_a_cta_twice() -> None:
    for text in ("1,1", "0,3,2,3"):
        with pytest.raises(UsageError, match=r"CTA [13] is given twice, '.*'; give each once"):
            Sample.parse(text)


def test_a_cta_outside_of_the_grid() -> None:
    with pytest.raises(UsageError, match="there is no CTA 9, the grid has 4"):
        Sample.parse("1,9").places((4, 1, 1))


# -------------------------------------------------------------------------------------------------------- comparing


def test_differences_are_relative_to_the_element_or_the_root_mean_square() -> None:
    expected = np.array([100.0, -100.0, 0.001, 100.0])
    got = expected + np.array([0, 1e-3, 1e-3, 0])
    found = compare("y", got.astype(np.float64), expected, "f32", Tolerance(2e-5))
    assert (found.elements, found.wrong, found.place) == (4, 0, (2,))
    assert found.absolute == pytest.approx(1e-3)
    assert found.relative == pytest.approx(1e-3 / np.sqrt(3e4 / 4), rel=1e-6)
    assert found.ulp == pytest.approx(1e-3 / 2.0**-33)
    assert compare("y", got, expected, "f32", Tolerance(5e-6)).wrong == 2
    assert compare("y", got, expected, "f32", Tolerance(5e-6, 1e-3)).wrong == 0
    assert compare("y", got, expected, "f32", Tolerance(5e-6), np.array([True, False, True, True])).wrong == 1


def test_the_nearer_of_two_expected_elements_counts() -> None:
    got, expected = np.array([1.0, 2.0, np.inf, np.nan, 5.0]), np.array([1.5, 2.0, 3.0, 4.0, 5.5])
    rounded = np.array([1.0, 9.0, np.inf, np.nan, 6.0])
    found = compare("y", got, expected, "f32", Tolerance(), rounded=rounded)
    assert (found.elements, found.wrong) == (5, 3)
    found = compare("y", np.array([2**24, 7]), np.array([2**24 + 1, 7]), "i32", Tolerance(), None, np.array([2**24, 8]))
    assert found.wrong == 0


@pytest.mark.parametrize(
    ("got", "expected", "wrong"),
    [
        (np.nan, np.nan, 0), (np.nan, 1, 1), (1, np.nan, 1), (np.inf, np.inf, 0), (np.inf, -np.inf, 1),
        (1, np.inf, 1), (np.inf, 1, 1), (0.0, -0.0, 0), (1e-30, 0, 0),
    ],
)  # fmt: skip
def test_numbers_that_are_not_finite(got: float, expected: float, wrong: int) -> None:
    found = compare("y", np.array([got, 1.0]), np.array([expected, 1.0]), "f32", Tolerance())
    assert found.wrong == wrong
    assert (found.relative == np.inf) == bool(wrong)


def test_integers_are_compared_exactly() -> None:
    a = np.array([2**62 + 1, 5], np.int64)
    assert compare("y", a, a - np.array([1, 0]), "i64", Tolerance()).wrong == 1
    assert compare("y", a, a - np.array([0, 1]), "i64", Tolerance()).wrong == 1
    assert compare("y", np.array([True]), np.array([False]), "bool", Tolerance()).wrong == 1
    assert compare("y", a, a, "i64", Tolerance()).wrong == 0
    found = compare("y", a, a + np.array([1, 0]), "i64", Tolerance())
    assert (found.got, found.expected) == (2**62 + 1, 2**62 + 2)
    assert isinstance(found.got, int)


def test_tolerances_are_those_of_the_type() -> None:
    one = np.ones(4)
    for dtype, good, bad in (("f32", 5e-6, 1e-4), ("f16", 1e-3, 1e-2), ("bf16", 1e-2, 0.1)):
        assert compare("y", one + good, one, dtype, Tolerance()).wrong == 0
        assert compare("y", one + bad, one, dtype, Tolerance()).wrong == 4
    mixed = Tolerance(types=frozenset({"f16", "f32", "i32"}))
    assert compare("y", one + 1e-3, one, "f32", mixed).wrong == 0
    assert compare("y", one + 1, one, "i32", mixed).wrong == 4
    small = encoded(np.array([2.0**-9, 2.0**-8]), "f8e4m3")
    assert compare("y", small, np.array([2.0**-8, 2.0**-8]), "f8e4m3", Tolerance()).wrong == 0
    assert compare("y", small, np.array([3 * 2.0**-9, 2.0**-8]), "f8e4m3", Tolerance()).wrong == 1
    bits = encoded(np.array([1.0, 2.0]), "bf16")
    found = compare("y", bits, np.array([1.0, 2.0 + 2**-6]), "bf16", Tolerance())
    assert (found.wrong, found.ulp) == (0, 1.0)


def test_pairs_of_four_bits_are_two_elements() -> None:
    """0x21 is 0.5 and 1: a neighbour is right, what is farther is not, be it a small difference of the bytes."""
    expected = np.array([[0x21, 0x77], [0x00, 0x12]], np.uint8)

    def found(*bytes: int) -> Difference:
        return compare("y", np.array(bytes, np.uint8).reshape(2, 2), expected, "f4e2m1x2", Tolerance())

    assert (found(*expected.flat).elements, found(*expected.flat).wrong) == (8, 0)
    assert found(0x31, 0x67, 0x08, 0x21).wrong == 0  # 1.5 for 1, 4 for 6, -0 for 0, 1 for 0.5
    far = found(0x21, 0x75, 0x04, 0x12)
    assert (far.wrong, far.place, far.got, far.expected) == (2, (1, 0), 2, 0)
    only = np.array([[True, False], [False, True]])
    held = np.where(only, expected, np.nan)
    assert compare("y", expected, held, "f4e2m1x2", Tolerance(), only).elements == 4


def test_arrays_of_another_shape_or_of_nothing() -> None:
    assert compare("y", np.zeros((2, 2)), np.zeros(4), "f32", Tolerance()).elements == 4
    assert compare("y", np.zeros(0), np.zeros(0), "f32", Tolerance()).elements == 0
    assert compare("y", np.zeros(2), np.ones(2), "f32", Tolerance(), np.zeros(2, np.bool_)).wrong == 0
    with pytest.raises(UsageError, match="'y' has 2 elements, 3 are expected"):
        compare("y", np.zeros(2), np.zeros(3), "f32", Tolerance())


# -------------------------------------------------------------------------------------------------------- execution


def _copies(count: int = 64) -> Any:
    body = [Load("a", "x", (var("i"),)), Write("y", (var("i"),), "a")]
    return graph_of({"x": (count,)}, Node(tile({"i": count}, body, 32), ("x",), {"y": (count,)}))


def test_kernels_run_one_after_the_other_on_the_same_memory() -> None:
    body = [Load("a", "y", (var("i"),)), Write("z", (var("i"),), "a")]
    first = Node(tile({"i": 64}, [Load("a", "x", (var("i"),)), Write("y", (var("i"),), "a")], 32), ("x",), {"y": (64,)})
    graph = graph_of({"x": (64,)}, first, Node(tile({"i": 64}, body, 32), ("y",), {"z": (64,)}, "last"))
    graph.nodes = {name: graph.nodes[name] for name in ("x", "z", "y")}
    x = floats(64)
    _, steps, made = prepared(graph, {"x": x})
    assert [item.entry for item in steps] == ["k", "last"]
    arrays, seen = made.arrays(), []
    texts = {kernel.name: kernel.ptx for kernel in ptxc.compile(graph)}
    launched = execute(load(texts), steps, arrays, {}, Settings(), lambda done, total: seen.append((done, total)))
    assert np.array_equal(arrays["z"], x)
    assert [(launch.grid, launch.ctas) for launch in launched] == [((2, 1, 1), 2)] * 2
    assert seen[-1] == (4, 4)


def test_a_launch_that_does_not_complete_is_the_last() -> None:
    _, steps, made = prepared(_copies())
    texts = {kernel.name: kernel.ptx for kernel in ptxc.compile(_copies())}
    settings = Settings(max_steps=1)
    launched = execute(load(texts), [*steps, *steps], made.arrays(), {}, settings)
    assert [launch.result.completed for launch in launched] == [False]


def test_an_integer_that_counts_launches() -> None:
    text = (
        ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry k(.param .u64 y, .param .u32 i)\n{\n"
        ".reg .b64 %d<3>; .reg .b32 %r<2>;\nld.param.u64 %d0, [y]; ld.param.u32 %r0, [i];\n"
        "mul.wide.u32 %d1, %r0, 4; add.u64 %d2, %d0, %d1; st.global.u32 [%d2], %r0; ret;\n}\n"
    )
    parameters = (buffer("y", "output", "i32", (3,)), LaunchParameter("i", "runtime", "u32"))
    counted = step("k", *parameters, runtime=(RuntimeInteger("i", (), serial=3),))
    made = problem_of([counted], {}, {})
    arrays = made.arrays()
    assert len(execute(load({"k": text}), [counted], arrays, {}, Settings())) == 3
    assert arrays["y"].tolist() == [0, 1, 2]


def test_entries_and_arguments_that_are_not_there() -> None:
    _, steps, made = prepared(_copies())
    (kernel,) = ptxc.compile(_copies())
    with pytest.raises(InputError, match="absent"):
        load({"absent": kernel.ptx})
    short = Step("k", Launch((1, 1, 1), (32, 1, 1), 0, 0, steps[0].launch.parameters[:1], (), ()))
    with pytest.raises(UsageError, match="k: 1 argument is given, the entry has 2 parameters"):
        execute(load({"k": kernel.ptx}), [short], made.arrays(), {}, Settings())


def test_the_packages_page_names_its_modules() -> None:
    import ptxc.reference

    files = {path.stem for path in Path(ptxc.reference.__path__[0]).glob("*.py")} - {"__init__"}
    missing = [name for name in files if name not in (ptxc.reference.__doc__ or "")]
    assert not missing
