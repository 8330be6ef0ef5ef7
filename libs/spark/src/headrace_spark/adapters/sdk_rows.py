"""
What a task reads, through the SDK: ranges of offsets become batches for Spark, as whole columns.

Made in the task's own process; nothing here is pickled but ``Reading``.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from headrace import RangeReader
from headrace.errors import PositionOutOfRange, Unauthenticated, UnknownTopicOrPartition
from headrace.finding import ClusterAddress
from headrace_common.core.ids import TopicPartition
from headrace_common.core.secret import Secret
from headrace_spark.adapters.clients import LOOK_AGAIN_MS, LOOKS_MAX, is_unknown_yet, pause, settle_worker
from headrace_spark.adapters.sdk_address import cluster_of
from headrace_spark.adapters.sdk_logs import SdkLogs
from headrace_spark.core.columns import Column, batches, table_columns
from headrace_spark.core.losses import Cause, Loss, RecordsLost, warning
from headrace_spark.core.offsets import OffsetRange
from headrace_spark.core.options import ConnectorOptions
from headrace_spark.core.task_ranges import RESUMES_MAX, behind_loss
from headrace_spark.ports import Rows

if TYPE_CHECKING:
    import pyarrow as pa

_log = logging.getLogger("headrace.spark")


@dataclass(frozen=True, slots=True)
class Reading:
    """How a query's tasks read: travels to them with the reader, and has nothing that they show."""

    cluster: ClusterAddress
    columns: tuple[Column, ...]
    fail_on_data_loss: bool
    settings: tuple[tuple[str, Any], ...]
    """Of the SDK's reader."""

    poll_timeout_ms: int

    @staticmethod
    def of(options: ConnectorOptions, columns: tuple[Column, ...]) -> Reading:
        """As the options say."""
        return Reading(
            replace(cluster_of(options), api_key=None),
            columns,
            options.fail_on_data_loss,
            tuple(sorted(options.client.items())),
            options.poll_timeout_ms,
        )

    def showing(self, key: Secret | None) -> Reading:
        """The same, for a task that was given something to show."""
        return self if key is None else replace(self, cluster=replace(self.cluster, api_key=key))


def open_rows(reading: Reading, ranges: Sequence[OffsetRange], topic_ids: Mapping[str, str]) -> Rows:
    """The SDK's reader of these ranges."""
    return RangeReader(
        reading.cluster,
        [(r.partition.topic, r.partition.partition, r.start, r.end) for r in ranges],
        columns=table_columns(reading.columns),
        topic_ids=topic_ids,
        poll_timeout_ms=reading.poll_timeout_ms,
        **dict(reading.settings),
    )


def read(reading: Reading, ranges: Sequence[OffsetRange], topic_ids: Mapping[str, str]) -> Iterator[pa.RecordBatch]:
    """
    The records of ``ranges``, each once; a partition in order. Closing it ends the reading.

    Args:
        topic_ids: of their topics, where known.

    Raises:
        RecordsLost: some are gone, and ``failOnDataLoss`` is set.
        HeadraceError: they could not be read in time.
    """
    settle_worker()
    left, looks = tuple(ranges), LOOKS_MAX if reading.cluster.api_key is not None else 0
    for _ in range(RESUMES_MAX):
        if not left:
            return
        with closing(open_rows(reading, left, topic_ids)) as rows:
            try:
                for table in rows:
                    yield from batches(table, reading.columns)
                return
            except (PositionOutOfRange, UnknownTopicOrPartition) as error:
                unread = tuple(OffsetRange(TopicPartition(t, n), start, end) for t, n, start, end in rows.remaining())
                left = _go_on(reading, unread, topic_ids, error)
            except Unauthenticated as error:
                if not (looks and is_unknown_yet(error)):
                    raise
                looks -= 1
                pause(LOOK_AGAIN_MS)
                left = tuple(OffsetRange(TopicPartition(t, n), start, end) for t, n, start, end in rows.remaining())
    raise RecordsLost(
        f"records of {len(left)} partitions were removed by retention again and again while they were read; give the "
        "topics a longer retention.ms or retention.bytes, or the query more tasks"
    )


def _go_on(
    reading: Reading,
    unread: tuple[OffsetRange, ...],
    topic_ids: Mapping[str, str],
    error: PositionOutOfRange | UnknownTopicOrPartition,
) -> tuple[OffsetRange, ...]:
    if isinstance(error, PositionOutOfRange):
        assert error.partition is not None, "a position is one of some partition"
        left, losses = behind_loss(unread, error.partition, error.log_start)
    else:
        left = SdkLogs(reading.cluster, dict(reading.settings)).still_there(unread, topic_ids)
        losses = [Loss(r.partition, Cause.DELETED, r.start, r.end) for r in unread if r not in left]
    if not losses:
        raise error  # what is there cannot be read: that is no loss
    if reading.fail_on_data_loss:
        raise RecordsLost.of(losses) from None
    _log.warning("%s", warning(losses))
    return left
