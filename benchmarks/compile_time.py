"""What a compilation costs, beside what other compilers take for the same kernel.

    python benchmarks/compile_time.py [--target sm_89] [--json FILE] [--no-nvcc] [--no-peers] [PATTERN]

All figures are CPU time, user and system, children included, the best of several runs. For each of the 15 benchmark
problems (one full-size kernel each, from ../shared/bench15):

- to PTX: ptxc from a KernelOp in memory, all passes, in this process; ``nvcc --ptx`` on Emmy's CUDA text of the kernel;
- to a cubin: ptxc and ptxas, beside ``nvcc --cubin``, which is how Emmy builds it.

Then, for some of the problems, Triton and tinygrad to PTX, where they are installed; ptxc on one kernel shape at
growing statement counts, to show that the time grows linearly; and the peak memory of ptxc. Figures from one run belong
together: compare ratios, not seconds of different days. benchmarks/README.md says what exactly is timed.

Exit status: 0, 1 if a bar is missed, 2 if the kernels are not there.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from pathlib import Path

import peers
from compilation import tables
from compilation.bars import bars_of
from compilation.costs import Cost, cost
from compilation.growth import growth
from compilation.kernels import Choice, choices
from peers import PeerCost
from rich.console import Console
from rich.progress import track
from shared import SHARED

from ptxc.errors import ToolchainError
from ptxc.toolchain import find_tool

FOLDER = SHARED / "bench15"


def tools(with_nvcc: bool) -> tuple[list[str], list[str]]:
    """Which tools are run, and why each of the others is left out."""
    use, missing = [], []
    for tool in ("ptxas", "nvcc") if with_nvcc else ("ptxas",):
        try:
            find_tool(tool)
            use.append(tool)
        except ToolchainError as error:
            missing.append(f"{tool} is left out: {error}")
    return use, missing


def whole(name: str, problem: str, kernels: Sequence[Cost], ms: Callable[[Cost], float]) -> PeerCost:
    """What a compiler takes for all kernels of a problem's launch."""
    return PeerCost(problem, name, len(kernels), sum(kernel.lines for kernel in kernels), sum(map(ms, kernels)))


def beside(
    chosen: Iterable[Choice], measure: Callable[[Path], Cost], found: Sequence[peers.Peer], console: Console
) -> tuple[dict[str, PeerCost], list[list[PeerCost]]]:
    """The problems that any of the peers has: ptxc's cost of each, and the costs of nvcc and of each peer."""
    common = [choice for choice in chosen if any(choice.problem in peer.compile for peer in found)]
    ours: dict[str, PeerCost] = {}
    nvcc = []
    for problem, _, launch in track(common, "all kernels of a problem", console=console):
        kernels = [measure(path) for path in launch]
        ours[problem] = whole("ptxc", problem, kernels, lambda kernel: kernel.ptxc_ms)
        if all(kernel.nvcc_ptx_ms is not None for kernel in kernels):
            nvcc.append(whole("nvcc --ptx", problem, kernels, lambda kernel: kernel.nvcc_ptx_ms or 0.0))
    others = [peers.costs(peer, ours) for peer in track(found, "other compilers", console=console)]
    return ours, [nvcc, *others]


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pattern", nargs="?", default="", help="only kernels whose file name holds this")
    parser.add_argument("--target", default="sm_89")
    parser.add_argument("--no-nvcc", action="store_true", help="leave nvcc out")
    parser.add_argument("--no-peers", action="store_true", help="leave Triton and tinygrad out")
    parser.add_argument("--no-growth", action="store_true", help="leave the series of growing size out")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    return parser.parse_args()


def main() -> int:
    args = parse()
    if not FOLDER.is_dir():
        print(f"the benchmark kernels are not at {FOLDER}", file=sys.stderr)
        return 2
    console, messages = Console(width=120), Console(stderr=True)
    use, missing = tools(not args.no_nvcc)
    measure = cache(partial(cost, target=args.target, tools=use))
    chosen = choices(FOLDER, args.target, args.pattern)
    costs = {choice.problem: measure(choice.largest) for choice in track(chosen, "kernels", console=messages)}
    sizes = [] if args.no_growth else growth(args.target)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3  # before other compilers are in the process
    found, absent = ([], []) if args.no_peers else peers.find(args.target)
    ours, others = beside(chosen, measure, found, messages)
    bars = bars_of([*costs.values()])

    shown = [tables.to_ptx(costs), tables.to_cubin(costs), tables.bars(bars)]
    shown += [tables.beside_peers(ours, others)] if ours else []
    shown += [tables.growth(sizes)] if sizes else []
    for item in (*shown, f"peak memory: {peak:.0f} MB", *missing, *absent):
        console.print(item, highlight=False)
    if args.json:
        groups = ([*ours.values()], *others)
        data = {
            "problems": [{"problem": problem, **each._asdict()} for problem, each in costs.items()],
            "bars": [bar._asdict() for bar in bars],
            "peers": [each._asdict() for group in groups for each in group],
            "scaling": [size._asdict() for size in sizes],
            "peak_mb": peak,
        }
        args.json.write_text(json.dumps(data, indent=1) + "\n")
    return int(not all(bar.reached for bar in bars))


if __name__ == "__main__":
    raise SystemExit(main())
