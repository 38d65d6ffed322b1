"""Lets a loop count in its addresses.

A loop that ptxc has unrolled uses its counter mostly for addresses: the counter times a constant, on a base that
hoisting has moved in front of the loop. Each address can count for itself, in the register of its base if nothing else
uses that; and where the counter has no other use, the loop ends where one of them comes to its end::

    entry:                                   entry:
                                               %end = add.s32 %a, 512
      bra loop(0)                              bra loop(%a, %b)
    loop(%i):                          ->    loop(%x, %y):
      %x = mad.lo.s32 %i, 16, %a
      %y = mad.lo.s32 %i, 512, %b              ...
      ...                                      %y.1 = add.s32 %y, 512
      %i.1 = add.s32 %i, 1                     %x.1 = add.s32 %x, 16
      %p = setp.lt.s32 %i.1, 32                %p = setp.ne.s32 %x.1, %end
      bra %p, loop(%i.1), done                 bra %p, loop(%x.1, %y.1), done

That is a register less for each address, and an instruction less in each iteration. The end is compared for equality,
so it does not matter where the address begins, and in a loop that takes a known number of steps it comes to the end
exactly. Of large loops all that would be too small a part, and registers that ``ptxas`` gives them then differ by more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from ptxc.ir import cfg, opcodes
from ptxc.ir.kernel import Block, Edge, Instr, Kernel
from ptxc.ir.types import B32
from ptxc.ir.uses import use_counts
from ptxc.ir.values import Const, Operand, Value, integer

#: Up to how many instructions a loop is small (measured over Emmy's corpus).
_SMALL = 224


class _Counter(NamedTuple):
    """A parameter of a loop's block that grows by a constant in each iteration."""

    value: Value
    #: Its place among the parameters.
    at: int
    #: What it begins with.
    first: Operand
    step: int
    advance: Instr
    #: The addresses that are made of it.
    addresses: list[Instr]


def run(kernel: Kernel) -> None:
    """Let addresses count in every loop of one block that ptxc has unrolled."""
    small = [block for block in kernel.blocks if block.unrolled and len(block.instrs) <= _SMALL and _is_loop(block)]
    if not small:
        return
    before = cfg.predecessors(kernel)
    users = use_counts(kernel)
    for block in small:
        entries = [entry for entry in dict.fromkeys(before[block]) if entry is not block]
        if len(entries) == 1 and entries[0] not in entries[0].successors():
            for counter in _counters(block, entries[0]):
                trips = _trips(block, counter, users)
                addresses = [instr for instr in counter.addresses if trips or users[instr.operands[2]] == 1]
                if addresses:
                    _recount(kernel, block, entries[0], counter._replace(addresses=addresses), trips)


def _is_loop(block: Block) -> bool:
    """Whether one way from the block leads back to it, the first."""
    return block.successors().count(block) == 1 and block.successors()[0] is block


def _counters(block: Block, entry: Block) -> list[_Counter]:
    """The counters, with their addresses, of a loop that is entered from a block."""
    made: dict[Operand, Instr] = {result: instr for instr in block.instrs for result in instr.results}
    changing = {*made, *block.params}
    back = block.instrs[-1].targets[0]
    arrivals = [edge for edge in entry.instrs[-1].targets if edge.block is block]
    found = []
    for at, value in enumerate(block.params if len(arrivals) == 1 else ()):
        advance = made.get(back.args[at])
        if advance is None or advance.op is not opcodes.ADD or advance.mods != ("s32",):
            continue
        added, step = advance.operands
        if added is value and type(step) is Const:
            addresses = [instr for instr in block.instrs if _is_address(instr, value, changing)]
            if addresses:
                found.append(_Counter(value, at, arrivals[0].args[at], step.bits, advance, addresses))
    return found


def _is_address(instr: Instr, counter: Value, changing: set[Operand]) -> bool:
    """Whether an instruction makes an address of the counter: a multiple of it on what the loop does not change."""
    if instr.op is not opcodes.MAD or instr.mods != ("lo", "s32") or instr.operands[0] is not counter:
        return False
    _, factor, base = instr.operands
    return type(factor) is Const and type(base) is Value and base not in changing


