"""The active controller over gRPC, as a standby speaks to it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import grpc
import grpc.aio

from headrace_common.core.ids import Endpoint
from headrace_common.core.image import Node, NodeKey
from headrace_common.rpc.convert import node_to_proto, role_to_proto
from headrace_common.rpc.options import open_channel
from headrace_common.rpc.status import error_from_rpc
from headrace_proto.v1 import controller_pb2, controller_pb2_grpc

_TIMEOUT_S: Final = 5.0


class GrpcPeer:
    """One channel, to whoever was spoken to last."""

    def __init__(self) -> None:
        self._target: Endpoint | None = None
        self._channel: grpc.aio.Channel | None = None

    @staticmethod
    @asynccontextmanager
    async def open() -> AsyncIterator[GrpcPeer]:
        """A peer without a connection yet."""
        peer = GrpcPeer()
        try:
            yield peer
        finally:
            await peer._close()

    async def register(self, target: Endpoint, node: Node, cluster_id: str) -> int:
        """See the port."""
        request = controller_pb2.RegisterNodeRequest(
            node=node_to_proto(node), cluster_id=cluster_id, previous_epoch=node.epoch or None, max_producer_id=-1
        )
        try:
            answer = await (await self._stub(target)).RegisterNode(request, timeout=_TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            raise error_from_rpc(error) from error
        return answer.epoch

    async def heartbeat(self, target: Endpoint, key: NodeKey, epoch: int, image_revision: int) -> None:
        """See the port."""
        request = controller_pb2.HeartbeatRequest(
            role=role_to_proto(key.role), id=key.id, epoch=epoch, image_revision=image_revision
        )
        try:
            await (await self._stub(target)).Heartbeat(request, timeout=_TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            raise error_from_rpc(error) from error

    async def _stub(self, target: Endpoint) -> controller_pb2_grpc.ControllerAsyncStub:
        if self._channel is None or self._target != target:
            await self._close()
            self._channel, self._target = open_channel(str(target)), target
        return controller_pb2_grpc.ControllerStub(self._channel)

    async def _close(self) -> None:
        if self._channel is not None:
            await self._channel.close()
            self._channel = None
