"""Tables for people, YAML and JSON for programs."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from headrace_cli.output import Output, age_for_people, bytes_for_people, cell, show, table, to_yaml


def test_columns_are_as_wide_as_what_is_in_them_and_numbers_stand_right() -> None:
    rows = [{"name": "a-long-topic-name", "partitions": 6}, {"name": "b", "partitions": 1200}]
    assert table(rows, ["name", "partitions"]) == (
        "NAME               PARTITIONS\na-long-topic-name           6\nb                        1200\n"
    )


def test_nothing_is_cut_off() -> None:
    assert "x" * 500 in table([{"name": "x" * 500}], ["name"])


def test_names_cannot_move_the_cursor_nor_colour_the_terminal() -> None:
    assert cell("a\x00b\x1b[31m\nü€") == "a\\x00b\\x1b[31m ü€"
    assert cell(["a\r", "b"]) == "a\\r,b"
    assert cell({"a": "\x7f"}) == "a=\\x7f"


def test_yaml_nests_and_quotes_what_would_be_read_as_something_else() -> None:
    data = {
        "name": "flights",
        "id": 3,
        "ok": True,
        "none": None,
        "word": "yes",
        "empty": [],
        "list": [{"a": 1, "b": "x y"}],
    }
    assert to_yaml(data) == (
        'name: flights\nid: 3\nok: true\nnone: null\nword: "yes"\nempty: []\nlist:\n  - a: 1\n    b: "x y"\n'
    )


plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**6), 10**6) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=20,
)


@given(plain)
def test_yaml_says_the_same_as_the_data(data: Any) -> None:
    assert parse(to_yaml(data).splitlines()) == data


def parse(lines: list[str]) -> Any:
    """A reader of the YAML that we write, and of no other."""
    first = lines[0]
    if first.startswith("- "):
        items: list[list[str]] = []
        for line in lines:
            if line.startswith("- "):
                items.append([line[2:]])
            else:
                assert line.startswith("  ")
                items[-1].append(line[2:])
        return [parse(item) for item in items]
    key, rest = split_key(first)
    if key is None:
        assert len(lines) == 1
        return scalar(first)
    entries: list[tuple[str, list[str]]] = []
    for line in lines:
        if line.startswith("  "):
            entries[-1][1].append(line[2:])
        else:
            name, rest = split_key(line)
            assert name is not None
            entries.append((name, [rest] if rest else []))
    return {name: parse(body) for name, body in entries}


def split_key(line: str) -> tuple[str | None, str]:
    if line.startswith('"'):
        key, end = json.JSONDecoder().raw_decode(line)
        return (key, line[end + 1 :].removeprefix(" ")) if line[end : end + 1] == ":" else (None, "")
    name, colon, rest = line.partition(":")
    return (name, rest.removeprefix(" ")) if colon else (None, "")


def scalar(text: str) -> Any:
    if text in {"[]", "{}", "null", "true", "false"} or text.startswith('"') or text.lstrip("-").isdigit():
        return json.loads(text)
    return text


def test_an_empty_table_says_so_beside_the_data(capsys: Any) -> None:
    show([], Output.TABLE, empty="no topics")
    assert capsys.readouterr() == ("", "no topics\n")
    show([], Output.JSON)
    assert capsys.readouterr() == ("[]\n", "")


def test_cells_read_as_people_write() -> None:
    assert [cell(v) for v in (None, True, 1.5, [1, 2], [], {"a": 1}, "two\nlines")] == [
        "-", "yes", "1.50", "1,2", "-", "a=1", "two lines",
    ]  # fmt: skip
    assert [bytes_for_people(n) for n in (0, 1023, 1536, 5 << 30)] == ["0 B", "1023 B", "1.5 KiB", "5.0 GiB"]


def test_an_age_in_its_two_largest_units() -> None:
    ages = {
        0: "0s",
        999: "0s",
        -5_000: "0s",
        62_000: "1m 2s",
        3_600_000: "1h 0m",
        90_061_000: "1d 1h",
        7 * 86_400_000: "7d 0h",
    }
    assert {ms: age_for_people(ms) for ms in ages} == ages
