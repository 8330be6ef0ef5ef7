"""Who gets past the gate of a server, over real connections."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import grpc.aio
import pytest
from libs.common.tests.kit.fixed_tokens import Fixed

from headrace_common.core.errors import ClusterAuthorizationFailed, HeadraceError, MetadataUnavailable, NetworkFailed
from headrace_common.core.features import NODE_TOKEN
from headrace_common.core.ids import Endpoint, NodeId, is_loopback
from headrace_common.core.image import EMPTY_IMAGE, ClusterImage, Node, NodeKey, Role
from headrace_common.core.node_rules import NO_CERTIFICATE, NO_TOKEN
from headrace_common.rpc.channels import Security, open_channel
from headrace_common.rpc.node_gate import (
    FORWARDED_HOST_KEY,
    FORWARDED_KEY,
    NODE_KEY,
    TOKEN_KEY,
    KnownNodes,
    NodeGate,
    OnBehalf,
    node_security,
)
from headrace_common.rpc.status import error_from_rpc
from headrace_common.runtime.service import GrpcService, ServerConfig
from headrace_proto.v1 import broker_pb2, broker_pb2_grpc

BROKER, ADMIN = NodeKey(Role.BROKER, NodeId(1)), NodeKey(Role.ADMIN, NodeId(1))
OPEN, CLOSED = (
    replace(EMPTY_IMAGE, revision=1, feature_level=NODE_TOKEN.level - 1),
    replace(EMPTY_IMAGE, revision=1, feature_level=NODE_TOKEN.level),
)


class Seeing(broker_pb2_grpc.BrokerServicer):
    """Keeps what reaches it."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    async def DescribeLogs(self, request: Any, context: Any) -> Any:
        self.seen.append(request)
        return broker_pb2.DescribeLogsResponse()

    async def ListOffsets(self, request: Any, context: Any) -> Any:
        self.seen.append(request)
        return broker_pb2.ListOffsetsResponse()

    async def Replicate(self, requests: Any, context: Any) -> Any:
        async for request in requests:
            self.seen.append(request)
            yield broker_pb2.ReplicateResponse()


@dataclass
class Server:
    """One with a gate."""

    servicer: Seeing
    address: str
    image: list[ClusterImage] = field(default_factory=lambda: [CLOSED])
    tokens: Fixed = field(default_factory=Fixed)

    async def call(self, operation: str, security: Security) -> HeadraceError | None:
        """What it says; gRPC loses that where a write meets the refusal, so a stream that broke is opened again."""
        for _ in range(10):
            error = await self._call(operation, security)
            if not isinstance(error, NetworkFailed):
                break
        return error

    async def _call(self, operation: str, security: Security) -> HeadraceError | None:
        async with open_channel(self.address, security, own_connection=True) as channel:
            stub: Any = broker_pb2_grpc.BrokerStub(channel)
            try:
                if operation == "Replicate":
                    stream = stub.Replicate()
                    await stream.write(broker_pb2.ReplicateRequest())
                    await stream.read()
                elif operation == "DescribeLogs":
                    await stub.DescribeLogs(broker_pb2.DescribeLogsRequest())
                else:
                    await stub.ListOffsets(broker_pb2.ListOffsetsRequest())
            except grpc.aio.AioRpcError as error:
                return error_from_rpc(error)
        return None

    def as_node(self, key: NodeKey, *texts: str, known: bool = True, loopback_only: bool = False) -> Security:
        tokens = Fixed(texts or ("secret",), loopback_only=loopback_only)
        there = [Endpoint.parse(self.address)] if known else []
        return node_security(key, tokens, KnownNodes(lambda: EMPTY_IMAGE, lambda: there))


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    servicer, made = Seeing(), []
    tokens = Fixed()
    gate = NodeGate(tokens, lambda: made[0].image[0])
    servicers = [(broker_pb2_grpc.add_BrokerServicer_to_server, servicer)]
    async with GrpcService.open(ServerConfig(drain_ms_max=0), servicers, interceptors=[gate]) as running:
        made.append(Server(servicer, f"127.0.0.1:{running.port}", tokens=tokens))
        yield made[0]


async def test_before_there_is_an_image_who_shows_no_token_has_to_wait(server: Server) -> None:
    server.image[0] = EMPTY_IMAGE
    for operation in ("DescribeLogs", "Replicate"):
        assert isinstance(await server.call(operation, bearing()), MetadataUnavailable)
    assert server.servicer.seen == []
    assert await server.call("ListOffsets", bearing()) is None, "that is for clients"
    assert await server.call("DescribeLogs", server.as_node(BROKER)) is None
    server.tokens.demanded = False
    assert await server.call("DescribeLogs", bearing()) is None


def bearing(*pairs: tuple[str, str]) -> Security:
    return Security(lambda target: pairs)


