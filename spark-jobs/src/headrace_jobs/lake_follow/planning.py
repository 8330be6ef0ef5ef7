"""What is read next: from the lake's positions on, as far as the logs reach. No Spark, no client. Called by ``job``."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from headrace_common.core.errors import Conflict, InvalidConfig
from headrace_common.core.ids import TopicPartition
from headrace_spark.core.offsets import OffsetRange
from headrace_spark.core.rate import limit_ends


def plan(
    positions: Mapping[TopicPartition, int | None],
    bounds: Mapping[TopicPartition, tuple[int, int]],
    stop: Mapping[TopicPartition, int] | None,
    offsets_max: int,
    reset: str,
) -> list[OffsetRange]:
    """
    Ranges that are read and committed together; empty ones are left out.

    Args:
        positions: of the lake; None: it has none of the partition.
        bounds: where each log starts and ends.
        stop: where to end; None: nowhere. Partitions that are not in it are not read.
        reset: what the connector does without a position.

    Raises:
        InvalidConfig: there is no position, and reading shall not begin at the start of the log.
        Conflict: the lake is ahead of the log.
    """
    starts: dict[TopicPartition, int] = {}
    ends: dict[TopicPartition, int] = {}
    for partition, position in positions.items():
        first, end = bounds[partition]
        if stop is not None:
            end = min(end, stop.get(partition, 0))
        if position is None and reset != "earliest":
            raise InvalidConfig(
                f"the lake has no position of {partition}, and consumer.override.auto.offset.reset is {reset}: let "
                "lake-sink make the first commit, or set earliest"
            )
        if position is not None and position > bounds[partition][1]:
            raise Conflict(
                f"the lake is at offset {position} of {partition}, and its log ends at {bounds[partition][1]}: the "
                "topic was made anew, or this is another cluster; write to another path"
            )
        starts[partition] = first if position is None else position
        ends[partition] = max(starts[partition], end)
    limited = limit_ends(starts, ends, offsets_max)
    return [OffsetRange(each, starts[each], limited[each]) for each in sorted(starts) if starts[each] < limited[each]]


def reading_options(ranges: Sequence[OffsetRange]) -> dict[str, str]:
    """The connector's options for these ranges."""
    assigned: dict[str, list[int]] = {}
    starts: dict[str, dict[str, int]] = {}
    ends: dict[str, dict[str, int]] = {}
    for each in ranges:
        topic, number = each.partition
        assigned.setdefault(topic, []).append(number)
        starts.setdefault(topic, {})[str(number)] = each.start
        ends.setdefault(topic, {})[str(number)] = each.end
    return {
        "assign": json.dumps(assigned),
        "startingOffsets": json.dumps(starts),
        "endingOffsets": json.dumps(ends),
        "kafka.isolation.level": "read_committed",
        "includeHeaders": "true",
    }
