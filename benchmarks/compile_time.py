"""What a compilation costs, beside what nvcc costs for the same kernel.

    python benchmarks/compile_time.py [--target sm_89] [--json FILE] [--no-nvcc] [PATTERN]

For each of the 15 benchmark problems (one full-size kernel each, from ../shared/bench15):

- ptxc: CPU time from a KernelOp in memory to PTX text, all passes, in this process, of compilations in a row. The best
  of several rounds: other work on the machine only ever adds. Per kernel and per PTX line.
- nvcc: CPU time (user and system) of ``nvcc --ptx`` on Emmy's own CUDA text of the kernel, children included, the best
  of three.

Then the same kernel shape at growing statement counts, to show that the time grows linearly, and the peak memory of
this process. The first line says which build of ptxc it was, compiled or pure Python. Figures from one run belong
together: compare ratios, not seconds of different days.
"""

from __future__ import annotations

import argparse
import gc
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.progress import track
from rich.table import Table

from ptxc import is_compiled
from ptxc.driver import Options, compile_kernel
from ptxc.frontend.reader import KernelNode, kernel_nodes, read_graph

SHARED = Path(__file__).resolve().parents[2] / "shared"
#: Statement counts of the scaling series.
SIZES = (1250, 2500, 5000, 10000, 20000)
#: Statements of one iteration of the scaling kernel's body.
_PER_CELL = 5


class Figure(NamedTuple):
    """One kernel: CPU milliseconds of ptxc and nvcc (0 where it was not run), and PTX lines."""

    problem: str
    kernel: str
    lines: int
    ptxc_ms: float
    nvcc_ms: float

    @property
    def us_per_line(self) -> float:
        """Microseconds of CPU for a PTX line."""
        return self.ptxc_ms * 1e3 / self.lines

    @property
    def ratio(self) -> float:
        """How many times less CPU ptxc takes."""
        return self.nvcc_ms / self.ptxc_ms


def best_ms(work: Callable[[], object], rounds: int, repeat: int = 1) -> float:
    """The least CPU milliseconds of ``work`` in one of ``rounds``, this process and its children.

    A round is ``repeat`` runs, one after the other as an autotuner's are, with the garbage collections that they cause.
    """
    best = float("inf")
    for _ in range(rounds):
        gc.collect()
        before = _cpu()
        for _ in range(repeat):
            work()
        best = min(best, (_cpu() - before) / repeat)
    return best * 1e3


def _cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + usage.ru_utime + usage.ru_stime


def problems(target: str, pattern: str) -> Iterator[tuple[str, Path]]:
    """A full-size kernel for each benchmark problem: the variant with the most statements among the core ones."""
    manifest = json.loads((SHARED / "bench15" / "MANIFEST.json").read_text())
    largest: dict[str, tuple[int, str]] = {}
    for entry in manifest["files"]:
        if (
            entry["core"]
            and entry["size"].startswith("full")
            and target in entry["targets"]
            and pattern in entry["file"]
        ):
            size = sum(entry["stmts"].values())
            if entry["problem"][0] != "x" and size > largest.get(entry["problem"], (0, ""))[0]:
                largest[entry["problem"]] = (size, entry["file"])
    for problem, (_, file) in sorted(largest.items()):
        yield problem, SHARED / "bench15" / file


def measure(problem: str, path: Path, target: str, with_nvcc: bool) -> Figure:
    """Time one kernel with both compilers."""
    graph = read_graph(path)
    (node,) = kernel_nodes(graph)
    options = Options(target=target)
    lines = compile_kernel(node, graph, options).stats.lines
    ptxc_ms = best_ms(lambda: compile_kernel(node, graph, options), 8, 10)
    nvcc_ms = nvcc(graph, target) if with_nvcc else 0.0
    return Figure(problem, node.op.name, lines, ptxc_ms, nvcc_ms)


def nvcc(graph: Any, target: str) -> float:
    """CPU milliseconds of ``nvcc --ptx`` on Emmy's CUDA text of the graph's kernel."""
    from emmy.compiler.ir.cuda.ir import CudaOp
    from emmy.compiler.pipeline import Pipeline
    from emmy.compiler.target import parse_sm, set_target

    set_target(parse_sm(target))
    lowered = Pipeline.build(["lowering/cuda"]).run(graph)
    (source,) = [n.op.kernel_source for n in lowered.nodes.values() if isinstance(n.op, CudaOp)]
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder) / "kernel.cu"
        text.write_text(source)
        command = ["nvcc", "--ptx", f"-arch={target}", "-o", str(text.with_suffix(".ptx")), str(text)]
        return best_ms(lambda: subprocess.run(command, check=True, capture_output=True), 3)


