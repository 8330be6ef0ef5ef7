"""Which topics there are and how far their logs reach, in a cluster of the lab and at a real broker."""

from __future__ import annotations

import os
import threading
import time
from typing import Any

import pytest
from libs.sdk.tests.kit.cluster import Does, Fault, LabCluster, Labs

import headrace
from headrace import LogBounds, LogWatch, TopicPartition
from headrace.errors import (
    ClientClosed,
    ErrorCode,
    HeadraceError,
    InvalidConfig,
    LeaderNotAvailable,
    NetworkFailed,
    Rejected,
    UnknownTopicOrPartition,
)

from .log_worlds import NOW_MS, LabWorld, LogWorld, numbered, world
from .transactions import TransactionalHand, plain

__all__ = ["world"]

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
LONG_MS = 60_000


def spans(bounds: dict[TopicPartition, LogBounds]) -> dict[TopicPartition, tuple[int, int]]:
    return {tp: (each.start, each.end) for tp, each in bounds.items()}


def test_all_topics_with_their_ids_and_partitions(world: LogWorld) -> None:
    with world.watch() as watch:
        topics = watch.topics()
        assert {name: (topic.partitions, topic.internal) for name, topic in topics.items()} == {
            "t": (2, False),
            "one": (1, False),
        }
        assert len({bytes.fromhex(topic.topic_id) for topic in topics.values()}) == 2
        assert watch.bounds([("t", 0)])[T0].topic_id == topics["t"].topic_id


def test_bounds_are_of_now(world: LogWorld) -> None:
    with world.watch() as watch:
        assert spans(watch.bounds([T0, T1])) == {T0: (0, 0), T1: (0, 0)}
        world.append("t", 0, numbered(0, 10))
        world.trim("t", 0, 4)
        assert spans(watch.bounds([T0, T1])) == {T0: (4, 10), T1: (0, 0)}
        assert watch.bounds([]) == {}


def test_a_wait_ends_with_the_first_record_anywhere(world: LogWorld) -> None:
    with world.watch() as watch:
        seen = {tp: each.end for tp, each in watch.bounds([T0, T1]).items()}
        writer = threading.Timer(0.2, world.append, ("t", 1, numbered(0, 3)))
        writer.start()
        bounds = watch.bounds([T0, T1], newer_than=seen, wait_ms=LONG_MS)
        writer.join()
        assert spans(bounds) == {T0: (0, 0), T1: (0, 3)}


def test_a_wait_for_nothing_ends_by_its_time(world: LogWorld) -> None:
    with world.watch() as watch:
        begun = time.monotonic()
        assert spans(watch.bounds([T0], newer_than={T0: 0}, wait_ms=150)) == {T0: (0, 0)}
        assert time.monotonic() - begun >= 0.15


@pytest.mark.parametrize("seen", [{T0: 0}, {T0: 0, T1: 0}, {}])
def test_what_is_new_already_is_not_waited_for(world: LogWorld, seen: dict[TopicPartition, int]) -> None:
    world.append("t", 1, numbered(0, 3))
    with world.watch() as watch:
        assert spans(watch.bounds([T0, T1], newer_than=seen, wait_ms=LONG_MS)) == {T0: (0, 0), T1: (0, 3)}


def test_offsets_by_time(world: LogWorld) -> None:
    world.append("t", 0, numbered(0, 2), timestamp_ms=NOW_MS)
    world.append("t", 0, numbered(2, 4), timestamp_ms=NOW_MS + 1000)
    with world.watch() as watch:
        assert watch.offsets_for_times({T0: NOW_MS + 1, T1: 0}) == {T0: 2, T1: None}
        assert watch.offsets_for_times({("t", 0): NOW_MS + 1001}) == {T0: None}


def test_partitions_that_were_added_are_known_at_once(world: LogWorld) -> None:
    with world.watch() as watch:
        watch.bounds([T0, T1])
        world.show({"t": 3, "one": 1})
        assert watch.topics()["t"].partitions == 3
        assert spans(watch.bounds([("t", 2)])) == {TopicPartition("t", 2): (0, 0)}


def test_new_partitions_are_found_without_asking_for_topics(world: LogWorld) -> None:
    with world.watch() as watch:
        watch.bounds([T0, T1])
        world.show({"t": 3, "one": 1})
        assert spans(watch.bounds([("t", 2)])) == {TopicPartition("t", 2): (0, 0)}


def test_what_does_not_exist_is_told(world: LogWorld) -> None:
    with world.watch() as watch:
        with pytest.raises(UnknownTopicOrPartition, match="has no partition 7"):
            watch.bounds([T0, ("t", 7)])
        with pytest.raises(UnknownTopicOrPartition, match="'gone' does not exist"):
            watch.bounds([T0, ("gone", 0)])


@pytest.mark.parametrize("wait_ms", [0, LONG_MS])
def test_a_topic_that_is_deleted_is_told_and_not_left_out(world: LogWorld, wait_ms: int) -> None:
    with world.watch() as watch:
        watch.bounds([T0, ("one", 0)])
        world.show({"t": 2})
        with pytest.raises(UnknownTopicOrPartition, match="one"):
            watch.bounds([T0, ("one", 0)], newer_than={T0: 0, ("one", 0): 0}, wait_ms=wait_ms)
        assert set(watch.topics()) == {"t"}
        assert spans(watch.bounds([T0])) == {T0: (0, 0)}


