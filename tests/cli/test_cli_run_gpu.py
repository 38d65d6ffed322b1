"""`ptxc run` and `ptxc verify` with `--device cuda`: on the fake driver, and without any."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from cli_lab import COPIES, DATA, ROW_MAX, TWO_KERNELS, VECTOR_ADD, ptxc
from conftest import ROOT

GPU = ("--device", "cuda")


def test_a_run_on_a_gpu_says_who_executed_and_gives_the_same(fake_gpu: Path, tmp_path: Path) -> None:
    here, there = tmp_path / "here.npz", tmp_path / "there.npz"
    assert ptxc("run", TWO_KERNELS, "-o", here).status == 0
    result = ptxc("run", TWO_KERNELS, *GPU, "-o", there)
    assert (result.status, result.err) == (0, "")
    assert re.search(r"^kernel +grid +block +CTAs run +median µs$", result.out, re.MULTILINE)
    assert result.out.splitlines()[-1] == "executed by Fake GPU"
    with np.load(here) as expected, np.load(there) as found:
        assert all((expected[name] == found[name]).all() for name in expected.files)
    assert ptxc("run", TWO_KERNELS, *GPU, "--expect", here).out.endswith("right, executed by Fake GPU\n")


def test_times_are_shown(fake_gpu: Path) -> None:
    result = ptxc("run", VECTOR_ADD, *GPU, "--repeat", 5)
    assert re.search(r"^k_z_pointwise +4 +256 +4 +1\.00$", result.out, re.MULTILINE)
    report = json.loads(ptxc("run", VECTOR_ADD, *GPU, "--repeat", 5, "--json").out)
    assert report["device"] == "Fake GPU"
    assert report["kernels"][0]["microseconds"] == pytest.approx([1.0] * 5)


def test_code_is_made_for_the_gpu_unless_a_target_is_named(fake_gpu: Path, tmp_path: Path) -> None:
    ptx, launch = tmp_path / "k.ptx", tmp_path / "k.json"
    assert ptxc("compile", ROW_MAX, "-o", ptx, "--launch-json", launch).status == 0
    assert ptxc("run", ptx, "--launch", launch, *GPU).status == 0
    assert ptxc("run", COPIES, *GPU).status == 0
    assert ptxc("run", COPIES, *GPU, "--target", "sm_80").status == 0
    result = ptxc("run", ROOT / "golden" / "tma_matmul_dynamic" / "kernel.ir.json", *GPU)  # needs sm_90
    assert result.status == 0, result.err


def test_verifying_on_a_gpu(fake_gpu: Path) -> None:
    result = ptxc("verify", VECTOR_ADD, *GPU, "--no-nvcc")
    assert (result.status, result.err) == (0, "")
    assert re.search(r"^ptxc +PTX on Fake GPU$", result.out, re.MULTILINE)
    assert result.out.endswith("right\n")


def test_a_hanging_kernel_is_one_line(fake_gpu: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_GPU", "hang")
    message = ptxc("run", VECTOR_ADD, *GPU, "--deadline", 0.3).message
    assert ": k_z_pointwise: the launch did not end within 0.3 s; the kernel hangs, or needs a longer" in message


@pytest.mark.parametrize("command", ["run", "verify"])
def test_no_gpu_is_one_line(command: str, fake_gpu: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_GPU", "none")
    message = ptxc(command, VECTOR_ADD, *GPU).message
    assert message.startswith(
        "ptxc: error: there is no GPU to use (cuInit: CUDA_ERROR_NO_DEVICE: no device); `nvidia-smi`"
    )


@pytest.mark.parametrize("command", ["run", "verify"])
def test_no_driver_is_one_line(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "cuda" / "bindings"
    package.mkdir(parents=True)
    for folder in (package.parent, package):
        (folder / "__init__.py").touch()
    # As cuda-bindings does where it finds no libcuda.
    (package / "driver.py").write_text("def cuInit(flags):\n    raise RuntimeError('libcuda.so.1 is\\nnot there.')\n")
    monkeypatch.syspath_prepend(tmp_path)
    message = ptxc(command, VECTOR_ADD, *GPU).message
    what = "there is no NVIDIA driver: libcuda.so.1 was looked for (libcuda.so.1 is not there); install NVIDIA's driver"
    assert message.startswith(f"ptxc: error: {what}")
    assert message.endswith("--device cpu, ptxc.device('cpu')")


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ((*GPU, "--profile"), "a GPU has no --profile; leave it out, or use the CPU device"),
        ((*GPU, "--ctas", "3"), "a GPU has no --ctas; leave it out, or use the CPU device"),
        ((*GPU, "--sanitize", "race"), "a GPU has no --sanitize; leave it out, or use the CPU device"),
        ((*GPU, "--max-steps", "3"), "a GPU has no --max-steps; leave it out, or use the CPU device"),
        (("--repeat", "3"), "--repeat changes nothing on the CPU device; it is for --device cuda"),
        (("--deadline", "3"), "--deadline changes nothing on the CPU device; it is for --device cuda"),
        (("--deadline", "0"), "--deadline: '0' is no time; give seconds such as 10; see `ptxc run --help`"),
        (("--device", "gpu"), "--device: no 'gpu'; "),
    ],
)
def test_options_that_do_not_fit(options: tuple[str, ...], what: str) -> None:
    assert ptxc("run", DATA / "vector_add.json", *options).message.startswith(f"ptxc: error: {what}")
