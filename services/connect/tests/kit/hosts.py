"""Hosts in memory: they do at once what they are told, and fail when a test says so."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

from headrace.records import TopicPartition
from headrace_connect.core.errors import Fault
from headrace_connect.core.progress import Progress
from headrace_connect.settings import Definition
from headrace_connect_worker.core.records import RunState, SplitSpec, TargetState
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
    WorkFound,
)


class Outer:
    """What connectors read, the same for all workers: splits of sources, tasks of sinks."""

    def __init__(self) -> None:
        self.splits: dict[str, list[str]] = {}
        self.sinks: dict[str, int] = {}
        self.errors: dict[str, tuple[Fault, str]] = {}
        self.guarantee = "at_least_once"


class MemoryHosts:
    """Satisfies ``Hosts``."""

    def __init__(self, outer: Outer) -> None:
        self.outer = outer
        self.tasks: dict[tuple[str, int], StartTask] = {}
        self.watches: dict[str, tuple[Config, int]] = {}
        self.targets: dict[tuple[str, int], TargetState] = {}
        self.calls: list[tuple[Any, ...]] = []
        self.broken: set[str] = set()
        """Hosts of these connectors do not start."""
        self.unsettled = ""
        """Why the target cannot be asked."""
        self.unwound: Exception | None = None
        """Why the target does not change its positions."""
        self.slow_start = asyncio.Event()
        self.slow_start.set()
        self.slow_stop = asyncio.Event()
        self.slow_stop.set()
        self._events: asyncio.Queue[HostEvent] = asyncio.Queue()

    async def start(self, task: StartTask) -> None:
        self.calls.append(("start", task.connector, task.task, task.generation))
        if task.connector in self.broken:
            raise HostUnavailable("exit code 1\nno module named weather")
        await self.slow_start.wait()
        assert (task.connector, task.task) not in self.tasks, "it runs already"
        self.tasks[task.connector, task.task] = task
        paused = task.target is TargetState.PAUSED
        self.report(task.connector, task.task, RunState.PAUSED if paused else RunState.RUNNING)

    def report(self, connector: str, task: int, state: RunState, trace: str = "", fault: Fault | None = None) -> None:
        generation = self.tasks[connector, task].generation
        self._events.put_nowait(TaskReported(connector, task, generation, state, trace, fault))

    def fence(self, connector: str, task: int) -> None:
        self.report(connector, task, RunState.UNASSIGNED, "a newer generation was there", Fault.FENCED)
        del self.tasks[connector, task]

    async def set_target(self, connector: str, task: int, target: TargetState) -> None:
        if (connector, task) in self.tasks:
            self.targets[connector, task] = target
            self.report(connector, task, RunState.PAUSED if target is TargetState.PAUSED else RunState.RUNNING)

    async def stop(self, connector: str, task: int) -> None:
        self.calls.append(("stop", connector, task))
        await self.slow_stop.wait()
        self.tasks.pop((connector, task), None)

    async def watch(self, connector: str, config: Config, config_offset: int) -> None:
        self.calls.append(("watch", connector, config_offset))
        if connector in self.broken:
            raise HostUnavailable("exit code 1")
        self.watches[connector] = config, config_offset
        self.look(connector)

    def look(self, connector: str) -> None:
        """The watch looks, and says what it finds."""
        if connector not in self.watches:
            return
        _, offset = self.watches[connector]
        if connector in self.outer.errors:
            self._events.put_nowait(WatchFailed(connector, offset, *self.outer.errors[connector]))
        elif connector in self.outer.sinks:
            tasks = self.outer.sinks[connector]
            self._events.put_nowait(WorkFound(connector, offset, "sink", guarantee=self.outer.guarantee, tasks=tasks))
        else:
            splits = tuple(SplitSpec(id, {"at": id}) for id in self.outer.splits.get(connector, []))
            self._events.put_nowait(WorkFound(connector, offset, "source", splits=splits))

    async def unwatch(self, connector: str) -> None:
        self.calls.append(("unwatch", connector))
        self.watches.pop(connector, None)

    def crash(self, connector: str, trace: str = "killed by signal 11") -> None:
        self.watches.pop(connector, None)
        for task in [one for one in self.tasks if one[0] == connector]:
            del self.tasks[task]
        self.late_crash(connector, trace)

    def late_crash(self, connector: str, trace: str = "killed by signal 11") -> None:
        """A host has ended, and what it did is done by another one already."""
        self._events.put_nowait(HostCrashed(connector, trace))

    async def events(self) -> AsyncIterator[HostEvent]:
        while True:
            yield await self._events.get()

    async def validate(self, config: Config, *, ask: bool = True) -> Validation:
        del ask
        return Validation(config.get("connector.class", ""), "source", (), ())

    async def describe(self, plugin: str) -> tuple[Definition, ...]:
        del plugin
        return ()

    async def plugins(self) -> Sequence[Plugin]:
        return ()

    async def preview(self, config: Config, records_max: int) -> Sequence[Mapping[str, Any]]:
        del config, records_max
        return ()

    async def settle(self, config: Config) -> int:
        self.calls.append(("settle", dict(config)))
        if self.unsettled:
            raise HostUnavailable(self.unsettled)
        return 0

    async def rewind(
        self, config: Config, positions: Mapping[TopicPartition, int | None], *, forget_others: bool
    ) -> int:
        self.calls.append(("rewind", dict(positions), forget_others))
        if self.unwound is not None:
            raise self.unwound
        return len(positions)

    async def verify(
        self,
        config: Config,
        topics: Sequence[str],
        records_max: int,
        *,
        repair: bool,
        tell: Callable[[Progress], None],
    ) -> Mapping[str, Any]:
        del config, topics, records_max, repair, tell
        return {}

    async def snapshot(self, config: Config, tables: Sequence[str]) -> Sequence[str]:
        del config
        return tables

    async def close(self) -> None:
        self.tasks.clear()
        self.watches.clear()
