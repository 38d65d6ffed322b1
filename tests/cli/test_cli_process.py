"""ptxc as a process: pipes, signals, terminals, shells."""

from __future__ import annotations

import os
import pty
import re
import select
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
from cli_lab import DATA, KERNELS, ROW_MAX, VECTOR_ADD, command, environment, files, process, ptxc

import ptxc as api
from ptxc.target import TARGETS

#: Whose sizes are known at run time, so that `ptxc run` has a note.
DYNAMIC = DATA / "any_size.json"


def test_as_a_module_it_takes_the_place_of_a_script(tmp_path: Path) -> None:
    done = process(VECTOR_ADD, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.decode() == api.compile(VECTOR_ADD)[0].ptx
    done = process("-", cwd=tmp_path, stdin=VECTOR_ADD.read_bytes())
    assert done.stdout.decode() == api.compile(VECTOR_ADD)[0].ptx


def test_an_error_as_a_process(tmp_path: Path) -> None:
    done = process("compile", "absent.json", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.startswith(b"ptxc: error: absent.json: cannot read the file")
    assert done.stderr.count(b"\n") == 1


def test_output_does_not_depend_on_the_hash_seed_or_the_folder(tmp_path: Path) -> None:
    outputs = set()
    for seed in ("1", "2"):
        (tmp_path / seed).mkdir()
        done = process(
            "compile", ROW_MAX, "--dump-changed", "--launch-json", "l.json", cwd=tmp_path / seed, PYTHONHASHSEED=seed
        )
        outputs.add((done.stdout, done.stderr, (tmp_path / seed / "l.json").read_bytes()))
    assert len(outputs) == 1


# ----------------------------------------------------------------------------------------------------------- pipes


@pytest.mark.parametrize("args", ["--help", f"compile {ROW_MAX}", f"compile {ROW_MAX} --dump-after all", "ops"])
def test_a_reader_that_goes_away_is_no_error(args: str, tmp_path: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        command(*args.split()), stdout=write, stderr=subprocess.PIPE, cwd=tmp_path, env=environment(), check=False
    )
    os.close(write)
    assert done.returncode == 128 + signal.SIGPIPE
    assert b"Traceback" not in done.stderr
    assert b"Exception ignored" not in done.stderr
    assert b"ptxc:" not in done.stderr


def test_a_reader_of_errors_that_goes_away(tmp_path: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        command("compile", ROW_MAX, "--dump-after", "all"),
        stdout=subprocess.PIPE, stderr=write, cwd=tmp_path, env=environment(), check=False,
    )  # fmt: skip
    os.close(write)
    assert done.returncode == 128 + signal.SIGPIPE
    assert files(tmp_path) == []


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full")
@pytest.mark.parametrize("args", ["passes", f"compile {ROW_MAX}", "ops"])
def test_standard_output_that_is_full(args: str, tmp_path: Path) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            command(*args.split()), stdout=full, stderr=subprocess.PIPE, cwd=tmp_path, env=environment(), check=False
        )
    assert done.returncode == 2
    assert re.fullmatch(rb"ptxc: error: .*cannot write to standard output: No space left on device\n", done.stderr)


def test_standard_streams_that_are_closed(tmp_path: Path) -> None:
    for closed in (">&-", "2>&-", "<&-", ">&- 2>&-"):
        line = f'"$0" -m ptxc "{VECTOR_ADD}" -o out.ptx {closed}'
        done = subprocess.run(
            ["sh", "-c", line, command()[0]], capture_output=True, cwd=tmp_path, env=environment(), check=False
        )
        assert (done.stderr, done.returncode) == (b"", 0)
        assert (tmp_path / "out.ptx").read_text() == api.compile(VECTOR_ADD)[0].ptx


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (f'compile "{VECTOR_ADD}" >&-', "cannot write to standard output: it is closed"),
        ("--version >&-", "cannot write to standard output: it is closed"),
        ("compile - <&-", "<stdin>: standard input is closed; name a file, or redirect one to standard input"),
        ("run - <&-", "standard input is closed; name a file, or redirect one to standard input"),
        ("batch - --out out <&-", "standard input is closed; name a file, or redirect one to standard input"),
    ],
)
def test_a_standard_stream_that_is_needed_and_closed(line: str, expected: str, tmp_path: Path) -> None:
    done = subprocess.run(
        ["sh", "-c", f'"$0" -m ptxc {line}', command()[0]],
        capture_output=True, cwd=tmp_path, env=environment(), check=False, text=True,
    )  # fmt: skip
    assert (done.stdout, done.returncode) == ("", 2)
    assert expected in done.stderr
    assert done.stderr.startswith("ptxc: error: ")
    assert done.stderr.count("\n") == 1
    assert files(tmp_path) in ([], ["out/results.jsonl"])


