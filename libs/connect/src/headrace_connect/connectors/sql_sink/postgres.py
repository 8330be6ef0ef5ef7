"""
PostgreSQL, by psycopg 3: rows are copied into a temporary table, and go from there into their table by one statement.

The temporary table has the types of the target's columns, so the server reads the values.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import BytesIO
from itertools import groupby
from typing import Any, Final

import psycopg
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from headrace_connect.connectors.sql_sink.database import Result, RowFault, TableFault, TableName, Write
from headrace_connect.connectors.sql_sink.kinds import Column, Kind, Name, is_text
from headrace_connect.plugin import RetriableError

_RETRIED: Final = ("08", "25", "40", "53", "55", "57", "58", "XX")
"""Classes of SQLSTATE: connection, transaction state (a standby), rollback, resources, locks, operator, system."""
_OF_ROWS: Final = ("21", "22", "23", "44", "P0", "09", "27")
"""Cardinality, data, constraints, views with a check, what triggers raise."""
_TOO_LARGE: Final = "54000"
_KINDS: Final[dict[str, Name]] = {
    "int2": "int16",
    "int4": "int32",
    "int8": "int64",
    "float4": "float32",
    "float8": "float64",
    "numeric": "numeric",
    "text": "text",
    "varchar": "text",
    "bpchar": "text",
    "bool": "boolean",
    "bytea": "bytes",
    "date": "date",
    "timestamp": "timestamp",
    "timestamptz": "timestamptz",
    "json": "json",
    "jsonb": "json",
}
_PARSED: Final = frozenset({"uuid", "inet", "cidr", "macaddr", "macaddr8", "xml", "citext", "name", "time", "timetz"})
_ENUM: Final = "e"
_TYPES: Final = {
    "int16": "smallint",
    "int32": "integer",
    "int64": "bigint",
    "float32": "real",
    "float64": "double precision",
    "boolean": "boolean",
    "bytes": "bytea",
    "date": "date",
    "timestamp": "timestamp",
    "timestamptz": "timestamptz",
    "json": "jsonb",
}
_COLUMNS: Final = """
select a.attname, coalesce(b.typname, t.typname), case when b.oid is null then a.atttypmod else t.typtypmod end,
    coalesce(b.typtype, t.typtype)
from pg_attribute a join pg_type t on t.oid = a.atttypid
    left join pg_type b on t.typtype = 'd' and b.oid = t.typbasetype
