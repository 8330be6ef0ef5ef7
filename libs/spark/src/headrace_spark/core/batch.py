"""
What a batch query reads: both ends of every partition, as they are when the query is planned.

Called once per query by the batch reader: ``lookups`` says which times to ask for, ``plan_batch`` decides.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from headrace_common.core.ids import TopicPartition
from headrace_spark.core.losses import RecordsLost, warning
from headrace_spark.core.offsets import OffsetRange, Snapshot, ranges_between
from headrace_spark.core.options import ConnectorOptions
from headrace_spark.core.resolving import plan_lookups, resolve_end, resolve_start


@dataclass(frozen=True, slots=True)
class Lookups:
    """Times to ask for, in ms since the epoch; both may be empty."""

    start_ms: Mapping[TopicPartition, int]
    end_ms: Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """What to read, and what to log."""

    ranges: tuple[OffsetRange, ...]
    warnings: tuple[str, ...] = ()


def lookups(options: ConnectorOptions, snapshot: Snapshot) -> Lookups:
    """
    Which times must be looked up.

    Raises:
        InvalidConfig: times were given for other partitions than are read.
    """
    return Lookups(plan_lookups(options.start, snapshot.bounds), plan_lookups(options.end, snapshot.bounds))


def plan_batch(
    options: ConnectorOptions,
    snapshot: Snapshot,
    start_found: Mapping[TopicPartition, int | None],
    end_found: Mapping[TopicPartition, int | None],
) -> BatchPlan:
    """
    The ranges of the query. A start behind its end reads nothing.

    Args:
        start_found: for ``Lookups.start_ms``, the first record at or after each time; None: there is none.
        end_found: the same for ``Lookups.end_ms``.

    Raises:
        InvalidConfig: start or end do not fit to what is there.
        RecordsLost: with ``failOnDataLoss``: not all of it is there.
    """
    starts, before = resolve_start(
        options.start, snapshot.bounds, start_found, latest_if_no_match=options.latest_if_no_match
    )
    ends, behind = resolve_end(options.end, snapshot.bounds, end_found)
    losses = before + behind
    if losses and options.fail_on_data_loss:
        raise RecordsLost.of(losses)
    return BatchPlan(ranges_between(starts, ends), (warning(losses),) if losses else ())
