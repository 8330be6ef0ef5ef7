"""
The sink of ``df.writeStream``: each micro-batch becomes visible as one, once.

Spark makes one of these for the tasks of a batch, and another one, in another process, to commit it. See DESIGN.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamArrowWriter

from headrace_spark.core.option_table import Mode
from headrace_spark.telling import shorten_trace
from headrace_spark.writing import SinkMessage, Writing

if TYPE_CHECKING:
    from pyspark.sql.datasource import WriterCommitMessage
    from pyspark.sql.types import StructType


class HeadraceStreamWriter(DataSourceStreamArrowWriter):
    """
    Writes one micro-batch.

    Raises:
        InvalidConfig: all that is wrong with the options, or with the columns.
    """

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._writing = Writing(options, schema, Mode.WRITE_STREAM)

    @shorten_trace
    def write(self, iterator: Iterator[Any]) -> SinkMessage:
        """In a task; Spark gives Arrow batches."""
        return self._writing.write(iterator)

    @shorten_trace
    def commit(self, messages: list[WriterCommitMessage | None], batch_id: int) -> None:
        """On the driver, when all tasks have ended; a batch that was committed before stays as it is."""
        self._writing.commit(messages, batch_id)

    @shorten_trace
    def abort(self, messages: list[WriterCommitMessage | None], batch_id: int) -> None:
        """On the driver, when a task or the commit failed."""
        self._writing.abort(messages)
