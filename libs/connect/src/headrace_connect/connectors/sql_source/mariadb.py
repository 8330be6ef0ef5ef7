"""
MariaDB as a source: rows are streamed from the server, and never all held.

Rows wait for transactions that are open, as with PostgreSQL: numbers are drawn, and ``now()`` is when a statement
began, before a transaction commits. Which are open, InnoDB says; what it says may be a copy that is older than the
question, so the question itself has to be in the answer.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence, Set
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any, Final
from zoneinfo import ZoneInfo

from pymysql.cursors import SSCursor

from headrace_connect.connectors.sql.mariadb import NAMED, MariadbSession
from headrace_connect.connectors.sql.session import TableFault
from headrace_connect.connectors.sql.url import MariadbAddress
from headrace_connect.connectors.sql_source.copied import page_of
from headrace_connect.connectors.sql_source.database import BYTES_MAX, Column, Description, Listed, Page, Risks
from headrace_connect.connectors.sql_source.holding import Bound
from headrace_connect.connectors.sql_source.mariadb_running import Running, Session, writes
from headrace_connect.connectors.sql_source.mariadb_values import Field, field_of, places_of, texts_of
from headrace_connect.connectors.sql_source.settings import SourceSettings
from headrace_connect.connectors.sql_source.statements import Order, Selection, Subject
from headrace_connect.plugin import RetriableError

_KINDS: Final = {"TABLE": ("BASE TABLE", "SYSTEM VERSIONED"), "VIEW": ("VIEW",)}
_SYSTEM: Final = "('information_schema', 'mysql', 'performance_schema', 'sys')"
_COLUMNS: Final = f"select column_name, is_nullable from information_schema.columns where {NAMED}"
_INDEXES: Final = f"""
select index_name, column_name, seq_in_index from information_schema.statistics where {NAMED}
order by index_name, seq_in_index
"""
_SESSIONS: Final = """
select id, query_id, command, left(info, 1000) from information_schema.processlist
where id <> connection_id() and command not in ('Sleep', 'Daemon', 'Binlog Dump')
"""
_TRANSACTIONS: Final = "select {} trx_mysql_thread_id, trx_id, trx_query from information_schema.innodb_trx"
_READS_ONLY: Final = "0"
"""The number of a transaction that has written nothing."""
_LOOKS_MAX: Final = 100
_COPY_S: Final = 0.12
"""A copy of the list is used for 0.1 s after it was last asked for."""
_RIGHTS: Final = (
    "hold.back: which transactions are open is for users with the right PROCESS: GRANT PROCESS ON *.* TO …, or set "
    "hold.back=delay, which may leave out rows that are committed late"
)
_ELSEWHERE: Final = (
    "hold.back: the server is {}, which does not know all transactions that are open: read from the primary, or set "
    "hold.back=delay, which may leave out rows that are committed late"
)


class _Rows(SSCursor):  # type: ignore[misc]  # it has no types
    """Rows one by one, and what the server says of their columns."""

    def described(self) -> list[Field]:
        """The columns."""
        return [field_of(one) for one in self._result.fields]

    def abandon(self) -> None:
        """Read no more; ``close`` would read to the end."""
        self._result.unbuffered_active = False
        self.connection = None


class Mariadb(MariadbSession):
    """Satisfies ``SourceDatabase``. Values of positions are text."""

    has_column_types = True

    def __init__(self, settings: SourceSettings) -> None:
        password = settings.connection_password
        reveal = password.reveal() if password else ""
        address = MariadbAddress.parse(settings.url.text)
        super().__init__(address, settings.connection_user, reveal, settings.timeout_ms)
        self._settings = settings
        self._waits = settings.hold_back == "transactions" and settings.mode != "bulk"
        self._fields: dict[Subject, dict[str, Field]] = {}
        """Of what was described."""
        self._running = Running.nothing()
        self._looks = count()

    def _prepare(self) -> None:
        self.execute("set session transaction read only")
        if not self._waits:
            return
        if self.execute("show variables like 'wsrep_on'").rows[:1] == [("wsrep_on", "ON")]:
            raise TableFault(_ELSEWHERE.format("a node of Galera"))
        try:
            self.execute("select 1 from information_schema.innodb_trx limit 1")
        except TableFault as error:
            raise TableFault(_RIGHTS) from error

    def find_tables(self, types: Set[str]) -> list[Listed]:
        """See ``SourceDatabase``."""
        kinds = ", ".join(f"'{kind}'" for type_ in sorted(types) for kind in _KINDS[type_])
        found = self.execute(
            "select table_schema, table_name from information_schema.tables "
            f"where table_type in ({kinds}) and table_schema not in {_SYSTEM} order by 1, 2"
        ).rows
        default = self._address.database
        return [
            Listed((schema, name), (f"{schema}.{name}", name) if schema == default else (f"{schema}.{name}",))
            for schema, name in found
        ]

    def describe(self, subject: Subject) -> Description:
        """See ``SourceDatabase``."""
        fields = self._find_fields(subject)
        by_name = self._fields[subject]
        named = () if subject.table is None else (*self._place(subject), subject.table[-1])
        nullable: dict[str, bool] = {}
        is_table = False
        if named:
            ((kind,),) = self.execute(f"select table_type from information_schema.tables where {NAMED}", named).rows
            is_table = kind in _KINDS["TABLE"]
        if is_table:
            nullable = {name: value == "YES" for name, value in self.execute(_COLUMNS, named).rows}
        columns = tuple(Column(one.typed.name, one.name, one.sorts, nullable.get(one.typed.name)) for one in fields)
        if not is_table:
            return Description(columns)
        indexes = self.execute(_INDEXES, named).rows
        key = tuple(column for index, column, _ in indexes if index == "PRIMARY")
        if not all(by_name[column].orders for column in key):
            key = ()
        return Description(columns, key, frozenset(column for _, column, place in indexes if place == "1"))

    def _place(self, subject: Subject) -> tuple[str, str]:
        assert subject.table is not None, "a query has no place"
        schema = subject.table[0] if len(subject.table) > 1 else self._address.database
        return schema, subject.table[-1]

    def has_nulls(self, selection: Selection) -> bool:
        """See ``SourceDatabase``."""
        return bool(self.execute(selection.nulls(self.quote)).rows)

    def find_bound(self, selection: Selection, by_time: bool) -> Bound | None:
        """See ``SourceDatabase``. The clock is that of the server."""
        also: tuple[str, ...] = ()
        if by_time:
            field = self._field(selection, 0)
            also = (f"{selection.order.expressions(self.quote)[0]} <= '{self._latest(field)}'",)
        value = self._first(self._bound(selection).largest(self.quote, str, *also))
        return None if value is None else Bound(value)

    def _latest(self, field: Field) -> str:
        """The largest time that a row may have that is read, as the column has it."""
        now = datetime.fromisoformat(self.execute("select utc_timestamp(6)").rows[0][0]).replace(tzinfo=UTC)
        wait = timedelta(milliseconds=self._settings.timestamp_delay_interval_ms, microseconds=10 ** (6 - field.digits))
        moment = now - wait
        if field.name != "timestamp":
            zone = self._settings.db_timezone
            moment = moment.astimezone(UTC if zone == "UTC" else ZoneInfo(zone))
        if field.name == "date":
            return (moment.date() - timedelta(days=1)).isoformat()
        return moment.replace(tzinfo=None).isoformat(" ", "microseconds")

    def find_running(self, subject: Subject, by_time: bool) -> frozenset[str]:
        """
        See ``SourceDatabase``. All of the server: it does not say which tables a transaction has written to.

        Raises:
            TableFault: the server has transactions of others, which it does not know before they are committed.
        """
        if not self._waits:
            return frozenset()
        active = self.execute(_SESSIONS).rows
        if any(command.startswith("Slave") for _, _, command, _ in active):
            raise TableFault(_ELSEWHERE.format("a replica"))
        statements = {int(thread): query for thread, query, _, text in active if writes(text)}
        transactions = self._find_transactions()
        detached = [Session(0, None, number) for thread, number in transactions if thread == 0]
        of = {thread: number for thread, number in transactions if thread}
        sessions = [Session(one, statements.get(one), of.get(one)) for one in sorted(statements.keys() | of.keys())]
        return self._running.look(sessions + detached)

    def _find_transactions(self) -> list[tuple[int, str]]:
        """Threads and numbers of transactions that have written, as they are after the call began."""
        for _ in range(_LOOKS_MAX):
            mark = f"/* headrace {self._live.thread_id()}.{next(self._looks)} */"
            self.execute("start transaction with consistent snapshot")
            rows = self.execute(_TRANSACTIONS.format(mark)).rows
            self.execute("rollback")
            if any(mark in (text or "") for _, _, text in rows):
                return [(int(thread), number) for thread, number, _ in rows if number != _READS_ONLY]
            self.execute(f"do sleep({_COPY_S})")
        raise RetriableError("MariaDB: information_schema.innodb_trx does not show the transactions of now")

    def find_risks(self, subject: Subject, order: Order) -> Risks:
        """See ``SourceDatabase``."""
        return Risks()

    def nth(self, selection: Selection, number: int) -> Any:
        """See ``SourceDatabase``."""
        return self._first(self._bound(selection).nth(self.quote, str, number))

    def read(self, selection: Selection) -> Page:
        """See ``SourceDatabase``."""
        with closing(self._pages(selection, None)) as pages:
            page = next(pages)
        if page.cut:
            self.connect()
        return page

    def stream(self, selection: Selection, rows_max: int) -> Iterator[Page]:
        """See ``SourceDatabase``."""
        yield from self._pages(selection, rows_max)

    def _pages(self, selection: Selection, rows_max: int | None) -> Generator[Page, None, None]:
        fields = self._find_fields(selection.subject)
        floats = [place for place, one in enumerate(fields) if one.is_float]
        exact = "".join(f", cast(t.{self.quote(fields[place].typed.name)} as double)" for place in floats)
        bound = self._bound(selection)
        statement = bound.statement(self.quote, str, exact)
        rows: list[Sequence[bytes | None]] = []
        size, first, whole = 0, True, False
        with self._faults():
            cursor = _Rows(self._live)
            cursor.execute(statement)
            described = cursor.described()
            try:
                for row in iter(cursor.fetchone, None):
                    if rows and (size >= BYTES_MAX or len(rows) == rows_max):
                        yield self._page(selection, described, floats, rows, cut=size >= BYTES_MAX)
                        rows, size, first = [], 0, False
                    rows.append(row)
                    size += sum(8 if value is None else len(value) for value in row)
                whole = True
            finally:
                if not whole:
                    cursor.abandon()
                    self._abandon()
        if rows or first:
            yield self._page(selection, described, floats, rows, cut=False)

    def _abandon(self) -> None:
        """Let go of a connection from which rows are still to come."""
        if self._connection is not None:
            self._connection._force_close()
        self.close()

    def _page(
        self,
        selection: Selection,
        described: list[Field],
        floats: list[int],
        rows: Sequence[Sequence[bytes | None]],
        *,
        cut: bool,
    ) -> Page:
        width = len(described) - len(floats)
        columns = [list(values) for values in zip(*rows, strict=True)] or [[] for _ in described]
        for place, values in zip(floats, columns[width:], strict=True):
            columns[place] = values
        own = width - len(selection.order.columns)
        texts = texts_of(described[:own], columns[:own])
        places = places_of(described[own:width], columns[own:width])
        return page_of(selection, [one.typed for one in described[:own]], texts + places, cut=cut)

    def _find_fields(self, subject: Subject) -> list[Field]:
        with self._faults():
            cursor = _Rows(self._live)
            with closing(cursor):
                cursor.execute(f"select * from {subject.source(self.quote)} limit 0")
                fields = cursor.described()
        names = [one.typed.name for one in fields]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise TableFault(f"query: it has two columns {twice!r}; name one of them otherwise with as")
        self._fields[subject] = {one.typed.name: one for one in fields}
        return fields

    def _field(self, selection: Selection, place: int) -> Field:
        """Of a column of the order; of several, the first one."""
        name = selection.order.columns[place][0]
        field = self._fields[selection.subject].get(name)
        if field is None:
            raise TableFault(f"{selection.subject.name} has no column {name!r} any more")
        return field

    def _bound(self, selection: Selection) -> Selection:
        """With literals for values, of the types that the columns have."""
        after, upto = selection.after, selection.upto
        try:
            if after is not None:
                after = tuple(self._field(selection, place).literal(str(value)) for place, value in enumerate(after))
            if upto is not None:
                upto = self._field(selection, 0).literal(str(upto))
        except ValueError as error:
            raise TableFault(str(error)) from error
        return replace(selection, after=after, upto=upto, expanded=True)

    def _first(self, statement: str) -> str | None:
        """The only value, as text; of bytes in hexadecimal."""
        rows = self.execute(statement).rows
        value: str | None = rows[0][0] if rows else None
        return value
