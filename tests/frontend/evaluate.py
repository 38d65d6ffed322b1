"""Evaluates arithmetic IR on arrays: what the tests and benchmarks of the elementary functions measure with.

Blocks run in layout order, each on the lanes that reach it, so control may only go forward. Instructions round as PTX
ISA says; those that it only bounds (``approx``) err as :class:`Hardware` says, so that a test can ask for the worst.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ptxc.frontend import math
from ptxc.frontend.math import Arithmetic
from ptxc.ir.builder import Builder
from ptxc.ir.kernel import Block, Edge, Instr, Kernel
from ptxc.ir.types import B16, B32, B64, F32, F64, PRED, Type
from ptxc.ir.values import Const, Operand, Value

Array = NDArray[Any]

_DTYPES: dict[Type, type[np.generic]] = {
    PRED: np.bool_, B16: np.uint16, B32: np.uint32, B64: np.uint64, F32: np.float32, F64: np.float64,
}  # fmt: skip
_SIGNED = {"s32": np.int32, "s64": np.int64}


@dataclass(frozen=True)
class Hardware:
    """How far the approximating instructions are off.

    ``error`` is the part of the documented bound: 0 rounds the exact result, 1 and -1 add and subtract all of it,
    None takes any part of it, which depends on the operand alone.
    """

    error: float | None = 0.0

    def part(self, exact: NDArray[np.float64]) -> NDArray[np.float64] | float:
        """The part of the bound by which each result is off."""
        if self.error is not None:
            return self.error
        mixed = exact.view(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        return (mixed >> np.uint64(40)).astype(np.float64) * 2.0**-23 - 1.0

    def ulps(self, exact: NDArray[np.float64], bound: float) -> Array:
        """Off by up to ``bound`` ulp of the rounded result."""
        rounded = exact.astype(np.float32)
        ulp = np.ldexp(1.0, np.maximum(np.frexp(rounded.astype(np.float64))[1] - 24, -149))
        return self._toward(rounded, rounded.astype(np.float64) + np.rint(self.part(exact) * bound) * ulp)

    def relative(self, exact: NDArray[np.float64], bound: float) -> Array:
        """Off by up to ``bound`` times the exact result."""
        return self._toward(exact.astype(np.float32), exact * (1 + self.part(exact) * bound))

    def absolute(self, exact: NDArray[np.float64], bound: NDArray[np.float64] | float) -> Array:
        """Off by up to ``bound``."""
        return self._toward(exact.astype(np.float32), exact + self.part(exact) * bound)

    @staticmethod
    def _toward(rounded: Array, wrong: NDArray[np.float64]) -> Array:
        # The f32 that is off by no more than ``wrong`` is, on the side of the rounded result.
        result = wrong.astype(np.float32)
        beyond = np.abs(result.astype(np.float64) - rounded) > np.abs(wrong - rounded)
        result = np.where(beyond, np.nextafter(result, rounded), result)
        return np.where(np.isfinite(rounded) & (rounded != 0), result, rounded)


EXACT = Hardware()
#: The extremes of what the documentation allows.
DOCUMENTED = (Hardware(1.0), Hardware(-1.0), Hardware(None))


class Function:
    """An operation of :mod:`ptxc.frontend.math` as a function on arrays."""

    def __init__(self, name: str, arity: int = 1, type: Type = F32, arithmetic: Arithmetic | None = None) -> None:
        call = {F32: math.call, B16: math.call_f16, F64: math.call_f64}[type]
        self.kernel = Kernel("function", "sm_90", 1)
        entry = Block("entry")
        self.kernel.blocks.append(entry)
        b = Builder(self.kernel, entry)
        self.args = [self.kernel.value(type, f"x{index}") for index in range(arity)]
        self.result = call(b, name, self.args, arithmetic or Arithmetic(), "result")
        b.ret()

    def __call__(self, *arrays: Array, hardware: Hardware = EXACT) -> Array:
        """The results for arguments of one length."""
        return evaluate(self.kernel, dict(zip(self.args, arrays)), self.result, hardware)


def ulp_error(got: Array, exact: NDArray[np.float64], digits: int = 24) -> NDArray[np.float64]:
    """How far ``got`` is from ``exact`` in units of the last of ``digits`` binary places (24 for f32, 11 for f16).

    An infinity counts as the power of two that it stands for; where only one of the two is NaN, the error is infinite.
    """
    emax = 128 if digits == 24 else 16
    with np.errstate(invalid="ignore"):
        limit = 2.0**emax
        exact = np.clip(exact, -limit, limit)
        error = np.abs(np.clip(got.astype(np.float64), -limit, limit) - exact)
        exponent = np.where(exact == 0, 2 - emax, np.clip(np.frexp(exact)[1] - 1, 2 - emax, emax - 1))
        error = np.ldexp(error, digits - 1 - exponent)
        return np.where(np.isnan(got) | np.isnan(exact), np.where(np.isnan(got) & np.isnan(exact), 0, np.inf), error)


def evaluate(kernel: Kernel, values: Mapping[Value, Array], results: Value, hardware: Hardware = EXACT) -> Array:
    """The value of ``results`` on every lane, where the arguments have ``values`` (arrays of one length)."""
    lanes = len(next(iter(values.values())))
    run = _Run(hardware, lanes, {value: array.astype(_DTYPES[value.type]) for value, array in values.items()})
    run.reached[kernel.blocks[0]] = np.ones(lanes, dtype=np.bool_)
    with np.errstate(all="ignore"):
        for block in kernel.blocks:
            run.block(block)
    return run.values[results]


@dataclass
class _Run:
    hardware: Hardware
    lanes: int
    values: dict[Value, Array]
    reached: dict[Block, NDArray[np.bool_]] = field(default_factory=dict)

    def block(self, block: Block) -> None:
        lanes = self.reached.get(block)
        if lanes is None or not lanes.any():
            return
        everywhere = bool(lanes.all())
        for instr in block.instrs[:-1]:
            operands = [self.operand(operand, None if everywhere else lanes) for operand in instr.operands]
            result = np.asarray(_execute(instr, operands, self.hardware)).astype(_DTYPES[instr.result.type])
            self.assign(instr.result, np.broadcast_to(result, int(lanes.sum())), lanes)
        self.branch(block.instrs[-1], lanes)

    def operand(self, operand: Operand, lanes: NDArray[np.bool_] | None) -> Array:
        if isinstance(operand, Value):
            return self.values[operand] if lanes is None else self.values[operand][lanes]
        assert isinstance(operand, Const)
        width = {PRED: np.int8, B16: np.int16, B32: np.int32, B64: np.int64, F32: np.uint32, F64: np.uint64}
        return np.array([operand.bits], dtype=width[operand.type]).view(_DTYPES[operand.type])

    def assign(self, value: Value, array: Array, lanes: NDArray[np.bool_]) -> None:
        if lanes.all():
            self.values[value] = array
            return
        whole = self.values.setdefault(value, np.zeros(self.lanes, dtype=_DTYPES[value.type]))
        if not whole.flags.writeable:
            whole = self.values[value] = whole.copy()
        whole[lanes] = array

    def branch(self, instr: Instr, lanes: NDArray[np.bool_]) -> None:
        if len(instr.targets) == 1:
            self.edge(instr.targets[0], lanes)
        elif instr.targets:
            taken = self.operand(instr.operands[0], None).astype(np.bool_)
            self.edge(instr.targets[0], lanes & taken)
            self.edge(instr.targets[1], lanes & ~taken)

    def edge(self, edge: Edge, lanes: NDArray[np.bool_]) -> None:
        before = self.reached.get(edge.block)
        self.reached[edge.block] = lanes if before is None else before | lanes
        arrays = [self.operand(arg, lanes) for arg in edge.args]
        for param, array in zip(edge.block.params, arrays):
            self.assign(param, np.broadcast_to(array, int(lanes.sum())), lanes)


# ------------------------------------------------------------------------------------------------------- instructions


def flushed(x: Array) -> Array:
    """``x`` with denormals as zeros of their sign."""
    return np.where(np.abs(x) < np.float32(2.0**-126), np.copysign(np.float32(0), x), x)


def fma(a: Array, b: Array, c: Array) -> Array:
    """``a * b + c`` of f32, rounded once.

    The product is exact in f64. Its sum with c is rounded there to odd, which a second rounding to f32 cannot tell
    from the exact sum (Boldo and Melquiond).
    """
    product = a.astype(np.float64) * b.astype(np.float64)
    addend = c.astype(np.float64)
    total = np.asarray(product + addend)
    shadow = total - product
    error = (product - (total - shadow)) + (addend - shadow)
    bits = total.view(np.int64)
    inexact = np.isfinite(total) & (error != 0) & (bits & 1 == 0)
    step = np.where((error > 0) == (total > 0), 1, -1)
    return np.where(inexact, bits + step, bits).view(np.float64).astype(np.float32)


def _execute(instr: Instr, operands: list[Array], hardware: Hardware) -> Array:
    """The result of an instruction without side effects."""
    type = instr.mods[-1]
    if "ftz" in instr.mods:
        operands = [flushed(x) if x.dtype == np.float32 else x for x in operands]
    if "f16" in (type, *instr.mods[-2:]):
        result = _half(instr, operands)
    elif "approx" in instr.mods:
        result = _APPROXIMATE[instr.op.name](hardware, *(x.astype(np.float64) for x in operands))
    elif instr.op.name in _REAL and type in ("f32", "f64"):
        result = _REAL[instr.op.name](*operands)
    else:
        result = _OTHER[instr.op.name](instr, *operands)
    if "sat" in instr.mods:
        result = np.where(result > 0, np.minimum(result, 1), 0)
    return flushed(result.astype(np.float32)) if "ftz" in instr.mods and type == "f32" else result


_REAL: dict[str, Callable[..., Array]] = {
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
    "div": lambda x, y: x / y,
    "fma": fma,
    "min": np.fmin,
    "max": np.fmax,
    "abs": np.abs,
    "neg": lambda x: -x,
    "sqrt": np.sqrt,
    "rcp": lambda x: 1 / x,
    "copysign": lambda sign, magnitude: np.copysign(magnitude, sign),
    "mov": lambda x: x,
}

_APPROXIMATE: dict[str, Callable[..., Array]] = {
    "ex2": lambda hw, x: np.where(x == 0, 1, hw.ulps(np.exp2(x), 2)),
    "lg2": lambda hw, x: hw.absolute(
        np.log2(x), np.where((x > 0.5) & (x < 2), 2.0**-22, np.abs(np.log2(x)) * 2.0**-22)
    ),
    "rcp": lambda hw, x: hw.ulps(1 / x, 1),
    "div": lambda hw, x, y: np.where(
        (np.abs(y) > 2.0**126) & np.isfinite(y), np.where(np.isinf(x), np.nan, x * 0 / y), hw.ulps(x / y, 2)
    ),
    "rsqrt": lambda hw, x: hw.relative(1 / np.sqrt(x), 2.0**-22.9),
    "sqrt": lambda hw, x: hw.relative(np.sqrt(x), 2.0**-23),
    "sin": lambda hw, x: hw.absolute(np.sin(x), 2.0**-20.5),
    "cos": lambda hw, x: hw.absolute(np.cos(x), 2.0**-20.5),
    "tanh": lambda hw, x: hw.relative(np.tanh(x), 2.0**-11),
}


def _half(instr: Instr, operands: list[Array]) -> Array:
    """Instructions on f16: additions and multiplications are exact enough in f32 to be rounded there first."""
    if instr.op.name == "cvt" and instr.mods[-1] == "f32":
        return operands[0].astype(np.float16).view(np.uint16)
    wide = [x.view(np.float16).astype(np.float32) for x in operands]
    if instr.op.name == "cvt":
        return wide[0]
    return _REAL[instr.op.name](*wide).astype(np.float16).view(np.uint16)


def _convert(instr: Instr, x: Array) -> Array:
    *_, to, source = instr.mods
    if "rzi" in instr.mods:
        return np.trunc(x)
    if "rmi" in instr.mods:
        return np.floor(x)
    number = x.view(_SIGNED[source]) if source in _SIGNED else x
    return number.astype({"f32": np.float32, "f64": np.float64, "u32": np.uint32}[to])


_COMPARE: dict[str, Callable[[Array, Array], Array]] = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
    "nan": lambda x, y: np.isnan(x) | np.isnan(y),
}  # fmt: skip


def _compare(instr: Instr, x: Array, y: Array) -> Array:
    signed = _SIGNED.get(instr.mods[-1])
    return _COMPARE[instr.mods[0]](x.view(signed) if signed else x, y.view(signed) if signed else y)


def _product(instr: Instr, x: Array, y: Array) -> Array:
    assert instr.mods == ("wide", "u32")
    return x.astype(np.uint64) * y


def _select(instr: Instr, x: Array, y: Array, p: Array) -> Array:
    return np.where(p, x, y)


def _truth(instr: Instr, a: Array, b: Array, c: Array, table: Array) -> Array:
    result = np.zeros_like(a & b & c)
    for row in range(8):
        if int(table[0]) >> row & 1:
            result |= (a if row & 4 else ~a) & (b if row & 2 else ~b) & (c if row & 1 else ~c)
    return result


_OTHER: dict[str, Callable[..., Array]] = {
    "cvt": _convert,
    "setp": _compare,
    "mul": _product,
    "lop3": _truth,
    "mad": lambda instr, x, y, z: _product(instr, x, y) + z,
    "bitcast": lambda instr, x: x.view(_DTYPES[instr.result.type]),
    "mov": lambda instr, x: x,
    "selp": _select,
    "add": lambda instr, x, y: x + y,
    "sub": lambda instr, x, y: x - y,
    "neg": lambda instr, x: 0 - x,
    "and": lambda instr, x, y: x & y,
    "or": lambda instr, x, y: x | y,
    "not": lambda instr, x: ~x,
    "shl": lambda instr, x, n: x << n,
    "shr": lambda instr, x, n: x >> n,
    "shf": lambda instr, low, high, n: (high.astype(np.uint64) << 32 | low) << (n & 31) >> 32,
}
