"""A connection to MariaDB, by PyMySQL."""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import pymysql
from pymysql.constants import CLIENT, SERVER_STATUS

from headrace_connect.connectors.sql.session import Result, RowFault, Session, TableFault
from headrace_connect.connectors.sql.url import MariadbAddress
from headrace_connect.plugin import RetriableError

_RETRIED: Final = frozenset(
    {
        *(1015, 1020, 1021, 1030, 1037, 1038, 1041),  # the machine: locks, disk, memory
        *(1040, 1047, 1053, 1077, 1079, 1129, 1158, 1159, 1160, 1161, 1203, 1226),  # connections, shutdown, limits
        *(1114, 1180, 1205, 1206, 1213, 1412, 1614, 1637),  # full; locks, deadlock, a table that was altered meanwhile
        *(1290, 1317, 1792, 1836, 1927, 1969, 3024),  # read-only for now, killed, out of time
    }
)
_OF_ROWS: Final = frozenset(
    {
        *(1048, 1117, 1118, 1264, 1265, 1364, 1365, 1366, 1367, 1369, 1406, 1411, 1441, 1526, 1690, 1748),  # values
        *(1022, 1062, 1169, 1216, 1217, 1451, 1452, 1557, 1586, 1644, 4025),  # constraints, and what triggers raise
    }
)
_OF_ROWS_STATES: Final = ("22", "23", "44", "45")
"""Classes of SQLSTATE: data, constraints, views with a check, what triggers raise."""
_NO_TABLE: Final = 1005
"""A table could not be made or changed; the text says why."""
_TOO_WIDE: Final = "errno: 185"
"""InnoDB's number for too many columns."""
_CLIENT: Final = range(2000, 3000)
"""Numbers of the client's own errors: the connection is lost, or there is none."""
_MODE: Final = (
    "STRICT_ALL_TABLES,STRICT_TRANS_TABLES,ERROR_FOR_DIVISION_BY_ZERO,ANSI_QUOTES,NO_BACKSLASH_ESCAPES,"
    "NO_AUTO_VALUE_ON_ZERO,NO_ENGINE_SUBSTITUTION"
)
"""Nothing is cut, and a 0 is a 0; names are in double quotes, and in text the single quote alone is special."""
_READS_FACTOR: Final = 10
"""So many times the timeout may one statement take; then the connection counts as lost."""
NAMED: Final = "table_schema = ? and table_name = ? and (@@lower_case_table_names or binary table_name = binary ?)"
"""
A condition of the catalogue for one table. The catalogue itself makes no difference of case; binary alone would have it
look at every table.
"""
_QUOTED_OR_PLACE: Final = re.compile(r'"(?:[^"]|"")*"|\'(?:[^\']|\'\')*\'|\?')


