"""
The source of ``spark.read``: what is there when the query is planned, in as many tasks as it is worth.

Spark makes a reader in its planner, asks it once for tasks, and pickles it to them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from headrace_spark.adapters.clients import warn_once
from headrace_spark.adapters.sdk_address import cluster_of
from headrace_spark.adapters.sdk_rows import Reading
from headrace_spark.core.batch import lookups, plan_batch
from headrace_spark.core.offsets import OffsetRange, Snapshot
from headrace_spark.core.option_table import Mode
from headrace_spark.core.options import ConnectorOptions
from headrace_spark.reading import columns_of, rows_of, tasks_of
from headrace_spark.telling import shorten_trace

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from headrace_spark.ports import Logs


class HeadraceBatchReader(DataSourceReader):
    """
    Reads what topics hold now.

    Raises:
        InvalidConfig: all that is wrong with the options, or with the schema.
    """

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._options = ConnectorOptions.parse(options, Mode.READ_BATCH)
        self._reading = Reading.of(self._options, columns_of(schema))

    @shorten_trace
    def partitions(self) -> list[InputPartition]:
        """
        On the driver, once: the tasks.

        Raises:
            UnknownTopicOrPartition: what is to be read is not there.
            InvalidConfig: start or end do not fit to what is there.
            RecordsLost: not all of it is there.
            HeadraceError: the cluster could not be asked.
        """
        from headrace_spark.adapters.sdk_keys import shared_keys

        for warning in self._options.warnings:
            warn_once(warning)
        logs = self._logs()
        assert self._options.selection is not None, "a query that reads says what"
        snapshot = logs.snapshot(self._options.selection, must_exist=True)
        return tasks_of(self._plan_ranges(snapshot, logs), self._options, snapshot, logs, shared_keys(self._options))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """
        In a task.

        Raises:
            RecordsLost: some were removed after the query was planned.
            HeadraceError: they could not be read in time.
        """
        return rows_of(self._reading, partition)

    def _logs(self) -> Logs:
        from headrace_spark.adapters.sdk_logs import SdkLogs

        return SdkLogs(cluster_of(self._options), self._options.client)

    def _plan_ranges(self, snapshot: Snapshot, logs: Logs) -> tuple[OffsetRange, ...]:
        times = lookups(self._options, snapshot)
        plan = plan_batch(
            self._options, snapshot, logs.offsets_for_times(times.start_ms), logs.offsets_for_times(times.end_ms)
        )
        for warning in plan.warnings:
            warn_once(warning)
        return plan.ranges


def batch_reader(options: Mapping[str, str], schema: StructType) -> DataSourceReader:
    return HeadraceBatchReader(options, schema)
