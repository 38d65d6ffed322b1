"""Both ways from a kernel to machine code: ptxc's PTX, and nvcc's PTX of Emmy's CUDA text, each through ptxas.

nvcc's way is taken in the two steps that `nvcc --cubin` takes itself (`nvcc --ptx`, then ptxas with its default
options), so that one run tells the time of each, and of both builds the same ptxas makes the machine code.
"""

from __future__ import annotations

import io
import math
import os
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from threading import Lock
from typing import TYPE_CHECKING, Any

from ptxc.comparison.occupancy import Occupancy, occupancy
from ptxc.comparison.sass import Kind, disassemble, parse
from ptxc.comparison.work import Code, Region, Unit, analyse
from ptxc.compilation import CompiledKernel, Options
from ptxc.driver import compile_kernel, graph_of
from ptxc.reference.emmy import CudaText, compile_cuda, cuda_texts, nvcc_options, suffixed
from ptxc.store import Store, digest
from ptxc.store.assemblies import SCHEMA, resources_from_json, resources_to_json
from ptxc.target import parse_target
from ptxc.toolchain import Resources, assemble, find_tool, tool_versions

if TYPE_CHECKING:
    from emmy.compiler.graph import Graph

    from ptxc.frontend.reader import KernelNode

#: Compilations are timed: nothing else of this process, Emmy's lowering included, should run meanwhile.
_ALONE = Lock()

#: ptxc compiles a kernel so often, and ptxas assembles it so often, the best counting, unless that takes more CPU
#: seconds.
_ROUNDS, _ASSEMBLIES, _ENOUGH = 5, 3, 1.0


@dataclass(frozen=True)
class Build:
    """One compiler's build of a kernel."""

    target: str
    #: CPU seconds to PTX, and of ptxas.
    ptx_seconds: float
    ptxas_seconds: float
    ptx_lines: int
    resources: Resources
    occupancy: Occupancy
    code: Code

    @property
    def seconds(self) -> float:
        """CPU seconds of the whole way."""
        return self.ptx_seconds + self.ptxas_seconds

    @property
    def spilled(self) -> int:
        """Bytes that a thread's registers are spilled by, stored and loaded."""
        return self.resources.spill_stores + self.resources.spill_loads

    def to_dict(self, unit: Unit, hottest: Region) -> dict[str, Any]:
        """All figures, as JSON takes them; ``unit`` is what work is counted in, ``hottest`` the region compared."""
        return {
            "target": self.target,
            "ptx_seconds": self.ptx_seconds,
            "ptxas_seconds": self.ptxas_seconds,
            "ptx_lines": self.ptx_lines,
            **resources_to_json(self.resources),
            "occupancy": asdict(self.occupancy),
            "instructions": self.code.size,
            "loops": [_region(loop, unit) for loop in self.code.loops],
            "hottest": _region(hottest, unit),
        }


def _region(region: Region, unit: Unit) -> dict[str, Any]:
    """The figures of a loop as JSON takes them."""
    amount = region.work[unit]
    return {
        "address": region.address,
        "depth": region.depth,
        "instructions": region.instructions,
        "kinds": {str(kind): region.kinds[kind] for kind in Kind if kind in region.kinds},
        "work": {str(unit): work for unit, work in region.work.items()},
        "per_work": region.instructions / amount if amount else None,
    }


def build_with_ptxc(node: KernelNode, graph: Graph, options: Options, kept: Store) -> Build:
    """ptxc's build of a kernel. Raises CompileError."""
    with _ALONE:
        kernel, seconds = timed_compilation(node, graph, options)
    return build_of(kernel, seconds, kept)


def timed_compilation(node: KernelNode, graph: Graph, options: Options) -> tuple[CompiledKernel, float]:
    """A kernel, and the CPU seconds that ptxc takes for it, the best of some times: nothing else should run meanwhile.

    Raises CompileError.
    """
    timed = replace(options, cache=False)
    seconds, spent = float("inf"), 0.0
    for _ in range(_ROUNDS):
        before = time.thread_time()
        kernel = compile_kernel(node, graph, timed)
        took = time.thread_time() - before
        seconds, spent = min(seconds, took), spent + took
        if spent > _ENOUGH:
            break
    return kernel, seconds


