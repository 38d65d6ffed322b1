"""`benchmarks/gpu`: the folder that `prepare.py` writes, and `run.py` on it as far as that goes without a GPU."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import cases
import numpy as np
import prepare
import pytest
import run
from conftest import PACKAGES, ROOT

SCRIPTS = ROOT / "benchmarks" / "gpu"
#: Two kernels, one of which zeroes for the other; tensor maps.
CHOSEN = ("r01_array_sum.full_65536.split_g64k_coop", "m01_matmul_512.full_512x512x512.tma_d2_f2x2")

pytestmark = [pytest.mark.needs("nvcc"), pytest.mark.needs("ptxas")]


@pytest.fixture(scope="session")
def prepared(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two cases, which tests do not change."""
    folder = tmp_path_factory.mktemp("gpu") / "folder"
    options = [option for name in CHOSEN for option in ("--only", name)]
    done = _python(SCRIPTS / "prepare.py", folder, *options)
    assert done.returncode == 0, done.stderr
    return folder


def _python(*args: object, **more: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(PACKAGES), *sys.path]), **more}
    command = [sys.executable, *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False, timeout=250)


def _alone(folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    """`run.py` of a folder, where Python has NumPy and neither ptxc nor cuda-bindings."""
    library = folder.parent / "numpy-alone"
    if not library.exists():
        library.mkdir()
        installed = Path(np.__file__).parents[1]
        for item in installed.glob("numpy*"):
            (library / item.name).symlink_to(item)
    start = f"import sys, runpy; sys.path.append({str(library)!r}); sys.argv = sys.argv[1:]; "
    program = f"{start}runpy.run_path(sys.argv[0], run_name='__main__')"
    command = [sys.executable, "-I", "-S", "-c", program, str(folder / "run.py"), *args]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, cwd="/")


def test_a_prepared_folder_is_whole_and_needs_nothing_else(prepared: Path) -> None:
    done = _alone(prepared, "--dry-run")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("2 cases, ")
    manifest = json.loads((prepared / "manifest.json").read_text())
    assert [case["name"] for case in manifest["cases"]] == sorted(CHOSEN, reverse=True)
    assert {path.name for path in prepared.iterdir()} >= {"run.py", "cases.py", "manifest.json", "ptxc", "expected"}
    assert manifest["cases"][1]["features"] == ["tma"]
    assert "release" in manifest["tools"]["nvcc"] or "cuda_" in manifest["tools"]["nvcc"]


def test_without_a_gpu_it_says_so(prepared: Path, fake_gpu: Path) -> None:
    done = _python(SCRIPTS / "run.py", "--folder", prepared, FAKE_GPU="none")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "run.py: no GPU to run on: cuInit: CUDA_ERROR_NO_DEVICE: no device\n"


