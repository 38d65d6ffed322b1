"""Computes what is constant, forwards copies, and spells operations as cheaper ones.

One walk in reverse postorder; each instruction sees its operands already simplified. Rules are found by opcode:

- constants: ``add.s32 3, 4`` is 7; ``setp.lt.s32 3, 4`` is true; ``selp`` and ``bra`` with a constant predicate choose;
- neutral operands: ``x + 0``, ``x * 1``, ``x & -1`` are x; ``x * 0`` is 0;
- copies: uses of ``mov %b, %a`` take ``%a``; a block parameter that is passed one value only is that value;
- guards: a constant one goes, alone or with its instruction;
- ``div.u32`` and ``rem.u32`` by a constant: shifts and masks for powers of two, else a multiplication by the inverse
  (:mod:`ptxc.passes.division`), once for both in a block;
- ``x / d * d + x % d`` is x, and so with both times m: a cell's number that was taken apart into coordinates;
- the XOR of a swizzled address comes last (:mod:`ptxc.passes.swizzling`);
- a comparison of ``selp 1, 0`` with zero is its predicate;
- a byte is stored from the 16-bit register that it is in, not from a wider copy.

Float arithmetic is left alone but for ``x * 1`` and halves that become f32 and halves again, of which a NaN keeps its
bits: rounding, signed zeros and NaN make the rest different. So is what saturates. An address's base stays a register:
a ``mov`` gives it its constant.
"""

from __future__ import annotations

from collections.abc import Callable

from ptxc.ir import cfg, opcodes, values
from ptxc.ir.kernel import Block, Edge, Instr, Kernel
from ptxc.ir.opcodes import REGISTERS_ONLY, Opcode
from ptxc.ir.rewrite import Substitution
from ptxc.ir.types import B32, PRED
from ptxc.ir.values import FALSE, TRUE, Const, Mem, Operand, Value, integer, real_of
from ptxc.passes import division
from ptxc.passes.swizzling import Swizzling


def run(kernel: Kernel) -> None:
    """Simplify every instruction, then drop blocks that nothing reaches any more."""
    _Simplifier(kernel).run()


