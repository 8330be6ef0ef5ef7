"""Each transform by the cases of Kafka's documentation, and what becomes of nulls and of what does not fit."""

from __future__ import annotations

from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from libs.connect.tests.transforms.rows import batch_of, chain, one, row, told

from headrace_connect.core.batch import NAME, OPEN, VERSION

AT = datetime(2026, 1, 31, 12, 30, 5, 250000, UTC)
AT_MS = 1769862605250


def value_of(kind: str, settings: dict[str, str], value: Any, type_: Any = None, *, is_open: bool = False) -> Any:
    """The value that comes out, or the message."""
    found = one(kind, settings, row(value), type_, is_open=is_open)
    return found if isinstance(found, str) else found["value"]


# --- Cast -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "type_", "to", "expected"),
    [
        (5, pa.int64(), "int8", 5),
        (5, pa.uint8(), "int64", 5),
        (300, pa.int64(), "int8", "a is beyond the bounds of int8"),
        (-129, pa.int16(), "int8", "a is beyond the bounds of int8"),
        (3.9, pa.float64(), "int32", 3),
        (-3.9, pa.float64(), "int32", -3),
        (2.0**63, pa.float64(), "int64", "a is beyond the bounds of int64: 9.223372036854776e+18"),
        (float("nan"), pa.float64(), "int32", "a is beyond the bounds of int32: nan"),
        (Decimal("-7.90"), pa.decimal128(5, 2), "int16", -7),
        (Decimal("7.5"), pa.decimal128(5, 2), "float64", 7.5),
        (2**60 + 1, pa.int64(), "float64", float(2**60 + 1)),
        (1e300, pa.float64(), "float32", "a is beyond the bounds of float: 1e+300"),
        (float("inf"), pa.float64(), "float32", float("inf")),
        (True, pa.bool_(), "int32", 1),
        (False, pa.bool_(), "float64", 0.0),
        (True, pa.bool_(), "string", "true"),
        (0, pa.int32(), "boolean", False),
        (-2, pa.int32(), "boolean", True),
        (0.5, pa.float64(), "boolean", False),
        (Decimal("0.50"), pa.decimal128(5, 2), "boolean", False),
        (Decimal("2.50"), pa.decimal128(5, 2), "boolean", True),
        ("-12", pa.string(), "int8", -12),
        ("+12", pa.string(), "int8", 12),
        ("300", pa.string(), "int8", "a is beyond the bounds of int8"),
        ("1.5", pa.string(), "int8", "a is not a whole number: '1.5'"),
        (" 1", pa.string(), "int8", "a is not a whole number: ' 1'"),
        ("0x10", pa.string(), "int8", "a is not a whole number: '0x10'"),
        ("1.5", pa.string(), "float64", 1.5),
        ("1e3", pa.large_string(), "float32", 1000.0),
        ("x", pa.string(), "float64", "a is not a number"),
        ("TRUE", pa.string(), "boolean", True),
        ("no", pa.string(), "boolean", "a is not true or false: 'no'"),
        (12, pa.int64(), "string", "12"),
        (0.1, pa.float64(), "string", "0.1"),
        (Decimal("1.50"), pa.decimal128(5, 2), "string", "1.50"),
        (b"ab", pa.binary(), "string", "YWI="),
        (b"ab", pa.binary(), "int8", "a is binary, which cannot be cast to int8"),
        ([1], pa.list_(pa.int64()), "string", "a is list<item: int64>, which cannot be cast to string"),
        (AT, pa.timestamp("ms", "UTC"), "int64", AT_MS),
        (AT, pa.timestamp("us", "UTC"), "string", "2026-01-31T12:30:05.250000Z"),
        (AT, pa.timestamp("ms", "UTC"), "int32", "a is beyond the bounds of int32"),
        (date(1970, 1, 3), pa.date32(), "int32", 2),
        (date(1970, 1, 3), pa.date32(), "string", "1970-01-03"),
        (time(0, 0, 1), pa.time32("ms"), "int64", 1000),
        (None, pa.int64(), "string", None),
        (None, pa.list_(pa.int64()), "string", None),
        (None, pa.null(), "int8", None),
    ],
)
def test_cast(given: Any, type_: Any, to: str, expected: Any) -> None:
    whole = pa.struct([("a", type_), ("b", pa.string())])
    fails = isinstance(expected, str) and expected.startswith("a is")
    found = value_of("Cast$Value", {"spec": f"a:{to}"}, {"a": given, "b": "x"}, whole)
    assert found == (expected if fails else {"a": expected, "b": "x"})
    alone = value_of("Cast$Value", {"spec": to}, given, type_)
    assert alone == (expected.replace("a is", "the value is") if fails else expected)


