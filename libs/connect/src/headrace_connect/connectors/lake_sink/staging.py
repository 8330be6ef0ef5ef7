"""Rows as Parquet files that no commit names yet: many processes write them, and one commits. For Spark jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import pyarrow as pa

from headrace.records import TopicPartition
from headrace_common.core.errors import InvalidConfig
from headrace_connect.connectors.lake_sink.commits import DataFile
from headrace_connect.connectors.lake_sink.lake import Move
from headrace_connect.connectors.lake_sink.parquet import ParquetLake
from headrace_connect.connectors.lake_sink.settings import SinkSettings
from headrace_connect.connectors.lake_sink.sink import LakeSink
from headrace_connect.plugin import RetriableError, Rows

TRIES_MAX: Final = 20
"""So often in a row others add columns before rows are fitted again."""


class _Unnamed(ParquetLake):
    """Writes files and decides nothing: positions, commits and tokens are left as they are."""

    def __init__(self, url: str, partition_by: Sequence[str]) -> None:
        super().__init__(url, partition_by)
        self.staged: dict[TopicPartition, list[DataFile]] = {}

    def open(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        return {}

    def commit(
        self, moves: Mapping[TopicPartition, Move], schemas: Mapping[str, pa.Schema], token: bytes | None
    ) -> None:
        self.staged = self.stage(moves, schemas)


class Staging:
    """Rows of any partitions, those of one in order. The columns of tables grow as the sink has them grow."""

    def __init__(self, settings: SinkSettings) -> None:
        """
        Raises:
            InvalidConfig: the format is not ``parquet``.
        """
        check_format(settings)
        self._lake = _Unnamed(settings.path, list(settings.partition_columns))
        self._lake.connect()
        self._sink = LakeSink(settings, self._lake)
        self._rows: list[Rows] = []
        self._ends: dict[TopicPartition, int] = {}

    def write(self, rows: Rows) -> None:
        """
        Take rows; they are in memory until ``flush``.

        Raises:
            RowsRefused: some are bad; none is taken.
        """
        partition = rows.source
        if partition not in self._ends:
            self._sink.open([partition], 0)
        self._sink.write(rows)
        self._rows.append(rows)
        self._ends[partition] = rows.next_offset

    def flush(self) -> Mapping[TopicPartition, Sequence[DataFile]]:
        """
        What was taken, as files, durable.

        Raises:
            RetriableError: the place is away, or columns change all the time.
            RowsRefused: others have given a column another type meanwhile.
        """
        for left in reversed(range(TRIES_MAX)):
            try:
                self._sink.commit(self._ends, None)
                break
            except RetriableError:
                if not left:
                    raise
                self._sink.open(list(self._ends), 0)
                for rows in self._rows:
                    self._sink.write(rows)
        staged, self._lake.staged = self._lake.staged, {}
        self._sink.close(list(self._ends))
        self._rows, self._ends = [], {}
        return staged


def check_format(settings: SinkSettings) -> None:
    """
    Raises:
        InvalidConfig: tables are of a format whose commits name no files of ours.
    """
    if settings.format != "parquet":
        raise InvalidConfig(
            f"format is {settings.format}: only lakes of format=parquet can be handed over; Delta and Iceberg have "
            "their own tools"
        )
