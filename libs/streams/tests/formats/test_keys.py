"""Keys as bytes and back: equal keys have equal bytes, others have others."""

from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import InvalidConfig
from headrace_streams.core.formats.ddl import TIMESTAMP
from headrace_streams.core.formats.keys import NotAKey, decode_keys, encode_keys
from headrace_streams.core.formats.port import NotEncodable


def keys(*columns: Any) -> list[bytes | None]:
    encoded = encode_keys(list(columns))
    assert encoded.type == pa.dictionary(pa.int32(), pa.binary())
    assert len(set(encoded.dictionary.to_pylist())) == len(encoded.dictionary), "each key is there once"
    return encoded.to_pylist()


def test_one_column_of_text_or_bytes_is_as_it_is() -> None:
    assert keys(pa.array(["a", "é", None, "a", ""])) == [b"a", "é".encode(), None, b"a", b""]
    assert keys(pa.array([b"\xff", None])) == [b"\xff", None]
    assert keys(pa.chunked_array([["a"], ["b"]])) == [b"a", b"b"]
    assert keys(pa.array(["a", None], pa.large_string()).dictionary_encode()) == [b"a", None]


def test_one_column_of_another_type_is_json() -> None:
    assert keys(pa.array([12, None, 12])) == [b"12", None, b"12"]
    assert keys(pa.array([True, False])) == [b"true", b"false"]
    assert keys(pa.array([0.0, -0.0, 1.0, 1e22])) == [b"0.0", b"0.0", b"1.0", b"1e+22"]
    assert keys(pa.array([0], TIMESTAMP)) == [b'"1970-01-01T00:00:00.000Z"']
    assert keys(pa.array([date(2026, 1, 31)])) == [b'"2026-01-31"']
    assert keys(pa.array([Decimal("1.5")], pa.decimal128(5, 2))) == [b'"1.50"']


def test_several_columns_are_a_list() -> None:
    assert keys(pa.array(["AA", "AA", None]), pa.array([12, 12, None]), pa.array([None, None, -0.0])) == [
        b'["AA",12,null]',
        b'["AA",12,null]',
        b"[null,null,0.0]",
    ]
    assert keys(pa.array(['a"', "1"]), pa.array(["b", '",2'])) == [b'["a\\"","b"]', b'["1","\\",2"]']


def test_no_rows() -> None:
    assert keys(pa.array([], pa.string())) == []
    assert keys(pa.array([], pa.int64()), pa.array([], pa.float64())) == []


@pytest.mark.parametrize("others", [[], [pa.array(["x"] * 4)]])
def test_the_first_row_without_a_key_is_named(others: list[Any]) -> None:
    for column in (pa.array([0.0, 1.0, float("nan"), float("inf")]), pa.array([0, 0, 10**15, 0], TIMESTAMP)):
        with pytest.raises(NotEncodable) as refused:
            encode_keys([column, *others])
        assert refused.value.row == 2


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ([pa.array([[1]])], "column 1 of the key' is list<item: int64>, of which no key is made; explode"),
        ([pa.array([1]), pa.array([b""])], "column 2 of the key' is binary.*base64"),
        ([pa.array([1], pa.timestamp("us"))], r"column 1 of the key' is timestamp\[us\]; cast it to timestamp\[ms\]"),
    ],
)
def test_columns_that_cannot_be_keys(columns: list[Any], message: str) -> None:
    with pytest.raises(InvalidConfig, match=message):
        encode_keys(columns)


COLUMNS = st.sampled_from(
    [
        (pa.string(), st.text(st.characters(exclude_categories=["Cs"]), max_size=3)),
        (pa.int64(), st.integers(-(2**63), 2**63 - 1) | st.integers(0, 2)),
        (pa.float64(), st.floats(allow_nan=False, allow_infinity=False) | st.sampled_from([0.0, -0.0])),
        (pa.float32(), st.floats(allow_nan=False, allow_infinity=False, width=32)),
        (pa.bool_(), st.booleans()),
        (pa.date32(), st.dates()),
        (TIMESTAMP, st.integers(-62135596800000, 253402300799999)),
        (pa.decimal128(9, 7), st.decimals(-99, 99, places=7)),
    ]
)


@settings(deadline=None)
@given(st.lists(COLUMNS, min_size=1, max_size=3), st.data())
def test_round_trip_and_equal_bytes_for_equal_keys(kinds: list[Any], data: st.DataObject) -> None:
    rows = data.draw(st.lists(st.tuples(*(st.none() | values for _, values in kinds)), max_size=12))
    rows += data.draw(st.permutations(rows))
    columns = [pa.array([row[i] for row in rows], kind) for i, (kind, _) in enumerate(kinds)]
    encoded = keys(*columns)
    fields = [pa.field(f"c{i}", kind) for i, (kind, _) in enumerate(kinds)]
    decoded = decode_keys(pa.array(encoded, pa.binary()), fields)
    assert [column.to_pylist() for column in decoded] == [column.to_pylist() for column in columns]
    values = list(zip(*(column.to_pylist() for column in columns), strict=True))
    for i, key in enumerate(encoded):
        assert [key == other for other in encoded] == [values[i] == other for other in values]
        assert keys(*(column.slice(i, 1) for column in columns)) == [key]


def test_bytes_of_other_columns_are_refused() -> None:
    a, b = pa.field("a", pa.string()), pa.field("b", pa.int64())
    assert [column.to_pylist() for column in decode_keys([b'["x",1]', None], [a, b])] == [["x", None], [1, None]]
    for fields, key in (
        ([b], b"x"),
        ([b], b'"x"'),
        ([a, b], b'["x"]'),
        ([a, b], b"1"),
        ([a, b], b'["x","y"]'),
        ([a], b"\xff"),
    ):
        with pytest.raises(NotAKey, match="key"):
            decode_keys([key], fields)


def test_a_time_key_is_read_as_a_time() -> None:
    at = datetime(2026, 1, 31, 12, 0, 0, 1000).astimezone()
    column = pa.array([at], TIMESTAMP)
    assert decode_keys(encode_keys([column]).dictionary, [pa.field("at", TIMESTAMP)]) == [column]
