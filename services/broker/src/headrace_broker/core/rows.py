"""
What a log consists of on disk, and the writes that change it.

The core decides in these terms; the store turns them into keys and bytes. Their fields are the disk format:
a change needs a new format number and an upgrade test.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple, NewType

from headrace_common.core.ids import Offset, PartitionId

LogId = NewType("LogId", int)
"""This broker's number for one partition replica; from 1, never used again. 0 is the broker's own."""

NO_TOKEN: Final = -1
"""The fencing token of a log in which no fence was ever set."""

TRANSACTIONAL_BIT: Final = 0x10
MARKER_BITS: Final = 0x30
"""Attributes that only the ends of transactions have both of: transactional, control."""
COMMITS_BIT: Final = 0x4000
"""Set in ``IndexRow.attributes`` of a marker that commits, and nowhere in a batch: replay reads no batches."""


@dataclass(frozen=True, slots=True)
class IndexRow:
    """One batch without its bytes; stays small, so that walks never load a blob."""

    base_offset: Offset
    last_offset_delta: int
    size: int
    """Bytes of the batch."""
    record_count: int
    attributes: int
    leader_epoch: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    segment_base: Offset
    """First offset of the segment it is in."""
    segment_bytes: int
    """Bytes of its segment up to and with this batch."""
    segment_min_timestamp: int
    segment_max_timestamp: int
    """Running minimum and maximum of the segment's timestamps up to and with this batch, in ms."""

    @property
    def next_offset(self) -> Offset:
        """One past the batch's last offset."""
        return Offset(self.base_offset + self.last_offset_delta + 1)

    @property
    def ends_transaction(self) -> bool:
        """Whether it is a marker; its verdict is in ``COMMITS_BIT``."""
        return self.attributes & MARKER_BITS == MARKER_BITS


@dataclass(frozen=True, slots=True)
class SegmentRow:
    """One segment. While it is open, sizes and timestamps come from the last IndexRow in it."""

    base_offset: Offset
    created_at_ms: int
    sealed_at_ms: int | None = None
    """None: the active segment."""
    end_offset: Offset | None = None
    """One past its last offset; None while it is open."""
    size: int = 0
    min_timestamp: int = -1
    max_timestamp: int = -1


@dataclass(frozen=True, slots=True)
class EpochRow:
    """From ``start`` on, batches were appended under leader ``epoch``, until the next row's start."""

    epoch: int
    start: Offset


@dataclass(frozen=True, slots=True)
class ProducerBatch:
    """What is kept of one batch to recognise it when it comes again."""

    first_sequence: int
    last_sequence: int
    base_offset: Offset
    max_timestamp: int


@dataclass(frozen=True, slots=True)
class ProducerRow:
    """What is known of one producer id: its epoch, its last five batches, oldest first, its open transaction."""

    producer_id: int
    epoch: int
    batches: tuple[ProducerBatch, ...]
    last_timestamp_ms: int
    """When it last wrote; it is forgotten ``producer.id.expiration.ms`` later."""
    transaction_start: Offset | None = None
    """Where its open transaction begins; None: none is open."""
    transaction_since_ms: int = -1
    """The broker's clock when that was appended; -1: none is open."""
    committed: bool | None = None
    """What the marker said that began this epoch; None: something was written in it since, or no marker began it."""


@dataclass(frozen=True, slots=True)
class AbortedRow:
    """What one aborted transaction wrote: the producer's batches from ``first`` to ``last``, where its marker is."""

    producer_id: int
    first: Offset
    last: Offset
    stable: Offset
    """Every transaction that is aborted behind this one begins here or later."""


@dataclass(frozen=True, slots=True)
class FenceRow:
    """A fence record at ``offset`` made ``token`` the fencing token. Offset -1: somewhere before."""

    offset: Offset
    token: int


class CleanPoint(NamedTuple):
    """All offsets below ``end`` were compacted at ``at_ms``, by the clock that retention goes by, or before."""

    end: Offset
    at_ms: int