def _trips(block: Block, counter: _Counter, users: Counter[Operand]) -> int:
    """How often the loop runs, if the counter is for that and the addresses alone; 0 if not, or if nobody knows."""
    test, following = _test(block), counter.advance.results[0]
    alone = users[counter.value] == 1 + len(counter.addresses) and users[following] == 2
    if not alone or test is None or test.op is not opcodes.SETP or test.mods != ("lt", "s32"):
        return 0
    counted, limit = test.operands
    first, step, factor = counter.first, counter.step, _factor(counter.addresses[0])
    if counted is not following or type(first) is not Const or type(limit) is not Const or step < 1 or not factor:
        return 0
    trips = max(1, -(-(limit.bits - first.bits) // step))
    # Until the end the counter must not overflow, nor the address come by where it began.
    far = max(first.bits + trips * step, trips * step * abs(factor))
    return trips if far < 1 << 31 else 0


def _test(block: Block) -> Instr | None:
    """What decides whether the loop goes on."""
    decision = block.instrs[-1].operands
    return next((instr for instr in block.instrs if instr.results == decision), None)


def _recount(kernel: Kernel, block: Block, entry: Block, counter: _Counter, trips: int) -> None:
    """Let the counter's addresses count for themselves.

    If the loop runs a known number of times and the counter is for nothing else, it goes: the loop ends where the
    first address does.
    """

    def sum_of(value: Operand, addend: int, like: Instr) -> Instr:
        result = kernel.value(B32, like.results[0].hint)
        return Instr(opcodes.ADD, ("s32",), (result,), (value, integer(B32, addend)), loc=counter.advance.loc)

    steps = [counter.step * _factor(instr) for instr in counter.addresses]
    starts = [_start(kernel, entry, counter, instr) for instr in counter.addresses]
    advances = [sum_of(instr.results[0], step, instr) for instr, step in zip(counter.addresses, steps, strict=True)]
    at = block.instrs.index(counter.advance)
    block.instrs[at:at] = advances
    block.params += [instr.results[0] for instr in counter.addresses]
    _pass(entry, block, starts)
    _pass(block, block, [instr.results[0] for instr in advances])
    gone = {*counter.addresses}
    test = _test(block)
    if trips and test is not None:
        end = sum_of(starts[0], trips * steps[0], counter.addresses[0])
        entry.instrs.insert(-1, end)
        test.mods, test.operands = ("ne", "s32"), (advances[0].results[0], end.results[0])
        gone.add(counter.advance)
        del block.params[counter.at]
        _pass(entry, block, (), counter.at)
        _pass(block, block, (), counter.at)
    block.instrs = [instr for instr in block.instrs if instr not in gone]


def _start(kernel: Kernel, entry: Block, counter: _Counter, instr: Instr) -> Operand:
    """What an address begins with, computed where the loop is entered if it is not its base."""
    first, (_, factor, base) = counter.first, instr.operands
    if first == integer(B32, 0):
        return base
    start = kernel.value(B32, instr.results[0].hint)
    begin = Instr(opcodes.MAD, ("lo", "s32"), (start,), (first, factor, base), loc=counter.advance.loc)
    if type(first) is Const:
        begin.op, begin.mods, begin.operands = opcodes.ADD, ("s32",), (base, integer(B32, first.bits * _factor(instr)))
    entry.instrs.insert(-1, begin)
    return start


def _pass(origin: Block, block: Block, more: Sequence[Operand], without: int | None = None) -> None:
    """Let what enters a block from another pass more values, or not pass the one at a place."""
    terminator = origin.instrs[-1]
    terminator.targets = tuple(
        Edge(edge.block, tuple([arg for at, arg in enumerate(edge.args) if at != without] + [*more]))
        if edge.block is block
        else edge
        for edge in terminator.targets
    )


def _factor(instr: Instr) -> int:
    factor = instr.operands[1]
    assert isinstance(factor, Const)
    return factor.bits
