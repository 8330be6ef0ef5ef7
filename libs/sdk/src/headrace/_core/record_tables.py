"""
From decoded batches to one Arrow table: keys and values of columnar batches are not copied.

Called by the shells of ``poll_table`` and ``RangeReader``. pyarrow and numpy are loaded by the first call. Columns that
nobody wants are not made.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from headrace_common.core.ids import TopicPartition

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

    from headrace_common.core.batch import DecodedBatch

FEW: Final = 32
"""Batches of fewer records are put together."""

TABLE_COLUMNS: Final = (
    "topic",
    "partition",
    "offset",
    "timestamp_ms",
    "key",
    "value",
    "headers",
    "timestamp_type",
)
_OF_BATCHES: Final = frozenset({"offset", "timestamp_ms", "key", "value", "headers"})


@lru_cache(maxsize=16)
def table_schema(names: tuple[str, ...] = TABLE_COLUMNS) -> pa.Schema:
    """
    ``topic`` (dictionary of string), ``partition`` (int32), ``offset`` and ``timestamp_ms`` (int64), ``key`` and
    ``value`` (binary), ``headers`` (list<struct<key: string, value: binary>>), ``timestamp_type`` (int32: 0 the
    writer's, 1 the broker's); or those of them that are named, in that order.
    """
    import pyarrow as pa

    from headrace_common.core.batch.arrow_schema import headers_type

    fields: dict[str, Any] = {
        "topic": pa.field("topic", pa.dictionary(pa.int32(), pa.string()), nullable=False),
        "partition": pa.field("partition", pa.int32(), nullable=False),
        "offset": pa.field("offset", pa.int64()),
        "timestamp_ms": pa.field("timestamp_ms", pa.int64()),
        "key": pa.field("key", pa.binary()),
        "value": pa.field("value", pa.binary()),
        "headers": pa.field("headers", headers_type()),
        "timestamp_type": pa.field("timestamp_type", pa.int32(), nullable=False),
    }
    return pa.schema([fields[name] for name in names])


class _Rows(NamedTuple):
    """Rows in a row that have these in common."""

    tp: TopicPartition
    timestamp_type: int
    rows: int


class TableParts:
    """
    Gathers the batches of one table. Large ones stay as they are, as chunks of the table; the records of small ones
    are put together into chunks, for a chunk costs as much as a hundred records.
    """

    def __init__(self, names: tuple[str, ...] = TABLE_COLUMNS) -> None:
        self._names = names
        self._of_batches = tuple(name for name in names if name in _OF_BATCHES)
        self._topics: dict[str, int] = {}
        self._runs: list[_Rows] = []
        """In the order of the rows."""
        self._chunks: list[list[pa.Array[Any]]] = []
        """The columns ``_of_batches`` of each."""
        self._few = _FewRows(self._of_batches)
        self.rows = 0

    def add(
        self, tp: TopicPartition, batch: DecodedBatch, position: int, rows_max: int, stop: int | None = None
    ) -> int:
        """
        Add up to ``rows_max`` records from ``position`` on; return the position after them. From ``stop`` on none is
        wanted: with the last before it the whole batch is done.
        """
        first, end = _rows_within(batch, position, stop)
        taken = min(end - first, rows_max)
        if taken and batch.record_count < FEW:
            self._few.add(batch, first, first + taken)
        elif taken:
            self._end_few()
            self._add_chunk(batch, first, taken)
        if taken:
            self._topics.setdefault(tp.topic, len(self._topics))
            self._runs.append(_Rows(tp, batch.header.attributes >> 3 & 1, taken))
            self.rows += taken
        return batch.header.next_offset if first + taken == end else _offset_of(batch, first + taken - 1) + 1

    def _add_chunk(self, batch: DecodedBatch, first: int, taken: int) -> None:
        columns = [batch.arrow_column(name) for name in self._of_batches]
        if taken < batch.record_count:
            columns = [column.slice(first, taken) for column in columns]
        self._chunks.append(columns)

    def _end_few(self) -> None:
        if self._few.count:
            self._chunks.append(self._few.chunk())
            self._few = _FewRows(self._of_batches)

    def table(self) -> pa.Table:
        """All that was added; what is the same for many rows is made once for the table."""
        import pyarrow as pa

        self._end_few()
        schema = table_schema(self._names)
        if not self._chunks:
            return schema.empty_table()
        counts = [run.rows for run in self._runs]
        columns: list[Any] = []
        for name, kind in zip(self._names, schema.types, strict=True):
            if name in _OF_BATCHES:
                at = self._of_batches.index(name)
                chunked: Any = pa.chunked_array  # its stubs know no type that is only known at run time
                columns.append(chunked([chunk[at] for chunk in self._chunks], type=kind))
            elif name == "topic":
                codes = _repeated([self._topics[run.tp.topic] for run in self._runs], counts)
                columns.append(pa.DictionaryArray.from_arrays(codes, pa.array(list(self._topics), pa.string())))
            elif name == "partition":
                columns.append(pa.array(_repeated([run.tp.partition for run in self._runs], counts)))
            else:
                columns.append(pa.array(_repeated([run.timestamp_type for run in self._runs], counts)))
        return pa.Table.from_arrays(columns, schema=schema)


class _FewRows:
    """Records of small batches, as lists."""

    def __init__(self, names: Sequence[str]) -> None:
        self._columns: dict[str, list[Any]] = {name: [] for name in names}
        self._any_headers = False
        self.count = 0

    def add(self, batch: DecodedBatch, first: int, end: int) -> None:
        """These rows of a batch."""
        self.count += end - first
        self._any_headers = self._any_headers or batch.has_headers
        for name, column in self._columns.items():
            column.extend(_listed(batch, name)[first:end])

    def chunk(self) -> list[pa.Array[Any]]:
        """All of them."""
        import pyarrow as pa

        from headrace_common.core.batch.arrow_schema import no_headers

        kinds = table_schema()
        return [
            no_headers(self.count)
            if name == "headers" and not self._any_headers
            else pa.array(column, kinds.field(name).type)
            for name, column in self._columns.items()
        ]


def _listed(batch: DecodedBatch, name: str) -> list[Any]:
    match name:
        case "offset":
            return batch.offsets()
        case "timestamp_ms":
            return batch.timestamps()
        case "key":
            return batch.keys()
        case "value":
            return batch.values()
    return batch.headers()


def _rows_within(batch: DecodedBatch, position: int, stop: int | None) -> tuple[int, int]:
    """The rows from ``position`` on and before ``stop``: the first, and the one behind the last."""
    header = batch.header
    base, count = header.base_offset, header.record_count
    whole = position <= base and (stop is None or stop >= header.next_offset)
    if whole:
        return 0, count
    if header.dense:
        return max(0, position - base), count if stop is None else max(0, min(count, stop - base))
    offsets = batch.offsets()
    return bisect_left(offsets, position), count if stop is None else bisect_left(offsets, stop)


def _offset_of(batch: DecodedBatch, row: int) -> int:
    header = batch.header
    return header.base_offset + row if header.dense else batch.offsets()[row]


def _repeated(each: list[int], counts: list[int]) -> np.ndarray[Any, Any]:
    import numpy as np

    return np.repeat(np.array(each, dtype=np.int32), counts)
