"""Leaves SSA form: block parameters become registers that the blocks before write.

What an edge passes is a parallel copy into the target's parameters. Terms:

- two values *interfere* if one is live where the other is defined: they cannot share a register;
- a *class* is a set of values that share one.

1. Coalescing: a parameter and what is passed for it join one class where no member of the one interferes with a member
   of the other. Then that copy is no instruction. An accumulator and its next value, a loop's counter and its
   successor always can.
2. The copies that are left go to the end of the block before, if its branch goes nowhere else or the copy does no
   harm there, or to the start of the target, if nothing else leads there. An edge that neither allows is *critical*
   and gets a block of its own::

       a:  bra %p, b(%x), c        a:  bra %p, copy, c        copy:  mov %y, %x
       b(%y): ...             ->                                     bra b
       (b has other predecessors)

3. Copies of one edge happen at once (``%x, %y = %y, %x`` swaps): they are written in an order in which no register is
   overwritten before it is read, with a spare register where they form a cycle.

Before all that, *tied* results and operands (:attr:`Opcode.tied`) join one class. Where an operand is needed later, and
where it stands for two results, a copy in front of the instruction is tied in its stead::

    %d = wgmma.fence %c            %copy = mov %c
    ... %c ...               ->    %copy = wgmma.fence %copy
                                   ... %c ...

So a loop's parameter, the accumulators of all its products and what goes round are one register. Registers in flight
are never copied: a kernel that needs it is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ptxc.errors import UnsupportedError
from ptxc.ir import cfg, opcodes
from ptxc.ir.flight import in_flight
from ptxc.ir.kernel import Block, Edge, Guard, Instr, Kernel
from ptxc.ir.ranges import Range
from ptxc.ir.types import PRED
from ptxc.ir.uses import reads
from ptxc.ir.values import Const, Mem, Operand, Value


def run(kernel: Kernel) -> None:
    """Replace block parameters by registers."""
    tied = any([op.tied for op in {instr.op for block in kernel.blocks for instr in block.instrs}])
    if tied or any(block.params for block in kernel.blocks):
        _Leaver(kernel, tied).run()
    for block in kernel.blocks:
        if any([instr.guard is not None for instr in block.instrs]):
            block.instrs = [prepared for instr in block.instrs for prepared in _with_default(instr)]
    kernel.ssa = False


def _with_default(instr: Instr) -> list[Instr]:
    """A guarded instruction's results are 0 where it does not execute."""
    if instr.guard is None or not instr.results:
        return [instr]
    zeros = [
        Instr(opcodes.MOV, (value.type.name,), (value,), (Const(value.type, 0),), loc=instr.loc)
        for value in instr.results
    ]
    return [*zeros, instr]


