"""Replacing values: what a pass that finds a better operand uses."""

from __future__ import annotations

from collections.abc import KeysView, Sequence

from ptxc.ir.kernel import Edge, Guard, Instr, Kernel
from ptxc.ir.opcodes import takes_constants
from ptxc.ir.values import Const, Mem, Operand, Value


class Substitution:
    """Values that stand for others. Chains are followed when a value is replaced, so each look-up is one step."""

    __slots__ = ("map", "replaced")

    def __init__(self) -> None:
        self.map: dict[Operand, Operand] = {}
        #: The values that others stand for, always those of :attr:`map`. Whoever walks over all instructions need not
        #: :meth:`apply` this to a plain one that uses none of them.
        self.replaced: KeysView[Operand] = self.map.keys()

    def replace(self, value: Value, operand: Operand) -> None:
        """Let ``operand`` stand for ``value`` wherever it is used."""
        self.map[value] = self.map.get(operand, operand)

    def replace_all(self, values: Sequence[Value], operands: Sequence[Operand]) -> None:
        """:meth:`replace`, pair by pair."""
        for value, operand in zip(values, operands, strict=True):
            self.replace(value, operand)

    def resolve(self, operand: Operand) -> Operand:
        """What stands for ``operand`` now. An address keeps a base that a constant stands for."""
        if type(operand) is Mem:
            base = self.resolve(operand.base)
            return Mem(base, operand.offset) if isinstance(base, Value) else operand
        while operand in self.map:
            operand = self.map[operand]
        return operand

    def apply(self, instr: Instr) -> None:
        """Replace the values that an instruction uses."""
        map_ = self.map
        if not map_:
            return
        operands = instr.operands
        replaced = self.replaced
        if not replaced.isdisjoint(operands) or (
            instr.op.addresses and not replaced.isdisjoint([each.base for each in operands if type(each) is Mem])
        ):
            resolved = [self.resolve(operand) for operand in operands]
            if not takes_constants(instr.op, instr.mods):
                resolved = [o if isinstance(new, Const) else new for o, new in zip(operands, resolved, strict=True)]
            instr.operands = tuple(resolved)
        if instr.guard is not None and instr.guard.predicate in map_:
            predicate = self.resolve(instr.guard.predicate)
            if isinstance(predicate, Value):
                instr.guard = Guard(predicate, instr.guard.negated)
        if instr.targets and not all([replaced.isdisjoint(edge.args) for edge in instr.targets]):
            instr.targets = tuple(
                [
                    Edge(block, tuple([self.resolve(arg) for arg in args])) if args else Edge(block)
                    for block, args in instr.targets
                ]
            )

    def apply_all(self, kernel: Kernel) -> None:
        """Replace values in every instruction."""
        if self.map:
            for block in kernel.blocks:
                for instr in block.instrs:
                    self.apply(instr)
