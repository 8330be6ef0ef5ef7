"""Records of partitions through converters, both ways."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from headrace_common.core.batch.arrow_schema import headers_type
from headrace_connect.converters import Converter, make_converter
from headrace_connect.converters.records import read_records, write_records
from headrace_connect.core.batch import OPEN, Batch


def json(part: Any, schemas: bool = False) -> Converter:
    return make_converter({f"{part}.converter": "json", f"{part}.converter.schemas.enable": str(schemas)}, part)


def table(*rows: tuple[bytes | None, bytes | None]) -> pa.Table:
    count = len(rows)
    headers = [[{"key": "h", "value": str(row).encode()}] for row in range(count)]
    return pa.table(
        {
            "offset": pa.array(range(10, 10 + count), pa.int64()),
            "timestamp_ms": pa.array(range(count), pa.int64()),
            "key": pa.array([key for key, _ in rows], pa.binary()),
            "value": pa.array([value for _, value in rows], pa.binary()),
            "headers": pa.array(headers, headers_type()),
        }
    )


def test_records_are_read_and_each_bad_one_fails_alone() -> None:
    given = table((b"1", b'{"a":1}'), (None, None), (b"x", b'{"a":2}'), (b"2", b"x"), (b"x", b"x"), (b"3", b'{"a":3}'))
    for records in (given, pa.concat_tables([given.slice(0, 2), given.slice(2)])):
        done = read_records("t", 3, records, json("key"), json("value"))
        [batch] = done.batches
        assert batch.records.to_pylist() == [
            {
                "place": place, "topic": "t", "partition": 3, "offset": 10 + place, "timestamp_ms": place,
                "key": key, "value": value, "headers": [{"key": "h", "value": str(place).encode()}],
            }
            for place, key, value in ((0, 1, {"a": 1}), (1, None, None), (5, 3, {"a": 3}))
        ]  # fmt: skip
        assert OPEN in batch.metadata("value")
        assert [(one.place, one.message.split(":")[0]) for one in done.failures] == [
            (2, "key"),
            (3, "value"),
            (4, "key"),
        ]
    assert read_records("t", 0, table().slice(0), json("key"), json("value")).batches == []


def test_parts_of_keys_and_of_values_are_batches_in_order() -> None:
    number, text = b'{"schema":{"type":"int32"},"payload":1}', b'{"schema":{"type":"string"},"payload":"x"}'
    given = table((number, number), (text, number), (text, text), (text, text), (number, text))
    done = read_records("t", 0, given, json("key", schemas=True), json("value", schemas=True))
    assert [
        (batch.places.tolist(), batch.column("key").to_pylist(), batch.column("value").to_pylist())
        for batch in done.batches
    ] == [
        ([0], [1], [1]),
        ([1], ["x"], [1]),
        ([2, 3], ["x", "x"], ["x", "x"]),
        ([4], [1], ["x"]),
    ]


def test_values_of_many_rows_have_the_key_of_their_record() -> None:
    out = pa.BufferOutputStream()
    rows = pa.table({"id": [1, 2]})
    with pa.ipc.new_stream(out, rows.schema) as stream:
        stream.write_table(rows)
    many = out.getvalue().to_pybytes()
    arrow = {
        part: make_converter({f"{part}.converter": "arrow", f"{part}.converter.schema": "id bigint"}, part)
        for part in ("key", "value")
    }  # type: ignore[arg-type]
    [batch] = read_records("t", 0, table((b"7", many), (b"8", None)), json("key"), arrow["value"]).batches
    assert batch.column("key").to_pylist() == [7, 7, 8]
    assert batch.column("offset").to_pylist() == [10, 10, 11]
    assert batch.column("value").to_pylist() == [{"id": 1}, {"id": 2}, None]
    done = read_records("t", 0, table((many, None), (None, None)), arrow["key"], json("value"))
    assert [failure.message for failure in done.failures] == ["key: it is 2 rows, and a record has one key"]
    assert [batch.places.tolist() for batch in done.batches] == [[1]]


def test_batches_are_written_by_topic_and_each_bad_row_fails_alone() -> None:
    nan = float("nan")
    batch = Batch.of(
        pa.array(["a", "b", "a", "a", "b", "a"]),
        pa.array([1.0, 2.0, nan, 4.0, None, 6.0]),
        key=pa.array([1.0, None, 3.0, nan, 5.0, 6.0]),
        timestamp_ms=pa.array([0, 1, 2, 3, 4, None]),
        partition=7,
    ).filter(pa.array([True] * 5 + [True]))
    done = write_records(batch, json("key"), json("value"))
    assert {
        topic: rows.select(["place", "key", "value", "timestamp_ms", "partition"]).to_pylist()
        for topic, rows in done.tables.items()
    } == {
        "a": [
            {"place": 0, "key": b"1.0", "value": b"1.0", "timestamp_ms": 0, "partition": 7},
            {"place": 5, "key": b"6.0", "value": b"6.0", "timestamp_ms": None, "partition": 7},
        ],
        "b": [
            {"place": 1, "key": None, "value": b"2.0", "timestamp_ms": 1, "partition": 7},
            {"place": 4, "key": b"5.0", "value": None, "timestamp_ms": 4, "partition": 7},
        ],
    }
    assert [(one.place, one.message.split(":")[0]) for one in done.failures] == [(2, "value"), (3, "key")]
    assert write_records(batch.slice(0, 0), json("key"), json("value")).tables == {}
