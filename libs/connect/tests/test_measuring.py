"""What tasks count: of what was committed, and of what failed on the way."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest

from headrace_common.runtime.clock import SystemClock, limit_s, pause_ms
from headrace_common.runtime.tasks import TaskRunner
from headrace_connect import Chunk, Guarantee, Position, RetriableError, Rows, RowsRefused, Sink, Split
from headrace_connect.core.backoff import Backoff
from headrace_connect.core.batch import Batch
from headrace_connect.core.counts import Counts
from headrace_connect.core.dead_letters import Origin, Refusal, Stage
from headrace_connect.core.host_messages import Report, StartTask
from headrace_connect.core.sink_commit import SinkRules
from headrace_connect.core.source_commit import Rules
from headrace_connect.core.source_steps import CloseAsked
from headrace_connect.core.task import State, TaskLife
from headrace_connect.plugin import NoSettings, Source, TopicPartition
from headrace_connect.runtime.host_work import Given, HostedTask
from headrace_connect.runtime.measuring import SinkMeasure, StageTimes, TimedTransforms
from headrace_connect.runtime.pipeline import ConvertedChunk, Lost
from headrace_connect.runtime.ports import Outgoing
from headrace_connect.runtime.seat import Seat
from headrace_connect.runtime.sending import BadRecords
from headrace_connect.runtime.sink_task import SinkOutside, SinkTask, SinkTaskSettings
from headrace_connect.runtime.source_task import SourceOutside, SourceTask, SourceTaskSettings
from headrace_connect.settings import Secrets
from headrace_connect.testing.group import MemoryGroup, MemoryTopic
from headrace_connect.testing.memory import (
    JsonPipeline,
    MemoryDead,
    MemoryDeadLetters,
    MemoryLog,
    MemorySourceLog,
    NoSteps,
)
from headrace_connect.transforms.chain import Transformed

NOW_MS = 1_700_000_000_000
BAD = "bad"


class FixedClock(SystemClock):
    """The day is always the same."""

    def now_ms(self) -> int:
        return NOW_MS


class SetClock(SystemClock):
    """Moves when it is told."""

    now = 0.0

    def monotonic_ms(self) -> float:
        return self.now


class Words(Source[NoSettings]):
    """Two chunks; before the second one it fails once."""

    failed = False
    retained_bytes = 7

    async def read(self, split: Split, after: Position | None) -> AsyncIterator[Chunk]:
        at = after["at"] if after else 0
        if at == 0:
            yield Chunk(["one", BAD, "three"], {"at": 1})
        if not Words.failed:
            Words.failed = True
            raise RetriableError("away for a moment")
        if at < 2:
            yield Chunk(["four"], {"at": 2})
        yield Chunk([], {"at": 2}, drained=True)


class TimedPipeline:
    """Rows of the day's beginning; ``BAD`` is a dead letter."""

    def apply(self, chunk: Chunk) -> ConvertedChunk:
        values = [str(row).encode() for row in chunk.rows]
        good = [value for value in values if value != BAD.encode()]
        lost = [Lost(Origin("w", 0, "words", "t"), Refusal(Stage.VALUE, "no", "E"), None, BAD.encode())]
        if not good:
            return ConvertedChunk([])
        times = [NOW_MS - 5_000 + number for number in range(len(good))]
        table = pa.table({"value": pa.array(good, pa.binary()), "timestamp_ms": pa.array(times, pa.int64())})
        return ConvertedChunk([Outgoing("t", table)], lost * (len(values) - len(good)), len(good), table.nbytes)


async def run_source(log: MemoryLog, *, fails: bool = False) -> Counts:
    Words.failed, counts = not fails, Counts()
    outside = SourceOutside(MemorySourceLog(log), TimedPipeline(), FixedClock(), NoSteps())
    rules = Rules(interval_ms=5, retry_timeout_ms=5_000, retry_delay_ms_max=10)
    settings = SourceTaskSettings(
        rules, poll_interval_ms=1, look_interval_ms=1, bad=BadRecords(tolerates=True, topic="dead")
    )
    task = SourceTask(Words(NoSettings()), [Split("all")], outside, settings, counts=counts)

    async def close() -> None:
        while not task.is_idle or counts.retained_bytes is None:
            await pause_ms(1)
        task.ask(CloseAsked())

    async with limit_s(30), TaskRunner() as runner:
        runner.start(close(), name="close")
        await task.run()
    return counts


async def test_a_source_counts_what_is_committed() -> None:
    log = MemoryLog()
    counts = await run_source(log, fails=True)
    assert (len(log.records["t"]), len(log.records["dead"])) == (3, 1)
    assert (counts.read_records, counts.written_records, counts.dead_letters) == (4, 3, 1)
    assert (counts.retries, counts.commits, counts.restarts) == (1, log.commits, 0)
    assert counts.written_bytes > 3 * 8
    assert counts.commit_us >= 0
    assert counts.delay_ms is not None
    assert 4_999 <= counts.delay_ms <= 5_000, "the newest of the last commit"
    assert counts.lag_records is None
    assert counts.retained_bytes == 7
    assert min(counts.read_us, counts.convert_us, counts.write_us) > 0


def test_time_within_a_stage_counts_for_the_inner_one() -> None:
    counts, clock = Counts(), SetClock()
    times = StageTimes(counts, clock)

    class Slow:
        def apply(self, batch: Batch) -> Transformed:
            clock.now += 5
            return Transformed([batch], [])

    transforms = TimedTransforms(Slow(), times)
    with times.spend("convert"):
        clock.now += 1
        for _ in range(2):
            transforms.apply(Batch.of("t", pa.array(["x"])))
        clock.now += 2
    with times.spend("convert"):
        clock.now += 4
    times.add("read", 3)
    times.add("write", 2)
    found = (counts.read_us, counts.convert_us, counts.transform_us, counts.write_us)
    assert found == (3_000, 7_000, 10_000, 2_000)


