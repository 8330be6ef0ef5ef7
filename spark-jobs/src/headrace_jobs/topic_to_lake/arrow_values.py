"""
Values that are streams of Arrow's IPC format, each a schema and batches of rows, as rows of Spark.

The loop here is over records, each of which holds many rows; their columns are never taken apart. A value that cannot
be read, or does not fit the schema, is one row with the reason. Called by ``transform``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import IntegerType, StringType, StructField, StructType

from headrace_jobs.json_values import FIELDS, NO_VALUE, REASON, nullable

ROW: Final = "_row"
"""The number of a row within its record, from 0; null in bad rows."""
ROWS_AT_ONCE: Final = 65_536
"""Rows that are gathered before Spark gets them."""
REPEATED_BYTES_MAX: Final = 1 << 30
"""Of keys and headers, which each row of a record has; an array of Arrow holds twice as much."""
_SOURCE: Final = ("key", "value", "topic", "partition", "offset", "timestamp")


def with_decoded_fields(records: DataFrame, schema: StructType, *, headers: bool = False) -> DataFrame:
    """
    The columns of ``records`` again for each row that a value holds, with ``_fields``, ``_row`` and ``_reason``.

    Args:
        schema: columns by name; others of the values are left out, missing ones are null where they may be.
    """
    names = (*_SOURCE, *(("headers",) if headers else ()))
    source = records.select(*names)
    added = [
        StructField(FIELDS, nullable(schema)),
        StructField(ROW, IntegerType()),
        StructField(REASON, StringType()),
    ]
    wanted = StructType([*source.schema.fields, *added])
    required = frozenset(each.name for each in schema.fields if not each.nullable)
    return source.mapInArrow(decoder(to_arrow_schema(wanted, timezone="UTC"), required), wanted)


def decoder(
    target: pa.Schema, required: frozenset[str]
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function that Spark's workers run: batches of records to batches of ``target``."""
    fields = pa.schema(list(target.field(FIELDS).type))

    def decode(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield from _rows(batch, target, fields, required)

    return decode


@dataclass(slots=True)
class _Gathered:
    """Rows that wait to go on, as parts of equal columns."""

    tables: list[pa.Table]
    counts: list[int]
    reasons: list[str | None]
    first: int
    """The position of the first of these records in its batch."""


def _rows(
    batch: pa.RecordBatch, target: pa.Schema, fields: pa.Schema, required: frozenset[str]
) -> Iterator[pa.RecordBatch]:
    values = batch.column(batch.schema.names.index("value"))
    gathered = _Gathered([], [], [], 0)
    rows = 0
    for position, value in enumerate(values):
        table, reason = _decode(value, fields, required)
        gathered.tables.append(table)
        gathered.counts.append(len(table))
        gathered.reasons.append(reason)
        rows += len(table)
        if rows >= ROWS_AT_ONCE:
            yield from _join(batch, gathered, target)
            gathered, rows = _Gathered([], [], [], position + 1), 0
    if gathered.counts:
        yield from _join(batch, gathered, target)


def _decode(value: Any, fields: pa.Schema, required: frozenset[str]) -> tuple[pa.Table, str | None]:
    """The rows of one value, or one row of nulls and the reason."""
    if not value.is_valid:
        return _nulls(fields), NO_VALUE
    try:
        with pa.ipc.open_stream(value.as_buffer()) as stream:
            found = stream.read_all()
        found.validate(full=True)
        return _fit(found, fields, required), None
    except (pa.ArrowException, OSError, ValueError, UnicodeDecodeError) as error:
        return _nulls(fields), f"the value is not a stream of Arrow that fits: {str(error).splitlines()[0][:200]}"


def _fit(found: pa.Table, fields: pa.Schema, required: frozenset[str]) -> pa.Table:
    columns: list[Any] = []
    for field in fields:
        places = found.schema.get_all_field_indices(field.name)
        if len(places) > 1:
            raise ValueError(f"column {field.name} stands there twice")
        column: Any = found.column(places[0]) if places else pa.nulls(len(found), field.type)
        if field.name in required and column.null_count:
            raise ValueError(f"column {field.name} is missing or has nulls")
        columns.append(column if column.type == field.type else column.cast(field.type))
    return pa.table(columns, schema=fields)


def _nulls(fields: pa.Schema) -> pa.Table:
    return pa.table([pa.nulls(1, field.type) for field in fields], schema=fields)


def _join(batch: pa.RecordBatch, gathered: _Gathered, target: pa.Schema) -> Iterator[pa.RecordBatch]:
    counts = np.array(gathered.counts, dtype=np.int64)
    positions = np.repeat(np.arange(gathered.first, gathered.first + len(counts)), counts)
    bad = np.repeat(np.array([reason is not None for reason in gathered.reasons]), counts)
    numbers = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
    table = pa.concat_tables(gathered.tables).combine_chunks()
    added = [
        pa.StructArray.from_arrays(
            [_whole(column) for column in table.columns], fields=list(table.schema), mask=pa.array(bad)
        ),
        pa.array(numbers, pa.int32(), mask=bad),
        pa.array(np.repeat(np.array(gathered.reasons, dtype=object), counts), pa.string()),
    ]
    step = _rows_at_once(batch)
    for first in range(0, len(positions), step):
        part = slice(first, first + step)
        arrays = _source(batch, target, positions[part], numbers[part] > 0)
        yield pa.RecordBatch.from_arrays([*arrays, *(each.slice(first, step) for each in added)], schema=target)


def _rows_at_once(batch: pa.RecordBatch) -> int:
    """So many that keys and headers stay below what an array can hold, even if one record has them all."""
    repeated = sum(batch.column(n).nbytes for n, name in enumerate(batch.schema.names) if name != "value")
    return max(1, REPEATED_BYTES_MAX // max(repeated, 1))


def _source(batch: pa.RecordBatch, target: pa.Schema, positions: Any, again: Any) -> list[Any]:
    """What rows have of their record; the bytes of the value stand in its first row only."""
    every: Any = pa.array(positions)
    first: Any = pa.array(positions, mask=again)
    taken = [
        column.take(first if name == "value" else every)
        for name, column in zip(batch.schema.names, batch.columns, strict=True)
    ]
    kinds = [field.type for field in target][: len(taken)]
    return [column if column.type == kind else column.cast(kind) for column, kind in zip(taken, kinds, strict=True)]


def _whole(column: Any) -> Any:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