@pytest.mark.parametrize(
    ("args", "status", "begins"),
    [
        (f"compile {VECTOR_ADD} --dump-changed --time-passes", 0, ".version"),
        (f"run {DYNAMIC} --json", 0, "{"),
        ("check absent.json", 2, ""),
        ("run absent.json --json", 2, ""),
        ("no-command", 2, ""),
    ],
)
def test_without_standard_error_messages_are_lost(args: str, status: int, begins: str, tmp_path: Path) -> None:
    heard = process(*args.split(), cwd=tmp_path)
    assert heard.stderr  # else nothing is tested
    done = subprocess.run(
        ["sh", "-c", f'"$0" -P -m ptxc {args} 2>&-', command()[0]],
        capture_output=True, cwd=tmp_path, env=environment(), check=False,
    )  # fmt: skip
    assert (done.stdout, done.stderr, done.returncode) == (heard.stdout, b"", status)
    assert done.stdout.decode().startswith(begins)
    assert bool(done.stdout) == bool(begins)


def test_no_file_takes_the_place_of_a_closed_stream(tmp_path: Path) -> None:
    code = "import os; from ptxc.cli import main; main(['passes', 'cse']); print(os.open('/dev/null', os.O_RDONLY) > 2)"
    for closed in ("<&-", "2>&-", "<&- 2>&-"):
        done = subprocess.run(
            ["sh", "-c", f'"$0" -P -c "$1" {closed}', command()[0], code],
            capture_output=True, cwd=tmp_path, env=environment(), check=True,
        )  # fmt: skip
        assert done.stdout.endswith(b"True\n")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full")
@pytest.mark.parametrize(
    ("args", "status"),
    [
        ("check absent.json", 2),
        ("compile absent.json", 2),
        ("run absent.json", 2),
        ("no-command", 2),
        (f"compile {VECTOR_ADD} -o k.ptx", 0),
        (f"run {DYNAMIC}", 0),  # a note is lost
        (f"compile {VECTOR_ADD} --dump-changed", 2),  # what was asked for is not
        (f"compile {VECTOR_ADD} --time-passes", 2),
    ],
)
def test_standard_error_that_is_full(args: str, status: int, tmp_path: Path) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            command(*args.split()), stdout=subprocess.PIPE, stderr=full, cwd=tmp_path, env=environment(), check=False
        )
    assert done.returncode == status