@pytest.mark.parametrize("kind", ["undelivered", "unknown", "forgotten"])
async def test_what_was_not_committed_counts_once_when_it_is(kind: str) -> None:
    log = MemoryLog()
    getattr(log, kind).add(1)
    counts = await run_source(log)
    assert (counts.written_records, counts.dead_letters) == (3, 1)
    assert counts.retries == (0 if kind == "forgotten" else 1)
    assert counts.read_records >= 4


@dataclass
class Table:
    rows: list[int] = field(default_factory=list)
    away: int = 0
    """So many commits fail."""


class Writes(Sink[NoSettings]):
    guarantee = Guarantee.AT_LEAST_ONCE
    table = Table()

    async def open(self, partitions: Iterable[TopicPartition], epoch: int) -> None:
        self.buffer: list[int] = []

    async def write(self, rows: Rows) -> None:
        values = [row["n"] for row in rows.values.to_pylist()]
        bad = {index: "thirteen" for index, n in enumerate(values) if n == 13}
        if bad:
            raise RowsRefused(bad)
        self.buffer += values

    async def commit(self, positions: Any, token: bytes | None) -> None:
        if self.table.away:
            self.table.away -= 1
            raise RetriableError("the table is away")
        self.table.rows += self.buffer
        self.buffer = []


async def test_a_sink_counts_what_is_committed_and_how_far_it_is() -> None:
    Writes.table = Table(away=2)
    counts, topic, dead = Counts(), MemoryTopic.of([{"n": n} for n in range(20)]), MemoryDead()
    rules = SinkRules(False, tolerates=True, interval_ms=5, rows_max=10, retry_delay_ms_max=10)
    group = MemoryGroup(topic, 7)
    outside = SinkOutside(group, JsonPipeline(), MemoryDeadLetters(dead), SystemClock(), NoSteps())
    task = SinkTask(Writes(NoSettings()), outside, SinkTaskSettings("w", 0, rules, 7), counts=counts)
    lags: set[int | None] = set()

    async def close() -> None:
        while not task.is_idle:
            lags.add(counts.lag_records)
            await pause_ms(1)
        await pause_ms(20)  # it looks again
        task.close()

    async with limit_s(30), TaskRunner() as runner:
        runner.start(close(), name="close")
        await task.run()
    assert sorted(Writes.table.rows) == [n for n in range(20) if n != 13]
    assert (counts.read_records, counts.written_records, counts.dead_letters) == (20, 19, 1)
    assert len(dead.records) == 3, "they are sent first, with each try; one is counted"
    assert counts.retries == 2
    assert counts.read_bytes > 20 * 8
    assert counts.commits >= 2
    assert counts.lag_records == 0
    assert max(lag for lag in lags if lag is not None) > 13, "of three markers for each seven records"


@pytest.mark.parametrize("away", ["it fails", "it hangs"])
async def test_lag_grows_while_the_target_is_away(away: str) -> None:
    class Away(Writes):
        async def write(self, rows: Rows) -> None:
            if away == "it hangs":
                await pause_ms(3_600_000)
            raise RetriableError("away")

    counts, topic = Counts(), MemoryTopic.of([{"n": n} for n in range(5)])
    rules = SinkRules(False, tolerates=False, interval_ms=5, rows_max=10, retry_delay_ms_max=10)
    outside = SinkOutside(MemoryGroup(topic), JsonPipeline(), None, SystemClock(), NoSteps())
    settings = SinkTaskSettings("w", 0, rules, lag_interval_ms=1)
    task = SinkTask(Away(NoSettings()), outside, settings, counts=counts)
    async with limit_s(30), TaskRunner() as runner:
        running = runner.start(task.run(), name="task")
        while not counts.lag_records:
            await pause_ms(1)
        topic.partitions[0].end += 100
        while (counts.lag_records or 0) <= 100:
            await pause_ms(1)
        running.cancel()


def test_lag_is_what_is_left_and_what_is_not_committed() -> None:
    counts = Counts()
    measure = SinkMeasure(counts, SystemClock())
    measure.look([5, None, 2], 3)
    assert counts.lag_records == 10
    measure.look([None], 3)
    assert counts.lag_records is None


def test_a_hosted_task_says_what_it_has_counted_when_that_is_something_else() -> None:
    task = HostedTask(StartTask("w", 3, {}), Given(None, Secrets(), lambda _: None))  # type: ignore[arg-type]
    first = task.counted()
    assert first is not None
    assert (first.connector, first.task, first.counts) == ("w", 3, Counts())
    assert task.counted() is None
    task._counts.commits += 1
    again = task.counted()
    assert again is not None
    assert again.counts.commits == 1
    assert first.counts.commits == 0, "it was said already"
    assert task.counted() is None


def test_a_hosted_task_counts_each_time_that_it_is_to_start_again() -> None:
    reports: list[Report] = []
    task = HostedTask(StartTask("w", 3, {}), Given(None, Secrets(), reports.append))  # type: ignore[arg-type]
    life = TaskLife(Backoff(1, 2), -1)
    task._seat = Seat("w", lambda *_: None, SystemClock(), life)  # type: ignore[arg-type,return-value]
    for state in (State.STARTING, State.RESTARTING, State.RESTARTING, State.STARTING, State.RESTARTING, State.RUNNING):
        life.state = state
        task._changed()
    assert task._counts.restarts == 2
