"""
From decoded batches to one Arrow table: keys and values of columnar batches are not copied.

Called by the consumer shell for ``poll_table``. pyarrow and numpy are loaded by the first call.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from headrace_common.core.ids import TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace_common.core.batch import DecodedBatch


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
    """Gathers the record batches of one table, and the columns that are the same in each row of a partition."""

    def __init__(self) -> None:
        self._topics: dict[str, int] = {}
        self._parts: list[tuple[TopicPartition, pa.RecordBatch]] = []
        self.rows = 0

    def add(self, tp: TopicPartition, batch: DecodedBatch, position: int, rows_max: int) -> int:
        """Add up to ``rows_max`` records from ``position`` on; return the position after them."""
        rows = batch.to_arrow()
        header = batch.header
        first = _rows_below(rows, position) if position > header.base_offset else 0
        taken = min(len(rows) - first, rows_max)
        if first or taken < len(rows):
            rows = rows.slice(first, taken)
        if taken:
            self._topics.setdefault(tp.topic, len(self._topics))
            self._parts.append((tp, rows))
        self.rows += taken
        if first + taken == header.record_count:
            return header.next_offset
        return int(rows.column("offset")[-1].as_py()) + 1

    def table(self) -> pa.Table:
        """All that was added; columns that say the same for a whole batch are made once for the table."""
        import numpy as np
        import pyarrow as pa

        schema = table_schema()
        if not self._parts:
            return schema.empty_table()
        counts = [len(rows) for _, rows in self._parts]
        topics = np.repeat(np.array([self._topics[tp.topic] for tp, _ in self._parts], dtype=np.int32), counts)
        numbers = np.repeat(np.array([tp.partition for tp, _ in self._parts], dtype=np.int32), counts)
        names = pa.array(list(self._topics), pa.string())
        columns: list[Any] = [pa.DictionaryArray.from_arrays(topics, names), pa.array(numbers)]
        rest: list[Any] = [rows.columns for _, rows in self._parts]
        chunked: Any = pa.chunked_array  # its stubs know no type that is only known at run time
        kinds = schema.types[2:]
        columns.extend(
            chunked(list(column), type=kind) for column, kind in zip(zip(*rest, strict=True), kinds, strict=True)
        )
        return pa.Table.from_arrays(columns, schema=schema)


def _rows_below(rows: pa.RecordBatch, position: int) -> int:
    import numpy as np

    return int(np.searchsorted(rows.column("offset").to_numpy(), position))