@pytest.mark.parametrize("args", ["compile -", "check -", "run -", "batch - --out out"])
def test_standard_input_that_cannot_be_read(args: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    done = subprocess.run(
        ["sh", "-c", f'"$0" -P -m ptxc {args} 0>file', command()[0]],
        capture_output=True, cwd=tmp_path, env=environment(), check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.startswith(b"ptxc: error: <stdin>: cannot read the file: Bad file descriptor; ")
    assert done.stderr.count(b"\n") == 1


# --------------------------------------------------------------------------------------------------------- signals


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_signal_in_the_middle_leaves_whole_files_only(number: int, tmp_path: Path) -> None:
    many = []
    for at in range(150):
        path = tmp_path / "in" / f"k{at}.json"
        path.parent.mkdir(exist_ok=True)
        shutil.copy(ROW_MAX, path)
        many.append(path)
    running = subprocess.Popen(
        command("compile", *many, "-o", tmp_path / "out"),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=tmp_path, env=environment(),
    )  # fmt: skip
    while running.poll() is None and not list((tmp_path / "out").glob("*.ptx")):
        time.sleep(0.01)
    running.send_signal(number)
    out, err = running.communicate(timeout=30)
    assert (out, err) == (b"", b"")
    assert running.returncode == (-number if number == signal.SIGKILL else 128 + number)
    expected = api.compile(ROW_MAX)[0].ptx
    made = files(tmp_path / "out")
    assert 0 < len(made) < len(many)
    if number != signal.SIGKILL:
        assert all(re.fullmatch(r"k\d+\.ptx", name) for name in made)
    assert all((tmp_path / "out" / name).read_text() == expected for name in made if name.endswith(".ptx"))


# ------------------------------------------------------------------------------------------------------- terminals


def on_terminal(*args: object, cwd: Path) -> tuple[int, str]:
    """The exit status, and what a terminal shows of standard error."""
    leader, follower = pty.openpty()
    running = subprocess.Popen(
        command(*args), stdout=subprocess.PIPE, stderr=follower, cwd=cwd, env=environment(TERM="xterm", COLUMNS="200")
    )
    os.close(follower)
    shown = b""
    while True:
        ready, _, _ = select.select([leader], [], [], 60)
        assert ready, "nothing more came"
        try:
            chunk = os.read(leader, 65536)
        except OSError:  # all of the other side is closed
            break
        if not chunk:
            break
        shown += chunk
    os.close(leader)
    running.communicate(timeout=60)
    return running.returncode, shown.decode()


def test_a_progress_bar_for_several_files_on_a_terminal(tmp_path: Path) -> None:
    status, shown = on_terminal("compile", *KERNELS, "-o", tmp_path / "out", cwd=tmp_path)
    assert status == 0
    assert "compiling" in shown
    assert f"{len(KERNELS)}/{len(KERNELS)}" in shown
    status, shown = on_terminal("check", *KERNELS, tmp_path / "absent.json", cwd=tmp_path)
    assert status == 2
    assert "checking" in shown
    assert "absent.json: cannot read the file" in re.sub(r"\s+", " ", shown)
    assert "1 of" in shown


def test_no_progress_bar_for_one_file(tmp_path: Path) -> None:
    assert on_terminal("compile", VECTOR_ADD, cwd=tmp_path) == (0, "")


def test_no_progress_bar_elsewhere(tmp_path: Path) -> None:
    assert ptxc("compile", *KERNELS, "-o", tmp_path) == (0, "", "")


def test_machine_code_is_not_for_a_terminal(tmp_path: Path) -> None:
    leader, follower = pty.openpty()
    done = subprocess.run(
        command("compile", VECTOR_ADD, "--emit", "cubin"),
        stdout=follower, stderr=subprocess.PIPE, cwd=tmp_path, env=environment(), check=False,
    )  # fmt: skip
    os.close(follower)
    os.close(leader)
    assert done.returncode == 2
    assert b"machine code is nothing for a terminal; give -o FILE" in done.stderr


# ---------------------------------------------------------------------------------------------------------- shells


@pytest.fixture(scope="module")
def bash_completion(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("bash") is None:
        pytest.skip("there is no bash")
    script = tmp_path_factory.mktemp("completion") / "ptxc.bash"
    script.write_text(ptxc("completion", "bash").out)
    return script


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["ptxc", "com"], {"compile", "completion"}),
        (["ptxc", "compile", "--dump-"], {"--dump-dir", "--dump-after", "--dump-changed"}),
        (["ptxc", "compile", "--target", "sm_90"], {name for name in TARGETS if name.startswith("sm_90")}),
        (["ptxc", "compile", "--math", ""], {"precise", "fast"}),
        (["ptxc", "compile", "--disable", "h"], {"hoist"}),
        (["ptxc", "compile", "--stop-after", "b"], {"build"}),
        (["ptxc", "passes", "c"], {"collectives", "coordinates", "cse", "contract"}),
        (["ptxc", "completion", ""], {"bash", "zsh", "fish", "tcsh"}),
    ],
)
def test_bash_completes(words: list[str], expected: set[str], bash_completion: Path) -> None:
    line = " ".join(f"'{word}'" for word in words)
    script = (
        f"source {bash_completion}; COMP_WORDS=({line}); COMP_CWORD={len(words) - 1}; COMP_LINE={line!r}; "
        "cur=${COMP_WORDS[COMP_CWORD]}; "
        "$(complete -p ptxc | sed 's/.*-F \\([^ ]*\\).*/\\1/'); printf '%s\\n' \"${COMPREPLY[@]}\""
    )
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    assert expected <= set(done.stdout.split())
    assert done.stderr == ""


def test_bash_completes_files(bash_completion: Path, tmp_path: Path) -> None:
    (tmp_path / "kernel.ir.json").write_text("")
    script = (
        f"source {bash_completion}; COMP_WORDS=(ptxc compile ker); COMP_CWORD=2; _shtab_ptxc; "
        "printf '%s\\n' \"${COMPREPLY[@]}\""
    )
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert "kernel.ir.json" in done.stdout.split()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish", "tcsh"])
def test_completion_scripts(shell: str, tmp_path: Path) -> None:
    result = ptxc("completion", shell)
    assert (result.status, result.err) == (0, "")
    assert "sm_90a" in result.out
    assert "early-exit" in result.out
    if shutil.which(shell):
        (tmp_path / "script").write_text(result.out)
        syntax = [shell, "--no-execute" if shell == "fish" else "-n", str(tmp_path / "script")]
        subprocess.run(syntax, check=True, capture_output=True)