def test_cast_gives_the_type_whatever_the_rows_are() -> None:
    for values in ([{"a": None}], [{"a": 1}], []):
        given = batch_of([row(value) for value in values], pa.struct([("a", pa.int64())]))
        [batch] = chain(("Cast$Value", {"spec": "a: INT8 , none:string"})).apply(given).batches
        assert batch.column("value").type == pa.struct([("a", pa.int8())])


# --- fields ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "given", "expected"),
    [
        ({"exclude": "a,none"}, {"a": 1, "b": 2}, {"b": 2}),
        ({"include": "a, b", "exclude": "a"}, {"a": 1, "b": 2, "c": 3}, {"b": 2}),
        ({"renames": "a:x,c:y"}, {"a": 1, "b": 2}, {"x": 1, "b": 2}),
        ({"renames": "a:b,b:a"}, {"a": 1, "b": 2}, {"b": 1, "a": 2}),
        ({"renames": "a:b"}, {"a": 1, "b": 2}, "there would be two fields 'b'"),
        ({"exclude": "a"}, {"a": 1}, {}),
        ({"exclude": "a"}, None, None),
        ({"exclude": "a"}, "text", "the value has no fields: it is string"),
        ({}, {"a": 1}, {"a": 1}),
    ],
)
def test_replace_field(settings: dict[str, str], given: Any, expected: Any) -> None:
    assert value_of("ReplaceField$Value", settings, given) == expected


@pytest.mark.parametrize(
    ("settings", "given", "expected"),
    [
        ({"field": "a"}, {"a": 5}, 5),
        ({"field": "a"}, {"a": {"b": 1}}, {"b": 1}),
        ({"field": "a.b"}, {"a.b": 5}, 5),
        ({"field": "a.b", "field.syntax.version": "V2"}, {"a": {"b": 5}}, 5),
        ({"field": "a.b", "field.syntax.version": "V2"}, {"a": {"x": 1}}, "the value has no field 'a.b'"),
        ({"field": "`a.b`.c", "field.syntax.version": "V2"}, {"a.b": {"c": 5}}, 5),
        ({"field": "a"}, None, None),
        ({"field": "x"}, {"a": 5}, "the value has no field 'x'"),
        ({"field": "a"}, 5, "the value has no fields: it is int64"),
    ],
)
def test_extract_field(settings: dict[str, str], given: Any, expected: Any) -> None:
    assert value_of("ExtractField$Value", settings, given) == expected


def test_a_field_of_a_null_struct_is_null() -> None:
    settings = {"field": "a.b", "field.syntax.version": "V2"}
    kind = pa.struct([("a", pa.struct([("b", pa.int64())]))])
    assert value_of("ExtractField$Value", settings, {"a": None}, kind) is None


def test_a_field_that_open_data_does_not_have_is_null() -> None:
    assert value_of("ExtractField$Value", {"field": "x"}, {"a": 5}, is_open=True) is None
    assert one("ValueToKey", {"fields": "x,a"}, row({"a": 5}), is_open=True)["key"] == {"x": None, "a": 5}
    found = one("HeaderFrom$Value", {"fields": "x", "headers": "h", "operation": "copy"}, row({"a": 5}), is_open=True)
    assert found["headers"] == [("h", None)]


