"""
The committed offsets of one group, and the pending ones of transactions. ``shard_offsets.ShardOffsets`` asks; whether
the caller may commit was decided before.

Offsets are kept by topic id: a topic that was made anew under its old name has none. Of two positions of one partition
the one that came later counts, as in a log: a commit takes away what was pending there before it, and so does the end
of a transaction with what is older than its own. So a transaction that is decided late overwrites nothing newer.

Rows are ordered so that a part of them, from the first on, loses nothing: a position is written before what it replaces
is taken away.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from headrace_common.core.errors import (
    GroupSubscribedToTopic,
    HeadraceError,
    OffsetMetadataTooLarge,
    Rejected,
    UnknownTopicOrPartition,
    UnstableOffsetCommit,
    unknown_topic,
)
from headrace_common.core.ids import PartitionId, TopicId
from headrace_coordinator.core.effects import OffsetFound, OffsetOutcome, Row
from headrace_coordinator.core.events import OffsetToCommit
from headrace_coordinator.core.records import offset_key, offset_value, pending_key, pending_value
from headrace_coordinator.core.values import CommittedOffset, PendingOffset, Topics


class Transaction(NamedTuple):
    """One transaction of a producer: every end raises the epoch."""

    producer_id: int
    epoch: int
    transactional_id: str


@dataclass(slots=True)
class Offsets:
    """What one group has committed, and what it has if open transactions are."""

    group_id: str
    held: dict[PartitionId, CommittedOffset] = field(default_factory=dict)
    pending: dict[PartitionId, dict[int, PendingOffset]] = field(default_factory=dict)
    """By producer id. No partition without any."""

    @property
    def empty(self) -> bool:
        """Nothing is committed and nothing is pending."""
        return not self.held and not self.pending

    def commit(
        self, entries: Iterable[OffsetToCommit], topics: Topics, metadata_bytes_max: int, wall_ms: int
    ) -> tuple[tuple[Row, ...], tuple[OffsetOutcome, ...]]:
        """Take what is valid; returns the rows to be written, and the outcome of each entry."""
        rows: list[Row] = []
        outcomes: list[OffsetOutcome] = []
        for entry in entries:
            error = _fault(entry, topics, metadata_bytes_max)
            if error is None:
                key = PartitionId(topics[entry.topic].topic_id, entry.partition)
                value = CommittedOffset(entry.topic, entry.offset, entry.leader_epoch, entry.metadata, wall_ms)
                self.held[key] = value
                rows.append((offset_key(self.group_id, key), offset_value(value)))
                if key in self.pending:
                    rows += self._drop_pending(key)
            outcomes.append(OffsetOutcome(entry.topic, entry.partition, error))
        return tuple(rows), tuple(outcomes)

    # --- in transactions ------------------------------------------------------------------------------------

    def hold(
        self,
        transaction: Transaction,
        entries: Iterable[OffsetToCommit],
        topics: Topics,
        metadata_bytes_max: int,
        wall_ms: int,
        order: int,
    ) -> tuple[tuple[Row, ...], tuple[OffsetOutcome, ...]]:
        """
        Keep what is valid until the transaction ends; returns the rows to be written, and the outcome of each entry.

        Args:
            order: higher than that of everything pending; the entries have it and those that follow.
        """
        rows: list[Row] = []
        outcomes: list[OffsetOutcome] = []
        producer_id, epoch, transactional_id = transaction
        for number, entry in enumerate(entries, order):
            error = _fault(entry, topics, metadata_bytes_max)
            if error is None:
                key = PartitionId(topics[entry.topic].topic_id, entry.partition)
                value = CommittedOffset(entry.topic, entry.offset, entry.leader_epoch, entry.metadata, wall_ms)
                pending = PendingOffset(epoch, number, transactional_id, value)
                self.pending.setdefault(key, {})[producer_id] = pending
                rows.append((pending_key(self.group_id, producer_id, key), pending_value(pending)))
            outcomes.append(OffsetOutcome(entry.topic, entry.partition, error))
        return tuple(rows), tuple(outcomes)

    def has_pending(self, producer_id: int, keys: Iterable[PartitionId]) -> bool:
        """Whether an undecided transaction of this producer has a position in one of these partitions."""
        return any(producer_id in self.pending.get(key, ()) for key in keys)

    @staticmethod
    def keys_of(entries: Iterable[OffsetToCommit], topics: Topics) -> set[PartitionId]:
        """The partitions that entries are for, as far as their topics exist."""
        return {PartitionId(topics[e.topic].topic_id, e.partition) for e in entries if e.topic in topics}

    def decide(
        self, producer_id: int, marker_epoch: int, keys: Iterable[PartitionId], *, commit: bool, wall_ms: int
    ) -> tuple[Row, ...]:
        """
        A transaction has ended: apply or drop what it has pending; returns the rows to be written.

        Args:
            keys: where it may have something.
        """
        rows: list[Row] = []
        for key in keys:
            own = self.pending.get(key, {}).get(producer_id)
            if own is None or own.epoch >= marker_epoch:
                continue
            if commit:
                value = self.held[key] = replace(own.committed, committed_at_ms=wall_ms)
                rows.append((offset_key(self.group_id, key), offset_value(value)))
                rows += self._drop_pending(key, up_to=own.order)
            else:
                rows += self._drop_pending(key, only=producer_id)
        return tuple(rows)

    def _drop_pending(self, key: PartitionId, *, up_to: int | None = None, only: int | None = None) -> list[Row]:
        """Tombstones of what is pending for a partition: all, what is not newer, or that of one producer."""
        by_producer = self.pending.get(key, {})
        gone = [
            producer_id
            for producer_id, pending in by_producer.items()
            if (up_to is None or pending.order <= up_to) and (only is None or producer_id == only)
        ]
        for producer_id in gone:
            del by_producer[producer_id]
        if not by_producer:
            self.pending.pop(key, None)
        return [(pending_key(self.group_id, producer_id, key), None) for producer_id in gone]

    # --- reading --------------------------------------------------------------------------------------------

    def find(
        self,
        partitions: Iterable[tuple[str, tuple[int, ...]]] | None,
        topics: Topics,
        *,
        require_stable: bool = False,
    ) -> tuple[OffsetFound, ...]:
        """What is committed for these, or for all partitions of topics that exist."""
        if partitions is not None:
            wanted = ((topic, number) for topic, numbers in partitions for number in numbers)
            return tuple(self._find(topic, number, topics, require_stable) for topic, number in wanted)
        present = {info.topic_id: name for name, info in topics.items()}
        keys = self.held.keys() | self.pending.keys() if require_stable else self.held.keys()
        named = sorted((present[key.topic_id], key.partition) for key in keys if key.topic_id in present)
        return tuple(self._find(topic, number, topics, require_stable) for topic, number in named)

    def _find(self, topic: str, number: int, topics: Topics, require_stable: bool) -> OffsetFound:
        info = topics.get(topic)
        if info is None:
            return OffsetFound(topic, number, None)
        key = PartitionId(info.topic_id, number)
        if require_stable and key in self.pending:
            return OffsetFound(topic, number, None, self._unstable(topic, key))
        return OffsetFound(topic, number, self.held.get(key))

    def _unstable(self, topic: str, key: PartitionId) -> HeadraceError:
        by = ", ".join(sorted(repr(one.transactional_id) for one in self.pending[key].values()))
        return UnstableOffsetCommit(
            f"{topic}-{key.partition} has a position in an open transaction of {by}; ask again when it has ended"
        )

    # --- forgetting -----------------------------------------------------------------------------------------

    def delete(
        self,
        partitions: Iterable[tuple[str, tuple[int, ...]]],
        topics: Topics,
        subscribed: Callable[[str], bool],
    ) -> tuple[tuple[Row, ...], tuple[OffsetOutcome, ...]]:
        """Forget these, except of topics that a member reads; returns the tombstones and the outcomes."""
        gone: list[PartitionId] = []
        outcomes: list[OffsetOutcome] = []
        for topic, numbers in partitions:
            error: HeadraceError | None = None
            info = topics.get(topic)
            if subscribed(topic):
                error = GroupSubscribedToTopic(f"a member of {self.group_id!r} subscribes to {topic!r}; stop it first")
            elif info is None:
                error = unknown_topic(topic)
            else:
                gone.extend(PartitionId(info.topic_id, number) for number in numbers)
            outcomes.extend(OffsetOutcome(topic, number, error) for number in numbers)
        return self._forget(gone), tuple(outcomes)

    def forget_all(self) -> tuple[Row, ...]:
        """Forget everything; returns the tombstones."""
        return self._forget(self._keys())

    def forget_topics(self, topic_ids: frozenset[TopicId]) -> tuple[Row, ...]:
        """Forget what was committed for topics that were deleted; returns the tombstones."""
        return self._forget([key for key in self._keys() if key.topic_id in topic_ids])

    def _keys(self) -> list[PartitionId]:
        return [*self.held, *(key for key in self.pending if key not in self.held)]

    def expire(self, before_ms: int, spared: Callable[[PartitionId, CommittedOffset], bool]) -> tuple[Row, ...]:
        """
        Forget what was committed before a moment, except what is spared; returns the tombstones.

        Where a transaction has a position, nothing is old: that one may be about to be committed.
        """
        old = [key for key, value in self.held.items() if value.committed_at_ms < before_ms and key not in self.pending]
        return self._forget([key for key in old if not spared(key, self.held[key])])

    def _forget(self, keys: list[PartitionId]) -> tuple[Row, ...]:
        rows: list[Row] = []
        for key in keys:
            if key in self.pending:
                rows += self._drop_pending(key)
            if self.held.pop(key, None) is not None:
                rows.append((offset_key(self.group_id, key), None))
        return tuple(rows)


def valid(entries: Iterable[OffsetToCommit], topics: Topics, metadata_bytes_max: int) -> bool:
    """Whether any of these would be taken."""
    return any(_fault(entry, topics, metadata_bytes_max) is None for entry in entries)


def _fault(entry: OffsetToCommit, topics: Topics, metadata_bytes_max: int) -> HeadraceError | None:
    info = topics.get(entry.topic)
    if info is None or not 0 <= entry.partition < info.partitions:
        return UnknownTopicOrPartition(f"there is no partition {entry.topic}-{entry.partition}")
    if not 0 <= entry.offset <= 2**63 - 1:
        return Rejected(f"offset {entry.offset} of {entry.topic}-{entry.partition} is not one of a record")
    if not -1 <= entry.leader_epoch <= 2**31 - 1:
        return Rejected(f"leader epoch {entry.leader_epoch} of {entry.topic}-{entry.partition} is none")
    if len(entry.metadata) * 4 > metadata_bytes_max and len(entry.metadata.encode()) > metadata_bytes_max:
        return OffsetMetadataTooLarge(
            f"the metadata of {entry.topic}-{entry.partition} has {len(entry.metadata.encode())} bytes; "
            f"{metadata_bytes_max} are allowed"
        )
    return None
