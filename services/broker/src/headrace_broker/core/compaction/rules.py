"""
What of a log must stay whatever its keys: decided once, when a compaction begins, from the log's own state.

``dirty_keys`` and ``cleaning`` ask, batch by batch, by index rows alone. As in Kafka's Cleaner, but for two things:
the last five batches of a producer stay, not one, so that a log copied from this one tells repeats as this one does;
and the marker that is the last word of a producer stays whole.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from headrace_broker.core.compaction.clean_points import find_passed_end
from headrace_broker.core.local_log import LocalLog
from headrace_broker.core.rows import MARKER_BITS, TRANSACTIONAL_BIT, AbortedRow, CleanPoint, IndexRow
from headrace_common.core.ids import Offset

EVERYWHERE: Final = Offset(2**63 - 1)
CONTROL_BIT: Final = 0x20
HORIZON_BIT: Final = 0x40
"""In the attributes of a marker: nothing of its transaction is left, and its base timestamp is when it may go."""


class AbortedRecords:
    """Which batches belong to aborted transactions."""

    __slots__ = ("_firsts", "_lasts")

    def __init__(self, rows: Iterable[AbortedRow]) -> None:
        self._firsts: dict[int, list[int]] = {}
        self._lasts: dict[int, list[int]] = {}
        for row in rows:  # those of one producer do not overlap, and come in order
            self._firsts.setdefault(row.producer_id, []).append(row.first)
            self._lasts.setdefault(row.producer_id, []).append(row.last)

    def hold(self, row: IndexRow) -> bool:
        """Whether the batch's records were never committed."""
        if not row.attributes & TRANSACTIONAL_BIT or row.producer_id not in self._lasts:
            return False
        at = bisect_left(self._lasts[row.producer_id], row.base_offset)
        firsts = self._firsts[row.producer_id]
        return at < len(firsts) and firsts[at] <= row.base_offset


@dataclass(frozen=True, slots=True)
class Rules:
    """Those of one compaction of one log. They hold below ``end``."""

    now_ms: int
    delete_retention_ms: int
    tombstones_below: Offset
    """Records below that have no value may go: that they were deleted was to be read long enough."""
    fence: Offset
    """The last fence record; older ones may go. -1: none is known, so all stay."""
    aborted: AbortedRecords
    last_batches: frozenset[int]
    """Base offsets of what producers are known by: these stay, if only as headers."""
    last_markers: frozenset[tuple[int, int]]
    """Producers, and their epochs, of which a marker is the last word."""
    forgets_below: Offset = EVERYWHERE
    """Deletions and markers from there on stay: a replica is about to copy them, or the leader has them still."""

    def is_last_marker(self, row: IndexRow) -> bool:
        """Whether the marker is the last word of its producer."""
        return (row.producer_id, row.producer_epoch) in self.last_markers

    def fence_goes(self, row: IndexRow) -> bool:
        """Whether a control batch that is no marker may go."""
        return row.base_offset < self.fence and row.next_offset <= self.tombstones_below


def rules_of(
    log: LocalLog,
    end: Offset,
    points: tuple[CleanPoint, ...],
    delete_retention_ms: int,
    now_ms: int,
    forgets_below: Offset = EVERYWHERE,
) -> Rules:
    """
    What holds for a compaction of ``log`` up to ``end`` that begins now.

    ``forgets_below``: what ``Partition.forgets_below`` says, for a log with other replicas.
    """
    producers = log.producers.snapshot()
    fences = [row.offset for row in log.fences.rows() if row.offset < end]
    passed = find_passed_end((*points, CleanPoint(end, now_ms)), now_ms, delete_retention_ms)
    return Rules(
        now_ms=now_ms,
        delete_retention_ms=delete_retention_ms,
        tombstones_below=min(passed, forgets_below),
        fence=max(fences, default=Offset(-1)),
        aborted=AbortedRecords(log.aborted.find_overlapping(log.first_batch, end)),
        last_batches=frozenset(batch.base_offset for row in producers for batch in row.batches),
        last_markers=frozenset((row.producer_id, row.epoch) for row in producers if row.committed is not None),
        forgets_below=forgets_below,
    )


def is_control(row: IndexRow) -> bool:
    """Whether the batch has a record that applications never see."""
    return bool(row.attributes & CONTROL_BIT)


def is_marker(row: IndexRow) -> bool:
    """Whether it ends a transaction."""
    return row.attributes & MARKER_BITS == MARKER_BITS


def is_transactional(row: IndexRow) -> bool:
    """Whether it is part of a transaction."""
    return bool(row.attributes & TRANSACTIONAL_BIT)