def test_hoist_field() -> None:
    assert value_of("HoistField$Value", {"field": "x"}, 5) == {"x": 5}
    assert value_of("HoistField$Value", {"field": "x"}, {"a": 1}) == {"x": {"a": 1}}
    assert value_of("HoistField$Value", {"field": "x"}, None) == {"x": None}, (
        "as in Kafka, this is no tombstone any more"
    )
    assert one("HoistField$Key", {"field": "id"}, row(1, key="k"))["key"] == {"id": "k"}


@pytest.mark.parametrize(
    ("settings", "given", "expected"),
    [
        ({}, {"a": {"b": {"c": 1}, "d": [1]}, "e": 2}, {"a.b.c": 1, "a.d": [1], "e": 2}),
        ({"delimiter": "_"}, {"a": {"b": 1}}, {"a_b": 1}),
        ({}, {"a": {"b": 1}, "a.b": 2}, "there would be two fields 'a.b'"),
        ({}, None, None),
        ({}, {"a": {}}, {}),
    ],
)
def test_flatten(settings: dict[str, str], given: Any, expected: Any) -> None:
    assert value_of("Flatten$Value", settings, given) == expected


def test_flatten_of_nulls_and_maps() -> None:
    inner = pa.struct([pa.field("b", pa.int64(), nullable=False)])
    [batch] = chain(("Flatten$Value", {})).apply(batch_of([row({"a": None})], pa.struct([("a", inner)]))).batches
    assert batch.column("value").to_pylist() == [{"a.b": None}]
    assert batch.column("value").type.field(0).nullable, "its struct may be null"
    mapped = pa.struct([("m", pa.map_(pa.string(), pa.int64()))])
    assert "m is a map" in value_of("Flatten$Value", {}, {"m": [("a", 1)]}, mapped)


def test_value_to_key() -> None:
    assert one("ValueToKey", {"fields": "b,a"}, row({"a": 1, "b": 2, "c": 3}))["key"] == {"b": 2, "a": 1}
    assert one("ValueToKey", {"fields": "x"}, row({"a": 1})) == "the value has no field 'x'"
    assert one("ValueToKey", {"fields": "x"}, row(None)) == "the value is null, so it has no fields for a key"
    assert one("ValueToKey", {"fields": "x"}, row(5)) == "the value has no fields: it is int64"


# --- MaskField ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "type_", "expected"),
    [
        ("secret", pa.string(), ""),
        (5, pa.int16(), 0),
        (1.5, pa.float32(), 0.0),
        (True, pa.bool_(), False),
        (Decimal("1.50"), pa.decimal128(5, 2), Decimal("0.00")),
        (AT, pa.timestamp("us", "UTC"), datetime(1970, 1, 1, tzinfo=UTC)),
        (date(2026, 1, 1), pa.date32(), date(1970, 1, 1)),
        (time(1, 2, 3), pa.time64("us"), time(0)),
        ([1, 2], pa.list_(pa.int64()), []),
        ([("a", 1)], pa.map_(pa.string(), pa.int64()), []),
        (b"x", pa.binary(), b""),
        (None, pa.string(), None),
        ({"x": 1}, pa.struct([("x", pa.int64())]), "a is a struct, which cannot be masked; flatten it, or drop it"),
    ],
)
def test_mask_field(given: Any, type_: Any, expected: Any) -> None:
    whole = pa.struct([("a", type_), ("b", pa.string())])
    found = value_of("MaskField$Value", {"fields": "a,none"}, {"a": given, "b": "x"}, whole)
    assert found == (expected if isinstance(found, str) else {"a": expected, "b": "x"})


