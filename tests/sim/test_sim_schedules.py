"""What is found does not depend on the order in which the device runs the warps.

Here each step runs a random choice of the ready warps at a random one of the places where threads are ready: kernels
that are right must have no finding in any order, and what races must be found in all of them. Not so kernels with
``activemask``, which is true of the order alone.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import mutation_lab
import numpy as np
import pytest
from mutation_lab import Mutant, Subject

from ptxc.sim.machine import Active
from ptxc.sim.scheduler import Scheduler

ORDERS = 4

#: Goldens of all sorts of meetings: the whole CTA, named barriers, warps, shuffles, asynchronous copies, divergence.
NAMES = ["row_sum_tree", "named_barrier", "attention_row", "sync_warp_predicates", "matmul_async", "ragged_copies",
         "ragged_shuffles", "row_sum_dynamic", "softmax_cooperative", "cpasync_8B", "row_min", "scan"]  # fmt: skip

Shuffle = Callable[[int], None]


@pytest.fixture
def shuffle(monkeypatch: pytest.MonkeyPatch) -> Shuffle:
    """Called with a seed: the device's order from now on."""
    source = random.Random()
    place = 0

    def choose(scheduler: Scheduler) -> int:
        nonlocal place
        place = source.choice(sorted(scheduler._ready))
        return place

    def join(scheduler: Scheduler, parts: list[Active]) -> Active:
        index = np.sort(np.concatenate([part.index for part in parts]))
        warps = np.unique(index >> 5).tolist()
        chosen = source.sample(warps, source.randint(1, len(warps)))
        goes = np.isin(index >> 5, chosen)
        if not goes.all():
            scheduler._send(place, Active(index[~goes], False))
        return Active(index[goes], int(goes.sum()) == scheduler._m.live_count)

    def start(seed: int) -> None:
        source.seed(seed)
        monkeypatch.setattr(Scheduler, "_choose", choose)
        monkeypatch.setattr(Scheduler, "_join", join)

    return start


def racing(subject: Subject) -> list[Mutant]:
    """The mutants that lack a barrier or a wait, but for those that are right without."""
    lacking = [mutant for mutant in subject.mutants if mutant.key.kind in {"barrier", "wait"}]
    return [mutant for mutant in lacking if not subject.judge(mutant).survives]


@pytest.mark.parametrize("name", NAMES)
def test_order_changes_no_finding(name: str, shuffle: Shuffle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mutation_lab, "PATIENCE", 1000)  # few threads run at once
    subject = Subject(name)
    mutants = racing(subject)
    for seed in range(ORDERS):
        shuffle(seed)
        assert subject.is_right(), f"order {seed}"
        missed = [mutant.original for mutant in mutants if "race" not in subject.judge(mutant).found]
        assert not missed, f"order {seed}"
