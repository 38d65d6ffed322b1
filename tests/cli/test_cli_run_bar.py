"""The bar that shows how far `ptxc run` is, and what it is told."""

from __future__ import annotations

import contextlib
import os
import pty
import subprocess
import sys
from contextlib import contextmanager
from typing import Any

import pytest
from cli_lab import DATA, environment, ptxc
from conftest import ROOT

from ptxc import driver
from ptxc.cli import launching
from ptxc.reference import execution
from ptxc.reference.buffers import problem_of
from ptxc.reference.steps import steps_of

ANY_SIZE = DATA / "any_size.json"


def test_a_bar_shows_how_far_a_long_run_is(monkeypatch: pytest.MonkeyPatch) -> None:
    shares: list[float] = []

    @contextmanager
    def bar(what: str) -> Any:
        assert what == "running"
        yield shares.append

    monkeypatch.setattr(launching, "share", bar)
    monkeypatch.setattr(launching, "_PATIENCE", 0.0)
    assert ptxc("run", ANY_SIZE, "--set", "n=40000").status == 0
    assert shares == []  # there is no terminal
    monkeypatch.setattr(launching, "is_shown", lambda: True)
    assert ptxc("run", ANY_SIZE, "--set", "n=40000").status == 0
    assert shares == sorted(shares)
    assert len(shares) == 3
    assert shares[-1] == 1.0
    monkeypatch.setattr(launching, "_PATIENCE", 60.0)
    shares.clear()
    assert ptxc("run", ANY_SIZE, "--set", "n=40000").status == 0
    assert shares == []


def test_a_bar_moves_within_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first batch says no more than that it runs; those after it are measured by it."""
    kernel = ROOT / "golden" / "norm_matmul" / "kernel.ir.json"
    monkeypatch.setattr("ptxc.sim.device.BATCH_THREADS", 64)
    monkeypatch.setattr("ptxc.sim.scheduler.TICK", 50)
    (compiled,) = driver.compile(kernel)
    told: list[tuple[float, int]] = []
    steps = steps_of([compiled])
    arrays = problem_of(steps, {}, {}).arrays()
    modules = execution.load({compiled.name: compiled.ptx})
    execution.execute(modules, steps, arrays, {}, execution.Settings(), lambda *at: told.append(at))
    shares = [done / total for done, total in told]
    assert shares == sorted(shares)
    assert [done for done, _ in told if done == int(done)] == [0] * (len([s for s in shares if not s])) + [1, 2, 3, 4]
    assert len([done for done, _ in told if 1 < done < 2]) >= 3
    assert shares.count(0) >= 3


def test_the_bar_on_a_terminal() -> None:
    """A process whose standard error is a terminal shows the bar, and the report is on standard output alone."""
    parent, child = pty.openpty()
    code = "import ptxc.cli.launching as l; l._PATIENCE = 0.0; from ptxc.cli import main; import sys; sys.exit(main())"
    args = [sys.executable, "-c", code, "run", str(ANY_SIZE), "--set", "n=400000"]
    with subprocess.Popen(args, stdout=subprocess.PIPE, stderr=child, env=environment(TERM="xterm")) as running:
        os.close(child)
        assert running.stdout is not None
        shown = b""
        with contextlib.suppress(OSError):  # the terminal is closed at the end
            while part := os.read(parent, 4096):
                shown += part
        out = running.stdout.read()
    os.close(parent)
    assert running.returncode == 0
    assert b"running" in shown
    assert b"100%" in shown
    assert out.endswith(b"no findings (memory, race, init, sync)\n")