@dataclass(frozen=True, slots=True)
class StateRow:
    """What a log is, and where it starts."""

    partition: PartitionId
    log_start: Offset
    high_watermark: Offset
    """A checkpoint: the true one is at or above it."""
    fences: tuple[FenceRow, ...] = ()
    """The newest fence records, ascending in offset and token."""
    cleaned_to: Offset = Offset(0)
    """Everything below was compacted."""
    clean_points: tuple[CleanPoint, ...] = ()
    """When, ascending; at most 16."""
    forgotten_to: Offset = Offset(0)
    """Deletions and markers below may be missing: compaction removed them here, or where the log was copied from."""

    @property
    def fencing_token(self) -> int:
        """Highest token of a fence record; -1: none."""
        return self.fences[-1].token if self.fences else NO_TOKEN

    def cut(self, end: Offset) -> StateRow:
        """Without the fences from ``end`` on."""
        if not self.fences or self.fences[-1].offset < end:
            return self
        return replace(self, fences=tuple(fence for fence in self.fences if fence.offset < end))


# --- writes: imperative, each atomic together with all others of its group -----------------------------------


@dataclass(frozen=True, slots=True)
class PutBatch:
    """Append one batch at the log end, or, in a compaction, replace the one that has its base offset."""

    log: LogId
    row: IndexRow
    batch: bytes


@dataclass(frozen=True, slots=True)
class PutSegment:
    """Write or replace a segment's row."""

    log: LogId
    row: SegmentRow


@dataclass(frozen=True, slots=True)
class PutEpoch:
    """Write an epoch's start."""

    log: LogId
    row: EpochRow


@dataclass(frozen=True, slots=True)
class PutProducers:
    """Snapshot of all producers of the log before ``offset``. Replaces none: older snapshots are dropped apart."""

    log: LogId
    offset: Offset
    rows: tuple[ProducerRow, ...]


@dataclass(frozen=True, slots=True)
class PutAborted:
    """A transaction was aborted; written with its marker."""

    log: LogId
    row: AbortedRow


@dataclass(frozen=True, slots=True)
class PutState:
    """Write or replace the log's state; the first one creates the log."""

    log: LogId
    row: StateRow


@dataclass(frozen=True, slots=True)
class Below:
    """Which rows a ``DropPrefix`` meets. To look for them costs more than all the rest where many logs drop some."""

    segments: tuple[Offset, ...]
    """Bases of all segments that go."""
    aborted: bool
    """Whether any aborted transactions go."""
    snapshot: bool
    """A producer snapshot is at the new start: older ones go. False: that is not known."""


@dataclass(frozen=True, slots=True)
class DropPrefix:
    """Delete batches, index, aborted rows, sealed segments below ``start``, and producer snapshots but the newest
    at or below it. Whole batches only: ``start`` is a batch boundary."""

    log: LogId
    start: Offset
    below: Below | None = field(default=None, compare=False)
    """What is known to be there, so that the store need not look; None: nothing."""


@dataclass(frozen=True, slots=True)
class DropSuffix:
    """Truncate: delete everything from ``end`` on, epochs, producer snapshots and fences included. A batch
    boundary."""

    log: LogId
    end: Offset


@dataclass(frozen=True, slots=True)
class DropLog:
    """Delete the whole log; its id is not used again."""

    log: LogId


# --- writes of a compaction ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PutIndex:
    """Replace the row of a batch that stays as it is."""

    log: LogId
    row: IndexRow


@dataclass(frozen=True, slots=True)
class DropBatch:
    """Delete one batch and its row; the batch before it covers its offsets now."""

    log: LogId
    base_offset: Offset


@dataclass(frozen=True, slots=True)
class DropAborted:
    """Delete the row of an aborted transaction of which nothing is left."""

    log: LogId
    marker: Offset


LogWrite = (
    PutBatch
    | PutIndex
    | PutSegment
    | PutEpoch
    | PutProducers
    | PutAborted
    | PutState
    | DropBatch
    | DropAborted
    | DropPrefix
    | DropSuffix
    | DropLog
)
