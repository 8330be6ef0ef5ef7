"""Values behind ids of a registry, in programs."""

from __future__ import annotations

import json as text
from typing import Any

import pyarrow as pa
import pytest

from headrace.errors import InvalidConfig
from headrace_streams import App, avro, json
from headrace_streams.core.errors import NotAllowed, RegistryRefused, RegistryUnavailable, RowFailed
from headrace_streams.core.formats.framing import Framed, SchemaText
from headrace_streams.core.formats.port import Problem
from headrace_streams.testing import Driver, MemoryRegistry

from .avro_samples import ORDER, record, written

ROW = {"user": "ann", "amount": 2.5, "at": 0}
URL = "http://127.0.0.1:9"  # nobody is there


def framed(schema_id: int, value: bytes) -> bytes:
    """A value behind an id."""
    return b"\0" + schema_id.to_bytes(4, "big") + value


def copied(value: Framed, to: Framed, **more: Any) -> App:
    """A program that copies a topic."""
    app = App("copy", **more)
    app.stream("in", value=value).to("out", value=to)
    return app


def test_rows_go_through_with_ids() -> None:
    registry = MemoryRegistry()
    app = copied(avro(ORDER, registry=URL), avro(registry=URL))
    with Driver(app, registry=registry, partitions=2) as driver:
        driver.pipe("in", [ROW])
        (record_,) = driver.read_raw("out")
    assert {subject: len(ids) for subject, ids in registry.subjects.items()} == {"in-value": 1, "out-value": 1}
    assert record_["value"][:5] == framed(registry.subjects["out-value"][0], b"")
    assert registry.schemas[1] == SchemaText("AVRO", text.dumps(ORDER, separators=(",", ":")))
    assert text.loads(registry.schemas[2].text)["name"] == "out_value"


def test_rows_are_read_as_they_were_written() -> None:
    registry = MemoryRegistry()
    with Driver(copied(avro(ORDER, registry=URL), avro(registry=URL)), registry=registry) as driver:
        driver.pipe("in", [ROW, {**ROW, "amount": None}])
        assert [(row["user"], row["amount"]) for row in driver.read("out")] == [("ann", 2.5), ("ann", None)]


def test_each_value_is_read_by_its_own_schema() -> None:
    registry = MemoryRegistry()
    old, new = record("Order", user="string"), record("Order", amount="int", user="string")
    ids = [registry.register("in-value", text.dumps(schema)) for schema in (old, new)]
    values = [
        framed(ids[1], written(new, {"user": "b", "amount": 7})[0].as_py()),
        framed(ids[0], written(old, {"user": "a"})[0].as_py()),
        framed(ids[1], written(new, {"user": "c", "amount": 8})[0].as_py()),
    ]
    wanted = record("Order", user="string", amount=("long", -1))
    with Driver(copied(avro(wanted, registry=URL), avro(registry=URL)), registry=registry) as driver:
        driver.pipe_raw("in", [None] * 3, values)
        assert driver.read("out") == [
            {"user": "b", "amount": 7},
            {"user": "a", "amount": -1},
            {"user": "c", "amount": 8},
        ]


def test_what_is_wrong_is_told_of_its_value() -> None:
    registry = MemoryRegistry()
    good = registry.register("s", text.dumps(ORDER))
    bad = registry.register("s", text.dumps(record("Order", user="int")))
    other = registry.register("s", SchemaText("JSON", "{}"))
    value = written(ORDER, ROW)[0].as_py()
    format_ = avro(ORDER, registry=registry)
    values = [
        framed(good, value),
        b"",
        value,
        framed(99, value),
        framed(bad, value),
        framed(other, b"{}"),
        framed(good, b""),
    ]
    decoded = format_.decode(pa.array(values, pa.binary()))
    assert decoded.table.num_rows == 1
    unframed = "the value does not begin with a zero byte and the id of a schema; was it written without registry=?"
    assert decoded.problems == [
        Problem(1, unframed),
        Problem(2, unframed),
        Problem(3, "schema 99 of memory is not there"),
        Problem(4, "schema 2 of memory: user: is int where string is wanted"),
        Problem(5, "schema 3 of memory is JSON, not AVRO"),
        Problem(6, "the value ends in the middle"),
    ]


def test_an_id_that_is_not_there_is_an_error_of_its_record() -> None:
    app = copied(avro(ORDER, registry=URL), avro(registry=URL), on_error="dead")
    with Driver(app, registry=MemoryRegistry()) as driver:
        driver.pipe_raw("in", [None], [framed(99, b"")])
        (dead,) = driver.read_raw("dead")
    headers = {one["key"]: one["value"] for one in dead["headers"]}
    assert headers["headrace.error.message"] == b"schema 99 of memory is not there"


