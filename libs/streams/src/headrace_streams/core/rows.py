"""
The batches that pass through a task: an Arrow table of the user's columns and these system columns.

=============  ==========================  ==========================================================================
``_key``       binary, plain or coded      the key of the row, as it would stand in a record
``_time``      timestamp of ms, UTC        event time
``_watermark`` int64, ms                   the task's watermark when the row came, the row itself counted
``_row``       int32                       its place in the batch that was fed; below 0 where it stems from no single
                                           record: -2 - place of the one that brought it about, -1 where none did
=============  ==========================  ==========================================================================

Columns whose names begin with an underscore belong to the system.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Union

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

KEY: Final = "_key"
TIME: Final = "_time"
WATERMARK: Final = "_watermark"
ROW: Final = "_row"
RECORD: Final = "_record"
"""JSON of a record that a function made without a schema; then there is no column of the user's."""
SYSTEM: Final = (KEY, TIME, WATERMARK, ROW)
TIMESTAMP: Final = pa.timestamp("ms", "UTC")
KEYS: Final = pa.dictionary(pa.int32(), pa.binary())
NO_TIME: Final = -(2**62)
"""A watermark before every row: nothing came yet."""

Numbers = np.ndarray[Any, np.dtype[Any]]
Column = Union["pa.Array[Any]", "pa.ChunkedArray[Any]"]


def user_columns(names: Iterable[str]) -> list[str]:
    """Those of ``names`` that are the user's."""
    return [name for name in names if not name.startswith("_")]


def system_columns(names: Iterable[str]) -> list[str]:
    """The others."""
    return [name for name in names if name.startswith("_")]


def user_schema(schema: pa.Schema) -> pa.Schema:
    """Without system columns."""
    return pa.schema([field for field in schema if not field.name.startswith("_")])


def system_schema() -> list[pa.Field[Any]]:
    """The system columns of an empty batch."""
    return [
        pa.field(KEY, pa.binary()),
        pa.field(TIME, TIMESTAMP),
        pa.field(WATERMARK, pa.int64()),
        pa.field(ROW, pa.int32()),
    ]


def empty(schema: pa.Schema) -> pa.Table:
    """No rows of these user columns."""
    return pa.schema([*schema, *system_schema()]).empty_table()


def numbers(column: Column) -> Numbers:
    """A column without nulls as numpy; times as ms."""
    array = whole(column)
    if pa.types.is_timestamp(array.type):
        array = array.view(pa.int64())
    found: Numbers = array.to_numpy(zero_copy_only=False)
    return found


def typed(column: Any, kind: pa.DataType) -> Any:
    """As this type. Arrow's cast costs several microseconds where there is nothing to do, too."""
    return column if column.type == kind else column.cast(kind)


def with_system(user: pa.Table, key: Column, time: Numbers, watermark: Numbers, row: Numbers) -> pa.Table:
    """User columns and system columns, of equal length."""
    names = [*user.column_names, *SYSTEM]
    times: Any = pa.array(time, pa.int64()).view(TIMESTAMP)
    columns = [*user.columns, key, times, pa.array(watermark, pa.int64()), pa.array(row, pa.int32())]
    return pa.Table.from_arrays(columns, names=names)


def brought_about(rows: Numbers) -> Numbers:
    """The column ``_row`` of what rows bring about without being its only origin."""
    return np.where(rows >= 0, -2 - rows, rows)


def turns(rows: Numbers) -> Numbers:
    """The place of the record that each row stems from or was brought about by; -1: none."""
    return np.where(rows < -1, -2 - rows, rows)


def last_turns(rows: Numbers) -> Numbers:
    """The same; what no record brought about comes with the end of the batch."""
    turn = turns(rows)
    return np.where(turn < 0, np.iinfo(turn.dtype).max, turn)


def replace(rows: pa.Table, name: str, column: Column) -> pa.Table:
    """With another column of that name, at the same place, or at the end."""
    place = rows.schema.get_field_index(name)
    if place < 0:
        return rows.append_column(name, column)
    return rows.set_column(place, name, column)


def take(rows: Any, places: Numbers) -> Any:
    """The rows of a table, or the values of a column, at these places."""
    return rows.take(pa.array(places))


def whole(column: Any) -> Any:
    """A column as one array; dictionaries of several chunks become one."""
    if not isinstance(column, pa.ChunkedArray):
        return column
    if column.num_chunks == 1:
        return column.chunk(0)
    if not column.num_chunks:
        return pa.array([], column.type)
    return pa.concat_arrays(column.unify_dictionaries().chunks)


@dataclass(frozen=True, slots=True)
class Coded:
    """A key column as numbers: ``values[codes[i]]`` is the key of row i; -1 is a null key."""

    codes: Numbers
    values: list[bytes]


def coded(column: Column) -> Coded:
    """
    Number the keys of a batch.

    The values may name keys that no row has any more (a filter leaves the dictionary as it was).
    """
    array = whole(column)
    if not isinstance(array, pa.DictionaryArray):
        array = array.dictionary_encode()
    indices: Any = array.indices
    if indices.null_count:
        indices = pc.fill_null(indices, -1)
    return Coded(indices.to_numpy(zero_copy_only=False), array.dictionary.to_pylist())


def distinct(keys: Coded) -> tuple[list[bytes], Numbers]:
    """The keys that rows have, each once, and which of them is that of each row: -1 where it is null."""
    used = np.zeros(len(keys.values) + 1, bool)
    used[keys.codes] = True
    places = np.append(np.cumsum(used[:-1]) - 1, -1)
    return [keys.values[code] for code in np.flatnonzero(used[:-1]).tolist()], places[keys.codes]


def plain_keys(column: Column) -> Column:
    """The key column as binary, whatever its form."""
    return column.cast(pa.binary()) if pa.types.is_dictionary(column.type) else column


def concat(tables: Sequence[pa.Table]) -> pa.Table:
    """One after another; all have the same columns."""
    if len(tables) == 1:
        return tables[0]
    keyed = [t if t.schema.field(KEY).type == KEYS else replace(t, KEY, t[KEY].cast(KEYS)) for t in tables]
    return pa.concat_tables(keyed).unify_dictionaries().combine_chunks()


def ordered(tables: Sequence[pa.Table]) -> pa.Table:
    """Rows of several tables in the order of the records that they stem from; one table as it is."""
    if len(tables) == 1:
        return tables[0]
    rows = concat(tables)
    found: pa.Table = take(rows, np.argsort(last_turns(numbers(rows[ROW])), kind="stable"))
    return found


def to_arrow(rows: pa.Table) -> bytes:
    """Rows with their columns' names and types, as an Arrow stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    return sink.getvalue().to_pybytes()


def from_arrow(stream: bytes | pa.Buffer) -> pa.Table:
    """
    The inverse.

    Raises:
        pa.ArrowException, OSError: this is no such stream.
    """
    return pa.ipc.open_stream(stream).read_all()
