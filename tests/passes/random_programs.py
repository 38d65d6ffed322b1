"""Random kernels that end: what the frontend makes of nested conditions and loops, in SSA form, on integers."""

from __future__ import annotations

from random import Random

from ptxc.ir import opcodes
from ptxc.ir.builder import Builder
from ptxc.ir.kernel import Block, Guard, Instr, Kernel, Param, Shared
from ptxc.ir.opcodes import OPCODES, Opcode
from ptxc.ir.types import B16, B32, B64, PRED, Type
from ptxc.ir.values import Const, Mem, Operand, Sym, Value, integer

#: What the parameters are when a kernel is executed.
ARGUMENTS = [
    {"out": 1 << 20, "src": 1 << 22, "n": n, "m": m} for n, m in ((0, 0), (1, 5), (7, -3), (-1, 64), (2**31 - 1, 33))
]

_CONSTANTS = (0, 0, 1, 1, 2, 3, 7, 8, 31, 32, 64, 100, 641, -1, -1, -2, -32, 2**31 - 1, -(2**31))

_INTEGER_FORMS = [
    "add.s32", "add.u32", "add.sat.s32", "sub.s32", "mul.lo.s32", "mul.lo.u32", "mul.hi.s32", "mul.hi.u32", "div.u32",
    "div.s32", "rem.u32", "rem.s32", "and.b32", "or.b32", "xor.b32", "shl.b32", "shr.b32", "shr.s32", "shr.u32",
    "min.s32", "max.u32", "mad.lo.s32", "mad.lo.u32", "not.b32", "neg.s32", "abs.s32", "mov.b32", "selp.b32",
    "cvt.u32.u64", "cvt.s32.s8", "cvt.u8.s32", "cvt.s8.u32", "cvt.sat.u8.s32", "cvt.sat.s32.u64",
]  # fmt: skip
_WIDE_FORMS = [
    "mul.wide.s32", "mul.wide.u32", "mad.wide.s32", "mad.wide.u32", "add.s64", "sub.u64", "div.u64", "rem.u64",
    "mul.lo.s64", "cvt.u64.u32", "cvt.s64.s32", "shl.b64", "shr.s64", "and.b64", "selp.b64", "mad.lo.s64", "max.s64",
    "mov.b64",
]  # fmt: skip
_PREDICATE_FORMS = [
    "setp.lt.s32", "setp.ge.u32", "setp.eq.s32", "setp.ne.b32", "setp.le.s64", "setp.gt.u32", "and.pred", "or.pred",
    "xor.pred", "not.pred", "mov.pred",
]  # fmt: skip
#: The forms that have a result of each bank.
FORMS = {B32: _INTEGER_FORMS, B64: _WIDE_FORMS, PRED: _PREDICATE_FORMS}


def random_program(
    seed: int, *, threads: int = 1, collective: str = "", tile: str = "", flights: bool = False
) -> Kernel:
    """A kernel whose threads differ if there are several; here and there a ``warp`` meets, or a ``cta`` too.

    With ``flights`` values go into flight and come back, as registers of wgmma do.

    ``tile`` is the extents of a tile, with whose guard the kernel begins, as the text form writes it: ``"3, %n"``.
    """
    return _Maker(Random(seed), threads, collective, flights).make(tile)


