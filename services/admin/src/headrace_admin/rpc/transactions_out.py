"""What the engine found out about transactions, as messages of the wire."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from headrace_admin.core.transactions import OpenTransaction, Prepared, Standing, TxnState
from headrace_admin.engine.open_transactions import EndedHanging, OpenListing
from headrace_admin.engine.transactions import Aborted, Described, Detail, Listing, PreparedListing
from headrace_admin.rpc.groups_out import unanswered_shards
from headrace_common.core.errors import ErrorCode, HeadraceError
from headrace_common.core.ids import TopicPartition
from headrace_common.rpc.status import detail_of
from headrace_proto.v1 import admin_pb2 as pb
from headrace_proto.v1 import transaction_pb2 as txn

_STANDINGS: Final[Mapping[Standing, pb.TxnStanding.ValueType]] = {
    Standing.COORDINATED: pb.TXN_COORDINATED,
    Standing.HANGING: pb.TXN_HANGING,
    Standing.YOUNG: pb.TXN_YOUNG,
    Standing.UNKNOWN: pb.TXN_UNKNOWN,
}


def listing_message(listing: Listing) -> pb.ListClusterTransactionsResponse:
    """All transactional ids, and the shards that are missing."""
    return pb.ListClusterTransactionsResponse(
        transactions=[
            pb.ListedTransaction(transaction=t.transaction, coordinator=t.coordinator) for t in listing.transactions
        ],
        unanswered=unanswered_shards(listing.unanswered),
    )


def described_message(transactional_id: str, described: Described) -> pb.DescribedTransaction:
    """A transactional id with its partitions by name, or why it cannot be told."""
    if isinstance(described, HeadraceError):
        detail = detail_of(described)
        failed = txn.TransactionDescription(
            transactional_id=transactional_id, error=detail.code, message=detail.message
        )
        return pb.DescribedTransaction(transaction=failed)
    return detail_message(described)


def detail_message(detail: Detail) -> pb.DescribedTransaction:
    """A transactional id with its partitions by name."""
    return pb.DescribedTransaction(
        transaction=detail.transaction,
        partitions=[
            pb.TransactionPartition(topic=p.topic, partition=p.partition, without_marker=p in detail.without_marker)
            for p in detail.partitions
        ],
    )


def prepared_message(listing: PreparedListing, prepared_max_ms: int) -> pb.ListPreparedTransactionsResponse:
    return pb.ListPreparedTransactionsResponse(
        transactions=map(detail_message, listing.transactions),
        unanswered=unanswered_shards(listing.unanswered),
        prepared_max_ms=prepared_max_ms,
    )


def open_message(listing: OpenListing) -> pb.ListOpenTransactionsResponse:
    """What is open, and who could not be asked."""
    return pb.ListOpenTransactionsResponse(
        transactions=map(open_transaction, listing.transactions),
        more=listing.more,
        unasked=[
            pb.UnaskedPartitions(topic=topic, partitions=numbers, error=detail_of(error))
            for topic, numbers, error in unasked_by_topic(listing.unasked)
        ],
        unanswered=unanswered_shards(listing.unanswered),
    )


def unasked_by_topic(
    unasked: Mapping[TopicPartition, HeadraceError],
) -> list[tuple[str, list[int], HeadraceError]]:
    """One entry per topic and kind of error, with the first error of it."""
    found: dict[tuple[str, ErrorCode], tuple[list[int], HeadraceError]] = {}
    for partition, error in sorted(unasked.items(), key=lambda one: one[0]):
        numbers, _ = found.setdefault((partition.topic, error.code), ([], error))
        numbers.append(partition.partition)
    return [(topic, numbers, error) for (topic, _), (numbers, error) in found.items()]


def open_transaction(t: OpenTransaction) -> pb.OpenTransaction:
    return pb.OpenTransaction(
        topic=t.partition.topic,
        partition=t.partition.partition,
        producer_id=t.producer_id,
        producer_epoch=t.producer_epoch,
        first_offset=t.first_offset,
        held_back=t.held_back,
        open_since_ms=t.since_ms,
        last_write_ms=t.written_ms,
        standing=_STANDINGS[t.standing],
        transactional_id=None if t.owner is None else t.owner.transactional_id,
        state=txn.TXN_STATE_UNSPECIFIED if t.owner is None else _state(t.owner.state),
    )


def _state(state: TxnState) -> txn.TxnState.ValueType:
    return txn.TXN_STATE_UNSPECIFIED if state is TxnState.UNKNOWN else txn.TxnState.Value(f"TXN_{state.name}")


def overdue_message(p: Prepared) -> txn.TransactionListing:
    """A prepared transaction that nobody decides."""
    return txn.TransactionListing(
        transactional_id=p.transactional_id,
        producer_id=p.producer_id,
        state=txn.TXN_PREPARED,
        producer_epoch=p.producer_epoch,
        started_at_ms=-1 if p.started_at_ms is None else p.started_at_ms,
        prepared_at_ms=p.prepared_at_ms,
    )


def aborted_message(aborted: Aborted) -> pb.AbortClusterTransactionResponse:
    return pb.AbortClusterTransactionResponse(transaction=detail_message(aborted.before), aborted=aborted.aborted)


def ended_message(ended: EndedHanging) -> pb.AbortHangingTransactionResponse:
    return pb.AbortHangingTransactionResponse(transaction=open_transaction(ended.before), aborted=ended.aborted)
