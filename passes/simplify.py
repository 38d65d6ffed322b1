"""Computes what is constant, forwards copies, and spells operations as cheaper ones.

One walk in reverse postorder; each instruction sees its operands already simplified. Rules are found by opcode:

- constants: ``add.s32 3, 4`` is 7; ``setp.lt.s32 3, 4`` is true; ``selp`` and ``bra`` with a constant predicate choose;
- neutral operands: ``x + 0``, ``x * 1``, ``x & -1`` are x; ``x * 0`` is 0;
- copies: uses of ``mov %b, %a`` take ``%a``; a block parameter that is passed one value only is that value;
- ``div.u32`` and ``rem.u32`` by a constant: shifts and masks for powers of two, else a multiplication by the inverse
  (:mod:`ptxc.passes.division`);
- a comparison of ``selp 1, 0`` with zero is its predicate.

Float arithmetic is left alone but for ``x * 1``: rounding, signed zeros and NaN make the rest different.
"""

from __future__ import annotations

from collections.abc import Callable

from ptxc.ir import cfg, opcodes, values
from ptxc.ir.kernel import Block, Edge, Instr, Kernel
from ptxc.ir.opcodes import Opcode
from ptxc.ir.rewrite import Substitution
from ptxc.ir.types import F32, F64, PRED
from ptxc.ir.values import FALSE, TRUE, Const, Operand, Value, integer, real_of
from ptxc.passes import division


def run(kernel: Kernel) -> None:
    """Simplify every instruction, then drop blocks that nothing reaches any more."""
    _Simplifier(kernel).run()


class _Simplifier:
    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.substitution = Substitution()
        self.definitions: dict[Operand, Instr] = {}

    def run(self) -> None:
        order = cfg.reverse_postorder(self.kernel)
        for block in order:
            self.block(block)
        self.drop_unreachable()
        self.parameters()
        self.substitution.apply_all(self.kernel)

    def block(self, block: Block) -> None:
        kept: list[Instr] = []
        for instr in block.instrs:
            self.substitution.apply(instr)
            rule = _RULES.get(instr.op)
            if rule is not None and instr.guard is None:
                replacement = rule(self, instr, kept)
                if replacement is not None:
                    self.substitution.replace(instr.results[0], replacement)
                    continue
            if instr.results:
                self.definitions[instr.results[0]] = instr
            kept.append(instr)
        block.instrs = kept
        self.terminator(block.instrs[-1])

    def terminator(self, instr: Instr) -> None:
        """A branch with a constant predicate, or to one place either way, is a jump."""
        if len(instr.targets) != 2:
            return
        (predicate,) = instr.operands
        then, otherwise = instr.targets
        if isinstance(predicate, Const):
            instr.targets, instr.operands = ((then if predicate == TRUE else otherwise),), ()
        elif then == otherwise:
            instr.targets, instr.operands = (then,), ()

    def drop_unreachable(self) -> None:
        reachable = set(cfg.reverse_postorder(self.kernel))
        self.kernel.blocks = [block for block in self.kernel.blocks if block in reachable]

    def parameters(self) -> None:
        """Block parameters that every way in passes the same value (or the parameter itself)."""
        before = cfg.predecessors(self.kernel)
        for block in self.kernel.blocks:
            if not block.params:
                continue
            edges = [
                edge for pred in dict.fromkeys(before[block]) for edge in pred.terminator.targets if edge.block is block
            ]
            keep = []
            for index, value in enumerate(block.params):
                passed = {self.substitution.resolve(edge.args[index]) for edge in edges} - {value}
                if len(passed) == 1:
                    self.substitution.replace(value, passed.pop())
                else:
                    keep.append(index)
            if len(keep) < len(block.params):
                block.params = [block.params[index] for index in keep]
                for pred in dict.fromkeys(before[block]):
                    terminator = pred.terminator
                    terminator.targets = tuple(
                        Edge(block, tuple([edge.args[index] for index in keep])) if edge.block is block else edge
                        for edge in terminator.targets
                    )


# ----------------------------------------------------------------------------------------------------------- rules
# A rule gives what stands for the instruction's result, or None where the instruction stays (changed or not). It may
# append instructions to ``kept`` before it.

_Rule = Callable[[_Simplifier, Instr, list[Instr]], Operand | None]


def _mov(s: _Simplifier, instr: Instr, kept: list[Instr]) -> Operand | None:
    (operand,) = instr.operands
    return operand if isinstance(operand, (Value, Const)) else None


def _is_integer(instr: Instr) -> bool:
    return not instr.results[0].type.is_float and instr.mods[-1][0] in "usb"


