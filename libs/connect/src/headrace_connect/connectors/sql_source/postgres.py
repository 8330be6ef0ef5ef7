"""
PostgreSQL as a source: pages by COPY, in the text form of the types, which ``core.values`` makes columns of.

Rows wait for transactions that are open. Numbers of a sequence are handed out before a transaction commits, but behind
a lock of the table or of the sequence that it keeps until its end; ``now()`` is when it began. So who has such a lock,
or for times whoever has begun, may still commit a row that belongs before those that are there. ``CREATE INDEX
CONCURRENTLY`` waits in the same way.
"""

from __future__ import annotations

from collections.abc import Generator, Set
from typing import Any, Final

from headrace_connect.connectors.sql.postgres import PostgresSession
from headrace_connect.connectors.sql.session import TableFault
from headrace_connect.connectors.sql_source.copied import Typed, make_page
from headrace_connect.connectors.sql_source.database import BYTES_MAX, Column, Description, Listed, Page, Risks
from headrace_connect.connectors.sql_source.holding import Bound
from headrace_connect.connectors.sql_source.position import Value
from headrace_connect.connectors.sql_source.settings import SourceSettings
from headrace_connect.connectors.sql_source.statements import Order, Selection, Subject

_SESSION: Final = (
    "set datestyle = 'ISO'; set timezone = 'UTC'; set intervalstyle = 'postgres'; set bytea_output = 'hex'; "
    "set lc_monetary = 'C'; set extra_float_digits = 1; set standard_conforming_strings = on; "
    "set default_transaction_read_only = on"
)
_IS_STANDBY: Final = "select pg_is_in_recovery()"
_DATE, _TIMESTAMP, _TIMESTAMPTZ = 1082, 1114, 1184
_NUMBERS: Final = frozenset({20, 21, 23, 1700})
"""bigint, smallint, integer, numeric."""
_TIMES: Final = frozenset({_DATE, _TIMESTAMP, _TIMESTAMPTZ})
_KINDS: Final = {"TABLE": ("r", "p"), "VIEW": ("v", "m")}
_DIGITS: Final = 6
"""Of a second's fraction, where a type does not say it."""
_TABLES: Final = """
select n.nspname, c.relname, pg_table_is_visible(c.oid) from pg_class c join pg_namespace n on n.oid = c.relnamespace
where c.relkind in ({kinds}) and not c.relispartition and n.nspname <> 'information_schema' and n.nspname !~ '^pg_'
order by 1, 2
"""
_COLUMNS: Final = """
select a.attname, case when c.relkind in ('r', 'p') then not a.attnotnull end,
    exists (select 1 from pg_index i where i.indrelid = c.oid and i.indisvalid and i.indpred is null
        and i.indkey[0] = a.attnum),
    (select array_position(i.indkey::int2[], a.attnum) from pg_index i where i.indrelid = c.oid and i.indisprimary)
from pg_attribute a join pg_class c on c.oid = a.attrelid
where c.oid = to_regclass({table}) and a.attnum > 0 and not a.attisdropped
"""
_RELATIONS: Final = """
with recursive family(oid) as (
    select to_regclass({table})::oid
    union select i.inhrelid from pg_inherits i join family f on i.inhparent = f.oid
), relations(oid) as (
    select oid from family
    union select d.objid from pg_depend d join pg_class s on s.oid = d.objid and s.relkind = 'S'
        where d.classid = 'pg_class'::regclass and d.refclassid = 'pg_class'::regclass
        and d.refobjid in (select oid from family)
    union select d.refobjid from pg_attrdef a
        join pg_depend d on d.classid = 'pg_attrdef'::regclass and d.objid = a.oid
            and d.refclassid = 'pg_class'::regclass
        join pg_class s on s.oid = d.refobjid and s.relkind = 'S'
        where a.adrelid in (select oid from family)
)
"""
"""A table, its partitions and heirs, and the sequences that their columns take numbers from."""
_WRITERS: Final = """
select distinct l.virtualtransaction from pg_locks l where l.locktype = 'relation' and l.mode = 'RowExclusiveLock'
    and l.database = (select oid from pg_database where datname = current_database())
    and l.pid is distinct from pg_backend_pid()
"""
_OF_TABLE: Final = " and l.relation in (select oid from relations)"
_BEGUN: Final = """
select l.virtualtransaction from pg_locks l join pg_stat_activity a on a.pid = l.pid
where l.locktype = 'virtualxid' and l.mode = 'ExclusiveLock' and a.datname = current_database()
    and a.usesysid is not null and l.pid <> pg_backend_pid()
union all select l.virtualtransaction from pg_locks l join pg_prepared_xacts p on p.transaction = l.transactionid
where l.locktype = 'transactionid' and l.pid is null and p.database = current_database()
"""
_CACHED: Final = """
select c.relname, s.seqcache from pg_sequence s join pg_class c on c.oid = s.seqrelid
where s.seqcache > 1 and s.seqrelid in (select oid from relations)
"""


