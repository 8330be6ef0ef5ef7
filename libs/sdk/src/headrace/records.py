"""
What applications hold in their hands: a record that was read, where a record was written, the name of a partition.

Nearly all are plain tuples, made in bulk::

    >>> from headrace import RecordMetadata, TopicPartition
    >>> RecordMetadata("flights", 2, 41, 1_700_000_000_000).offset
    41
    >>> TopicPartition("flights", 2) == ("flights", 2), str(TopicPartition("flights", 2))
    (True, 'flights-2')
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeAlias

from typing_extensions import TypeVar

from headrace_common.core.ids import TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "Committed",
    "Header",
    "Headers",
    "HeadersIn",
    "PartitionTable",
    "Record",
    "RecordMetadata",
    "SkippedBatch",
    "Span",
    "TimestampType",
    "TopicPartition",
]

Header: TypeAlias = tuple[str, bytes | None]
Headers: TypeAlias = Sequence[Header]
HeadersIn: TypeAlias = Mapping[str, bytes | None] | Iterable[Header]
"""What ``send`` takes: a mapping, or pairs when a name occurs more than once."""


class TimestampType(IntEnum):
    """Whose clock stamped a record."""

    CREATE_TIME = 0
    LOG_APPEND_TIME = 1


K = TypeVar("K", default=Any)
V = TypeVar("V", default=Any)


class Record(NamedTuple, Generic[K, V]):
    """
    One record as it was read. ``key`` and ``value`` are bytes or None unless the consumer has deserializers.

    ``Record[K, V]`` tells type checkers what they are, for example ``Record[bytes | None, Flight]``.
    """

    topic: str
    partition: int
    offset: int
    key: K
    value: V
    headers: Headers
    timestamp_ms: int
    """Milliseconds since the epoch, UTC."""
    timestamp_type: TimestampType
    leader_epoch: int
    """Epoch of the leader that wrote it; -1 when not known."""


class Committed(NamedTuple):
    """A position that a group has committed, or is to commit."""

    offset: int
    """Of the next record to read."""
    leader_epoch: int = -1
    """Under which leader the record before it was written; -1: not known."""
    metadata: str = ""
    """For people; up to 4096 bytes."""


@dataclass(frozen=True, slots=True)
class PartitionTable:
    """
    What ``poll_batches`` hands out of one partition. ``Committed(next_offset, leader_epoch)`` is what to commit once it
    is handled.
    """

    topic: str
    partition: int
    table: pa.Table
    """
    Columns ``offset``, ``timestamp_ms``, ``key``, ``value``, ``headers`` and ``timestamp_type``, as those of
    ``poll_table``. Without rows where the position moved past markers, aborted or compacted records alone, is elsewhere
    (new assignment, seek, reset), or where the end moved.
    """
    next_offset: int
    """The position behind the table, and behind the markers, aborted batches and gaps that are known to follow it."""
    leader_epoch: int
    """Under which leader the record before ``next_offset`` was written; -1: not known."""
    end_offset: int
    """Where reading ends for now, as ``Consumer.end_offsets``, when a broker was last heard; -1: not known."""
    high_watermark: int
    """Records below it are committed to the log, whatever became of their transactions; -1: not known."""

    @property
    def lag(self) -> int | None:
        """How many offsets were left then; 0: this was the end. None: not known."""
        return None if self.end_offset < 0 else max(0, self.end_offset - self.next_offset)


class Span(NamedTuple):
    """Records that were sent one after another, and follow each other in one partition."""

    partition: int
    offset: int
    """Of the first one; -1: nobody told."""
    records: int


class SkippedBatch(NamedTuple):
    """Records that were passed over because their batch cannot be read."""

    partition: TopicPartition
    offsets: range
    reason: str

    def __str__(self) -> str:
        return f"{self.partition}: offsets {self.offsets[0]} to {self.offsets[-1]} were skipped: {self.reason}"


class RecordMetadata(NamedTuple):
    """Where an acknowledged record is."""

    topic: str
    partition: int
    offset: int
    """-1 with ``acks=0``: nobody told."""
    timestamp_ms: int
    """The record's timestamp; the broker's with ``message.timestamp.type=LogAppendTime``."""
