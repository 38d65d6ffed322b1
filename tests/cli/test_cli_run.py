"""`ptxc run`: memory, launches, comparisons, findings, and every way to ask for something else."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_lab import COPIES, DATA, ROW_MAX, TWO_KERNELS, VECTOR_ADD, changed, files, process, ptxc

from ptxc import driver
from ptxc.errors import InternalError, UnsupportedError

ANY_SIZE, ATOMIC = DATA / "any_size.json", DATA / "atomic.json"
#: The only barrier of ROW_MAX, and what it stands before.
BARRIER = "Sync(barrier_id=0, count=None, warp=False), "


def arrays(path: Path) -> dict[str, Any]:
    with np.load(path) as file:
        return dict(file)


def saved(path: Path, **content: Any) -> Path:
    np.savez(path, **content)
    return path


@pytest.fixture
def racy(tmp_path: Path) -> Path:
    """ROW_MAX without its barrier."""
    return changed(ROW_MAX, BARRIER, "", tmp_path / "racy.json")


@pytest.fixture
def compiled(tmp_path: Path) -> tuple[Path, Path]:
    """VECTOR_ADD as PTX, and its launch description."""
    ptx, launch = tmp_path / "k.ptx", tmp_path / "k.launch.json"
    assert ptxc("compile", VECTOR_ADD, "-o", ptx, "--launch-json", launch).status == 0
    return ptx, launch


# ---------------------------------------------------------------------------------------------- what is right


def test_a_run_says_what_was_executed_and_written() -> None:
    result = ptxc("run", VECTOR_ADD)
    assert (result.status, result.err) == (0, "")
    lines = result.out.splitlines()
    assert re.fullmatch(r"kernel +grid +block +CTAs run +instructions of threads", lines[0])
    assert re.fullmatch(r"k_z_pointwise +4 +256 +4 +[\d,]+", lines[1])
    assert re.search(r"^x +f32\[1000\] +random$", result.out, re.MULTILINE)
    assert re.search(r"^z +f32\[1000\] +written +-\S+ +\S+ +\S+$", result.out, re.MULTILINE)
    assert lines[-1] == "no findings (memory, race, init, sync)"


def test_outputs_are_written_and_compared(tmp_path: Path) -> None:
    assert ptxc("run", VECTOR_ADD, "-o", "z.npz", cwd=tmp_path).status == 0
    assert files(tmp_path) == ["z.npz"]
    result = ptxc("run", VECTOR_ADD, "--expect", tmp_path / "z.npz")
    assert result.status == 0
    assert re.search(r"^z +1,000 +0 +0\.00e\+00 +0\.00e\+00 +0\.0$", result.out, re.MULTILINE)
    assert result.out.splitlines()[-1] == "right, no findings (memory, race, init, sync)"


def test_a_difference_is_wrong(tmp_path: Path) -> None:
    ptxc("run", VECTOR_ADD, "-o", tmp_path / "z.npz")
    z = arrays(tmp_path / "z.npz")["z"]
    z[[5, 7]] += [0.5, 0.25]
    expected = saved(tmp_path / "e.npz", z=z)
    result = ptxc("run", VECTOR_ADD, "--expect", expected)
    assert result.status == 1
    assert re.search(r"^z +1,000 +2 +5\.00e-01 .* at \[5\]$", result.out, re.MULTILINE)
    assert result.out.splitlines()[-1] == "wrong: z differs in 2 of 1000 elements"
    assert ptxc("run", VECTOR_ADD, "--expect", expected, "--atol", "0.6").status == 0
    assert ptxc("run", VECTOR_ADD, "--expect", expected, "--rtol", "1").status == 0
    assert ptxc("run", VECTOR_ADD, "--expect", expected, "--atol", "0.3").status == 1


def test_inputs_that_are_given(tmp_path: Path) -> None:
    x = np.arange(1000.0)
    given = saved(tmp_path / "in.npz", x=x, y=np.ones(1000, np.float32))
    result = ptxc("run", VECTOR_ADD, "--inputs", given, "-o", tmp_path / "out.npz")
    assert result.out.count(" given") == 2
    assert np.array_equal(arrays(tmp_path / "out.npz")["z"], x + 1)


def test_random_inputs_are_those_of_the_seed(tmp_path: Path) -> None:
    found = []
    for at, options in enumerate(([], ["--seed", "0"], ["--seed", "1"])):
        ptxc("run", VECTOR_ADD, "-o", tmp_path / f"{at}.npz", *options)
        found.append((tmp_path / f"{at}.npz").read_bytes())
    assert found[0] == found[1]
    assert found[0] != found[2]


def test_runtime_sizes(tmp_path: Path) -> None:
    result = ptxc("run", ANY_SIZE)
    assert result.err == "ptxc: note: n is 128, the default; choose with --set n=N\n"
    assert "f32[128]" in result.out
    chosen = ptxc("run", ANY_SIZE, "--set", "n=50")
    assert (chosen.status, chosen.err) == (0, "")
    assert "f32[50]" in chosen.out
    given = saved(tmp_path / "in.npz", x=np.ones(70))
    shaped = ptxc("run", ANY_SIZE, "--inputs", given)
    assert (shaped.status, shaped.err) == (0, "")
    assert "f32[70]" in shaped.out
    message = ptxc("run", ANY_SIZE, "--inputs", given, "--set", "n=50").message
    assert "n is 50 (as chosen) and 70 (dimension 0 of x)" in message


@pytest.mark.parametrize("command", [["run"], ["verify"]])
def test_a_grid_without_ctas_is_not_launched(command: list[str]) -> None:
    result = ptxc(*command, ANY_SIZE, "--set", "n=0")
    assert result.status == 0
    assert result.err == "ptxc: note: the grid of k_z_pointwise has no CTAs, so that nothing is launched\n"
    if command == ["run"]:
        assert re.search(r"^k_z_pointwise +0 +256 +0 +0$", result.out, re.MULTILINE)
        assert re.search(r"^z +f32\[0\] +written +- +- +-$", result.out, re.MULTILINE)
    assert "there is no CTA 0, the grid has 0" in ptxc(*command, ANY_SIZE, "--set", "n=0", "--ctas", "0,").message


def test_a_buffer_that_memory_does_not_hold(compiled: tuple[Path, Path], tmp_path: Path) -> None:
    ptx, launch = compiled
    for size in ("1000000000000000", "100000000000000000000000000"):
        huge = changed(launch, "1000", size, tmp_path / "huge.json")
        message = ptxc("run", ptx, "--launch", huge).message
        assert f"there is no memory for 'x', which is f32[{size}]; choose smaller sizes" in message


def test_kernels_of_a_graph_share_what_they_write(tmp_path: Path) -> None:
    x = np.random.default_rng(1).standard_normal(1000).astype(np.float32)
    given, out = saved(tmp_path / "in.npz", x=x), tmp_path / "out.npz"
    result = ptxc("run", TWO_KERNELS, "--inputs", given, "-o", out)
    assert result.status == 0
    assert [line.split()[0] for line in result.out.splitlines()[1:3]] == ["k_y_reduce__partial", "k_y_reduce"]
    found = arrays(out)
    assert set(found) == {"y__partial", "y"}
    assert np.allclose(found["y"], x.sum(), rtol=1e-5)


def test_what_is_added_to_is_zero_before_the_launch(tmp_path: Path) -> None:
    given = saved(tmp_path / "in.npz", x=np.ones((7, 5, 11)))
    assert ptxc("run", ATOMIC, "--inputs", given, "-o", tmp_path / "out.npz").status == 0
    assert arrays(tmp_path / "out.npz")["y"].tolist() == [77] * 5


def test_a_sample_of_the_ctas(tmp_path: Path) -> None:
    result = ptxc("run", VECTOR_ADD, "--ctas", "2", "-o", tmp_path / "z.npz")
    assert (result.status, result.err) == (0, "")
    assert re.search(r"^k_z_pointwise +4 +256 +2 ", result.out, re.MULTILINE)
    z = arrays(tmp_path / "z.npz")["z"]
    assert np.isnan(z).sum() == 512
    z[:256] += 1
    z[256:768] = 0  # of CTAs that are not executed
    expected = saved(tmp_path / "e.npz", z=z)
    compared = ptxc("run", VECTOR_ADD, "--ctas", "0,3", "--expect", expected)
    assert compared.out.splitlines()[-1] == "wrong: z differs in 256 of 488 elements"
    assert ptxc("run", VECTOR_ADD, "--ctas", "3,", "--expect", expected).status == 0


def test_what_was_never_written_is_said(tmp_path: Path) -> None:
    short = changed(VECTOR_ADD, "extent=Dim(1000)", "extent=Dim(990)", tmp_path / "k.json")
    result = ptxc("run", short)
    assert result.status == 0
    assert result.err == "ptxc: note: 10 of 1000 elements of z were never written\n"
    assert json.loads(ptxc("run", short, "--json").out)["unwritten"] == {"z": 10}


# ------------------------------------------------------------------------------------------------------- findings


def test_a_race_has_its_line_and_statement(racy: Path) -> None:
    result = ptxc("run", racy)
    assert result.status == 1
    assert result.out.splitlines()[-1] == "wrong: 1 finding"
    pattern = (
        r"^k_y_reduce: race: PTX line (\d+): ld\.shared\.f32: races with a write that no barrier orders before it "
        r"\(thread \d+\) at shared 0x\w+ \[CTA \(0, 0, 0\), threads [\d, ]+\].*\n  \1 \| ld\.shared\.f32 .*;\n"
        r" +\| body\[0\]\.body\[\d+\] TreeHalve\("
    )
    match = re.search(pattern, result.out, re.MULTILINE)
    assert match
    text = ptxc("compile", racy).out.splitlines()[int(match[1]) - 1]
    assert text.strip().startswith("ld.shared.f32")


def test_findings_for_programs(racy: Path) -> None:
    report = json.loads(ptxc("run", racy, "--json").out)
    assert report["right"] is False
    (finding,) = report["findings"]
    assert finding.keys() >= {"kernel", "check", "message", "line", "cta", "threads", "address", "space", "count"}
    assert (finding["check"], finding["kernel"]) == ("race", "k_y_reduce")
    assert finding["ptx"].startswith("ld.shared.f32")
    assert finding["statement"].startswith("body[0].body[")


def test_only_the_checks_that_are_asked_for(racy: Path) -> None:
    for checks, status in (("none", 0), ("memory,init,sync", 0), ("race", 1), ("all", 1), ("memory,race", 1)):
        assert ptxc("run", racy, "--sanitize", checks).status == status
    assert ptxc("run", racy, "--sanitize", "none").out.splitlines()[-1] == "nothing was checked"
    assert ptxc("run", racy, "--sanitize", "sync").out.splitlines()[-1] == "no findings (sync)"


def test_an_access_outside_of_a_buffer(tmp_path: Path) -> None:
    wide = changed(VECTOR_ADD, "extent=Dim(1000)", "extent=Dim(1001)", tmp_path / "k.json")
    result = ptxc("run", wide)
    assert result.status == 1
    assert "memory: PTX line" in result.out
    assert "4000 bytes from the start of x, which has 4000" in result.out
    assert result.out.splitlines()[-1] == "wrong: 3 findings"
    stopped = ptxc("run", wide, "--sanitize", "none")
    assert stopped.status == 1
    assert json.loads(ptxc("run", wide, "--sanitize", "none", "--json").out)["kernels"][0]["completed"] is False


def test_an_endless_loop_ends_at_the_step_limit() -> None:
    result = ptxc("run", DATA / "loops.json", "--max-steps", "20")
    assert result.status == 1
    assert "limit: PTX line" in result.out
    assert "the step limit of 20 instructions is reached" in result.out
    assert ptxc("run", DATA / "loops.json", "--max-steps", "1000000").status == 0


def test_a_pass_can_be_left_out() -> None:
    assert ptxc("run", COPIES, "--disable", "cse,hoist").status == 0
    message = ptxc("run", COPIES, "--disable", "csee").message
    assert "csee" in message


# ------------------------------------------------------------------------------------------------------------ PTX


def test_a_ptx_text_with_its_launch_description(compiled: tuple[Path, Path], tmp_path: Path) -> None:
    ptx, launch = compiled
    result = ptxc("run", ptx, "--launch", launch)
    assert (result.status, result.out) == (0, ptxc("run", VECTOR_ADD).out)
    assert ptxc("run", "-", "--launch", launch, stdin=ptx.read_bytes()).out == result.out
    packed, named = tmp_path / "k.ptx.gz", tmp_path / "kernel"
    packed.write_bytes(gzip.compress(ptx.read_bytes()))
    named.write_bytes(b"// by hand\n" + ptx.read_bytes())
    assert ptxc("run", packed, "--launch", launch).status == 0
    assert ptxc("run", named, "--launch", launch).status == 0
    assert "does not say how to launch it; give --launch FILE" in ptxc("run", ptx).message


def test_another_launch_of_a_graph(tmp_path: Path) -> None:
    launch = tmp_path / "l.json"
    ptxc("compile", VECTOR_ADD, "-o", tmp_path / "k.ptx", "--launch-json", launch)
    larger = changed(launch, '"grid": [4, 1, 1]', '"grid": [9, 1, 1]', tmp_path / "larger.json")
    result = ptxc("run", VECTOR_ADD, "--launch", larger)
    assert result.status == 0
    assert re.search(r"^k_z_pointwise +9 +256 +9 ", result.out, re.MULTILINE)


def test_findings_in_ptx_have_no_statement(racy: Path, tmp_path: Path) -> None:
    ptxc("compile", racy, "-o", tmp_path / "k.ptx", "--launch-json", tmp_path / "l.json")
    result = ptxc("run", tmp_path / "k.ptx", "--launch", tmp_path / "l.json")
    assert result.status == 1
    assert "body[" not in result.out
    assert re.search(r"^  \d+ \| ld\.shared\.f32", result.out, re.MULTILINE)


@pytest.mark.parametrize(
    ("options", "name"),
    [
        (["--target", "sm_90"], "target"), (["--ptx-version", "8.0"], "ptx-version"), (["--math", "fast"], "math"),
        (["--no-fma"], "no-fma"), (["--disable", "cse"], "disable"), (["--opt", "1"], "opt"),
    ],
)  # fmt: skip
def test_ptx_is_compiled_already(options: list[str], name: str, compiled: tuple[Path, Path]) -> None:
    message = ptxc("run", compiled[0], "--launch", compiled[1], *options).message
    assert f"--{name} changes nothing in PTX, which is compiled already" in message


def test_ptx_that_cannot_be_executed(compiled: tuple[Path, Path], tmp_path: Path) -> None:
    ptx, launch = compiled
    text = ptx.read_text()
    cases = {
        "tcgen05.wait::ld.sync.aligned;\n    ret;": "the CPU device does not execute this instruction",
        "add.f32 %f0, %f0;\n    ret;": "PTX line",
        "!\n    ret;": "PTX line",
    }
    for odd, expected in cases.items():
        (tmp_path / "odd.ptx").write_text(text.replace("ret;", odd))
        message = ptxc("run", "odd.ptx", "--launch", launch, cwd=tmp_path).message
        assert message.startswith("ptxc: error: odd.ptx: ")
        assert expected in message
    (tmp_path / "odd.ptx").write_text(text.replace("k_z_pointwise", "other"))
    assert "k_z_pointwise" in ptxc("run", tmp_path / "odd.ptx", "--launch", launch).message
    (tmp_path / "odd.ptx").write_bytes(b"\xff\xfe")
    assert "cannot read the file" in ptxc("run", tmp_path / "odd.ptx", "--launch", launch).message


def test_launch_descriptions_that_do_not_fit(compiled: tuple[Path, Path], tmp_path: Path) -> None:
    ptx, launch = compiled
    for old, new, expected in (
        ('"block": [256, 1, 1]', '"block": [512, 1, 1]', "k_z_pointwise: 512 threads are more than the 256"),
        ('"shape": [1000]', '"shape": ["m"]', "cannot be computed"),
        ('"role": "output"', '"role": "pages"', "the parameter 'z' does not say how long its pages are"),
        ('"dtype": "f32"', '"dtype": "f16x2"', "buffers of type 'f16x2' are not run yet"),
        ("{", "(", "is no JSON"),
        (
            '"block": [256, 1, 1]',
            '"block": [1, 1, 1], "block": [256, 1, 1]',
            "a JSON object names 'block' twice",
        ),
    ):
        odd = changed(launch, old, new, tmp_path / "odd.json")
        assert expected in ptxc("run", ptx, "--launch", odd).message
    assert "cannot read 'absent.json'" in ptxc("run", ptx, "--launch", "absent.json").message
    assert "cannot read" in ptxc("run", ptx, "--launch", tmp_path).message


# ----------------------------------------------------------------------------------------------------------- usage


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ([], "no file is given"),
        ([VECTOR_ADD, COPIES], "2 files are given; give one; a graph may hold several kernels"),
        ([VECTOR_ADD, "-o", "-"], "standard output has the report; give -o FILE.npz"),
        ([VECTOR_ADD, "--rtol", "1e-3"], "--rtol changes nothing without --expect"),
        ([VECTOR_ADD, "--atol", "1e-3"], "--atol changes nothing without --expect"),
        ([VECTOR_ADD, "--rtol", "-1"], "--rtol: '-1' is no tolerance"),
        ([VECTOR_ADD, "--rtol", "inf"], "--rtol: 'inf' is no tolerance"),
        ([VECTOR_ADD, "--atol", "x"], "--atol: 'x' is no tolerance; give a number such as 1e-5"),
        ([VECTOR_ADD, "--set", "n"], "--set: 'n' is no size; give NAME=N, such as seq_len=50"),
        ([VECTOR_ADD, "--set", "n=-1"], "--set: 'n=-1' is no size"),
        ([ANY_SIZE, "--set", "n=2147483648"], "n is 2147483648; a kernel takes sizes up to 2147483647"),
        ([VECTOR_ADD, "--set", "n=5"], "the kernel has no runtime integer 'n'; all its sizes are fixed"),
        ([ANY_SIZE, "--set", "m=5"], "the kernel has no runtime integer 'm'; it has n"),
        ([VECTOR_ADD, "--seed", "x"], "--seed: 'x' is no number"),
        ([VECTOR_ADD, "--ctas", "x"], "no CTAs are called 'x'; give all, how many (8), or which (0,3,5; 3, for one)"),
        ([VECTOR_ADD, "--ctas", "4,"], "there is no CTA 4, the grid has 4"),
        ([VECTOR_ADD, "--ctas", "1,1"], "CTA 1 is given twice, '1,1'; give each once"),
        ([VECTOR_ADD, "--ctas", ""], "no CTAs are called ''"),
        ([VECTOR_ADD, "--sanitize", ""], "--sanitize: it names no check; it is all, none, or some of memory"),
        ([VECTOR_ADD, "--sanitize", ","], "--sanitize: it names no check"),
        ([VECTOR_ADD, "--expect", ""], "--expect: it is empty"),
        ([VECTOR_ADD, "--inputs", ""], "--inputs: it is empty"),
        ([VECTOR_ADD, "--launch", ""], "--launch: it is empty"),
        ([VECTOR_ADD, "-o", ""], "-o/--output: it is empty"),
        ([VECTOR_ADD, "--realization", ""], "--realization: it is empty"),
        ([VECTOR_ADD, "--sanitize", "memry"], "--sanitize: no 'memry'; did you mean memory? it is all, none, or some"),
        ([VECTOR_ADD, "--max-steps", "x"], "--max-steps: 'x' is no number"),
        ([VECTOR_ADD, "--inputs", "absent.npz"], "cannot read 'absent.npz'"),
        ([VECTOR_ADD, "--expect", "absent.npz"], "cannot read 'absent.npz'"),
        (["absent.json"], "absent.json: cannot read the file"),
        ([DATA], "cannot read"),
        ([VECTOR_ADD, "--target", "sm_9"], "--target"),
    ],
    ids=lambda item: "" if isinstance(item, str) else " ".join(getattr(part, "name", part) for part in item[1:]),
)  # fmt: skip
def test_wrong_usage(args: list[Any], message: str) -> None:
    assert message in ptxc("run", *args).message


def test_arrays_that_are_none(tmp_path: Path) -> None:
    (tmp_path / "text.npz").write_text("no archive")
    (tmp_path / "empty.npz").write_bytes(b"")
    np.save(tmp_path / "one.npy", np.zeros(3))
    np.savez(tmp_path / "object.npz", x=np.array([{}], object))
    cut = saved(tmp_path / "cut.npz", x=np.zeros(1000)).read_bytes()
    (tmp_path / "cut.npz").write_bytes(cut[: len(cut) // 2])
    for name in ("text.npz", "empty.npz", "one.npy", "object.npz", "cut.npz"):
        message = ptxc("run", VECTOR_ADD, "--inputs", name, cwd=tmp_path).message
        assert message.startswith(f"ptxc: error: {name}: this is no .npz file")
        assert "write it with numpy.savez" in message
        assert "pickle" not in message


def test_arrays_that_do_not_fit(tmp_path: Path) -> None:
    for content, expected in (
        ({"q": np.zeros(3)}, "no kernel has a buffer 'q'; buffers are x, y, z"),
        ({"x": np.zeros(3)}, "the array for 'x' has the shape [3], not [1000]"),
        ({"x": np.zeros(1000, complex)}, "has the type complex128, which does not become f32"),
    ):
        assert expected in ptxc("run", VECTOR_ADD, "--inputs", saved(tmp_path / "in.npz", **content)).message
    for content, expected in (
        (
            {},
            ".npz: no array is in the file, so that nothing would be compared; give arrays by the names of outputs, z",
        ),
        ({"x": np.zeros(1000)}, "'x' is expected, but no kernel writes it; outputs are z"),
        ({"z": np.zeros(3)}, "'z' has 1000 elements, 3 are expected"),
    ):
        assert expected in ptxc("run", VECTOR_ADD, "--expect", saved(tmp_path / "e.npz", **content)).message
    sums = saved(tmp_path / "e.npz", y=np.zeros(5))
    assert "all CTAs add to 'y'" in ptxc("run", ATOMIC, "--ctas", "1", "--expect", sums).message


def test_errors_of_the_compilation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    odd = changed(VECTOR_ADD, "ElementwiseImpl('add')", "ElementwiseImpl('arctan')", tmp_path / "odd.json")
    message = ptxc("run", odd).message
    assert "odd.json: k_z_pointwise: body[0].body[2]" in message

    def refuse(*args: Any, **options: Any) -> Any:
        raise UnsupportedError("not today", kernel=args[0].op.name)

    monkeypatch.setattr(driver, "compile_kernel", refuse)
    result = ptxc("run", TWO_KERNELS)
    assert (result.status, result.out) == (2, "")
    assert re.findall(r"(\w+): not today", result.err) == ["k_y_reduce__partial", "k_y_reduce"]


def test_a_fault_of_the_compiler_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any, **options: Any) -> Any:
        raise InternalError("a pass failed", kernel="k")

    monkeypatch.setattr(driver, "compile_kernel", fail)
    result = ptxc("run", VECTOR_ADD, cwd=tmp_path)
    assert (result.status, result.out) == (70, "")
    assert "please report it" in result.err
    assert any(name.endswith("report.txt") for name in files(tmp_path))


def test_output_that_cannot_be_written(tmp_path: Path) -> None:
    result = ptxc("run", VECTOR_ADD, "-o", tmp_path / "absent" / "z.npz")
    assert result.status == 2
    assert "cannot write" in result.err


def test_the_instructions_that_are_executed() -> None:
    result = ptxc("run", "--supported")
    assert (result.status, result.err) == (0, "")
    listed = set(re.findall(r"[a-z][\w.:]*", result.out))
    assert listed >= {"add", "fma", "lop3", "cvt", "ld", "atom", "cp.async", "shfl", "bar", "bra", "fence", "ex2"}


def test_as_a_process(racy: Path, tmp_path: Path) -> None:
    assert process("run", VECTOR_ADD, "-o", "z.npz", cwd=tmp_path).returncode == 0
    done = process("run", racy, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (1, b"")
    assert process("run", "-", cwd=tmp_path, stdin=VECTOR_ADD.read_bytes()).returncode == 0
