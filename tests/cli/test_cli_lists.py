"""`ptxc passes`, `ptxc ops` and the help pages."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from cli_lab import environment, ptxc
from conftest import ROOT
from emmy.compiler.ir.stmt import Stmt

import ptxc as api
from ptxc.cli import COMMANDS
from ptxc.frontend import elementwise
from ptxc.frontend.dtypes import _TYPES
from ptxc.frontend.expressions import _LOWER
from ptxc.frontend.operations import operations
from ptxc.frontend.statements import STATEMENTS
from ptxc.passes.pipeline import PIPELINE

# ---------------------------------------------------------------------------------------------------------- passes


def test_passes_lists_all_steps_in_order_with_all_reasons() -> None:
    result = ptxc("passes")
    assert (result.status, result.err) == (0, "")
    table, reasons = result.out.split("Why in this order:")
    steps = re.findall(r"^ +(?:\d+)?  ([a-z-]+) ", table, re.MULTILINE)
    assert steps == ["build", *(item.name for item in PIPELINE), "print"]
    for item in PIPELINE:
        row = next(line for line in table.splitlines() if f"  {item.name} " in line)
        assert row.lstrip().startswith(str(item.rank))
        assert row.endswith(item.summary)
        assert ("optional" in row) is not item.required
        for other, reason in item.after:
            assert re.search(rf"^{item.name} +{other} +{re.escape(reason)}$", reasons, re.MULTILINE)
    assert max(map(len, result.out.splitlines())) <= 120


@pytest.mark.parametrize("item", PIPELINE, ids=lambda item: item.name)
def test_a_pass_is_explained(item: object) -> None:
    (known,) = (other for other in PIPELINE if other is item)
    result = ptxc("passes", known.name)
    assert (result.status, result.err) == (0, "")
    assert result.out.startswith(f"{known.rank}-{known.name}: {known.summary} (")
    source = ROOT / "passes" / f"{known.name.replace('-', '_')}.py"  # of which the compiled module keeps no docstring
    assert source.read_text().splitlines()[0].strip('"') in result.out
    for other, reason in known.after:
        assert f"It comes after {other}: {reason}." in result.out


def test_a_reason_names_an_earlier_pass() -> None:
    seen: list[str] = []
    for item in PIPELINE:
        assert {other for other, _ in item.after} <= set(seen)
        seen.append(item.name)
    assert sorted(PIPELINE, key=lambda item: item.rank) == list(PIPELINE)


# ------------------------------------------------------------------------------------------------------------- ops


def test_ops_shows_every_entry_of_the_compiler_s_tables_as_supported() -> None:
    supported: dict[str, set[str]] = {}
    for operation in operations():
        if operation.supported:
            supported.setdefault(operation.kind, set()).add(operation.name)
    assert supported["statement"] == {cls.__name__ for cls in STATEMENTS}
    assert supported["expression"] == {cls.__name__ for cls in _LOWER}
    assert supported["element-type"] == set(_TYPES)
    assert supported["accumulation"] == set(elementwise.COMBINES)
    assert supported["function"] == {*elementwise.FUNCTIONS, "bitwise_count"}
    assert supported["elementwise"] == {*elementwise.ARITY, *elementwise._INTEGER, "bitwise_count", "bitcast"}


def test_ops_has_every_statement_of_emmy_s_kernel_ir() -> None:
    shown = {operation.name for operation in operations() if operation.kind == "statement"}
    assert shown > {"Load", "Write", "Loop", "Tile", "MmaSyncPtx", "TmaLoad", "WgmmaMma"}
    assert "Call" not in shown, "it is expanded long before there is a KernelOp"
    assert {cls.__name__ for cls in Stmt.__subclasses__()} - shown == {"Call"}


def test_ops_supports_what_compiles() -> None:
    listed = {row.name: row.supported for row in operations() if row.kind in ("statement", "expression")}
    used = {
        name
        for file in (ROOT / "golden").glob("*/kernel.ir.json")
        for name in re.findall(r"\b([A-Z]\w+)\(", file.read_text())
        if name in listed
    }
    assert {"Literal", "Var", "Tile"} <= used
    assert [name for name in sorted(used) if not listed[name]] == []


def test_ops_counts_what_it_lists() -> None:
    result = ptxc("ops")
    assert (result.status, result.err) == (0, "")
    total = re.search(
        r"^ptxc compiles (\d+) of (\d+) operations of Kernel IR in Emmy [\d.]+\.$", result.out, re.MULTILINE
    )
    assert total
    yes, no = (len(re.findall(rf"^  \S+ +{word}\b", result.out, re.MULTILINE)) for word in ("yes", "no"))
    assert (int(total[1]), int(total[2])) == (yes, yes + no)
    headings = re.findall(r"^\S.*: (\d+) of (\d+)$", result.out, re.MULTILINE)
    assert [sum(map(int, column)) for column in zip(*headings, strict=True)] == [yes, yes + no]
    assert max(map(len, result.out.splitlines())) <= 120


def test_ops_json_is_the_table() -> None:
    shown = json.loads(ptxc("ops", "--json").out)
    assert [(row["kind"], row["name"], row["supported"]) for row in shown["operations"]] == [
        (operation.kind, operation.name, operation.supported) for operation in operations()
    ]


def test_ops_of_one_kind_and_what_is_missing() -> None:
    kinds = {row["kind"] for row in json.loads(ptxc("ops", "operator", "--json").out)["operations"]}
    assert kinds == {"operator"}
    missing = json.loads(ptxc("ops", "--missing", "--json").out)["operations"]
    assert missing
    assert not any(row["supported"] for row in missing)
    assert " yes" not in ptxc("ops", "--missing").out


# ------------------------------------------------------------------------------------------------------------ help


def test_help_lists_every_command() -> None:
    for args in (["--help"], ["-h"], ["help"]):
        result = ptxc(*args)
        assert (result.status, result.err) == (0, "")
        listed = re.findall(r"^  ([a-z]+) +\S", result.out.partition("commands:")[2].partition("\n\n")[0], re.MULTILINE)
        assert tuple(listed) == COMMANDS


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_a_command(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    result = ptxc(command, "--help")
    assert (result.status, result.err) == (0, "")
    assert ptxc("help", command).out == result.out
    assert result.out.startswith("usage: ptxc ")
    assert max(map(len, result.out.splitlines())) <= 120


def test_version() -> None:
    build = "compiled" if api.is_compiled() else "pure Python"
    assert ptxc("--version") == (0, f"ptxc {api.__version__} ({build})\n", "")


def test_ctrl_c_is_caught_while_the_parser_is_imported(tmp_path: Path) -> None:
    code = (
        "import builtins, sys; real = builtins.__import__\n"
        "def interrupted(name, *rest):\n"
        "    if name in ('argparse', 'ptxc.cli.arguments'): raise KeyboardInterrupt\n"
        "    return real(name, *rest)\n"
        "builtins.__import__ = interrupted\n"
        "from ptxc.cli import main; sys.exit(main(['passes']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, cwd=tmp_path, env=environment(), check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"")


@pytest.mark.parametrize("args", [["--help"], ["compile", "--help"], ["passes"], ["xyz"]])
def test_what_needs_no_kernel_imports_nothing_large(args: list[str], tmp_path: Path) -> None:
    code = (
        f"import sys; from ptxc.cli import main; main({args!r});"
        "print([m for m in ('emmy', 'networkx', 'numpy', 'rich', 'shtab') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, cwd=tmp_path, env=environment(), text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"