class _Maker:
    def __init__(self, random: Random, threads: int, collective: str, flights: bool) -> None:
        self.random = random
        self.kernel = Kernel("random", "sm_90", threads)
        self.kernel.params = [Param("out", "u64", 4), Param("src", "u64", 4), Param("n", "u32"), Param("m", "u32")]
        self.kernel.shared = [Shared("tile", 1024, 16)]
        entry = Block(self.kernel.fresh("entry"))
        self.kernel.blocks.append(entry)
        self.builder = Builder(self.kernel, entry)
        self.collective = collective
        self.flights = flights
        #: What may be used at the place that is being written.
        self.visible: list[Value] = []
        #: Statements that may still be written.
        self.budget = random.randint(8, 30)
        self.exits: list[tuple[Block, list[Type]]] = []

    def make(self, tile: str) -> Kernel:
        for param in self.kernel.params:
            type = B64 if param.type == "u64" else B32
            value = self.builder.emit(opcodes.LD, ("param", param.type), type, (Mem(Sym(param.name)),), param.name)
            self.visible.append(value)
        self.out, self.src, n, _ = self.visible
        if self.kernel.threads > 1:
            self.visible.append(self.builder.emit(opcodes.MOV, ("u32",), B32, (Sym("%tid.x"),), "tid"))
            self.visible.append(
                self.builder.emit(opcodes.SHR, ("u32",), B32, (self.visible[-1], integer(B32, 5)), "warp")
            )
        if tile:
            extents = tuple(n if text == "%n" else integer(B32, int(text)) for text in tile.split(", "))
            results = (*(self.kernel.value(B32, "a") for _ in extents), self.kernel.value(PRED, "inside"))
            mods = (f"cells={self.kernel.threads}", "aux=0")
            self.visible += self.builder.multi(opcodes.TILE_COORDS, mods, results, extents)
            self.builder.effect(opcodes.TILE_GUARD, (), (results[-1],))
        self.statements(3)
        while self.budget > 0:
            self.statements(3)
        for value in self.random.sample(self.visible, min(5, len(self.visible))):
            self.store(value)
        self.builder.ret()
        return self.kernel

    # ------------------------------------------------------------------------------------------------- statements

    def statements(self, depth: int) -> None:
        for _ in range(self.random.randint(1, 6)):
            self.budget -= 1
            kinds = [self.compute] * 7 + [lambda: self.store(None), self.load] * 2 + [self.atomic]
            kinds += [self.halves] * 3 + [self.swizzled]
            if depth and self.budget > 0:
                kinds += [lambda: self.condition(depth - 1), lambda: self.loop(depth - 1)] * 2 + [self.addresses] * 3
            if self.collective:
                kinds += [self.meet] * 2
            if self.flights:
                kinds += [self.fly]
            self.random.choice(kinds)()

    def compute(self, type: Type | None = None) -> Value:
        """Compute something new, or what was computed before, here or in another place."""
        if self.random.random() < 0.2:
            seen = {*self.visible}
            again = [
                instr
                for block in self.kernel.blocks
                for instr in block.instrs
                if instr.op.effect == "PURE" and len(instr.results) == 1 and type in (None, instr.result.type)
                if seen.issuperset(operand for operand in instr.operands if isinstance(operand, Value))
            ]
            if again:
                instr = self.random.choice(again)
                return self.write(instr.op, instr.mods, instr.results[0].type, instr.operands)
        type = type or self.random.choice((B32, B32, B32, B64, PRED))
        name, *mods = self.random.choice(FORMS[type]).split(".")
        row = opcodes.signature(OPCODES[name], tuple(mods))
        assert row is not None
        operands = tuple(self.operand(bank) for bank in row.operands if bank is not None)
        return self.write(OPCODES[name], tuple(mods), type, operands)

    def write(self, op: Opcode, mods: tuple[str, ...], type: Type, operands: tuple[Operand, ...]) -> Value:
        value = self.builder.emit(op, mods, type, operands, self.random.choice(("x", "y", "z")))
        self.visible.append(value)
        return value

    def store(self, value: Value | None) -> None:
        value = value or self.random.choice(self.visible)
        if value.type is PRED:
            value = self.builder.selp("b32", integer(B32, 1), integer(B32, 0), value)
        address = Mem(self.out, 8 * self.random.randrange(8))
        self.builder.effect(opcodes.ST, ("global", value.type.name), (address, value), guard=self.guard())

    def load(self) -> None:
        # Where threads meet, all see the same memory: none loads what another may be writing.
        base: Value = self.random.choice((self.src, self.out, self.out) if not self.collective else (self.src,))
        mods = ("global", "nc", "b32") if base is self.src and self.random.random() < 0.5 else ("global", "b32")
        if self.random.random() < 0.3:
            at = self.builder.binary(opcodes.AND, "b32", self.operand(B32), integer(B32, 60))
            base = self.builder.binary(opcodes.ADD, "s64", base, self.builder.cvt("u64.u32", at))
        value = self.kernel.value(B32, "v")
        operands = (Mem(base, 8 * self.random.randrange(6)),)
        self.builder.block.instrs.append(Instr(opcodes.LD, mods, (value,), operands, guard=self.guard()))
        self.visible.append(value)

    def atomic(self) -> None:
        mods = ("global", self.random.choice(("add", "max", "exch")), "u32")
        if mods[1] == "exch":
            mods = ("global", "exch", "b32")
        value = self.kernel.value(B32, "old")
        operands = (Mem(self.out, 4 * self.random.randrange(4)), self.operand(B32))
        self.builder.block.instrs.append(Instr(opcodes.ATOM, mods, (value,), operands, guard=self.guard()))
        if self.random.random() < 0.5:
            self.visible.append(value)

    def meet(self) -> None:
        kind = self.random.randrange(4 if self.collective == "cta" else 2)
        if kind == 2:
            self.builder.effect(opcodes.BAR, ("sync",), (integer(B32, 0),))
        elif kind == 1:
            self.builder.effect(opcodes.BAR_WARP, (), (integer(B32, -1),))
        elif kind == 3:
            self.builder.effect(opcodes.BAR, ("sync",), (integer(B32, 1), integer(B32, 32)))
        else:
            mask = self.builder.emit(opcodes.ACTIVEMASK, ("b32",), B32, (), "mask")
            operands = (self.operand(B32), integer(B32, 1), integer(B32, 31), mask)
            self.visible.append(self.builder.emit(opcodes.SHFL, ("sync", "bfly", "b32"), B32, operands, "other"))

    def fly(self) -> None:
        """A few values, some perhaps twice, go into flight and come back."""
        known = [value for value in self.visible if value.type is not PRED]
        held = tuple(self.random.choices(known, k=self.random.randint(1, 4)))
        flying = tuple(self.kernel.value(value.type, "f") for value in held)
        self.builder.multi(opcodes.WGMMA_FENCE, ("sync", "aligned"), flying, held)
        if self.random.random() < 0.5:
            self.compute()
        back = tuple(self.kernel.value(value.type, "w") for value in held)
        self.builder.multi(opcodes.WGMMA_WAIT, ("sync", "aligned"), back, (*flying, integer(B32, 0)))
        self.visible += back

    def halves(self) -> None:
        """Two halves are computed alike, perhaps one of them is stored as well, and packed."""
        builder, random = self.builder, self.random
        x, y = [builder.cvt("u16.u32", self.operand(B32), "h") for _ in range(2)]
        forms = [random.choice((opcodes.ADD, opcodes.SUB)) for _ in range(random.randint(1, 3))]
        low, high = x, y
        for op in forms:
            low = builder.binary(op, "s16", low, integer(B16, random.randrange(9)), "h")
        if random.random() < 0.2:
            self.store(low)
        self.compute()
        for op in forms if random.random() < 0.8 else reversed(forms):
            high = builder.binary(op, "s16", high, integer(B16, random.randrange(9)), "h")
        self.visible.append(builder.emit(opcodes.PACK, ("b32",), B32, (low, high), "pair"))

    def swizzled(self) -> None:
        """Addresses that differ in a constant that is XORed in, and to which multiples are added."""
        builder, random = self.builder, self.random
        lane, row, slot = [self.operand(B32) for _ in range(3)]

        def multiple(factor: int, value: Operand, rest: Operand) -> Value:
            return builder.emit(opcodes.MAD, ("lo", "s32"), B32, (value, integer(B32, factor), rest), "at")

        array = builder.emit(opcodes.MOV, ("u32",), B32, (Sym("tile"),), "tile")
        rows = multiple(1 << random.randint(0, 8), row, random.choice((array, self.operand(B32))))
        phase = builder.binary(opcodes.AND, "b32", slot, integer(B32, random.choice((-8, 56, 7))))
        for _ in range(random.randint(1, 3)):
            constant = integer(B32, random.choice((1, 8, 16, 16, 32, 48, -16)))
            if random.random() < 0.7:
                turned = builder.binary(opcodes.XOR, "b32", builder.binary(opcodes.XOR, "b32", lane, phase), constant)
            else:
                turned = builder.binary(opcodes.XOR, "b32", lane, builder.binary(opcodes.ADD, "s32", phase, constant))
            at = multiple(random.choice((1, 2, 2, 4, 3, 64)), turned, random.choice((rows, rows, turned)))
            self.store(at)
            self.store(multiple(1 << random.randint(2, 10), slot, at))

    def addresses(self) -> None:
        """A loop of one block, mostly between constants, whose counter makes addresses; it may have other uses too."""
        builder, random = self.builder, self.random
        start, step = random.choice((0, 0, random.randint(-3, 3))), random.randint(1, 3)
        first: Operand = integer(B32, start)
        if random.random() < 0.2:
            first = builder.binary(opcodes.AND, "b32", self.operand(B32), integer(B32, 3))
        bases = [self.compute(B32) for _ in range(random.randint(1, 3))]
        bases += random.sample(bases, random.randrange(2))
        before = self.visible.copy()
        head, after = builder.new_block("loop"), builder.new_block("done")
        builder.branch(head, (first,))
        (index,) = self.enter(head, [B32])
        head.unrolled = random.random() < 0.8
        addresses = []
        for base in bases:
            factor = integer(B32, random.choice((4, 4, 8, 16, 12, -8)))
            addresses.append(builder.emit(opcodes.MAD, ("lo", "s32"), B32, (index, factor, base), "at"))
            self.store(addresses[-1])
        if random.random() < 0.2:
            self.store(index)
        following = builder.binary(opcodes.ADD, "s32", index, integer(B32, step), "i")
        again = builder.setp("lt.s32", following, integer(B32, start + random.randint(-3, 9)))
        builder.branch_if(again, head, after, (following,), ())
        self.visible = before
        self.enter(after, [])
        if random.random() < 0.3:
            self.store(random.choice(addresses))

    def condition(self, depth: int) -> None:
        """An ``if``, perhaps with an ``else``, whose ways pass values to where they meet, or of which one ends."""
        builder, types = self.builder, self.types()
        predicate = self.operand(PRED)
        then, join = builder.new_block("then"), builder.new_block("join")
        before = self.visible.copy()
        if self.random.random() < 0.5:
            otherwise = builder.new_block("else")
            builder.branch_if(predicate, then, otherwise)
        else:
            otherwise = None
            builder.branch_if(predicate, *self.either(then, join, (), self.operands(types)))
        builder.start(then)
        self.statements(depth)
        if otherwise is not None and self.random.random() < 0.15:
            builder.ret()
        else:
            builder.branch(join, self.operands(types))
        self.visible = before.copy()
        if otherwise is not None:
            builder.start(otherwise)
            self.statements(depth)
            builder.branch(join, self.operands(types))
            self.visible = before
        self.enter(join, types)

    def either(self, a: Block, b: Block, args: tuple[Operand, ...], other: tuple[Operand, ...]) -> tuple[
        Block, Block, tuple[Operand, ...], tuple[Operand, ...]
    ]:  # fmt: skip
        """The two targets of a branch, in either order."""
        return (a, b, args, other) if self.random.random() < 0.5 else (b, a, other, args)

    def loop(self, depth: int) -> None:
        """A loop that runs a few times, tested before or after its body, perhaps left early."""
        random, builder = self.random, self.builder
        bound: Operand = integer(B32, random.randint(1, 3))
        if random.random() < 0.6:
            bound = builder.binary(opcodes.AND, "b32", self.operand(B32), integer(B32, 3), "bound")
        step: Operand = integer(B32, 1)
        if random.random() < 0.2:
            some = builder.binary(opcodes.AND, "b32", self.operand(B32), integer(B32, 3))
            step = builder.binary(opcodes.MAX, "s32", some, integer(B32, 1), "step")
        carried, passed = self.types(), self.types()
        head, after = builder.new_block("loop"), builder.new_block("done")
        before = self.visible.copy()
        tested_first = random.random() < 0.4
        start = (integer(B32, 0), *self.operands(carried))
        if tested_first or random.random() < 0.5:
            builder.branch(head, start)
        else:
            predicate = builder.setp("lt.s32", integer(B32, 0), bound)
            builder.branch_if(predicate, head, after, start, self.operands(passed))
        index, *turning = self.enter(head, [B32, *carried])
        if tested_first:
            body = builder.new_block("body")
            predicate = builder.setp("lt.s32", index, bound)
            builder.branch_if(predicate, body, after, (), self.operands(passed))
            builder.start(body)
        self.statements(depth)
        if random.random() < 0.25:
            rest = builder.new_block("rest")
            builder.branch_if(self.operand(PRED), *self.either(after, rest, self.operands(passed), ()))
            builder.start(rest)
        following = builder.binary(opcodes.ADD, "s32", index, step, "i")
        again = (following, *(self.rotated(turning) if random.random() < 0.4 else self.operands(carried)))
        if tested_first:
            builder.branch(head, again)
        else:
            given = self.operands(passed)
            if random.random() < 0.5:
                builder.branch_if(builder.setp("lt.s32", following, bound), head, after, again, given)
            else:
                builder.branch_if(builder.setp("ge.s32", following, bound), after, head, given, again)
        self.visible = before
        self.enter(after, passed)

    def rotated(self, values: list[Value]) -> tuple[Operand, ...]:
        """Each value's place is taken by the next of its type, the last one's by another."""
        following = [
            [other for other in values[at + 1 :] if other.type is value.type] for at, value in enumerate(values)
        ]
        return tuple(after[0] if after else self.operand(value.type) for after, value in zip(following, values))

    def enter(self, block: Block, types: list[Type]) -> list[Value]:
        """Go on writing in ``block``, which takes parameters of these types."""
        block.params = [self.kernel.value(type, "c") for type in types]
        self.builder.start(block)
        self.visible += block.params
        return block.params

    # --------------------------------------------------------------------------------------------------- operands

    def types(self) -> list[Type]:
        return self.random.choices((B32, B32, B32, B64, PRED), k=self.random.choice((0, 1, 2, 2, 3, 5)))

    def operands(self, types: list[Type]) -> tuple[Operand, ...]:
        return tuple(map(self.operand, types))

    def operand(self, type: Type) -> Operand:
        # What was defined last is used most: loops pass their parameters on in other places.
        known = [value for value in self.visible if value.type is type and value not in (self.out, self.src)]
        if known and self.random.random() < 0.7:
            return self.random.choice(known[-5:] if self.random.random() < 0.7 else known)
        if type is PRED:
            return self.compute(PRED) if self.random.random() < 0.9 else integer(PRED, self.random.choice((0, -1)))
        return self.constant(type)

    def constant(self, type: Type) -> Const:
        return integer(type, self.random.choice(_CONSTANTS))

    def guard(self) -> Guard | None:
        known = [value for value in self.visible if value.type is PRED]
        if not known or self.random.random() < 0.6:
            return None
        return Guard(self.random.choice(known), self.random.random() < 0.5)
