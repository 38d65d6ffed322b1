"""The elementary functions: accuracy, special values, instructions, and that ptxas takes them.

``benchmarks/ulp.py`` measures the same on more arguments; ``docs/accuracy.md`` has its table.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest
from evaluate import DOCUMENTED, Array, Function, fma, ulp_error
from numpy.typing import NDArray

from ptxc.codegen.ptx import needed_version, print_module
from ptxc.device import device
from ptxc.errors import UnsupportedError
from ptxc.frontend.math import Arithmetic, call, call_f16, call_f16x2, call_f64
from ptxc.ir import opcodes, verify
from ptxc.ir.builder import Builder
from ptxc.ir.kernel import Block, Kernel, Param
from ptxc.ir.text import format_instr
from ptxc.ir.types import B16, B32, B64, F32, F64, Type
from ptxc.ir.values import Mem, Sym, Value, real
from ptxc.passes import leave_ssa
from ptxc.target import parse_target
from ptxc.toolchain import assemble

PRECISE, FAST, NO_FMA = Arithmetic(), Arithmetic(fast=True), Arithmetic(fma=False)
INF, NAN = math.inf, math.nan

Doubles = NDArray[np.float64]


def f32(*values: float) -> NDArray[np.float32]:
    return np.array(values, dtype=np.float32)


def bit_patterns(step: int) -> NDArray[np.float32]:
    """Every so many of all f32."""
    return np.arange(0, 2**32, step, dtype=np.uint64).astype(np.uint32).view(np.float32)


def same(got: Array, want: Array) -> bool:
    """Whether both are the same values, zeros with the same sign; one NaN is like another."""
    signs = np.signbit(got) == np.signbit(want)
    return bool(np.array_equal(got, want, equal_nan=True) and np.all(signs | np.isnan(want)))


# ----------------------------------------------------------------------------------------------------------- accuracy

erf: Callable[[Doubles], Doubles] = np.vectorize(math.erf, otypes=[np.float64])


def sigmoid(x: Doubles) -> Doubles:
    return np.reciprocal(1 + np.exp(-x))


#: The function, its value in f64, and the bounds in ulp where the hardware rounds correctly and where it is as bad as
#: documented. Next to powers of two, where ulp halve, 2 ulp of ex2 may be 4.5 of the result.
UNARY: list[tuple[str, Callable[[Doubles], Doubles], float, float]] = [
    ("exp", np.exp, 1.1, 4.5),
    ("log", np.log, 1.0, 1.0),
    ("sin", np.sin, 1.6, 1.6),
    ("cos", np.cos, 1.6, 1.6),
    ("tanh", np.tanh, 1.4, 2.5),
    ("erf", erf, 1.2, 1.7),
    ("sigmoid", sigmoid, 2.5, 7.0),
]


@pytest.mark.parametrize(("name", "reference", "bound", "documented"), UNARY, ids=[row[0] for row in UNARY])
def test_error(name: str, reference: Callable[[Doubles], Doubles], bound: float, documented: float) -> None:
    function = Function(name)
    x = np.concatenate([bit_patterns(40009), np.linspace(-2, 2, 40001, dtype=np.float32)])
    if name == "sigmoid":  # below, its e**-x overflows and it is 0
        x = x[~(x < -88)]
    with np.errstate(all="ignore"):
        exact = reference(x.astype(np.float64))
    assert ulp_error(function(x), exact).max() <= bound
    for hardware in DOCUMENTED:
        assert ulp_error(function(x, hardware=hardware), exact).max() <= documented


def test_error_of_pow() -> None:
    random = np.random.default_rng(7)
    near_one = np.exp2(random.uniform(-1, 1, 60000)).astype(np.float32)
    anywhere = np.exp2(random.uniform(-149, 128, 60000)).astype(np.float32)
    x = np.concatenate([near_one, anywhere])
    with np.errstate(all="ignore"):
        y = (random.uniform(-152, 130, len(x)) / np.log2(x.astype(np.float64))).astype(np.float32)
        exact = np.power(x.astype(np.float64), y.astype(np.float64))
    function = Function("pow", 2)
    assert ulp_error(function(x, y), exact).max() <= 2.5
    for hardware in DOCUMENTED:
        assert ulp_error(function(x, y, hardware=hardware), exact).max() <= 5.0


def test_huge_angles() -> None:
    """Against pi in 100 digits: the reduction must be right where the last digit of x is many turns."""
    scale = 10**100

    def arctan_of_inverse(n: int) -> int:
        total, term = 0, scale // n
        for k in itertools.count(1, 2):
            if term == 0:
                return total
            total += term // k if k % 4 == 1 else -(term // k)
            term //= n * n
        raise AssertionError

    quarter = 2 * (4 * arctan_of_inverse(5) - arctan_of_inverse(239))
    random = np.random.default_rng(3)
    x = np.ldexp(random.uniform(1, 2, 400), random.integers(15, 128, 400)).astype(np.float32)
    # 16367173 * 2**72 is the f32 closest to a multiple of pi/2.
    x = np.concatenate([x, f32(16367173 * 2.0**72, 105615, np.nextafter(f32(105615)[0], f32(INF)[0]), 3.4e38)])
    x = np.concatenate([x, -x])
    sine, cosine = [], []
    for angle in (int(256 * float(value)) * scale // 256 for value in x):
        turns = (2 * angle + quarter) // (2 * quarter)
        rest = (angle - turns * quarter) / scale
        values = (math.sin(rest), math.cos(rest), -math.sin(rest), -math.cos(rest))
        sine.append(values[turns % 4])
        cosine.append(values[(turns + 1) % 4])
    assert ulp_error(Function("sin")(x), np.array(sine)).max() <= 1.6
    assert ulp_error(Function("cos")(x), np.array(cosine)).max() <= 1.6


def test_fast_errors() -> None:
    """What CUDA documents of its intrinsics, on hardware that rounds correctly."""
    x = np.linspace(-80, 80, 100001, dtype=np.float32)
    exact = x.astype(np.float64)
    assert np.all(ulp_error(Function("exp", 1, F32, FAST)(x), np.exp(exact)) <= 2 + np.floor(np.abs(1.173 * x)))
    large = np.linspace(2, 1e6, 100001, dtype=np.float32)
    assert ulp_error(Function("log", 1, F32, FAST)(large), np.log(large.astype(np.float64))).max() <= 3
    angles = np.linspace(-math.pi, math.pi, 100001, dtype=np.float32)
    assert np.abs(Function("sin", 1, F32, FAST)(angles) - np.sin(angles.astype(np.float64))).max() <= 2.0**-20
    assert ulp_error(Function("divide", 2, F32, FAST)(x, large), exact / large).max() <= 2


# ----------------------------------------------------------------------------------------------------- special values


@pytest.mark.parametrize(
    ("name", "x", "want"),
    [
        ("exp", (0.0, -0.0, INF, -INF, NAN, 1e-45, 89.0, -110.0), (1, 1, INF, 0, NAN, 1, INF, 0)),
        ("log", (1.0, 0.0, -0.0, INF, -INF, NAN, -1.0, -1e-45), (0.0, -INF, -INF, INF, NAN, NAN, NAN, NAN)),
        ("sin", (0.0, -0.0, INF, -INF, NAN, 1e-45, -1e-45), (0.0, -0.0, NAN, NAN, NAN, 1e-45, -1e-45)),
        ("cos", (0.0, -0.0, INF, -INF, NAN, 1e-45), (1, 1, NAN, NAN, NAN, 1)),
        ("tanh", (0.0, -0.0, INF, -INF, NAN, 1e-45, -1e-45, 3e38), (0.0, -0.0, 1, -1, NAN, 1e-45, -1e-45, 1)),
        ("erf", (0.0, -0.0, INF, -INF, NAN, 1e-45, 4.0, -4.0), (0.0, -0.0, 1, -1, NAN, 1e-45, 1, -1)),
        ("sigmoid", (0.0, INF, -INF, NAN, 100.0, -100.0), (0.5, 1, 0, NAN, 1, 0)),
        ("rsqrt", (0.0, -0.0, INF, -1.0, NAN, 4.0), (INF, -INF, 0, NAN, NAN, 0.5)),
        ("sqrt", (0.0, -0.0, INF, -1.0, NAN, 1e-45), (0.0, -0.0, INF, NAN, NAN, 3.743392e-23)),
        ("reciprocal", (0.0, -0.0, INF, -INF, NAN, 3e38), (INF, -INF, 0.0, -0.0, NAN, 3.333333e-39)),
        ("floor", (0.5, -0.5, -0.0, INF, NAN, 2.0**23), (0.0, -1, -0.0, INF, NAN, 2.0**23)),
        ("negative", (0.0, -0.0, 1.0, NAN, INF), (0.0, 0.0, -1, NAN, -INF)),
        ("relu", (NAN, -1.0, 2.0, -INF), (0.0, 0.0, 2, 0.0)),
    ],
)
def test_special_values(name: str, x: tuple[float, ...], want: tuple[float, ...]) -> None:
    got = Function(name)(f32(*x))
    if name == "relu":  # the sign of a zero is the machine's choice
        got = got + np.float32(0)
    assert same(got, f32(*want)), f"{name}{x} gave {got}"


def test_no_approximation_of_what_is_exact() -> None:
    """The special values do not hang on instructions that may be off."""
    for hardware in DOCUMENTED:
        assert same(Function("log")(f32(1, 0, INF, -1), hardware=hardware), f32(0, -INF, INF, NAN))
        assert same(Function("exp")(f32(0, INF, -INF), hardware=hardware), f32(1, INF, 0))
        assert same(Function("tanh")(f32(20, -0.0), hardware=hardware), f32(1, -0.0))
        assert same(Function("erf")(f32(9, -0.0), hardware=hardware), f32(1, -0.0))
        assert same(Function("pow", 2)(f32(5, 1, 0), f32(0, 7, 2), hardware=hardware), f32(1, 1, 0))


def test_special_values_of_pow() -> None:
    """Annex F of C99, which NumPy's f64 power follows, for every pair of these."""
    tiny, huge = 1e-45, 3.4028235e38
    values = [0.0, 1.0, 0.5, 2.0, 1.5, 3.0, tiny, huge, INF, 2.0**24, 2.0**24 - 1, 2.0**36, 1 - 2.0**-24, 1 + 2.0**-23]
    values += [-value for value in values] + [NAN]
    x, y = (f32(*column) for column in zip(*itertools.product(values, values)))
    with np.errstate(all="ignore"):
        exact = np.power(x.astype(np.float64), y.astype(np.float64))
        want = exact.astype(np.float32)
    got = Function("pow", 2)(x, y)
    special = ~np.isfinite(want) | (want == 0) | (exact == 1)
    assert same(got[special], want[special])
    assert ulp_error(got, exact).max() <= 2.5
    assert same(Function("pow", 2)(f32(-2, -2, 2), f32(3, 0.5, 10)), f32(-8, NAN, 1024))


