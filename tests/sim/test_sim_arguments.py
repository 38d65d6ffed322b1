"""Launches whose arguments are wrong: an error that says which one, and what to give; never anything else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from ptx_lab import HEADER, kernel

from ptxc import UsageError
from ptxc.device import device
from ptxc.launch import evaluate
from ptxc.sim.arguments import extents

#: ``x[thread] = n``, and a float that goes nowhere.
STORE = kernel("mul.wide.u32 %d9, %r0, 4; add.u64 %d9, %d9, %d0; st.global.u32 [%d9], %r51;", ["u64 x", "u32 n"])
LONG = list(range(100_000))


def refused(*args: Any, text: str = STORE, **options: Any) -> str:
    """What is said of a launch that cannot be."""
    launch: dict[str, Any] = {"grid": 1, "block": 32, **options}
    with pytest.raises(UsageError) as caught:
        device("cpu").load(text).launch("k", launch.pop("grid"), launch.pop("block"), *args, **launch)
    message = str(caught.value)
    assert len(message) < 250
    return message


def fitting() -> list[Any]:
    return [np.zeros(32, np.uint32), 7]


@pytest.mark.parametrize(("grid", "block"), [(2, 16), ((2,), [16]), (np.int64(2), np.array([16, 1])), ((2, 1, 1), 16)])
def test_extents_are_up_to_three_or_a_number(grid: Any, block: Any) -> None:
    x = np.zeros(32, np.uint32)
    result = device("cpu").load(STORE).launch("k", grid, block, [x, 7], sanitize=["memory"])
    assert not result.findings
    assert (x == 7).all()
    assert extents(5, "grid") == (5, 1, 1)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ((), "the grid () is not one to three extents; give grid=(x, y, z), or a number, which is along x"),
        ((1, 2, 3, 4), "the grid (1, 2, 3, 4) is not one to three extents"),
        ("3", "the grid '3' is not one to three extents"),
        (None, "the grid None is not one to three extents"),
        (2.0, "the grid 2.0 is not one to three extents"),
        ((2.5, 1), "the grid (2.5, 1) holds 2.5, which is no integer"),
        ((True,), "the grid (True,) holds True, which is no integer"),
        (
            ("(m + 3) / 4", 1, 1),
            "the grid's extent '(m + 3) / 4' is an expression over the runtime integers",
        ),
        ((0, 1, 1), "the grid (0, 1, 1) has an extent below 1; launch nothing, as CUDA does not either"),
        (-1, "the grid (-1, 1, 1) has an extent below 1"),
        ((1, 70000), "the grid (1, 70000, 1) is larger than any GPU takes; the most is (2147483647, 65535, 65535)"),
        (LONG, "the grid [0, 1, 2, 3, ...] is not one to three extents"),
    ],
)
def test_grids(value: Any, message: str) -> None:
    assert refused(fitting(), grid=value).startswith(message)


def test_blocks() -> None:
    assert refused(fitting(), block=0) == "the block (0, 1, 1) has an extent below 1; a block has at least one thread"
    assert "1025 threads are more than the 1024 that a CTA of this entry may have" in refused(fitting(), block=1025)
    assert "the block 'x' is not one to three extents" in refused(fitting(), block="x")


def test_as_many_arguments_as_parameters() -> None:
    x = np.zeros(32, np.uint32)
    assert refused([x]) == "1 argument is given, the entry has 2 parameters; they are x, n"
    assert refused([x, 1, 2]) == "3 arguments are given, the entry has 2 parameters; they are x, n"
    assert refused(x) == "args is of type ndarray; give a list, an argument for each parameter"
    assert refused(None) == "args is of type NoneType; give a list, an argument for each parameter"
    assert refused([1], text=f"{HEADER}.entry k() {{ ret; }}") == "1 argument is given, the entry has 0 parameters"


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (1 << 32, "4294967296 does not fit the parameter n of type .u32, which has 32 bits"),
        (-(1 << 31) - 1, "-2147483649 does not fit the parameter n of type .u32"),
        (2.0, "2.0 is no argument for the parameter n of type .u32; give an integer"),
        (np.float64(2), "np.float64(2.0) is no argument for the parameter n of type .u32"),
        ("7", "'7' is no argument for the parameter n of type .u32; give an integer"),
        (None, "None is no argument for the parameter n of type .u32"),
        (LONG, "[0, 1, 2, 3, ...] is no argument for the parameter n of type .u32; give an integer"),
        (np.zeros(1, np.uint32), "an array is given for the parameter n of type .u32, which is no pointer; give the"),
        (b"abc", "the parameter n of type .u32 has 4 bytes, its argument 3"),
    ],
)
def test_integers(value: Any, message: str) -> None:
    assert refused([np.zeros(32, np.uint32), value]).startswith(message)


@pytest.mark.parametrize("value", [-1, (1 << 32) - 1, np.int32(-1), np.uint32(0xFFFFFFFF), b"\xff" * 4])
def test_integers_that_fit(value: Any) -> None:
    x = np.zeros(32, np.uint32)
    assert device("cpu").load(STORE).launch("k", 1, 32, [x, value]).completed
    assert (x == 0xFFFFFFFF).all()


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (LONG, "[0, 1, 2, 3, ...] is no argument for the parameter x of type .u64; give a NumPy array, or a device"),
        (1.5, "1.5 is no argument for the parameter x of type .u64"),
        (1 << 64, "18446744073709551616 does not fit the parameter x of type .u64, which has 64 bits"),
        (np.zeros((64, 2))[:, 0], "the array for x is not contiguous; pass numpy.ascontiguousarray of it, which is a"),
        (np.array([None]), "the array for x holds elements of type object, which no GPU has; convert it"),
        (np.array(["a"]), "the array for x holds elements of type <U1, which no GPU has"),
        (np.zeros(32, ">f4"), "the array for x holds elements of type >f4, which no GPU has"),
    ],
)
def test_pointers(value: Any, message: str) -> None:
    assert refused([value, 1]).startswith(message)


def test_floats() -> None:
    text = kernel("", ["f32 s"])
    message = refused([1e300], text=text)
    assert message == "1e+300 is beyond the range of the parameter s of type .f32"
    assert refused(["x"], text=text) == "'x' is no argument for the parameter s of type .f32; give a number"
    assert device("cpu").load(text).launch("k", 1, 1, [float("inf")]).completed


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shared": -1}, "shared, the bytes of dynamic shared memory, is -1; give an integer, 0 to 232448"),
        ({"shared": 1.5}, "shared, the bytes of dynamic shared memory, is 1.5"),
        ({"shared": 1 << 30}, "shared, the bytes of dynamic shared memory, is 1073741824"),
        ({"max_steps": 0}, "max_steps is 0; give an integer, at least 1"),
        ({"sanitize": "memory"}, "sanitize is 'memory', where names of checks are needed; as a list; there are init"),
        ({"sanitize": 5}, "sanitize is 5, where names of checks are needed"),
        ({"sanitize": np.array(5)}, "sanitize is an array of 1 int64, where names of checks are needed"),
        ({"sanitize": ["memry"]}, "unknown check 'memry'; there are init, memory, race, sync"),
        ({"sanitize": [None, 3]}, "unknown check None"),
        ({"ctas": 3}, "ctas is 3; give the coordinates of each: ctas=[(0, 0, 0), (5, 0, 0)]"),
        ({"ctas": [0, (0, 0)]}, "CTA (0, 0, 0) is given twice; give each once"),
        ({"ctas": [(0.5, 0)]}, "(0.5, 0) is no CTA; give its coordinates: (x, y, z), or x alone"),
        ({"ctas": [(0, 0, 0, 0)]}, "(0, 0, 0, 0) is no CTA"),
        ({"ctas": [1]}, "CTA (1, 0, 0) is outside of the grid (1, 1, 1); they count from 0"),
        ({"ctas": [(0, -1)]}, "CTA (0, -1, 0) is outside of the grid"),
    ],
)
def test_options(options: dict[str, Any], message: str) -> None:
    assert refused(fitting(), **options).startswith(message)


def test_what_is_no_text_and_no_memory() -> None:
    cpu = device("cpu")
    with pytest.raises(UsageError, match=r"^PTX text is a str, not of type bytes; give kernel.ptx, or Path"):
        cpu.load(STORE.encode())  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"^memory for an array is a NumPy array, not \[0, 1, 2, 3, \.\.\.\]$"):
        cpu.address(LONG)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"^an entry's name is a str, not of type list; entries are k$"):
        cpu.load(STORE).launch(["k"], 1, 1, [])  # type: ignore[arg-type]
    with pytest.raises(
        UsageError, match=r"^there is no device of type ndarray; the CPU device is 'cpu', a GPU of NVIDIA's 'cuda'$"
    ):
        device(np.zeros(3))  # type: ignore[call-overload]


def test_a_read_only_array_is_a_read_only_buffer() -> None:
    module, x = device("cpu").load(STORE), np.zeros(32, np.uint32)
    x.flags.writeable = False
    (finding,) = module.launch("k", 1, 32, [x, 7], sanitize=["memory"]).findings
    assert finding.message == "write to x, which is read-only"
    assert not x.any()
    x.flags.writeable = True
    assert not module.launch("k", 1, 32, [x, 7], sanitize=["memory"]).findings
    assert (x == 7).all()


def test_a_launch_that_was_refused_leaves_nothing_behind() -> None:
    """What was bound for it is gone: its arrays are not among the buffers of the next launch."""
    cpu = device("cpu")
    module, x = cpu.load(STORE), np.zeros(32, np.uint32)
    with pytest.raises(UsageError):
        module.launch("k", 1, 32, [x, "seven"])  # type: ignore[list-item]
    assert cpu._memory.count == 0


@pytest.mark.parametrize("before", [True, False])
def test_an_access_outside_names_the_buffer_before_it(before: bool) -> None:
    """Of three buffers the one whose end, or whose start, the address is nearest behind; by its parameter's name."""
    cpu = device("cpu")
    module = cpu.load(kernel("add.u64 %d9, %d1, 128; st.global.u32 [%d9], 1;", ["u64 x", "u64 y", "u64 z"]))
    arrays = [np.zeros(32, np.uint32) for _ in range(3)]
    if before:
        for array in reversed(arrays):
            cpu.address(array)
    (finding,) = module.launch("k", 1, 1, arrays, sanitize=["memory"]).findings
    assert finding.message.endswith("outside of every global variable: 128 bytes from the start of y, which has 128")


def test_an_array_that_is_given_twice_has_the_first_name() -> None:
    module = device("cpu").load(kernel("add.u64 %d9, %d1, 128; st.global.u32 [%d9], 1;"))
    x = np.zeros(32, np.uint32)
    (finding,) = module.launch("k", 1, 1, [x, x], sanitize=["memory"]).findings
    assert finding.message.endswith("128 bytes from the start of x, which has 128")


def test_expressions() -> None:
    assert evaluate("(m + 3) / 4", {"m": 6}) == 2
    for expression, integers, message in (
        ("(m + 3) / 4", {}, "the extent '(m + 3) / 4' needs the runtime integer 'm'; give it in `integers` (none is"),
        ("m + n", {"m": 1}, "the extent 'm + n' needs the runtime integer 'n'; give it in `integers` (m=1 is given)"),
        ("m +", {"m": 1}, "'m +' is no expression over {'m': 1}: unexpected end"),
        ("4 / m", {"m": 0}, "'4 / m' is no expression over {'m': 0}: "),
        ("f(m)", {"m": 0}, "'f(m)' is no expression over {'m': 0}: "),
    ):
        with pytest.raises(UsageError) as caught:
            evaluate(expression, integers)
        assert str(caught.value).startswith(message)
