"""Tables of an audit, against topics whose faults are known; and what is made a finding."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from headrace_jobs.retention_audit.report import Found, failed, findings, report
from headrace_jobs.retention_audit.transform import BOUNDS, duplicates, gaps, keys, partitions, project

from .records import TIME, record, records

pytestmark = pytest.mark.spark


def plain(found: DataFrame, *order: str) -> list[dict[str, Any]]:
    return [row.asDict(recursive=True) for row in found.orderBy(*order).collect()]


def bounds(spark: SparkSession, *rows: tuple[Any, ...]) -> DataFrame:
    return spark.createDataFrame(list(rows), BOUNDS)


def test_sizes_ages_and_shares_of_partitions(spark: SparkSession) -> None:
    given = [
        record(b"12345", 5, key=b"k", timestamp=TIME),
        record(None, 6, key=b"k", timestamp=TIME + timedelta(hours=1)),
        record(b"1", 7, partition=1),
    ]
    held = bounds(spark, ("t", 0, 5, 7, 5, False), ("t", 1, 0, 8, 0, False), ("t", 2, 3, 3, 3, False))
    found = plain(partitions(project(records(spark, given)), held), "partition")
    wanted = {
        "records": [2, 1, 0],
        "missing": [0, 7, 0],
        "tombstones": [1, 0, 0],
        "without_key": [0, 1, 0],
        "first_offset": [5, 7, None],
        "last_offset": [6, 7, None],
        "bytes": [7, 1, 0],
        "bytes_min": [1, 1, None],
        "bytes_avg": [3.5, 1.0, None],
        "bytes_max": [6, 1, None],
        "share": [2 / 3, 1 / 3, 0.0],
    }
    assert {name: [row[name] for row in found] for name in wanted} == wanted
    assert [(row["newest"] or TIME) - (row["oldest"] or TIME) for row in found] == [timedelta(hours=1)] + [
        timedelta()
    ] * 2


def test_gaps_and_what_explains_them(spark: SparkSession) -> None:
    held = (0, 1, 3, 4, 8, 20)
    given = [record(b"x", offset) for offset in held] + [record(b"x", offset, partition=1) for offset in (0, 5)]
    known = bounds(
        spark, ("t", 0, 0, 25, 0, False), ("t", 1, 0, 6, 0, True), ("t", 2, 0, 3, 0, False), ("t", 3, 9, 9, 9, True)
    )
    found = plain(gaps(project(records(spark, given)), known, markers_max=1), "partition", "start")
    assert [(row["partition"], row["start"], row["end"], row["missing"], row["cause"]) for row in found] == [
        (0, 2, 3, 1, "markers"),
        (0, 5, 8, 3, "unexplained"),
        (0, 9, 20, 11, "unexplained"),
        (0, 21, 25, 4, "unexplained"),
        (1, 1, 5, 4, "compaction"),
        (2, 0, 3, 3, "unexplained"),
    ]


def test_what_retention_took_meanwhile_is_no_finding(spark: SparkSession) -> None:
    given = [record(b"x", offset) for offset in (6, 7)]
    known = bounds(spark, ("t", 0, 0, 8, 6, False))
    found = plain(gaps(project(records(spark, given)), known, markers_max=0), "start")
    assert [(row["start"], row["end"], row["cause"]) for row in found] == [(0, 6, "retention")]


def test_duplicates_by_content(spark: SparkSession) -> None:
    given = [
        record(b"a", 0, key=b"k"),
        record(b"a", 1, key=b"k"),
        record(b"a", 2, key=b"k", partition=1),
        record(b"a", 3, key=None),
        record(b"b", 4, key=b"k"),
        record(b"a", 5, key=b"k", timestamp=TIME + timedelta(milliseconds=1)),
        record(b"a", 6, key=b"k", topic="other"),
        record(None, 7, key=b"n"),
        record(b"", 8, key=b"n"),
    ]
    found = plain(duplicates(project(records(spark, given))), "topic")
    assert [(row["topic"], row["records"]) for row in found] == [("t", 3)]
    assert (found[0]["first"]["offset"], found[0]["last"]["offset"]) == (0, 2)


def test_duplicates_by_a_field(spark: SparkSession) -> None:
    given = [b'{"o":{"id":1}}', b'{"o":{"id":1},"x":2}', b'{"o":{"id":2}}', b'{"o":{}}', b'{"o":{}}', b"junk", b"junk"]
    rows = project(records(spark, (record(value, n) for n, value in enumerate(given))), "o.id")
    assert [(row["identity"], row["records"]) for row in plain(duplicates(rows), "identity")] == [("1", 2)]


def test_the_heaviest_keys(spark: SparkSession) -> None:
    given = [record(b"xx", n, key=b"hot") for n in range(6)] + [
        record(b"x", 6, key=b"b"),
        record(b"x", 7),
        record(b"x", 8),
    ]
    found = plain(keys(project(records(spark, given)), top=2), "rank")
    assert [(row["rank"], row["key"], row["records"], row["bytes"], row["keys"]) for row in found] == [
        (1, b"hot", 6, 30, 3),
        (2, None, 2, 2, 3),
    ]
    assert found[0]["share"] == pytest.approx(2 / 3)


def test_findings_and_what_makes_a_run_fail() -> None:
    hot = {"topic": "t", "rank": 1, "key": b"hot\xff", "records": 9, "bytes": 9, "share": 0.9, "keys": 2}
    found = Found([], [], {"markers": (3, 3)}, [], (0, 0), [hot])
    assert [each["kind"] for each in findings(found, skew_max=0.5)] == ["skew"]
    assert findings(found, skew_max=0.95) == []
    bad = Found([], [], {"unexplained": (2, 7)}, [], (1, 4), [])
    told = findings(bad, skew_max=0.5)
    assert [each["kind"] for each in told] == ["gaps", "duplicates"]
    assert failed(told, ["duplicates"])
    assert not failed(told, ["skew"])
    assert not failed(told, [])


def test_a_report_is_plain_json() -> None:
    row = {
        **{"topic": "t", "partition": 0, "records": 2, "bytes": 4, "missing": 0, "share": 1.0},
        **{"oldest": datetime(2026, 3, 1, tzinfo=UTC), "newest": datetime(2026, 3, 2, tzinfo=UTC)},
    }
    empty = {**row, "partition": 1, "records": 0, "bytes": 0, "oldest": None, "newest": None, "share": 0.0}
    hot = {"topic": "t", "rank": 1, "key": b"\xff", "records": 2, "bytes": 4, "share": 1.0, "keys": 1}
    told = report(Found([row, empty], [], {}, [], (0, 0), [hot]), audited_at=TIME, skew_max=0.5)
    assert told["findings"] == []
    assert told["keys"][0]["key"] == "\\xff"
    assert told["topics"] == [
        {
            "topic": "t",
            "partitions": 2,
            "records": 2,
            "missing": 0,
            "bytes": 4,
            "bytes_avg": 2.0,
            "oldest": "2026-03-01T00:00:00+00:00",
            "newest": "2026-03-02T00:00:00+00:00",
            "largest_share": 1.0,
        }
    ]