def test_only_what_is_decided_counts_for_readers_of_committed_records(labs: Labs) -> None:
    memory = labs()
    memory.create_topic("t")
    plain(memory, b"a")
    hand = TransactionalHand(memory, 7)
    hand.write(b"b", b"c")
    with memory.log_watch(isolation_level="read_committed") as committed, memory.log_watch() as all_of_it:
        assert spans(committed.bounds([T0])) == {T0: (0, 1)}
        assert spans(all_of_it.bounds([T0])) == {T0: (0, 3)}
        deciding = threading.Timer(0.2, hand.end, kwargs={"commit": True})
        deciding.start()
        assert spans(committed.bounds([T0], newer_than={T0: 1}, wait_ms=LONG_MS)) == {T0: (0, 4)}
        deciding.join()


def test_a_topic_made_anew_has_another_id(labs: Labs) -> None:
    world = LabWorld(labs())
    with world.watch() as watch:
        before = watch.bounds([("one", 0)])[TopicPartition("one", 0)]
        world.append("one", 0, numbered(0, 5))
        world.show({"t": 2})
        world.show({"t": 2, "one": 1})
        after = watch.bounds([("one", 0)])[TopicPartition("one", 0)]
        assert (after.start, after.end) == (0, 0)
        assert after.topic_id == watch.topics()["one"].topic_id
        assert after.topic_id != before.topic_id


# --- when the cluster cannot answer ---------------------------------------------------------------------------------


@pytest.fixture
def memory(labs: Labs) -> LabCluster:
    backend = labs(2)
    backend.create_topic("t", on=[[1], [2]])
    return backend


def test_a_partition_that_nobody_leads_is_waited_for(memory: LabCluster) -> None:
    memory.stop(2)
    with memory.log_watch() as watch:
        electing = threading.Timer(0.3, memory.restart, (2,))
        electing.start()
        assert spans(watch.bounds([T0, T1])) == {T0: (0, 0), T1: (0, 0)}
        electing.join()


def test_a_partition_that_nobody_leads_for_too_long_is_a_retriable_error(memory: LabCluster) -> None:
    memory.stop(2)
    with memory.log_watch(default_api_timeout_ms=300) as watch:
        with pytest.raises(LeaderNotAvailable) as raised:
            watch.bounds([T0, T1], newer_than={T0: 0, T1: 0}, wait_ms=100)
        assert raised.value.retriable


def test_failures_that_pass_are_not_told(memory: LabCluster) -> None:
    memory.inject("metadata", Fault(Does.DROP), Fault(Does.ERROR, code=ErrorCode.METADATA_UNAVAILABLE))
    memory.inject("list_offsets", Fault(Does.ERROR, code=ErrorCode.NOT_LEADER_OR_FOLLOWER), Fault(Does.DROP))
    with memory.log_watch() as watch:
        assert set(watch.topics()) == {"t"}
        assert spans(watch.bounds([T0, T1])) == {T0: (0, 0), T1: (0, 0)}


def test_a_cluster_that_is_gone_is_told() -> None:
    with LogWatch("127.0.0.1:1", default_api_timeout_ms=200) as watch:
        with pytest.raises(NetworkFailed):
            watch.topics()
        with pytest.raises(HeadraceError):
            watch.bounds([T0])


# --- arguments and life ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wait_ms", [-1, 300_001, 0.5, True, "1"])
def test_a_wait_is_a_number_within_bounds(memory: LabCluster, wait_ms: Any) -> None:
    with memory.log_watch() as watch, pytest.raises(Rejected, match="wait_ms takes 0 to 300000"):
        watch.bounds([T0], newer_than={}, wait_ms=wait_ms)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"group_id": "g"}, "group_id: a log watch has no use for it"),
        ({"auto.offset.reset": "earliest", "max_poll_records": 1}, r"auto.offset.reset, max_poll_records: a log watch"),
        ({"isolation_level": "some"}, "isolation_level takes read_uncommitted, read_committed"),
        ({"isolation": "x"}, "isolation is not a setting; did you mean isolation_level"),
    ],
)
def test_settings_without_a_meaning_are_refused(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidConfig, match=text):
        LogWatch("127.0.0.1:1", **settings)


def test_a_closed_one_refuses(memory: LabCluster) -> None:
    watch = memory.log_watch()
    assert repr(watch) == "<headrace.LogWatch>"
    watch.close()
    watch.close()
    assert repr(watch) == "<headrace.LogWatch: closed>"
    for call in (watch.topics, lambda: watch.bounds([T0]), lambda: watch.offsets_for_times({T0: 0})):
        with pytest.raises(ClientClosed, match="the log watch is closed"):
            call()


def test_closing_ends_a_wait(memory: LabCluster) -> None:
    watch = memory.log_watch()
    closing = threading.Timer(0.2, watch.close)
    closing.start()
    with pytest.raises(ClientClosed):
        watch.bounds([T0], newer_than={T0: 0}, wait_ms=LONG_MS)
    closing.join()


def test_one_that_is_forgotten_says_so_and_ends(memory: LabCluster) -> None:
    watch = memory.log_watch()
    watch.topics()
    with pytest.warns(ResourceWarning, match="LogWatch> was not closed"):
        del watch


def test_a_child_after_a_fork_is_told_to_make_its_own(memory: LabCluster) -> None:
    with memory.log_watch() as watch:
        watch.topics()
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                watch.topics()
            except headrace.errors.ClientClosed as error:
                code = 0 if "forked" in str(error) else 2
            finally:
                os._exit(code)
        assert os.waitpid(pid, 0)[1] == 0
        assert set(watch.topics()) == {"t"}
