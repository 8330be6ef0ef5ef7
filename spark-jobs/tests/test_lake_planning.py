"""What lake_follow reads, and what a task makes of records; without Spark."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headrace_common.core.errors import Conflict, InvalidConfig, InvalidRecord
from headrace_common.core.ids import TopicPartition
from headrace_connect.connectors.lake_sink.parquet import ParquetLake
from headrace_connect.connectors.lake_sink.reading import open_dataset
from headrace_connect.core.spark_application import in_argument
from headrace_jobs.arguments import interval_s
from headrace_jobs.connectors import Given, add_connector, read_connector
from headrace_jobs.lake_follow.planning import plan, reading_options
from headrace_jobs.lake_follow.staging import files_of, stage_with
from headrace_spark.core.offsets import OffsetRange

from .records import SCHEMA, TIME, record

P0, P1, P2 = (TopicPartition("t", number) for number in range(3))


def test_from_the_lakes_positions_to_the_ends_of_the_logs() -> None:
    bounds = {P0: (5, 100), P1: (0, 40), P2: (0, 0)}
    positions = {P0: 50, P1: None, P2: None}
    assert plan(positions, bounds, None, 1_000, "earliest") == [OffsetRange(P0, 50, 100), OffsetRange(P1, 0, 40)]
    assert plan(positions, bounds, {P0: 60}, 1_000, "earliest") == [OffsetRange(P0, 50, 60)]
    limited = plan(positions, bounds, None, 9, "earliest")
    assert limited == [OffsetRange(P0, 50, 55), OffsetRange(P1, 0, 4)]
    assert plan({P0: 60}, {P0: (5, 100)}, {P0: 55}, 9, "earliest") == [], "others were beyond where it ends"
    assert plan({P0: None}, {P0: (5, 100)}, None, 1_000, "earliest") == [OffsetRange(P0, 5, 100)]
    with pytest.raises(InvalidConfig, match=r"no position of t-1, and consumer.override.auto.offset.reset is latest"):
        plan(positions, bounds, None, 9, "latest")
    with pytest.raises(Conflict, match="at offset 101 of t-0, and its log ends at 100"):
        plan({P0: 101}, {P0: (0, 100)}, None, 9, "earliest")
    assert json.loads(reading_options(limited)["endingOffsets"]) == {"t": {"0": 55, "1": 4}}
    assert json.loads(reading_options(limited)["assign"]) == {"t": [0, 1]}
    assert (interval_s("10 milliseconds"), interval_s("1 minute"), interval_s("2 days")) == (0.01, 60, 172_800)


def given(directory: Path, **more: str) -> Given:
    texts = {"name": "lake", "connector.class": "lake-sink", "topics": "t", "path": str(directory / "lake")}
    return Given(texts | more)


def batches(*groups: list[Any]) -> list[pa.RecordBatch]:
    found = []
    for group in groups:
        columns = list(zip(*group, strict=True))
        arrays = [pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)]
        found.append(pa.RecordBatch.from_arrays(arrays, schema=SCHEMA))
    return found


def committed(one: Given, *groups: list[Any]) -> list[dict[str, Any]]:
    """The rows of a lake whose only commits are of these batches."""
    lake = ParquetLake(one.texts["path"], list(one.configured().settings.partition_columns))
    lake.start()
    staged = stage_with(one)(iter(batches(*groups)))
    files = files_of(row for batch in staged for row in batch.to_pylist())
    lake.open(list(files))
    for partition, own in files.items():
        lake.name(partition, 100, own)
    return sorted(open_dataset(one.texts["path"], "t").to_table().to_pylist(), key=lambda row: row["n"])


def test_a_task_makes_the_rows_of_the_sink(tmp_path: Path) -> None:
    header = [{"key": "h", "value": b"x"}]
    one = given(
        tmp_path,
        **{"transforms": "h", "transforms.h.type": "HeaderFrom$Value"},
        **{"transforms.h.fields": "gone", "transforms.h.headers": "gone", "transforms.h.operation": "move"},
        **{"partition.by": 'odd=col("n") % 2', "flush.rows": "3"},
    )
    first = [record(b'{"n":1,"gone":2}', 4, headers=header), record(b'{"n":2}', 5), record(b'{"n":0}', 9, partition=1)]
    rows = committed(one, first, [record(b'{"n":3,"late":1.5}', 7)])
    assert [(row["n"], row["odd"], row["late"]) for row in rows] == [
        (0, 0, None),
        (1, 1, None),
        (2, 0, None),
        (3, 1, 1.5),
    ]
    assert [(row["__connect_partition"], row["__connect_offset"]) for row in rows] == [(1, 9), (0, 4), (0, 5), (0, 7)]
    assert {row["__connect_timestamp"] for row in rows} == {TIME}
    assert "gone" not in rows[0]


def test_bad_records_fail_or_are_dropped_as_the_connector_says(tmp_path: Path) -> None:
    bad = [record(b'{"n":1}', 0), record(b"{", 1), record(None, 2), record(b'{"n":2,"x":{}}', 3), record(b'{"n":3}', 4)]
    with pytest.raises(InvalidRecord, match=r"record t-0 offset 1 cannot be a row: .*errors.tolerance=all drops it"):
        committed(given(tmp_path), bad)
    dead = {"errors.tolerance": "all", "errors.deadletterqueue.topic.name": "dead"}
    with pytest.raises(InvalidRecord, match=r"offset 1 .*lake-sink makes it a dead letter: run it from here on"):
        committed(given(tmp_path, **dead), bad)
    rows = committed(given(tmp_path, **{"errors.tolerance": "all"}), bad)
    assert [(row["n"], row["__connect_offset"]) for row in rows] == [(1, 0), (3, 4)]


def test_the_file_of_another_connector_is_refused(tmp_path: Path) -> None:
    from headrace_connect.connectors.lake_sink import LakeSink

    def read(*options: str) -> Given:
        parser = ArgumentParser()
        add_connector(parser, "lake-sink")
        return read_connector(parser.parse_args(options), LakeSink)[0]

    file = tmp_path / "c.yaml"
    config = {"name": "x", "connector.class": "lake-sink", "topics": "t", "path": "/lake/\U0001f9ca $(HOME)"}
    file.write_text(json.dumps(config))
    assert read("--connector", str(file)).texts == config
    assert read("--connector-json", in_argument(json.dumps(config))).texts == config
    for text, why in [
        ("name: x\nconnector.class: files-sink\npath: /x\ntopics: t\n", "this job needs LakeSink"),
        ("name: x\nname: y\n", "'name' is there twice"),
        ("- x\n", "it holds list"),
        ("name: x\nconnector.class: lake-sink\ntopics: t\n", "path is missing"),
        ('{"name": "\\ud83e"}', "'name' has half of a character"),
    ]:
        file.write_text(text)
        with pytest.raises(InvalidConfig, match=why):
            read("--connector", str(file))
        with pytest.raises(InvalidConfig, match=why):
            read("--connector-json", text)
    with pytest.raises(InvalidConfig, match="cannot be read"):
        read("--connector", str(tmp_path / "none"))
    for options in ((), ("--connector", str(file), "--connector-json", "{}")):
        with pytest.raises(SystemExit):
            read(*options)
