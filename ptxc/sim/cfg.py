"""Basic blocks of a program and the order in which the scheduler runs them.

The scheduler always runs the threads that wait at the block of lowest rank. Ranks follow the control-flow graph, not
the text: every block precedes the blocks that control can only reach through it, and all blocks of a loop precede
the blocks behind it. So threads that a branch parted meet again at the first block where their paths join, and
threads that leave a loop early wait behind it for the others.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import networkx as nx

from ptxc.sim.program import Instruction, Label, LabelTable, Program

type Graph = "nx.DiGraph[int]"

_ENDS = {"bra", "brx", "exit", "trap"}
_POLLING = {"volatile", "acquire", "relaxed", "mmio", "test_wait", "try_wait"}


@dataclass(slots=True)
class Block:
    """Instructions ``start`` to ``end`` of the program; only the last may leave the block.

    ``polls`` says that the block belongs to a loop that reads what other threads may write while it runs. ``gathers``
    is how many threads (a warp, a warpgroup) execute an instruction of the block together, 0 for none.
    """

    start: int
    end: int
    successors: list[int] = field(default_factory=list)
    rank: int = 0
    polls: bool = False
    gathers: int = 0


def split_blocks(program: Program, blocking: frozenset[str], aligned: dict[str, int]) -> list[Block]:
    """The blocks of ``program``, in the order of its text, with successors and ranks.

    A block also ends behind each instruction whose opcode is ``blocking``: threads may have to wait there. The first
    ``aligned`` instruction of a block, which whole groups of threads execute together, begins one.
    """
    code = program.instructions
    starts = {0, *(label.index for item in code for label in _labels(item))}
    starts |= {at + 1 for at, item in enumerate(code) if item.opcode in _ENDS or item.opcode in blocking}
    starts |= set(_first_aligned(code, starts, aligned))
    cuts = sorted(starts - {len(code)})
    blocks = [Block(start, end) for start, end in zip(cuts, [*cuts[1:], len(code)])]
    number = {block.start: at for at, block in enumerate(blocks)}
    for at, block in enumerate(blocks):
        last = code[block.end - 1]
        block.gathers = aligned.get(code[block.start].opcode, 0) if code[block.start].guard is None else 0
        block.successors = [number[label.index] for label in _labels(last)]
        falls = last.opcode not in _ENDS or last.guard is not None
        if falls and at + 1 < len(blocks):
            block.successors.append(at + 1)
    leaving = [at for at, block in enumerate(blocks) if _only_leaves(code[block.start : block.end])]
    _rank(blocks, [_reads_others(code[block.start : block.end]) for block in blocks], leaving)
    return blocks


def _first_aligned(code: list[Instruction], starts: set[int], aligned: dict[str, int]) -> list[int]:
    """The instructions before which threads must come together: aligned ones, of more threads than are so already.

    With a guard, threads need not come: whether they do is up to the instruction.
    """
    found, together = [], 0
    for at, item in enumerate(code):
        together = 0 if at in starts else together
        wanted = aligned.get(item.opcode, 0) if item.guard is None else 0
        if wanted > together:
            found.append(at)
            together = wanted
    return found


def _only_leaves(code: list[Instruction]) -> bool:
    return len(code) == 1 and code[0].opcode == "exit" and code[0].guard is None


def _reads_others(code: list[Instruction]) -> bool:
    return any(item.opcode == "atom" or not _POLLING.isdisjoint(item.modifiers) for item in code)


def _labels(item: Instruction) -> list[Label]:
    found: list[Label] = []
    for operand in item.operands:
        if isinstance(operand, Label):
            found.append(operand)
        elif isinstance(operand, LabelTable):
            found.extend(operand.labels)
    return found


def _rank(blocks: list[Block], reads_others: list[bool], leaving: list[int]) -> None:
    """Set ranks and ``polls``. Blocks in ``leaving`` only exit: they go first, so that fewer threads are left."""
    graph: Graph = nx.DiGraph()
    graph.add_nodes_from(range(len(blocks)))
    graph.add_edges_from((at, to) for at, block in enumerate(blocks) for to in block.successors)
    for rank, at in enumerate(_order(graph)):
        blocks[at].rank = rank
    for at in leaving:
        blocks[at].rank = -1
    for loop in nx.strongly_connected_components(graph):
        polls = any(reads_others[at] for at in loop)
        for at in loop:
            blocks[at].polls = polls


def _order(graph: Graph) -> list[int]:
    """A topological order in which each loop is contiguous; loops are ordered inside with their entries first."""
    order: list[int] = []
    work: list[Graph | int] = [graph]
    while work:
        item = work.pop()
        if isinstance(item, int):
            order.append(item)
            continue
        condensed = nx.condensation(item)
        parts: list[Graph | int] = []
        for component in nx.lexicographical_topological_sort(
            condensed, key=lambda c: min(condensed.nodes[c]["members"])
        ):
            members = condensed.nodes[component]["members"]
            parts.append(_loop(item, members) if len(members) > 1 else next(iter(members)))
        work.extend(reversed(parts))
    return order


def _loop(graph: Graph, members: set[int]) -> Graph:
    """The loop of ``members`` without the edges back to its entries."""
    entries = {at for at in members if any(p not in members for p in graph.predecessors(at))} or {min(members)}
    body: Graph = nx.DiGraph()
    body.add_nodes_from(members)
    body.add_edges_from((a, b) for a, b in graph.edges(members) if b in members and b not in entries)
    return body
