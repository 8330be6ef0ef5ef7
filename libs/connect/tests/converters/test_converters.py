"""Converters under their names: text, bytes, and formats with a registry."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2

from headrace_connect.converters import ALIASES, NAMES, Converter, make_converter, options_of
from headrace_connect.core.options import InvalidOptions
from headrace_streams.core.errors import RegistryUnavailable
from headrace_streams.testing.registry import MemoryRegistry

ROWS = pa.array(
    [{"id": 1, "name": "a"}, None, {"id": 2, "name": None}], pa.struct([("id", pa.int64()), ("name", pa.string())])
)


def make(name: str, registry: MemoryRegistry | None = None, part: Any = "value", **settings: str) -> Converter:
    own = {f"{part}.converter.{key.replace('_', '.')}": text for key, text in settings.items()}
    return make_converter({f"{part}.converter": name, **own}, part, schemas=registry)


def values_of(converter: Converter, values: Any, topic: str = "t") -> list[tuple[list[int], list[Any]]]:
    found = converter.read(topic, pa.array(values, pa.binary()))
    assert found.failed == {}
    return [(part.rows.tolist(), part.values.to_pylist()) for part in found.parts]


# --- text and bytes -------------------------------------------------------------------------------------------


def test_text_is_text_and_what_is_not_fails_alone() -> None:
    found = make("string").read("t", pa.array([b"a", b"\xff", None, "\u00fc".encode(), b""], pa.binary()))
    [part] = found.parts
    assert (part.rows.tolist(), part.values.to_pylist()) == ([0, 2, 3, 4], ["a", None, "\u00fc", ""])
    assert found.failed.keys() == {1}


def test_other_encodings_of_text() -> None:
    converter = make("string", converter_encoding="ISO-8859-1")
    written = converter.write("t", pa.array(["\u00fc", "\u20ac", None]), {})
    assert written.values.to_pylist() == [b"\xfc", None]
    assert "iso8859-1" in written.failed[1]
    assert values_of(converter, [b"\xfc", None]) == [([0, 1], ["\u00fc", None])]


@pytest.mark.parametrize(
    ("array", "expected"),
    [
        (pa.array([1, None]), [b"1", None]),
        (pa.array([True, False]), [b"true", b"false"]),
        (pa.array([0.1, 1e30, float("nan")]), [b"0.1", b"1e+30", b"nan"]),
        (pa.array([{"a": [1]}, None]), [b'{"a":[1]}', None]),
        (pa.array([b"ab"]), [b"YWI="]),
        (pa.array(["x", None]).dictionary_encode(), [b"x", None]),
        (pa.array([0, None], pa.timestamp("ms", "UTC")), [b"1970-01-01T00:00:00.000Z", None]),
        (pa.array([0], pa.date32()), [b"1970-01-01"]),
        (pa.nulls(1), [None]),
    ],
)
def test_anything_else_is_written_as_its_text(array: Any, expected: list[bytes]) -> None:
    assert make("string").write("t", array, {}).values.to_pylist() == expected


def test_bytes_are_bytes_and_nothing_else_is() -> None:
    converter = make("bytes")
    assert converter.write("t", pa.array([b"\0", None]), {}).values.to_pylist() == [b"\0", None]
    assert values_of(converter, [b"\0", None]) == [([0, 1], [b"\0", None])]
    written = converter.write("t", pa.array(["x", None]), {})
    assert written.values.to_pylist() == [None]
    assert written.failed == {0: "the value is string, not bytes; take another converter: json, string, avro"}


# --- with a registry ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("avro", {}),
        ("json-schema", {}),
        ("json-schema", {"schema": "id bigint, name string"}),
        ("arrow", {"schema": "id bigint, name string"}),
    ],
)
def test_rows_come_back_as_they_were(name: str, settings: dict[str, str]) -> None:
    registry = MemoryRegistry()
    converter = make(name, registry, **settings)
    written = converter.write("t", ROWS, {})
    assert (len(written.values), written.failed) == (3, {})
    assert written.values[1].as_py() is None
    assert values_of(make(name, registry, **settings), written.values.to_pylist()) == [([0, 1, 2], ROWS.to_pylist())]
    assert list(registry.subjects) == ([] if name == "arrow" else ["t-value"])


def test_values_that_are_no_records() -> None:
    registry = MemoryRegistry()
    converter = make("avro", registry, "key")
    written = converter.write("t", pa.array(["k", None]), {})
    assert registry.schemas[1].text == '"string"'
    assert values_of(make("avro", registry, "key"), written.values.to_pylist()) == [([0, 1], ["k", None])]
    assert list(registry.subjects) == ["t-key"]


def test_bad_bytes_fail_alone_whatever_is_around_them() -> None:
    registry = MemoryRegistry()
    converter = make("avro", registry)
    [good, _, other] = converter.write("t", ROWS, {}).values.to_pylist()
    for values in ([b"x", good, None, good + b"x", other, b"\0\0\0\0\x09abc"], [b"x"], [None, b""]):
        found = make("avro", registry).read("t", pa.array(values, pa.binary()))
        bad = [row for row, value in enumerate(values) if value not in (good, other, None)]
        assert list(found.failed) == bad
        rows = np.concatenate([part.rows for part in found.parts]).tolist()
        assert rows == [row for row in range(len(values)) if row not in bad]
        for part in found.parts:
            for row, value in zip(part.rows.tolist(), part.values.to_pylist(), strict=True):
                assert value == {good: ROWS[0].as_py(), other: ROWS[2].as_py(), None: None}[values[row]]


def test_a_schema_that_grows_is_seen_when_its_first_value_comes() -> None:
    registry = MemoryRegistry()
    writer = make("avro", registry)
    reader = make("avro", registry)
    old = writer.write("t", ROWS, {}).values.to_pylist()
    assert values_of(reader, old[:1]) == [([0], [{"id": 1, "name": "a"}])]
    new = writer.write("t", pa.array([{"id": 3, "name": "c", "more": 4}]), {}).values.to_pylist()
    assert values_of(reader, [new[0], old[0]]) == [
        ([0, 1], [{"id": 3, "name": "c", "more": 4}, {"id": 1, "name": "a", "more": None}])
    ]


def test_a_registry_that_is_away_is_no_fault_of_the_rows() -> None:
    registry = MemoryRegistry()
    converter = make("avro", registry)
    registry.available = False
    with pytest.raises(RegistryUnavailable):
        converter.write("t", ROWS, {})


def test_columns_that_do_not_fit_the_schema_fail_in_each_row() -> None:
    converter = make(
        "avro", MemoryRegistry(), schema='{"type":"record","name":"R","fields":[{"name":"id","type":"long"}]}'
    )
    written = converter.write("t", ROWS, {})
    assert written.failed.keys() == {0, 2}
    assert "column 'name' is none of R's fields" in written.failed[0]
    assert written.values.to_pylist() == [None]


def test_a_row_that_does_not_fit_the_schema_fails_alone() -> None:
    schema = '{"type":"record","name":"R","fields":[{"name":"id","type":"long"},{"name":"name","type":"string"}]}'
    written = make("avro", schema=schema).write("t", ROWS, {})
    assert written.failed == {2: "name is null, and may not be"}
    assert written.values.to_pylist() == [b"\x02\x02a", None]


def test_protobuf_by_a_descriptor_set(tmp_path: Path) -> None:
    file = descriptor_pb2.FileDescriptorProto(name="shop_connect.proto", package="shop_connect", syntax="proto3")
    message = file.message_type.add(name="Order")
    kinds = descriptor_pb2.FieldDescriptorProto
    message.field.add(name="id", number=1, type=kinds.TYPE_INT64, label=kinds.LABEL_OPTIONAL)
    message.field.add(name="name", number=2, type=kinds.TYPE_STRING, label=kinds.LABEL_OPTIONAL)
    place = tmp_path / "shop.desc"
    place.write_bytes(descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString())
    registry = MemoryRegistry()
    for given in (None, registry):
        converter = make("protobuf", given, descriptor=str(place), message="shop_connect.Order")
        written = converter.write("t", ROWS, {}).values.to_pylist()
        assert values_of(converter, written) == [([0, 1, 2], [{"id": 1, "name": "a"}, None, {"id": 2, "name": ""}])]
    assert list(registry.subjects) == ["t-value"]


def test_an_arrow_value_of_many_rows_gives_them_all() -> None:
    converter = make("arrow", schema="id bigint")
    out = pa.BufferOutputStream()
    table = pa.table({"id": [1, 2]})
    with pa.ipc.new_stream(out, table.schema) as stream:
        stream.write_table(table)
    many = out.getvalue().to_pybytes()
    found = converter.read("t", pa.array([many, b"x", None, many], pa.binary()))
    [part] = found.parts
    assert part.rows.tolist() == [0, 0, 2, 3, 3]
    assert part.values.to_pylist() == [{"id": 1}, {"id": 2}, None, {"id": 1}, {"id": 2}]
    assert found.failed.keys() == {1}


# --- configuration --------------------------------------------------------------------------------------------


def test_each_alias_names_a_converter() -> None:
    assert {options_of(alias) for alias in ALIASES} == {options_of(name) for name in NAMES if name != "arrow"}
    assert isinstance(make("org.apache.kafka.connect.storage.StringConverter"), type(make("string")))


def test_a_user_and_a_password_are_sent_and_never_shown() -> None:
    converter: Any = make("avro", schema_registry_url="http://r:81,http://s:82", basic_auth_user_info="me:p@ss/word")
    schemas = converter._registry
    assert schemas.url == "http://r:81"
    assert schemas._headers["Authorization"].startswith("Basic ")


@pytest.mark.parametrize(
    ("config", "messages"),
    [
        (
            {"value.converter": "org.apache.kafka.connect.json.JsonConvertor"},
            [
                "value.converter: there is no converter 'org.apache.kafka.connect.json.JsonConvertor'; is "
                "org.apache.kafka.connect.json.JsonConverter meant?"
            ],
        ),
        (
            {
                "value.converter": "json",
                "value.converter.schema.enable": "x",
                "value.converter.schemas.cache.size": "x",
                "value.converter.decimal.format": "base64",
                "value.converter.replace.null.with.default": "1",
            },
            [
                "value.converter.schema.enable is not a setting of converter json; is schemas.enable meant?",
                "value.converter.schemas.cache.size: 'x' is not a whole number",
                "value.converter.decimal.format is not a known value: 'base64'; there are: BASE64, NUMERIC",
                "value.converter.replace.null.with.default: '1' is not true or false",
            ],
        ),
        (
            {"value.converter": "bytes", "value.converter.x": "1"},
            ["value.converter.x is not a setting of converter bytes; it has none"],
        ),
        ({"value.converter": "avro"}, ["value.converter.schema.registry.url: is missing; avro needs it, or schema"]),
        ({"value.converter": "avro", "value.converter.schema": "{"}, None),
        ({"value.converter": "avro", "value.converter.schema": "/no/such/file"}, None),
        (
            {"value.converter": "avro", "value.converter.registry": "ftp://x"},
            ["value.converter.registry: is not the URL of a registry; write it like http://registry:8081"],
        ),
        ({"value.converter": "json-schema"}, None),
        ({"value.converter": "arrow", "value.converter.schema": "id bigit"}, None),
        (
            {"value.converter": "protobuf", "value.converter.descriptor": "/no/file", "value.converter.message": "x.Y"},
            None,
        ),
        ({"value.converter": "string", "value.converter.converter.encoding": "utf9"}, None),
    ],
)
def test_what_is_wrong_is_told_all_at_once_with_its_key(config: dict[str, str], messages: list[str] | None) -> None:
    with pytest.raises(InvalidOptions) as caught:
        make_converter({**config, "name": "x", "transforms": "y"}, "value")
    if messages is not None:
        assert [problem.message for problem in caught.value.problems] == messages
    for problem in caught.value.problems:
        assert problem.message.startswith(problem.key)
        assert problem.key.startswith("value.converter")
