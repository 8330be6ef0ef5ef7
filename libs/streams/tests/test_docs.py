"""What the pages about streams show is so."""

from __future__ import annotations

import doctest
import re
from html import unescape
from pathlib import Path

import pytest

from headrace_streams import App
from headrace_streams.plan.describe import as_mermaid

DOCS = Path(__file__).parents[3] / "docs"


@pytest.mark.parametrize("page", ["streams.md", "recipes-streams.md"])
def test_the_page_is_true(page: str) -> None:
    options = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    found = doctest.testfile(str(DOCS / page), module_relative=False, optionflags=options)
    assert found.failed == 0
    assert found.attempted > 25


def test_the_pictures_are_of_the_first_program() -> None:
    page = (DOCS / "streams.md").read_text()
    program, drawn = (re.search(f"```{kind}\n(.*?)```", page, re.DOTALL) for kind in ("python", "mermaid"))
    assert program is not None
    assert drawn is not None
    names: dict[str, App] = {}
    exec(program[1], names)
    picture = as_mermaid("wordcount", names["app"].graph)
    assert drawn[1] == picture
    texts = re.findall(r'\["?\(?\[?"(.*?)"', picture)
    svg = unescape((DOCS / "streams-wordcount.svg").read_text())
    assert len(texts) > 10
    assert [text for text in texts if f">{text}</text>" not in svg] == []
