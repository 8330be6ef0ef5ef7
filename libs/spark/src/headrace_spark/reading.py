"""
What Spark's two kinds of readers have in common: options and schema when a query is planned, the ranges that travel to
a task, and what the task does with them. Called by ``batch_reader`` and ``stream_reader``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition

from headrace_common.core.errors import HeadraceError
from headrace_spark.core.columns import Column, FieldGiven, check_schema
from headrace_spark.core.offsets import OffsetRange, Snapshot
from headrace_spark.core.options import ConnectorOptions
from headrace_spark.core.packing import Packing, pack

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from headrace_common.core.secret import Secret
    from headrace_spark.adapters.sdk_rows import Reading
    from headrace_spark.ports import Logs, TaskKeys


class OffsetRanges(InputPartition):
    """
    What one task reads: ranges, and the ids of their topics where they are known; and what it shows.

    The reader is pickled for the tasks of all batches before it is asked for the first partition, so a key that is made
    for one batch comes with these.
    """

    def __init__(self, ranges: Sequence[OffsetRange], topic_ids: Mapping[str, str], key: Secret | None = None) -> None:
        super().__init__(tuple(ranges))
        topics = {each.partition.topic for each in ranges}
        self.topic_ids = {topic: topic_id for topic, topic_id in topic_ids.items() if topic in topics}
        self.key = key


def columns_of(schema: StructType) -> tuple[Column, ...]:
    """
    What is read for a schema, be it the user's or ours.

    Raises:
        InvalidConfig: all that is wrong with it.
    """
    return check_schema([FieldGiven(each.name, each.dataType.simpleString(), each.nullable) for each in schema.fields])


def tasks_of(
    ranges: Sequence[OffsetRange],
    options: ConnectorOptions,
    snapshot: Snapshot,
    logs: Logs,
    keys: TaskKeys | None = None,
) -> list[InputPartition]:
    """
    The tasks that read ``ranges``.

    Args:
        keys: None: what tasks show is of their own environment, or of a file.

    Raises:
        HeadraceError: no key could be made in time.

    The process that plans cannot see how many cores the cluster has. At least those of this machine are there; above
    that tasks are cut by size.
    """
    if not ranges:
        return []
    packing = Packing(
        cores=os.cpu_count() or 1,
        tasks_min=options.min_partitions,
        tasks_max=options.max_tasks,
        offsets_max=options.max_records_per_partition,
        record_bytes=logs.record_bytes(snapshot),
    )
    key = None
    if keys is not None:
        from headrace_spark.core.task_keys import reading_scope

        topics = {tp.topic for tp in snapshot.bounds} | {each.partition.topic for each in ranges}
        key = keys.key(reading_scope(topics))
    return [OffsetRanges(task, snapshot.topic_ids, key) for task in pack(ranges, packing)]


def rows_of(reading: Reading, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """In a task: its records. Spark reads an empty batch with a partition of its own, of nothing."""
    from headrace_spark.adapters.sdk_rows import read

    if not isinstance(partition, OffsetRanges):
        return
    try:
        yield from read(reading.showing(partition.key), partition.value, partition.topic_ids)
    except HeadraceError as error:
        from headrace_spark.core.task_keys import explain_end

        told = error if partition.key is None else explain_end(error)
        raise told.with_traceback(None) from None
