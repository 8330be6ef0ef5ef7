"""
From what a user said to offsets: "earliest", "latest", times and JSON, against what the logs hold.

Called by ``stream`` for the start of a new query and by ``batch`` for both ends of a batch query.
"""

from __future__ import annotations

from collections.abc import Mapping

from headrace_common.core.errors import InvalidConfig
from headrace_common.core.ids import TopicPartition
from headrace_spark.core.limits import ALL_NEEDED, AtOffsets, AtTime, AtTimes, Earliest, End, Latest, Start
from headrace_spark.core.losses import Cause, Loss
from headrace_spark.core.offsets import EARLIEST, LATEST, Bound, name_partitions


def plan_lookups(limit: Start, partitions: Mapping[TopicPartition, Bound]) -> dict[TopicPartition, int]:
    """
    What must be looked up for ``resolve``: a time in ms for each partition; empty when no times are involved.

    Raises:
        InvalidConfig: times were given for other partitions than are read.
    """
    match limit:
        case AtTime(timestamp_ms):
            return dict.fromkeys(sorted(partitions), timestamp_ms)
        case AtTimes(timestamps_ms):
            _check_all(timestamps_ms, partitions)
            return dict(timestamps_ms)
        case _:
            return {}


def resolve_start(
    limit: Start,
    bounds: Mapping[TopicPartition, Bound],
    found: Mapping[TopicPartition, int | None],
    *,
    latest_if_no_match: bool,
) -> tuple[dict[TopicPartition, int], list[Loss]]:
    """
    Where to begin in each partition, and what is missing before it can begin there.

    Args:
        found: for ``plan_lookups``, the offset of the first record at or after the time; None: there is none.

    Raises:
        InvalidConfig: offsets were given for other partitions than are read, or beyond a log's end; or no record is at
            or after a time, and latest was not asked for.
    """
    if limit.by_time:
        unmatched = [tp for tp in bounds if found.get(tp) is None]
        if unmatched and not latest_if_no_match:
            raise InvalidConfig(
                f"no record is at or after the starting time in {name_partitions(unmatched)}; give an earlier time, or "
                "set 'startingOffsetsByTimestampStrategy' to latest to begin at the end there"
            )
    starts = _resolve(limit, bounds, found)
    beyond = [tp for tp, offset in starts.items() if offset > bounds[tp].end]
    if beyond:
        which = ", ".join(f"{tp} ({starts[tp]} > {bounds[tp].end})" for tp in beyond[:10])
        raise InvalidConfig(
            f"the start lies beyond the end of the log in {which}; give offsets that are there, or latest"
        )
    return _trim_starts(starts, bounds)


def resolve_end(
    limit: End,
    bounds: Mapping[TopicPartition, Bound],
    found: Mapping[TopicPartition, int | None],
) -> tuple[dict[TopicPartition, int], list[Loss]]:
    """
    Where a batch query ends, and what is missing up to there. Without a record at or after an ending time: the end.

    Raises:
        InvalidConfig: offsets were given for other partitions than are read.
    """
    ends = _resolve(limit, bounds, found)
    losses = [
        Loss(tp, Cause.TRUNCATED, bounds[tp].end, offset) for tp, offset in ends.items() if offset > bounds[tp].end
    ]
    return {tp: min(offset, bounds[tp].end) for tp, offset in ends.items()}, losses


def _resolve(
    limit: Start, bounds: Mapping[TopicPartition, Bound], found: Mapping[TopicPartition, int | None]
) -> dict[TopicPartition, int]:
    match limit:
        case Earliest():
            return {tp: bound.first for tp, bound in sorted(bounds.items())}
        case Latest():
            return {tp: bound.end for tp, bound in sorted(bounds.items())}
        case AtOffsets(offsets):
            _check_all(offsets, bounds)
            return {tp: _literal(offsets[tp], bound) for tp, bound in sorted(bounds.items())}
        case AtTime() | AtTimes():
            return {tp: _or_end(found.get(tp), bound) for tp, bound in sorted(bounds.items())}


def _literal(offset: int, bound: Bound) -> int:
    return {EARLIEST: bound.first, LATEST: bound.end}.get(offset, offset)


def _or_end(offset: int | None, bound: Bound) -> int:
    """A record that was found and trimmed meanwhile is not what was asked for: the log's start is."""
    return bound.end if offset is None else min(max(offset, bound.first), bound.end)


def _check_all(named: Mapping[TopicPartition, int], partitions: Mapping[TopicPartition, Bound]) -> None:
    left_out, not_there = set(partitions) - set(named), set(named) - set(partitions)
    if left_out:
        raise InvalidConfig(f"the offsets or times given leave out {name_partitions(left_out)}; {ALL_NEEDED}")
    if not_there:
        raise InvalidConfig(f"offsets or times were given for {name_partitions(not_there)}, which are not there")


def _trim_starts(
    starts: Mapping[TopicPartition, int], bounds: Mapping[TopicPartition, Bound]
) -> tuple[dict[TopicPartition, int], list[Loss]]:
    losses = [
        Loss(tp, Cause.TRIMMED, offset, bounds[tp].first) for tp, offset in starts.items() if offset < bounds[tp].first
    ]
    return {tp: max(offset, bounds[tp].first) for tp, offset in starts.items()}, losses