@pytest.mark.parametrize("on_error", ["skip", "fail", "dead"])
def test_a_registry_that_does_not_answer_is_no_error_of_a_record(on_error: str) -> None:
    registry = MemoryRegistry()
    app = copied(avro(ORDER, registry=URL), avro(registry=URL), on_error=on_error)
    with Driver(app, registry=registry) as driver:
        value = framed(registry.register("s", text.dumps(ORDER)), written(ORDER, ROW)[0].as_py())
        registry.available = False
        with pytest.raises(RegistryUnavailable):
            driver.pipe_raw("in", [None], [value])
        registry.available = True
        driver.crash()
        driver.restart()
        assert [row["user"] for row in driver.read("out")] == ["ann"]


def test_a_schema_that_is_not_to_be_registered_has_to_be_there() -> None:
    registry = MemoryRegistry()
    app = copied(avro(ORDER, registry=URL), avro(ORDER, registry=URL, subject="copies", auto_register=False))
    with Driver(app, registry=registry) as driver:
        with pytest.raises(
            RegistryRefused, match="subject 'copies' of memory has not the schema that is to be written"
        ):
            driver.pipe("in", [ROW])
        registry.register("copies", text.dumps(ORDER, separators=(",", ":")))
        driver.crash()
        driver.restart()
        assert len(driver.read("out")) == 1


def test_columns_come_from_the_registry() -> None:
    registry = MemoryRegistry()
    registry.register("in-value", text.dumps(record("Order", user="string")))
    registry.register("in-value", text.dumps(ORDER))
    app = App("columns")
    stream = app.stream("in", value=avro(registry=registry))
    assert stream.schema.names == ["user", "amount", "at"]
    with pytest.raises(InvalidConfig, match="subject 'other-value' of memory is not there; register a schema"):
        app.stream("other", value=avro(registry=registry))
    registry.register("json-value", SchemaText("JSON", "{}"))
    with pytest.raises(InvalidConfig, match="subject 'json-value' of memory is JSON, not AVRO"):
        app.stream("json", value=avro(registry=registry))
    registry.register("bad-value", text.dumps(record(_id="int")))
    with pytest.raises(InvalidConfig, match="subject 'bad-value' of memory: column '_id': a leading underscore"):
        app.stream("bad", value=avro(registry=registry))


def test_keys_have_a_subject_of_their_own() -> None:
    registry = MemoryRegistry()
    app = App("keys")
    app.stream("in", value=avro(ORDER, registry=URL), key=avro(record("Key", id="long"), registry=URL)).to("out")
    with Driver(app, registry=registry) as driver:
        driver.pipe("in", [{**ROW, "id": 7}])
        assert driver.read("out")[0]["id"] == 7
    assert set(registry.subjects) == {"in-key", "in-value"}


def test_columns_that_cannot_be_written_are_refused_when_the_program_is_built() -> None:
    app = App("refused")
    stream = app.stream("in", value=avro(ORDER))
    with pytest.raises(NotAllowed, match=r"to 'out' .*: avro: there is no column 'user'"):
        stream.select("amount", "at").to("out", value=avro(ORDER, registry=URL))
    with pytest.raises(NotAllowed, match=r"to 'out' .*: avro: there is no column 'user'"):
        stream.select("amount", "at").to("out", value=avro(ORDER))


def test_a_row_that_cannot_be_written_goes_its_way() -> None:
    app = App("rows", on_error="dead")
    optional = record("Order", user=["null", "string"])
    app.stream("in", value=avro(optional)).to("out", value=avro(record("Order", user="string")))
    with Driver(app) as driver:
        driver.pipe("in", [{"user": "a"}, {"user": None}, {"user": "b"}])
        assert driver.read("out") == [{"user": "a"}, {"user": "b"}]
        assert len(driver.read_raw("dead")) == 1


