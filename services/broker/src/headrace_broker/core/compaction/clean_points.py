"""
When compaction first passed each offset, so that deletions stay to be read for ``delete.retention.ms`` after that.

Kafka writes the moment into each batch (KIP-534). Here each log has a short list of how far it was clean at which time:
no batch is rewritten for it, and rows stay as they are. ``rules`` asks; the list belongs in the log's state row. Times
are the wall clock that retention goes by, in ms.
"""

from __future__ import annotations

from typing import Final

from headrace_broker.core.rows import CleanPoint
from headrace_common.core.ids import Offset

POINTS_MAX: Final = 16
_PARTS: Final = 8
"""Points are at least this part of the retention apart: a deletion stays at most so much longer than it must."""


def find_passed_end(points: tuple[CleanPoint, ...], now_ms: int, retention_ms: int) -> Offset:
    """Everything below was compacted ``retention_ms`` ago or earlier."""
    return max((point.end for point in points if point.at_ms + retention_ms <= now_ms), default=Offset(0))


def cut_points(points: tuple[CleanPoint, ...], end: Offset) -> tuple[CleanPoint, ...]:
    """``points`` of a log that was cut at ``end``: what was compacted below it stays so."""
    kept = [point for point in points if point.end <= end]
    if len(kept) < len(points) and (not kept or kept[-1].end < end):
        kept.append(CleanPoint(end, points[len(kept)].at_ms))
    return tuple(kept)


def add_point(points: tuple[CleanPoint, ...], end: Offset, now_ms: int, retention_ms: int) -> tuple[CleanPoint, ...]:
    """
    ``points``, ascending, after the log was compacted up to ``end``; at most ``POINTS_MAX``.

    A point may give way to a later one, never to an earlier: what is forgotten makes deletions stay longer.
    """
    if points and end <= points[-1].end:
        return points
    old = [point for point in points if point.at_ms + retention_ms <= now_ms]
    kept = [*old[-1:], *points[len(old) :]]
    at_ms = max(now_ms, kept[-1].at_ms) if kept else now_ms
    close = len(kept) > 1 and kept[-1].at_ms - kept[-2].at_ms < retention_ms // _PARTS
    if kept and (close or at_ms == kept[-1].at_ms):
        kept.pop()
    kept.append(CleanPoint(end, at_ms))
    if len(kept) > POINTS_MAX:
        del kept[1]
    return tuple(kept)
