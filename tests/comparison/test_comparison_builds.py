"""Both compilers' builds of real kernels, and what is kept of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import ROOT

from ptxc.comparison import compare_file
from ptxc.comparison.work import Unit
from ptxc.compilation import Options
from ptxc.errors import InputError
from ptxc.store import Store

ROW_SUM = ROOT / "golden" / "row_sum_tree" / "kernel.ir.json"
PRODUCT = ROOT / "golden" / "mma_matmul_f16" / "kernel.ir.json"

pytestmark = [pytest.mark.needs(tool) for tool in ("nvcc", "ptxas", "nvdisasm")]


def test_a_reduction_and_a_product(tmp_path: Path) -> None:
    kept = Store(tmp_path, 1 << 24)
    (row,) = compare_file(ROW_SUM, Options(target="sm_89"), kept)
    assert (row.kernel, row.target, row.notes, row.unit) == ("k_y_reduce", "sm_89", (), Unit.FLOAT)
    (product,) = compare_file(PRODUCT, Options(target="sm_80"), kept)
    assert (product.notes, product.unit) == ((), Unit.PRODUCT)
    for build in (*(row.both or ()), *(product.both or ())):
        assert build.seconds > build.ptx_seconds > 0
        assert 0 < build.resources.registers < 256
        assert 0 < build.occupancy.share <= 1
        assert build.code.size > build.code.hottest(Unit.KERNEL).depth == 0
    assert product.ptxc is not None
    assert product.ptxc.code.loops
    assert product.per_work == pytest.approx(1, abs=0.5)
    assert product.ptxc.resources.shared == 12288


def test_only_what_changed_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options, kept = Options(target="sm_89"), Store(tmp_path, 1 << 24)
    (first,) = compare_file(ROW_SUM, options, kept)
    for name in ("compile_cuda", "cuda_texts", "assemble"):
        monkeypatch.setattr(f"ptxc.comparison.builds.{name}", lambda *_: pytest.fail("it is known"))
    (again,) = compare_file(ROW_SUM, options, kept)
    assert again.nvcc == first.nvcc
    monkeypatch.undo()
    monkeypatch.setattr("ptxc.comparison.builds.compile_cuda", lambda *_: pytest.fail("it is known"))
    (changed,) = compare_file(ROW_SUM, Options(target="sm_89", disable=("cse",)), kept)
    assert changed.nvcc == first.nvcc
    assert changed.ptxc is not None


def test_volta_is_compared_as_turing(tmp_path: Path) -> None:
    (row,) = compare_file(ROW_SUM, Options(target="sm_70"), Store(tmp_path, 1 << 24))
    assert (row.target, row.notes) == ("sm_70", ("built for sm_75: CUDA 13 does not know sm_70",))
    assert [build.target for build in row.both or ()] == ["sm_75", "sm_75"]


def test_what_a_compiler_cannot_build_is_a_note(tmp_path: Path) -> None:
    kept = Store(tmp_path, 1 << 24)
    (row,) = compare_file(ROOT / "golden" / "matmul_zero_prologue" / "kernel.ir.json", Options(), kept)
    assert (row.ptxc is None, row.nvcc, row.per_work) == (False, None, None)
    assert row.notes[0].startswith("nvcc: Emmy's CUDA lowering fails: ValueError")
    (row,) = compare_file(PRODUCT, Options(target="sm_75"), kept)
    assert row.both is None
    assert row.notes[0].startswith("ptxc: ")
    assert "sm_75 has no cp.async" in row.notes[0]
    assert row.to_dict()["ptxc"] is None


def test_files_that_are_no_kernels(tmp_path: Path) -> None:
    kept = Store(tmp_path / "kept", 1 << 20)
    with pytest.raises(InputError, match=r"no\.json: cannot read the file: No such file"):
        compare_file(tmp_path / "no.json", Options(), kept)
    (tmp_path / "odd.json").write_text("[]")
    with pytest.raises(InputError, match=r"odd\.json: "):
        compare_file(tmp_path / "odd.json", Options(), kept)
