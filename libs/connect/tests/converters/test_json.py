"""``json``: plain values whose types are found, and values that have their schema with them."""

from __future__ import annotations

from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import orjson
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace_connect.converters import Converter, json_plain, make_converter
from headrace_connect.converters.json_plain import FIELDS_MAX
from headrace_connect.core.batch import NAME, OPEN, VERSION


def plain() -> Converter:
    return make_converter({"value.converter": "json", "value.converter.schemas.enable": "false"}, "value")


def envelope(**settings: str) -> Converter:
    own = {f"value.converter.{name.replace('_', '.')}": text for name, text in settings.items()}
    return make_converter({"value.converter": "org.apache.kafka.connect.json.JsonConverter", **own}, "value")


def read(converter: Converter, *values: bytes | None) -> tuple[dict[int, Any], dict[int, str]]:
    """Values by row, and what failed."""
    found = converter.read("t", pa.array(values, pa.binary()))
    good: dict[int, Any] = {}
    for part in found.parts:
        good |= dict(zip(part.rows.tolist(), part.values.to_pylist(), strict=True))
    return good, found.failed


def write(converter: Converter, array: Any, metadata: dict[bytes, bytes] | None = None) -> list[bytes | None]:
    written = converter.write("t", array, metadata or {})
    assert written.failed == {}
    return written.values.to_pylist()  # type: ignore[no-any-return]


# --- plain ----------------------------------------------------------------------------------------------------


def test_plain_values_have_the_columns_of_all_of_them() -> None:
    found = plain().read("t", pa.array([b'{"a":1,"b":{"c":[1]}}', b'{"a":2.5,"d":"x"}', None, b"null"], pa.binary()))
    [part] = found.parts
    assert part.values.type == pa.struct(
        [("a", pa.float64()), ("b", pa.struct([("c", pa.list_(pa.int64()))])), ("d", pa.string())]
    )
    assert part.values.to_pylist() == [
        {"a": 1.0, "b": {"c": [1]}, "d": None},
        {"a": 2.5, "b": None, "d": "x"},
        None,
        None,
    ]
    assert part.rows.tolist() == [0, 1, 2, 3]
    assert OPEN in part.metadata


def test_a_field_keeps_its_type_from_batch_to_batch() -> None:
    converter = plain()
    read(converter, b'{"a":1,"b":"x"}')
    [part] = converter.read("t", pa.array([b'{"a":null}'], pa.binary())).parts
    assert part.values.type == pa.struct([("a", pa.int64()), ("b", pa.string())])
    [other] = converter.read("other", pa.array([b'{"a":"text"}'], pa.binary())).parts
    assert other.values.to_pylist() == [{"a": "text"}], "topics have types of their own"


@pytest.mark.parametrize(
    ("first", "second", "what"),
    [
        (b'{"a":1}', b'{"a":"x"}', "a: it is string here, and was int64 before"),
        (b'{"n":{"a":1}}', b'{"n":{"a":true}}', "n.a: it is bool here, and was int64 before"),
        (b'{"a":[1]}', b'{"a":["x"]}', "a.item: it is string here, and was int64 before"),
        (b'{"a":1.5}', b'{"a":true}', "a: it is bool here, and was double before"),
        (b'{"a":{"b":[1.5]}}', b'{"a":{"b":[false]}}', "a.b.item: it is bool here, and was double before"),
        (b'{"a":1}', b"[1]", "it is list<item: int64> here, and was struct<a: int64> before"),
        (b'{"a":9007199254740993}', b'{"a":1.5}', "a: it is double here, and was int64 before"),
        (b'{"a":1.5}', b'{"a":9007199254740993}', "9007199254740993 is outside of the range exactly representable"),
        (b'{"a":1}', b'{"a":9223372036854775808}', "9223372036854775808 is beyond the whole numbers of 64 bits"),
        (b'{"a":1}', b'{"a":[123456789012345678901234567890]}', "is beyond the whole numbers of 64 bits"),
        (b'{"a":1}', b'{"a":NaN}', "the value is not JSON"),
        (b'{"a":1}', b'{"a":1} x', "the value is not JSON"),
        (b'{"a":1}', b"", "the value is empty"),
        (b'{"a":1}', b"\xff\xfe", "the value is not JSON"),
        (b'{"a":1}', b"[" * 200 + b"]" * 200, "nested more than 100 deep"),
    ],
)
def test_a_value_of_another_type_fails_alone_whether_it_comes_in_the_same_batch_or_later(
    first: bytes, second: bytes, what: str
) -> None:
    for converter in (plain(), plain()):
        good, failed = read(converter, first, second, first)
        assert good.keys() == {0, 2}
        assert failed.keys() == {1}
        assert what in failed[1]
        good, failed = read(converter, second)
        assert (good, failed.keys()) == ({}, {0}), "and again"


