"""Contracts a multiplication and the addition that alone uses it to one fused operation.

As CUDA does by default (``--no-fma`` keeps the frontend from writing operations that may be contracted)::

    %m = mul.f32 %a, %b
    %s = add.f32 %m, %c        ->    %s = fma.rn.f32 %a, %b, %c

    sub.f32 %m, %c             ->    fma.rn.f32 %a, %b, -%c
    sub.f32 %c, %m             ->    fma.rn.f32 -%a, %b, %c

Only operations without a rounding modifier take part: with one they are meant to round by themselves. The
multiplication must be in the same block, so that no work moves into a loop.
"""

from __future__ import annotations

from ptxc.ir import opcodes
from ptxc.ir.kernel import Block, Instr, Kernel
from ptxc.ir.uses import reads
from ptxc.ir.values import Const, Operand

_CONTRACTIBLE = {("f32",), ("ftz", "f32"), ("f64",)}
_PARTS = frozenset((opcodes.MUL, opcodes.ADD, opcodes.SUB))


def run(kernel: Kernel) -> None:
    """Contract in every block."""
    products = [
        instr
        for block in kernel.blocks
        for instr in block.instrs
        if instr.op is opcodes.MUL and instr.mods in _CONTRACTIBLE
    ]
    if not products:
        return
    counts: dict[Operand, int] = dict.fromkeys((instr.results[0] for instr in products), 0)
    found = counts.keys()
    for block in kernel.blocks:
        for instr in block.instrs:
            if not found.isdisjoint(instr.operands) or instr.targets:
                for value in reads(instr):
                    if value in counts:
                        counts[value] += 1
    for block in kernel.blocks:
        _contract(kernel, block, counts)


def _contract(kernel: Kernel, block: Block, counts: dict[Operand, int]) -> None:
    products: dict[Operand, Instr] = {}
    contracted: set[Instr] = set()
    out: list[Instr] = []
    for instr in block.instrs:
        if instr.op in _PARTS and instr.guard is None and instr.mods in _CONTRACTIBLE:
            if instr.op is opcodes.MUL:
                if counts.get(instr.results[0]) == 1:
                    products[instr.results[0]] = instr
            else:
                product = _fuse(kernel, instr, products, out)
                if product is not None:
                    contracted.add(product)
        out.append(instr)
    block.instrs = [instr for instr in out if instr not in contracted] if contracted else out


def _fuse(kernel: Kernel, instr: Instr, products: dict[Operand, Instr], out: list[Instr]) -> Instr | None:
    """Make ``instr`` a fused operation if it adds a product; give the multiplication that is not needed any more."""
    x, y = instr.operands
    # The later product of two: the earlier one is likelier to be ready.
    if y in products and products[y].mods == instr.mods:
        product, other, first = products[y], x, False
    elif x in products and products[x].mods == instr.mods:
        product, other, first = products[x], y, True
    else:
        return None
    a, b = product.operands
    if instr.op is opcodes.SUB:
        if first:
            other = _negated(kernel, instr, other, out)
        else:
            a = _negated(kernel, instr, a, out)
    del products[product.results[0]]
    instr.op, instr.mods, instr.operands = opcodes.FMA, ("rn", *instr.mods), (a, b, other)
    return product


def _negated(kernel: Kernel, instr: Instr, operand: Operand, out: list[Instr]) -> Operand:
    """The operand with the other sign; the assembler makes it part of the fused operation."""
    if isinstance(operand, Const):
        return Const(operand.type, operand.bits ^ (1 << (operand.type.bits - 1)))
    bank = instr.results[0].type
    result = kernel.value(bank, "minus")
    out.append(Instr(opcodes.NEG, instr.mods, (result,), (operand,), loc=instr.loc))
    return result
