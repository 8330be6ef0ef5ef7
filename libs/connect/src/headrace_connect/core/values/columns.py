"""Rows of a table as columns, where each value that cannot be represented is named with its row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from headrace_connect.core.halving import apart
from headrace_connect.core.pgoutput.messages import UNCHANGED, Binary, Relation, Row, Value
from headrace_connect.core.values.modes import ValueModes
from headrace_connect.core.values.types import Array, ColumnType, column_type, schema_metadata

_NOT_SENT: Final = (
    "the update did not touch this large value, the server did not send it, and its table does not have it: set "
    "REPLICA IDENTITY FULL"
)
_IN_BINARY: Final = "the server sent the binary form of the value; start replication without the option binary"
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
                pa.field(column.name, type_.arrow, metadata=schema_metadata(type_.logical))
                for column, type_ in zip(relation.columns, self._types, strict=True)
            ]
        )
        """A nullable field for each column; its metadata ``connect.name`` is Debezium's name of the type."""

        self.type = pa.struct(list(self.schema))

    def convert(self, rows: Sequence[Row | None]) -> tuple[pa.StructArray, Problems]:
        """
        A struct of the columns for each row, null where the row is None, and the rows that have a problem.

        The values of a row with a problem count for nothing: it must not be used. Nothing is rounded or cut.
        """
        present = [row for row in rows if row is not None]
        if not present:
            nothing: Any = pa.array([None] * len(rows), self.type)
            return nothing, {}
        if len(present) < len(rows):
            absent: Row = [None] * len(self._types)
            present = [absent if row is None else row for row in rows]
        converted, problems = self._convert(list(zip(*present, strict=True)))
        nulls = pa.array([row is None for row in rows], pa.bool_())
        return pa.StructArray.from_arrays(converted, fields=list(self.schema), mask=nulls), problems

    def convert_texts(self, columns: Sequence[Array]) -> tuple[pa.StructArray, Problems]:
        """The same of columns of text (binary), of which there is at least one, without rows that are None."""
        converted, problems = self._convert(columns)
        return pa.StructArray.from_arrays(converted, fields=list(self.schema)), problems

    def _convert(self, columns: Sequence[Sequence[Value] | Array]) -> tuple[list[Array], Problems]:
        problems: Problems = {}
        arrays: list[Array] = []
        for column, type_, values in zip(self.relation.columns, self._types, columns, strict=True):
            found: Problems = {}
            arrays.append(_convert(values, type_, found))
            for place, cause in found.items():
                problems.setdefault(place, f"{self.relation}.{column.name}: {cause}")
        return arrays, problems


def _convert(values: Sequence[Value] | Array, type_: ColumnType, problems: Problems) -> Array:
    try:
        return type_.bulk(values if isinstance(values, pa.Array) else pa.array(values, pa.binary()))
    except (ValueError, pa.ArrowTypeError):
        if isinstance(values, pa.Array):
            values = values.to_pylist()
        texts = [value if isinstance(value, bytes) else None for value in values]
    results, failed = apart(pa.array(texts, pa.binary()), type_.bulk)
    none: Array = pa.array([None], type_.arrow)
    stand_in = none if type_.placeholder is None else type_.placeholder
    joined: Array = pa.concat_arrays([*(array for _, array in results), none, stand_in])
    null, placeholder = len(joined) - 2, len(joined) - 1
    places = np.full(len(values), null)
    places[[place for of, _ in results for place in of.tolist()]] = np.arange(null)
    for place, value in enumerate(values):
        if place in failed:
            assert isinstance(value, bytes), "nulls have no problem"
            problems[place] = (
                f"{_short(value.decode(errors='backslashreplace'))!r} cannot be represented: {failed[place]}"
            )
        elif value is UNCHANGED and type_.placeholder is not None:
            places[place] = placeholder
        elif value is UNCHANGED or isinstance(value, Binary):
            problems[place] = _NOT_SENT if value is UNCHANGED else _IN_BINARY
    return joined.take(pa.array(places))


def _short(text: str) -> str:
    return text if len(text) <= 150 else f"{text[:150]}…"
