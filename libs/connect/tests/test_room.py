"""How much of what was read waits in a source's task."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pyarrow as pa
import pytest
from libs.connect.tests.idle import run_until_idle

from headrace_common.runtime.clock import SystemClock, limit_s, pause_ms
from headrace_common.runtime.tasks import TaskRunner
from headrace_connect import Chunk, Position, Split
from headrace_connect.core.sink_commit import SinkRules
from headrace_connect.core.source_commit import Boundary, Rules
from headrace_connect.plugin import NoSettings, Rows, Sink, Source
from headrace_connect.runtime.room import Room
from headrace_connect.runtime.sink_task import SinkOutside, SinkTask, SinkTaskSettings
from headrace_connect.runtime.sizes import size_of
from headrace_connect.runtime.source_task import SourceOutside, SourceTask, SourceTaskSettings
from headrace_connect.testing.faults import KillAt
from headrace_connect.testing.group import MemoryGroup, MemoryTopic
from headrace_connect.testing.memory import JsonPipeline, MemoryLog, MemorySourceLog, RawPipeline

ROWS = 12
"""Of each split."""


class Counting:
    """How many chunks were made that are not committed."""

    size = 100
    made = 0
    committed_rows = 0

    def chunk(self, at: int) -> Chunk:
        self.made += 1
        return Chunk([b"x" * self.size], {"at": at + 1})


class Side(Source[NoSettings]):
    """Splits that have more at once, each in a task of its own."""

    counting: Counting

    async def read(self, split: Split, after: Position | None) -> AsyncIterator[Chunk]:
        at = after["at"] if after else 0
        while at < ROWS:
            await asyncio.sleep(0)
            yield self.counting.chunk(at)
            at += 1
        while True:
            yield Chunk([], {"at": at}, drained=True)
            await pause_ms(1)


class Turns(Source[NoSettings]):
    """The same, in one thread."""

    counting: Counting

    def read(self, split: Split, after: Position | None) -> Iterator[Chunk]:
        at = after["at"] if after else 0
        while at < ROWS:
            yield self.counting.chunk(at)
            at += 1
        while True:
            yield Chunk([], {"at": at}, drained=True)


class Stopped(KillAt):
    """Stands still when the first records are sent, until it is let go; notes the most that is not committed."""

    def __init__(self, counting: Counting, log: MemoryLog) -> None:
        super().__init__()
        self.here, self.go = asyncio.Event(), asyncio.Event()
        self.most = 0
        self._counting, self._log = counting, log

    async def reach(self, step: str) -> None:
        if step == "connect.source.sent":
            self.here.set()
            await self.go.wait()
        self.look()

    def look(self) -> None:
        done = len(self._log.records["records"])
        self.most = max(self.most, self._counting.size * (self._counting.made - done))


@pytest.mark.parametrize("kind", [Side, Turns])
@pytest.mark.parametrize("splits", [1, 30])
async def test_no_more_is_read_than_there_is_room_for_while_the_rest_waits_or_is_not_committed(
    kind: type[Side | Turns], splits: int
) -> None:
    log, counting = MemoryLog(), Counting()
    steps = Stopped(counting, log)
    kind.counting = counting
    outside = SourceOutside(MemorySourceLog(log), RawPipeline(), SystemClock(), steps)
    settings = SourceTaskSettings(Rules(interval_ms=5, bytes_max=500), poll_interval_ms=1, bytes_max=1_000)
    task = SourceTask(kind(NoSettings()), [Split(str(n)) for n in range(splits)], outside, settings)
    task._room = Room(1_000, first_bytes=100)

    async def look() -> None:
        await steps.here.wait()
        await pause_ms(50)
        steps.look()
        steps.go.set()

    await run_until_idle(task, look)
    assert len(log.records["records"]) == splits * ROWS
    assert 200 <= steps.most <= 1_000


@pytest.mark.parametrize("boundary", list(Boundary))
async def test_a_chunk_that_is_larger_than_all_the_room_is_let_in(boundary: Boundary) -> None:
    log, counting = MemoryLog(), Counting()
    Side.counting = counting
    outside = SourceOutside(MemorySourceLog(log), RawPipeline(), SystemClock(), KillAt())
    settings = SourceTaskSettings(Rules(boundary, interval_ms=5), poll_interval_ms=1, bytes_max=10)
    task = SourceTask(Ends(NoSettings()), [Split("a"), Split("b")], outside, settings)

    await run_until_idle(task)
    assert len(log.records["records"]) == 2 * ROWS


class Ends(Side):
    """A transaction of the source has all rows of a split."""

    async def read(self, split: Split, after: Position | None) -> AsyncIterator[Chunk]:
        at = after["at"] if after else 0
        for place in range(at, ROWS):
            yield Chunk([b"x" * 100], {"at": place + 1}, boundary=place == ROWS - 1)
        while True:
            yield Chunk([], {"at": ROWS}, drained=True, boundary=True)
            await pause_ms(1)


class Gathering(Sink[NoSettings]):
    """Notes the most that it was given between two commits."""

    held = 0
    most = 0

    def write(self, rows: Rows) -> None:
        self.held += rows.values.nbytes
        type(self).most = max(self.most, self.held)

    def commit(self, positions: Any, token: bytes | None) -> None:
        self.held = 0


@pytest.mark.parametrize("partitions", [1, 40])
async def test_a_sink_reads_no_more_than_is_to_be_committed(partitions: int) -> None:
    """However many partitions have something, and however late a commit is due."""
    topic, Gathering.most = MemoryTopic.of(["x" * 100] * 240, partitions), 0
    group, rules = MemoryGroup(topic), SinkRules(keeps_positions=False, interval_ms=60_000, bytes_max=2_000)
    outside = SinkOutside(group, JsonPipeline(), None, SystemClock(), KillAt())
    task = SinkTask(Gathering(NoSettings()), outside, SinkTaskSettings("c", 0, rules, rows_max=2 * partitions))

    async def end() -> None:
        while not topic.is_committed:
            await pause_ms(1)
        task.close()

    async with limit_s(30), TaskRunner() as runner:
        runner.start(end(), name="end")
        await task.run()
    assert 1_000 < Gathering.most <= 2_000 + 400


async def begins(room: Room, split: str) -> bool:
    """Whether a read of it may begin now."""
    try:
        async with limit_s(0.01):
            await room.enter(split)
    except TimeoutError:
        return False
    return True


async def test_reads_that_are_under_way_count_with_what_they_gave_last() -> None:
    room = Room(95, first_bytes=10)
    for split in "ab":
        assert await begins(room, split)
        room.arrive(split, 40)
        room.take(40)
    room.commit()
    assert await begins(room, "a")
    assert await begins(room, "b")
    assert await begins(room, "c")
    assert not await begins(room, "d")
    room.arrive("a", 5)
    assert await begins(room, "d")


async def test_a_split_that_has_nothing_for_now_keeps_no_room_and_nothing_waits_for_it() -> None:
    room = Room(95, first_bytes=10)
    assert await begins(room, "a")
    room.arrive("a", 90)
    room.take(90)
    room.commit()
    assert await begins(room, "a")
    assert not await begins(room, "b")
    room.arrive("a", 0)
    room.take(0)
    assert await begins(room, "a")
    assert await begins(room, "b")


async def test_reads_that_give_nothing_for_long_keep_no_room() -> None:
    room = Room(100, quiet_ms=20, first_bytes=60)
    async with limit_s(10):
        for number in range(5):
            await room.enter(str(number))


async def test_what_is_halted_keeps_no_room_but_what_is_sent_does_until_it_is_committed() -> None:
    room = Room(100, first_bytes=10)
    for split in "ab":
        assert await begins(room, split)
        room.arrive(split, 50)
    room.take(50)
    assert not await begins(room, "a")
    room.clear()
    assert await begins(room, "a")
    room.arrive("a", 60)
    assert not await begins(room, "c")
    room.commit()
    assert await begins(room, "c")
    assert not await begins(room, "b")


@pytest.mark.parametrize(
    ("chunk", "least", "most"),
    [
        (Chunk([], {}), 0, 0),
        (Chunk([b"x" * 100, "y" * 50, None], {}), 150, 300),
        (Chunk([{"a": "x" * 1000, "b": [1, 2, {"c": "y" * 500}]}], {}), 1500, 1700),
        (Chunk([b"x"], {}, keys=[b"k" * 700], headers=[[("h", b"v" * 300)]]), 1001, 1200),
        (Chunk(pa.table({"a": ["x" * 1000] * 10}), {}), 10_000, 10_100),
        (Chunk(pa.table({"a": ["x" * 1000] * 10}).slice(0, 1), {}), 1_000, 1_100),
        (Chunk([b"a"], {}, further=[Chunk([b"x" * 400], {})]), 401, 600),
    ],
)
def test_the_size_of_a_chunk_is_that_of_all_it_has(chunk: Any, least: int, most: int) -> None:
    assert least <= size_of(chunk) <= most
