"""
Looks at a node's own address: first whether anybody listens (TCP), then who it is (``Broker.Identify``,
``Coordinator.IdentifyCoordinator``).

An address may be a name that moves, as a pod's does. While the name is not known, nothing is known of the process
behind it. Where another node answers, or one of another cluster, the address has been given to that one, or the name
server is late: that says nothing of the node that was asked for either, and its session decides.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from socket import SOCK_STREAM
from typing import Final

import grpc
import grpc.aio

from headrace_common.core.ids import Endpoint
from headrace_common.core.image import Node, Role
from headrace_common.rpc.channels import PLAIN, Security, open_channel
from headrace_common.runtime.clock import limit_s
from headrace_controller.ports import ProbeResult
from headrace_proto.v1 import broker_pb2, broker_pb2_grpc, coordinator_pb2, coordinator_pb2_grpc

_TIMEOUT_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class _Identity:
    """Who answers at an address."""

    id: int
    incarnation: bytes
    cluster_id: str
    """Empty: it has not joined one yet."""


class GrpcProbe:
    """A probe over the network; keeps nothing between two looks. ``cluster_id`` tells that of the controller."""

    def __init__(self, cluster_id: Callable[[], str], security: Security = PLAIN) -> None:
        self._security = security
        self._cluster_id = cluster_id

    async def probe(self, node: Node) -> ProbeResult:
        reached = await _connects(node.inside)
        if reached is not ProbeResult.ANSWERS:
            return reached
        async with open_channel(str(node.inside), self._security, own_connection=True) as channel:
            try:
                found = await _identity(node.key.role, channel)
            except grpc.aio.AioRpcError as error:
                if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                    return ProbeResult.ANSWERS
                again = await _connects(node.inside)  # it may have died between the two questions
                return again if again is ProbeResult.REFUSED else ProbeResult.SILENT
        if found.incarnation == node.incarnation:
            return ProbeResult.SAME
        ours = found.cluster_id in ("", self._cluster_id())
        return ProbeResult.OTHER if ours and found.id == node.key.id else ProbeResult.SILENT

    async def listens(self, endpoint: Endpoint) -> ProbeResult:
        return await _connects(endpoint)


async def _identity(role: Role, channel: grpc.aio.Channel) -> _Identity:
    timeout = _TIMEOUT_S / 2
    if role is Role.COORDINATOR:
        stub = coordinator_pb2_grpc.CoordinatorStub(channel)
        one = await stub.IdentifyCoordinator(coordinator_pb2.IdentifyCoordinatorRequest(), timeout=timeout)
        return _Identity(one.id, one.incarnation, one.cluster_id)
    broker = broker_pb2_grpc.BrokerStub(channel)
    other = await broker.Identify(broker_pb2.IdentifyRequest(), timeout=timeout)
    return _Identity(other.id, other.incarnation, other.cluster_id)


async def _connects(endpoint: Endpoint) -> ProbeResult:
    """``REFUSED`` only where each address of the host refuses: of IPv4 and IPv6, a process may serve on one."""
    refused = False
    try:
        async with limit_s(_TIMEOUT_S / 2):
            loop = asyncio.get_running_loop()
            found = await loop.getaddrinfo(endpoint.host, endpoint.port, type=SOCK_STREAM)
            for address in dict.fromkeys(str(entry[4][0]) for entry in found):
                try:
                    _, writer = await asyncio.open_connection(address, endpoint.port)
                except (ConnectionRefusedError, ConnectionResetError):
                    refused = True
                    continue
                writer.close()
                with suppress(OSError):
                    await writer.wait_closed()
                return ProbeResult.ANSWERS
    except (OSError, TimeoutError):  # among them: the name is not known
        return ProbeResult.SILENT
    return ProbeResult.REFUSED if refused else ProbeResult.SILENT
