"""The benchmark of compile times, with figures that are made up and compilers that need not be installed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import compile_time
import peers
import pytest
from compilation import tables
from compilation.bars import bars_of
from compilation.costs import Cost, cost
from compilation.growth import Size, growth
from compilation.kernels import choices
from peers import Peer, PeerCost
from rich.console import Console

ROOT = Path(__file__).resolve().parent.parent
KERNEL = ROOT / "golden" / "row_sum_tree" / "kernel.ir.json"

GOOD = Cost("k_good", 100, 2.0, 8.0, 200.0, 400.0)
POOR = Cost("k_poor", 50, 10.0, 50.0, 150.0, 100.0)
BARE = Cost("k_bare", 40, 1.0)


def printed(*items: object) -> str:
    console = Console(width=150)
    with console.capture() as captured:
        console.print(*items)
    return captured.get()


def cells(line: str) -> list[str]:
    """What stands in a row of a table."""
    return [cell.strip() for cell in line.split("│")[1:-1]]


def row(text: str, first: str) -> list[str]:
    """The row that begins so."""
    (found,) = [cells(line) for line in text.splitlines() if cells(line)[:1] == [first]]
    return found


def test_ratios() -> None:
    assert (GOOD.ptx_ratio, GOOD.cubin_ms, GOOD.cubin_share, GOOD.us_per_line) == (100.0, 10.0, 0.025, 20.0)
    assert (BARE.ptx_ratio, BARE.cubin_ms, BARE.cubin_share) == (None, None, None)


def test_bars() -> None:
    assert [bar.reached for bar in bars_of([GOOD, GOOD])] == [True] * 4
    missed = bars_of([GOOD, POOR])
    assert [bar.reached for bar in missed] == [True, False, False, False]
    assert [round(bar.value, 3) for bar in missed] == [57.5, 15.0, 0.122, 0.6]
    assert bars_of([BARE]) == []
    assert "MISSED" in printed(tables.bars(missed))


def test_tables_of_kernels() -> None:
    costs = {"p1": GOOD, "p2": POOR, "p3": BARE}
    text = printed(tables.to_ptx(costs))
    assert row(text, "p1") == ["p1", "k_good", "100", "2.00", "20.0", "200", "100"]
    assert row(text, "p3")[-2:] == ["-", "-"]
    assert row(text, "all")[2:5] == ["190", "13.00", "68.4"]
    text = printed(tables.to_cubin(costs))
    assert row(text, "p2") == ["p2", "10.0", "50.0", "60.0", "100.0", "0.600"]
    assert row(text, "geometric mean")[-1] == "0.122"
    assert row(text, "worst")[-1] == "0.600"
    assert "geometric" not in printed(tables.to_ptx({}), tables.to_cubin({}))


def test_table_of_peers() -> None:
    ours = {"p1": PeerCost("p1", "ptxc", 1, 10, 2.0), "p2": PeerCost("p2", "ptxc", 3, 10, 4.0)}
    one = [PeerCost("p1", "One 1.0", 1, 10, 20.0), PeerCost("p2", "One 1.0", 2, 10, 160.0)]
    text = printed(tables.beside_peers(ours, [[], one, [PeerCost("p2", "Two 2.0", 1, 10, 12.0)]]))
    assert row(text, "p1") == ["p1", "2.00 (1)", "20.00 (1)", "10", "-", "-"]
    assert row(text, "p2") == ["p2", "4.00 (3)", "160.00 (2)", "40", "12.00 (1)", "3"]
    assert row(text, "geometric mean") == ["geometric mean", "", "", "20", "", "3"]
    assert "One 1.0 ms" in text


def test_table_of_growth() -> None:
    assert row(printed(tables.growth([Size(100, 400, 8.0)])), "100") == ["100", "400", "8", "20.0", "80.0"]


def test_kernels_are_those_with_the_most_statements(tmp_path: Path) -> None:
    def entry(problem: str, file: str, statements: int, size: str = "full_1", core: bool = True) -> dict[str, object]:
        stmts = {"Load": statements}
        return {"problem": problem, "file": file, "size": size, "core": core, "targets": ["sm_89"], "stmts": stmts}

    files = [
        entry("a", "a/few.json", 1), entry("a", "a/most.json", 5), entry("a", "a/small.json", 9, size="small_1"),
        entry("b", "b/cores.json", 9, core=False), entry("b", "b/0.json", 2), entry("x01", "x/0.json", 9),
    ]  # fmt: skip
    launches = [{"target": "sm_89", "sequence": ["b/0.json", "b/1.json"]}]
    (tmp_path / "MANIFEST.json").write_text(json.dumps({"files": files, "launches": launches}))
    found = choices(tmp_path, "sm_89")
    assert [(choice.problem, choice.largest.name, len(choice.launch)) for choice in found] == [
        ("a", "most.json", 1),
        ("b", "0.json", 2),
    ]
    assert [choice.problem for choice in choices(tmp_path, "sm_89", "b/")] == ["b"]
    assert choices(tmp_path, "sm_90") == []


def test_a_kernel_without_tools() -> None:
    found = cost(KERNEL, "sm_89", tools=())
    assert found.ptxc_ms > 0
    assert found._replace(ptxc_ms=0.0) == Cost("k_y_reduce", found.lines, 0.0)


@pytest.mark.needs("ptxas")
@pytest.mark.needs("nvcc")
def test_a_kernel_with_tools() -> None:
    found = cost(KERNEL, "sm_89")
    assert found.ptx_ratio is not None
    assert found.ptx_ratio > 1
    assert found.cubin_share is not None
    assert found.cubin_share < 1


def test_growth() -> None:
    small, large = growth("sm_89", (50, 100))
    assert (small.statements, large.statements) == (50, 100)
    assert small.lines < large.lines


# ---------------------------------------------------------------------------------------------- other compilers


def test_a_peer_is_timed() -> None:
    calls: list[str] = []

    def compile() -> list[str]:
        calls.append("")
        return ["a\nb\n", "c\n"]

    (found,) = peers.costs(Peer("One 1.0", {"p1": compile}), ["p0", "p1"])
    assert found[:4] == ("p1", "One 1.0", 2, 3)
    assert found.ms >= 0
    assert len(calls) > 1


def test_peers_that_are_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in peers.PEERS:
        monkeypatch.setitem(sys.modules, module, None)
    found, missing = peers.find("sm_89")
    assert found == []
    assert [line.split(":")[0] for line in missing] == ["triton is left out", "tinygrad is left out"]
    assert all("ptxc[peers]" in line for line in missing)


@pytest.mark.parametrize("module", peers.PEERS)
def test_peers_that_are_installed(module: str) -> None:
    pytest.importorskip(module)
    (peer,), missing = peers.find("sm_89", [module])
    assert not missing
    for compile in peer.compile.values():
        texts = compile()
        assert texts == compile()
        assert all(text.count(".entry") == 1 and ".target sm_89" in text for text in texts)


# ----------------------------------------------------------------------------------------------- the command


@pytest.fixture
def faked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Cost]:
    """The command without compilations, on two problems with the costs that the test gives, by file."""
    costs = {"a.json": GOOD, "b.json": GOOD, "c.json": GOOD}
    files: list[dict[str, object]] = [
        {"problem": f"p0{file[0]}", "file": file, "size": "full", "core": True, "targets": ["sm_89"], "stmts": {}}
        for file in ("a.json", "b.json")
    ]
    launches = [{"target": "sm_89", "sequence": ["b.json", "c.json"]}]
    (tmp_path / "MANIFEST.json").write_text(json.dumps({"files": files, "launches": launches}))

    def find(_: str) -> tuple[list[Peer], list[str]]:
        return [Peer("One 1.0", {"p0b": lambda: [".entry"]})], ["two is left out: no"]

    def known(path: Path, target: str, tools: Sequence[str]) -> Cost:
        assert (target, tools) == ("sm_89", ["ptxas", "nvcc"])
        return costs[path.name]

    monkeypatch.setattr(compile_time, "FOLDER", tmp_path)
    monkeypatch.setattr(compile_time, "cost", known)
    monkeypatch.setattr(compile_time, "find_tool", Path)
    monkeypatch.setattr(compile_time, "growth", lambda _: [Size(100, 400, 8.0)])
    monkeypatch.setattr(peers, "find", find)
    return costs


def command(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["compile_time.py", *arguments])
    return compile_time.main()


def test_the_command(
    faked: dict[str, Cost], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(monkeypatch, "--json", str(tmp_path / "out.json")) == 0
    text = capsys.readouterr().out
    assert "One 1.0 ms" in text
    assert "4.00 (2)" in text  # both kernels of the launch
    assert "400.00 (2)" in text
    assert "peak memory: " in text
    assert text.endswith("two is left out: no\n")
    data = json.loads((tmp_path / "out.json").read_text())
    assert [row["problem"] for row in data["problems"]] == ["p0a", "p0b"]
    assert [row["compiler"] for row in data["peers"]] == ["ptxc", "nvcc --ptx", "One 1.0"]
    assert data["scaling"] == [{"statements": 100, "lines": 400, "ms": 8.0}]
    assert data["peak_mb"] > 1
    assert all(bar["reached"] for bar in data["bars"])


def test_a_bar_that_is_missed(faked: dict[str, Cost], monkeypatch: pytest.MonkeyPatch) -> None:
    faked["a.json"] = POOR
    assert command(monkeypatch, "--no-peers") == 1


@pytest.mark.parametrize("script", ["compile_time.py", "corpus.py"])
def test_there_are_no_kernels(script: str, tmp_path: Path) -> None:
    where = tmp_path / "none"
    command = [sys.executable, str(ROOT / "benchmarks" / script)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PTXC_SHARED": str(where)})
    assert done.returncode == 2
    assert str(where) in done.stderr.replace("\n", "")


def test_tools_that_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PTXC_NVCC", "/nonexistent/nvcc")
    monkeypatch.setenv("PTXC_PTXAS", "/nonexistent/ptxas")
    use, missing = compile_time.tools(True)
    assert use == []
    assert [line.split(":")[0] for line in missing] == ["ptxas is left out", "nvcc is left out"]
    assert len(compile_time.tools(False)[1]) == 1