def test_brackets_in_text_are_not_depth() -> None:
    text = "[" * 90 + "]" * 90
    assert read(plain(), orjson.dumps({"a": text, "b": text}))[0] == {0: {"a": text, "b": text}}


def test_names_that_should_be_values_have_a_bound() -> None:
    converter = plain()
    good, failed = read(converter, *(orjson.dumps({f"user{n}": n}) for n in range(FIELDS_MAX + 5)))
    assert len(good) == FIELDS_MAX
    assert "more than 1000 fields" in failed[FIELDS_MAX]
    assert read(converter, b'{"user0":7}')[1] == {}, "known fields are read on"


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=6,
)


def pruned(value: Any) -> Any:
    """Without fields that are null, so that rows can be compared whatever batches they came in."""
    if isinstance(value, dict):
        return {name: pruned(one) for name, one in value.items() if one is not None and pruned(one) != {}}
    return [pruned(one) for one in value] if isinstance(value, list) else value


@given(st.lists(JSON, max_size=12), st.data())
def test_cutting_a_batch_anywhere_changes_nothing(values: list[Any], data: st.DataObject) -> None:
    texts = [orjson.dumps(value) for value in values]
    cut = data.draw(st.integers(0, len(texts)))
    whole, failed = read(plain(), *texts)
    converter = plain()
    good, bad = read(converter, *texts[:cut])
    later, worse = read(converter, *texts[cut:])
    good |= {row + cut: value for row, value in later.items()}
    assert bad.keys() | {row + cut for row in worse} == failed.keys()
    assert {row: pruned(value) for row, value in good.items()} == {row: pruned(value) for row, value in whole.items()}
    for row, value in whole.items():
        assert pruned(value) == pruned(values[row]), "what is read is what was there"


NUMBER = st.sampled_from([0, -0.0, 1, -1.5, 2**53 - 1, 2**53, 2**53 + 1, -(2**53) - 1, 2**63 - 1, 1e22, True, None])
INNER = st.fixed_dictionaries({}, optional={"x": NUMBER, "y": st.none() | st.text('a"é', max_size=2)})
OBJECT = st.fixed_dictionaries(
    {},
    optional={
        "n": NUMBER,
        "s": st.text('a"\\é', max_size=3),
        "b": st.booleans(),
        "none": st.none(),
        "l": st.lists(NUMBER, max_size=2),
        "o": INNER,
        "lo": st.lists(st.none() | INNER, max_size=2),
        "ln": st.lists(st.none(), max_size=2),
        "more": st.integers(0, 3),
    },
)
TEXT = st.one_of(
    OBJECT.map(orjson.dumps),
    st.none(),
    st.sampled_from(
        [b"null", b"{}", b'{"n":1,"n":2}', b'{"n":NaN}', b'{"n":01}', b'{"n":1}{}', b'{"s":"\\ud800"}', b"", b"7"]
    ),
)


