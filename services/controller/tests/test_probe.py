"""Looking at nodes over real connections: who answers, by the service of its role."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from headrace_common.core.ids import Endpoint, NodeId
from headrace_common.core.image import Node, NodeKey, Role
from headrace_common.runtime.service import GrpcService, ServerConfig
from headrace_controller.adapters.grpc_probe import GrpcProbe
from headrace_controller.ports import ProbeResult
from headrace_proto.v1 import broker_pb2, broker_pb2_grpc, cluster_pb2, coordinator_pb2, coordinator_pb2_grpc

MINE, OTHER = b"m" * 16, b"o" * 16
CLUSTER = "c"


class Broker(broker_pb2_grpc.BrokerServicer):
    async def Identify(self, request: Any, context: Any) -> broker_pb2.IdentifyResponse:
        return broker_pb2.IdentifyResponse(role=cluster_pb2.BROKER, id=1, incarnation=MINE, cluster_id=CLUSTER)


class Coordinator(coordinator_pb2_grpc.CoordinatorServicer):
    async def IdentifyCoordinator(self, request: Any, context: Any) -> coordinator_pb2.IdentifyCoordinatorResponse:
        return coordinator_pb2.IdentifyCoordinatorResponse(id=1, incarnation=MINE, cluster_id=CLUSTER)


SERVICES: dict[Role, Any] = {
    Role.BROKER: (broker_pb2_grpc.add_BrokerServicer_to_server, Broker()),
    Role.COORDINATOR: (coordinator_pb2_grpc.add_CoordinatorServicer_to_server, Coordinator()),
}


def node(role: Role, endpoint: Endpoint, incarnation: bytes = MINE, *, id: int = 1) -> Node:
    return Node(NodeKey(role, NodeId(id)), endpoint, incarnation, 1)


def prober(cluster_id: str = CLUSTER) -> GrpcProbe:
    return GrpcProbe(lambda: cluster_id)


@pytest.mark.parametrize("role", SERVICES)
async def test_the_process_that_registered_is_told_from_another(role: Role) -> None:
    async with GrpcService.open(ServerConfig(drain_ms_max=0), [SERVICES[role]]) as server:
        probe = prober()
        assert await probe.probe(node(role, server.endpoint)) is ProbeResult.SAME
        assert await probe.probe(node(role, server.endpoint, OTHER)) is ProbeResult.OTHER
        gone = server.endpoint
    assert await probe.probe(node(role, gone)) is ProbeResult.REFUSED


async def test_who_serves_something_else_answers_but_does_not_say_who_it_is() -> None:
    async with GrpcService.open(ServerConfig(drain_ms_max=0), [SERVICES[Role.BROKER]]) as server:
        assert await prober().probe(node(Role.COORDINATOR, server.endpoint)) is ProbeResult.ANSWERS


@pytest.mark.parametrize("role", SERVICES)
async def test_an_address_that_belongs_to_somebody_else_now_says_nothing(role: Role) -> None:
    """A pod's address is given to another pod, and the name server is late: the node may live elsewhere."""
    async with GrpcService.open(ServerConfig(drain_ms_max=0), [SERVICES[role]]) as server:
        assert await prober().probe(node(role, server.endpoint, OTHER, id=2)) is ProbeResult.SILENT
        assert await prober("another").probe(node(role, server.endpoint, OTHER)) is ProbeResult.SILENT


async def test_a_name_that_is_not_known_is_neither_alive_nor_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    async def unknown(*_: Any, **__: Any) -> Any:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", unknown, raising=False)
    missing = Endpoint("broker-0.gone", 9292)
    assert await prober().probe(node(Role.BROKER, missing)) is ProbeResult.SILENT
    assert await prober().listens(missing) is ProbeResult.SILENT


async def test_refused_means_by_each_address_of_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    async def both(host: str, port: int, **_: Any) -> Any:
        return [(0, 0, 0, "", (ip, port)) for ip in ("127.0.0.2", "127.0.0.1", "127.0.0.1")]

    async with GrpcService.open(ServerConfig(drain_ms_max=0), [SERVICES[Role.BROKER]]) as server:
        at = Endpoint("two-addresses", server.port)
        with monkeypatch.context() as patched:
            patched.setattr(asyncio.get_running_loop(), "getaddrinfo", both, raising=False)
            assert await prober().listens(at) is ProbeResult.ANSWERS
    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", both, raising=False)
    assert await prober().listens(at) is ProbeResult.REFUSED
