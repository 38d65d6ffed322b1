"""Kernels of the corpus, compiled, executed on the CPU device and compared with the float64 reference of their problem.

By default a sample of them; ``PTXC_WHOLE_CORPUS=1`` takes all, each for every target, and the full sizes.
``PTXC_FIGURES=FILE`` appends the errors to a file, a line a run.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

import nvcc_errors
import pytest
from bench15 import WHOLE, Run, code, executable, runs, sample, schedules
from launching import error, run, written
from problems import FULL, case

#: The largest error that a kernel of each family may have in a reduced size, relative to the larger of an element's
#: magnitude and the root of their mean square.
BOUNDS = {
    "p": 1e-7,  # pointwise
    "r": 5e-6,  # reductions
    "f": 2e-6,  # normalisations
    "m": 4e-6,  # products of matrices
    "a": 2e-6,  # attention
    "x01": 4e-6,
    "x02": 4e-6,
    "x04": 5e-6,
    "x06": 1e-7,
    "x07": 5e-6,
}
#: The same of full sizes, in which sums of a million elements are made one after the other. In attention over them
#: nvcc's builds err up to 4.9e-6, as NumPy in float32 does: scores of many terms go into the exponential.
FULL_BOUND = 5e-5

#: What Emmy's own lowering does not take, so that there is no build of nvcc's.
WITHOUT_NVCC = "x01_zero_prologue"


def bound(launches: Run) -> float:
    """The largest error that a run may have: its family's, and not far beyond that of nvcc's build of it."""
    family = next(bound for prefix, bound in BOUNDS.items() if launches.problem.startswith(prefix))
    if launches.size.startswith("full"):
        family = FULL_BOUND
    if launches.problem == WITHOUT_NVCC:
        return family
    return min(family, 2 * nvcc_errors.stored()[launches.schedule] + 1e-7)


def check(found: Iterable[Run]) -> None:
    """Execute the runs of a schedule; the code that is the same for several targets once."""
    known: dict[str, float] = {}
    for launches in found:
        kernels = launches.compile()
        text = code(kernels)
        if text not in known:
            known[text] = _error(launches)
        _note(launches, known[text])
        assert known[text] <= bound(launches), launches


def _error(launches: Run) -> float:
    kernels = launches.compile()
    given = case(launches, kernels)
    assert given is not None
    arrays, expected = given
    assert not run(kernels, arrays, ctas=launches.sampled)
    errors = []
    for name, value in expected.items():
        where = written(arrays[name]) if launches.sampled else None
        assert where is None or where.mean() >= 0.9 * launches.share
        errors.append(error(arrays[name], value, where))
    return max(errors)


def _note(launches: Run, value: float) -> None:
    if file := os.environ.get("PTXC_FIGURES"):
        with open(file, "a", encoding="utf-8") as figures:
            figures.write(f"{launches} {value:.3e} {bound(launches):.3e}\n")


def _each(chosen: Iterable[Run]) -> list[object]:
    return [pytest.param(found, id=name) for name, found in schedules(chosen)]


@pytest.mark.parametrize("found", _each(sample(executable())))
def test_results(found: list[Run]) -> None:
    check(found)


@pytest.mark.parametrize("found", _each(run for run in runs() if WHOLE and run.name in FULL))
@pytest.mark.timeout(1200)
def test_full_sizes(found: list[Run]) -> None:
    check(found)


def test_every_run_has_a_bound_of_its_family_and_of_nvcc() -> None:
    for launches in executable():
        assert 0 < bound(launches) <= FULL_BOUND