def _add(s: _Simplifier, instr: Instr, kept: list[Instr]) -> Operand | None:
    if not _is_integer(instr):
        return None
    a, b = instr.operands
    if isinstance(a, Const):
        a, b = b, a
    if isinstance(b, Const):
        if isinstance(a, Const):
            return integer(b.type, a.bits + b.bits)
        if b.bits == 0:
            return a
        inner = s.definitions.get(a)
        if inner is not None and inner.op is opcodes.ADD and inner.mods == instr.mods:
            # (x + c) + d: one addition, and x's other sums meet it.
            x, c = inner.operands
            if isinstance(c, Const):
                instr.operands = (x, integer(c.type, c.bits + b.bits))
    return None


def _sub(s: _Simplifier, instr: Instr, kept: list[Instr]) -> Operand | None:
    if not _is_integer(instr):
        return None
    a, b = instr.operands
    if isinstance(b, Const):
        if isinstance(a, Const):
            return integer(b.type, a.bits - b.bits)
        if b.bits == 0:
            return a
    return integer(instr.results[0].type, 0) if a is b else None


def _mul(s: _Simplifier, instr: Instr, kept: list[Instr]) -> Operand | None:
    a, b = instr.operands
    if isinstance(a, Const):
        a, b = b, a
    if not isinstance(b, Const):
        return None
    if instr.results[0].type.is_float:
        return a if "ftz" not in instr.mods and b.type in (F32, F64) and real_of(b) == 1.0 else None
    kind = instr.mods[-1]
    wide = instr.mods[0] == "wide"
    if instr.mods[0] == "hi":
        return None
    if isinstance(a, Const):
        return integer(instr.results[0].type, _number(a, kind) * _number(b, kind))
    if b.bits == 0:
        return integer(instr.results[0].type, 0)
    return a if b.bits == 1 and not wide else None


def _mad(s: _Simplifier, instr: Instr, kept: list[Instr]) -> Operand | None:
    a, b, c = instr.operands
    kind, bank = instr.mods[-1], instr.results[0].type
    if isinstance(a, Const):
        a, b = b, a
    if not isinstance(b, Const) or instr.mods[0] == "hi":
        return None
    if isinstance(a, Const):
        instr.op, instr.mods = opcodes.ADD, (f"s{bank.bits}",)
        instr.operands = (c, integer(bank, _number(a, kind) * _number(b, kind)))
        return _add(s, instr, kept)
    if b.bits == 0:
        return c
    if b.bits == 1 and instr.mods[0] == "lo":
        instr.op, instr.mods, instr.operands = opcodes.ADD, (f"s{bank.bits}",), (c, a)
    elif c == integer(bank, 0):
        instr.op, instr.operands = opcodes.MUL, (a, b)
    return None


def _divide(s: _Simplifier, instr: Instr, kept: list[Instr]) -> Operand | None:
    a, b = instr.operands
    if instr.results[0].type.is_float or not isinstance(b, Const) or b.bits == 0:
        return None
    kind = instr.mods[-1]
    divisor = _number(b, kind)
    if isinstance(a, Const):
        number = _number(a, kind)
        quotient = abs(number) // abs(divisor) * (1 if (number < 0) == (divisor < 0) else -1)
        return integer(b.type, quotient if instr.op is opcodes.DIV else number - quotient * divisor)
    if divisor == 1:
        return a if instr.op is opcodes.DIV else integer(b.type, 0)
    if kind in ("u32", "u64"):
        division.expand(s.kernel, instr, divisor, kept)
    return None


def _bits(s: _Simplifier, instr: Instr, kept: list[Instr]) -> Operand | None:
    a, b = instr.operands
    if isinstance(a, Const):
        a, b = b, a
    if a is b:
        return integer(instr.results[0].type, 0) if instr.op is opcodes.XOR else a
    if not isinstance(b, Const):
        return None
    if isinstance(a, Const):
        both = {opcodes.AND: a.bits & b.bits, opcodes.OR: a.bits | b.bits, opcodes.XOR: a.bits ^ b.bits}
        return integer(b.type, both[instr.op])
    if instr.op is opcodes.AND:
        return b if b.bits == 0 else a if b.bits == -1 else None
    if instr.op is opcodes.OR:
        return a if b.bits == 0 else b if b.bits == -1 else None
    return a if b.bits == 0 else None


def _shift(s: _Simplifier, instr: Instr, kept: list[Instr]) -> Operand | None:
    a, b = instr.operands
    if not isinstance(b, Const):
        return None
    if b.bits == 0:
        return a
    if not isinstance(a, Const):
        return None
    kind, width = instr.mods[-1], a.type.bits
    by = min(b.bits & 0xFFFFFFFF, width)
    if instr.op is opcodes.SHL:
        return integer(a.type, a.bits << by)
    number = a.bits if kind[0] == "s" else a.bits & ((1 << width) - 1)
    return integer(a.type, number >> by)


