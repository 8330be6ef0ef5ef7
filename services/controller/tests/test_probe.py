"""Looking at nodes over real connections: who answers, by the service of its role."""

from __future__ import annotations

from typing import Any

import pytest

from headrace_common.core.ids import Endpoint, NodeId
from headrace_common.core.image import Node, NodeKey, Role
from headrace_common.runtime.service import GrpcService, ServerConfig
from headrace_controller.adapters.grpc_probe import GrpcProbe
from headrace_controller.ports import ProbeResult
from headrace_proto.v1 import broker_pb2, broker_pb2_grpc, coordinator_pb2, coordinator_pb2_grpc

MINE, OTHER = b"m" * 16, b"o" * 16


class Broker(broker_pb2_grpc.BrokerServicer):
    async def Identify(self, request: Any, context: Any) -> broker_pb2.IdentifyResponse:
        return broker_pb2.IdentifyResponse(incarnation=MINE)


class Coordinator(coordinator_pb2_grpc.CoordinatorServicer):
    async def IdentifyCoordinator(self, request: Any, context: Any) -> coordinator_pb2.IdentifyCoordinatorResponse:
        return coordinator_pb2.IdentifyCoordinatorResponse(incarnation=MINE)


SERVICES: dict[Role, Any] = {
    Role.BROKER: (broker_pb2_grpc.add_BrokerServicer_to_server, Broker()),
    Role.COORDINATOR: (coordinator_pb2_grpc.add_CoordinatorServicer_to_server, Coordinator()),
}


def node(role: Role, endpoint: Endpoint, incarnation: bytes = MINE) -> Node:
    return Node(NodeKey(role, NodeId(1)), endpoint, incarnation, 1)


@pytest.mark.parametrize("role", SERVICES)
async def test_the_process_that_registered_is_told_from_another(role: Role) -> None:
    async with GrpcService.open(ServerConfig(drain_ms_max=0), [SERVICES[role]]) as server:
        probe = GrpcProbe()
        assert await probe.probe(node(role, server.endpoint)) is ProbeResult.SAME
        assert await probe.probe(node(role, server.endpoint, OTHER)) is ProbeResult.OTHER
        gone = server.endpoint
    assert await probe.probe(node(role, gone)) is ProbeResult.REFUSED


async def test_who_serves_something_else_answers_but_does_not_say_who_it_is() -> None:
    async with GrpcService.open(ServerConfig(drain_ms_max=0), [SERVICES[Role.BROKER]]) as server:
        assert await GrpcProbe().probe(node(Role.COORDINATOR, server.endpoint)) is ProbeResult.ANSWERS
