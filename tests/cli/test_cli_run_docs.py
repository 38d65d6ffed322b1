"""docs/cpu-device.md: what it says that commands print, they print; ``make goldens`` brings it up to date."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest
from cli_lab import ptxc
from conftest import ROOT

from ptxc.cli.executing import CHECKS
from ptxc.reference.compare import TOLERANCES

PAGE = ROOT / "docs" / "cpu-device.md"
_COMMAND = re.compile(r"(<!-- ptxc ([^\n]*) -->\n```\n).*?(```\n)", re.DOTALL)


def test_commands_print_what_the_page_says(golden: Callable[[Path, str | None], None]) -> None:
    def printed(match: re.Match[str]) -> str:
        result = ptxc(*shlex.split(match[2]), cwd=ROOT)
        assert result.status in (0, 1), result.err
        return f"{match[1]}{result.err}{result.out}{match[3]}"

    page, count = _COMMAND.subn(printed, PAGE.read_text())
    assert count == 4
    golden(PAGE, page)


def test_every_finding_of_the_table_is_one_of_the_device() -> None:
    sources = " ".join(path.read_text() for path in (ROOT / "ptxc" / "sim").glob("*.py"))
    rows = re.findall(r"^\| (\S*) ?\| `([^`|]+)` \| ", PAGE.read_text(), re.MULTILINE)
    assert len(rows) >= 20
    for _, message in rows:
        assert message in sources, message
    assert {check.strip("`") for check, _ in rows} == {*CHECKS, "always", ""}


def test_the_numbers_of_the_page_are_those_of_the_code() -> None:
    text = " ".join(PAGE.read_text().split())
    assert TOLERANCES == {"f32": 1e-5, "f64": 1e-5, "f16": 2e-3, "bf16": 2e-2, "f8e4m3": 0.13, "f8e5m2": 0.26}
    assert "else 1e-5 for f32 and f64, 2e-3 where a buffer of the kernels is f16, 2e-2 where one is bf16" in text
    assert "0.13 and 0.26 for outputs of f8e4m3 and f8e5m2" in text


def test_the_example_of_a_test_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    monkeypatch.chdir(ROOT)
    names: dict[str, Callable[[], None]] = {}
    exec(example, names)
    names["test_row_sum"]()
