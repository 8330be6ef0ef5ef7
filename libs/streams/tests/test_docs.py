"""What the pages about streams show is so."""

from __future__ import annotations

import asyncio
import doctest
import re
from functools import partial
from html import unescape
from pathlib import Path

import pytest
from libs.streams.tests.kit.asked import Running, answering

from headrace_streams import App
from headrace_streams.plan.describe import as_mermaid

DOCS = Path(__file__).parents[3] / "docs"


@pytest.mark.parametrize("page", ["streams.md", "recipes-streams.md"])
async def test_the_page_is_true(page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker of the first program has counted two words, which the pages may ask for."""
    options = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    worker = Running(first_program(), "lines")
    worker.put(1, [{"value": "Hello hello world"}])
    async with answering(worker, monkeypatch):
        check = partial(doctest.testfile, module_relative=False, optionflags=options)
        found = await asyncio.to_thread(check, str(DOCS / page))
    assert found.failed == 0
    assert found.attempted > 25


def first_program() -> App:
    """That ``streams.md`` begins with."""
    program = re.search("```python\n(.*?)```", (DOCS / "streams.md").read_text(), re.DOTALL)
    assert program is not None
    names: dict[str, App] = {}
    exec(program[1], names)
    return names["app"]


def test_the_pictures_are_of_the_first_program() -> None:
    page = (DOCS / "streams.md").read_text()
    drawn = re.search("```mermaid\n(.*?)```", page, re.DOTALL)
    assert drawn is not None
    picture = as_mermaid("wordcount", first_program().graph)
    assert drawn[1] == picture
    texts = re.findall(r'\["?\(?\[?"(.*?)"', picture)
    svg = unescape((DOCS / "streams-wordcount.svg").read_text())
    assert len(texts) > 10
    assert [text for text in texts if f">{text}</text>" not in svg] == []
