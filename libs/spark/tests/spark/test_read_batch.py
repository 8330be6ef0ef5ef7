"""``spark.read`` on a real cluster."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import AnalysisException, PythonException
from pyspark.sql import DataFrame

from headrace.testing.clusters import TestCluster

if TYPE_CHECKING:
    from .conftest import Reads

pytestmark = pytest.mark.spark

Fill = Callable[..., None]
NOON_MS = 1_700_000_000_000


def test_all_columns_with_their_types(reads: Reads, headrace_cluster: TestCluster) -> None:
    topic = headrace_cluster.unique_topic(partitions=2)
    with headrace_cluster.producer() as producer:
        producer.send(
            topic, b"v0", key=b"k0", partition=0, timestamp_ms=NOON_MS, headers=[("h", b"1"), ("h", None)]
        ).result(10)
        producer.send(topic, None, key=b"gone", partition=1, timestamp_ms=NOON_MS + 1).result(10)
        producer.send(topic, b"", partition=1, timestamp_ms=NOON_MS + 2).result(10)
    frame = reads.batch(topic, includeHeaders="true").load()
    assert frame.schema.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,"
        "timestampType:int,headers:array<struct<key:string,value:binary>>>"
    )
    found = [row.asDict(recursive=True) for row in frame.orderBy("partition", "offset").collect()]
    noon = datetime.fromtimestamp(NOON_MS // 1000, UTC).replace(tzinfo=None)
    assert [row["timestamp"] for row in found] == [noon.replace(microsecond=1_000 * n) for n in range(3)]
    common: dict[str, Any] = {"topic": topic, "timestampType": 0}
    assert [{name: value for name, value in row.items() if name != "timestamp"} for row in found] == [
        {
            "key": b"k0",
            "value": b"v0",
            "partition": 0,
            "offset": 0,
            "headers": [{"key": "h", "value": b"1"}, {"key": "h", "value": None}],
            **common,
        },
        {"key": b"gone", "value": None, "partition": 1, "offset": 0, "headers": None, **common},
        {"key": None, "value": b"", "partition": 1, "offset": 1, "headers": None, **common},
    ]


def test_a_topic_without_records_is_an_empty_frame(reads: Reads, headrace_cluster: TestCluster) -> None:
    assert reads.batch(headrace_cluster.unique_topic()).load().collect() == []


def values(frame: DataFrame) -> list[int]:
    return sorted(int(row["value"]) for row in frame.select("value").collect())


def test_some_columns_of_a_users_schema(reads: Reads, headrace_cluster: TestCluster, fill: Fill) -> None:
    topic = headrace_cluster.unique_topic()
    fill(topic, range(5), timestamp_ms=NOON_MS)
    frame = reads.batch(topic).schema("OFFSET long, value binary, timestampType int").load()
    assert [tuple(row) for row in frame.orderBy("offset").collect()] == [(n, b"%d" % n, 0) for n in range(5)]
    assert frame.columns == ["OFFSET", "value", "timestampType"]
    with pytest.raises(AnalysisException, match="column offset is of type bigint, not string"):
        reads.batch(topic).schema("offset string").load().collect()


def test_ranges_by_offset_and_by_time(reads: Reads, headrace_cluster: TestCluster, fill: Fill) -> None:
    topic = headrace_cluster.unique_topic(partitions=2)
    fill(topic, range(10), timestamp_ms=NOON_MS)
    fill(topic, range(10, 20), partition=1, timestamp_ms=NOON_MS)
    some = {
        "startingOffsets": json.dumps({topic: {"0": 8, "1": -2}}),
        "endingOffsets": json.dumps({topic: {"0": -1, "1": 2}}),
    }
    assert values(reads.batch(topic, **some).load()) == [8, 9, 10, 11]
    times = {"startingTimestamp": NOON_MS + 7, "endingTimestamp": NOON_MS + 12}
    assert values(reads.batch(topic, startingOffsetsByTimestampStrategy="latest", **times).load()) == [7, 8, 9, 10, 11]
    assigned = json.dumps({topic: [1]})
    assert values(reads.batch(assign=assigned, endingTimestamp=NOON_MS + 15).load()) == list(range(10, 15))
    with pytest.raises(AnalysisException, match="no record is at or after the starting time in"):
        reads.batch(topic, startingTimestamp=NOON_MS + 100).load().collect()


def test_many_small_partitions_are_few_tasks_and_a_large_one_many(
    reads: Reads, headrace_cluster: TestCluster, fill: Fill
) -> None:
    names = [headrace_cluster.unique_topic("packed", partitions=4) for _ in range(2)]
    for topic in names:
        for partition in range(4):
            fill(topic, range(partition * 10, partition * 10 + 10), partition)
    everything = sorted(list(range(40)) * 2)
    frame = reads.batch(subscribePattern="packed-.*").load()
    assert frame.rdd.getNumPartitions() == 1
    assert values(frame) == everything
    for options, count in (({"minPartitions": 16}, 16), ({"maxRecordsPerPartition": 3}, 27)):
        frame = reads.batch(subscribePattern="packed-.*", **options).load()
        assert frame.rdd.getNumPartitions() == count
    assert values(reads.batch(subscribePattern="packed-.*", minPartitions=3).load()) == everything


def test_each_use_of_a_frame_has_its_own_filters(reads: Reads, headrace_cluster: TestCluster, fill: Fill) -> None:
    topic = headrace_cluster.unique_topic(partitions=2)
    fill(topic, range(10))
    fill(topic, range(10, 20), partition=1)
    frame = reads.batch(topic).load()
    few, other = frame.where("partition = 0 and offset < 3"), frame.where("partition = 1 and offset >= 8")
    assert values(few) == [0, 1, 2]
    assert values(few.union(other)) == [0, 1, 2, 18, 19]
    assert values(frame) == list(range(20)), "though Spark's setting for filters in Python sources is on"
    fill(topic, range(20, 25))
    assert values(frame) == list(range(20)), "Spark keeps the plan of a frame"
    assert values(reads.batch(topic).load()) == list(range(25))


def test_only_what_is_committed(reads: Reads, headrace_cluster: TestCluster) -> None:
    topic = headrace_cluster.unique_topic()
    with headrace_cluster.producer(transactional_id=f"by-{topic}") as producer:
        for value, commits in ((b"1", True), (b"2", False), (b"3", True)):
            producer.begin_transaction()
            producer.send(topic, value)
            producer.flush()
            _ = producer.commit_transaction() if commits else producer.abort_transaction()
    assert values(reads.batch(topic, kafka__isolation__level="read_committed").load()) == [1, 3]
    assert values(reads.batch(topic).load()) == [1, 2, 3], "as in Kafka, unless it is said"


@pytest.mark.parametrize("fails", [True, False])
def test_records_that_retention_removes_while_tasks_read(
    reads: Reads, headrace_cluster: TestCluster, fill: Fill, fails: bool
) -> None:
    topic = headrace_cluster.unique_topic()
    fill(topic, range(20))
    frame = reads.batch(topic, failOnDataLoss=str(fails)).load()
    planned: Any = frame
    assert planned._jdf.queryExecution().toRdd().getNumPartitions() == 1, "planned with all of it"
    with headrace_cluster.admin() as admin:
        admin.delete_records({(topic, 0): 12})
    if fails:
        with pytest.raises(PythonException) as failed:
            frame.collect()
        told = f"{topic}-0: offsets 0 to 11 were removed by retention before they were read. To go on without them"
        assert told in str(failed.value)
    else:
        assert sorted(int(row["value"]) for row in frame.collect()) == list(range(12, 20))


def test_a_topic_that_is_not_there(reads: Reads) -> None:
    with pytest.raises(AnalysisException, match="not there: no-such-topic; create it first"):
        reads.batch("no-such-topic").load().collect()


def test_a_cluster_that_is_not_there(reads: Reads) -> None:
    options = {"kafka__bootstrap__servers": "127.0.0.1:1", "kafka__default__api__timeout__ms": 500}
    with pytest.raises(AnalysisException, match=r"127\.0\.0\.1:1"):
        reads.batch("t", **options).load().collect()


def test_wrong_options_are_told_at_once_and_all_together(reads: Reads) -> None:
    with pytest.raises(AnalysisException) as failed:
        reads.batch("t", subscrbe="a", startingOffsets="soon").load()
    assert "'subscrbe' is not an option; did you mean 'subscribe'?" in str(failed.value)
    assert "'startingOffsets' takes JSON such as" in str(failed.value)
    assert str(failed.value).count("  File ") == 1, "one frame, and not a trace of ours"
