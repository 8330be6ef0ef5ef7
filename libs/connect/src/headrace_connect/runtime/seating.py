"""Makes a connector's tasks: seats whose loops have clients of a cluster. One process and hosts use the same."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any, Final, cast

from headrace import aio
from headrace_common.runtime.clock import Clock, SystemClock
from headrace_common.runtime.failpoints import failpoint
from headrace_common.runtime.tracing import open_tracer
from headrace_connect.core.counts import Counts
from headrace_connect.core.dead_letters import Origin
from headrace_connect.core.events import Event, Notify
from headrace_connect.core.names import group_of
from headrace_connect.core.sink_commit import SinkRules
from headrace_connect.core.source_commit import Rules
from headrace_connect.core.source_steps import CloseAsked, ResumeAsked, SuspendAsked
from headrace_connect.core.task import TaskLife
from headrace_connect.plugin import Guarantee, Sink, Source, Split
from headrace_connect.runtime.adapters.jobs import find_jobs
from headrace_connect.runtime.adapters.prepared import SdkPrepared
from headrace_connect.runtime.adapters.sink_group import SdkDeadLetters, SdkGroup
from headrace_connect.runtime.adapters.source_log import SdkSourceLog, SdkUnits, SourcePlace
from headrace_connect.runtime.adapters.spans import TracedSink, TracedSource, TracedTask
from headrace_connect.runtime.adapters.topics import SdkTopics
from headrace_connect.runtime.config import ConnectorConfig, RunConfig, SinkConfig, SourceConfig
from headrace_connect.runtime.configuring import Configured
from headrace_connect.runtime.converting import ChunkPipeline, Converting, TablePipeline
from headrace_connect.runtime.measuring import StageTimes, TimedTransforms
from headrace_connect.runtime.polling import Polls
from headrace_connect.runtime.seat import Loop, Seat
from headrace_connect.runtime.sending import BadRecords
from headrace_connect.runtime.sink_task import SinkOutside, SinkTask, SinkTaskSettings
from headrace_connect.runtime.source_task import SourceOutside, SourceTask, SourceTaskSettings
from headrace_connect.runtime.watching import RESTART

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer

_log: Final = logging.getLogger(__name__)
Fresh = Callable[[], Configured]
"""Gives a connector's configuration with the secrets of now; asked at each start of a task."""
Signal = Callable[[], None]
OnTopic = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Hooks:
    """What a task calls, and where it counts."""

    on_change: Signal = lambda: None
    """See ``Seat``."""
    on_topic: OnTopic = lambda _: None
    """With the topic of each batch of records that it reads or writes."""
    on_event: Notify = lambda event: _log.info("%s: %s", event.kind, event.text)
    """What the connector tells; called on the event loop."""
    counts: Counts = field(default_factory=Counts)


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
    prepared: SdkPrepared
    clock: Clock
    polls: Polls | None = None
    """Of sources. None: each for itself."""
    tracer: Tracer | None = None
    """None: nothing is traced."""


@contextmanager
def open_spans() -> Iterator[Tracer | None]:
    """What makes spans of tasks, where the environment names a collector."""
    with ExitStack() as stack:
        tracer = None
        try:
            tracer = stack.enter_context(open_tracer("connect", f"{socket.gethostname()}-{os.getpid()}"))
        except ImportError as error:
            _log.warning("nothing is traced: pip install 'headrace-connect[tracing]' (%s)", error)
        yield tracer


@asynccontextmanager
async def open_process(config: RunConfig) -> AsyncIterator[Process]:
    """Connected to the cluster."""
    clock = SystemClock()
    with open_spans() as tracer:
        async with (
            aio.AdminClient(config.bootstrap_servers, default_api_timeout_ms=config.default_api_timeout_ms) as admin,
            Polls(clock) as polls,
        ):
            topics = SdkTopics(admin, clock, config.bootstrap_servers)
            prepared = SdkPrepared(admin, clock, config.default_api_timeout_ms)
            yield Process(config, topics, prepared, clock, polls, tracer)


async def count_sink_tasks(process: Process, config: SinkConfig) -> int:
    """
    How many tasks of a sink have something to do: as many as its topics that there are have partitions, and one at
    least. With a pattern, nobody knows how many there will be.
    """
    if config.topics_regex:
        return config.tasks_max
    partitions = sum([await process.topics.partitions(topic) for topic in config.topics])
    return min(config.tasks_max, max(1, partitions))


@dataclass(frozen=True, slots=True)
class Part:
    """What a task has of its connector."""

    task: int
    splits: Sequence[Split] = ()
    """Of a source."""
    generation: int = 0
    """Of a source."""
    until_idle: bool = False
    """Of a sink: it ends when there is nothing more, so it commits then, even if it would wait for more."""


def make_seat(process: Process, fresh: Fresh, config: ConnectorConfig, part: Part, hooks: Hooks | None = None) -> Seat:
    """
    A task that is not running yet.

    Args:
        config: as ``fresh`` gave it once.
    """
    hooks = hooks or Hooks()
    make = partial(_source_loop if isinstance(config, SourceConfig) else _sink_loop, process, fresh, part, hooks)
    life = TaskLife(RESTART, config.errors_restart_max)
    return Seat(f"task {part.task} of {config.name}", make, process.clock, life, hooks.on_change)


def _on_loop(notify: Notify) -> Notify:
    """The same for any thread."""
    loop = asyncio.get_running_loop()

    def call(event: Event) -> None:
        loop.call_soon_threadsafe(notify, event)

    return call


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


