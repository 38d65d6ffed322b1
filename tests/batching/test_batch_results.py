"""What a batch reads and writes: inputs, keys, duplicates, the journal."""

from __future__ import annotations

import gzip
import json
import os
import re
from collections.abc import Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from batch_lab import logged, vector_add
from conftest import ROOT
from emmy.compiler.graph import Graph

import ptxc
from ptxc.batching import Candidate, Summary, batch, results
from ptxc.batching.candidates import STDIN, candidates_in, count, task_of
from ptxc.batching.job import Built, build, failed
from ptxc.batching.journal import Journal
from ptxc.batching.warm import GRAPH
from ptxc.compilation import Options
from ptxc.driver import graph_of
from ptxc.errors import CrashError, InputError, UsageError
from ptxc.store import Store

GOLDEN = ROOT / "golden"


class Here(Executor):
    """Runs what is submitted at once, in this thread."""

    def submit(self, function: Any, /, *args: Any, **more: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(function(*args, **more))
        return future


@pytest.fixture(scope="module")
def executor() -> Iterator[Executor]:
    with ThreadPoolExecutor(1) as made:
        yield made


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]


# ---------------------------------------------------------------------------------------------------------- inputs


def test_every_kind_of_source_gives_the_same_key(executor: Executor, tmp_path: Path) -> None:
    mapping = vector_add(100)
    text = json.dumps(mapping).encode()
    path = tmp_path / "k.json"
    path.write_bytes(text)
    graph = graph_of(mapping)
    assert isinstance(graph, Graph)
    candidates = [mapping, text, gzip.compress(text), path, str(path), graph, Candidate(graph, {}, "named")]
    summary = ptxc.batch(iter(candidates), tmp_path / "out", executor=executor, target="sm_80")
    found = results(tmp_path / "out")
    assert {record["status"] for record in found} == {"ok"}
    assert {record["input"] for record in found} == {"#0", "#1", "#2", str(path), "#5", "named"}
    assert len({record["key"] for record in found}) == 1
    assert (summary.total, summary.ok) == (7, 7)
    (kernel,) = ptxc.compile(path, target="sm_80")
    assert (tmp_path / "out" / found[0]["ptx"]).read_text() == kernel.ptx


def test_a_result_says_what_is_known(executor: Executor, tmp_path: Path) -> None:
    batch([GOLDEN / "row_sum_tree/kernel.ir.json"], tmp_path, executor=executor)
    (record,) = results(tmp_path)
    assert record["kernel"] == "k_y_reduce"
    assert (record["target"], record["kernels"], record["shared"]) == ("sm_89", 1, 16)
    assert set(record["seconds"]) == {"compile", "wall"}
    assert "registers" not in record


@pytest.mark.needs("ptxas")
def test_a_result_says_what_ptxas_found(executor: Executor, tmp_path: Path) -> None:
    batch([GOLDEN / "row_sum_tree/kernel.ir.json"], tmp_path, executor=executor, assemble=True)
    (record,) = results(tmp_path)
    assert record["registers"] > 0
    assert (record["spill_stores"], record["spill_loads"], record["shared"]) == (0, 0, 16)
    assert 0 < record["occupancy"] <= 1
    assert record["seconds"]["assemble"] > 0
    assert (tmp_path / record["cubin"]).read_bytes().startswith(b"\x7fELF")


