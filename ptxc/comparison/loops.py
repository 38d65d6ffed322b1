"""The control-flow graph of a SASS function, and the natural loops in it.

A back edge is one to a block that dominates the block that it comes from; the loop are all blocks from which its end is
reached without passing its head. Loops of one head are one loop.

Three ways are not followed, as kernels take them hardly ever or not at all: that of ``BRA.DIV``, which is for warps
whose threads have parted before a shuffle; into a function that is called (the caller goes on behind the call); and of
indirect branches (``BRX``), whose targets the text does not tell.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import networkx as nx

from ptxc.comparison.sass import SIZE, Instruction

#: What is not followed by the next instruction, unless a predicate or a further operand makes it one of two ways.
_ENDS = frozenset({"EXIT", "RET", "KILL", "BRX", "JMX", "BRA", "JMP"})
_JUMPS = frozenset({"BRA", "JMP"})


@dataclass(eq=False)
class Loop:
    """A natural loop: the numbers of its instructions, those of inner loops included."""

    head: int
    body: frozenset[int]
    inner: list[Loop] = field(default_factory=list)
    #: 1 for a loop that is in no other.
    depth: int = 1


def size(code: Sequence[Instruction]) -> int:
    """How many instructions a function has, without the padding and the branch to itself that end it."""
    count = len(code)
    while count and code[count - 1].base == "NOP":
        count -= 1
    if count and code[count - 1].base == "BRA" and _target(code[count - 1]) == count - 1:
        count -= 1
    return count


def reached(code: Sequence[Instruction]) -> frozenset[int]:
    """The numbers of the instructions that can be reached."""
    graph = _graph(code)
    return frozenset(at for block in graph for at in range(block, graph.nodes[block]["end"]))


def loops(code: Sequence[Instruction]) -> list[Loop]:
    """All loops of a function, outer ones before those in them."""
    graph = _graph(code)
    if not graph:
        return []
    dominators = nx.immediate_dominators(graph, 0)
    bodies: dict[int, set[int]] = {}
    for tail, head in graph.edges:
        if _dominates(head, tail, dominators):
            bodies.setdefault(head, {head}).update(_way_back(graph, tail, head))
    found = [
        Loop(head, frozenset(at for block in blocks for at in range(block, graph.nodes[block]["end"])))
        for head, blocks in bodies.items()
    ]
    found.sort(key=lambda loop: (-len(loop.body), loop.head))
    for index, loop in enumerate(found):
        outer = [other for other in found[:index] if loop.head in other.body]
        if outer:  # the smallest that contains it comes last
            loop.depth = outer[-1].depth + 1
            outer[-1].inner.append(loop)
    return found


def _dominates(one: int, other: int, dominators: dict[int, int]) -> bool:
    while other != one:
        parent = dominators.get(other)  # networkx 3.6 leaves the root out, older ones have it as its own
        if parent is None or parent == other:
            return False
        other = parent
    return True


def _way_back(graph: nx.DiGraph[int], tail: int, head: int) -> Iterator[int]:
    """The blocks from which ``tail`` is reached without passing ``head``."""
    seen, pending = {head}, [tail]
    while pending:
        block = pending.pop()
        if block not in seen:
            seen.add(block)
            yield block
            pending += graph.predecessors(block)


def _graph(code: Sequence[Instruction]) -> nx.DiGraph[int]:
    """The blocks that can be reached, each by its first instruction's number; ``end`` is the number behind its last."""
    following = {at: _following(code, at) for at in range(len(code))}
    leaders = {0} | {after for at, afters in following.items() if afters != [at + 1] for after in (*afters, at + 1)}
    starts = sorted(leader for leader in leaders if leader < len(code))
    ends = dict(pairwise([*starts, len(code)]))
    graph: nx.DiGraph[int] = nx.DiGraph()
    pending = starts[:1]
    while pending:
        block = pending.pop()
        if block in graph and "end" in graph.nodes[block]:
            continue
        graph.add_node(block, end=ends[block])
        for after in following[ends[block] - 1]:
            graph.add_edge(block, after)
            pending.append(after)
    return graph


def _following(code: Sequence[Instruction], at: int) -> list[int]:
    """The numbers of the instructions that may come after one."""
    one = code[at]
    behind = [at + 1] if at + 1 < len(code) else []
    if one.base not in _ENDS or one.opcode == "BRA.DIV":
        return behind
    target = _target(one) if one.base in _JUMPS else None
    jump = [] if target is None or target >= len(code) else [target]
    conditional = (one.predicate not in ("", "@PT", "@UPT")) or (one.base in _JUMPS and "," in one.operands)
    return sorted({*jump, *behind}) if conditional else jump


def _target(branch: Instruction) -> int | None:
    """The number of the instruction that a branch leads to: its last operand is the address."""
    match = re.search(r"(?:^|,)\s*0x([0-9a-f]+)$", branch.operands)
    return int(match[1], 16) // SIZE if match else None
