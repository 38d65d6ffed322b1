"""Cooperative kernels with more CTAs than they need: those that are too many change nothing, and hang nowhere.

By default a sample of the corpus; ``PTXC_WHOLE_CORPUS=1`` takes all.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from bench15 import FOLDER, WHOLE, Run, code, executable, reference, sample, schedules
from conftest import ROOT
from launching import Arrays, run
from ragged import is_cooperative, ragged
from reference import inputs
from test_golden_values import GOLDENS, compiled

from ptxc.compilation import CompiledKernel

#: How many CTAs more, one after the other.
MORE = (3, 70) if WHOLE else (3,)

#: Goldens that are executed whole: their arrays do not take gigabytes, nor their grids minutes.
WHOLE_GOLDENS = {name for name, table in GOLDENS.items() if "computes" in table and "ctas" not in table}
WHOLE_GOLDENS -= {"row_sum_index64", "row_sum_grid64"}


def same(arrays: Arrays, others: Arrays) -> bool:
    """Whether all of the arrays hold the same bits."""
    return arrays.keys() == others.keys() and all(
        np.asarray(arrays[name]).tobytes() == np.asarray(others[name]).tobytes() for name in arrays
    )


def check(kernels: list[CompiledKernel], files: list[Any], begin: Arrays, **options: Any) -> None:
    """Kernels with CTAs to spare leave what they leave on the grid that fits."""
    exact = dict(begin)
    assert not run(kernels, exact)
    loose = ragged(files, **options)
    for more in MORE:
        arrays = dict(begin)
        assert not run(loose.kernels, arrays, more=more, sizes=loose.sizes), more
        assert same(arrays, exact), more


@pytest.mark.parametrize("name", sorted(WHOLE_GOLDENS))
def test_goldens(name: str) -> None:
    table = GOLDENS[name]
    kernel = compiled(name)
    if not is_cooperative(kernel):
        return
    options = {"target": table.get("target", "sm_89"), **table.get("options", {})}
    for sizes in table.get("sizes", [{}]):
        begin = inputs([kernel], sizes, table.get("step", 0.0))
        check([kernel], [ROOT / "golden" / name / "kernel.ir.json"], begin, **options)


def chosen() -> Iterator[Any]:
    """Every schedule, or one of each kind of each problem."""
    known = set()
    for name, found in schedules(sample(executable())):
        kind = found[0].problem, found[0].variant
        if WHOLE or kind not in known:
            known.add(kind)
            yield pytest.param(found, id=name)


@pytest.mark.timeout(1200 if WHOLE else 300)
@pytest.mark.parametrize("found", list(chosen()))
def test_corpus(found: list[Run]) -> None:
    done = set()
    for launches in found:
        kernels = launches.compile()
        if code(kernels) in done or not any(map(is_cooperative, kernels)):
            continue
        done.add(code(kernels))
        files = [FOLDER / file for file in launches.files]
        check(kernels, files, dict(reference(launches)[0]), target=launches.target)


def test_more_ctas_than_its_own_are_seen_in_a_kernel_that_checks_nothing() -> None:
    """What the other tests find nothing of would be found."""
    kernel = compiled("row_sum_tree")
    begin = inputs([kernel], {})
    assert not run([kernel], dict(begin))
    assert any("outside of every global variable" in finding for finding in run([kernel], dict(begin), more=1))