@settings(deadline=None)
@given(st.lists(OBJECT.map(orjson.dumps), min_size=1, max_size=6), st.lists(TEXT))
def test_values_are_read_together_as_they_are_one_by_one(first: list[bytes], then: list[bytes | None]) -> None:
    found = []
    for rows_min in (1, 1_000):
        converter = plain()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(json_plain, "_QUICK_ROWS_MIN", rows_min)
            answers = [converter.read("t", pa.array(values, pa.binary())) for values in (first, then, then)]
        parts = [
            [
                (part.rows.tolist(), str(part.values.type), part.values.type, part.values.to_pylist())
                for part in one.parts
            ]
            for one in answers
        ]
        found.append((parts, [one.failed for one in answers]))
    assert str(found[0]) == str(found[1])
    for quick, slow in zip(found[0][0], found[1][0], strict=True):
        for one, other in zip(quick, slow, strict=True):
            assert one[2].equals(other[2], check_metadata=True)


def test_known_values_are_not_read_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    converter = plain()
    read(converter, b'{"a":1,"b":null,"c":[1.5]}')
    monkeypatch.setattr(json_plain, "_parsed", None)
    good, failed = read(converter, *[b'{"a":2,"c":[2]}'] * 100)
    assert failed == {}
    assert good[99] == {"a": 2, "b": None, "c": [2.0]}


# --- with schemas ---------------------------------------------------------------------------------------------

KINDS = pa.struct(
    [
        pa.field("flag", pa.bool_()),
        pa.field("tiny", pa.int8(), nullable=False),
        pa.field("big", pa.int64()),
        pa.field("single", pa.float32()),
        pa.field("double", pa.float64()),
        pa.field("text", pa.string()),
        pa.field("data", pa.binary()),
        pa.field("price", pa.decimal128(12, 2)),
        pa.field("day", pa.date32()),
        pa.field("at", pa.timestamp("ms", "UTC")),
        pa.field("fine", pa.timestamp("us", "UTC")),
        pa.field("hour", pa.time32("ms")),
        pa.field("list", pa.list_(pa.int32())),
        pa.field("map", pa.map_(pa.string(), pa.int64())),
        pa.field("inner", pa.struct([pa.field("x", pa.date32())])),
    ]
)
ROW = {
    "flag": True,
    "tiny": -128,
    "big": 2**62 + 1,
    "single": 1.5,
    "double": -0.1,
    "text": 'a "quote" \n \u00fc',
    "data": b"\0\xff",
    "price": Decimal("-1234.50"),
    "day": date(1969, 12, 31),
    "at": datetime(2026, 1, 31, 12, 30, 0, 5000, UTC),
    "fine": datetime(2026, 1, 31, 12, 30, 0, 123456, UTC),
    "hour": time(23, 59, 59, 999000),
    "list": [1, None, 3],
    "map": [("a", 1), ("b", None)],
    "inner": {"x": date(2026, 1, 1)},
}
NULLS = {**dict.fromkeys(ROW), "tiny": 0}


@pytest.mark.parametrize("decimals", ["BASE64", "NUMERIC"])
def test_values_with_schemas_come_back_as_they_were(decimals: str) -> None:
    array = pa.array([ROW, None, NULLS], KINDS)
    converter = envelope(decimal_format=decimals)
    values = write(converter, array, {NAME: b"shop.Order", VERSION: b"3"})
    assert values[1] is None
    [part] = converter.read("t", pa.array(values, pa.binary())).parts
    assert part.values.type.equals(KINDS)
    assert part.values.to_pylist() == array.to_pylist()
    assert [field.nullable for field in part.values.type] == [field.nullable for field in KINDS]
    assert part.metadata == {NAME: b"shop.Order", VERSION: b"3"}


