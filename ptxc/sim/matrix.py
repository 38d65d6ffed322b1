"""``mma.sync`` (PTX ISA 9.7.16.5): products of small matrices by a warp.

The ISA leaves open in which order and precision products are summed. Here they are exact, summed in float64 together
with C, and the sum is rounded once to the type of D, to nearest even (integers: exact, wrapping around or saturated).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np

from ptxc.sim import fragments
from ptxc.sim.aligned import WARP, elements, read_registers, rows, whole, write_registers
from ptxc.sim.binding import Action, Modifiers, Reader, reader, writer
from ptxc.sim.convert import decoded
from ptxc.sim.machine import Active, Machine
from ptxc.sim.program import Immediate, Instruction, Operand
from ptxc.sim.rounding import canonical
from ptxc.sim.scalar import TYPES, Array, Index

_SHAPE = re.compile(r"m(\d+)n(\d+)k(\d+)$")

ELEMENT_BITS = {
    "f16": 16, "bf16": 16, "tf32": 32, "e4m3": 8, "e5m2": 8, "e2m1": 4, "s8": 8, "u8": 8,
}  # fmt: skip
"""Element types of A and B, with their width."""

_HOLDS = {"f32": 32, "f16": 16, "s32": 32}
_KINDS = {"kind::mxf4nvf4", "kind::mxf4", "kind::f8f6f4"}
_SCALES = {"scale_vec::2X": 2, "scale_vec::4X": 4}


@cache
def _values_of(element: str) -> Array:
    """Every value of an 8- or 4-bit format, by its pattern."""
    if element == "ue4m3":
        return decoded(np.arange(256) & 0x7F, "e4m3")
    return decoded(np.arange(1 << ELEMENT_BITS.get(element, 8)), element)


_CONTAINERS = {"f16": "f2", "bf16": "u2", "tf32": "u4", "s8": "i1", "u8": "u1", "e4m3": "u1", "e5m2": "u1"}
"""How NumPy holds an element; ``e2m1`` has half a byte."""


def decode(held: Array, element: str) -> Array:
    """The float64 values of elements as ``_CONTAINERS`` hold them."""
    if element == "bf16":
        return (held.astype(np.uint32) << np.uint32(16)).view(np.float32).astype(np.float64)
    if element == "tf32":
        # The lowest 13 bits are no part of the format (PTX ISA 5.2.3); hardware does not look at them.
        return (held & np.uint32(0xFFFFE000)).view(np.float32).astype(np.float64)
    return held.astype(np.float64) if element in {"f16", "s8", "u8"} else _values_of(element)[held]


def container_of(element: str) -> str:
    """The NumPy type that holds an element of at least 8 bits."""
    return _CONTAINERS[element]


def as_float64(registers: Array, element: str, fragment: Index) -> Array:
    """The elements of A or B that ``registers`` (u32, ``[warps, 32, n]``) hold, ``[warps, *fragment.shape]``."""
    if element == "e2m1":
        octets = registers.view(np.uint8)
        halves = np.stack((octets & 15, octets >> 4), -1)
        return decode(fragments.gather(halves, "u1", fragment), element)
    return decode(fragments.gather(registers, _CONTAINERS[element], fragment), element)


def rounded(total: Array, kind: str, saturate: bool = False) -> Array:
    """float64 sums as values of the type of D."""
    if kind == "s32":
        if saturate:
            return np.clip(total, -(2.0**31), 2.0**31 - 1).astype(np.int32)
        return (total.astype(np.int64) & 0xFFFFFFFF).astype(np.uint32).view(np.int32)
    return canonical(total.astype("f4" if kind == "f32" else "f2").reshape(-1)).reshape(total.shape)


@dataclass(frozen=True, slots=True)
class _Layout:
    """Where the elements of each matrix are."""

    a: Index
    b: Index
    c: Index
    d: Index


def _layout(m: Modifiers, a: str, b: str, c: str, d: str) -> _Layout:
    shape = next((name for name in m.left if _SHAPE.match(name)), "")
    m.skip({shape})
    majors = [name for name in m.left if name in {"row", "col"}]
    m.skip({"row", "col"})
    if shape == "m8n8k4" and a == b == "f16":
        return _Layout(
            fragments.volta_a(majors[0] == "row"), fragments.volta_b(majors[1] == "row"),
            fragments.volta_c(c == "f32"), fragments.volta_c(d == "f32"),
        )  # fmt: skip
    if shape not in _SHAPES.get(a, ()) or ELEMENT_BITS[a] != ELEMENT_BITS[b] or majors != ["row", "col"]:
        raise m.instruction.unsupported("this shape, these types and layouts")
    found = _SHAPE.match(shape)
    assert found is not None
    k, per_register = int(found[3]), 32 // ELEMENT_BITS[a]
    square = fragments.c_16()
    return _Layout(fragments.a_16(k, per_register), fragments.b_8(k, per_register), square, square)


_SHAPES = {
    "f16": ("m16n8k8", "m16n8k16"), "bf16": ("m16n8k8", "m16n8k16"), "tf32": ("m16n8k4", "m16n8k8"),
    "e4m3": ("m16n8k16", "m16n8k32"), "e5m2": ("m16n8k16", "m16n8k32"),
    "s8": ("m16n8k16", "m16n8k32"), "u8": ("m16n8k16", "m16n8k32"), "e2m1": ("m16n8k64",),
}  # fmt: skip


_MIXED = ({"e4m3", "e5m2"}, {"s8", "u8"})
"""Types that A and B may have together."""


def check_types(instruction: Instruction, d: str, a: str, b: str) -> None:
    """Raise InputError where no product of ``a`` and ``b`` has the type ``d``."""
    fits = a == b or any({a, b} <= both for both in _MIXED)
    if not fits or (d == "s32") != (a in {"s8", "u8"}) or (d == "f16" and a in {"bf16", "tf32", "e2m1"}):
        raise instruction.wrong("there is no product of these types")


def accumulator(registers: Array, kind: str, fragment: Index) -> Array:
    """C as float64."""
    names = {"f32": "f4", "f16": "f2", "s32": "i4"}
    return fragments.gather(registers, names[kind], fragment).astype(np.float64)


def _mma(instruction: Instruction) -> Action:
    m = Modifiers(instruction)
    m.choice(("sync",))
    m.choice(("aligned",))
    saturate, scaled = m.flag("satfinite"), m.flag("block_scale")
    kind = m.choice(_KINDS, "")
    vector = _SCALES[m.choice(_SCALES, "scale_vec::2X")] if scaled else 0
    scale_type = m.left.pop() if scaled and m.left[-1] in {"ue4m3", "ue8m0"} else ""
    types = [name for name in m.left if name in ELEMENT_BITS or name in _HOLDS]
    if len(types) != 4 or types[0] not in _HOLDS or types[3] not in _HOLDS or types[1] not in ELEMENT_BITS:
        raise instruction.unsupported("these types")
    m.left = [name for name in m.left if name not in types]
    d, a, b, c = types
    if kind == "kind::f8f6f4" and "e2m1" in {a, b}:
        raise instruction.unsupported("types narrower than 8 bits in this kind")
    if scaled != (a == "e2m1") or scaled != bool(scale_type):
        raise instruction.unsupported("this combination of types and block scaling")
    check_types(instruction, d, a, b)
    layout = _layout(m, a, b, c, d)
    m.finish()
    scales = _scales(instruction, vector, scale_type) if scaled else None
    return _product(instruction, (d, a, b, c), layout, saturate, scales)


_Scales = Callable[[Machine, Active], tuple[Array, Array]]


def _product(
    instruction: Instruction, types: tuple[str, str, str, str], layout: _Layout, saturate: bool, scales: _Scales | None
) -> Action:
    d, a, b, c = types
    u32 = TYPES["u32"]
    operands = [elements(operand) for operand in instruction.operands[:4]]
    bits = (_HOLDS[d], ELEMENT_BITS[a], ELEMENT_BITS[b], _HOLDS[c])
    sizes = (layout.d.size, layout.a.size, layout.b.size, layout.c.size)
    for given, size, width in zip(operands, sizes, bits, strict=True):
        if len(given) != size * width // 32 // 32:
            raise instruction.wrong(f"{size * width // 32 // 32} registers are expected, {len(given)} given")
    writers = [writer(operand, u32, instruction) for operand in operands[0]]
    readers = [[reader(operand, u32, instruction) for operand in given] for given in operands[1:]]

    def act(m: Machine, active: Active) -> None:
        whole(m, active, WARP, instruction)
        left = as_float64(read_registers(m, active, readers[0]), a, layout.a)
        right = as_float64(read_registers(m, active, readers[1]), b, layout.b)
        if scales is not None:
            of_a, of_b = scales(m, active)
            left, right = left * of_a, right * of_b
        total = np.matmul(left, right) + accumulator(read_registers(m, active, readers[2]), c, layout.c)
        write_registers(m, active, writers, fragments.scatter(rounded(total, d, saturate), layout.d, "u4"))

    return act


# Block scaling (9.7.16.3)


def _scales(instruction: Instruction, vector: int, scale_type: str) -> _Scales:
    """The factors of A, ``[warps, 16, 64]``, and of B, ``[warps, 64, 8]``: ``vector`` of them for each row."""
    data_a, select_a, data_b, select_b = instruction.operands[4:]
    u32 = TYPES["u32"]
    read_a, read_b = (reader(elements(data)[0], u32, instruction) for data in (data_a, data_b))
    byte_a, thread_a = _selectors(instruction, select_a, (0, 1))
    byte_b, thread_b = _selectors(instruction, select_b, (0, 1, 2, 3))
    if {byte_a, byte_b} - ({0} if vector == 4 else {0, 2}):
        raise instruction.wrong("the byte selector is none of those that the ISA allows")
    lanes_a = np.arange(16) % 8 * 4 + thread_a * 2 + np.arange(16) // 8
    lanes_b = np.arange(8) * 4 + thread_b
    values = _values_of(scale_type)

    def factors(m: Machine, active: Active, read: Reader, lanes: Index, first: int) -> Array:
        registers = np.ascontiguousarray(rows(m, active, read(m, active))[:, lanes])
        octets = registers.view(np.uint8).reshape(registers.shape[0], lanes.size, 4)[:, :, first : first + vector]
        return np.repeat(values[octets], 64 // vector, axis=2)

    def read(m: Machine, active: Active) -> tuple[Array, Array]:
        of_b = factors(m, active, read_b, lanes_b, byte_b)
        return factors(m, active, read_a, lanes_a, byte_a), of_b.transpose(0, 2, 1)

    return read


def _selectors(instruction: Instruction, operand: Operand, threads: tuple[int, ...]) -> tuple[int, int]:
    pair = elements(operand)
    if len(pair) != 2 or not all(isinstance(part, Immediate) for part in pair):
        raise instruction.unsupported("selectors that are not constants")
    byte, thread = (part.value for part in pair if isinstance(part, Immediate))
    if thread not in threads:
        raise instruction.wrong("the thread selector is none of those that the ISA allows")
    return byte, thread


MATRIX = {"mma": _mma}
"""Products of matrices by a warp."""
