"""Ranges of offsets as tables, in a cluster of the lab and at a real broker."""

from __future__ import annotations

import os
import threading
from typing import Any

import pytest
from libs.sdk.tests.kit.broker_thread import BrokerThread
from libs.sdk.tests.kit.cluster import Does, Fault, LabCluster, Labs

import headrace
from headrace import RangeReader, TopicPartition, _runtime
from headrace._core.record_tables import TABLE_COLUMNS
from headrace.errors import (
    ClientClosed,
    CorruptBatch,
    ErrorCode,
    HeadraceError,
    InvalidConfig,
    NetworkFailed,
    PositionOutOfRange,
    Rejected,
    UnknownTopicOrPartition,
    WaitTimedOut,
)

from .log_worlds import LabWorld, LogWorld, numbered, world
from .transactions import TransactionalHand, plain

__all__ = ["world"]

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
SMALL = {"max_partition_fetch_bytes": 1, "fetch_max_bytes": 1}
"""One batch at a time."""


def read(reader: RangeReader) -> dict[TopicPartition, list[int]]:
    """All offsets, by partition, in the order in which they came."""
    found: dict[TopicPartition, list[int]] = {}
    with reader:
        for table in reader:
            assert len(table)
            take(table, found)
    return found


def take(table: Any, found: dict[TopicPartition, list[int]]) -> None:
    rows = table.select(["topic", "partition", "offset"]).to_pydict()
    for topic, partition, offset in zip(rows["topic"], rows["partition"], rows["offset"], strict=True):
        found.setdefault(TopicPartition(topic, partition), []).append(offset)


def fill(world: LogWorld, topic: str = "t", partitions: int = 2, batches: int = 10, size: int = 10) -> None:
    for partition in range(partitions):
        for first in range(0, batches * size, size):
            world.append(topic, partition, numbered(first, first + size))


@pytest.mark.parametrize("settings", [{}, SMALL, {"isolation_level": "read_committed"}])
def test_each_record_of_the_ranges_once_and_in_order(world: LogWorld, settings: dict[str, Any]) -> None:
    fill(world)
    ranges = [("t", 0, 15, 38), ("t", 1, 0, 100), ("t", 0, 38, 40), ("t", 0, 90, 95), ("t", 1, 100, 100)]
    found = read(world.reader(ranges, **settings))
    assert found == {T0: [*range(15, 40), *range(90, 95)], T1: list(range(100))}


def test_all_columns_are_those_of_poll_table(world: LogWorld) -> None:
    world.append("one", 0, [b"a", b"b"], timestamp_ms=5)
    with world.reader([("one", 0, 1, 2)]) as reader:
        [table] = list(reader)
    assert tuple(table.schema.names) == TABLE_COLUMNS
    [row] = table.to_pylist()
    assert row == {
        "topic": "one",
        "partition": 0,
        "offset": 1,
        "timestamp_ms": 5,
        "key": None,
        "value": b"b",
        "headers": [],
        "timestamp_type": 0,
    }


@pytest.mark.parametrize("columns", [["value"], ["timestamp_type", "partition"], ["offset", "key"]])
def test_only_the_columns_that_are_wanted(world: LogWorld, columns: list[str]) -> None:
    fill(world, partitions=1)
    with world.reader([("t", 0, 5, 60)], columns=columns) as reader:
        tables = list(reader)
    assert {tuple(table.schema.names) for table in tables} == {tuple(columns)}
    assert sum(map(len, tables)) == 55


def test_nothing_to_read_ends_at_once(world: LogWorld) -> None:
    assert read(world.reader([])) == {}
    assert read(world.reader([("t", 0, 7, 7), ("gone", 0, 0, 0)])) == {}, "nobody is even asked for the topic"


def test_a_reader_that_has_ended_stays_so(world: LogWorld) -> None:
    fill(world, partitions=1)
    reader = world.reader([("t", 0, 0, 100)])
    assert sum(map(len, reader)) == 100
    assert list(reader) == []
    assert reader.remaining() == []
    assert repr(reader) == "<headrace.RangeReader: closed>"


def test_records_that_come_later_are_waited_for(world: LogWorld) -> None:
    fill(world, partitions=1, batches=1)
    with world.reader([("t", 0, 5, 15)]) as reader:
        assert len(next(reader)) == 5
        writer = threading.Timer(0.1, world.append, ("t", 0, numbered(10, 20)))
        writer.start()
        assert next(reader).column("offset").to_pylist() == [10, 11, 12, 13, 14]
        writer.join()
        assert list(reader) == []


