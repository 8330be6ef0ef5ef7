"""
Which batch of a log to look into for a time: the segment by its largest timestamp, then halving over the index.

``ListOffsets`` asks. Rows are had through ``floor``, so that this needs no store; each call is one seek.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from heapq import heappop, heappush

from headrace_broker.core.rows import IndexRow, SegmentRow
from headrace_common.core.ids import Offset

Floor = Callable[[Offset], IndexRow | None]
"""The row of the batch that holds an offset, or the last one before it."""
Range = tuple[Offset, Offset]
"""From the first to below the second."""


def first_batch_reaching(
    segments: Sequence[SegmentRow], floor: Floor, start: Offset, end: Offset, timestamp_ms: int
) -> IndexRow | None:
    """
    The first batch from ``start`` on, below ``end``, whose segment has seen a timestamp of ``timestamp_ms`` or later.

    A record that old or younger is in it or behind it, never before it. None: there is none below ``end``.
    """
    return next((row for row, _ in _reaching(segments, floor, start, end, timestamp_ms)), None)


def ranges_reaching(
    segments: Sequence[SegmentRow], floor: Floor, start: Offset, end: Offset, timestamp_ms: int
) -> Iterator[Range]:
    """
    Where records of ``timestamp_ms`` or later may be, in the order of the log; they are nowhere else.

    Compaction leaves index rows the times of what was written, so a range may have nothing that young any more.
    """
    for row, high in _reaching(segments, floor, start, end, timestamp_ms):
        yield Offset(max(row.base_offset, start)), high


def ranges_by_age(
    segments: Sequence[SegmentRow], floor: Floor, start: Offset, end: Offset
) -> Iterator[tuple[int, Range]]:
    """
    All of the log, in ranges with the largest timestamp that any of their records can have; the youngest first.

    Of ranges that may be equally young the one that comes first in the log comes first.
    """
    heap: list[tuple[int, Offset, Offset]] = []

    def push(low: Offset, high: Offset) -> None:
        last = floor(Offset(high - 1)) if high > low else None
        if last is not None and last.next_offset > low:
            heappush(heap, (-last.segment_max_timestamp, low, high))

    for low, high in _bounds(segments, start, end):
        push(low, high)
    while heap:
        negative, low, high = heappop(heap)
        row = _halve(floor, low, high, -negative)
        if row is None:
            continue  # the log was cut since
        first = Offset(max(row.base_offset, low))
        yield -negative, (first, high)
        push(low, first)


def _bounds(segments: Sequence[SegmentRow], start: Offset, end: Offset) -> Iterator[Range]:
    """Of each segment, as far as it lies in ``start``..``end``."""
    for index, segment in enumerate(segments):
        high = segments[index + 1].base_offset if index + 1 < len(segments) else end
        yield Offset(max(segment.base_offset, start)), Offset(min(high, end))


def _reaching(
    segments: Sequence[SegmentRow], floor: Floor, start: Offset, end: Offset, timestamp_ms: int
) -> Iterator[tuple[IndexRow, Offset]]:
    for segment, (low, high) in zip(segments, _bounds(segments, start, end), strict=True):
        if high <= low or segment.max_timestamp < timestamp_ms:
            continue
        found = _halve(floor, low, high, timestamp_ms)
        if found is not None:
            yield found, high


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
