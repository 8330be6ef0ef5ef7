"""What a connection gives, and how its failures are told apart."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

from headrace_connect.plugin import RetriableError
from headrace_connect.settings import Problem, invalid

Connection = TypeVar("Connection")
TableName = tuple[str, ...]
"""Schema, if one is said, and name."""


class RowFault(Exception):
    """The database refuses a row: a constraint, a value that is too large, a trigger that raises."""


class TableFault(Exception):
    """The database refuses the statement, whatever the rows: no table, no rights, no unique key. Says what to do."""


@dataclass(frozen=True, slots=True)
class Result:
    """Of a statement."""

    count: int
    """Rows that it changed."""
    rows: Sequence[tuple[Any, ...]] = ()


class Session(ABC, Generic[Connection]):
    """
    One connection; it commits each statement, unless there was a ``begin``.

    Raises, each call:
        RetriableError: the database is away, or busy; the transaction is lost.
        RowFault, TableFault: see there.
    """

    server: ClassVar[str]
    """What messages call it."""

    def __init__(self) -> None:
        self._connection: Connection | None = None

    def connect(self) -> None:
        """Connect, if there is no connection that works. There is no transaction then."""
        if self._connection is not None:
            try:
                self.rollback()
            except RetriableError:
                self.close()
            else:
                return
        try:
            self._open()
            self._prepare()
        except BaseException:
            self.close()  # a session that is half prepared would read and write values in another form
            raise

    @abstractmethod
    def _open(self) -> None:
        """Make the connection."""

    def _prepare(self) -> None:
        """Set what the session needs; it is new."""

    @abstractmethod
    def close(self) -> None:
        """Let go of the connection; what was not committed is undone."""

    @abstractmethod
    def rollback(self) -> None:
        """Undo the transaction, if there is one."""

    @abstractmethod
    def execute(self, statement: str, values: Sequence[Any] = ()) -> Result:
        """Run one statement, with ``?`` where a value goes, if there are any."""

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        """What is done in the block is undone where it raises ``RowFault``; the rest of the transaction is not."""
        self.execute("savepoint headrace")
        try:
            yield
        except RowFault:
            self._undo_block()
            raise
        self.execute("release savepoint headrace")

    def _undo_block(self) -> None:
        self.execute("rollback to savepoint headrace")
        self.execute("release savepoint headrace")

    def quote(self, name: str) -> str:
        """A name of a table or column, as statements have it."""
        if "\0" in name:
            raise TableFault(f"{self.server} has no names with NUL, as {name!r}")
        return '"' + name.replace('"', '""') + '"'

    @property
    def _live(self) -> Connection:
        if self._connection is None:
            raise RetriableError(f"there is no connection to {self.server}")
        return self._connection


def show_table(table: TableName) -> str:
    """As messages and positions have it."""
    return ".".join(table)


@contextmanager
def needs_driver(database: str, extra: str) -> Iterator[None]:
    """
    Around an import of what needs it.

    Raises:
        InvalidConfig: it is not installed.
    """
    try:
        yield
    except ImportError as error:
        message = f"{database} needs its driver: pip install 'headrace-connect[{extra}]' ({error})"
        raise invalid([Problem("connection.url", message)]) from error
