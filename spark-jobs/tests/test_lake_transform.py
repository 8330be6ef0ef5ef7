"""Rows of a lake: each record is in it once, good or bad, in the directory of its date."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import unix_millis
from pyspark.sql.types import StructType

from headrace_common.core.errors import InvalidConfig
from headrace_jobs.json_values import NO_VALUE, NOT_JSON
from headrace_jobs.topic_to_lake.transform import Lake, check_lake, partition_columns, rows

from .records import TIME, record, records, values

pytestmark = pytest.mark.spark
FLIGHT = "id bigint, carrier string, at bigint"


def schema(ddl: str = FLIGHT) -> StructType:
    return StructType.fromDDL(ddl)


def read(found: DataFrame) -> list[dict[str, Any]]:
    return [row.asDict(recursive=True) for row in found.orderBy("_partition", "_offset").collect()]


def test_good_rows_have_fields_and_bad_ones_their_bytes(spark: SparkSession) -> None:
    lake = Lake(schema(), headers=True)
    given = [
        record(b'{"id":1,"carrier":"UA"}', 0, key=b"UA", headers=[{"key": "h", "value": b"x"}]),
        record(b'{"id":', 1, key=b"\xff", partition=1),
        record(None, 2, partition=1),
    ]
    found = read(rows(records(spark, given), lake))
    assert [row["quality"] for row in found] == ["good", "bad", "bad"]
    assert [row["_reason"] for row in found] == [None, NOT_JSON, NO_VALUE]
    assert [row["_value"] for row in found] == [None, b'{"id":', None]
    assert [row["_key"] for row in found] == [b"UA", b"\xff", None]
    assert [(row["_topic"], row["_partition"], row["_offset"]) for row in found] == [
        ("t", 0, 0),
        ("t", 1, 1),
        ("t", 1, 2),
    ]
    assert (found[0]["id"], found[0]["carrier"]) == (1, "UA")
    assert all(row["id"] is None and row["carrier"] is None for row in found[1:])
    assert found[0]["_headers"] == [{"key": "h", "value": b"x"}]
    assert all(str(row["event_date"]) == "2026-03-01" for row in found)
    assert partition_columns(lake) == ["quality", "event_date"]


def test_good_rows_keep_their_bytes_where_that_is_wanted(spark: SparkSession) -> None:
    found = read(rows(values(spark, [b'{"id":1,"unknown":2}']), Lake(schema(), keep_value=True)))
    assert found[0]["_value"] == b'{"id":1,"unknown":2}'


@pytest.mark.parametrize("zone", ["UTC", "Asia/Tokyo", "America/Los_Angeles"])
def test_dates_are_of_the_event_and_in_utc_wherever_it_runs(spark: SparkSession, zone: str) -> None:
    times = {
        b'{"at":0}': "1970-01-01",
        b'{"at":-1}': "1969-12-31",
        b'{"at":1772323199999}': "2026-02-28",
        b'{"at":1772323200000}': "2026-03-01",
        b'{"at":null}': "2026-03-01",
        b'{"at":9223372036854775807}': "2026-03-01",
        b"broken": "2026-03-01",
    }
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        found = read(rows(values(spark, times), Lake(schema(), time="at")))
    finally:
        spark.conf.set("spark.sql.session.timeZone", str(before))
    assert [str(row["event_date"]) for row in found] == list(times.values())


def test_what_cannot_be_a_lake_is_refused(spark: SparkSession) -> None:
    for lake, said in (
        (Lake(schema("id int, _offset int")), "_offset"),
        (Lake(schema("id int, Quality int")), "Quality"),
        (Lake(schema("id int"), partition_by=("when",)), "'when'"),
        (Lake(schema("id int, m map<string,int>"), partition_by=("m",)), "simple type"),
        (Lake(schema("id int"), partition_by=("id",)), "one at least"),
        (Lake(schema(), partition_by=("id", "id")), "twice"),
        (Lake(schema(), time="carrier"), "is no time|no time"),
        (Lake(schema(), time="none"), "no field 'none'"),
    ):
        with pytest.raises(InvalidConfig, match=said):
            check_lake(lake)
    check_lake(Lake(schema(), partition_by=("carrier", "_topic"), time="at"))


def stream_of(*batches: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batches[0].schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


def test_arrow_values_give_a_row_for_each_of_theirs(spark: SparkSession) -> None:
    first = pa.record_batch({"id": pa.array([1, 2], pa.int32()), "carrier": ["UA", None], "more": [0.5, 1.5]})
    second = pa.record_batch({"id": pa.array([3], pa.int32()), "carrier": ["AA"], "more": [2.5]})
    wrong = pa.record_batch({"id": ["x"]})
    empty = pa.record_batch({"id": pa.array([], pa.int64())})
    given = [stream_of(first, second), b"no arrow", None, stream_of(wrong), stream_of(empty), stream_of(second)]
    found = read(rows(values(spark, given), Lake(schema("id bigint, carrier string"), values="arrow")))
    assert [(row["_offset"], row["_row"], row["id"], row["carrier"]) for row in found] == [
        (0, 0, 1, "UA"),
        (0, 1, 2, None),
        (0, 2, 3, "AA"),
        (1, None, None, None),
        (2, None, None, None),
        (3, None, None, None),
        (5, 0, 3, "AA"),
    ]
    assert [row["quality"] for row in found] == ["good"] * 3 + ["bad"] * 3 + ["good"]
    assert found[3]["_value"] == b"no arrow"
    assert found[4]["_reason"] == NO_VALUE
    kept = read(rows(values(spark, given[:1]), Lake(schema("id bigint"), values="arrow", keep_value=True)))
    assert [row["_value"] for row in kept] == [given[0], None, None]


@pytest.mark.parametrize("zone", ["UTC", "Asia/Tokyo"])
def test_times_and_nested_columns_of_arrow_arrive(spark: SparkSession, zone: str) -> None:
    batch = pa.record_batch(
        {
            "at": pa.array([TIME], pa.timestamp("ms", tz="UTC")),
            "place": pa.array([{"x": 1, "names": ["a", "b"]}]),
            "kind": pa.array(["k"]).dictionary_encode(),
        }
    )
    ddl = "at timestamp, place struct<x:bigint,names:array<string>>, kind string"
    lake = Lake(schema(ddl), values="arrow", time="at")
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        found = read(rows(values(spark, [stream_of(batch)]), lake).withColumn("ms", unix_millis("at")))
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    assert found[0]["_reason"] is None
    assert found[0]["place"] == {"x": 1, "names": ["a", "b"]}
    assert found[0]["kind"] == "k"
    assert found[0]["ms"] == TIME.timestamp() * 1000
    assert str(found[0]["event_date"]) == "2026-03-01"