# --- gaps -----------------------------------------------------------------------------------------------------------


def test_a_range_that_ends_with_markers_and_aborted_records_ends(labs: Labs) -> None:
    memory = labs()
    memory.create_topic("t")
    plain(memory, b"a", b"b")
    hand = TransactionalHand(memory, 7)
    hand.write(b"no", b"no")
    hand.end(commit=False)
    ranges = [("t", 0, 0, 5)]
    assert read(memory.range_reader(ranges, isolation_level="read_committed")) == {T0: [0, 1]}
    assert read(memory.range_reader([("t", 0, 2, 5)], isolation_level="read_committed")) == {}
    assert read(memory.range_reader([("t", 0, 3, 4), ("t", 0, 4, 5)], isolation_level="read_committed")) == {}
    assert read(memory.range_reader(ranges)) == {T0: [0, 1, 2, 3]}


def test_a_range_that_ends_in_what_compaction_has_taken_ends() -> None:
    broker = BrokerThread({"c": 1}, {"c": {"cleanup.policy": "compact"}})
    try:
        for first in range(0, 40, 4):
            broker.append("c", 0, numbered(first, first + 4), keys=[b"a", b"b", b"a", b"b"])
        broker.compact("c", 0)
        servers, whole = broker.address, [("c", 0, 0, 40)]
        left = read(RangeReader(servers, whole))[TopicPartition("c", 0)]
        assert left != list(range(40)), "compaction took some"
        for start, end in [(0, 40), (1, 3), (3, 37), (5, 6), (30, 39), (38, 40), (39, 40)]:
            wanted = [offset for offset in left if start <= offset < end]
            assert read(RangeReader(servers, [("c", 0, start, end)])).get(TopicPartition("c", 0), []) == wanted
    finally:
        broker.stop()


# --- what is not there ----------------------------------------------------------------------------------------------


def collect(reader: RangeReader, found: dict[TopicPartition, list[int]]) -> None:
    for table in reader:
        take(table, found)


def test_records_that_are_deleted_are_told_and_the_rest_can_be_read(world: LogWorld) -> None:
    fill(world)
    world.trim("t", 0, 20)
    found: dict[TopicPartition, list[int]] = {}
    with (
        world.reader([("t", 0, 5, 30), ("t", 0, 40, 50), ("t", 1, 0, 10)]) as reader,
        pytest.raises(PositionOutOfRange, match="t-0: offset 5 does not exist: records 5 to 19 were deleted") as told,
    ):
        collect(reader, found)
    error = told.value
    assert (error.partition, error.offset, error.log_start, error.log_end) == (T0, 5, 20, 100)
    assert "auto_offset_reset" not in str(error)
    rest = [(t, p, max(start, 20) if p == 0 else start, end) for t, p, start, end in reader.remaining()]
    for tp, offsets in read(world.reader(rest)).items():
        found.setdefault(tp, []).extend(offsets)
    assert found == {T0: [*range(20, 30), *range(40, 50)], T1: list(range(10))}


def test_deleting_overtakes_a_reader_in_the_middle(world: LogWorld) -> None:
    fill(world, partitions=1)
    found: dict[TopicPartition, list[int]] = {}
    with world.reader([("t", 0, 0, 100)], **SMALL) as reader:
        take(next(reader), found)
        world.trim("t", 0, 80)
        with pytest.raises(PositionOutOfRange) as told:
            collect(reader, found)
        assert told.value.offset == found[T0][-1] + 1
        assert reader.remaining() == [("t", 0, told.value.offset, 100)]


def test_a_start_above_the_end_is_told(world: LogWorld) -> None:
    fill(world, partitions=1)
    with world.reader([("t", 0, 101, 105)]) as reader, pytest.raises(PositionOutOfRange, match="holds 0 to 99"):
        next(reader)


def test_an_end_that_the_log_does_not_reach_is_not_waited_for_without_end(world: LogWorld) -> None:
    fill(world, partitions=1)
    with world.reader([("t", 0, 95, 105)], poll_timeout_ms=200) as reader:
        assert len(next(reader)) == 5
        with pytest.raises(WaitTimedOut, match="nothing came for 200 ms: t-0 is at 100 of 105"):
            next(reader)
        assert reader.remaining() == [("t", 0, 100, 105)]


