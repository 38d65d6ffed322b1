"""The CPU device detects kernels that lack a barrier, a wait or a guard; those that it does not are right without.

Executed are the mutants of the showcases and of kernels with survivors; ``PTXC_WHOLE_CORPUS=1`` takes all goldens.
"""

from __future__ import annotations

import os
from collections import Counter

import pytest
from mutation_lab import DATA, GOLDENS, Subject, explained, subjects

SUBJECTS = subjects()
WHOLE = os.environ.get("PTXC_WHOLE_CORPUS") == "1"
SURVIVED = {key.kernel for key in explained()}
EXECUTED = [subject for subject in SUBJECTS if WHOLE or subject.name in SURVIVED or GOLDENS[subject.name].get("dump")]


@pytest.mark.parametrize("subject", EXECUTED, ids=lambda subject: subject.name)
def test_survivors_are_the_explained(subject: Subject) -> None:
    survivors = {mutant.key for mutant in subject.mutants if subject.judge(mutant).survives}
    assert survivors == {key for key in explained() if key.kernel == subject.name}


@pytest.mark.parametrize("kinds", [{"barrier", "wait", "guard"}, {"barrier", "wait", "guard", "loop"}])
def test_few_survive(kinds: set[str]) -> None:
    mutants = sum(mutant.key.kind in kinds for subject in SUBJECTS for mutant in subject.mutants)
    survivors = sum(key.kind in kinds for key in explained())
    assert survivors <= 0.05 * mutants


def test_mutants_are_told_apart() -> None:
    keys = Counter(mutant.key for subject in SUBJECTS for mutant in subject.mutants)
    assert set(keys.values()) == {1}


def test_data_is_about_what_there_is() -> None:
    assert explained().keys() <= {mutant.key for subject in SUBJECTS for mutant in subject.mutants}
    assert DATA["kernels"].keys() <= {subject.name for subject in SUBJECTS}
    assert DATA["reasons"].keys() == {row["reason"] for row in DATA["survivors"]}


def test_each_kind_is_there() -> None:
    """One kernel with all of them: what stands in its lines, and what in the mutants'."""
    subject = Subject("matmul_dynamic_async")
    changed = {mutant.key.kind: (mutant.key.instruction, mutant.replacement.strip()) for mutant in subject.mutants}
    assert changed["barrier"] == ("bar.sync 0;", "")
    assert changed["guard"] == ("@!%p bra $;", "")
    assert changed["loop"][0] == "@%p bra $;"
    assert changed["loop"][1].startswith("bra $")
    instructions = {mutant.key.instruction for mutant in subject.mutants if mutant.key.kind == "wait"}
    assert instructions == {"griddepcontrol.wait;", "cp.async.commit_group;", "cp.async.wait_group 0;"}
    stores = {mutant.original: mutant.replacement for mutant in Subject("reverse_rows_barrier").mutants}
    assert stores["@%p0 st.shared.f32 [%r11], %f0;"] == "    st.shared.f32 [%r11], %f0;"
