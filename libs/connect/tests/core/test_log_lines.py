"""Lines of hosts' logs: each says of which connector and task it is, whatever their names are."""

from __future__ import annotations

import pytest

from headrace_connect.core.log_lines import read_tag, tag_of, tagged


@pytest.mark.parametrize("name", ["shop", "a/b", "a b] c [", "[x]", "küste", "a.b-c_d~e", "1", "%2F", "a\nb"])
@pytest.mark.parametrize("task", [None, 0, 41])
def test_a_tag_is_read_as_it_was_written(name: str, task: int | None) -> None:
    lines = tagged(tag_of(name, task), "INFO x: first\n  second").split("\n")
    assert [read_tag(line) for line in lines] == [(name, task, "INFO x: first"), (name, task, "  second")]


@pytest.mark.parametrize("line", ["", "INFO x: y", "[", "[]", "[a]", "[a b c] d", "[a x] y", "2026 [a 1] y", "[" * 400])
def test_what_has_no_tag_stays_as_it_is(line: str) -> None:
    assert read_tag(line) == (None, None, line)


def test_a_connector_without_a_name_has_none() -> None:
    assert tagged(tag_of("", None), "a\nb") == "a\nb"
