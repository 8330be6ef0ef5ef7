"""Runs one connector in this process: all its tasks, until it is stopped, or until there is nothing left to do."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, cast

from headrace import aio
from headrace_common.runtime.clock import Clock, SystemClock, limit_ms
from headrace_common.runtime.entropy import new_seed
from headrace_common.runtime.failpoints import failpoint
from headrace_common.runtime.tasks import TaskRunner
from headrace_connect.core.backoff import Backoff
from headrace_connect.core.dead_letters import Origin
from headrace_connect.core.errors import Fault
from headrace_connect.core.sink_commit import SinkRules
from headrace_connect.core.source_commit import Rules
from headrace_connect.core.source_steps import CloseAsked, ResumeAsked, SuspendAsked
from headrace_connect.core.splitting import share
from headrace_connect.core.task import State, TaskLife
from headrace_connect.plugin import Guarantee, Sink, Source, Split
from headrace_connect.runtime.adapters.sink_group import SdkDeadLetters, SdkGroup
from headrace_connect.runtime.adapters.source_log import SdkSourceLog, SourcePlace
from headrace_connect.runtime.adapters.topics import SdkTopics
from headrace_connect.runtime.calling import Calls
from headrace_connect.runtime.config import RunConfig, SinkConfig, SourceConfig
from headrace_connect.runtime.configuring import Configured
from headrace_connect.runtime.converting import ChunkPipeline, TablePipeline
from headrace_connect.runtime.failing import TaskFailed, failed_by
from headrace_connect.runtime.seat import Loop, Seat
from headrace_connect.runtime.sink_task import SinkOutside, SinkTask, SinkTaskSettings
from headrace_connect.runtime.source_task import SourceOutside, SourceTask, SourceTaskSettings

IDLE_LOOKS_MS: Final = 100.0
CHANCE_BITS: Final = 20
"""Of a generation, below the time in ms: two that begin in the same ms are not the same."""
_RESTART: Final = Backoff(1_000, 300_000)
_log: Final = logging.getLogger(__name__)


class Failpoints:
    """Satisfies ``Steps``: each step is a failpoint of that name."""

    async def reach(self, step: str) -> None:
        """See ``Steps``."""
        failpoint(step)


@dataclass(frozen=True, slots=True)
class Process:
    """What all tasks of a process share."""

    config: RunConfig
    topics: SdkTopics
    clock: Clock


@asynccontextmanager
async def open_process(config: RunConfig) -> AsyncIterator[Process]:
    """Connected to the cluster."""
    clock = SystemClock()
    async with aio.AdminClient(config.bootstrap_servers, default_api_timeout_ms=config.default_api_timeout_ms) as admin:
        yield Process(config, SdkTopics(admin, clock), clock)


async def run_connector(
    configured: Configured, config: RunConfig, stop: asyncio.Event, *, until_idle: bool = False
) -> None:
    """
    Run a connector until ``stop`` is set; with ``until_idle`` until everything that is there now is committed.

    Raises:
        TaskFailed: a task has failed, and starting it again does not help.
    """
    async with open_process(config) as process:
        if isinstance(configured.config, SourceConfig):
            await _Sources(process, configured, configured.config).run(stop, until_idle=until_idle)
        else:
            await _Sinks(process, configured, configured.config).run(stop, until_idle=until_idle)


class _Seats:
    """The tasks of a connector."""

    def __init__(self, seats: Sequence[Seat], clock: Clock, runner: TaskRunner) -> None:
        self._seats = seats
        self._clock = clock
        self._tasks = [runner.start(seat.run(), name="a connector's task") for seat in seats]

    async def wait(self, stop: asyncio.Event, limit: float | None, *, until_idle: bool) -> bool:
        """
        Until ``stop``, until ``limit`` ms have passed, or until all is done; whether it is to end.

        Raises:
            TaskFailed: a task has failed for good.
        """
        until_ms = None if limit is None else self._clock.monotonic_ms() + limit
        while not stop.is_set():
            self.check()
            if until_idle and all(seat.is_idle for seat in self._seats):
                return True
            if until_ms is not None and self._clock.monotonic_ms() >= until_ms:
                return False
            with suppress(TimeoutError):
                async with limit_ms(IDLE_LOOKS_MS):
                    await stop.wait()
        return True

    async def close(self) -> None:
        """
        Have all of them commit and end.

        Raises:
            TaskFailed: a task has failed for good.
        """
        for seat in self._seats:
            seat.close()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def check(self) -> None:
        """
        Raises:
            TaskFailed: a task has failed for good.
        """
        for seat, task in zip(self._seats, self._tasks, strict=True):
            if task.done():
                task.result()
                life = seat.life
                raise TaskFailed(Fault.FENCED if life.state is State.UNASSIGNED else Fault.BUG, life.reason)


# --- sources --------------------------------------------------------------------------------------------------------


class _SourceLoop:
    """Satisfies ``Loop``: a source's task and its clients."""

    def __init__(self, task: SourceTask) -> None:
        self._task = task

    async def run(self) -> None:
        """See ``Loop``."""
        await self._task.run()

    @property
    def is_idle(self) -> bool:
        """See ``Loop``."""
        return self._task.is_idle

    def suspend(self) -> None:
        """See ``Loop``."""
        self._task.ask(SuspendAsked())

    def resume(self) -> None:
        """See ``Loop``."""
        self._task.ask(ResumeAsked())

    def close(self) -> None:
        """See ``Loop``."""
        self._task.ask(CloseAsked())


