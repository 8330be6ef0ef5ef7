"""Workers whose topics and group are those of a cluster of the lab; their hosts are in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack

from libs.sdk.tests.kit.cluster import LabCluster
from services.connect.tests.kit.hosts import MemoryHosts, Outer

from headrace import aio
from headrace_common.runtime.clock import SystemClock, limit_ms
from headrace_common.runtime.tasks import TaskRunner
from headrace_connect.runtime.adapters.topics import SdkTopics
from headrace_connect_worker.adapters.config_log import SdkConfigLog
from headrace_connect_worker.adapters.event_log import SdkEventLog
from headrace_connect_worker.adapters.offset_log import SdkOffsets
from headrace_connect_worker.adapters.status_log import SdkStatusLog
from headrace_connect_worker.adapters.work_group import SdkMembership
from headrace_connect_worker.engine.place import Place
from headrace_connect_worker.engine.worker import ConnectWorker, Outside

CALL_MS = 60_000
PATIENCE_MS = 120_000.0


class LabWorker:
    """One of them."""

    def __init__(self, cluster: LabCluster, name: str, outer: Outer) -> None:
        self.name = name
        self.servers = ",".join(cluster.bootstrap_servers)
        self.hosts = MemoryHosts(outer)
        self.tasks = TaskRunner()
        self._stack = AsyncExitStack()

    async def open(self) -> LabWorker:
        clock = SystemClock()
        admin = await self._stack.enter_async_context(aio.AdminClient(self.servers))
        topics = SdkTopics(admin, clock)
        self.configs = SdkConfigLog(self.servers, "connect-configs", "w", topics, clock, CALL_MS)
        self.statuses = SdkStatusLog(self.servers, "connect-status", 5, topics, clock, CALL_MS)
        self.events = SdkEventLog(self.servers, "connect-events", "w", topics, clock, CALL_MS)
        self.offsets = SdkOffsets(self.servers, "connect-offsets", 3, "w", topics, admin, clock, CALL_MS)
        self.membership = SdkMembership(self.servers, "w", lambda: f"{self.name}:8083", clock, CALL_MS)
        outside = Outside(self.configs, self.statuses, self.events, self.offsets, self.membership, self.hosts, clock)
        self.worker = ConnectWorker(outside, Place(f"{self.name}:8083", f"http://{self.name}:8083"))
        self.herd = self.worker.herd
        self.worker.begin(self.tasks)
        return self

    @property
    def leads(self) -> bool:
        return self.worker.leading.leads

    async def stop(self) -> None:
        await self.worker.leave(30_000)
        await self.close()

    async def die(self) -> None:
        """It does nothing more; what it has begun stays as it is, and its place in the group falls to others."""
        await self.tasks.close()
        await self.membership.close()

    async def close(self) -> None:
        await self.tasks.close()
        await self.membership.close()
        await self.statuses.close()
        await self.events.close()
        await self._stack.aclose()


async def until(holds: Callable[[], object], *workers: LabWorker) -> None:
    """Wait until something holds."""
    async with limit_ms(PATIENCE_MS):
        while not holds():
            for worker in workers:
                if worker.tasks.failure is not None:
                    raise worker.tasks.failure
            await asyncio.sleep(0.02)
