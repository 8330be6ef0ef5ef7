"""Nodes that start again elsewhere: calls under way fail with a typed error, old channels go, new places are found."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from libs.common.tests.kit.silent_node import SilentNode, unreachable

from headrace._transport.grpc import GrpcTransport
from headrace._transport.port import Coordinator
from headrace._transport.whereabouts import Whereabouts
from headrace.errors import ClientClosed, NetworkFailed
from headrace_common.core.ids import NodeId
from headrace_proto.v1 import broker_pb2 as pb
from headrace_proto.v1 import cluster_pb2
from headrace_proto.v1 import coordinator_pb2 as group_pb
from headrace_proto.v1 import transaction_pb2 as txn_pb

ONE = NodeId(1)
BOOT = "127.0.0.1:1"


@pytest.fixture
async def node() -> AsyncIterator[SilentNode]:
    async with SilentNode().serve() as silent:
        yield silent


@pytest.fixture
async def transport() -> AsyncIterator[GrpcTransport]:
    client = GrpcTransport([BOOT])
    yield client
    await client.close()


def answer(
    *nodes: tuple[int, int, str],
    role: Any = cluster_pb2.BROKER,
    cluster: str = "c",
    incarnation: bytes = b"",
    revision: int = 1,
) -> pb.MetadataResponse:
    """Of nodes (id, epoch, address)."""
    told = pb.MetadataResponse(cluster_id=cluster, incarnation=incarnation, revision=revision)
    for id, epoch, address in nodes:
        host, _, port = address.partition(":")
        one = told.nodes.add(role=role, id=id, epoch=epoch)
        one.grpc.host, one.grpc.port = host, int(port)
    return told


BROKER_CALLS: dict[str, Callable[[GrpcTransport], Awaitable[Any]]] = {
    "ListOffsets": lambda t: t.list_offsets(ONE, pb.ListOffsetsRequest()),
    "Produce": lambda t: t.produce_stream(ONE).send(pb.ProduceRequest(acks=-1, timeout_ms=60_000)),
    "Fetch": lambda t: t.fetch_stream(ONE).send(pb.FetchRequest()),
}


@pytest.mark.parametrize("call", BROKER_CALLS)
@pytest.mark.parametrize("abruptly", [True, False])
async def test_a_broker_that_moves_under_a_call(
    call: str, abruptly: bool, node: SilentNode, transport: GrpcTransport
) -> None:
    here = str(node.endpoint)
    await transport._learn(answer((1, 1, here)))
    waiting = asyncio.ensure_future(BROKER_CALLS[call](transport))
    await node.until_asked()
    if abruptly:
        await transport._channels.drop(here)
    else:
        await transport._learn(answer((1, 2, "127.0.0.2:1")))
    with pytest.raises(NetworkFailed, match="unknown"):
        await waiting
    assert here not in transport._channels


async def member(transport: GrpcTransport, at: Coordinator) -> None:
    stream = transport.membership(at)
    stream.send(group_pb.MembershipRequest())
    try:
        await stream.receive()
    finally:
        await stream.close()


COORDINATOR_CALLS: dict[str, Callable[[GrpcTransport, Coordinator], Awaitable[Any]]] = {
    "Membership": member,
    "CommitOffsets": lambda t, at: t.group_call(lambda stub: stub.CommitOffsets, group_pb.CommitOffsetsRequest())(
        at, 60_000
    ),
    "FetchOffsets": lambda t, at: t.group_call(lambda stub: stub.FetchOffsets, group_pb.FetchOffsetsRequest())(
        at, 60_000
    ),
    "InitTransactionalId": lambda t, at: t.transaction_call(
        lambda stub: stub.InitTransactionalId, txn_pb.InitTransactionalIdRequest()
    )(at, 60_000),
    "EndTxn": lambda t, at: t.transaction_call(lambda stub: stub.EndTxn, txn_pb.EndTxnRequest())(at, 60_000),
    "PrepareTxn": lambda t, at: t.transaction_call(lambda stub: stub.PrepareTxn, txn_pb.PrepareTxnRequest())(
        at, 60_000
    ),
    "DecidePrepared": lambda t, at: t.transaction_call(
        lambda stub: stub.DecidePrepared, txn_pb.DecidePreparedRequest()
    )(at, 60_000),
    "InitOwner": lambda t, at: t.transaction_call(lambda stub: stub.InitOwner, txn_pb.InitOwnerRequest())(at, 60_000),
    "CommitUnit": lambda t, at: t.transaction_call(lambda stub: stub.CommitUnit, txn_pb.CommitUnitRequest())(
        at, 60_000
    ),
    "TxnOffsetCommit": lambda t, at: t.group_call(lambda stub: stub.TxnOffsetCommit, group_pb.TxnOffsetCommitRequest())(
        at, 60_000
    ),
}


@pytest.mark.parametrize("call", COORDINATOR_CALLS)
async def test_a_coordinator_that_moves_under_a_call(call: str, node: SilentNode, transport: GrpcTransport) -> None:
    async with SilentNode().serve() as elsewhere:
        for place in (node, elsewhere):
            at = Coordinator(ONE, str(place.endpoint))
            transport._nodes.coordinator_at(at.node, at.address)
            await transport._leave_others()
            waiting = asyncio.ensure_future(COORDINATOR_CALLS[call](transport, at))
            await place.until_asked()
            assert list(transport._channels) == [at.address]
            if place is node:
                first = waiting
        with pytest.raises(NetworkFailed, match="unknown"):
            await first
        await transport._channels.drop(at.address)
        with pytest.raises(NetworkFailed, match="unknown"):
            await waiting


async def test_a_member_whose_stream_never_got_through(transport: GrpcTransport) -> None:
    with unreachable() as nobody:
        stream = transport.membership(Coordinator(ONE, str(nobody)))
        stream.send(group_pb.MembershipRequest())
        asked = asyncio.ensure_future(stream.receive())
        while transport._channels[str(nobody)].get_state() is not grpc.ChannelConnectivity.CONNECTING:
            await asyncio.sleep(0)
        await transport._channels.drop(str(nobody))
        with pytest.raises(NetworkFailed, match="closed"):
            await asked
        await asyncio.wait([stream._writer])
        await stream.close()


async def test_a_question_whose_connection_is_closed_is_asked_elsewhere(transport: GrpcTransport) -> None:
    async with AsyncExitStack() as stack:
        nodes = [await stack.enter_async_context(SilentNode().serve()) for _ in range(2)]
        await transport._learn(answer(*((n, 1, str(node.endpoint)) for n, node in enumerate(nodes))))
        asked = asyncio.ensure_future(transport.metadata(pb.MetadataRequest()))
        await nodes[0].until_asked()
        await transport._channels.drop(str(nodes[0].endpoint))
        await nodes[1].until_asked()
        await transport._channels.drop(str(nodes[1].endpoint))
        with pytest.raises(NetworkFailed, match=r"no broker answered.*was closed.*was closed"):
            await asked


async def test_who_waits_for_an_answer_is_told_that_the_client_was_closed(node: SilentNode) -> None:
    """Once, and not cancelled: it may be a task of the application's own."""
    client = GrpcTransport([str(node.endpoint)])
    asked = asyncio.ensure_future(client.metadata(pb.MetadataRequest()))
    await node.until_asked()
    await client.close()
    with pytest.raises(ClientClosed):
        await asked
    with pytest.raises(ClientClosed):
        await client.metadata(pb.MetadataRequest())


