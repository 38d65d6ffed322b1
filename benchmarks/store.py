"""How long it takes to find a kernel in the store, and to compile it: CPU time in one process.

`python benchmarks/store.py [--target SM]` takes the kernels of `bench15` in the order of their files' sizes: the middle
one, the one that 9 of 10 are smaller than, and the largest. See benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path

from compilation.timing import best_ms
from shared import SHARED

import ptxc
from ptxc.compilation import Options
from ptxc.driver import compile_kernel, graph_of
from ptxc.frontend.reader import kernel_nodes

FOLDER = SHARED / "bench15" / "kernels"


def main() -> None:
    """Measure, and print a table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="sm_90", help="default: sm_90")
    target = parser.parse_args().target
    files = [path for path in FOLDER.rglob("*.json") if not path.name.endswith(".meta.json")]
    files.sort(key=lambda path: (path.stat().st_size, path))
    print("| kernel | file, bytes | PTX lines | compiled | found, KernelOp in memory | found, from the file |")
    print("|---|--:|--:|--:|--:|--:|")
    with tempfile.TemporaryDirectory() as folder:
        os.environ.update(PTXC_CACHE_DIR=folder, PTXC_CACHE_SIZE="1G")
        for path in (files[len(files) // 2], files[len(files) * 9 // 10], files[-1]):
            print(row(path, target))


def row(path: Path, target: str) -> str:
    """The figures of one kernel, in milliseconds."""
    graph = graph_of(path)
    (node,) = kernel_nodes(graph)
    kernel = compile_kernel(node, graph, Options(target=target))
    anew = Options(target=target, cache=False)
    figures = (
        best_ms(lambda: compile_kernel(node, graph, anew), 5, 3),
        best_ms(lambda: compile_kernel(node, graph, Options(target=target)), 10, 20),
        best_ms(lambda: ptxc.compile(path, target=target), 10, 20),
    )
    texts = " | ".join(f"{figure:.2f} ms" for figure in figures)
    return f"| {kernel.name} | {path.stat().st_size:,} | {kernel.stats.lines} | {texts} |"


if __name__ == "__main__":
    main()