def test_values_without_a_registry_fail_alone() -> None:
    app = App("plain", on_error="dead")
    app.stream("in", value=avro(record(user="string"))).to("out")
    with Driver(app) as driver:
        driver.pipe_raw("in", [None] * 3, [b"\x02a", b"\x04a", b"\x02b"])
        assert [row["user"] for row in driver.read("out")] == ["a", "b"]
        assert [one["value"] for one in driver.read_raw("dead")] == [b"\x04a"]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({}, "avro needs a schema: JSON text, a dict, or the Path of a file; or registry="),
        ({"schema": "string", "subject": "s"}, "avro: subject='s' is of a registry; say registry= too"),
        ({"schema": "orders.avsc"}, "avro: it is not JSON"),
        ({"schema": record(_a="int")}, "column '_a': a leading underscore is for system columns"),
        ({"schema": record(a=["int", "string"])}, r"avro: a: \[int, string\] has no column type"),
        ({"registry": "registry:8081"}, "registry= is not the URL of a registry; write it like http://registry:8081"),
        ({"registry": 3}, "^registry=3 is no registry; write its URL, like http://registry:8081$"),
        ({"registry": "http://h:x"}, "^registry= is not the URL of a registry; write it like http://registry:8081$"),
    ],
)
def test_formats_that_cannot_be_are_refused(more: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidConfig, match=message):
        avro(**more)


def test_a_schema_may_be_in_a_file(tmp_path: Any) -> None:
    file = tmp_path / "order.avsc"
    file.write_text(text.dumps(ORDER))
    assert avro(file).schema == avro(ORDER).schema
    with pytest.raises(InvalidConfig, match=r"the schema in .*none\.avsc cannot be read"):
        avro(tmp_path / "none.avsc")


def test_a_record_that_fails_names_its_place() -> None:
    driver = Driver(copied(avro(ORDER, registry=URL), avro(registry=URL)), registry=MemoryRegistry())
    with pytest.raises(RowFailed, match="the record of in-0 at offset 0 failed: Unreadable: schema 99 of memory"):
        driver.pipe_raw("in", [None], [framed(99, b"")])


def test_json_stands_behind_an_id_too() -> None:
    registry = MemoryRegistry()
    app = App("json", on_error="dead")
    columns = "user string, n bigint, at timestamp, tags array<string>, of map<string,double>, in struct<a: boolean>"
    stream = app.stream("in", value=json(columns, registry=URL))
    stream.to("out", value=json(registry=URL))
    with Driver(app, registry=registry) as driver:
        driver.pipe_raw("in", [None] * 3, [framed(7, b'{"user": "ann", "n": 1}'), b'{"user": "bob"}', framed(7, b"{")])
        (record_,) = driver.read_raw("out")
        assert len(driver.read_raw("dead")) == 2
        driver.pipe_raw("in", [None], [framed(7, b'{"user": "cid"}')])
        assert [row["user"] for row in driver.read("out")] == ["cid"]
    assert record_["value"][:5] == framed(1, b"")
    assert text.loads(record_["value"][5:])["user"] == "ann"
    (schema,) = registry.schemas.values()
    assert schema.kind == "JSON"
    null = {"type": "null"}
    assert text.loads(schema.text) == {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "object",
        "properties": {
            "user": {"oneOf": [null, {"type": "string"}]},
            "n": {"oneOf": [null, {"type": "integer"}]},
            "at": {"oneOf": [null, {"type": "string", "format": "date-time"}]},
            "tags": {"oneOf": [null, {"type": "array", "items": {"oneOf": [null, {"type": "string"}]}}]},
            "of": {"oneOf": [null, {"type": "object", "additionalProperties": {"oneOf": [null, {"type": "number"}]}}]},
            "in": {"oneOf": [null, {"type": "object", "properties": {"a": {"oneOf": [null, {"type": "boolean"}]}}}]},
        },
    }


def test_json_behind_an_id_is_refused_without_columns() -> None:
    app = App("json")
    with pytest.raises(NotAllowed, match="the format of the values has no schema"):
        app.stream("in", value=json(registry=URL))
    call: Any = json
    with pytest.raises(InvalidConfig, match=r"json\(\) needs a schema, like json"):
        call()
    with pytest.raises(InvalidConfig, match="json: subject='s' is of a registry"):
        call("a int", subject="s")


def test_each_driver_has_its_registry() -> None:
    app = copied(avro(ORDER, registry=URL), avro(registry=URL), on_error="dead")
    for other in (False, True):
        registry = MemoryRegistry()
        if other:
            registry.register("other", SchemaText("JSON", "{}"))
        with Driver(app, registry=registry) as driver:
            driver.pipe("in", [ROW])
            assert len(driver.read("out")) == 1
            driver.pipe_raw("in", [None], [framed(1, written(ORDER, ROW)[0].as_py())])
            assert len(driver.read_raw("dead")) == other
        assert registry.subjects["in-value"] == [1 + other]
