"""What a commit waits for, where rows do not wait for a commit."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from headrace.errors import CoordinatorNotAvailable, HeadraceError, NotEnoughReplicas
from headrace.records import TopicPartition
from headrace_streams.adapters.headrace_io import SdkWriter
from headrace_streams.config import StreamsConfig
from headrace_streams.core.operators.headers import HEADERS
from headrace_streams.core.outputs import Output
from headrace_streams.dsl.app import App
from headrace_streams.patience import Patience
from headrace_streams.runtime.assembling import Assembled
from headrace_streams.runtime.worker import Worker


class Sent:
    """One record, at offset 6."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer

    def failure(self) -> HeadraceError | None:
        return self._producer.fails

    def __getitem__(self, place: int) -> Any:
        return self

    def result(self, timeout: float) -> Any:
        if self._producer.fails is not None:
            raise self._producer.fails
        return SimpleNamespace(offset=6)


class Producer:
    """Writes down what it is told; ``fails`` is what becomes of records."""

    def __init__(self, name: str, calls: list[str]) -> None:
        self._name = name
        self._calls = calls
        self.fails: HeadraceError | None = None
        self.verdicts: list[HeadraceError] = []
        self.rows: list[dict[str, Any]] = []

    async def send_table(self, topic: str, table: pa.Table) -> Any:
        self.rows = table.to_pylist()
        return self._sent(topic)

    async def send_many(
        self,
        topic: str,
        values: list[bytes | None],
        keys: list[bytes | None] | None = None,
        *,
        headers: list[Any] | None = None,
        partition: int | None = None,
        timestamps_ms: list[int] | None = None,
    ) -> Any:
        keys = [None] * len(values) if keys is None else keys
        self.rows = [{"key": key, "value": value} for key, value in zip(keys, values, strict=True)]
        for place, row in enumerate(self.rows):
            if timestamps_ms is not None:
                row["timestamp_ms"] = timestamps_ms[place]
            if partition is not None:
                row["partition"] = partition
            if headers is not None:
                row["headers"] = [{"key": name, "value": text} for name, text in headers[place]]
        return self._sent(topic)

    def _sent(self, topic: str) -> Any:
        self._calls.append(f"{self._name} sends to {topic}")
        return Sent(self)

    async def flush(self) -> None:
        self._calls.append(f"{self._name} delivers")

    async def begin_transaction(self) -> None:
        self._calls.append(f"{self._name} begins")

    async def commit_transaction(self) -> None:
        self._calls.append(f"{self._name} commits")
        if self.verdicts:
            raise self.verdicts.pop(0)

    async def abort_transaction(self) -> None:
        self._calls.append(f"{self._name} aborts")


class Now:
    """A clock that stands still."""

    def monotonic_ms(self) -> float:
        return 0.0


class Passing:
    """A clock whose time passes in sleeps."""

    at_ms = 0.0

    def monotonic_ms(self) -> float:
        return self.at_ms

    async def sleep_ms(self, ms: float) -> None:
        self.at_ms += ms


def output(topic: str) -> Output:
    return Output(topic, pa.table({"key": pa.array([b"k"]), "value": pa.array([b"v"])}))


@pytest.fixture
def calls() -> list[str]:
    return []


@pytest.fixture
def at_once(calls: list[str]) -> Producer:
    return Producer("plain", calls)


@pytest.fixture
def writer(calls: list[str], at_once: Producer) -> SdkWriter:
    patience = Patience(Now(), 0)  # type: ignore[arg-type]
    return SdkWriter(Producer("transactional", calls), None, patience, at_once)  # type: ignore[arg-type]


@pytest.mark.parametrize("fails", [None, NotEnoughReplicas("one is away")])
async def test_what_lies_behind_all_that_is_there_is_written_and_not_seen(
    writer: SdkWriter, calls: list[str], fails: HeadraceError | None
) -> None:
    partitions = [TopicPartition("rows", 0), TopicPartition("rows", 1)]
    writer._producer.fails = fails  # type: ignore[attr-defined]
    if fails is None:
        assert await writer.behind(partitions) == dict.fromkeys(partitions, 7)
    else:
        with pytest.raises(NotEnoughReplicas):
            await writer.behind(partitions)
    sends = ["sends to rows", "sends to rows", "delivers", "aborts"]
    assert calls == [f"transactional {what}" for what in ("begins", *sends)]


async def test_a_commit_comes_after_what_was_sent_at_once(writer: SdkWriter, calls: list[str]) -> None:
    await writer.send_at_once(output("out"))
    await writer.send(output("changelog"))
    await writer.commit({})
    await writer.commit({})
    sent = ["plain sends to out", "transactional sends to changelog"]
    assert calls == [*sent, "plain delivers", "transactional commits", "transactional commits"]