class _Simplifier:
    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.substitution = Substitution()
        #: What defines each value, where that is an instruction that rules look at: one that has rules itself.
        self.definitions: dict[Operand, Instr] = {}
        self.swizzling = Swizzling(kernel, self.definitions)
        #: The quotients by constants in the block at hand, by what is divided and by what.
        self.quotients: dict[tuple[Operand, int], Value] = {}
        #: Whether a branch has become a jump.
        self.decided = False
        #: What has to be a register.
        self.registers: set[Operand] = set()
        #: The same when only parameters are left to replace; None until it is asked for.
        self.parameter_registers: set[Operand] | None = None

    def run(self) -> None:
        self.registers = self.find_registers()
        for block in cfg.reverse_postorder(self.kernel):
            self.block(block)
        if self.decided:
            self.drop_unreachable()
        if self.parameters():
            while self.parameters():
                pass
            self.substitution.apply_all(self.kernel)

    def find_registers(self) -> set[Operand]:
        """What addresses memory, guards an instruction, or is an operand of one that takes no constants."""
        found: set[Operand] = set()
        for block in self.kernel.blocks:
            for instr in block.instrs:
                op = instr.op
                if not op.takes_constants and (op.registers_only or instr.mods[-1] in REGISTERS_ONLY):
                    found.update(instr.operands)
                if op.addresses:
                    found.update([operand.base for operand in instr.operands if type(operand) is Mem])
                if instr.guard is not None:
                    found.add(instr.guard.predicate)
        return found

    def block(self, block: Block) -> None:
        kept: list[Instr] = []
        self.quotients = {}
        replaced = self.substitution.replaced
        for instr in block.instrs:
            op = instr.op
            if not op.plain or instr.guard is not None or not replaced.isdisjoint(instr.operands):
                self.substitution.apply(instr)
            if instr.guard is not None and not self.may_execute(instr):
                for value in instr.results:
                    self.replace(value, Const(value.type, 0), instr, kept)
                continue
            rule = _RULES.get(op)
            if rule is not None:
                replacement = rule(self, instr, kept) if instr.guard is None else None
                if replacement is not None:
                    self.replace(instr.results[0], replacement, instr, kept)
                    continue
                self.definitions[instr.results[0]] = instr
            elif instr.op is opcodes.ST:
                self.store(instr)
            kept.append(instr)
        block.instrs = kept
        self.terminator(block.instrs[-1])

    def store(self, instr: Instr) -> None:
        """A byte that a 16-bit register was widened for is stored from that."""
        if instr.mods[-1] == "u8" and len(instr.operands) == 2:
            widened = self.definitions.get(instr.operands[1])
            if widened is not None and widened.op is opcodes.CVT and widened.mods == ("u32", "u16"):
                source = widened.operands[0]
                if isinstance(source, Value):
                    instr.mods, instr.operands = (*instr.mods[:-1], "b8"), (instr.operands[0], source)

    def may_execute(self, instr: Instr) -> bool:
        """Whether a guarded instruction may execute; if it always does, its guard goes."""
        assert instr.guard is not None
        predicate = self.substitution.resolve(instr.guard.predicate)
        if not isinstance(predicate, Const):
            return True
        if (predicate == TRUE) is instr.guard.negated:
            return False
        instr.guard = None
        return True

    def replace(self, value: Value, operand: Operand, instr: Instr, kept: list[Instr]) -> None:
        """Let ``operand`` stand for a result of ``instr``, which is not kept."""
        self.substitution.replace(value, operand)
        if isinstance(operand, Const) and value in self.registers:
            kept.append(Instr(opcodes.MOV, (value.type.name,), (value,), (operand,), loc=instr.loc))

    def terminator(self, instr: Instr) -> None:
        """A branch with a constant predicate, or to one place either way, is a jump."""
        if len(instr.targets) != 2:
            return
        (predicate,) = instr.operands
        then, otherwise = instr.targets
        if isinstance(predicate, Const):
            instr.targets, instr.operands = ((then if predicate == TRUE else otherwise),), ()
            self.decided = True
        elif then == otherwise:
            instr.targets, instr.operands = (then,), ()

    def drop_unreachable(self) -> None:
        reachable = set(cfg.reverse_postorder(self.kernel))
        self.kernel.blocks = [block for block in self.kernel.blocks if block in reachable]

    def parameters(self) -> bool:
        """Replace block parameters that every way in passes the same value (or the parameter itself).

        Whether there was one: then another may be one now.
        """
        before = cfg.predecessors(self.kernel)
        resolve = self.substitution.resolve
        found = False
        for block in self.kernel.blocks:
            if not block.params:
                continue
            edges = [
                edge for pred in dict.fromkeys(before[block]) for edge in pred.terminator.targets if edge.block is block
            ]
            keep: list[int] = []
            constants: list[Instr] = []
            for index, value in enumerate(block.params):
                passed = {resolve(edge.args[index]) for edge in edges}
                passed.discard(value)
                operand = passed.pop() if len(passed) == 1 else None
                if operand is None:
                    keep.append(index)
                elif isinstance(operand, Const) and self.is_register(value):
                    # One instruction in place of a register that is held, and merged with its like.
                    loc = block.instrs[0].loc
                    constants.append(Instr(opcodes.MOV, (value.type.name,), (value,), (operand,), loc=loc))
                else:
                    self.substitution.replace(value, operand)
                    if self.parameter_registers is not None and value in self.parameter_registers:
                        self.parameter_registers.add(operand)
            if len(keep) < len(block.params):
                found = True
                block.instrs[:0] = constants
                block.params = [block.params[index] for index in keep]
                for pred in dict.fromkeys(before[block]):
                    terminator = pred.terminator
                    terminator.targets = tuple(
                        Edge(block, tuple([edge.args[index] for index in keep])) if edge.block is block else edge
                        for edge in terminator.targets
                    )
        return found

    def is_register(self, parameter: Value) -> bool:
        """Whether a parameter has to be a register."""
        if self.parameter_registers is None:
            self.parameter_registers = {self.substitution.resolve(value) for value in self.find_registers()}
        return parameter in self.parameter_registers


# ----------------------------------------------------------------------------------------------------------- rules
# A rule gives what stands for the instruction's result, or None where the instruction stays (changed or not). It may
# append instructions to ``kept`` before it.

_Rule = Callable[[_Simplifier, Instr, list[Instr]], Operand | None]


def _mov(s: _Simplifier, instr: Instr, kept: list[Instr]) -> Operand | None:
    (operand,) = instr.operands
    return operand if isinstance(operand, (Value, Const)) else None


