"""Who gets past the gate of a server by a certificate, over real connections."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from libs.common.tests.kit.authority import BROKER, Authority
from libs.common.tests.kit.clock import FakeClock
from libs.common.tests.kit.fixed_tokens import Fixed
from libs.common.tests.kit.secure import shown
from libs.common.tests.rpc.test_node_gate import Seeing, Server

from headrace_common.core.errors import ClusterAuthorizationFailed
from headrace_common.core.features import HIGHEST
from headrace_common.core.ids import Endpoint, NodeId
from headrace_common.core.image import EMPTY_IMAGE, NodeKey, Role
from headrace_common.core.node_rules import NO_CERTIFICATE, NO_TOKEN, node_named
from headrace_common.rpc.channels import Certificates, Security
from headrace_common.rpc.node_gate import NODE_KEY, TOKEN_KEY, KnownNodes, NodeGate, Tokens, node_security
from headrace_common.runtime.listeners import Guard, InternalListener, Listeners
from headrace_common.runtime.metrics import open_metrics
from headrace_common.runtime.service import ServerConfig
from headrace_common.runtime.service_tls import ServiceTls
from headrace_common.runtime.tls import Wanted
from headrace_common.runtime.tls_watch import LiveBundle, TlsMetrics
from headrace_proto.v1 import broker_pb2_grpc

ANY = Endpoint("127.0.0.1", 0)
ONE = NodeKey(Role.BROKER, NodeId(0))


@dataclass
class Cluster:
    """A broker with TLS: a listener of clients and one of nodes."""

    authority: Authority
    clients: Server
    nodes: Server
    gate: NodeGate

    def as_node(self, key: NodeKey, uri: str, authority: Authority | None = None) -> Security:
        pair = (authority or self.authority).make(replace(BROKER, hosts=frozenset(), uri=uri))
        there = Endpoint.parse(self.nodes.address)
        known = KnownNodes(lambda: replace(EMPTY_IMAGE, nodes={}), lambda: [there])
        security = node_security(key, None, known, Certificates(shown(self.authority, pair)))
        return replace(security, server_name=lambda _: "broker.headrace")


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with listening(Authority(), tmp_path) as opened:
        yield opened


@asynccontextmanager
async def listening(
    authority: Authority, directory: Path, tokens: Tokens | None = None, *, also_plain: bool = False
) -> AsyncIterator[Cluster]:
    files, servicer = authority.files(directory / "tls"), Seeing()
    clock = FakeClock(int(authority.now.timestamp() * 1_000))
    with open_metrics("t", 1, None) as metrics:
        live = LiveBundle("service", files, Wanted(), clock, TlsMetrics(metrics.meter))
    certificates = Certificates(live.bundle.pem)
    tls = ServiceTls(live, certificates, certificates, "headrace", "", files.ca, also_plain=also_plain)
    image = replace(EMPTY_IMAGE, revision=1, feature_level=HIGHEST)
    gate = NodeGate(tokens, lambda: image, "headrace", also_plain=also_plain)
    servicers = [(broker_pb2_grpc.add_BrokerServicer_to_server, servicer)]
    async with Listeners.open(
        ServerConfig(drain_ms_max=0),
        lambda _: servicers,
        internal=InternalListener(ANY),
        health_names=[],
        interceptors=[],
        guard=Guard(gate, tls),
    ) as listeners:
        clients, nodes = (Server(servicer, f"127.0.0.1:{port}") for port in listeners.ports)
        yield Cluster(authority, clients, nodes, gate)


async def test_a_node_is_who_its_certificate_names(cluster: Cluster) -> None:
    for uri in ("spiffe://headrace/broker", "spiffe://headrace/broker/0"):
        assert await cluster.nodes.call("Replicate", cluster.as_node(ONE, uri)) is None
    assert len(cluster.nodes.servicer.seen) == 2


@pytest.mark.parametrize(
    ("key", "uri"),
    [
        (ONE, "spiffe://headrace/admin"),
        (ONE, "spiffe://headrace/broker/1"),
        (ONE, "spiffe://elsewhere/broker"),
        (ONE, "spiffe://headrace/broker/0/1"),
        (ONE, "spiffe://headrace/connect"),
        (NodeKey(Role.BROKER, NodeId(10)), "spiffe://headrace/broker/1"),
    ],
)
async def test_who_says_to_be_another_is_refused(cluster: Cluster, key: NodeKey, uri: str) -> None:
    for operation in ("Replicate", "DescribeLogs"):
        error = await cluster.nodes.call(operation, cluster.as_node(key, uri))
        assert isinstance(error, ClusterAuthorizationFailed), error
        assert "no certificate of a node, or of another node than it says" in str(error)
    assert cluster.nodes.servicer.seen == []


async def test_a_role_asks_what_is_for_it_alone(cluster: Cluster) -> None:
    admin = cluster.as_node(NodeKey(Role.ADMIN, NodeId(1)), "spiffe://headrace/admin")
    assert await cluster.nodes.call("DescribeLogs", admin) is None
    error = await cluster.nodes.call("Replicate", admin)
    assert "Replicate is for broker nodes, and admin-1 is none" in str(error)
    assert await cluster.nodes.call("ListOffsets", admin) is None


async def test_where_clients_come_nobody_is_a_node(cluster: Cluster) -> None:
    node = cluster.as_node(ONE, "spiffe://headrace/broker")
    stranger = Security(lambda _: ((NODE_KEY, "broker-0"),), shown(cluster.authority))
    for caller in (node, stranger):
        for operation in ("Replicate", "DescribeLogs"):
            error = await cluster.clients.call(operation, caller)
            assert isinstance(error, ClusterAuthorizationFailed), error
            assert NO_CERTIFICATE in str(error)
        assert await cluster.clients.call("ListOffsets", caller) is None


def test_channels_go_to_the_role_that_the_cluster_says() -> None:
    there = Endpoint("10.0.0.1", 1)
    security = node_security(
        ONE, None, KnownNodes(lambda: EMPTY_IMAGE, lambda: [there]), Certificates(shown(Authority()))
    )
    assert security.name_of("10.0.0.1:1") == "controller.headrace"
    assert security.name_of("10.0.0.1:2") is None
    assert security.metadata is not None
    assert security.metadata("10.0.0.1:2") == ((NODE_KEY, "broker-0"),)


def test_names_of_nodes() -> None:
    assert node_named("spiffe://d/broker", "d") == (Role.BROKER, None)
    assert node_named("spiffe://d/broker/12", "d") == (Role.BROKER, 12)
    wrong = ("spiffe://d/broker/", "spiffe://d/brokers", "spiffe://d/broker/-1", "spiffe://e/broker", "", "broker")
    assert [node_named(uri, "d") for uri in wrong] == [None] * len(wrong)


def test_with_certificates_the_gate_is_closed_from_the_first() -> None:
    gate: Any = NodeGate(trust_domain="headrace")
    assert gate.closed
    assert gate.of_clients() is not gate
    assert NodeGate().of_clients() is not None
    plain = NodeGate()
    assert plain.of_clients() is plain
    assert isinstance(gate, grpc.aio.ServerInterceptor)


# --- while a cluster is moved to TLS -----------------------------------------------------------------------------


@pytest.fixture
async def moving(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with listening(Authority(), tmp_path, Fixed(), also_plain=True) as opened:
        yield opened


def plain(*shown: tuple[str, str]) -> Security:
    return Security(lambda _: shown)


async def test_a_node_is_who_its_certificate_or_its_token_proves(moving: Cluster) -> None:
    token = plain((NODE_KEY, "broker-0"), (TOKEN_KEY, "secret"))
    assert await moving.nodes.call("Replicate", token) is None
    assert await moving.nodes.call("Replicate", moving.as_node(ONE, "spiffe://headrace/broker/0")) is None
    assert len(moving.nodes.servicer.seen) == 2


async def test_what_proves_nothing_is_refused_on_both(moving: Cluster) -> None:
    for caller, said in (
        (plain((NODE_KEY, "broker-0")), NO_TOKEN),
        (plain((NODE_KEY, "broker-0"), (TOKEN_KEY, "wrong")), NO_TOKEN),
        (plain((NODE_KEY, "admin-1"), (TOKEN_KEY, "secret")), "is for broker nodes"),
        (moving.as_node(ONE, "spiffe://headrace/admin"), "no certificate of a node"),
    ):
        error = await moving.nodes.call("Replicate", caller)
        assert isinstance(error, ClusterAuthorizationFailed), error
        assert said in str(error)
    assert moving.nodes.servicer.seen == []


async def test_a_token_by_tls_is_no_proof(moving: Cluster) -> None:
    """There a certificate says who calls, and it is of another node."""
    shown_too = replace(
        moving.as_node(ONE, "spiffe://headrace/broker/1"),
        metadata=lambda _: ((NODE_KEY, "broker-0"), (TOKEN_KEY, "secret")),
    )
    error = await moving.nodes.call("Replicate", shown_too)
    assert isinstance(error, ClusterAuthorizationFailed)
    assert moving.nodes.servicer.seen == []


async def test_where_clients_come_nobody_is_a_node_in_plain_text_either(moving: Cluster) -> None:
    token = plain((NODE_KEY, "broker-0"), (TOKEN_KEY, "secret"))
    error = await moving.clients.call("Replicate", token)
    assert isinstance(error, ClusterAuthorizationFailed)
    assert await moving.clients.call("ListOffsets", token) is None


async def test_claims_are_held_to_who_calls_on_both(moving: Cluster) -> None:
    assert moving.gate.closed
    assert not NodeGate(Fixed(demanded=False), trust_domain="headrace", also_plain=True).closed


class Called:
    """A call, as far as a gate looks at it."""

    def __init__(self, transport: bytes, *metadata: tuple[str, str]) -> None:
        self._transport, self._metadata = transport, metadata

    def auth_context(self) -> dict[str, list[bytes]]:
        return {"transport_security_type": [self._transport]}

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return self._metadata


def test_who_calls_is_told_by_what_its_connection_is() -> None:
    gate: Any = NodeGate(Fixed(), trust_domain="headrace", also_plain=True)
    shown = (NODE_KEY, "broker-0"), (TOKEN_KEY, "secret")
    assert gate.caller(Called(b"insecure", *shown)) == ONE
    assert gate.caller(Called(b"ssl", *shown)) is None
    assert gate.is_plain(Called(b"insecure"))
    assert not gate.is_plain(Called(b"ssl"))
    assert not NodeGate(Fixed()).is_plain(Called(b"insecure")), "a process without TLS has nothing else"  # type: ignore[arg-type]
