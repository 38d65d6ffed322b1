"""Drops what nobody needs.

An instruction is needed if it has an effect, ends a block, or defines a value that something needed uses; a block
parameter is needed if something uses it, and then so is what is passed for it. Loads are not effects, nor are shuffles
and the products of tensor cores, which all threads then do without. Ignored results of ``atom`` make it ``red``.
"""

from __future__ import annotations

from ptxc.ir import cfg, opcodes
from ptxc.ir.kernel import Block, Edge, Instr, Kernel
from ptxc.ir.values import Mem, Operand

_EFFECTS = frozenset(("WRITE", "SYNC", "END"))


def run(kernel: Kernel) -> None:
    """Drop instructions and block parameters that nothing needs."""
    needed, kept = _needed(kernel)
    for block in kernel.blocks:
        # What cannot be reached makes nothing else needed.
        block.instrs = kept[block] if block in kept else _walk(block, {*needed})
        _drop_arguments(block.instrs[-1], needed)
    for block in kernel.blocks:
        block.params = [value for value in block.params if value in needed]
        for instr in block.instrs:
            if (
                instr.op is opcodes.ATOM
                and instr.results[0] not in needed
                and opcodes.RED.modifiers.issuperset(instr.mods)
            ):
                instr.op, instr.results = opcodes.RED, ()


def _drop_arguments(terminator: Instr, needed: set[Operand]) -> None:
    if any(edge.args for edge in terminator.targets):
        terminator.targets = tuple(
            Edge(block, tuple([arg for arg, value in zip(args, block.params, strict=True) if value in needed]))
            for block, args in terminator.targets
        )


def _needed(kernel: Kernel) -> tuple[set[Operand], dict[Block, list[Instr]]]:
    """Everything that something with an effect depends on (constants among it), and so what stays of each block that
    can be reached.

    In postorder every instruction comes after those that use it but for what goes round a loop, so one walk suffices
    where no back edge passes something new.
    """
    order = cfg.reverse_postorder(kernel)
    position = {block: index for index, block in enumerate(order)}
    back = [
        edge
        for index, block in enumerate(order)
        for edge in block.instrs[-1].targets
        if edge.args and position[edge.block] <= index
    ]
    order.reverse()
    needed: set[Operand] = set()
    kept: dict[Block, list[Instr]] = {}
    growing = True
    while growing:
        for block in order:
            kept[block] = _walk(block, needed)
        size = len(needed)
        for edge in back:
            _pass(edge, needed)
        growing = len(needed) > size
    return needed, kept


def _walk(block: Block, needed: set[Operand]) -> list[Instr]:
    """Add what the block needs for what its successors need; the instructions that stay for that."""
    kept: list[Instr] = []
    for edge in block.instrs[-1].targets:
        _pass(edge, needed)
    for instr in reversed(block.instrs):
        op = instr.op
        if op.effect in _EFFECTS or not needed.isdisjoint(instr.results):
            kept.append(instr)
            needed.update(instr.operands)
            if op.addresses:
                for operand in instr.operands:
                    if type(operand) is Mem:
                        needed.add(operand.base)
            if instr.guard is not None:
                needed.add(instr.guard.predicate)
    kept.reverse()
    return kept


def _pass(edge: Edge, needed: set[Operand]) -> None:
    """Add what an edge passes for parameters that are needed."""
    needed.update([arg for value, arg in zip(edge.block.params, edge.args, strict=True) if value in needed])
