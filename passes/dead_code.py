"""Drops what nobody needs.

An instruction is needed if it has an effect, ends a block, or defines a value that something needed uses; a block
parameter is needed if something uses it, and then so is what is passed for it. Loads are not effects. Ignored results
of ``atom`` make it ``red``.
"""

from __future__ import annotations

from ptxc.ir import opcodes
from ptxc.ir.kernel import Edge, Instr, Kernel
from ptxc.ir.values import Mem, Operand, Value

_EFFECTS = frozenset(("WRITE", "SYNC", "END"))


def run(kernel: Kernel) -> None:
    """Drop instructions and block parameters that nothing needs."""
    needed = _needed(kernel)
    for block in kernel.blocks:
        block.instrs = [
            instr for instr in block.instrs if instr.op.effect in _EFFECTS or not needed.isdisjoint(instr.results)
        ]
        _drop_arguments(block.instrs[-1], needed)
    for block in kernel.blocks:
        block.params = [value for value in block.params if value in needed]
        for instr in block.instrs:
            if instr.op is opcodes.ATOM and instr.results[0] not in needed and opcodes.RED.modifiers.issuperset(instr.mods):
                instr.op, instr.results = opcodes.RED, ()


def _drop_arguments(terminator: Instr, needed: set[Value]) -> None:
    if any(edge.args for edge in terminator.targets):
        terminator.targets = tuple(
            Edge(block, tuple(arg for arg, value in zip(args, block.params, strict=True) if value in needed))
            for block, args in terminator.targets
        )


def _needed(kernel: Kernel) -> set[Value]:
    """Every value that something with an effect depends on."""
    definitions: dict[Value, Instr] = {}
    passed: dict[Value, list[Operand]] = {}
    work: list[Operand] = []
    for block in kernel.blocks:
        for instr in block.instrs:
            for value in instr.results:
                definitions[value] = instr
            if instr.op.effect in _EFFECTS:
                work += instr.operands if instr.guard is None else _operands(instr)
            for target, args in instr.targets:
                for value, arg in zip(target.params, args, strict=True):
                    passed.setdefault(value, []).append(arg)
    needed: set[Value] = set()
    while work:
        operand = work.pop()
        if isinstance(operand, Mem):
            operand = operand.base
        if not isinstance(operand, Value) or operand in needed:
            continue
        needed.add(operand)
        definition = definitions.get(operand)
        if definition is None:
            work += passed.get(operand, ())
        else:
            work += definition.operands if definition.guard is None else _operands(definition)
    return needed


def _operands(instr: Instr) -> list[Operand]:
    """What an instruction reads itself, without what its edges pass."""
    return [*instr.operands, instr.guard.predicate] if instr.guard is not None else list(instr.operands)
