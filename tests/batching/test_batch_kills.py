"""Batches that are killed, and workers that are: nothing is lost, nothing done twice.

With PTXC_WHOLE_CORPUS set the candidates are 2,000 schedules of the corpus, assembled too where there is a ptxas.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import batch_corpus
import pytest
from batch_lab import vector_add
from conftest import SHARED

from ptxc.batching import results
from ptxc.errors import ToolchainError
from ptxc.toolchain import find_ptxas

WHOLE = bool(os.environ.get("PTXC_WHOLE_CORPUS")) and SHARED.is_dir()
COUNT = 2000 if WHOLE else 60
SCRIPT = Path(__file__).with_name("batch_script.py")

#: Candidates that the rest must not notice, and what becomes of each.
BAD = {"loop:": "timeout", "hog:": "memory", "segfault:": "crash"}

pytestmark = pytest.mark.timeout(7200 if WHOLE else 300)


@pytest.fixture(scope="module")
def candidates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """JSON lines, the bad ones among them."""
    path = tmp_path_factory.mktemp("candidates") / "candidates.jsonl"
    if WHOLE:
        batch_corpus.write(COUNT, path)
    else:
        path.write_text("".join(json.dumps({"graph": vector_add(64 * n + 1)}) + "\n" for n in range(COUNT)))
    lines = path.read_text().splitlines()
    for number, name in enumerate(BAD):
        lines.insert((number + 1) * COUNT // 5, json.dumps({"graph": vector_add(32 * number + 7), "name": name}))
    path.write_text("\n".join(lines) + "\n")
    return path


class Run:
    """A batch in a process of its own."""

    def __init__(self, candidates: Path, out: Path, *more: str) -> None:
        self.out, self.log = out, out.with_suffix(".log")
        self.mark = os.urandom(8).hex()
        environment = {**os.environ, "BATCH_MARK": self.mark}
        environment["PYTHONPATH"] = os.pathsep.join([str(SCRIPT.parent), os.environ.get("PYTHONPATH", "")])
        with suppress(ToolchainError):
            environment |= {"BATCH_ASSEMBLE": "1", "BATCH_SECONDS": "90"} if WHOLE and find_ptxas() else {}
        command = [sys.executable, str(SCRIPT), str(candidates), str(out), str(self.log), *more]
        self.process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)

    def wait_for(self, count: int) -> None:
        """Until there are so many results."""
        while self.count() < count:
            assert self.process.poll() is None, "it ended too early"
            time.sleep(0.02)

    def count(self) -> int:
        path = self.out / "results.jsonl"
        return path.read_bytes().count(b"\n") if path.exists() else 0

    def kill(self) -> None:
        """Kill the process; its workers and what they run end by themselves."""
        self.process.send_signal(signal.SIGKILL)
        self.process.communicate()
        deadline = time.monotonic() + 30
        while left := self.left():
            assert time.monotonic() < deadline, f"processes are left: {left}"
            time.sleep(0.1)

    def left(self) -> list[str]:
        """The command lines of this batch's processes."""
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if self.mark.encode() in (process / "environ").read_bytes():
                    found.append((process / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        return found

    def finish(self) -> str:
        said, _ = self.process.communicate()
        assert self.process.returncode == 0
        return said


def without_times(out: Path) -> dict[str, dict[str, Any]]:
    """Results by input; each has one."""
    found = [{k: v for k, v in record.items() if k != "seconds"} for record in results(out)]
    assert len({record["input"] for record in found}) == len(found)
    return {record["input"]: record for record in found}


def check(out: Path, expected: dict[str, dict[str, Any]]) -> None:
    """The results are all there, once, and are those expected."""
    assert (out / "results.jsonl").read_bytes().count(b"\n") == len(expected)
    assert without_times(out) == expected
    made = {name for record in expected.values() for name in (record.get("ptx"), record.get("cubin")) if name}
    assert {path.name for path in out.iterdir()} - {"results.jsonl"} == made


@pytest.fixture(scope="module")
def expected(candidates: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """The results of a batch that nobody disturbs."""
    run = Run(candidates, tmp_path_factory.mktemp("whole") / "out")
    print(run.finish())
    found = without_times(run.out)
    assert len(found) == COUNT + len(BAD)
    assert {name: found[name]["status"] for name in BAD} == BAD
    assert {record["status"] for name, record in found.items() if name not in BAD} == {"ok"}
    assert len({record["key"] for record in found.values()}) == len(found), "all are distinct"
    return found


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="processes are looked for in /proc")
def test_a_batch_that_is_killed_twice_goes_on(
    candidates: Path, expected: dict[str, dict[str, Any]], tmp_path: Path
) -> None:
    chance = random.Random(3)
    out = tmp_path / "out"
    done: set[str] = set()
    begun: list[str] = []
    for share in (chance.uniform(0.1, 0.4), chance.uniform(0.5, 0.9)):
        run = Run(candidates, out)
        run.wait_for(int(share * COUNT))
        run.kill()
        done = {record["candidate"] for record in results(out)}
        assert len(done) >= int(share * COUNT)
        begun = run.log.read_text().split()
    again = Run(candidates, out)
    print(again.finish())
    after = again.log.read_text().split()[len(begun) :]
    assert len(after) == len(set(after)) == len(expected) - len(done)
    assert not done & set(after), "done twice"
    check(out, expected)


def test_workers_of_the_pool_that_die_are_replaced(
    candidates: Path, expected: dict[str, dict[str, Any]], tmp_path: Path
) -> None:
    run = Run(candidates, tmp_path / "out")
    for share in (0.2, 0.5):
        run.wait_for(int(share * COUNT))
        children = Path(f"/proc/{run.process.pid}/task/{run.process.pid}/children").read_text().split()
        workers = [pid for pid in children if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()]
        os.kill(int(workers[0]), signal.SIGKILL)
    print(run.finish())
    check(run.out, expected)


@contextmanager
def cluster() -> Iterator[tuple[str, list[int]]]:
    """The address of a Dask cluster's scheduler, and its two workers' processes."""
    distributed = pytest.importorskip("distributed")
    settings = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": ":0", "silence_logs": 50}
    with distributed.LocalCluster(**settings) as made, distributed.Client(made, set_as_default=False) as client:
        yield made.scheduler_address, list(client.run(os.getpid).values())


def test_dask_survives_a_worker_that_is_killed(
    candidates: Path, expected: dict[str, dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(SCRIPT.parent), prepend=os.pathsep)
    with cluster() as (address, workers):
        run = Run(candidates, tmp_path / "out", address)
        run.wait_for(COUNT // 2)
        os.kill(workers[0], signal.SIGKILL)
        print(run.finish())
    check(run.out, expected)
