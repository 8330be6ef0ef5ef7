"""What the page about converters and transforms shows is so, and it has every name and setting."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import pytest

from headrace_connect import converters, transforms

PAGE = Path(__file__).parents[3] / "docs" / "connect-transforms.md"
TEXT = PAGE.read_text(encoding="utf-8")


def test_the_page_is_true() -> None:
    options = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    found = doctest.testfile(str(PAGE), module_relative=False, optionflags=options)
    assert found.failed == 0
    assert found.attempted > 15


def line_of(name: str) -> str:
    """The row of a table that begins with this name."""
    [line] = [line for line in TEXT.splitlines() if line.startswith(f"| `{name}` |")]
    return line


@pytest.mark.parametrize("name", [*transforms.TRANSFORMS, *transforms.PREDICATES])
def test_each_transform_and_predicate_is_there_with_its_settings(name: str) -> None:
    line = line_of(re.sub(r"\$\w+", "$", name))
    settings = {option.name for option in transforms.options_of(name)} - {"replace.null.with.default"}
    assert settings == {word for word in re.findall(r"`([^`]+)`", line.split("|")[2]) if word in settings}
    for option in transforms.options_of(name):
        assert set(option.choices) <= set(re.findall(r"`([^`]+)`", line.split("|")[2]))


@pytest.mark.parametrize("name", converters.NAMES)
def test_each_converter_is_there_with_its_settings(name: str) -> None:
    line = line_of(name)
    if "the registry's" in line:
        line += line_of("avro")
    assert {option.name for option in converters.options_of(name)} <= set(re.findall(r"`([^`]+)`", line))
