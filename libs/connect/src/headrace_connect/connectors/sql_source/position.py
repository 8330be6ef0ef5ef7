"""Positions of tables and queries as JSON: values of the last row that was read, in the columns that are read by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from headrace_connect.plugin import Position

Value: TypeAlias = str | int | float | bytes
"""As the database compares it again exactly: of PostgreSQL always text."""
Values: TypeAlias = tuple[Value, ...]
_TABLE: Final = "table"
_AT: Final = "at"
_PASS: Final = "pass"
_COLUMNS: Final = "columns"
_HEX: Final = "hex"


@dataclass(frozen=True, slots=True)
class Place:
    """Behind a row."""

    table: str
    at: Values | None = None
    """Values of the row, in the order of the columns; None: before the first."""
    passes: int = 0
    """How often everything was read, with ``mode=bulk``."""
    columns: str = ""
    """``core.drift.Columns.digest`` of the rows that were read."""

    def to_json(self, columns: tuple[str, ...]) -> Position:
        """
        Args:
            columns: names for ``at``.
        """
        position: dict[str, Any] = {_TABLE: self.table}
        if self.at is not None:
            position[_AT] = {
                name: {_HEX: value.hex()} if isinstance(value, bytes) else value
                for name, value in zip(columns, self.at, strict=True)
            }
        if self.passes:
            position[_PASS] = self.passes
        if self.columns:
            position[_COLUMNS] = self.columns
        return position

    @classmethod
    def from_json(cls, position: Position | None, table: str, columns: tuple[str, ...]) -> Place:
        """
        Raises:
            ValueError: it is none of this table, or of other columns.
        """
        if position is None:
            return cls(table)
        at, passes, seen = position.get(_AT), position.get(_PASS, 0), str(position.get(_COLUMNS, ""))
        if position.get(_TABLE) != table or not isinstance(passes, int) or not isinstance(at, Mapping | None):
            raise ValueError(f"{str(position)[:200]} is no position of {table}")
        if at is None:
            return cls(table, None, passes, seen)
        if set(at) != set(columns):
            raise ValueError(
                f"the position has values of {', '.join(map(str, at)) or 'no columns'}, and {table} is read by "
                f"{', '.join(columns) or 'none'} now: set the mode that was there before, or use another name for the "
                "connector, which reads from the beginning"
            )
        return cls(table, tuple(_value(at[name]) for name in columns), passes, seen)


def _value(given: object) -> Value:
    """
    Raises:
        ValueError: it is none.
    """
    if isinstance(given, Mapping) and isinstance(given.get(_HEX), str):
        return bytes.fromhex(given[_HEX])
    if isinstance(given, str | int | float) and not isinstance(given, bool):
        return given
    raise ValueError(f"a position has no value {str(given)[:80]!r}")
