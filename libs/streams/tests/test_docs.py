"""What the pages about streams show is so."""

from __future__ import annotations

import doctest
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[3] / "docs"


@pytest.mark.parametrize("page", ["streams.md", "recipes-streams.md"])
def test_the_page_is_true(page: str) -> None:
    options = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    found = doctest.testfile(str(DOCS / page), module_relative=False, optionflags=options)
    assert found.failed == 0
    assert found.attempted > 25
