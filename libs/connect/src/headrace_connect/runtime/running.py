"""Runs one connector in this process: all its tasks, until it is stopped, or until there is nothing left to do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final

from headrace_common.runtime.clock import Clock, limit_ms
from headrace_common.runtime.entropy import new_seed
from headrace_common.runtime.tasks import TaskRunner
from headrace_connect.core.errors import Fault
from headrace_connect.core.splitting import share
from headrace_connect.core.task import State
from headrace_connect.plugin import Split
from headrace_connect.runtime.config import RunConfig, SinkConfig, SourceConfig
from headrace_connect.runtime.configuring import Configured
from headrace_connect.runtime.failing import TaskFailed
from headrace_connect.runtime.seat import Seat
from headrace_connect.runtime.seating import Hooks, OnTopic, Part, Process, count_sink_tasks, make_seat, open_process
from headrace_connect.runtime.settling import settle_left
from headrace_connect.runtime.watching import Watch, ask_splits

IDLE_LOOKS_MS: Final = 100.0
CHANCE_BITS: Final = 20
"""Of a generation, below the time in ms: two that begin in the same ms are not the same."""


@dataclass(frozen=True, slots=True)
class Heard:
    """What who runs a connector hears of it."""

    on_run: Callable[[int], None] = lambda _: None
    """With the number of tasks, when all of them run; again for tasks that take their place, as splits differ."""
    on_topic: OnTopic = lambda _: None
    """See ``Hooks``."""


async def run_connector(
    configured: Configured,
    config: RunConfig,
    stop: asyncio.Event,
    heard: Heard | None = None,
    *,
    until_idle: bool = False,
) -> None:
    """
    Run a connector until ``stop`` is set; with ``until_idle`` until everything that is there now is committed.

    Raises:
        TaskFailed: a task has failed, and starting it again does not help.
    """
    heard = heard or Heard()
    async with open_process(config) as process:
        if isinstance(configured.config, SourceConfig):
            await _Sources(process, configured, configured.config, heard).run(stop, until_idle=until_idle)
        else:
            await _run_sink(process, configured, configured.config, stop, heard, until_idle=until_idle)


class _Seats:
    """The tasks of a connector."""

    def __init__(self, seats: Sequence[Seat], clock: Clock, runner: TaskRunner, heard: Heard) -> None:
        self._on_run: Callable[[int], None] | None = heard.on_run
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
            if self._on_run is not None and all(seat.life.state is State.RUNNING for seat in self._seats):
                self._on_run(len(self._seats))
                self._on_run = None
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


class _Sources:
    """A source: its splits shared by tasks, again when the splits change."""

    def __init__(self, process: Process, configured: Configured, config: SourceConfig, heard: Heard) -> None:
        self._heard = heard
        self._process = process
        self._configured = configured
        self._config = config
        self._watch = Watch(partial(ask_splits, self._fresh, process.topics), config.name)
        self._generation = 0
        self._at: dict[str, int] = {}

    async def run(self, stop: asyncio.Event, *, until_idle: bool) -> None:
        splits = await self._watch.first(stop) or []
        ended = stop.is_set()
        while not ended:
            async with TaskRunner() as runner:
                seats = _Seats(self._seats(splits), self._process.clock, runner, self._heard)
                try:
                    while not (ended := await seats.wait(stop, self._config.rescan_interval_ms, until_idle=until_idle)):
                        found = await self._watch.again()
                        if found is not None and found != splits:
                            splits = found
                            break
                finally:
                    await seats.close()

    def _fresh(self) -> Configured:
        return self._configured

    def _seats(self, splits: Sequence[Split]) -> list[Seat]:
        """Of a new generation."""
        drawn = (self._process.clock.now_ms() << CHANCE_BITS) | (new_seed() & ((1 << CHANCE_BITS) - 1))
        self._generation = max(self._generation + 1, drawn)
        by_id = {split.id: split for split in splits}
        shares = share(list(by_id), self._config.tasks_max, self._at)
        self._at = {split: task for task, own in enumerate(shares) for split in own}
        parts = [Part(task, [by_id[split] for split in own], self._generation) for task, own in enumerate(shares)]
        return [
            make_seat(self._process, self._fresh, self._config, part, Hooks(on_topic=self._heard.on_topic))
            for part in parts
        ]


async def _run_sink(
    process: Process, configured: Configured, config: SinkConfig, stop: asyncio.Event, heard: Heard, *, until_idle: bool
) -> None:
    """As many members of its group as tasks."""
    count = await count_sink_tasks(process, config)
    await settle_left(process.prepared, process.config.group_id, configured, count)
    async with TaskRunner() as runner:
        seats = [
            make_seat(process, lambda: configured, config, Part(task, until_idle=until_idle)) for task in range(count)
        ]
        running = _Seats(seats, process.clock, runner, heard)
        try:
            await running.wait(stop, None, until_idle=until_idle)
        finally:
            await running.close()
