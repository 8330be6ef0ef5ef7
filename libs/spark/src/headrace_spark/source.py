"""
The data source ``headrace``: what Spark asks for by name, and which reader or writer it gets.

Spark makes an object of it in many processes and pickles it between them; so it validates options, and opens nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource

from headrace_spark.telling import shorten_trace

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceArrowWriter,
        DataSourceReader,
        DataSourceStreamArrowWriter,
        DataSourceStreamReader,
    )
    from pyspark.sql.types import StructType

NAME = "headrace"


class HeadraceDataSource(DataSource):
    """Topics of a Headrace cluster as tables; options and columns: README.md."""

    @shorten_trace
    def __init__(self, options: dict[str, str]) -> None:
        from headrace_spark.adapters.sdk_address import add_address

        super().__init__(add_address(options))
        self._reaches_tasks = False

    def __getstate__(self) -> dict[str, Any]:
        """
        Spark pickles it to processes of the driver before it asks for a reader. With the reader it goes to the tasks
        (``plan_data_source_read`` of PySpark), and then it has no credential.
        """
        from headrace_spark.core.options import drop_token

        return {**self.__dict__, "options": drop_token(self.options)} if self._reaches_tasks else self.__dict__

    @classmethod
    def name(cls) -> str:
        """For ``format``."""
        return NAME

    @shorten_trace
    def schema(self) -> str:
        """
        The columns where the user gives no schema.

        Raises:
            InvalidConfig: an option is wrong; all that is wrong is told at once.
        """
        from headrace_spark.core.columns import ddl, default_columns
        from headrace_spark.core.options import headers_wanted

        return ddl(default_columns(headers=headers_wanted(self.options)))

    @shorten_trace
    def reader(self, schema: StructType) -> DataSourceReader:
        """Of a batch query."""
        from headrace_spark.batch_reader import batch_reader

        self._reaches_tasks = True
        return batch_reader(self.options, schema)

    @shorten_trace
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Of a streaming query."""
        from headrace_spark.stream_reader import HeadraceStreamReader

        self._reaches_tasks = True
        return HeadraceStreamReader(self.options, schema)

    @shorten_trace
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """Of a batch query; topics cannot be overwritten."""
        from headrace_spark.batch_writer import HeadraceBatchWriter

        self._reaches_tasks = True
        return HeadraceBatchWriter(self.options, schema, overwrite)

    @shorten_trace
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        """Of one micro-batch of a streaming query."""
        from headrace_spark.stream_writer import HeadraceStreamWriter

        self._reaches_tasks = True
        return HeadraceStreamWriter(self.options, schema)
