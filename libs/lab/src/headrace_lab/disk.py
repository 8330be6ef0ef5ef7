"""A broker's disk: what its next process finds, after a clean end, a kill, or a loss of power."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from typing import Final

from headrace_broker.adapters.memory_log import MemoryLogs
from headrace_broker.adapters.memory_topic_notes import MemoryTopicNotes
from headrace_broker.config import BrokerConfig
from headrace_broker.ports import Disk, Identity, Storage
from headrace_common.core.errors import InconsistentClusterId
from headrace_common.runtime.clock import Clock

SYNC_S: Final = (0.0001, 0.002)
"""Least and most that a sync takes, in seconds; drawn for each."""


class LabDisk:
    """``Directory`` and ``TimeMemory`` of one broker, and what opens its logs; outlives its processes."""

    def __init__(self, random: Random, sync_s: tuple[float, float] = SYNC_S) -> None:
        self._random = random
        self._sync_s = sync_s
        self._notes = MemoryTopicNotes()
        self._time_ms: int | None = None
        self.emptied = False
        self.identity: Identity | None = None
        self.logs = MemoryLogs()
        """As the present process has them, or the next one will."""
        self._take(self.logs)

    @property
    def token(self) -> int | None:
        return self.logs.read_token()

    def bind(self, cluster_id: str, broker_id: int) -> None:
        if self.identity is not None and self.identity.cluster_id != cluster_id:
            raise InconsistentClusterId(f"the disk belongs to cluster {self.identity.cluster_id!r}")
        self.identity = Identity(cluster_id, broker_id, 0)

    def forget_gone(self) -> None:
        self.emptied = False

    def last_ms(self) -> int | None:
        return self._time_ms

    async def keep(self, time_ms: int) -> None:
        await asyncio.sleep(0)
        self._time_ms = time_ms

    @asynccontextmanager
    async def open(self, config: BrokerConfig, clock: Clock, stop: asyncio.Event) -> AsyncIterator[Storage]:
        del config, clock, stop
        logs = self.logs
        storage = Storage(self, Disk(logs, self._notes), self)
        try:
            yield storage
        finally:
            await logs.close(storage.clean_epoch)
            if self.logs is logs:
                self._take(logs.reopen())

    def crash(self, *, power: bool) -> None:
        """Its process dies; with ``power`` what was not synced is lost, but for what had reached the disk by chance."""
        self._take(self.logs.reopen(keep_unsynced=self._random.randint(0, self.logs.unsynced) if power else None))

    def rot(self) -> None:
        """Bytes of each log are not what was written, while no process runs: each is sound up to some batch only."""
        for found in list(self.logs.list_recovered()):
            bases = [row.base_offset for row in self.logs.index(found.log, found.state.log_start, found.log_end)]
            if bases:
                self.logs.damage(found.log, self._random.choice(bases))

    def wipe(self) -> None:
        """It is a new one, while no process runs; who comes back with it says so."""
        self.emptied = True
        self._time_ms = None
        self._notes = MemoryTopicNotes()
        self._take(MemoryLogs())

    def slow(self, least_s: float, most_s: float) -> None:
        """From now on syncs take so long."""
        self._sync_s = (least_s, most_s)

    def fill(self) -> None:
        """Nothing is free on it until ``free``."""
        self.logs.free = (0, self.logs.free[1])

    def free(self) -> None:
        """There is room again."""
        self.logs.free = (self.logs.free[1], self.logs.free[1])

    def _take(self, logs: MemoryLogs) -> None:
        self.logs = logs
        logs.sync_s = lambda: self._random.uniform(*self._sync_s)
