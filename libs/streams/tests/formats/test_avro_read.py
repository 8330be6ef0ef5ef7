"""``avro``, read: golden bytes, what another library writes, schemas that differ, rubbish."""

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
from headrace_streams.core.formats.avro_schema import BadSchema, columns_of, parse
from headrace_streams.core.formats.port import Problem

from .avro_samples import ORDER, read, record, tables, written

LONGS = {"type": "array", "items": "long"}
INNER = record("Inner", n="long")
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
            "00112233-4455-6677-8899-aabbccddeeff",
        ),
        ({"type": "long", "logicalType": "timestamp-millis"}, "d00f", datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)),
    ],
)
def test_bytes_of_the_specification(kind: Any, value: str, expected: Any) -> None:
    decoded = read(record("Whole", x=kind), [bytes.fromhex(value)])
    assert (decoded.table.to_pylist(), decoded.problems) == ([{"x": expected}], [])


@given(tables())
@settings(max_examples=150, deadline=None)
def test_what_another_library_writes_is_read(table: tuple[Any, list[Any]]) -> None:
    schema, rows = table
    decoded = read(schema, written(schema, *rows))
    assert decoded.problems == []
    assert decoded.table == pa.Table.from_pylist(rows, columns_of(parse(json.dumps(schema))))


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
    assert together.table.to_pylist() == [row for one in alone for row in one.table.to_pylist()]
    assert together.problems == [
        Problem(at, problem.message) for at, one in enumerate(alone) for problem in one.problems
    ]


@given(st.lists(st.binary(max_size=60), max_size=5))
@settings(max_examples=300, deadline=None)
def test_rubbish_fails_alone(values: list[bytes]) -> None:
    fields: dict[str, Any] = {
        "a": {"type": "array", "items": ["null", "string"]},
        "m": {"type": "map", "values": {"type": "array", "items": "null"}},
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
        ("string", "", "x: the value ends in the middle"),
        ("string", "0661", "x: the value ends in the middle"),
        ("string", "01", "x: the value ends in the middle"),
        ("string", "02ff", "x: the text is not UTF-8"),
        ("double", "00000000", "x: the value ends in the middle"),
        ("int", "0200", "the value goes on where its schema ends; was it written with another one?"),
        ("int", "8080808010", "x: an int has 32 bits"),
        ("long", "ffffffffffffffffff02", "x: a number has more than 64 bits"),
        ("long", "ffffffffffffffffffff01", "x: a number has more than 64 bits"),
        ("boolean", "02", "x: a boolean is one byte, 0 or 1"),
        (["null", "int"], "04", "x: the union has no such branch"),
        (["null", "int"], "01", "x: the union has no such branch"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, "02", "x: enum 'E' has no such symbol"),
        ({"type": "array", "items": "long"}, "feffffff1f", "x: there are fewer items than the value says"),
        ({"type": "array", "items": "null"}, "feffffff1f", "x: there are fewer items than the value says"),
        ({"type": "array", "items": "string"}, "0202", "x[]: the value ends in the middle"),
        ({"type": "array", "items": "double"}, "04" + "00" * 15, "x: there are fewer items than the value says"),
        ({"type": "array", "items": "double"}, "02" + "00" * 8, "x: the value ends in the middle"),
        ({"type": "int", "logicalType": "date"}, "feffffff0f", "x: out of range for date32[day]"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 2}, "0264", "x: it has more than 2 digits"),
        (
            {"type": "bytes", "logicalType": "decimal", "precision": 30},
            "22" + "00" * 17,
            "x: a decimal of more than 16 bytes",
        ),
        (record("In", y=["null", "string"]), "0202ff", "x.y: the text is not UTF-8"),
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
        (record(a="int"), record(a="int", b="int"), "b: the values have no such field, and it has no default"),
        (record("A", a="int"), record("B", a="int"), "is record A where record B is wanted; an alias would say"),
        (record(a=INNER), record(a=record("Inner", n="int")), "a.n: is long where int is wanted"),
        (
            record(a={"type": "array", "items": "string"}),
            record(a=LONGS),
            r"a\[\]: is string",
        ),
        (record(a="int"), record(a="int", b=("int", "x")), "b: the default 'x' is not int"),
        (record(a="int", b=LINKED), record(a="int"), "b.next: record 'Node' holds itself"),
        (
            record(a={"type": "long", "logicalType": "timestamp-millis"}),
            record(a={"type": "long", "logicalType": "timestamp-micros"}),
            "a: is timestamp-millis where timestamp-micros is wanted; declare what is written, and cast",
        ),
        (
            record(a={"type": "fixed", "name": "F", "size": 2}),
            record(a={"type": "fixed", "name": "F", "size": 3}),
            "a: has 2 bytes where 3 are wanted",
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
    assert decoded.problems == [Problem(1, "a: is string where int is wanted")]


def test_a_symbol_that_is_not_known_fails_its_row() -> None:
    writer = record(a={"type": "enum", "name": "E", "symbols": ["A", "B"]})
    wanted = record(a={"type": "enum", "name": "E", "symbols": ["B"]})
    decoded = read(writer, written(writer, {"a": "A"}, {"a": "B"}), wanted)
    assert (decoded.table.to_pylist(), decoded.problems) == ([{"a": "B"}], [Problem(0, "a: its symbol is none of B")])


def test_a_type_may_be_wrapped() -> None:
    assert parse('{"type": {"type": "int", "doc": "a number"}}').kind == "int"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "it is not JSON"),
        ('"strin"', "'strin' is neither a type of Avro nor declared before"),
        ('{"type": "record", "name": "R"}', "record 'R' has no list of fields"),
        ('{"type": "record", "name": "1", "fields": []}', "record with the name '1'"),
        (json.dumps(record(a=["int", "int"])), "a: a union has different types"),
        (json.dumps(record(a=INNER, b=INNER)), "b: 'Inner' is declared twice"),
        (json.dumps({"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}] * 2}), "two fields 'a'"),
        ('{"type": "enum", "name": "E", "symbols": []}', "enum 'E' has no symbols"),
        ('{"type": "enum", "name": "E", "symbols": ["A"], "default": "B"}', "is none of its symbols"),
        ('{"type": "fixed", "name": "F", "size": -1}', "the size of fixed 'F' is -1"),
        ('{"items": "int"}', "has no type"),
        ("7", "7 is no type"),
        ('{"type": "array", "items": ' * 100 + '"int"' + "}" * 100, "nested more than 64 deep"),
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
    assert [str(one.type) for one in kind.fields] == ["record shop.Money", "[null, record shop.Money]"]


def test_a_value_that_ends_is_not_read_on() -> None:
    """However many fields there still are."""
    numbers: dict[str, Any] = {f"n{at}": "long" for at in range(40)}
    assert read(record("R", **numbers), [b"", b"\x80"]).problems == [
        Problem(0, "n0: the value ends in the middle"),
        Problem(1, "n0: the value ends in the middle"),
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
    with pytest.raises(BadSchema, match=r"a: is decimal\(9,2\) where decimal\(9,3\) is wanted"):
        AvroReader(parse(record(a=kinds[0])), parse(record(a=kinds[1])))
