"""The fixture `golden` of conftest.py: golden tests must fail when they should, and rewrite only when told to."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import ROOT

TESTS = """
from pathlib import Path
FOLDER = Path(__file__).parent

def test_same(golden): golden(FOLDER / "same", "one\\n")
def test_changed(golden): golden(FOLDER / "changed", "one\\ntwo\\n")
def test_new(golden): golden(FOLDER / "deep/new", "new\\n")
def test_gone(golden): golden(FOLDER / "gone", None)
def test_other(): assert False
"""


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    monkeypatch.delenv("CI", raising=False)
    pytester.makeconftest((ROOT / "tests/conftest.py").read_text())
    pytester.makepyfile(TESTS)
    for name, text in {"same": "one\n", "changed": "one\n", "gone": "old\n"}.items():
        (pytester.path / name).write_text(text)
    return pytester


def run(project: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    return project.runpytest_subprocess("-p", "no:cacheprovider", *arguments)


def files(folder: Path) -> dict[str, str]:
    names = ("same", "changed", "gone", "deep/new")
    return {name: (folder / name).read_text() for name in names if (folder / name).exists()}


def test_differences_fail_and_show(project: pytest.Pytester) -> None:
    before = files(project.path)
    result = run(project)
    result.assert_outcomes(passed=1, failed=4)
    result.stdout.fnmatch_lines(["+two", "If it should be: make goldens"])
    assert files(project.path) == before


@pytest.mark.parametrize("workers", ["0", "2"])
def test_update_rewrites_and_lists(project: pytest.Pytester, workers: str) -> None:
    result = run(project, "--update", "-n", workers)
    result.assert_outcomes(passed=4, deselected=0 if workers != "0" else 1)
    result.stdout.fnmatch_lines(["changed: */changed", "new: */deep/new", "removed: */gone"])
    assert files(project.path) == {"same": "one\n", "changed": "one\ntwo\n", "deep/new": "new\n"}
    run(project, "--deselect", "test_update_rewrites_and_lists.py::test_other").assert_outcomes(passed=4, deselected=1)


def test_ci_does_not_update(project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    result = run(project, "--update")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*--update rewrites the golden files, which CI must not do"])
