"""Values of JSON to rows: what is taken, what is a problem, and that cutting into batches is not seen."""

import json as standard
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import InvalidConfig
from headrace_streams.core.formats import json, json_format, struct
from headrace_streams.core.formats.port import Decoded, Format, Problem

from .json_samples import SCALARS, SCHEMA, TIMES, WHOLE, values

FORMAT = json(SCHEMA)


def decode(schema: Any, *given: bytes | dict[str, Any]) -> Decoded:
    made = [value if isinstance(value, bytes) else standard.dumps(value).encode() for value in given]
    return json(schema).decode(pa.array(made, pa.binary()))


def problem(schema: str, value: bytes) -> str:
    """The message of the only value."""
    decoded = decode(schema, value)
    assert decoded.table.num_rows == 0
    assert [problem.row for problem in decoded.problems] == [0]
    return decoded.problems[0].message


def one_by_one(given: list[bytes]) -> tuple[list[dict[str, Any]], list[Problem]]:
    """What ``json_rows`` reads."""
    parts = [FORMAT.decode(pa.array([value], pa.binary())) for value in given]
    rows = [row for part in parts for row in part.table.to_pylist()]
    return rows, [Problem(i, wrong.message) for i, part in enumerate(parts) for wrong in part.problems]


class TestTheSameForAnyCutting:
    @pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary()])
    @settings(max_examples=300, deadline=None)
    @given(given=st.lists(values(), min_size=1, max_size=30), rows_min=st.integers(1, 8))
    def test_of_any_values(self, kind: pa.DataType, given: list[bytes], rows_min: int) -> None:
        rows, problems = one_by_one(given)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(json_format, "_QUICK_ROWS_MIN", rows_min)
            decoded = FORMAT.decode(pa.array([b"{}", *given], kind).slice(1))
        assert repr(decoded.table.to_pylist()) == repr(rows)  # as text: -0.0 is not 0.0
        assert decoded.problems == problems
        assert decoded.table.schema == FORMAT.schema

    @pytest.mark.parametrize("column", ["s", "d", "f", "i", "t", "b", "at", "l", "o", "w"])
    def test_of_each_odd_spelling(self, column: str, monkeypatch: pytest.MonkeyPatch) -> None:
        odd = [f'{{"{column}":{text}}}'.encode() for text in SCALARS + TIMES]
        batches = [batch for value in odd for batch in ([value], [b"{}", value, b"{}"])]  # alone, and among sound ones
        expected = [one_by_one(batch) for batch in batches]
        monkeypatch.setattr(json_format, "_QUICK_ROWS_MIN", 1)
        for batch, (rows, problems) in zip(batches, expected, strict=True):
            decoded = FORMAT.decode(pa.array(batch, pa.binary()))
            assert repr(decoded.table.to_pylist()) == repr(rows)
            assert decoded.problems == problems

    @pytest.mark.parametrize("value", WHOLE)
    def test_of_each_odd_value_among_sound_ones(self, value: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
        batches = [[value], [b"{}", value, b"{}"], [b"{}", value], [value, b"{}"]]
        expected = [one_by_one(batch) for batch in batches]
        monkeypatch.setattr(json_format, "_QUICK_ROWS_MIN", 1)
        for batch, (rows, problems) in zip(batches, expected, strict=True):
            decoded = FORMAT.decode(pa.array(batch, pa.binary()))
            assert (decoded.table.to_pylist(), decoded.problems) == (rows, problems)

    def test_two_values_that_make_one_object_together(self) -> None:
        halves = [b'{"i":1}{"i":2}', b'{"s":', b'"a"}'] * 100
        decoded = FORMAT.decode(pa.array(halves, pa.binary()))
        assert decoded.table.num_rows == 0
        assert len(decoded.problems) == 300

    def test_one_bad_value_in_a_large_batch(self) -> None:
        given = [f'{{"i":{i},"at":{i}}}'.encode() for i in range(5_000)]
        given[3_000] = b"nope"
        decoded = FORMAT.decode(pa.array(given, pa.binary()))
        assert [wrong.row for wrong in decoded.problems] == [3_000]
        assert decoded.table.column("i").to_pylist() == [*range(3_000), *range(3_001, 5_000)]


def test_arrow_reads_what_is_sound() -> None:
    """The other tests would pass with the slow way alone."""
    format = json("s string, d double, f float, at timestamp, also timestamp, o struct<x: array<int>>")
    row = b'{"s":"\xc3\xa9 \\" New Info","d":-0.5,"f":0.1,"at":"2026-01-01T00:00:00.1Z","also":5,"o":{"x":[1]},"w":{}}'
    format._read_row = None  # type: ignore[assignment]  # nothing is read one by one
    decoded = format.decode(pa.array([row] * 1_000, pa.binary()))
    assert decoded.problems == []
    assert decoded.table.num_rows == 1_000


class TestWhatIsTaken:
    def test_missing_is_null_and_unexpected_is_ignored(self) -> None:
        decoded = decode("a string, b bigint", {"b": 1, "c": {}}, {"a": None, "b": None})
        assert decoded == Decoded(pa.table({"a": pa.array([None, None], pa.string()), "b": pa.array([1, None])}))

    def test_every_type(self) -> None:
        schema = (
            "a boolean, b tinyint, c smallint, d int, e bigint, f float, g double, h decimal(5,2), i string, j date, "
            "k timestamp, l array<timestamp>, m map<string,decimal(3,1)>, n struct<x: date>"
        )
        row = {
            **{"a": True, "b": -128, "c": 1, "d": 2, "e": 3, "f": 0.5, "g": 1, "h": "1.5", "i": "x", "j": "2026-01-31"},
            **{"k": "2026-01-31T12:00:00+02:00", "l": [0, None], "m": {"y": 7, "z": None}, "n": {"x": "2026-02-01"}},
        }
        noon = datetime(2026, 1, 31, 10, tzinfo=UTC)
        assert decode(schema, row).table.to_pylist() == [
            {
                **row,
                **{"h": Decimal("1.50"), "j": date(2026, 1, 31), "k": noon, "n": {"x": date(2026, 2, 1)}},
                **{"l": [datetime(1970, 1, 1, tzinfo=UTC), None], "m": [("y", Decimal("7.0")), ("z", None)]},
            }
        ]

    def test_times_as_text_and_as_numbers_in_one_batch(self) -> None:
        given = [
            b'{"at":%d}' % i if i % 3 else b'{"at":"1970-01-01T00:00:%02d.%03dZ"}' % divmod(i, 1000) for i in range(999)
        ]
        decoded = decode("at timestamp", *given)
        assert decoded.problems == []
        assert decoded.table.column("at").cast(pa.int64()).to_pylist() == list(range(999))

    def test_the_last_of_two_fields_counts(self) -> None:
        assert decode("a int", b'{"a":"x","a":2}').table.to_pylist() == [{"a": 2}]

    def test_no_values(self) -> None:
        assert decode("a int") == Decoded(pa.schema([("a", pa.int32())]).empty_table())

    @pytest.mark.parametrize(("number", "right"), [("1.25", True), ("125e-2", True), ("1.255", False), ("1000", False)])
    def test_decimals_are_exact_or_a_problem(self, number: str, right: bool) -> None:
        for text in (number, f'"{number}"'):
            decoded = decode("a decimal(5,2)", f'{{"a":{text}}}'.encode())
            assert decoded.table.to_pylist() == ([{"a": Decimal("1.25")}] if right else [])

    def test_a_decimal_that_a_double_cannot_hold(self) -> None:
        assert problem("a decimal(38,20)", b'{"a":0.12345678901234567}').endswith(
            "write it as text, with no more digits than declared"
        )
        assert decode("a decimal(38,20)", b'{"a":"0.12345678901234567"}').problems == []


class TestProblems:
    @pytest.mark.parametrize(
        ("value", "message"),
        [
            (b"", "the value is empty"),
            (b"{", "the value is not JSON: "),
            (b"\xff", "the value is not JSON: "),
            (b'{"a":NaN}', "the value is not JSON: "),
            (b"\xef\xbb\xbf{}", "byte order mark"),
            (b"{}{}", "the value is not JSON: unexpected content after document"),
            (b"[1]", "the value is [1], not an object"),
            (b"null", "the value is null, not an object"),
            (b'{"a":1.0}', "a: 1.0 is no bigint"),
            (b'{"a":9223372036854775808}', "a: 9223372036854775808 is no bigint"),
            (b'{"a":true}', "a: true is no bigint"),
            (b'{"a":"%s"}' % (b"x" * 1_000), "..."),
        ],
    )
    def test_name_the_column_and_what_was_there(self, value: bytes, message: str) -> None:
        told = problem("a bigint", value)
        assert message in told
        assert len(told) <= 200

    @pytest.mark.parametrize(
        ("schema", "value", "message"),
        [
            ("a struct<b: array<int>>", b'{"a":{"b":[1,"x"]}}', 'a.b[1]: "x" is no int'),
            ("a array<struct<b: int>>", b'{"a":[{"b":{}}]}', "a[0].b: {} is no int"),
            ("a map<string,int>", b'{"a":{"k":1.5}}', 'a["k"]: 1.5 is no int'),
            ("a array<int>", b'{"a":5}', "a: 5 is no array<int>"),
            ("a timestamp", b'{"a":"soon"}', 'a: "soon" is no timestamp: text in ISO 8601 or milliseconds'),
            ("a timestamp", b'{"a":1767225600000000}', "in the years 1 to 9999"),
            ("a date", b'{"a":"2026-02-30"}', "text like 2026-01-31"),
        ],
    )
    def test_inside_others(self, schema: str, value: bytes, message: str) -> None:
        assert message in problem(schema, value)


@dataclass
class Order:
    user: str
    amount: float | None = None


def test_struct_reads_the_fields_of_a_class() -> None:
    format = struct(Order)
    assert format.row_class is Order
    for count in (1, 1_000):  # one by one, and by Arrow
        given = [b'{"user":"ann"}', b'{"amount":1.5}', b'{"user":null}'] * count
        decoded = format.decode(pa.array(given, pa.binary()))
        assert decoded.table.to_pylist() == [{"user": "ann", "amount": None}] * count
        assert len(decoded.problems) == 2 * count
        assert decoded.problems[0] == Problem(1, "user: is missing or null, and may not be")


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ("a struct<b: array<binary>>", r"column 'a\.b\[\]' is binary.*base64"),
        (pa.schema([("a", pa.timestamp("ns"))]), r"JSON is not read into timestamp\[ns\].*timestamp\[ms, tz=UTC\]"),
        (pa.schema([("a", pa.large_string())]), "JSON is not read into large_string; take boolean, "),
    ],
)
def test_types_that_json_cannot_hold(schema: Any, message: str) -> None:
    with pytest.raises(InvalidConfig, match=message):
        json(schema)


def test_it_is_a_format() -> None:
    format: Format = json
    assert format.schema is None
    assert repr(json("a int, b int")) == "json(a, b)"
