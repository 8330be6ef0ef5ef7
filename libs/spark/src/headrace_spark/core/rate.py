"""
How much of what is there one micro-batch reads: ``maxOffsetsPerTrigger``, ``minOffsetsPerTrigger``.

The split follows Spark's Kafka source: each partition gets its share of the limit by what it has waiting, at least one
offset, so that a small partition never starves beside a large one. Called by ``stream``.
"""

from __future__ import annotations

from collections.abc import Mapping

from headrace_common.core.ids import TopicPartition


def waiting(start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """How many offsets each partition has between them; those with none are left out."""
    return {tp: offset - start[tp] for tp, offset in end.items() if tp in start and offset > start[tp]}


def limit_ends(
    start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int], offsets_max: int
) -> dict[TopicPartition, int]:
    """
    The end of a micro-batch that reads about ``offsets_max`` offsets: more only by one for each partition whose share
    is below one.
    """
    assert offsets_max > 0, "a limit of nothing would never end"
    sizes = waiting(start, end)
    total = sum(sizes.values())
    if total <= offsets_max:
        return dict(end)
    return {tp: start[tp] + _share(sizes[tp], total, offsets_max) if tp in sizes else end[tp] for tp in end}


def _share(size: int, total: int, offsets_max: int) -> int:
    return max(1, offsets_max * size // total)


def worth_it(
    start: Mapping[TopicPartition, int],
    end: Mapping[TopicPartition, int],
    offsets_min: int,
    waited_ms: float | None,
    delay_ms_max: float,
) -> bool:
    """
    Whether to read now what is there: enough of it, or it has waited long enough.

    Args:
        waited_ms: since the last batch; None: there was none yet, and the first one does not wait.
    """
    total = sum(waiting(start, end).values())
    if not total:
        return False
    return total >= offsets_min or waited_ms is None or waited_ms >= delay_ms_max
