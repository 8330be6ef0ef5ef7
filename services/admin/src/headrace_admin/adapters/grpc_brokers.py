"""The ``Brokers`` port: one channel per broker, at the address the image has for it now."""

from __future__ import annotations

from typing import TYPE_CHECKING

import grpc
import grpc.aio

from headrace_admin.ports import Cluster
from headrace_common.core.errors import NetworkFailed
from headrace_common.core.ids import Endpoint, NodeId
from headrace_common.core.image import NodeKey, Role
from headrace_common.rpc.options import open_channel
from headrace_common.rpc.status import error_from_rpc
from headrace_proto.v1 import broker_pb2 as pb
from headrace_proto.v1.broker_pb2_grpc import BrokerStub

if TYPE_CHECKING:
    from headrace_proto.v1.broker_pb2_grpc import BrokerAsyncStub


class GrpcBrokers:
    """Channels are opened when first used and closed with ``close``, or when the broker has moved."""

    def __init__(self, cluster: Cluster, timeout_ms: float) -> None:
        self._cluster = cluster
        self._timeout = timeout_ms / 1_000
        self._channels: dict[NodeId, tuple[Endpoint, grpc.aio.Channel]] = {}

    async def delete_records(self, broker: NodeId, request: pb.DeleteRecordsRequest) -> pb.DeleteRecordsResponse:
        """Move log starts up on one broker."""
        try:
            return await (await self._stub(broker)).DeleteRecords(request, timeout=self._timeout)
        except grpc.RpcError as failure:
            raise error_from_rpc(failure) from failure

    async def describe_logs(self, broker: NodeId, request: pb.DescribeLogsRequest) -> pb.DescribeLogsResponse:
        """The logs of one broker."""
        try:
            return await (await self._stub(broker)).DescribeLogs(request, timeout=self._timeout)
        except grpc.RpcError as failure:
            raise error_from_rpc(failure) from failure

    async def close(self) -> None:
        """Close all channels."""
        while self._channels:
            _, (_, channel) = self._channels.popitem()
            await channel.close()

    async def _stub(self, broker: NodeId) -> BrokerAsyncStub:
        node = self._cluster.image.nodes.get(NodeKey(Role.BROKER, broker))
        if node is None:
            raise NetworkFailed(f"broker {broker} is not registered; start it, or move its partitions")
        known = self._channels.get(broker)
        if known is None or known[0] != node.grpc:
            if known is not None:
                await known[1].close()
            known = self._channels[broker] = (node.grpc, open_channel(str(node.grpc)))
        stub: BrokerAsyncStub = BrokerStub(known[1])
        return stub
