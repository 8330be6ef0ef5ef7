"""
A coordinator over logs in memory, with a cluster that a test steers: real gRPC, no controller, no broker.

For tests of clients: ``async with standalone_coordinator(topics={"t": 6}) as world``.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

import grpc.aio

from headrace_common.core.ids import Endpoint, NodeId
from headrace_common.rpc.options import open_channel
from headrace_common.runtime.clock import Clock, SystemClock
from headrace_common.runtime.service import GrpcService, ServerConfig
from headrace_common.runtime.tasks import TaskRunner
from headrace_coordinator.adapters.memory_cluster import MemoryCluster, MemoryMeasures
from headrace_coordinator.adapters.memory_shard_log import MemoryShardLogs
from headrace_coordinator.adapters.re2_patterns import Re2Patterns
from headrace_coordinator.core.settings import GroupSettings
from headrace_coordinator.engine.coordinator import Coordinator, Who
from headrace_coordinator.engine.host import Phase
from headrace_coordinator.engine.surroundings import Surroundings
from headrace_coordinator.rpc.servicer import CoordinatorServicer
from headrace_proto.v1.coordinator_pb2_grpc import add_CoordinatorServicer_to_server

QUICK = GroupSettings(group_initial_rebalance_delay_ms=0, group_rejoin_grace_ms=300)
"""Without the waits that only large groups need."""


@dataclass
class Running:
    """One coordinator's engine and what it stands on."""

    coordinator: Coordinator
    cluster: MemoryCluster
    logs: MemoryShardLogs
    measures: MemoryMeasures
    tasks: TaskRunner
    endpoint: Endpoint | None = None

    async def until_served(self, *numbers: int) -> None:
        """Wait until these shards are served here."""
        async with asyncio.timeout(10):
            while not set(numbers) <= {h.number for h in self.coordinator.hosts if h.phase is Phase.SERVING}:  # noqa: ASYNC110 - several things may make it true
                await asyncio.sleep(0.001)

    def channel(self) -> grpc.aio.Channel:
        """A connection to it."""
        return open_channel(str(self.endpoint))


@asynccontextmanager
async def running_engine(
    cluster: MemoryCluster,
    logs: MemoryShardLogs,
    *,
    node_id: int = 1,
    settings: GroupSettings = QUICK,
    clock: Clock | None = None,
    append_timeout_ms: float = 5_000,
) -> AsyncIterator[Running]:
    """An engine that follows ``cluster``; no background task of it may crash."""
    async with TaskRunner() as tasks:
        measures = MemoryMeasures()
        around = Surroundings(
            logs=logs,
            cluster=cluster,
            patterns=Re2Patterns(),
            measures=measures,
            clock=clock or SystemClock(),
            tasks=tasks,
            settings=settings,
            append_timeout_ms=append_timeout_ms,
        )
        coordinator = Coordinator(Who(NodeId(node_id), bytes([node_id]) * 16, "standalone"), around)
        tasks.start(coordinator.follow(), name="follow")
        try:
            yield Running(coordinator, cluster, logs, measures, tasks)
        finally:
            coordinator.stop()
        if tasks.failure is not None:
            raise tasks.failure


@asynccontextmanager
async def serving(running: Running) -> AsyncIterator[Running]:
    """The same, over gRPC on a free port of the loopback."""
    draining = asyncio.Event()
    servicer = CoordinatorServicer(running.coordinator, draining)
    config = ServerConfig(drain_ms_max=500)
    async with GrpcService.open(config, [(add_CoordinatorServicer_to_server, servicer)]) as server:
        running.endpoint = server.endpoint
        try:
            yield running
        finally:
            draining.set()
            running.coordinator.stop()


@asynccontextmanager
async def standalone_coordinator(
    topics: Mapping[str, int], *, shards: int = 4, settings: GroupSettings = QUICK
) -> AsyncIterator[Running]:
    """A coordinator with all shards, over gRPC."""
    cluster = MemoryCluster(shards=shards, topics=topics)
    cluster.give(1, *range(shards))
    async with running_engine(cluster, MemoryShardLogs(), settings=settings) as running, serving(running):
        await running.until_served(*range(shards))
        yield running
