"""Which registers are in flight: held by ``wgmma.mma_async``, which goes on after it was issued.

From ``wgmma.fence`` on, through any number of ``wgmma.mma_async``, until ``wgmma.wait_group`` gives them back, a
product's accumulators and its A may not be read, written or moved (PTX ISA, "Register fragments and shared memory
matrices"). The IR says so by values: each of the three takes a value and gives another, tied to it, which is the same
register::

    %c.1:f32 = wgmma.fence.sync.aligned %c
    %c.2:f32 = wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 %c.1, %a, %b, %p, 1, 1, 0, 0
    wgmma.commit_group.sync.aligned
    %c.3:f32 = wgmma.wait_group.sync.aligned %c.2, 0

Whatever reads %c.3 stays behind the wait, as a use stays behind a definition; %c is read before the fence, or copied
there where it is needed later. What a wait gives while groups are pending (any but 0) may still be in flight, which
only the order of the groups tells: it can be read, but it is not moved either.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ptxc.ir import opcodes
from ptxc.ir.kernel import Block, Instr, Kernel
from ptxc.ir.text import format_operand
from ptxc.ir.values import Const, Mem, Operand, Value

#: A value that may be in flight, and one that is.
MAYBE, CERTAIN = 1, 2


def in_flight(kernel: Kernel) -> dict[Operand, int]:
    """The values in flight, or that may be, of a kernel in SSA form; block parameters as what is passed for them."""
    found: dict[Operand, int] = {}
    for instr in kernel.instrs():
        if instr.op.tied:
            level = CERTAIN
            if instr.op is opcodes.WGMMA_WAIT:
                level = 0 if _waits_for_all(instr.operands) else MAYBE
            if level:
                found.update(dict.fromkeys(instr.results, level))
    if not found:
        return found
    passed: dict[Operand, list[Value]] = {}
    for block in kernel.blocks:
        for edge in block.instrs[-1].targets:
            for param, arg in zip(edge.block.params, edge.args):
                passed.setdefault(arg, []).append(param)
    pending = list(found)
    while pending:
        value = pending.pop()
        for param in passed.get(value, ()):
            if found.get(param, 0) < found[value]:
                found[param] = found[value]
                pending.append(param)
    return found


def flight_violations(kernel: Kernel) -> Iterator[tuple[Block, int, str]]:
    """Where a kernel in SSA form breaks the rules of registers in flight: block, line, and what is wrong there."""
    if not any(instr.op.tied for instr in kernel.instrs()):
        return
    flying = in_flight(kernel)
    for block in kernel.blocks:
        taken: set[Operand] = set()
        for line, instr in enumerate(block.instrs):
            tied = len(instr.results) if instr.op.tied else 0
            held = instr.operands[:tied]
            passed = [arg for edge in instr.targets for arg in edge.args]
            # Products hold a hundred registers each: most of the time nothing is wrong with all of them.
            fresh = taken.isdisjoint(held) and taken.isdisjoint(passed) and len({*held}) == tied
            if not fresh or (instr.op in (opcodes.WGMMA, opcodes.WGMMA_RS) and not flying.keys() >= {*held}):
                for what in _wrongly_held(instr, held, passed, taken, flying):
                    yield block, line, what
            taken.update(held)
            for operand in instr.operands[tied:]:
                value = operand.base if isinstance(operand, Mem) else operand
                if flying.get(value) == CERTAIN:
                    yield block, line, f"{format_operand(value)} is in flight, which no wgmma.wait_group has ended"


def _wrongly_held(
    instr: Instr, held: Iterable[Operand], passed: Iterable[Operand], taken: set[Operand], flying: dict[Operand, int]
) -> Iterator[str]:
    """What is wrong with what an instruction takes and passes on, where its block has ``taken`` some before it."""
    taken = {*taken}
    for operand in held:
        if flying.get(operand) and operand in taken:
            yield f"{format_operand(operand)} is in flight, and was taken before"
        taken.add(operand)
        if instr.op in (opcodes.WGMMA, opcodes.WGMMA_RS) and operand not in flying:
            yield f"{format_operand(operand)} comes from no wgmma.fence"
    for operand in passed:
        if flying.get(operand) and operand in taken:
            yield f"{format_operand(operand)} is in flight, and was taken before"


def _waits_for_all(operands: tuple[Operand, ...]) -> bool:
    return bool(operands) and isinstance(operands[-1], Const) and operands[-1].bits == 0
