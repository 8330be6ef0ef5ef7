"""What the driver asks of a cluster: the SDK's own watch over logs in memory, and an admin service that may be away."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.errors import NetworkFailed, UnknownTopicOrPartition
from headrace.finding import ClusterAddress
from headrace.testing.memory import MemoryBackend
from headrace_common.core.ids import TopicPartition
from headrace_spark.adapters import clients, sdk_logs
from headrace_spark.adapters.sdk_logs import SdkLogs, SdkOnlookers
from headrace_spark.core.limits import Subscribe, SubscribePattern
from headrace_spark.core.offsets import Bound, OffsetRange

A0, A1 = TopicPartition("a", 0), TopicPartition("a", 1)


class Admin:
    """An admin client that counts, and fails while it is told to."""

    def __init__(self) -> None:
        self.away = False
        self.asked: list[Any] = []
        self.made = 0
        self.logs: list[Any] = []

    def describe_logs(self, *, topics: list[str]) -> list[Any]:
        self._ask(tuple(topics))
        return [SimpleNamespace(logs=self.logs)]

    def reset_offsets(self, group: str, *, to_offset: Mapping[Any, int], execute: bool) -> object:
        assert execute
        self._ask((group, dict(to_offset)))
        return object()

    def _ask(self, what: Any) -> None:
        self.asked.append(what)
        if self.away:
            raise NetworkFailed("nobody is there")

    def close(self) -> None:
        self.made -= 1


class Clock:
    def __init__(self) -> None:
        self.ms = 1_000_000.0

    def monotonic_ms(self) -> float:
        return self.ms


@pytest.fixture
def admin(monkeypatch: pytest.MonkeyPatch) -> Admin:
    made = Admin()

    def make(*_: Any, **__: Any) -> Admin:
        made.made += 1
        return made

    monkeypatch.setattr(sdk_logs, "AdminClient", make)
    return made


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(sdk_logs, "SystemClock", lambda: made)
    return made


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch, headrace_memory: MemoryBackend) -> list[float]:
    """Nothing of another test; pauses are noted and not made."""
    pauses: list[float] = []
    monkeypatch.setattr(sdk_logs, "pause", pauses.append)
    monkeypatch.setattr(sdk_logs, "_not_before_ms", {})
    monkeypatch.setattr(clients, "_clients", type(clients._clients)())
    monkeypatch.setattr(sdk_logs, "LogWatch", lambda *_, **settings: headrace_memory.log_watch(**settings))
    return pauses


def logs() -> SdkLogs:
    return SdkLogs(ClusterAddress(("b:1",)), {})


def fill(memory: MemoryBackend, topic: str, partition: int, count: int) -> None:
    with memory.producer() as producer:
        for number in range(count):
            producer.send(topic, b"%d" % number, partition=partition, timestamp_ms=1_000 + number).result(10)


def test_a_snapshot_has_all_that_is_selected(headrace_memory: MemoryBackend, fresh: list[float]) -> None:
    headrace_memory.create_topic("a", 2)
    headrace_memory.create_topic("other", 1)
    fill(headrace_memory, "a", 1, 3)
    made = logs()
    snapshot = made.snapshot(Subscribe(("a",)), must_exist=True)
    assert snapshot.bounds == {A0: Bound(0, 0), A1: Bound(0, 3)}
    assert set(snapshot.topic_ids) == {"a"}
    assert set(made.snapshot(SubscribePattern("o.*")).bounds) == {TopicPartition("other", 0)}
    assert made.offsets_for_times({A1: 1_001, A0: 5}) == {A1: 1, A0: None}
    assert made.offsets_for_times({}) == {}
    assert not any(fresh), "nothing was waited for"


def test_what_is_not_there_is_looked_for_a_few_times(fresh: list[float]) -> None:
    with pytest.raises(UnknownTopicOrPartition, match="not there: a"):
        logs().snapshot(Subscribe(("a",)), must_exist=True)
    assert [ms for ms in fresh if ms] == [clients.LOOK_AGAIN_MS] * (clients.LOOKS_MAX - 1)


def test_where_nothing_is_selected_yet_it_waits_too(fresh: list[float]) -> None:
    assert logs().snapshot(Subscribe(("a",)), wait_ms=200).bounds == {}
    assert fresh == [0, 200]


def test_a_partition_that_is_not_known_yet_is_not_waited_for(headrace_memory: MemoryBackend) -> None:
    headrace_memory.create_topic("a", 2)
    snapshot = logs().snapshot(Subscribe(("a",)), newer_than={A0: 0}, wait_ms=200_000)
    assert set(snapshot.bounds) == {A0, A1}


def test_topics_that_are_gone_or_others_are_told_from_those_that_are_there(headrace_memory: MemoryBackend) -> None:
    headrace_memory.create_topic("a", 1)
    made = logs()
    ids = made.snapshot(Subscribe(("a",))).topic_ids
    here, gone, none = OffsetRange(A0, 0, 1), OffsetRange(A1, 0, 1), OffsetRange(TopicPartition("b", 0), 0, 1)
    assert made.still_there((here, gone, none), ids) == (here,)
    assert made.still_there((here,), {}) == (here,)
    assert made.still_there((here,), {"a": "ff" * 16}) == ()


def test_sizes_of_records_are_asked_for_once_a_minute(
    headrace_memory: MemoryBackend, admin: Admin, clock: Clock
) -> None:
    headrace_memory.create_topic("a", 1)
    made = logs()
    snapshot = made.snapshot(Subscribe(("a",)))
    topic_id = bytes.fromhex(snapshot.topic_ids["a"])
    replica = {"topic_id": topic_id, "partition": 0, "log_start_offset": 10}
    admin.logs = [
        SimpleNamespace(**replica, log_end_offset=20, size_bytes=3_000),
        SimpleNamespace(**replica, log_end_offset=15, size_bytes=1_000),
        SimpleNamespace(**{**replica, "topic_id": b"another"}, log_end_offset=20, size_bytes=9_000),
    ]
    assert made.record_bytes(snapshot) == {A0: 300}
    admin.logs = []
    assert made.record_bytes(snapshot) == {A0: 300}
    clock.ms += sdk_logs.SIZES_MS
    assert made.record_bytes(snapshot) == {}
    assert admin.asked == [("a",), ("a",)]


def test_an_admin_service_that_is_away_is_left_alone(
    headrace_memory: MemoryBackend, admin: Admin, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    headrace_memory.create_topic("a", 1)
    admin.away = True
    snapshot = logs().snapshot(Subscribe(("a",)))
    assert logs().record_bytes(snapshot) == {}
    assert logs().record_bytes(snapshot) == {}, "of the next query too"
    assert len(admin.asked) == 1
    assert admin.made == 0, "its connections were closed"
    assert "nobody is there" in caplog.text
    admin.away = False
    clock.ms += sdk_logs.ADMIN_AGAIN_MS
    logs().record_bytes(snapshot)
    assert len(admin.asked) == 2


def test_positions_are_shown_when_they_moved_and_not_too_often(admin: Admin, clock: Clock) -> None:
    onlookers = SdkOnlookers(ClusterAddress(("b:1",)), {})
    onlookers.show("g", {A0: 1, A1: 0})
    onlookers.show("g", {A0: 2, A1: 0})
    clock.ms += sdk_logs.SHOW_MS
    onlookers.show("g", {A0: 3, A1: 0})
    onlookers.show("g", {A0: 4, A1: 0})
    onlookers.show("g", {A0: 4, A1: 0}, last=True)
    onlookers.show("g", {A0: 4, A1: 0}, last=True)
    assert admin.asked == [("g", {A0: 1, A1: 0}), ("g", {A0: 3}), ("g", {A0: 4})]


def test_positions_that_could_not_be_shown_are_shown_later(admin: Admin, clock: Clock) -> None:
    onlookers = SdkOnlookers(ClusterAddress(("b:1",)), {})
    admin.away = True
    onlookers.show("g", {A0: 1})
    admin.away = False
    onlookers.show("g", {A0: 1}, last=True)
    assert len(admin.asked) == 1, "not yet"
    clock.ms += sdk_logs.ADMIN_AGAIN_MS
    onlookers.show("g", {A0: 1})
    assert admin.asked[1:] == [("g", {A0: 1})]
