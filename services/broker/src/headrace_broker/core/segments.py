"""
How a log is cut into segments, and which of them may go.

A segment is a row, not a file. The partition machine asks at each append whether to seal the active one, and at
each retention check where the log may start now. Time is the wall clock of the records' stamps, in ms.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from headrace_broker.core.rows import IndexRow, SegmentRow
from headrace_common.core.ids import Offset

OFFSETS_PER_SEGMENT_MAX: Final = 2**31 - 1
"""A row's offset relative to its segment fits in 31 bits, as in Kafka's index."""


@dataclass(slots=True)
class Segments:
    """All segments of one log: sealed ones ascending, then the one that is written."""

    sealed: list[SegmentRow]
    active: SegmentRow
    """Its size and timestamps are those up to the last append."""
    roll_jitter: float = 0.0
    """Sealing by time comes this share of the jitter earlier, so that partitions made together do not roll together."""

    @staticmethod
    def fresh(base: Offset, now_ms: int, roll_jitter: float = 0.0) -> Segments:
        """A log that begins at ``base``."""
        return Segments([], SegmentRow(base, now_ms), roll_jitter)

    @staticmethod
    def recover(
        rows: Sequence[SegmentRow], last: IndexRow | None, end: Offset, now_ms: int, roll_jitter: float = 0.0
    ) -> Segments:
        """From what is stored; the active one's size and timestamps come from the log's last batch."""
        sealed = [row for row in rows if row.sealed_at_ms is not None]
        active = next((row for row in rows if row.sealed_at_ms is None), None)
        if active is None:
            active = SegmentRow(end, now_ms)
        if last is not None and last.segment_base == active.base_offset:
            active = replace(
                active,
                size=last.segment_bytes,
                min_timestamp=last.segment_min_timestamp,
                max_timestamp=last.segment_max_timestamp,
            )
        return Segments(sealed, active, roll_jitter)

    @property
    def size(self) -> int:
        """Bytes of all batches, those below the log start in the first segment included."""
        return sum(row.size for row in self.sealed) + self.active.size

    @property
    def first(self) -> Offset:
        """Where the oldest segment begins."""
        return self.sealed[0].base_offset if self.sealed else self.active.base_offset

    def must_roll(
        self, size: int, end: Offset, now_ms: int, *, segment_bytes: int, segment_ms: int, jitter_ms: int = 0
    ) -> bool:
        """Whether the active segment is sealed before ``size`` bytes more, which would end at offset ``end``."""
        active = self.active
        if active.size == 0:
            return False
        return (
            active.size + size > segment_bytes
            or end - active.base_offset > OFFSETS_PER_SEGMENT_MAX
            or self.is_aged(now_ms, segment_ms, jitter_ms)
        )

    def is_aged(self, now_ms: int, segment_ms: int, jitter_ms: int = 0) -> bool:
        """Whether the active segment has records and is to be sealed for its age, ``jitter_ms`` earlier at most."""
        active = self.active
        early_ms = min(int(self.roll_jitter * jitter_ms), segment_ms // 2)
        return active.size > 0 and now_ms - active.created_at_ms >= segment_ms - early_ms

    def roll(self, end: Offset, now_ms: int) -> tuple[SegmentRow, SegmentRow]:
        """Seal the active segment at ``end`` and begin the next; both rows are to be written."""
        assert end > self.active.base_offset, "an empty segment is never sealed"
        done = replace(self.active, sealed_at_ms=now_ms, end_offset=end)
        self.sealed.append(done)
        self.active = SegmentRow(end, now_ms)
        return done, self.active

    def append(self, base: Offset, size: int, min_timestamp: int, max_timestamp: int) -> SegmentRow:
        """Count one batch into the active segment; the segment as it is then."""
        active = self.active
        if active.size:
            min_timestamp = min(min_timestamp, active.min_timestamp)
            max_timestamp = max(max_timestamp, active.max_timestamp)
        self.active = SegmentRow(
            active.base_offset, active.created_at_ms, None, None, active.size + size, min_timestamp, max_timestamp
        )
        return self.active

    def resize(self, rows: Mapping[Offset, SegmentRow]) -> list[SegmentRow]:
        """Compaction has left these, by base, with other sizes; those that are still here."""
        found: list[SegmentRow] = []
        for base, row in rows.items():
            at = bisect_left(self.sealed, base, key=_base)
            if at < len(self.sealed) and self.sealed[at].base_offset == base:
                self.sealed[at] = row
                found.append(row)
        return found

    def drop_below(self, start: Offset) -> tuple[Offset, ...]:
        """Forget sealed segments that end at or below ``start``; their bases."""
        keep = 0
        for row in self.sealed:
            assert row.end_offset is not None, "a sealed segment has an end"
            if row.end_offset > start:
                break
            keep += 1
        gone = tuple(row.base_offset for row in self.sealed[:keep])
        del self.sealed[:keep]
        return gone

    def find_expired(
        self, now_ms: int, log_end: Offset, high_watermark: Offset, *, retention_ms: int, retention_bytes: int
    ) -> Offset | None:
        """
        Where the log may start, or None when all is kept. Whole segments only, and none above the high watermark.

        By time a segment goes when its largest timestamp is too old. The active one goes only so, only with all
        others, and only when everything in it is committed; the answer is then ``log_end``.
        """
        start: Offset | None = None
        excess = self.size - retention_bytes if retention_bytes >= 0 else -1
        for row in self.sealed:
            end = row.end_offset
            assert end is not None, "a sealed segment has an end"
            by_size = excess >= row.size
            if end > high_watermark or not (by_size or _is_old(row, now_ms, retention_ms)):
                return start
            excess -= row.size
            start = end
        if self.active.size and log_end <= high_watermark and _is_old(self.active, now_ms, retention_ms):
            return log_end
        return start


def _base(row: SegmentRow) -> Offset:
    return row.base_offset


def _is_old(row: SegmentRow, now_ms: int, retention_ms: int) -> bool:
    if retention_ms < 0:
        return False
    newest = row.max_timestamp
    if row.min_timestamp < 0:  # records without a time of their own: the last may have come just before it was sealed
        if row.sealed_at_ms is None:
            return False
        newest = max(newest, row.sealed_at_ms)
    return now_ms - newest > retention_ms