def test_mask_field_of_open_structs_and_of_tombstones() -> None:
    assert value_of("MaskField$Value", {"fields": "a"}, {"a": {"x": 1}}, is_open=True) == {"a": {"x": None}}
    assert value_of("MaskField$Value", {"fields": "a"}, None) is None
    assert one("MaskField$Key", {"fields": "a"}, row({"a": 1}, key={"a": 1})) == row({"a": 1}, key={"a": 0})


@pytest.mark.parametrize(
    ("given", "type_", "replacement", "expected"),
    [
        ("secret", pa.string(), "***", "***"),
        (5, pa.int16(), "123", 123),
        (5.0, pa.float64(), "1.5", 1.5),
        (Decimal("1.50"), pa.decimal128(5, 2), "9.99", Decimal("9.99")),
        (5, pa.int8(), "300", "a is int8, which '300' is not"),
        (5, pa.int8(), "x", "a is int8, which 'x' is not"),
        (True, pa.bool_(), "true", "a is bool, which has no replacement; only numbers and texts have"),
        (None, pa.int8(), "x", None),
    ],
)
def test_mask_field_with_a_replacement(given: Any, type_: Any, replacement: str, expected: Any) -> None:
    settings = {"fields": "a", "replacement": replacement}
    found = value_of("MaskField$Value", settings, {"a": given}, pa.struct([("a", type_)]))
    assert found == (expected if isinstance(found, str) else {"a": expected})


# --- InsertField, SetSchemaMetadata ---------------------------------------------------------------------------


def test_insert_field() -> None:
    settings = {
        "topic.field": "t", "partition.field": "p", "offset.field": "o", "timestamp.field": "at!",
        "static.field": "s?", "static.value": "x",
    }  # fmt: skip
    record = row({"a": 1}, partition=3, offset=7, timestamp_ms=AT_MS)
    made = {"a": 1, "t": "shop.orders", "p": 3, "o": 7, "at": AT, "s": "x"}
    assert one("InsertField$Value", settings, record)["value"] == made
    assert one("InsertField$Value", settings, record, is_open=True)["value"] == {**made, "at": AT_MS}
    assert one("InsertField$Value", settings, row(None))["value"] is None
    [batch] = chain(("InsertField$Value", settings)).apply(batch_of([record])).batches
    assert [field.nullable for field in batch.column("value").type] == [True, True, True, True, False, True]


def test_insert_field_where_something_is_missing() -> None:
    assert value_of("InsertField$Value", {"partition.field": "p"}, {"a": 1}) == {"a": 1, "p": None}
    assert (
        value_of("InsertField$Value", {"partition.field": "p!"}, {"a": 1})
        == "the record has no partition, and p may not be null"
    )
    assert "only sinks have offset.field" in value_of("InsertField$Value", {"offset.field": "o"}, {"a": 1})
    assert value_of("InsertField$Value", {"topic.field": "a"}, {"a": 1}) == "there would be two fields 'a'"
    assert value_of("InsertField$Value", {"topic.field": "a"}, {"a": 1}, is_open=True) == {"a": "shop.orders"}
    assert value_of("InsertField$Value", {"topic.field": "a"}, 5) == "the value has no fields: it is int64"


def test_set_schema_metadata() -> None:
    given = batch_of([row({"a": 1}), row(None)])
    [batch] = (
        chain(("SetSchemaMetadata$Value", {"schema.name": "N"}), ("SetSchemaMetadata$Value", {"schema.version": "2"}))
        .apply(given)
        .batches
    )
    assert batch.metadata("value") == {NAME: b"N", VERSION: b"2"}
    assert batch.metadata("key") == {}
    assert (
        value_of("SetSchemaMetadata$Value", {"schema.name": "N"}, {"a": 1}, is_open=True)
        == "the value has no schema that could have a name"
    )
    assert value_of("SetSchemaMetadata$Value", {"schema.name": "N"}, None, is_open=True) is None
    kept = (
        ("ReplaceField$Value", {"exclude": "b"}),
        ("InsertField$Value", {"topic.field": "t"}),
        ("MaskField$Value", {"fields": "a"}),
    )
    [batch] = chain(("SetSchemaMetadata$Value", {"schema.name": "N"}), *kept).apply(given).batches
    assert batch.metadata("value") == {NAME: b"N"}, "transforms of fields keep the name"
    [batch] = (
        chain(("SetSchemaMetadata$Value", {"schema.name": "N"}), ("HoistField$Value", {"field": "x"}))
        .apply(given)
        .batches
    )
    assert batch.metadata("value") == {}
    assert batch.column("value").type.field(0).metadata == {NAME: b"N"}
    [batch] = chain(("HoistField$Value", {"field": "x"}), ("ExtractField$Value", {"field": "x"})).apply(batch).batches
    assert OPEN not in batch.metadata("value")


