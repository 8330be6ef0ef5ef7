"""What hosts report as the engine is told of it, and the queue of that."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator

from headrace_common.runtime.tasks import TaskRunner, first_of
from headrace_connect.core import host_messages as messages
from headrace_connect_worker.core.hosting import Work
from headrace_connect_worker.core.records import RunState, SplitSpec
from headrace_connect_worker.ports import HostEvent, TaskReported, WatchFailed, WorkFound


class HostEvents:
    """In the order in which they came; one reader."""

    def __init__(self) -> None:
        self._events: deque[HostEvent] = deque()
        self._news = asyncio.Event()

    def emit(self, event: HostEvent) -> None:
        """It has happened."""
        self._events.append(event)
        self._news.set()

    def drop(self, work: Work) -> None:
        """Nobody hears what a task did until now."""
        self._events = deque(event for event in self._events if not _is_of(event, work))

    async def follow(self, runner: TaskRunner) -> AsyncIterator[HostEvent]:
        """
        For good.

        Raises:
            BaseException: what a task of ``runner`` has raised.
        """
        while True:
            while self._events:
                yield self._events.popleft()
            self._news.clear()
            await first_of(self._news.wait(), runner.failed.wait())
            if runner.failure is not None:
                raise runner.failure


def _is_of(event: HostEvent, work: Work) -> bool:
    return isinstance(event, TaskReported | messages.TopicSeen) and Work(event.connector, event.task) == work


def work_found(report: messages.WatchReport) -> WorkFound:
    """Tasks are counted for sinks alone: those of sources follow from the splits."""
    splits = tuple(SplitSpec(split.id, split.detail) for split in report.splits)
    tasks = report.tasks if report.kind is messages.Kind.SINK else 0
    return WorkFound(report.connector, report.number, report.kind.value, report.guarantee, splits, tasks)


def watch_failed(report: messages.WatchFailed) -> WatchFailed:
    """Reason and trace as one text."""
    return WatchFailed(report.connector, report.number, report.fault, _joined(report.reason, report.trace))


def task_reported(report: messages.TaskReport) -> TaskReported:
    """Reason and trace as one text, and what the task waits for."""
    trace = _joined(report.reason, report.trace)
    if report.wait_ms:
        trace = f"it is started again in {report.wait_ms / 1_000:.0f} s: {trace}"
    state = RunState(report.state.value)
    return TaskReported(report.connector, report.task, report.generation, state, trace, report.fault)


def _joined(reason: str, trace: str) -> str:
    return f"{reason}\n{trace}" if trace else reason