class _Leaver:
    def __init__(self, kernel: Kernel, tied: bool) -> None:
        self.kernel = kernel
        self.tied = tied
        #: The registers in flight, which cannot be copied.
        self.flying = in_flight(kernel) if tied else {}
        #: Each value's class, by the value that names it; a value alone is its own class and not in here.
        self.leader: dict[Value, Value] = {}
        self.ranges: dict[Value, Range] = {}
        #: What :meth:`chain` finds: instructions whose results are of the classes of others, and the leaders of those.
        self.chained: dict[Instr, tuple[Value, ...]] = {}
        #: The instructions that use or define a value which has ranges.
        self.touching: list[Instr] = []
        #: Where each block begins, and its bit in ranges.
        self.first: dict[Block, int] = {}
        self.bits: dict[Block, int] = {block: 1 << at for at, block in enumerate(kernel.blocks)}
        self.before = cfg.predecessors(kernel)

    def run(self) -> None:
        self.find_ranges()
        if self.tied:
            for block in self.kernel.blocks:
                self.tie(block)
        for block in self.kernel.blocks:
            for edge in block.terminator.targets:
                for value, arg in zip(edge.block.params, edge.args, strict=True):
                    if isinstance(arg, Value) and not self.coalesce(value, arg):
                        self.refuse_flying(arg, block.terminator.loc)
        self.rename()
        self.place_copies()

    # ------------------------------------------------------------------------------------------------ coalescing

    def find_ranges(self) -> None:
        """The ranges of the values that parameters and what is passed for them are."""
        wanted: set[Operand] = set()
        for block in self.kernel.blocks:
            wanted.update(block.params)
            for edge in block.instrs[-1].targets:
                wanted.update([arg for arg in edge.args if type(arg) is Value])
            if self.tied:
                for instr in block.instrs:
                    if instr.op.tied:
                        wanted.update(instr.results)
                        wanted.update(instr.operands[: len(instr.results)])
        self.chain()
        found, chained = self.ranges, self.chained
        found.update([(value, Range()) for value in wanted if type(value) is Value and value not in self.leader])
        for instr, group in chained.items():
            found.update(zip(instr.results, [found[value] for value in group], strict=True))
        exposed: list[tuple[Value, Block]] = []
        #: In which block a value is defined, and each block's last position.
        home: dict[Value, Block] = {}
        last: dict[Block, int] = {}
        position = 0
        for block in self.kernel.blocks:
            first, bit = position, self.bits[block]
            self.first[block] = position
            for param in block.params:
                found[param].parts[block] = (position, position)
                found[param].touched |= bit
                home[param] = block
            #: Where the classes that :meth:`chain` made of the block's values are written last.
            written: dict[tuple[Value, ...], int] = {}
            for instr in block.instrs:
                position += 2
                read, results = reads(instr), instr.results
                if instr in chained:
                    written[chained[instr]] = position
                    home.update(dict.fromkeys(results, block))
                    # What is read for a chained result is of its class.
                    read, results = read[len(results) :], ()
                used, defines = not wanted.isdisjoint(read), not wanted.isdisjoint(results)
                if used or defines or instr.op.tied:
                    self.touching.append(instr)
                if used:
                    for value in read:
                        if type(value) is Value and value in found:
                            parts = found[value].parts
                            if block in parts:
                                parts[block] = (parts[block][0], position)
                            else:
                                # It is defined in another block, or round a loop.
                                parts[block] = (first, position)
                                found[value].touched |= bit
                                exposed.append((value, block))
                if defines:
                    # Where a guard is false, zeros are written before the instruction reads its operands.
                    defined = position if instr.guard is None else position - 1
                    for result in results:
                        # A result that nobody reads still needs its register where it is written.
                        if result in wanted:
                            home[result] = block
                            found[result].parts[block] = (defined, defined + instr.op.tied)
                            found[result].touched |= bit
            for group, at in written.items():
                for value in group:
                    begin, stop = found[value].parts[block]
                    found[value].parts[block] = (begin, max(stop, at + 1))
            position += 2
            last[block] = position
        self.extend(exposed, home, last)

    def extend(self, exposed: Sequence[tuple[Value, Block]], home: dict[Value, Block], last: dict[Block, int]) -> None:
        """Let the range of each value that is live where a block begins reach back to its definition."""
        between: dict[tuple[Block, Block], int] = {}
        for value, block in exposed:
            begin = home[value]
            known = self.ranges[value]
            way = between.get((begin, block))
            if way is None:
                way = between[begin, block] = self.between(begin, block)
            known.through |= way
            known.parts[begin] = (known.parts[begin][0], last[begin])

    def between(self, begin: Block, end: Block) -> int:
        """The bits of the blocks on all ways from the end of a block to where another begins."""
        found = 0
        pending = [end]
        for reached in pending:
            for block in self.before[reached]:
                if block is not begin and not found & self.bits[block]:
                    found |= self.bits[block]
                    pending.append(block)
        return found

    def chain(self) -> None:
        """Let what products of a block give each other be one class each, from the fence to the wait.

        These values are needed nowhere else. Products hold a hundred registers each: this spares nearly all the
        comparing of ranges. Only what one gives all of to the next is taken together.
        """
        if not self.tied:
            return
        for block in self.kernel.blocks:
            held: dict[tuple[Operand, ...], tuple[Value, ...]] = {}
            for instr in block.instrs:
                if instr.op.tied:
                    first = held.get(instr.operands[: len(instr.results)])
                    if first is not None:
                        self.leader.update(zip(instr.results, first, strict=True))
                        self.chained[instr] = first
                    if instr.op is not opcodes.WGMMA_WAIT:
                        held[instr.results] = first or instr.results

    def tie(self, block: Block) -> None:
        """Let tied results and operands be one class each."""
        position, instrs = self.first[block], block.instrs
        block.instrs = []
        for instr in instrs:
            position += 2
            if instr.op.tied and instr not in self.chained:
                operands = [*instr.operands]
                for at, result in enumerate(instr.results):
                    operand = operands[at]
                    assert isinstance(operand, Value)
                    if not self.coalesce(operand, result):
                        operands[at] = copy = self.tied_copy(block, instr, operand, position)
                        joined = self.coalesce(copy, result)
                        assert joined, "a result that nothing is tied to yet interferes with nothing before it"
                instr.operands = tuple(operands)
            block.instrs.append(instr)

    def tied_copy(self, block: Block, instr: Instr, operand: Value, position: int) -> Value:
        """A copy of ``operand`` in front of ``instr``, which is at ``position``."""
        self.refuse_flying(operand, instr.loc)
        copy = self.kernel.value(operand.type, operand.hint)
        move = Instr(opcodes.MOV, (operand.type.name,), (copy,), (operand,), loc=instr.loc)
        block.instrs.append(move)
        self.touching.append(move)
        copied = self.ranges[copy] = Range()
        copied.parts[block] = (position - 1, position)
        copied.touched = self.bits[block]
        return copy

    def refuse_flying(self, operand: Operand, loc: object) -> None:
        if operand in self.flying:
            raise UnsupportedError(
                f"{operand!r} would have to be copied while a wgmma holds it",
                kernel=self.kernel.name,
                statement=str(loc),
                hint="wait for the products before their registers change places",
            )

    def coalesce(self, a: Value, b: Value) -> bool:
        """Join the classes of two values if no members interfere; whether they are one then."""
        a, b = self.find(a), self.find(b)
        if a is b or a.type is not b.type:
            return a is b
        first, second = self.ranges[a], self.ranges[b]
        if len(first.parts) < len(second.parts):
            a, b, first, second = b, a, second, first
        if first.meets(second):
            return False
        first.join(second)
        self.leader[b] = a
        return True

    def find(self, value: Value) -> Value:
        leader = self.leader
        while value in leader:
            above = leader[value]
            if above in leader:
                # The next search is half as long.
                above = leader[value] = leader[above]
            value = above
        return value

    def rename(self) -> None:
        """Let every value of a class be its leader."""
        leaders: dict[Operand, Value] = {value: self.find(value) for value in self.leader}
        if not leaders:
            return
        joined = leaders.keys()

        def renamed(operands: Iterable[Operand]) -> tuple[Operand, ...]:
            return tuple([leaders.get(operand, operand) for operand in operands])

        for block in self.kernel.blocks:
            block.params = [leaders.get(value, value) for value in block.params]
        for instr in self.touching:
            if not joined.isdisjoint(instr.results):
                instr.results = tuple([leaders.get(value, value) for value in instr.results])
            if instr.op.tied:
                instr.operands = (*instr.results, *renamed(instr.operands[len(instr.results) :]))
            elif not joined.isdisjoint(instr.operands):
                instr.operands = renamed(instr.operands)
            if instr.op.addresses:
                self.rename_bases(instr, leaders)
            if instr.guard is not None and instr.guard.predicate in leaders:
                instr.guard = Guard(leaders[instr.guard.predicate], instr.guard.negated)
            if instr.targets:
                instr.targets = tuple([Edge(target, renamed(args)) for target, args in instr.targets])

    @staticmethod
    def rename_bases(instr: Instr, leaders: dict[Operand, Value]) -> None:
        """The same for the registers of addresses."""
        for operand in instr.operands:
            if type(operand) is Mem and operand.base in leaders:
                moved = Mem(leaders[operand.base], operand.offset)
                instr.operands = tuple([moved if each is operand else each for each in instr.operands])

    # ---------------------------------------------------------------------------------------------------- copies

    def place_copies(self) -> None:
        split: dict[Block, list[Block]] = {}
        for block in self.kernel.blocks:
            terminator = block.terminator
            edges = terminator.targets
            pending = [self.copies(edge) for edge in edges]
            if not any(pending):
                terminator.targets = tuple([Edge(target) for target, _ in edges])
                continue
            early = self.early_copies(block, pending)
            block.instrs[-1:-1] = self.sequence([*early], terminator.loc)
            targets = []
            for (target, _), copies in zip(edges, pending, strict=True):
                late = [pair for pair in copies if pair not in early]
                instrs = self.sequence(late, terminator.loc)
                if late and len(self.before[target]) == 1:
                    target.instrs[:0] = instrs
                elif late:
                    between = Block(self.kernel.fresh(f"{block.name}.copy"))
                    between.instrs = [*instrs, Instr(opcodes.BRA, targets=(Edge(target),), loc=terminator.loc)]
                    split.setdefault(target, []).append(between)
                    target = between
                targets.append(Edge(target))
            terminator.targets = tuple(targets)
        self.kernel.blocks = [placed for block in self.kernel.blocks for placed in (*split.get(block, ()), block)]
        for block in self.kernel.blocks:
            block.params = []

    @staticmethod
    def copies(edge: Edge) -> list[tuple[Value, Operand]]:
        """The copies of an edge that coalescing has left, as (target, source)."""
        return [(v, a) for v, a in zip(edge.block.params, edge.args, strict=True) if v is not a]

    def early_copies(
        self, block: Block, pending: list[list[tuple[Value, Operand]]]
    ) -> dict[tuple[Value, Operand], None]:
        """Those of the block's copies that may happen before its branch, whichever way that goes.

        A copy may if every way makes it, or if the others neither read its target nor copy to it.
        """
        if len(pending) < 2:
            return {pair: None for copies in pending for pair in copies}
        early: dict[tuple[Value, Operand], None] = {}
        for at, copies in enumerate(pending):
            other = block.terminator.targets[1 - at]
            others = pending[1 - at]
            written = {target for target, _ in others}
            read = {*other.args, *block.terminator.operands}
            for pair in copies:
                target = pair[0]
                alone = target not in written and target not in read and not self.lives_into(target, other.block)
                if (alone or pair in others) and target not in block.terminator.operands:
                    early[pair] = None
        # A late copy must find its source as it was, and so must one that becomes late for its sake.
        while True:
            read = {source for copies in pending for target, source in copies if (target, source) not in early}
            kept = {pair: None for pair in early if pair[0] not in read}
            if len(kept) == len(early):
                return early
            early = kept

    def lives_into(self, value: Value, block: Block) -> bool:
        """Whether a register may hold something that is needed where ``block`` begins."""
        found = self.ranges.get(value)
        if found is None:
            return False
        part = found.parts.get(block)
        return bool(found.through & self.bits[block]) or (part is not None and part[0] == self.first[block])

    def sequence(self, pairs: list[tuple[Value, Operand]], loc: object) -> list[Instr]:
        """The parallel copy ``pairs`` (target, source) as a sequence."""
        copies: list[Instr] = []

        def copy(target: Value, source: Operand) -> None:
            mods = (target.type.name if target.type is not PRED else "pred",)
            copies.append(Instr(opcodes.MOV, mods, (target,), (source,), loc=loc))

        pending = list(pairs)
        while pending:
            read = {source for _, source in pending}
            ready = [pair for pair in pending if pair[0] not in read]
            if ready:
                for target, source in ready:
                    copy(target, source)
                pending = [pair for pair in pending if pair[0] in read]
            else:
                # Only cycles are left: save one target, and let its readers read the copy.
                target = pending[0][0]
                spare = self.kernel.value(target.type, f"{target.name}.old")
                copy(spare, target)
                pending = [(t, spare if source is target else source) for t, source in pending]
        return copies
