"""Records that are deleted before they are read: what both consumers say of it, with a group and without."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from libs.sdk.tests.kit.cluster import LabCluster, Labs

import headrace
from headrace import LogDiverged, PositionReset, TopicPartition
from headrace._core.record_runs import Deserializers
from headrace.aio._hand_out import HandOut
from headrace.consumer_settings import ConsumerSettings
from headrace.errors import InvalidConfig, PositionOutOfRange
from headrace_common.runtime.clock import SystemClock

from .fetching import TOPIC_ID, A, PlainLog, answer_for, look_up

T0 = TopicPartition("t", 0)
PATIENCE_S = 20


@pytest.fixture
def memory(labs: Labs) -> LabCluster:
    backend = labs()
    backend.create_topic("t")
    write(backend, 10)
    return backend


def write(memory: LabCluster, count: int) -> None:
    with memory.producer(linger_ms=0) as producer:
        for number in range(count):
            producer.send("t", b"%d" % number, partition=0).result(10)


def commit(memory: LabCluster, offset: int) -> None:
    with memory.consumer(group_id="g", enable_auto_commit=False) as setter:
        setter.assign([T0])
        setter.commit({T0: offset})


class Told:
    """What ``on_position_reset`` was called with."""

    def __init__(self) -> None:
        self.events: list[PositionReset | LogDiverged] = []

    def __call__(self, event: PositionReset | LogDiverged) -> None:
        self.events.append(event)

    @property
    def only(self) -> PositionReset:
        [event] = self.events
        assert isinstance(event, PositionReset)
        return event


def offsets(consumer: headrace.Consumer, count: int) -> list[int]:
    found: list[int] = []
    deadline = time.monotonic() + PATIENCE_S
    while len(found) < count and time.monotonic() < deadline:
        found += [record.offset for record in consumer.poll(timeout_ms=100)]
    return found


@pytest.mark.parametrize("group", [{}, {"group_id": "g"}], ids=["assigned", "group"])
def test_what_was_deleted_unread_is_told_before_what_follows(memory: LabCluster, group: dict[str, str]) -> None:
    told = Told()
    with memory.consumer("t", on_position_reset=told, max_poll_records=2, fetch_max_bytes=1, **group) as consumer:
        assert offsets(consumer, 2) == [0, 1]
        memory.trim("t", 0, 6)
        consumer.seek(T0, 1)
        assert offsets(consumer, 4) == [6, 7, 8, 9]
        assert (told.only.partition, told.only.gone, list(told.only.skipped)) == (T0, range(1, 6), [])
        assert told.only.position == 6
        assert consumer.health().resets == 1


def test_with_latest_it_goes_on_at_the_end_and_says_what_it_passes_over(memory: LabCluster) -> None:
    told = Told()
    memory.trim("t", 0, 6)
    with memory.consumer("t", auto_offset_reset="latest", on_position_reset=told) as consumer:
        consumer.seek(T0, 1)
        consumer.poll(timeout_ms=0)
        deadline = time.monotonic() + PATIENCE_S
        while not told.events and time.monotonic() < deadline:
            assert consumer.poll(timeout_ms=50) == []
        assert (told.only.gone, told.only.skipped, told.only.position) == (range(1, 6), range(6, 10), 10)
        write(memory, 1)
        assert offsets(consumer, 1) == [10]


@pytest.mark.parametrize("group", [{}, {"group_id": "g"}], ids=["assigned", "group"])
def test_with_none_the_error_names_the_range(memory: LabCluster, group: dict[str, str]) -> None:
    told = Told()
    if group:
        commit(memory, 2)
    memory.trim("t", 0, 6)
    with memory.consumer("t", auto_offset_reset="none", on_position_reset=told, **group) as consumer:
        if not group:
            consumer.seek(T0, 2)
        with pytest.raises(PositionOutOfRange, match="records 2 to 5 were deleted before they were read") as raised:
            offsets(consumer, 1)
        error = raised.value
        assert (error.partition, error.offset, error.gone, error.log_start, error.log_end) == (
            T0,
            2,
            range(2, 6),
            6,
            10,
        )
        consumer.seek(T0, error.log_start)
        assert offsets(consumer, 4) == [6, 7, 8, 9]
    assert told.events == []


def test_a_group_goes_on_from_a_commit_below_the_log_start_and_commits_above_it(memory: LabCluster) -> None:
    commit(memory, 3)
    memory.trim("t", 0, 8)
    told = Told()
    with memory.consumer("t", group_id="g", on_position_reset=told) as consumer:
        assert offsets(consumer, 2) == [8, 9]
        consumer.commit()
        assert consumer.committed([T0])[T0].offset == 10
    assert told.only.gone == range(3, 8)


@pytest.mark.real_time
@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
async def test_the_asyncio_consumer_says_the_same(memory: LabCluster, isolation: str) -> None:
    told = Told()
    memory.trim("t", 0, 6)
    async with memory.aio_consumer("t", on_position_reset=told, isolation_level=isolation) as consumer:
        consumer.seek(T0, 2)
        found: list[int] = []
        async for record in consumer:
            assert told.only.gone == range(2, 6), "told before the first record behind it"
            found.append(record.offset)
            if record.offset == 9:
                break
        assert found == [6, 7, 8, 9]
    async with memory.aio_consumer("t", auto_offset_reset="none") as consumer:
        consumer.seek(T0, 2)
        with pytest.raises(PositionOutOfRange) as raised:
            await consumer.poll(timeout_ms=1000 * PATIENCE_S)
        assert raised.value.gone == range(2, 6)


def test_tables_say_the_same(memory: LabCluster) -> None:
    told = Told()
    memory.trim("t", 0, 6)
    with memory.consumer("t", on_position_reset=told) as consumer:
        consumer.seek(T0, 0)
        rows: list[int] = []
        deadline = time.monotonic() + PATIENCE_S
        while len(rows) < 4 and time.monotonic() < deadline:
            rows += consumer.poll_table(timeout_ms=100).column("offset").to_pylist()
        assert rows == [6, 7, 8, 9]
    assert told.only.gone == range(6)


def test_what_the_application_raises_there_comes_out_of_the_poll(memory: LabCluster) -> None:
    class Stop(Exception):
        pass

    def stop(event: object) -> None:
        raise Stop(str(event))

    memory.trim("t", 0, 6)
    with memory.consumer("t", on_position_reset=stop) as consumer:
        consumer.seek(T0, 0)
        with pytest.raises(Stop, match="records 0 to 5 were not read"):
            offsets(consumer, 1)
        assert offsets(consumer, 4) == [6, 7, 8, 9], "told once"


def test_the_function_may_choose_another_place_to_go_on(memory: LabCluster) -> None:
    memory.trim("t", 0, 4)
    consumer = memory.consumer("t", on_position_reset=lambda event: consumer.seek(event.partition, 8))
    with consumer:
        consumer.seek(T0, 0)
        assert offsets(consumer, 2) == [8, 9]


def test_only_a_function_is_taken() -> None:
    with pytest.raises(InvalidConfig, match="on_position_reset takes a function"):
        headrace.Consumer("t", on_position_reset="log")


WAYS: dict[str, Callable[[HandOut], Any]] = {
    "poll": lambda out: out.take(10),
    "iteration": lambda out: out.next_run(),
    "table": lambda out: out.take_table(None),
    "batches": lambda out: out.take_batches(None),
}


@pytest.mark.parametrize(("way", "left"), [*((way, 4) for way in WAYS), ("batches", 0)])
def test_what_is_lost_is_told_first_also_where_that_becomes_known_meanwhile(
    way: str, left: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    told, log = Told(), PlainLog(start=6, end=6)
    if left:
        log.append(left)
    settings = ConsumerSettings(on_position_reset=told, auto_offset_reset="earliest")
    out = HandOut(settings, SystemClock(), Deserializers(), lambda: None)
    out.core.add(T0, 0)
    out.core.placed(T0, TOPIC_ID, A, 0, 0.0)
    look = out.raise_failures

    def fetch() -> None:
        plan = out.core.fetch(A)
        answer = answer_for(plan, (TOPIC_ID, 0), log)
        out.core.answers.take(plan, [] if answer is None else [answer], 0.0)

    def look_before_it_is_known() -> None:
        look()
        monkeypatch.undo()
        fetch()
        look_up(out.core, {T0: log})
        fetch()

    monkeypatch.setattr(out, "raise_failures", look_before_it_is_known)
    assert not WAYS[way](out)
    assert not told.events
    assert WAYS[way](out)
    assert told.only.gone == range(6)
