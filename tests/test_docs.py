"""What the documentation quotes from goldens must stand there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from conftest import ROOT

from ptxc import compile
from ptxc.errors import DivergenceError

_QUOTE = re.compile(r"<!-- (golden/\S+) -->\n```\n(.*?)```", re.DOTALL)
_LINK = re.compile(r"\]\(([^)#:]+)\)")
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("benchmarks/*.md")])


def quotes() -> list[tuple[str, str, str]]:
    return [(page.name, *match) for page in PAGES for match in _QUOTE.findall(page.read_text())]


@pytest.mark.parametrize(("page", "file", "text"), quotes())
def test_quotations_stand_in_the_golden_they_name(page: str, file: str, text: str) -> None:
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
