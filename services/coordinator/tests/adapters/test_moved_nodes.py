"""Requests to brokers and coordinators that move meanwhile: each ends with an error that says so, and no task dies."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

import pytest
from libs.common.tests.kit.silent_node import SilentNode
from services.coordinator.tests.kit.ports import MemoryCluster

from headrace_common.core.errors import NetworkFailed
from headrace_common.core.features import TRANSACTION_STREAMS
from headrace_common.core.ids import Endpoint, PartitionId, TopicId
from headrace_common.core.image import Role, ShardKind
from headrace_common.runtime.tasks import TaskRunner
from headrace_coordinator.adapters.broker_connections import BrokerConnections
from headrace_coordinator.adapters.grpc_enrolments import GrpcEnrolments
from headrace_coordinator.adapters.grpc_log_ends import GrpcLogEnds
from headrace_coordinator.adapters.grpc_markers import GrpcMarkers
from headrace_coordinator.ports import Destination, Marker
from headrace_proto.v1 import broker_pb2 as pb

T = PartitionId(TopicId(b"t" * 16), 0)


LEVELS = (TRANSACTION_STREAMS.level - 1, TRANSACTION_STREAMS.level)


async def enrol(connections: BrokerConnections, at: Endpoint, level: int) -> None:
    cluster = MemoryCluster(shards=1)
    cluster.rise(level)
    cluster.join(1, at)
    for kind in ShardKind:
        cluster.give(1, 0, kind=kind)
    await GrpcEnrolments(cluster, connections).enrol("tid", 1, 0, 0)


async def mark(connections: BrokerConnections, at: Endpoint, role: Role, level: int) -> None:
    cluster = MemoryCluster(shards=1)
    cluster.rise(level)
    await GrpcMarkers(cluster, connections).write(Destination(role, at), [(Marker(1, 0, True), [T])])


CALLS: dict[str, Callable[[BrokerConnections, Endpoint], Awaitable[Any]]] = {
    "produce": lambda c, at: c.produce(at, pb.ProducePartition(), 60_000),
    "fetch": lambda c, at: c.fetch(at, pb.FetchRequest(max_wait_ms=60_000)),
    "list_offsets": lambda c, at: c.list_offsets(at, pb.ListOffsetsRequest()),
    "init_producer_id": lambda c, at: c.init_producer_id(at),
}
for _level in LEVELS:
    CALLS[f"enrol_{_level}"] = partial(enrol, level=_level)
    CALLS[f"mark_brokers_{_level}"] = partial(mark, role=Role.BROKER, level=_level)
    CALLS[f"mark_coordinators_{_level}"] = partial(mark, role=Role.COORDINATOR, level=_level)


@pytest.fixture
async def nodes() -> AsyncIterator[list[SilentNode]]:
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(SilentNode().serve()) for _ in range(2)]


@pytest.mark.parametrize("call", CALLS)
async def test_a_node_that_moves_under_a_call(call: str, nodes: list[SilentNode]) -> None:
    here, there = nodes
    async with TaskRunner() as tasks:
        connections = BrokerConnections(tasks)
        first = asyncio.ensure_future(CALLS[call](connections, here.endpoint))
        await here.until_asked()
        await connections.keep({there.endpoint})
        with pytest.raises(NetworkFailed, match="unknown"):
            await first
        second = asyncio.ensure_future(CALLS[call](connections, there.endpoint))
        await there.until_asked()
        assert connections.addresses == {there.endpoint}
        await connections.close()
        with pytest.raises(NetworkFailed):
            await second
    assert tasks.failure is None


async def test_the_channel_is_closed_under_a_produce_stream(nodes: list[SilentNode]) -> None:
    """Not by ``keep``, which tells the stream before: then its own reader finds out."""
    async with TaskRunner() as tasks:
        connections = BrokerConnections(tasks)
        sent = asyncio.ensure_future(CALLS["produce"](connections, nodes[0].endpoint))
        await nodes[0].until_asked()
        await connections.channel(nodes[0].endpoint).close()
        with pytest.raises(NetworkFailed, match="closed"):
            await sent
        await connections.close()
    assert tasks.failure is None


async def test_ends_of_logs_are_those_of_who_stayed(nodes: list[SilentNode]) -> None:
    async with TaskRunner() as tasks:
        connections = BrokerConnections(tasks)
        ends = GrpcLogEnds(MemoryCluster(shards=1), connections)
        asked = asyncio.ensure_future(ends._ask(nodes[0].endpoint, [T]))
        await nodes[0].until_asked()
        await connections.keep(set())
        assert await asked == {}, "lag is measured without it"
        await connections.close()