# ---------------------------------------------------------------------------------------------------------------- f16


def halves(x: Array) -> Doubles:
    return x.view(np.float16).astype(np.float64)


@pytest.mark.parametrize("name", ["exp", "log", "sqrt", "rsqrt", "tanh", "reciprocal", "sigmoid", "erf", "sin"])
def test_error_of_f16(name: str) -> None:
    """All f16. The f32 result is rounded once, so it is off by half an ulp and the little that f32 was off."""
    references: dict[str, Callable[[Doubles], Doubles]] = {
        "exp": np.exp, "log": np.log, "sqrt": np.sqrt, "rsqrt": lambda x: 1 / np.sqrt(x), "tanh": np.tanh,
        "reciprocal": lambda x: 1 / x, "sigmoid": sigmoid, "erf": erf, "sin": np.sin,
    }  # fmt: skip
    x = np.arange(2**16).astype(np.uint16)
    with np.errstate(all="ignore"):
        exact = references[name](halves(x))
    function = Function(name, 1, B16)
    assert ulp_error(halves(function(x)), exact, digits=11).max() <= 0.505
    # The absolute 2**-22 that lg2 may be off shows next to log(1).
    bound = 0.76 if name == "log" else 0.505
    for hardware in DOCUMENTED:
        assert ulp_error(halves(function(x, hardware=hardware)), exact, digits=11).max() <= bound


