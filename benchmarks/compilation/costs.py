"""What one kernel costs: ptxc and nvcc, to PTX and the whole way to machine code."""

from __future__ import annotations

from collections.abc import Callable, Container
from pathlib import Path
from typing import NamedTuple

from compilation.timing import best_ms
from ptxc.compilation import Options
from ptxc.driver import compile_kernel
from ptxc.frontend.reader import kernel_nodes, read_graph
from ptxc.reference.emmy import NVCC_TARGETS, assemble_cuda, compile_cuda, cuda_texts, suffixed
from ptxc.toolchain import assemble

#: ptxc: rounds, and compilations in each. A tool: how often it is run.
_ROUNDS, _REPEAT = 8, 10
_RUNS = 3


class Cost(NamedTuple):
    """One kernel: PTX lines, and CPU milliseconds; those of tools that were left out are None."""

    kernel: str
    lines: int
    ptxc_ms: float
    #: ptxas on ptxc's PTX.
    ptxas_ms: float | None = None
    #: On Emmy's CUDA text: ``nvcc --ptx``, ``nvcc --cubin``.
    nvcc_ptx_ms: float | None = None
    nvcc_cubin_ms: float | None = None

    @property
    def us_per_line(self) -> float:
        """Microseconds of CPU for a PTX line."""
        return self.ptxc_ms * 1e3 / self.lines

    @property
    def ptx_ratio(self) -> float | None:
        """How many times less CPU ptxc takes to PTX than nvcc."""
        return None if self.nvcc_ptx_ms is None else self.nvcc_ptx_ms / self.ptxc_ms

    @property
    def cubin_ms(self) -> float | None:
        """ptxc and ptxas together."""
        return None if self.ptxas_ms is None else self.ptxc_ms + self.ptxas_ms

    @property
    def cubin_share(self) -> float | None:
        """The share of nvcc's CPU that ptxc and ptxas take to machine code."""
        return None if self.cubin_ms is None or self.nvcc_cubin_ms is None else self.cubin_ms / self.nvcc_cubin_ms


def cost(path: Path, target: str, tools: Container[str] = ("ptxas", "nvcc")) -> Cost:
    """Time the kernel of a file. Raises ToolchainError where a tool is missing or refuses it."""
    graph = read_graph(path)
    (node,) = kernel_nodes(graph)
    options = Options(target=target, cache=False)
    kernel = compile_kernel(node, graph, options)
    ptxc_ms = best_ms(lambda: compile_kernel(node, graph, options), _ROUNDS, _REPEAT)
    found = Cost(kernel.name, kernel.stats.lines, ptxc_ms)
    if "ptxas" in tools:
        found = found._replace(ptxas_ms=_least_ms(lambda: assemble(kernel.ptx, kernel.target).seconds))
    if "nvcc" in tools:
        (text,) = cuda_texts(read_graph(path), target)
        arch = suffixed(NVCC_TARGETS.get(target, target), text.specific)
        found = found._replace(
            nvcc_ptx_ms=_least_ms(lambda: compile_cuda(text.source, arch)[1]),
            nvcc_cubin_ms=_least_ms(lambda: assemble_cuda(text.source, arch)[1]),
        )
    return found


def _least_ms(run: Callable[[], float]) -> float:
    """The least CPU milliseconds of some runs of a tool, each of which tells its seconds, its children's included."""
    return 1e3 * min(run() for _ in range(_RUNS))
