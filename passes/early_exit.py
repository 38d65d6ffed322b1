"""Keeps threads whose cell lies outside the tile from having an effect.

Three shapes, by what the kernel does after the guard:

- The grid fits: the predicate is the constant true, and the guard goes.
- Nothing after it needs threads together that it would separate: threads outside leave at once::

      tile.guard.lane %inside           bra %inside, inside, outside
      ...                         ->    inside:  ...
                                        outside: ret

- A collective comes later: a thread that left would be missed at a barrier, and the CTA would hang. All threads stay,
  and what touches memory happens under the predicate::

      tile.guard.lane %inside           @%inside st.shared.f32 [%a], %x
      st.shared.f32 [%a], %x      ->    bar.sync 0
      bar.sync 0

  A guarded load gives 0 to threads outside; what they compute from it goes nowhere. What has a guard already happens
  where both hold. Around much that stands before the first collective they go instead, as there each load would cost
  another instruction for the 0, and them the time::

      tile.guard.lane %inside           bra %inside, inside, together(0)
      ...                         ->    inside: ...
      shfl.sync.bfly %x                         bra together(%x)
                                        together(%y): shfl.sync.bfly %y
"""

from __future__ import annotations

from itertools import chain, takewhile

from ptxc.ir import cfg, opcodes
from ptxc.ir.kernel import Block, Edge, Guard, Instr, Kernel
from ptxc.ir.rewrite import Substitution
from ptxc.ir.types import PRED
from ptxc.ir.uses import reads
from ptxc.ir.values import TRUE, Const, Operand, Value
from ptxc.passes.collectives import LANE, LEVELS, needed

#: From how many instructions on that touch memory threads outside go around them.
_MUCH = 4


def run(kernel: Kernel) -> None:
    """Replace ``tile.guard``."""
    for block in kernel.blocks:
        for index, instr in enumerate(block.instrs):
            if instr.op is opcodes.TILE_GUARD:
                _replace(kernel, block, index)
                return


def _replace(kernel: Kernel, block: Block, index: int) -> None:
    guard = block.instrs.pop(index)
    (inside,) = guard.operands
    if isinstance(inside, Value) and _is_true(block, inside):
        inside = TRUE
    if inside == TRUE:
        return
    assert isinstance(inside, Value)
    later = _later_blocks(block)
    separates = LEVELS.index(guard.mods[0]) if guard.mods else LANE
    groups = [needed(block.instrs[index:]), *(after.collective for after in later if after is not block)]
    if separates <= min((LEVELS.index(group) for group in groups if group), default=LANE):
        _leave(kernel, block, index, guard, inside)
    else:
        way = _way(kernel, block, index)
        if _is_much(way):
            block, index = _go_around(kernel, block, index, [inner for inner, _ in way], inside)
        _predicate(kernel, block, index, inside)


def _is_true(block: Block, inside: Value) -> bool:
    definition = next((instr for instr in block.instrs if inside in instr.results), None)
    return definition is not None and definition.op is opcodes.MOV and definition.operands == (TRUE,)


def _later_blocks(block: Block, *, collective: bool = True) -> list[Block]:
    """A block and all that can follow it; unless ``collective``, none that follow one with a collective."""
    seen = {block: None}
    stack = [block]
    while stack:
        for after in stack.pop().successors():
            if after not in seen:
                seen[after] = None
                if collective or not after.collective:
                    stack.append(after)
    return list(seen)


def _leave(kernel: Kernel, block: Block, index: int, guard: Instr, inside: Value) -> None:
    """Split the block at the guard: threads outside return."""
    rest, outside = _split(kernel, block, index, "inside", guard.loc), Block(kernel.fresh("outside"))
    _branch(block, inside, rest, Edge(outside))
    outside.instrs = [Instr(opcodes.RET, loc=guard.loc)]
    kernel.blocks.append(outside)


def _split(kernel: Kernel, block: Block, index: int, name: str, loc: object) -> Block:
    """Let a block, which is returned, go on from an instruction of another one on."""
    rest = Block(kernel.fresh(name))
    rest.instrs, block.instrs = block.instrs[index:], block.instrs[:index]
    block.instrs.append(Instr(opcodes.BRA, targets=(Edge(rest),), loc=loc))
    rest.collective, block.collective = needed(rest.instrs), needed(block.instrs)
    kernel.blocks.insert(kernel.blocks.index(block) + 1, rest)
    return rest


def _branch(block: Block, inside: Value, rest: Block, outside: Edge) -> None:
    """End a block with a branch for the threads inside and those outside."""
    end = block.instrs[-1]
    end.operands, end.targets = (inside,), (Edge(rest), outside)


def _way(kernel: Kernel, block: Block, index: int) -> list[tuple[Block, list[Instr]]]:
    """The blocks from the guard to the first collective, and what is on the way in each.

    Nothing if no collective comes first on all ways, or threads come from elsewhere on the way, or return there.
    """
    code = block.instrs[index:]
    if needed(code):
        return [(block, _before_collective(code))]
    way = _later_blocks(block, collective=False)
    last = [inner for inner in way[1:] if inner.collective]
    if len(last) != 1:
        return []
    way.remove(last[0])
    before = cfg.predecessors(kernel)
    enclosed = all([set(way).issuperset(before[inner]) for inner in (*way[1:], *last)])
    goes_on = all([inner.successors() and block not in inner.successors() for inner in way])
    if not (enclosed and goes_on):
        return []
    between = [(inner, inner.instrs) for inner in way[1:]]
    return [(block, code), *between, (last[0], _before_collective(last[0].instrs))]


