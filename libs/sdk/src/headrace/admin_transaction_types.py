"""
What the admin clients return about transactions: frozen values, made from messages of the ``Admin`` service here and
nowhere else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace._tokens import PreparedTransaction
from headrace._told import Told, told
from headrace.errors import HeadraceError, Rejected, error_for
from headrace.group_types import MissingShard
from headrace.records import TopicPartition

if TYPE_CHECKING:
    from headrace_proto.v1 import admin_pb2, transaction_pb2


@dataclass(frozen=True, slots=True)
class TransactionInfo:
    """One transactional id in a list."""

    transactional_id: str
    state: str
    """``empty``, ``ongoing``, ``prepared``, ``prepare_commit``, ``prepare_abort``, ``complete_commit``…"""
    producer_id: int
    producer_epoch: int
    started_at_ms: int | None
    """When its transaction was opened; None: none is open."""
    prepared_at_ms: int | None
    """None: it is not prepared."""
    coordinator: int

    @staticmethod
    def of(listed: admin_pb2.ListedTransaction) -> TransactionInfo:
        """From the wire."""
        t = listed.transaction
        return told(
            TransactionInfo,
            t,
            state=state_name(t.state),
            started_at_ms=_moment(t.started_at_ms),
            prepared_at_ms=_moment(t.prepared_at_ms),
            coordinator=listed.coordinator,
        )


@dataclass(frozen=True, slots=True)
class TransactionList(Told["admin_pb2.ListClusterTransactionsResponse"]):
    """The transactional ids of the cluster."""

    transactions: tuple[TransactionInfo, ...]
    """By id."""
    missing: tuple[MissingShard, ...]
    """Not empty: transactions of these shards may not be in the list."""

    @staticmethod
    def of(answer: admin_pb2.ListClusterTransactionsResponse) -> TransactionList:
        """From the wire."""
        listed, missing = map(TransactionInfo.of, answer.transactions), map(MissingShard.of, answer.unanswered)
        return told(TransactionList, answer, transactions=tuple(listed), missing=tuple(missing))


@dataclass(frozen=True, slots=True)
class TransactionDescription(Told["admin_pb2.DescribedTransaction"]):
    """One transactional id with what its open, prepared or ending transaction writes to."""

    transactional_id: str
    state: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    started_at_ms: int | None
    prepared_at_ms: int | None
    coordinator: int
    shard: int
    partitions: tuple[TopicPartition, ...]
    """Topics that are gone are named by their id; ``__consumer_offsets``: positions of groups."""
    without_marker: tuple[TopicPartition, ...]
    """Of a transaction that ends: where its end is still to be written."""
    token: PreparedTransaction | None
    """Of a prepared one: what decides it."""

    @staticmethod
    def of(described: admin_pb2.DescribedTransaction) -> TransactionDescription:
        """From the wire."""
        t = described.transaction
        named = [(TopicPartition(p.topic, p.partition), p.without_marker) for p in described.partitions]
        return told(
            TransactionDescription,
            described,
            transactional_id=t.transactional_id,
            state=state_name(t.state),
            producer_id=t.producer_id,
            producer_epoch=t.producer_epoch,
            timeout_ms=t.timeout_ms,
            started_at_ms=_moment(t.started_at_ms),
            prepared_at_ms=_moment(t.prepared_at_ms),
            coordinator=t.coordinator,
            shard=t.shard,
            partitions=tuple(tp for tp, _ in named),
            without_marker=tuple(tp for tp, missing in named if missing),
            token=PreparedTransaction.of(t.token) if t.HasField("token") else None,
        )


@dataclass(frozen=True, slots=True)
class PreparedList(Told["admin_pb2.ListPreparedTransactionsResponse"]):
    """Transactions that are prepared and not decided."""

    transactions: tuple[TransactionDescription, ...]
    """Oldest first."""
    missing: tuple[MissingShard, ...]
    prepared_max_ms: int
    """What is prepared for longer is alarmed by the cluster's status."""

    @staticmethod
    def of(answer: admin_pb2.ListPreparedTransactionsResponse) -> PreparedList:
        """From the wire."""
        prepared, missing = map(TransactionDescription.of, answer.transactions), map(MissingShard.of, answer.unanswered)
        return told(PreparedList, answer, transactions=tuple(prepared), missing=tuple(missing))


@dataclass(frozen=True, slots=True)
class OpenTransaction(Told["admin_pb2.OpenTransaction"]):
    """What a producer has open in one partition; readers of read_committed do not come past its first offset."""

    partition: TopicPartition
    producer_id: int
    producer_epoch: int
    first_offset: int
    held_back: int
    """Records from there to the high watermark, of all producers."""
    open_since_ms: int
    last_write_ms: int
    standing: str
    """
    ``coordinated``: a coordinator knows it. ``hanging``: nobody will end it. ``young``: nobody knows it, and it began a
    moment ago. ``unknown``: a coordinator that might know it does not answer.
    """
    transactional_id: str | None
    """None: no coordinator knows it."""
    state: str | None
    """Of the transactional id."""

    @staticmethod
    def of(t: admin_pb2.OpenTransaction) -> OpenTransaction:
        """From the wire."""
        from headrace_proto.v1 import admin_pb2

        standing = admin_pb2.TxnStanding.Name(t.standing) if t.standing in admin_pb2.TxnStanding.values() else ""
        return told(
            OpenTransaction,
            t,
            partition=TopicPartition(t.topic, t.partition),
            standing=standing.removeprefix("TXN_").lower() or "unknown",
            state=state_name(t.state) if t.HasField("transactional_id") else None,
        )


@dataclass(frozen=True, slots=True)
class OpenList(Told["admin_pb2.ListOpenTransactionsResponse"]):
    """What is open in the logs of partitions."""

    transactions: tuple[OpenTransaction, ...]
    """Oldest first."""
    more: int
    """So many besides."""
    unasked: dict[TopicPartition, HeadraceError]
    """Partitions whose leader did not answer."""
    missing: tuple[MissingShard, ...]
    """Shards whose coordinator did not answer."""

    @staticmethod
    def of(answer: admin_pb2.ListOpenTransactionsResponse) -> OpenList:
        """From the wire."""
        unasked = {
            TopicPartition(u.topic, n): error_for(u.error.code, u.error.message)
            for u in answer.unasked
            for n in u.partitions
        }
        opened, missing = map(OpenTransaction.of, answer.transactions), map(MissingShard.of, answer.unanswered)
        return told(OpenList, answer, transactions=tuple(opened), unasked=unasked, missing=tuple(missing))


def state_name(state: int) -> str:
    """In small letters; a state that this version does not know is ``unknown``."""
    from headrace_proto.v1 import transaction_pb2 as pb

    if state not in pb.TxnState.values() or state == pb.TXN_STATE_UNSPECIFIED:
        return "unknown"
    return pb.TxnState.Name(pb.TxnState.ValueType(state)).removeprefix("TXN_").lower()


def state_number(name: str) -> transaction_pb2.TxnState.ValueType:
    """
    The state of this name, as the wire has it.

    Raises:
        Rejected: there is no such state.
    """
    from headrace_proto.v1 import transaction_pb2

    known = {n.removeprefix("TXN_").lower(): value for n, value in transaction_pb2.TxnState.items() if value}
    if name not in known:
        raise Rejected(f"there is no state {name!r} of a transaction; there are: {', '.join(known)}")
    return known[name]


def _moment(ms: int) -> int | None:
    return ms if ms >= 0 else None
