"""A kernel's control-flow graph for networkx, whose algorithms ptxc's own are compared with."""

from __future__ import annotations

import networkx as nx

from ptxc.ir.kernel import Block, Kernel


def flow_graph(kernel: Kernel) -> nx.DiGraph[Block]:
    """A node a block, an edge for each way that control can go."""
    flow: nx.DiGraph[Block] = nx.DiGraph()
    flow.add_nodes_from(kernel.blocks)
    flow.add_edges_from((block, after) for block in kernel.blocks for after in block.successors())
    return flow
