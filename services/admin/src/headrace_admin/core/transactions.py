"""
Decides what becomes of a transaction that is open in a partition: whether somebody is going to end it.

``engine/open_transactions`` brings what leaders and coordinators say. A transaction hangs when nobody will ever end it:
no coordinator counts the partition among those it has to tell, and no producer can still be writing it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Final

from headrace_common.core.ids import TopicPartition


class TxnState(Enum):
    """Of a transactional id, as its coordinator has it."""

    UNKNOWN = "unknown"
    """One that this version does not know."""
    EMPTY = "empty"
    ONGOING = "ongoing"
    PREPARED = "prepared"
    PREPARE_COMMIT = "prepare_commit"
    PREPARE_ABORT = "prepare_abort"
    COMPLETE_COMMIT = "complete_commit"
    COMPLETE_ABORT = "complete_abort"


LIVE: Final = frozenset(
    {TxnState.UNKNOWN, TxnState.ONGOING, TxnState.PREPARED, TxnState.PREPARE_COMMIT, TxnState.PREPARE_ABORT}
)
"""States in which a coordinator still has an end to tell."""


class Standing(Enum):
    """Whether an open transaction will end by itself."""

    COORDINATED = "coordinated"
    """A coordinator knows it and will end it, or it is prepared and somebody has its token."""
    HANGING = "hanging"
    """Nobody will end it."""
    YOUNG = "young"
    """No coordinator knows it, and it began a moment ago: it may be beginning or ending just now."""
    UNKNOWN = "unknown"
    """A coordinator that might know it could not be asked."""


@dataclass(frozen=True, slots=True)
class Found:
    """What the leader of a partition says of a producer there."""

    partition: TopicPartition
    producer_id: int
    producer_epoch: int
    first_offset: int
    since_ms: int
    """When it first wrote in this transaction, by the leader's clock."""
    written_ms: int
    """When it last wrote."""
    high_watermark: int


@dataclass(frozen=True, slots=True)
class Owner:
    """What a coordinator says of the transactional id that has the producer id."""

    transactional_id: str
    state: TxnState
    started_at_ms: int | None
    """When its present transaction was opened; None: none is."""
    partitions: frozenset[TopicPartition] | None = None
    """To which its end will be told; None: not asked for."""


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """What a producer has open in one partition, and whether somebody will end it."""

    partition: TopicPartition
    producer_id: int
    producer_epoch: int
    first_offset: int
    held_back: int
    """Records from its first on, of all producers, up to the high watermark."""
    since_ms: int
    """Since when it is open: here, or at its coordinator where that is earlier."""
    written_ms: int
    standing: Standing
    owner: Owner | None = None
    """None: no coordinator knows the producer id."""


def judge(found: Found, owner: Owner | None, *, whole: bool, now_ms: int, timeout_ms: int) -> OpenTransaction:
    """
    What becomes of ``found``.

    Args:
        owner: who has the producer id now; whether or not its present transaction is this one.
        whole: every coordinator was asked and has answered.
        timeout_ms: no transaction is open for longer without a coordinator's knowing.
    """
    since_ms = found.since_ms
    if owner is not None and owner.state in LIVE and owner.started_at_ms is not None:
        since_ms = min(since_ms, owner.started_at_ms)
    return OpenTransaction(
        partition=found.partition,
        producer_id=found.producer_id,
        producer_epoch=found.producer_epoch,
        first_offset=found.first_offset,
        held_back=max(0, found.high_watermark - found.first_offset),
        since_ms=since_ms,
        written_ms=found.written_ms,
        standing=_standing(found, owner, whole=whole, old=is_old(found, now_ms, timeout_ms)),
        owner=owner,
    )


def is_old(found: Found, now_ms: int, timeout_ms: int) -> bool:
    """Whether it is open for longer than any transaction may be."""
    return now_ms - found.since_ms >= timeout_ms


def _standing(found: Found, owner: Owner | None, *, whole: bool, old: bool) -> Standing:
    if owner is not None and owner.state in LIVE:
        told = owner.partitions is None or found.partition in owner.partitions
        if told:
            return Standing.COORDINATED
    if not old:
        return Standing.YOUNG
    return Standing.HANGING if whole or owner is not None else Standing.UNKNOWN


def worst_first(transactions: Iterable[OpenTransaction]) -> list[OpenTransaction]:
    """Those that nobody will end, then the oldest."""
    return sorted(
        transactions,
        key=lambda t: (t.standing is not Standing.HANGING, t.since_ms, t.partition, t.first_offset, t.producer_id),
    )


@dataclass(frozen=True, slots=True)
class Prepared:
    """A prepared transaction that nobody decides."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    started_at_ms: int | None
    prepared_at_ms: int


@dataclass(frozen=True, slots=True)
class Waiting:
    """What holds readers back for longer than they do not notice."""

    holding: tuple[OpenTransaction, ...] = ()
    """Worst first; of each partition only what stands first, because readers wait for that."""
    overdue: tuple[Prepared, ...] = ()
    """Prepared for longer than is allowed without an alarm, oldest first."""
    unasked: int = 0
    """Partitions whose leader did not answer in time."""


NOTHING_WAITS: Final = Waiting()


def first_of_each(transactions: Iterable[OpenTransaction]) -> list[OpenTransaction]:
    """Of each partition the one with the lowest offset: readers wait for that."""
    first: dict[TopicPartition, OpenTransaction] = {}
    for one in transactions:
        known = first.get(one.partition)
        if known is None or one.first_offset < known.first_offset:
            first[one.partition] = one
    return list(first.values())
