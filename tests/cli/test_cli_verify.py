"""`ptxc verify`: three answers, compared."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_lab import DATA, ROW_MAX, TWO_KERNELS, VECTOR_ADD, changed, process, ptxc
from conftest import ROOT

from ptxc.cli import main
from ptxc.cli.results import differences_table
from ptxc.errors import ToolchainError, UnsupportedError
from ptxc.reference import emmy, execution, statements
from ptxc.reference.compare import Difference

ANY_SIZE, ATOMIC = DATA / "any_size.json", DATA / "atomic.json"
BARRIER = "Sync(barrier_id=0, count=None, warp=False), "

#: z = x + y, the program of VECTOR_ADD, in Emmy's wire form.
PROGRAM: dict[str, Any] = {
    "inputs": ["x", "y"],
    "outputs": ["z"],
    "nodes": [
        {"id": "x", "op": "input", "outputs": [["x", "f32", [1000]]]},
        {"id": "y", "op": "input", "outputs": [["y", "f32", [1000]]]},
        {"id": "z", "op": "tensor.elementwise", "attrs": {"op": "add"}, "inputs": ["x", "y"],
         "outputs": [["z", "f32", [1000]]]},
    ],
}  # fmt: skip


def program(path: Path, **changes: Any) -> Path:
    path.write_text(json.dumps({**PROGRAM, **changes}))
    return path


def compared(out: str) -> list[list[str]]:
    """The rows of the table of differences: output, compared, elements, wrong."""
    rows = re.findall(r"^(\w+) +(ptxc|nvcc), (reference|nvcc) +([\d,]+) +([\d,]+) ", out, re.MULTILINE)
    return [list(row) for row in rows]


@pytest.mark.needs("nvcc")
def test_three_answers_agree() -> None:
    result = ptxc("verify", TWO_KERNELS)
    assert (result.status, result.err) == (0, "")
    notes = result.out.splitlines()[:3]
    assert [note.split()[0] for note in notes] == ["reference", "ptxc", "nvcc"]
    assert notes[0].endswith("Kernel IR, evaluated directly in float64")
    assert all(re.search(r"PTX on the CPU device, [\d,]+ instructions of threads$", note) for note in notes[1:])
    assert compared(result.out) == [
        [name, who, other, count, "0"]
        for name, count in (("y__partial", "8"), ("y", "1"))
        for who, other in (("ptxc", "reference"), ("nvcc", "reference"), ("ptxc", "nvcc"))
    ]
    assert result.out.splitlines()[-1].startswith("right")


@pytest.mark.needs("nvcc")
def test_sums_in_f16_have_a_tolerance_of_their_own() -> None:
    from conftest import ROOT

    golden = ROOT / "golden" / "tma_matmul_dynamic" / "kernel.ir.json"
    result = ptxc("verify", golden, "--target", "sm_120")
    assert result.status == 0, result.out
    assert result.out.splitlines()[-1] == "right; ptxc equals nvcc, bit by bit"
    result = ptxc("verify", golden, "--target", "sm_120", "--rtol", "2e-3", "--json")
    report = json.loads(result.out)
    assert (result.status, report["right"], report["equals_nvcc"]) == (1, False, True)


@pytest.mark.needs("nvcc")
def test_three_answers_of_a_sample_for_one_size_and_target() -> None:
    result = ptxc("verify", ANY_SIZE, "--set", "n=1000", "--ctas", "1,3", "--target", "sm_90", "--json")
    report = json.loads(result.out)
    assert (result.status, report["right"], report["integers"]) == (0, True, {"n": 1000})
    assert {(row["of"], row["against"]) for row in report["differences"]} == {
        ("ptxc", "reference"), ("nvcc", "reference"), ("ptxc", "nvcc"),
    }  # fmt: skip
    for row in report["differences"]:
        assert (row["name"], row["elements"], row["wrong"]) == ("z", 256 + 232, 0)
        assert row.keys() >= {"absolute", "relative", "ulp", "place"}
    assert report["answers"].keys() == {"reference", "ptxc", "nvcc"}


def test_without_nvcc(monkeypatch: pytest.MonkeyPatch) -> None:
    result = ptxc("verify", ROW_MAX, "--no-nvcc")
    assert result.status == 0
    assert compared(result.out) == [["y", "ptxc", "reference", "37", "0"]]
    assert "nvcc" not in result.out
    monkeypatch.setenv("PTXC_NVCC", "/nonexistent/nvcc")
    result = ptxc("verify", ROW_MAX)
    assert result.status == 0
    assert re.search(r"^nvcc +none: PTXC_NVCC is /nonexistent/nvcc", result.out, re.MULTILINE)
    assert compared(result.out) == [["y", "ptxc", "reference", "37", "0"]]


def test_sums_that_all_ctas_add_to_are_compared_in_a_sample_too() -> None:
    result = ptxc("verify", ATOMIC, "--no-nvcc", "--ctas", "1")
    assert result.status == 0
    assert compared(result.out) == [["y", "ptxc", "reference", "5", "0"]]


@pytest.mark.parametrize(
    ("ctas", "verdict", "elements"),
    [([], "right, as far as 8 of 37 CTAs tell", 8), (["--ctas", "all"], "right", 37), (["--ctas", "5,"], "1 of 37", 1)],
)
def test_grids_that_take_minutes(ctas: list[str], verdict: str, elements: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execution, "_WHOLE", 100_000)
    monkeypatch.setattr(execution, "_PART", 50_000)
    result = ptxc("verify", ROW_MAX, "--no-nvcc", *ctas)
    assert result.status == 0
    assert verdict in result.out.splitlines()[-1]
    assert compared(result.out) == [["y", "ptxc", "reference", str(elements), "0"]]


def test_a_grid_whose_first_cta_has_a_fault_is_executed_in_part_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(execution, "_WHOLE", 100_000)
    monkeypatch.setattr(execution, "_PART", 50_000)
    warp = "output='acc0_smem', index=("
    beyond = f"{warp}BinaryExpr(op='*', left=Literal(value=4, dtype='int'), right=Literal(value=4, dtype='int')),)"
    warp += "Var(name='warp'),)"
    result = ptxc("verify", changed(ROW_MAX, warp, beyond, tmp_path / "beyond.json"), "--no-nvcc", "--json")
    report = json.loads(result.out)
    assert "memory" in {finding["check"] for finding in report["findings"]}
    assert report["ctas"] == {"executed": 8, "all": 37}


@pytest.mark.parametrize("golden", ["row_sum_index64", "row_sum_grid64"])
def test_kernels_of_64_bits_are_decided(golden: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execution, "_PART", 10_000_000)
    result = ptxc("verify", ROOT / "golden" / golden / "kernel.ir.json", "--no-nvcc", "--json")
    report = json.loads(result.out)
    assert report["right"]
    assert 8 <= report["ctas"]["executed"] < report["ctas"]["all"]


def test_tolerances() -> None:
    assert ptxc("verify", VECTOR_ADD, "--no-nvcc").status == 0
    result = ptxc("verify", VECTOR_ADD, "--no-nvcc", "--rtol", "0")
    assert result.status == 1
    match = re.fullmatch(
        r"wrong: z of ptxc differs from reference's in (\d+) of 1000 elements", result.out.splitlines()[-1]
    )
    assert match
    assert int(match[1]) > 100
    assert ptxc("verify", VECTOR_ADD, "--no-nvcc", "--rtol", "0", "--atol", "1e-5").status == 0


def test_integers_are_shown_with_all_digits() -> None:
    difference = Difference("y", 1, 1, 1.0, 1.0, 1.0, (0,), 2**30 + 1, 2**30)
    assert "1073741825, not 1073741824, at [0]" in differences_table([(("y",), difference)], ("output",))


def test_what_a_kernel_computes_in_f16_counts(tmp_path: Path) -> None:
    """A sum of f32 that is rounded to f16 on the way: the last bit of f16 may go either way."""
    halves = changed(VECTOR_ADD, "args=('in0', 'in1'), dtype=DataType(name='f32', np=dtype('float32'), nbytes=4)",
                     "args=('in0', 'in1'), dtype=DataType(name='f16', np=dtype('float16'), nbytes=2)",
                     tmp_path / "halves.json")  # fmt: skip
    result = ptxc("verify", halves, "--no-nvcc")
    assert (result.status, result.out.splitlines()[-1]) == (0, "right")
    assert ptxc("verify", halves, "--no-nvcc", "--rtol", "1e-5").status == 1


def test_findings_make_it_wrong(tmp_path: Path) -> None:
    racy = changed(ROW_MAX, BARRIER, "", tmp_path / "racy.json")
    result = ptxc("verify", racy, "--no-nvcc")
    assert result.status == 1
    assert compared(result.out) == [["y", "ptxc", "reference", "37", "0"]]
    assert re.search(r"^k_y_reduce: race: PTX line \d+", result.out, re.MULTILINE)
    assert re.search(r"^ +\| body\[0\]\.body\[\d+\] TreeHalve", result.out, re.MULTILINE)
    assert result.out.splitlines()[-1] == "wrong: 1 finding"
    (finding,) = json.loads(ptxc("verify", racy, "--no-nvcc", "--json").out)["findings"]
    assert (finding["of"], finding["check"]) == ("ptxc", "race")
    assert ptxc("verify", racy, "--no-nvcc", "--sanitize", "none").status == 0


@pytest.mark.needs("nvcc")
def test_findings_in_nvccs_ptx_do_not_count() -> None:
    """Emmy's text has threads beyond the edge leave before a barrier; ptxc's keeps them."""
    from conftest import ROOT

    result = ptxc("verify", ROOT / "golden" / "reverse_rows_barrier" / "kernel.ir.json")
    assert result.status == 0
    assert re.search(r"^not counted, of nvcc's PTX: k_reverse_rows: sync: PTX line", result.out, re.MULTILINE)
    assert result.out.splitlines()[-1].startswith("right")


def test_accesses_that_the_reference_sees(tmp_path: Path) -> None:
    wide = changed(VECTOR_ADD, "extent=Dim(1000)", "extent=Dim(1001)", tmp_path / "k.json")
    result = ptxc("verify", wide, "--no-nvcc")
    assert result.status == 1
    place = "k_z_pointwise: body[0].body[0]: thread 232 of CTA 3 reads x[1000], which has 1000 elements"
    assert place in result.out
    assert result.out.splitlines()[-1] == "wrong: 3 faults, 3 findings"
    assert place in json.loads(ptxc("verify", wide, "--no-nvcc", "--json").out)["faults"]


def test_the_program_as_the_reference(tmp_path: Path) -> None:
    path = program(tmp_path / "p.json")
    result = ptxc("verify", VECTOR_ADD, "--no-nvcc", "--program", path)
    assert (result.status, result.err) == (0, "")
    assert result.out.splitlines()[0].endswith("Emmy's NumPy evaluation of the program, in float64")
    assert compared(result.out) == [["z", "ptxc", "reference", "1,000", "0"]]
    path.write_text(path.read_text().replace('"add"', '"subtract"'))
    assert ptxc("verify", VECTOR_ADD, "--no-nvcc", "--program", path).status == 1
    assert ptxc("verify", VECTOR_ADD, "--no-nvcc", "--program", path, "--ctas", "2").status == 1


def test_programs_that_do_not_fit(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    for text, expected in (
        ("{", "p.json: this is no program of Emmy's"),
        ('{"nodes": {}, "nodes": {}}', "p.json: a JSON object names 'nodes' twice; keep one of the two"),
        (json.dumps(PROGRAM).replace('"x"', '"q"'), "p.json: the program's input 'q' is no input of the kernels"),
        (json.dumps(PROGRAM).replace('"z"', '"q"'), "p.json: the program computes q, the kernels write z"),
    ):
        path.write_text(text)
        assert expected in ptxc("verify", VECTOR_ADD, "--program", "p.json", cwd=tmp_path).message
    assert "cannot read 'absent.json'" in ptxc("verify", VECTOR_ADD, "--program", "absent.json").message


def test_a_statement_that_the_reference_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {kind: rule for kind, rule in statements.STATEMENTS.items() if kind.__name__ != "TreeHalve"}
    monkeypatch.setattr(statements, "STATEMENTS", known)
    message = ptxc("verify", ROW_MAX, "--no-nvcc").message
    assert "there is nothing to compare with (reference: none: " in message
    assert "the reference does not evaluate TreeHalve" in message


@pytest.mark.needs("nvcc")
def test_nvcc_alone_is_compared_with(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statements, "STATEMENTS", {})
    result = ptxc("verify", VECTOR_ADD)
    assert result.status == 0
    assert compared(result.out) == [["z", "ptxc", "nvcc", "1,000", "0"]]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([], []), (["--math", "fast"], ["-use_fast_math"]), (["--no-fma"], ["--fmad=false"]),
        (["--math", "fast", "--no-fma"], ["-use_fast_math", "--fmad=false"]),
    ],
)  # fmt: skip
def test_nvcc_is_told_the_arithmetic(
    options: list[str], expected: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    seen: list[tuple[str, list[str]]] = []

    def refuse(kernel: Any, target: str, options: list[str]) -> str:
        seen.append((target, options))
        raise ToolchainError("not today")

    monkeypatch.setattr(emmy, "nvcc_ptx", refuse)
    nvcc = tmp_path / "nvcc"
    nvcc.write_text("#!/bin/sh\n")
    nvcc.chmod(0o755)
    monkeypatch.setenv("PTXC_NVCC", str(nvcc))
    result = ptxc("verify", VECTOR_ADD, "--target", "sm_90", *options)
    assert result.status == 0
    assert "nvcc       none: not today" in result.out
    assert seen == [("sm_90", expected)]


def test_a_lowering_of_emmys_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any) -> Any:
        raise UnsupportedError("Emmy's CUDA lowering fails: ValueError: odd")

    monkeypatch.setattr(emmy, "cuda_kernels", fail)
    monkeypatch.setattr("ptxc.toolchain.find_tool", Path)
    result = ptxc("verify", VECTOR_ADD)
    assert result.status == 0
    assert "nvcc       none: Emmy's CUDA lowering fails: ValueError: odd" in result.out


def test_a_nan_in_one_answer_only_is_a_difference(tmp_path: Path) -> None:
    given = tmp_path / "in.npz"
    x = np.ones(1000, np.float32)
    x[3] = np.nan
    np.savez(given, x=x)
    assert ptxc("verify", VECTOR_ADD, "--no-nvcc", "--inputs", given).status == 0
    path = program(tmp_path / "p.json")
    path.write_text(path.read_text().replace('"add"', '"less"'))
    report = json.loads(ptxc("verify", VECTOR_ADD, "--no-nvcc", "--inputs", given, "--program", path, "--json").out)
    assert report["differences"][0]["relative"] == "inf"


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ([], "no file is given"),
        ([VECTOR_ADD, ROW_MAX], "2 files are given"),
        (["absent.json"], "absent.json: cannot read the file"),
        ([VECTOR_ADD, "--expect", "x"], "there is no option '--expect'"),
        ([VECTOR_ADD, "--set", "n=1"], "the kernel has no runtime integer 'n'"),
        ([VECTOR_ADD, "--ctas", "9,"], "there is no CTA 9, the grid has 4"),
        ([VECTOR_ADD, "--ctas", "1,1"], "CTA 1 is given twice, '1,1'; give each once"),
        ([VECTOR_ADD, "--program", ""], "--program: it is empty"),
        ([VECTOR_ADD, "--inputs", "absent.npz"], "cannot read 'absent.npz'"),
    ],
    ids=lambda item: "" if isinstance(item, str) else " ".join(getattr(part, "name", part) for part in item[1:]),
)  # fmt: skip
def test_wrong_usage(args: list[Any], message: str) -> None:
    assert message in ptxc("verify", *args).message


def test_standard_input(tmp_path: Path) -> None:
    done = process("verify", "-", "--no-nvcc", cwd=tmp_path, stdin=VECTOR_ADD.read_bytes())
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.endswith(b"\nright\n")


@pytest.mark.parametrize("name", ["tma_matmul_dynamic", "wgmma_matmul"])
def test_a_tensor_map_of_nothing(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    graph = json.loads((ROOT / "golden" / name / "kernel.ir.json").read_text())
    graph["nodes"]["x0"]["outputs"][0]["shape"][-1] = 0
    file = tmp_path / "empty.json"
    file.write_text(json.dumps(graph))
    for command in (["compile"], ["verify", "--no-nvcc"]):
        assert main([*command, str(file), "--target", "sm_90a"]) == 2
        said = capsys.readouterr().err
        assert "TmaDescriptor _desc_a: 'x0' has no elements" in said
        assert said.count("\n") == 1


def test_a_tensor_map_of_nothing_at_run_time(capsys: pytest.CaptureFixture[str]) -> None:
    file = str(ROOT / "golden" / "tma_matmul_dynamic" / "kernel.ir.json")
    assert main(["verify", "--no-nvcc", file, "--target", "sm_90a", "--set", "seq_len=0"]) in (0, 2)
    assert "internal error" not in capsys.readouterr().err
