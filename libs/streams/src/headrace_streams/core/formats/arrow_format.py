"""``arrow``: a value is an Arrow IPC stream of one row or many; each is a row with the record's key and time."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa

from headrace.errors import InvalidConfig
from headrace_common.core.batch.byte_columns import as_binary
from headrace_streams.core.formats.ddl import parse_schema
from headrace_streams.core.formats.port import Decoded, Problem

ipc: Any = pa.ipc  # its stubs are narrower than it is
_MESSAGE_CHARACTERS_MAX: Final = 200


class ArrowFormat:
    """``arrow(schema)``: columns are found by name, and others are left out; satisfies ``Format``."""

    def __init__(self, given: str | pa.Schema | type) -> None:
        """
        Raises:
            InvalidConfig: no such schema.
        """
        self.schema: pa.Schema = parse_schema(given)

    def __repr__(self) -> str:
        return f"arrow({', '.join(self.schema.names)})"

    def decode(self, values: pa.Array[Any]) -> Decoded:
        """See ``Format``; a value may give any number of rows."""
        tables: list[pa.Table] = [self.schema.empty_table()]
        problems: list[Problem] = []
        counts: list[int] = []
        each: Any = as_binary(values)
        for row, value in enumerate(each):
            try:
                table = self._read(value.as_buffer())
            except _Misfit as why:
                problems.append(Problem(row, str(why)[:_MESSAGE_CHARACTERS_MAX]))
            else:
                tables.append(table)
                counts.append(table.num_rows)
        return Decoded(pa.concat_tables(tables), problems, np.array(counts, np.int64))

    def _read(self, value: Any) -> pa.Table:
        try:
            with ipc.open_stream(value) as stream:
                table = stream.read_all()
            table.validate(full=True)
        except (pa.ArrowException, OSError, ValueError) as wrong:
            raise _Misfit(f"the value is no Arrow stream: {wrong}") from None
        columns = [self._column(table, field) for field in self.schema]
        return pa.Table.from_arrays(columns, schema=self.schema)

    def _column(self, table: pa.Table, field: pa.Field[Any]) -> Any:
        found = table.schema.get_all_field_indices(field.name)
        if len(found) > 1:
            raise _Misfit(f"{field.name}: the rows have this column {len(found)} times")
        column: Any = table.column(found[0]) if found else pa.nulls(table.num_rows, field.type)
        if column.type != field.type:
            try:
                column = column.cast(field.type)
            except (pa.ArrowException, ValueError):
                raise _Misfit(f"{field.name}: it is {column.type}, not {field.type}") from None
        if column.null_count and not field.nullable:
            raise _Misfit(f"{field.name}: is missing or null, and may not be")
        return column

    def encode(self, table: pa.Table) -> pa.Array[Any]:
        """
        See ``Format``: a stream of one row for each.

        Raises:
            InvalidConfig: the columns are not those of the schema.
        """
        if set(table.column_names) != set(self.schema.names):
            raise InvalidConfig(f"{self!r} does not write {', '.join(table.column_names)}; select() what it writes")
        try:
            fitting = table.select(self.schema.names).cast(self.schema)
        except (ValueError, pa.ArrowException) as wrong:
            raise InvalidConfig(f"{self!r}: {wrong}; cast the columns that are of another type") from None
        values = []
        for row in range(fitting.num_rows):
            out = pa.BufferOutputStream()
            with ipc.new_stream(out, fitting.schema) as stream:
                stream.write_table(fitting.slice(row, 1))
            values.append(out.getvalue().to_pybytes())
        return pa.array(values, pa.binary())


class _Misfit(Exception):
    """A value has not the columns that it is to have."""


def arrow(schema: str | pa.Schema | type) -> ArrowFormat:
    """
    Values that are Arrow IPC streams, each of one row or of many; written with one row each.

    Args:
        schema: the columns; a stream may have others, which are left out. What it does not have is null.

    Raises:
        InvalidConfig: no such schema.
    """
    return ArrowFormat(schema)