def test_the_envelope_is_kafkas() -> None:
    kind = pa.struct(
        [
            pa.field("id", pa.int32(), nullable=False),
            pa.field("price", pa.decimal128(5, 2)),
            pa.field("at", pa.timestamp("ms", "UTC")),
            pa.field("raw", pa.binary()),
        ]
    )
    row = {"id": 1, "price": Decimal("1.28"), "at": datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC), "raw": b"ab"}
    [value] = write(envelope(), pa.array([row], kind), {NAME: b"Order"})
    assert orjson.loads(value or b"") == {
        "schema": {
            "type": "struct",
            "optional": False,
            "name": "Order",
            "fields": [
                {"field": "id", "type": "int32", "optional": False},
                {
                    "field": "price",
                    "type": "bytes",
                    "optional": True,
                    "name": "org.apache.kafka.connect.data.Decimal",
                    "version": 1,
                    "parameters": {"scale": "2", "connect.decimal.precision": "5"},
                },
                {
                    "field": "at",
                    "type": "int64",
                    "optional": True,
                    "name": "org.apache.kafka.connect.data.Timestamp",
                    "version": 1,
                },
                {"field": "raw", "type": "bytes", "optional": True},
            ],
        },
        "payload": {"id": 1, "price": "AIA=", "at": 1000, "raw": "YWI="},
    }


DEBEZIUM = {
    "day": (pa.date32(), "int32", "Date"),
    "hour": (pa.time32("ms"), "int32", "Time"),
    "at": (pa.timestamp("ms", "UTC"), "int64", "Timestamp"),
}


@pytest.mark.parametrize("name", DEBEZIUM)
def test_dates_and_times_have_debeziums_names_where_they_say_so(name: str) -> None:
    kind, json_type, debeziums = DEBEZIUM[name]
    for own, found in (
        (f"io.debezium.time.{debeziums}", f"io.debezium.time.{debeziums}"),
        (None, f"org.apache.kafka.connect.data.{debeziums}"),
        ("io.debezium.time.Other", f"org.apache.kafka.connect.data.{debeziums}"),
    ):
        field = pa.field(name, kind, metadata=own and {NAME: own.encode()})
        array = pa.array([{name: ROW[name]}], pa.struct([field]))
        [value] = write(envelope(), array)
        node = {"type": json_type, "optional": True, "name": found, "version": 1, "field": name}
        [written] = orjson.loads(value or b"")["schema"]["fields"]
        assert list(written.items()) == list(node.items())
        [part] = envelope().read("t", pa.array([value], pa.binary())).parts
        assert (part.values.type, part.values.to_pylist()) == (pa.struct([pa.field(name, kind)]), [{name: ROW[name]}])


def test_members_of_schemas_are_in_kafkas_order() -> None:
    """The bytes of a key decide its partition, and what compaction removes."""
    kind = pa.struct([pa.field("id", pa.int32(), nullable=False), pa.field("price", pa.decimal128(5, 2))])
    [value] = write(envelope(), pa.array([{"id": 1}], kind), {NAME: b"shop.Key"})
    decimal = (
        '{"type":"bytes","optional":true,"name":"org.apache.kafka.connect.data.Decimal","version":1,'
        '"parameters":{"scale":"2","connect.decimal.precision":"5"},"field":"price"}'
    )
    wanted = (
        '{"schema":{"type":"struct","fields":[{"type":"int32","optional":false,"field":"id"},'
        f'{decimal}],"optional":false,"name":"shop.Key"}},"payload":{{"id":1,"price":null}}}}'
    )
    assert value == wanted.encode()


def test_plain_writing_has_the_same_payloads_and_no_schema() -> None:
    [value] = write(plain(), pa.array([{"at": datetime(1970, 1, 2, tzinfo=UTC), "day": date(1970, 1, 3)}]))
    assert value == b'{"at":86400000000,"day":2}', "microseconds stay microseconds: Arrow has made them of Python's"
    assert write(plain(), pa.array(["text", None])) == [b'"text"', None]
    assert write(plain(), pa.nulls(2)) == [None, None]


def wrapped(schema: Any, payload: Any) -> bytes:
    return orjson.dumps({"schema": schema, "payload": payload})