def _min_max(s: _Simplifier, instr: Instr, kept: list[Instr]) -> Operand | None:
    a, b = instr.operands
    if a is b and not instr.results[0].type.is_float:
        return a
    if not (isinstance(a, Const) and isinstance(b, Const)) or instr.results[0].type.is_float or not _is_integer(instr):
        return None
    kind = instr.mods[-1]
    choose = min if instr.op is opcodes.MIN else max
    return choose((a, b), key=lambda constant: _number(constant, kind))


def _setp(s: _Simplifier, instr: Instr, kept: list[Instr]) -> Operand | None:
    a, b = instr.operands
    relation, kind = instr.mods[0], instr.mods[-1]
    if isinstance(a, Const) and isinstance(b, Const) and not a.type.is_float and kind[0] in "us":
        x, y = _number(a, kind), _number(b, kind)
        holds = {"eq": x == y, "ne": x != y, "lt": x < y, "le": x <= y, "gt": x > y, "ge": x >= y}.get(relation)
        return None if holds is None else TRUE if holds else FALSE
    if relation in ("ne", "neu") and isinstance(b, Const) and b.bits == 0:
        inner = s.definitions.get(a)
        if inner is not None and inner.op is opcodes.SELP:
            yes, no, predicate = inner.operands
            if no == b and isinstance(yes, Const) and yes.bits != 0:
                return predicate
    return None


def _selp(s: _Simplifier, instr: Instr, kept: list[Instr]) -> Operand | None:
    a, b, predicate = instr.operands
    if a == b:
        return a
    return None if not isinstance(predicate, Const) else a if predicate == TRUE else b


def _not(s: _Simplifier, instr: Instr, kept: list[Instr]) -> Operand | None:
    (a,) = instr.operands
    if isinstance(a, Const):
        return integer(a.type, ~a.bits)
    inner = s.definitions.get(a)
    if inner is not None and inner.op is opcodes.NOT:
        return inner.operands[0]
    if inner is not None and inner.op is opcodes.SETP and instr.results[0].type is PRED:
        relation, kind = inner.mods[0], inner.mods[-1]
        opposite = _OPPOSITE.get(relation)
        if opposite is not None:
            opposite = _UNORDERED.get(opposite, opposite) if kind[0] not in "usb" else opposite
            instr.op, instr.mods, instr.operands = opcodes.SETP, (opposite, *inner.mods[1:]), inner.operands
    return None


#: The opposite of a comparison; of floats it must hold for NaN.
_OPPOSITE = {"eq": "ne", "ne": "eq", "lt": "ge", "ge": "lt", "gt": "le", "le": "gt"}
_UNORDERED = {"ne": "neu", "ge": "geu", "lt": "ltu", "le": "leu", "gt": "gtu", "eq": "equ"}


def _cvt(s: _Simplifier, instr: Instr, kept: list[Instr]) -> Operand | None:
    (a,) = instr.operands
    to, source = instr.mods[-2:]
    if to in ("u32", "s32") and source in ("u64", "s64"):
        inner = s.definitions.get(a)
        if inner is not None and inner.op is opcodes.CVT and inner.mods[-1] in ("u32", "s32"):
            return inner.operands[0]
    if not isinstance(a, Const) or a.type.is_float:
        return None
    if to[0] in "us" and source[0] in "us":
        bits, number = int(to[1:]), _number(Const(a.type, a.bits), source)
        if source[1:] == "16":
            number = ((a.bits + 0x8000) & 0xFFFF) - 0x8000 if source[0] == "s" else a.bits & 0xFFFF
        bank = instr.results[0].type
        return integer(bank, number if bits >= 32 else number & ((1 << bits) - 1))
    if to in ("f32", "f64") and source[0] in "us" and instr.mods[0] == "rn":
        exact = _number(a, source)
        # Python rounds an integer to f64 first; below 2^53 that is exact, so f32 is rounded once.
        return values.real(instr.results[0].type, float(exact)) if abs(exact) < 2**53 else None
    return None


def _number(constant: Const, kind: str) -> int:
    """A constant as the instruction type reads it."""
    return constant.bits if kind[0] == "s" else constant.bits & ((1 << constant.type.bits) - 1)


_RULES: dict[Opcode, _Rule] = {
    opcodes.MOV: _mov,
    opcodes.ADD: _add,
    opcodes.SUB: _sub,
    opcodes.MUL: _mul,
    opcodes.MAD: _mad,
    opcodes.DIV: _divide,
    opcodes.REM: _divide,
    opcodes.AND: _bits,
    opcodes.OR: _bits,
    opcodes.XOR: _bits,
    opcodes.SHL: _shift,
    opcodes.SHR: _shift,
    opcodes.MIN: _min_max,
    opcodes.MAX: _min_max,
    opcodes.SETP: _setp,
    opcodes.SELP: _selp,
    opcodes.NOT: _not,
    opcodes.CVT: _cvt,
}