def _source_loop(process: Process, fresh: Fresh, part: Part, hooks: Hooks, on_open: Signal, on_commit: Signal) -> Loop:
    configured = fresh()
    config = configured.config
    assert isinstance(config, SourceConfig), "what a connector is does not change"
    place = SourcePlace(
        config.name,
        part.task,
        part.generation,
        config.offsets_storage_topic or process.config.offset_storage_topic,
        config.topic_creation_enable,
        config.exactly_once,
        _timeout_ms(process, config),
    )
    log = SdkSourceLog(process.config, place, process.topics, process.clock)
    origin = Origin(config.name, part.task, configured.name, config.topic)
    times = StageTimes(hooks.counts, process.clock)
    pipeline = ChunkPipeline(_timed(configured, times), origin)
    source = cast("Source[Any]", configured.make())
    spans = None
    if process.tracer is not None:
        spans = TracedSource(process.tracer, TracedTask(config.name, part.task), copies=source.copies)
    outside = SourceOutside(log, pipeline, process.clock, Failpoints(), process.polls, times, spans)
    source.traces = spans is not None
    source.topics = process.topics
    source.units = SdkUnits(process.config, config.name, log, process.clock)
    source.jobs = find_jobs(f"{process.config.bootstrap_servers} {process.config.group_id}", configured.texts)
    source.notify = _on_loop(hooks.on_event)
    settings = _source_settings(config, part.task, place.timeout_ms)
    task = SourceTask(
        source,
        part.splits,
        outside,
        settings,
        on_open=on_open,
        on_commit=on_commit,
        on_topic=hooks.on_topic,
        counts=hooks.counts,
    )
    return _SourceLoop(task)


def _timed(configured: Configured, times: StageTimes) -> Converting:
    converting = configured.converting()
    return replace(converting, transforms=TimedTransforms(converting.transforms, times))


def _timeout_ms(process: Process, config: SourceConfig) -> int:
    """How long a transaction may be open."""
    default_ms = process.config.transaction_timeout_ms + config.offset_flush_interval_ms
    return config.transaction_timeout_ms or default_ms


def _source_settings(config: SourceConfig, task: int, timeout_ms: int) -> SourceTaskSettings:
    return SourceTaskSettings(
        Rules(
            boundary=config.transaction_boundary,
            interval_ms=config.offset_flush_interval_ms,
            retry_timeout_ms=config.errors_retry_timeout,
            retry_delay_ms_max=config.errors_retry_delay_max_ms,
            open_ms_max=timeout_ms if config.exactly_once else inf,
        ),
        poll_interval_ms=config.poll_interval_ms,
        bad=BadRecords(
            config.name,
            task,
            tolerates=config.errors_tolerance == "all",
            topic=config.errors_deadletterqueue_topic_name or None,
            headers=config.errors_deadletterqueue_context_headers_enable,
            logs=config.errors_log_enable,
        ),
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


def _sink_loop(process: Process, fresh: Fresh, part: Part, hooks: Hooks, on_open: Signal, on_commit: Signal) -> Loop:
    return _SinkLoop(partial(_open_sink, process, fresh(), part, hooks, on_open, on_commit))


async def _open_sink(
    process: Process,
    configured: Configured,
    part: Part,
    hooks: Hooks,
    on_open: Signal,
    on_commit: Signal,
    stack: AsyncExitStack,
) -> SinkTask:
    config = configured.config
    assert isinstance(config, SinkConfig), "what a connector is does not change"
    group = SdkGroup(process.config, config.name, config.topics, config.topics_regex, config.auto_offset_reset)
    stack.push_async_callback(group.close)
    dead = None
    if config.errors_deadletterqueue_topic_name:
        dead = SdkDeadLetters(process.config, config.name, part.task, process.topics, process.clock)
        stack.push_async_callback(dead.close)
    sink = cast("Sink[Any]", configured.make())
    sink.notify = _on_loop(hooks.on_event)
    times = StageTimes(hooks.counts, process.clock)
    spans = None
    if process.tracer is not None:
        spans = TracedSink(process.tracer, TracedTask(config.name, part.task), group_of(config.name))
    sink.traces = spans is not None
    pipeline = TablePipeline(_timed(configured, times))
    outside = SinkOutside(group, pipeline, dead, process.clock, Failpoints(), times, spans)
    settings = _sink_settings(config, sink, part)
    return SinkTask(
        sink,
        outside,
        settings,
        on_open=on_open,
        on_commit=on_commit,
        on_topic=hooks.on_topic,
        counts=hooks.counts,
    )


def _sink_settings(config: SinkConfig, sink: Sink[Any], part: Part) -> SinkTaskSettings:
    interval_ms = config.offset_flush_interval_ms
    rules = SinkRules(
        keeps_positions=sink.guarantee is Guarantee.POSITIONS,
        tolerates=config.errors_tolerance == "all",
        interval_ms=sink.commit_interval_ms if interval_ms is None else interval_ms,
        rows_max=sink.commit_rows,
        bytes_max=sink.commit_bytes,
        drained=sink.commit_drained or part.until_idle,
        retry_timeout_ms=config.errors_retry_timeout,
        retry_delay_ms_max=config.errors_retry_delay_max_ms,
    )
    return SinkTaskSettings(
        config.name,
        part.task,
        rules,
        dead_letter_topic=config.errors_deadletterqueue_topic_name,
        dead_letter_headers=config.errors_deadletterqueue_context_headers_enable,
        logs_errors=config.errors_log_enable,
    )
