"""`ptxc batch`: the command around `ptxc.batch`."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest
from cli_lab import KERNELS, TWO_KERNELS, VECTOR_ADD, command, environment, process, ptxc
from test_cli_process import on_terminal

from ptxc.batching import results


def test_a_folder_to_results(tmp_path: Path) -> None:
    done = process("batch", VECTOR_ADD.parent, "--out", "built", "--jobs", "2", "--target", "sm_90", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == b""
    said = rf"ptxc: {len(KERNELS)} candidates: {len(KERNELS)} compiled, 0 failed; [\d.]+ s, [\d.]+/s; results in built/"
    assert re.match(said, done.stderr.decode())
    found = results(tmp_path / "built")
    assert {record["input"] for record in found} == set(map(str, KERNELS))
    assert {record["status"] for record in found} == {"ok"}
    assert [record["kernels"] for record in found if record["input"] == str(TWO_KERNELS)] == [2, 2]
    for record in found:
        assert (tmp_path / "built" / record["ptx"]).read_text().count(f".entry {record['kernel']}(") == 1
    again = process("batch", VECTOR_ADD.parent, "--out", "built", "--target", "sm_90", cwd=tmp_path)
    assert f"{len(KERNELS)} of them in earlier runs" in again.stderr.decode()


def test_lines_from_standard_input_and_a_failure(tmp_path: Path) -> None:
    said = [
        {"file": str(VECTOR_ADD), "target": "sm_80"},
        {"file": "absent.json"},
        {"graph": {"nodes": {}}, "name": "no"},
    ]
    text = "\n".join(map(json.dumps, said)).encode()
    done = process("batch", "-", "--out", "built", "--jobs", "1", cwd=tmp_path, stdin=text)
    assert done.returncode == 1
    assert b"1 compiled, 2 failed (2 by errors)" in done.stderr
    found = {record["input"]: record for record in results(tmp_path / "built")}
    assert found["<stdin>:1"]["target"] == "sm_80"
    assert {found[name]["error"]["type"] for name in ("<stdin>:2", "no")} == {"InputError"}


def test_why_the_first_failed_is_said(tmp_path: Path) -> None:
    done = process("batch", "nope", "--out", "out", "--jobs", "1", cwd=tmp_path)
    error, summary = done.stderr.decode().splitlines()
    assert error.startswith("ptxc: error: nope: cannot read the file: No such file or directory; ")
    assert summary.startswith("ptxc: 1 candidate: 0 compiled, 1 failed (1 by errors); ")
    again = process("batch", "nope", "k*.json", "--out", "out", "--jobs", "1", cwd=tmp_path).stderr.decode()
    assert again.splitlines()[0] == f"{error} (the first that failed)"
    assert "1 of them in earlier runs" in again


def test_a_bar_on_a_terminal(tmp_path: Path) -> None:
    absent = tmp_path / "absent.json"
    status, shown = on_terminal("batch", *KERNELS[:3], absent, "--out", tmp_path / "out", "--jobs", 1, cwd=tmp_path)
    assert status == 1
    assert "4/4" in shown
    assert "1 failed" in shown
    assert re.search(r"\d/s", shown)
    assert "left" in shown


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--out", "x"], "no input is given"),
        ([VECTOR_ADD], "the following arguments are required: --out"),
        (["-", "-", "--out", "x"], "standard input is given twice"),
        ([VECTOR_ADD, "--out", "x", "--time-limit", "soon"], "'soon' is no time"),
        ([VECTOR_ADD, "--out", "x", "--time-limit", "-1"], "-1.0 is no time limit"),
        ([VECTOR_ADD, "--out", "x", "--memory-limit", "much"], "'much' is no size"),
        ([VECTOR_ADD, "--out", "x", "--memory-limit", "1M"], "a memory limit of 1048576 bytes is too small"),
        ([VECTOR_ADD, "--out", "x", "--jobs", "0"], "'0' is no number of kernels"),
        ([VECTOR_ADD, "--out", "x", "--jobs", "2", "--scheduler", "tcp://h:1"], "--jobs changes nothing"),
        ([VECTOR_ADD, "--out", "x", "--check", ""], "--check: it is empty"),
        ([VECTOR_ADD, "--out", "x", "--check", "2,2"], "CTA 2 is given twice"),
        ([VECTOR_ADD, "--out", "x", "--scheduler", ""], "--scheduler: it is empty"),
        ([VECTOR_ADD, "--out", VECTOR_ADD], "cannot write to the folder"),
        (["absent.jsonl", "--out", "x"], "absent.jsonl: cannot read the file"),
    ],
)
def test_usage(arguments: list[object], message: str, tmp_path: Path) -> None:
    assert message in ptxc("batch", *arguments, cwd=tmp_path).message


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:9", "foo", "foo://h:1", "tcp://h:one", "tls://127.0.0.1:9"])
def test_a_scheduler_that_is_not_there(address: str, tmp_path: Path) -> None:
    pytest.importorskip("distributed")
    done = process("batch", VECTOR_ADD, "--out", "x", "--scheduler", address, cwd=tmp_path,
                   DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT="2s")  # fmt: skip
    assert done.returncode == 2
    (message,) = done.stderr.decode().splitlines()
    assert message.startswith(f"ptxc: error: there is no Dask scheduler at {address}: ")
    assert "give the address that `dask scheduler` prints" in message


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_batch_goes_on(number: signal.Signals, tmp_path: Path) -> None:
    # The second candidate comes when the first has been compiled, the end never.
    arguments = command("batch", "-", "--out", "out", "--jobs", "1")
    line = json.dumps({"file": str(VECTOR_ADD)}).encode() + b"\n"
    pipes = {"stdin": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(arguments, cwd=tmp_path, env=environment(), **pipes) as running:  # type: ignore[call-overload]
        running.stdin.write(line + json.dumps({"file": str(TWO_KERNELS)}).encode() + b"\n")
        running.stdin.flush()
        deadline = time.monotonic() + 60
        while not (tmp_path / "out/results.jsonl").exists():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        running.send_signal(number)
        said = running.stderr.read().decode()
    # Python kills itself if Ctrl-C met what `exec` runs, which imports do (dataclasses); a shell sees no difference.
    assert running.returncode in (128 + number, -number)
    assert ("the same command goes on from there" in said) == (number == signal.SIGINT)
    assert "Traceback" not in said
    done = process("batch", "-", "--out", "out", "--jobs", "1", cwd=tmp_path, stdin=line)
    assert done.returncode == 0
    assert {record["status"] for record in results(tmp_path / "out")} == {"ok"}
