"""A connection to PostgreSQL, by psycopg 3."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import psycopg

from headrace_connect.connectors.sql.session import Result, RowFault, Session, TableFault
from headrace_connect.plugin import RetriableError

RETRIED: Final = ("08", "25", "40", "53", "55", "57", "58", "XX")
"""Classes of SQLSTATE: connection, transaction state (a standby), rollback, resources, locks, operator, system."""
_OF_ROWS: Final = ("21", "22", "23", "44", "P0", "09", "27")
"""Cardinality, data, constraints, views with a check, what triggers raise."""
_TOO_LARGE: Final = ("54000", "54011")
"""A row; a table, by its columns."""
_QUOTED_OR_VALUE: Final = re.compile(r'"(?:[^"]|"")*"|\?|%')


class PostgresSession(Session["psycopg.Connection[tuple[Any, ...]]"]):
    """A session."""

    server = "PostgreSQL"
    name_bytes_max = 63

    def __init__(self, url: str, user: str, password: str, timeout_ms: int) -> None:
        super().__init__()
        self._url = url
        self._login: dict[str, Any] = {key: value for key, value in (("user", user), ("password", password)) if value}
        self._timeout_ms = timeout_ms

    def _open(self) -> None:
        with self._faults():
            self._connection = psycopg.connect(
                self._url,
                autocommit=True,
                connect_timeout=max(2, self._timeout_ms // 1_000),
                keepalives_idle=10,
                keepalives_interval=5,
                keepalives_count=3,
                application_name="headrace-connect",
                client_encoding="utf8",
                **self._login,
            )
        self.execute(f"set lock_timeout = {self._timeout_ms}")

    def close(self) -> None:
        """See ``Session``."""
        if self._connection is not None:
            connection, self._connection = self._connection, None
            connection.close()

    @property
    def in_transaction(self) -> bool:
        """Whether there is a transaction."""
        return self._status != psycopg.pq.TransactionStatus.IDLE

    def begin(self) -> None:
        """Begin a transaction, if there is none."""
        if self._status == psycopg.pq.TransactionStatus.IDLE:
            self.execute("begin")

    def commit(self) -> None:
        """Durable when it returns. If it raises, nobody knows: connect again, and look."""
        if self._status != psycopg.pq.TransactionStatus.IDLE:
            self.execute("commit")

    def rollback(self) -> None:
        """See ``Session``."""
        if self._connection is not None and self._status != psycopg.pq.TransactionStatus.IDLE:
            self.execute("rollback")

    def execute(self, statement: str, values: Sequence[Any] = ()) -> Result:
        """See ``Session``."""
        with self._faults():
            cursor = self._live.execute(_with_places(statement) if values else statement, values or None)
            return Result(cursor.rowcount, cursor.fetchall() if cursor.description else ())

    @property
    def _status(self) -> psycopg.pq.TransactionStatus:
        return self._live.info.transaction_status

    @contextmanager
    def _faults(self) -> Iterator[None]:
        try:
            yield
        except psycopg.Error as error:
            state = error.sqlstate or ""
            message = f"PostgreSQL: {str(error).strip()}"
            if not state and isinstance(error, psycopg.ProgrammingError):
                raise TableFault(message) from error  # libpq does not understand the URL
            if not state or state.startswith(RETRIED):
                if self._connection is not None and (self._connection.closed or state[:2] in ("08", "57")):
                    self.close()
                if not state and isinstance(error, psycopg.DataError):
                    raise RowFault(message) from error
                raise RetriableError(message) from error
            if state.startswith(_OF_ROWS) or state in _TOO_LARGE:
                raise RowFault(message) from error
            raise TableFault(f"{message} ({state})") from error


def _with_places(statement: str) -> str:
    """As psycopg wants it: ``%s`` where a value goes, and ``%%`` for a percent sign."""

    def place(found: re.Match[str]) -> str:
        text = found[0]
        return "%s" if text == "?" else text.replace("%", "%%")

    return _QUOTED_OR_VALUE.sub(place, statement)