def test_f16_division_is_rounded_correctly() -> None:
    random = np.random.default_rng(11)
    x, y = random.integers(0, 2**16, (2, 2**20)).astype(np.uint16)
    with np.errstate(all="ignore"):
        want = (halves(x) / halves(y)).astype(np.float16)
    assert same(Function("divide", 2, B16)(x, y).view(np.float16), want)


def test_special_values_of_f16() -> None:
    x = np.array([0.0, -0.0, INF, NAN, -1.0, 6e-8], dtype=np.float16).view(np.uint16)
    for name, want in {
        "negative": (0.0, 0.0, -INF, NAN, 1, -6e-8),
        "abs": (0.0, 0.0, INF, NAN, 1, 6e-8),
        "exp": (1, 1, INF, NAN, 0.36787944, 1),
        "log": (-INF, -INF, INF, NAN, NAN, -16.635532),
        "copy": (0.0, -0.0, INF, NAN, -1, 6e-8),
    }.items():
        got = Function(name, 1, B16)(x).view(np.float16)
        assert same(got, np.array(want, dtype=np.float16)), name


# ------------------------------------------------------------------------------------------------------- instructions


def instructions(name: str, arity: int, arithmetic: Arithmetic, type: Type = F32) -> list[str]:
    kernel = Function(name, arity, type, arithmetic).kernel
    return [format_instr(instr).partition(" = ")[2].partition(" ")[0] for instr in kernel.instrs() if instr.results]


