"""Finds the instructions that threads must reach together, and proves that they do.

A branch whose condition differs between threads splits them until the paths meet again (at its immediate
post-dominator)::

        bra %p, then, join          %p differs between the threads of a CTA
          |        \\
          |        then             a barrier here waits for threads that never come
          |        /
        join                        here they are together again

For each value the analysis knows in which group of threads it is the same: ``cta`` (all), ``warpgroup`` (four warps
from a multiple of four on), ``warp``, ``lane`` (may differ anywhere). A block is split at the level of the
widest-reaching branch around it. A barrier of the CTA must be in blocks that are not split at all, wgmma and setmaxnreg
in blocks that are split between warpgroups at most, barriers of some warps and shuffles between fixed lanes in blocks
that are split between warps at most; otherwise the kernel would hang or compute nonsense, and compiling it is an error
that names the statement and the value that differs. So is a last warp, or warpgroup, that the CTA does not fill, where
an instruction takes whole ones. A shuffle between whatever lanes arrive (``activemask``) may stand
where they have parted: it is one between those. What no pass proves is that as many threads arrive at a numbered
barrier as it waits for: `ptxc run` tells. A wait for an mbarrier is a loop of each thread's own, which needs nobody.

Then, in the same walk:

- blocks are marked with the group that they need together (``collective cta``);
- ``activemask`` becomes a constant where whole warps arrive, as the lanes of a CTA are known;
- ``tile.guard`` learns in which group its predicate is the same, which the early exit needs. What is loaded after it
  differs in that group, as threads outside the tile may have to do without.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from ptxc.errors import DivergenceError
from ptxc.ir import cfg, opcodes
from ptxc.ir.kernel import Block, Instr, Kernel
from ptxc.ir.opcodes import Opcode
from ptxc.ir.slices import backward_slice
from ptxc.ir.types import B32, PRED
from ptxc.ir.values import Const, Mem, Operand, Sym, Value, integer

#: In which group a value is the same; the wider the group, the lower.
CTA, WARPGROUP, WARP, LANE = range(4)
LEVELS = ("cta", "warpgroup", "warp", "lane")
_WARP_SIZE = 32
_WARPGROUP_SIZE = 128

#: The special registers that differ between threads of a CTA, and in which group they are the same.
_REGISTERS: dict[Operand, int] = {
    Sym(f"%{name}"): level
    for level, names in ((WARP, ("warpid",)), (LANE, ("tid.x", "tid.y", "tid.z", "laneid")))
    for name in names
}

#: What gives each thread a value of its own, whatever it is given.
_DIFFERENT = (
    opcodes.ATOM, opcodes.SHFL, opcodes.ACTIVEMASK, opcodes.LDMATRIX, opcodes.MMA, opcodes.MBARRIER_ARRIVE,
    opcodes.MBARRIER_EXPECT, opcodes.MBARRIER_TRY_WAIT, opcodes.WGMMA, opcodes.WGMMA_RS,
)  # fmt: skip
#: What may be the same in a larger group than its operands are.
_ALIGNING = frozenset((opcodes.MOV, opcodes.SETP, opcodes.DIV, opcodes.SHR, opcodes.AND))
#: What is not just as different between threads as its operands.
_SPECIAL = frozenset((*_DIFFERENT, opcodes.LD, opcodes.TILE_COORDS, opcodes.TILE_GUARD))

#: The group that an instruction needs together.
_NEEDS: dict[Opcode, int] = {
    opcodes.BAR: CTA,
    opcodes.BAR_WARP: WARP,
    opcodes.SHFL: WARP,
    opcodes.ACTIVEMASK: WARP,
    opcodes.LDMATRIX: WARP,
    opcodes.MMA: WARP,
    opcodes.WGMMA_FENCE: WARPGROUP,
    opcodes.WGMMA: WARPGROUP,
    opcodes.WGMMA_RS: WARPGROUP,
    opcodes.WGMMA_COMMIT: WARPGROUP,
    opcodes.WGMMA_WAIT: WARPGROUP,
    opcodes.SETMAXNREG: WARPGROUP,
}
#: What takes whole warps, or whole warpgroups: there is no mask of those that a CTA's last one has. A shuffle between
#: fixed lanes does too.
_WHOLE = frozenset(_NEEDS) - {opcodes.BAR, opcodes.BAR_WARP, opcodes.SHFL, opcodes.ACTIVEMASK}
#: Only what branches, and the guard of the tile, depend on decides where threads part.
_DECIDING = (opcodes.BRA, opcodes.TILE_GUARD)
_CHECKED = frozenset((*_NEEDS, opcodes.TILE_GUARD))


def run(kernel: Kernel) -> None:
    """Mark collectives, or raise DivergenceError."""
    ops = {instr.op for block in kernel.blocks for instr in block.instrs}
    if not ops.isdisjoint(_NEEDS):
        _Collectives(kernel).run()
    elif opcodes.TILE_GUARD in ops:
        # Nothing to keep together: whoever is outside may leave.
        for instr in kernel.instrs():
            if instr.op is opcodes.TILE_GUARD:
                instr.mods = (LEVELS[LANE],)


def needed(instrs: Iterable[Instr]) -> str:
    """The widest group of threads that one of the instructions needs together, one of LEVELS; or "" for none."""
    needs = [_NEEDS[instr.op] for instr in instrs if instr.op in _NEEDS]
    return LEVELS[min(needs)] if needs else ""


class _Collectives:
    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.order = cfg.reverse_postorder(kernel)
        self.position = {block: index for index, block in enumerate(self.order)}
        self.after = cfg.immediate_postdominators(kernel)
        #: The level of each value and register that is not the same in the whole CTA.
        self.levels: dict[Operand, int] = {**_REGISTERS} if kernel.threads > 1 else {}
        #: Values that count threads, so many (the first number) a step, from a multiple of the second number on:
        #: comparing one with a multiple of 32 threads splits no warp.
        self.counters: dict[Operand, tuple[int, int]] = {}
        #: At which level a block's threads are split, and the branch that splits them.
        self.splits: dict[Block, tuple[int, Instr | None]] = dict.fromkeys(self.order, (CTA, None))
        #: The level of each branch whose paths have been split already.
        self.branches: dict[Block, int] = {}
        #: The first block that the walk had passed when a value rose that is used there.
        self.again = 0
        #: In which group threads are inside or outside the tile together, from its guard on.
        self.tile = CTA
        #: What conditions depend on: nothing else's level matters.
        _, self.deciding = backward_slice(self.order, _DECIDING)

    def run(self) -> None:
        # Levels only rise, and there are three: a few walks reach the fixed point, one where there is no loop.
        blocks = len(self.order)
        while self.again < blocks:
            first, self.again = self.again, blocks
            for index in range(first, blocks):
                self.walk(index, self.order[index])
        for block in self.order:
            checked = [instr for instr in block.instrs if instr.op in _CHECKED]
            if checked:
                self.check(block, checked)

    # --------------------------------------------------------------------------------------------------- levels

    def walk(self, index: int, block: Block) -> None:
        """Raise what the block defines and passes on to the level of what it depends on."""
        levels = self.levels
        get = levels.get
        for instr in self.deciding[block]:
            if instr.op in _SPECIAL or instr.guard is not None:
                level = self.special(instr)
            else:
                level = CTA
                for operand in instr.operands:
                    found = get(operand, CTA)
                    if found > level:
                        level = found
                if level >= WARP and instr.op in _ALIGNING:
                    level = min(level, self.aligned(instr))
            if level:
                for value in instr.results:
                    if levels.get(value, CTA) < level:
                        levels[value] = level
        terminator = block.instrs[-1]
        for edge in terminator.targets:
            for value, arg in zip(edge.block.params, edge.args, strict=True):
                self.rise(value, self.highest((arg,)), edge.block, index)
        if len(terminator.targets) == 2:
            self.branch(index, block, terminator)

    def special(self, instr: Instr) -> int:
        """The level of an instruction's results that is not just that of its operands."""
        if instr.op is opcodes.TILE_COORDS:
            self.coordinates(instr)
            return CTA
        level = self.highest(instr.operands)
        if instr.op is opcodes.TILE_GUARD:
            self.tile = level
        if instr.op in _DIFFERENT:
            level = LANE
        elif instr.op is opcodes.LD:
            level = max(level, self.loaded(instr))
        elif instr.op in _ALIGNING:
            level = min(level, self.aligned(instr))
        return level if instr.guard is None else max(level, self.highest((instr.guard.predicate,)))

    def highest(self, operands: tuple[Operand, ...]) -> int:
        """The level of what depends on all of ``operands``."""
        level = CTA
        for operand in operands:
            found = self.levels.get(operand.base if type(operand) is Mem else operand, CTA)
            if found > level:
                level = found
        return level

    def loaded(self, instr: Instr) -> int:
        """The level of what is loaded from one address."""
        if instr.mods[0] == "param":
            return CTA
        # Each thread has local memory of its own. Threads outside the tile may not load at all.
        return LANE if "local" in instr.mods else self.tile

    def rise(self, value: Value, level: int, block: Block, index: int) -> None:
        """Raise a value of ``block`` to a level; if the walk, now at ``index``, has passed it, another begins there."""
        if level > self.levels.get(value, CTA):
            self.levels[value] = level
            position = self.position[block]
            if position <= index:
                self.again = min(self.again, position)

    def aligned(self, instr: Instr) -> int:
        """In which group an instruction gives one value because what it counts is cut at the group's border."""
        operands = instr.operands
        if instr.op is opcodes.MOV:
            if operands == (Sym("%tid.x"),):
                self.counters[instr.results[0]] = (1, _WARPGROUP_SIZE)
            return LANE
        counter = self.counters.get(operands[0])
        if counter is None or not isinstance(operands[1], Const):
            return LANE
        step, start = counter
        number = operands[1].bits
        if instr.op is opcodes.SETP:
            if instr.mods[0] not in ("lt", "ge", "le", "gt"):
                return LANE
            return _level_of_cut(step * (number if instr.mods[0] in ("lt", "ge") else number + 1), start)
        if instr.op is opcodes.AND:
            return _level_of_cut(step * (number & -number), start)
        divisor = number if instr.op is opcodes.DIV else 1 << (number & 31)
        if divisor > 0:
            self.counters[instr.results[0]] = (step * divisor, start)
        return _level_of_cut(step * divisor, start)

    def coordinates(self, instr: Instr) -> None:
        """A coordinate is ``cell / stride % extent``: the same where cells next to each other share the quotient."""
        cells = int(next(mod for mod in instr.mods if mod.startswith("cells=")).partition("=")[2])
        pair = [int(mod.partition("=")[2]) for mod in instr.mods if mod.startswith(("grouped=", "other="))]
        stride, known = 1, True
        *coordinates, inside = instr.results
        for position in reversed(range(len(coordinates))):
            value, extent = coordinates[position], instr.operands[position]
            level = _level_of_multiple(stride, cells)
            if position in pair:
                # Both coordinates of a grouped pair come from the pair's common quotient.
                level = level if position == max(pair) else self.levels.get(coordinates[position + 1], CTA)
            self.levels[value] = max(level, self.levels.get(value, CTA))
            if isinstance(extent, Const):
                counts = stride == 1 and known and position not in pair
                if counts:
                    self.counters[value] = (1, math.gcd(extent.bits, cells))
                stride *= extent.bits
            else:
                # The stride is a multiple of what is known of it.
                known = False
        self.levels[inside] = _level_of_multiple(stride, cells)

    # ------------------------------------------------------------------------------------------------- branches

    def branch(self, index: int, block: Block, terminator: Instr) -> None:
        """Split the blocks between a branch and where its paths meet at the level of its condition."""
        level = self.highest(terminator.operands)
        if level <= self.branches.get(block, CTA):
            return
        self.branches[block] = level
        meeting = self.after.get(block)
        region = self.region(block, meeting)
        for inner in region:
            if self.splits[inner][0] < level:
                self.splits[inner] = (level, terminator)
        # Where paths meet, a parameter depends on the path that each thread took.
        for inner in (*region, *((meeting,) if meeting is not None else ())):
            for value in inner.params:
                self.rise(value, level, inner, index)
        if block in region:
            # Threads leave this loop at different times: whatever it computed differs after it.
            for inner in region:
                for instr in self.deciding[inner]:
                    for value in instr.results:
                        self.rise(value, level, inner, len(self.order))

    def region(self, block: Block, meeting: Block | None) -> list[Block]:
        """The blocks on the paths from a branch to where they meet."""
        seen: dict[Block, None] = {}
        stack = [after for after in block.successors() if after is not meeting]
        while stack:
            inner = stack.pop()
            if inner not in seen:
                seen[inner] = None
                stack += [after for after in inner.successors() if after is not meeting]
        return list(seen)

    # ------------------------------------------------------------------------------------------------- checking

    def check(self, block: Block, checked: list[Instr]) -> None:
        """Check those of the block's instructions that need threads together, or are the tile's guard."""
        split, branch = self.splits[block]
        for instr in checked:
            need = _NEEDS.get(instr.op)
            if need is not None:
                if instr.op is opcodes.BAR and len(instr.operands) > 1:
                    need = WARP
                # A shuffle among the lanes that are there waits for nobody else.
                active = instr.op is opcodes.SHFL and not isinstance(instr.operands[-1], Const)
                if split > need and not active and instr.op is not opcodes.ACTIVEMASK:
                    raise self.divergence(instr, branch)
                if instr.op in _WHOLE or (instr.op is opcodes.SHFL and not active):
                    self.check_whole(instr, need, split)
            if instr.op is opcodes.TILE_GUARD:
                instr.mods = (LEVELS[self.highest(instr.operands)],)
            if instr.op is opcodes.ACTIVEMASK and split <= WARP:
                at = block.instrs.index(instr)
                block.instrs[at : at + 1] = self.full_mask(instr)
                checked = [each for each in checked if each is not instr]
        block.collective = needed(checked)

    def check_whole(self, instr: Instr, need: int, split: int) -> None:
        """Raise DivergenceError where a warp, or a warpgroup, that the CTA does not fill reaches ``instr``.

        Where warpgroups have parted, those that are whole may be the ones that do.
        """
        size, noun = (_WARP_SIZE, "warp") if need == WARP else (_WARPGROUP_SIZE, "warpgroup")
        threads = self.kernel.threads
        if threads % size and (threads < size or need == WARP or split < WARPGROUP):
            raise DivergenceError(
                f"{instr.op.name} takes whole {noun}s, and the CTA's {threads} threads are no multiple of {size}",
                kernel=self.kernel.name,
                statement=str(instr.loc),
                hint=f"give the tile a multiple of {size} threads",
            )

    def full_mask(self, instr: Instr) -> list[Instr]:
        """The mask of a warp's lanes: all 32, but for a last warp that the CTA does not fill."""
        threads = self.kernel.threads
        rest = threads % _WARP_SIZE
        full, partial = integer(B32, -1), integer(B32, (1 << rest) - 1)

        def write(op: Opcode, mods: str, result: Value, *operands: Operand) -> Instr:
            return Instr(op, tuple(mods.split(".")), (result,), operands, loc=instr.loc)

        (mask,) = instr.results
        if rest == 0 or threads < _WARP_SIZE:
            return [write(opcodes.MOV, "b32", mask, full if rest == 0 else partial)]
        tid, last = self.kernel.value(B32, "tid"), self.kernel.value(PRED, "last.warp")
        return [
            write(opcodes.MOV, "u32", tid, Sym("%tid.x")),
            write(opcodes.SETP, "ge.s32", last, tid, integer(B32, threads - rest)),
            write(opcodes.SELP, "b32", mask, partial, full, last),
        ]

    def divergence(self, instr: Instr, branch: Instr | None) -> DivergenceError:
        assert branch is not None
        predicate = branch.operands[0]
        assert isinstance(predicate, Value)
        source, loaded = self.source(predicate)
        number = instr.operands[0].bits if instr.op is opcodes.BAR and isinstance(instr.operands[0], Const) else None
        kind = {opcodes.SHFL: "shuffle", opcodes.BAR: "barrier", opcodes.BAR_WARP: "barrier"}.get(instr.op, "statement")
        alone = {"shuffle": "the shuffle", "barrier": "the warp's barrier"}.get(kind, instr.op.name)
        name = f"barrier {number}" if number is not None else alone
        between_warps = "the CTA" if instr.op is opcodes.BAR else "a warpgroup"
        group = "a warp" if self.highest((predicate,)) == LANE else between_warps
        return DivergenceError(
            f"only some threads of {group} reach {name}: the branch of {str(branch.loc) or branch!r} "
            f"depends on %{source.name}, which "
            + ("threads outside the tile do not load" if loaded else "differs between threads"),
            kernel=self.kernel.name,
            statement=str(instr.loc),
            hint=f"move the {kind} out of the branch, or make the condition the same for all threads that wait",
        )

    def source(self, value: Value) -> tuple[Value, bool]:
        """The value nearest to the thread's own number that makes ``value`` differ, and whether it differs only
        because it is loaded inside the tile alone."""
        definitions = {result: instr for instr in self.kernel.instrs() for result in instr.results}
        level = self.levels[value]
        seen = set()
        while value not in seen:
            seen.add(value)
            instr = definitions.get(value)
            if instr is None or instr.op is opcodes.TILE_COORDS:
                break
            operands = [operand.base if isinstance(operand, Mem) else operand for operand in instr.operands]
            inner = [o for o in operands if isinstance(o, Value) and self.levels.get(o, CTA) >= level]
            if not inner:
                break
            value = inner[0]
        instr = definitions.get(value)
        loaded = instr is not None and instr.op is opcodes.LD and "local" not in instr.mods
        return value, loaded and self.tile >= level


def _level_of_multiple(stride: int, cells: int) -> int:
    """In which group ``cell / stride`` is the same, for cells numbered from a multiple of ``cells`` on in each CTA."""
    return CTA if stride % cells == 0 else _level_of_cut(stride, cells)


def _level_of_cut(border: int, start: int) -> int:
    """Which groups are whole on either side of thread ``border``, for threads numbered from a multiple of ``start``."""
    for level, size in ((WARPGROUP, _WARPGROUP_SIZE), (WARP, _WARP_SIZE)):
        if border % size == 0 == start % size:
            return level
    return LANE
