"""What the source needs of a database."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import pyarrow as pa

from headrace_connect.connectors.sql.session import TableName
from headrace_connect.connectors.sql_source.holding import Bound
from headrace_connect.connectors.sql_source.position import Values
from headrace_connect.connectors.sql_source.statements import Order, Selection, Subject
from headrace_connect.plugin import BadItem

BYTES_MAX = 16 << 20
"""Of rows that are read at once; one row may have more."""


class ManyRows(Exception):
    """Rows that have to be read together are too many, or too large."""


@dataclass(frozen=True, slots=True)
class Column:
    """One of what is read."""

    name: str
    type: str
    """As the database calls it."""
    sorts: Literal["number", "time", "either", "neither"]
    """What it can be read by; ``either``: its values decide."""
    nullable: bool | None
    """None: nobody has said."""


@dataclass(frozen=True, slots=True)
class Description:
    """Of a table or query."""

    columns: tuple[Column, ...]
    key: tuple[str, ...] = ()
    """Columns of the primary key; none of them may be null. Empty: there is none."""
    indexed: frozenset[str] | None = None
    """The first column of each index; None: that is nobody's to say."""

    def find(self, name: str) -> Column | None:
        """The column of that name."""
        return next((column for column in self.columns if column.name == name), None)


@dataclass(frozen=True, slots=True, eq=False)
class Page:
    """Rows that were read at once."""

    rows: pa.StructArray
    bad: Sequence[BadItem]
    """Rows with values that are of no type."""
    count: int
    """With the bad ones."""
    last: Values
    """Of the last row, in the order of the columns that are read by; empty: there are no rows, or no order."""
    cut: bool = False
    """There are more rows, which would have been too many bytes."""


@dataclass(frozen=True, slots=True)
class Listed:
    """A table or view that is there."""

    table: TableName
    names: tuple[str, ...]
    """What patterns may match."""


@dataclass(frozen=True, slots=True)
class Risks:
    """How rows may be left out, whatever the source does."""

    problems: tuple[str, ...] = ()
    """With rows that are written as usual; says what to do."""
    warnings: tuple[str, ...] = ()
    """Seldom."""


class SourceDatabase(Protocol):
    """
    One connection, whose calls block.

    Raises, each call but ``close``:
        RetriableError: the database is away, or busy.
        RowFault, TableFault: the statement cannot be done as it is.
    """

    has_column_types: bool
    """All values of a column are of one type, which the column says. Else those of each page say it."""

    def connect(self) -> None:
        """Connect, if there is no connection that works."""
        ...

    def close(self) -> None:
        """Let go of the connection."""
        ...

    def quote(self, name: str) -> str:
        """A name of a table or column, as statements have it."""
        ...

    def find_tables(self, types: Set[str]) -> list[Listed]:
        """
        All but those of the system.

        Args:
            types: TABLE, VIEW.
        """
        ...

    def describe(self, subject: Subject) -> Description:
        """Its columns and keys. TableFault: it is not there, or may not be read."""
        ...

    def has_nulls(self, selection: Selection) -> bool:
        """Whether there is a row in which a column of the order is null."""
        ...

    def find_bound(self, selection: Selection, by_time: bool) -> Bound | None:
        """
        The largest value of the first column among the rows that may be read; None: there are none.

        Args:
            by_time: the first column is a time: the newest rows are too young to be read.
        """
        ...

    def find_running(self, subject: Subject, by_time: bool) -> frozenset[str]:
        """Transactions that are open, and may commit rows that belong before those that are there."""
        ...

    def find_risks(self, subject: Subject, order: Order) -> Risks:
        """Of a table that is read by numbers."""
        ...

    def nth(self, selection: Selection, number: int) -> Any:
        """The first column's value of the row with this number, from 0; None: there are fewer."""
        ...

    def read(self, selection: Selection) -> Page:
        """The rows of one statement; fewer where they have more than ``BYTES_MAX``."""
        ...

    def stream(self, selection: Selection, rows_max: int) -> Iterator[Page]:
        """
        All rows of one statement, as they are when it begins, in pages, of which the first may have none. Nothing else
        may be asked meanwhile.
        """
        ...
