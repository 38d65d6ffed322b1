"""Faults of ptxc itself: exit status 70, what failed is named, and a folder with all that shows it again is left."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest
from cli_lab import ROW_MAX, TWO_KERNELS, VECTOR_ADD, files, ptxc

from ptxc.ir.kernel import Kernel
from ptxc.passes import cse
from ptxc.passes.pipeline import PIPELINE


def crash(kernel: Kernel) -> None:
    raise ZeroDivisionError("by zero")


def ruin(kernel: Kernel) -> None:
    """Leave a kernel that the verifier refuses: the first block loses its branch."""
    kernel.blocks[0].instrs.pop()


@contextlib.contextmanager
def broken(name: str, run: object) -> Iterator[None]:
    (item,) = (item for item in PIPELINE if item.name == name)
    with mock.patch.object(item.module, "run", run):
        yield


def folder(result: object, where: Path) -> Path:
    (found,) = where.glob("ptxc-fault-*")
    assert repr(found.name) in str(result).replace("\\", "")
    return found


def test_a_pass_that_crashes(tmp_path: Path) -> None:
    with broken("cse", crash):
        result = ptxc("compile", ROW_MAX, "-o", "out.ptx", "--math", "fast", cwd=tmp_path)
    assert (result.status, result.out) == (70, "")
    first, second = result.err.splitlines()
    where = f"{ROW_MAX}: k_y_reduce"
    assert first == f"ptxc: internal error: {where}: pass 'cse' failed: ZeroDivisionError: by zero"
    assert second.startswith("ptxc: this is a fault of ptxc; please report it, with the folder 'ptxc-fault-k_y_reduce-")
    kept = folder(second, tmp_path)
    assert files(tmp_path) == [f"{kept.name}/{name}" for name in ("before.ir", "input-row_max.json", "report.txt")]
    assert (kept / "input-row_max.json").read_bytes() == ROW_MAX.read_bytes()
    report = (kept / "report.txt").read_text()
    assert f"found by: ptxc compile {ROW_MAX} -o out.ptx --math fast\n" in report
    assert "ZeroDivisionError: by zero" in report
    assert "Traceback" in report
    assert "again:    ptxc compile --start-at cse before.ir" in report


def test_the_ir_of_a_fault_shows_it_again(tmp_path: Path) -> None:
    whole = ptxc("compile", ROW_MAX).out
    with broken("cse", crash):
        ptxc("compile", ROW_MAX, cwd=tmp_path)
        (kept,) = tmp_path.glob("ptxc-fault-*")
        again = ptxc("compile", "--start-at", "cse", kept / "before.ir", cwd=tmp_path)
    assert again.status == 70
    assert "pass 'cse' failed: ZeroDivisionError" in again.err
    assert ptxc("compile", "--start-at", "cse", kept / "before.ir").out == whole


def test_the_pass_at_fault_is_found_where_another_crashes(tmp_path: Path) -> None:
    with broken("simplify", ruin):
        result = ptxc("compile", ROW_MAX, cwd=tmp_path)
    assert result.status == 70
    assert "checked after each pass: the verifier refuses the IR after simplify" in result.err
    (kept,) = tmp_path.glob("ptxc-fault-*")
    assert "again:    ptxc compile --start-at simplify before.ir" in (kept / "report.txt").read_text()
    with broken("simplify", ruin):
        result = ptxc("compile", ROW_MAX, "--verify-each", cwd=tmp_path)
    assert "k_y_reduce: the verifier refuses the IR after simplify: " in result.err


def test_the_frontend_crashes(tmp_path: Path) -> None:
    with mock.patch("ptxc.frontend.lower.lower", side_effect=KeyError("x")):
        result = ptxc("check", VECTOR_ADD, cwd=tmp_path)
    assert result.status == 70
    assert f"{VECTOR_ADD}: k_z_pointwise: the frontend failed: KeyError: 'x'\n" in result.err
    (kept,) = tmp_path.glob("ptxc-fault-*")
    assert files(kept) == ["input-vector_add.json", "report.txt"]


@pytest.mark.parametrize(
    ("place", "what"),
    [
        ("ptxc.frontend.reader.read_graph", "reading failed: KeyError: 'x'"),
        ("ptxc.codegen.ptx.print_module", "printing PTX failed: KeyError: 'x'"),
        ("ptxc.cli.compile.write_all", "writing failed: KeyError: 'x'"),
        ("ptxc.cli.arguments.Parser.parse_args", "internal error: KeyError: 'x'"),
    ],
)
def test_anything_else_crashes(place: str, what: str, tmp_path: Path) -> None:
    with mock.patch(place, side_effect=KeyError("x")):
        result = ptxc("compile", VECTOR_ADD, cwd=tmp_path)
    assert (result.status, result.out) == (70, "")
    assert what in result.err
    assert "Traceback" not in result.err
    (kept,) = tmp_path.glob("ptxc-fault-*")
    assert "Traceback" in (kept / "report.txt").read_text()


def test_the_others_of_several_are_compiled_and_the_worst_status_counts(tmp_path: Path) -> None:
    real = cse.run

    def crash_on_one(kernel: Kernel) -> None:
        if kernel.name == "k_y_reduce__partial":
            raise ZeroDivisionError
        real(kernel)

    with broken("cse", crash_on_one):
        absent = TWO_KERNELS.with_name("absent.json")
        result = ptxc("compile", TWO_KERNELS, absent, VECTOR_ADD, "-o", "out", cwd=tmp_path)
    assert result.status == 70
    assert "ptxc: 2 of 3 files failed" in result.err
    assert files(tmp_path / "out") == ["vector_add.ptx"]


def test_the_same_fault_leaves_one_folder(tmp_path: Path) -> None:
    for _ in range(2):
        with broken("cse", crash):
            ptxc("compile", ROW_MAX, cwd=tmp_path)
    assert len(list(tmp_path.iterdir())) == 1


def test_standard_input_is_kept(tmp_path: Path) -> None:
    with broken("cse", crash):
        result = ptxc("compile", "-", stdin=ROW_MAX.read_bytes(), cwd=tmp_path)
    kept = folder(result.err, tmp_path)
    assert (kept / "input-stdin").read_bytes() == ROW_MAX.read_bytes()


def test_a_folder_that_cannot_be_written_goes_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with broken("cse", crash):
        result = ptxc("compile", ROW_MAX, cwd=Path("/proc"))
        monkeypatch.setattr("tempfile.tempdir", "/proc")
        nowhere = ptxc("compile", ROW_MAX, cwd=Path("/proc"))
        with mock.patch("tempfile.gettempdir", side_effect=FileNotFoundError(2, "No usable temporary directory")):
            absent = ptxc("compile", ROW_MAX, cwd=Path("/proc"))
    (kept,) = tmp_path.iterdir()
    assert repr(str(kept)) in result.err
    assert nowhere.status == absent.status == 70
    assert "please report it, with this:\n" in nowhere.err
    assert "please report it, with this:\n" in absent.err
    assert "ZeroDivisionError" in nowhere.err