INT = {"type": "int32", "optional": True}
OBJECT = {
    "type": "struct",
    "fields": [{"field": "a", "type": "int8"}, {"field": "b", "type": "string", "optional": True}],
}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (wrapped(INT, 5), 5),
        (wrapped(INT, None), None),
        (wrapped({"type": "int32", "optional": True, "default": 7}, None), 7),
        (wrapped(OBJECT, {"a": 1, "more": 2}), {"a": 1, "b": None}),
        (wrapped({"type": "array", "items": OBJECT}, [{"a": 1}]), [{"a": 1, "b": None}]),
        (b' {"payload": 5, "schema": {"type":"int64"} } ', 5),
        (b'{"schema":null,"payload":null}', None),
        (b"null", None),
    ],
)
def test_values_with_schemas_are_read(value: bytes, expected: Any) -> None:
    assert read(envelope(), value, value) == ({0: expected, 1: expected}, {}), "twice: the second by what is kept"


def test_a_default_is_put_in_the_place_of_null_only_if_it_is_to_be() -> None:
    value = wrapped({"type": "int32", "optional": True, "default": 7}, None)
    assert read(envelope(replace_null_with_default="false"), value)[0] == {0: None}


@pytest.mark.parametrize(
    ("value", "what"),
    [
        (b'{"a":1}', 'not an object of "schema" and "payload" alone'),
        (wrapped(OBJECT, {"b": "x"}), "a is null or missing, and may not be"),
        (wrapped(OBJECT, {"a": "x"}), "a: 'x' is not a whole number"),
        (wrapped(OBJECT, {"a": 1.5}), "a: 1.5 is not a whole number"),
        (wrapped(OBJECT, {"a": 300}), "outside its type"),
        (wrapped(OBJECT, [1]), "is not an object"),
        (wrapped(None, 1), "its schema is null"),
        (wrapped({"type": "int33"}, 1), "'int33', which is none"),
        (wrapped({"type": "struct"}, {}), 'a struct without "fields"'),
        (wrapped({"type": "array"}, []), 'has no "type"'),
        (wrapped({"type": "struct", "fields": [{"field": "a", "type": "int8"}] * 2}, {}), "a field twice"),
        (wrapped({"type": "bytes"}, "%"), "is not base64"),
        (wrapped({"type": "bytes", "name": "org.apache.kafka.connect.data.Decimal"}, "AA=="), "without a scale"),
        (wrapped({"type": "map", "keys": {"type": "int32"}, "values": INT}, {}), "only texts can be"),
        (b'{"schema":{"type":"int32"},"payload":5', "the value is not JSON"),
        (b'{"schema":{"type":"int32"},"payload":5,"payload":6}x', "the value is not JSON"),
        (b"", "the value is empty"),
    ],
)
def test_what_has_no_sound_schema_or_payload_fails_alone(value: bytes, what: str) -> None:
    good = wrapped(OBJECT, {"a": 1, "b": "x"})
    found, failed = read(envelope(), good, value, good)
    assert found == {0: {"a": 1, "b": "x"}, 2: {"a": 1, "b": "x"}}
    assert failed.keys() == {1}
    assert what in failed[1]


def test_a_head_that_is_kept_does_not_hide_what_is_wrong_behind_it() -> None:
    good = wrapped({"type": "int32"}, 5)
    twice = good[:-1] + b',"payload":6}'
    assert read(envelope(), good, twice, good[:-2] + b"}", good)[0].keys() >= {0, 3}
    assert read(envelope(), good, good[:-1] + b',"x":6}')[1].keys() == {1}


def test_schemas_that_grow_are_one_table() -> None:
    newer = {**OBJECT, "fields": [*OBJECT["fields"], {"field": "c", "type": "int64"}]}
    wider = {"type": "struct", "fields": [{"field": "a", "type": "int32"}]}
    found = envelope().read(
        "t", pa.array([wrapped(OBJECT, {"a": 1}), wrapped(newer, {"a": 2, "c": 3}), wrapped(wider, {"a": 300})])
    )
    [part] = found.parts
    assert part.values.to_pylist() == [
        {"a": 1, "b": None, "c": None},
        {"a": 2, "b": None, "c": 3},
        {"a": 300, "b": None, "c": None},
    ]


