"""The errors of nvcc's builds of the corpus's kernels, which ptxc's are held against: ``nvcc_errors.json``.

    PYTHONPATH=tests ./run python tests/end_to_end/nvcc_errors.py [PATTERN]

executes nvcc's PTX of every run whose name holds the pattern, and writes the file. All of them take half an hour.
"""

from __future__ import annotations

import json
import sys
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from pathlib import Path

from bench15 import FOLDER, Run, runs, schedules
from launching import Arrays, error, written
from problems import case
from rich.progress import track

from ptxc.compilation import CompiledKernel
from ptxc.driver import graph_of
from ptxc.errors import UnsupportedError
from ptxc.reference.buffers import Problem, integers_of, problem_of
from ptxc.reference.emmy import cuda_kernels, nvcc_ptx
from ptxc.reference.execution import Settings, execute, load
from ptxc.reference.sample import Sample
from ptxc.reference.steps import Step

FILE = Path(__file__).with_name("nvcc_errors.json")

#: How many at once.
_WORKERS = 2


@cache
def stored() -> dict[str, float]:
    """The errors by schedule."""
    found: dict[str, float] = json.loads(FILE.read_text())
    return found


def nvcc_error(runs: list[Run]) -> float | None:
    """The error of nvcc's build of a schedule; the least, where Emmy renders it in different ways for the targets.

    None where Emmy's lowering does not take a kernel, or nothing says what the run computes.
    """
    known: dict[tuple[str, ...], float] = {}
    for run in runs:
        kernels = run.compile()
        given = case(run, kernels)
        if given is None:
            return None
        arrays, expected = given
        problem = _problem(kernels, arrays)
        graphs = [graph_of(FOLDER / file) for file in run.files]
        try:
            found = [kernel for graph in graphs for kernel in cuda_kernels(graph, run.target, problem)]
        except UnsupportedError:
            return None
        sources = tuple(kernel.source for kernel in found)
        if sources not in known:
            results = problem.arrays()
            modules = load({kernel.step.entry: nvcc_ptx(kernel, run.target) for kernel in found})
            settings = Settings(sample=Sample(run.sampled))
            execute(modules, [kernel.step for kernel in found], results, problem.integers, settings)
            known[sources] = max(
                error(results[name], value, written(results[name]) if run.sampled else None)
                for name, value in expected.items()
            )
    return float(f"{min(known.values()):.3e}")


def _problem(kernels: list[CompiledKernel], arrays: Arrays) -> Problem:
    steps = [Step(kernel.name, kernel.launch) for kernel in kernels if kernel.launch is not None]
    integers = {name: integer.value for name, integer in integers_of(steps, {}, arrays).items()}
    return problem_of(steps, integers, arrays)


def main() -> None:
    """Write the file."""
    pattern = sys.argv[1] if len(sys.argv) > 1 else ""
    chosen = [item for item in schedules(runs()) if pattern in item[0]]
    errors = dict(stored()) if pattern and FILE.exists() else {}
    with ProcessPoolExecutor(_WORKERS) as workers:
        found = workers.map(nvcc_error, [runs for _, runs in chosen])
        for (name, _), value in zip(track(chosen, "nvcc"), found, strict=True):
            if value is not None:
                errors[name] = value
    FILE.write_text(json.dumps(dict(sorted(errors.items())), indent=0) + "\n")


if __name__ == "__main__":
    main()
