"""Chunks to records and records to rows: what fails alone, and what a dead letter has."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import orjson
import pyarrow as pa
import pytest

from headrace.errors import InvalidConfig
from headrace.records import PartitionTable
from headrace_connect.core.dead_letters import Origin, Refusal, Stage
from headrace_connect.plugin import BadItem, Chunk
from headrace_connect.runtime.converting import ChunkPipeline, Converting, TablePipeline
from headrace_connect.runtime.pipeline import HEADERS_TYPE, ConvertedChunk, Lost, dead_letters


def written(chunk: Chunk, **config: str) -> ConvertedChunk:
    given = {name.replace("_", "."): value for name, value in config.items()}
    return ChunkPipeline(Converting.of(given), Origin("c", 0, "m.C", "t")).apply(chunk)


def values(converted: ConvertedChunk) -> list[Any]:
    return [value for out in converted.outgoing for value in out.table.column("value").to_pylist()]


@pytest.mark.parametrize("rows", [[{"a": 1}, {"a": 2}], pa.table({"a": [1, 2]}), pa.array([{"a": 1}, {"a": 2}])])
def test_rows_of_any_shape_become_json(rows: Any) -> None:
    converted = written(Chunk(rows, {}))
    assert [orjson.loads(value) for value in values(converted)] == [{"a": 1}, {"a": 2}]
    assert (converted.rows, converted.lost) == (2, [])


def test_all_parts_of_records() -> None:
    chunk = Chunk(
        ["x", None],
        {},
        topic="other",
        keys=["k", None],
        timestamps_ms=[5, 6],
        headers=[[("h", b"1")], []],
        partition=3,
    )
    (out,) = written(chunk, value_converter="string", key_converter="string").outgoing
    assert out.topic == "other"
    assert out.table.select(["key", "value", "timestamp_ms", "partition"]).to_pylist() == [
        {"key": b"k", "value": b"x", "timestamp_ms": 5, "partition": 3},
        {"key": None, "value": None, "timestamp_ms": 6, "partition": 3},
    ]
    assert out.table.column("headers").to_pylist() == [[{"key": "h", "value": b"1"}], []]


def test_schemas_have_the_names_that_a_chunk_gives_them() -> None:
    chunk = Chunk([{"a": 1}], {}, keys=[{"a": 1}], key_schema="shop.Key", value_schema="shop.Value")
    (out,) = written(chunk, **{f"{side}_converter_schemas_enable": "true" for side in ("key", "value")}).outgoing
    names = [orjson.loads(out.table.column(side)[0].as_py())["schema"]["name"] for side in ("key", "value")]
    assert names == ["shop.Key", "shop.Value"]


def test_further_chunks_are_written_with_it() -> None:
    other = Chunk([{"b": 2}, {"b": 2**70}], {}, topic="other", bad=[BadItem(b"raw", "half")])
    converted = written(
        Chunk([{"a": 1}], {}, bad=[BadItem(b"first", "x")], further=[other, Chunk(["c"], {}, topic="c")])
    )
    assert [out.topic for out in converted.outgoing] == ["t", "other", "c"]
    assert [orjson.loads(value) for value in values(converted)] == [{"a": 1}, {"b": 2}, "c"]
    assert converted.rows == 3
    assert converted.bytes == sum(out.table.nbytes for out in converted.outgoing)
    assert [(lost.origin.topic, lost.value) for lost in converted.lost] == [
        ("t", b"first"),
        ("other", b"{'b': 1180591620717411303424}"),
        ("other", b"raw"),
    ]


def test_rows_of_no_one_type_stay_in_order() -> None:
    converted = written(Chunk([{"a": 1}, {"a": "x"}, {"a": 2}], {}))
    assert [orjson.loads(value)["a"] for value in values(converted)] == [1, "x", 2]


def test_a_row_that_fails_is_lost_alone() -> None:
    converted = written(Chunk([{"a": 1}, {"a": 2**70}, {"a": 3}], {}, keys=["k1", "k2", "k3"]))
    assert [orjson.loads(value)["a"] for value in values(converted)] == [1, 3]
    (lost,) = converted.lost
    assert (lost.key, lost.refusal.stage, lost.origin.topic) == (b"k2", Stage.VALUE, "t")
    assert b"1180591620717411303424" in (lost.value or b"")


def test_what_the_source_could_not_read_is_lost_as_it_is() -> None:
    converted = written(Chunk([{"a": 1}], {}, bad=[BadItem(b"{half", "line 3, byte 20")]))
    (lost,) = converted.lost
    letters = dead_letters("dead", converted.lost)
    assert (lost.value, lost.refusal.stage, lost.refusal.message) == (b"{half", Stage.READ, "line 3, byte 20")
    assert letters.table.column("value").to_pylist() == [b"{half"]
    assert dead_letters("dead", converted.lost, headers=False).table.column("headers").to_pylist() == [[]]


def test_transforms_are_applied_and_may_send_elsewhere() -> None:
    config = {
        "transforms": "mask,route",
        "transforms.mask.type": "MaskField$Value",
        "transforms.mask.fields": "card",
        "transforms.route.type": "RegexRouter",
        "transforms.route.regex": "(.*)",
        "transforms.route.replacement": "$1-copy",
    }
    (out,) = written(Chunk([{"card": "4111", "n": 1}], {}), **config).outgoing
    assert (out.topic, orjson.loads(out.table.column("value")[0].as_py())) == ("t-copy", {"card": "", "n": 1})


def test_a_record_for_a_topic_that_cannot_be_is_lost_alone() -> None:
    config = {
        "transforms": "route",
        "transforms.route.type": "RegexRouter",
        "transforms.route.regex": "bad",
        "transforms.route.replacement": "a/b",
    }
    good, bad = Chunk([{"n": 1}], {}), Chunk([{"n": 2}, {"n": 3}], {}, topic="bad")
    converted = written(replace(good, further=[bad]), **config)
    assert [out.topic for out in converted.outgoing] == ["t"]
    assert [(lost.value, lost.refusal.stage) for lost in converted.lost] == [
        (b'{"n":2}', Stage.TRANSFORM),
        (b'{"n":3}', Stage.TRANSFORM),
    ]
    assert "topic name 'a/b' has other characters" in converted.lost[0].refusal.message


def test_records_without_a_topic_are_refused() -> None:
    pipeline = ChunkPipeline(Converting.of({}), Origin("c", 0, "m.C", ""))
    with pytest.raises(InvalidConfig, match="set topic"):
        pipeline.apply(Chunk([{"a": 1}], {}))
    assert pipeline.apply(Chunk([], {})).outgoing == []


def table(*given: bytes | None) -> PartitionTable:
    count = len(given)
    columns = {
        "offset": pa.array(range(5, 5 + count), pa.int64()),
        "timestamp_ms": pa.array([7] * count, pa.int64()),
        "key": pa.array([b'"k"'] * count, pa.binary()),
        "value": pa.array(given, pa.binary()),
        "headers": pa.array([[]] * count, HEADERS_TYPE),
    }
    return PartitionTable("t", 2, pa.table(columns), 5 + count, 0, 5 + count, 5 + count)


def test_records_become_rows_with_their_places() -> None:
    converted = TablePipeline(Converting.of({})).apply(table(b'{"a":1}', b"{", None, b'{"a":4}'))
    rows = {
        int(index): (offset, value)
        for part, indices in converted.parts
        for index, offset, value in zip(indices, part.offsets.to_pylist(), part.values.to_pylist(), strict=True)
    }
    assert rows == {0: (5, {"a": 1}), 2: (7, None), 3: (8, {"a": 4})}
    assert {index: refusal.stage for index, refusal in converted.refused.items()} == {1: Stage.VALUE}
    (first, *_) = converted.parts
    assert (first[0].topic, first[0].partition, first[0].original_topic) == ("t", 2, None)
    assert first[0].keys.to_pylist()[0] == "k"


def test_a_sinks_transforms_may_leave_records_out_and_rename_their_topic() -> None:
    config = {
        "transforms": "drop,route",
        "transforms.drop.type": "Filter",
        "transforms.drop.predicate": "gone",
        "predicates": "gone",
        "predicates.gone.type": "RecordIsTombstone",
        "transforms.route.type": "RegexRouter",
        "transforms.route.regex": "t",
        "transforms.route.replacement": "u",
    }
    converted = TablePipeline(Converting.of(config)).apply(table(b'{"a":1}', None))
    ((rows, indices),) = converted.parts
    assert (rows.topic, rows.original_topic, indices.tolist()) == ("u", "t", [0])
    assert TablePipeline(Converting.of({})).apply(table()).parts == []


def test_dead_letters_without_a_time_are_stamped_when_they_are_sent() -> None:
    lost = Lost(Origin("c", 0, "p", "t"), Refusal(Stage.READ, "half a line"), None, b"raw")
    assert "timestamp_ms" not in dead_letters("dead", [lost]).table.column_names
    timed = dead_letters("dead", [replace(lost, timestamp_ms=5)]).table
    assert timed.column("timestamp_ms").to_pylist() == [5]
