"""``spark.read`` on a real cluster."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import AnalysisException

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


def test_wrong_options_are_told_at_once_and_all_together(reads: Reads) -> None:
    with pytest.raises(AnalysisException) as failed:
        reads.batch("t", subscrbe="a", startingOffsets="soon").load()
    assert "'subscrbe' is not an option; did you mean 'subscribe'?" in str(failed.value)
    assert "'startingOffsets' takes JSON such as" in str(failed.value)
    assert "\n  File" in str(failed.value)
    assert str(failed.value).count("  File") == 1
