"""The shell around the planner of a streaming query: what it asks of a cluster, shows and answers."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import StructType

from headrace_common.core.errors import InvalidConfig, UnknownTopicOrPartition
from headrace_common.core.ids import TopicPartition
from headrace_spark.core.limits import Selection
from headrace_spark.core.losses import RecordsLost
from headrace_spark.core.offsets import Bound, OffsetRange, Positions, Snapshot
from headrace_spark.core.options import ConnectorOptions, Mode
from headrace_spark.core.stream import LOOK_AGAIN_MS
from headrace_spark.reading import OffsetRanges
from headrace_spark.stream_reader import HeadraceStreamReader, StreamQuery

A0 = TopicPartition("a", 0)
SCHEMA = StructType().add("value", "binary")


@dataclass
class Cluster:
    """``Logs`` and ``Onlookers`` in memory."""

    bounds: dict[TopicPartition, Bound] = field(default_factory=lambda: {A0: Bound(0, 10)})
    ids: dict[str, str] = field(default_factory=lambda: {"a": "01"})
    times: dict[TopicPartition, int | None] = field(default_factory=dict)
    asked: list[dict[str, Any]] = field(default_factory=list)
    shown: list[tuple[str, dict[TopicPartition, int], bool]] = field(default_factory=list)

    def snapshot(self, selection: Selection, **how: Any) -> Snapshot:
        self.asked.append(how)
        if how["must_exist"] and not self.bounds:
            raise UnknownTopicOrPartition("not there: a")
        return Snapshot(dict(self.bounds), dict(self.ids))

    def offsets_for_times(self, timestamps_ms: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        return {tp: self.times.get(tp) for tp in timestamps_ms}

    def still_there(self, ranges: Any, topic_ids: Any) -> Any:
        raise AssertionError("tasks ask this")

    def record_bytes(self, snapshot: Snapshot) -> Mapping[TopicPartition, int]:
        return {A0: 100}

    def show(self, group: str, positions: Mapping[TopicPartition, int], *, last: bool = False) -> None:
        self.shown.append((group, dict(positions), last))


def query(cluster: Cluster, **options: str) -> StreamQuery:
    known = {"kafka.bootstrap.servers": "b:1", "subscribe": "a", "startingOffsets": "earliest"}
    return StreamQuery(ConnectorOptions.parse({**known, **options}, Mode.READ_STREAM), cluster, cluster)


def test_a_query_from_its_beginning() -> None:
    cluster = Cluster()
    asked = query(cluster)
    first = asked.initial()
    assert first == asked.initial()
    assert len(first.reader) == 16
    assert [each["must_exist"] for each in cluster.asked] == [True]
    assert asked.latest(first, None, everything=True) == first
    end = asked.latest(first, None, everything=True)
    assert end.next == {A0: 10}
    assert asked.latest_seen == Positions.of({A0: 10}, {"a": "01"})
    (task,) = asked.tasks(first, end)
    assert isinstance(task, OffsetRanges)
    sent = pickle.loads(pickle.dumps(task))
    assert (sent.value, sent.topic_ids) == ((OffsetRange(A0, 0, 10),), {"a": "01"})
    assert asked.tasks(end, end) == []
    assert not any(each["must_exist"] for each in cluster.asked[1:]), "what goes away later is a loss"


def test_what_a_new_query_names_has_to_be_there() -> None:
    with pytest.raises(UnknownTopicOrPartition):
        query(Cluster(bounds={})).initial()


def test_an_idle_query_waits_on_the_broker() -> None:
    cluster = Cluster()
    asked = query(cluster, longPollMs="700")
    asked.latest(Positions.of({A0: 10}, {}), None, everything=False)
    assert cluster.asked == [{"newer_than": {A0: 10}, "wait_ms": 700, "after_ms": 0, "must_exist": False}]


def test_what_seems_to_be_gone_is_looked_for_again() -> None:
    cluster = Cluster(bounds={})
    with pytest.raises(RecordsLost, match="a-0: records from offset 4 on, if there were any, are gone with"):
        query(cluster).latest(Positions.of({A0: 4}, {}), None, everything=False)
    assert [each["after_ms"] for each in cluster.asked] == [0, *[LOOK_AGAIN_MS] * 3]


def test_a_query_begins_at_a_time() -> None:
    cluster = Cluster(times={A0: 7})
    assert query(cluster, startingTimestamp="5").initial().next == {A0: 7}


def test_how_far_it_is_is_shown_under_the_name_in_the_checkpoint() -> None:
    cluster = Cluster()
    asked = query(cluster)
    asked.latest(Positions.of({A0: 4}, {}, "abc"), None, everything=False)
    asked.show(Positions.of({A0: 9}, {}, "abc"))
    asked.close()
    name = "spark-headrace-source-abc"
    assert cluster.shown == [(name, {A0: 4}, False), (name, {A0: 9}, False), (name, {A0: 9}, True)]


def test_when_nothing_more_is_there_it_is_shown_without_delay() -> None:
    cluster = Cluster()
    query(cluster).latest(Positions.of({A0: 10}, cluster.ids, "abc"), None, everything=False)
    assert [last for _, _, last in cluster.shown] == [False, True]


def test_a_checkpoint_without_a_name_shows_nothing_unless_there_is_a_group() -> None:
    cluster = Cluster()
    unnamed = query(cluster)
    unnamed.show(Positions.of({A0: 4}, {}))
    unnamed.close()
    assert cluster.shown == []
    named = query(cluster, **{"kafka.group.id": "mine"})
    named.show(Positions.of({A0: 4}, {}))
    assert cluster.shown == [("mine", {A0: 4}, False)]


def test_a_reader_does_nothing_before_it_is_asked() -> None:
    reader = HeadraceStreamReader({"subscrbe": "a"}, SCHEMA)
    assert isinstance(pickle.loads(pickle.dumps(reader)), HeadraceStreamReader)
    with pytest.raises(InvalidConfig, match="did you mean 'subscribe'"):
        reader.getDefaultReadLimit()
    reader.stop()


@pytest.mark.parametrize(
    ("options", "limit"),
    [
        ({}, ReadAllAvailable()),
        ({"maxOffsetsPerTrigger": "7"}, ReadMaxRows(7)),
        ({"minOffsetsPerTrigger": "7"}, ReadMaxRows(2**63 - 1)),
    ],
)
def test_limits(options: dict[str, str], limit: Any) -> None:
    known = {"kafka.bootstrap.servers": "b:1", "subscribe": "a"}
    reader = HeadraceStreamReader({**known, **options}, SCHEMA)
    assert reader.getDefaultReadLimit() == limit
