"""A host: does what a worker commands, and reports what becomes of it."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace

from headrace_common.runtime.clock import limit_ms
from headrace_common.runtime.tasks import TaskRunner
from headrace_connect.core.host_messages import (
    Answer,
    Command,
    Describe,
    ListPlugins,
    NoAnswer,
    Open,
    PauseTask,
    Ping,
    Pong,
    Preview,
    Question,
    Report,
    ResumeTask,
    Rewind,
    Settle,
    Snapshot,
    StartTask,
    StopTask,
    TaskReport,
    Told,
    Unwatch,
    Validate,
    Verify,
    Watch,
    WatchFailed,
)
from headrace_connect.core.host_protocol import NotAMessage
from headrace_connect.core.task import State, Target
from headrace_connect.runtime.failing import failed_by, sound, trace_of
from headrace_connect.runtime.host_answers import answer
from headrace_connect.runtime.host_link import Link, LinkLost
from headrace_connect.runtime.host_work import Given, HostedTask, HostedWatch
from headrace_connect.runtime.log_names import name_in_logs
from headrace_connect.runtime.seating import Process
from headrace_connect.settings import Secrets

TaskName = tuple[str, int]


class Host:
    """One task of the event loop calls it."""

    def __init__(self, link: Link[Report, Command], process: Process, secrets: Secrets, runner: TaskRunner) -> None:
        self._link = link
        self._runner = runner
        self._given = Given(process, secrets, self._report)
        self._tasks: dict[TaskName, tuple[HostedTask, asyncio.Task[None]]] = {}
        self._watches: dict[str, HostedWatch] = {}

    async def run(self) -> None:
        """
        Until the worker closes the pipe.

        Raises:
            NotAMessage: the worker says what nobody understands.
        """
        while (command := await self._link.receive()) is not None:
            self._handle(command)

    async def close(self, limit: float) -> bool:
        """Have all tasks commit and end; whether they have within ``limit`` ms."""
        for watch in self._watches.values():
            watch.stop()
        for task, _ in self._tasks.values():
            task.stop()
        running = [running for _, running in self._tasks.values()]
        try:
            async with limit_ms(limit):
                for one in running:
                    await asyncio.wait([one])
        except TimeoutError:
            return False
        return True

    def _handle(self, command: Command) -> None:
        match command:
            case StartTask():
                self._start(command)
            case PauseTask(connector, task):
                self._change((connector, task), Target.PAUSED)
            case ResumeTask(connector, task):
                self._change((connector, task), Target.RUNNING)
            case StopTask(connector, task):
                self._stop((connector, task))
            case Watch():
                self._unwatch(command.connector)
                watch = self._watches[command.connector] = HostedWatch(command, self._given)
                self._runner.start(watch.run(), name=f"watch {command.connector}")
            case Unwatch(connector):
                self._unwatch(connector)
            case Validate() | Preview() | Settle() | Rewind() | Verify() | Snapshot() | Describe() | ListPlugins():
                self._runner.start(self._answer(command), name="answer a question")
            case Ping(number):
                counted = (task.counted() for task, _ in self._tasks.values())
                self._report(Pong(number, tuple(one for one in counted if one is not None)))
            case Open():
                raise NotAMessage("a host is opened once")

    # --- tasks and watches ----------------------------------------------------------------------------------------

    def _start(self, command: StartTask) -> None:
        name = (command.connector, command.task)
        before: asyncio.Task[None] | None = None
        if name in self._tasks:
            other, before = self._tasks[name]
            other.stop()
        task = HostedTask(command, self._given)
        running = self._runner.start(task.run(before), name=f"task {command.task} of {command.connector}")
        self._tasks[name] = (task, running)

    def _stop(self, name: TaskName) -> None:
        found = self._tasks.get(name)
        if found is None:
            self._report(TaskReport(*name, generation=0, state=State.UNASSIGNED))
            return
        task, running = found
        task.stop()
        running.add_done_callback(lambda _: self._forget(name, task))

    def _forget(self, name: TaskName, task: HostedTask) -> None:
        if name in self._tasks and self._tasks[name][0] is task:
            del self._tasks[name]

    def _change(self, name: TaskName, target: Target) -> None:
        if name in self._tasks:
            self._tasks[name][0].change(target)

    def _unwatch(self, connector: str) -> None:
        watch = self._watches.pop(connector, None)
        if watch is not None:
            watch.stop()

    # --- reports --------------------------------------------------------------------------------------------------

    async def _answer(self, question: Question) -> None:
        if not isinstance(question, Describe | ListPlugins):
            name_in_logs(question.config.get("name", ""))
        try:
            self._report(Answer(question.id, await answer(question, self._given)))
        except Exception as error:  # noqa: BLE001 - whatever a connector does; who asked is told
            failed = failed_by(error)
            self._report(NoAnswer(question.id, failed.fault, sound(str(failed)), trace_of(error)))

    def _report(self, report: Report) -> None:
        with suppress(LinkLost):  # the host ends when it reads that
            self._link.send(_without_secrets(report, self._given.secrets))


def _without_secrets(report: Report, secrets: Secrets) -> Report:
    """Its texts for people may be those of drivers, which show what they were given."""
    match report:
        case TaskReport() | WatchFailed() | NoAnswer():
            return replace(report, reason=secrets.hide(report.reason), trace=secrets.hide(report.trace))
        case Told():
            detail = {name: secrets.hide(value) for name, value in report.detail.items()}
            return replace(report, text=secrets.hide(report.text), detail=detail)
        case Answer(_, {"problems": problems}):
            hidden = [{**one, "message": secrets.hide(one["message"])} for one in problems]
            return replace(report, result={**report.result, "problems": hidden})
    return report