# --- headers --------------------------------------------------------------------------------------------------


def test_header_from() -> None:
    record = row({"a": 1, "b": "x", "c": b"\0", "d": [1]}, headers=[("a", b"old")])
    settings = {"fields": "a,b,c,d", "headers": "a,h,i,j", "operation": "copy"}
    headers = [("a", b"old"), ("a", b"1"), ("h", b"x"), ("i", b"\0"), ("j", b"[1]")]
    assert one("HeaderFrom$Value", settings, record) == {**record, "headers": headers}
    moved = one("HeaderFrom$Value", {**settings, "fields": "a,b", "headers": "a,h", "operation": "move"}, record)
    assert moved == {**record, "headers": headers[:3], "value": {"c": b"\0", "d": [1]}}
    assert one("HeaderFrom$Value", settings, row(None)) == "the value is null, so it has no fields for headers"
    assert one("HeaderFrom$Value", settings, row({"a": 1})) == "the value has no field 'b'"
    assert one("HeaderFrom$Key", {"fields": "a", "headers": "h", "operation": "copy"}, row(1, key={"a": None}))[
        "headers"
    ] == [("h", None)]


def test_insert_and_drop_headers() -> None:
    record = row(None, headers=[("a", b"1"), ("b", None), ("a", b"2")])
    assert one("InsertHeader", {"header": "a", "value.literal": "\u00fc"}, record)["headers"] == [
        *record["headers"],
        ("a", "\u00fc".encode()),
    ]
    assert one("DropHeaders", {"headers": "a,none"}, record)["headers"] == [("b", None)]
    assert one("DropHeaders", {"headers": "a,b"}, record)["headers"] == []


def test_headers_of_several_records_stay_with_their_records() -> None:
    rows = [row(1, headers=[("a", b"0"), ("b", b"1")]), row(2), row(3, headers=[("a", b"2")])]
    found, _ = told(chain(("InsertHeader", {"header": "z", "value.literal": "x"})).apply(batch_of(rows)))
    assert [found[place]["headers"] for place in range(3)] == [[*one["headers"], ("z", b"x")] for one in rows]
    found, _ = told(chain(("DropHeaders", {"headers": "a"})).apply(batch_of(rows)))
    assert [found[place]["headers"] for place in range(3)] == [[("b", b"1")], [], []]


# --- topics ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("regex", "replacement", "topic", "expected"),
    [
        ("before", "after", "before", "after"),
        ("before", "after", "before2", "before2"),
        ("(.*)-(\\d\\d\\d\\d\\d\\d\\d\\d)", "$1", "index-20160117", "index"),
        ("shop\\.(?<table>.*)", "${table}-$0", "shop.orders", "orders-shop.orders"),
        ("(a)(b)", "$2$11", "ab", "ba1"),
        (".*", "\\$1 \\\\", "x", "$1 \\"),
        ("[(](x)", "$1", "(x", "x"),
        ("a|ab", "x", "ab", "xb"),
        ("x", "", "x", "the topic's name would be empty"),
    ],
)
def test_regex_router(regex: str, replacement: str, topic: str, expected: str) -> None:
    found = one("RegexRouter", {"regex": regex, "replacement": replacement}, row(1, topic=topic))
    assert (found if isinstance(found, str) else found["topic"]) == expected