def test_a_check_executes_and_compares(executor: Executor, tmp_path: Path) -> None:
    batch([GOLDEN / "row_sum_tree/kernel.ir.json", vector_add(200)], tmp_path, executor=executor, check="2")
    assert [(record["status"], record["checked"]) for record in results(tmp_path)] == [("ok", "values")] * 2
    with pytest.raises(UsageError, match="no CTAs are called 'some'"):
        batch([], tmp_path, check="some")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"assemble": "no"}, "assemble is True or False, not 'no'; as in assemble=False"),
        ({"retry_failed": None}, "retry_failed is True or False, not None"),
        ({"fma": "no"}, "fma is True or False, not 'no'"),
        ({"check": True}, "check is a str, not True; as in check='all' or check='4'"),
        ({"jobs": "4"}, "jobs is a number of processes, not '4'; as in jobs=8"),
        ({"jobs": 0}, "jobs is a number of processes, not 0"),
    ],
)
def test_wrong_options(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        batch([], tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def test_wrong_options_of_a_candidate(executor: Executor, tmp_path: Path) -> None:
    lines = tmp_path / "c.jsonl"
    lines.write_text(json.dumps({"graph": vector_add(64), "options": {"fma": "no"}}))
    batch(candidates_in([str(lines)]), tmp_path / "out", executor=executor)
    (record,) = results(tmp_path / "out")
    assert record["error"]["message"] == "fma is True or False, not 'no'"


def test_a_kernel_that_fails_its_check(executor: Executor, tmp_path: Path) -> None:
    # Its threads overwrite each other's element.
    graph = json.loads(
        json.dumps(vector_add(200)).replace("output='z', index=(Var('a0'),)", "output='z', index=(Literal(0, 'int'),)")
    )
    summary = batch([graph], tmp_path, executor=executor, check="all")
    (record,) = results(tmp_path)
    assert (record["status"], record["error"]["type"]) == ("wrong", "CheckError")
    assert "finding" in record["error"]["message"]
    assert summary.failures == {"wrong": 1}


def test_files_folders_and_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, manifest = tmp_path / "plain", tmp_path / "manifest"
    for place in (folder, manifest):
        place.mkdir()
        (place / "b.json").write_text("")
        (place / "a.json").write_text("")
    row = {"file": "b.json", "card": "h100", "target": "sm_90", "row": "matmul.1"}
    (manifest / "MANIFEST.jsonl").write_text(json.dumps(row) + "\n")
    said = [{"file": "plain/a.json", "options": {"math": "fast"}, "pins": 1}, {"graph": {"nodes": {}}, "name": "n"}]
    text = "\n".join(map(json.dumps, [*said, {"nodes": {}}, {"file": "x.json", "target": "sm_70"}])) + "\n\n[1\n"
    (tmp_path / "some.jsonl").write_text(text)
    monkeypatch.chdir(tmp_path)
    inputs = ["plain", "manifest", "plain/a.json", "some.jsonl"]
    found = list(candidates_in(inputs))
    assert count(inputs) == len(found) == 9
    assert [(c.source, c.options) for c in found[:5]] == [
        ("plain/a.json", {}),
        ("plain/b.json", {}),
        ("manifest/b.json", {"target": "sm_90"}),
        ("plain/a.json", {}),
        ("plain/a.json", {"math": "fast"}),
    ]
    assert [c.name for c in found[4:]] == [f"some.jsonl:{n}" if n != 2 else "n" for n in (1, 2, 3, 4, 6)]
    assert found[7].options == {"target": "sm_70"}
    assert next(candidates_in(["manifest"], "sm_80")).options == {"target": "sm_80"}
    assert count([STDIN]) is None
    (tmp_path / "empty").mkdir()
    for absent in ("empty", "absent.jsonl"):
        with pytest.raises(InputError):
            list(candidates_in([absent]))


def test_candidates_that_cannot_be_read_fail_alone(executor: Executor, tmp_path: Path) -> None:
    (tmp_path / "bad.jsonl").write_text('[1\n{"file": 3}\n{"graph": {"nodes": {}}, "options": [1]}\n')
    (tmp_path / "empty.json").write_text("")
    wrong = [Candidate(vector_add(64), {"tarjet": "sm_80"}, "typo"), Candidate(vector_add(64), {"opt": 9}, "opt")]
    given = [*candidates_in([str(tmp_path / "bad.jsonl")]), tmp_path / "absent.json", tmp_path / "empty.json", object()]
    for retry in (False, False, True):
        out = tmp_path / "out"
        summary = batch([*given, *wrong, vector_add(64)], out, executor=executor, retry_failed=retry)
        assert (summary.ok, summary.failed) == (1, 8)
    found = {record["input"]: record["error"] for record in results(out) if record["status"] == "error"}
    assert len(found) == 8
    assert len(lines(out)) == 9 + 8
    assert "did not" not in json.dumps(found)
    assert found["typo"]["message"] == "there is no option 'tarjet'"
    assert found[str(tmp_path / "absent.json")]["type"] == "InputError"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"file": 7}', "file is the name of a file, not 7; a line is a graph, or as in"),
        ('{"file": ""}', "file is the name of a file, not ''; "),
        ('{"file": null}', "file is the name of a file, not None; "),
        ('{"graph": 7}', "graph is the JSON object of a graph, not 7; "),
        ('{"file": "k.json", "options": 7}', "options is a JSON object of options, not 7; "),
        ('{"file": "k.json", "options": null}', "options is a JSON object of options, not None; "),
        ('{"options": {}}', "neither file nor graph is given; "),
        ('{"file": "k.json", "graph": {}}', "both file and graph are given; "),
        ('{"file": "k.json", "file": "l.json"}', "a JSON object names 'file' twice; keep one of the two"),
        ('{"file": "k.json", "options": {"opt": 1, "opt": 2}}', "a JSON object names 'opt' twice; keep one"),
        ("7", "a JSON object is needed here, not 7; a line is a graph, or as in"),
        ("seven", "not JSON: Expecting value"),
    ],
)
def test_lines_that_are_no_candidates(line: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "c.jsonl").write_text(f"{line}\n")
    summary = batch(candidates_in([str(tmp_path / "c.jsonl")]), tmp_path / "out", executor=Here())
    assert summary.failed == 1
    assert summary.why.startswith(f"{tmp_path / 'c.jsonl'}:1: {message}")
    (record,) = results(tmp_path / "out")
    assert f"{record['error']['message']}; {record['error']['hint']}".startswith(message)


