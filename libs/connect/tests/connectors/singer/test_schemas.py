"""JSON Schema as types of Arrow: nothing is rounded, cut or guessed."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from libs.connect.tests.connectors.singer.taps import lines_of, record, stream

from headrace_connect.connectors.singer import messages
from headrace_connect.connectors.singer.messages import SchemaMessage
from headrace_connect.connectors.singer.shapes import Shape
from headrace_connect.core.dead_letters import Origin
from headrace_connect.plugin import Chunk
from headrace_connect.runtime.converting import ChunkPipeline, Converting

DATE_TIME = {"type": "string", "format": "date-time"}
DATE = {"type": "string", "format": "date"}
CENTS = {"type": "number", "multipleOf": 0.01}
DATES = {"type": "array", "items": {"type": ["null", "string"], "format": "date"}}
PAIR = {"type": "object", "properties": {"b": {"type": "integer"}, "c": {"type": "string"}}}
INSTANT = pa.timestamp("us", "UTC")


def shape_of(schema: Any, **around: Any) -> Shape:
    [line] = lines_of([stream("s", keys=[], a=schema)])
    said = messages.parse(line.text, lambda _: False)
    assert isinstance(said, SchemaMessage)
    return Shape.of(SchemaMessage("s", {**said.schema, **around}, (), ()), "schema", "refuse")


def field_of(schema: Any, **around: Any) -> Any:
    kind = shape_of(schema, **around).kind
    assert kind is not None
    return kind.arrow.field("a")


def convert(schema: Any, value: str) -> tuple[list[Any], dict[int, str]]:
    """A value as the tap writes it, through the same parsing."""
    shape = shape_of(schema)
    line = b'{"type": "RECORD", "stream": "s", "record": {"a": %s}}' % value.encode()
    said = messages.parse(line, lambda _: shape.exact)
    assert isinstance(said, messages.RecordMessage)
    values, _, failed = shape.convert([said.record])
    return [row["a"] for row in values.to_pylist()], failed


@pytest.mark.parametrize(
    ("schema", "kind", "nullable"),
    [
        ({"type": "integer"}, pa.int64(), True),
        ({"type": ["null", "integer"]}, pa.int64(), True),
        ({"type": "number"}, pa.float64(), True),
        ({"type": ["integer", "number"]}, pa.float64(), True),
        (CENTS, pa.decimal128(38, 2), True),
        ({"type": "number", "multipleOf": 1e-10}, pa.decimal128(38, 10), True),
        ({"type": "number", "multipleOf": 1e-38}, pa.decimal256(76, 38), True),
        ({"type": "number", "multipleOf": 1}, pa.decimal128(38, 0), True),
        ({"type": "number", "multipleOf": 0.05}, pa.float64(), True),
        ({"type": "number", "multipleOf": "x"}, pa.float64(), True),
        ({"type": "number", "multipleOf": -0.1}, pa.float64(), True),
        ({"type": ["integer", "number"], "multipleOf": 0.1}, pa.decimal128(38, 1), True),
        ({"type": "integer", "multipleOf": 10}, pa.int64(), True),
        ({"type": "boolean"}, pa.bool_(), True),
        ({"type": "string"}, pa.string(), True),
        ({"type": "string", "format": "uuid"}, pa.string(), True),
        (DATE_TIME, INSTANT, True),
        ({"type": ["string", "null"], "format": "date"}, pa.date32(), True),
        ({"type": "string", "format": "time"}, pa.time64("us"), True),
        ({"anyOf": [{"type": "string", "format": "date-time"}, {"type": "null"}]}, INSTANT, True),
        ({"anyOf": [{"type": "string", "format": "date-time"}, {"type": ["string", "null"]}]}, pa.string(), True),
        ({"oneOf": [{"type": "integer"}, {"type": "string"}]}, pa.string(), True),
        ({"type": ["array", "null"], "items": {"type": "integer"}}, pa.list_(pa.int64()), True),
        ({"type": "array"}, pa.string(), True),
        ({"type": "object"}, pa.string(), True),
        ({"properties": {"b": {"type": "integer"}}}, pa.struct([("b", pa.int64())]), True),
        ({}, pa.string(), True),
        ({"type": "null"}, pa.string(), True),
        ({"type": "whatever"}, pa.string(), True),
        (True, pa.string(), True),
        ({"$ref": "#/definitions/number"}, pa.int64(), True),
        ({"$ref": "#/definitions/nowhere"}, pa.string(), True),
    ],
)
def test_types(schema: Any, kind: Any, nullable: bool) -> None:
    field = field_of(schema, definitions={"number": {"type": "integer"}})
    assert (field.type, field.nullable) == (kind, nullable)


def test_what_is_required_and_not_null_may_not_be_null() -> None:
    assert not field_of({"type": "integer"}, required=["a"]).nullable
    assert field_of({"type": ["integer", "null"]}, required=["a"]).nullable
    assert field_of({}, required=["a"]).nullable


def test_a_schema_that_is_in_itself_ends() -> None:
    tree = {"type": "object", "properties": {"left": {"$ref": "#/properties/a"}, "n": {"type": "integer"}}}
    assert "n" in {one.name for one in field_of(tree).type}
    assert field_of({"$ref": "#/properties/a"}).type == pa.string()


@pytest.mark.parametrize(
    ("schema", "value", "wanted"),
    [
        ({"type": "integer"}, "3.0", 3),
        ({"type": "integer"}, str(2**63 - 1), 2**63 - 1),
        ({"type": "number"}, "7", 7.0),
        ({"type": "number"}, "0.1", 0.1),
        (CENTS, "12345678901234567890.12", Decimal("12345678901234567890.12")),
        (CENTS, "1e2", Decimal(100)),
        (CENTS, "5", Decimal(5)),
        (DATE_TIME, '"2024-01-01T02:00:00.123456+02:00"', datetime(2024, 1, 1, 0, 0, 0, 123456, UTC)),
        (DATE_TIME, '"2024-01-01t00:00:00z"', datetime(2024, 1, 1, tzinfo=UTC)),
        (DATE_TIME, '"2024-01-01 00:00:00.1000000000"', datetime(2024, 1, 1, 0, 0, 0, 10**5, UTC)),
        (DATE, '"2024-02-29"', date(2024, 2, 29)),
        (DATE, '"2024-02-29T00:00:00Z"', date(2024, 2, 29)),
        ({"type": "string", "format": "time"}, '"23:59:59.5"', time(23, 59, 59, 500000)),
        ({"type": "string", "format": "time"}, '"23:59:59Z"', time(23, 59, 59)),
        ({"type": ["string", "integer"]}, "5", "5"),
        ({"type": ["string", "integer"]}, '"5"', "5"),
        ({"type": "object"}, '{"a": [18446744073709551617, 0.5, "ä"]}', '{"a":[18446744073709551617,0.5,"ä"]}'),
        (DATES, '["2024-01-01", null]', [date(2024, 1, 1), None]),
        (PAIR, '{"b": 1}', {"b": 1, "c": None}),
        ({"type": "boolean"}, "true", True),
        ({"type": "integer"}, "null", None),
    ],
)  # fmt: skip
def test_values(schema: Any, value: str, wanted: Any) -> None:
    assert convert(schema, value) == ([wanted], {})


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"type": "integer"}, "3.5"),
        ({"type": "integer"}, str(2**63)),
        ({"type": "integer"}, "18446744073709551616"),
        ({"type": "integer"}, "1e300"),
        ({"type": "integer"}, "true"),
        ({"type": "integer"}, '"5"'),
        ({"type": "number"}, str(2**53 + 1)),
        ({"type": "number"}, "true"),
        ({"type": "number"}, '"5"'),
        (CENTS, "0.001"),
        (CENTS, "1e300"),
        (CENTS, "1" * 38),
        (CENTS, '"1"'),
        (CENTS, "true"),
        ({"type": "boolean"}, "1"),
        ({"type": "string"}, "5"),
        (DATE_TIME, '"yesterday"'),
        (DATE_TIME, "5"),
        (DATE_TIME, '"2024-01-01T00:00:00.1234567Z"'),
        (DATE_TIME, '"10000-01-01T00:00:00Z"'),
        (DATE_TIME, '"0001-01-01T00:00:00+10:00"'),
        (DATE, '"2024-02-29T10:00:00Z"'),
        (DATE, '"2023-02-29"'),
        ({"type": "string", "format": "time"}, '"10:00:00+02:00"'),
        ({"type": "string", "format": "time"}, '"10:00:00.0000001"'),
        ({"type": "array", "items": {"type": "integer"}}, '"x"'),
        ({"type": "array", "items": {"type": "integer"}}, '["x"]'),
        ({"type": "object", "properties": {"b": {"type": "integer"}}}, "5"),
        ({"type": "object", "properties": {"b": {"type": "integer"}}}, '{"b": "x"}'),
        ({"type": "object", "properties": {"b": {"type": "integer"}}}, '{"c": 1}'),
    ],
)
def test_what_does_not_fit_is_refused(schema: Any, value: str) -> None:
    values, failed = convert(schema, value)
    assert values == []
    assert list(failed) == [0]


def test_a_refusal_names_the_property() -> None:
    schema = {"type": "object", "properties": {"b": {"type": "array", "items": {"type": "integer"}}}}
    _, failed = convert(schema, '{"b": [1, 2.5]}')
    assert failed[0] == "a: b: is no whole number of 64 bits: 2.5"


@given(st.decimals(-(10**15), 10**15, places=6, allow_nan=False))
def test_decimals_are_what_was_written(value: Decimal) -> None:
    assert convert({"type": "number", "multipleOf": 0.000001}, format(value, "f")) == ([value], {})


@given(st.datetimes(), st.integers(-1439, 1439))
def test_instants_are_what_was_written(local: datetime, minutes: int) -> None:
    moment = local.replace(tzinfo=timezone(timedelta(minutes=minutes)))
    try:
        wanted = moment.astimezone(UTC)
    except OverflowError:
        return
    assert convert(DATE_TIME, f'"{moment.isoformat()}"') == ([wanted], {})


def test_records_go_through_a_converter_with_their_schema() -> None:
    shape = shape_of(CENTS, required=["a"])
    values, _, _ = shape.convert([{"a": Decimal("1.50")}, {"a": None}])
    converting = Converting.of({"value.converter": "json", "value.converter.schemas.enable": "true"})
    done = ChunkPipeline(converting, Origin("c", 0, "p", "t")).apply(Chunk(values, {}))
    [out] = done.outgoing
    assert len(out.table) == 1
    assert b'"org.apache.kafka.connect.data.Decimal"' in out.table.column("value")[0].as_py()
    assert "may not be" in str(done.lost[0])


def test_keys_are_those_that_the_stream_names() -> None:
    said = SchemaMessage("s", {"properties": {"b": {"type": "string"}, "a": {"type": "integer"}}}, ("a", "b"), ())
    values, keys, failed = Shape.of(said, "schema", "refuse").convert([record(a=1, b="x")["record"], {"a": 2}])
    assert values.to_pylist() == [{"b": "x", "a": 1}]
    assert keys.to_pylist() == [{"a": 1, "b": "x"}]
    assert [one.nullable for one in keys.type] == [False, False]
    assert failed == {1: "b is null or missing, and is of the key"}
