"""
What a follower and its leader say to each other on a ``Replicate`` stream (``broker.proto`` has it on the wire).

The fetcher (follower) and the replicate session (leader) speak it; adapters and servicers translate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from headrace_broker.core.local_log import Parted
from headrace_broker.core.rows import NO_TOKEN
from headrace_common.core.batch import build_gap_batch, read_header
from headrace_common.core.errors import HeadraceError
from headrace_common.core.ids import NodeId, Offset, PartitionId


@dataclass(frozen=True, slots=True)
class Position:
    """How far a follower is, and whether it wants more."""

    partition: PartitionId
    leader_epoch: int
    last_epoch: int
    """Newest leader epoch in its log; -1: none."""
    log_end: Offset
    """-1: it wants to begin anew."""
    written_end: Offset
    wants: bool
    forgotten_to: Offset = Offset(0)
    """Deletions and markers below may be missing in its log."""


@dataclass(frozen=True, slots=True)
class CopyAsk:
    """One message of a follower."""

    broker: NodeId
    broker_epoch: int
    positions: Sequence[Position] = ()
    withdrawn: Sequence[PartitionId] = ()
    received: int = 0
    """Answers taken in so far on this stream."""


@dataclass(slots=True)
class Copied:
    """What a leader tells of one partition."""

    partition: PartitionId
    leader_epoch: int
    high_watermark: Offset = Offset(0)
    log_start: Offset = Offset(0)
    batches: Sequence[bytes] = field(default_factory=list)
    parted: Parted | None = None
    """The logs part below the follower's end; then there are no batches."""
    error: HeadraceError | None = None
    """The entry is dropped; ``OffsetOutOfRange``: begin anew at ``log_start``."""
    fencing_token: int = NO_TOKEN
    """For a follower that begins anew: what fences before ``log_start`` have set; -1: nothing."""
    forgotten_to: Offset = Offset(0)
    """Deletions and markers below may be missing in the leader's log."""


@dataclass(frozen=True, slots=True)
class CopyAnswer:
    """One message of a leader; answers of a stream are counted from 1."""

    number: int
    partitions: Sequence[Copied]


def continue_log(batches: list[bytes], log_end: Offset) -> list[bytes]:
    """
    ``batches``, of which the first holds ``log_end``, as they continue a log that ends there.

    Replicas compact on their own, so that may be inside a gap: then its rest comes first. Any other batch comes whole:
    it can begin below only where the log is empty, and was to begin inside of it.
    """
    if not batches:
        return batches
    first = read_header(batches[0])
    if first.base_offset >= log_end or first.record_count > 0 or first.producer_id >= 0:
        return batches
    rest = build_gap_batch(
        log_end,
        first.next_offset,
        first.leader_epoch,
        base_timestamp=first.base_timestamp,
        max_timestamp=first.max_timestamp,
    )
    return [rest, *batches[1:]]