@pytest.mark.parametrize(
    ("settings", "at", "expected"),
    [
        ({}, AT_MS, "shop.orders-20260131"),
        (
            {"topic.format": "foo-${timestamp}-${topic}-${timestamp}", "timestamp.format": "yyyy"},
            AT_MS,
            "foo-2026-shop.orders-2026",
        ),
        ({"topic.format": "foo"}, AT_MS, "foo"),
        ({"timestamp.format": "yyyy.MM.dd'T'HH"}, -1, "shop.orders-1969.12.31T23"),
        ({}, None, "the record has no time"),
        ({}, 2**60, "the time is outside the years 1 to 9999; is it in the right unit?"),
    ],
)
def test_timestamp_router(settings: dict[str, str], at: int | None, expected: str) -> None:
    found = one("TimestampRouter", settings, row(1, timestamp_ms=at))
    assert (found if isinstance(found, str) else found["topic"]) == expected


# --- TimestampConverter ---------------------------------------------------------------------------------------

MS, US = pa.timestamp("ms", "UTC"), pa.timestamp("us", "UTC")
TEXT = {"format": "yyyy-MM-dd HH:mm:ss.SSS"}


@pytest.mark.parametrize(
    ("given", "type_", "settings", "expected"),
    [
        (AT, MS, {"target.type": "string", **TEXT}, "2026-01-31 12:30:05.250"),
        (AT, MS, {"target.type": "unix"}, AT_MS),
        (AT, MS, {"target.type": "unix", "unix.precision": "seconds"}, AT_MS // 1000),
        (AT, MS, {"target.type": "unix", "unix.precision": "microseconds"}, AT_MS * 1000),
        (AT, MS, {"target.type": "unix", "unix.precision": "nanoseconds"}, AT_MS * 1_000_000),
        (AT, MS, {"target.type": "Date"}, AT.date()),
        (AT, MS, {"target.type": "Time"}, time(12, 30, 5, 250000)),
        (AT, MS, {"target.type": "Timestamp"}, AT),
        (AT, pa.timestamp("s", "UTC"), {"target.type": "Timestamp"}, AT.replace(microsecond=0)),
        (AT, US, {"target.type": "Timestamp"}, AT),
        (AT.replace(microsecond=250_001), US, {"target.type": "Time"}, time(12, 30, 5, 250001)),
        (
            AT.replace(microsecond=250_001),
            US,
            {"target.type": "unix", "unix.precision": "microseconds"},
            AT_MS * 1000 + 1,
        ),
        ("2026-01-31 12:30:05.250", pa.string(), {"target.type": "Timestamp", **TEXT}, AT),
        ("2026-01-31 12:30:05.250", pa.string(), {"target.type": "unix", **TEXT}, AT_MS),
        ("31.1.2026", pa.string(), {"target.type": "Date", "format": "d.M.yyyy"}, AT.date()),
        (
            "2026-02-30 00:00:00.000",
            pa.string(),
            {"target.type": "unix", **TEXT},
            "'2026-02-30 00:00:00.000' is no time: day is out of range for month",
        ),
        ("soon", pa.string(), {"target.type": "unix", **TEXT}, "'soon' does not match 'yyyy-MM-dd HH:mm:ss.SSS'"),
        ("soon", pa.string(), {"target.type": "unix"}, "a is text; set format, so that it can be read"),
        (AT_MS, pa.int64(), {"target.type": "Timestamp"}, AT),
        (
            AT_MS // 1000,
            pa.int64(),
            {"target.type": "Timestamp", "unix.precision": "seconds"},
            AT.replace(microsecond=0),
        ),
        (
            AT_MS * 1000 + 1,
            pa.int64(),
            {"target.type": "Timestamp", "unix.precision": "microseconds"},
            AT.replace(microsecond=250_001),
        ),
        (-1500, pa.int64(), {"target.type": "Date"}, date(1969, 12, 31)),
        (-1500, pa.int64(), {"target.type": "string", "format": "ss.SSS"}, "58.500"),
        (datetime(1969, 12, 31, 23, 59, 58, 500000, UTC), MS, {"target.type": "unix", "unix.precision": "seconds"}, -1),
        (
            2**62,
            pa.int64(),
            {"target.type": "Timestamp", "unix.precision": "seconds"},
            "a is too large for ms in 64 bits",
        ),
        (
            2**62,
            pa.int64(),
            {"target.type": "Date", "unix.precision": "seconds"},
            "a is beyond the dates that there are",
        ),
        (date(2026, 1, 31), pa.date32(), {"target.type": "Timestamp"}, datetime(2026, 1, 31, tzinfo=UTC)),
        (time(1, 2, 3), pa.time32("s"), {"target.type": "string", "format": "HH:mm:ss"}, "01:02:03"),
        (
            5,
            pa.int32(),
            {"target.type": "Timestamp"},
            "a is int32, which is no time; it takes text, int64, and dates, times and timestamps",
        ),
        (None, pa.int32(), {"target.type": "Timestamp"}, None),
        (None, pa.string(), {"target.type": "string", **TEXT}, None),
    ],
)
def test_timestamp_converter(given: Any, type_: Any, settings: dict[str, str], expected: Any) -> None:
    found = value_of(
        "TimestampConverter$Value",
        {"field": "a", **settings},
        {"a": given, "b": 1},
        pa.struct([("a", type_), ("b", pa.int64())]),
    )
    assert found == (expected if isinstance(found, str) else {"a": expected, "b": 1})
    alone = value_of("TimestampConverter$Value", settings, given, type_)
    assert alone == (expected.replace("a is", "the value is") if isinstance(expected, str) else expected)


def test_timestamp_converter_leaves_alone_what_is_not_there() -> None:
    assert value_of("TimestampConverter$Value", {"field": "x", "target.type": "unix"}, {"a": 1}) == {"a": 1}
    assert value_of("TimestampConverter$Value", {"field": "x", "target.type": "unix"}, None) is None


# --- expr, Filter, predicates ---------------------------------------------------------------------------------


def test_expr_filters_and_computes() -> None:
    rows = [row({"a": 1, "b": 2}), row(None), row({"a": 20, "b": 3}), row({"a": None, "b": 3})]
    found, failed = told(
        chain(("expr", {"filter": 'col("a") > 10', "with_columns": 'a=col("a") * 2, c=lit("x")'})).apply(batch_of(rows))
    )
    assert {place: one["value"] for place, one in found.items()} == {1: None, 2: {"a": 40, "b": 3, "c": "x"}}
    assert failed == {}
    assert value_of("expr", {"with_columns": 'x=col("none")'}, {"a": 1}) == "the value has no field 'none'"
    assert value_of("expr", {"with_columns": 'x=col("none")'}, {"a": 1}, is_open=True) == {"a": 1, "x": None}
    assert value_of("expr", {"filter": 'col("a") + 1'}, {"a": 1}) == "filter is int64, not a condition"
    assert one("expr$Key", {"filter": 'col("key").str.starts_with("a")'}, row(1, key="ab")) == row(1, key="ab")
    assert one("expr$Key", {"filter": 'col("key").str.starts_with("a")'}, row(1, key="b")) is None
    assert value_of("expr", {"with_columns": 'value=col("value") + 1'}, 5) == 6


def test_a_row_that_an_expression_fails_for_fails_alone() -> None:
    rows = [row({"a": text}) for text in ("1", "x", "3")]
    found, failed = told(chain(("expr", {"with_columns": 'a=col("a").cast(Int64)'})).apply(batch_of(rows)))
    assert {place: one["value"] for place, one in found.items()} == {0: {"a": 1}, 2: {"a": 3}}
    assert failed.keys() == {1}


@pytest.mark.parametrize(
    ("predicate", "chosen"),
    [
        ({"type": "TopicNameMatches", "pattern": "shop\\..*"}, {0, 2}),
        ({"type": "TopicNameMatches", "pattern": "shop"}, set()),
        ({"type": "HasHeaderKey", "name": "h"}, {1, 2}),
        ({"type": "RecordIsTombstone"}, {1}),
        ({"type": "org.apache.kafka.connect.transforms.predicates.RecordIsTombstone"}, {1}),
    ],
)
@pytest.mark.parametrize("negate", ["false", "true"])
def test_filter_with_a_predicate(predicate: dict[str, str], chosen: set[int], negate: str) -> None:
    rows = [
        row(1),
        row(None, topic="other", headers=[("g", b""), ("h", b"x")]),
        row(2, headers=[("h", None), ("h", b"")]),
        row(3, topic="x.shop.", headers=[("H", b"")]),
    ]
    step = {"predicate": "p", **({"negate": negate} if negate == "true" else {})}
    done = chain(("org.apache.kafka.connect.transforms.Filter", step), p=predicate).apply(batch_of(rows))
    dropped = chosen if negate == "false" else set(range(4)) - chosen
    assert told(done)[0].keys() == set(range(4)) - dropped


def test_without_a_predicate_filter_drops_everything() -> None:
    done = chain(("Filter", {})).apply(batch_of([row(1), row(2)]))
    assert [len(batch) for batch in done.batches] == [0]


def test_fields_that_only_some_records_have_are_null_in_the_others() -> None:
    rows = [row({"a": 1}), row({"a": 2}, topic="other"), row({"a": 3})]
    steps = ("InsertField$Value", {"static.field": "s", "static.value": "x", "predicate": "p"})
    done = chain(steps, p={"type": "TopicNameMatches", "pattern": "other"}).apply(batch_of(rows))
    [batch] = done.batches
    assert batch.column("value").to_pylist() == [{"a": 1, "s": None}, {"a": 2, "s": "x"}, {"a": 3, "s": None}]
    assert batch.places.tolist() == [0, 1, 2]


def test_types_that_nothing_holds_both_of_are_several_batches_in_order() -> None:
    rows = [row({"a": 1}), row({"a": 2}, topic="other"), row({"a": 3}, topic="other"), row({"a": 4})]
    steps = (
        ("ExtractField$Value", {"field": "a", "predicate": "p"}),
        ("InsertHeader", {"header": "h", "value.literal": "x"}),
    )
    done = chain(*steps, p={"type": "TopicNameMatches", "pattern": "other"}).apply(batch_of(rows))
    assert [(batch.places.tolist(), batch.column("value").to_pylist()) for batch in done.batches] == [
        ([0], [{"a": 1}]),
        ([1, 2], [2, 3]),
        ([3], [{"a": 4}]),
    ]
    assert all(one["headers"] == [("h", b"x")] for one in told(done)[0].values())


def test_what_fails_in_every_row_leaves_nulls_alone() -> None:
    rows = [row({"a": 1}), row(None), row({"a": 2})]
    for settings in ({"filter": 'col("x") > 1'}, {"filter": 'col("a") + 1'}, {"filter": 'col("a").str.contains("x")'}):
        found, failed = told(chain(("expr", settings)).apply(batch_of(rows)))
        assert (found.keys(), failed.keys()) == ({1}, {0, 2})
    bare = [row(1), row(None), row(2)]
    found, failed = told(chain(("expr", {"with_columns": 'x=col("value")'})).apply(batch_of(bare)))
    assert (found.keys(), failed.keys()) == ({1}, {0, 2})
    found, failed = told(chain(("expr", {"filter": 'col("x") > 1'})).apply(batch_of([row(None)], pa.int64())))
    assert (found.keys(), failed) == ({0}, {})
