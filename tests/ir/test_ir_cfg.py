"""The control-flow analyses against their definitions, on random graphs."""

from __future__ import annotations

from random import Random

import networkx as nx
import pytest
from flow_graph import flow_graph
from random_kernels import random_graph

from ptxc.ir import cfg, opcodes
from ptxc.ir.kernel import Block, Edge, Instr, Kernel
from ptxc.ir.text import parse_kernel

SEEDS = range(150)


def kernel_of(seed: int) -> Kernel:
    """A random graph of up to nine blocks, of which the last may be unreachable, in random layout."""
    random = Random(seed)
    kernel = Kernel("k", "sm_80", 32)
    random_graph(random, kernel, random.randint(1, 8))
    if random.random() < 0.3:
        island = Block("island")
        island.instrs.append(Instr(opcodes.BRA, targets=(Edge(random.choice([*kernel.blocks[1:], island])),)))
        kernel.blocks.append(island)
    entry, *others = kernel.blocks
    kernel.blocks = [entry, *random.sample(others, len(others))]
    return kernel


def reachable(kernel: Kernel, start: Block, *, without: Block | None = None) -> set[Block]:
    """The blocks to which a way leads from ``start`` that does not pass ``without``."""
    seen: set[Block] = set()
    pending = [start]
    while pending:
        block = pending.pop()
        if block not in seen and block is not without:
            seen.add(block)
            pending += block.successors()
    return seen


def dominators(kernel: Kernel, block: Block) -> set[Block]:
    """The blocks that every way from the entry to ``block`` passes, ``block`` included."""
    return {other for other in kernel.blocks if block not in reachable(kernel, kernel.blocks[0], without=other)}


def postdominators(kernel: Kernel, block: Block) -> set[Block]:
    """The blocks that every way from ``block`` to an end passes, ``block`` included."""
    return {other for other in kernel.blocks if not reaches_an_end(kernel, block, without=other)}


def reaches_an_end(kernel: Kernel, block: Block, *, without: Block | None = None) -> bool:
    return any(not other.successors() for other in reachable(kernel, block, without=without))


def back_edges(kernel: Kernel) -> list[tuple[Block, Block]]:
    blocks = reachable(kernel, kernel.blocks[0])
    return [(block, after) for block in blocks for after in {*block.successors()} if after in dominators(kernel, block)]


def is_reducible(kernel: Kernel) -> bool:
    graph = flow_graph(kernel).subgraph(reachable(kernel, kernel.blocks[0])).copy()
    graph.remove_edges_from(back_edges(kernel))
    return nx.is_directed_acyclic_graph(graph)


@pytest.mark.parametrize("seed", SEEDS)
def test_orders(seed: int) -> None:
    kernel = kernel_of(seed)
    order = cfg.reverse_postorder(kernel)
    assert order[0] is kernel.blocks[0]
    assert len(order) == len(set(order))
    assert set(order) == reachable(kernel, kernel.blocks[0])
    if is_reducible(kernel):
        forward = {(a, b) for a in order for b in a.successors()} - {*back_edges(kernel)}
        assert all(order.index(a) < order.index(b) for a, b in forward)


@pytest.mark.parametrize("seed", SEEDS)
def test_predecessors(seed: int) -> None:
    kernel = kernel_of(seed)
    assert cfg.predecessors(kernel) == {
        block: [before for before in kernel.blocks for after in before.successors() if after is block]
        for block in kernel.blocks
    }


@pytest.mark.parametrize("seed", SEEDS)
def test_dominator_tree(seed: int) -> None:
    kernel = kernel_of(seed)
    tree = cfg.dominator_tree(kernel)
    order = cfg.reverse_postorder(kernel)
    assert list(tree) == order
    parents = {child: parent for parent, children in tree.items() for child in children}
    assert all(children == sorted(children, key=order.index) for children in tree.values())
    for block in order:
        above = [block]
        while above[-1] in parents:
            above.append(parents[above[-1]])
        assert set(above) == dominators(kernel, block)


@pytest.mark.parametrize("seed", SEEDS)
def test_immediate_postdominators(seed: int) -> None:
    kernel = kernel_of(seed)
    nearest = cfg.immediate_postdominators(kernel)
    assert nearest.keys() == {block for block in kernel.blocks if reaches_an_end(kernel, block)}
    for block in nearest:
        after: list[Block] = []
        step: Block | None = block
        while step is not None:
            after.append(step)
            step = nearest[step]
        assert set(after) == postdominators(kernel, block)


@pytest.mark.parametrize("seed", SEEDS)
def test_loops_of_reducible_graphs(seed: int) -> None:
    kernel = kernel_of(seed)
    if not is_reducible(kernel):
        return
    latches: dict[Block, set[Block]] = {}
    for latch, header in back_edges(kernel):
        latches.setdefault(header, set()).add(latch)
    found = cfg.loops(kernel)
    assert {loop.header for loop in found} == latches.keys()
    inside = reachable(kernel, kernel.blocks[0])
    for header, blocks in found:
        # A block is in the loop if a way leads from it to a latch that does not pass the header.
        body = {block for block in inside if latches[header] & reachable(kernel, block, without=header)}
        assert blocks == tuple(block for block in kernel.blocks if block in body | {header})
    for number, inner in enumerate(found):
        assert not any(set(inner.blocks) > set(before.blocks) and before in found[number:] for before in found)


def test_random_graphs_are_of_every_kind() -> None:
    kernels = [kernel_of(seed) for seed in SEEDS]
    assert any(is_reducible(kernel) and len(cfg.loops(kernel)) > 1 for kernel in kernels)
    assert any(not is_reducible(kernel) for kernel in kernels)
    assert any(len(cfg.immediate_postdominators(kernel)) < len(kernel.blocks) for kernel in kernels)
    assert any(len(cfg.reverse_postorder(kernel)) < len(kernel.blocks) for kernel in kernels)


def test_a_loop_in_a_loop() -> None:
    kernel = parse_kernel(
        """\
kernel k target sm_80 threads 32

entry:
    bra outer

outer:
    bra inner

inner:
    bra -1, inner, latch

latch:
    bra -1, outer, end

end:
    ret
"""
    )
    entry, outer, inner, latch, end = kernel.blocks
    assert cfg.loops(kernel) == [cfg.Loop(inner, (inner,)), cfg.Loop(outer, (outer, inner, latch))]
    assert cfg.immediate_postdominators(kernel) == {entry: outer, outer: inner, inner: latch, latch: end, end: None}
    assert cfg.dominator_tree(kernel) == {entry: [outer], outer: [inner], inner: [latch], latch: [end], end: []}
