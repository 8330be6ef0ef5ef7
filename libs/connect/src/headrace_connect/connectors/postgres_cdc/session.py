"""Connections to PostgreSQL, and what its errors mean."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import psycopg
import pyarrow as pa
from psycopg.conninfo import make_conninfo

from headrace_connect.connectors.postgres_cdc.settings import SourceSettings
from headrace_connect.connectors.sql.postgres import RETRIED
from headrace_connect.core.pgoutput.messages import Row
from headrace_connect.core.values.types import Array
from headrace_connect.plugin import RetriableError
from headrace_connect.settings import Problem, invalid

TEXTS: Final = {
    "DateStyle": "ISO",
    "IntervalStyle": "postgres",
    "TimeZone": "UTC",
    "bytea_output": "hex",
    "extra_float_digits": "1",
    "lc_monetary": "C",
    "search_path": "",
}
"""What decides how values are written: the same for rows that are read and rows that are streamed."""
WORK: Final = {
    "idle_in_transaction_session_timeout": "60000",
    "lock_timeout": "2000",
    "statement_timeout": "60000",
    "synchronous_commit": "local",
}
CONNECT_S: Final = 10
NAME: Final = "headrace-connect"


class Session:
    """A connection for statements, outside of transactions unless one is begun."""

    def __init__(self, connection: psycopg.AsyncConnection[tuple[Any, ...]]) -> None:
        self._connection = connection

    @property
    def version(self) -> int:
        """Of the server: 150004 is 15.4."""
        return self._connection.info.server_version

    async def fetch(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        """
        Rows, where the statement has some. ``$1`` is the first of ``values``.

        Raises:
            RetriableError: the server is away or busy.
            InvalidConfig: it refuses.
        """
        with faults():
            cursor = await self._connection.execute(statement.encode(), values or None)
            return await cursor.fetchall() if cursor.description else []

    async def fetch_texts(self, statement: str, *values: object) -> list[Row]:
        """As ``fetch``, with values in the text form of their types."""
        with faults():
            cursor = await self._connection.execute(statement.encode(), values or None)
            result = cursor.pgresult
            assert result is not None, "there is a result"
            get, columns = result.get_value, range(result.nfields)
            return [[get(row, column) for column in columns] for row in range(result.ntuples)]

    async def fetch_columns(self, statement: str) -> list[Array]:
        """The rows of a statement in columns: for each of these, the texts of its values (binary)."""
        with faults():
            result = (await self._connection.execute(statement.encode())).pgresult
            assert result is not None, "there is a result"
            get, rows = result.get_value, range(result.ntuples)
            return [pa.array([get(row, at) for row in rows], pa.binary()) for at in range(result.nfields)]

    async def rollback(self) -> None:
        """Out of whatever transaction there is."""
        if self._connection.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
            await self.fetch("rollback")

    async def close(self) -> None:
        """Disconnect."""
        await self._connection.close()


async def open_session(settings: SourceSettings) -> Session:
    """
    A session for statements.

    Raises:
        RetriableError: the server cannot be reached, or does not let us in.
    """
    return Session(await connect(settings, NAME, {**TEXTS, **WORK}))


async def connect(
    settings: SourceSettings, application: str, options: Mapping[str, str] = TEXTS, **more: str
) -> psycopg.AsyncConnection[tuple[Any, ...]]:
    """
    A connection of libpq.

    Args:
        application: as the server names it.
        more: ``replication="database"``.

    Raises:
        RetriableError: the server cannot be reached, or does not let us in.
    """
    password = settings.database_password
    given: dict[str, str | int] = {
        "host": settings.database_hostname,
        "port": settings.database_port,
        "dbname": settings.database_dbname,
        "user": settings.database_user,
        "password": password.reveal() if password else "",
        "sslmode": settings.database_sslmode,
        "sslrootcert": settings.database_sslrootcert,
        "sslcert": settings.database_sslcert,
        "sslkey": settings.database_sslkey,
        "options": " ".join(f"-c {name}={value}" for name, value in options.items()),
        "application_name": application,
        "client_encoding": "utf8",
        "connect_timeout": CONNECT_S,
        "keepalives_idle": 10,
        "keepalives_interval": 5,
        "keepalives_count": 3,
        "tcp_user_timeout": 30_000,
        **more,
    }
    conninfo = make_conninfo("", **{name: value for name, value in given.items() if value != ""})
    with faults():
        return await psycopg.AsyncConnection.connect(
            conninfo, autocommit=True, prepare_threshold=None, cursor_factory=psycopg.AsyncRawCursor
        )


@contextmanager
def faults() -> Iterator[None]:
    """
    What psycopg raises in the block, by whose fault it is.

    Raises:
        RetriableError: the server is away or busy.
        InvalidConfig: it refuses: rights, names, types.
    """
    try:
        yield
    except psycopg.Error as error:
        if error.sqlstate is None and isinstance(error, psycopg.ProgrammingError):
            raise invalid([Problem("", f"PostgreSQL: {error}")]) from error  # libpq does not take the settings
        raise fault_of(error.sqlstate, str(error)) from error


def fault_of(sqlstate: str | None, message: str) -> Exception:
    """
    The error that a connector raises for one of the server.

    Args:
        sqlstate: None: the connection itself failed.
    """
    text = f"PostgreSQL: {' '.join(message.split())}"
    if not sqlstate or sqlstate.startswith(RETRIED):
        return RetriableError(text)
    return invalid([Problem("", f"{text} ({sqlstate})")])


def quote(*names: str) -> str:
    """A name with its schema, as statements have it."""
    return ".".join('"' + name.replace('"', '""') + '"' for name in names)


def literal(text: str) -> str:
    """A text as statements of a replication connection have it."""
    return "'" + text.replace("'", "''") + "'"


def listed(names: Sequence[str], most: int = 5) -> str:
    """For messages."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


def sqlstate_of(error: BaseException) -> str:
    """What the server said, of an error that ``faults`` made; empty: nothing."""
    cause = error.__cause__
    return (cause.sqlstate or "") if isinstance(cause, psycopg.Error) else ""
