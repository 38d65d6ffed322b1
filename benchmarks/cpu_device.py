"""What the CPU device takes for a product of 512 x 512 x 512 in f32 that is staged by ``cp.async``.

    python benchmarks/cpu_device.py [--variant async_d2_f4x4] [--rounds 2] [--json FILE]

The kernel, of ../shared/bench15, is executed whole: without checks, with each of them, and with all. Each in a process
of its own, which gives the peak memory too; the best of some rounds counts, since other work on the machine only adds.
What is timed is the launch: reading, compiling and loading the kernel are not part of it. The product is compared with
NumPy's. The exit status is 1 where a figure is beyond its bar.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table
from shared import SHARED

import ptxc

FOLDER = SHARED / "bench15" / "kernels" / "m01_matmul_512" / "full_512x512x512"
SIZE = 512

#: What is checked, by the name of the row.
MODES: dict[str, tuple[str, ...]] = {
    "no checks": (),
    "memory": ("memory",),
    "init": ("init",),
    "sync": ("sync",),
    "race": ("race",),
    "all": ("memory", "race", "init", "sync"),
}
#: The most wall seconds that a mode may take, and the most memory that any may, in MiB.
BARS = {"no checks": 6.0, "race": 20.0}
MOST_MEMORY = 2000


class Figure(NamedTuple):
    """One launch: wall and CPU seconds, peak memory in MiB, millions of instructions of threads."""

    wall: float
    cpu: float
    memory: float
    instructions: float


def measure(variant: str, mode: str) -> Figure:
    """Execute the kernel once, in this process."""
    (file,) = (path for path in (FOLDER / variant).glob("*.json") if not path.name.endswith(".meta.json"))
    (kernel,) = ptxc.compile(file)
    assert kernel.launch is not None
    random = np.random.default_rng(1)
    arrays = {name: random.standard_normal((SIZE, SIZE), np.float32) for name in ("a", "b")}
    arrays["c"] = np.full((SIZE, SIZE), np.nan, np.float32)
    module, launch = ptxc.device("cpu").load(kernel.ptx), kernel.launch
    args = [arrays[parameter.name] for parameter in launch.parameters]
    grid = [int(extent) for extent in launch.grid]
    wall, cpu = time.perf_counter(), time.process_time()
    result = module.launch(kernel.name, grid, launch.block, args, shared=launch.dynamic_shared, sanitize=MODES[mode])
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    assert result.completed, result.findings
    assert not result.findings, result.findings
    np.testing.assert_allclose(arrays["c"], arrays["a"].astype(float) @ arrays["b"], atol=1e-3)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return Figure(wall, cpu, memory, result.statistics.instructions / 1e6)


def best(variant: str, mode: str, rounds: int) -> Figure:
    """The best of some launches, each in a process of its own."""
    figures = []
    for _ in range(rounds):
        command = [sys.executable, __file__, "--variant", variant, "--mode", mode]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        figures.append(Figure(*json.loads(done.stdout)))
    return min(figures)


def table(figures: dict[str, Figure], variant: str) -> Table:
    rows = Table(title=f"{SIZE} x {SIZE} x {SIZE} in f32, {variant}, on {os.cpu_count()} cores")
    for heading in ("checks", "wall s", "CPU s", "bar s", "MiB", "M instructions/s"):
        rows.add_column(heading, justify="left" if heading == "checks" else "right")
    for mode, figure in figures.items():
        bar = f"{BARS[mode]:.0f}" if mode in BARS else ""
        speed = f"{figure.instructions / figure.wall:.1f}"
        rows.add_row(mode, f"{figure.wall:.2f}", f"{figure.cpu:.2f}", bar, f"{figure.memory:.0f}", speed)
    return rows


def main() -> int:
    """Measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--variant", default="async_d2_f4x4", help="the schedule (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=2, help="launches of each row (default: %(default)s)")
    parser.add_argument("--json", metavar="FILE", help="write the figures")
    parser.add_argument("--mode", choices=MODES, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.mode:
        print(json.dumps(measure(args.variant, args.mode)))
        return 0
    figures = {mode: best(args.variant, mode, args.rounds) for mode in MODES}
    Console().print(table(figures, args.variant))
    if args.json:
        Path(args.json).write_text(json.dumps({mode: figure._asdict() for mode, figure in figures.items()}, indent=1))
    slow = [mode for mode, bar in BARS.items() if figures[mode].wall > bar]
    large = [mode for mode, figure in figures.items() if figure.memory > MOST_MEMORY]
    for mode in (*slow, *large):
        print(f"beyond the bar: {mode}", file=sys.stderr)
    return int(bool(slow or large))


if __name__ == "__main__":
    sys.exit(main())