def strangers() -> Iterator[Security]:
    yield Security()
    yield bearing((NODE_KEY, "broker-1"))
    yield bearing((TOKEN_KEY, "secret"))
    yield bearing((NODE_KEY, "broker-1"), (TOKEN_KEY, "wrong"))
    yield bearing((NODE_KEY, "king-1"), (TOKEN_KEY, "secret"))


@pytest.mark.parametrize("operation", ["Replicate", "DescribeLogs"])
async def test_without_a_valid_token_nothing_reaches_the_server(server: Server, operation: str) -> None:
    for security in strangers():
        error = await server.call(operation, security)
        assert isinstance(error, ClusterAuthorizationFailed), error
        assert NO_TOKEN in str(error)
    assert not server.servicer.seen


async def test_who_is_refused_is_not_read_first(server: Server) -> None:
    """A stranger that asks and then sends nothing holds no handler."""
    async with open_channel(server.address, own_connection=True) as channel:
        stub: Any = broker_pb2_grpc.BrokerStub(channel)
        async with asyncio.timeout(20):
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await stub.Replicate().read()
    assert isinstance(error_from_rpc(raised.value), ClusterAuthorizationFailed)


async def test_clients_go_on_as_they_were(server: Server) -> None:
    for security in strangers():
        assert await server.call("ListOffsets", security) is None


async def test_a_node_gets_what_its_role_may_have(server: Server) -> None:
    assert await server.call("Replicate", server.as_node(BROKER)) is None
    assert await server.call("DescribeLogs", server.as_node(ADMIN)) is None
    assert "is for admin nodes, and broker-1 is none" in str(await server.call("DescribeLogs", server.as_node(BROKER)))


async def test_before_the_level_and_where_it_is_not_demanded_all_go_in(server: Server) -> None:
    server.image[0] = OPEN
    assert await server.call("Replicate", Security()) is None
    server.image[0] = CLOSED
    assert await server.call("Replicate", Security()) is not None
    server.tokens.demanded = False
    assert await server.call("Replicate", Security()) is None
    assert not NodeGate(None, lambda: CLOSED).closed
    assert not NodeGate(Fixed(demanded=False), lambda: CLOSED).closed


async def test_two_tokens_hold_while_one_is_changed(server: Server) -> None:
    server.tokens.texts = ("new", "secret")
    for text in ("new", "secret"):
        assert await server.call("Replicate", server.as_node(BROKER, text)) is None
    server.tokens.texts = ("new",)
    assert await server.call("Replicate", server.as_node(BROKER, "secret")) is not None


async def test_the_token_goes_to_known_nodes_alone(server: Server) -> None:
    assert await server.call("Replicate", server.as_node(BROKER, known=False)) is not None
    here, there = Endpoint("127.0.0.1", 1), Endpoint("10.0.0.1", 1)
    image = replace(EMPTY_IMAGE, nodes={BROKER: Node(BROKER, here, b"", 1, internal=there)})
    shown = node_security(BROKER, Fixed(), KnownNodes(lambda: image)).metadata
    only_here = node_security(BROKER, Fixed(loopback_only=True), KnownNodes(lambda: image)).metadata
    assert shown is not None
    assert only_here is not None
    token = (TOKEN_KEY, "secret")
    assert token in shown("127.0.0.1:1")
    assert token in shown("10.0.0.1:1")
    assert token not in shown("10.0.0.1:2")
    assert token in only_here("127.0.0.1:1")
    assert token not in only_here("10.0.0.1:1")
    assert node_security(BROKER, None, KnownNodes(lambda: image)).metadata is None


@pytest.mark.parametrize("closed", [True, False])
def test_a_credential_goes_to_known_nodes_of_this_machine_or_nowhere(closed: bool) -> None:
    here, away = Endpoint("127.0.0.1", 1), Endpoint("10.0.0.1", 1)
    nodes = [Node(NodeKey(Role.BROKER, NodeId(n)), at, bytes(16), 1) for n, at in enumerate((here, away))]
    known = KnownNodes(lambda: replace(EMPTY_IMAGE, nodes={node.key: node for node in nodes}))
    bearers: list[str | None] = ["hrk_x"]
    hosts: list[str | None] = ["10.0.0.7"]
    metadata = node_security(
        ADMIN, Fixed(), known, behalf=OnBehalf(lambda: bearers[-1], host=lambda: hosts[-1]), closed=lambda: closed
    ).metadata
    assert metadata is not None
    assert {(FORWARDED_KEY, b"hrk_x"), (FORWARDED_HOST_KEY, "10.0.0.7")} <= set(metadata(str(here)))
    hosts.append(None)
    assert FORWARDED_HOST_KEY not in dict(metadata(str(here)))
    for elsewhere in (str(away), "127.0.0.1:2"):
        if closed:
            with pytest.raises(ClusterAuthorizationFailed, match="not passed on") as refused:
                metadata(elsewhere)
            assert "hrk_x" not in str(refused.value)
        else:
            assert FORWARDED_KEY not in dict(metadata(elsewhere))
    bearers.append(None)
    assert FORWARDED_KEY not in dict(metadata(str(away)))
    assert FORWARDED_KEY not in dict(metadata(str(here)))


