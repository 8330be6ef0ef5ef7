"""What a host does for connectors: it runs tasks, and watches what there is to do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from headrace_common.runtime.clock import limit_ms
from headrace_connect.core.backoff import Backoff
from headrace_connect.core.counts import Counts
from headrace_connect.core.errors import Fault
from headrace_connect.core.events import EVENTS_MAX, TEXT_CHARS_MAX, Event
from headrace_connect.core.host_messages import (
    Kind,
    Report,
    SplitForm,
    StartTask,
    TaskCounts,
    TaskReport,
    Told,
    TopicSeen,
    Watch,
    WatchFailed,
    WatchReport,
)
from headrace_connect.core.host_protocol import MessageTooLarge
from headrace_connect.core.task import State, Target
from headrace_connect.plugin import Sink, Split
from headrace_connect.runtime import watching
from headrace_connect.runtime.config import SinkConfig, SourceConfig
from headrace_connect.runtime.configuring import Configured, configure
from headrace_connect.runtime.failing import TaskFailed, failed_by, sound, trace_of
from headrace_connect.runtime.log_names import name_in_logs
from headrace_connect.runtime.seat import Seat
from headrace_connect.runtime.seating import Hooks, Part, Process, count_sink_tasks, make_seat
from headrace_connect.runtime.settling import settle_left
from headrace_connect.secrets import has_reference
from headrace_connect.settings import Secrets

SINK_RESCAN_MS: Final = 60_000
"""How often it is asked how many partitions a sink's topics have."""
EMPTY: Final = Backoff(1_000, 10_000)
"""The same of a source that has nothing to read yet: what it is to read often comes a moment after it."""
_WORKS: Final = frozenset({State.RUNNING, State.PAUSED})
TOPICS_MAX: Final = 10_000
"""Of a task; further ones are not reported."""


@dataclass(frozen=True, slots=True)
class Given:
    """What all work of a host is given."""

    process: Process
    secrets: Secrets
    report: Callable[[Report], None]


class HostedTask:
    """A task of a host, from its start to its end."""

    def __init__(self, command: StartTask, given: Given) -> None:
        self._command = command
        self._given = given
        self._target = Target.PAUSED if command.paused else Target.RUNNING
        self._seat: Seat | None = None
        self._stopping = False
        self._reported: TaskReport | None = None
        self._topics: set[str] = set()
        self._events = 0
        self._counts = Counts()
        self._told: Counts | None = None

    async def run(self, before: asyncio.Task[None] | None) -> None:
        """
        Until it has ended, or failed for good.

        Args:
            before: an earlier one of the same name, which ends first.
        """
        name_in_logs(self._command.connector, self._command.task)
        if before is not None:
            await asyncio.wait([before])
        if self._stopping:
            self._report(State.UNASSIGNED)
            return
        try:
            config = self._fresh().config
        except Exception as error:  # noqa: BLE001 - whatever the module of a connector does
            self._failed_early(error)
            return
        command = self._command
        part = Part(command.task, [Split(one.id, one.detail) for one in command.splits], command.generation)
        hooks = Hooks(self._changed, self._saw, self._heard, self._counts)
        self._seat = make_seat(self._given.process, self._fresh, config, part, hooks)
        self._seat.life.target = self._target
        await self._seat.run()

    def stop(self) -> None:
        """Have it end; the last report says ``UNASSIGNED``."""
        self._stopping = True
        if self._seat is not None:
            self._seat.close()
        elif self._reported is not None:  # it has failed before it had a seat
            self._report(State.UNASSIGNED)

    def change(self, target: Target) -> None:
        """Pause or resume it."""
        self._target = target
        if self._seat is not None:
            self._seat.change(target)

    def counted(self) -> TaskCounts | None:
        """What it has counted; None: nothing since it was asked last."""
        if self._told == self._counts:
            return None
        self._told = replace(self._counts)
        return TaskCounts(self._command.connector, self._command.task, self._told)

    def _fresh(self) -> Configured:
        return configure(self._command.config, self._given.secrets)

    def _failed_early(self, error: Exception) -> None:
        failed = failed_by(error)
        self._report(State.FAILED, sound(str(failed)), trace_of(error), failed.fault)
        if self._stopping:
            self._report(State.UNASSIGNED)

    def _changed(self) -> None:
        seat = self._seat
        assert seat is not None, "only a seat changes"
        life = seat.life
        if life.state is State.RESTARTING and self._reported is not None and self._reported.state is not life.state:
            self._counts.restarts += 1
        if life.state in _WORKS or not life.reason:
            self._report(life.state)
            return
        wait_ms = 0.0
        if life.due_ms is not None:
            wait_ms = max(0.0, life.due_ms - self._given.process.clock.monotonic_ms())
        self._report(life.state, sound(life.reason), seat.trace, seat.fault, int(wait_ms))

    def _report(
        self, state: State, reason: str = "", trace: str = "", fault: Fault | None = None, wait_ms: int = 0
    ) -> None:
        command, seat = self._command, self._seat
        restarts = 0 if seat is None else seat.life.restarts
        report = TaskReport(
            command.connector, command.task, command.generation, state, reason, trace, fault, restarts, wait_ms
        )
        if self._reported is None or report != self._reported:
            self._reported = report
            self._given.report(report)

    def _heard(self, event: Event) -> None:
        self._events += 1
        if self._events <= EVENTS_MAX:
            detail = {sound(key): sound(str(value))[:TEXT_CHARS_MAX] for key, value in event.detail.items()}
            text = sound(event.text)[:TEXT_CHARS_MAX]
            self._given.report(Told(self._command.connector, self._command.task, sound(event.kind), text, detail))

    def _saw(self, topic: str) -> None:
        if topic not in self._topics and len(self._topics) < TOPICS_MAX:
            self._topics.add(topic)
            self._given.report(TopicSeen(self._command.connector, self._command.task, topic))


