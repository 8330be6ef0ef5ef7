"""Carries out what ``core.seat`` decides, for one task or one watcher of this worker: one loop for each."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Protocol

from headrace_common.runtime.clock import Clock, limit_ms
from headrace_connect_worker.core.records import RunState, TargetState
from headrace_connect_worker.core.seat import (
    Crashed,
    Effect,
    Ended,
    Event,
    Leave,
    Leaving,
    NotStarted,
    Reported,
    Say,
    Seat,
    Spec,
    Start,
    Started,
    Stop,
    Turn,
    WakeAt,
    Wanted,
    Woken,
)
from headrace_connect_worker.engine.bell import Bell
from headrace_connect_worker.ports import Hosts, HostUnavailable, StartTask

EVENTS_MAX: Final = 256
"""Of a host that wait for their seat; of more the oldest are forgotten, for the newest say how it is."""

_TICK_MS: Final = 1.0
"""Later than it is due, so that it is surely due then."""


class Runs(Protocol):
    """How what has a seat is run."""

    async def start(self, spec: Spec) -> None:
        """
        Raises:
            HostUnavailable: nothing runs.
        """
        ...

    async def stop(self) -> None:
        """Nothing runs any more."""
        ...

    async def turn(self, spec: Spec, target: TargetState) -> Reported | None:
        """Pause or resume; what is to be reported of it, where the host does not say it."""
        ...


class TaskRuns:
    """A task in its connector's host."""

    def __init__(self, hosts: Hosts, connector: str, task: int) -> None:
        self._hosts = hosts
        self._connector = connector
        self._task = task

    async def start(self, spec: Spec) -> None:
        """See ``Runs``."""
        task = StartTask(self._connector, self._task, spec.config, spec.splits, spec.number, spec.target)
        await self._hosts.start(task)

    async def stop(self) -> None:
        """See ``Runs``."""
        await self._hosts.stop(self._connector, self._task)

    async def turn(self, spec: Spec, target: TargetState) -> Reported | None:
        """See ``Runs``."""
        del spec
        await self._hosts.set_target(self._connector, self._task, target)
        return None


class WatchRuns:
    """A connector's watcher; while the connector is paused it goes on."""

    def __init__(self, hosts: Hosts, connector: str) -> None:
        self._hosts = hosts
        self._connector = connector

    async def start(self, spec: Spec) -> None:
        """See ``Runs``."""
        await self._hosts.watch(self._connector, spec.config, spec.number)

    async def stop(self) -> None:
        """See ``Runs``."""
        await self._hosts.unwatch(self._connector)

    async def turn(self, spec: Spec, target: TargetState) -> Reported | None:
        """See ``Runs``."""
        return Reported(spec.number, RunState.PAUSED if target is TargetState.PAUSED else RunState.RUNNING)


class SeatRunner:
    """See the module's text."""

    def __init__(
        self,
        runs: Runs,
        wanted: Callable[[], Spec | None],
        say: Callable[[Say], None],
        bell: Callable[[], Bell],
        clock: Clock,
        settle_ms: float = 0,
    ) -> None:
        """
        Args:
            wanted: what is to run now, as the config topic says.
            bell: the one that rings when that may have changed; asked for when this begins to listen.
            settle_ms: so long it waits before it begins anything.
        """
        self._runs = runs
        self._wanted = wanted
        self._say = say
        self._bell = bell
        self._clock = clock
        self._settle_ms = settle_ms
        self._seat = Seat()
        self._events: deque[Event] = deque(maxlen=EVENTS_MAX)
        self._leaving = asyncio.Event()
        self._left = False
        self._due_ms: float | None = None
        self._running: Spec | None = None
        self._ear: asyncio.Event | None = None

    def tell(self, event: Reported | Crashed) -> None:
        """What a host says."""
        self._events.append(event)
        self._wake()

    def leave(self) -> None:
        """Have it end, and ``run`` return."""
        self._leaving.set()
        self._wake()

    def _wake(self) -> None:
        if self._ear is not None:
            self._ear.set()

    async def run(self) -> None:
        """Until it has left."""
        with suppress(TimeoutError):
            async with limit_ms(self._settle_ms):
                await self._leaving.wait()
        with self._bell().heard() as self._ear:
            while not self._left:
                await self._until_news(self._ear)
                if not self._leaving.is_set():
                    await self._handle(Wanted(self._wanted()))
                while self._events and not self._left:
                    await self._handle(self._events.popleft())
                now_ms = self._clock.monotonic_ms()
                if self._due_ms is not None and now_ms >= self._due_ms:
                    self._due_ms = None
                    await self._handle(Woken(now_ms))
                if self._leaving.is_set() and not self._left:
                    await self._handle(Leaving())

    async def _until_news(self, ear: asyncio.Event) -> None:
        left_ms = None if self._due_ms is None else max(0.0, self._due_ms - self._clock.monotonic_ms()) + _TICK_MS
        try:
            async with limit_ms(left_ms):
                await ear.wait()
        except TimeoutError:
            return
        ear.clear()

    async def _handle(self, event: Event) -> None:
        todo: deque[Event] = deque([event])
        while todo and not self._left:
            for effect in self._seat.handle(todo.popleft()):
                answer = await self._do(effect)
                if answer is not None:
                    todo.append(answer)

    async def _do(self, effect: Effect) -> Event | None:
        match effect:
            case Start(spec):
                self._running = spec
                try:
                    await self._runs.start(spec)
                except HostUnavailable as error:
                    return NotStarted(str(error), self._clock.monotonic_ms())
                return Started(self._clock.monotonic_ms())
            case Stop():
                await self._runs.stop()
                self._events.clear()  # they are of what has ended
                return Ended()
            case Turn(target):
                assert self._running is not None, "it runs"
                return await self._runs.turn(self._running, target)
            case Say():
                self._say(effect)
            case WakeAt(at_ms):
                self._due_ms = at_ms
            case Leave():
                self._left = True
        return None
