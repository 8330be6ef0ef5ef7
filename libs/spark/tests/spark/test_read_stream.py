"""``spark.readStream`` on a real cluster: what is read once, what comes late, what is lost, and who sees it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import StreamingQueryException

from headrace.testing.clusters import TestCluster

if TYPE_CHECKING:
    from .conftest import Reads, Sunk

pytestmark = pytest.mark.spark

Fill = Callable[..., None]
Start = Callable[..., "Sunk"]
NOW = {"availableNow": True}


def test_available_now_reads_what_is_there_and_goes_on_from_there(
    reads: Reads, headrace_cluster: TestCluster, fill: Fill, sunk: Start
) -> None:
    topic = headrace_cluster.unique_topic(partitions=3)
    for partition in range(3):
        fill(topic, range(partition * 10, partition * 10 + 10), partition)
    frame = reads.stream(topic, startingOffsets="earliest", maxOffsetsPerTrigger=12).load()
    first = sunk(frame, **NOW).ended()
    assert first.values() == list(range(30))
    assert [len(rows) for _, rows in first.batches] == [0, 12, 12, 6], "the first one puts the start into the log"
    fill(topic, range(30, 35))
    second = sunk(frame, **NOW).ended()
    assert second.values() == list(range(30, 35))
    assert sunk(frame, **NOW).ended().rows == []


def test_latest_loses_nothing_when_the_first_batch_fails(
    reads: Reads, headrace_cluster: TestCluster, fill: Fill, sunk: Start
) -> None:
    topic = headrace_cluster.unique_topic()
    fill(topic, range(10))
    frame = reads.stream(topic).load()

    def fails(number: int) -> None:
        raise RuntimeError(f"batch {number} fails")

    with pytest.raises(StreamingQueryException, match="batch 0 fails"):
        sunk(frame, keep=fails).until(lambda _: False)
    fill(topic, range(10, 15))
    again = sunk(frame)
    again.until(lambda query: len(query.rows) >= 5)
    assert again.values() == list(range(10, 15)), "what came between the crash and the restart"


def test_a_batch_that_failed_is_read_again_alike(
    reads: Reads, headrace_cluster: TestCluster, fill: Fill, sunk: Start
) -> None:
    topic = headrace_cluster.unique_topic()
    fill(topic, range(10))
    frame = reads.stream(topic, startingOffsets="earliest").load()

    def fails(number: int) -> None:
        if number == 1:
            raise RuntimeError("batch 1 fails")

    with pytest.raises(StreamingQueryException, match="batch 1 fails"):
        sunk(frame, keep=fails).until(lambda _: False)
    fill(topic, range(10, 20))
    again = sunk(frame, **NOW).ended()
    assert [(number, sorted(int(row["value"]) for row in rows)) for number, rows in again.batches] == [
        (1, list(range(10))),
        (2, list(range(10, 20))),
    ]


def test_new_partitions_and_topics_join_and_an_idle_query_waits(
    reads: Reads, headrace_cluster: TestCluster, fill: Fill, sunk: Start
) -> None:
    topic = headrace_cluster.unique_topic("joins")
    fill(topic, range(5))
    query = sunk(reads.stream(subscribePattern=f"{topic}.*", startingOffsets="earliest", longPollMs=300).load())
    query.until(lambda query: len(query.rows) >= 5)
    with headrace_cluster.admin() as admin:
        admin.add_partitions(topic, 2)
        admin.create_topic(f"{topic}-more")
    fill(topic, range(5, 10), partition=1)
    fill(f"{topic}-more", range(10, 15))
    query.until(lambda query: len(query.rows) >= 15)
    assert query.values() == list(range(15))
    count = len(query.batches)
    query.until(lambda query: query.query.status["message"] == "Waiting for data to arrive")
    assert len(query.batches) == count, "without records there are no batches"


def test_the_query_is_seen_as_a_group_with_its_lag(
    reads: Reads, headrace_cluster: TestCluster, fill: Fill, sunk: Start
) -> None:
    topic = headrace_cluster.unique_topic(partitions=2)
    fill(topic, range(10))
    options = {"startingOffsets": "earliest", "kafka__group__id": f"query-of-{topic}"}
    sunk(reads.stream(topic, **options).load(), **NOW).ended()
    fill(topic, range(10, 17))
    with headrace_cluster.admin() as admin:
        lags = {tp.partition: lag for tp, lag in admin.group_lag(f"query-of-{topic}").items()}
    assert {number: (lag.committed_offset, lag.lag) for number, lag in lags.items()} == {0: (10, 7), 1: (0, 0)}
    assert lags[0].lag_ms is not None


def test_the_group_keeps_its_name_with_the_checkpoint(
    reads: Reads, headrace_cluster: TestCluster, fill: Fill, sunk: Start, tmp_path: Path
) -> None:
    topic = headrace_cluster.unique_topic()
    prefix = f"shown-{topic}"
    frame = reads.stream(topic, startingOffsets="earliest", groupIdPrefix=prefix).load()
    for last in (5, 9):
        fill(topic, range(last - 4, last))
        sunk(frame, **NOW).ended()
    logged = json.loads((tmp_path / "checkpoint" / "offsets" / "1").read_text().splitlines()[-1])
    with headrace_cluster.admin() as admin:
        groups = [group.group_id for group in admin.list_groups().groups if group.group_id.startswith(prefix)]
        assert groups == [f"{prefix}-{logged['@headrace']['reader']}"]
        (lag,) = admin.group_lag(groups[0]).values()
    assert (lag.committed_offset, lag.lag) == (8, 0)


@pytest.mark.parametrize("fails", [True, False])
def test_records_that_retention_removed(
    reads: Reads, headrace_cluster: TestCluster, fill: Fill, sunk: Start, fails: bool
) -> None:
    topic = headrace_cluster.unique_topic()
    fill(topic, range(5))
    frame = reads.stream(topic, startingOffsets="earliest", failOnDataLoss=str(fails)).load()
    sunk(frame, **NOW).ended()
    fill(topic, range(5, 20))
    with headrace_cluster.admin() as admin:
        admin.delete_records({(topic, 0): 12})
    if fails:
        told = f"{topic}-0: offsets 5 to 11 were removed by retention before they were read"
        with pytest.raises(StreamingQueryException, match=told):
            sunk(frame, **NOW).until(lambda _: False)
    else:
        assert sunk(frame, **NOW).ended().values() == list(range(12, 20))


@pytest.mark.parametrize("fails", [True, False])
def test_a_topic_that_was_deleted_and_created_again(
    reads: Reads, headrace_cluster: TestCluster, fill: Fill, sunk: Start, fails: bool
) -> None:
    topic = headrace_cluster.unique_topic()
    fill(topic, range(5))
    frame = reads.stream(topic, startingOffsets="earliest", failOnDataLoss=str(fails)).load()
    sunk(frame, **NOW).ended()
    with headrace_cluster.admin() as admin:
        admin.delete_topic(topic)
        admin.create_topic(topic)
    fill(topic, range(100, 120))
    if fails:
        with pytest.raises(StreamingQueryException, match="the topic was deleted and created again"):
            sunk(frame, **NOW).until(lambda _: False)
    else:
        query = sunk(frame)
        query.until(lambda query: len(query.rows) >= 20)
        assert query.values() == list(range(100, 120))


def test_wrong_options_end_the_query_with_one_clear_text(
    reads: Reads, headrace_cluster: TestCluster, sunk: Start
) -> None:
    topic = headrace_cluster.unique_topic()
    frame = reads.stream(topic, endingOffsets="latest", minOffsetsPerTrigger="5", maxOffsetsPerTrigger="2").load()
    with pytest.raises(StreamingQueryException) as failed:
        sunk(frame).until(lambda _: False)
    text = str(failed.value)
    assert "'endingOffsets' is not for spark.readStream: a streaming query has no end" in text
    assert "'minOffsetsPerTrigger' (5) is above 'maxOffsetsPerTrigger' (2)" in text
    assert "UnboundLocalError" not in text
