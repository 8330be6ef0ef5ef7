"""
Which batch of a log to look into for a time: the segment by its largest timestamp, then halving over the index.

``ListOffsets`` asks. Rows are had through ``floor``, so that this needs no store; each call is one seek.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from headrace_broker.core.rows import IndexRow, SegmentRow
from headrace_common.core.ids import Offset

Floor = Callable[[Offset], IndexRow | None]
"""The row of the batch that holds an offset, or the last one before it."""


def first_batch_reaching(
    segments: Sequence[SegmentRow], floor: Floor, start: Offset, end: Offset, timestamp_ms: int
) -> IndexRow | None:
    """
    The first batch from ``start`` on, below ``end``, whose segment has seen a timestamp of ``timestamp_ms`` or later.

    A record that old or younger is in it or behind it, never before it. None: there is none below ``end``.
    """
    for index, segment in enumerate(segments):
        low = max(segment.base_offset, start)
        high = segments[index + 1].base_offset if index + 1 < len(segments) else end
        high = Offset(min(high, end))
        if high <= low or segment.max_timestamp < timestamp_ms:
            continue
        found = _halve(floor, Offset(low), high, timestamp_ms)
        if found is not None:
            return found
    return None


def newest_batch(segments: Sequence[SegmentRow], floor: Floor, start: Offset, end: Offset) -> IndexRow | None:
    """The first batch that brought the largest timestamp below ``end``; None: the log is empty."""
    best: tuple[int, SegmentRow, Offset] | None = None
    for index, segment in enumerate(segments):
        high = segments[index + 1].base_offset if index + 1 < len(segments) else end
        high = Offset(min(high, end))
        if high <= max(segment.base_offset, start):
            continue
        last = floor(Offset(high - 1))
        if last is None or last.next_offset <= start:
            continue
        if best is None or last.segment_max_timestamp > best[0]:
            best = (last.segment_max_timestamp, segment, high)
    if best is None:
        return None
    largest, segment, high = best
    return _halve(floor, Offset(max(segment.base_offset, start)), high, largest)


def _halve(floor: Floor, low: Offset, high: Offset, timestamp_ms: int) -> IndexRow | None:
    """The first row of one segment in ``low``..``high`` whose running maximum is at least ``timestamp_ms``."""
    last = floor(Offset(high - 1))
    if last is None or last.segment_max_timestamp < timestamp_ms:
        return None
    found = last
    while low < found.base_offset:
        middle = Offset((low + found.base_offset - 1) // 2)
        row = floor(middle)
        if row is not None and row.next_offset > low and row.segment_max_timestamp >= timestamp_ms:
            found = row
        else:
            low = Offset(middle + 1) if row is None else Offset(max(row.next_offset, middle + 1))
    return found
