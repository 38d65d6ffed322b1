"""Merges instructions that compute the same.

Walks the dominator tree; an instruction without effects that an earlier one on the way down has computed already is
dropped, and its uses take the earlier result::

    %a = add.s32 %x, %y                 %a = add.s32 %x, %y
    %b = add.s32 %y, %x           ->
    st.global.b32 [%p], %b              st.global.b32 [%p], %a

Loads of parameters and loads through the non-coherent path count as such: nothing writes what they read. A guarded
load, whose result is 0 where it does not execute, is merged with one under the same guard; no other instruction
without effects has a guard.
"""

from __future__ import annotations

from collections.abc import Hashable

from ptxc.ir import cfg, opcodes
from ptxc.ir.kernel import Block, Instr, Kernel
from ptxc.ir.rewrite import Substitution
from ptxc.ir.values import Value


def run(kernel: Kernel) -> None:
    """Merge equal instructions."""
    children = cfg.dominator_tree(kernel)
    substitution = Substitution()
    known: dict[Hashable, tuple[Value, ...]] = {}
    # Each entry: a block to enter, or the keys to forget when its subtree is done.
    stack: list[Block | list[Hashable]] = [kernel.blocks[0]]
    left = len(children)
    while left:
        item = stack.pop()
        if isinstance(item, list):
            for key in item:
                del known[key]
            continue
        left -= 1
        added = _merge(item, known, substitution)
        stack.append(added)
        stack += reversed(children[item])


def _merge(block: Block, known: dict[Hashable, tuple[Value, ...]], substitution: Substitution) -> list[Hashable]:
    """Merge the block's instructions with ``known`` ones; what it added to them."""
    added: list[Hashable] = []
    kept: list[Instr] = []
    replaced = substitution.replaced
    for instr in block.instrs:
        op = instr.op
        if not op.plain or instr.guard is not None or not replaced.isdisjoint(instr.operands):
            substitution.apply(instr)
        if op.effect == "PURE" or (op is opcodes.LD and _reads_constant_memory(instr)):
            key = _commuted(instr) if op.commutative else (op, instr.mods, instr.operands, instr.guard)
            results = instr.results
            earlier = known.setdefault(key, results)
            if earlier is not results:
                substitution.replace_all(results, earlier)
                continue
            added.append(key)
        kept.append(instr)
    block.instrs = kept
    return added


def _reads_constant_memory(load: Instr) -> bool:
    return load.mods[0] == "param" or "nc" in load.mods


def _commuted(instr: Instr) -> Hashable:
    """The key of an instruction whose operands may change places."""
    operands = instr.operands
    if len(operands) == 2:
        a, b = operands
        # Constants last. Of two values any order does that is the same for both; it decides about nothing else.
        if type(a) is not Value or (type(b) is Value and id(a) > id(b)):
            operands = (b, a)
    return (instr.op, instr.mods, operands, instr.guard)