class _Sources:
    """A source: its splits shared by tasks, again when the splits change."""

    def __init__(self, process: Process, configured: Configured, config: SourceConfig) -> None:
        self._process = process
        self._configured = configured
        self._config = config
        self._generation = 0
        self._at: dict[str, int] = {}

    async def run(self, stop: asyncio.Event, *, until_idle: bool) -> None:
        splits = await self._first_splits(stop)
        ended = stop.is_set()
        while not ended:
            async with TaskRunner() as runner:
                seats = _Seats(self._seats(splits), self._process.clock, runner)
                try:
                    while not (ended := await seats.wait(stop, self._config.rescan_interval_ms, until_idle=until_idle)):
                        found = await self._other_splits(splits)
                        if found != splits:
                            splits = found
                            break
                finally:
                    await seats.close()

    async def _first_splits(self, stop: asyncio.Event) -> list[Split]:
        """What there is to read; asked until the source answers, or ``stop`` is set."""
        attempt = 0
        while not stop.is_set():
            try:
                return await self._splits()
            except Exception as error:
                failed = failed_by(error)
                if failed.fault is not Fault.WORLD:
                    raise failed from error
                attempt += 1
                _log.warning("%s cannot say what there is to read: %s", self._config.name, failed)
            with suppress(TimeoutError):
                async with limit_ms(_RESTART.wait_ms(attempt)):
                    await stop.wait()
        return []

    async def _other_splits(self, before: list[Split]) -> list[Split]:
        """What there is to read now; as before, where the source does not answer."""
        try:
            return await self._splits()
        except Exception as error:
            failed = failed_by(error)
            if failed.fault is not Fault.WORLD:
                raise failed from error
            _log.warning("%s cannot say what there is to read: %s", self._config.name, failed)
            return before

    async def _splits(self) -> list[Split]:
        calls = Calls(self._configured.make())
        source = cast("Source[Any]", calls.connector)
        try:
            await calls.call(source.start)
            return list(await calls.call(source.splits))
        finally:
            await calls.stop()

    def _seats(self, splits: Sequence[Split]) -> list[Seat]:
        """Of a new generation."""
        drawn = (self._process.clock.now_ms() << CHANCE_BITS) | (new_seed() & ((1 << CHANCE_BITS) - 1))
        self._generation = max(self._generation + 1, drawn)
        by_id = {split.id: split for split in splits}
        shares = share(list(by_id), self._config.tasks_max, self._at)
        self._at = {split: task for task, own in enumerate(shares) for split in own}
        return [self._seat(task, [by_id[split] for split in own]) for task, own in enumerate(shares)]

    def _seat(self, task: int, splits: Sequence[Split]) -> Seat:
        config, process = self._config, self._process
        generation = self._generation

        def make(on_open: Callable[[], None], on_commit: Callable[[], None]) -> Loop:
            place = SourcePlace(
                config.name,
                task,
                generation,
                config.offsets_storage_topic,
                config.topic_creation_enable,
                config.exactly_once,
                config.offset_flush_interval_ms,
            )
            log = SdkSourceLog(process.config, place, process.topics, process.clock)
            origin = Origin(config.name, task, self._configured.name, config.topic)
            pipeline = ChunkPipeline(self._configured.converting(), origin)
            outside = SourceOutside(log, pipeline, process.clock, Failpoints())
            source = cast("Source[Any]", self._configured.make())
            loop = SourceTask(source, splits, outside, self._settings(), on_open=on_open, on_commit=on_commit)
            return _SourceLoop(loop)

        life = TaskLife(_RESTART, config.errors_restart_max)
        return Seat(f"task {task} of {config.name}", make, process.clock, life)

    def _settings(self) -> SourceTaskSettings:
        config = self._config
        return SourceTaskSettings(
            Rules(
                boundary=config.transaction_boundary,
                interval_ms=config.offset_flush_interval_ms,
                retry_timeout_ms=config.errors_retry_timeout,
                retry_delay_ms_max=config.errors_retry_delay_max_ms,
            ),
            poll_interval_ms=config.poll_interval_ms,
            tolerates=config.errors_tolerance == "all",
            dead_letter_topic=config.errors_deadletterqueue_topic_name or None,
            dead_letter_headers=config.errors_deadletterqueue_context_headers_enable,
            logs_errors=config.errors_log_enable,
        )


