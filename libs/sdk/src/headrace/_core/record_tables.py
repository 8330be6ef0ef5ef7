"""
From decoded batches to one Arrow table: keys and values of columnar batches are not copied.

Called by the shells of ``poll_table``, ``poll_batches`` and ``RangeReader``. pyarrow and numpy are loaded by the first
call. Columns that nobody wants are not made.
"""

from __future__ import annotations

from bisect import bisect_left
from enum import Enum
from functools import lru_cache, partial
from itertools import chain, groupby
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from headrace_common.core.ids import TopicPartition

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

    from headrace_common.core.batch import DecodedBatch

FEW: Final = 32
"""The records of batches of fewer are put together."""

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
PARTITION_COLUMNS: Final = TABLE_COLUMNS[2:]
"""Of a table whose rows are all of one partition."""
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


class _Part(NamedTuple):
    """Rows of one batch."""

    tp: TopicPartition
    batch: DecodedBatch
    first: int
    taken: int


class TableParts:
    """
    Gathers the batches of one table. Large columns stay as they are, as chunks of the table. What is alike in many
    batches (no keys, no headers, one timestamp, offsets without a hole) is made once for all of them, and the records
    of small ones are put together: a chunk costs as much as a hundred records.
    """

    def __init__(self, names: tuple[str, ...] = TABLE_COLUMNS) -> None:
        self._names = names
        self._parts: list[_Part] = []
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
        if taken:
            self._parts.append(_Part(tp, batch, first, taken))
            self.rows += taken
        return batch.header.next_offset if first + taken == end else _offset_of(batch, first + taken - 1) + 1

    def last_bytes(self) -> int:
        """Of the keys and values that were added last, as they are when they are not compressed."""
        if not self._parts:
            return 0
        part = self._parts[-1]
        names = ("key", "value") if part.batch.has_keys else ("value",)
        return sum(_whole(name, part).nbytes for name in names)

    def table(self) -> pa.Table:
        """All that was added."""
        import pyarrow as pa

        schema = table_schema(self._names)
        if not self._parts:
            return schema.empty_table()
        chunked: Any = pa.chunked_array  # its stubs know no type that is only known at run time
        columns: list[Any] = []
        for name, kind in zip(self._names, schema.types, strict=True):
            if name in _OF_BATCHES:
                columns.append(chunked(_chunks(name, kind, self._parts), type=kind))
            elif name == "topic":
                columns.append(_topics(self._parts))
            elif name == "partition":
                columns.append(pa.array(_repeat([(part.tp.partition, part.taken) for part in self._parts], "i4")))
            else:
                types = [(part.batch.header.attributes >> 3 & 1, part.taken) for part in self._parts]
                columns.append(pa.array(_repeat(types, "i4")))
        return pa.Table.from_arrays(columns, schema=schema)


class _Way(Enum):
    """How the rows of a batch come into a column."""

    ALIKE = "with those of other batches, from what they have in common"
    LISTED = "with those of other small batches, one by one"
    WHOLE = "as they are in the batch"


def _way(name: str, part: _Part) -> _Way:
    batch = part.batch
    match name:
        case "offset":
            alike = batch.header.dense
        case "timestamp_ms":
            alike = batch.timestamps_equal
        case "key":
            alike = not batch.has_keys
        case "headers":
            alike = not batch.has_headers
        case _:
            alike = False
    if alike:
        return _Way.ALIKE
    return _Way.LISTED if batch.record_count < FEW else _Way.WHOLE


def _chunks(name: str, kind: pa.DataType, parts: list[_Part]) -> list[pa.Array[Any]]:
    """One column, in the order of the parts."""
    import pyarrow as pa

    made: list[pa.Array[Any]] = []
    for way, those in groupby(parts, partial(_way, name)):
        if way is _Way.ALIKE:
            made.append(_alike(name, list(those)))
        elif way is _Way.LISTED:
            rows = chain.from_iterable(_list_rows(name, part) for part in those)
            made.append(pa.array(list(rows), kind))
        else:
            made.extend(_whole(name, part) for part in those)
    return made


def _whole(name: str, part: _Part) -> pa.Array[Any]:
    column = part.batch.arrow_column(name)
    return column if part.taken == len(column) else column.slice(part.first, part.taken)


def _alike(name: str, parts: list[_Part]) -> pa.Array[Any]:
    import pyarrow as pa

    from headrace_common.core.batch.arrow_schema import no_headers

    rows = sum(part.taken for part in parts)
    made: pa.Array[Any]
    match name:
        case "offset":
            made = pa.array(_offsets(parts, rows))
        case "timestamp_ms":
            made = pa.array(_repeat([(part.batch.one_timestamp, part.taken) for part in parts], "i8"))
        case "key":
            made = pa.nulls(rows, pa.binary())
        case _:
            assert name == "headers", "values are never alike"
            made = no_headers(rows)
    return made


def _offsets(parts: list[_Part], rows: int) -> np.ndarray[Any, Any]:
    """Of batches without holes: how far they are ahead of the row, run by run, and the rows."""
    import numpy as np

    ahead: list[tuple[int, int]] = []
    row = 0
    for part in parts:
        ahead.append((part.batch.header.base_offset + part.first - row, part.taken))
        row += part.taken
    offsets: np.ndarray[Any, Any] = _repeat(ahead, "i8")
    offsets += np.arange(rows, dtype=np.int64)
    return offsets


def _topics(parts: list[_Part]) -> pa.Array[Any]:
    import pyarrow as pa

    names: dict[str, int] = {}
    codes = [(names.setdefault(part.tp.topic, len(names)), part.taken) for part in parts]
    return pa.DictionaryArray.from_arrays(_repeat(codes, "i4"), pa.array(list(names), pa.string()))


def _repeat(runs: list[tuple[int, int]], kind: str) -> np.ndarray[Any, Any]:
    """Each number as often as it says."""
    import numpy as np

    numbers, counts = zip(*runs, strict=True)
    if len(set(numbers)) == 1:
        return np.full(sum(counts), numbers[0], dtype=kind)
    return np.repeat(np.array(numbers, dtype=kind), counts)


def _list_rows(name: str, part: _Part) -> list[Any]:
    batch = part.batch
    match name:
        case "offset":
            rows: list[Any] = batch.offsets()
        case "timestamp_ms":
            rows = batch.timestamps()
        case "key":
            rows = batch.keys()
        case "value":
            rows = batch.values()
        case _:
            rows = batch.headers()
    return rows[part.first : part.first + part.taken]


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