class MariadbSession(Session[Any]):
    """
    A session whose values are text when they are read.

    Transactions are READ COMMITTED: each statement sees what is committed when it begins, and gaps between rows are
    seldom locked.
    """

    server = "MariaDB"
    name_bytes_max = 64

    def __init__(self, address: MariadbAddress, user: str, password: str, timeout_ms: int) -> None:
        super().__init__()
        self._address = address
        self._user = user or address.user
        self._password = password or address.password
        self._timeout_s = timeout_ms / 1_000
        self._in_transaction = False

    def _open(self) -> None:
        with self._faults():
            self._connection = pymysql.connect(**self._options())
        if "MariaDB" not in self._live.get_server_info():
            raise TableFault("connection.url: the server is no MariaDB; others are not known to behave as it does")
        seconds = max(1, round(self._timeout_s))
        self.execute(
            f"set sql_mode = '{_MODE}', time_zone = '+00:00', tx_isolation = 'READ-COMMITTED', "
            f"lock_wait_timeout = {seconds}, innodb_lock_wait_timeout = {seconds}, "
            f"idle_transaction_timeout = {2 * seconds}, group_concat_max_len = 1048576"
        )

    def _options(self) -> dict[str, Any]:
        address = self._address
        options: dict[str, Any] = {
            "host": address.host,
            "port": address.port,
            "user": self._user or None,
            "password": self._password.encode(),
            "database": address.database,
            "unix_socket": address.socket or None,
            "charset": "utf8mb4",
            "use_unicode": False,
            "conv": {},
            "autocommit": True,
            "client_flag": CLIENT.FOUND_ROWS,  # an update counts the rows that it finds, also those that stay the same
            "connect_timeout": max(1.0, self._timeout_s),
            "read_timeout": max(1.0, self._timeout_s * _READS_FACTOR),
            "write_timeout": max(1.0, self._timeout_s * _READS_FACTOR),
            "program_name": "headrace-connect",
        }
        if address.tls == "disable":
            options["ssl_disabled"] = True
        elif address.tls:
            context = ssl.create_default_context(cafile=address.authority or None)
            context.check_hostname = address.tls == "verify-full"
            if address.tls == "trust":
                context.verify_mode = ssl.CERT_NONE
            options["ssl"] = context
        return {name: value for name, value in options.items() if value is not None}

    def close(self) -> None:
        """See ``Session``."""
        self._in_transaction = False
        if self._connection is not None:
            connection, self._connection = self._connection, None
            if connection.open:
                connection.close()

    @property
    def in_transaction(self) -> bool:
        """Whether there was a ``begin``."""
        return self._in_transaction

    def begin(self) -> None:
        """Begin a transaction, if there is none."""
        if not self._in_transaction:
            self.execute("start transaction")
            self._in_transaction = True

    def commit(self) -> None:
        """Durable when it returns. If it raises, nobody knows: connect again, and look."""
        if self._in_transaction:
            self._in_transaction = False
            self.execute("commit")

    def rollback(self) -> None:
        """See ``Session``; learns whether the connection works."""
        if self._connection is not None:
            self._in_transaction = False
            self.execute("rollback")

    def execute(self, statement: str, values: Sequence[Any] = ()) -> Result:
        """See ``Session``."""
        return self._run((_with_values(statement, values) if values else statement).encode())

    def _run(self, statement: bytes) -> Result:
        with self._faults():
            live = self._live
            count = live.query(statement)
            assert not self._in_transaction or live.server_status & SERVER_STATUS.SERVER_STATUS_IN_TRANS, (
                f"{statement[:200]!r} has ended the transaction"
            )
            rows = live._result.rows if live._result is not None else None
            return Result(count or 0, [tuple(_text(value) for value in row) for row in rows or ()])

    def quote(self, name: str) -> str:
        """A name of a table or column, as statements have it."""
        if any(ord(character) > 0xFFFF for character in name):
            raise TableFault(f"MariaDB has no names with characters beyond U+FFFF, as {name!r}")
        return super().quote(name)

    @contextmanager
    def _faults(self) -> Iterator[None]:
        try:
            yield
        except pymysql.err.Error as error:
            number = error.args[0] if error.args and isinstance(error.args[0], int) else 0
            state = getattr(error, "sqlstate", None) or ""
            message = f"MariaDB: {error.args[1] if len(error.args) > 1 else error} ({number})"
            if number in _RETRIED or number in _CLIENT or number == 0:
                if self._connection is not None and (number not in _RETRIED or not self._connection.open):
                    self.close()
                raise RetriableError(message) from error
            if (
                number in _OF_ROWS
                or state.startswith(_OF_ROWS_STATES)
                or (number == _NO_TABLE and _TOO_WIDE in message)
            ):
                raise RowFault(message) from error
            raise TableFault(message) from error
        except OSError as error:  # of certificates that cannot be read
            raise TableFault(f"connection.url: {error}") from error


def literal(value: Any) -> str:
    """A value as statements have it, in the mode of a session."""
    if value is None:
        return "null"
    if isinstance(value, bytes):
        return f"x'{value.hex()}'"
    if isinstance(value, int):
        return str(int(value))
    return "'" + str(value).replace("'", "''") + "'"


def _with_values(statement: str, values: Sequence[Any]) -> str:
    left = iter(values)
    return _QUOTED_OR_PLACE.sub(lambda found: literal(next(left)) if found[0] == "?" else found[0], statement)


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode(errors="surrogateescape")
