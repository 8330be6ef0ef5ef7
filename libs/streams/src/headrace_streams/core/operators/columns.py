"""Operators of columns that keep nothing: what a row becomes depends on that row."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import narwhals.stable.v2 as nw
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace_streams.core.changes import CHANGE, kept
from headrace_streams.core.expressions import Expressions
from headrace_streams.core.formats.keys import encode_keys
from headrace_streams.core.operators.base import Emitted, Failed, Operator
from headrace_streams.core.rows import (
    KEY,
    SYSTEM,
    TIME,
    TIMESTAMP,
    numbers,
    replace,
    system_columns,
    typed,
    user_columns,
    whole,
)


class Filter(Operator):
    """Rows for which a condition is true."""

    def __init__(self, condition: nw.Expr) -> None:
        self.condition = condition
        self._expressions = Expressions(condition)

    def feed(self, rows: pa.Table, port: int, failed: Failed) -> Iterable[Emitted]:
        stays: Any
        (stays,) = self._expressions.of(rows)
        if CHANGE not in rows.column_names:
            yield Emitted(rows.filter(stays))
            return
        yield Emitted(kept(rows, numbers(stays.fill_null(False))))


class Compute(Operator):
    """More columns, or others of the same names."""

    def __init__(self, columns: Mapping[str, nw.Expr]) -> None:
        self.columns = columns
        self._expressions = Expressions(*columns.values())

    def feed(self, rows: pa.Table, port: int, failed: Failed) -> Iterable[Emitted]:
        for name, column in zip(self.columns, self._expressions.of(rows), strict=True):
            rows = replace(rows, name, column)
        yield Emitted(rows)


class Select(Operator):
    """These columns only."""

    def __init__(self, columns: Mapping[str, nw.Expr]) -> None:
        self.columns = columns
        self._expressions = Expressions(*columns.values())

    def feed(self, rows: pa.Table, port: int, failed: Failed) -> Iterable[Emitted]:
        also = system_columns(rows.column_names)
        columns = [*self._expressions.of(rows), *(rows[name] for name in also)]
        yield Emitted(pa.Table.from_arrays(columns, names=[*self.columns, *also]))


class Rename(Operator):
    """Other names for columns."""

    def __init__(self, names: Mapping[str, str]) -> None:
        self.names = self._names = names

    def feed(self, rows: pa.Table, port: int, failed: Failed) -> Iterable[Emitted]:
        yield Emitted(rows.rename_columns([self._names.get(name, name) for name in rows.column_names]))


class DropNulls(Operator):
    """Rows that have a value in each of these columns."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = self._names = names

    def feed(self, rows: pa.Table, port: int, failed: Failed) -> Iterable[Emitted]:
        for name in self._names:
            if rows[name].null_count:
                rows = rows.filter(pc.is_valid(rows[name]))
        yield Emitted(rows)


class Explode(Operator):
    """One row for each element of a list; an empty list and null give none."""

    def __init__(self, name: str) -> None:
        self.name = self._name = name

    def feed(self, rows: pa.Table, port: int, failed: Failed) -> Iterable[Emitted]:
        column = whole(rows[self._name])
        spread = rows.drop_columns([self._name]).take(pc.list_parent_indices(column))
        place = rows.schema.get_field_index(self._name)
        yield Emitted(spread.add_column(place, self._name, pc.list_flatten(column)))


class MapBatches(Operator):
    """A function of the user's over tables; it must keep number and order of the rows."""

    def __init__(self, function: Callable[[pa.Table], pa.Table], schema: pa.Schema, what: str) -> None:
        self._function = function
        self._schema = schema
        self._what = what

    def feed(self, rows: pa.Table, port: int, failed: Failed) -> Iterable[Emitted]:
        given = rows.select(user_columns(rows.column_names))
        made = self._function(given)
        if not isinstance(made, pa.Table) or made.num_rows != rows.num_rows:
            have = f"{made.num_rows} rows" if isinstance(made, pa.Table) else f"{made!r:.60}"
            raise TypeError(f"{self._what} must return a pyarrow.Table of {rows.num_rows} rows, it returned {have}")
        self._check_columns(made.column_names)
        user = made.select(self._schema.names).cast(self._schema)
        columns = [*user.columns, *(rows[name] for name in SYSTEM)]
        yield Emitted(pa.Table.from_arrays(columns, names=[*user.column_names, *SYSTEM]))

    def _check_columns(self, came: list[str]) -> None:
        for name in self._schema.names:
            if came.count(name) != 1:
                wrong = "is there twice" if name in came else "is missing"
                raise TypeError(
                    f"{self._what} must return the columns of its schema: {name!r} {wrong}; it returned "
                    f"{', '.join(map(repr, came)) or 'none'}"
                )


