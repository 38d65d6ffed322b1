"""Simplification against what instructions compute: divisions by many constants, and every form with constants."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import pytest
from ir_machine import evaluate, execute
from random_programs import FORMS

from ptxc.ir import opcodes
from ptxc.ir.builder import Builder
from ptxc.ir.kernel import Block, Instr, Kernel, Param
from ptxc.ir.opcodes import DIV, OPCODES, REM, Opcode, signature
from ptxc.ir.types import B16, B32, B64, PRED, Type
from ptxc.ir.values import Const, Mem, Operand, Sym, Value, integer
from ptxc.ir.verify import check
from ptxc.passes import simplify
from ptxc.passes.division import expand


def divisors(bits: int) -> Iterator[int]:
    """Every small divisor, and those around powers of two, where multipliers and shifts change."""
    yield from range(2, 130)
    for power in range(7, bits):
        yield from (2**power - 1, 2**power, 2**power + 1, 3 * 2 ** (power - 1))
    yield from (
        641,
        1000,
        10**6,
        10**9,
        6700417,
        2**bits - 1,
        2**bits - 2,
        2**bits // 3,
        2**bits // 3 + 1,
        2**bits // 7,
    )


def dividends(divisor: int, bits: int) -> set[int]:
    """Where a quotient changes, at both ends and in the middle."""
    last = (2**bits - 1) // divisor
    around = {multiple * divisor + step for multiple in (0, 1, 2, last // 2, last - 1, last) for step in (-1, 0, 1)}
    ends = {0, 1, 2 ** (bits - 1) - 1, 2 ** (bits - 1), 2**bits - 2, 2**bits - 1}
    return {x for x in around | ends if 0 <= x < 2**bits}


@pytest.mark.parametrize("op", [DIV, REM], ids=str)
@pytest.mark.parametrize("bits", [32, 64])
def test_division_by_constants(op: Opcode, bits: int) -> None:
    bank = B32 if bits == 32 else B64
    for divisor in divisors(bits):
        kernel = Kernel("k", "sm_80", 1)
        x = kernel.value(bank, "x")
        result = kernel.value(bank, "result")
        last = Instr(op, (f"u{bits}",), (result,), (x, integer(bank, divisor)))
        steps: list[Instr] = []
        expand(kernel, last, divisor, None, steps)
        steps.append(last)
        assert not any(instr.op in (DIV, REM) for instr in steps)
        for number in dividends(divisor, bits):
            values: dict[Operand, int] = {x: integer(bank, number).bits}
            for instr in steps:
                operands = [o.bits if isinstance(o, Const) else values[o] for o in instr.operands]
                values[instr.result] = evaluate(instr, *operands)
            quotient = divmod(number, divisor)[0 if op is DIV else 1]
            assert values[result] == integer(bank, quotient).bits, (number, divisor, steps)


# ----------------------------------------------------------------------------------------------------- every form

NUMBERS = (0, 1, 2, 7, 32, -1, -8, 2**31 - 1, -(2**31), 2**32, 2**40 + 5, -(2**63))
PREDICATES = (0, -1)
EXTRA = [
    *(f"{op}.{kind}" for op in ("add", "sub", "min", "max", "div", "rem") for kind in ("s32", "u32", "s64", "u64")),
    *(f"setp.{r}.{kind}" for r in ("eq", "ne", "lt", "le", "gt", "ge") for kind in ("s32", "u32", "s64", "u64")),
    *(f"cvt.{to}.{source}" for to in ("u8", "s8", "u32", "s64") for source in ("s8", "u8", "s32", "u32", "s64", "u64")),
    *(f"cvt.sat.{to}.{source}" for to in ("u8", "s8", "u32", "s32") for source in ("s32", "u32", "s64", "u64")),
    *(f"{op}.{kind}" for op in ("add", "sub", "mul.lo", "div", "rem", "min", "max", "shr") for kind in ("s16", "u16")),
    *(f"{op}.b16" for op in ("and", "or", "xor", "not", "shl", "shr", "mov", "selp")),
    "sub.sat.s32", "mul.hi.s64", "mul.hi.u64", "mad.hi.s32", "mad.hi.u64", "mul.wide.s16", "mul.wide.u16",
    "mad.wide.u16", "cvt.u16.u32", "cvt.s32.s16", "cvt.u32.u16", "cvt.s16.s64",
]  # fmt: skip
ALL_FORMS = sorted({*EXTRA, *(form for forms in FORMS.values() for form in forms)})

#: What is computed only at run time, even of constants.
LEFT_ALONE = {"sat", "hi", "neg", "abs"}


@pytest.mark.parametrize("form", ALL_FORMS)
def test_what_is_left_computes_the_same(form: str) -> None:
    """A kernel that computes the form for many operands, known and unknown ones, and stores each result."""
    kernel = Kernel("k", "sm_90", 1)
    kernel.blocks.append(Block("entry"))
    maker = _Maker(Builder(kernel, kernel.blocks[0]))
    name, *mods = form.split(".")
    op, row = OPCODES[name], signature(OPCODES[name], tuple(mods))
    assert row is not None
    banks = [bank for bank in row.operands if bank is not None]
    (result,) = row.results
    assert result is not None
    for operands in maker.operands(banks):
        maker.store(maker.builder.emit(op, tuple(mods), result, operands))
    maker.builder.ret()
    check(kernel)
    before = execute(kernel, maker.params)
    simplify.run(kernel)
    check(kernel)
    assert execute(kernel, maker.params) == before
    if LEFT_ALONE.isdisjoint((name, *mods)):
        known = [
            instr for instr in kernel.instrs() if instr.op is op and all(isinstance(o, Const) for o in instr.operands)
        ]
        assert all(name in ("div", "rem") and instr.operands[1] in (_ZEROS) for instr in known), known


_ZEROS = [Const(bank, 0) for bank in (B16, B32, B64)]


class _Maker:
    """Writes the kernel: unknown operands are parameters, results go to memory one after the other."""

    def __init__(self, builder: Builder) -> None:
        self.builder = builder
        self.params = {"out": 0}
        self.known: dict[tuple[Type, int], Value] = {}
        self.out = self.unknown(B64, 0, "out")
        self.stores = 0

    def operands(self, banks: list[Type]) -> Iterator[tuple[Operand, ...]]:
        """Every pair of constants; each constant beside a few unknown operands; unknown ones; one operand twice."""
        numbers = [PREDICATES if bank is PRED else NUMBERS for bank in banks[:2]]
        rest = tuple(integer(bank, -1) for bank in banks[2:])
        for chosen in product(*numbers):
            yield (*map(integer, banks, chosen), *rest)
        for at, bank in enumerate(banks):
            for number in PREDICATES if bank is PRED else NUMBERS:
                for other in (0, 1, -9, 2**31):
                    unknown = [self.unknown(each, other) for each in banks]
                    yield (*unknown[:at], integer(bank, number), *unknown[at + 1 :])
        for number in NUMBERS:
            yield tuple(self.unknown(bank, number) for bank in banks)

    def unknown(self, bank: Type, number: int, name: str = "") -> Value:
        """A value that only execution knows, as a parameter gives it."""
        bits = integer(bank, number).bits
        value = self.known.get((bank, bits))
        if value is None:
            builder, kind, wide = self.builder, "u64" if bank is B64 else "u32", B64 if bank is B64 else B32
            name = name or f"p{len(self.params)}"
            builder.kernel.params.append(Param(name, kind))
            self.params[name] = bits
            value = builder.emit(opcodes.LD, ("param", kind), wide, (Mem(Sym(name)),), name)
            if bank is PRED:
                value = builder.setp("lt.s32", value, integer(B32, 0), name)
            elif bank is B16:
                value = builder.cvt("u16.u32", value, name)
            self.known[bank, bits] = value
        return value

    def store(self, value: Value) -> None:
        if value.type is PRED:
            value = self.builder.selp("b32", integer(B32, 3), integer(B32, 5), value)
        self.stores += 1
        address = Mem(self.out, 8 * self.stores)
        self.builder.effect(opcodes.ST, ("global", value.type.name), (address, value))
