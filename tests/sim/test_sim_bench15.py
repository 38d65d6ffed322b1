"""nvcc's PTX of the benchmark kernels, executed with every check on, against values that no lowering has touched.

It shows that the CPU device tells the truth about text that ptxc did not write. A sample, so that it takes seconds;
``PTXC_WHOLE_CORPUS=1`` takes every kernel that has a reference.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ptx_lab import Array

from ptxc.device import device
from ptxc.sim.findings import CHECKS

TARGET = "sm_89"
PER_PROBLEM = 2
TOLERANCE = 1e-5
DTYPES = {"f32": np.float32, "f16": np.float16, "i32": np.int32, "i64": np.int64, "bool": np.bool_}


@dataclass(frozen=True)
class Case:
    """One variant: its kernels in launch order, each as JSON, PTX and metadata."""

    name: str
    kernels: list[Path]
    reference: Path


def chosen(bench: Path) -> list[dict[str, Any]]:
    """The launches to run: of each problem a few, spread over its sizes and variants."""
    manifest = json.loads((bench / "MANIFEST.json").read_text())
    core = {f["file"] for f in manifest["files"] if f["core"] or f["problem"] == "x04_scan"}
    by_problem: dict[str, list[dict[str, Any]]] = {}
    for launch in manifest["launches"]:
        reference = bench / "ref" / f"{launch['problem']}.{launch['size']}.npz"
        if launch["target"] == TARGET and set(launch["sequence"]) <= core and reference.is_file():
            by_problem.setdefault(launch["problem"], []).append(launch)
    if os.environ.get("PTXC_WHOLE_CORPUS") == "1":
        return [launch for launches in by_problem.values() for launch in launches]
    step = {problem: max(len(launches) // PER_PROBLEM, 1) for problem, launches in by_problem.items()}
    return [
        launch for problem, launches in by_problem.items() for launch in launches[step[problem] // 2 :: step[problem]]
    ]


@pytest.fixture(scope="session")
def cases(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Case]:
    """The sample, rendered by Emmy and compiled by nvcc in one go."""
    bench, folder = shared / "bench15", tmp_path_factory.mktemp("bench15")
    found, files = [], []
    for number, launch in enumerate(chosen(bench)):
        kernels = []
        for file in launch["sequence"]:
            copy = folder / f"{number:04}.{Path(file).name}"
            shutil.copy(bench / file, copy)
            shutil.copy((bench / file).with_suffix(".meta.json"), copy.with_suffix(".bench.json"))
            kernels.append(copy)
        files += kernels
        reference = bench / "ref" / f"{launch['problem']}.{launch['size']}.npz"
        found.append(Case(f"{launch['problem']}.{launch['size']}.{launch['variant']}", kernels, reference))
    script = shared / "tools" / "emmy_reference.py"
    command = [sys.executable, str(script), *map(str, files), "--target", TARGET, "--ptx", "--out", str(folder)]
    subprocess.run(command, check=True, capture_output=True)
    return found


def extent(text: Any, bindings: dict[str, int]) -> int:
    """An extent that may be an expression over runtime sizes."""
    return int(eval(str(text), {}, dict(bindings)))


def execute(case: Case) -> tuple[dict[str, Array], list[str]]:
    """The buffers after all launches of ``case``, and what the checks found."""
    reference = np.load(case.reference)
    bindings = {name[5:]: int(reference[name]) for name in reference.files if name.startswith("bind_")}
    buffers = {
        name.split("_", 1)[1]: np.array(reference[name])
        for name in reference.files
        if name.startswith(("in_", "const_"))
    }
    cpu, found = device("cpu"), []
    for file in case.kernels:
        stem = file.name.removesuffix(".json")
        meta = json.loads(file.with_name(f"{stem}.meta.json").read_text())
        for argument in json.loads(file.with_name(f"{stem}.bench.json").read_text())["args"]:
            if argument["kind"] == "constant" and argument["name"] not in buffers:
                value = argument.get("value")
                buffers[argument["name"]] = np.array([bindings["k"] if value is None else value])
        args: list[Any] = []
        for argument in meta["args"]:
            shape = [extent(n, bindings) for n in argument["shape"]]
            array = buffers.setdefault(argument["name"], np.zeros(shape))
            buffers[argument["name"]] = np.ascontiguousarray(array, DTYPES[argument["dtype"]])
            args.append(buffers[argument["name"]])
        for name in meta["zero_outputs"]:
            buffers[name][...] = 0
        text = file.with_name(f"{stem}.ptx").read_text()
        result = cpu.load(text).launch(
            meta["kernel_name"],
            [extent(n, bindings) for n in meta["grid"]],
            meta["block"],
            [*args, *(bindings[name] for name in meta["runtime_args"])],
            shared=meta["smem_bytes"] if "extern .shared" in text else 0,
            sanitize=CHECKS,
        )
        found += [f"{case.name}: {finding}" for finding in result.findings]
    return buffers, found


@pytest.mark.needs("nvcc")
def test_nvcc_ptx_of_the_benchmark_kernels(cases: list[Case]) -> None:
    assert len(cases) >= 20
    wrong = []
    for case in cases:
        buffers, found = execute(case)
        wrong += found
        reference = np.load(case.reference)
        for name in reference.files:
            if name.startswith("out64_"):
                want = reference[name]
                got = buffers[name.removeprefix("out64_")].astype(np.float64).reshape(want.shape)
                error = np.abs(got - want).max() / max(np.abs(want).max(), 1e-30)
                if not error < TOLERANCE:
                    wrong.append(f"{case.name}: {name} differs by {error:.2e}")
    assert not wrong, "\n".join(wrong)
