"""Conversions of fp8 and fp4, exhaustively: by instructions where the target has them, else by bit arithmetic."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from emmy.compiler.dtype import F4_VALUES, decode_f8, encode_f4, encode_f8
from emmy.compiler.ir.expr import CastExpr
from kernel_ir import Accum, Assign, Init, Let, Load, Loop, Write, axis, dtype, lit, op, tile, var
from lowering_lab import AT, Array, compiled, kernel_graph, refused, run, run_emmy, to_bfloat

from ptxc.errors import InputError, UnsupportedError
from ptxc.frontend import minifloat
from ptxc.frontend.dtypes import E4M3_T, E5M2_T
from ptxc.sim.device import CpuDevice
from ptxc.toolchain import assemble

FP8 = ("f8e4m3", "f8e5m2")
#: Without and with instructions for fp8.
TARGETS = ("sm_70", "sm_80", "sm_89", "sm_90")
CODES = np.arange(256, dtype=np.uint8)


def numbers(finite: Array) -> Array:
    """What an f32 can be, seen from a format whose finite numbers these are: each of them, what lies halfway between
    two, the nearest numbers to those, and all that is special. In random order."""
    middle = np.sort(np.unique(np.abs(finite))).astype(np.float32)
    halfway = ((middle[1:].astype(np.float64) + middle[:-1]) / 2).astype(np.float32)
    beyond = middle[-1] + (middle[-1] - middle[-2]) * np.array([0.25, 0.5, 0.75, 1, 2], np.float32)
    exact = np.concatenate([middle, halfway, beyond])
    near = np.concatenate([exact, np.nextafter(exact, np.float32(np.inf)), np.nextafter(exact, np.float32(-np.inf))])
    special = np.array([0, np.inf, np.nan, 1e30, 3.4e38, 65504, 2**-24, 2**-149, 1e-40, 2**-126], np.float32)
    payloads = np.array([0x7F800001, 0x7FFFFFFF, 0x7FC12345], np.uint32).view(np.float32)
    random = np.random.default_rng(1)
    scattered = np.exp2(random.uniform(-30, 20, 2000)).astype(np.float32)
    positive = np.concatenate([near, special, payloads, scattered])
    both = np.concatenate([positive, (positive.view(np.uint32) | 0x80000000).view(np.float32)])
    return random.permutation(both)


def same(got: Array, want: Array) -> bool:
    """Whether the bits are the same."""
    kind = f"u{got.dtype.itemsize}"
    want = want if want.dtype.itemsize == got.dtype.itemsize else want.astype(got.dtype)
    return np.array_equal(got.view(kind), want.view(kind))


def decoding(kind: str) -> Any:
    """A kernel that decodes each of 256 codes into f32, f16, bf16 and i32."""
    stmts: list[Any] = [Load("a", "x", (AT,))]
    outputs = {}
    for to in ("f32", "f16", "bf16", "i32"):
        stmts += [Assign(to, f"from_{kind}", ("a",), dtype=dtype(to)), Write(f"y_{to}", (AT,), to)]
        outputs[f"y_{to}"] = ((256,), to)
    return kernel_graph(tile({"i": 256}, stmts), {"x": ((256,), kind)}, outputs)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kind", FP8)
def test_every_code_is_decoded(kind: str, target: str) -> None:
    got = run(decoding(kind), {"x": CODES}, target)
    want = decode_f8(CODES, kind)
    nan = np.isnan(want)
    canonical = np.where(nan, np.uint32(0x7FFFE000), want.view(np.uint32))
    assert same(got["y_f32"], canonical.view(np.float32))
    assert same(got["y_f16"], np.where(nan, 0x7FFF, want.astype(np.float16).view(np.uint16)).astype(np.uint16))
    assert same(got["y_bf16"][~nan], to_bfloat(want)[~nan])
    inside = ~nan & (np.abs(want) < 2**31)
    assert same(got["y_i32"][inside], np.trunc(want[inside]).astype(np.int32))


@pytest.mark.needs("nvcc")
@pytest.mark.parametrize("target", TARGETS[1:3])
@pytest.mark.parametrize("kind", FP8)
def test_every_code_is_decoded_as_nvcc_does(kind: str, target: str) -> None:
    mine, other = (runner(decoding(kind), {"x": CODES}, target) for runner in (run, run_emmy))
    for name in ("y_f32", "y_f16"):
        assert same(mine[name], other[name])


def encoding(kind: str, count: int, source: str = "f32") -> Any:
    """A kernel that encodes ``count`` floats."""
    encode, to = (f"to_{kind}", kind) if kind in FP8 else ("to_f4e2m1", "u8")
    stmts = [Load("a", "x", (AT,)), Assign("v", encode, ("a",), dtype=dtype(to)), Write("y", (AT,), "v")]
    return kernel_graph(tile({"i": count}, stmts), {"x": ((count,), source)}, {"y": ((count,), to)})


def encoded(values: Array, kind: str) -> Array:
    """The codes that Emmy's NumPy gives. A NaN, which it does not encode in fp4, becomes a zero of its sign."""
    if kind in FP8:
        with np.errstate(invalid="ignore"):
            return encode_f8(values, kind)
    nan = np.isnan(values)
    return np.where(nan, np.signbit(values) * 8, encode_f4(np.where(nan, 0, values))).astype(np.uint8)


