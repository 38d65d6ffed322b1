"""``wgmma`` (PTX ISA 9.7.17): products of matrices by a warpgroup, four warps whose first is a multiple of four.

As for ``mma``, products are exact, summed in float64 together with D, and rounded once.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np

from ptxc.sim import descriptors, fragments
from ptxc.sim.access import Piece
from ptxc.sim.aligned import WARPGROUP, elements, read_registers, rows, whole
from ptxc.sim.binding import Action, Modifiers, Reader, reader
from ptxc.sim.machine import Active, Machine, Stop
from ptxc.sim.matrix import ELEMENT_BITS, accumulator, as_float64, check_types, container_of, decode, rounded
from ptxc.sim.program import Immediate, Instruction, Operand, Register, Vector
from ptxc.sim.scalar import TYPES, Array, Index
from ptxc.sim.wgmma import Product

_SHAPE = re.compile(r"m64n(\d+)k(\d+)$")
_TRANSPOSED = {"f16", "bf16"}
"""The only types that may be MN-major (9.7.17.5.2)."""

_Matrix = Callable[[Machine, Active], tuple[Array, Piece | None]]
"""From whole warpgroups to a matrix of each, float64, with what was read of shared memory."""


def _wgmma(instruction: Instruction) -> Action:
    m = Modifiers(instruction)
    name = m.choice(("mma_async", "fence", "commit_group", "wait_group"))
    for word in ("sync", "aligned"):
        m.choice((word,))
    if name == "mma_async":
        return _product(instruction, m)
    m.finish()
    count = instruction.operands[0] if instruction.operands else Immediate(0)
    if not isinstance(count, Immediate):
        raise instruction.wrong("the number of groups is a constant")

    def act(machine: Machine, active: Active) -> None:
        whole(machine, active, WARPGROUP, instruction)
        if name == "fence":
            machine.products.fence(active)
        elif name == "commit_group":
            machine.products.committed[active.index] += 1
        else:
            machine.products.wait(machine, active, count.value)

    return act


def _constants(instruction: Instruction, operands: tuple[Operand, ...]) -> list[int]:
    values = [operand.value for operand in operands if isinstance(operand, Immediate)]
    if len(values) != len(operands):
        raise instruction.wrong("scales and transpositions are constants")
    signed = [value - (1 << 32) if value == 0xFFFFFFFF else value for value in values]
    if any(value not in {-1, 1} for value in signed[:2]) or any(value not in {0, 1} for value in signed[2:]):
        raise instruction.wrong("a scale is 1 or -1, a transposition 0 or 1")
    return signed


def _product(instruction: Instruction, m: Modifiers) -> Action:
    saturate = m.flag("satfinite")
    shape = next((found for name in m.left if (found := _SHAPE.match(name))), None)
    types = [name for name in m.left if name in ELEMENT_BITS or name in {"f32", "s32"}]
    m.left = [name for name in m.left if name not in types and not _SHAPE.match(name)]
    m.finish()
    if shape is None or len(types) != 3 or types[0] not in {"f32", "f16", "s32"}:
        raise instruction.unsupported("this shape and these types")
    d, a, b = types
    check_types(instruction, d, a, b)
    n, k = int(shape[1]), int(shape[2])
    if n % 8 or not 8 <= n <= 256 or k * ELEMENT_BITS[a] != 256 or ELEMENT_BITS[a] != ELEMENT_BITS[b]:
        raise instruction.wrong("there is no such shape for these types")
    target, left, right, scale, *rest = instruction.operands
    by_register = isinstance(left, Vector)
    sign_a, sign_b, *transposed = _constants(instruction, tuple(rest)) or [1, 1]
    if len(transposed) not in ((0, 1) if by_register else (0, 2)):
        raise instruction.wrong("these operands are not those of a wgmma")
    major_a, major_b = ([0] * 2 + transposed)[-2:]
    if (major_a or major_b) and a not in _TRANSPOSED:
        raise instruction.wrong("only 16-bit matrices may be transposed")
    from_a = _in_registers(instruction, left, a, k) if by_register else _in_memory(instruction, left, a, 64, k, major_a)
    from_b = _in_memory(instruction, right, b, n, k, major_b)
    return _multiply(instruction, (target, left, scale), (d, n), (from_a, from_b), sign_a * sign_b, saturate)


def _in_registers(instruction: Instruction, operand: Operand, element: str, k: int) -> _Matrix:
    parts = elements(operand)
    if len(parts) != 4:
        raise instruction.wrong(f"4 registers of A are expected, {len(parts)} given")
    readers = [reader(part, TYPES["u32"], instruction) for part in parts]
    fragment = fragments.a_16(k, 32 // ELEMENT_BITS[element])

    def read(m: Machine, active: Active) -> tuple[Array, Piece | None]:
        warps = as_float64(read_registers(m, active, readers), element, fragment)
        return warps.reshape(-1, 64, k), None

    return read


def _in_memory(instruction: Instruction, operand: Operand, element: str, count: int, k: int, major: int) -> _Matrix:
    """``count`` rows of A, or columns of B, of ``k`` elements each, by descriptor; ``[warpgroups, count, k]``."""
    read_descriptor = reader(operand, TYPES["u64"], instruction)
    per_unit = 128 // ELEMENT_BITS[element]

    def read(m: Machine, active: Active) -> tuple[Array, Piece | None]:
        given = rows(m, active, read_descriptor(m, active)).reshape(-1, WARPGROUP)
        if (given != given[:, :1]).any():
            m.report("sync", "descriptor", "the threads of a warpgroup have different descriptors", active.index)
        first = active.index[::WARPGROUP]
        units = descriptors.addresses(np.ascontiguousarray(given[:, 0]), count, k, per_unit, not major)
        _check_bounds(m, units, first)
        base = m.geometry.cta_of_slot[first] * (m.shared_stride // 16)
        places = units + base[:, None, None]
        held = m.shared.view(16)[places].view(container_of(element)).reshape(*units.shape, per_unit)
        if major:
            held = held.swapaxes(2, 3)
        piece = Piece(m.shared, places.reshape(-1) * 16, None, np.repeat(first, units[0].size))
        return decode(np.ascontiguousarray(held).reshape(-1, count, k), element), piece

    return read


def _check_bounds(m: Machine, units: Index, slots: Index) -> None:
    flat = units.reshape(slots.size, -1)
    low, high = int(flat.min()) * 16, int(flat.max()) * 16 + 16
    if any(extent.start <= low and high <= extent.end for extent in m.shared_extents):
        return
    inside = np.zeros(flat.shape, np.bool_)
    for extent in m.shared_extents:
        inside |= (flat * 16 >= extent.start) & (flat * 16 + 16 <= extent.end)
    wrong = ~inside.all(1)
    if wrong.any():
        address = int(flat[~inside][0]) * 16
        message = "a matrix descriptor reaches outside of every shared variable"
        m.report("memory", "descriptor", message, slots[wrong], address=address, space="shared")
        if not m.checks.memory or high > m.shared_stride:
            raise Stop


def _multiply(
    instruction: Instruction,
    operands: tuple[Operand, Operand, Operand],
    result: tuple[str, int],
    matrices: tuple[_Matrix, _Matrix],
    sign: int,
    saturate: bool,
) -> Action:
    (target, left, scale), (kind, n) = operands, result
    registers = _registers(instruction, target, n // 4 if kind == "f16" else n // 2)
    sources = _registers(instruction, left, 4) if isinstance(left, Vector) else ()
    readers = [reader(part, TYPES["u32"], instruction) for part in elements(target)]
    accumulates = _predicate(scale, instruction)
    fragment = fragments.warpgroup_d(n)

    def act(m: Machine, active: Active) -> None:
        index = whole(m, active, WARPGROUP, instruction)
        m.products.check_fence(m, (*registers, *sources), index)
        (a, reads_a), (b, reads_b) = matrices[0](m, active), matrices[1](m, active)
        reads = _join(reads_a, reads_b)
        if m.checks.init is not None and reads is not None:
            m.checks.init.shared_read(m, reads, 16)
        if m.checks.proxy is not None and reads is not None:
            m.checks.proxy.multiplied(m, reads, index)
        total = np.matmul(a, b.swapaxes(1, 2)) * sign
        keeps = rows(m, active, accumulates(m, active)).reshape(-1, WARPGROUP)[:, 0]
        if keeps.any():
            known = m.products.accumulated(registers, index)
            if known is None:
                known_rows = read_registers(m, active, readers)
            else:
                known_rows = np.ascontiguousarray(known.T).reshape(-1, 32, len(registers))
            before = accumulator(known_rows, kind, fragment).reshape(-1, 64, n)
            total = np.where(keeps[:, None, None], total + before, total)
        values = fragments.scatter(rounded(total.reshape(-1, 16, n), kind, saturate), fragment, "u4")
        columns = np.ascontiguousarray(values.reshape(-1, len(registers)).T)
        groups = m.products.committed[index].copy()
        m.products.issue(m, Product(instruction, index, registers, frozenset(sources), columns, groups, reads))

    return act


def _predicate(operand: Operand, instruction: Instruction) -> Reader:
    if isinstance(operand, Immediate):
        constant = np.array([operand.value != 0])
        return lambda m, active: constant
    return reader(operand, TYPES["pred"], instruction)


def _registers(instruction: Instruction, operand: Operand, count: int) -> tuple[int, ...]:
    parts = elements(operand)
    found = tuple(part.index for part in parts if isinstance(part, Register))
    if len(parts) != count or len(found) != count:
        raise instruction.wrong(f"{count} registers are expected, {len(parts)} given")
    return found


def _join(a: Piece | None, b: Piece | None) -> Piece | None:
    if a is None or b is None:
        return a or b
    return Piece(a.region, np.concatenate((a.offsets, b.offsets)), None, np.concatenate((a.slots, b.slots)))


WARPGROUPS = {"wgmma": _wgmma}
"""Products of matrices by a warpgroup."""