def test_schemas_that_quarrel_are_several_parts_in_order() -> None:
    text = {"type": "string"}
    values = [wrapped(INT, 1), None, wrapped(text, "x"), wrapped(text, "y"), wrapped(INT, 2)]
    found = envelope().read("t", pa.array(values, pa.binary()))
    assert [(part.rows.tolist(), part.values.to_pylist()) for part in found.parts] == [
        ([0, 1], [1, None]),
        ([2, 3], ["x", "y"]),
        ([4], [2]),
    ]


def test_decimals_as_numbers_keep_all_their_digits() -> None:
    converter = envelope(decimal_format="NUMERIC")
    array = pa.array([Decimal("12345678901234567890.123456789"), Decimal("0.000000001")], pa.decimal128(38, 9))
    values = write(converter, array)
    assert (values[0] or b"").endswith(b'"payload":12345678901234567890.123456789}')
    assert list(read(converter, *values)[0].values()) == array.to_pylist()


@pytest.mark.parametrize(
    ("array", "failed"),
    [
        (pa.array([1.0, float("nan"), 2.0]), {1: "NaN and infinity have no form in JSON; filter or replace them"}),
        (pa.array([2**63, 1], pa.uint64()), {0: "Integer value 9223372036854775808 not in range"}),
    ],
)
def test_rows_that_cannot_be_written_fail_alone(array: Any, failed: dict[int, str]) -> None:
    for converter in (plain(), envelope()):
        written = converter.write("t", array, {})
        assert written.failed.keys() == failed.keys()
        for row, what in failed.items():
            assert what in written.failed[row]
        assert len(written.values) == len(array) - len(failed)


def test_a_null_where_none_may_be_fails_alone() -> None:
    required = pa.struct([pa.field("a", pa.int64(), nullable=False)])
    array = pa.StructArray.from_arrays(
        [pa.array([1, None, None])], fields=list(required), mask=pa.array([False, False, True])
    )
    written = envelope().write("t", array, {})
    assert written.failed == {1: "a is null, and may not be"}
    assert written.values.to_pylist()[1] is None


def test_a_column_without_a_form_in_json_fails_in_each_row_and_says_what_to_do() -> None:
    written = plain().write("t", pa.array([{"a": 1}, {"a": 2}], pa.struct([("a", pa.duration("s"))])), {})
    assert set(written.failed.values()) == {"a is duration[s], which JSON cannot hold; cast it, for example to string"}


VALUES = st.fixed_dictionaries(
    {
        "tiny": st.integers(-128, 127),
        "big": st.none() | st.integers(-(2**63), 2**63 - 1),
        "double": st.none() | st.floats(allow_nan=False, allow_infinity=False),
        "text": st.none() | st.text(max_size=5),
        "data": st.none() | st.binary(max_size=5),
        "price": st.none() | st.decimals(-(10**9), 10**9, places=2),
        "day": st.none() | st.dates(),
        "at": st.none() | st.integers(-(10**13), 10**14),
        "list": st.none() | st.lists(st.none() | st.integers(-(2**31), 2**31 - 1), max_size=3),
        "inner": st.none() | st.fixed_dictionaries({"x": st.none() | st.dates()}),
    }
)


@given(st.lists(st.none() | VALUES, max_size=8), st.sampled_from(["BASE64", "NUMERIC"]))
def test_any_values_with_schemas_come_back_as_they_were(rows: list[Any], decimals: str) -> None:
    fields = [KINDS.field(name) for name in ("tiny", "big", "double", "text", "data", "price", "day", "list", "inner")]
    kind = pa.struct([*fields, pa.field("at", pa.timestamp("ms", "UTC"))])
    array = pa.array(rows, kind)
    converter = envelope(decimal_format=decimals)
    found = converter.read("t", pa.array(write(converter, array), pa.binary()))
    assert found.failed == {}
    if any(row is not None for row in rows):
        [part] = found.parts
        assert part.values.equals(array)
