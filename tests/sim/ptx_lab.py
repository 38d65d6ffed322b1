"""Small PTX programs for tests of the CPU device, and an oracle of rounding that shares nothing with it."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ptxc.device import device
from ptxc.sim.device import LaunchResult

Array = NDArray[Any]

HEADER = ".version 9.0\n.target sm_90a\n.address_size 64\n"

REGISTERS = """
    .reg .pred %p<10>; .reg .b16 %h<20>; .reg .b32 %r<60>; .reg .b64 %d<60>; .reg .f32 %f<20>; .reg .f64 %e<20>;
    .reg .b128 %q<4>;
"""

_WIDTH = {1: "8", 2: "16", 4: "32", 8: "64"}


def kernel(body: str, parameters: Iterable[str] = ("u64 x", "u64 y"), declarations: str = "") -> str:
    """A module with the entry ``k``; ``parameters`` are "type name", ``%d0``, ``%d1``, ... their values if 64-bit.

    ``%r0`` is the linear thread id of a one-dimensional launch, ``%r1`` the thread's id in the CTA.
    """
    declared, loads = [], []
    for at, parameter in enumerate(parameters):
        kind, name = parameter.split()
        declared.append(f".param .{kind} {name}")
        loads.append(f"ld.param.{kind} {'%d' if kind.endswith('64') else '%r5'}{at}, [{name}];")
    prologue = "mov.u32 %r1, %tid.x; mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ntid.x; mad.lo.s32 %r0, %r2, %r3, %r1;"
    return (
        f"{HEADER}{declarations}\n.visible .entry k({', '.join(declared)})\n{{{REGISTERS}\n"
        f"{' '.join(loads)}\n{prologue}\n{body}\nret;\n}}\n"
    )


def launch(
    text: str,
    args: Sequence[Any],
    grid: int | tuple[int, ...] = 1,
    block: int | tuple[int, ...] = 32,
    **options: Any,
) -> LaunchResult:
    """Launch ``k`` of ``text``."""
    extents = [(n,) if isinstance(n, int) else n for n in (grid, block)]
    return device("cpu").load(text).launch("k", extents[0], extents[1], args, **options)


def run(body: str, args: Sequence[Any], **options: Any) -> LaunchResult:
    """Launch a kernel of ``body`` whose parameters are pointers to ``args``; it must end without findings."""
    declarations = options.pop("declarations", "")
    parameters = [f"u64 p{at}" for at in range(len(args))]
    result = launch(kernel(body, parameters, declarations), args, **options)
    assert result.completed, result.findings
    assert not result.findings, [str(finding) for finding in result.findings]
    return result


def evaluate(instructions: str, result: str, *operands: Array, registers: str = "") -> Array:
    """What ``instructions`` leave in ``%res`` for each element of ``operands``, which are in ``%a``, ``%b``, ``%c``...

    ``result`` is a NumPy type; predicates are bool. One thread an element.
    """
    count = max(operand.size for operand in operands) if operands else 32
    output = np.zeros(count, result)
    full = [np.ascontiguousarray(np.broadcast_to(operand.reshape(-1), (count,))) for operand in operands]
    lines = ["cvt.u64.u32 %d50, %r0;", f"setp.ge.u32 %p9, %r0, {count};", "@%p9 bra END;"]
    for at, operand in enumerate(full):
        width, name = _WIDTH[operand.dtype.itemsize], "abcde"[at]
        lines.append(f".reg .b{16 if width == '8' else width} %{name};")
        lines.append(f"mul.lo.u64 %d51, %d50, {operand.dtype.itemsize}; add.u64 %d51, %d51, %d{at + 1};")
        lines.append(f"ld.global.b{width} %{name}, [%d51];")
    lines.append(registers)
    size = output.dtype.itemsize
    if output.dtype == np.bool_:
        store = "selp.u16 %h19, 1, 0, %res; st.global.u8 [%d51], %h19;"
        lines.append(".reg .pred %res;")
    else:
        store = f"st.global.b{_WIDTH[size]} [%d51], %res;"
        lines.append(f".reg .b{16 if size == 1 else _WIDTH[size]} %res;")
    lines.append(instructions)
    lines.append(f"mul.lo.u64 %d51, %d50, {size}; add.u64 %d51, %d51, %d0; {store} END:")
    run("\n".join(lines), [output, *full], grid=-(-count // 128), block=128)
    return output


# Operands


def u16(*values: int) -> Array:
    """uint16 values."""
    return np.array(values, np.uint16)


def u32(*values: int) -> Array:
    """uint32 values."""
    return np.array(values, np.uint32)


def i32(*values: int) -> Array:
    """int32 values."""
    return np.array(values, np.int32)


def f16(*values: float) -> Array:
    """float16 values."""
    return np.array(values, np.float16)


def f32(*bits: int) -> Array:
    """float32 values by their patterns."""
    return np.array(bits, np.uint32).view(np.float32)


def bits(values: Array) -> list[int]:
    """The patterns of values."""
    return [int(x) for x in values.view(f"u{values.dtype.itemsize}")]


# An oracle: rational arithmetic, rounded by definition

FORMATS = {"f16": (11, -14, 15), "bf16": (8, -126, 127), "f32": (24, -126, 127), "f64": (53, -1022, 1023)}
"""Precision, least and greatest exponent of normal numbers."""


def round_to(value: Fraction, form: str, mode: str) -> float:
    """``value``, not zero, rounded to ``form``: the definition of IEEE 754, step by step."""
    precision, least, greatest = FORMATS[form]
    sign = -1 if value < 0 else 1
    exponent = abs(value.numerator).bit_length() - value.denominator.bit_length()
    if abs(value) < Fraction(2) ** exponent:
        exponent -= 1
    unit = Fraction(2) ** (max(exponent, least) - precision + 1)
    low = abs(value) // unit * unit
    high = low if low == abs(value) else low + unit
    if mode == "rn":
        closer = abs(value) - low, high - abs(value)
        even = low / unit % 2 == 0
        result = low if closer[0] < closer[1] or (closer[0] == closer[1] and even) else high
    elif mode == "rz":
        result = low
    else:
        result = high if (mode == "rp") == (value > 0) else low
    if result >= Fraction(2) ** (greatest + 1):
        largest = Fraction(2) ** (greatest + 1) - Fraction(2) ** (greatest - precision + 1)
        grows = mode == "rn" or (mode == "rp" and value > 0) or (mode == "rm" and value < 0)
        return sign * (math.inf if grows else float(largest))
    return sign * float(result)


def exact_fma(a: float, b: float, c: float, form: str, mode: str) -> float:
    """``a * b + c`` of finite numbers, rounded once."""
    total = Fraction(a) * Fraction(b) + Fraction(c)
    if total:
        return round_to(total, form, mode)
    product = math.copysign(1, a) * math.copysign(1, b)
    if (a == 0 or b == 0) and c == 0 and product == math.copysign(1, c):
        return math.copysign(0.0, c)
    return -0.0 if mode == "rm" else 0.0


def interesting_f32(count: int, seed: int) -> Array:
    """float32 values of every kind: ordinary, huge, tiny, subnormal, zeros, powers of two and their neighbours."""
    rng = np.random.default_rng(seed)
    exponents = rng.integers(0, 255, count).astype(np.uint32)
    near_one = rng.random(count) < 0.6
    exponents[near_one] = rng.integers(110, 145, near_one.sum())
    fractions = rng.integers(0, 1 << 23, count).astype(np.uint32)
    sparse = rng.random(count) < 0.4
    fractions[sparse] &= np.uint32(0x7FE000)
    ends = rng.random(count) < 0.2
    fractions[ends] = rng.choice(np.array([0, 1, 0x7FFFFF, 0x400000], np.uint32), ends.sum())
    signs = rng.integers(0, 2, count).astype(np.uint32) << np.uint32(31)
    return (signs | exponents << np.uint32(23) | fractions).view(np.float32)


def as_float(pattern: int, form: str) -> float:
    """The value of an f16 or bf16 pattern."""
    if form == "f16":
        return float(np.array([pattern], np.uint16).view(np.float16)[0])
    value: float = struct.unpack("<f", struct.pack("<I", pattern << 16))[0]
    return value
