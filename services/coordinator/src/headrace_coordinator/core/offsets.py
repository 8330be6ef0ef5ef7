"""
The committed offsets of one group. ``shard.Shard`` asks; whether the caller may commit was decided before.

Offsets are kept by topic id: a topic that was made anew under its old name has none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from headrace_common.core.errors import (
    GroupSubscribedToTopic,
    HeadraceError,
    OffsetMetadataTooLarge,
    Rejected,
    UnknownTopicOrPartition,
)
from headrace_common.core.ids import PartitionId, TopicId
from headrace_coordinator.core.effects import OffsetFound, OffsetOutcome, Row
from headrace_coordinator.core.events import OffsetToCommit
from headrace_coordinator.core.records import offset_key, offset_value
from headrace_coordinator.core.values import CommittedOffset, Topics


@dataclass(slots=True)
class Offsets:
    """What one group has committed."""

    group_id: str
    held: dict[PartitionId, CommittedOffset] = field(default_factory=dict)

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
            outcomes.append(OffsetOutcome(entry.topic, entry.partition, error))
        return tuple(rows), tuple(outcomes)

    def find(self, partitions: Iterable[tuple[str, tuple[int, ...]]] | None, topics: Topics) -> tuple[OffsetFound, ...]:
        """What is committed for these, or for all partitions of topics that exist."""
        if partitions is None:
            present = {info.topic_id: name for name, info in topics.items()}
            found = (
                OffsetFound(present[key.topic_id], key.partition, value)
                for key, value in self.held.items()
                if key.topic_id in present
            )
            return tuple(sorted(found, key=lambda entry: (entry.topic, entry.partition)))
        return tuple(
            OffsetFound(topic, number, self._of(topic, number, topics)) for topic, all_ in partitions for number in all_
        )

    def _of(self, topic: str, number: int, topics: Topics) -> CommittedOffset | None:
        info = topics.get(topic)
        return None if info is None else self.held.get(PartitionId(info.topic_id, number))

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
                error = UnknownTopicOrPartition(f"there is no topic {topic!r}")
            else:
                gone.extend(PartitionId(info.topic_id, number) for number in numbers)
            outcomes.extend(OffsetOutcome(topic, number, error) for number in numbers)
        return self._forget(gone), tuple(outcomes)

    def forget_all(self) -> tuple[Row, ...]:
        """Forget everything; returns the tombstones."""
        return self._forget(list(self.held))

    def forget_topics(self, topic_ids: frozenset[TopicId]) -> tuple[Row, ...]:
        """Forget what was committed for topics that were deleted; returns the tombstones."""
        return self._forget([key for key in self.held if key.topic_id in topic_ids])

    def expire(self, before_ms: int, spared: Callable[[PartitionId, CommittedOffset], bool]) -> tuple[Row, ...]:
        """Forget what was committed before a moment, except what is spared; returns the tombstones."""
        old = [key for key, value in self.held.items() if value.committed_at_ms < before_ms]
        return self._forget([key for key in old if not spared(key, self.held[key])])

    def _forget(self, keys: list[PartitionId]) -> tuple[Row, ...]:
        return tuple((offset_key(self.group_id, key), None) for key in keys if self.held.pop(key, None) is not None)


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
