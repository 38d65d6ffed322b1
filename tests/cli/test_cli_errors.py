"""What a user gets for bad input: one line that says what, where and what to do, exit status 2, and no file."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import pytest
from cli_lab import COPIES, DATA, ROW_MAX, TWO_KERNELS, VECTOR_ADD, changed, command, environment, files, ptxc

from ptxc.cli.files import write
from ptxc.errors import UsageError


def text(content: str) -> Callable[[Path], object]:
    return lambda path: path.write_text(content)


def edited(source: Path, *replacements: str) -> Callable[[Path], None]:
    """What writes ``source`` with pairs of old and new text replaced."""

    def make(path: Path) -> None:
        path.write_text(source.read_text())
        for old, new in zip(replacements[::2], replacements[1::2], strict=True):
            changed(path, old, new, path)

    return make


#: What is wrong with a file: how to make it so, and what the message must name.
BAD: dict[str, tuple[Callable[[Path], object], tuple[str, ...]]] = {
    "absent": (lambda path: None, ("cannot read the file: No such file or directory",)),
    "folder": (Path.mkdir, ("cannot read the file: Is a directory",)),
    "empty": (text(""), ("the file is empty",)),
    "blank": (text(" \n"), ("the file is empty",)),
    "not JSON": (text("kernel"), ("not JSON: Expecting value",)),
    "cut off": (lambda p: p.write_text(VECTOR_ADD.read_text()[:500]), ("not JSON",)),
    "binary": (lambda p: p.write_bytes(b"\xff\x00\x01"), ("not UTF-8 text",)),
    "damaged gzip": (lambda p: p.write_bytes(b"\x1f\x8b\x08\x00xx"), ("gzip data is damaged",)),
    "a list": (text("[1, 2]"), ("a JSON object is needed",)),
    "no nodes": (text("{}"), ("nodes",)),
    "no kernel": (text('{"nodes": {}, "inputs": [], "outputs": []}'), ("no node holds a KernelOp",)),
    "another operation": (edited(VECTOR_ADD, "KernelOp", "CudaOp"), ("nodes.z", "CudaOp", "Kernel IR")),
    "an unknown operation": (edited(VECTOR_ADD, "KernelOp", "Kernel0p"), ("nodes.z", "'Kernel0p'")),
    "an unknown statement": (edited(VECTOR_ADD, "Assign(", "Assing("), ("nodes.z", "'Assing'")),
    "an unknown field": (edited(VECTOR_ADD, "atomic=", "atomicc="), ("nodes.z", "'atomicc'")),
    "an unsupported statement": (
        edited(VECTOR_ADD, "body=(Load", "body=(Pre(name='p', carrier='c', index=()), Load"),
        ("k_z_pointwise", "Pre is not supported yet; see `ptxc ops`"),
    ),
    "an undefined name": (
        edited(VECTOR_ADD, "args=('in0', 'in1')", "args=('in0', 'in2')"),
        ("k_z_pointwise: body[0].body[2] f32 v0 = add(in0, in2): 'in2' is not defined; ",),
    ),
    "an undefined variable": (
        edited(VECTOR_ADD, "input='x', index=(Var(name='a0')", "input='x', index=(Var(name='a9')"),
        ("body[0].body[0]", "'a9' is not defined"),
    ),
    "an unknown buffer": (edited(VECTOR_ADD, "input='x'", "input='w'"), ("body[0].body[0]", "'w'")),
    "a divergent barrier": (
        edited(
            ROW_MAX, "Sync(", "Cond(cond=BinaryExpr('<', Var('lane'), Literal(7, 'int')), body=(Sync(",
            "warp=False), Tree", "warp=False),), else_body=()), Tree",
        ),
        ("k_y_reduce: ", "body[0].body[4].body[0] Sync", "differs between threads"),
    ),
    "too much shared memory": (
        edited(COPIES, "extents=(128,)", "extents=(51200,)"),
        ("k_cpasync_8B: the kernel uses 204800 bytes of shared memory, sm_89 has 101376 for a CTA",),
    ),
    "too many threads": (
        edited(VECTOR_ADD, "block_threads=None", "block_threads=2048"),
        ("k_z_pointwise: ", "2048 threads", "1 to 1024"),
    ),
    "an unknown element type": (edited(VECTOR_ADD, '"dtype": "f32"', '"dtype": "f33"'), ("nodes.x", "'f33'")),
    "a hostile statement": (
        edited(VECTOR_ADD, "Tile(axes", "__import__('os').system('touch hacked') or Tile(axes"),
        ("nodes.z",),
    ),
    "a hostile name": (
        edited(VECTOR_ADD, "k_z_pointwise", "k\\u001b[2J\\n"),
        ("is no C identifier",),
    ),
    "hostile nesting": (text("[" * 100_000), ("nests too deeply",)),
}  # fmt: skip


@pytest.mark.parametrize("command", ["compile", "check"])
@pytest.mark.parametrize("kind", BAD)
def test_bad_input(kind: str, command: str, tmp_path: Path) -> None:
    make, expected = BAD[kind]
    path = tmp_path / "bad.json"
    make(path)
    before = files(tmp_path)
    output = ("-o", tmp_path / "out.ptx", "--launch-json", tmp_path / "out.json") if command == "compile" else ()
    message = ptxc(command, path, *output, cwd=tmp_path).message
    assert message.startswith(f"ptxc: error: {path}: ")
    for part in expected:
        assert part in message
    assert message.isprintable()
    assert "Traceback" not in message
    assert files(tmp_path) == before


def test_a_statement_with_a_body_has_one_colon(tmp_path: Path) -> None:
    path = changed(DATA / "branches.json", "BinaryExpr(op='>='", "BinaryExpr(op='<=>'", tmp_path / "k.json")
    message = ptxc("check", path).message
    assert re.search(r" if \(.* <=> .*\): there is no operator '<=>'", message)
    assert "::" not in message


def test_an_error_says_what_to_do(tmp_path: Path) -> None:
    for at, (make, _) in enumerate(BAD.values()):
        path = tmp_path / f"{at}.json"
        make(path)
        assert "; " in ptxc("check", path).message


def test_an_instruction_that_the_target_lacks() -> None:
    message = ptxc("compile", COPIES, "--target", "sm_75").message
    assert "k_cpasync_8B: body[0].body[1].body[0] cp.async[8B]" in message
    assert "sm_75 has no cp.async.ca.shared.global, which sm_80 brought; compile for sm_80 or newer" in message


def test_a_ptx_version_that_is_too_old() -> None:
    message = ptxc("compile", ROW_MAX, "--ptx-version", "6.0").message
    assert "k_y_reduce: the kernel needs PTX 7.8, not 6.0; leave out --ptx-version, or give 7.8 or newer" in message


def test_bad_standard_input_is_called_so() -> None:
    assert ptxc("compile", "-", stdin=b"{").message.startswith("ptxc: error: <stdin>: not JSON")
    assert "the file is empty" in ptxc("check", "-").message


def test_a_hostile_file_name(tmp_path: Path) -> None:
    message = ptxc("check", tmp_path / "a\nb\x1b[31m\u202e.json").message
    assert message.isprintable()
    assert ptxc("check", os.fsdecode(b"\xff.json")).message.isprintable()


# --------------------------------------------------------------------------------------------------- several files


def test_the_good_ones_of_several_are_written(tmp_path: Path) -> None:
    bad = changed(VECTOR_ADD, "'in1')", "'in7')", tmp_path / "bad.json")
    absent = tmp_path / "absent.json"
    result = ptxc(
        "compile", ROW_MAX, bad, absent, TWO_KERNELS, "-o", tmp_path / "out", "--launch-json", tmp_path / "out"
    )
    assert (result.status, result.out) == (2, "")
    first, second, last = result.err.splitlines()
    assert first.startswith(f"ptxc: error: {bad}: k_z_pointwise: ")
    assert second.startswith(f"ptxc: error: {absent}: cannot read")
    assert last == "ptxc: 2 of 4 files failed"
    names = [file for file in files(tmp_path / "out") if file.endswith(".ptx")]
    assert [os.path.basename(name) for name in names] == ["row_max.ptx", "two_kernels.ptx"]
    assert len(files(tmp_path / "out")) == 4


def test_an_output_that_fails_for_one_of_several(tmp_path: Path) -> None:
    (tmp_path / "out/row_max.ptx").mkdir(parents=True)
    result = ptxc("compile", ROW_MAX, VECTOR_ADD, "-o", tmp_path / "out")
    assert result.status == 2
    assert f"ptxc: error: {ROW_MAX}: cannot write '{tmp_path}/out/row_max.ptx': it is a folder\n" in result.err
    assert files(tmp_path) == ["out/vector_add.ptx"]


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ([], "no command and no file; `ptxc KERNEL.json` compiles"),
        (["compil", "k.json"], "no command and no file is called 'compil'; did you mean compile?"),
        (["xyz"], "no command and no file is called 'xyz'; `ptxc --help`"),
        (["compile"], "no file is given; name a file of Kernel IR, or - for standard input"),
        (["check"], "no file is given"),
        (["check", "k.json", "--disable", ""], "--disable: it names no pass; `ptxc passes` lists them"),
        (["check", "-", "-"], "standard input is given twice"),
        (["compile", "k.json", "--tagret", "sm_80"], "there is no option '--tagret'; did you mean --target? see `ptxc"),
        (["compile", "k.json", "--tagret=sm_80"], "there is no option '--tagret'; did you mean --target?"),
        (["compile", "k.json", "--targ", "sm_80"], "there is no option '--targ'; did you mean --target?"),
        (["compile", "k.json", "-x"], "there is no option '-x'; see `ptxc compile --help`"),
        (["compile", "k.json", "--target"], "--target: expected one argument; see `ptxc compile --help`"),
        (["compile", "k.json", "--target", "sm_99"], "--target: no target is called 'sm_99'; did you mean sm_90"),
        (["compile", "k.json", "--target", "8.0"], "--target: no target is called '8.0'; did you mean sm_80?"),
        (["compile", "k.json", "--ptx-version", "8"], "--ptx-version: no PTX version is called '8'; the known"),
        (["compile", "k.json", "--math", "fst"], "--math: no 'fst'; did you mean fast? it is one of precise, fast"),
        (["compile", "k.json", "--emit", "sass"], "--emit: no 'sass'; it is one of ptx, ir, cu"),
        (["compile", "a.json", "b.json"], "several files need a folder for their output; give -o DIR"),
        (["compile", "k.json", "--split"], "--split needs a folder for their output; give -o DIR"),
        (["compile", "k.json", "-o", "-", "--split"], "--split needs a folder"),
        (["compile", "k.json", "k.json", "-o", "out"], "'k.json' is given twice; give it once"),
        (["compile", "k.json", "k.ir.json", "-o", "out"], "'k.json' and 'k.ir.json' would be written to one file, 'k'"),
        (["compile", "k.json", "--stop-after", "cse", "--emit", "ptx"], "--stop-after leaves no PTX for --emit ptx"),
        (["compile", "k.json", "--stop-after", "cse", "--assemble"], "--stop-after leaves no PTX for --assemble"),
        (["compile", "k.json", "--launch-json", "-"], "standard output cannot take --launch-json too"),
        (["passes", "simplfy"], "there is no pass 'simplfy'; did you mean 'simplify'?"),
        (["passes", "cse", "hoist"], "'hoist' is one argument too many; see `ptxc passes --help`"),
        (["ops", "statment"], "KIND: no 'statment'; did you mean statement?"),
        (["completion"], "the following arguments are required: shell; see `ptxc completion --help`"),
        (["completion", "csh"], "shell: no 'csh'; did you mean tcsh?"),
    ],
)  # fmt: skip
def test_wrong_usage(args: list[str], expected: str, tmp_path: Path) -> None:
    for name in ("a.json", "b.json", "k.json", "k.ir.json"):
        (tmp_path / name).write_text(VECTOR_ADD.read_text())
    assert expected in ptxc(*args, cwd=tmp_path).message
    assert files(tmp_path) == ["a.json", "b.json", "k.ir.json", "k.json"]


# ---------------------------------------------------------------------------------------------------------- output


def test_outputs_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    message = ptxc("compile", VECTOR_ADD, "-o", tmp_path / "no/such/k.ptx").message
    assert f"cannot write '{tmp_path}/no/such/k.ptx': No such file or directory; make the folder" in message
    assert "cannot write" in ptxc("compile", VECTOR_ADD, "-o", tmp_path / "file/k.ptx").message
    assert "cannot make the folder" in ptxc("compile", VECTOR_ADD, "-o", f"{tmp_path}/file/sub/").message
    assert "cannot write" in ptxc("compile", VECTOR_ADD, "-o", "\0").message
    assert "cannot write" in ptxc("compile", VECTOR_ADD, "-o", tmp_path / ("x" * 300)).message
    assert "cannot write" in ptxc("compile", VECTOR_ADD, "-o", "/proc/k.ptx").message
    assert "No space left" in ptxc("compile", VECTOR_ADD, "-o", "/dev/full").message
    assert files(tmp_path) == ["file"]


def limited(blocks: int, *args: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run ptxc where a file may have no more than so many blocks, of 512 or 1,024 bytes as the shell has it."""
    line = ["sh", "-c", f'ulimit -f {blocks}; exec "$@"', "sh", *command(*args)]
    return subprocess.run(line, capture_output=True, text=True, cwd=cwd, env=environment(), check=False)


