"""Lets a small loop count in one of its addresses.

A loop that ptxc has unrolled uses its counter for addresses alone, each the counter times a constant on a base. One of
them can be the counter itself; the others are multiples of it on other bases::

    entry:                                   entry:
                                               %end = add.s32 %a, 512
                                               %c = mad.lo.s32 %a, -32, %b
      bra loop(0)                              bra loop(%a)
    loop(%i):                          ->    loop(%x):
      %x = mad.lo.s32 %i, 16, %a
      %y = mad.lo.s32 %i, 512, %b              %y = mad.lo.s32 %x, 32, %c
      ...                                      ...
      %i.1 = add.s32 %i, 1                     %i.1 = add.s32 %x, 16
      %p = setp.lt.s32 %i.1, 32                %p = setp.ne.s32 %i.1, %end
      bra %p, loop(%i.1), done                 bra %p, loop(%i.1), done

That is an instruction less in each iteration. It is compared for equality, so it does not matter where the addresses
begin, and in a loop that takes a known number of steps it comes to the end exactly. Of large loops it would be too
small a part, and registers that ``ptxas`` gives them then differ by more.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from ptxc.ir import cfg, opcodes
from ptxc.ir.kernel import Block, Edge, Instr, Kernel
from ptxc.ir.types import B32
from ptxc.ir.uses import use_counts
from ptxc.ir.values import Const, Operand, Value, integer

#: Up to how many instructions a loop is small.
_SMALL = 96


class _Counted(NamedTuple):
    """A loop whose counter goes from one constant to another in constant steps."""

    #: The place among the block's parameters.
    at: int
    advance: Instr
    test: Instr
    first: int
    step: int
    #: How often the loop runs.
    trips: int
    #: The addresses that it is used for.
    addresses: list[Instr]


def run(kernel: Kernel) -> None:
    """Recount every loop of one block that ptxc has unrolled."""
    small = [
        block
        for block in kernel.blocks
        if block.unrolled and len(block.instrs) <= _SMALL and block.instrs[-1].targets[0].block is block
    ]
    if not small:
        return
    before = cfg.predecessors(kernel)
    users = use_counts(kernel)
    for block in small:
        entries = [entry for entry in dict.fromkeys(before[block]) if entry is not block]
        if len(entries) == 1:
            counted = _counted(block, entries[0], users)
            if counted is not None:
                _recount(kernel, block, entries[0], counted)


def _counted(block: Block, entry: Block, users: Counter[Operand]) -> _Counted | None:
    """How the loop counts, if all that it does with its counter is to make addresses."""
    made: dict[Operand, Instr] = {result: instr for instr in block.instrs for result in instr.results}
    changing = {*made, *block.params}
    terminator = block.instrs[-1]
    test = made.get(terminator.operands[0]) if terminator.operands else None
    if test is None or test.op is not opcodes.SETP or test.mods != ("lt", "s32"):
        return None
    following, limit = test.operands
    advance = made.get(following)
    if advance is None or advance.op is not opcodes.ADD or not isinstance(limit, Const):
        return None
    counter, step = advance.operands
    if not isinstance(counter, Value) or counter not in block.params or not isinstance(step, Const) or step.bits < 1:
        return None
    at = block.params.index(counter)
    arrivals = [edge for edge in entry.instrs[-1].targets if edge.block is block]
    first = arrivals[0].args[at]
    if terminator.targets[0].args[at] is not following or not isinstance(first, Const) or len(arrivals) > 1:
        return None
    addresses = [instr for instr in block.instrs if counter in instr.operands and instr is not advance]
    trips = -(-(limit.bits - first.bits) // step.bits)
    alone = users[counter] == 1 + len(addresses) and users[advance.results[0]] == 2
    if not (addresses and alone and trips > 1 and all(_is_address(instr, counter, changing) for instr in addresses)):
        return None
    return _Counted(at, advance, test, first.bits, step.bits, trips, addresses)


def _is_address(instr: Instr, counter: Operand, changing: set[Operand]) -> bool:
    """Whether an instruction makes an address of the counter: a multiple of it on what the loop does not change."""
    if instr.op is not opcodes.MAD or instr.mods != ("lo", "s32") or instr.operands[0] is not counter:
        return False
    _, factor, base = instr.operands
    return isinstance(factor, Const) and factor.bits > 0 and isinstance(base, Value) and base not in changing


def _recount(kernel: Kernel, block: Block, entry: Block, counted: _Counted) -> None:
    """Let the address with the least factor be the counter, if the others' factors are multiples of it."""
    factors = [_factor(instr) for instr in counted.addresses]
    factor = min(factors)
    span = counted.trips * counted.step * factor
    if span >= 1 << 31 or any(other % factor for other in factors):
        return
    chosen = counted.addresses[factors.index(factor)]
    (address,), base = chosen.results, chosen.operands[2]
    loc = entry.instrs[-1].loc
    prepared: list[Instr] = []

    def prepare(op: opcodes.Opcode, mods: tuple[str, ...], *operands: Operand) -> Value:
        result = kernel.value(B32, address.hint)
        prepared.append(Instr(op, mods, (result,), operands, loc=loc))
        return result

    offset = counted.first * factor
    start = prepare(opcodes.ADD, ("s32",), base, integer(B32, offset)) if offset else base
    end = prepare(opcodes.ADD, ("s32",), base, integer(B32, offset + span))
    for instr in counted.addresses:
        if instr is not chosen:
            times, other = _factor(instr) // factor, instr.operands[2]
            if times == 1:
                instr.op, instr.mods = opcodes.ADD, ("s32",)
                instr.operands = (address, prepare(opcodes.SUB, ("s32",), other, base))
            else:
                other = prepare(opcodes.MAD, ("lo", "s32"), base, integer(B32, -times), other)
                instr.operands = (address, integer(B32, times), other)
    entry.instrs[-1:-1] = prepared
    terminator = entry.instrs[-1]
    terminator.targets = tuple(
        Edge(edge.block, (*edge.args[: counted.at], start, *edge.args[counted.at + 1 :]))
        if edge.block is block
        else edge
        for edge in terminator.targets
    )
    block.params[counted.at] = address
    block.instrs.remove(chosen)
    counted.advance.operands = (address, integer(B32, counted.step * factor))
    counted.test.mods, counted.test.operands = ("ne", "s32"), (counted.advance.results[0], end)


def _factor(instr: Instr) -> int:
    factor = instr.operands[1]
    assert isinstance(factor, Const)
    return factor.bits
