"""
The ``TransactionCoordinator`` service of ``transaction.proto``: each call is decoded, given to the engine, its answer
encoded.
"""
# ruff: noqa: N802 - methods have the names of the proto

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any, Final

import grpc.aio

from headrace_common.rpc.node_gate import NodeGate
from headrace_common.runtime.access_gate import current_rights
from headrace_common.runtime.answering import answer_stream
from headrace_common.runtime.failpoints import failpoint
from headrace_coordinator.engine.callers import CallersTransactions
from headrace_coordinator.engine.transactions import Transactions
from headrace_coordinator.rpc import transaction_decode as decode
from headrace_coordinator.rpc import transaction_encode as encode
from headrace_proto.v1 import transaction_pb2 as pb
from headrace_proto.v1 import transaction_pb2_grpc

Context = grpc.aio.ServicerContext[Any, Any]


class TransactionServicer(transaction_pb2_grpc.TransactionCoordinatorServicer):
    """One for the process; ``draining`` ends streams after what is under way."""

    def __init__(self, transactions: Transactions, draining: asyncio.Event, gate: NodeGate) -> None:
        self._transactions = transactions
        self._draining = draining
        self._gate = gate

    @property
    def _asked(self) -> CallersTransactions:
        """Transactions, as the caller of the running handler may ask for them."""
        return CallersTransactions(self._transactions, current_rights())

    # --- producers --------------------------------------------------------------------------------------------

    async def InitTransactionalId(
        self, request: pb.InitTransactionalIdRequest, context: Context
    ) -> pb.InitTransactionalIdResponse:
        del context
        result = await self._transactions.init(
            decode.transactional_id(request.transactional_id),
            request.transaction_timeout_ms,
            decode.epoch_of_owner(request),
        )
        return encode.encode_init(result)

    async def AddPartitionsToTxn(
        self, request: pb.AddPartitionsToTxnRequest, context: Context
    ) -> pb.AddPartitionsToTxnResponse:
        del context
        return await self._enrol(request)

    def Enrol(self, requests: Any, context: Context) -> Any:
        """See the proto. A coroutine that writes by itself; the interceptor awaits it."""
        del requests
        check = self._gate.holding("TransactionCoordinator/Enrol", context)
        return answer_stream(context, self._draining, self._enrol, pb.EnrolResponse, check)

    async def _enrol(self, request: pb.AddPartitionsToTxnRequest) -> pb.AddPartitionsToTxnResponse:
        errors = await self._transactions.enrol(decode.enrolments(request))
        return pb.AddPartitionsToTxnResponse(transactions=map(encode.encode_enrolment, errors))

    async def EndTxn(self, request: pb.EndTxnRequest, context: Context) -> pb.EndTxnResponse:
        context.add_done_callback(_ANSWERED)
        return await self._end(self._asked, request)

    def End(self, requests: Any, context: Context) -> Any:
        """See the proto. A coroutine that writes by itself; the interceptor awaits it."""
        del requests
        return answer_stream(context, self._draining, partial(self._end, self._asked), pb.EndResponse)

    @staticmethod
    async def _end(asked: CallersTransactions, request: pb.EndTxnRequest) -> pb.EndTxnResponse:
        producer = decode.producer(request.producer_id, request.producer_epoch)
        id = decode.transactional_id(request.transactional_id)
        following = await asked.end(id, producer, commit=request.commit)
        failpoint("txn.end.answer.before")
        return pb.EndTxnResponse(producer_id=following.producer_id, producer_epoch=following.epoch)

    async def PrepareTxn(self, request: pb.PrepareTxnRequest, context: Context) -> pb.PrepareTxnResponse:
        del context
        producer = decode.producer(request.producer_id, request.producer_epoch)
        id = decode.transactional_id(request.transactional_id)
        token = await self._transactions.prepare(id, producer, decode.epoch_of_owner(request))
        return pb.PrepareTxnResponse(token=encode.token(token))

    async def DecidePrepared(self, request: pb.DecidePreparedRequest, context: Context) -> pb.DecidePreparedResponse:
        del context
        return encode.encode_verdict(
            await self._transactions.decide(decode.token(request.token), commit=request.commit)
        )

    # --- owners -----------------------------------------------------------------------------------------------

    async def InitOwner(self, request: pb.InitOwnerRequest, context: Context) -> pb.InitOwnerResponse:
        del context
        result = await self._transactions.init_owner(decode.owner(request.owner), decode.claim(request))
        return pb.InitOwnerResponse(owner_epoch=result.owner_epoch, last_sequence=result.last_sequence)

    async def CommitUnit(self, request: pb.CommitUnitRequest, context: Context) -> pb.CommitUnitResponse:
        del context
        owner = decode.owner(request.owner)
        tokens = decode.tokens(request.tokens, owner)
        sequence = decode.sequence(request.sequence)
        result = await self._transactions.commit_unit(owner, request.owner_epoch, sequence, tokens)
        return pb.CommitUnitResponse(repeated_sequence=result.repeated_sequence)

    # --- operators --------------------------------------------------------------------------------------------

    async def ListTransactions(
        self, request: pb.ListTransactionsRequest, context: Context
    ) -> pb.ListTransactionsResponse:
        del context
        found, loading = self._asked.list_transactions(
            decode.states(request.states), frozenset(request.producer_ids), decode.older_than_ms(request.older_than_ms)
        )
        return pb.ListTransactionsResponse(transactions=map(encode.encode_listing, found), loading=loading)

    async def DescribeTransactions(
        self, request: pb.DescribeTransactionsRequest, context: Context
    ) -> pb.DescribeTransactionsResponse:
        del context
        ids = decode.transactional_ids(request.transactional_ids)
        found = await self._asked.describe(ids)
        own_id = self._transactions.node_id
        return pb.DescribeTransactionsResponse(transactions=[encode.description(one, own_id) for one in found])

    async def AbortTransaction(
        self, request: pb.AbortTransactionRequest, context: Context
    ) -> pb.AbortTransactionResponse:
        del context
        await self._transactions.abort(
            decode.transactional_id(request.transactional_id),
            request.producer_id if request.HasField("producer_id") else None,
            request.producer_epoch if request.HasField("producer_epoch") else None,
        )
        return pb.AbortTransactionResponse()


def _answered(_: object) -> None:
    failpoint("txn.end.answer.after")


_ANSWERED: Final[Any] = _answered
"""The stubs of gRPC want an instance of a class that does not exist at run time."""