@pytest.mark.parametrize(
    "args",
    [
        ["compile", COPIES, "-o", "k.ptx"],
        pytest.param(["compile", COPIES, "--assemble", "-o", "k.ptx"], marks=pytest.mark.needs("ptxas")),
        pytest.param(["compile", COPIES, "--emit", "cubin", "-o", "k.cubin"], marks=pytest.mark.needs("ptxas")),
        pytest.param(["verify", COPIES], marks=pytest.mark.needs("nvcc")),
        ["batch", COPIES, "--out", "out"],
    ],
)
def test_a_limit_of_the_size_of_files(args: list[object], tmp_path: Path) -> None:
    done = limited(1, *args, "--no-cache", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    (message,) = done.stderr.splitlines()
    assert message.startswith("ptxc: error: ")
    assert "cannot write " in message
    assert message.endswith(": File too large; raise the limit of files' sizes, ulimit -f")
    assert files(tmp_path) in ([], ["out/results.jsonl"])


@pytest.mark.needs("ptxas")
def test_a_limit_of_the_size_of_files_in_a_batch(tmp_path: Path) -> None:
    batch = ["batch", COPIES, "--assemble", "--no-cache", "--jobs", "1", "--out", "out"]
    assert limited(3, *batch, cwd=tmp_path).returncode == 1
    (line,) = (tmp_path / "out" / "results.jsonl").read_text().splitlines()
    error = json.loads(line)["error"]
    assert error["type"] == "WriteError"
    assert error["message"].startswith("cannot write temporary files in ")
    assert error["hint"] == "raise the limit of files' sizes, ulimit -f"


def test_the_input_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "k.json"
    path.write_text(VECTOR_ADD.read_text())
    assert "the output would replace the input" in ptxc("compile", path, "-o", tmp_path / "." / "k.json").message
    assert path.read_text() == VECTOR_ADD.read_text()


@pytest.mark.parametrize("option", ["-o", "--dump-dir", "--launch-json", "--stop-after", "--start-at"])
def test_an_empty_value(option: str, tmp_path: Path) -> None:
    message = ptxc("compile", VECTOR_ADD, option, "", cwd=tmp_path).message
    assert f"{option}: it is empty" in message or f"{option}/--output: it is empty" in message


def test_check_names_the_command_that_has_the_option(tmp_path: Path) -> None:
    (tmp_path / "k.ir").write_text(ptxc("compile", VECTOR_ADD, "--stop-after", "cse").out)
    assert "give the first pass to run: ptxc compile --start-at PASS" in ptxc("check", tmp_path / "k.ir").message


def test_no_output_takes_the_place_of_any_input(tmp_path: Path) -> None:
    a, b = tmp_path / "a.json", tmp_path / "a.ptx"
    for path in (a, b):
        path.write_text(VECTOR_ADD.read_text())
    (tmp_path / "link").symlink_to(a)
    for launch in (a, tmp_path / "link"):
        message = ptxc("compile", a, "--launch-json", launch).message
        assert f"the launch description would replace the input '{a}'; give --launch-json another name" in message
    assert f"the output would replace the input '{b}'" in ptxc("compile", a, b, "-o", tmp_path).err
    assert a.read_text() == b.read_text() == VECTOR_ADD.read_text()


def test_two_outputs_in_one_file(tmp_path: Path) -> None:
    same = tmp_path / "same"
    message = ptxc("compile", VECTOR_ADD, "-o", same, "--launch-json", f"{tmp_path}/./same").message
    assert "two outputs would be written to" in message
    assert files(tmp_path) == []


def test_nothing_is_written_where_one_output_fails(tmp_path: Path) -> None:
    for output in ([], ["-o", tmp_path / "k.ptx"], ["-o", tmp_path / "d", "--split"]):
        message = ptxc("compile", VECTOR_ADD, *output, "--launch-json", tmp_path / "no/k.json").message
        assert "cannot write" in message
        assert files(tmp_path) == []
    assert "No space left" in ptxc("compile", VECTOR_ADD, "-o", "/dev/full", "--launch-json", tmp_path / "k").message
    assert files(tmp_path) == []


@pytest.mark.parametrize("failing", ["os.replace", "io.BufferedWriter.write", "os.chmod"])
def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(failing: str, tmp_path: Path) -> None:
    path = tmp_path / "k.ptx"
    path.write_text("old")
    if failing.startswith("io"):
        with mock.patch("ptxc.cli.files.open", side_effect=OSError(28, "No space left on device"), create=True):
            assert "No space left on device" in ptxc("compile", VECTOR_ADD, "-o", path).message
    else:
        with mock.patch(failing, side_effect=OSError(28, "No space left on device")):
            assert "No space left on device" in ptxc("compile", VECTOR_ADD, "-o", path).message
    assert path.read_text() == "old"
    assert files(tmp_path) == ["k.ptx"]


def test_an_interruption_leaves_no_file(tmp_path: Path) -> None:
    with mock.patch("os.replace", side_effect=KeyboardInterrupt):
        assert ptxc("compile", VECTOR_ADD, "-o", tmp_path / "k.ptx") == (130, "", "")
    assert files(tmp_path) == []


def test_text_that_utf8_cannot_hold_is_written(tmp_path: Path) -> None:
    write(tmp_path / "k.ir", "a\udc80b")
    assert (tmp_path / "k.ir").read_bytes() == b"a\\udc80b"


def test_writing_to_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="it is a folder"):
        write(tmp_path, "text")


def test_all_of_the_data_is_small() -> None:
    assert all(path.stat().st_size < 20_000 for path in DATA.iterdir())