async def test_what_was_not_written_keeps_a_commit_back(writer: SdkWriter, at_once: Producer, calls: list[str]) -> None:
    at_once.fails = NotEnoughReplicas("one is missing")
    await writer.send_at_once(output("out"))
    with pytest.raises(NotEnoughReplicas):
        await writer.commit({})
    await writer.abort()
    at_once.fails = None
    await writer.send_at_once(output("out"))
    await writer.commit({})
    assert [call for call in calls if "transactional" in call] == ["transactional aborts", "transactional commits"]


async def test_what_an_abort_has_forgotten_keeps_nothing_back(
    writer: SdkWriter, at_once: Producer, calls: list[str]
) -> None:
    """The same rows are sent again."""
    at_once.fails = NotEnoughReplicas("one is missing")
    await writer.send_at_once(output("out"))
    await writer.abort()
    await writer.commit({})
    assert calls[-1] == "transactional commits"


@pytest.mark.parametrize(("unknown", "known"), [(9, True), (11, False)])
async def test_a_verdict_is_asked_for_until_it_is_known(calls: list[str], unknown: int, known: bool) -> None:
    """Nothing else is done meanwhile, and not for ever: then what is open is aborted, whose answer tells."""
    producer, clock = Producer("transactional", calls), Passing()
    producer.verdicts = [CoordinatorNotAvailable()] * unknown
    writer = SdkWriter(producer, None, Patience(clock, 1_000))  # type: ignore[arg-type]
    await writer.send(output("changelog"))
    with nullcontext() if known else pytest.raises(CoordinatorNotAvailable):
        await writer.commit({})
    commits = unknown + 1 if known else 11
    assert calls == ["transactional sends to changelog", *["transactional commits"] * commits]


@pytest.mark.parametrize("times", [[1], [1, 2], list(range(32)), list(range(33)), list(range(1_000))])
@pytest.mark.parametrize("more", [{}, {"partition": 7}, {"headers": (("why", b"late"),)}])
async def test_few_rows_and_many_say_the_same(
    writer: SdkWriter, at_once: Producer, times: list[int], more: dict[str, Any]
) -> None:
    """Few are sent as lists, many as a table."""
    keys = [None if time % 2 else b"%d" % time for time in times]
    values = [None if time % 3 else b"v%d" % time for time in times]
    columns = {"key": pa.array(keys, pa.binary()), "value": pa.array(values, pa.binary()), "timestamp_ms": times}
    await writer.send_at_once(Output("out", pa.table(columns), **more))
    wanted: dict[str, Any] = {"partition": more["partition"]} if "partition" in more else {}
    if "headers" in more:
        wanted["headers"] = [{"key": "why", "value": b"late"}]
    assert at_once.rows == [
        {"key": key, "value": value, "timestamp_ms": time} | wanted
        for key, value, time in zip(keys, values, times, strict=True)
    ]


@pytest.mark.parametrize("count", [1, 3, 33])
async def test_records_have_headers_of_their_own(writer: SdkWriter, at_once: Producer, count: int) -> None:
    """Whether they are few or many."""
    of_each = [[{"key": f"h{n}", "value": b"%d" % n if n % 2 else None}] * (n % 3) for n in range(count)]
    columns = {"key": pa.nulls(count, pa.binary()), "value": pa.nulls(count, pa.binary())}
    headers = pa.array(of_each, HEADERS)
    await writer.send_at_once(Output("out", pa.table({**columns, "headers": headers})))
    assert [row["headers"] for row in at_once.rows] == of_each


@pytest.mark.parametrize(
    ("guarantee", "in_transactions"),
    [("exactly_once", ["out", "a.by-user.repartition"]), ("at_least_once", ["a.by-user.repartition"])],
)
async def test_which_rows_wait_for_a_commit(guarantee: str, in_transactions: list[str]) -> None:
    """What goes to another task of the app must not come again: it would be counted again."""
    outside: Any = SimpleNamespace(compute=None, look=None, changelogs=None, clock=Now(), snapshots=None)
    worker = Worker(App("a"), StreamsConfig.of({"processing_guarantee": guarantee}), outside)
    worker._assembled = Assembled(None, {}, frozenset({"a.by-user.repartition"}))  # type: ignore[arg-type]
    worker._sit(None)  # type: ignore[arg-type]
    assert [topic for topic in ("out", "a.by-user.repartition") if worker._committing.waits(topic)] == in_transactions
