"""Backward slices: what a kernel computes for the sake of some of its instructions."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ptxc.ir.kernel import Block, Edge, Instr
from ptxc.ir.opcodes import Opcode
from ptxc.ir.values import Mem, Operand


def backward_slice(order: Sequence[Block], roots: Collection[Opcode]) -> tuple[set[Operand], dict[Block, list[Instr]]]:
    """Everything that the instructions whose opcode is a root depend on (constants among it); and of each block those
    instructions and the ones that define it. ``order`` is the kernel's reverse postorder.

    In postorder every instruction comes after those that use it but for what goes round a loop, so one walk suffices
    where no back edge passes something new.
    """
    position = {block: index for index, block in enumerate(order)}
    back = [
        edge
        for index, block in enumerate(order)
        for edge in block.instrs[-1].targets
        if edge.args and position[edge.block] <= index
    ]
    #: What goes round for each parameter.
    rounds: dict[Operand, list[Operand]] = {}
    for edge in back:
        for value, arg in zip(edge.block.params, edge.args, strict=True):
            rounds.setdefault(value, []).append(arg)
    needed: set[Operand] = set()
    kept: dict[Block, list[Instr]] = {}
    growing = True
    while growing:
        for block in reversed(order):
            kept[block] = slice_block(block, needed, roots)
        growing = _pass_round(rounds, needed)
    return needed, kept


def slice_block(block: Block, needed: set[Operand], roots: Collection[Opcode]) -> list[Instr]:
    """Add what the block's roots, and what its successors need of it, depend on; the instructions for that."""
    kept: list[Instr] = []
    for edge in block.instrs[-1].targets:
        _pass(edge, needed)
    for instr in reversed(block.instrs):
        op = instr.op
        if op in roots or not needed.isdisjoint(instr.results):
            kept.append(instr)
            for operand in instr.operands:
                needed.add(operand.base if type(operand) is Mem else operand)
            if instr.guard is not None:
                needed.add(instr.guard.predicate)
    kept.reverse()
    return kept


def _pass_round(rounds: dict[Operand, list[Operand]], needed: set[Operand]) -> bool:
    """Add what goes round for parameters that are needed; whether that was more. A parameter may go round itself."""
    pending = [value for value in rounds if value in needed]
    size = len(needed)
    for value in pending:
        for arg in rounds[value]:
            if arg not in needed:
                needed.add(arg)
                if arg in rounds:
                    pending.append(arg)
    return len(needed) > size


def _pass(edge: Edge, needed: set[Operand]) -> None:
    """Add what an edge passes for parameters that are needed."""
    if not needed.isdisjoint(edge.block.params):
        needed.update([arg for value, arg in zip(edge.block.params, edge.args, strict=True) if value in needed])
