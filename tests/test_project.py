"""The project around the code: what a wheel holds, what the linters read, how the setup finds a Python."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from conftest import ROOT

FOLDERS = ["benchmarks", "ir", "passes", "ptxc", "scripts", "tests"]


def sources(*folders: str) -> set[str]:
    """The Python files below the folders of the repository, each by its real path."""
    return {str(path.relative_to(ROOT)) for folder in folders for path in (ROOT / folder).rglob("*.py")}


def run(*command: str | Path, cwd: Path = ROOT, text: str = "", **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, input=text, capture_output=True, text=True, cwd=cwd, env={**os.environ, **env})


def wheel_of(folder: Path, compiled: str) -> Path:
    """A wheel, made in ``folder``."""
    project = folder / "project"
    project.mkdir()
    for name in ("pyproject.toml", "setup.py", "LICENSE"):
        shutil.copy(ROOT / name, project)
    for name in ("ptxc", "ir", "passes"):
        shutil.copytree(ROOT / name, project / name, symlinks=True)
    pip = [sys.executable, "-m", "pip", "wheel", "-qq", "--no-deps", "--no-build-isolation"]
    made = run(*pip, "-w", folder, project, PTXC_COMPILED=compiled)
    assert made.returncode == 0, made.stderr
    (wheel,) = folder.glob("*.whl")
    return wheel


def test_a_wheel_holds_ptxc_and_nothing_else(tmp_path: Path) -> None:
    wheel = wheel_of(tmp_path, "")
    assert wheel.name.endswith("-py3-none-any.whl")
    names = {name for name in zipfile.ZipFile(wheel).namelist() if not name.endswith("/")}
    code = {name for name in names if ".dist-info/" not in name}
    linked = {f"ptxc/{name}" for name in sources("ir", "passes")}
    assert code == sources("ptxc") | linked | {"ptxc/py.typed"}
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)


@pytest.mark.skipif(os.environ.get("PTXC_TEST_COMPILED") != "1", reason="takes minutes; PTXC_TEST_COMPILED=1 runs it")
@pytest.mark.timeout(3600)
def test_a_compiled_wheel_makes_the_same_ptx(tmp_path: Path) -> None:
    wheel, place = wheel_of(tmp_path, "1"), tmp_path / "place"
    assert "-none-any" not in wheel.name
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(place)
    version = run(sys.executable, "-m", "ptxc", "--version", cwd=tmp_path, PYTHONPATH=str(place))
    assert version.stdout.endswith(" (compiled)\n"), version
    goldens = run(sys.executable, "-m", "pytest", "-q", ROOT / "tests/golden", cwd=tmp_path, PYTHONPATH=str(place))
    assert goldens.returncode == 0, goldens.stdout


def test_ruff_reads_each_file_once() -> None:
    read = run(sys.executable, "-m", "ruff", "check", "--show-files").stdout.split()
    files = sorted(os.path.relpath(path, ROOT) for path in read if path.endswith(".py"))
    assert files == sorted({*sources(*FOLDERS), "setup.py"})


@pytest.mark.parametrize("line", ["import ir", "from ir.types import Type", "import passes.dce", "from . import ir"])
def test_ir_and_passes_have_one_name(line: str) -> None:
    checked = run(sys.executable, "-m", "ruff", "check", "--stdin-filename", "tests/x.py", "-", text=f"{line}\n")
    assert "TID25" in checked.stdout


OLD = "exit 1"  # what the setup's check makes of a Python that is too old, or of a name that pyenv refuses to run
NEW = """case $1 in -c) exit 0;; *) echo "$0 $*";; esac"""


@pytest.mark.parametrize(
    ("pythons", "chosen"),
    [
        ({"bin/python3": NEW}, "bin/python3"),
        ({"bin/python3": NEW, "bin/python3.12": NEW, "bin/python3.13": NEW}, "bin/python3.13"),
        ({"bin/python3": OLD, "bin/python3.14": OLD, "bin/python3.12": NEW}, "bin/python3.12"),
        (
            {
                "bin/python3": OLD,
                "bin/python3.12": OLD,
                "pyenv/versions/3.11.9/bin/python": NEW,
                "pyenv/versions/3.12.9/bin/python": NEW,
                "pyenv/versions/3.12.10/bin/python": NEW,
            },
            "pyenv/versions/3.12.10/bin/python",
        ),
        ({"bin/python3": OLD, "bin/uv": 'dirname "$0" | sed "s/bin$/uv python/"', "uv python": NEW}, "uv python"),
        ({"bin/python3": OLD, "pyenv/versions/3.13.0/bin/python": OLD}, None),
    ],
)
def test_setup_finds_a_python(tmp_path: Path, pythons: dict[str, str], chosen: str | None) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "scripts").mkdir()
    shutil.copy(ROOT / "scripts/setup", project / "scripts")
    shutil.copy(ROOT / "pyproject.toml", project)
    for name, body in pythons.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)
    for tool in ("sh", "cat", "cmp", "dirname", "pwd", "sed", "sort", "tr"):
        (tmp_path / "bin" / tool).symlink_to(found) if (found := shutil.which(tool)) else None
    setup = run(project / "scripts/setup", PATH=f"{tmp_path}/bin", PYENV_ROOT=f"{tmp_path}/pyenv")
    if chosen is None:
        assert setup.returncode == 1
        assert "ptxc needs Python 3.12 or newer" in setup.stderr
        assert "apt-get install python3.12" in setup.stderr
    else:
        assert setup.stderr == ""
        assert setup.stdout == f"{tmp_path / chosen} {project}/scripts/make_venv.py\n"


def test_setup_takes_the_python_it_is_given(tmp_path: Path) -> None:
    (tmp_path / "scripts").mkdir()
    shutil.copy(ROOT / "scripts/setup", tmp_path / "scripts")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    setup = run(tmp_path / "scripts/setup", PTXC_PYTHON="/no/python")
    assert setup.returncode == 1
    assert "and PTXC_PYTHON=/no/python is not one" in setup.stderr


ERRORS = {"InputError", "UnsupportedError", "TargetError"}


@pytest.mark.parametrize("path", sorted(sources("ptxc/frontend")))
def test_every_error_of_the_frontend_says_what_to_do(path: str) -> None:
    calls = [node for node in ast.walk(ast.parse((ROOT / path).read_text())) if isinstance(node, ast.Call)]
    raised = [call for call in calls if isinstance(call.func, ast.Name) and call.func.id in ERRORS]
    bare = [call.lineno for call in raised if all(keyword.arg != "hint" for keyword in call.keywords)]
    assert not bare, "no hint in these lines"


@pytest.mark.parametrize("path", sorted(sources("ptxc/codegen", "ptxc/frontend", "ir", "passes")))
def test_no_pattern_names_one_of_several(path: str) -> None:
    """mypyc (2.4) forgets the name in ``str() | None as start`` where it is not the first pattern that matches."""
    patterns = [node for node in ast.walk(ast.parse((ROOT / path).read_text())) if isinstance(node, ast.MatchAs)]
    named = [pattern.lineno for pattern in patterns if isinstance(pattern.pattern, ast.MatchOr)]
    assert not named, "take a guard in these lines: case start if start is None or isinstance(start, str)"
