"""`ptxc compile` and `ptxc check`: what goes where."""

from __future__ import annotations

import gzip
import json
import os
import stat
import threading
from pathlib import Path

import pytest
from cli_lab import COPIES, KERNELS, ROW_MAX, TWO_KERNELS, VECTOR_ADD, changed, files, ptxc

import ptxc as api
from ptxc.cli.arguments import DEFAULT_TARGET
from ptxc.compilation import Options
from ptxc.toolchain import assemble


def ptx_of(path: Path, target: str = "sm_89") -> str:
    return api.compile_module(path, target=target).ptx


# ------------------------------------------------------------------------------------------------ input and output


@pytest.mark.parametrize("path", KERNELS, ids=lambda path: path.stem)
def test_prints_the_ptx_that_the_api_gives(path: Path) -> None:
    result = ptxc("compile", path)
    assert (result.status, result.err) == (0, "")
    assert result.out == ptx_of(path)
    assert result.out.count(".entry") == (2 if path == TWO_KERNELS else 1)


def test_a_file_alone_is_compiled() -> None:
    expected = ptxc("compile", VECTOR_ADD, "--target", "sm_80").out
    assert ptxc(VECTOR_ADD, "--target", "sm_80").out == expected
    assert ptxc("--target", "sm_80", VECTOR_ADD).out == expected
    assert ptxc("-", "--target", "sm_80", stdin=VECTOR_ADD.read_bytes()).out == expected


def test_a_file_with_the_name_of_no_kind_is_compiled(tmp_path: Path) -> None:
    (tmp_path / "kernel").write_bytes(VECTOR_ADD.read_bytes())
    assert ptxc("kernel", cwd=tmp_path).out == ptx_of(VECTOR_ADD)


def test_standard_input_and_gzip(tmp_path: Path) -> None:
    packed = tmp_path / "k.ir.json.gz"
    packed.write_bytes(gzip.compress(VECTOR_ADD.read_bytes()))
    expected = ptx_of(VECTOR_ADD)
    assert ptxc("compile", packed).out == expected
    assert ptxc("compile", "-", stdin=VECTOR_ADD.read_bytes()).out == expected
    assert ptxc("compile", "-", stdin=packed.read_bytes()).out == expected


def test_files_that_look_like_options(tmp_path: Path) -> None:
    (tmp_path / "-k.json").write_bytes(VECTOR_ADD.read_bytes())
    assert ptxc("compile", "--", "-k.json", cwd=tmp_path).out == ptx_of(VECTOR_ADD)
    assert ptxc("compile", VECTOR_ADD, "-o", "out", "--", "-k.json", cwd=tmp_path).status == 0
    assert any(name.endswith("/-k.ptx") for name in files(tmp_path))


def test_a_pipe_is_read_once(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=(VECTOR_ADD.read_bytes(),))
    writer.start()
    assert ptxc("compile", pipe).out == ptx_of(VECTOR_ADD)
    writer.join()


def test_output_file(tmp_path: Path) -> None:
    result = ptxc("compile", VECTOR_ADD, "-o", tmp_path / "k.ptx")
    assert result == (0, "", "")
    assert (tmp_path / "k.ptx").read_text() == ptx_of(VECTOR_ADD)
    assert files(tmp_path) == ["k.ptx"]


def test_output_folder_of_one_file(tmp_path: Path) -> None:
    assert ptxc("compile", VECTOR_ADD, "-o", f"{tmp_path}/new/").status == 0
    assert ptxc("compile", ROW_MAX, "-o", tmp_path / "new", "--emit", "ir").status == 0
    assert files(tmp_path) == ["new/row_max.ir", "new/vector_add.ptx"]


def test_several_files_go_to_a_folder_in_any_order_with_options(tmp_path: Path) -> None:
    result = ptxc("compile", VECTOR_ADD, "-o", tmp_path, ROW_MAX, "--target", "sm_90", TWO_KERNELS)
    assert result == (0, "", "")
    assert files(tmp_path) == ["row_max.ptx", "two_kernels.ptx", "vector_add.ptx"]
    assert (tmp_path / "row_max.ptx").read_text() == ptx_of(ROW_MAX, target="sm_90")


def test_folders_of_several_files_are_kept(tmp_path: Path) -> None:
    for name in ("small/deep/k.ir.json", "large/k.json", "large/other.json.gz"):
        path = tmp_path / "in" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress(VECTOR_ADD.read_bytes()) if name.endswith("gz") else VECTOR_ADD.read_bytes())
    given = [path for path in (tmp_path / "in").rglob("*.*") if path.is_file()]
    result = ptxc("compile", *given, "-", "-o", tmp_path / "out", stdin=VECTOR_ADD.read_bytes())
    assert result == (0, "", "")
    assert files(tmp_path / "out") == ["large/k.ptx", "large/other.ptx", "small/deep/k.ptx", "stdin.ptx"]