where a.attrelid = to_regclass(?) and a.attnum > 0 and not a.attisdropped order by a.attnum
"""
_TABLES_LOCK: Final = 0x6865616472616365
_QUOTED_OR_VALUE: Final = re.compile(r'"(?:[^"]|"")*"|\?|%')


class Postgres:
    """Satisfies ``Database``."""

    name_bytes_max = 63
    bytes_type = "bytea"
    locks_all = False
    widens = True

    def __init__(self, url: str, user: str, password: str, timeout_ms: int) -> None:
        self._url = url
        self._login: dict[str, Any] = {key: value for key, value in (("user", user), ("password", password)) if value}
        self._timeout_ms = timeout_ms
        self._connection: psycopg.Connection[tuple[Any, ...]] | None = None
        self._stages: dict[tuple[object, ...], str] = {}
        self._stages_made = 0

    def connect(self) -> None:
        """See ``Database``."""
        if self._connection is not None and not self._connection.closed:
            try:
                self.rollback()
            except RetriableError:
                self.close()
            else:
                return
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
            self._stages = {}
            self.execute(f"set lock_timeout = {self._timeout_ms}")
            # The locks of one that is paused, or cut off, must not be there for good.
            self.execute(f"set idle_in_transaction_session_timeout = {2 * self._timeout_ms}")

    def close(self) -> None:
        """See ``Database``."""
        if self._connection is not None:
            connection, self._connection = self._connection, None
            connection.close()

    def begin(self) -> None:
        """See ``Database``."""
        if self._status == psycopg.pq.TransactionStatus.IDLE:
            self.execute("begin")

    def commit(self) -> None:
        """See ``Database``."""
        if self._status != psycopg.pq.TransactionStatus.IDLE:
            self.execute("commit")

    def rollback(self) -> None:
        """See ``Database``."""
        if self._connection is not None and self._status != psycopg.pq.TransactionStatus.IDLE:
            self.execute("rollback")
            self._stages = {}
            self.execute("discard temp")

    def execute(self, statement: str, values: Sequence[Any] = ()) -> Result:
        """See ``Database``."""
        with self._faults():
            cursor = self._live.execute(_with_places(statement) if values else statement, values or None)
            return Result(cursor.rowcount, cursor.fetchall() if cursor.description else ())

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        """See ``Database``."""
        self.execute("savepoint headrace")
        try:
            yield
        except RowFault:
            self.execute("rollback to savepoint headrace")
            self.execute("release savepoint headrace")
            self._stages = {}  # one that was made in the block is gone
            raise
        self.execute("release savepoint headrace")

    def quote(self, name: str) -> str:
        """See ``Database``."""
        if "\0" in name:
            raise TableFault(f"PostgreSQL has no names with NUL, as {name!r}")
        return '"' + name.replace('"', '""') + '"'

    def find_columns(self, table: TableName) -> list[Column]:
        """See ``Database``."""
        found = self.execute(_COLUMNS, (".".join(map(self.quote, table)),)).rows
        return [Column(name, _kind(type_, modifier, class_)) for name, type_, modifier, class_ in found]

    def lock_tables(self) -> None:
        """See ``Database``."""
        self.execute("select pg_advisory_xact_lock(?)", (_TABLES_LOCK,))

    def type_name(self, kind: Kind, key: bool) -> str:
        """See ``Database``."""
        if kind.name == "numeric" and kind.digits is not None:
            return f"numeric({kind.digits},{kind.scale or 0})"
        return _TYPES.get(kind.name, "numeric" if kind.name == "numeric" else "text")

    def widen(self, table: TableName, column: str, kind: Kind) -> None:
        """See ``Database``."""
        name = ".".join(map(self.quote, table))
        self.execute(f"alter table {name} alter column {self.quote(column)} type {self.type_name(kind, key=False)}")
        self._stages = {}

    def kind_of(self, column: Column, source: pa.DataType) -> Kind:
        """See ``Database``."""
        return column.kind

    def find_unfit(self, values: pa.Array[Any]) -> dict[int, str]:
        """See ``Database``."""
        if not is_text(values.type):
            return {}
        mask = pc.match_substring(values, "\0").to_pylist()
        return {row: "PostgreSQL has no text with NUL" for row, has_nul in enumerate(mask) if has_nul}

    def write(self, write: Write) -> None:
        """See ``Database``."""
        if write.mode == "insert":
            for delete, run in groupby(enumerate(write.deletes.to_pylist()), key=lambda one: one[1]):
                rows = [row for row, _ in run]
                self._write_run(write.take(rows[0], len(rows)), delete)
            return
        last = _last_of_keys(write)
        for delete, mask in ((True, write.deletes), (False, pc.invert(write.deletes))):
            part = write.filter(mask if last is None else pc.and_(mask, last))
            if len(part):
                self._write_run(part, delete)

    def _write_run(self, write: Write, delete: bool) -> None:
        names = write.keys if delete else tuple(write.columns)
        stage = self._fill_stage(write, names)
        table = ".".join(map(self.quote, write.table))
        matching = " and ".join(f"t.{self.quote(key)} = s.{self.quote(key)}" for key in write.keys)
        listed = ", ".join(map(self.quote, names))
        others = [self.quote(name) for name in names if name not in write.keys]
        if delete:
            statement = f"delete from {table} t using {stage} s where {matching}"
        elif write.mode == "update":
            changes = ", ".join(f"{name} = s.{name}" for name in others or map(self.quote, write.keys))
            statement = f"update {table} t set {changes} from {stage} s where {matching}"
        else:
            statement = f"insert into {table} ({listed}) select {listed} from {stage}"
            if write.mode == "upsert":
                keys = ", ".join(map(self.quote, write.keys))
                changes = ", ".join(f"{name} = excluded.{name}" for name in others)
                statement += f" on conflict ({keys}) do " + (f"update set {changes}" if others else "nothing")
        self.execute(statement)
        self.execute(f"truncate {stage}")

    def _fill_stage(self, write: Write, names: tuple[str, ...]) -> str:
        """A temporary table that has only these rows."""
        listed = ", ".join(map(self.quote, names))
        key = (write.table, names)
        if key not in self._stages:
            self._stages_made += 1
            stage = f"pg_temp.headrace_stage_{self._stages_made}"
            table = ".".join(map(self.quote, write.table))
            self.execute(
                f"create temp table {stage.removeprefix('pg_temp.')} on commit delete rows as "
                f"select {listed} from {table} with no data"
            )
            self._stages[key] = stage
        stage = self._stages[key]
        text = BytesIO()
        columns = [_written(write.columns[name]) for name in names]
        options = csv.WriteOptions(include_header=False, quoting_style="all_valid")
        csv.write_csv(pa.table(columns, names=[str(place) for place in range(len(names))]), text, options)
        with self._faults(), self._live.cursor().copy(f"copy {stage} ({listed}) from stdin (format csv)") as copy:
            copy.write(text.getbuffer())
        return stage

    @property
    def _live(self) -> psycopg.Connection[tuple[Any, ...]]:
        if self._connection is None:
            raise RetriableError("there is no connection to PostgreSQL")
        return self._connection

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
            if not state or state.startswith(_RETRIED):
                if self._connection is not None and (self._connection.closed or state[:2] in ("08", "57")):
                    self.close()
                if not state and isinstance(error, psycopg.DataError):
                    raise RowFault(message) from error
                raise RetriableError(message) from error
            if state.startswith(_OF_ROWS) or state == _TOO_LARGE:
                raise RowFault(message) from error
            raise TableFault(f"{message} ({state})") from error


def _kind(type_: str, modifier: int, class_: str) -> Kind:
    """From the catalogue's name of a type, what its brackets say, and its class."""
    name: Name = _KINDS.get(type_, "other" if type_ in _PARSED or class_ == _ENUM else "unsupported")
    if name == "numeric" and modifier >= 0:
        packed = modifier - 4
        scale = ((packed & 0x7FF) ^ 1024) - 1024
        return Kind("numeric", packed >> 16 & 0xFFFF, scale)
    if name == "text":
        return Kind("text", modifier - 4 if modifier >= 4 else None)
    if name in ("timestamp", "timestamptz"):
        return Kind(name, modifier if modifier >= 0 else 6)
    return Kind(name)


def _written(column: pa.Array[Any]) -> pa.Array[Any]:
    """As CSV has it."""
    if pa.types.is_binary(column.type):
        return pa.array([None if one is None else f"\\x{one.hex()}" for one in column.to_pylist()], pa.string())
    return column.cast(pa.string()) if pa.types.is_null(column.type) else column


def _last_of_keys(write: Write) -> pa.Array[Any] | None:
    """Which rows are the last one of their key; None: all are."""
    keys = list(zip(*(write.columns[name].to_pylist() for name in write.keys), strict=True))
    last = {key: row for row, key in enumerate(keys)}
    if len(last) == len(keys):
        return None
    rows = set(last.values())
    return pa.array([row in rows for row in range(len(keys))])


def _with_places(statement: str) -> str:
    """As psycopg wants it: ``%s`` where a value goes, and ``%%`` for a percent sign."""

    def place(found: re.Match[str]) -> str:
        text = found[0]
        return "%s" if text == "?" else text.replace("%", "%%")

    return _QUOTED_OR_VALUE.sub(place, statement)