@pytest.mark.parametrize(
    ("name", "precise", "no_fma", "fast"),
    [
        ("add", "add.f32", "add.rn.f32", "add.ftz.f32"),
        ("subtract", "sub.f32", "sub.rn.f32", "sub.ftz.f32"),
        ("multiply", "mul.f32", "mul.rn.f32", "mul.ftz.f32"),
        ("negative", "sub.f32", "sub.rn.f32", "sub.ftz.f32"),
        ("square", "mul.f32", "mul.rn.f32", "mul.ftz.f32"),
        ("fma", "fma.rn.f32", "fma.rn.f32", "fma.rn.ftz.f32"),
        ("divide", "div.rn.f32", "div.rn.f32", "div.approx.ftz.f32"),
        ("divide_rn_f32", "div.rn.f32", "div.rn.f32", "div.rn.ftz.f32"),
        ("reciprocal", "rcp.rn.f32", "rcp.rn.f32", "rcp.approx.ftz.f32"),
        ("sqrt", "sqrt.rn.f32", "sqrt.rn.f32", "sqrt.approx.ftz.f32"),
        ("rsqrt", "rsqrt.approx.f32", "rsqrt.approx.f32", "rsqrt.approx.ftz.f32"),
        ("maximum", "max.f32", "max.f32", "max.ftz.f32"),
        ("fmin", "min.f32", "min.f32", "min.ftz.f32"),
        ("abs", "abs.f32", "abs.f32", "abs.ftz.f32"),
        ("floor", "cvt.rmi.f32.f32", "cvt.rmi.f32.f32", "cvt.rmi.ftz.f32.f32"),
        ("exp_fast", "mul.f32 ex2.approx.ftz.f32", "mul.rn.f32 ex2.approx.ftz.f32", "mul.ftz.f32 ex2.approx.ftz.f32"),
    ],
)
def test_one_instruction(name: str, precise: str, no_fma: str, fast: str) -> None:
    arity = {"add": 2, "subtract": 2, "multiply": 2, "divide": 2, "divide_rn_f32": 2, "maximum": 2, "fmin": 2, "fma": 3}
    for arithmetic, want in ((PRECISE, precise), (NO_FMA, no_fma), (FAST, fast)):
        assert " ".join(instructions(name, arity.get(name, 1), arithmetic)) == want


@pytest.mark.parametrize(
    ("name", "want"),
    [
        ("exp", "mul.ftz.f32 ex2.approx.ftz.f32"),
        ("log", "lg2.approx.ftz.f32 mul.ftz.f32"),
        ("sin", "sin.approx.ftz.f32"),
        ("cos", "cos.approx.ftz.f32"),
        ("tanh", "tanh.approx.f32"),
        ("pow", "lg2.approx.ftz.f32 mul.ftz.f32 ex2.approx.ftz.f32"),
        ("sigmoid", "mul.ftz.f32 ex2.approx.ftz.f32 add.ftz.f32 rcp.approx.ftz.f32"),
    ],
)
def test_fast_functions(name: str, want: str) -> None:
    """What nvcc 13.0 --use_fast_math emits, but for sigmoid's ``0 - x``, which is in the multiplication."""
    assert " ".join(instructions(name, 2 if name == "pow" else 1, FAST)) == want


