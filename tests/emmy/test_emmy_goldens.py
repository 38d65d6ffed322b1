"""`ptxc emmy compile` of recorded schedules beside Emmy's own: the same launches, and PTX that ptxas takes."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from emmy.emmy import main as emmys_main
from emmy_lab import GOLDENS, cuda_ops, emmys_command_line, golden_file

from ptxc.cli import main
from ptxc.emmy.build import named_target
from ptxc.toolchain import assemble

#: What Emmy's launcher is told of a kernel.
LAUNCH = (
    "kernel_name", "arg_order", "runtime_args", "grid", "block", "smem_bytes", "zero_outputs", "zero_prologues",
    "tma_descriptors", "serial", "indirect_args", "knobs",
)  # fmt: skip


@pytest.fixture(autouse=True)
def quiet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Emmy's tuning database and its log are this test's."""
    monkeypatch.setenv("EMMY_TUNE_DB", str(tmp_path / "tune.db"))
    root = logging.getLogger()
    level, handlers = root.level, root.handlers[:]
    yield
    root.setLevel(level)
    root.handlers[:] = handlers


@pytest.mark.needs("ptxas")
@pytest.mark.parametrize(("card", "realization"), GOLDENS)
def test_a_recorded_schedule_is_launched_alike(
    card: str, realization: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = f"sm_{card.rpartition('sm')[2]}"
    path = golden_file(card, realization, tmp_path)
    told = ["compile", "--golden", str(path), "--realization", realization, "--target", target]
    with emmys_command_line(monkeypatch, *told) as shown:
        emmys_main()  # type: ignore[no-untyped-call]
        assert main(["emmy", *told]) == 0
    theirs, ours = map(cuda_ops, shown)
    assert len(theirs) == len(ours) > 0
    for cuda, ptx in zip(theirs, ours, strict=True):
        assert "__global__" in cuda.kernel_source
        for name in LAUNCH:
            assert getattr(cuda, name) == getattr(ptx, name), name
        assembled = assemble(ptx.kernel_source, named_target(ptx.kernel_source))
        assert named_target(ptx.kernel_source) in (target, f"{target}a")
        (resources,) = assembled.kernels.values()
        static = ptx.smem_bytes if ptx.smem_bytes <= 48 * 1024 else 0
        assert resources.shared >= static