async def test_connections_stay_as_many_as_nodes_are_known(transport: GrpcTransport) -> None:
    transport._channel(BOOT)
    for n in range(1, 60):
        told = answer((1, n, f"127.0.0.2:{n}"), (2, n, f"127.0.0.3:{n}"))
        told.nodes.extend(answer((1, n, f"127.0.0.4:{n}"), role=cluster_pb2.ADMIN).nodes)
        await transport._learn(told)
        for address in (*transport._nodes.brokers.values(), *transport._nodes.admins):
            transport._channel(address)
        for id in (ONE, NodeId(2)):
            at = f"127.0.0.5:{2 * n + id}"
            transport._nodes.coordinator_at(id, at)
            await transport._leave_others()
            transport._channel(at)
    assert len(transport._channels) == 6
    assert BOOT in transport._channels
    assert len(transport._nodes._names) <= 2 * 6


async def test_a_bootstrap_address_that_a_node_has_left_stays(transport: GrpcTransport) -> None:
    await transport._learn(answer((1, 1, BOOT)))
    transport._channel(BOOT)
    await transport._learn(answer((1, 2, "127.0.0.2:1")))
    assert list(transport._channels) == [BOOT]


def test_what_an_older_registration_said_changes_nothing() -> None:
    nodes = Whereabouts()
    assert nodes.learn(answer((1, 5, "a:1"))) == {}
    assert nodes.learn(answer((1, 7, "b:1"))) == {ONE: "a:1"}
    assert nodes.learn(answer((1, 5, "a:1"))) == {}, "from a broker that lags"
    assert nodes.brokers == {ONE: "b:1"}
    assert nodes.learn(answer((1, 1, "c:1"), cluster="other")) == {ONE: "b:1"}, "epochs of another cluster"
    assert nodes.addresses == {"c:1"}


