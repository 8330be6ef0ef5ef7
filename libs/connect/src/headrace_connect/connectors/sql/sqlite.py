"""A connection to SQLite, by the standard library."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from headrace_connect.connectors.sql.session import Result, RowFault, Session, TableFault
from headrace_connect.plugin import RetriableError

_RETRIED: Final = frozenset(
    {
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_NOMEM,
        sqlite3.SQLITE_PROTOCOL,
        sqlite3.SQLITE_INTERRUPT,
        sqlite3.SQLITE_SCHEMA,
        sqlite3.SQLITE_ABORT,
    }
)
_OF_ROWS: Final = frozenset({sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_MISMATCH, sqlite3.SQLITE_TOOBIG})
_MOVED: Final = sqlite3.SQLITE_READONLY_DBMOVED
"""The file that is open is not the one of that name any more."""
_TOO_WIDE: Final = "too many columns"
"""It has no number."""
_PRIMARY: Final = 0xFF
"""Of an extended error code, the bits that say the class."""


class SqliteSession(Session[sqlite3.Connection]):
    """A session of a file."""

    server = "SQLite"

    def __init__(self, path: str, timeout_ms: int, *, creates: bool = True) -> None:
        """
        Args:
            creates: make the file, if there is none.
        """
        super().__init__()
        self._path = path
        self._creates = creates
        self._timeout_s = timeout_ms / 1_000
        self._file: tuple[int, int] | None = None
        """That is open: its device and inode."""

    def connect(self) -> None:
        """See ``Session``; a file that took the place of the one that is open is opened instead."""
        if self._connection is not None and self._has_moved:
            self.close()
        super().connect()

    @property
    def _has_moved(self) -> bool:
        """Whether the file that is open has its name no more."""
        return self._file != _file_at(self._path)

    def _open(self) -> None:
        place = self._path if self._creates else f"{Path(self._path).absolute().as_uri()}?mode=rw"
        try:
            with faults():
                self._connection = sqlite3.connect(
                    place, timeout=self._timeout_s, isolation_level=None, check_same_thread=False, uri=not self._creates
                )
                self._connection.execute("select count(*) from sqlite_master").fetchone()  # it makes the file
                self._file = _file_at(self._path)
        except RetriableError as error:
            raise RetriableError(f"{error}: {Path(self._path).absolute()}") from error

    def close(self) -> None:
        """See ``Session``."""
        if self._connection is not None:
            connection, self._connection = self._connection, None
            connection.close()

    @property
    def in_transaction(self) -> bool:
        """Whether there is a transaction."""
        return self._live.in_transaction

    def begin(self) -> None:
        """Begin a transaction, if there is none."""
        if not self._live.in_transaction:
            self.execute("begin")

    def commit(self) -> None:
        """Durable when it returns. If it raises, nobody knows: connect again, and look."""
        if self._live.in_transaction:
            self.execute("commit")

    def rollback(self) -> None:
        """See ``Session``."""
        if self._connection is not None and self._connection.in_transaction:
            self.execute("rollback")

    def execute(self, statement: str, values: Sequence[Any] = ()) -> Result:
        """See ``Session``."""
        with faults():
            cursor = self._live.execute(statement, values)
            return Result(cursor.rowcount, cursor.fetchall())


def _file_at(path: str) -> tuple[int, int] | None:
    """Which file has the name now; None: none, or nobody can tell."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


@contextmanager
def faults() -> Iterator[None]:
    """Tells SQLite's failures apart."""
    try:
        yield
    except sqlite3.Error as error:
        extended = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
        code = extended & _PRIMARY
        if code in _RETRIED or extended == _MOVED:
            raise RetriableError(f"SQLite: {error}") from error
        of_rows = code in _OF_ROWS or str(error).startswith(_TOO_WIDE)
        if of_rows or isinstance(error, sqlite3.DataError | sqlite3.IntegrityError):
            raise RowFault(str(error)) from error
        raise TableFault(f"SQLite: {error}") from error
    except (OverflowError, UnicodeEncodeError) as error:
        raise RowFault(str(error)) from error