class Postgres(PostgresSession):
    """Satisfies ``SourceDatabase``. Values of positions are text."""

    has_column_types = True

    def __init__(self, settings: SourceSettings) -> None:
        password = settings.connection_password
        reveal = password.reveal() if password else ""
        super().__init__(settings.url.text, settings.connection_user, reveal, settings.timeout_ms)
        self._settings = settings
        self._waits = settings.hold_back == "transactions" and settings.mode != "bulk"
        self._types: dict[Subject, dict[str, Typed]] = {}
        """Of what was described."""

    def _prepare(self) -> None:
        self._live.prepare_threshold = None  # a prepared statement fails when its table has another column
        self.execute(_SESSION)
        if self._waits and self.execute(_IS_STANDBY).rows[0][0]:
            raise TableFault(
                "hold.back: the server is a standby, which does not know the transactions that are open: read from the "
                "primary, or set hold.back=delay, which may leave out rows that are committed late"
            )

    def find_tables(self, types: Set[str]) -> list[Listed]:
        """See ``SourceDatabase``."""
        kinds = ", ".join(f"'{kind}'" for type_ in sorted(types) for kind in _KINDS[type_])
        found = self.execute(_TABLES.format(kinds=kinds)).rows
        return [
            Listed((schema, name), (f"{schema}.{name}", name) if default else (f"{schema}.{name}",))
            for schema, name, default in found
        ]

    def describe(self, subject: Subject) -> Description:
        """See ``SourceDatabase``."""
        typed = self._find_types(subject)
        self._types[subject] = {one.name: one for one in typed}
        shown = ", ".join(f"format_type({one.oid}, {one.modifier})" for one in typed)
        types = self.execute(f"select {shown}").rows[0]
        table = self._table(subject)
        known = {} if table is None else {row[0]: row for row in self.execute(_COLUMNS.format(table=table)).rows}
        columns = [
            Column(one.name, str(type_), _sorts(one.oid), known[one.name][1] if one.name in known else None)
            for one, type_ in zip(typed, types, strict=True)
        ]
        key = sorted((row[3], row[0]) for row in known.values() if row[3] is not None)
        indexed = frozenset(row[0] for row in known.values() if row[2]) if self._has_indexes(subject) else None
        return Description(tuple(columns), tuple(name for _, name in key), indexed)

    def _has_indexes(self, subject: Subject) -> bool:
        table = self._table(subject)
        if table is None:
            return False
        found = self.execute(f"select relkind from pg_class where oid = to_regclass({table})").rows
        return found[0][0] in ("r", "p", "m")

    def has_nulls(self, selection: Selection) -> bool:
        """See ``SourceDatabase``."""
        return bool(self.execute(selection.nulls(self.quote)).rows)

    def find_bound(self, selection: Selection, by_time: bool) -> Bound | None:
        """See ``SourceDatabase``. The clock is that of the server."""
        also: tuple[str, ...] = ()
        if by_time:
            first = selection.order.columns[0][0]
            also = (f"{selection.order.expressions(self.quote)[0]} <= {self._clock(selection.subject, first)}",)
        value = self._first(selection.largest(self.quote, _literal, *also))
        return None if value is None else Bound(value)

    def find_running(self, subject: Subject, by_time: bool) -> frozenset[str]:
        """See ``SourceDatabase``."""
        if not self._waits:
            return frozenset()
        table = self._table(subject)
        if by_time:
            statement = _BEGUN
        elif table is None:
            statement = _WRITERS  # nobody knows which tables the query reads
        else:
            statement = _RELATIONS.format(table=table) + _WRITERS + _OF_TABLE
        return frozenset(str(row[0]) for row in self.execute(statement).rows)

    def find_risks(self, subject: Subject, order: Order) -> Risks:
        """See ``SourceDatabase``."""
        table = self._table(subject)
        if table is None:
            return Risks()
        found = self.execute(_RELATIONS.format(table=table) + _CACHED).rows
        return Risks(
            tuple(
                f"incrementing.column.name: the sequence {name} of {subject.name} gives each session {cache} numbers "
                "ahead, so rows come behind later ones and are left out: ALTER SEQUENCE … CACHE 1, or read with "
                "timestamp+incrementing"
                for name, cache in found
            )
        )

    def nth(self, selection: Selection, number: int) -> Any:
        """See ``SourceDatabase``."""
        return self._first(selection.nth(self.quote, _literal, number))

    def read(self, selection: Selection) -> Page:
        """See ``SourceDatabase``."""
        self.begin()
        try:
            pages = self._pages(selection, None)
            page = next(pages)
            pages.close()
            if page.cut:
                self.rollback()  # the rest was cancelled
            else:
                self.commit()
        except BaseException:
            if self._connection is not None and not self._connection.closed:
                self.rollback()
            raise
        return page

    def stream(self, selection: Selection, rows_max: int) -> Generator[Page, None, None]:
        """See ``SourceDatabase``."""
        self.begin()
        yield from self._pages(selection, rows_max)
        self.commit()

    def _pages(self, selection: Selection, rows_max: int | None) -> Generator[Page, None, None]:
        typed = self._find_types(selection.subject)  # in the same transaction, so they are those of the rows
        statement = selection.statement(self.quote, _literal)
        rows: list[bytes] = []
        size = 0
        first = True
        with (
            self._faults(),
            self._live.cursor().copy(f"copy ({statement}) to stdout (format csv, force_quote *)") as copy,
        ):
            for row in copy:
                if rows and (size >= BYTES_MAX or len(rows) == rows_max):
                    yield make_page(selection, typed, rows, cut=size >= BYTES_MAX)
                    rows, size, first = [], 0, False
                rows.append(bytes(row))
                size += len(rows[-1])
        if rows or first:
            yield make_page(selection, typed, rows, cut=False)

    def _find_types(self, subject: Subject) -> list[Typed]:
        with self._faults():
            result = self._live.execute(f"select * from {subject.source(self.quote)} limit 0").pgresult
        assert result is not None, "a select has a result"
        typed = [
            Typed((result.fname(place) or b"").decode(), result.ftype(place), result.fmod(place))
            for place in range(result.nfields)
        ]
        names = [one.name for one in typed]
        if not names:
            raise TableFault(f"{subject.name} has no columns")
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise TableFault(f"query: it has two columns {twice!r}; name one of them otherwise with as")
        return typed

    def _first(self, statement: str) -> str | None:
        """The only value, as text."""
        with self._faults():
            result = self._live.execute(statement).pgresult
        assert result is not None, "a select has a result"
        value = result.get_value(0, 0) if result.ntuples else None
        return None if value is None else value.decode()

    def _table(self, subject: Subject) -> str | None:
        """As a literal for ``to_regclass``; None: it is a query."""
        return None if subject.table is None else _literal(".".join(map(self.quote, subject.table)))

    def _clock(self, subject: Subject, column: str) -> str:
        """The largest time that a row may have that is read."""
        typed = self._types[subject][column]
        digits = typed.modifier if 0 <= typed.modifier <= _DIGITS else _DIGITS
        wait_us = self._settings.timestamp_delay_interval_ms * 1_000 + 10 ** (_DIGITS - digits)
        moment = f"clock_timestamp() - interval '{wait_us} microseconds'"
        local = f"({moment}) at time zone {_literal(self._settings.db_timezone)}"
        if typed.oid == _TIMESTAMPTZ:
            return f"(select {moment})"
        return f"(select {local})" if typed.oid == _TIMESTAMP else f"(select ({local})::date - 1)"


def _sorts(oid: int) -> Any:
    return "number" if oid in _NUMBERS else "time" if oid in _TIMES else "neither"


def _literal(value: Value) -> str:
    """Of a type that the server finds out; ``standard_conforming_strings`` is on."""
    return "'" + str(value).replace("'", "''") + "'"
