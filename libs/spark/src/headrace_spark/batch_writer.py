"""
The sink of ``df.write``: a job's rows become visible as one, when all are written.

Spark makes one of these per job, and pickles it to the tasks and to the process that commits. See DESIGN.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceArrowWriter

from headrace_common.core.errors import InvalidConfig
from headrace_spark.core.option_table import Mode
from headrace_spark.telling import shorten_trace
from headrace_spark.writing import SinkMessage, Writing

if TYPE_CHECKING:
    from pyspark.sql.datasource import WriterCommitMessage
    from pyspark.sql.types import StructType


class HeadraceBatchWriter(DataSourceArrowWriter):
    """
    Writes the rows of one job.

    Raises:
        InvalidConfig: all that is wrong with the options, or with the columns; or topics were to be overwritten.
    """

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise InvalidConfig("a topic is a log, and cannot be overwritten; write with mode('append')")
        self._writing = Writing(options, schema, Mode.WRITE_BATCH)

    @shorten_trace
    def write(self, iterator: Iterator[Any]) -> SinkMessage:
        """In a task; Spark gives Arrow batches."""
        return self._writing.write(iterator)

    @shorten_trace
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """On the driver, when all tasks have ended."""
        self._writing.commit(messages, None)

    @shorten_trace
    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """On the driver, when a task or the commit failed."""
        self._writing.abort(messages)
