"""
Events: what happens here is written, and what happens anywhere is read. They are for people, so nothing waits for them:
while the topic cannot be written, the newest ones wait, and the oldest of these are lost.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Final

from headrace_common.core.errors import HeadraceError
from headrace_common.runtime.clock import Clock
from headrace_common.runtime.logs import logger
from headrace_connect.core.backoff import Backoff
from headrace_connect_worker.core.events import Happened, Kept
from headrace_connect_worker.core.records import RunState
from headrace_connect_worker.engine.place import Place
from headrace_connect_worker.ports import EventLog

WAITING_MAX: Final = 1_000
BATCH_MAX: Final = 100
_RETRY: Final = Backoff(1_000, 60_000)
_OF_STATES: Final[Mapping[RunState, str]] = {
    RunState.FAILED: "failed",
    RunState.RESTARTING: "restarting",
    RunState.RUNNING: "running",
}
_log = logger(__name__)


class Events:
    """See the module's text."""

    def __init__(self, log: EventLog, clock: Clock, place: Place) -> None:
        self._log = log
        self._clock = clock
        self._place = place
        self._kept = Kept()
        self._waiting: deque[Happened] = deque(maxlen=WAITING_MAX)
        self._news = asyncio.Event()
        self._bad: dict[tuple[str, int | None], RunState] = {}
        """Connectors and tasks that do not work, and how that was told."""

    def find(self, connector: str, limit: int, kind: str | None = None) -> Sequence[Happened]:
        """The newest of a connector, in their order."""
        return self._kept.find(connector, limit, kind)

    def put(
        self, connector: str, task: int | None, kind: str, text: str, detail: Mapping[str, str] | None = None
    ) -> None:
        """It happens here, now."""
        at_ms = self._clock.now_ms()
        self._waiting.append(Happened(connector, at_ms, kind, text, task, self._place.worker_id, detail or {}))
        self._news.set()

    def put_state(self, connector: str, task: int | None, state: RunState, trace: str) -> None:
        """What a connector or a task of this worker does now; told when it fails, and when it works again."""
        before = self._bad.get((connector, task))
        if state in (RunState.FAILED, RunState.RESTARTING):
            self._bad[connector, task] = state
        elif state is RunState.RUNNING:
            self._bad.pop((connector, task), None)
            if before is None:
                return
        else:
            return
        if state is not before:
            lines = [line for line in trace.splitlines() if line.strip()]
            self.put(connector, task, _OF_STATES[state], lines[0] if lines else "it works again")

    def forget(self, connector: str, task: int | None) -> None:
        """This worker has it no more."""
        self._bad.pop((connector, task), None)

    async def run(self) -> None:
        """Write, for good."""
        attempt = 0
        while True:
            await self._news.wait()
            self._news.clear()
            while self._waiting:
                batch = [self._waiting.popleft() for _ in range(min(BATCH_MAX, len(self._waiting)))]
                try:
                    await self._log.write(batch)
                    attempt = 0
                except HeadraceError as error:
                    free = WAITING_MAX - len(self._waiting)
                    if free > 0:
                        self._waiting.extendleft(reversed(batch[-free:]))
                    attempt += 1
                    _log.warning("%d events are not written: %s", len(self._waiting), error)
                    await self._clock.sleep_ms(_RETRY.wait_ms(attempt))

    async def follow(self) -> None:
        """Read, for good; a topic that cannot be read, or was made anew, is read from its beginning again."""
        attempt = 0
        while True:
            self._kept.clear()
            try:
                async for events in self._log.follow():
                    attempt = 0
                    for event in events:
                        self._kept.add(event)
            except HeadraceError as error:
                _log.warning("events cannot be read: %s", error)
            attempt += 1
            await self._clock.sleep_ms(_RETRY.wait_ms(attempt))
