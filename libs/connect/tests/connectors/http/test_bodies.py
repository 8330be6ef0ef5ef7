"""Whatever a stranger sends is refused, or becomes the record that it is: no request fails the task."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from libs.connect.tests.connectors.http.records import written

from headrace_connect.connectors.http.bodies import BadBody, parse

leaves = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.text(max_size=4)
values = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


def comparable(value: Any) -> Any:
    """Objects in one list have all fields of each other, null where they were not; and true is not 1."""
    if isinstance(value, bool):
        return str(value)
    if isinstance(value, list):
        return [comparable(one) for one in value]
    if isinstance(value, dict):
        return {name: comparable(one) for name, one in value.items() if one is not None}
    return value


@settings(max_examples=150, deadline=None)
@given(values)
@example({})
@example([])
@example({"a": {}, "b": [], "c": [{}], "": None})
@example([[], {}])
@example([1, 2.5])
@example([2**60 + 1, 0.5])
@example([{"a": 1}, {"b": 2}])
@example([True, 1.5])
@example([1.5, True])
@example({"a": "\u0000"})
def test_a_body_is_refused_or_becomes_what_it_is(value: Any) -> None:
    try:
        body = parse(json.dumps(value).encode(), "json", "none", 1 << 20)
    except BadBody:
        return
    (record,) = written(body.to_list())
    assert comparable(record) == comparable(value)
    assert type(record) is type(value)


@pytest.mark.parametrize(
    ("body", "batch", "error"),
    [
        (json.dumps([{f"a{n}": 1} for n in range(2_000)]), "none", "too many fields"),
        (json.dumps([{f"a{n}": 1} for n in range(2_000)]), "array", "too many fields"),
        (json.dumps([{"x": {f"a{n}": 1 for n in range(1_000)}}, *[{}] * 1_000]), "array", "too many fields"),
        (json.dumps([{f"a{n}": 1} for n in range(300)]), "none", "bytes as it is written"),
        ("[" + ",".join(["1e15"] * 50_000) + "]", "none", "bytes as it is written"),
    ],
)
def test_a_small_body_becomes_no_large_record(body: str, batch: Any, error: str) -> None:
    assert len(body) < 256 << 10
    with pytest.raises(BadBody, match=error):
        parse(body.encode(), "json", batch, 512 << 10)


def test_records_that_have_different_fields_are_taken_all_the_same() -> None:
    kinds = [{f"kind{n}_{field}": 1 for field in range(10)} for n in range(10)]
    lines = "".join(json.dumps(kinds[n % 10]) + "\n" for n in range(1_000))
    assert len(parse(lines.encode(), "json", "lines", 512 << 10).values) == 1_000
