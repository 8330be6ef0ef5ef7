"""What docs/streams.md shows is so."""

from __future__ import annotations

import doctest
from pathlib import Path

PAGE = Path(__file__).parents[3] / "docs" / "streams.md"


def test_the_page_is_true() -> None:
    options = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    found = doctest.testfile(str(PAGE), module_relative=False, optionflags=options)
    assert found.failed == 0
    assert found.attempted > 25
