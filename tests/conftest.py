"""What all tests share: the corpus beside the repository, golden files, tests that need a tool of CUDA."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable
from pathlib import Path

import pytest

import ptxc
from ptxc.errors import ToolchainError
from ptxc.store import Store, open_store
from ptxc.toolchain import find_tool

#: Of tests that read docstrings.
docstrings = pytest.mark.skipif(ptxc.is_compiled(), reason="mypyc keeps no docstrings")

#: Of tests that put another function in the place of one that compiled modules call.
patches = pytest.mark.skipif(ptxc.is_compiled(), reason="compiled code calls functions directly, not by their names")

pytest_plugins = ["pytester"]

ROOT = Path(__file__).resolve().parent.parent

#: Where ptxc is imported from: not the repository where the compiled build is tested.
PACKAGES = Path(ptxc.__file__).resolve().parent.parent

#: The folder of kernels and references that lies beside the repository on some machines.
SHARED = Path(os.environ.get("PTXC_SHARED", ROOT.parent / "shared"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update", action="store_true", help="run the golden tests alone, and rewrite their files")


def pytest_configure(config: pytest.Config) -> None:
    # Every test compiles anew: two compilations that should give the same, or a fault that is made on purpose, would
    # say nothing otherwise. Those in tests/store have a store of their own.
    os.environ.update(PTXC_CACHE_SIZE="0", PTXC_CACHE_DIR=os.devnull)
    # Processes that tests start have the ptxc under test, too: `python -P` keeps those from the sources in the folder
    # where they start.
    more = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path not in ("", str(PACKAGES))]
    os.environ["PYTHONPATH"] = os.pathsep.join([str(PACKAGES), *more])
    if config.getoption("update") and os.environ.get("CI") == "true":
        raise pytest.UsageError("--update rewrites the golden files, which CI must not do")


def pytest_report_header() -> str:
    return f"ptxc: {'compiled' if ptxc.is_compiled() else 'pure Python'}, in {PACKAGES}"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("update"):
        others = [item for item in items if "golden" not in getattr(item, "fixturenames", ())]
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if item not in others]


def pytest_runtest_setup(item: pytest.Item) -> None:
    for marker in item.iter_markers("needs"):
        try:
            find_tool(*marker.args)
        except ToolchainError as error:
            pytest.skip(str(error))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    passed = terminalreporter.getreports("passed")
    for change in sorted(text for report in passed for name, text in report.user_properties if name == "golden"):
        terminalreporter.write_line(change)


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder `SHARED`; a test that asks for it is skipped where there is none."""
    if not SHARED.is_dir():
        pytest.skip(f"{SHARED} is not here")
    return SHARED


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """The store that compilations use in this test."""
    monkeypatch.setenv("PTXC_CACHE_DIR", str(tmp_path / "kept"))
    monkeypatch.setenv("PTXC_CACHE_SIZE", "100M")
    return open_store()


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[Path, str | None], None]:
    """``golden(path, text)`` checks that the file holds ``text``, or with ``None`` that there is no such file.

    With ``--update`` it makes it so.
    """

    def check(path: Path, text: str | None) -> None:
        before = path.read_text(encoding="utf-8") if path.exists() else None
        if text == before:
            return
        name = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path
        if request.config.getoption("update"):
            if text is None:
                path.unlink()
            else:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8")
            what = "removed" if text is None else "new" if before is None else "changed"
            request.node.user_properties.append(("golden", f"{what}: {name}"))
            return
        old, new = (f"{lines or ''}".splitlines(keepends=True) for lines in (before, text))
        diff = "".join(difflib.unified_diff(old, new, f"{name}", "now"))
        pytest.fail(f"{name} is not what the compiler makes now:\n{diff}\nIf it should be: make goldens", pytrace=False)

    return check


@pytest.fixture
def fake_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Has child processes find `tests/device/fake_driver.py` in the place of NVIDIA's driver.

    Gives the file that the fake logs to, which is there once something was done.
    """
    package = tmp_path / "fake" / "cuda" / "bindings"
    package.mkdir(parents=True)
    for folder in (package.parent, package):
        (folder / "__init__.py").touch()
    (package / "driver.py").write_text("from fake_driver import *\n")
    monkeypatch.syspath_prepend(ROOT / "tests" / "device")
    monkeypatch.syspath_prepend(package.parent.parent)
    monkeypatch.setenv("FAKE_LOG", str(tmp_path / "gpu.log"))
    return tmp_path / "gpu.log"