@pytest.mark.parametrize(
    ("name", "sm", "want"),
    [
        ("add", 80, "add.rn.f16"),
        ("multiply", 80, "mul.rn.f16"),
        ("negative", 80, "mov.b16 sub.rn.f16"),
        ("abs", 80, "abs.f16"),
        ("maximum", 80, "max.f16"),
        ("maximum", 75, "cvt.f32.f16 cvt.f32.f16 max.f32 cvt.rn.f16.f32"),
        ("relu", 80, "mov.b16 max.f16"),
        ("exp", 80, "cvt.f32.f16 mul.ftz.f32 ex2.approx.ftz.f32 cvt.rn.f16.f32"),
        ("log", 80, "cvt.f32.f16 lg2.approx.ftz.f32 mul.ftz.f32 cvt.rn.f16.f32"),
        ("sqrt", 80, "cvt.f32.f16 sqrt.approx.ftz.f32 cvt.rn.f16.f32"),
        ("rsqrt", 80, "cvt.f32.f16 rsqrt.approx.ftz.f32 cvt.rn.f16.f32"),
        ("divide", 80, "cvt.f32.f16 cvt.f32.f16 div.rn.f32 cvt.rn.f16.f32"),
        ("reciprocal", 80, "cvt.f32.f16 rcp.rn.f32 cvt.rn.f16.f32"),
        ("copy", 80, "mov.b16"),
    ],
)
def test_f16_instructions(name: str, sm: int, want: str) -> None:
    arity = 2 if name in ("add", "multiply", "maximum", "divide") else 1
    assert " ".join(instructions(name, arity, Arithmetic(sm=sm), B16)) == want


#: Instructions on the common path of nvcc 13.0's PTX for sm_80, copies and reinterpretations not counted.
NVCC = {"exp": 10, "log": 25, "sin": 23, "cos": 24, "tanh": 17, "erf": 22, "sigmoid": 13, "pow": 80}


@pytest.mark.parametrize("name", NVCC)
def test_length(name: str) -> None:
    kernel = Function(name, 2 if name == "pow" else 1).kernel
    common = [block for block in kernel.blocks if ".huge" not in block.name and ".special" not in block.name]
    free = (opcodes.MOV, opcodes.BITCAST, opcodes.NEG, opcodes.RET)
    count = sum(instr.op not in free for block in common for instr in block.instrs)
    assert count <= 1.2 * NVCC[name]


def test_names() -> None:
    """Intermediate values are named after the function, the result after the caller's hint."""
    function = Function("exp")
    names = [value.name for instr in function.kernel.instrs() for value in instr.results]
    assert function.result.name == "result"
    assert set(names) - {"result"} == {"exp", *(f"exp.{index}" for index in range(1, len(names) - 1))}


def test_unknown_operations() -> None:
    kernel = Kernel("k", "sm_80", 1)
    b = Builder(kernel, Block("entry"))
    with pytest.raises(UnsupportedError, match="'gamma'"):
        call(b, "gamma", (real(F32, 1.0),), PRECISE)
    with pytest.raises(UnsupportedError, match="'exp' is not supported on f64"):
        call_f64(b, "exp", (real(F64, 1.0),), PRECISE)


# ------------------------------------------------------------------------------------------------------ as a kernel

F32_NAMES = {
    "add": 2, "subtract": 2, "multiply": 2, "divide": 2, "fma": 3, "negative": 1, "square": 1, "reciprocal": 1,
    "maximum": 2, "fmax": 2, "minimum": 2, "fmin": 2, "abs": 1, "fabs": 1, "floor": 1, "sqrt": 1, "relu": 1,
    "divide_rn_f32": 2, "copy": 1, "rsqrt": 1, "exp": 1, "exp_fast": 1, "log": 1, "sin": 1, "cos": 1, "tanh": 1,
    "erf": 1, "pow": 2, "sigmoid": 1,
}  # fmt: skip
HALF_NAMES = {name: arity for name, arity in F32_NAMES.items() if name != "fma"}
F64_NAMES = {name: HALF_NAMES[name] for name in list(HALF_NAMES)[:16]}


class Kind(NamedTuple):
    """A type that operations are on, and those to try."""

    call: Callable[..., Value]
    bank: Type
    memory: str
    names: dict[str, int]


KINDS = {
    "f32": Kind(call, F32, "f32", F32_NAMES),
    "f64": Kind(call_f64, F64, "f64", F64_NAMES),
    "f16": Kind(call_f16, B16, "b16", HALF_NAMES),
    "f16x2": Kind(call_f16x2, B32, "b32", HALF_NAMES),
}