def test_what_does_not_exist_is_told(world: LogWorld) -> None:
    with (
        world.reader([("t", 2, 0, 5)]) as reader,
        pytest.raises(UnknownTopicOrPartition, match="'t' has no partition 2"),
    ):
        next(reader)
    with world.reader([("gone", 0, 0, 5)]) as reader:
        with pytest.raises(UnknownTopicOrPartition, match="gone"):
            next(reader)
        assert reader.remaining() == [("gone", 0, 0, 5)]


def test_a_topic_that_is_deleted_in_the_middle_is_told(world: LogWorld) -> None:
    fill(world, "one", partitions=1)
    with world.reader([("one", 0, 0, 1000)]) as reader:
        next(reader)
        world.show({"t": 2})
        with pytest.raises(UnknownTopicOrPartition, match="one"):
            list(reader)


def test_a_topic_made_anew_in_the_middle_is_not_taken_for_the_old_one(labs: Labs) -> None:
    world = LabWorld(labs())
    fill(world, "one", partitions=1)
    with world.reader([("one", 0, 0, 1000)]) as reader:
        next(reader)
        world.show({"t": 2})
        world.show({"t": 2, "one": 1})
        fill(world, "one", partitions=1, batches=20)
        with pytest.raises(UnknownTopicOrPartition, match="one: deleted, and created again"):
            list(reader)


def test_a_topic_with_another_id_is_not_read(labs: Labs) -> None:
    world = LabWorld(labs())
    with world.watch() as watch:
        old = watch.topics()["one"].topic_id
        world.show({"t": 2})
        world.show({"t": 2, "one": 1})
        fill(world, "one", partitions=1)
        new = watch.topics()["one"].topic_id
    assert len(read(world.reader([("one", 0, 0, 5)], topic_ids={"one": new}))[TopicPartition("one", 0)]) == 5
    with (
        world.reader([("one", 0, 0, 5)], topic_ids={"one": old}) as reader,
        pytest.raises(UnknownTopicOrPartition, match="created again"),
    ):
        next(reader)


# --- failures -------------------------------------------------------------------------------------------------------


@pytest.fixture
def memory(labs: Labs) -> LabCluster:
    backend = labs(2)
    backend.create_topic("t", on=[[1], [2]])
    for first in range(0, 100, 10):
        for partition in (0, 1):
            plain(backend, *numbered(first, first + 10), partition=partition)
    return backend


def test_failures_that_pass_are_not_told(memory: LabCluster) -> None:
    memory.inject("metadata", Fault(Does.DROP))
    memory.inject(
        "fetch",
        Fault(Does.ERROR, code=ErrorCode.NOT_LEADER_OR_FOLLOWER),
        Fault(Does.DROP),
        Fault(Does.ERROR, code=ErrorCode.FENCED_LEADER_EPOCH, partition=1),
        Fault(Does.DROP, after=True),
    )
    found = read(memory.range_reader([("t", 0, 0, 100), ("t", 1, 0, 100)], **SMALL))
    assert found == {T0: list(range(100)), T1: list(range(100))}


def test_a_partition_that_nobody_leads_for_too_long_is_a_retriable_error(memory: LabCluster) -> None:
    memory.stop(2)
    with memory.range_reader([("t", 0, 0, 10), ("t", 1, 0, 10)], default_api_timeout_ms=300) as reader:
        with pytest.raises(HeadraceError, match="t-1 could not be read") as told:
            list(reader)
        assert told.value.retriable
        assert ("t", 1, 0, 10) in reader.remaining()


def test_damaged_bytes_are_told_where_they_are(memory: LabCluster) -> None:
    memory.damage("t", 0, 3)
    with memory.range_reader([("t", 0, 0, 100)]) as reader:
        with pytest.raises(CorruptBatch, match="t-0@30"):
            list(reader)
        assert reader.remaining() == [("t", 0, 30, 100)]
    assert read(memory.range_reader([("t", 0, 0, 30), ("t", 0, 40, 100)])) == {T0: [*range(30), *range(40, 100)]}


def test_a_cluster_that_is_gone_is_told() -> None:
    with (
        RangeReader("127.0.0.1:1", [("t", 0, 0, 10)], default_api_timeout_ms=200) as reader,
        pytest.raises(NetworkFailed),
    ):
        next(reader)