def test_damage_is_found(prepared: Path, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    for damage, said in (
        (lambda: (folder / CHOSEN[0] / "ptxc.0.cubin").write_bytes(b""), "is not the file that was prepared"),
        (lambda: (folder / CHOSEN[0] / "nvcc.1.ptx").unlink(), "cannot be read: No such file"),
        (lambda: (folder / "manifest.json").write_text("{"), "manifest.json cannot be read: "),
        (lambda: _change(folder, lambda case: case["buffers"]["x"]["fill"].update(seed=1)), "x does not come out as"),
        (lambda: _change(folder, _swap_arguments), "parameters have [8, 8] bytes, the arguments [8, 4]"),
        (lambda: _change(folder, lambda case: _launch(case).update(block=[2048, 1, 1])), "no GPU takes"),
        (lambda: _change(folder, lambda case: _launch(case).update(entry="other")), "the PTX has no such entry"),
    ):
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(prepared, folder)
        damage()
        done = _python("-I", folder / "run.py", "--dry-run", "--only", CHOSEN[0])
        assert done.returncode == 2
        assert said in done.stderr
        assert done.stderr.startswith("run.py: ")


def _change(folder: Path, change: Any) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    (case,) = (case for case in manifest["cases"] if case["name"] == CHOSEN[0])
    change(case)
    (folder / "manifest.json").write_text(json.dumps(manifest))


def _launch(case: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = case["builds"]["ptxc"]["launches"][0]
    return found


def _swap_arguments(case: dict[str, Any]) -> None:
    _launch(case)["arguments"][1] = ["value", "00000000"]


def test_both_builds_are_checked_and_timed(prepared: Path, fake_gpu: Path, tmp_path: Path) -> None:
    results = tmp_path / "results.json"
    options = ("--folder", prepared, "--ptx", "--only", CHOSEN[0], "--json", results)
    done = _python(SCRIPTS / "run.py", *options)
    assert (done.returncode, done.stderr) == (0, "")
    report = json.loads(results.read_text())
    assert report["gpu"]["name"] == "Fake GPU"
    assert report["summary"]["right"] == report["summary"]["timed"] == 1
    (case,) = report["cases"]
    assert case["right"]
    for build in ("ptxc", "nvcc"):
        assert case["builds"][build]["us"] == pytest.approx(1.0)  # the fake's events are a microsecond apart
        assert case["builds"][build]["error"] < 1e-5
    # Each build once, then the samples in turn: both kernels of one between two events, then of the other.
    launched = [line.split()[1] for line in fake_gpu.read_text().splitlines() if line.startswith("launch")]
    assert len(launched) == 4 + 4 * (len(case["builds"]["ptxc"]["samples_us"]) + 3)


def test_a_hanging_kernel_and_an_empty_budget(
    prepared: Path, fake_gpu: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = tmp_path / "results.json"
    monkeypatch.setenv("FAKE_GPU", "hang")
    options = ("--folder", prepared, "--ptx", "--json", results, "--budget", "0.5")
    done = _python(SCRIPTS / "run.py", *options)
    assert done.returncode == 1, done.stderr
    first, second = json.loads(results.read_text())["cases"]
    assert first["builds"]["ptxc"]["message"] == "the launch did not end within 1 s"
    assert not first["left_out"]
    assert second["left_out"]
    assert first["ratio"] is None


def test_inputs_are_the_same_everywhere() -> None:
    assert cases.hashed(7, 3).tolist() == [_hashed(7, at) for at in range(3)]
    found = cases.contents({"dtype": "f16", "shape": [2, 3], "fill": {"kind": "numbers", "seed": 1, "width": 0.5}})
    assert found.dtype == np.float16
    assert np.abs(found).max() <= 0.5
    assert cases.rounded(np.array([1.0, 1.00390625, 1.01171875], np.float32)).tolist() == [0x3F80, 0x3F80, 0x3F82]


def _hashed(seed: int, at: int) -> int:
    """The formula in integers of any size."""
    word = at + seed * 0x9E3779B9 & 0xFFFFFFFF
    word = (word ^ word >> 16) * 0x7FEB352D & 0xFFFFFFFF
    word = (word ^ word >> 15) * 0x846CA68B & 0xFFFFFFFF
    return word ^ word >> 16


def test_a_wrong_element_is_named() -> None:
    entry = {"outputs": {"y": {"file": "", "dtype": "f32", "tolerance": 1e-3, "absolute": 0.0}}, "name": "k"}
    case = cases.Case(Path(), entry)
    result = run.Result(case)
    good, bad = np.ones(4, np.float32), np.array([1, 1, 1.01, np.nan], np.float32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cases.Case, "expected", lambda *_: (np.arange(4), np.ones(4)))
        run._compare(result, "nvcc", {"y": good})
        run._compare(result, "ptxc", {"y": bad})
    assert result.messages == {"ptxc": "2 of 4 elements are wrong: y[3] is nan, not 1"}
    run._compare_builds(result, {"ptxc": {"y": bad}, "nvcc": {"y": good}})
    assert result.messages["both"] == "y[3] is nan by ptxc and 1 by nvcc"


def test_the_choice_is_the_15_problems_and_at_least_30_kernels(shared: Path) -> None:
    problems = {item.name.partition(".")[0] for item in prepare.problems()}
    assert len(problems) == 15
    kernels = list(prepare.corpus())
    assert len(kernels) >= 30
    assert all(item.files[0].exists() for item in (*prepare.problems(), *kernels))
