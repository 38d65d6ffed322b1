"""Kernels of the corpus, compiled, executed on the CPU device and compared with the float64 reference of their problem.

By default a sample of them; ``PTXC_WHOLE_CORPUS=1`` takes all.
"""

from __future__ import annotations

import pytest
from bench15 import Run, executable, reference, sample
from launching import error, run

#: The largest relative error that a run may have, by the beginning of its name: the first that fits.
BOUNDS = {
    # Scores of 64 terms go into the exponential: nvcc's build of the same kernels errs as much, and so does NumPy in
    # float32 (2.6e-6).
    "a01_attention.full": 4e-6,
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


@pytest.mark.parametrize("launches", sample(executable()), ids=str)
def test_results(launches: Run) -> None:
    arrays, expected = reference(launches)
    findings = run(launches.compile(), arrays)
    assert not findings
    bound = next(bound for prefix, bound in BOUNDS.items() if str(launches).startswith(prefix))
    errors = {name: error(arrays[name], value) for name, value in expected.items()}
    assert max(errors.values()) <= bound, errors
