"""``avro``, read: golden bytes, schemas that differ, rubbish, schemas that are none."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace_streams.core.formats.avro_read import AvroReader
from headrace_streams.core.formats.avro_schema import BadSchema, columns_of, parse, text_of
from headrace_streams.core.formats.port import Problem

from .avro_samples import ORDER, read, record, tables, written

LONGS = {"type": "array", "items": "long"}
INNER = record("Inner", n="long")
ENDS = "the value ends in the middle"
NO_BRANCH = "the value ends early, or has a branch of a union or a symbol of an enum that is not in its schema"
LINKED = record("Node", n="int", next=["null", "Node"])


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        ("null", "", None),
        ("boolean", "01", True),
        ("int", "00", 0),
        ("int", "01", -1),
        ("int", "02", 1),
        ("int", "7f", -64),
        ("long", "8001", 64),
        ("long", "ffffffffffffffffff01", -(2**63)),
        ("long", "feffffffffffffffff01", 2**63 - 1),
        ("float", "0000c03f", 1.5),
        ("double", "000000000000f8bf", -1.5),
        ("bytes", "0400ff", b"\x00\xff"),
        ("string", "06666f6f", "foo"),
        ({"type": "fixed", "name": "F", "size": 2}, "beef", b"\xbe\xef"),
        ({"type": "enum", "name": "E", "symbols": ["A", "B", "C", "D"]}, "06", "D"),
        ({"type": "array", "items": "long"}, "04063600", [3, 27]),
        ({"type": "array", "items": "long"}, "030406360206" + "00", [3, 27, 3]),  # -2 items in 2 bytes, then 1
        ({"type": "array", "items": "long"}, "00", []),
        ({"type": "array", "items": "float"}, "040000c03f000000000200008040" + "00", [1.5, 0.0, 4.0]),
        ({"type": "map", "values": "int"}, "0202610200", [("a", 1)]),
        (["null", "string"], "020261", "a"),
        (["null", "string"], "00", None),
        (["int", "null"], "0004", 2),
        (record("R", a="long", b="string"), "3606666f6f", {"a": 27, "b": "foo"}),
        ({"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}, "04ff85", Decimal("-1.23")),
        ({"type": "fixed", "name": "D", "size": 3, "logicalType": "decimal", "precision": 4}, "00007b", Decimal(123)),
        (
            {"type": "fixed", "name": "U", "size": 16, "logicalType": "uuid"},
            "00112233445566778899aabbccddeeff",
            bytes.fromhex("00112233445566778899aabbccddeeff"),
        ),
        ({"type": "long", "logicalType": "timestamp-millis"}, "d00f", datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)),
    ],
)
def test_bytes_of_the_specification(kind: Any, value: str, expected: Any) -> None:
    decoded = read(record("Whole", x=kind), [bytes.fromhex(value)])
    assert (decoded.table.to_pylist(), decoded.problems) == ([{"x": expected}], [])


@given(tables(), st.data())
@settings(max_examples=150, deadline=None)
def test_values_are_read_alone_as_among_others(table: tuple[Any, list[Any]], data: st.DataObject) -> None:
    """Also where some of them are damaged; nothing but the row fails."""
    schema, rows = table
    values: list[Any] = written(schema, *rows).to_pylist()
    for value in list(values):
        at = data.draw(st.integers(0, len(value)))
        values.append(value[:at] + data.draw(st.binary(max_size=4)) + value[at + data.draw(st.integers(0, 4)) :])
    together = read(schema, values)
    alone = [read(schema, [value]) for value in values]
    rows_alone = [row for one in alone for row in one.table.to_pylist()]
    assert repr(together.table.to_pylist()) == repr(rows_alone), "by text: NaN, which damage makes, equals nothing"
    assert together.problems == [
        Problem(at, problem.message) for at, one in enumerate(alone) for problem in one.problems
    ]


@given(st.lists(st.binary(max_size=60), max_size=5))
@settings(max_examples=300, deadline=None)
def test_rubbish_fails_alone(values: list[bytes]) -> None:
    fields: dict[str, Any] = {
        "a": {"type": "array", "items": ["null", "string"]},
        "m": {"type": "map", "values": {"type": "array", "items": "boolean"}},
        "d": {"type": "bytes", "logicalType": "decimal", "precision": 30},
        "e": {"type": "enum", "name": "E", "symbols": ["A", "B"]},
        "t": ["null", {"type": "long", "logicalType": "timestamp-micros"}],
        "b": "boolean",
    }
    good = written(record("R", **fields), {"a": ["x"], "m": {}, "d": Decimal(1), "e": "A", "t": None, "b": True})
    decoded = read(record("R", **fields), [*values, good[0].as_py()])
    assert decoded.table.num_rows + len(decoded.problems) == len(values) + 1
    assert decoded.table.to_pylist()[-1]["a"] == ["x"]


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        ("string", "", ENDS),
        ("string", "0661", ENDS),
        ("string", "01", ENDS),
        ("string", "02ff", "a text is not UTF-8"),
        ("double", "00000000", ENDS),
        ({"type": "fixed", "name": "F", "size": 3}, "0000", ENDS),
        ("int", "0200", "the value goes on where its schema ends; was it written with another one?"),
        ("int", "8080808010", "Value 2147483648 too large to fit in C integer type"),
        (["null", "int"], "04", NO_BRANCH),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, "02", NO_BRANCH),
        ({"type": "array", "items": "long"}, "feffffff1f", ENDS),
        ({"type": "array", "items": "string"}, "0202", ENDS),
        ({"type": "array", "items": "double"}, "04" + "00" * 15, ENDS),
        ({"type": "map", "values": "null"}, "feffffff1f", ENDS),
        ({"type": "int", "logicalType": "date"}, "feffffff0f", "signed integer is greater than maximum"),
        (
            {"type": "long", "logicalType": "timestamp-millis"},
            "feffffffffffffffff01",
            "Python int too large to convert to C int",
        ),
        ({"type": "int", "logicalType": "time-millis"}, "feffffff0f", "hour must be in 0..23"),
        (
            {"type": "bytes", "logicalType": "decimal", "precision": 2},
            "0264",
            "Decimal type with precision 3 does not fit into precision inferred from first array element: 2",
        ),
        (record("In", y=["null", "string"]), "0202ff", "a text is not UTF-8"),
    ],
)
def test_what_is_wrong_is_told(kind: Any, value: str, message: str) -> None:
    decoded = read(record("Whole", x=kind), [bytes.fromhex(value)])
    assert (decoded.table.num_rows, decoded.problems) == (0, [Problem(0, message)])


@pytest.mark.parametrize(
    ("writer", "wanted", "row", "expected"),
    [
        (record(a="int"), record(a="long"), {"a": 7}, {"a": 7}),
        (record(a="int"), record(a="double"), {"a": 7}, {"a": 7.0}),
        (record(a="long"), record(a="float"), {"a": 7}, {"a": 7.0}),
        (record(a="string"), record(a="bytes"), {"a": "é"}, {"a": "é".encode()}),
        (record(a="bytes"), record(a="string"), {"a": b"x"}, {"a": "x"}),
        (record(a="int", b="string", c="int"), record(c="int", a="int"), {"a": 1, "b": "x", "c": 3}, {"c": 3, "a": 1}),
        (record(a="int"), record(a="int", b=(["null", "string"], None)), {"a": 1}, {"a": 1, "b": None}),
        (
            record(a="int"),
            record(a="int", b=(LONGS, [1, 2])),
            {"a": 1},
            {"a": 1, "b": [1, 2]},
        ),
        (
            record(a="int"),
            record(a="int", b=(INNER, {"n": 5}), c=("bytes", "\u00ff"), d=({"type": "map", "values": "int"}, {"k": 1})),
            {"a": 1},
            {"a": 1, "b": {"n": 5}, "c": b"\xff", "d": [("k", 1)]},
        ),
        (record(a="int"), record(a=["null", "long"]), {"a": 1}, {"a": 1}),
        (record(a=["null", "int"]), record(a="int"), {"a": 1}, {"a": 1}),
        (record(a=["int", "string"]), record(a="string"), {"a": "x"}, {"a": "x"}),
        (record(a=["int", "long"]), record(a="double"), {"a": 1}, {"a": 1.0}),
        (
            record(a={"type": "enum", "name": "E", "symbols": ["A", "B"]}),
            record(a={"type": "enum", "name": "E", "symbols": ["B", "X"], "default": "X"}),
            {"a": "A"},
            {"a": "X"},
        ),
        (
            record("Old", a="int"),
            {
                **record("New"),
                "aliases": ["Old"],
                "fields": [{"name": "b", "aliases": ["a"], "type": "int"}],
            },
            {"a": 1},
            {"b": 1},
        ),
        (
            record(
                a="int",
                skipped=record(
                    "S",
                    u=["null", "double", {"type": "map", "values": "float"}],
                    f={"type": "fixed", "name": "F", "size": 3},
                    t={"type": "array", "items": "string"},
                    b="boolean",
                ),
                z="int",
            ),
            record(z="int"),
            {"a": 1, "skipped": {"u": {"a": 1.0}, "f": b"abc", "t": ["x", "yz"], "b": True}, "z": 9},
            {"z": 9},
        ),
    ],
)
def test_schemas_may_differ(writer: Any, wanted: Any, row: Any, expected: Any) -> None:
    decoded = read(writer, written(writer, row, row), wanted)
    assert (decoded.table.to_pylist(), decoded.problems) == ([expected, expected], [])


@pytest.mark.parametrize(
    ("writer", "wanted", "message"),
    [
        (record(a="string"), record(a="int"), "a: is string where int is wanted"),
        (record(a="long"), record(a="int"), "a: is long where int is wanted"),
        (record(a=INNER), record(a=record("Inner", n="int")), "a.n: is long where int is wanted"),
        (
            record(a={"type": "array", "items": "string"}),
            record(a=LONGS),
            r"a\[\]: is string",
        ),
        (record(a="int"), record(a="int", b=("int", "x")), "Default value <x> must match schema type: int"),
        (record(a="int", b=LINKED), record(a="int"), "b.next: record 'Node' holds itself, which no column can"),
        (
            record(a={"type": "long", "logicalType": "timestamp-millis"}),
            record(a={"type": "long", "logicalType": "timestamp-micros"}),
            r"a: is long \(timestamp-millis\) where long \(timestamp-micros\) is wanted; declare what is written",
        ),
        (
            record(a={"type": "long", "logicalType": "timestamp-millis"}),
            record(a="long"),
            r"a: is long \(timestamp-millis\) where long is wanted; declare",
        ),
    ],
)
def test_schemas_that_do_not_fit_are_told(writer: Any, wanted: Any, message: str) -> None:
    with pytest.raises(BadSchema, match=message):
        AvroReader(parse(json.dumps(writer)), parse(json.dumps(wanted)))


def test_a_branch_that_does_not_fit_fails_its_row() -> None:
    writer = record(a=["int", "string"])
    decoded = read(writer, written(writer, {"a": 1}, {"a": "x"}, {"a": 2}), record(a="int"))
    assert decoded.table.to_pylist() == [{"a": 1}, {"a": 2}]
    assert [problem.row for problem in decoded.problems] == [1]
    assert "schema mismatch" in decoded.problems[0].message


def test_a_symbol_that_is_not_known_fails_its_row() -> None:
    writer = record(a={"type": "enum", "name": "E", "symbols": ["A", "B"]})
    wanted = record(a={"type": "enum", "name": "E", "symbols": ["B"]})
    decoded = read(writer, written(writer, {"a": "A"}, {"a": "B"}), wanted)
    message = "A not found in reader symbol list E, known symbols: ['B']"
    assert (decoded.table.to_pylist(), decoded.problems) == ([{"a": "B"}], [Problem(0, message)])


@pytest.mark.parametrize(
    ("writer", "wanted", "message"),
    [
        (record(a="int"), record(a="int", b="int"), "No default value for field b in R"),
        (record("A", a="int"), record("B", a="int"), "Schema mismatch: "),
        (
            record(a={"type": "fixed", "name": "F", "size": 1}),
            record(a={"type": "fixed", "name": "F", "size": 2}),
            "Schema mismatch: ",
        ),
    ],
)
def test_what_differs_is_told_of_each_value(writer: Any, wanted: Any, message: str) -> None:
    decoded = read(writer, [b"\x00", b"\x00"], wanted)
    assert (decoded.table.num_rows, [problem.row for problem in decoded.problems]) == (0, [0, 1])
    assert all(problem.message.startswith(message) for problem in decoded.problems)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "it is not JSON"),
        ('"strin"', "'strin' is neither a type of Avro nor declared before"),
        ('{"type": "record", "name": "R", "fields": 7}', "it is no schema of Avro: 'int' object is not iterable"),
        (json.dumps(record(**{"1": "int"})), "record 'R' has a field whose name is '1'"),
        (json.dumps(record(a=["int", "int"])), "a: a union has different types"),
        (json.dumps(record(a=["int", ["null"]])), "a: a union has different types and no unions in it"),
        (json.dumps(record(a=[])), "a: a union has different types and no unions in it, not nothing"),
        (json.dumps(record(a=INNER, b=INNER)), "it is no schema of Avro: redefined named type: Inner"),
        (json.dumps({"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}] * 2}), "has it twice"),
        ('{"type": "enum", "name": "E", "symbols": []}', "enum 'E' has no symbols"),
        ('{"type": "enum", "name": "E", "symbols": ["A"], "default": "B"}', "must be in symbols list"),
        ('{"type": "fixed", "name": "F", "size": -1}', "the size of fixed 'F' is -1"),
        ('{"items": "int"}', "a type has no 'type'"),
        ("7", "it is no schema of Avro"),
        (json.dumps(record(a={"type": "array", "items": "null"})), "a: items without bytes"),
        (json.dumps(record(a={"type": "array", "items": record("E", x="null")})), "a: items without bytes"),
        (json.dumps(record(a=(INNER, {}))), "a: the default {} is not record Inner"),
        (
            json.dumps(record(a=({"type": "array", "items": "bytes"}, [1]))),
            r"a: the default \[1\] is not array of bytes",
        ),
        ('{"type": "array", "items": ' * 2000 + '"int"' + "}" * 2000, "it is not JSON"),
    ],
)
def test_schemas_that_are_none_are_told(text: str, message: str) -> None:
    with pytest.raises(BadSchema, match=message):
        parse(text)


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (LINKED, "next: record 'Node' holds itself, which no column can"),
        (record(a=["int", "string"]), r"a: \[int, string\] has no column type; a union is null and one other type"),
        (record(a={"type": "bytes", "logicalType": "decimal", "precision": 50}), "a: a decimal of 50 digits"),
    ],
)
def test_types_without_a_column_are_told(schema: Any, message: str) -> None:
    with pytest.raises(BadSchema, match=message):
        columns_of(parse(json.dumps(schema)))


def test_columns_say_what_may_be_null() -> None:
    assert columns_of(parse(json.dumps(ORDER))) == pa.schema(
        [
            pa.field("user", pa.string(), nullable=False),
            pa.field("amount", pa.float64()),
            pa.field("at", pa.timestamp("ms", "UTC"), nullable=False),
        ]
    )
    assert columns_of(parse('"string"')) == pa.schema([pa.field("value", pa.string(), nullable=False)])


def test_references_are_known_by_name() -> None:
    money = json.dumps({**record("Money", n="long"), "namespace": "shop"})
    kind = parse(json.dumps({**record("Price", a="Money", b=["null", "shop.Money"]), "namespace": "shop"}), [money])
    assert [text_of(one["type"]) for one in kind["fields"]] == ["record shop.Money", "[null, record shop.Money]"]


def test_a_value_that_ends_is_not_read_on() -> None:
    """However many fields there still are."""
    numbers: dict[str, Any] = {f"n{at}": "long" for at in range(40)}
    assert read(record("R", **numbers), [b"", b"\x80"]).problems == [
        Problem(0, ENDS),
        Problem(1, NO_BRANCH),
    ]


_WORDS = [
    "type",
    "name",
    "fields",
    "items",
    "values",
    "symbols",
    "size",
    "default",
    "aliases",
    "namespace",
    "logicalType",
]
_KINDS = ["record", "enum", "fixed", "array", "map", "string", "int", "null", "A", "decimal", "precision", ""]
_ANY: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.integers(-2, 2) | st.sampled_from(_KINDS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(_WORDS), inner, max_size=4),
    max_leaves=12,
)


@given(_ANY, _ANY, _ANY)
@settings(max_examples=400, deadline=None)
def test_any_json_is_a_schema_or_is_told(first: Any, second: Any, default: Any) -> None:
    fields = [{"name": "a", "type": first}, {"name": "b", "type": second, "default": default}]
    try:
        kind = parse({"type": "record", "name": "R", "fields": fields})
        columns_of(kind)
        AvroReader(parse(record("R")), kind)
    except BadSchema:
        pass


def test_decimals_of_another_scale_are_refused() -> None:
    kinds = [{"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": scale} for scale in (2, 3)]
    with pytest.raises(BadSchema, match=r"a: is bytes \(decimal\(9,2\)\) where bytes \(decimal\(9,3\)\) is wanted"):
        AvroReader(parse(record(a=kinds[0])), parse(record(a=kinds[1])))


def test_problems_are_told_in_order_with_their_rows() -> None:
    """Of values that fastavro refuses (1, 4), and of those that no column holds (2, 3)."""
    values = [bytes.fromhex(text) for text in ("02", "", "8080808010", "8080808010", "0200", "04")]
    decoded = read(record(x="int"), values)
    assert decoded.table.to_pylist() == [{"x": 1}, {"x": 2}]
    assert [problem.row for problem in decoded.problems] == [1, 2, 3, 4]


def test_a_uuid_of_text_is_text() -> None:
    kind = record(x={"type": "string", "logicalType": "uuid"})
    assert read(kind, [b"\x02a"]).table.to_pylist() == [{"x": "a"}]