# --- sinks ----------------------------------------------------------------------------------------------------------


class _SinkLoop:
    """Satisfies ``Loop``: a sink's task and its clients, which are made when it runs."""

    def __init__(self, open_task: Callable[[AsyncExitStack], Awaitable[SinkTask]]) -> None:
        self._open_task = open_task
        self._task: SinkTask | None = None
        self._closing = False

    async def run(self) -> None:
        """See ``Loop``."""
        async with AsyncExitStack() as stack:
            self._task = await self._open_task(stack)
            if self._closing:
                self._task.close()
            await self._task.run()

    @property
    def is_idle(self) -> bool:
        """See ``Loop``."""
        return self._task is not None and self._task.is_idle

    def suspend(self) -> None:
        """See ``Loop``."""
        if self._task is not None:
            self._task.suspend()

    def resume(self) -> None:
        """See ``Loop``."""
        if self._task is not None:
            self._task.resume()

    def close(self) -> None:
        """See ``Loop``."""
        self._closing = True
        if self._task is not None:
            self._task.close()


class _Sinks:
    """A sink: as many members of its group as tasks."""

    def __init__(self, process: Process, configured: Configured, config: SinkConfig) -> None:
        self._process = process
        self._configured = configured
        self._config = config

    async def run(self, stop: asyncio.Event, *, until_idle: bool) -> None:
        count = min(self._config.tasks_max, max(1, await self._partitions()))
        async with TaskRunner() as runner:
            seats = _Seats([self._seat(task) for task in range(count)], self._process.clock, runner)
            try:
                await seats.wait(stop, None, until_idle=until_idle)
            finally:
                await seats.close()

    async def _partitions(self) -> int:
        """Of the topics that there are; with a pattern, nobody knows how many there will be."""
        if self._config.topics_regex:
            return self._config.tasks_max
        return sum([await self._process.topics.partitions(topic) for topic in self._config.topics])

    def _seat(self, task: int) -> Seat:
        def make(on_open: Callable[[], None], on_commit: Callable[[], None]) -> Loop:
            return _SinkLoop(partial(self._open, task, on_open, on_commit))

        life = TaskLife(_RESTART, self._config.errors_restart_max)
        return Seat(f"task {task} of {self._config.name}", make, self._process.clock, life)

    async def _open(
        self, task: int, on_open: Callable[[], None], on_commit: Callable[[], None], stack: AsyncExitStack
    ) -> SinkTask:
        config, process = self._config, self._process
        group = SdkGroup(process.config, config.name, config.topics, config.topics_regex, config.auto_offset_reset)
        stack.push_async_callback(group.close)
        dead = None
        if config.errors_deadletterqueue_topic_name:
            dead = SdkDeadLetters(process.config, config.name, task, process.topics, process.clock)
            stack.push_async_callback(dead.close)
        sink = cast("Sink[Any]", self._configured.make())
        pipeline = TablePipeline(self._configured.converting())
        outside = SinkOutside(group, pipeline, dead, process.clock, Failpoints())
        return SinkTask(sink, outside, self._settings(sink, task), on_open=on_open, on_commit=on_commit)

    def _settings(self, sink: Sink[Any], task: int) -> SinkTaskSettings:
        config = self._config
        interval_ms = config.offset_flush_interval_ms
        rules = SinkRules(
            keeps_positions=sink.guarantee is Guarantee.POSITIONS,
            tolerates=config.errors_tolerance == "all",
            interval_ms=sink.commit_interval_ms if interval_ms is None else interval_ms,
            rows_max=sink.commit_rows,
            retry_timeout_ms=config.errors_retry_timeout,
            retry_delay_ms_max=config.errors_retry_delay_max_ms,
        )
        return SinkTaskSettings(
            config.name,
            task,
            rules,
            dead_letter_topic=config.errors_deadletterqueue_topic_name,
            dead_letter_headers=config.errors_deadletterqueue_context_headers_enable,
            logs_errors=config.errors_log_enable,
        )
