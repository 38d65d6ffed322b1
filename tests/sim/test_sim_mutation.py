"""The CPU device detects kernels that lack a barrier, a wait or a guard; those that it does not are right without.

Executed are the mutants of the showcases and of kernels with survivors; ``PTXC_WHOLE_CORPUS=1`` takes all goldens.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Set

import pytest
from conftest import ROOT
from mutation_lab import DATA, SHOWCASES, Key, Subject, explained, subjects

SUBJECTS = subjects()
WHOLE = os.environ.get("PTXC_WHOLE_CORPUS") == "1"
SURVIVED = {key.kernel for key in explained()}
EXECUTED = [subject for subject in SUBJECTS if WHOLE or subject.name in SURVIVED | SHOWCASES]


@pytest.mark.parametrize("subject", EXECUTED, ids=lambda subject: subject.name)
def test_survivors_are_the_explained(subject: Subject) -> None:
    survivors = {mutant.key for mutant in subject.mutants if subject.judge(mutant).survives}
    assert survivors == {key for key in explained() if key.kernel == subject.name}


#: What a kernel is wrong without. Of fences Emmy has one where others, or nothing to order, make it needless.
MAIN = ("barrier", "wait", "guard")


@pytest.mark.parametrize("kinds", [MAIN, (*MAIN, "loop")], ids=["without-loops", "all"])
@pytest.mark.parametrize("names", [SHOWCASES, {subject.name for subject in SUBJECTS}], ids=["showcases", "all"])
def test_few_survive(kinds: tuple[str, ...], names: Set[str]) -> None:
    def count(keys: Iterable[Key]) -> int:
        return sum(key.kind in kinds and key.kernel in names for key in keys)

    assert count(explained()) <= 0.05 * count(mutant.key for subject in SUBJECTS for mutant in subject.mutants)


def test_the_documentation_counts_right() -> None:
    keys = [mutant.key for subject in SUBJECTS for mutant in subject.mutants]
    text = " ".join((ROOT / "docs" / "cpu-device.md").read_text().split())
    counted = [key for key in keys if key.kind in MAIN]
    for name, own in {
        "barriers": [key for key in keys if key.kind == "barrier"],
        "waits:[^|]*": [key for key in keys if key.kind == "wait"],
        "fences": [key for key in keys if key.kind == "fence"],
        "guards:[^|]*": [key for key in keys if key.kind == "guard"],
        "all of these": counted,
        "ends of loops": [key for key in keys if key.kind == "loop"],
    }.items():
        share = 1 - sum(key in explained() for key in own) / len(own)
        (found,) = re.findall(rf"\| {name} \| (\d+ \| [\d.]+ %) \|", text)
        assert found == f"{len(own)} | {100 * share:.1f} %"
    assert f"The {len(explained())} that are not detected" in text
    shown = [key for key in counted if key.kernel in SHOWCASES and key.kind != "fence"]
    share = 1 - sum(key in explained() for key in shown) / len(shown)
    assert f"Of the {len(shown)} barriers, waits and guards of the showcases {100 * share:.1f} % are detected" in text


def test_hopper_has_mutants() -> None:
    keys = {mutant.key.instruction.split()[0] for subject in SUBJECTS for mutant in subject.mutants}
    assert keys >= {
        "mbarrier.init.shared.b64", "mbarrier.arrive.expect_tx.shared.b64", "mbarrier.try_wait.parity.shared.b64",
        "wgmma.fence.sync.aligned;", "wgmma.commit_group.sync.aligned;", "wgmma.wait_group.sync.aligned",
        "fence.proxy.async.shared::cta;",
    }  # fmt: skip


def test_mutants_are_told_apart() -> None:
    keys = Counter(mutant.key for subject in SUBJECTS for mutant in subject.mutants)
    assert set(keys.values()) == {1}


def test_data_is_about_what_there_is() -> None:
    assert explained().keys() <= {mutant.key for subject in SUBJECTS for mutant in subject.mutants}
    assert DATA["kernels"].keys() <= {subject.name for subject in SUBJECTS}
    assert DATA["reasons"].keys() == {row["reason"] for row in DATA["survivors"]}


def test_benchmark_prints_what_survives() -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / "mutation.py"), "--only", "reverse_rows"]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert re.search(r"reverse_rows_barrier, line \d+: @%p\d+ st\.shared\.f32", printed)
    assert "body[0].body[2] s[(r % 2), t] = v\n  The threads outside of the tile belong to" in printed
    assert "all            5    80.0%   barriers, waits and guards\n" in printed


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
    (store,) = (line for line in stores if line.startswith("@%p0 st.shared.f32"))
    assert stores[store] == f"    {store.removeprefix('@%p0 ')}"
