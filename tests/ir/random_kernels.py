"""Random well-formed kernels: any opcode in any form of its row, on any control flow graph."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from random import Random

from ptxc.ir import cfg, opcodes, types
from ptxc.ir.kernel import Block, Edge, Guard, Instr, Kernel, Param, Shared
from ptxc.ir.opcodes import OPCODES, REGISTERS_ONLY, Opcode, signature, takes_constants
from ptxc.ir.types import B16, B32, B64, F32, PRED, Type
from ptxc.ir.values import SPECIAL, Const, Mem, Operand, Sym, Value, integer

#: What a row's ``T`` may be where the modifiers narrow it.
WIDE = {"u16", "s16", "u32", "s32"}
LOCATIONS = ("", "x = a // b", "for i in range(4):", "y[i] = x  ; twice", "é", "a\nb")
HINTS = ("x", "acc", "tid.x", "laneid", "_0", "$p", "a.b")


def random_kernel(seed: int, *, ssa: bool = True) -> Kernel:
    """A kernel that breaks no invariant of the verifier."""
    return _Maker(Random(seed), ssa).make()


def random_graph(random: Random, kernel: Kernel, count: int) -> None:
    """Give ``kernel`` so many blocks, all reachable, of which each ends in an instruction without arguments."""
    kernel.blocks = [Block(kernel.fresh("block")) for _ in range(count)]
    afters: list[list[Block]] = [[] for _ in kernel.blocks]
    for number, block in enumerate(kernel.blocks[1:], 1):
        random.choice([after for after in afters[:number] if len(after) < 2]).append(block)
    for after in afters:
        while len(after) < 2 and count > 1 and random.random() < 0.5:
            after.append(random.choice(kernel.blocks[1:]))
    for block, after in zip(kernel.blocks, afters):
        mods = random.choice(((), ("uni",)))
        predicate = (integer(PRED, -1),) if len(after) == 2 else ()
        targets = tuple(map(Edge, after))
        block.instrs.append(Instr(opcodes.BRA, mods, (), predicate, targets=targets) if after else Instr(opcodes.RET))


class _Maker:
    def __init__(self, random: Random, ssa: bool) -> None:
        self.random = random
        self.kernel = Kernel("random", "sm_80", random.randint(1, 1024))
        self.kernel.ssa = ssa
        self.kernel.params = [Param("p", "u64", 16), Param("n", "u32")]
        self.kernel.shared = [Shared("tile", 1024, 16), Shared("pool", 0, 128)]
        #: Whether the tile has its guard, of which there is one at most.
        self.guarded = False
        #: The values that may be used at the place that is being written.
        self.visible: list[Value] = []

    def make(self) -> Kernel:
        kernel, random = self.kernel, self.random
        random_graph(random, kernel, random.randint(1, 8))
        for block in kernel.blocks[1:]:
            block.collective = random.choice(("", "warp", "warpgroup", "cta"))
            if kernel.ssa:
                block.params = [self.value(bank) for bank in random.choices(types.BANKS, k=random.randint(0, 3))]
        tree = cfg.dominator_tree(kernel)
        pending: list[tuple[Block, list[Value]]] = [(kernel.blocks[0], [])]
        while pending:
            block, above = pending.pop()
            self.visible = above + block.params
            self.fill(block)
            pending += [(child, self.visible.copy()) for child in tree[block]]
        if not kernel.ssa and random.random() < 0.5:
            values = {value for instr in kernel.instrs() for value in instr.results}
            counts = Counter(value.type for value in values)
            kernel.registers = dict(counts)
        return kernel

    def fill(self, block: Block) -> None:
        """Write instructions before the block's last, and what the last passes."""
        last = block.instrs.pop()
        if not self.visible:
            base = self.value(B64)
            block.instrs.append(Instr(opcodes.LD, ("param", "u64"), (base,), (Mem(Sym("p")),)))
            self.visible.append(base)
        rows = [row for row in OPCODES.values() if row.effect != "END"]
        for row in self.random.choices(rows, k=self.random.randint(0, 12)):
            if "N" in row.operands and B32 not in {value.type for value in self.visible}:
                continue
            if row.forms and not {B16, B32, F32} <= {value.type for value in self.visible}:
                continue
            if row.tied:
                self.product(block)
                continue
            if row is opcodes.TILE_GUARD:
                if self.guarded:
                    continue
                self.guarded = True
            instr = self.instr(row)
            block.instrs.append(instr)
            self.visible += [value for value in instr.results if value not in self.visible]
        last.operands = tuple(self.register_or_constant(PRED) for _ in last.operands)
        last.targets = tuple(Edge(edge.block, self.operands(edge.block)) for edge in last.targets)
        block.instrs.append(last)

    def operands(self, block: Block) -> tuple[Operand, ...]:
        return tuple(self.register_or_constant(param.type) for param in block.params)

    def instr(self, op: Opcode) -> Instr:
        mods = self.modifiers(op)
        row = signature(op, mods)
        if row is None:
            extents = tuple(self.register_or_constant(B32) for _ in range(self.random.randint(2 * (len(mods) > 2), 3)))
            results = (*(self.value(B32) for _ in extents), self.value(PRED))
            return Instr(op, mods, results, extents, loc=self.random.choice(LOCATIONS))
        most = len(row.operands) - (op is opcodes.ATOM and "cas" not in mods)
        count = most if "cas" in mods else self.random.randint(row.least_operands, most)
        spaces = iter([mod for mod in mods if mod in ("global", "shared", "const", "local")])
        operands = tuple(
            self.register(bank)
            if bank and letter != "I" and not takes_constants(op, mods)
            else self.operand(op, letter, bank, spaces)
            for letter, bank in zip(row.letters[:count], row.operands)
        )
        shown = row.results[: self.random.randint(row.least_results, len(row.results))]
        results = tuple(self.result(bank) for bank in shown if bank is not None)
        guard = (
            self.guard()
            if op.effect in ("READ", "WRITE") or not (self.kernel.ssa or op.effect in ("SYNC", "JOINT"))
            else None
        )
        return Instr(op, mods, results, operands, guard=guard, loc=self.random.choice(LOCATIONS))

    def product(self, block: Block) -> None:
        """A product of a warpgroup: its registers go into flight and, mostly, come back."""
        random, kernel = self.random, self.kernel
        op = random.choice((opcodes.WGMMA, opcodes.WGMMA_RS))
        mods = random.choice([form for form in op.forms if form[2] in ("m64n8k16", "m64n16k16")])
        assert op.groups is not None
        groups = op.groups(mods)
        tied = [bank for count, bank in groups.results for _ in range(count)]

        def write(op: Opcode, mods: tuple[str, ...], results: list[Value], *operands: Operand) -> list[Value]:
            block.instrs.append(Instr(op, mods, tuple(results), operands, loc=random.choice(LOCATIONS)))
            return results

        def same(values: list[Value]) -> list[Value]:
            return [self.value(value.type) for value in values] if kernel.ssa else values

        rest: list[Operand] = []
        for count, bank in groups.operands[len(groups.results) :]:
            new = write(opcodes.MOV, (bank.name,), [self.value(bank)], integer(bank, 0)) if count else ()
            rest += new or [integer(B32, random.randint(0, 1))]
        held = []
        for bank in tied:
            # Any value in SSA form, in register form another one each.
            known = [value for value in self.visible if value.type is bank] if kernel.ssa else []
            if not known:
                known = write(opcodes.MOV, (bank.name,), [self.value(bank)], Const(bank, 0))
            held.append(random.choice(known))
        fenced = write(opcodes.WGMMA_FENCE, ("sync", "aligned"), same(held), *held)
        given = write(op, mods, same(fenced), *fenced, *rest)
        if random.random() < 0.8:
            self.visible += write(opcodes.WGMMA_WAIT, ("sync", "aligned"), same(given), *given, integer(B32, 0))

    def modifiers(self, op: Opcode) -> tuple[str, ...]:
        if op is opcodes.TILE_COORDS:
            return ("cells=128", "aux=32", *self.random.choice(((), ("group=8", "grouped=1", "other=0"))))
        if op.forms:
            return self.random.choice(op.forms)
        if op is opcodes.BITCAST:
            return self.random.choice((("b32", "f32"), ("f64", "b64"), ("b16", "b16")))
        if op is opcodes.CP_ASYNC:
            return (self.random.choice(("ca", "cg")), "shared", "global")
        names = sorted(op.modifiers - {"param", "v2", "v4"})
        kinds = [name for name in names if name in types.OF_MODIFIER and self.takes(name)]
        others = [name for name in names if name not in types.OF_MODIFIER]
        chosen = self.random.sample(others, min(2, len(others)))
        if "wide" in chosen:
            kinds = sorted(WIDE)
        if "v2" in op.modifiers:
            chosen += self.random.choice(([], ["v2"], ["v4"]))
        wanted = 2 if "D" in op.results else min(1, len(kinds))
        return (*chosen, *(self.random.choice(kinds) for _ in range(wanted)))

    def takes(self, kind: str) -> bool:
        """Whether there are operands for an instruction of this type: of some types only registers are."""
        seen = {value.type for value in self.visible}
        return kind not in REGISTERS_ONLY or {types.OF_MODIFIER[kind], B32, PRED} <= seen

    def operand(self, op: Opcode, letter: str, bank: Type | None, spaces: Iterator[str]) -> Operand:
        random = self.random
        if letter == "M":
            space = next(spaces, "")
            base = Sym("tile") if space == "shared" and random.random() < 0.5 else self.register(B64)
            return Mem(base, random.choice((0, 4, -8, 2**31 - 1, -(2**31))))
        if letter == "I":
            return integer(B32, random.randint(0, 255))
        assert bank is not None
        if letter == "A" and bank in (B32, B64) and random.random() < 0.5:
            return Sym(self.symbol(op, bank))
        return self.register_or_constant(bank)

    def symbol(self, op: Opcode, kind: Type) -> str:
        if op is opcodes.CVTA:
            return "tile"
        return self.random.choice(("pool", *([f"%{self.random.choice(sorted(SPECIAL))}"] if kind is B32 else [])))

    def register(self, bank: Type) -> Value:
        return self.random.choice([value for value in self.visible if value.type is bank])

    def register_or_constant(self, bank: Type) -> Operand:
        known = [value for value in self.visible if value.type is bank]
        if known and self.random.random() < 0.7:
            return self.random.choice(known)
        bits = self.random.getrandbits(bank.bits)
        return Const(bank, bits) if bank.is_float else integer(bank, bits)

    def result(self, bank: Type) -> Value:
        """A new value; in register form sometimes one that is defined already."""
        known = [value for value in self.visible if value.type is bank]
        if known and not self.kernel.ssa and self.random.random() < 0.3:
            return self.random.choice(known)
        return self.value(bank)

    def guard(self) -> Guard | None:
        known = [value for value in self.visible if value.type is PRED]
        return Guard(self.random.choice(known), self.random.random() < 0.5) if known else None

    def value(self, bank: Type) -> Value:
        return self.kernel.value(bank, self.random.choice(HINTS))
