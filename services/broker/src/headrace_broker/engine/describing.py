"""
What logs are asked for by people: what they know of their producers, for whoever looks for transactions that nobody
ends; how much they hold, and how old that is.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Final

from headrace_broker.core.local_log import LocalLog, segment_rows
from headrace_broker.core.measures import TopicGauges
from headrace_broker.core.rows import ProducerRow, SegmentRow
from headrace_broker.engine.permitted import Permitted
from headrace_broker.engine.replicas import Replicas
from headrace_common.core.access.control import EVERYTHING, Rights
from headrace_common.core.access.resources import Operation, ResourceType
from headrace_common.core.batch import HEADER_SIZE
from headrace_common.core.errors import HeadraceError, Rejected
from headrace_common.core.ids import PartitionId
from headrace_common.runtime.clock import give_way

PARTITIONS_PER_REQUEST_MAX: Final = 10_000
GAUGES_PER_TOPIC_MAX: Final = 1_000
"""With more topics than this only their sum is published; DescribeLogs has each."""
PRODUCERS_MAX: Final = 1_000
"""Of one partition in an answer."""
PRODUCERS_IN_ALL_MAX: Final = 10_000
"""Of all partitions in an answer, but for the first of each, which is always there: it may hold readers back."""


@dataclass(frozen=True, slots=True)
class KnownProducers:
    """The answer of DescribeProducers for one partition."""

    partition: PartitionId
    high_watermark: int = -1
    last_stable: int = -1
    producers: Sequence[ProducerRow] = ()
    """Ascending by the start of the open transaction, then by id; those without one come last."""
    more: bool = False
    error: HeadraceError | None = None


def oldest_ms(log: LocalLog) -> int | None:
    """
    When its oldest record was written, by the records' own stamps, or before; None: it has none with a time.

    Of what is compacted it is the oldest that the first segment with something left was written with.
    """
    if log.log_start == log.log_end:
        return None
    return next(
        (row.min_timestamp for row in segment_rows(log) if row.size > _least(row) and row.min_timestamp >= 0), None
    )


def count_stored_bytes(log: LocalLog) -> int:
    """Bytes of its batches, with what was trimmed of the first segment while something of that is left."""
    return 0 if log.log_start == log.log_end else log.segments.size


def _least(row: SegmentRow) -> int:
    """What a segment has at least when all of it was compacted away: a sealed one has a header for its offsets."""
    return 0 if row.sealed_at_ms is None else HEADER_SIZE


def topic_gauges(replicas: Replicas, now_ms: int) -> list[TopicGauges]:
    """What is stored of each topic here; one line for all of them when there are too many to publish."""
    bytes_of: dict[str, int] = {}
    oldest_of: dict[str, int] = {}
    for one in replicas.all():
        bytes_of[one.topic] = bytes_of.get(one.topic, 0) + count_stored_bytes(one.core)
        oldest = oldest_ms(one.core)
        if oldest is not None:
            oldest_of[one.topic] = min(oldest, oldest_of.get(one.topic, oldest))
    if len(bytes_of) > GAUGES_PER_TOPIC_MAX:
        bytes_of, oldest_of = {"": sum(bytes_of.values())}, {"": min(oldest_of.values(), default=now_ms)}
    return [
        TopicGauges(topic, size, max(0.0, (now_ms - oldest_of.get(topic, now_ms)) / 1_000))
        for topic, size in bytes_of.items()
    ]


async def describe_producers(
    replicas: Replicas, partitions: Sequence[PartitionId], *, open_only: bool, rights: Rights = EVERYTHING
) -> AsyncIterator[KnownProducers]:
    """
    One answer per partition, in order; led or followed here. Others have their turn between two of them.

    Who may not describe the cluster is told of topics that it may describe.

    Raises:
        Rejected: none, too many at once, or one of them twice.
    """
    if not 1 <= len(partitions) <= PARTITIONS_PER_REQUEST_MAX:
        raise Rejected(f"the request names {len(partitions)} partitions; 1 to {PARTITIONS_PER_REQUEST_MAX} are allowed")
    if len(set(partitions)) != len(partitions):
        raise Rejected("the request names a partition twice; name each once")
    whole = rights.allows(Operation.DESCRIBE, ResourceType.CLUSTER)
    logs = Permitted(replicas, EVERYTHING if whole else rights, Operation.DESCRIBE)
    left = PRODUCERS_IN_ALL_MAX
    for partition in partitions:
        found = _of(logs, partition, max(1, min(PRODUCERS_MAX, left)), open_only=open_only)
        left -= len(found.producers)
        yield found
        await give_way()


def _of(logs: Permitted, partition: PartitionId, count: int, *, open_only: bool) -> KnownProducers:
    try:
        core = logs.get_readable(partition, None).core
    except HeadraceError as error:
        return KnownProducers(partition, error=error)
    producers = core.producers
    first = producers.first(count, open_only=open_only)
    more = (len(producers.open) if open_only else len(producers)) > len(first)
    return KnownProducers(partition, core.high_watermark, core.last_stable, first, more)