def _before_collective(instrs: list[Instr]) -> list[Instr]:
    """The instructions before the first collective."""
    return list(takewhile(lambda instr: not needed([instr]), instrs))


def _is_much(way: list[tuple[Block, list[Instr]]]) -> bool:
    """Whether it pays to go around a way, and nothing on it needs threads together."""
    instrs = [instr for _, code in way for instr in code]
    convergent = any([instr.op.effect in (opcodes.SYNC, opcodes.JOINT) for instr in instrs])
    return not convergent and sum([_touches_memory(instr) for instr in instrs]) >= _MUCH


def _go_around(kernel: Kernel, block: Block, index: int, way: list[Block], inside: Value) -> tuple[Block, int]:
    """Lead threads outside to the first collective; return where begins what is to happen under the predicate.

    That is where the guard was if a value passes that does not come from memory: threads outside may need it for what
    all do together.
    """
    loc = block.instrs[index].loc
    rest = _split(kernel, block, index, "inside", loc)
    *_, last = way = [rest, *way[1:]]
    together = _split(kernel, last, len(_before_collective(last.instrs)), "together", loc)
    late = _from_memory(way)
    block.instrs[-1:-1] = [instr for instr in rest.instrs if _is_free(instr, late)]
    rest.instrs = [instr for instr in rest.instrs if not _is_free(instr, late)]
    together.instrs[:0] = _take_free(last, late)
    passed = _used_behind(kernel, way)
    if not late.issuperset(passed):
        return block, len(block.instrs) - 1
    last.instrs[-1].targets = (Edge(together, passed),)
    _branch(block, inside, rest, Edge(together, tuple([Const(value.type, 0) for value in passed])))
    behind = Substitution()
    together.params = [kernel.value(value.type, value.hint) for value in passed]
    behind.replace_all(passed, together.params)
    for after in _later_blocks(together):
        for instr in after.instrs:
            behind.apply(instr)
    return together, 0


def _from_memory(way: list[Block]) -> set[Operand]:
    """What depends on memory that is read on the way: threads inside and outside differ in it anyway."""
    found: set[Operand] = set()
    known = -1
    while known < len(found):
        known = len(found)
        for block in way:
            for instr in block.instrs:
                if _touches_memory(instr) or not found.isdisjoint(reads(instr)):
                    found.update(instr.results)
            for after, args in block.instrs[-1].targets:
                found.update([param for param, arg in zip(after.params, args, strict=True) if arg in found])
    return found


def _is_free(instr: Instr, late: set[Operand]) -> bool:
    """Whether all threads can compute it as well as those inside."""
    return instr.op.effect == opcodes.PURE and instr.guard is None and late.isdisjoint(instr.results)


def _take_free(block: Block, late: set[Operand]) -> list[Instr]:
    """Take out of a block what all threads can compute as well, and nothing else in the block uses."""
    used: set[Operand] = set()
    taken, kept = [], []
    for instr in reversed(block.instrs):
        if _is_free(instr, late) and used.isdisjoint(instr.results):
            taken.append(instr)
        else:
            kept.append(instr)
            used.update(reads(instr))
    block.instrs = kept[::-1]
    return taken[::-1]


def _used_behind(kernel: Kernel, way: list[Block]) -> tuple[Value, ...]:
    """The values that the blocks of a way define and others use."""
    members = set(way)
    others = [instr for block in kernel.blocks if block not in members for instr in block.instrs]
    used = set(chain.from_iterable(map(reads, others)))
    defined = [value for block in way for value in chain(block.params, *[instr.results for instr in block.instrs])]
    return tuple([value for value in defined if value in used])


def _predicate(kernel: Kernel, block: Block, index: int, inside: Value) -> None:
    """Put what touches memory from there on under the predicate."""
    for after in _later_blocks(block):
        first = index if after is block else 0
        kept = after.instrs[:first]
        for instr in after.instrs[first:]:
            if _touches_memory(instr):
                instr.guard = Guard(inside if instr.guard is None else _both(kernel, instr, inside, kept))
            kept.append(instr)
        after.instrs = kept


def _both(kernel: Kernel, instr: Instr, inside: Value, kept: list[Instr]) -> Value:
    """Where the instruction's guard holds inside; what computes it is appended to ``kept``."""

    def write(op: opcodes.Opcode, *operands: Operand) -> Value:
        result = kernel.value(PRED, "inside")
        kept.append(Instr(op, ("pred",), (result,), operands, loc=instr.loc))
        return result

    assert instr.guard is not None
    predicate, negated = instr.guard
    return write(opcodes.AND, inside, write(opcodes.NOT, predicate) if negated else predicate)


def _touches_memory(instr: Instr) -> bool:
    """Whether an instruction touches memory that a cell's coordinates address."""
    private = instr.op is opcodes.CP_ASYNC_COMMIT or (instr.op is opcodes.LD and instr.mods[0] == "param")
    return instr.op.effect in (opcodes.READ, opcodes.WRITE) and not private
