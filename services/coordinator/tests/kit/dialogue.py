"""
The engines of a coordinator, and its gRPC where a test wants it, over ports that a test drives by hand: for dialogues.

What a cluster does with coordinators is for ``tests/lab`` and for processes to show.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc.aio
from services.coordinator.tests.kit.ports import (
    MemoryCluster,
    MemoryEnrolments,
    MemoryMarkers,
    MemoryMeasures,
    MemoryProducerIds,
)
from services.coordinator.tests.kit.shard_logs import MemoryShardLogs

from headrace_common.core.access.control import Control
from headrace_common.core.ids import Endpoint, NodeId
from headrace_common.core.image import Listener, ShardKind
from headrace_common.rpc.channels import open_channel
from headrace_common.runtime.clock import Clock, SystemClock
from headrace_common.runtime.listeners import UNGUARDED, Guard
from headrace_common.runtime.service import GrpcService, ServerConfig
from headrace_common.runtime.tasks import TaskRunner
from headrace_coordinator.adapters.re2_patterns import Re2Patterns
from headrace_coordinator.core.settings import GroupSettings
from headrace_coordinator.core.transactions.settings import TransactionSettings
from headrace_coordinator.engine.coordinator import Coordinator, Who
from headrace_coordinator.engine.host import Phase
from headrace_coordinator.engine.host_ports import HostPorts, TransactionHostPorts
from headrace_coordinator.engine.marker_driver import MarkerDriver
from headrace_coordinator.engine.near import NearEnrolments, NearMarkers
from headrace_coordinator.engine.producer_ids import SpareProducerIds
from headrace_coordinator.engine.transactions import Transactions
from headrace_coordinator.rpc.servicer import CoordinatorServicer
from headrace_coordinator.rpc.transaction_servicer import TransactionServicer
from headrace_proto.v1.coordinator_pb2_grpc import add_CoordinatorServicer_to_server
from headrace_proto.v1.transaction_pb2_grpc import add_TransactionCoordinatorServicer_to_server

QUICK = GroupSettings(group_initial_rebalance_delay_ms=0, group_rejoin_grace_ms=300)
"""Without the waits that only large groups need."""


@dataclass
class Brokers:
    """What brokers and other coordinators do for transactions; several engines may share it."""

    markers: MemoryMarkers = field(default_factory=MemoryMarkers)
    enrolments: MemoryEnrolments = field(default_factory=MemoryEnrolments)
    ids: MemoryProducerIds = field(default_factory=MemoryProducerIds)


@dataclass
class Running:
    """One coordinator's engine and what it stands on."""

    coordinator: Coordinator
    cluster: MemoryCluster
    logs: MemoryShardLogs
    measures: MemoryMeasures
    tasks: TaskRunner
    transactions: Transactions
    driver: MarkerDriver
    brokers: Brokers
    endpoint: Endpoint | None = None

    async def until_served(self, *numbers: int, kind: ShardKind = ShardKind.GROUPS) -> None:
        """Wait until these shards are served here."""

        def served() -> set[int]:
            hosts = self.coordinator.hosts if kind is ShardKind.GROUPS else self.transactions.hosts
            return {host.number for host in hosts if host.phase is Phase.SERVING}

        async with asyncio.timeout(10):
            while not set(numbers) <= served():
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
    transaction_settings: TransactionSettings | None = None,
    brokers: Brokers | None = None,
    near: bool = False,
    access: Control | None = None,
) -> AsyncIterator[Running]:
    """
    The engines of groups and of transactions, which follow ``cluster``; no background task of theirs may crash.

    Args:
        access: who may do what; None: everybody everything.
        near: they ask each other what concerns their own shards, as in one process; else all goes to ``brokers``.
    """
    async with TaskRunner() as tasks:
        measures = MemoryMeasures()
        brokers = brokers or Brokers()
        near_enrolments = NearEnrolments(brokers.enrolments, cluster)
        ports = HostPorts(
            logs=logs,
            cluster=cluster,
            patterns=Re2Patterns(),
            measures=measures,
            enrolments=near_enrolments if near else brokers.enrolments,
            clock=clock or SystemClock(),
            tasks=tasks,
            settings=settings,
            append_timeout_ms=append_timeout_ms,
            access=access or Control(),
        )
        coordinator = Coordinator(Who(NodeId(node_id), bytes([node_id]) * 16, "standalone"), ports)
        near_markers = NearMarkers(brokers.markers, cluster, NodeId(node_id), coordinator)
        driver = MarkerDriver(near_markers if near else brokers.markers, cluster, cluster, ports.clock, tasks)
        spares = SpareProducerIds(brokers.ids, ports.clock)
        transactions = Transactions(
            NodeId(node_id),
            TransactionHostPorts(ports, transaction_settings or TransactionSettings(), spares, driver),
        )
        if near:
            near_enrolments.own = transactions
            cluster.join(node_id)
        for loop in (coordinator.follow(), transactions.follow(), driver.follow(), spares.fill()):
            tasks.start(loop, name="follow")
        try:
            yield Running(coordinator, cluster, logs, measures, tasks, transactions, driver, brokers)
        finally:
            coordinator.stop()
            transactions.stop()
        if tasks.failure is not None:
            raise tasks.failure


@asynccontextmanager
async def serving(running: Running, guard: Guard = UNGUARDED) -> AsyncIterator[Running]:
    """The same, over gRPC on a free port of the loopback, where clients and nodes come."""
    draining = asyncio.Event()
    servicer = CoordinatorServicer(running.coordinator, draining, guard.gate)
    config = ServerConfig(drain_ms_max=500)
    servicers: list[tuple[Any, Any]] = [
        (add_CoordinatorServicer_to_server, servicer),
        (add_TransactionCoordinatorServicer_to_server, TransactionServicer(running.transactions, draining, guard.gate)),
    ]
    interceptors = guard.interceptors(Listener.CLIENT)
    async with GrpcService.open(config, servicers, interceptors=interceptors) as server:
        running.endpoint = server.endpoint
        try:
            yield running
        finally:
            draining.set()
            running.coordinator.stop()
            running.transactions.stop()


@asynccontextmanager
async def serving_coordinator(
    topics: Mapping[str, int], *, shards: int = 4, settings: GroupSettings = QUICK, near: bool = True
) -> AsyncIterator[Running]:
    """A coordinator with all shards of groups and of transactions, over gRPC."""
    cluster = MemoryCluster(shards=shards, topics=topics)
    for kind in ShardKind:
        cluster.give(1, *range(shards), kind=kind)
    async with (
        running_engine(cluster, MemoryShardLogs(), settings=settings, near=near) as running,
        serving(running),
    ):
        for kind in ShardKind:
            await running.until_served(*range(shards), kind=kind)
        yield running
