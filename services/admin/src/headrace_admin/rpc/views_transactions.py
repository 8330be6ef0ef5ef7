"""What the engine found out about transactions as the shapes of REST."""

from __future__ import annotations

from collections.abc import Iterable

from headrace.transactions import PreparedTransaction
from headrace_admin.core.transactions import OpenTransaction
from headrace_admin.engine.coordination import Unanswered
from headrace_admin.engine.open_transactions import EndedHanging, OpenListing, moment, state_of
from headrace_admin.engine.transactions import Aborted, Detail, Listing, PreparedListing
from headrace_admin.rpc import models
from headrace_admin.rpc import models_transactions as shapes
from headrace_admin.rpc.models_groups import MissingShard
from headrace_admin.rpc.transactions_out import unasked_by_topic
from headrace_common.core.errors import HeadraceError
from headrace_common.core.problems import problem_body

_WHERE = "/v1/transactions"


def listing_out(listing: Listing) -> shapes.TransactionList:
    """All transactional ids, and the shards that are missing."""
    return shapes.TransactionList(
        transactions=[
            shapes.TransactionSummary(
                transactional_id=t.transaction.transactional_id,
                state=_state(t.transaction.state),
                producer_id=t.transaction.producer_id,
                producer_epoch=t.transaction.producer_epoch,
                started_at_ms=moment(t.transaction.started_at_ms),
                prepared_at_ms=moment(t.transaction.prepared_at_ms),
                coordinator=t.coordinator,
            )
            for t in listing.transactions
        ],
        missing_shards=_missing(listing.unanswered),
    )


def _missing(shards: Iterable[Unanswered]) -> list[MissingShard]:
    return [MissingShard(shard=u.shard, coordinator=u.coordinator, error=_problem(u.error)) for u in shards]


def transaction_out(detail: Detail) -> shapes.Transaction:
    """A transactional id with its partitions."""
    t = detail.transaction
    return shapes.Transaction(
        transactional_id=t.transactional_id,
        state=_state(t.state),
        producer_id=t.producer_id,
        producer_epoch=t.producer_epoch,
        timeout_ms=t.timeout_ms,
        started_at_ms=moment(t.started_at_ms),
        prepared_at_ms=moment(t.prepared_at_ms),
        coordinator=t.coordinator,
        shard=t.shard,
        token=str(PreparedTransaction.of(t.token)) if t.HasField("token") else None,
        partitions=[
            shapes.TransactionPartition(topic=p.topic, partition=p.partition, without_marker=p in detail.without_marker)
            for p in detail.partitions
        ],
    )


def prepared_out(listing: PreparedListing, prepared_max_ms: int) -> shapes.PreparedList:
    """Prepared transactions with their tokens."""
    return shapes.PreparedList(
        transactions=[transaction_out(d) for d in listing.transactions],
        prepared_max_ms=prepared_max_ms,
        missing_shards=_missing(listing.unanswered),
    )


def open_out(listing: OpenListing) -> shapes.OpenList:
    """What is open, and who could not be asked."""
    return shapes.OpenList(
        transactions=[open_transaction_out(t) for t in listing.transactions],
        more=listing.more,
        unasked=[
            shapes.Unasked(topic=topic, partitions=numbers, error=_problem(error))
            for topic, numbers, error in unasked_by_topic(listing.unasked)
        ],
        missing_shards=_missing(listing.unanswered),
    )


def open_transaction_out(t: OpenTransaction) -> shapes.OpenTransaction:
    """What a producer has open in one partition."""
    return shapes.OpenTransaction(
        topic=t.partition.topic,
        partition=t.partition.partition,
        producer_id=t.producer_id,
        producer_epoch=t.producer_epoch,
        first_offset=t.first_offset,
        held_back=t.held_back,
        open_since_ms=t.since_ms,
        last_write_ms=t.written_ms,
        standing=t.standing.value,
        transactional_id=None if t.owner is None else t.owner.transactional_id,
        state=None if t.owner is None else t.owner.state.value,
    )


def aborted_out(aborted: Aborted) -> shapes.AbortedTransaction:
    """What was aborted, or would be."""
    return shapes.AbortedTransaction(aborted=aborted.aborted, transaction=transaction_out(aborted.before))


def ended_out(ended: EndedHanging) -> shapes.EndedHanging:
    """What was ended, or would be."""
    return shapes.EndedHanging(aborted=ended.aborted, transaction=open_transaction_out(ended.before))


def _problem(error: HeadraceError) -> models.Problem:
    return models.Problem(**problem_body(error, _WHERE))


def _state(state: int) -> shapes.State:
    return state_of(state).value
