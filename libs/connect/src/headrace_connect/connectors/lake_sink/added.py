"""Columns that come from the record itself: where it is in its topic, when it was sent, its key; and computed ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import narwhals.stable.v2 as nw
import pyarrow as pa

from headrace_connect.core.halving import CAUGHT, apart
from headrace_connect.plugin import Rows, RowsRefused
from headrace_streams.core import expressions

Array = Any
"""An Arrow array; its stubs are narrower than it is."""
PREFIX: Final = "__connect_"
ADDED: Final[Mapping[str, Callable[[Rows], Array]]] = {
    "topic": lambda rows: pa.array([rows.source.topic] * len(rows), pa.string()),
    "partition": lambda rows: pa.array([rows.partition] * len(rows), pa.int32()),
    "offset": lambda rows: rows.offsets,
    "timestamp": lambda rows: rows.timestamps_ms.cast(pa.timestamp("ms", "UTC")),
    "key": lambda rows: rows.keys,
}
_TYPES: Final[Mapping[str, Any]] = {
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", "UTC"),
}
OFFSET: Final = f"{PREFIX}offset"


def with_added(rows: Rows, names: Sequence[str]) -> pa.Table:
    """
    Fields of the values, and behind them the columns of these names.

    Raises:
        RowsRefused: two fields have one name.
    """
    table = rows.table
    for name in names:
        table = table.append_column(f"{PREFIX}{name}", ADDED[name](rows))
    seen: set[str] = set()
    for name in table.column_names:
        if name in seen:
            raise RowsRefused(dict.fromkeys(range(len(rows)), f"two fields are called {name!r}"))
        seen.add(name)
    return table


def with_computed(table: pa.Table, columns: Mapping[str, expressions.Expr]) -> pa.Table:
    """
    With these columns; a field that the rows do not have is null for them.

    Raises:
        RowsRefused: those whose columns cannot be computed.
    """
    if not columns:
        return table
    read = {name for one in columns.values() for name in expressions.columns_of(one)}
    whole = table
    for name in sorted(read - set(table.column_names)):
        whole = whole.append_column(name, pa.nulls(len(table)))

    def compute(part: pa.Table) -> pa.Table:
        try:
            return expressions.computed(part, columns)
        except nw.exceptions.NarwhalsError as error:
            raise ValueError(str(error)) from error

    try:
        made = compute(whole)
    except CAUGHT:
        results, failed = apart(whole, compute)
        if failed:
            reasons = {row: f"what the table is partitioned by: {reason}" for row, reason in failed.items()}
            raise RowsRefused(reasons) from None
        made = pa.concat_tables([part for _, part in results], promote_options="permissive")
    return made.select([*table.column_names, *(name for name in columns if name not in table.column_names)])


def schema_of(names: Sequence[str]) -> pa.Schema:
    """The columns of these names, as tables have them; without that of the key, whose type is not known before."""
    return pa.schema([(f"{PREFIX}{name}", _TYPES[name]) for name in names if name in _TYPES])