class HostedWatch:
    """A connector that a host watches."""

    def __init__(self, command: Watch, given: Given) -> None:
        self._command = command
        self._given = given
        self._stop = asyncio.Event()
        self._reported: WatchReport | None = None
        self._configured: Configured | None = None
        """As long as it is the same for good."""

    async def run(self) -> None:
        """Until it is stopped, or asking does not help any more."""
        name_in_logs(self._command.connector)
        try:
            await self._watch()
        except Exception as error:  # noqa: BLE001 - whatever a connector does
            self._failed(error)

    def stop(self) -> None:
        """Ask no more."""
        self._stop.set()

    def _fresh(self) -> Configured:
        if self._configured is not None:
            return self._configured
        config = self._command.config
        configured = configure(config, self._given.secrets)
        if not any(has_reference(text) for text in config.values()):
            self._configured = configured
        return configured

    async def _watch(self) -> None:
        configured = self._fresh()
        config, name = configured.config, self._command.connector
        if isinstance(config, SourceConfig):
            ask = partial(watching.ask_splits, self._fresh, self._given.process.topics)
            splits = watching.Watch(ask, name, self._failed)
            found, empty = await splits.first(self._stop), 0
            while not self._stop.is_set():
                if found is not None:
                    self._found_splits(found, config)
                    empty = 0 if found else empty + 1
                soon_ms = EMPTY.wait_ms(empty) if empty else config.rescan_interval_ms
                await self._wait(min(soon_ms, config.rescan_interval_ms))
                found = await splits.again()
            return
        counts = watching.Watch(partial(count_sink_tasks, self._given.process, config), name, self._failed)
        count = await counts.first(self._stop)
        while not self._stop.is_set():
            if count is not None:
                self._found_tasks(count, configured)
                await self._settle(configured, count)
            await self._wait(SINK_RESCAN_MS)
            count = await counts.again()

    async def _settle(self, configured: Configured, count: int) -> None:
        """Of tasks that are gone; what fails is tried again with the next look."""
        process = self._given.process
        try:
            await settle_left(process.prepared, process.config.group_id, configured, count)
        except Exception as error:  # noqa: BLE001 - of the connector, or of its target
            self._failed(error)

    async def _wait(self, ms: float) -> None:
        with suppress(TimeoutError):
            async with limit_ms(ms):
                await self._stop.wait()

    def _found_splits(self, splits: Sequence[Split], config: SourceConfig) -> None:
        forms = tuple(SplitForm(split.id, split.detail) for split in splits)
        tasks = min(config.tasks_max, len(forms))
        command = self._command
        self._report(WatchReport(command.connector, command.number, Kind.SOURCE, "", tasks, forms))

    def _found_tasks(self, count: int, configured: Configured) -> None:
        assert isinstance(configured.config, SinkConfig), "it is no source"
        assert issubclass(configured.plugin, Sink), "its configuration is a sink's"
        command, guarantee = self._command, configured.plugin.guarantee.value
        self._report(WatchReport(command.connector, command.number, Kind.SINK, guarantee, count))

    def _report(self, report: WatchReport) -> None:
        if report == self._reported or self._stop.is_set():
            return
        try:
            self._given.report(report)
        except (MessageTooLarge, TypeError) as error:
            raise TaskFailed(Fault.CONFIG, f"what there is to read cannot be said to the worker: {error}") from error
        self._reported = report

    def _failed(self, error: Exception) -> None:
        self._reported = None
        if not self._stop.is_set():
            failed, command = failed_by(error), self._command
            trace = trace_of(error)
            self._given.report(WatchFailed(command.connector, command.number, failed.fault, sound(str(failed)), trace))
