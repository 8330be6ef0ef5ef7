"""Settings of the source ``sql-source``; names are those of the JDBC source."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal
from zoneinfo import ZoneInfo

from headrace_connect.connectors.sql.url import DatabaseUrl
from headrace_connect.core.drift import SourceDrift
from headrace_connect.settings import Secret, setting

Mode = Literal["bulk", "incrementing", "timestamp", "timestamp+incrementing"]
_UTC: Final = "UTC"
"""Is known where the machine has no time zones."""
_TABLE_TYPES: Final = ("TABLE", "VIEW")


@dataclass(frozen=True, slots=True)
class SourceSettings:
    """Of the source ``sql-source``."""

    connection_url: str
    """The database: ``sqlite:////var/lib/shop.db``, ``postgresql://HOST:5432/DATABASE``,
    ``mariadb://HOST:3306/DATABASE``. ``jdbc:`` before it is left out."""
    topic_prefix: str
    """A table's topic is this and the table's name, without its schema. With ``query`` it is the whole name."""
    mode: Mode
    """What is read. ``incrementing``: rows with a larger number than before. ``timestamp``: rows with a later time, so
    changed ones too. ``timestamp+incrementing``: the same, by time and number. ``bulk``: everything, each time."""
    connection_user: str = ""
    """Who reads; empty: what the URL says, else as the database's library decides."""
    connection_password: Secret | None = None
    """Of that user."""
    table_include_list: tuple[str, ...] = ()
    """Which tables: regular expressions that match ``SCHEMA.TABLE``, or the name alone where the schema is the
    default one, as a whole. Empty: all."""
    table_whitelist: tuple[str, ...] = ()
    """The older name of ``table.include.list``."""
    table_exclude_list: tuple[str, ...] = ()
    """Which of them not."""
    table_types: tuple[str, ...] = ("TABLE",)
    """``TABLE``, ``VIEW``, or both."""
    query: str = ""
    """Rows of this ``select`` instead of tables; it is put into a subquery, so that it may have conditions."""
    incrementing_column_name: str = ""
    """A column of whole numbers that grows with each row, and never changes."""
    timestamp_column_name: tuple[str, ...] = ()
    """A column of times that is set at each change. Of several, the first one of a row that is not null counts."""
    timestamp_delay_interval_ms: int = setting(1_000, low=0, high=86_400_000)
    """A row is read when its time is so long ago: rows with earlier times have to be there by then. It is at least as
    long as the clock's step that the column has."""
    hold_back: Literal["transactions", "delay"] = "transactions"
    """What rows wait for in PostgreSQL and MariaDB. ``transactions``: until each transaction has ended that may still
    commit a row that belongs before them. ``delay``: only for ``timestamp.delay.interval.ms``."""
    db_timezone: str = setting(_UTC, key="db.timezone")
    """Of columns of times without a zone in PostgreSQL and MariaDB."""
    validate_non_null: bool = setting(True, key="validate.non.null")
    """Refuses a column that may be null to read by. ``false``: rows in which it is null are left out."""
    batch_max_rows: int = setting(5_000, low=1, high=1_000_000)
    """Rows that are read at once; fewer where they have more than 16 MiB."""
    drift: SourceDrift = SourceDrift.ADD
    """Columns that come, go, or get another type while the connector reads. ``add``: records have the columns that the
    table has then. ``fail``: the task fails before the first record with other columns than before."""
    timeout_ms: int = setting(30_000, low=100, high=3_600_000)
    """How long to wait for a connection, or for others who have locked the table or the database."""

    def __post_init__(self) -> None:
        url = self.url
        if not self.topic_prefix.strip():
            raise ValueError("topic.prefix is empty; it is what the names of topics begin with, as shop.")
        if self.table_include_list and self.table_whitelist:
            raise ValueError("table.whitelist is the older name of table.include.list: set one of them")
        if self.query and (self.table_include_list or self.table_whitelist or self.table_exclude_list):
            raise ValueError("query is read instead of tables: leave out table.include.list and its like")
        self._check_patterns()
        self._check_columns()
        unknown = [one for one in self.table_types if one not in _TABLE_TYPES]
        if unknown or not self.table_types:
            raise ValueError(f"table.types has {', '.join(_TABLE_TYPES)}, not {', '.join(unknown) or 'nothing'}")
        if self.db_timezone != _UTC:
            try:
                ZoneInfo(self.db_timezone)
            except (ValueError, OSError, LookupError):
                raise ValueError(f"db.timezone is a name as Europe/Berlin, not {self.db_timezone!r}") from None
        if url.scheme == "sqlite" and len(self.timestamp_column_name) > 1 and self.mode.startswith("timestamp"):
            raise ValueError("timestamp.column.name has one column with SQLite; use a query with coalesce")

    def _check_patterns(self) -> None:
        for pattern in (*self.tables, *self.table_exclude_list):
            try:
                re.compile(pattern)
            except re.error as error:
                raise ValueError(
                    f"table.include.list has {pattern!r}, which is no regular expression: {error}"
                ) from None

    def _check_columns(self) -> None:
        by_time, by_number = self.mode.startswith("timestamp"), self.mode.endswith("incrementing")
        if by_time and not self.timestamp_column_name:
            raise ValueError(f"timestamp.column.name is missing; mode={self.mode} reads by it")
        if by_number and not self.incrementing_column_name:
            raise ValueError(f"incrementing.column.name is missing; mode={self.mode} reads by it")
        if not by_time and self.timestamp_column_name:
            raise ValueError(f"timestamp.column.name is not used with mode={self.mode}")
        if not by_number and self.incrementing_column_name:
            raise ValueError(f"incrementing.column.name is not used with mode={self.mode}")

    @property
    def url(self) -> DatabaseUrl:
        """Where the database is."""
        return DatabaseUrl.parse(self.connection_url)

    @property
    def tables(self) -> tuple[str, ...]:
        """Patterns of tables; none: all."""
        return self.table_include_list or self.table_whitelist