def test_restored_metadata_says_where_nodes_are_though_its_epochs_are_low() -> None:
    nodes = Whereabouts()
    nodes.learn(answer((1, 700, "a:1"), (2, 701, "b:2"), incarnation=b"a", revision=5_000))
    assert nodes.learn(answer((1, 3, "c:1"), incarnation=b"a", revision=4)) == {}, "a broker that lags"
    assert nodes.learn(answer((1, 3, "c:1"), incarnation=b"b", revision=4)) == {ONE: "a:1"}
    assert nodes.learn(answer((1, 2, "d:1"), incarnation=b"b", revision=3)) == {}, "now that one's epochs count"
    assert nodes.learn(answer((2, 4, "c:2"), incarnation=b"b", revision=5)) == {NodeId(2): "b:2"}, "told of later"
    assert nodes.brokers == {ONE: "c:1", NodeId(2): "c:2"}


def test_a_copy_learns_of_a_restore_by_itself() -> None:
    nodes = Whereabouts()
    nodes.learn(answer((1, 700, "a:1"), incarnation=b"a", revision=5_000))
    twin = nodes.copy()
    assert twin.learn(answer((1, 699, "b:1"), incarnation=b"a", revision=5_000)) == {}, "it knows what was known"
    restored = answer((1, 3, "c:1"), incarnation=b"b", revision=4)
    assert twin.learn(restored) == nodes.learn(restored) == {ONE: "a:1"}


def test_admin_services_that_are_fenced_come_last() -> None:
    nodes = Whereabouts()
    told = answer((1, 1, "a:1"), (2, 2, "b:1"), role=cluster_pb2.ADMIN)
    told.nodes[0].fenced = True
    nodes.learn(told)
    assert nodes.admins == ["b:1", "a:1"]


def test_a_coordinator_is_where_the_newest_word_says_though_some_lag() -> None:
    nodes = Whereabouts()
    nodes.coordinator_at(ONE, "a:1")
    nodes.coordinator_at(ONE, "b:1")
    assert nodes.addresses == {"b:1"}
    nodes.coordinator_at(ONE, "a:1")
    assert nodes.addresses == {"a:1", "b:1"}, "nobody knows whose word is newer"
    nodes.coordinator_at(ONE, "c:1")
    assert nodes.addresses == {"c:1"}


