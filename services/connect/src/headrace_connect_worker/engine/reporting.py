"""
What this worker says in the status topic: one task writes, the last word of each place wins.

What others with a lower epoch say of something that is this worker's is said again, as it is.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final, TypeAlias

from headrace_common.core.errors import HeadraceError
from headrace_common.runtime.clock import Clock, limit_ms
from headrace_common.runtime.logs import logger
from headrace_connect.core.backoff import Backoff
from headrace_connect_worker.core.records import Status, StatusRecord, TopicUsed, Work
from headrace_connect_worker.engine.following import Following
from headrace_connect_worker.ports import StatusLog

BATCH_MAX: Final = 500
_RETRY: Final = Backoff(100, 10_000)
Place: TypeAlias = tuple[str, str, object]
_log = logger(__name__)


def _place(record: StatusRecord) -> Place:
    match record:
        case Status(name, task):
            return "status", name, task
        case Work(name):
            return "work", name, None
        case TopicUsed(name, topic):
            return "topic", name, topic


class Reporting:
    """See the module's text. What waits is bounded by the number of places."""

    def __init__(self, log: StatusLog, following: Following, clock: Clock) -> None:
        self._log = log
        self._following = following
        self._clock = clock
        self._waiting: dict[Place, StatusRecord] = {}
        self._own: dict[Place, Status | Work] = {}
        """What this worker said last of what it has."""
        self._news = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        following.on_status = self.hear

    def say(self, record: Status | Work) -> None:
        """Of what this worker has."""
        self._own[_place(record)] = record
        self._put(record)

    def forget(self, record: Status | Work) -> None:
        """This worker has it no more; what it said last is still written."""
        self._own.pop(_place(record), None)

    @property
    def statuses(self) -> list[Status]:
        """What this worker said last of the connectors and tasks that it has; any thread may ask."""
        return [record for record in list(self._own.values()) if isinstance(record, Status)]

    def put(self, record: StatusRecord) -> None:
        """Anything else: topics, and records that delete."""
        self._put(record)

    def _put(self, record: StatusRecord) -> None:
        self._waiting[_place(record)] = record
        self._idle.clear()
        self._news.set()

    def hear(self, record: StatusRecord, counts: bool) -> None:
        """Somebody has written this."""
        del counts
        if isinstance(record, TopicUsed):
            return
        own = self._own.get(_place(record))
        if own is not None and record.epoch < own.epoch and self._is_there(own):
            self._put(own)

    def _is_there(self, record: Status | Work) -> bool:
        """Whether the config topic has it: else it is right that what was said of it is deleted."""
        connector = self._following.state.connectors.get(record.name)
        if connector is None:
            return False
        if isinstance(record, Work) or record.task is None:
            return True
        return connector.tasks is not None and record.task < len(connector.tasks.shares)

    async def run(self) -> None:
        """Write, for good; what the cluster does not take is tried again."""
        attempt = 0
        while True:
            await self._news.wait()
            self._news.clear()
            while self._waiting:
                batch = dict(list(self._waiting.items())[:BATCH_MAX])
                for place in batch:
                    del self._waiting[place]
                try:
                    await self._log.write(list(batch.values()))
                    attempt = 0
                except HeadraceError as error:
                    self._waiting = {**batch, **self._waiting}
                    attempt += 1
                    _log.warning("%d statuses are not written: %s", len(self._waiting), error)
                    await self._clock.sleep_ms(_RETRY.wait_ms(attempt))
            self._idle.set()

    async def flush(self, ms: float) -> None:
        """Wait until all is written, at most so long."""
        with suppress(TimeoutError):
            async with limit_ms(ms):
                await self._idle.wait()
