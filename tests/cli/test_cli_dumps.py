"""Looking between the passes: dumps, diffs, stopping, starting, leaving out, times."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest
from cli_lab import DATA, KERNELS, ROW_MAX, TWO_KERNELS, VECTOR_ADD, changed, files, ptxc
from conftest import SHARED

import ptxc as api
from ptxc.passes.pipeline import BUILD, PIPELINE, PRINT

PASSES = [item.name for item in PIPELINE]
STEPS = [f"{rank}-{name}" for rank, name in (BUILD, *((item.rank, item.name) for item in PIPELINE))]
DUMPED = sorted([*(f"{step}.ir" for step in STEPS), "out.ptx", "launch.json"])

#: Kernels of the corpus beside the repository, where it is there: every so many.
CORPUS = sorted(p for p in (SHARED / "bench15/kernels").rglob("*.json") if not p.name.endswith(".meta.json"))[::100]


# ------------------------------------------------------------------------------------------------------- --dump-dir


def test_dump_folder_of_one_kernel(tmp_path: Path) -> None:
    result = ptxc("compile", ROW_MAX, "--dump-dir", tmp_path / "d")
    assert (result.status, result.err) == (0, "")
    assert files(tmp_path / "d") == DUMPED
    assert "10-build.ir" in DUMPED
    assert "20-collectives.ir" in DUMPED
    assert (tmp_path / "d/out.ptx").read_text() == result.out
    assert (tmp_path / "d/10-build.ir").read_text().startswith("kernel k_y_reduce target sm_89 threads 128\n")


def test_dump_folders_of_several_kernels_and_files(tmp_path: Path) -> None:
    ptxc("compile", TWO_KERNELS, "--dump-dir", tmp_path / "one")
    kernels = ("k_y_reduce", "k_y_reduce__partial")
    assert files(tmp_path / "one") == [f"{kernel}/{name}" for kernel in kernels for name in DUMPED]
    ptxc("compile", TWO_KERNELS, VECTOR_ADD, "-o", tmp_path / "out", "--dump-dir", tmp_path / "two")
    folders = (*(f"two_kernels/{kernel}" for kernel in kernels), "vector_add")
    assert files(tmp_path / "two") == [f"{folder}/{name}" for folder in folders for name in DUMPED]


def test_dumps_are_the_same_each_time(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        ptxc("compile", ROW_MAX, "--dump-dir", tmp_path / folder)
    for name in DUMPED:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_old_dumps_go_and_other_files_stay(tmp_path: Path) -> None:
    for name in ("60-hoist.ir", "60-mine.ir", "out.ptx", "notes.txt", "60-hoist.ir.txt"):
        (tmp_path / name).write_text("old")
    ptxc("compile", VECTOR_ADD, "--dump-dir", tmp_path, "--stop-after", "coordinates")
    mine = ["60-hoist.ir.txt", "60-mine.ir", "notes.txt"]
    expected = ["10-build.ir", "20-collectives.ir", "30-coordinates.ir", "launch.json", *mine]
    assert files(tmp_path) == sorted(expected)


def test_dumps_from_a_pass_on_keep_those_before_it(tmp_path: Path) -> None:
    ptxc("compile", VECTOR_ADD, "--dump-dir", tmp_path)
    (tmp_path / "60-mine.ir").write_text("mine")
    edited = tmp_path / "50-simplify.ir"
    edited.write_text("// edited\n" + edited.read_text())
    before = {name: (tmp_path / name).read_text() for name in files(tmp_path)}
    assert ptxc("compile", edited, "--start-at", "cse", "--dump-dir", tmp_path).status == 0
    assert {name: (tmp_path / name).read_text() for name in files(tmp_path)} == before
    ptxc("compile", edited, "--start-at", "cse", "--stop-after", "hoist", "--dump-dir", tmp_path)
    gone = {
        "65-counters.ir",
        "70-contract.ir",
        "72-pair-halves.ir",
        "75-dead-code.ir",
        "80-leave-ssa.ir",
        "85-pressure.ir",
        "90-registers.ir",
        "out.ptx",
    }
    assert files(tmp_path) == sorted(before.keys() - gone)


@pytest.mark.parametrize(("name", "start_at"), [("55-cse.ir", "cse"), ("out.ptx", ""), ("launch.json", "")])
def test_a_dump_does_not_replace_an_input(name: str, start_at: str, tmp_path: Path) -> None:
    ptxc("compile", VECTOR_ADD, "--dump-dir", tmp_path / "d")
    path = tmp_path / "d" / name
    if not start_at:
        path.write_text(VECTOR_ADD.read_text())
    before = {name: (tmp_path / name).read_text() for name in files(tmp_path)}
    (tmp_path / "link").symlink_to(path)
    options = ["--start-at", start_at] if start_at else []
    for given in (path, tmp_path / "link"):
        message = ptxc("compile", given, *options, "--dump-dir", tmp_path / "d").message
        assert f"the dump {name} would replace the input '{given}'; give --dump-dir another folder" in message
    (tmp_path / "link").unlink()
    assert {name: (tmp_path / name).read_text() for name in files(tmp_path)} == before


def test_a_failing_kernel_leaves_its_dumps_up_to_the_failure(tmp_path: Path) -> None:
    divergent = changed(ROW_MAX, "Sync(", "Cond(cond=Var(name='lane'), body=(Sync(", tmp_path / "k.json")
    divergent = changed(divergent, "warp=False), Tree", "warp=False),), else_body=()), Tree", divergent)
    assert "Sync" in ptxc("compile", divergent, "--dump-dir", tmp_path / "d").message
    assert files(tmp_path / "d") == ["10-build.ir"]


def test_a_dump_folder_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "d").write_text("a file")
    assert "cannot make the folder" in ptxc("compile", ROW_MAX, "--dump-dir", tmp_path / "d").message


# ------------------------------------------------------------------------------------- --dump-after, --dump-changed


def shown(text: str) -> dict[str, str]:
    """What --dump-after showed, by step."""
    parts = re.split(r"^// .* after (\S+)\n", text, flags=re.MULTILINE)
    return {step: dump.removesuffix("\n") for step, dump in itertools.batched(parts[1:], 2)}


def test_dump_after_all(tmp_path: Path) -> None:
    result = ptxc("compile", ROW_MAX, "--dump-after", "all", "--dump-dir", tmp_path)
    assert result.out == api.compile(ROW_MAX)[0].ptx
    assert shown(result.err) == {step: (tmp_path / f"{step}.ir").read_text() for step in STEPS}


def test_dump_after_some() -> None:
    several = ptxc("compile", ROW_MAX, "--dump-after", "cse,build", "--dump-after", "hoist").err
    assert list(shown(several)) == ["10-build", "55-cse", "60-hoist"]
    assert several.startswith("// k_y_reduce after 10-build\nkernel k_y_reduce ")


def test_dump_after_in_several_files_names_the_file(tmp_path: Path) -> None:
    err = ptxc("compile", ROW_MAX, VECTOR_ADD, "--dump-after", "cse", "-o", tmp_path).err
    assert f"// {ROW_MAX}: k_y_reduce after 55-cse\n" in err


@pytest.mark.parametrize(
    "options", [["--disable", "cse"], ["--stop-after", "simplify"], ["--start-at", "hoist", "--disable", "hoist"]]
)
def test_dump_after_a_pass_that_does_not_run(options: list[str]) -> None:
    message = ptxc("compile", ROW_MAX, "--dump-after", "cse", *options).message
    assert f"--dump-after cse shows nothing: with {' '.join(options[:2])} it does not run; leave one out" in message


def test_dump_changed_is_a_diff_that_can_be_applied(tmp_path: Path) -> None:
    result = ptxc("compile", ROW_MAX, "--dump-changed", "--dump-dir", tmp_path)
    assert "// k_y_reduce: 60-hoist changes nothing\n" in result.err
    changes = re.split(r"^(?=--- )", result.err, flags=re.MULTILINE)[1:]
    before, after = re.findall(r"^(?:---|\+\+\+) k_y_reduce after (\S+)$", changes[0], re.MULTILINE)
    assert (before, after) == ("10-build", "20-collectives")
    old = (tmp_path / f"{before}.ir").read_text().splitlines()
    removed = [line[1:] for line in changes[0].splitlines()[2:] if line.startswith("-")]
    added = [line[1:] for line in changes[0].splitlines()[2:] if line.startswith("+")]
    assert set(removed) <= set(old)
    assert set(added) <= set((tmp_path / f"{after}.ir").read_text().splitlines())
    assert added


# ------------------------------------------------------------------------------------------ --stop-after, --start-at


@pytest.mark.parametrize("name", [BUILD[1], *PASSES])
def test_stop_after_prints_the_dump(name: str, tmp_path: Path) -> None:
    whole = ptxc("compile", ROW_MAX, "--dump-dir", tmp_path / "d")
    result = ptxc("compile", ROW_MAX, "--stop-after", name)
    assert result.status == whole.status == 0
    (dump,) = (tmp_path / "d").glob(f"??-{name}.ir")
    assert result.out == dump.read_text()


@pytest.mark.parametrize("path", [*KERNELS, *CORPUS], ids=lambda path: "-".join(path.parts[-3:]))
def test_starting_at_any_pass_gives_the_ptx_of_the_whole(path: Path, tmp_path: Path) -> None:
    whole = ptxc("compile", path, "--target", "sm_90", "--dump-dir", tmp_path)
    if whole.status:
        pytest.skip(whole.message)
    for dumps in {dump.parent for dump in tmp_path.rglob("10-build.ir")}:
        for before, first in itertools.pairwise([*STEPS, PRINT]):
            name = first.partition("-")[2] or first
            rest = ptxc("compile", dumps / f"{before}.ir", "--start-at", name)
            assert rest == (0, (dumps / "out.ptx").read_text(), "")


def test_start_at_reads_standard_input_and_several_kernels(tmp_path: Path) -> None:
    ir = ptxc("compile", TWO_KERNELS, "--stop-after", "cse").out
    whole = ptxc("compile", TWO_KERNELS).out
    assert ptxc("compile", "-", "--start-at", "hoist", stdin=ir.encode()).out == whole
    (tmp_path / "k.ir").write_text(ir)
    assert ptxc("compile", tmp_path / "k.ir", "--start-at", "hoist", "--target", "sm_89").out == whole


def test_start_and_stop(tmp_path: Path) -> None:
    ptxc("compile", ROW_MAX, "--dump-dir", tmp_path)
    result = ptxc("compile", tmp_path / "50-simplify.ir", "--start-at", "cse", "--stop-after", "hoist")
    assert result.out == (tmp_path / "60-hoist.ir").read_text()


def test_an_error_in_ir_names_its_line(tmp_path: Path) -> None:
    ir = ptxc("compile", TWO_KERNELS, "--stop-after", "cse").out
    lines = ir.splitlines()
    second = next(at for at, line in enumerate(lines) if line.startswith("kernel k_y_reduce "))
    lines[second + 6] = "    %x:f32 = frobnicate 1"
    (tmp_path / "k.ir").write_text("\n".join(lines) + "\n")
    message = ptxc("compile", tmp_path / "k.ir", "--start-at", "hoist").message
    assert f"line {second + 7}: there is no instruction 'frobnicate'" in message


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (["50-simplify.ir"], "this is IR, not Kernel IR; give the pass to go on with: ptxc compile --start-at cse"),
        (["k.ir"], "give the first pass to run: ptxc compile --start-at PASS"),
        (["90-registers.ir"], "--start-at print"),
        (["50-simplify.ir", "--start-at", "registers"], "the IR is in SSA form; start at 'leave-ssa' or before it"),
        (["90-registers.ir", "--start-at", "cse"], "the IR has left SSA form; start at 'pressure', or at 'print'"),
        (["k.ir", "--start-at", "cse", "--target", "sm_80"], "the IR is made for sm_89, not for sm_80"),
        (["k.ir", "--start-at", "cse", "--launch-json", "l.json"], "IR does not say how to launch it"),
        (["k.ir", "--start-at", "cse", "--math", "fast"], "--math fast changes nothing in IR"),
        (["k.ir", "--start-at", "hoist", "--stop-after", "cse"], "pass 'cse' comes before 'hoist'"),
        (["k.ir", "--start-at", "hist"], "there is no pass 'hist'; did you mean 'hoist'?"),
        (["k.ir", "--start-at", "build"], "there is no pass 'build'"),
        ([str(VECTOR_ADD), "--start-at", "cse"], "--start-at takes IR"),
        (["not.ir", "--start-at", "cse"], "line 1: expected 'kernel NAME target sm_NN threads N'"),
        (["binary.ir", "--start-at", "cse"], "cannot read the file: 'utf-8' codec"),
        (["absent.ir", "--start-at", "cse"], "absent.ir: cannot read the file: No such file or directory"),
        (["before.ir", "--start-at", "cse"], "line 1: expected 'kernel NAME"),
        (["wrong.ir", "--start-at", "cse"], "the verifier refuses the IR"),
    ],
)
def test_wrong_uses_of_ir(args: list[str], expected: str, tmp_path: Path) -> None:
    ptxc("compile", VECTOR_ADD, "--dump-dir", tmp_path)
    text = (tmp_path / "50-simplify.ir").read_text()
    (tmp_path / "k.ir").write_text(text)
    (tmp_path / "wrong.ir").write_text(re.sub(r"^    .* = cvta.*\n", "", text, count=1, flags=re.MULTILINE))
    (tmp_path / "before.ir").write_text("what is this\n" + text)
    (tmp_path / "not.ir").write_text("{}")
    (tmp_path / "binary.ir").write_bytes(b"\xff\xfe")
    assert expected in ptxc("compile", *args, cwd=tmp_path).message


def test_a_kernel_s_name_is_no_way_out_of_the_dump_folder(tmp_path: Path) -> None:
    (tmp_path / "k.ir").write_text("kernel ../../evil target sm_89 threads 1\n" * 2)
    result = ptxc("compile", tmp_path / "k.ir", "--start-at", "cse", "--dump-dir", tmp_path / "a/b/c")
    assert result.status == 2
    assert result.err.count("expected 'kernel NAME target sm_NN threads N'") == 2
    assert not list(tmp_path.rglob("*evil*"))


# ----------------------------------------------------------------------------- --disable, --verify-each, --time-passes


def test_disable() -> None:
    optional = [item.name for item in PIPELINE if not item.required]
    result = ptxc(
        "compile", ROW_MAX, "--disable", optional[0], "--disable", ",".join(optional[1:]), "--dump-after", "all"
    )
    assert result.status == 0
    assert list(shown(result.err)) == [step for step in STEPS if step.partition("-")[2] not in optional]
    assert result.out == api.compile(ROW_MAX, disable=tuple(optional))[0].ptx


@pytest.mark.parametrize("opt", [0, 1])
def test_optimisation_levels(opt: int) -> None:
    result = ptxc("compile", ROW_MAX, "--opt", opt, "--dump-after", "all")
    left_out = [item.name for item in PIPELINE if item.level > opt]
    assert list(shown(result.err)) == [step for step in STEPS if step.partition("-")[2] not in left_out]
    assert result.out == api.compile(ROW_MAX, opt=opt)[0].ptx
    assert result.out == api.compile(ROW_MAX, disable=tuple(left_out))[0].ptx
    message = ptxc("compile", ROW_MAX, "--opt", opt, "--dump-after", left_out[0]).message
    assert f"--dump-after {left_out[0]} shows nothing: with --opt {opt} it does not run" in message


def test_no_optimisation_level() -> None:
    assert "no '3'; it is one of 0, 1, 2" in ptxc("compile", ROW_MAX, "--opt", "3").message


@pytest.mark.parametrize("name", [item.name for item in PIPELINE if item.required])
def test_a_required_pass_cannot_be_disabled(name: str) -> None:
    message = ptxc("compile", ROW_MAX, "--disable", name).message
    assert message == f"ptxc: error: pass {name!r} cannot be disabled; without it the kernel would be wrong"


@pytest.mark.parametrize("option", ["--disable", "--stop-after", "--start-at", "--dump-after"])
def test_a_near_miss_of_a_pass(option: str) -> None:
    message = ptxc("compile", ROW_MAX, option, "simplfy").message
    assert "there is no pass 'simplfy'; did you mean 'simplify'? passes are " in message
    assert "did you mean" not in ptxc("compile", ROW_MAX, option, "xyz").message


def test_verify_each_compiles_to_the_same() -> None:
    assert ptxc("compile", ROW_MAX, "--verify-each").out == ptxc("compile", ROW_MAX).out


def test_time_passes(tmp_path: Path) -> None:
    result = ptxc("compile", ROW_MAX, "--time-passes")
    assert result.out == api.compile(ROW_MAX)[0].ptx
    heading, columns, *rows = result.err.splitlines()
    assert heading == "1 kernel, not counting the imports:"
    assert columns.split() == ["step", "CPU", "ms", "share", "instructions", "after"]
    assert [row.split()[0] for row in rows] == ["read", "build", *PASSES, "print", "total"]
    times = [float(row.split()[1]) for row in rows]
    assert sum(times[:-1]) == pytest.approx(times[-1], abs=0.01 * len(times))
    sizes = [int(row.split()[4]) for row in rows[1:-1]]
    assert sizes[-1] == sum(len(b.instrs) for b in api.compile(ROW_MAX)[0].kernel.blocks)
    several = ptxc("check", *KERNELS, "--time-passes", "--disable", "cse").err
    assert several.startswith(f"{len(KERNELS) + 1} kernels, not counting the imports:\n")
    assert "cse" not in several


def test_no_dump_without_being_asked(tmp_path: Path) -> None:
    assert ptxc("compile", DATA / "loops.json", cwd=tmp_path).err == ""
    assert files(tmp_path) == []
