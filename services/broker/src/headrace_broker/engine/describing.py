"""
What partitions know of their producers, for whoever looks for transactions that nobody ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import nsmallest
from typing import Final

from headrace_broker.core.rows import ProducerRow
from headrace_broker.engine.replicas import Replicas
from headrace_common.core.errors import HeadraceError, Rejected
from headrace_common.core.ids import PartitionId

PARTITIONS_PER_REQUEST_MAX: Final = 10_000
PRODUCERS_MAX: Final = 1_000
"""Of one partition in an answer."""
_NOT_OPEN: Final = 2**63


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


def describe_producers(
    replicas: Replicas, partitions: Sequence[PartitionId], *, open_only: bool
) -> list[KnownProducers]:
    """
    One answer per partition, in order; led or followed here.

    Raises:
        Rejected: none, or too many at once.
    """
    if not 1 <= len(partitions) <= PARTITIONS_PER_REQUEST_MAX:
        raise Rejected(f"the request names {len(partitions)} partitions; 1 to {PARTITIONS_PER_REQUEST_MAX} are allowed")
    return [_of(replicas, partition, open_only=open_only) for partition in partitions]


def _of(replicas: Replicas, partition: PartitionId, *, open_only: bool) -> KnownProducers:
    try:
        core = replicas.readable(partition, None).core
    except HeadraceError as error:
        return KnownProducers(partition, error=error)
    rows = core.producers.snapshot(open_only=open_only)
    first = nsmallest(PRODUCERS_MAX, rows, key=_order)
    return KnownProducers(partition, core.high_watermark, core.last_stable, first, len(rows) > len(first))


def _order(row: ProducerRow) -> tuple[int, int]:
    return (_NOT_OPEN if row.transaction_start is None else row.transaction_start, row.producer_id)