def build_of(kernel: CompiledKernel, seconds: float, kept: Store) -> Build:
    """The build of a kernel that ptxc compiled in so many CPU seconds. Raises ToolchainError where ptxas refuses it."""
    launch = kernel.launch
    assert launch is not None
    return _build(kernel.name, kernel.ptx, kernel.target, seconds, math.prod(launch.block), launch.dynamic_shared, kept)


def emmys_texts(source: bytes, options: Options, kept: Store) -> list[CudaText]:
    """Emmy's CUDA text of the kernels of the file that holds ``source``. Raises UnsupportedError where Emmy fails."""

    def lower() -> list[dict[str, Any]]:
        with _ALONE:  # and on a graph of its own, which it may change
            return [asdict(text) for text in cuda_texts(graph_of(io.BytesIO(source)), options.target)]

    # Emmy's lowering reads some of its variables, EMMY_READABLE and knobs.
    said = [f"{name}={value}" for name, value in sorted(os.environ.items()) if name.startswith("EMMY_")]
    key = digest("cuda", SCHEMA, version("emmy-ml"), options.target, source, *said)
    texts: list[CudaText] = kept.find(
        "cuda", key, lower, target=options.target, read=lambda rows: [CudaText(**fields) for fields in rows]
    )
    return texts


def build_with_nvcc(text: CudaText, options: Options, kept: Store) -> Build:
    """nvcc's build of a kernel. Raises ToolchainError."""
    target = suffixed(options.target, text.specific)
    ptx, seconds = compiled_by_nvcc(text, options, kept)
    return _build(text.entry, ptx, target, seconds, text.threads, text.dynamic_shared, kept)


def compiled_by_nvcc(text: CudaText, options: Options, kept: Store) -> tuple[str, float]:
    """nvcc's PTX of a kernel, and the CPU seconds that it took. Raises ToolchainError."""
    target, told = suffixed(options.target, text.specific), nvcc_options(options)
    key = digest("nvcc", SCHEMA, tool_versions("nvcc"), target, *told, text.source)

    def read(value: Any) -> tuple[str, float]:
        ptx, seconds = value
        return str(ptx), float(seconds)

    found: tuple[str, float] = kept.find(
        "nvcc", key, lambda: compile_cuda(text.source, target, told), name=text.entry, target=target, read=read
    )
    return found


def _build(entry: str, ptx: str, target: str, seconds: float, threads: int, dynamic_shared: int, kept: Store) -> Build:
    """The build of which ``ptx`` is known already. Raises ToolchainError where ptxas refuses it."""
    versions = tool_versions("ptxas"), tool_versions("nvdisasm")
    key = digest("sass", SCHEMA, f"best of {_ASSEMBLIES}", *versions, target, entry, ptx)

    def read(made: Mapping[str, Any]) -> tuple[Resources, float, str]:
        return resources_from_json(made["resources"]), float(made["seconds"]), str(made["sass"])

    used, took, sass = kept.find(
        "sass", key, lambda: _assemble(entry, ptx, target), name=entry, target=target, read=read
    )
    fits = occupancy(parse_target(target), threads, used.registers, used.shared + dynamic_shared, used.barriers)
    return Build(target, seconds, took, ptx.count("\n"), used, fits, analyse(parse(sass)))


def _assemble(entry: str, ptx: str, target: str) -> dict[str, Any]:
    seconds, spent = float("inf"), 0.0
    for _ in range(_ASSEMBLIES):
        assembly = assemble(ptx, target)
        seconds, spent = min(seconds, assembly.seconds), spent + assembly.seconds
        if spent > _ENOUGH:
            break
    sass = disassemble(assembly.cubin)[entry]
    return {"resources": resources_to_json(assembly.kernels[entry]), "seconds": seconds, "sass": sass}


def check_tools() -> None:
    """Raise ToolchainError where one of CUDA's tools is missing."""
    for name in ("nvcc", "ptxas", "nvdisasm"):
        find_tool(name)
