"""
PostgreSQL, by psycopg 3: rows are copied into a temporary table, and go from there into their table by one statement.

The temporary table has the types of the target's columns, so the server reads the values.
"""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from typing import Any, Final

import psycopg
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from headrace_connect.connectors.sql.postgres import PostgresSession
from headrace_connect.connectors.sql.session import TableName
from headrace_connect.connectors.sql_sink.database import Write
from headrace_connect.connectors.sql_sink.folding import fold, groups, missing_row, runs
from headrace_connect.connectors.sql_sink.kinds import Column, Kind, Name, is_text

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
_PLACE: Final = "headrace_place"
"""A column of temporary tables: PostgreSQL may put a short row before a long one."""
_TABLES_LOCK: Final = 0x6865616472616365


class Postgres(PostgresSession):
    """Satisfies ``Database``."""

    bytes_type = "bytea"
    temporary = "pg_temp"
    table_options = ""
    locks_all = False
    adds_many = True
    changes_end = False
    locking = " for update"

    def __init__(self, url: str, user: str, password: str, timeout_ms: int) -> None:
        super().__init__(url, user, password, timeout_ms)
        self._stages: dict[tuple[object, ...], str] = {}
        self._stages_made = 0

    def _prepare(self) -> None:
        self._stages = {}
        # The locks of one that is paused, or cut off, must not be there for good.
        self.execute(f"set idle_in_transaction_session_timeout = {2 * self._timeout_ms}")

    def rollback(self) -> None:
        """See ``Database``."""
        if self._connection is not None and self._status != psycopg.pq.TransactionStatus.IDLE:
            super().rollback()
            self._stages = {}
            self.execute("discard temp")

    def _undo_block(self) -> None:
        super()._undo_block()
        self._stages = {}  # one that was made in the block is gone

    def find_columns(self, table: TableName) -> list[Column]:
        """See ``Database``."""
        found = self.execute(_COLUMNS, (".".join(map(self.quote, table)),)).rows
        return [Column(name, _kind(type_, modifier, class_)) for name, type_, modifier, class_ in found]

    def lock_tables(self) -> None:
        """See ``Database``."""
        self.execute("select pg_advisory_xact_lock(?)", (_TABLES_LOCK,))

    def or_nothing(self, keys: Sequence[str]) -> str:
        """See ``Database``."""
        return f"on conflict ({', '.join(keys)}) do nothing"

    def type_name(self, kind: Kind, key: bool) -> str:
        """See ``Database``."""
        if kind.name == "numeric" and kind.digits is not None:
            return f"numeric({kind.digits},{kind.scale or 0})"
        return _TYPES.get(kind.name, "numeric" if kind.name == "numeric" else "text")

    def can_widen(self, column: Column) -> bool:
        """See ``Database``."""
        return True

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

    def begin_reading(self) -> None:
        """See ``Database``."""
        self.begin()
        self.execute("set transaction isolation level repeatable read")

    def differs(self, one: str, other: str, column: Column) -> str:
        """See ``Database``. Not all types have an equality; all have a text."""
        cast = "::text" if column.kind.name in ("json", "other") else ""
        return f"{one}{cast} is distinct from {other}{cast}"

    def truncate(self, table: TableName) -> None:
        """See ``Database``."""
        self.execute(f"truncate {'.'.join(map(self.quote, table))}")

    def write(self, write: Write) -> None:
        """See ``Database``."""
        parts = runs(write) if write.mode == "insert" else groups(fold(write))
        for part in parts:
            self._write_run(part, delete=part.has_deletes)

    def _write_run(self, write: Write, *, delete: bool) -> None:
        names = write.keys if delete else tuple(write.columns)
        stage = self._fill_stage(write, names)
        table = ".".join(map(self.quote, write.table))
        matching = " and ".join(f"t.{self.quote(key)} = s.{self.quote(key)}" for key in write.keys)
        listed = ", ".join(map(self.quote, names))
        others = [self.quote(name) for name in names if name not in write.keys]
        if write.mode == "patch" and not delete:
            there = f"exists (select from {table} t where {matching})"
            if self.execute(f"select 1 from {stage} s where not {there} limit 1").rows:
                raise missing_row(write)
        if delete:
            statement = f"delete from {table} t using {stage} s where {matching}"
        elif write.mode in ("update", "patch"):
            changes = ", ".join(f"{name} = s.{name}" for name in others or map(self.quote, write.keys))
            statement = f"update {table} t set {changes} from {stage} s where {matching}"
        else:
            statement = f"insert into {table} ({listed}) select {listed} from {stage} order by {_PLACE}"
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
                f"select 0 as {_PLACE}, {listed} from {table} with no data"
            )
            self._stages[key] = stage
        stage = self._stages[key]
        text = BytesIO()
        columns = [_written(write.columns[name]) for name in names]
        columns.insert(0, pa.array(range(len(columns[0])), pa.int32()))
        options = csv.WriteOptions(include_header=False, quoting_style="all_valid")
        csv.write_csv(pa.table(columns, names=[str(place) for place in range(len(columns))]), text, options)
        with self._faults(), self._live.cursor().copy(f"copy {stage} from stdin (format csv)") as copy:
            copy.write(text.getbuffer())
        return stage


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
