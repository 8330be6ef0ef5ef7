"""
The ports ``Coordinators`` and ``TransactionCoordinators``: one channel per address that a broker or the image gave for
a coordinator.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final, TypeVar

import grpc.aio

from headrace_admin.ports import CoordinatorPlace
from headrace_common.core.ids import Endpoint
from headrace_common.rpc.calls import CallTo
from headrace_common.rpc.channels import PLAIN, Channels, Security
from headrace_proto.v1 import coordinator_pb2 as pb
from headrace_proto.v1 import transaction_pb2 as txn
from headrace_proto.v1.coordinator_pb2_grpc import CoordinatorStub
from headrace_proto.v1.transaction_pb2_grpc import TransactionCoordinatorStub

if TYPE_CHECKING:
    from headrace_proto.v1.coordinator_pb2_grpc import CoordinatorAsyncStub
    from headrace_proto.v1.transaction_pb2_grpc import TransactionCoordinatorAsyncStub

A = TypeVar("A")


CHANNELS_MAX: Final = 64
"""Addresses that are kept; coordinators that start again may have new ones."""


class GrpcCoordinators:
    """
    Channels are opened when first used and closed with ``close``. One that has not been used for longest is closed when
    there are too many, and not when a coordinator has moved: calls may still be under way there.
    """

    def __init__(self, timeout_ms: float, security: Security = PLAIN) -> None:
        self._timeout = timeout_ms / 1_000
        self._channels: Channels[Endpoint] = Channels(security)

    async def list_groups(self, place: CoordinatorPlace, request: pb.ListGroupsRequest) -> pb.ListGroupsResponse:
        return await self._call(place, lambda stub: stub.ListGroups(request, timeout=self._timeout))

    async def describe_groups(
        self, place: CoordinatorPlace, request: pb.DescribeGroupsRequest
    ) -> pb.DescribeGroupsResponse:
        return await self._call(place, lambda stub: stub.DescribeGroups(request, timeout=self._timeout))

    async def fetch_offsets(self, place: CoordinatorPlace, request: pb.FetchOffsetsRequest) -> pb.FetchOffsetsResponse:
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

    # --- transactions ---------------------------------------------------------------------------------------------

    async def list_transactions(
        self, place: CoordinatorPlace, request: txn.ListTransactionsRequest
    ) -> txn.ListTransactionsResponse:
        """The transactional ids of its shards."""
        return await self._transactions(place, lambda stub: stub.ListTransactions(request, timeout=self._timeout))

    async def describe_transactions(
        self, place: CoordinatorPlace, request: txn.DescribeTransactionsRequest
    ) -> txn.DescribeTransactionsResponse:
        return await self._transactions(place, lambda stub: stub.DescribeTransactions(request, timeout=self._timeout))

    async def decide_prepared(
        self, place: CoordinatorPlace, request: txn.DecidePreparedRequest
    ) -> txn.DecidePreparedResponse:
        """Durable when it is answered."""
        return await self._transactions(place, lambda stub: stub.DecidePrepared(request, timeout=self._timeout))

    async def abort_transaction(
        self, place: CoordinatorPlace, request: txn.AbortTransactionRequest
    ) -> txn.AbortTransactionResponse:
        """Durable when it is answered."""
        return await self._transactions(place, lambda stub: stub.AbortTransaction(request, timeout=self._timeout))

    async def close(self) -> None:
        await self._channels.close()

    @property
    def channels(self) -> int:
        """How many are open."""
        return len(self._channels)

    async def _call(self, place: CoordinatorPlace, ask: Callable[[CoordinatorAsyncStub], Awaitable[A]]) -> A:
        stub: CoordinatorAsyncStub = CoordinatorStub(await self._channel(place))
        with CallTo(f"the coordinator at {place.endpoint}"):
            return await ask(stub)

    async def _transactions(
        self, place: CoordinatorPlace, ask: Callable[[TransactionCoordinatorAsyncStub], Awaitable[A]]
    ) -> A:
        stub: TransactionCoordinatorAsyncStub = TransactionCoordinatorStub(await self._channel(place))
        with CallTo(f"the coordinator at {place.endpoint}"):
            return await ask(stub)

    async def _channel(self, place: CoordinatorPlace) -> grpc.aio.Channel:
        channel = self._channels.to(place.endpoint)
        await self._channels.trim(CHANNELS_MAX)
        return channel
