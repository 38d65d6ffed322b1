"""Control-flow analyses over a kernel's blocks."""

from __future__ import annotations

from typing import NamedTuple

import networkx as nx

from ptxc.ir.kernel import Block, Kernel


def graph(kernel: Kernel) -> nx.DiGraph[Block]:
    """The control-flow graph: a node a block, an edge for each way that control can go."""
    cfg: nx.DiGraph[Block] = nx.DiGraph()
    cfg.add_nodes_from(kernel.blocks)
    cfg.add_edges_from((block, after) for block in kernel.blocks for after in block.successors())
    return cfg


def predecessors(kernel: Kernel) -> dict[Block, list[Block]]:
    """The blocks that can precede each block, in layout order; one that branches there twice stands twice."""
    before: dict[Block, list[Block]] = {block: [] for block in kernel.blocks}
    for block in kernel.blocks:
        for after in block.successors():
            before[after].append(block)
    return before


def reverse_postorder(kernel: Kernel) -> list[Block]:
    """The reachable blocks, each after all its predecessors but those that a loop's back edge makes so."""
    order: list[Block] = []
    seen = {kernel.blocks[0]}
    stack = [(kernel.blocks[0], iter(kernel.blocks[0].successors()))]
    while stack:
        block, pending = stack[-1]
        for after in pending:
            if after not in seen:
                seen.add(after)
                stack.append((after, iter(after.successors())))
                break
        else:
            stack.pop()
            order.append(block)
    order.reverse()
    return order


def dominator_tree(kernel: Kernel) -> dict[Block, list[Block]]:
    """Each reachable block's children in the dominator tree, in reverse postorder."""
    order = reverse_postorder(kernel)
    children: dict[Block, list[Block]] = {block: [] for block in order}
    if len(order) == 1:
        return children
    parents = nx.immediate_dominators(graph(kernel), order[0])
    for block in order[1:]:
        children[parents[block]].append(block)
    return children


def immediate_postdominators(kernel: Kernel) -> dict[Block, Block | None]:
    """For each block the nearest block that every way from it to the kernel's end passes; None for the end itself.

    A block from which no way leads to an end (an endless loop) is missing.
    """
    exit_node = Block("<exit>")
    backward = graph(kernel).reverse(copy=True)
    backward.add_node(exit_node)
    backward.add_edges_from((exit_node, block) for block in kernel.blocks if not block.successors())
    parents = nx.immediate_dominators(backward, exit_node)
    return {block: None if after is exit_node else after for block, after in parents.items() if block is not exit_node}


class Loop(NamedTuple):
    """A natural loop: the block that every way into it enters, and its blocks in layout order (header included)."""

    header: Block
    blocks: tuple[Block, ...]


def loops(kernel: Kernel) -> list[Loop]:
    """The natural loops, inner ones before the loops around them. A cycle that can be entered in two places is none."""
    order = reverse_postorder(kernel)
    position = {block: index for index, block in enumerate(order)}
    latches: dict[Block, list[Block]] = {}
    for block in order:
        for after in block.successors():
            if position[after] <= position[block]:
                latches.setdefault(after, []).append(block)
    if not latches:
        return []
    before = predecessors(kernel)
    layout = {block: index for index, block in enumerate(kernel.blocks)}
    found = []
    for header in sorted(latches, key=position.__getitem__, reverse=True):
        bodies = [_body(header, latch, before) for latch in latches[header]]
        # The header dominates a latch if no way leads from the entry to it past the header.
        members = {block for body in bodies if order[0] not in body for block in body if block in position}
        if members:
            found.append(Loop(header, tuple(sorted(members, key=layout.__getitem__))))
    found.sort(key=lambda loop: len(loop.blocks))
    return found


def _body(header: Block, latch: Block, before: dict[Block, list[Block]]) -> set[Block]:
    """The header, and the blocks from which a way leads to the latch that does not pass the header."""
    body = {header}
    stack = [latch]
    while stack:
        block = stack.pop()
        if block not in body:
            body.add(block)
            stack += before[block]
    return body
