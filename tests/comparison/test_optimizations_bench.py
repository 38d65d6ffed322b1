"""The benchmark of what each optimisation is worth: which kernels, which configurations, and the figures."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import optimizations
import pytest
from comparison_lab import build
from conftest import ROOT
from optimizations import AS_IT_IS, PER_WORK, Configuration, Ratio, Row, configurations, effect, sample, table, to_dict
from rich.console import Console

from ptxc.comparison import Build
from ptxc.corpus import Entry
from ptxc.passes.pipeline import PIPELINE
from ptxc.store import Store

WITHOUT = Configuration("without cse")


def row(name: str, usual: Build | None, other: Build | None, *notes: str) -> Row:
    builds = {AS_IT_IS.name: usual, WITHOUT.name: other}
    return Row(name, "k", "sm_80", {key: value for key, value in builds.items() if value}, list(notes))


def entry(name: str, card: str, family: str) -> Entry:
    return Entry(Path(name), card, "sm_80", family)


def test_each_optional_pass_and_each_level_is_a_configuration() -> None:
    named = {one.name: one for one in configurations()}
    assert len(named) == len(configurations())
    assert configurations()[0] is AS_IT_IS
    for item in PIPELINE:
        assert (f"without {item.name}" in named) != item.required
    assert named["without cse"].options == {"disable": ("cse",)}
    assert named["--opt 1"].options == {"opt": 1}
    assert "without unrolling" in named


def test_the_documentation_has_a_figure_of_each() -> None:
    page = (ROOT / "docs" / "optimizations.md").read_text()
    rows = re.findall(r"^\| ((?:as it is|without|--opt)[\w +-]*?) +\|", page, re.MULTILINE)
    assert rows == [one.name for one in configurations()]


def test_a_sample_has_each_family_of_each_card_and_grows() -> None:
    chosen = [entry(f"{card}.{family}.{at}", card, family) for card in "ab" for family in "xy" for at in range(5)]
    four = sample(chosen, 4)
    assert sorted((one.card, one.family) for one in four) == [("a", "x"), ("a", "y"), ("b", "x"), ("b", "y")]
    assert set(four) < set(sample(chosen, 10))
    assert sample(chosen, 100) == chosen
    assert sample(chosen[::-1], 4) == four[::-1]


def test_an_effect_is_the_mean_of_ratios_and_the_worst_kernel() -> None:
    rows = [
        row("one", build(registers=32), build(registers=64, spilled=8)),
        row("two", build(registers=40, spilled=4), build(registers=20)),
        row("none", build(), None, "without cse: it failed"),
    ]
    found = effect(rows, WITHOUT.name)
    assert found.kernels == 2
    ratio = found.ratios["registers"]
    assert ratio is not None
    assert ratio.mean == pytest.approx(1)
    assert ratio[1:] == (2.0, "one")
    assert (found.spilled, found.spilling) == ((8, 4), (1, 1))


def test_work_is_compared_where_the_hottest_loops_are_alike() -> None:
    usual = build("LDG.E R0; FFMA R0; FFMA R1")
    rows = [row("one", usual, build("LDG.E R0; IADD3 R5; FFMA R0; FFMA R1")), row("two", usual, build("FFMA R0"))]
    found = effect(rows, WITHOUT.name).ratios[PER_WORK]
    assert found is not None
    assert found.mean == pytest.approx(5 / 4)
    assert found.kernel == "one"


def test_what_no_kernel_has_is_no_ratio() -> None:
    assert Ratio.of([]) is None
    assert effect([row("none", build(), None)], WITHOUT.name).kernels == 0


def test_the_table_and_the_figures() -> None:
    rows = [row("one", build(registers=32), build(registers=48)), row("none", None, build())]
    console = Console(width=200, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(table(rows, [AS_IT_IS, WITHOUT]))
    lines = [[cell.strip() for cell in line.split("|")] for line in console.export_text().splitlines() if "|" in line]
    assert lines[0][1:3] == ["configuration", "kernels"]
    assert lines[2][1:4] == ["as it is", "1", "100"]
    assert [*lines[3][1:3], lines[3][6]] == ["without cse", "1", "1.500 (1.50)"]
    figures = json.loads(json.dumps(to_dict(rows, [AS_IT_IS, WITHOUT])))
    assert figures["effects"][1]["ratios"]["registers"] == {"mean": 1.5, "worst": 1.5, "kernel": "one"}
    assert figures["kernels"][0]["builds"]["without cse"]["registers"] == 48
    assert figures["kernels"][1]["builds"].keys() == {"without cse"}


@pytest.mark.needs("ptxas")
@pytest.mark.needs("nvdisasm")
def test_a_folder_is_built_and_what_ptxas_made_is_kept(
    tmp_path: Path, kept: Store, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    kernels = tmp_path / "kernels"
    kernels.mkdir()
    shutil.copy(ROOT / "golden" / "row_sum_tree" / "kernel.ir.json", kernels / "row_sum_tree.json")
    figures = tmp_path / "figures.json"
    given = [str(kernels), "--configurations", "cse", "--jobs", "1", "--json", str(figures)]
    assert optimizations.main(given) == 0
    assert "without cse" in capsys.readouterr().out
    before = json.loads(figures.read_text())
    assert [one["kernels"] for one in before["effects"]] == [1, 1]
    monkeypatch.setattr("ptxc.comparison.builds.assemble", lambda *_: pytest.fail("it is known"))
    assert optimizations.main(given) == 0
    after = json.loads(figures.read_text())
    assert [one["ratios"]["SASS"] for one in after["effects"]] == [one["ratios"]["SASS"] for one in before["effects"]]
    assert optimizations.main([str(kernels), "--only", "nothing"]) == 2


@pytest.mark.needs("ptxas")
@pytest.mark.needs("nvdisasm")
def test_what_cannot_be_built_is_told(tmp_path: Path, kept: Store, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "broken.json").write_text("{}")
    assert optimizations.main([str(tmp_path), "--configurations", "cse"]) == 1
    assert "broken.json" in capsys.readouterr().err