@given(st.lists(st.tuples(st.integers(1, 3), st.sampled_from("abcde")), max_size=40))
def test_places_of_coordinators_are_bounded_and_have_the_last_word(words: list[tuple[int, str]]) -> None:
    nodes = Whereabouts()
    for id, address in words:
        nodes.coordinator_at(NodeId(id), address)
        assert address in nodes.addresses
        assert len(nodes.addresses) <= 2 * 3


def order(transport: GrpcTransport) -> list[str]:
    return list(transport._addresses(elsewhere=False))


async def test_after_a_broker_a_configured_address_is_asked() -> None:
    transport = GrpcTransport(["boot:1", "boot:2"])
    await transport._learn(answer(*((n, n, f"b:{n}") for n in range(1, 5))))
    assert order(transport) == ["b:1", "boot:1", "b:2", "boot:2", "b:3", "b:4"]
    transport._answered = "b:3"
    assert order(transport) == ["b:3", "boot:1", "b:4", "boot:2", "b:1", "b:2"]
    transport._answered = "boot:1"
    assert order(transport) == ["boot:1", "b:1", "boot:2", "b:2", "b:3", "b:4"]
    for address in order(transport):
        transport._avoid(address)
    assert order(transport)[:2] == ["b:1", "boot:1"], "all were silent"
    await transport.close()


async def test_brokers_that_are_fenced_are_asked_last() -> None:
    transport = GrpcTransport(["boot:1"])
    await transport._learn(answer(*((n, n, f"b:{n}") for n in range(1, 4))))
    await transport._learn(answer((2, 2, "b:2")))
    assert order(transport) == ["b:2", "boot:1", "b:1", "b:3"]
    assert order(transport.sibling()) == ["b:2", "boot:1", "b:1", "b:3"]
    await transport.close()


async def test_a_sibling_hears_where_nodes_are_now(node: SilentNode) -> None:
    """A group's connections, whose own questions are rare: the consumer's learn of each roll."""
    transport = GrpcTransport([BOOT])
    sibling = transport.sibling()
    for epoch in range(1, 100):
        await transport._learn(answer((1, epoch, f"a:{epoch}")))
    await transport._learn(answer((1, 100, str(node.endpoint))))
    await transport._learn(answer((1, 99, "a:99")))  # from a broker that is behind
    asked = asyncio.ensure_future(sibling.find_coordinator("g"))
    await asyncio.wait_for(node.until_asked(), 10)
    assert node.asked == ["FindCoordinator"]
    asked.cancel()
    await asyncio.wait([asked])
    await sibling.close()
    await transport.close()


async def test_when_all_brokers_are_gone_the_bootstrap_address_is_asked_second(node: SilentNode) -> None:
    """Pods that were all replaced: their old addresses are silent, and the service's name leads to the new ones."""
    async with AsyncExitStack() as stack:
        gone = [await stack.enter_async_context(SilentNode().serve()) for _ in range(5)]
        boot = str(node.endpoint)
        transport = GrpcTransport([boot])
        await transport._learn(answer(*((n, 1, str(one.endpoint)) for n, one in enumerate(gone))))
        asked = asyncio.ensure_future(transport.metadata(pb.MetadataRequest(), elsewhere=True))
        await node.until_asked()
        assert [len(one.asked) for one in gone] == [1, 0, 0, 0, 0]
        asked.cancel()
        await asyncio.wait([asked])
        await transport.close()


@pytest.mark.parametrize("known", [True, False])
async def test_an_address_that_was_silent_gets_a_new_connection_unless_a_node_is_there(
    known: bool, node: SilentNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace._transport.grpc.METADATA_ATTEMPT_MS", 50)
    transport = GrpcTransport([str(node.endpoint)])
    if known:
        await transport._learn(answer((1, 1, str(node.endpoint))))
    used = transport._channel(str(node.endpoint))
    with pytest.raises(NetworkFailed):
        await transport.metadata(pb.MetadataRequest())
    assert (used in transport._channels.values()) == known, "requests may be under way on a node's connection"
    await transport.close()
