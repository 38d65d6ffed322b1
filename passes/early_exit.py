"""Keeps threads whose cell lies outside the tile from having an effect.

Four shapes, by what the kernel does after the guard:

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
  where both hold.

- Much stands before the first collective: threads outside go around it, where each load would cost them time, and all
  threads another instruction for the 0. What comes from there is 0 for them::

      tile.guard.lane %inside           bra %inside, inside, together(0)
      ...                         ->    inside: ...
      shfl.sync.bfly %x                         bra together(%x)
                                        together(%y): shfl.sync.bfly %y

  The rest happens under the predicate. Whatever else is computed on the way and used behind, all threads compute in
  front of it; where they cannot, or what comes from memory decides a branch, nobody goes around.
"""

from __future__ import annotations

from itertools import chain, takewhile
from typing import NamedTuple

from ptxc.ir import cfg, opcodes
from ptxc.ir.kernel import Block, Edge, Guard, Instr, Kernel
from ptxc.ir.rewrite import Substitution
from ptxc.ir.slices import backward_slice
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
        start = _go_around(kernel, block, index, inside) or (block, index)
        _predicate(kernel, *start, inside)


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


class _Way(NamedTuple):
    """What lies between the guard and the first collective."""

    #: The guard's block first, the collective's last, which may be the same.
    blocks: list[Block]
    #: The instructions in each that are on the way.
    parts: list[list[Instr]]


def _way(kernel: Kernel, block: Block, index: int) -> _Way | None:
    """The way from the guard to the first collective.

    None if no collective comes first on all ways, or threads come from elsewhere on the way, or return there.
    """
    code = block.instrs[index:]
    if needed(code):
        return _Way([block], [_before_collective(code)])
    blocks = _later_blocks(block, collective=False)
    last = [inner for inner in blocks[1:] if inner.collective]
    if len(last) != 1:
        return None
    blocks.remove(last[0])
    before = cfg.predecessors(kernel)
    enclosed = all([set(blocks).issuperset(before[inner]) for inner in (*blocks[1:], *last)])
    goes_on = all([inner.successors() and block not in inner.successors() for inner in blocks])
    if not (enclosed and goes_on):
        return None
    between = [inner.instrs for inner in blocks[1:]]
    return _Way([*blocks, *last], [code, *between, _before_collective(last[0].instrs)])


def _before_collective(instrs: list[Instr]) -> list[Instr]:
    """The instructions before the first collective."""
    return list(takewhile(lambda instr: not needed([instr]), instrs))


def _go_around(kernel: Kernel, block: Block, index: int, inside: Value) -> tuple[Block, int] | None:
    """Lead threads outside to the first collective, and return where begins what is to happen under the predicate.

    None, and nothing done, where that does not pay or cannot be.
    """
    way = _way(kernel, block, index)
    if way is None or not _pays(way):
        return None
    late, used = _from_memory(way), _used_behind(kernel, way)
    lifted = _lifted(way, late, used)
    staying = [instr for instr in chain(*way.parts) if instr not in lifted]
    defined = [value for inner in way.blocks[1:] for value in inner.params]
    defined += [value for instr in staying for value in instr.results]
    passed = tuple([value for value in defined if value in used])
    if not late.issuperset(passed) or _decides(kernel, passed):
        return None
    last, loc = way.blocks[-1], block.instrs[index].loc
    end = len(way.parts[-1]) + (index if last is block else 0)
    together = _split(kernel, last, end, "together", loc)
    rest = _split(kernel, block, index, "inside", loc)
    last = rest if last is block else last
    for inner in dict.fromkeys((rest, last)):
        inner.instrs = [instr for instr in inner.instrs if instr not in lifted]
    block.instrs[-1:-1] = lifted
    last.instrs[-1].targets = (Edge(together, passed),)
    _branch(block, inside, rest, Edge(together, tuple([Const(value.type, 0) for value in passed])))
    behind = Substitution()
    together.params = [kernel.value(value.type, value.hint) for value in passed]
    behind.replace_all(passed, together.params)
    for after in _later_blocks(together):
        for instr in after.instrs:
            behind.apply(instr)
    return together, 0


def _pays(way: _Way) -> bool:
    """Whether much is on a way, and nothing that needs threads together."""
    instrs = list(chain(*way.parts))
    convergent = any([instr.op.effect in (opcodes.SYNC, opcodes.JOINT) for instr in instrs])
    return not convergent and sum([_touches_memory(instr) for instr in instrs]) >= _MUCH


def _from_memory(way: _Way) -> set[Operand]:
    """What depends on memory that is read on the way: threads inside and outside differ in it anyway."""
    found: set[Operand] = set()
    known = -1
    while known < len(found):
        known = len(found)
        for instr in chain(*way.parts):
            if _touches_memory(instr) or not found.isdisjoint(reads(instr)):
                found.update(instr.results)
            for after, args in instr.targets:
                found.update([param for param, arg in zip(after.params, args, strict=True) if arg in found])
    return found


def _used_behind(kernel: Kernel, way: _Way) -> set[Operand]:
    """What is used elsewhere than on the way."""
    members = set(chain(*way.parts))
    return set(chain.from_iterable([reads(instr) for instr in kernel.instrs() if instr not in members]))


def _lifted(way: _Way, late: set[Operand], used: set[Operand]) -> dict[Instr, None]:
    """What can be computed in front of the way by all threads, and has to be as it is ``used`` behind.

    The first block and the last are executed in any case, so that nothing is computed in vain.
    """
    params = [value for block in way.blocks[1:] for value in block.params]
    inner = {*params, *[value for instr in chain(*way.parts) for value in instr.results]}
    free: list[Instr] = []
    for instr in chain(way.parts[0], *way.parts[1:][-1:]):
        pure = (instr.op.effect == opcodes.PURE or _loads_parameter(instr)) and instr.guard is None
        if pure and late.isdisjoint(instr.results) and inner.isdisjoint(reads(instr)):
            free.append(instr)
            inner.difference_update(instr.results)
    needed = set(used)
    lifted: list[Instr] = []
    for instr in reversed(free):
        if not needed.isdisjoint(instr.results):
            lifted.append(instr)
            needed.update(reads(instr))
    return dict.fromkeys(reversed(lifted))


def _decides(kernel: Kernel, values: tuple[Value, ...]) -> bool:
    """Whether branches depend on one of ``values``: 0 in its place might be a loop's step, or its count."""
    deciding, _ = backward_slice(cfg.reverse_postorder(kernel), (opcodes.BRA,))
    return not deciding.isdisjoint(values)


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
    private = instr.op is opcodes.CP_ASYNC_COMMIT or _loads_parameter(instr)
    return instr.op.effect in (opcodes.READ, opcodes.WRITE) and not private


def _loads_parameter(instr: Instr) -> bool:
    return instr.op is opcodes.LD and instr.mods[0] == "param"
