"""What ``grpc`` says to coordinators of transactions: one call each, raised errors typed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from grpc import aio

from headrace._transport.grpc_membership import CoordinatorCalls
from headrace._transport.port import Coordinator
from headrace_common.rpc.calls import CallTo
from headrace_proto.v1 import broker_pb2
from headrace_proto.v1 import coordinator_pb2 as group_pb
from headrace_proto.v1 import transaction_pb2 as pb
from headrace_proto.v1.transaction_pb2_grpc import TransactionCoordinatorStub

if TYPE_CHECKING:
    from headrace_proto.v1.transaction_pb2_grpc import TransactionCoordinatorAsyncStub  # exists for type checkers only


class GrpcTransactionCalls(CoordinatorCalls):
    """A part of ``grpc.GrpcTransport``; see ``port.TransactionCalls``."""

    _stub_of: tuple[aio.Channel, TransactionCoordinatorAsyncStub] | None = None
    """The one used last: making a stub costs more than a call's share of it."""

    async def find_transaction_coordinator(self, key: str) -> Coordinator:
        """Who has a transactional id, or an owner of units."""
        return await self._find(broker_pb2.TRANSACTION, key)

    async def init_transactional_id(
        self, coordinator: Coordinator, request: pb.InitTransactionalIdRequest, timeout_ms: float
    ) -> pb.InitTransactionalIdResponse:
        """Fence earlier producers of the id."""
        with CallTo(coordinator):
            return await self._of(coordinator).InitTransactionalId(request, timeout=timeout_ms / 1_000)

    async def end_txn(
        self, coordinator: Coordinator, request: pb.EndTxnRequest, timeout_ms: float
    ) -> pb.EndTxnResponse:
        with CallTo(coordinator):
            return await self._of(coordinator).EndTxn(request, timeout=timeout_ms / 1_000)

    async def prepare_txn(
        self, coordinator: Coordinator, request: pb.PrepareTxnRequest, timeout_ms: float
    ) -> pb.PrepareTxnResponse:
        """Make it durable, undecided."""
        with CallTo(coordinator):
            return await self._of(coordinator).PrepareTxn(request, timeout=timeout_ms / 1_000)

    async def decide_prepared(
        self, coordinator: Coordinator, request: pb.DecidePreparedRequest, timeout_ms: float
    ) -> pb.DecidePreparedResponse:
        """Commit or abort what is prepared."""
        with CallTo(coordinator):
            return await self._of(coordinator).DecidePrepared(request, timeout=timeout_ms / 1_000)

    async def init_owner(
        self, coordinator: Coordinator, request: pb.InitOwnerRequest, timeout_ms: float
    ) -> pb.InitOwnerResponse:
        """Fence earlier owners."""
        with CallTo(coordinator):
            return await self._of(coordinator).InitOwner(request, timeout=timeout_ms / 1_000)

    async def commit_unit(
        self, coordinator: Coordinator, request: pb.CommitUnitRequest, timeout_ms: float
    ) -> pb.CommitUnitResponse:
        """Commit many prepared transactions as one."""
        with CallTo(coordinator):
            return await self._of(coordinator).CommitUnit(request, timeout=timeout_ms / 1_000)

    async def commit_offsets_in_txn(
        self, coordinator: Coordinator, request: group_pb.TxnOffsetCommitRequest, timeout_ms: float
    ) -> group_pb.CommitOffsetsResponse:
        """Take positions that count once the transaction is committed."""
        with CallTo(coordinator):
            return await self._coordinator(coordinator).TxnOffsetCommit(request, timeout=timeout_ms / 1_000)

    def _of(self, coordinator: Coordinator) -> TransactionCoordinatorAsyncStub:
        channel = self._channel(coordinator.address)
        if self._stub_of is None or self._stub_of[0] is not channel:
            self._stub_of = channel, TransactionCoordinatorStub(channel)
        return self._stub_of[1]
