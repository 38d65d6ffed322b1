"""A tenth of Emmy's corpus, of every family of kernels on every card: each is compiled for its card and assembled.

`make corpus` does that for all of it.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

import corpus
import pytest
from conftest import SHARED
from corpus import Outcome, Runner, errors, kind_of, run_all, table
from rich.console import Console

import ptxc
from ptxc.corpus import Entry, entries, family
from ptxc.errors import InputError, TargetError
from ptxc.store import Store
from ptxc.toolchain import assemble

FOLDER = SHARED / "emmy-corpus"


def sample(kernels: Sequence[Entry]) -> list[Entry]:
    """A tenth of the kernels, and at least one, of each family on each card: whichever, but always the same."""
    chosen = []
    for _, group in groupby(sorted(kernels, key=_kind), key=_kind):
        members = sorted(group, key=lambda entry: zlib.crc32(entry.path.name.encode()))
        chosen += members[: math.ceil(len(members) / 10)]
    return chosen


def _kind(entry: Entry) -> tuple[str, str]:
    return entry.card, entry.family


SAMPLE = sample(entries(FOLDER)) if FOLDER.is_dir() else []


@pytest.mark.needs("ptxas")
@pytest.mark.parametrize("entry", SAMPLE, ids=lambda entry: entry.path.name[:60])
def test_a_kernel_of_the_corpus(entry: Entry) -> None:
    kernels = ptxc.compile(entry.path, target=entry.target)
    for kernel in kernels:
        assert not assemble(kernel.ptx, kernel.target).warnings


# ------------------------------------------------------------------------------------------------------- the command

GOLDEN = Entry(Path(__file__).parents[2] / "golden" / "row_sum_tree" / "kernel.ir.json", "card", "sm_80", "kind")


def test_families() -> None:
    assert family("llama31-8b.pre-sym.k_linear_mean_reduce_cdec1e.dynamic.9e5ccffffc7a") == "linear_mean_reduce"
    assert family("k_sdpa_linear_mean_reduce_c9e839.f708460c7403") == "sdpa_linear_mean_reduce"
    assert family("matmul.square.512.dynM") == "matmul"
    assert family("k_embedding_pointwise.1") == "embedding_pointwise"


def test_kinds_of_errors() -> None:
    assert kind_of("element type 'f8e4m3' is not supported yet") == "element type '…' is not supported yet"
    assert kind_of("sm_90 lacks mma, of 12 at /tmp/x/k.ptx\nmore") == "sm_90 lacks mma, of N at …"


@pytest.mark.needs("ptxas")
def test_results_are_kept(kept: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    first = Runner().run(GOLDEN)
    assert (first.compiled, first.assembled, first.error) == (True, True, "")
    assert first.registers > 0
    assert list(kept.entries())
    monkeypatch.setattr("ptxc.store.assemblies.assemble", lambda *_, **__: pytest.fail("it is known"))
    again = Runner().run(GOLDEN)
    assert (again.assembled, again.registers, again.lines) == (True, first.registers, first.lines)


def test_what_fails_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise TargetError("sm_80 lacks 7 things", hint="wait")

    monkeypatch.setattr(corpus, "compile_kernel", refuse)
    console = Console(width=150)
    runner = Runner()
    outcomes = list(run_all([GOLDEN, GOLDEN], runner, 2, console))
    assert [outcome.error for outcome in outcomes] == ["TargetError: sm_80 lacks N things"] * 2
    with console.capture() as captured:
        console.print(table(outcomes, False), errors(outcomes))
    text = captured.get()
    assert "kind" in text
    assert " 2       TargetError: sm_80 lacks N things  kernel.ir.json: sm_80 lacks 7 things; wait" in text


def test_an_interruption_begins_nothing_new() -> None:
    runner = Runner(with_ptxas=False)
    running = run_all([GOLDEN] * 100, runner, 1, Console(quiet=True))
    next(running)
    running.close()
    assert runner.run(GOLDEN) == Outcome(GOLDEN)


def test_a_folder_without_a_manifest(tmp_path: Path) -> None:
    (tmp_path / "a.k_softmax_0123ab.json").write_text('{"op": "KernelOp"}')
    assert entries(tmp_path, "sm_75") == [
        Entry(tmp_path / "a.k_softmax_0123ab.json", tmp_path.name, "sm_75", "softmax")
    ]


@pytest.mark.parametrize("row", ["{", "[]", '{"file": "a.json"}', '{"file": 1, "card": "", "target": "", "row": ""}'])
def test_a_manifest_that_is_none(row: str, tmp_path: Path) -> None:
    (tmp_path / "MANIFEST.jsonl").write_text(f"\n{row}\n")
    with pytest.raises(InputError, match=r"MANIFEST\.jsonl: line 2 "):
        entries(tmp_path)
