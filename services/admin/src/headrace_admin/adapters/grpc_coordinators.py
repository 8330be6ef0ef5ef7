"""The ``Coordinators`` port: one channel per coordinator, at the address that a broker or the image gave for it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

import grpc
import grpc.aio

from headrace_admin.ports import CoordinatorPlace
from headrace_common.core.ids import Endpoint, NodeId
from headrace_common.rpc.options import open_channel
from headrace_common.rpc.status import error_from_rpc
from headrace_proto.v1 import coordinator_pb2 as pb
from headrace_proto.v1.coordinator_pb2_grpc import CoordinatorStub

if TYPE_CHECKING:
    from headrace_proto.v1.coordinator_pb2_grpc import CoordinatorAsyncStub

A = TypeVar("A")


class GrpcCoordinators:
    """Channels are opened when first used and closed with ``close``, or when the coordinator has moved."""

    def __init__(self, timeout_ms: float) -> None:
        self._timeout = timeout_ms / 1_000
        self._channels: dict[NodeId, tuple[Endpoint, grpc.aio.Channel]] = {}

    async def list_groups(self, place: CoordinatorPlace, request: pb.ListGroupsRequest) -> pb.ListGroupsResponse:
        """The groups of its shards."""
        return await self._call(place, lambda stub: stub.ListGroups(request, timeout=self._timeout))

    async def describe_groups(
        self, place: CoordinatorPlace, request: pb.DescribeGroupsRequest
    ) -> pb.DescribeGroupsResponse:
        """Read."""
        return await self._call(place, lambda stub: stub.DescribeGroups(request, timeout=self._timeout))

    async def fetch_offsets(self, place: CoordinatorPlace, request: pb.FetchOffsetsRequest) -> pb.FetchOffsetsResponse:
        """Read."""
        return await self._call(place, lambda stub: stub.FetchOffsets(request, timeout=self._timeout))

    async def commit_offsets(
        self, place: CoordinatorPlace, request: pb.CommitOffsetsRequest
    ) -> pb.CommitOffsetsResponse:
        """Durable when it is answered."""
        return await self._call(place, lambda stub: stub.CommitOffsets(request, timeout=self._timeout))

    async def delete_groups(self, place: CoordinatorPlace, request: pb.DeleteGroupsRequest) -> pb.DeleteGroupsResponse:
        """Durable when it is answered."""
        return await self._call(place, lambda stub: stub.DeleteGroups(request, timeout=self._timeout))

    async def delete_offsets(
        self, place: CoordinatorPlace, request: pb.DeleteOffsetsRequest
    ) -> pb.DeleteOffsetsResponse:
        """Durable when it is answered."""
        return await self._call(place, lambda stub: stub.DeleteOffsets(request, timeout=self._timeout))

    async def close(self) -> None:
        """Close all channels."""
        while self._channels:
            _, (_, channel) = self._channels.popitem()
            await channel.close()

    async def _call(self, place: CoordinatorPlace, ask: Callable[[CoordinatorAsyncStub], Awaitable[A]]) -> A:
        known = self._channels.get(place.id)
        if known is None or known[0] != place.endpoint:
            self._channels[place.id] = (place.endpoint, open_channel(str(place.endpoint)))
            if known is not None:
                await known[1].close()
        stub: CoordinatorAsyncStub = CoordinatorStub(self._channels[place.id][1])
        try:
            return await ask(stub)
        except grpc.RpcError as failure:
            raise error_from_rpc(failure) from failure
