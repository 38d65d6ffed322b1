"""Candidates that misbehave: each gets its own error, whatever executor runs it, and the rest are compiled."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from batch_lab import misbehave, vector_add

from ptxc.batching import Candidate, Limits, batch, results
from ptxc.batching.candidates import task_of
from ptxc.batching.job import build
from ptxc.compilation import Options
from ptxc.errors import UsageError, WriteError

LIMITS = Limits(4.0, 300 << 20)

#: Names, each with the status and the type of the error.
EXPECTED = {
    "loop:": ("timeout", "TimeLimitError"),
    "stuck:": ("timeout", "TimeLimitError"),
    "hog:": ("memory", "MemoryLimitError"),
    "killed:": ("memory", "MemoryLimitError"),
    "segfault:": ("crash", "CrashError"),
    "exit:": ("crash", "CrashError"),
    "fault:": ("error", "InternalError"),
    **{f"fine {number}": ("ok", "") for number in range(4)},
}


@contextmanager
def threads() -> Iterator[Executor]:
    with ThreadPoolExecutor(2) as executor:
        yield executor


@contextmanager
def processes() -> Iterator[Executor]:
    with ProcessPoolExecutor(2, get_context("spawn")) as executor:
        yield executor


@contextmanager
def dask() -> Iterator[Executor]:
    distributed = pytest.importorskip("distributed")
    settings = {"n_workers": 1, "threads_per_worker": 2, "dashboard_address": ":0"}
    with distributed.LocalCluster(**settings) as made, distributed.Client(made, set_as_default=False) as client:
        yield client.get_executor(pure=False)


@contextmanager
def nothing() -> Iterator[None]:
    yield None


@pytest.mark.parametrize("executor", [nothing, threads, processes, dask])
def test_each_bad_candidate_gets_its_own_error(executor: type[Iterator[Executor | None]], tmp_path: Path) -> None:
    candidates = [Candidate(vector_add(64 * number + 1), {}, name) for number, name in enumerate(EXPECTED)]
    with executor() as given:  # type: ignore[attr-defined]
        summary = batch(candidates, tmp_path, executor=given, jobs=2, limits=LIMITS, job=misbehave)
    found = {r["input"]: (r["status"], r["error"]["type"] if "error" in r else "") for r in results(tmp_path)}
    assert found == EXPECTED
    assert (summary.ok, summary.failed) == (4, 7)
    assert summary.failures == {"timeout": 2, "memory": 2, "crash": 2, "error": 1}


def test_files_that_cannot_be_written_for_want_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    fault = OSError(errno.ENOMEM, "Cannot allocate memory")
    monkeypatch.setattr("ptxc.store.assemblies.assemble_kept", mock.Mock(side_effect=_caused(fault)))
    with pytest.raises(MemoryError):
        build(task_of(vector_add(64), 0, Options(cache=False), True, ""))


def _caused(fault: OSError) -> WriteError:
    error = WriteError("cannot write temporary files")
    error.__cause__ = fault
    return error


def test_limits_that_are_none() -> None:
    wrong: list[tuple[Any, Any]] = [(0.0, 1 << 30), (-1.0, 1 << 30), (float("nan"), 1 << 30), (1.0, 0), (1.0, 1 << 20)]
    for seconds, memory in (*wrong, ("1", 1 << 30), (True, 1 << 30), (None, 1 << 30), (1.0, 1e9), (1.0, "4G")):
        with pytest.raises(UsageError):
            Limits(seconds, memory)
