"""What the state machine and the engine of transactions answer, as messages of ``transaction.proto``."""

from __future__ import annotations

from collections.abc import Iterable

from headrace_common.core.errors import HeadraceError
from headrace_common.core.ids import PartitionId
from headrace_coordinator.core.transactions.effects import DecideResult, InitResult, TransactionListing
from headrace_coordinator.core.transactions.values import NO_PRODUCER, Token, TxnState
from headrace_coordinator.engine.transactions import DescribedTransaction
from headrace_proto.v1 import errors_pb2
from headrace_proto.v1 import transaction_pb2 as pb


def encode_init(result: InitResult) -> pb.InitTransactionalIdResponse:
    """The identity that a producer got, and what it finds prepared."""
    return pb.InitTransactionalIdResponse(
        producer_id=result.producer.producer_id,
        producer_epoch=result.producer.epoch,
        prepared=None if result.prepared is None else token(result.prepared),
    )


def token(one: Token) -> pb.PreparedToken:
    """What decides a prepared transaction."""
    return pb.PreparedToken(
        transactional_id=one.transactional_id,
        producer_id=one.producer_id,
        producer_epoch=one.epoch,
        nonce=one.nonce,
    )


def encode_enrolment(error: HeadraceError | None) -> pb.TxnPartitionsResult:
    if error is None:
        return pb.TxnPartitionsResult()
    return pb.TxnPartitionsResult(error=errors_pb2.ErrorCode.ValueType(error.code), message=str(error))


def encode_verdict(result: DecideResult) -> pb.DecidePreparedResponse:
    if result.next is None:
        return pb.DecidePreparedResponse(
            committed=result.committed, producer_id=NO_PRODUCER, producer_epoch=NO_PRODUCER
        )
    return pb.DecidePreparedResponse(
        committed=result.committed, producer_id=result.next.producer_id, producer_epoch=result.next.epoch
    )


def state(value: TxnState) -> pb.TxnState.ValueType:
    return pb.TxnState.ValueType(value.value)


def encode_listing(one: TransactionListing) -> pb.TransactionListing:
    return pb.TransactionListing(
        transactional_id=one.transactional_id,
        producer_id=one.producer.producer_id,
        state=state(one.state),
        producer_epoch=one.producer.epoch,
        started_at_ms=one.started_at_ms,
        prepared_at_ms=one.prepared_at_ms,
    )


def _partitions(ids: Iterable[PartitionId]) -> list[pb.TxnPartition]:
    return [pb.TxnPartition(topic_id=id.topic_id, partition=id.partition) for id in ids]


def description(one: DescribedTransaction, coordinator: int) -> pb.TransactionDescription:
    """One id as it was found, or why it was not."""
    found = one.found
    if isinstance(found, HeadraceError):
        return pb.TransactionDescription(
            transactional_id=one.transactional_id,
            error=errors_pb2.ErrorCode.ValueType(found.code),
            message=str(found),
            coordinator=coordinator,
            shard=max(0, one.shard),
        )
    return pb.TransactionDescription(
        transactional_id=one.transactional_id,
        state=state(found.state),
        producer_id=found.producer.producer_id,
        producer_epoch=found.producer.epoch,
        timeout_ms=found.timeout_ms,
        started_at_ms=found.started_at_ms,
        prepared_at_ms=found.prepared_at_ms,
        partitions=_partitions(found.partitions),
        without_marker=_partitions(found.without_marker),
        token=None if found.token is None else token(found.token),
        coordinator=coordinator,
        shard=one.shard,
    )