class ForeachBatch(Operator):
    """A function of the user's is called with the rows; nothing comes of it here."""

    def __init__(self, function: Callable[[pa.Table], object]) -> None:
        self._function = function

    def feed(self, rows: pa.Table, port: int, failed: Failed) -> Iterable[Emitted]:
        if rows.num_rows:
            self._function(rows.select(user_columns(rows.column_names)))
        return ()


class KeyBy(Operator):
    """Another key, made of columns."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = self._names = names

    def feed(self, rows: pa.Table, port: int, failed: Failed) -> Iterable[Emitted]:
        yield Emitted(replace(rows, KEY, encode_keys([rows[name] for name in self._names], self._names)))


class NullKey(Exception):
    """A row has no key where state is kept by key."""


class DropNullKeys(Operator):
    """Rows that have a key: one without has no place in state."""

    def __init__(self, *, buries: bool = False) -> None:
        """
        Args:
            buries: the others go to a dead letter topic.
        """
        self._buries = buries
        self.dropped = 0
        """The others, if they do not."""

    def feed(self, rows: pa.Table, port: int, failed: Failed) -> Iterable[Emitted]:
        keys = rows[KEY]
        if keys.null_count:
            valid = pc.is_valid(keys)
            if self._buries:
                for place in np.flatnonzero(~valid.to_numpy()).tolist():
                    failed(rows.slice(place, 1), NullKey("it has no key, and what follows keeps state by key"))
            else:
                self.dropped += keys.null_count
            rows = rows.filter(valid)
        yield Emitted(rows)


class WithTime(Operator):
    """Event time from a column; one that is null is an error of the row, told by whoever feeds this."""

    def __init__(self, expression: nw.Expr) -> None:
        self.expression = expression
        self._expressions = Expressions(expression)

    def feed(self, rows: pa.Table, port: int, failed: Failed) -> Iterable[Emitted]:
        (found,) = self._expressions.of(rows)
        yield Emitted(replace(rows, TIME, times(found)))


def times(column: pa.ChunkedArray[Any]) -> pa.ChunkedArray[Any]:
    """
    A column of times or of ms as event times.

    Raises:
        ValueError: a time is missing, or before 1970 or beyond 9999.
    """
    if column.null_count:
        raise ValueError("the timestamp is missing")
    stamped = pa.types.is_timestamp(column.type)
    stamps = typed(column, TIMESTAMP) if stamped else column.cast(pa.int64()).cast(TIMESTAMP)
    found = numbers(stamps)
    if len(found) and (found.min() < 0 or found.max() > LAST_TIME):
        wrong = int(found[np.argmax((found < 0) | (found > LAST_TIME))])
        raise ValueError(
            f"the timestamp {wrong} is read as milliseconds since 1970, and event time is in the years 1970 to 9999; "
            "other columns take the years 1 to 9999"
        )
    return stamps


LAST_TIME = 253_402_300_799_999
"""The last ms of the year 9999."""


class Split(Operator):
    """Each row goes to the first branch whose condition is true; what fits none is dropped."""

    def __init__(self, branches: Mapping[str, nw.Expr]) -> None:
        self.branches = branches
        self._conditions = {name: Expressions(condition) for name, condition in branches.items()}

    def feed(self, rows: pa.Table, port: int, failed: Failed) -> Iterable[Emitted]:
        rest = rows
        parts = []
        for name, condition in self._conditions.items():
            found: Any
            (found,) = condition.of(rest)
            if not pa.types.is_boolean(found.type):
                raise TypeError(f"the branch {name!r} is {found.type}; it must be a condition")
            true = found.fill_null(False)
            parts.append(Emitted(rest.filter(true), name))
            rest = rest.filter(pc.invert(true))
        return parts


class Merge(Operator):
    """Rows of several inputs as one, in the order in which they come."""

    def feed(self, rows: pa.Table, port: int, failed: Failed) -> Iterable[Emitted]:
        yield Emitted(rows)


class Pad(Operator):
    """Rows of inputs that have some of the columns each; null in the others."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema

    def feed(self, rows: pa.Table, port: int, failed: Failed) -> Iterable[Emitted]:
        there = rows.column_names
        columns = [rows[f.name] if f.name in there else pa.nulls(rows.num_rows, f.type) for f in self._schema]
        names = [*self._schema.names, *SYSTEM]
        yield Emitted(pa.Table.from_arrays([*columns, *(rows[name] for name in SYSTEM)], names=names))