def scaling(target: str) -> list[tuple[int, int, float]]:
    """(statements, PTX lines, CPU milliseconds) of a kernel at growing size: loads, arithmetic, loops, conditions."""
    rows = []
    for size in SIZES:
        work = partial(compile_kernel, *_large_kernel(size), Options(target=target))
        lines = work().stats.lines
        rows.append((size, lines, best_ms(work, 3)))
    return rows


def _large_kernel(statements: int) -> tuple[KernelNode, Any]:
    """A kernel of so many statements: cells that load, compute, accumulate in a loop and store under a condition."""
    cells = []
    for index in range(statements // _PER_CELL):
        row = f"BinaryExpr('+', Var('a0'), Literal({index * 64}, 'int'))"
        cells += [
            f"Load(names=('x{index}',), input='x', index=({row},), dtype={_F32}, carried='')",
            f"Loop(axis=Axis(name='k{index}', extent=Dim(64), window=None), body=("
            f"Accum(name='s{index}', value='x{index}', op=ElementwiseImpl('add'), dtype={_F32}, axes=(), base=None),),"
            " unroll=False, seed=True)",
            f"Cond(cond=BinaryExpr('<', Var('a0'), Literal({index % 60 + 1}, 'int')), body=("
            f"Write(output='y', index=({row},), values=('s{index}',), value_dtype={_F32}, atomic=False,"
            " swizzle='NONE'),), else_body=())",
        ]
    tile = (
        f"Tile(axes=(Axis(name='a0', extent=Dim(64), window=None),), body=({', '.join(cells)},), block_threads=64,"
        " aux_threads=0, raster_axes=None, raster_group=None, raster_orient='m')"
    )
    size = statements * 64
    buffer = {"shape": [size], "dtype": "f32"}
    fields = {"body": [tile], "name": "k_large", "zero_delegated": [], "serial": []}
    graph = read_graph(
        {
            "inputs": ["x"],
            "outputs": ["y"],
            "nodes": {
                "x": {"op": "InputOp", "op_fields": {}, "inputs": [], "outputs": [{"name": "x", **buffer}]},
                "y": {"op": "KernelOp", "op_fields": fields, "inputs": ["x"], "outputs": [{"name": "y", **buffer}]},
            },
        }
    )
    (node,) = kernel_nodes(graph)
    return node, graph


_F32 = "DataType(name='f32', np=dtype('float32'), nbytes=4)"


def report(console: Console, figures: list[Figure], rows: list[tuple[int, int, float]], peak: float) -> None:
    """Print the tables."""
    console.print(f"ptxc is {_build()}")
    table = Table("problem", "kernel", "PTX lines", "ptxc ms", "us/line", "nvcc --ptx ms", "ratio")
    for column in table.columns[2:]:
        column.justify = "right"
    for figure in figures:
        ratio = f"{figure.ratio:.0f}" if figure.nvcc_ms else "-"
        values = (f"{figure.ptxc_ms:.2f}", f"{figure.us_per_line:.1f}", f"{figure.nvcc_ms:.0f}", ratio)
        table.add_row(figure.problem, figure.kernel, str(figure.lines), *values)
    console.print(table)
    if figures:
        lines, total = sum(f.lines for f in figures), sum(f.ptxc_ms for f in figures)
        console.print(f"all together: {lines} lines, {total * 1e3 / lines:.1f} us/line")
    growth = Table("statements", "PTX lines", "ptxc ms", "us/line", "us/statement")
    for column in growth.columns:
        column.justify = "right"
    for statements, ptx_lines, ms in rows:
        growth.add_row(
            str(statements), str(ptx_lines), f"{ms:.0f}", f"{ms * 1e3 / ptx_lines:.1f}", f"{ms * 1e3 / statements:.1f}"
        )
    console.print(growth)
    console.print(f"peak memory: {peak:.0f} MB")


def _build() -> str:
    return "compiled" if is_compiled() else "pure Python"


def main() -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pattern", nargs="?", default="", help="only kernels whose file name holds this")
    parser.add_argument("--target", default="sm_89")
    parser.add_argument("--no-nvcc", action="store_true", help="leave nvcc out")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    arguments = parser.parse_args()
    if not SHARED.is_dir():
        print(f"the benchmark kernels are not at {SHARED}", file=sys.stderr)
        return 2
    console = Console(width=120)
    chosen = list(problems(arguments.target, arguments.pattern))
    figures = [
        measure(problem, path, arguments.target, not arguments.no_nvcc)
        for problem, path in track(chosen, "compiling", console=Console(stderr=True))
    ]
    rows = scaling(arguments.target)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    report(console, figures, rows, peak)
    if arguments.json:
        data = {"build": _build(), "problems": [f._asdict() for f in figures], "scaling": rows, "peak_mb": peak}
        arguments.json.write_text(json.dumps(data, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
