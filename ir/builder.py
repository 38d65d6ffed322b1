"""Appends instructions to a kernel: what the frontend and the passes that expand operations write IR with."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from ptxc.ir import opcodes
from ptxc.ir.kernel import Block, Edge, Guard, Instr, Kernel
from ptxc.ir.opcodes import Opcode
from ptxc.ir.types import B32, F32, OF_MODIFIER, PRED, Type
from ptxc.ir.values import Const, Operand, Value, integer, real


@cache
def modifiers(suffix: str) -> tuple[str, ...]:
    """The modifiers that a suffix such as ``rn.f32.s32`` spells."""
    return tuple(suffix.split("."))


class Builder:
    """Writes at the end of one block at a time; every instruction gets the current ``loc``."""

    __slots__ = ("block", "kernel", "loc")

    def __init__(self, kernel: Kernel, block: Block) -> None:
        self.kernel = kernel
        self.block = block
        #: The Kernel IR statement that is being lowered (see :class:`Instr`).
        self.loc: object = ""

    # ------------------------------------------------------------------------------------------ instructions

    def emit(
        self,
        op: Opcode,
        mods: tuple[str, ...],
        type: Type,
        operands: tuple[Operand, ...],
        hint: str = "t",
        guard: Guard | None = None,
    ) -> Value:
        """Append an instruction with one result of bank ``type``, named after ``hint``; return the result."""
        counters = self.kernel.names
        number = counters[hint] = counters.get(hint, -1) + 1
        result = Value(type, hint, number)
        self.block.instrs.append(Instr(op, mods, (result,), operands, (), guard, self.loc))
        return result

    def effect(
        self,
        op: Opcode,
        mods: tuple[str, ...] = (),
        operands: tuple[Operand, ...] = (),
        *,
        guard: Guard | None = None,
    ) -> None:
        """Append an instruction without a result."""
        self.block.instrs.append(Instr(op, mods, (), operands, (), guard, self.loc))

    def multi(
        self,
        op: Opcode,
        mods: tuple[str, ...],
        results: tuple[Value, ...],
        operands: tuple[Operand, ...],
        *,
        guard: Guard | None = None,
    ) -> tuple[Value, ...]:
        """Append an instruction with these results; return them."""
        self.block.instrs.append(Instr(op, mods, results, operands, (), guard, self.loc))
        return results

    # ----------------------------------------------------------------------------------------------- control

    def new_block(self, hint: str) -> Block:
        """A new block that nothing reaches yet. Its place in the kernel is where :meth:`start` puts it."""
        return Block(self.kernel.fresh(hint))

    def start(self, block: Block) -> None:
        """Put ``block`` after the blocks that the kernel has, and go on writing there."""
        self.kernel.blocks.append(block)
        self.block = block

    def branch(self, block: Block, args: Sequence[Operand] = ()) -> None:
        """End the block with a jump."""
        edge = Edge(block, tuple(args))
        self.block.instrs.append(Instr(opcodes.BRA, targets=(edge,), loc=self.loc))

    def branch_if(
        self,
        predicate: Operand,
        then: Block,
        otherwise: Block,
        then_args: Sequence[Operand] = (),
        otherwise_args: Sequence[Operand] = (),
    ) -> None:
        """End the block with a jump to ``then`` where ``predicate`` holds, else to ``otherwise``."""
        targets = (Edge(then, tuple(then_args)), Edge(otherwise, tuple(otherwise_args)))
        self.block.instrs.append(Instr(opcodes.BRA, (), (), (predicate,), targets=targets, loc=self.loc))

    def ret(self) -> None:
        """End the block with the end of the thread."""
        self.block.instrs.append(Instr(opcodes.RET, loc=self.loc))

    # ------------------------------------------------------------------------------------------- conveniences

    def binary(self, op: Opcode, suffix: str, a: Operand, b: Operand, hint: str = "t") -> Value:
        """``op.suffix a, b`` for an operation whose result has its operands' bank."""
        mods = modifiers(suffix)
        return self.emit(op, mods, OF_MODIFIER[mods[-1]], (a, b), hint)

    def unary(self, op: Opcode, suffix: str, a: Operand, hint: str = "t") -> Value:
        """``op.suffix a`` for an operation whose result has its operand's bank."""
        mods = modifiers(suffix)
        return self.emit(op, mods, OF_MODIFIER[mods[-1]], (a,), hint)

    def fma(self, suffix: str, a: Operand, b: Operand, c: Operand, hint: str = "t") -> Value:
        """``fma.suffix a, b, c``."""
        mods = modifiers(suffix)
        return self.emit(opcodes.FMA, mods, OF_MODIFIER[mods[-1]], (a, b, c), hint)

    def setp(self, suffix: str, a: Operand, b: Operand, hint: str = "p") -> Value:
        """``setp.suffix a, b``, such as ``setp("lt.s32", i, n)``."""
        return self.emit(opcodes.SETP, modifiers(suffix), PRED, (a, b), hint)

    def selp(self, suffix: str, a: Operand, b: Operand, predicate: Operand, hint: str = "t") -> Value:
        """``a`` where ``predicate`` holds, else ``b``."""
        type = OF_MODIFIER[suffix]
        return self.emit(opcodes.SELP, (suffix,), type, (a, b, predicate), hint)

    def cvt(self, suffix: str, a: Operand, hint: str = "t") -> Value:
        """``cvt.suffix a``, such as ``cvt("rn.f32.s32", i)``; the last but one modifier is the result's type."""
        mods = modifiers(suffix)
        return self.emit(opcodes.CVT, mods, OF_MODIFIER[mods[-2]], (a,), hint)

    @staticmethod
    def f32(value: float) -> Const:
        """An f32 constant."""
        return real(F32, value)

    @staticmethod
    def int32(value: int) -> Const:
        """A 32-bit integer constant."""
        return integer(B32, value)
