"""What the documentation quotes from files must stand there, and its examples must run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from conftest import ROOT

from ptxc import compile
from ptxc.errors import DivergenceError
from ptxc.frontend.operations import operations

_QUOTE = re.compile(r"<!-- ((?:golden|tests)/\S+) -->\n```\n(.*?)```", re.DOTALL)
_EXAMPLE = re.compile(r"```python\n(.*?)```", re.DOTALL)
_TYPES = re.compile(r"^\| element types \| ([^|;]*) \|$", re.MULTILINE)
_LINK = re.compile(r"\]\(([^)#:]+)\)")
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("benchmarks/*.md")])


def quotes() -> list[tuple[str, str, str]]:
    return [(page.name, *match) for page in PAGES for match in _QUOTE.findall(page.read_text())]


@pytest.mark.parametrize(("page", "file", "text"), quotes())
def test_quotations_stand_in_the_file_they_name(page: str, file: str, text: str) -> None:
    assert text in (ROOT / file).read_text(), f"{page} quotes {file} wrongly"


def test_the_error_of_a_divergent_barrier_is_quoted_as_it_is() -> None:
    (quoted,) = re.findall(
        r"<!-- error of (\S+) -->\n```\n(.*?)```", (ROOT / "docs/pipeline.md").read_text(), re.DOTALL
    )
    with pytest.raises(DivergenceError) as raised:
        compile(ROOT / quoted[0])
    assert str(raised.value).removeprefix(f"{ROOT / quoted[0]}: ") == " ".join(quoted[1].split())


def test_readme_and_pipeline_quote_goldens() -> None:
    assert {page for page, _, _ in quotes()} >= {"README.md", "pipeline.md"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in _LINK.findall(page.read_text()):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.mark.parametrize("page", ["README.md", "docs/launch.md", "docs/ir.md", "docs/emmy.md"])
def test_examples_run(page: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    from emmy.compiler.target import set_target

    monkeypatch.chdir(ROOT)
    request.addfinalizer(lambda: set_target(None))
    examples = _EXAMPLE.findall((ROOT / page).read_text())
    assert examples
    for example in examples:
        exec(example, {})


def test_readme_lists_the_element_types_that_are_supported() -> None:
    (listed,) = _TYPES.findall((ROOT / "README.md").read_text())
    assert listed.split(", ") == [item.name for item in operations() if item.kind == "element-type" and item.supported]
