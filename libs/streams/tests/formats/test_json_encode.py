"""Rows to JSON: the exact text, what is refused, and that it is read again as it was."""

import json as standard
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import orjson
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import InvalidConfig
from headrace_streams.core.formats import json
from headrace_streams.core.formats.ddl import TIMESTAMP
from headrace_streams.core.formats.port import NotEncodable


def encode(**columns: Any) -> list[str]:
    return [value.decode() for value in json.encode(pa.table(columns)).to_pylist()]


def test_the_text_of_a_row() -> None:
    assert encode(
        z=pa.array(['a"\n', "é", None]),
        i=pa.array([1, -2, None], pa.int8()),
        d=pa.array([1.0, 1e22, None]),
        b=pa.array([True, None, False]),
        at=pa.array([0, -1, None], TIMESTAMP),
        day=pa.array([date(2026, 1, 31), None, date(1, 1, 1)]),
        price=pa.array([Decimal("1.5"), None, Decimal("-2")], pa.decimal128(5, 2)),
        none=pa.nulls(3),
    ) == [
        '{"z":"a\\"\\n","i":1,"d":1.0,"b":true,"at":"1970-01-01T00:00:00.000Z","day":"2026-01-31","price":"1.50","none":null}',
        '{"z":"é","i":-2,"d":1e+22,"b":null,"at":"1969-12-31T23:59:59.999Z","day":null,"price":null,"none":null}',
        '{"z":null,"i":null,"d":null,"b":false,"at":null,"day":"0001-01-01","price":"-2.00","none":null}',
    ]


def test_columns_in_columns() -> None:
    kind = pa.map_(pa.string(), pa.struct([("x", pa.list_(TIMESTAMP)), ('"', pa.float64())]))
    column = pa.array(
        [[("k", {"x": [0, None], '"': 0.5}), ("l", None)], None, [], [("m", {"x": None, '"': None})]], kind
    )
    expected = [
        '{"a":{"k":{"x":["1970-01-01T00:00:00.000Z",null],"\\"":0.5},"l":null}}',
        '{"a":null}',
        '{"a":{}}',
        '{"a":{"m":{"x":null,"\\"":null}}}',
    ]
    assert encode(a=column) == expected
    assert encode(a=column.slice(1, 3)) == expected[1:]


def test_types_that_the_ddl_does_not_have() -> None:
    assert encode(
        a=pa.array(["x", None]).dictionary_encode(),
        b=pa.array([2**64 - 1, None], pa.uint64()),
        c=pa.array([["x"], None], pa.large_list(pa.large_string())),
        s=pa.array([1, None], pa.timestamp("s")),
        us=pa.array([1, None], pa.timestamp("us", tz="Europe/Zurich")),
    ) == [
        '{"a":"x","b":18446744073709551615,"c":["x"],"s":"1970-01-01T00:00:01.000Z","us":"1970-01-01T00:00:00.000001Z"}',
        '{"a":null,"b":null,"c":null,"s":null,"us":null}',
    ]


def test_chunks_and_no_rows() -> None:
    assert encode(a=pa.chunked_array([[1], [], [2]])) == ['{"a":1}', '{"a":2}']
    empty = json.encode(pa.schema([("a", pa.float64()), ("b", pa.list_(pa.string())), ("c", TIMESTAMP)]).empty_table())
    assert empty == pa.array([], pa.binary())


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (pa.array([0.0, 1.0, float("nan"), float("inf")]), "NaN and infinity"),
        (pa.array([[1.0], [], [0.0, float("inf")], [float("nan")]]), "NaN and infinity"),
        (pa.array([None, 0, 253402300800000, 0], TIMESTAMP), "outside the years 1 to 9999; is it in the right unit?"),
        (pa.array([0, None, -1000000, 0], pa.date32()), "outside the years"),
    ],
)
def test_the_first_row_that_cannot_be_written_is_named(column: pa.Array, message: str) -> None:
    for before in range(3):
        with pytest.raises(NotEncodable, match=message) as refused:
            json.encode(pa.table({"ok": range(4 - before), "a": column.slice(before)}))
        assert refused.value.row == 2 - before


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (pa.binary(), "column 'a' is binary.*base64"),
        (pa.struct([("b", pa.list_(pa.large_binary()))]), r"column 'a\.b\[\]' is binary"),
        (pa.map_(pa.int64(), pa.int64()), "column 'a' is map<int64, int64>.*cast it"),
        (pa.duration("s"), r"column 'a' is duration\[s\]"),
    ],
)
def test_types_that_cannot_be_written(kind: pa.DataType, message: str) -> None:
    with pytest.raises(InvalidConfig, match=message):  # of a table without rows too: a plan can be checked
        json.encode(pa.schema([("a", kind)]).empty_table())