def values_of(kind: str) -> Array:
    finite = decode_f8(CODES, kind) if kind in FP8 else np.array(F4_VALUES)
    return numbers(finite[np.isfinite(finite)])


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kind", [*FP8, "f4e2m1"])
def test_every_float_is_encoded(kind: str, target: str) -> None:
    values = values_of(kind)
    got = run(encoding(kind, len(values)), {"x": values}, target, sanitize=())
    wrong = np.flatnonzero(got["y"] != encoded(values, kind))
    assert not wrong.size, [(values[at], got["y"][at]) for at in wrong[:5]]


@pytest.mark.parametrize("target", TARGETS[1:3])
@pytest.mark.parametrize("kind", FP8)
def test_every_half_is_encoded(kind: str, target: str) -> None:
    halves = np.arange(0, 65536, 7, dtype=np.uint16).view(np.float16)
    got = run(encoding(kind, len(halves), "f16"), {"x": halves}, target, sanitize=())
    assert same(got["y"], encoded(halves, kind))


@pytest.mark.needs("nvcc")
@pytest.mark.parametrize("target", TARGETS[1:3])
@pytest.mark.parametrize("kind", [*FP8, "f4e2m1"])
def test_every_float_is_encoded_as_nvcc_does(kind: str, target: str) -> None:
    values = values_of(kind)
    graph = encoding(kind, len(values))
    mine = run(graph, {"x": values}, target, sanitize=())
    assert same(mine["y"], run_emmy(graph, {"x": values}, target)["y"])


@pytest.mark.needs("ptxas")
@pytest.mark.parametrize("target", ["sm_80", "sm_89", "sm_90", "sm_120a"])
@pytest.mark.parametrize("kind", FP8)
def test_ptxas_takes_the_conversions(kind: str, target: str) -> None:
    for graph in (decoding(kind), encoding(kind, 64), encoding(kind, 64, "f16"), encoding("f4e2m1", 64)):
        ptx = compiled(graph, target).ptx
        assert not assemble(ptx, target).warnings


@pytest.mark.parametrize("type", [E4M3_T, E5M2_T], ids=lambda type: type.name)
def test_constants_are_the_same(type: Any) -> None:
    values = values_of(type.name)[::23]
    assert [minifloat.bits_of(float(value), type) for value in values] == encode_f8(values, type.name).tolist()
    numbers = [minifloat.number(code, type) for code in range(-128, 256)]
    assert np.array_equal(numbers, decode_f8(np.arange(-128, 256) & 0xFF, type.name), equal_nan=True)


# ---------------------------------------------------------------------------------------------------- statements


@pytest.mark.parametrize("target", ["sm_80", "sm_89"])
@pytest.mark.parametrize("kind", FP8)
def test_statements_convert_at_their_edges(kind: str, target: str) -> None:
    """A store converts, a load gives the bits, a copy in fp8 decodes and encodes, a bitcast does nothing."""
    x = np.linspace(-9, 9, 64, dtype=np.float32)
    codes = np.random.default_rng(2).integers(0, 256, 256, dtype=np.uint8)
    stmts = [
        Load("a", "x", (AT,)),
        Write("stored", (AT,), "a"),
        *[
            Load(names=(f"c{at}", f"d{at}"), input="codes", index=(op("+", op("*", AT, 4), 2 * at),)) for at in (0, 1)
        ],
        Assign("b", "copy", ("c0",), dtype=dtype(kind)),
        Write("copied", (AT,), "b"),
        Write(output="moved", index=(op("*", AT, 2),), values=("d0", "c1")),
        Assign("bits", "bitcast", ("d1",), dtype=dtype("u8")),
        Write("bits_out", (AT,), "bits"),
        Let("w", CastExpr("f32", CastExpr(kind, var("a")))),
        Write("twice", (AT,), "w"),
        Let("one", lit(1.75), dtype=dtype(kind)),
        Write("ones", (AT,), "one"),
        Init("seed", 0.3, dtype=dtype(kind)),
        Assign("sum", "add", ("c0", "a"), dtype=dtype("f32")),
        Assign("more", "add", ("sum", "seed"), dtype=dtype("f32")),
        Write("sums", (AT,), "more"),
    ]  # fmt: skip
    outputs: dict[str, Any] = dict.fromkeys(("stored", "copied", "ones"), ((64,), kind))
    outputs |= {"moved": ((128,), kind), "bits_out": ((64,), "u8"), "twice": ((64,), "f32"), "sums": ((64,), "f32")}
    graph = kernel_graph(tile({"i": 64}, stmts), {"x": (64,), "codes": ((256,), kind)}, outputs)
    got = run(graph, {"x": x, "codes": codes}, target)
    c0, d0, c1, d1 = codes.reshape(64, 4).T
    assert same(got["stored"], encode_f8(x, kind))
    assert same(got["copied"], encode_f8(decode_f8(c0, kind), kind))
    assert same(got["moved"], np.stack([d0, c1], 1).reshape(-1))
    assert same(got["bits_out"], d1)
    assert same(got["twice"], decode_f8(encode_f8(x, kind), kind))
    assert (got["ones"] == encode_f8(np.array([1.75]), kind)[0]).all()
    seed = decode_f8(encode_f8(np.array([0.3]), kind), kind)[0]
    assert np.array_equal(got["sums"], (decode_f8(c0, kind) + x) + seed, equal_nan=True)


