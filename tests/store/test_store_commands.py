"""What a user of the command line sees of the store."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT

from ptxc import driver
from ptxc.cli import main
from ptxc.store import Store, Value, digest

ROW_SUM = ROOT / "golden" / "row_sum_tree" / "kernel.ir.json"
TWO_KERNELS = ROOT / "tests" / "cli" / "data" / "two_kernels.json"


class Command:
    """Runs the command line in this process."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *args: object) -> tuple[int, str, str]:
        self._capsys.readouterr()
        status = main([str(arg) for arg in args])
        out, err = self._capsys.readouterr()
        return status, out, err


@pytest.fixture
def run(kept: Store, capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    monkeypatch.chdir(tmp_path)
    return Command(capfd)


@pytest.fixture
def no_compiler(run: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is compiled from here on; what is kept was kept before."""
    for source in (ROW_SUM, TWO_KERNELS):
        assert run("compile", source, "-o", "before/")[0] == 0

    def refuse(*_: Any) -> None:
        pytest.fail("it is compiled")

    monkeypatch.setattr(driver, "_compile", refuse)


@pytest.mark.usefixtures("no_compiler")
@pytest.mark.parametrize("source", [ROW_SUM, TWO_KERNELS], ids=["one", "two"])
def test_what_was_compiled_is_not_again(run: Command, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = Path("before", source.name.removesuffix(".json").removesuffix(".ir") + ".ptx").read_text()
    assert (
        run("compile", source, "--launch-json", "launch.json", "-o", "k.ptx")[0] == 0
    )  # the order of two is the graph's
    monkeypatch.setattr(driver, "graph_of", lambda _: pytest.fail("it is read"))
    assert run("compile", source) == (0, before, "")
    assert run("check", source) == (0, "", "")


@pytest.mark.usefixtures("no_compiler")
@pytest.mark.parametrize(
    "options",
    [
        ("--no-cache",),
        ("--dump-dir", "dumps"),
        ("--dump-after", "cse"),
        ("--dump-changed",),
        ("--verify-each",),
        ("--time-passes",),
        ("--stop-after", "cse"),
        ("--emit", "ir"),
    ],
    ids=lambda options: options[0],
)
def test_what_compiles_anew(run: Command, options: tuple[str, ...]) -> None:
    with pytest.raises(pytest.fail.Exception, match="it is compiled"):
        run("compile", ROW_SUM, *options)


@pytest.mark.parametrize("command", ["compile", "check", "run", "verify", "compare"])
def test_no_command_keeps_what_should_not_be(run: Command, kept: Store, command: str) -> None:
    if command == "compare" and run("compare", ROW_SUM)[0] != 0:
        pytest.skip("compare needs CUDA's tools")
    kept.remove()
    assert run(command, ROW_SUM, "--no-cache")[0] == 0
    assert not list(kept.entries())


@pytest.mark.usefixtures("no_compiler")
def test_run_and_verify_take_what_is_kept(run: Command) -> None:
    assert run("run", ROW_SUM)[0] == 0
    status, out, _ = run("verify", ROW_SUM, "--no-nvcc")
    assert (status, out.splitlines()[-1].partition(";")[0]) == (0, "right")


def test_findings_name_statements_of_a_kept_kernel(run: Command) -> None:
    source = "out_of_bounds.json"
    Path(source).write_text(ROW_SUM.read_text().replace('"shape": [37, 100]', '"shape": [37, 99]'))
    first, again = run("run", source), run("run", source)
    assert first[0] == 1
    assert "load x[a0, a1]" in first[1]
    assert again == first


def test_a_folder_that_cannot_be_written_is_said_once(run: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("file").write_text("")
    monkeypatch.setenv("PTXC_CACHE_DIR", os.path.abspath("file/x"))
    status, _, err = run("compile", ROW_SUM, TWO_KERNELS, "-o", "out")
    assert status == 0
    assert re.fullmatch(r"ptxc: warning: results are not kept, as the folder '.*' cannot be written: .*\n", err)
    assert len(list(Path("out").rglob("*.ptx"))) == 2


def test_other_warnings_stay_pythons(run: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    from ptxc.cli import passes

    def warn(_: Any) -> int:
        import warnings

        warnings.warn("odd", stacklevel=1)
        return 0

    monkeypatch.setattr(passes, "run", warn)
    with pytest.warns(UserWarning, match="odd"):
        run("passes")


def test_a_bad_size(run: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PTXC_CACHE_SIZE", "much")
    for arguments in (("compile", ROW_SUM), ("run", ROW_SUM), ("cache", "info")):
        message = "ptxc: error: PTXC_CACHE_SIZE is 'much', which is no size; it is bytes, or as in 500M or 2G\n"
        status, out, err = run(*arguments)
        assert (status, out) == (2, "")
        assert err == message


def test_a_folder_that_is_a_file(run: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("PTXC_CACHE_DIR", str(tmp_path / "file"))
    for action in ("info", "list", "clear", "verify"):
        status, out, err = run("cache", action)
        assert (status, out) == (2, "")
        assert err.endswith("/file', where results would be kept, is no folder; set PTXC_CACHE_DIR to one\n")


# -------------------------------------------------------------------------------------------------------------- cache


def test_info(run: Command, kept: Store) -> None:
    status, out, _ = run("cache", "info")
    assert status == 0
    assert out.split() == ["folder", kept.folder, "limit", "100", "MiB", "size", "0", "bytes", "entries", "0"]
    run("compile", TWO_KERNELS)
    rows = {line.split()[0]: line.split()[1] for line in run("cache", "info")[1].splitlines()}
    assert (rows["entries"], rows["file"], rows["kernel"]) == ("3", "1,", "2,")


def test_list(run: Command, kept: Store) -> None:
    run("compile", ROW_SUM, "--target", "sm_90")
    for age, entry in enumerate(sorted(kept.entries(), key=lambda entry: entry.kind)):
        os.utime(entry.path, (0, 1e9 - age))
    heading, first, second = run("cache", "list")[1].splitlines()
    assert heading.split() == ["key", "kind", "target", "bytes", "used", "name"]
    assert [first.split()[1], first.split()[-1]] == ["file", "kernel.ir.json"]
    assert [*second.split()[1:3], second.split()[-1]] == ["kernel", "sm_90", "k_y_reduce"]
    assert "2001-09-0" in second
    assert len(run("cache", "list", "--kind", "kernel")[1].splitlines()) == 2


def test_clear(run: Command, kept: Store) -> None:
    run("compile", TWO_KERNELS)
    old = next(entry for entry in kept.entries() if entry.kind == "kernel")
    os.utime(old.path, (0, time.time() - 86400))
    assert run("cache", "clear", "--unused-for", "2d")[2].startswith("ptxc: removed 0 entries, 0 bytes")
    assert run("cache", "clear", "--unused-for", "12h")[2].startswith("ptxc: removed 1 entry, ")
    assert run("cache", "clear", "--kind", "kernel")[2].startswith("ptxc: removed 1 entry, ")
    assert run("cache", "clear")[2].startswith("ptxc: removed 1 entry, ")
    assert not list(kept.entries())


def test_verify(run: Command, kept: Store) -> None:
    run("compile", TWO_KERNELS)
    assert run("cache", "verify") == (0, "3 entries, all whole\n", "")
    damaged = next(kept.entries())
    os.truncate(damaged.path, damaged.size - 1)
    status, out, err = run("cache", "verify")
    assert (status, out, err) == (1, "3 entries, 1 damaged\n", f"ptxc: damaged, removed: {damaged.path}\n")
    assert run("cache", "verify") == (0, "2 entries, all whole\n", "")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "the following arguments are required: action"),
        (["inform"], "no 'inform'; did you mean info?"),
        (["info", "--kind", "cubin"], "--kind changes nothing for info"),
        (["list", "--unused-for", "3d"], "--unused-for changes nothing for list"),
        (["clear", "--unused-for", "-3d"], "'-3d' is no time; give it as in 30d"),
        (["clear", "--unused-for", "3 days"], "'3 days' is no time; give it as in 30d"),
        (["clear", "--kind", "ptx"], "no 'ptx'; "),
    ],
)
def test_what_is_asked_wrongly(run: Command, arguments: list[str], message: str) -> None:
    status, out, err = run("cache", *arguments)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert message in err


def test_names_from_entries_do_not_move_the_cursor(run: Command, kept: Store) -> None:
    kept.put("kernel", digest("odd"), Value({"name": "a\x1b[2Jb\n", "target": "sm_90"}))
    (line,) = run("cache", "list")[1].splitlines()[1:]
    assert line.endswith(r"a\x1b[2Jb")


def test_a_killed_command_leaves_a_whole_store(run: Command, kept: Store) -> None:
    script = "import sys, ptxc\nwhile True: ptxc.compile(sys.argv[1], target=f'sm_{sys.argv[2]}')"
    for target in ("80", "90"):
        process = subprocess.Popen([sys.executable, "-P", "-c", script, str(ROW_SUM), target])
        while f"sm_{target}" not in [value.facts.get("target") for value in map(kept.read, kept.entries()) if value]:
            time.sleep(0.01)
        process.kill()
        process.wait()
    assert kept.verify()[1] == []