def test_split_makes_a_file_of_each_kernel(tmp_path: Path) -> None:
    assert ptxc("compile", TWO_KERNELS, "--split", "-o", tmp_path / "one").status == 0
    assert files(tmp_path / "one") == ["k_y_reduce.ptx", "k_y_reduce__partial.ptx"]
    for kernel in api.compile(TWO_KERNELS):
        assert (tmp_path / "one" / f"{kernel.name}.ptx").read_text() == kernel.ptx
    assert ptxc("compile", TWO_KERNELS, VECTOR_ADD, "--split", "-o", tmp_path / "two").status == 0
    assert files(tmp_path / "two") == [
        "two_kernels/k_y_reduce.ptx",
        "two_kernels/k_y_reduce__partial.ptx",
        "vector_add/k_z_pointwise.ptx",
    ]


def test_split_of_kernels_with_one_name(tmp_path: Path) -> None:
    twins = changed(TWO_KERNELS, "k_y_reduce__partial", "k_y_reduce", tmp_path / "twins.json")
    assert "two kernels are called 'k_y_reduce'" in ptxc("compile", twins).message
    assert ptxc("compile", twins, "--split", "-o", tmp_path / "out").status == 0
    assert files(tmp_path / "out") == ["k_y_reduce.2.ptx", "k_y_reduce.ptx"]


def test_a_device_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    assert ptxc("compile", VECTOR_ADD, "-o", os.devnull) == (0, "", "")
    assert stat.S_ISCHR(os.stat(os.devnull).st_mode)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()))
    reader.start()
    assert ptxc("compile", VECTOR_ADD, "-o", pipe).status == 0
    reader.join()
    assert read == [ptx_of(VECTOR_ADD)]
    assert pipe.is_fifo()


def test_a_link_is_followed_and_permissions_stay(tmp_path: Path) -> None:
    (tmp_path / "real.ptx").write_text("old")
    (tmp_path / "real.ptx").chmod(0o640)
    (tmp_path / "link.ptx").symlink_to("real.ptx")
    assert ptxc("compile", VECTOR_ADD, "-o", tmp_path / "link.ptx").status == 0
    assert (tmp_path / "link.ptx").is_symlink()
    assert (tmp_path / "real.ptx").read_text() == ptx_of(VECTOR_ADD)
    assert stat.S_IMODE((tmp_path / "real.ptx").stat().st_mode) == 0o640


def test_a_new_file_has_the_permissions_of_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        ptxc("compile", VECTOR_ADD, "-o", tmp_path / "k.ptx")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "k.ptx").stat().st_mode) == 0o640


# --------------------------------------------------------------------------------------------------------- options


@pytest.mark.parametrize("target", ["sm_80", "sm_90a", "sm_120"])
def test_target(target: str) -> None:
    assert f".target {target}\n" in ptxc("compile", VECTOR_ADD, "--target", target).out


def test_the_default_target_is_the_documented_one() -> None:
    assert Options().target == DEFAULT_TARGET
    assert f".target {DEFAULT_TARGET}\n" in ptxc("compile", VECTOR_ADD).out


def test_ptx_version() -> None:
    assert ptxc("compile", VECTOR_ADD).out.startswith(".version 7.8\n")
    assert ptxc("compile", VECTOR_ADD, "--ptx-version", "8.4").out.startswith(".version 8.4\n")


def test_math(tmp_path: Path) -> None:
    quotient = changed(VECTOR_ADD, "ElementwiseImpl('add')", "ElementwiseImpl('divide')", tmp_path / "k.json")
    assert "div.rn.f32" in ptxc("compile", quotient).out
    assert "div.rn.f32" in ptxc("compile", quotient, "--math", "precise").out
    assert "div.rn.f32" not in ptxc("compile", quotient, "--math", "fast").out


def test_no_fma(tmp_path: Path) -> None:
    product = "Assign(name='p', op=ElementwiseImpl('multiply'), args=('in0', 'in1'), dtype=None), Assign("
    fused = changed(VECTOR_ADD, "Assign(", product, tmp_path / "k.json")
    fused = changed(fused, "'add'), args=('in0'", "'add'), args=('p'", fused)
    assert "fma.rn.f32" in ptxc("compile", fused).out
    assert "fma" not in ptxc("compile", fused, "--no-fma").out


def test_emit_ir_is_what_start_at_print_reads(tmp_path: Path) -> None:
    ir = ptxc("compile", TWO_KERNELS, "--emit", "ir").out
    assert ir.startswith("kernel k_y_reduce__partial target sm_89 threads 64 registers\n")
    (tmp_path / "k.ir").write_text(ir)
    assert ptxc("compile", tmp_path / "k.ir", "--start-at", "print").out == ptx_of(TWO_KERNELS)


@pytest.mark.needs("ptxas")
def test_emit_cubin(tmp_path: Path) -> None:
    assert ptxc("compile", ROW_MAX, "--emit", "cubin", "-o", tmp_path / "k.cubin").status == 0
    assert (tmp_path / "k.cubin").read_bytes() == assemble(ptx_of(ROW_MAX), "sm_89").cubin


