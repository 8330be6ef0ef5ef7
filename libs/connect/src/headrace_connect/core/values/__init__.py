"""Values of PostgreSQL, in the text form of their types, as Arrow columns."""

from __future__ import annotations

from headrace_connect.core.values.columns import Columns
from headrace_connect.core.values.modes import ValueModes
from headrace_connect.core.values.types import ColumnType, column_type

__all__ = ["ColumnType", "Columns", "ValueModes", "column_type"]
