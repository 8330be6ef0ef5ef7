"""
``/v1/transactions`` and its siblings: transactional ids, what is prepared, and what holds readers back.

A transactional id may be any text, slashes included, so what is no id has a path of its own: ``-prepared``, ``-open``,
``-hanging``.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query

from headrace.transactions import PreparedTransaction
from headrace_admin.engine.open_transactions import OpenTransactions
from headrace_admin.engine.transactions import Transactions
from headrace_admin.rpc import answer_types
from headrace_admin.rpc import models_transactions as shapes
from headrace_admin.rpc import transactions_out as out
from headrace_admin.rpc.models import INT64_MAX
from headrace_common.core.ids import TopicPartition
from headrace_common.rpc import answers
from headrace_common.rpc.json_form import json_of
from headrace_common.runtime.access_gate import current_rights
from headrace_proto.v1 import transaction_pb2 as pb

IdPath = Annotated[str, Path(min_length=1, max_length=249)]
OlderThan = Annotated[int, Query(ge=0, le=INT64_MAX, description="Only those for at least this long; 0: all.")]


def transaction_routes(transactions: Transactions, open_transactions: OpenTransactions) -> APIRouter:
    """All routes of this module."""
    routes = APIRouter(prefix="/v1", tags=["transactions"])
    _prepared(routes, transactions)
    _open(routes, open_transactions)
    _ids(routes, transactions)
    return routes


def _ids(routes: APIRouter, transactions: Transactions) -> None:
    @routes.get("/transactions", operation_id="list_transactions")
    async def list_transactions(
        state: Annotated[shapes.State | None, Query(description="Only ids in this state.")] = None,
        producer_id: Annotated[int | None, Query(ge=0, le=INT64_MAX, description="Only the id that has it.")] = None,
        older_than_ms: OlderThan = 0,
    ) -> answer_types.Transactions:
        """The transactional ids of all coordinators, and which shards could not be asked."""
        request = pb.ListTransactionsRequest(older_than_ms=older_than_ms)
        if state is not None:
            request.states.append(pb.TxnState.Value(f"TXN_{state.upper()}"))
        if producer_id is not None:
            request.producer_ids.append(producer_id)
        return answers.transactions(out.listing_message(await transactions.listing(request)))

    @routes.get("/transactions/{transactional_id:path}", operation_id="describe_transaction")
    async def describe_transaction(transactional_id: IdPath) -> answer_types.Transaction:
        """A transactional id: its state, its producer, and the partitions of its open transaction."""
        return answers.transaction(out.detail_message(await transactions.one(transactional_id, current_rights())))

    @routes.post(
        "/transactions/{transactional_id:path}/abort",
        operation_id="abort_transaction",
    )
    async def abort_transaction(transactional_id: IdPath, body: shapes.Abort) -> answer_types.Aborted:
        """Abort its open transaction and fence its producer. Not what is prepared: that is decided by its token."""
        aborted = await transactions.abort(
            transactional_id, body.producer_id, body.producer_epoch, validate_only=body.validate_only
        )
        return json_of(out.aborted_message(aborted))


def _prepared(routes: APIRouter, transactions: Transactions) -> None:
    @routes.get("/transactions-prepared", operation_id="list_prepared_transactions")
    async def list_prepared(older_than_ms: OlderThan = 0) -> answer_types.Prepared:
        """Transactions that are prepared and not decided, oldest first, with the tokens that decide them."""
        listing = await transactions.prepared(older_than_ms, current_rights())
        return answers.transactions(out.prepared_message(listing, transactions.limits.transaction_prepared_max_ms))

    @routes.post("/transactions-prepared/commit", operation_id="commit_prepared_transaction")
    async def commit_prepared(body: shapes.Decide) -> answer_types.Decided:
        """Commit a prepared transaction. Again: the verdict that was given, which the answer says."""
        return await _decide(transactions, body.token, commit=True)

    @routes.post("/transactions-prepared/abort", operation_id="abort_prepared_transaction")
    async def abort_prepared(body: shapes.Decide) -> answer_types.Decided:
        """Abort a prepared transaction. Again: the verdict that was given, which the answer says."""
        return await _decide(transactions, body.token, commit=False)


async def _decide(transactions: Transactions, text: str, *, commit: bool) -> answer_types.Decided:
    token = PreparedTransaction.parse(text)
    said = await transactions.decide(pb.DecidePreparedRequest(token=token.message(), commit=commit))
    return {"transactional_id": token.transactional_id, "committed": said.committed}


def _open(routes: APIRouter, open_transactions: OpenTransactions) -> None:
    @routes.get("/transactions-open", operation_id="list_open_transactions")
    async def list_open(
        topic: Annotated[list[str], Query(default_factory=list, max_length=100, description="Only these topics.")],
        older_than_ms: OlderThan = 0,
    ) -> answer_types.Open:
        """What is open in the logs of partitions and holds readers of read_committed back; oldest first."""
        listing = await open_transactions.listing(topic, older_than_ms=older_than_ms, rights=current_rights())
        return answers.transactions(out.open_message(listing))

    @routes.get("/transactions-hanging", operation_id="list_hanging_transactions")
    async def list_hanging(
        topic: Annotated[list[str], Query(default_factory=list, max_length=100, description="Only these topics.")],
        older_than_ms: Annotated[
            int | None,
            Query(ge=0, le=INT64_MAX, description="Absent: longer than any transaction may be open, and a margin."),
        ] = None,
    ) -> answer_types.Open:
        """What is open in the logs of partitions, and no coordinator is going to end."""
        listing = await open_transactions.listing(
            topic, older_than_ms=older_than_ms, hanging_only=True, rights=current_rights()
        )
        return answers.transactions(out.open_message(listing))

    @routes.post("/transactions-hanging/abort", operation_id="abort_hanging_transaction")
    async def abort_hanging(body: shapes.AbortHanging) -> answer_types.Ended:
        """Write an abort marker for what hangs in a partition, so that readers go on, and fence its producer there."""
        ended = await open_transactions.abort_hanging(
            TopicPartition(body.topic, body.partition),
            body.producer_id,
            validate_only=body.validate_only,
            force=body.force,
        )
        return json_of(out.ended_message(ended))