def test_a_wrong_line_keeps_its_name(tmp_path: Path) -> None:
    (tmp_path / "c.jsonl").write_text('{"file": 7, "name": "tile 7"}\n')
    (candidate,) = candidates_in([str(tmp_path / "c.jsonl")])
    assert candidate.name == "tile 7"


def test_what_is_wrong_with_the_call_raises(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no option 'tarjet'"):
        batch([], tmp_path, tarjet="sm_80")
    with pytest.raises(UsageError, match="no math mode"):
        batch([], tmp_path, math="wrong")
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot write to the folder"):
        batch([], tmp_path / "file")


# ------------------------------------------------------------------------------------------------------ duplicates


def test_equal_candidates_are_compiled_once(executor: Executor, tmp_path: Path) -> None:
    log = tmp_path / "log"
    given = [vector_add(64), vector_add(128), *[vector_add(64)] * 20]
    summary = batch(given, tmp_path / "out", executor=executor, job=partial(logged, str(log)))
    assert len(log.read_text().split()) == 2
    assert (summary.ok, summary.duplicates) == (22, 20)
    assert len(lines(tmp_path / "out")) == 22
    assert len({record["key"] for record in results(tmp_path / "out")}) == 2
    again = batch([*given, vector_add(128)], tmp_path / "out", executor=executor, job=partial(logged, str(log)))
    assert (again.before, again.duplicates) == (22, 1)
    assert len(log.read_text().split()) == 2


def renamed(count: int, name: str) -> dict[str, Any]:
    """The same kernel with a temporary of another name."""
    graph: dict[str, Any] = json.loads(json.dumps(vector_add(count)).replace("'v'", f"'{name}'"))
    return graph


def test_candidates_that_differ_in_names_of_temporaries_are_compiled_once(tmp_path: Path, kept: Store) -> None:
    names = [f"t{number}" for number in range(12)]
    with ThreadPoolExecutor(3) as executor:
        batch([renamed(64, name) for name in names], tmp_path / "out", executor=executor)
    found = results(tmp_path / "out")
    assert len({record["candidate"] for record in found}) == 12
    assert len({record["key"] for record in found}) == 1
    compiled = [entry for entry in kept.entries() if entry.kind == "kernel"]
    assert [entry.key for entry in compiled] == [found[0]["key"]]


# --------------------------------------------------------------------------------------------------------- journal


def fake(task: Any) -> list[Built]:
    """An outcome of two kernels."""
    facts = {"status": "ok", "target": "sm_80"}
    return [Built({"key": f"{task.digest}{number}", **facts}, f"ptx {number}") for number in range(2)]


def written(folder: Path, names: list[str]) -> bytes:
    with Journal(folder) as journal:
        for name in names:
            task = task_of(Candidate(name.encode(), {}, name), 0, Options(), False, "")
            journal.add([(task, fake(task))])
    return (folder / "results.jsonl").read_bytes()


def test_a_journal_that_is_cut_anywhere_keeps_what_is_whole(tmp_path: Path) -> None:
    whole = written(tmp_path, ["a", "b", "c"])
    ends = [
        end for end in range(len(whole) + 1) if whole[:end].count(b"\n") % 2 == 0 and whole[:end][-1:] in (b"", b"\n")
    ]
    path = tmp_path / "results.jsonl"
    for length in range(len(whole) + 1):
        path.write_bytes(whole[:length])
        with Journal(tmp_path):
            pass
        assert path.stat().st_size == max(end for end in ends if end <= length)
        assert len(results(tmp_path)) % 2 == 0
    path.write_bytes(whole[: ends[1] + 7])
    assert written(tmp_path, ["b", "c"]) == whole


def test_a_line_that_someone_broke_is_an_error_and_stays(tmp_path: Path) -> None:
    whole = written(tmp_path, ["a", "b"])
    path = tmp_path / "results.jsonl"
    for broken in (whole.replace(b"{", b"x", 1), b"\n" + whole, b"[]\n" + whole, b"".join(whole.splitlines(True)[1:])):
        path.write_bytes(broken)
        with pytest.raises(InputError, match=r"line \d is no result"):
            Journal(tmp_path)
        assert path.read_bytes() == broken


def test_a_file_that_is_gone_is_made_again(executor: Executor, tmp_path: Path) -> None:
    batch([vector_add(64), vector_add(128)], tmp_path, executor=executor)
    (tmp_path / results(tmp_path)[0]["ptx"]).unlink()
    summary = batch([vector_add(64), vector_add(128)], tmp_path, executor=executor)
    assert (summary.ok, summary.before) == (2, 1)
    assert all((tmp_path / record["ptx"]).stat().st_size for record in results(tmp_path))


def test_two_batches_do_not_write_to_one_folder(tmp_path: Path) -> None:
    with Journal(tmp_path), pytest.raises(UsageError, match="another batch writes to"):
        batch([], tmp_path)


def test_what_failed_is_tried_again_where_that_is_asked_for(executor: Executor, tmp_path: Path) -> None:
    log = tmp_path / "log"
    given = [Candidate(vector_add(64), {}, "fault:"), Candidate(vector_add(64), {}, "other"), vector_add(128)]
    run = partial(batch, given, tmp_path / "out", executor=executor, job=partial(logged, str(log)))
    first = run()
    assert (first.ok, first.failed, first.duplicates) == (1, 2, 1)
    assert (run().before, len(log.read_text().split())) == (3, 2)
    again = run(retry_failed=True, job=build)
    assert (again.ok, again.failed, again.before) == (3, 0, 1)
    assert [record["status"] for record in results(tmp_path / "out")] == ["ok"] * 3


def test_other_options_are_another_candidate(executor: Executor, tmp_path: Path) -> None:
    for math in ("precise", "fast"):
        batch([vector_add(64)], tmp_path, executor=executor, math=math)
    assert len({record["candidate"] for record in results(tmp_path)}) == 2


# --------------------------------------------------------------------------------------------------- workers that die


class Dying(Here):
    """An executor whose workers die so often."""

    def __init__(self, deaths: int) -> None:
        self.deaths = deaths

    def submit(self, function: Any, /, *args: Any, **more: Any) -> Future[Any]:
        if not self.deaths:
            return super().submit(function, *args, **more)
        self.deaths -= 1
        future: Future[Any] = Future()
        future.set_exception(RuntimeError("the worker died"))
        return future


def test_a_candidate_whose_worker_dies_is_tried_again(tmp_path: Path) -> None:
    summaries = []
    for deaths in (3, 4):
        seen: list[Summary] = []
        summaries.append(batch([vector_add(64)], tmp_path / f"{deaths}", executor=Dying(deaths), progress=seen.append))
        assert len(seen) == 1
    assert [(summary.ok, summary.failed) for summary in summaries] == [(1, 0), (0, 1)]
    (record,) = results(tmp_path / "4")
    assert record["status"] == "crash"
    assert "RuntimeError: the worker died" in record["error"]["message"]


def ends_its_worker(task: Any, *rest: Any) -> None:
    os._exit(1)


def test_a_pool_that_breaks_again_and_again_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ptxc.batching.runner.work", ends_its_worker)
    with pytest.raises(CrashError, match="all workers died, 4 times"):
        batch([vector_add(64)], tmp_path, jobs=1)
    assert lines(tmp_path) == []


def test_the_kernel_that_warms_is_compiled(tmp_path: Path) -> None:
    (kernel,) = ptxc.compile(GRAPH)
    assert kernel.name == "k_warm"
    batch([GRAPH], tmp_path, executor=Here(), check="all")
    assert [record["status"] for record in results(tmp_path)] == ["ok"]


def test_errors_cross_processes_whole() -> None:
    error = InputError("what", hint="hint").at(file="file", kernel="kernel", statement="statement")
    task = task_of(b"", 0, Options(), False, "")
    assert failed(task, error).facts["error"] == {
        "type": "InputError", "message": "what", "kernel": "kernel", "statement": "statement", "hint": "hint",
    }  # fmt: skip