@pytest.mark.parametrize("role", [role for role in Role if role is not Role.ADMIN])
def test_who_asks_for_nobody_passes_no_credential_on_and_is_not_held_up_by_one(role: Role) -> None:
    node, at = NodeKey(role, NodeId(1)), Endpoint("127.0.0.1", 1)
    known = KnownNodes(lambda: EMPTY_IMAGE, lambda: [at])
    metadata = node_security(node, Fixed(), known, behalf=OnBehalf(lambda: "hrk_x"), closed=lambda: True).metadata
    assert metadata is not None
    for target in (str(at), "10.0.0.1:1"):
        assert FORWARDED_KEY not in dict(metadata(target))


def test_what_is_at_an_address_is_what_the_newest_image_says() -> None:
    here, there = Endpoint("127.0.0.1", 1), Endpoint("10.0.0.1", 1)
    images = [replace(EMPTY_IMAGE, nodes={BROKER: Node(BROKER, here, b"", 1)})]
    known = KnownNodes(lambda: images[-1], lambda: [here, there])
    assert known.role_at(str(here)) is Role.BROKER, "whatever else is said to be there"
    assert known.role_at(str(there)) is Role.CONTROLLER
    images.append(replace(EMPTY_IMAGE, nodes={ADMIN: Node(ADMIN, here, b"", 1)}))
    assert known.role_at(str(here)) is Role.ADMIN
    images.append(EMPTY_IMAGE)
    assert known.role_at(str(here)) is Role.CONTROLLER


class Calling:
    """What a handler is told of a call with this metadata, on a connection without TLS."""

    def __init__(self, *metadata: tuple[str, str]) -> None:
        self._metadata = metadata

    def invocation_metadata(self) -> Any:
        return self._metadata

    def auth_context(self) -> Any:
        return {}


def test_a_stream_is_held_once_the_cluster_knows_of_tokens() -> None:
    images = [OPEN]
    gate = NodeGate(Fixed(), lambda: images[-1])
    stranger: Any = Calling((NODE_KEY, "broker-1"))
    node: Any = Calling((NODE_KEY, "broker-1"), (TOKEN_KEY, "secret"))
    holds = gate.holding("Broker/Replicate", stranger)
    passes = gate.holding("Broker/Replicate", node)
    holds()
    images.append(CLOSED)
    passes()
    with pytest.raises(ClusterAuthorizationFailed, match=NO_TOKEN):
        holds()


def test_a_stream_without_a_certificate_is_told_what_it_lacks() -> None:
    nobody: Any = Calling((NODE_KEY, "broker-1"))
    with pytest.raises(ClusterAuthorizationFailed, match=NO_CERTIFICATE):
        NodeGate(trust_domain="headrace").holding("Broker/Replicate", nobody)()


@pytest.mark.parametrize("gate", [NodeGate(), NodeGate(trust_domain="headrace")])
async def test_what_a_server_does_not_have_is_nothing_to_refuse(gate: NodeGate) -> None:
    async def nothing(_: Any) -> None:
        return None

    details: Any = SimpleNamespace(method="/headrace.v1.Broker/Replicate", invocation_metadata=())
    continuation: Any = nothing
    assert await gate.intercept_service(continuation, details) is None


def test_only_addresses_of_this_machine_are_loopback() -> None:
    assert all(map(is_loopback, ("127.0.0.1:1", "127.9.9.9:1", "localhost:1", "[::1]:1")))
    assert not any(map(is_loopback, ("127.evil.example:1", "localhost.example:1", "10.0.0.1:1", "[fd00::1]:1", "")))


def test_who_speaks_for_another_node_is_held_to_itself() -> None:
    gate = NodeGate(Fixed(), lambda: CLOSED)
    gate.hold(BROKER, BROKER)
    gate.hold(ADMIN, BROKER, Role.ADMIN)
    for caller in (ADMIN, NodeKey(Role.BROKER, NodeId(2)), None):
        with pytest.raises(ClusterAuthorizationFailed, match="cannot speak for broker-1"):
            gate.hold(caller, BROKER)
    with pytest.raises(ClusterAuthorizationFailed, match="cannot speak for broker-1"):
        gate.hold(None, BROKER, Role.ADMIN)
    NodeGate(Fixed(), lambda: OPEN).hold(None, BROKER)
