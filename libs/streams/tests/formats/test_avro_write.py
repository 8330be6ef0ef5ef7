"""``avro``, written: what was written is read again; what cannot be written is told."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings

from headrace.errors import InvalidConfig
from headrace_streams.core.formats.avro_format import AvroFormat
from headrace_streams.core.formats.avro_schema import avro_of, columns_of, parse
from headrace_streams.core.formats.port import NotEncodable

from .avro_samples import ORDER, record, tables

MICROS = {"type": "long", "logicalType": "timestamp-micros"}


def write(schema: Any, table: pa.Table) -> list[bytes]:
    """The values."""
    values: list[Any] = AvroFormat(json.dumps(schema)).encode(table).to_pylist()
    return values


@given(tables())
@settings(max_examples=150, deadline=None)
def test_what_is_written_is_read(table: tuple[Any, list[Any]]) -> None:
    schema, rows = table
    columns = pa.Table.from_pylist(rows, columns_of(parse(json.dumps(schema))))
    values = write(schema, columns)
    assert AvroFormat(schema).decode(pa.array(values, pa.binary())).table == columns


@given(tables())
@settings(max_examples=60, deadline=None)
def test_a_schema_made_of_columns_holds_them(table: tuple[Any, list[Any]]) -> None:
    schema, rows = table
    columns = pa.Table.from_pylist(rows, columns_of(parse(json.dumps(schema))))
    made = AvroFormat(avro_of(columns.schema, "Made"))
    assert made.schema == columns.schema
    assert made.decode(made.encode(columns)).table == columns
    sliced = columns.slice(1)
    assert made.decode(made.encode(sliced)).table == sliced


@pytest.mark.parametrize(
    ("kind", "column", "expected"),
    [
        ("long", pa.array([0, -1, 1, -64, 64, 2**63 - 1]), ["00", "01", "02", "7f", "8001", "feffffffffffffffff01"]),
        ("int", pa.array([3], pa.int8()), ["06"]),
        ("long", pa.array([3], pa.uint32()), ["06"]),
        ("double", pa.array([1.5], pa.float32()), ["000000000000f83f"]),
        ("boolean", pa.array([True, False]), ["01", "00"]),
        ("string", pa.array(["foo", ""], pa.large_string()), ["06666f6f", "00"]),
        ("string", pa.array(["a", "b"]).dictionary_encode(), ["0261", "0262"]),
        (["null", "string"], pa.array(["a", None]), ["020261", "00"]),
        (["string", "null"], pa.array(["a", None]), ["000261", "02"]),
        ("null", pa.nulls(1), [""]),
        (["null", "int"], pa.nulls(1), ["00"]),
        ({"type": "array", "items": "long"}, pa.array([[3, 27], []], pa.list_(pa.int64())), ["04063600", "00"]),
        ({"type": "map", "values": "int"}, pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int32())), ["0202610200"]),
        ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, pa.array(["B"]), ["02"]),
        ({"type": "fixed", "name": "F", "size": 2}, pa.array([b"\xbe\xef"]), ["beef"]),
        (
            {"type": "bytes", "logicalType": "decimal", "precision": 5, "scale": 2},
            pa.array([Decimal("-1.23"), Decimal("1.28"), Decimal(0)], pa.decimal128(4, 2)),
            ["0285", "040080", "0200"],
        ),
        (
            {"type": "fixed", "name": "D", "size": 3, "logicalType": "decimal", "precision": 4},
            pa.array([Decimal(-1)], pa.decimal128(4, 0)),
            ["ffffff"],
        ),
        (
            {"type": "fixed", "name": "U", "size": 16, "logicalType": "uuid"},
            pa.array([bytes.fromhex("00112233445566778899aabbccddeeff")]),
            ["00112233445566778899aabbccddeeff"],
        ),
        (
            {"type": "long", "logicalType": "timestamp-micros"},
            pa.array([datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)], pa.timestamp("ms", "UTC")),
            ["80897a"],
        ),
        (
            {"type": "long", "logicalType": "timestamp-nanos"},
            pa.array([1], pa.timestamp("ns", "UTC")),
            ["02"],
        ),
        ({"type": "int", "logicalType": "date"}, pa.array([1], pa.date32()), ["02"]),
        ({"type": "long", "logicalType": "time-micros"}, pa.array([1], pa.time64("us")), ["02"]),
        (
            ["null", {"type": "map", "values": {"type": "array", "items": record("T", at=MICROS)}}],
            pa.array(
                [[("a", [{"at": 1}])]], pa.map_(pa.string(), pa.list_(pa.struct([("at", pa.timestamp("ms", "UTC"))])))
            ),
            ["02" + "02" + "0261" + "02" + "d00f" + "00" + "00"],
        ),
    ],
)
def test_bytes_of_the_specification(kind: Any, column: Any, expected: list[str]) -> None:
    written = write(record("R", x=kind), pa.table({"x": column}))
    assert [value.hex() for value in written] == expected


def test_a_column_that_is_not_there_is_null() -> None:
    assert write(ORDER, pa.table({"user": ["a"], "at": pa.array([1], pa.timestamp("ms", "UTC"))})) == [b"\x02a\x00\x02"]


def test_a_column_that_is_not_there_is_its_default() -> None:
    schema = record("R", x="int", y=("string", "a"), z=({"type": "fixed", "name": "F", "size": 1}, "\u00ff"))
    assert write(schema, pa.table({"x": [1]})) == [b"\x02\x02a\xff"]


def test_a_type_that_is_no_record_is_one_column() -> None:
    assert write("string", pa.table({"any": ["a"]})) == [b"\x02a"]
    with pytest.raises(InvalidConfig, match=r"avro: string is one column, not 2 \(a, b\)"):
        write("string", pa.table({"a": ["a"], "b": ["b"]}))


@pytest.mark.parametrize(
    ("kind", "column", "message"),
    [
        ("string", pa.array(["a", None]), "x is null, and may not be"),
        ("int", pa.array([1, 2**31]), "avro: Integer value 2147483648 not in range"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, pa.array(["A", "B"]), "avro: 'B' is not in list"),
        (
            {"type": "fixed", "name": "F", "size": 2},
            pa.array([b"ab", b"abc"]),
            "avro: data of length 3 does not match schema size",
        ),
        (
            {"type": "fixed", "name": "D", "size": 2, "logicalType": "decimal", "precision": 3},
            pa.array([Decimal(1), Decimal(1000)], pa.decimal128(4, 0)),
            "avro: Decimal value does not fit in precision 3",
        ),
        ("boolean", pa.array([True, None]), "x is null, and may not be"),
        (record("In", y="boolean"), pa.array([{"y": True}, {"y": None}]), "x.y is null"),
        (
            {"type": "map", "values": "boolean"},
            pa.array([[("a", True)], [("a", None)]], pa.map_(pa.string(), pa.bool_())),
            r"x\[\] is null",
        ),
        (
            {"type": "map", "values": "int"},
            pa.array([[("a", 1)], [("a", 1), ("a", 2)]], pa.map_(pa.string(), pa.int32())),
            "avro: a map has a key twice",
        ),
        ({"type": "array", "items": "int"}, pa.array([[1], [None]], pa.list_(pa.int32())), r"x\[\] is null"),
    ],
)
def test_a_row_that_cannot_be_written_is_named(kind: Any, column: Any, message: str) -> None:
    with pytest.raises(NotEncodable, match=message) as told:
        write(record("R", x=kind), pa.table({"x": column}))
    assert told.value.row == 1


@pytest.mark.parametrize(
    ("kind", "column", "message"),
    [
        ("int", pa.array(["a"]), "avro: column 'x' is string, and the schema says int; cast it, or mend the schema"),
        ("string", pa.array([1]), "avro: column 'x' is int64, and the schema says string"),
        ("float", pa.array([1.0]), "avro: column 'x' is double, and the schema says float"),
        ("null", pa.array([1]), "avro: column 'x' is int64, and the schema says null"),
        ({"type": "array", "items": "int"}, pa.array([1]), "'x' is int64, and the schema says array of int"),
        ({"type": "array", "items": "int"}, pa.array([["a"]]), r"column 'x\[\]' is string"),
        (record("In", y="int"), pa.array([{"z": 1}]), "avro: there is no column 'x.y', and the schema says int there"),
        (
            {"type": "long", "logicalType": "timestamp-millis"},
            pa.array([1]),
            r"is int64, and the schema says long \(timestamp-millis\)",
        ),
    ],
)
def test_columns_of_other_types_are_refused(kind: Any, column: Any, message: str) -> None:
    with pytest.raises(InvalidConfig, match=message):
        write(record("R", x=kind), pa.table({"x": column}))


def test_columns_that_the_schema_does_not_have_are_refused() -> None:
    with pytest.raises(
        InvalidConfig, match=r"column 'z' is none of R's fields \(x\); select\(\) what is to be written"
    ):
        write(record("R", x="int"), pa.table({"x": [1], "z": [2]}))


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (pa.schema([("a b", pa.int64())]), "column 'a b': a name in Avro is letters, digits and _"),
        (pa.schema([("a", pa.struct([("ü", pa.int64())]))]), "column 'a.ü': a name in Avro"),
        (pa.schema([("a", pa.uint64())]), "column 'a' is uint64, which Avro cannot hold; cast it"),
        (pa.schema([("a", pa.list_(pa.duration("s")))]), r"column 'a\[\]' is duration\[s\]"),
    ],
)
def test_columns_without_a_schema_are_refused(schema: pa.Schema, message: str) -> None:
    with pytest.raises(InvalidConfig, match=message):
        avro_of(schema, "R")
