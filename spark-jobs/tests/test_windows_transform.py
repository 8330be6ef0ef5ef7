"""Aggregates over windows: what counts where, and what a result looks like."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from headrace_common.core.errors import InvalidConfig
from headrace_jobs.running import wait_for_end
from headrace_jobs.windowed_aggregate.transform import (
    Aggregate,
    Windows,
    aggregate,
    aggregates_of,
    check_windows,
)

from .records import TIME, record, records

pytestmark = pytest.mark.spark
AGGREGATES = "count, count:delay, sum:delay, min:delay, max:delay, avg:delay"


def windows(**other: Any) -> Windows:
    given: dict[str, Any] = {"size": "1 hour", "watermark": "10 minutes", "aggregates": aggregates_of(AGGREGATES)}
    return Windows(StructType.fromDDL("carrier string, delay int, at timestamp, gate string"), **(given | other))


def flight(minute: int, carrier: str = "UA", delay: int | None = 1, late: int = 0) -> tuple[Any, ...]:
    value = json.dumps({"carrier": carrier, "delay": delay, "at": (TIME + timedelta(minutes=minute)).isoformat()})
    return record(value.encode(), timestamp=TIME + timedelta(minutes=minute + late))


def test_each_record_counts_in_its_window_and_group(spark: SparkSession) -> None:
    given = [flight(0, delay=1), flight(59, delay=4), flight(60, delay=None), flight(1, "AA", 7)]
    found = aggregate(records(spark, given), windows(keys=("carrier",), time="at")).collect()
    results = {(row.key, json.loads(row.value)["window_start"]): json.loads(row.value) for row in found}
    assert results == {
        ("UA", "2026-03-01T12:00:00.000Z"): {
            "window_start": "2026-03-01T12:00:00.000Z",
            "window_end": "2026-03-01T13:00:00.000Z",
            "carrier": "UA",
            "count": 2,
            "count_delay": 2,
            "sum_delay": 5,
            "min_delay": 1,
            "max_delay": 4,
            "avg_delay": 2.5,
        },
        ("UA", "2026-03-01T13:00:00.000Z"): {
            "window_start": "2026-03-01T13:00:00.000Z",
            "window_end": "2026-03-01T14:00:00.000Z",
            "carrier": "UA",
            "count": 1,
            "count_delay": 0,
            "sum_delay": None,
            "min_delay": None,
            "max_delay": None,
            "avg_delay": None,
        },
        ("AA", "2026-03-01T12:00:00.000Z"): {
            "window_start": "2026-03-01T12:00:00.000Z",
            "window_end": "2026-03-01T13:00:00.000Z",
            "carrier": "AA",
            "count": 1,
            "count_delay": 1,
            "sum_delay": 7,
            "min_delay": 7,
            "max_delay": 7,
            "avg_delay": 7.0,
        },
    }


def test_windows_that_overlap_count_a_record_in_each(spark: SparkSession) -> None:
    found = aggregate(records(spark, [flight(40)]), windows(slide="30 minutes", time="at")).collect()
    starts = sorted(json.loads(row.value)["window_start"] for row in found)
    assert starts == ["2026-03-01T12:00:00.000Z", "2026-03-01T12:30:00.000Z"]
    assert [row.key for row in found] == [None, None]


@pytest.mark.parametrize(
    ("keys", "with_window", "key"),
    [
        (("carrier",), False, "UA"),
        (("carrier", "gate"), False, '{"carrier":"UA","gate":null}'),
        (("carrier",), True, '{"window_start":"2026-03-01T12:00:00.000Z","carrier":"UA"}'),
    ],
)
def test_keys_of_results(spark: SparkSession, keys: tuple[str, ...], with_window: bool, key: str) -> None:
    found = aggregate(records(spark, [flight(0)]), windows(keys=keys, time="at", key_with_window=with_window))
    assert [row.key for row in found.collect()] == [key]


def test_a_sum_beyond_its_type_is_null_and_ends_nothing(spark: SparkSession) -> None:
    large = Windows(
        StructType.fromDDL("n bigint"), "1 hour", "0 seconds", aggregates=(Aggregate("sum", "n"), Aggregate("max", "n"))
    )
    value = json.dumps({"n": 2**63 - 1}).encode()
    found = aggregate(records(spark, [record(value, 0), record(value, 1)]), large).collect()
    assert json.loads(found[0].value)["sum_n"] is None
    assert json.loads(found[0].value)["max_n"] == 2**63 - 1


def test_late_records_are_left_out_and_counted(spark: SparkSession, tmp_path: Path) -> None:
    """Three micro-batches of one file each: on time, far later, and too late for the first window."""
    source = tmp_path / "in"
    batches = [
        [flight(0), flight(5)],
        [flight(200), record(b"broken", timestamp=TIME), record(b"{}", timestamp=TIME), flight(500, late=-500)],
        [flight(10, late=190), flight(199)],
        [flight(400)],
    ]
    schema = records(spark, batches[0]).schema
    checked = windows(time="at")
    check_windows(checked)
    dones = []
    for number, batch in enumerate(batches):
        records(spark, batch).coalesce(1).write.mode("append").parquet(str(source))
        stream = spark.readStream.schema(schema).parquet(str(source))
        query = (
            aggregate(stream, checked)
            .writeStream.format("parquet")
            .option("path", str(tmp_path / "out"))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        dones.append(wait_for_end(query, look_seconds=1))
        assert dones[number].rows >= len(batch)
    total = {
        name: sum(done.observed.get(name, 0) for done in dones) for name in ("unreadable", "without_time", "ahead")
    }
    assert total == {"unreadable": 1, "without_time": 1, "ahead": 1}
    assert sum(done.observed["behind"] for done in dones) == 1
    assert sum(done.late_groups for done in dones) == 1
    out = spark.read.parquet(str(tmp_path / "out")).collect()
    counts = {json.loads(row.value)["window_start"][11:13]: json.loads(row.value)["count"] for row in out}
    assert counts == {"12": 2, "15": 2}


def test_what_cannot_be_computed_is_refused(spark: SparkSession) -> None:
    for text in ("", "median:delay", "sum", "count,count"):
        with pytest.raises(InvalidConfig, match="--aggregates"):
            aggregates_of(text)
    for wrong, said in (
        ({"keys": ("none",)}, "no field 'none'"),
        ({"aggregates": aggregates_of("sum:carrier")}, "needs a number"),
        ({"aggregates": aggregates_of("max:none")}, "no field 'none'"),
        ({"time": "carrier"}, "no time"),
        ({"keys": ("carrier", "carrier")}, "one name"),
    ):
        with pytest.raises(InvalidConfig, match=said):
            check_windows(windows(**wrong))
    check_windows(windows(keys=("carrier",), time="at"))
