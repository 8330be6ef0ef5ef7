"""Runs connectors in child processes: ``core.hosting`` decides which does what, ``host_process`` is one of them."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

from headrace.records import TopicPartition
from headrace_common.runtime.clock import Clock, limit_ms
from headrace_common.runtime.tasks import TaskRunner
from headrace_common.runtime.tracing import ENDPOINT_VARIABLE
from headrace_connect.core import host_messages as messages
from headrace_connect.core.errors import Fault
from headrace_connect.core.host_messages import Report
from headrace_connect.core.names import PLUGIN_PATH, SPARK_APPLICATION
from headrace_connect.core.progress import Progress
from headrace_connect.settings import Definition
from headrace_connect_worker.adapters.environments import Environment, Environments
from headrace_connect_worker.adapters.host_events import HostEvents, task_reported, watch_failed, work_found
from headrace_connect_worker.adapters.host_output import Whose
from headrace_connect_worker.adapters.host_process import MORE_MS, HostProcess, HostSettings
from headrace_connect_worker.adapters.host_starts import HostStarts
from headrace_connect_worker.adapters.plugin_questions import PluginQuestions
from headrace_connect_worker.config import ConnectConfig, HostLimits
from headrace_connect_worker.core.host_figures import HostFigures
from headrace_connect_worker.core.hosting import Hosting, HostNumber, Work
from headrace_connect_worker.core.records import RunState, TargetState
from headrace_connect_worker.core.seat import BACKOFF
from headrace_connect_worker.ports import (
    Config,
    HostCrashed,
    HostEvent,
    HostUnavailable,
    Plugin,
    StartTask,
    TaskReported,
    Validation,
    WatchFailed,
)

MEMORY_BYTES_MAX: Final = 2 << 30
"""The default of ``task.memory.max``."""
_log: Final = logging.getLogger(__name__)


@dataclass(slots=True)
class _Running:
    """A task or a watch that a host has."""

    config: Config
    number: int
    """A task's generation, or a watch's offset of the configuration."""
    stopping: bool = False
    ended: asyncio.Event = field(default_factory=asyncio.Event)


class HostProcesses:
    """Satisfies ``Hosts``. ``async with`` it."""

    def __init__(self, settings: HostSettings, limits: HostLimits, clock: Clock) -> None:
        self.figures = HostFigures()
        """What hosts have counted."""
        self._settings = settings
        self._limits = limits
        self._clock = clock
        self._environments = Environments([Path(folder) for folder in limits.plugin_path])
        self._starts = HostStarts(settings.variables, settings.end_ms + MORE_MS, clock)
        self._questions = PluginQuestions(settings, limits, self._environments, self._starts, clock)
        self._hosting = Hosting(limits.worker_hosts_max)
        self._hosts: dict[HostNumber, HostProcess] = {}
        self._work: dict[Work, _Running] = {}
        self._runner = TaskRunner()
        self._events = HostEvents()
        self._watch_losses: dict[str, int] = {}

    @classmethod
    def of(cls, config: ConnectConfig, clock: Clock) -> HostProcesses:
        """As a worker's settings say."""
        limits = config.processes
        cluster = {
            "bootstrap_servers": config.bootstrap_servers,
            "group_id": config.group_id,
            "default_api_timeout_ms": config.call_ms_max,
            "offset_storage_topic": config.topics.offset_storage_topic,
        }
        traced = {} if config.otlp_endpoint is None else {ENDPOINT_VARIABLE: config.otlp_endpoint}
        settings = HostSettings(
            cluster,
            silence_ms=limits.host_silence_ms_max,
            end_ms=limits.task_stop_ms_max,
            directories=config.reach.config_providers_file_allowed_paths,
            names=config.reach.env_allowed,
            variables={
                **os.environ,
                PLUGIN_PATH: ",".join(limits.plugin_path),
                SPARK_APPLICATION: limits.spark_application,
                **traced,
            },
        )
        return cls(settings, limits, clock)

    @property
    def variables(self) -> Mapping[str, str]:
        """Of the environment of hosts."""
        return self._settings.variables

    async def __aenter__(self) -> HostProcesses:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    def warm(self) -> None:
        """Have ready what hosts need, so that the first ones start as fast as others."""
        self._starts.warm()

    # --- tasks ----------------------------------------------------------------------------------------------------

    async def start(self, task: StartTask) -> None:
        """See ``Hosts``."""
        work = Work(task.connector, task.task)
        splits = tuple(messages.SplitForm(split.id, split.detail) for split in task.splits)
        paused = task.target is TargetState.PAUSED
        command = messages.StartTask(task.connector, task.task, task.config, splits, task.generation, paused)
        await self._give(work, _Running(task.config, task.generation), command)

    async def set_target(self, connector: str, task: int, target: TargetState) -> None:
        """See ``Hosts``."""
        work = Work(connector, task)
        if work in self._work:
            paused = target is TargetState.PAUSED
            kind = messages.PauseTask if paused else messages.ResumeTask
            self._tell(work, kind(connector, task))

    async def stop(self, connector: str, task: int) -> None:
        """See ``Hosts``."""
        work = Work(connector, task)
        running = self._work.get(work)
        if running is None:
            return
        running.stopping = True
        self._events.drop(work)
        self._tell(work, messages.StopTask(connector, task))
        try:
            async with limit_ms(self._limits.task_stop_ms_max):
                await running.ended.wait()
        except TimeoutError:
            number = self._hosting.find(work)
            if number is not None:
                limit = self._limits.task_stop_ms_max
                self._forget(work)
                self._hosts[number].kill(f"task {task} of {connector} did not end within {limit} ms")

    # --- watches --------------------------------------------------------------------------------------------------

    async def watch(self, connector: str, config: Config, config_offset: int) -> None:
        """See ``Hosts``."""
        work = Work(connector, None)
        self._watch_losses.pop(connector, None)
        running = _Running(config, config_offset)
        command = messages.Watch(connector, config_offset, config)
        number = self._hosting.find(work)
        if number is not None and self._hosting.environment(number) == self._environment_of(config).name:
            self._work[work] = running
            self._hosts[number].send(command)
            return
        await self.unwatch(connector)
        await self._give(work, running, command)

    async def unwatch(self, connector: str) -> None:
        """See ``Hosts``."""
        work = Work(connector, None)
        self._watch_losses.pop(connector, None)
        if work in self._work:
            self._tell(work, messages.Unwatch(connector))
            self._forget(work)

    async def _watch_again(self, work: Work, running: _Running) -> None:
        """After its host has died, where the connector's tasks are in others."""
        losses = self._watch_losses[work.connector] = self._watch_losses.get(work.connector, 0) + 1
        await self._clock.sleep_ms(BACKOFF.wait_ms(losses))
        if self._watch_losses.get(work.connector) != losses:
            return  # it was watched or unwatched meanwhile
        try:
            again = _Running(running.config, running.number)
            await self._give(work, again, messages.Watch(work.connector, running.number, running.config))
        except HostUnavailable as error:
            self._events.emit(WatchFailed(work.connector, running.number, Fault.WORLD, str(error)))
            self._runner.start(self._watch_again(work, running), name="watch a connector again")

    # --- hosts ----------------------------------------------------------------------------------------------------

    def _environment_of(self, config: Config) -> Environment:
        return self._environments.find(config.get("connector.class", ""))

    async def _give(self, work: Work, running: _Running, command: messages.Command) -> None:
        """
        Have a host do it.

        Raises:
            HostUnavailable: nothing of it is left.
        """
        environment = self._environment_of(running.config)
        alone = running.config.get("isolation") == "task"
        number, is_new = self._hosting.place(work, environment.name, alone=alone)
        if is_new:
            self._begin(number, work.connector, environment)
        self._work[work] = running
        host = self._hosts[number]
        self._limit_memory(number)
        try:
            await host.opened()
            host.send(command)
        except BaseException:
            if self._work.get(work) is running:
                self._forget(work)
            raise

    def _begin(self, number: HostNumber, label: str, environment: Environment) -> None:
        def on_report(report: Report) -> None:
            self.figures.look(number, label, host.memory)
            self._hear(number, report)

        start = partial(self._starts.start, environment)
        host = self._hosts[number] = HostProcess(
            label, start, self._settings, self._clock, on_report, lambda: Whose(*self._hosting.alone(number))
        )
        self._runner.start(self._keep(number, host), name=f"host of {label}")

    async def _keep(self, number: HostNumber, host: HostProcess) -> None:
        trace = await host.run()
        del self._hosts[number]
        self.figures.lose(number)
        lost = self._hosting.lose(number)
        if not lost or not host.was_open:
            return
        _log.warning("the host of %s has ended: %s", ", ".join(sorted({work.connector for work in lost})), trace)
        left = {work: self._work.pop(work) for work in lost}
        for work, running in left.items():
            self.figures.forget(work)
            running.ended.set()
        self.figures.crashes += not all(running.stopping for running in left.values())
        for connector in sorted({work.connector for work in left}):
            self._lose(connector, {work: one for work, one in left.items() if work.connector == connector}, trace)

    def _lose(self, connector: str, left: Mapping[Work, _Running], trace: str) -> None:
        if not any(work.connector == connector for work in self._work):
            if not all(running.stopping for running in left.values()):
                self._events.emit(HostCrashed(connector, trace))
            return
        for work, running in left.items():  # other tasks of it go on, in other hosts
            if work.task is None:
                self._events.emit(WatchFailed(connector, running.number, Fault.WORLD, trace))
                self._runner.start(self._watch_again(work, running), name="watch a connector again")
            elif not running.stopping:
                self._events.emit(TaskReported(connector, work.task, running.number, RunState.UNASSIGNED, trace))

    def _forget(self, work: Work) -> None:
        """It is not done any more; its host ends when nothing else is done there."""
        running = self._work.pop(work, None)
        self.figures.forget(work)
        if running is not None:
            running.ended.set()
        number = self._hosting.find(work)
        emptied = self._hosting.remove(work)
        if emptied is not None:
            self._runner.start(self._hosts[emptied].end(), name="end a host")
        elif number is not None:
            self._limit_memory(number)

    def _limit_memory(self, number: HostNumber) -> None:
        limits = [_memory_max(self._work[work].config) for work in self._hosting.work(number) if work in self._work]
        self._hosts[number].memory_max = 0 if 0 in limits else sum(limits)

    def _tell(self, work: Work, command: messages.Command) -> None:
        """Where its host is just ending, that is heard of otherwise."""
        number = self._hosting.find(work)
        if number is not None and self._hosts[number].was_open:
            try:
                self._hosts[number].send(command)
            except HostUnavailable as error:
                _log.info("%s is not told to a host: %s", type(command).__name__, error)

    # --- reports --------------------------------------------------------------------------------------------------

    def _hear(self, number: HostNumber, report: Report) -> None:
        match report:
            case messages.Pong(_, counted):
                self.figures.take(counted, self._hosting.work(number))
            case messages.TaskReport():
                self._hear_task(number, report)
            case messages.TopicSeen(connector, task):
                if not self._work.get(Work(connector, task), _GONE).stopping:
                    self._events.emit(report)
            case messages.Told():
                self._events.emit(report)
            case messages.WatchReport():
                if self._is_current(report.connector, report.number):
                    self._events.emit(work_found(report))
            case messages.WatchFailed():
                if self._is_current(report.connector, report.number):
                    self._events.emit(watch_failed(report))

    def _hear_task(self, number: HostNumber, report: messages.TaskReport) -> None:
        work = Work(report.connector, report.task)
        running = self._work.get(work)
        if running is None or self._hosting.find(work) != number:
            return
        ended = report.state.value == RunState.UNASSIGNED.value
        if not running.stopping and report.generation == running.number:
            self._events.emit(task_reported(report))
        if ended:
            self._forget(work)

    def _is_current(self, connector: str, number: int) -> bool:
        running = self._work.get(Work(connector, None))
        return running is not None and running.number == number

    def events(self) -> AsyncIterator[HostEvent]:
        """See ``Hosts``."""
        return self._events.follow(self._runner)

    # --- questions ------------------------------------------------------------------------------------------------

    async def validate(self, config: Config, *, ask: bool = True) -> Validation:
        """See ``Hosts``."""
        return await self._questions.validate(config, ask=ask)

    async def describe(self, plugin: str) -> tuple[Definition, ...]:
        """See ``Hosts``."""
        return await self._questions.describe(plugin)

    async def plugins(self) -> Sequence[Plugin]:
        """See ``Hosts``."""
        return await self._questions.plugins()

    async def preview(self, config: Config, records_max: int) -> Sequence[Mapping[str, Any]]:
        """See ``Hosts``."""
        return await self._questions.preview(config, records_max)

    async def settle(self, config: Config) -> int:
        """See ``Hosts``."""
        return await self._questions.settle(config)

    async def rewind(
        self, config: Config, positions: Mapping[TopicPartition, int | None], *, forget_others: bool
    ) -> int:
        """See ``Hosts``."""
        return await self._questions.rewind(config, positions, forget_others=forget_others)

    async def verify(
        self,
        config: Config,
        topics: Sequence[str],
        records_max: int,
        *,
        repair: bool,
        tell: Callable[[Progress], None],
    ) -> Mapping[str, Any]:
        """See ``Hosts``."""
        return await self._questions.verify(config, topics, records_max, repair=repair, tell=tell)

    async def snapshot(self, config: Config, tables: Sequence[str]) -> Sequence[str]:
        """See ``Hosts``."""
        return await self._questions.snapshot(config, tables)

    async def close(self) -> None:
        """See ``Hosts``."""
        hosts = list(self._hosts.values())
        for running in self._work.values():
            running.stopping = True
        self._starts.stop()
        if hosts:
            await asyncio.gather(*(host.end() for host in hosts))
        await self._runner.close()
        await self._starts.close()


_GONE: Final = _Running({}, 0, stopping=True)


def _memory_max(config: Config) -> int:
    """Of a task, as its configuration says; what is wrong in it is said by its host."""
    try:
        return max(0, int(config.get("task.memory.max", MEMORY_BYTES_MAX)))
    except ValueError:
        return MEMORY_BYTES_MAX
