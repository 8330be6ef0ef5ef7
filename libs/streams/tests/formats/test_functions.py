"""Formats of the user's functions: an exception is an error of its row alone."""

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pytest

from headrace.errors import InvalidConfig
from headrace_streams.core.formats import custom
from headrace_streams.core.formats.port import Decoded, NotEncodable, Problem


def read(value: bytes) -> Mapping[str, Any]:
    user, amount = value.decode().split(",")
    return {"user": user, "amount": int(amount) if amount.isdigit() else amount, "more": 1}


def write(row: dict[str, Any]) -> str | None:
    return None if row["amount"] is None else f"{row['user']},{100 // row['amount']}"


def test_each_value_is_read_by_the_function() -> None:
    format = custom(read, schema="user string, amount tinyint, note string")
    assert format.decode(pa.array([b"ann,1", b"bob", b"cid,x", b"dan,300", b"eve,2"])) == Decoded(
        pa.table({"user": ["ann", "eve"], "amount": [1, 2], "note": [None, None]}, schema=format.schema),
        [
            Problem(1, "ValueError: not enough values to unpack (expected 2, got 1)"),
            Problem(2, "TypeError: amount: 'x' is no tinyint"),
            Problem(3, "TypeError: amount: 300 is no tinyint"),
        ],
    )


def test_what_arrow_would_bend_is_a_problem() -> None:
    schema = pa.schema([("a", pa.int64()), pa.field("b", pa.string(), nullable=False)])
    given = iter([{"a": 1.5, "b": ""}, {"a": 1}, ["a"], {"a": 1, "b": "x"}])
    decoded = custom(lambda value: next(given), schema=schema).decode(pa.array([b""] * 4))  # type: ignore[arg-type, return-value]
    assert decoded.table.to_pylist() == [{"a": 1, "b": "x"}]
    assert [problem.message for problem in decoded.problems] == [
        "TypeError: a: 1.5 is no bigint",
        "ValueError: b is missing or null, and may not be",
        "TypeError: decode returned list, not a dict",
    ]


def test_each_row_is_written_by_the_function() -> None:
    format = custom(encode=write)
    table = pa.table({"user": ["ann", "bob", "cid"], "amount": [10, None, 0]})
    assert format.encode(table.slice(0, 2)) == pa.array([b"ann,10", None], pa.binary())
    with pytest.raises(NotEncodable, match="ZeroDivisionError") as refused:
        format.encode(table)
    assert refused.value.row == 2


def test_a_value_that_is_not_bytes_is_not_written() -> None:
    with pytest.raises(NotEncodable, match="a value is bytes, str or None, not int"):
        custom(encode=lambda row: 5).encode(pa.table({"a": [1]}))  # type: ignore[arg-type, return-value]


def test_what_is_needed() -> None:
    with pytest.raises(InvalidConfig, match="decode=, encode= or both"):
        custom()
    with pytest.raises(InvalidConfig, match="needs schema="):
        custom(read)
    with pytest.raises(InvalidConfig, match="only reads; give it encode="):
        custom(read, schema="user string").encode(pa.table({"a": [1]}))
