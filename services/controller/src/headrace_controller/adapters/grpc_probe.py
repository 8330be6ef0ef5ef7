"""
Looks at a node's own address: first whether anybody listens (TCP), then who it is (``Broker.Identify``,
``Coordinator.IdentifyCoordinator``).
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

import grpc
import grpc.aio

from headrace_common.core.ids import Endpoint
from headrace_common.core.image import Node, Role
from headrace_common.rpc.options import open_channel
from headrace_controller.ports import ProbeResult
from headrace_proto.v1 import broker_pb2, broker_pb2_grpc, coordinator_pb2, coordinator_pb2_grpc

_TIMEOUT_S: Final = 1.0


class GrpcProbe:
    """A probe over the network; keeps nothing between two looks."""

    async def probe(self, node: Node) -> ProbeResult:
        """See the port."""
        reached = await _connects(node.grpc)
        if reached is not ProbeResult.ANSWERS:
            return reached
        async with open_channel(str(node.grpc), own_connection=True) as channel:
            try:
                incarnation = await _incarnation(node.key.role, channel)
            except grpc.aio.AioRpcError as error:
                if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                    return ProbeResult.ANSWERS
                again = await _connects(node.grpc)  # it may have died between the two questions
                return again if again is ProbeResult.REFUSED else ProbeResult.SILENT
        return ProbeResult.SAME if incarnation == node.incarnation else ProbeResult.OTHER

    async def listens(self, endpoint: Endpoint) -> ProbeResult:
        """See the port."""
        return await _connects(endpoint)


async def _incarnation(role: Role, channel: grpc.aio.Channel) -> bytes:
    timeout = _TIMEOUT_S / 2
    if role is Role.COORDINATOR:
        coordinator = coordinator_pb2_grpc.CoordinatorStub(channel)
        request = coordinator_pb2.IdentifyCoordinatorRequest()
        return (await coordinator.IdentifyCoordinator(request, timeout=timeout)).incarnation
    broker = broker_pb2_grpc.BrokerStub(channel)
    return (await broker.Identify(broker_pb2.IdentifyRequest(), timeout=timeout)).incarnation


async def _connects(endpoint: Endpoint) -> ProbeResult:
    try:
        async with asyncio.timeout(_TIMEOUT_S / 2):
            _, writer = await asyncio.open_connection(endpoint.host, endpoint.port)
    except (ConnectionRefusedError, ConnectionResetError):
        return ProbeResult.REFUSED
    except (OSError, TimeoutError):
        return ProbeResult.SILENT
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()
    return ProbeResult.ANSWERS
