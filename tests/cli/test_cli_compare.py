"""`ptxc compare`."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from cli_lab import ROW_MAX, TWO_KERNELS, VECTOR_ADD, ptxc
from conftest import ROOT

from ptxc import comparison
from ptxc.comparison import Comparison
from ptxc.compilation import Options
from ptxc.store import Store

TOOLS = ("nvcc", "ptxas", "nvdisasm")


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tools that are found and never run."""
    for name in TOOLS:
        script = tmp_path / name
        script.write_text("#!/bin/sh\nexit 1\n")
        script.chmod(0o755)
        monkeypatch.setenv(f"PTXC_{name.upper()}", str(script))


@pytest.fixture
def compared(tools: None, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """The file and the target of each that is compared, with no compiler at work."""
    seen = []

    def compare(path: Path, options: Options, kept: Store) -> list[Comparison]:
        seen.append((path.name, options.target))
        return [Comparison(str(path), path.stem, options.target, None, None, ("nvcc: not today",))]

    monkeypatch.setattr(comparison, "compare_file", compare)
    return seen


def untimed(text: str) -> list[str]:
    """The lines of a comparison without CPU times, and without the version's column of them."""
    lines = [line for line in text.splitlines() if "CPU time" not in line and "CPU ms" not in line]
    return [re.sub(r" +(\d+x|CPU)$", "", line) for line in lines]


@pytest.mark.needs("nvcc")
@pytest.mark.needs("ptxas")
@pytest.mark.needs("nvdisasm")
@pytest.mark.parametrize("files", [["mma_matmul_f16"], ["matmul_scalar", "softmax_rows", "mma_matmul_f16"]])
def test_the_documentation_shows_what_there_is(
    files: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the tools are those that it was written with."""
    if "release 13.0" not in subprocess.run(["nvcc", "--version"], capture_output=True, text=True, check=True).stdout:
        pytest.skip("docs/compare.md has CUDA 13.0's figures")
    monkeypatch.setenv("PTXC_CACHE_DIR", str(tmp_path / "cache"))
    shown = ptxc("compare", *[ROOT / "golden" / name / "kernel.ir.json" for name in files], "--target", "sm_89")
    documented = (ROOT / "docs" / "compare.md").read_text().split("```\n")
    assert untimed(shown.out) in [untimed(block) for block in documented]


@pytest.mark.needs("nvcc")
@pytest.mark.needs("ptxas")
@pytest.mark.needs("nvdisasm")
def test_files_and_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PTXC_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("PTXC_CACHE_SIZE", "1G")
    figures = tmp_path / "figures.json"
    options = ("--jobs", 2, "--json", figures)
    result = ptxc("compare", VECTOR_ADD, TWO_KERNELS, "--target", "sm_90", *options)
    assert (result.status, result.err) == (0, "")
    assert "3 kernels built by both, of 3" in result.out
    shown = json.loads(figures.read_text())
    assert [Path(row["file"]).name for row in shown["kernels"]] == [VECTOR_ADD.name, TWO_KERNELS.name, TWO_KERNELS.name]
    assert all(row["target"] == "sm_90" and row["per_work_ratio"] for row in shown["kernels"])
    kinds = {file.suffix for file in (tmp_path / "cache").rglob("*.*")}
    assert kinds == {".cuda", ".nvcc", ".sass"}
    one = ptxc("compare", VECTOR_ADD)
    assert one.out.startswith("k_z_pointwise for sm_89\n")


def test_a_folder_with_a_manifest(tmp_path: Path, compared: list[tuple[str, str]]) -> None:
    folder = tmp_path / "kernels"
    folder.mkdir()
    for name, file in (("a.json", VECTOR_ADD), ("b.json", ROW_MAX)):
        shutil.copy(file, folder / name)
    assert ptxc("compare", folder).status == 0
    assert sorted(compared) == [("a.json", "sm_89"), ("b.json", "sm_89")]
    compared.clear()
    rows = [
        {"file": f"{name}.json", "card": "c", "target": f"sm_{sm}", "row": "r"} for name, sm in (("b", 90), ("a", 70))
    ]
    (folder / "MANIFEST.jsonl").write_text("\n".join(map(json.dumps, rows)))
    result = ptxc("compare", folder, "--jobs", 1)
    assert compared == [("b.json", "sm_90"), ("a.json", "sm_70")]
    assert "b       sm_90   " in result.out
    assert "2 kernels: nvcc: not today" in result.out
    compared.clear()
    ptxc("compare", folder, "--jobs", 1, "--target", "sm_120")
    assert compared == [("b.json", "sm_120"), ("a.json", "sm_120")]


@pytest.mark.usefixtures("tools")
def test_a_file_that_is_no_kernel_does_not_stop_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ptxc.comparison.pairs.build_with_ptxc", fail)
    (tmp_path / "odd.json").write_text("[]")
    result = ptxc("compare", tmp_path / "odd.json", VECTOR_ADD)
    assert result.status == 2
    assert result.err.count("\n") == 1
    assert "odd.json: " in result.err
    assert result.out.startswith("k_z_pointwise for sm_89\n")


def fail(*_: Any) -> Any:
    from ptxc.errors import UnsupportedError

    raise UnsupportedError("not today")


@pytest.mark.usefixtures("tools")
@pytest.mark.parametrize(
    ("args", "message"),
    [
        ([], "no file is given; name files of Kernel IR, or a folder of them"),
        (["nowhere.json"], "there is no file 'nowhere.json'"),
        ([VECTOR_ADD, "--jobs", "0"], "--jobs: '0' is no number of kernels"),
        ([VECTOR_ADD, "--picture", "a.jpg"], "'a.jpg' is no picture's name"),
        ([VECTOR_ADD, "--target", "sm_12"], "sm_12 is older than sm_70"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_one_line(args: list[str], message: str) -> None:
    assert message in ptxc("compare", *args).message


@pytest.mark.usefixtures("tools")
def test_folders_without_kernels(tmp_path: Path) -> None:
    folder = tmp_path / "empty"
    folder.mkdir()
    (folder / "launch.json").write_text("{}")
    (folder / "k.launch.json").write_text("{}")
    assert "has no kernels: no file *.json with a graph of Kernel IR" in ptxc("compare", folder).message
    row = {"file": "k.json", "card": "c", "target": "sm_90", "row": "r"}
    for line, what in (
        (json.dumps({**row, "target": "sm_1"}), "has a target that is none: no target is called 'sm_1'"),
        ("odd", "is no JSON: "),
        ("[]", 'has no text "file"'),
        (json.dumps({**row, "card": 1}), 'has no text "card"'),
        (json.dumps(row), "names a file that is not there: 'k.json'"),
    ):
        (folder / "MANIFEST.jsonl").write_text(line)
        assert f"MANIFEST.jsonl: line 1 {what}" in ptxc("compare", folder).message


def test_a_folder_of_folders(tmp_path: Path, compared: list[tuple[str, str]]) -> None:
    for name in ("a", "b"):
        (tmp_path / "all" / name).mkdir(parents=True)
        shutil.copy(VECTOR_ADD, tmp_path / "all" / name / f"{name}.json")
        (tmp_path / "all" / name / f"{name}.meta.json").write_text('{"kernels": []}')
    result = ptxc("compare", tmp_path / "all", tmp_path / "all" / "b", "--jobs", 1)
    assert (result.status, [name for name, _ in compared]) == (0, ["a.json", "b.json"])
    assert "is given twice; give it once" in ptxc("compare", VECTOR_ADD, VECTOR_ADD).message


def test_an_nvcc_that_says_nothing(tools: None) -> None:
    from ptxc.errors import ToolchainError
    from ptxc.reference.emmy import compile_cuda

    with pytest.raises(ToolchainError, match="for sm_90: it said nothing"):
        compile_cuda("", "sm_90")


def test_regions_that_are_not_alike_are_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    from ptxc.cli import comparisons

    monkeypatch.setattr(comparisons, "_is_unlike", lambda row: True)
    row = Comparison("k.json", "k", "sm_90", None, None, ())
    assert "\n\nthe regions are not alike: a loop that one compiler unrolled" in comparisons.report([row])


@pytest.mark.usefixtures("tools")
@pytest.mark.parametrize("tool", TOOLS)
def test_a_tool_that_is_missing(tool: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"PTXC_{tool.upper()}", "/nonexistent")
    assert f"PTXC_{tool.upper()} is /nonexistent" in ptxc("compare", VECTOR_ADD).message


def test_an_interruption_shows_what_there_is(
    tmp_path: Path, compared: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    quick = comparison.compare_file

    def interrupted(path: Path, options: Options, kept: Store) -> list[Comparison]:
        if path == ROW_MAX:
            raise KeyboardInterrupt
        return quick(path, options, kept)

    monkeypatch.setattr(comparison, "compare_file", interrupted)
    figures = tmp_path / "figures.json"
    result = ptxc("compare", VECTOR_ADD, ROW_MAX, "--jobs", "1", "--json", figures)
    assert result.status == 130
    assert "interrupted after 1 kernel; the same command goes on from there" in result.err
    assert json.loads(figures.read_text())["kernels"][0]["file"] == str(VECTOR_ADD)