TEXT = st.text(st.characters(exclude_categories=["Cs"]))
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "s": st.none() | TEXT,
            "d": st.none() | st.floats(allow_nan=False, allow_infinity=False),
            "f": st.none() | st.floats(allow_nan=False, allow_infinity=False, width=32),
            "i": st.none() | st.integers(-(2**63), 2**63 - 1),
            "at": st.none()
            | st.datetimes(timezones=st.just(UTC)).map(
                lambda at: at.replace(microsecond=at.microsecond // 1000 * 1000)
            ),
            "day": st.none() | st.dates(),
            "price": st.none() | st.decimals(-999, 999, places=7, allow_nan=False),
            "l": st.none() | st.lists(st.none() | TEXT, max_size=3),
            "m": st.none()
            | st.dictionaries(TEXT, st.none() | st.booleans(), max_size=3).map(lambda m: list(m.items())),
            "o": st.none() | st.fixed_dictionaries({"x": st.none() | st.floats(allow_nan=False, allow_infinity=False)}),
        }
    ),
    max_size=20,
)
FORMAT = json(
    "s string, d double, f float, i bigint, at timestamp, day date, price decimal(10,7), l array<string>, "
    "m map<string,boolean>, o struct<x: double>"
)


@settings(deadline=None)
@given(ROWS)
def test_what_is_written_is_read_again(rows: list[dict[str, Any]]) -> None:
    table = pa.Table.from_pylist(rows, FORMAT.schema)
    values = FORMAT.encode(table)
    decoded = FORMAT.decode(values)
    assert decoded.problems == []
    assert repr(decoded.table.to_pylist()) == repr(table.to_pylist())  # as text: -0.0 is not 0.0
    for value, row in zip(values.to_pylist(), rows, strict=True):
        assert list(standard.loads(value)) == FORMAT.schema.names
        plain = {name: row[name] for name in ("s", "d", "i", "l", "o")}
        assert orjson.dumps({name: orjson.loads(value)[name] for name in plain}) == orjson.dumps(plain)


@settings(deadline=None)
@given(ROWS.filter(len), st.data())
def test_a_row_is_written_the_same_alone(rows: list[dict[str, Any]], data: st.DataObject) -> None:
    table = pa.Table.from_pylist(rows, FORMAT.schema)
    row = data.draw(st.integers(0, len(rows) - 1))
    assert FORMAT.encode(table.slice(row, 1))[0] == FORMAT.encode(table)[row]


INNER = pa.struct([("s", pa.string()), ("none", pa.struct([])), ("x", pa.float64())])
VALUES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "s": (pa.string(), ["", 'a"', "é", None]),
    "n": (pa.int64(), [-1, 0, None]),
    "x": (pa.float64(), [0.0, -0.0, None]),
    "b": (pa.bool_(), [True, False, None]),
    "at": (TIMESTAMP, [0, 1, None]),
    "d": (pa.decimal128(5, 2), [Decimal("1.50"), Decimal("-2"), None]),
    "l": (pa.list_(pa.int64()), [[], [1, None], None]),
    "o": (INNER, [{"s": "a", "none": {}, "x": -0.0}, {"s": None, "none": None, "x": 0.0}, None]),
}


@settings(deadline=None)
@given(st.data())
def test_many_rows_that_are_alike_in_some_columns_are_written_as_each_alone(data: st.DataObject) -> None:
    columns = {}
    for name, (kind, values) in VALUES.items():
        first, other = data.draw(st.tuples(st.sampled_from(values), st.sampled_from(values)), name)
        rows = [first] * 70
        rows[data.draw(st.sampled_from([0, 1, 34, 35, 36, 69]), f"place in {name}")] = other
        columns[name] = pa.array(rows, kind)
    names = data.draw(st.lists(st.sampled_from(list(columns)), min_size=1, unique=True))
    table = pa.table({name: columns[name] for name in names})
    alone = [json.encode(table.slice(row, 1)).to_pylist()[0] for row in range(table.num_rows)]
    assert json.encode(table).to_pylist() == alone


def test_rows_that_are_all_alike_are_one_text() -> None:
    table = pa.table({"a": ["x"] * 100, "o": [{"b": 1, "c": None}] * 100})
    assert json.encode(table).to_pylist() == [b'{"a":"x","o":{"b":1,"c":null}}'] * 100


def test_a_time_that_cannot_be_written_is_named_where_all_have_it() -> None:
    with pytest.raises(NotEncodable, match="outside the years") as why:
        json.encode(pa.table({"at": pa.array([2**60] * 100, TIMESTAMP)}))
    assert why.value.row == 0


def test_a_time_is_read_back_in_the_batch_of_its_text() -> None:
    at = pa.array([datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, 999000, tzinfo=UTC)], TIMESTAMP)
    table = pa.table({"at": pa.concat_arrays([at] * 500)})
    assert json("at timestamp").decode(json.encode(table)).table == table
