"""
What became of the partitions that a query reads, since it was last there: the pure comparison behind ``stream``.

Compares positions of a checkpoint with what the cluster has now, and says what is lost: retention was faster, a log's
end fell back, a topic is gone or is another one of the same name.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace_common.core.ids import TopicPartition
from headrace_spark.core.limits import Selection
from headrace_spark.core.losses import Cause, Loss
from headrace_spark.core.offsets import OffsetRange, Positions, Snapshot, ranges_between


@dataclass(slots=True)
class Followed:
    """From where to where a batch may read, in each partition that is still there."""

    base: dict[TopicPartition, int] = field(default_factory=dict)
    """Where reading goes on."""
    ends: dict[TopicPartition, int] = field(default_factory=dict)
    """Up to where it may go; equal to ``base`` where this batch reads nothing."""
    losses: list[Loss] = field(default_factory=list)


def follow(
    start: Positions, snapshot: Snapshot, target: Positions | None, selection: Selection | None = None
) -> Followed:
    """
    Where the next batch may read from and to.

    A partition that is new, or begins anew under its old name, joins at its log's start and is read from the next
    batch on.

    Args:
        target: with AvailableNow, what may be read at most; partitions that it does not name join in the next run.
        selection: what the options name now; None: not known.
    """
    found = Followed()
    for tp, position in sorted(start.next.items()):
        bound = snapshot.bounds.get(tp)
        if bound is None:
            there = selection is None or selection.allows(tp)
            found.losses.append(Loss(tp, Cause.DELETED if there else Cause.UNSELECTED, position))
        elif _recreated(tp, start, snapshot):
            found.losses.append(Loss(tp, Cause.RECREATED, position))
            found.base[tp] = found.ends[tp] = bound.first
        elif bound.end < position:
            found.losses.append(Loss(tp, Cause.TRUNCATED, bound.end, position))
            found.base[tp] = found.ends[tp] = bound.end
        else:
            if position < bound.first:
                found.losses.append(Loss(tp, Cause.TRIMMED, position, bound.first))
            found.base[tp] = max(position, bound.first)
            found.ends[tp] = _up_to(tp, found.base[tp], bound.end, snapshot, target)
    _join(found, start, snapshot, target)
    return found


def _join(found: Followed, start: Positions, snapshot: Snapshot, target: Positions | None) -> None:
    for tp, bound in sorted(snapshot.bounds.items()):
        if tp in start.next or (target is not None and tp not in target.next):
            continue
        if bound.first > 0:
            found.losses.append(Loss(tp, Cause.JOINED_LATE, 0, bound.first))
        found.base[tp] = found.ends[tp] = bound.first


def _up_to(tp: TopicPartition, base: int, end: int, snapshot: Snapshot, target: Positions | None) -> int:
    if target is None:
        return end
    if _recreated(tp, target, snapshot):
        return base
    return max(base, min(end, target.next.get(tp, base)))


def _recreated(tp: TopicPartition, known: Positions, snapshot: Snapshot) -> bool:
    """Whether the topic is another one than it was; unknown ids say nothing."""
    before, now = known.topic_ids.get(tp.topic), snapshot.topic_ids.get(tp.topic)
    return before is not None and now is not None and before != now


def plan_ranges(start: Positions, end: Positions, snapshot: Snapshot) -> tuple[tuple[OffsetRange, ...], list[Loss]]:
    """
    What a batch between two positions reads of what is there, and what of it is not there any more.

    Positions whose topic changed in between join anew, and have nothing to read.
    """
    starts = {tp: offset for tp, offset in start.next.items() if not _changed(tp, start, end)}
    losses: list[Loss] = []
    kept: list[OffsetRange] = []
    for wanted in ranges_between(starts, end.next):
        tp, bound = wanted.partition, snapshot.bounds.get(wanted.partition)
        if bound is None:
            losses.append(Loss(tp, Cause.DELETED, wanted.start, wanted.end))
        elif _recreated(tp, end, snapshot):
            losses.append(Loss(tp, Cause.RECREATED, wanted.start, wanted.end))
        else:
            losses += _missing(wanted, bound.first, bound.end)
            kept.append(_within(wanted, bound.first, bound.end))
    return tuple(each for each in kept if len(each)), losses


def _changed(tp: TopicPartition, start: Positions, end: Positions) -> bool:
    before, after = start.topic_ids.get(tp.topic), end.topic_ids.get(tp.topic)
    return before is not None and after is not None and before != after


def _missing(wanted: OffsetRange, first: int, end: int) -> list[Loss]:
    found: list[Loss] = []
    if wanted.start < first:
        found.append(Loss(wanted.partition, Cause.TRIMMED, wanted.start, min(first, wanted.end)))
    if wanted.end > end:
        found.append(Loss(wanted.partition, Cause.TRUNCATED, max(end, wanted.start), wanted.end))
    return found


def _within(wanted: OffsetRange, first: int, end: int) -> OffsetRange:
    start = max(wanted.start, first)
    return OffsetRange(wanted.partition, start, max(start, min(wanted.end, end)))
