"""Rows of a table as columns, where each value that cannot be represented is named with its row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import pyarrow as pa

from headrace_connect.core.batch import NAME
from headrace_connect.core.pgoutput.messages import UNCHANGED, Binary, Relation, Row, Value
from headrace_connect.core.values.modes import ValueModes
from headrace_connect.core.values.types import Array, ColumnType, column_type

_NOT_SENT: Final = (
    "the update did not touch this large value, and the server did not send it: reselect it, or set "
    "REPLICA IDENTITY FULL"
)
Problems = dict[int, str]
"""By row: why it cannot be represented."""


class Columns:
    """How the rows of one relation become columns. Immutable; one for each ``Relation``."""

    def __init__(
        self, relation: Relation, modes: ValueModes, domains: Mapping[int, tuple[str, str]] | None = None
    ) -> None:
        """
        Args:
            domains: ``Assembler.types``.
        """
        self.relation = relation
        self._types = [column_type(column, modes, domains or {}) for column in relation.columns]
        self.schema = pa.schema(
            [
                pa.field(column.name, type_.arrow, metadata={NAME: type_.logical.encode()} if type_.logical else None)
                for column, type_ in zip(relation.columns, self._types, strict=True)
            ]
        )
        """A nullable field for each column; its metadata ``connect.name`` is Debezium's name of the type."""

    def convert(self, rows: Sequence[Row | None]) -> tuple[pa.StructArray, Problems]:
        """
        A struct of the columns for each row, null where the row is None, and the rows that have a problem.

        The values of a row with a problem count for nothing: it must not be used. Nothing is rounded or cut.
        """
        absent: Row = [None] * len(self._types)
        problems: Problems = {}
        arrays = []
        columns = list(zip(*(absent if row is None else row for row in rows), strict=True))
        for column, type_, values in zip(
            self.relation.columns, self._types, columns or [()] * len(self._types), strict=True
        ):
            found: Problems = {}
            arrays.append(_convert(values, type_, 0, found))
            for place, cause in found.items():
                problems.setdefault(place, f"{self.relation}.{column.name}: {cause}")
        nulls = pa.array([row is None for row in rows], pa.bool_())
        return pa.StructArray.from_arrays(arrays, fields=list(self.schema), mask=nulls), problems


def _convert(values: Sequence[Value], type_: ColumnType, start: int, problems: Problems) -> Array:
    """Halves what fails until the values that have a problem are alone."""
    try:
        return type_.bulk(pa.array(values, pa.binary()))
    except (ValueError, pa.ArrowTypeError) as failed:
        cause = failed
    if len(values) > 1:
        middle = len(values) // 2
        halves = (values[:middle], start), (values[middle:], start + middle)
        joined: Array = pa.concat_arrays([_convert(half, type_, at, problems) for half, at in halves])
        return joined
    (value,) = values
    if value is UNCHANGED and type_.placeholder is not None:
        return pa.array([type_.placeholder], type_.arrow)
    problems[start] = _problem(value, cause)
    return pa.array([None], type_.arrow)


def _problem(value: Value, cause: Exception) -> str:
    match value:
        case Binary():
            return "the server sent the binary form of the value; start replication without the option binary"
        case bytes():
            return f"{_short(value.decode(errors='backslashreplace'))!r} cannot be represented: {_short(str(cause))}"
        case _:
            return _NOT_SENT


def _short(text: str) -> str:
    return text if len(text) <= 150 else f"{text[:150]}…"
