"""In a task: records become rows as lake-sink makes them, and rows files that no commit names. Called by ``job``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.records import PartitionTable, TopicPartition
from headrace_common.core.errors import InvalidRecord
from headrace_connect.connectors.lake_sink.commits import DataFile
from headrace_connect.connectors.lake_sink.staging import Staging
from headrace_connect.plugin import Rows, RowsRefused
from headrace_connect.runtime.converting import TablePipeline
from headrace_jobs.connectors import Given

FILES: Final = "topic string, partition int, path string, table string, rows long, bytes long"
"""Of Spark: a file that was written, and the partition whose records it has."""
_COLUMNS: Final[list[Any]] = [
    ("topic", pa.string()),
    ("partition", pa.int32()),
    ("path", pa.string()),
    ("table", pa.string()),
    ("rows", pa.int64()),
    ("bytes", pa.int64()),
]
_TYPES: Final = pa.schema(_COLUMNS)


def stage_with(given: Given) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function that Spark's workers run: batches of records to ``FILES``."""

    def stage(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from _Stage(given).run(batches)

    return stage


def files_of(rows: Iterable[dict[str, Any]]) -> dict[TopicPartition, list[DataFile]]:
    """Rows of ``FILES`` by partition."""
    found: dict[TopicPartition, list[DataFile]] = {}
    for row in rows:
        partition = TopicPartition(row.pop("topic"), row.pop("partition"))
        found.setdefault(partition, []).append(DataFile(**row))
    return found


class _Stage:
    """One task."""

    def __init__(self, given: Given) -> None:
        configured = given.configured()
        self._settings = configured.settings
        self._config = configured.config
        self._pipeline = TablePipeline(configured.converting())
        self._staging = Staging(self._settings)
        self._rows = self._bytes = 0

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for table in _partitions(batch):
                self._take(table)
            if self._rows >= self._settings.flush_rows or self._bytes >= self._settings.flush_bytes:
                yield self._flush()
        if self._rows:
            yield self._flush()

    def _take(self, table: PartitionTable) -> None:
        converted = self._pipeline.apply(table)
        offsets = table.table.column("offset")
        for row, refusal in converted.refused.items():
            self._refuse(table, offsets[row].as_py(), f"{refusal.stage.value}: {refusal.message}")
        for rows, _ in converted.parts:
            self._write(table, rows)
        self._rows += table.table.num_rows
        self._bytes += table.table.nbytes

    def _write(self, table: PartitionTable, rows: Rows) -> None:
        try:
            self._staging.write(rows)
        except RowsRefused as refused:
            if not refused.reasons:
                raise
            for row, why in refused.reasons.items():
                self._refuse(table, rows.offsets[row].as_py(), why)
            bounds = [-1, *sorted(refused.reasons), len(rows)]
            for before, after in pairwise(bounds):
                if after - before > 1:
                    self._write(table, rows.slice(before + 1, after - before - 1))

    def _refuse(self, table: PartitionTable, offset: int, why: str) -> None:
        """
        Raises:
            InvalidRecord: the connector does not drop bad records.
        """
        if self._config.errors_tolerance == "all" and not self._config.errors_deadletterqueue_topic_name:
            return
        then = (
            "lake-sink makes it a dead letter: run it from here on"
            if self._config.errors_tolerance == "all"
            else "errors.tolerance=all drops it"
        )
        raise InvalidRecord(f"record {table.topic}-{table.partition} offset {offset} cannot be a row: {why}; {then}")

    def _flush(self) -> pa.RecordBatch:
        self._rows = self._bytes = 0
        staged = self._staging.flush()
        found: list[tuple[Any, ...]] = [
            (of.topic, of.partition, file.path, file.table, file.rows, file.bytes)
            for of, files in staged.items()
            for file in files
        ]
        columns = list(zip(*found, strict=True)) or [() for _ in _TYPES]
        return pa.RecordBatch.from_arrays(
            [pa.array(column, field.type) for column, field in zip(columns, _TYPES, strict=True)], schema=_TYPES
        )


def _partitions(batch: pa.RecordBatch) -> Iterator[PartitionTable]:
    """The records of a batch, those of one partition that follow each other together."""
    if not len(batch):
        return
    topics: Any = batch.column("topic").dictionary_encode()
    numbers: Any = batch.column("partition").to_numpy()
    cuts = np.flatnonzero(np.diff(topics.indices.to_numpy()) | np.diff(numbers)) + 1
    starts = [0, *cuts.tolist()]
    times: Any = batch.column("timestamp").cast(pa.timestamp("ms", "UTC"), safe=False).cast(pa.int64())
    columns = {name: batch.column(name) for name in ("offset", "key", "value")}
    whole = pa.table(columns | {"headers": _lists(batch.column("headers")), "timestamp_ms": times})
    for start, end in zip(starts, [*starts[1:], len(batch)], strict=True):
        table = whole.slice(start, end - start)
        behind = table.column("offset")[-1].as_py() + 1
        yield PartitionTable(batch.column("topic")[start].as_py(), int(numbers[start]), table, behind, -1, -1, -1)


def _lists(headers: Any) -> Any:
    """As consumers give them: Spark has null where a record has none."""
    if not headers.null_count:
        return headers
    found: Any = pc.if_else(headers.is_null(), pa.scalar([], headers.type), headers)
    return found
