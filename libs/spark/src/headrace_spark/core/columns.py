"""
The columns that Spark gets, and how the SDK's tables become them: whole columns at a time, never a record.

Spark looks at the first batch only, and takes what comes after it for the same, so every batch has exactly the schema
that was promised. Called by the readers: ``check_schema`` where a query is planned, the rest in the tasks.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from headrace_common.core.errors import InvalidConfig

BATCH_BYTES: Final = 2 << 20
"""What a batch for Spark aims at, in bytes of its columns."""
BATCH_BYTES_MAX: Final = 4 << 20
"""Larger ones are cut."""

SPARK_TYPES: Final[Mapping[str, str]] = {
    "key": "binary",
    "value": "binary",
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp",
    "timestampType": "int",
    "headers": "array<struct<key:string,value:binary>>",
}
"""All columns in their order, with Spark's names of their types."""
HEADERS: Final = "headers"
_NEVER_NULL: Final = frozenset({"topic", "partition", "offset", "timestamp", "timestampType"})
_MICROS_OF_MS: Final = 1_000
_MS_MAX: Final = (2**63 - 1) // _MICROS_OF_MS


@dataclass(frozen=True, slots=True)
class Column:
    """One column of the result."""

    name: str
    """As the user wrote it."""
    source: str
    """One of ``SPARK_TYPES``."""
    nullable: bool = True


@dataclass(frozen=True, slots=True)
class FieldGiven:
    """One field of a user's schema, as plain data: a ``StructField``'s name, ``dataType.simpleString()``, nullable."""

    name: str
    type_name: str
    nullable: bool = True


def default_columns(*, headers: bool) -> tuple[Column, ...]:
    """What a query without a schema of its own gets."""
    return tuple(Column(name, name) for name in SPARK_TYPES if headers or name != HEADERS)


def ddl(columns: Iterable[Column]) -> str:
    """The same as Spark's text of a schema."""
    return ", ".join(f"{column.name} {SPARK_TYPES[column.source]}" for column in columns)


def check_schema(given: Sequence[FieldGiven]) -> tuple[Column, ...]:
    """
    The columns of a user's schema: some of ours, in any order.

    Raises:
        InvalidConfig: all that is wrong with it.
    """
    names = {name.lower(): name for name in SPARK_TYPES}
    wrong: list[str] = [] if given else ["a schema needs at least one column"]
    columns: list[Column] = []
    for each in given:
        source = names.get(each.name.lower())
        if source is None:
            near = difflib.get_close_matches(each.name.lower(), names, n=1)
            hint = f"; did you mean {names[near[0]]}?" if near else ""
            wrong.append(f"there is no column {each.name[:100]!r}{hint} Columns: {', '.join(SPARK_TYPES)}")
        elif each.type_name.replace(" ", "").lower() != SPARK_TYPES[source]:
            wrong.append(f"column {source} is of type {SPARK_TYPES[source]}, not {each.type_name[:100]}")
        elif not each.nullable and source not in _NEVER_NULL:
            wrong.append(f"column {source} may be null; declare it nullable")
        elif any(column.source == source for column in columns):
            wrong.append(f"column {source} stands in the schema twice")
        else:
            columns.append(Column(each.name, source, each.nullable))
    if wrong:
        raise InvalidConfig("; ".join(dict.fromkeys(wrong)))
    return tuple(columns)


@cache
def arrow_types() -> Mapping[str, pa.DataType]:
    """What Spark expects for each column: no dictionaries, no large types, microseconds in UTC."""
    pair = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
    return {
        "key": pa.binary(),
        "value": pa.binary(),
        "topic": pa.string(),
        "partition": pa.int32(),
        "offset": pa.int64(),
        "timestamp": pa.timestamp("us", tz="UTC"),
        "timestampType": pa.int32(),
        "headers": pa.list_(pa.field("element", pair)),
    }


def arrow_schema(columns: Sequence[Column]) -> pa.Schema:
    types = arrow_types()
    return pa.schema([pa.field(column.name, types[column.source], nullable=column.nullable) for column in columns])


def batches(table: pa.Table, columns: Sequence[Column]) -> Iterator[pa.RecordBatch]:
    """
    The rows of a table of the SDK as batches for Spark, 1 to 4 MB each where there is so much. Keys and values are
    copied only to put small batches together.

    Args:
        table: as ``RangeReader`` gives it, with ``table_columns(columns)`` or more.
    """
    schema = arrow_schema(columns)
    for part in _parts(_select(table, columns)):
        arrays = [_column(part, column.source) for column in columns]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


_SOURCES: Final = {"timestamp": "timestamp_ms", "timestampType": "timestamp_type"}


def table_columns(columns: Sequence[Column]) -> tuple[str, ...]:
    """What these columns need of the SDK's tables."""
    return tuple(_SOURCES.get(column.source, column.source) for column in columns)


def _select(table: pa.Table, columns: Sequence[Column]) -> pa.Table:
    return table.select(table_columns(columns))


def _parts(table: pa.Table) -> Iterator[pa.RecordBatch]:
    """Batches of about the right size: small chunks together, large ones cut."""
    waiting: list[pa.RecordBatch] = []
    size = 0
    for chunk in table.to_batches():
        waiting.append(chunk)
        size += chunk.nbytes
        if size >= BATCH_BYTES:
            yield from _cut(_together(waiting), size)
            waiting, size = [], 0
    if size or any(len(chunk) for chunk in waiting):
        yield from _cut(_together(waiting), size)


def _together(chunks: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(chunks) == 1:
        return chunks[0]
    together: pa.RecordBatch = pa.Table.from_batches(chunks).combine_chunks().to_batches()[0]
    return together


def _cut(batch: pa.RecordBatch, size: int) -> Iterator[pa.RecordBatch]:
    if not len(batch):
        return
    pieces = 1 if size <= BATCH_BYTES_MAX else -(-size // BATCH_BYTES)
    step = max(1, -(-len(batch) // pieces))
    for first in range(0, len(batch), step):
        yield batch.slice(first, step)


def _column(part: pa.RecordBatch, source: str) -> Any:
    kind = arrow_types()[source]
    if source == "timestamp":
        return _micros(part.column("timestamp_ms"))
    column = part.column(_SOURCES.get(source, source))
    if source == HEADERS:
        column = _without_headers_null(column)
    return column if column.type == kind else column.cast(kind)


def _without_headers_null(headers: Any) -> Any:
    """As Spark's Kafka source has it: a record without headers has null there, and not an empty list."""
    lengths: Any = pc.list_value_length(headers)
    none: Any = pa.scalar(0, lengths.type)
    some: Any = pc.greater(lengths, none)
    if some.true_count == len(headers):
        return headers
    if not some.true_count:
        return pa.nulls(len(headers), headers.type)
    nothing: Any = pa.scalar(None, headers.type)
    nulled: Any = pc.if_else(some, headers, nothing)
    return nulled


def _micros(milliseconds: Any) -> Any:
    """Spark's timestamps are microseconds; times that these cannot say become the nearest that they can."""
    found: Any = pc.min_max(milliseconds)
    low, high = found["min"].as_py(), found["max"].as_py()
    if low is not None and (low < -_MS_MAX or high > _MS_MAX):
        clipped: Any = pc.min_element_wise(pc.max_element_wise(milliseconds, -_MS_MAX), _MS_MAX)
        milliseconds = clipped
    micros: Any = pc.multiply(milliseconds, _MICROS_OF_MS)
    return micros.cast(arrow_types()["timestamp"])