def everything(kind: Kind, arithmetic: Arithmetic) -> str:
    """A kernel with one operation after the other: thread i reads and writes the i-th of rows of 256 elements."""
    kernel = Kernel("everything", f"sm_{arithmetic.sm}", 256)
    kernel.params = [Param("data", "u64", 16), Param("result", "u64", 16)]
    entry = Block("entry")
    kernel.blocks.append(entry)
    b = Builder(kernel, entry)
    nbytes = kind.bank.bits // 8
    thread = b.emit(opcodes.MOV, ("u32",), B32, (Sym("%tid.x"),), "thread")
    offset = b.emit(opcodes.MUL, ("wide", "u32"), B64, (thread, b.int32(nbytes)), "offset")

    def address(name: str) -> Value:
        base = b.emit(opcodes.LD, ("param", "u64"), B64, (Mem(Sym(name)),), name)
        base = b.emit(opcodes.CVTA, ("to", "global", "u64"), B64, (base,), name)
        return b.binary(opcodes.ADD, "s64", base, offset, name)

    data, result = address("data"), address("result")
    rows = (Mem(data, 256 * nbytes * row) for row in range(3))
    args = [b.emit(opcodes.LD, ("global", kind.memory), kind.bank, (row,), "x") for row in rows]
    for row, (name, arity) in enumerate(kind.names.items()):
        value = kind.call(b, name, args[:arity], arithmetic, name)
        b.effect(opcodes.ST, ("global", kind.memory), (Mem(result, 256 * nbytes * row), value))
    b.ret()
    assert verify.verify(kernel) == []
    leave_ssa.run(kernel)
    target = parse_target(kernel.target)
    return print_module([kernel], target, needed_version([kernel], target))


@pytest.mark.needs("ptxas")
@pytest.mark.parametrize("sm", [75, 80, 90, 120])
@pytest.mark.parametrize("arithmetic", [PRECISE, FAST, NO_FMA], ids=["precise", "fast", "no-fma"])
@pytest.mark.parametrize("kind", KINDS)
def test_ptxas_takes_everything(kind: str, arithmetic: Arithmetic, sm: int) -> None:
    assemble(everything(KINDS[kind], arithmetic._replace(sm=sm)), f"sm_{sm}")


@pytest.mark.parametrize("arithmetic", [PRECISE, FAST], ids=["precise", "fast"])
@pytest.mark.parametrize("kind", ["f32", "f64", "f16"])
def test_cpu_device_computes_the_same(kind: str, arithmetic: Arithmetic) -> None:
    """Bit for bit what the evaluator says, where the approximating instructions round correctly."""
    _, bank, _, names = KINDS[kind]
    floats = {"f32": np.float32, "f64": np.float64, "f16": np.float16}[kind]
    random = np.random.default_rng(5)
    data = random.integers(0, 256, (3, 256 * bank.bits // 8)).astype(np.uint8).view(floats)
    data[0, 128:] = random.uniform(-9, 9, 128)
    data[1, :64] = random.integers(-5, 5, 64)
    data[:2, 250:] = [0.0, -0.0, INF, -INF, NAN, 1.0]
    result = np.zeros((len(names), 256), dtype=floats)
    module = device("cpu").load(everything(KINDS[kind], arithmetic))
    launched = module.launch("everything", (1, 1, 1), (256, 1, 1), [data, result])
    assert launched.completed
    for (name, arity), got in zip(names.items(), result):
        function = Function(name, arity, bank, arithmetic)
        want = function(*(row.view(np.uint16) if kind == "f16" else row for row in data[:arity])).view(floats)
        if name in ("maximum", "fmax", "minimum", "fmin", "relu"):  # the sign of a zero is the machine's choice
            got, want = np.where(got == 0, 0, got), np.where(want == 0, 0, want)
        assert same(got, want), name


def test_evaluator_rounds_fma_once() -> None:
    """The evaluator's own hard case: a product whose sum lies between two f32 in f64 already."""
    a, b, c = f32(1 + 2.0**-12), f32(1 + 2.0**-12), f32(2.0**-60)
    # a * b = 1 + 2**-11 + 2**-24 lies halfway between two f32; c decides.
    assert fma(a, b, c)[0] == np.float32(1 + 2.0**-11 + 2.0**-23)
    assert fma(a, b, -c)[0] == np.float32(1 + 2.0**-11)
