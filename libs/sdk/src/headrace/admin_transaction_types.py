"""
What the admin clients return about transactions: frozen values, made from messages of the ``Admin`` service here and
nowhere else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace._tokens import PreparedTransaction
from headrace._told import Made, Told, name_of
from headrace.errors import HeadraceError, Rejected, error_for
from headrace.group_types import MissingShard
from headrace.records import TopicPartition

if TYPE_CHECKING:
    from headrace_proto.v1 import admin_pb2, transaction_pb2


@dataclass(frozen=True, slots=True)
class TransactionInfo(Made["admin_pb2.ListedTransaction"], inside="transaction"):
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


@dataclass(frozen=True, slots=True)
class TransactionList(Told["admin_pb2.ListClusterTransactionsResponse"], missing="unanswered"):
    """The transactional ids of the cluster."""

    transactions: tuple[TransactionInfo, ...]
    """By id."""
    missing: tuple[MissingShard, ...]
    """Not empty: transactions of these shards may not be in the list."""


def _partitions(described: admin_pb2.DescribedTransaction) -> tuple[TopicPartition, ...]:
    return tuple(TopicPartition(p.topic, p.partition) for p in described.partitions)


def _without_marker(described: admin_pb2.DescribedTransaction) -> tuple[TopicPartition, ...]:
    return tuple(TopicPartition(p.topic, p.partition) for p in described.partitions if p.without_marker)


@dataclass(frozen=True, slots=True)
class TransactionDescription(
    Told["admin_pb2.DescribedTransaction"], inside="transaction", partitions=_partitions, without_marker=_without_marker
):
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


@dataclass(frozen=True, slots=True)
class PreparedList(Told["admin_pb2.ListPreparedTransactionsResponse"], missing="unanswered"):
    """Transactions that are prepared and not decided."""

    transactions: tuple[TransactionDescription, ...]
    """Oldest first."""
    missing: tuple[MissingShard, ...]
    prepared_max_ms: int
    """What is prepared for longer is alarmed by the cluster's status."""


def _read_state(t: admin_pb2.OpenTransaction) -> str | None:
    kind = t.DESCRIPTOR.fields_by_name["state"].enum_type
    return name_of(kind, t.state) if t.HasField("transactional_id") else None


@dataclass(frozen=True, slots=True)
class OpenTransaction(Told["admin_pb2.OpenTransaction"], state=_read_state):
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


def _read_unasked(answer: admin_pb2.ListOpenTransactionsResponse) -> dict[TopicPartition, HeadraceError]:
    failures = ((u, error_for(u.error.code, u.error.message)) for u in answer.unasked)
    return {TopicPartition(u.topic, n): failure for u, failure in failures for n in u.partitions}


@dataclass(frozen=True, slots=True)
class OpenList(Told["admin_pb2.ListOpenTransactionsResponse"], unasked=_read_unasked, missing="unanswered"):
    """What is open in the logs of partitions."""

    transactions: tuple[OpenTransaction, ...]
    """Oldest first."""
    more: int
    """So many besides."""
    unasked: dict[TopicPartition, HeadraceError]
    """Partitions whose leader did not answer."""
    missing: tuple[MissingShard, ...]
    """Shards whose coordinator did not answer."""


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
