"""A task on this worker: its loop, run as its life says, and started again after failures."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from headrace_common.runtime.clock import Clock, limit_ms
from headrace_connect.core.errors import Fault
from headrace_connect.core.task import (
    Assigned,
    Close,
    Effect,
    Ended,
    Event,
    Failed,
    Opened,
    Progressed,
    Resume,
    State,
    Suspend,
    Target,
    TargetChanged,
    TaskLife,
    Unassigned,
    Woken,
)
from headrace_connect.runtime.failing import failed_by, trace_of

_log: Final = logging.getLogger(__name__)


class Loop(Protocol):
    """The loop of a task; one for each start."""

    async def run(self) -> None:
        """Until it was asked to close."""
        ...

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing left to do for now."""
        ...

    def suspend(self) -> None:
        """Read no more."""
        ...

    def resume(self) -> None:
        """Read on."""
        ...

    def close(self) -> None:
        """Commit what there is, and end."""
        ...


MakeLoop = Callable[[Callable[[], None], Callable[[], None]], Loop]
"""Makes a loop that calls the first when it has opened, and the second after each commit."""


class Seat:
    """One task."""

    def __init__(
        self, label: str, make: MakeLoop, clock: Clock, life: TaskLife, on_change: Callable[[], None] = lambda: None
    ) -> None:
        """
        Args:
            on_change: called when ``life``, ``fault`` or ``trace`` may have changed.
        """
        self.life = life
        self.fault: Fault | None = None
        """Whose failure the last one was; None while it works."""
        self.trace = ""
        """Where it failed last, for people; empty while it works."""
        self._on_change = on_change
        self._label = label
        self._make = make
        self._clock = clock
        self._loop: Loop | None = None
        self._closing = asyncio.Event()

    async def run(self) -> None:
        """Until it is closed, or has failed for good; ``life`` says which."""
        self._tell(Assigned(self.life.target))
        while True:
            match self.life.state:
                case State.STARTING:
                    await self._run_loop()
                case State.RESTARTING:
                    await self._wait()
                case _:
                    return

    def close(self) -> None:
        """Have it end."""
        self._closing.set()
        self._tell(Unassigned())

    def change(self, target: Target) -> None:
        """Pause or resume it."""
        self._tell(TargetChanged(target))

    @property
    def is_idle(self) -> bool:
        """Whether it runs, and has nothing left to do for now."""
        return self.life.state is State.RUNNING and self._loop is not None and self._loop.is_idle

    async def _run_loop(self) -> None:
        def on_open() -> None:
            self._tell(Opened())

        def on_commit() -> None:
            self.fault, self.trace = None, ""
            self._tell(Progressed())

        try:
            self._loop = self._make(on_open, on_commit)
            await self._loop.run()
        except Exception as error:  # noqa: BLE001 - the boundary of a task: its life decides what becomes of it
            failed = failed_by(error)
            known = failed.fault.value in ("config", "data", "fenced")
            _log.warning("%s has failed: %s", self._label, failed, exc_info=None if known else error)
            self.fault, self.trace = failed.fault, trace_of(error)
            self._tell(Failed(failed.fault, str(failed), self._clock.monotonic_ms()))
        else:
            self._tell(Ended())
        finally:
            self._loop = None

    async def _wait(self) -> None:
        due_ms = self.life.due_ms
        assert due_ms is not None, "who is restarted is so at some time"
        now_ms = self._clock.monotonic_ms()
        _log.warning("%s is started again in %.0f s", self._label, (due_ms - now_ms) / 1_000)
        try:
            async with limit_ms(max(0.0, due_ms - now_ms)):
                await self._closing.wait()
        except TimeoutError:
            self._tell(Woken(max(due_ms, self._clock.monotonic_ms())))

    def _tell(self, event: Event) -> None:
        self._do(self.life.handle(event))
        self._on_change()

    def _do(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            if self._loop is None:
                continue
            match effect:
                case Close():
                    self._loop.close()
                case Suspend():
                    self._loop.suspend()
                case Resume():
                    self._loop.resume()
