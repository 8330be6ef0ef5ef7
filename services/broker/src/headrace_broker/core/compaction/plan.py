"""
Which log is compacted next, and which part of it is dirty.

The cleaner asks about each compacted log it holds, as leader or follower, whenever it looks for work. Source: Kafka's
LogCleanerManager. Rows are had through ``floor``, one seek each; time is the wall clock of the records' stamps, in ms.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from headrace_broker.core.local_log import LocalLog, segment_rows
from headrace_broker.core.rows import SegmentRow
from headrace_broker.core.time_search import Floor, first_batch_reaching
from headrace_common.core.ids import Offset, PartitionId


@dataclass(frozen=True, slots=True)
class CompactionSettings:
    """Those of one topic."""

    dirty_ratio_min: float
    """``min.cleanable.dirty.ratio``: dirty bytes over all bytes that may be compacted."""
    lag_ms_min: int
    """``min.compaction.lag.ms``: records younger than this are left alone; 0: none."""
    lag_ms_max: int
    """``max.compaction.lag.ms``: a record that is older and dirty has its log compacted whatever the ratio."""
    delete_retention_ms: int
    """``delete.retention.ms``: how long a deletion stays to be read once it is all that is left of its key."""


@dataclass(frozen=True, slots=True)
class DirtyRange:
    """What of a log may be compacted and was not yet. Both ends are batch boundaries."""

    start: Offset
    end: Offset
    """May be ``start``: then nothing may be compacted now."""
    clean_bytes: int
    dirty_bytes: int
    oldest_ms: int
    """About when its first record was written; -1: there is none, or it has no time."""

    @property
    def ratio(self) -> float:
        """Of the dirty bytes to all."""
        return self.dirty_bytes / max(1, self.clean_bytes + self.dirty_bytes)

    def due(self, settings: CompactionSettings, now_ms: int) -> bool:
        """Whether the log is to be compacted now."""
        if self.end <= self.start:
            return False
        overdue = 0 <= self.oldest_ms < now_ms - settings.lag_ms_max
        return overdue or self.ratio >= settings.dirty_ratio_min


def dirty_range(log: LocalLog, floor: Floor, lag_ms_min: int, now_ms: int) -> DirtyRange:
    """From where the log was compacted to the first batch that must stay: active, undecided, or too young."""
    start = Offset(max(log.cleaned_to, log.first_batch))
    end = max(start, Offset(min(log.segments.active.base_offset, log.last_stable)))
    row = floor(end) if end < log.log_end else None
    if row is not None and row.base_offset < end < row.next_offset:
        end = max(start, row.base_offset)
    rows = segment_rows(log)
    if lag_ms_min > 0 and end > start:
        young = first_batch_reaching(rows, floor, start, end, now_ms - lag_ms_min + 1)
        end = end if young is None else max(start, young.base_offset)
    first = floor(start) if end > start else None
    clean, dirty = (
        sum(_bytes_up_to(each, high, floor) - _bytes_up_to(each, low, floor) for each in rows)
        for low, high in ((log.first_batch, start), (start, end))
    )
    return DirtyRange(start, end, clean, dirty, -1 if first is None else first.segment_max_timestamp)


def why_it_waits(log: LocalLog, dirty: DirtyRange, settings: CompactionSettings, now_ms: int) -> str | None:
    """What a log that is not due waits for, as a sentence; None: it is due, or nothing of it is dirty."""
    if dirty.end > dirty.start:
        if dirty.due(settings, now_ms):
            return None
        return f"{dirty.ratio:.3g} of it is dirty, below min.cleanable.dirty.ratio={settings.dirty_ratio_min:g}"
    if dirty.start >= log.log_end:
        return None
    active = log.segments.active.base_offset
    if active <= dirty.start:
        return f"what is dirty is in the active segment, from {active}; it is not sealed yet"
    if log.last_stable <= dirty.start:
        first_open = log.producers.first_open
        if first_open is not None and first_open < log.high_watermark:
            return f"the transaction that has been open since offset {first_open} has to end first"
        return f"nothing is committed from offset {log.last_stable} on"
    if settings.lag_ms_min > 0:
        return f"what is dirty is younger than min.compaction.lag.ms={settings.lag_ms_min}"
    return f"what is dirty is not decided from offset {log.last_stable} on"


def next_to_clean(
    logs: Iterable[tuple[PartitionId, DirtyRange, CompactionSettings]], now_ms: int
) -> tuple[PartitionId, DirtyRange] | None:
    """The dirtiest of those that are due; None: nothing is to be done."""
    due = [(id, dirty) for id, dirty, settings in logs if dirty.due(settings, now_ms)]
    return max(due, key=lambda each: each[1].ratio, default=None)


def _bytes_up_to(segment: SegmentRow, offset: Offset, floor: Floor) -> int:
    """Of the segment's batches below ``offset``, a batch boundary."""
    if offset <= segment.base_offset:
        return 0
    if segment.end_offset is not None and segment.end_offset <= offset:
        return segment.size
    row = floor(offset)
    if row is None or row.segment_base != segment.base_offset:
        return segment.size
    before = row.segment_bytes - row.size if row.base_offset == offset else row.segment_bytes
    return min(before, segment.size)