@pytest.mark.needs("ptxas")
def test_assemble_reports_what_each_kernel_uses() -> None:
    result = ptxc("compile", TWO_KERNELS, "--assemble")
    assert result.out == ptx_of(TWO_KERNELS)
    heading, names, *rows = result.err.splitlines()
    assert heading == "ptxas for sm_89, sizes in bytes:"
    assert names.split()[:2] == ["kernel", "registers"]
    used = assemble(ptx_of(TWO_KERNELS), "sm_89").kernels
    assert {row.split()[0]: int(row.split()[1]) for row in rows} == {n: u.registers for n, u in used.items()}


@pytest.mark.needs("ptxas")
def test_assemble_names_each_of_several_files(tmp_path: Path) -> None:
    result = ptxc("compile", VECTOR_ADD, ROW_MAX, "--assemble", "-o", tmp_path)
    headings = [line for line in result.err.splitlines() if "sizes in bytes" in line]
    assert headings == [f"{path}: ptxas for sm_89, sizes in bytes:" for path in (VECTOR_ADD, ROW_MAX)]


def test_assemble_without_ptxas_says_so_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PTXC_PTXAS", str(tmp_path / "nothing"))
    result = ptxc("compile", VECTOR_ADD, ROW_MAX, "--assemble", "-o", tmp_path / "out")
    assert "PTXC_PTXAS" in result.message
    assert files(tmp_path) == []


# ------------------------------------------------------------------------------------------------------ launch.json


def test_launch_json(tmp_path: Path) -> None:
    result = ptxc("compile", TWO_KERNELS, "--launch-json", tmp_path / "l.json")
    assert (result.status, result.out) == (0, ptx_of(TWO_KERNELS))
    first, second = json.loads((tmp_path / "l.json").read_text())["kernels"]
    assert (first["name"], second["name"]) == ("k_y_reduce__partial", "k_y_reduce")
    assert first["target"] == "sm_89"
    assert (first["grid"], first["block"]) == ([8, 1, 1], [64, 1, 1])
    assert (first["static_shared"], first["dynamic_shared"]) == (8, 0)
    assert [(p["name"], p["role"], p["type"], p["dtype"], p["shape"]) for p in first["parameters"]] == [
        ("x", "input", "u64", "f32", [1000]),
        ("y__partial", "output", "u64", "f32", [8]),
    ]


def test_launch_json_of_runtime_integers_and_zeros() -> None:
    text = ptxc("compile", VECTOR_ADD.with_name("any_size.json"), "-o", os.devnull, "--launch-json", "-").out
    (kernel,) = json.loads(text)["kernels"]
    assert kernel["grid"][0] == "((n + 255) / 256)"
    assert kernel["runtime"] == [{"name": "n", "sizes": [["x", 0], ["y", 0], ["z", 0]], "serial": 0}]
    assert kernel["parameters"][-1]["role"] == "runtime"
    text = ptxc("compile", VECTOR_ADD.with_name("atomic.json"), "-o", os.devnull, "--launch-json", "-").out
    assert json.loads(text)["kernels"][0]["zero"] == ["y"]


def test_launch_json_of_several_files(tmp_path: Path) -> None:
    result = ptxc("compile", VECTOR_ADD, ROW_MAX, "-o", tmp_path, "--launch-json", tmp_path)
    assert result == (0, "", "")
    assert files(tmp_path) == ["row_max.launch.json", "row_max.ptx", "vector_add.launch.json", "vector_add.ptx"]


def test_a_launch_json_is_the_same_as_the_dump_s(tmp_path: Path) -> None:
    ptxc("compile", ROW_MAX, "--launch-json", tmp_path / "l.json", "--dump-dir", tmp_path / "d")
    assert (tmp_path / "l.json").read_text() == (tmp_path / "d" / "launch.json").read_text()


# ----------------------------------------------------------------------------------------------------------- check


def test_check_is_silent_about_what_is_right() -> None:
    assert ptxc("check", *KERNELS) == (0, "", "")


def test_check_reports_every_file_and_every_kernel(tmp_path: Path) -> None:
    two = changed(TWO_KERNELS, "input='", "input='no_", tmp_path / "two.json")
    result = ptxc("check", VECTOR_ADD, tmp_path / "absent.json", two, COPIES)
    assert (result.status, result.out) == (2, "")
    assert [line.split(": ")[2:4] for line in result.err.splitlines()[:-1]] == [
        [str(tmp_path / "absent.json"), "cannot read the file"],
        [str(two), "k_y_reduce__partial"],
        [str(two), "k_y_reduce"],
    ]
    assert result.err.splitlines()[-1] == "ptxc: 2 of 4 files failed"


def test_check_takes_the_target_into_account() -> None:
    assert "sm_75 has no cp.async" in ptxc("check", COPIES, "--target", "sm_75").message


def test_check_needs_no_toolchain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CUDA_HOME", raising=False)
    assert ptxc("check", ROW_MAX).status == 0
