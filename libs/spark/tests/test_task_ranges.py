"""Records that are gone when a task wants to read them: what is told, and where it goes on."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pytest

from headrace.errors import (
    CredentialsExpired,
    CredentialsRevoked,
    PositionOutOfRange,
    Unauthenticated,
    UnknownTopicOrPartition,
    WaitTimedOut,
)
from headrace_common.core.ids import TopicPartition
from headrace_common.core.secret import Secret
from headrace_spark.adapters import sdk_rows
from headrace_spark.adapters.clients import LOOK_AGAIN_MS, LOOKS_MAX
from headrace_spark.adapters.sdk_rows import Reading, read
from headrace_spark.core.columns import Column
from headrace_spark.core.losses import Cause, Loss, RecordsLost
from headrace_spark.core.offsets import OffsetRange
from headrace_spark.core.options import ConnectorOptions, Mode
from headrace_spark.core.task_ranges import RESUMES_MAX, behind_loss

A0, B0 = TopicPartition("a", 0), TopicPartition("b", 0)
BOTH = (OffsetRange(A0, 0, 10), OffsetRange(B0, 0, 5))


def test_a_range_whose_beginning_is_gone() -> None:
    left, losses = behind_loss(BOTH, A0, 4)
    assert left == (OffsetRange(A0, 4, 10), OffsetRange(B0, 0, 5))
    assert losses == [Loss(A0, Cause.TRIMMED, 0, 4)]


def test_a_range_that_is_gone_altogether() -> None:
    assert behind_loss(BOTH, A0, 50) == ((OffsetRange(B0, 0, 5),), [Loss(A0, Cause.TRIMMED, 0, 10)])


def test_a_log_that_fell_back() -> None:
    assert behind_loss(BOTH, A0, 0) == ((OffsetRange(B0, 0, 5),), [Loss(A0, Cause.TRUNCATED, 0, 10)])


def test_another_partition_is_no_loss_of_these() -> None:
    assert behind_loss(BOTH, TopicPartition("c", 0), 3) == (BOTH, [])


# --- the shell ---------------------------------------------------------------------------------------------------


class Rows:
    """Reads one range after the other; ``fails`` says what happens at an offset."""

    def __init__(self, ranges: Sequence[OffsetRange], fails: Callable[[OffsetRange], Exception | None]) -> None:
        self._left = list(ranges)
        self._fails = fails
        self.closed = False

    def __iter__(self) -> Iterator[pa.Table]:
        while self._left:
            each = self._left[0]
            error = self._fails(each)
            if error is not None:
                raise error
            del self._left[0]
            yield pa.table({"offset": pa.array(range(each.start, each.end), pa.int64())})

    def remaining(self) -> list[tuple[str, int, int, int]]:
        return [(r.partition.topic, r.partition.partition, r.start, r.end) for r in self._left]

    def close(self) -> None:
        self.closed = True


class World:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.starts = {A0: 0, B0: 0}
        self.opened: list[Rows] = []
        self.fails: Callable[[OffsetRange], Exception | None] = self._out_of_range
        self.there = {A0, B0}
        monkeypatch.setattr(sdk_rows, "open_rows", self._open)
        monkeypatch.setattr(sdk_rows, "SdkLogs", lambda *_: self)
        self.pauses: list[float] = []
        monkeypatch.setattr(sdk_rows, "pause", self.pauses.append)

    def _out_of_range(self, each: OffsetRange) -> Exception | None:
        start = self.starts[each.partition]
        return PositionOutOfRange.at(each.partition, each.start, start, 99) if each.start < start else None

    def _open(self, reading: Reading, ranges: Sequence[OffsetRange], topic_ids: Mapping[str, str]) -> Rows:
        self.opened.append(Rows(ranges, self.fails))
        return self.opened[-1]

    def still_there(self, ranges: Sequence[OffsetRange], topic_ids: Mapping[str, str]) -> tuple[OffsetRange, ...]:
        return tuple(each for each in ranges if each.partition in self.there)

    def read(self, *, fails: bool, ranges: tuple[OffsetRange, ...] = BOTH, key: Secret | None = None) -> list[int]:
        options: dict[str, Any] = {"kafka.bootstrap.servers": "b:1", "subscribe": "a", "failOnDataLoss": str(fails)}
        reading = Reading.of(ConnectorOptions.parse(options, Mode.READ_BATCH), (Column("offset", "offset"),))
        assert pickle.loads(pickle.dumps(reading)) == reading
        found = [n for batch in read(reading.showing(key), ranges, {}) for n in batch.column(0).to_pylist()]
        assert all(rows.closed for rows in self.opened)
        return found


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


def test_all_is_read_once(world: World) -> None:
    assert world.read(fails=True) == [*range(10), *range(5)]
    assert len(world.opened) == 1
    assert world.read(fails=True, ranges=()) == []


def test_reading_goes_on_behind_what_is_gone(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.starts[B0] = 3
    assert world.read(fails=False) == [*range(10), 3, 4]
    assert "b-0: offsets 0 to 2 were removed by retention" in caplog.text
    with pytest.raises(RecordsLost, match="b-0: offsets 0 to 2 were removed by retention before they were read"):
        world.read(fails=True)


def test_a_topic_deleted_while_it_is_read(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.there.remove(A0)
    world.fails = lambda each: UnknownTopicOrPartition("a: gone") if each.partition == A0 else None
    assert world.read(fails=False) == list(range(5))
    assert "a-0: offsets 0 to 9 are gone with their topic" in caplog.text
    with pytest.raises(RecordsLost, match="a-0: offsets 0 to 9 are gone with their topic"):
        world.read(fails=True)


def test_what_is_there_and_cannot_be_read_is_no_loss(world: World) -> None:
    for error in (UnknownTopicOrPartition("a: not now"), WaitTimedOut("nothing came")):
        world.fails = lambda each, error=error: error
        with pytest.raises(type(error)):
            world.read(fails=False)
    assert all(rows.closed for rows in world.opened)


def test_retention_that_is_always_faster_ends_the_task(world: World) -> None:
    def faster(each: OffsetRange) -> Exception | None:
        return PositionOutOfRange.at(each.partition, each.start, each.start + 1, 2**40)

    world.fails = faster
    with pytest.raises(RecordsLost, match="again and again"):
        world.read(fails=False, ranges=(OffsetRange(A0, 0, 2**40),))
    assert len(world.opened) == RESUMES_MAX


def test_a_key_that_a_broker_does_not_know_yet_is_shown_again(world: World) -> None:
    refusals = [Unauthenticated("there is no API key k1")] * 2
    world.fails = lambda each: refusals.pop() if each.partition == B0 and refusals else None
    assert world.read(fails=True, key=Secret("k1")) == [*range(10), *range(5)], "each once"
    assert world.pauses == [LOOK_AGAIN_MS] * 2


def test_a_key_that_nobody_knows_ends_the_task(world: World) -> None:
    world.fails = lambda _: Unauthenticated("there is no API key k1")
    with pytest.raises(Unauthenticated):
        world.read(fails=True, key=Secret("k1"))
    assert len(world.opened) == LOOKS_MAX + 1


@pytest.mark.parametrize("error", [CredentialsExpired, CredentialsRevoked])
def test_a_key_that_is_over_ends_the_task_at_once(world: World, error: type[Unauthenticated]) -> None:
    world.fails = lambda _: error("over")
    with pytest.raises(error):
        world.read(fails=True, key=Secret("k1"))
    assert world.pauses == []


def test_what_a_task_finds_itself_is_not_waited_for(world: World) -> None:
    world.fails = lambda _: Unauthenticated("there is no such key")
    with pytest.raises(Unauthenticated):
        world.read(fails=True)
    assert world.pauses == []


def test_a_task_that_is_ended_closes_its_reader(world: World) -> None:
    options = {"kafka.bootstrap.servers": "b:1", "subscribe": "a"}
    reading = Reading.of(ConnectorOptions.parse(options, Mode.READ_BATCH), (Column("offset", "offset"),))
    batches: Any = read(reading, BOTH, {})
    next(batches)
    assert not world.opened[0].closed
    batches.close()
    assert world.opened[0].closed
