"""Control-flow analyses over a kernel's blocks.

Dominators are computed here and not by networkx (which the tests compare with): building its graphs and asking it took
a sixth of a small kernel's compile time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ptxc.ir.kernel import Block, Kernel


def predecessors(kernel: Kernel) -> dict[Block, list[Block]]:
    """The blocks that can precede each block, in layout order; one that branches there twice stands twice."""
    before: dict[Block, list[Block]] = {block: [] for block in kernel.blocks}
    for block in kernel.blocks:
        for after in block.successors():
            before[after].append(block)
    return before


def reverse_postorder(kernel: Kernel) -> list[Block]:
    """The reachable blocks, each after all its predecessors but those that a loop's back edge makes so."""
    following = {block: [edge.block for edge in block.instrs[-1].targets] for block in kernel.blocks}
    order = _postorder(kernel.blocks[:1], following)
    order.reverse()
    return order


def dominator_tree(kernel: Kernel) -> dict[Block, list[Block]]:
    """Each reachable block's children in the dominator tree, in reverse postorder."""
    order = reverse_postorder(kernel)
    number = {block: index for index, block in enumerate(order)}
    before: list[list[int]] = [[] for _ in order]
    for index, block in enumerate(order):
        for edge in block.instrs[-1].targets:
            before[number[edge.block]].append(index)
    children: dict[Block, list[Block]] = {block: [] for block in order}
    for index, parent in enumerate(_immediate_dominators(before)):
        if index:
            children[order[parent]].append(order[index])
    return children


def immediate_postdominators(kernel: Kernel) -> dict[Block, Block | None]:
    """For each block the nearest block that every way from it to the kernel's end passes; None for the end itself.

    A block from which no way leads to an end (an endless loop) is missing.
    """
    before = predecessors(kernel)
    ends = [block for block in kernel.blocks if not block.successors()]
    order = _postorder(ends, before)
    order.reverse()
    # Number 0 is an end behind all ends.
    number = {block: index for index, block in enumerate(order, 1)}
    after = [[], *([number[s] for s in block.successors() if s in number] or [0] for block in order)]
    parents = _immediate_dominators(after)
    return {block: order[parents[index] - 1] if parents[index] else None for block, index in number.items()}


def _postorder(roots: Sequence[Block], following: dict[Block, list[Block]]) -> list[Block]:
    """The blocks that can be reached from ``roots``, each after those that follow it but for cycles."""
    order: list[Block] = []
    seen: set[Block] = set()
    for root in roots:
        if root in seen:
            continue
        seen.add(root)
        stack = [(root, iter(following[root]))]
        while stack:
            block, pending = stack[-1]
            for after in pending:
                if after not in seen:
                    seen.add(after)
                    stack.append((after, iter(following[after])))
                    break
            else:
                stack.pop()
                order.append(block)
    return order


def _immediate_dominators(before: Sequence[Iterable[int]]) -> list[int]:
    """The immediate dominator of each node of a graph, whose nodes are numbered in reverse postorder from the root.

    ``before`` holds each node's predecessors; the root is its own dominator. After Cooper, Harvey and Kennedy,
    "A Simple, Fast Dominance Algorithm" (2001), figure 3.
    """
    parents = [0, *(-1 for _ in before[1:])]
    changed = True
    while changed:
        changed = False
        for node in range(1, len(before)):
            nearest = -1
            for other in before[node]:
                if parents[other] < 0:
                    continue
                if nearest < 0:
                    nearest = other
                # Walk both up the tree found so far until they meet: a dominator has the smaller number.
                while nearest != other:
                    if nearest > other:
                        nearest = parents[nearest]
                    else:
                        other = parents[other]
            if nearest != parents[node]:
                parents[node] = nearest
                changed = True
    return parents


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
