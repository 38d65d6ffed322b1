"""The corpus's kernels with runtime sizes, at every size around their blocks and tiles, and at primes.

By default a sample of kernels and sizes; ``PTXC_WHOLE_CORPUS=1`` takes all.
"""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from bench15 import WHOLE, Run, code, reference_file, runs, sample, schedules
from launching import error, run
from meanings import computed
from problems import DYNAMIC, FULL
from reference import inputs

from ptxc.compilation import CompiledKernel
from ptxc.launch import Launch, evaluate

#: The largest relative error: sums of some hundreds of terms are among them.
BOUND = 5e-6

PRIMES = (2, 7, 13, 61, 127, 251)

#: No tile of the corpus's is larger than this.
LARGEST = 2048

#: A size whose launches have more threads than this is left out.
MAX_THREADS = 300_000 if WHOLE else 10_000


def launches_of(kernels: Iterable[CompiledKernel]) -> list[Launch]:
    return [kernel.launch for kernel in kernels if kernel.launch is not None]


def sizes_around(launches: Iterable[Launch], name: str) -> list[int]:
    """Sizes at which something ends, or nearly: primes, and one less and more than each block and tile."""
    ends = set()
    launches = list(launches)
    for launch in launches:
        ends.add(launch.block[0])
        if isinstance(launch.grid[0], str):
            ends.add(_tile(launch.grid[0], name))
    sizes = {1, *PRIMES, *(size for end in ends for size in (end - 1, end, end + 1, 2 * end - 1) if size > 0)}
    return sorted(size for size in sizes if _threads(launches, {name: size}) <= MAX_THREADS)


def _threads(launches: Iterable[Launch], sizes: dict[str, int]) -> int:
    return sum(evaluate(launch.grid[0], sizes) * launch.block[0] for launch in launches)


def _tile(grid: str, name: str) -> int:
    """The greatest size for which the grid is as for 1."""
    first = evaluate(grid, {name: 1})
    return next(size for size in range(1, LARGEST) if evaluate(grid, {name: size + 1}) > first)


def check(found: Run, kernels: list[CompiledKernel], sizes: Iterable[int], name: str) -> None:
    expression = DYNAMIC[found.name]
    for size in sizes:
        arrays = inputs(kernels, {name: size})
        expected = computed(expression, arrays)
        assert not run(kernels, arrays), size
        (output,) = (p.name for p in launches_of(kernels)[-1].parameters if p.role == "output")
        assert error(arrays[output], expected) <= BOUND, size


@pytest.mark.parametrize(
    "found",
    [pytest.param(found, id=name) for name, found in schedules(sample(run for run in runs() if run.name in DYNAMIC))],
)
def test_sizes(found: list[Run]) -> None:
    done = set()
    for one in found:
        kernels = one.compile()
        if code(kernels) in done:
            continue
        done.add(code(kernels))
        launches = launches_of(kernels)
        (name,) = {integer.name for launch in launches for integer in launch.runtime}
        sizes = sizes_around(launches, name)
        check(one, kernels, sizes if WHOLE else sizes[-4:], name)


def test_sizes_are_around_blocks_and_tiles() -> None:
    launch = Launch(("(((m * 8) + 127) / 128)", 1, 1), (128, 1, 1), 0, 0, (), (), ())
    assert sizes_around([launch], "m") == [1, 2, 7, 13, 15, 16, 17, 31, 61, 127, 128, 129, 251, 255]


def test_all_runtime_sizes_are_tried() -> None:
    assert {run.name for run in runs() if "dyn" in run.size} <= DYNAMIC.keys()


def test_sizes_without_a_reference_are_tried() -> None:
    without = {run.name for run in runs() if not reference_file(run).exists()}
    assert {name for name in without if not name.startswith("x05_wide")} <= FULL.keys() | DYNAMIC.keys()