# --- arguments and life ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"columns": []}, "columns are one or more of topic, partition"),
        ({"columns": ["value", "value"]}, "each once"),
        ({"columns": ["timestamp"]}, "columns are one or more of"),
        ({"columns": "value"}, "columns are one or more of"),
        ({"topic_ids": {"t": "xyz"}}, "topic_ids are those"),
        ({"auto_offset_reset": "latest"}, "auto_offset_reset: a range reader has no use for it"),
        ({"group.id": "g"}, "group.id: a range reader has no use for it"),
        ({"fetch_max_byte": 5}, "did you mean fetch_max_bytes"),
        ({"poll_timeout_ms": 0}, "poll_timeout_ms"),
        ({"poll_timeout_ms": "5"}, "poll_timeout_ms"),
    ],
)
def test_wrong_arguments_are_told_when_it_is_made(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidConfig, match=text):
        RangeReader("127.0.0.1:1", [("t", 0, 0, 10)], **arguments)


def test_wrong_ranges_are_told_when_it_is_made() -> None:
    with pytest.raises(Rejected, match="overlap"):
        RangeReader("127.0.0.1:1", [("t", 0, 0, 10), ("t", 0, 5, 10)])


def tasks_of_readers() -> int:
    """Tasks on the loop that belong to engines of readers."""
    import asyncio

    async def count() -> int:
        return sum(task.get_name().startswith("consumer: ") for task in asyncio.all_tasks())

    return _runtime.loop_thread().call(count())


def test_leaving_in_the_middle_ends_all_that_was_begun(memory: LabCluster) -> None:
    before = tasks_of_readers(), threading.active_count()
    with memory.range_reader([("t", 0, 0, 100)], **SMALL) as reader:
        next(reader)
        assert tasks_of_readers() > before[0]
    assert tasks_of_readers() == before[0]
    assert threading.active_count() <= before[1]  # threads of an earlier test may have ended meanwhile
    assert reader.remaining() == [("t", 0, 10, 100)]
    with pytest.raises(ClientClosed, match="the range reader is closed"):
        next(reader)


def test_one_that_is_forgotten_says_so_and_ends(memory: LabCluster) -> None:
    before = tasks_of_readers()
    reader = memory.range_reader([("t", 0, 0, 100)], **SMALL)
    next(reader)
    with pytest.warns(ResourceWarning, match="RangeReader: 1 ranges left> was not closed"):
        del reader
    while tasks_of_readers() > before:
        pass  # each look lets the loop go on


def test_closing_from_another_thread_ends_a_wait(memory: LabCluster) -> None:
    reader = memory.range_reader([("t", 0, 100, 110)])
    closing = threading.Timer(0.2, reader.close)
    closing.start()
    with pytest.raises(ClientClosed):
        next(reader)
    closing.join()


@pytest.mark.parametrize("step", ["_take", "_go_on", "_sum_progress"])
def test_a_reader_that_is_closed_at_any_step_of_another_thread_says_so_there(memory: LabCluster, step: str) -> None:
    with memory.range_reader([("t", 0, 100, 110)], poll_timeout_ms=60_000) as reader:
        taken, times = getattr(reader, step), 0

        def closed_before(*arguments: Any) -> Any:
            nonlocal times
            times += 1
            if times == 2 or step != "_sum_progress":
                closer = threading.Thread(target=reader.close)
                closer.start()
                closer.join(20)
            return taken(*arguments)

        setattr(reader, step, closed_before)
        with pytest.raises(ClientClosed):
            next(reader)


def test_two_threads_at_once_are_refused(memory: LabCluster) -> None:
    with memory.range_reader([("t", 0, 100, 110)], poll_timeout_ms=60_000) as reader:
        entered, said = threading.Event(), list[BaseException]()
        heard = reader._sum_progress

        def enter() -> int:
            entered.set()
            return heard()

        reader._sum_progress = enter  # to know when the other thread is in

        def wait() -> None:
            try:
                next(reader)
            except HeadraceError as error:
                said.append(error)

        other = threading.Thread(target=wait)
        other.start()
        assert entered.wait(20)
        with pytest.raises(Rejected, match="in use by another thread"):
            next(reader)
        reader.close()
        other.join(20)
        assert [type(each) for each in said] == [ClientClosed]


def test_a_child_after_a_fork_is_told_to_make_its_own(memory: LabCluster) -> None:
    with memory.range_reader([("t", 0, 0, 100)], **SMALL) as reader:
        next(reader)
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                next(reader)
            except headrace.errors.ClientClosed as error:
                code = 0 if "forked" in str(error) else 2
            finally:
                os._exit(code)
        assert os.waitpid(pid, 0)[1] == 0
        assert sum(map(len, reader)) == 90