def _is_integer(instr: Instr) -> bool:
    """Whether an instruction computes with integers that wrap around."""
    return instr.mods[-1] in _INTEGERS and "sat" not in instr.mods


def _add(s: _Simplifier, instr: Instr, kept: list[Instr]) -> Operand | None:
    if not _is_integer(instr):
        return None
    a, b = instr.operands
    if isinstance(a, Const):
        a, b = instr.operands = (b, a)
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
                total = integer(c.type, c.bits + b.bits)
                if total.bits == 0:
                    return x
                instr.operands = (x, total)
        return None
    if s.swizzling.after_sum(instr, kept):
        return None
    for product, rest in ((a, b), (b, a)):
        factors = _product(s, product)
        whole = division.whole(s.kernel, s.definitions, kept, *factors, rest, 1) if factors is not None else None
        if whole is not None:
            return whole
    return None


def _product(s: _Simplifier, value: Operand) -> tuple[Operand, int] | None:
    """What ``value`` is the product of, if it is one of integers by a constant."""
    instr = s.definitions.get(value)
    if instr is None or instr.op is not opcodes.MUL or instr.mods[0] != "lo" or not _is_integer(instr):
        return None
    a, b = instr.operands
    return (a, b.bits) if isinstance(b, Const) else None


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
    kind, bank = instr.mods[-1], instr.results[0].type
    if kind in ("f32", "f64"):
        return a if real_of(b) == 1.0 and "ftz" not in instr.mods and "sat" not in instr.mods else None
    if kind not in _INTEGERS or instr.mods[0] == "hi":
        return None
    if isinstance(a, Const):
        return integer(bank, _number(a.bits, kind) * _number(b.bits, kind))
    if b.bits == 0:
        return integer(bank, 0)
    return a if b.bits == 1 and instr.mods[0] == "lo" else None


def _mad(s: _Simplifier, instr: Instr, kept: list[Instr]) -> Operand | None:
    a, b, c = instr.operands
    kind, bank = instr.mods[-1], instr.results[0].type
    if isinstance(a, Const):
        a, b = b, a
        instr.operands = (a, b, c)
    if not isinstance(b, Const) or instr.mods[0] == "hi":
        return None
    if isinstance(a, Const):
        instr.op, instr.mods = opcodes.ADD, (f"s{bank.bits}",)
        instr.operands = (c, integer(bank, _number(a.bits, kind) * _number(b.bits, kind)))
        return _add(s, instr, kept)
    if b.bits == 0:
        return c
    if instr.mods[0] == "lo":
        if s.swizzling.after_sum(instr, kept):
            return None
        whole = division.whole(s.kernel, s.definitions, kept, a, b.bits, c, 1)
        if whole is not None:
            return whole
        factors = _product(s, c)
        whole = division.whole(s.kernel, s.definitions, kept, *factors, a, b.bits) if factors is not None else None
        if whole is not None:
            instr.op, instr.operands = opcodes.MUL, (whole, b)
            return _mul(s, instr, kept)
    if b.bits == 1 and instr.mods[0] == "lo":
        instr.op, instr.mods, instr.operands = opcodes.ADD, (f"s{bank.bits}",), (c, a)
    elif c == integer(bank, 0):
        instr.op, instr.operands = opcodes.MUL, (a, b)
    return None


def _divide(s: _Simplifier, instr: Instr, kept: list[Instr]) -> Operand | None:
    a, b = instr.operands
    kind = instr.mods[-1]
    if kind not in _INTEGERS or not isinstance(b, Const) or b.bits == 0:
        return None
    divisor = _number(b.bits, kind)
    if isinstance(a, Const):
        number = _number(a.bits, kind)
        quotient = abs(number) // abs(divisor) * (1 if (number < 0) == (divisor < 0) else -1)
        return integer(b.type, quotient if instr.op is opcodes.DIV else number - quotient * divisor)
    if divisor == 1:
        return a if instr.op is opcodes.DIV else integer(b.type, 0)
    if kind in ("u32", "u64"):
        known = s.quotients.get((a, divisor))
        if known is not None and instr.op is opcodes.DIV:
            return known
        made = division.expand(s.kernel, instr, divisor, known, kept)
        if made is not None:
            s.quotients[a, divisor] = made
    return None


