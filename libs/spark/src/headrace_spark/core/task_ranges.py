"""
What a task does when records that it was to read are gone: fail, or go on behind them.

Retention runs while tasks read, so a range that was there when it was planned may be cut before it is read. Called by
the readers in the tasks, with what the client told.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from headrace_common.core.ids import TopicPartition
from headrace_spark.core.losses import Cause, Loss
from headrace_spark.core.offsets import OffsetRange

RESUMES_MAX: Final = 100
"""How often a task goes on after a loss: retention that is always faster than a task would keep it for ever."""


def behind_loss(
    left: Iterable[OffsetRange], partition: TopicPartition, log_start: int
) -> tuple[tuple[OffsetRange, ...], list[Loss]]:
    """
    What can be read of ``left`` when records of one partition are gone, and what was lost.

    Args:
        log_start: where its log starts. Not above the range's start: the log's end fell back below it.
    """
    kept: list[OffsetRange] = []
    losses: list[Loss] = []
    for each in left:
        if each.partition != partition:
            kept.append(each)
        elif log_start <= each.start:
            losses.append(Loss(partition, Cause.TRUNCATED, each.start, each.end))
        else:
            start = min(log_start, each.end)
            losses.append(Loss(partition, Cause.TRIMMED, each.start, start))
            kept.append(OffsetRange(partition, start, each.end))
    return tuple(each for each in kept if len(each)), losses
