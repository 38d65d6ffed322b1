"""Executes a kernel's IR in either form, one thread at a time: integers, predicates, memory, no float arithmetic.

What a thread does that others can see is its list of effects: stores, atomics, collectives, in order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from ptxc.ir import opcodes
from ptxc.ir.kernel import Block, Instr, Kernel
from ptxc.ir.types import BYTES, Type
from ptxc.ir.values import Const, Mem, Operand, Sym, Value, integer

_MEETINGS = (opcodes.BAR, opcodes.BAR_WARP, opcodes.SHFL)

#: What the machine gives for the active mask: it knows one thread only.
ACTIVE = 0x5EED


class Effect(NamedTuple):
    """``what`` is "store", "atom" or the instruction at which threads meet, ``numbers`` are its operands.

    ``place`` tells meetings apart that look alike.
    """

    what: str
    numbers: tuple[int, ...]
    place: int = 0


class TooLong(Exception):
    """The thread executed more instructions than it was given."""


def execute(
    kernel: Kernel, params: Mapping[str, int], special: Mapping[str, int] | None = None, *, steps: int = 100_000
) -> list[Effect]:
    """What a thread does with these parameters and special registers (``{"tid.x": 3}``)."""
    # Each array stands where its alignment allows, and no larger one.
    arrays = {array.name: array.align * (2 * sum(map(ord, array.name)) + 1) for array in kernel.shared}
    thread = _Thread(params, special or {}, arrays)
    block: Block | None = kernel.blocks[0]
    while block is not None:
        steps -= len(block.instrs)
        if steps < 0:
            raise TooLong(kernel.name)
        block = thread.run(block, kernel.ssa)
    return thread.effects


def evaluate(instr: Instr, *operands: int) -> int:
    """The result of an instruction for these operands."""
    return _wrap(instr.results[0].type, _COMPUTE[instr.op.name](instr, *operands))


class _Thread:
    def __init__(self, params: Mapping[str, int], special: Mapping[str, int], arrays: Mapping[str, int]) -> None:
        self.params = params
        self.arrays = arrays
        self.special = special
        self.values: dict[Value, int] = {}
        self.memory: dict[tuple[str, int], int] = {}
        self.effects: list[Effect] = []

    def run(self, block: Block, ssa: bool) -> Block | None:
        """Execute a block; the one that comes next."""
        for instr in block.instrs[:-1]:
            if instr.guard is not None and (self.values[instr.guard.predicate] == -1) is instr.guard.negated:
                # In register form what the register held stays.
                if ssa:
                    self.values.update((value, 0) for value in instr.results)
                continue
            results = self.results(instr)
            for value, bits in zip(instr.results, results, strict=True):
                self.values[value] = _wrap(value.type, bits)
        last = block.instrs[-1]
        if not last.targets:
            return None
        taken = last.targets[0 if not last.operands or self.read(last.operands[0]) == -1 else 1]
        passed = [self.read(arg) for arg in taken.args]
        self.values.update(zip(taken.block.params, passed, strict=True))
        return taken.block

    def read(self, operand: Operand) -> int:
        if isinstance(operand, Value):
            return self.values[operand]
        if isinstance(operand, Const):
            return operand.bits
        if isinstance(operand, Sym):
            return self.special[operand.name[1:]] if operand.name[0] == "%" else self.arrays[operand.name]
        return self.read(operand.base) + operand.offset

    def results(self, instr: Instr) -> tuple[int, ...]:
        op, mods = instr.op, instr.mods
        if op is opcodes.LD and mods[0] == "param":
            assert isinstance(instr.operands[0], Mem)
            assert isinstance(instr.operands[0].base, Sym)
            return (self.params[instr.operands[0].base.name],)
        numbers = [self.read(operand) for operand in instr.operands]
        if op is opcodes.LD:
            return tuple(self.load(mods, numbers[0] + n * BYTES[mods[-1]]) for n in range(len(instr.results)))
        if op is opcodes.ST:
            for n, bits in enumerate(numbers[1:]):
                self.memory[_space(mods), numbers[0] + n * BYTES[mods[-1]]] = bits
            self.effects.append(Effect("store", tuple(numbers)))
            return ()
        if op in (opcodes.ATOM, opcodes.RED):
            return self.atomic(instr, *numbers)
        if op is opcodes.ACTIVEMASK:
            return (ACTIVE,)
        if op.tied:
            # What was in flight has changed when it comes back.
            return tuple(5 * number + (op is opcodes.WGMMA_WAIT) for number in numbers[: len(instr.results)])
        if op in _MEETINGS:
            self.effects.append(Effect(op.name, tuple(numbers), id(instr)))
            # Each lane gets something of its own.
            lane = self.special.get("tid.x", 0)
            return tuple(lane * 7 + sum(numbers) for _ in instr.results)
        return (_COMPUTE[op.name](instr, *numbers),)

    def load(self, mods: tuple[str, ...], address: int) -> int:
        """What was stored there; else something small that differs from place to place."""
        return self.memory.get((_space(mods), address), (address * 2654435761 >> 9) % 11 - 3)

    def atomic(self, instr: Instr, address: int, number: int) -> tuple[int, ...]:
        old = self.load(instr.mods, address)
        new = {"add": old + number, "max": max(old, number), "exch": number}
        (kind,) = new.keys() & set(instr.mods)
        self.memory[_space(instr.mods), address] = new[kind]
        self.effects.append(Effect("atom", (address, number)))
        return (old,) if instr.results else ()


def _space(mods: tuple[str, ...]) -> str:
    return next(mod for mod in mods if mod in ("global", "shared", "local"))


def _wrap(type: Type, number: int) -> int:
    return number if type.is_float else integer(type, number).bits


# ------------------------------------------------------------------------------------------------------ instructions


def _read(kind: str, bits: int) -> int:
    """The number that an instruction of type ``kind`` reads in a register with these bits."""
    if kind == "pred":
        return bits
    width = int(kind[1:])
    number = bits % (1 << width)
    return number - (1 << width) if kind[0] == "s" and number >= 1 << (width - 1) else number


def _arithmetic(compute: Callable[..., int]) -> Callable[..., int]:
    """An instruction whose operands are all of its type; ``sat`` clamps what it computes."""

    def run(instr: Instr, *operands: int) -> int:
        kind = instr.mods[-1]
        number = compute(*(_read(kind, bits) for bits in operands))
        return max(-(1 << 31), min(number, (1 << 31) - 1)) if "sat" in instr.mods else number

    return run


def _multiply(instr: Instr, a: int, b: int, c: int = 0) -> int:
    kind = instr.mods[-1]
    product = _read(kind, a) * _read(kind, b)
    return (product >> int(kind[1:]) if instr.mods[0] == "hi" else product) + c


def _divide(a: int, b: int) -> int:
    if b == 0:
        return -1
    quotient = abs(a) // abs(b)
    return quotient if (a < 0) == (b < 0) else -quotient


def _remainder(a: int, b: int) -> int:
    return a - _divide(a, b) * b if b else a


def _left(instr: Instr, a: int, b: int) -> int:
    return a << b if 0 <= b < 64 else 0


def _right(instr: Instr, a: int, b: int) -> int:
    return _read(instr.mods[-1], a) >> min(b % 2**32, 64)


def _compare(instr: Instr, a: int, b: int) -> int:
    x, y = _read(instr.mods[-1], a), _read(instr.mods[-1], b)
    holds = {"eq": x == y, "ne": x != y, "lt": x < y, "le": x <= y, "gt": x > y, "ge": x >= y}
    return -holds[instr.mods[0]]


def _convert(instr: Instr, a: int) -> int:
    to, source = instr.mods[-2:]
    number = _read(source, a)
    if "sat" in instr.mods:
        half = 1 << (int(to[1:]) - 1)
        return max(0, min(number, 2 * half - 1)) if to[0] == "u" else max(-half, min(number, half - 1))
    return _read(to, number)


_COMPUTE: dict[str, Callable[..., int]] = {
    "mov": lambda instr, a: a,
    "cvt": _convert,
    "cvta": lambda instr, a: a,
    "add": _arithmetic(lambda a, b: a + b),
    "sub": _arithmetic(lambda a, b: a - b),
    "mul": _multiply,
    "mad": _multiply,
    "div": _arithmetic(_divide),
    "rem": _arithmetic(_remainder),
    "neg": _arithmetic(lambda a: -a),
    "abs": _arithmetic(abs),
    "min": _arithmetic(min),
    "max": _arithmetic(max),
    "and": lambda instr, a, b: a & b,
    "or": lambda instr, a, b: a | b,
    "xor": lambda instr, a, b: a ^ b,
    "not": lambda instr, a: ~a,
    "shl": _left,
    "shr": _right,
    "setp": _compare,
    "pack": lambda instr, low, high: (low & 0xFFFF) | high << 16,
    "selp": lambda instr, a, b, predicate: a if predicate == -1 else b,
}
