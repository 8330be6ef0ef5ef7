"""Calls to nodes that move meanwhile: each fails with an error that says so, and the next goes where the node is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

import pytest
from libs.common.tests.kit.silent_node import SilentNode, unreachable
from services.admin.tests.kit.known import Known

from headrace_admin.adapters.grpc_brokers import GrpcBrokers
from headrace_admin.adapters.grpc_coordinators import GrpcCoordinators
from headrace_admin.ports import CoordinatorPlace
from headrace_common.core.errors import NetworkFailed, UnknownOutcome
from headrace_common.core.ids import Endpoint, NodeId
from headrace_common.core.image import NodeKey, Role
from headrace_proto.v1 import broker_pb2 as pb
from headrace_proto.v1 import coordinator_pb2, transaction_pb2

ONE, TWO = NodeId(1), NodeId(2)
KEY = NodeKey(Role.BROKER, ONE)
NOBODY = Endpoint("127.0.0.1", 1)


BROKER_CALLS: dict[str, Callable[[GrpcBrokers], Awaitable[Any]]] = {
    "DeleteRecords": lambda b: b.ask(ONE, lambda stub: stub.DeleteRecords, pb.DeleteRecordsRequest()),
    "DescribeLogs": lambda b: b.ask(ONE, lambda stub: stub.DescribeLogs, pb.DescribeLogsRequest()),
    "ListOffsets": lambda b: b.ask(ONE, lambda stub: stub.ListOffsets, pb.ListOffsetsRequest()),
    "Fetch": lambda b: b.fetch(ONE, pb.FetchRequest()),
    "FindCoordinator": lambda b: b.ask(ONE, lambda stub: stub.FindCoordinator, pb.FindCoordinatorRequest()),
    "DescribeProducers": lambda b: b.ask(ONE, lambda stub: stub.DescribeProducers, pb.DescribeProducersRequest()),
    "WriteTxnMarkers": lambda b: b.ask(
        ONE, lambda stub: stub.WriteTxnMarkers, transaction_pb2.WriteTxnMarkersRequest()
    ),
}


@pytest.fixture
async def nodes() -> AsyncIterator[list[SilentNode]]:
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(SilentNode().serve()) for _ in range(2)]


def moved(cluster: Known, to: Endpoint, key: NodeKey = KEY) -> None:
    image = cluster.image
    cluster.image = replace(image, nodes={**image.nodes, key: replace(image.nodes[key], grpc=to)})


@pytest.mark.parametrize("call", BROKER_CALLS)
async def test_a_broker_that_moves_under_a_call(call: str, nodes: list[SilentNode]) -> None:
    here, there = nodes
    cluster = Known({ONE: NOBODY})
    brokers = GrpcBrokers(cluster, 60_000)
    moved(cluster, here.endpoint)
    first = asyncio.ensure_future(BROKER_CALLS[call](brokers))
    await here.until_asked()
    moved(cluster, there.endpoint)
    others = [asyncio.ensure_future(BROKER_CALLS[call](brokers)) for _ in range(3)]
    with pytest.raises(NetworkFailed, match="unknown"):
        await first
    await there.until_asked(3)
    assert (here.asked, there.asked) == ([call], [call] * 3)
    assert brokers.channels == 1
    await brokers.close()
    for other in others:
        with pytest.raises(NetworkFailed):
            await other


@pytest.mark.parametrize("call", BROKER_CALLS)
async def test_a_broker_is_called_where_it_takes_nodes(call: str, nodes: list[SilentNode]) -> None:
    for_clients, for_nodes = nodes
    cluster = Known({ONE: NOBODY})
    moved(cluster, for_clients.endpoint)
    node = replace(cluster.image.nodes[KEY], internal=for_nodes.endpoint)
    cluster.image = replace(cluster.image, nodes={**cluster.image.nodes, KEY: node})
    brokers = GrpcBrokers(cluster, 60_000)
    asked = asyncio.ensure_future(BROKER_CALLS[call](brokers))
    await for_nodes.until_asked()
    await brokers.close()
    with pytest.raises(NetworkFailed):
        await asked
    assert (for_clients.asked, for_nodes.asked) == ([], [call])


async def test_a_fetch_that_never_got_through_ends() -> None:
    cluster = Known({ONE: NOBODY})
    brokers = GrpcBrokers(cluster, 300)
    with unreachable() as nobody:
        moved(cluster, nobody)
        waiting = asyncio.ensure_future(brokers.fetch(ONE, pb.FetchRequest()))
        while not brokers.channels:
            await asyncio.sleep(0)
        await brokers.close()
        with pytest.raises(UnknownOutcome):
            await waiting


async def test_channels_of_brokers_that_left_are_closed(nodes: list[SilentNode]) -> None:
    cluster = Known({ONE: NOBODY, TWO: NOBODY})
    brokers = GrpcBrokers(cluster, 60_000)
    moved(cluster, nodes[0].endpoint)
    moved(cluster, NOBODY, NodeKey(Role.BROKER, TWO))
    waiting = asyncio.ensure_future(brokers.ask(ONE, lambda stub: stub.DescribeLogs, pb.DescribeLogsRequest()))
    await nodes[0].until_asked()
    image = cluster.image
    cluster.image = replace(image, nodes={key: node for key, node in image.nodes.items() if key != KEY})
    with pytest.raises(NetworkFailed):
        await brokers.ask(TWO, lambda stub: stub.DescribeLogs, pb.DescribeLogsRequest())
    with pytest.raises(NetworkFailed, match="closed"):
        await waiting
    assert brokers.channels == 1
    await brokers.close()


async def test_a_coordinator_whose_channel_is_given_up_under_a_call(
    nodes: list[SilentNode], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace_admin.adapters.grpc_coordinators.CHANNELS_MAX", 1)
    coordinators = GrpcCoordinators(60_000)
    place = CoordinatorPlace(ONE, nodes[0].endpoint)
    listing = asyncio.ensure_future(
        coordinators.ask_group(place, lambda stub: stub.ListGroups, coordinator_pb2.ListGroupsRequest())
    )
    deciding = asyncio.ensure_future(
        coordinators.ask_transaction(place, lambda stub: stub.DecidePrepared, transaction_pb2.DecidePreparedRequest())
    )
    await nodes[0].until_asked(2)
    other = CoordinatorPlace(TWO, nodes[1].endpoint)
    last = asyncio.ensure_future(
        coordinators.ask_group(other, lambda stub: stub.ListGroups, coordinator_pb2.ListGroupsRequest())
    )
    for call in (listing, deciding):
        with pytest.raises(NetworkFailed, match="unknown"):
            await call
    await nodes[1].until_asked()
    assert coordinators.channels == 1
    await coordinators.close()
    with pytest.raises(NetworkFailed):
        await last
