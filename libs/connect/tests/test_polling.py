"""Drained splits of many tasks are looked at together, and read when there may be something new."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator

import pytest
from libs.common.tests.kit.clock import FakeClock

from headrace_common.runtime.clock import SystemClock, limit_s, pause_ms
from headrace_common.runtime.tasks import TaskRunner
from headrace_connect import Chunk, Position
from headrace_connect import Split as PluginSplit
from headrace_connect.core.source_commit import Rules
from headrace_connect.core.source_steps import CloseAsked
from headrace_connect.plugin import NoSettings, Source
from headrace_connect.runtime import polling
from headrace_connect.runtime.polling import Polls
from headrace_connect.runtime.source_task import SourceOutside, SourceTask, SourceTaskSettings
from headrace_connect.testing.memory import TOPIC, MemoryLog, MemorySourceLog, NoSteps, RawPipeline

EVERY_MS = 500


class Split:
    """One that rests."""

    def __init__(self, polls: Polls) -> None:
        self.still = True
        self.looks: list[str] = []
        self.done = asyncio.create_task(polls.rest(self.is_still, EVERY_MS))

    def is_still(self) -> bool:
        self.looks.append(threading.current_thread().name)
        return self.still


async def beat(clock: FakeClock, *looked_at: Split) -> None:
    """One beat, until all of these were looked at once more."""
    counts = [len(split.looks) + 1 for split in looked_at]
    await clock.until_asleep()
    await clock.advance(EVERY_MS)
    while [len(split.looks) for split in looked_at] < counts:
        await pause_ms(1)
    await clock.until_asleep()


async def test_a_split_is_read_when_it_is_not_still_any_more() -> None:
    clock = FakeClock()
    async with Polls(clock) as polls:
        split, other = Split(polls), Split(polls)
        for _ in range(3):
            await beat(clock, split, other)
        assert not split.done.done()
        split.still = False
        await beat(clock, split, other)
        await split.done
        assert not other.done.done()
        await beat(clock, other)
        assert (len(split.looks), len(other.looks)) == (4, 5)
        other.done.cancel()


async def test_all_that_rest_are_looked_at_at_the_same_beat_in_one_thread() -> None:
    clock = FakeClock()
    async with Polls(clock) as polls:
        first = Split(polls)
        await clock.until_asleep()
        await clock.advance(EVERY_MS / 2)
        second = Split(polls)
        await pause_ms(0)
        assert clock.sleepers == 1
        await clock.advance(EVERY_MS / 2)
        while not second.looks:
            await pause_ms(1)
        assert [*first.looks, *second.looks] == ["connect polls_0"] * 2
        first.done.cancel()
        second.done.cancel()


async def test_nothing_wakes_the_process_when_nothing_rests() -> None:
    clock = FakeClock()
    async with Polls(clock) as polls:
        split = Split(polls)
        await clock.until_asleep()
        split.done.cancel()
        await clock.advance(EVERY_MS)
        assert clock.sleepers == 0
        again = Split(polls)
        await beat(clock, again)
        again.done.cancel()


async def test_a_look_that_does_not_end_holds_nothing_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(polling, "LOOK_MS_MAX", 1)
    clock, hangs = FakeClock(), threading.Event()
    async with Polls(clock) as polls:
        for _ in range(2):
            done = asyncio.create_task(polls.rest(hangs.wait, EVERY_MS))
            await clock.until_asleep()
            await clock.advance(EVERY_MS)
            await done
        hangs.set()


async def test_a_look_that_fails_has_the_split_read() -> None:
    clock = FakeClock()
    async with Polls(clock) as polls:
        done = asyncio.create_task(polls.rest(lambda: bool(1 // 0), EVERY_MS))
        await clock.until_asleep()
        await clock.advance(EVERY_MS)
        await done


async def test_without_a_thread_splits_are_read_as_if_nobody_could_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(polling, "run_in_thread", refuse)
    clock = FakeClock()
    async with Polls(clock) as polls:
        for _ in range(2):
            done = asyncio.create_task(polls.rest(lambda: True, EVERY_MS))
            await clock.until_asleep()
            await clock.advance(EVERY_MS)
            await done


class Lines(Source[NoSettings]):
    """Shares its thread, and can tell whether it is still."""

    def __init__(self, settings: NoSettings) -> None:
        super().__init__(settings)
        self.lines = ["one"]
        self.still = True
        self.reads = self.looks = 0

    def read(self, split: PluginSplit, after: Position | None) -> Iterator[Chunk]:
        at = after["at"] if after else 0
        while True:
            self.reads += 1
            new = self.lines[at:]
            at += len(new)
            yield Chunk(new, {"at": at}, drained=not new)

    def is_still(self, split: PluginSplit) -> bool:
        self.looks += 1
        return self.still


async def until(holds: Callable[[], bool]) -> None:
    while not holds():
        await pause_ms(1)


async def test_a_task_reads_no_split_that_is_still() -> None:
    log, clock, source = MemoryLog(), SystemClock(), Lines(NoSettings())
    async with Polls(clock) as polls, limit_s(30), TaskRunner() as runner:
        outside = SourceOutside(MemorySourceLog(log), RawPipeline(), clock, NoSteps(), polls)
        rules = SourceTaskSettings(Rules(interval_ms=5), poll_interval_ms=1)
        task = SourceTask(source, [PluginSplit("all")], outside, rules)
        running = runner.start(task.run(), name="task")
        await until(lambda: source.looks >= 5)
        assert source.reads == 2, "the line, and that there are no more"
        await until(lambda: task.is_idle)
        source.lines.append("two")
        source.still = False
        await until(lambda: len(log.records.get(TOPIC, ())) == 2)
        task.ask(CloseAsked())
        await running
