"""What the sink needs of a database."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeAlias

import pyarrow as pa

from headrace_connect.connectors.sql.session import Result, TableName
from headrace_connect.connectors.sql_sink.kinds import Column, Kind

Array: TypeAlias = "pa.Array[Any]"


@dataclass(frozen=True, slots=True, eq=False)
class Write:
    """Rows for one table, in the order of their offsets."""

    table: TableName
    columns: dict[str, Array]
    keys: tuple[str, ...]
    deletes: Array
    mode: str
    """insert, upsert, update; or patch: update rows that must be there."""
    absent: Mapping[str, Array] = field(default_factory=dict)
    """By column, booleans: the record does not say its value, so that it stays as it is. Not of all columns."""
    partial: Array | None = None
    """Booleans: no row can be made of the record. None: of those that lack a column."""

    @property
    def has_deletes(self) -> bool:
        """Whether a row is a delete."""
        return any(self.deletes.to_pylist())

    def take(self, start: int, count: int) -> Write:
        """Some of the rows, without a copy."""
        return self._each(lambda array: array.slice(start, count))

    def choose(self, rows: Sequence[int]) -> Write:
        """The rows with these numbers."""
        chosen = pa.array(rows, pa.int64())
        return self._each(lambda array: array.take(chosen))

    def filter(self, mask: Array) -> Write:
        """The rows for which ``mask`` is true."""
        return self._each(lambda array: array.filter(mask))

    def _each(self, change: Callable[[Array], Array]) -> Write:
        columns = {name: change(column) for name, column in self.columns.items()}
        absent = {name: change(mask) for name, mask in self.absent.items()}
        partial = None if self.partial is None else change(self.partial)
        return replace(self, columns=columns, deletes=change(self.deletes), absent=absent, partial=partial)

    def __len__(self) -> int:
        return len(self.deletes)


class Database(Protocol):
    """
    One connection; all calls but ``connect`` and ``close`` are statements of its one transaction.

    Raises, each call:
        RetriableError: the database is away, or busy; the transaction is lost.
        RowFault, TableFault: see there. Within ``savepoint`` only what was done in it is undone.
    """

    name_bytes_max: int
    """Of a name of a table or column; longer ones would be cut."""
    bytes_type: str
    """A column for a token."""
    temporary: str
    """The schema of temporary tables."""
    table_options: str
    """Behind the columns of a table to be made."""
    locks_all: bool
    """Whether an open transaction keeps all others from writing, so that it may be open for a moment only."""
    adds_many: bool
    """Whether one statement adds several columns to a table."""
    changes_end: bool
    """Whether ``lock_tables`` undoes the transaction, as the change of a table would commit it."""
    locking: str
    """Behind a ``select`` whose rows are to be those of now, and to stay so until the end of the transaction."""

    def connect(self) -> None:
        """Connect, if there is no connection that works. There is no transaction then."""
        ...

    def close(self) -> None:
        """Let go of the connection; what was not committed is undone."""
        ...

    @property
    def in_transaction(self) -> bool:
        """Whether there is a transaction."""
        ...

    def begin(self) -> None:
        """Begin a transaction, if there is none."""
        ...

    def commit(self) -> None:
        """Durable when it returns. If it raises, nobody knows: connect again, and look."""
        ...

    def rollback(self) -> None:
        """Undo the transaction, if there is one."""
        ...

    def execute(self, statement: str, values: Sequence[Any] = ()) -> Result:
        """Run one statement, with ``?`` where a value goes."""
        ...

    def savepoint(self) -> AbstractContextManager[None]:
        """What fails in the block is undone, the rest of the transaction is not."""
        ...

    def quote(self, name: str) -> str:
        """A name of a table or column, as statements have it."""
        ...

    def find_columns(self, table: TableName) -> list[Column]:
        """The columns of a table; none: it is not there."""
        ...

    def lock_tables(self) -> None:
        """
        Until the end of the transaction nobody else of us makes or changes a table. With ``changes_end`` there is none
        then, and it lasts until the next ``begin``.
        """
        ...

    def or_nothing(self, keys: Sequence[str]) -> str:
        """Behind an ``insert`` that does nothing where there is a row of the key."""
        ...

    def type_name(self, kind: Kind, key: bool) -> str:
        """What a column of this kind is called."""
        ...

    def can_widen(self, column: Column) -> bool:
        """Whether a column's type can be, and has to be, changed for larger values."""
        ...

    def widen(self, table: TableName, column: str, kind: Kind) -> None:
        """Change the type of a column."""
        ...

    def kind_of(self, column: Column, source: pa.DataType) -> Kind:
        """How fields of a type are written into a column."""
        ...

    def find_unfit(self, values: Array) -> dict[int, str]:
        """Of what fits its column: values that the database has no form of, and the reason."""
        ...

    def truncate(self, table: TableName) -> None:
        """Delete all rows of a table that is there."""
        ...

    def write(self, write: Write) -> None:
        """
        Insert, update and delete rows; there are some. The last record of a key counts.

        Raises:
            RowFault: besides what the database refuses: a record does not say all values, and its row is not there.
        """
        ...


class Comparing(Database, Protocol):
    """One whose rows can be compared with others, in tables that are undone with their transaction."""

    def begin_reading(self) -> None:
        """Begin a transaction that sees one state of all tables, and keeps nobody from writing them for long."""
        ...

    def differs(self, one: str, other: str, column: Column) -> str:
        """A condition: two expressions, both of this column's type, are not the same; nulls are."""
        ...
