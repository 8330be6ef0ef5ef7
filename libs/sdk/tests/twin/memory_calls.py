"""Calls to the coordinator of transactions in memory: a part of ``memory_transport.MemoryTransport``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from libs.sdk.tests.twin.memory_faults import Fault

from headrace._transport.port import Coordinator
from headrace.errors import NetworkFailed, RequestTimedOut
from headrace_proto.v1 import coordinator_pb2 as group_pb
from headrace_proto.v1 import transaction_pb2 as pb

if TYPE_CHECKING:
    from libs.sdk.tests.twin.memory import MemoryCluster

Q = TypeVar("Q")
A = TypeVar("A")


class MemoryTransactionCalls:
    """See ``port.TransactionCalls``."""

    _cluster: MemoryCluster

    async def _call(self, api: str, request: Any) -> Fault | None:
        raise NotImplementedError

    async def find_transaction_coordinator(self, key: str) -> Coordinator:
        """The one there is."""
        await self._call("find_transaction_coordinator", key)
        return self._cluster.transactions.find(key)

    async def init_transactional_id(
        self, coordinator: Coordinator, request: pb.InitTransactionalIdRequest, timeout_ms: float
    ) -> pb.InitTransactionalIdResponse:
        """At once."""
        return await self._ask("init_transactional_id", request, self._cluster.transactions.init, timeout_ms)

    async def end_txn(
        self, coordinator: Coordinator, request: pb.EndTxnRequest, timeout_ms: float
    ) -> pb.EndTxnResponse:
        """At once."""
        return await self._ask("end_txn", request, self._cluster.transactions.end, timeout_ms)

    async def prepare_txn(
        self, coordinator: Coordinator, request: pb.PrepareTxnRequest, timeout_ms: float
    ) -> pb.PrepareTxnResponse:
        """At once."""
        return await self._ask("prepare_txn", request, self._cluster.transactions.prepare, timeout_ms)

    async def decide_prepared(
        self, coordinator: Coordinator, request: pb.DecidePreparedRequest, timeout_ms: float
    ) -> pb.DecidePreparedResponse:
        """At once."""
        return await self._ask("decide_prepared", request, self._cluster.transactions.decide, timeout_ms)

    async def init_owner(
        self, coordinator: Coordinator, request: pb.InitOwnerRequest, timeout_ms: float
    ) -> pb.InitOwnerResponse:
        """At once."""
        return await self._ask("init_owner", request, self._cluster.transactions.units.init, timeout_ms)

    async def commit_unit(
        self, coordinator: Coordinator, request: pb.CommitUnitRequest, timeout_ms: float
    ) -> pb.CommitUnitResponse:
        """At once."""
        return await self._ask("commit_unit", request, self._cluster.transactions.units.commit, timeout_ms)

    async def commit_offsets_in_txn(
        self, coordinator: Coordinator, request: group_pb.TxnOffsetCommitRequest, timeout_ms: float
    ) -> group_pb.CommitOffsetsResponse:
        """At once."""
        return await self._ask("commit_offsets_in_txn", request, self._cluster.hold_offsets, timeout_ms)

    async def _ask(self, api: str, request: Q, answer: Callable[[Q], A], timeout_ms: float) -> A:
        """Carry ``request`` out; a fault ``after`` loses the answer."""
        try:
            async with asyncio.timeout(timeout_ms / 1_000):
                fault = await self._call(api, request)
        except TimeoutError:
            raise RequestTimedOut("the coordinator is silent") from None
        answered = answer(request)
        if fault is not None:
            raise NetworkFailed("injected: the answer was lost")
        return answered
