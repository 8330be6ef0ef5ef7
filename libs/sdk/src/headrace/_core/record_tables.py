"""
From decoded batches to one Arrow table: keys and values of columnar batches are not copied.

Called by the consumer shell for ``poll_table``. pyarrow and numpy are loaded by the first call.
"""

from __future__ import annotations

from bisect import bisect_left
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from headrace_common.core.ids import TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace_common.core.batch import DecodedBatch

FEW: Final = 32
"""Batches of fewer records are put together."""


@lru_cache(maxsize=1)
def table_schema() -> pa.Schema:
    """
    ``topic`` (dictionary of string), ``partition`` (int32), ``offset`` and ``timestamp_ms`` (int64), ``key`` and
    ``value`` (binary), ``headers`` (list<struct<key: string, value: binary>>).
    """
    import pyarrow as pa

    from headrace_common.core.batch.arrow_schema import headers_type

    return pa.schema(
        [
            pa.field("topic", pa.dictionary(pa.int32(), pa.string()), nullable=False),
            pa.field("partition", pa.int32(), nullable=False),
            pa.field("offset", pa.int64()),
            pa.field("timestamp_ms", pa.int64()),
            pa.field("key", pa.binary()),
            pa.field("value", pa.binary()),
            pa.field("headers", headers_type()),
        ]
    )


class TableParts:
    """
    Gathers the batches of one table. Large ones stay as they are, as chunks of the table; the records of small ones
    are put together into chunks, for a chunk costs as much as a hundred records.
    """

    def __init__(self) -> None:
        self._topics: dict[str, int] = {}
        self._runs: list[tuple[TopicPartition, int]] = []
        """Which partition, and how many rows of it, in the order of the rows."""
        self._chunks: list[pa.RecordBatch] = []
        self._few = _FewRows()
        self.rows = 0

    def add(self, tp: TopicPartition, batch: DecodedBatch, position: int, rows_max: int) -> int:
        """Add up to ``rows_max`` records from ``position`` on; return the position after them."""
        if batch.record_count < FEW:
            last, taken = self._few.add(batch, position, rows_max)
        else:
            self._end_few()
            last, taken = self._add_chunk(batch, position, rows_max)
        if taken:
            self._topics.setdefault(tp.topic, len(self._topics))
            self._runs.append((tp, taken))
            self.rows += taken
        return last

    def _add_chunk(self, batch: DecodedBatch, position: int, rows_max: int) -> tuple[int, int]:
        rows, header = batch.to_arrow(), batch.header
        first = _rows_below(rows, position) if position > header.base_offset else 0
        taken = min(len(rows) - first, rows_max)
        if first or taken < len(rows):
            rows = rows.slice(first, taken)
        if taken:
            self._chunks.append(rows)
        if first + taken == header.record_count:
            return header.next_offset, taken
        return int(rows.column("offset")[-1].as_py()) + 1, taken

    def _end_few(self) -> None:
        if self._few.offsets:
            self._chunks.append(self._few.chunk())
            self._few = _FewRows()

    def table(self) -> pa.Table:
        """All that was added; topics and partitions are made once for the table."""
        import numpy as np
        import pyarrow as pa

        self._end_few()
        schema = table_schema()
        if not self._chunks:
            return schema.empty_table()
        counts = [count for _, count in self._runs]
        topics = np.repeat(np.array([self._topics[tp.topic] for tp, _ in self._runs], dtype=np.int32), counts)
        numbers = np.repeat(np.array([tp.partition for tp, _ in self._runs], dtype=np.int32), counts)
        names = pa.array(list(self._topics), pa.string())
        columns: list[Any] = [pa.DictionaryArray.from_arrays(topics, names), pa.array(numbers)]
        rest: list[Any] = [rows.columns for rows in self._chunks]
        chunked: Any = pa.chunked_array  # its stubs know no type that is only known at run time
        kinds = schema.types[2:]
        columns.extend(
            chunked(list(column), type=kind) for column, kind in zip(zip(*rest, strict=True), kinds, strict=True)
        )
        return pa.Table.from_arrays(columns, schema=schema)


class _FewRows:
    """Records of small batches, as lists."""

    def __init__(self) -> None:
        self.offsets: list[int] = []
        self._timestamps: list[int] = []
        self._keys: list[bytes | None] = []
        self._values: list[bytes | None] = []
        self._headers: list[Any] = []
        self._any_headers = False

    def add(self, batch: DecodedBatch, position: int, rows_max: int) -> tuple[int, int]:
        """As ``TableParts.add``; also how many were taken."""
        header, offsets = batch.header, batch.offsets()
        first = bisect_left(offsets, position) if position > header.base_offset else 0
        end = min(len(offsets), first + rows_max)
        self.offsets += offsets[first:end]
        self._timestamps += batch.timestamps()[first:end]
        self._keys += batch.keys()[first:end]
        self._values += batch.values()[first:end]
        self._headers += batch.headers()[first:end]
        self._any_headers = self._any_headers or batch.has_headers
        return (header.next_offset if end == len(offsets) else offsets[end - 1] + 1), end - first

    def chunk(self) -> pa.RecordBatch:
        """All of them."""
        import pyarrow as pa

        from headrace_common.core.batch.arrow_schema import batch_schema, headers_type, no_headers

        headers = pa.array(self._headers, headers_type()) if self._any_headers else no_headers(len(self.offsets))
        columns: list[Any] = [
            pa.array(self.offsets, pa.int64()),
            pa.array(self._timestamps, pa.int64()),
            pa.array(self._keys, pa.binary()),
            pa.array(self._values, pa.binary()),
            headers,
        ]
        return pa.RecordBatch.from_arrays(columns, schema=batch_schema())


def _rows_below(rows: pa.RecordBatch, position: int) -> int:
    import numpy as np

    return int(np.searchsorted(rows.column("offset").to_numpy(), position))
