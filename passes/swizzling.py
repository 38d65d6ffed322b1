"""Puts the XOR of a swizzled address last, where it is one with a constant.

The addresses that a thread reads of a swizzled array differ in a constant that is XORed in, between additions::

    %t = xor.b32 %x, 16                            %c = mad.lo.s32 %x, 2, %row
    %a = mad.lo.s32 %t, 2, %row             ->     %d = mad.lo.s32 %slot, 16384, %c
    %b = mad.lo.s32 %slot, 16384, %a               %b = xor.b32 %d, 32

That is the same if what is added has no bits as low as the constant's: nothing is carried into or out of those. The sum
is the same for all constants then, so each address takes an XOR and no register of its own outside of a loop.

Alignments come from the instructions that make a value: of multiples, masks and the addresses of shared arrays.
"""

from __future__ import annotations

from ptxc.ir import opcodes
from ptxc.ir.kernel import Instr, Kernel
from ptxc.ir.types import B32
from ptxc.ir.values import Const, Operand, Sym, Value, integer

#: The types of integer arithmetic that is looked at.
_INTEGERS = ("s32", "u32", "b32")

#: The alignment of 0.
_MOST = 1 << 32

#: How many instructions deep an alignment is looked for.
_DEPTH = 8


class Swizzling:
    """The rules, for the kernel that is simplified; ``definitions`` are its instructions so far, by their results."""

    def __init__(self, kernel: Kernel, definitions: dict[Operand, Instr]) -> None:
        self.kernel = kernel
        self.definitions = definitions
        self.arrays = {array.name: array.align for array in kernel.shared}
        #: The alignments that were found.
        self.known: dict[Operand, int] = {}

    def after_sum(self, instr: Instr, kept: list[Instr]) -> bool:
        """Spell ``(x ^ c) * m + y * n`` as ``(x * m + y * n) ^ (c * m)`` if that is the same; whether it is.

        ``instr`` is an ``add``, or a ``mad.lo`` by a constant in the middle. The sum is appended to ``kept``.
        """
        if instr.results[0].type is not B32:
            return False
        if instr.op is opcodes.ADD:
            a, b = instr.operands
            return self._after(instr, a, 1, b, 1, kept) or self._after(instr, b, 1, a, 1, kept)
        a, factor, b = instr.operands
        times = factor.bits if type(factor) is Const else 0
        return self._after(instr, a, times, b, 1, kept) or self._after(instr, b, 1, a, times, kept)

    def _after(self, instr: Instr, turned: Operand, m: int, y: Operand, n: int, kept: list[Instr]) -> bool:
        inner = self.definitions.get(turned)
        if inner is None or inner.op is not opcodes.XOR or m < 1 or m & (m - 1) or y is turned:
            return False
        x, constant = inner.operands
        if type(constant) is not Const or constant.bits < 0:
            return False
        exchanged = constant.bits * m
        if exchanged >= self.alignment(y) * (n & -n):
            return False
        operands = tuple([x if operand is turned else operand for operand in instr.operands])
        total = self._alike(instr, operands, kept)
        instr.op, instr.mods, instr.operands = opcodes.XOR, ("b32",), (total, integer(B32, exchanged))
        return True

    def after_xor(self, instr: Instr, kept: list[Instr]) -> None:
        """Spell ``x ^ (y ^ c)`` as ``(x ^ y) ^ c``, and ``x ^ (y + c)`` if y has no bits as low as those of c."""
        a, b = instr.operands
        for x, turned in ((a, b), (b, a)):
            inner = self.definitions.get(turned)
            if inner is None or inner.op not in (opcodes.XOR, opcodes.ADD) or not _wraps(inner):
                continue
            y, c = inner.operands
            if type(c) is Const and x is not y and (inner.op is opcodes.XOR or 0 <= c.bits < self.alignment(y)):
                if type(x) is Const:
                    instr.operands = (y, integer(B32, x.bits ^ c.bits))
                else:
                    instr.operands = (self._alike(instr, (x, y), kept), c)
                return

    def _alike(self, instr: Instr, operands: tuple[Operand, ...], kept: list[Instr]) -> Value:
        """What the same instruction gives of other operands, computed before it."""
        value = self.kernel.value(B32, instr.results[0].hint)
        kept.append(Instr(instr.op, instr.mods, (value,), operands, loc=instr.loc))
        self.definitions[value] = kept[-1]
        return value

    def alignment(self, operand: Operand, depth: int = _DEPTH) -> int:
        """The largest power of two that is known to divide an integer of 32 bits."""
        if type(operand) is Const:
            return operand.bits & -operand.bits or _MOST
        if type(operand) is Sym:
            return self.arrays.get(operand.name, 1)
        found = self.known.get(operand)
        if found is None:
            instr = self.definitions.get(operand)
            found = self._alignment(instr, depth) if instr is not None and depth else 1
            self.known[operand] = found
        return found

    def _alignment(self, instr: Instr, depth: int) -> int:
        op = instr.op
        if not _wraps(instr):
            return 1
        known = [self.alignment(operand, depth - 1) for operand in instr.operands]
        if op in (opcodes.MUL, opcodes.MAD) and instr.mods[0] == "lo":
            return min(_MOST, known[0] * known[1], *known[2:])
        if op is opcodes.AND:
            return max(known)
        if op in (opcodes.MOV, opcodes.ADD, opcodes.SUB, opcodes.OR, opcodes.XOR, opcodes.SELP):
            return min(known[:2])
        return 1


def _wraps(instr: Instr) -> bool:
    """Whether an instruction computes with integers of 32 bits, or moves them, without saturating."""
    return instr.mods[-1] in _INTEGERS and "sat" not in instr.mods
