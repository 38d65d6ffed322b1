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
  where both hold.
"""

from __future__ import annotations

from ptxc.ir import opcodes
from ptxc.ir.kernel import Block, Edge, Guard, Instr, Kernel
from ptxc.ir.types import PRED
from ptxc.ir.values import TRUE, Operand, Value
from ptxc.passes.collectives import LANE, LEVELS, needed


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
        _predicate(kernel, later, block, index, inside)


def _is_true(block: Block, inside: Value) -> bool:
    definition = next((instr for instr in block.instrs if inside in instr.results), None)
    return definition is not None and definition.op is opcodes.MOV and definition.operands == (TRUE,)


def _later_blocks(block: Block) -> list[Block]:
    """The guard's block and all that can follow it."""
    seen = {block: None}
    stack = [block]
    while stack:
        for after in stack.pop().successors():
            if after not in seen:
                seen[after] = None
                stack.append(after)
    return list(seen)


def _leave(kernel: Kernel, block: Block, index: int, guard: Instr, inside: Value) -> None:
    """Split the block at the guard: threads outside return."""
    rest, outside = Block(kernel.fresh("inside")), Block(kernel.fresh("outside"))
    rest.instrs, block.instrs = block.instrs[index:], block.instrs[:index]
    rest.collective, block.collective = needed(rest.instrs), needed(block.instrs)
    targets = (Edge(rest), Edge(outside))
    block.instrs.append(Instr(opcodes.BRA, (), (), (inside,), targets=targets, loc=guard.loc))
    outside.instrs = [Instr(opcodes.RET, loc=guard.loc)]
    kernel.blocks.insert(kernel.blocks.index(block) + 1, rest)
    kernel.blocks.append(outside)


def _predicate(kernel: Kernel, later: list[Block], block: Block, index: int, inside: Value) -> None:
    """Put what touches memory after the guard under the predicate."""
    for after in later:
        first = index if after is block else 0
        kept = after.instrs[:first]
        for instr in after.instrs[first:]:
            if instr.op.effect in ("READ", "WRITE") and not _is_private(instr):
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


def _is_private(instr: Instr) -> bool:
    """Whether an instruction touches no memory that a cell's coordinates address."""
    return instr.op is opcodes.CP_ASYNC_COMMIT or (instr.op is opcodes.LD and instr.mods[0] == "param")