def test_packed_pairs_are_bytes() -> None:
    """For C, and so for all arithmetic, a packed pair of fp4 is an ``unsigned char``."""
    codes = np.arange(256, dtype=np.uint8)
    stmts = [
        Load("a", "x", (AT,)),
        Assign("v", "copy", ("a",), dtype=dtype("i32")),
        Write("y", (AT,), "v"),
        Write("z", (AT,), "a"),
        Assign("s", "add", ("a", "a")),
        Write("s_out", (AT,), "s"),
    ]
    outputs = {"y": ((256,), "i32"), "z": ((256,), "f4e2m1x2"), "s_out": (256,)}
    got = run(kernel_graph(tile({"i": 256}, stmts), {"x": ((256,), "f4e2m1x2")}, outputs), {"x": codes})
    assert same(got["y"], codes)
    assert same(got["z"], codes)
    assert np.array_equal(got["s_out"], codes * np.float32(2))


def test_pairs_of_halves() -> None:
    x = np.arange(128, dtype=np.float16).reshape(64, 2)
    stmts = [
        Load("a", "x", (AT,)),
        Init("three", 3.0, dtype=dtype("f16x2")),
        Assign("v", "multiply", ("a", "three"), dtype=dtype("f16x2")),
        Assign("w", "maximum", ("v", "a"), dtype=dtype("f16x2")),
        Write("y", (AT,), "w"),
    ]
    graph = kernel_graph(tile({"i": 64}, stmts), {"x": ((64,), "f16x2")}, {"y": ((64,), "f16x2")})
    for target in ("sm_70", "sm_80"):
        got = launched(graph, {"x": x.view(np.uint32)}, target)
        assert np.array_equal(got.view(np.float16).reshape(64, 2), x * 3)


def launched(graph: Any, arrays: dict[str, Array], target: str) -> Array:
    """The output of a kernel whose buffers NumPy has no type for."""
    kernel = compiled(graph, target)
    out = np.zeros(64, np.uint32)
    assert kernel.launch is not None
    module = CpuDevice().load(kernel.ptx)
    result = module.launch(kernel.name, [1, 1, 1], kernel.launch.block, [*arrays.values(), out])
    assert result.completed
    assert not result.findings
    return out


# -------------------------------------------------------------------------------------------------------- errors


def accumulating(kind: str) -> Any:
    loop = Loop(axis("j", 4), (Load("a", "x", (var("j"),)), Accum("acc", "a", "add", dtype=dtype(kind))))
    return kernel_graph(tile({"i": 64}, [loop, Write("y", (AT,), "acc")]), {"x": ((64,), kind)}, {"y": ((64,), kind)})


@pytest.mark.parametrize("kind", FP8)
def test_nothing_accumulates_in_fp8(kind: str) -> None:
    error = refused(lambda: accumulating(kind))
    assert isinstance(error, UnsupportedError)
    assert f"nothing computes in {kind}" in str(error)
    assert "acc" in error.statement


@pytest.mark.parametrize("to", ["f32", "i32", "f8e4m3", "bf16"])
def test_a_pair_of_halves_becomes_nothing_else(to: str) -> None:
    stmts = [Load("a", "x", (AT,)), Write("y", (AT,), "a")]
    graph = kernel_graph(tile({"i": 64}, stmts), {"x": ((64,), "f16x2")}, {"y": ((64,), to)})
    error = refused(lambda: graph)
    assert isinstance(error, UnsupportedError)
    assert f"a conversion of f16x2 to {to}" in str(error)


@pytest.mark.parametrize("kind", [*FP8, "f4e2m1x2"])
def test_nothing_adds_to_bytes_atomically(kind: str) -> None:
    stmts = [Load("a", "x", (AT,)), Write("y", (AT,), "a", atomic=True)]
    graph = kernel_graph(tile({"i": 64}, stmts), {"x": (64,)}, {"y": ((64,), kind)})
    assert f"there is no atomic addition of {kind}" in str(refused(lambda: graph))


def test_bits_of_another_size_are_no_fp8() -> None:
    stmts = [Load("a", "x", (AT,)), Assign("v", "bitcast", ("a",), dtype=dtype("f8e4m3")), Write("y", (AT,), "v")]
    graph = kernel_graph(tile({"i": 64}, stmts), {"x": (64,)}, {"y": ((64,), "f8e4m3")})
    assert isinstance(refused(lambda: graph), InputError)
