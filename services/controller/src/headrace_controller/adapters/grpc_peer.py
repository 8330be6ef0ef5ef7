"""The active controller over gRPC, as a standby speaks to it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import grpc.aio

from headrace_common.core.ids import Endpoint
from headrace_common.core.image import Node
from headrace_common.rpc.channels import PLAIN, Channels, Security
from headrace_common.rpc.convert import node_to_proto, role_to_proto
from headrace_common.rpc.status import error_from_rpc
from headrace_common.runtime.audit import StartKey
from headrace_controller.core.sessions import Heartbeat
from headrace_proto.v1 import controller_pb2, controller_pb2_grpc

_TIMEOUT_S: Final = 5.0


class GrpcPeer:
    """One channel, to whoever was spoken to last."""

    def __init__(self, security: Security = PLAIN) -> None:
        self._channels: Channels[Endpoint] = Channels(security)

    @staticmethod
    @asynccontextmanager
    async def open(security: Security = PLAIN) -> AsyncIterator[GrpcPeer]:
        """A peer without a connection yet."""
        peer = GrpcPeer(security)
        try:
            yield peer
        finally:
            await peer._channels.close()

    async def register(self, target: Endpoint, node: Node, cluster_id: str, start: StartKey | None = None) -> int:
        request = controller_pb2.RegisterNodeRequest(
            node=node_to_proto(node),
            cluster_id=cluster_id,
            previous_epoch=node.epoch or None,
            max_producer_id=-1,
            audit_start="" if start is None else start.id,
            audit_key=b"" if start is None else start.public_key,
        )
        try:
            answer = await (await self._stub(target)).RegisterNode(request, timeout=_TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            raise error_from_rpc(error) from error
        return answer.epoch

    async def heartbeat(self, target: Endpoint, heartbeat: Heartbeat) -> None:
        request = controller_pb2.HeartbeatRequest(
            role=role_to_proto(heartbeat.key.role),
            id=heartbeat.key.id,
            epoch=heartbeat.epoch,
            image_revision=heartbeat.image_revision,
            feature_level_max=heartbeat.feature_level_max,
            audit_start=heartbeat.audit_start,
            audit_events=heartbeat.audit_events,
        )
        try:
            await (await self._stub(target)).Heartbeat(request, timeout=_TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            raise error_from_rpc(error) from error

    async def _stub(self, target: Endpoint) -> controller_pb2_grpc.ControllerAsyncStub:
        await self._channels.keep({target})
        return controller_pb2_grpc.ControllerStub(self._channels.to(target))