def _bits(s: _Simplifier, instr: Instr, kept: list[Instr]) -> Operand | None:
    a, b = instr.operands
    if isinstance(a, Const):
        a, b = b, a
    if a is b:
        return integer(instr.results[0].type, 0) if instr.op is opcodes.XOR else a
    if instr.op is opcodes.XOR and instr.results[0].type is B32 and not (type(b) is Const and b.bits == 0):
        instr.operands = (a, b)
        s.swizzling.after_xor(instr, kept)
        a, b = instr.operands
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
    if not _is_integer(instr):
        return None
    a, b = instr.operands
    if a is b:
        return a
    if not (isinstance(a, Const) and isinstance(b, Const)):
        return None
    kind = instr.mods[-1]
    choose = min if instr.op is opcodes.MIN else max
    return choose((a, b), key=lambda constant: _number(constant.bits, kind))


def _setp(s: _Simplifier, instr: Instr, kept: list[Instr]) -> Operand | None:
    a, b = instr.operands
    relation, kind = instr.mods[0], instr.mods[-1]
    if isinstance(a, Const) and isinstance(b, Const) and kind in _INTEGERS:
        x, y = _number(a.bits, kind), _number(b.bits, kind)
        holds = {"eq": x == y, "ne": x != y, "lt": x < y, "le": x <= y, "gt": x > y, "ge": x >= y}.get(relation)
        return None if holds is None else TRUE if holds else FALSE
    if relation in ("ne", "neu") and isinstance(b, Const) and b.bits == 0:
        inner = s.definitions.get(a)
        if inner is not None and inner.op is opcodes.SELP:
            yes, no, predicate = inner.operands
            if no == b and isinstance(yes, Const) and _is_one(yes, kind):
                return predicate
    return None


def _is_one(constant: Const, kind: str) -> bool:
    return constant.bits == 1 if kind in _INTEGERS else kind in ("f32", "f64") and real_of(constant) == 1.0


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
            opposite = opposite if kind in _INTEGERS else _UNORDERED[opposite]
            instr.op, instr.mods, instr.operands = opcodes.SETP, (opposite, *inner.mods[1:]), inner.operands
    return None


#: The opposite of a comparison; of floats it must hold for NaN.
_OPPOSITE = {"eq": "ne", "ne": "eq", "lt": "ge", "ge": "lt", "gt": "le", "le": "gt"}
_UNORDERED = {"ne": "neu", "ge": "geu", "lt": "ltu", "le": "leu", "gt": "gtu", "eq": "equ"}


def _cvt(s: _Simplifier, instr: Instr, kept: list[Instr]) -> Operand | None:
    (a,) = instr.operands
    to, source = instr.mods[-2:]
    if instr.mods == ("rn", to, "f32"):
        # To f32 and back: it has every half.
        inner = s.definitions.get(a)
        there_and_back = inner is not None and inner.op is opcodes.CVT and inner.mods == ("f32", to)
        return inner.operands[0] if inner is not None and there_and_back else None
    if "sat" in instr.mods or source not in _WIDTHS:
        return None
    if to in ("u32", "s32") and source in ("u64", "s64"):
        inner = s.definitions.get(a)
        if inner is not None and inner.op is opcodes.CVT and inner.mods in _WIDENINGS:
            return inner.operands[0]
    if not isinstance(a, Const):
        return None
    number, bank = _number(a.bits, source), instr.results[0].type
    if to in _WIDTHS:
        return integer(bank, _number(number, to))
    # Python rounds an integer to f64 first; below 2^53 that is exact, so f32 is rounded once.
    return values.real(bank, float(number)) if bank.is_float and instr.mods[0] == "rn" and abs(number) < 2**53 else None


#: The widths of the integer types.
_WIDTHS = {"u8": 8, "s8": 8, **{f"{sign}{width}": width for sign in "usb" for width in (16, 32, 64)}}

#: The integer types of arithmetic.
_INTEGERS = _WIDTHS.keys() - {"u8", "s8"}

_WIDENINGS = {(to, source) for to in ("u64", "s64") for source in ("u32", "s32")}


def _number(bits: int, kind: str) -> int:
    """The integer that an instruction of type ``kind`` reads in a register with these bits."""
    width = _WIDTHS[kind]
    number = bits & ((1 << width) - 1)
    return number - (1 << width) if kind[0] == "s" and number >> (width - 1) else number


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
