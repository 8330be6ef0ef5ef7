"""SQLite, by the standard library."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa

from headrace_connect.connectors.sql.session import TableFault, TableName
from headrace_connect.connectors.sql.sqlite import SqliteSession, faults
from headrace_connect.connectors.sql_sink.database import Write
from headrace_connect.connectors.sql_sink.folding import keys_of, missing_row, runs
from headrace_connect.connectors.sql_sink.kinds import FLOAT64, NUMBER, TEXT, Column, Kind, is_text

_TYPES: Final = {
    "int16": "INTEGER",
    "int32": "INTEGER",
    "int64": "INTEGER",
    "boolean": "INTEGER",
    "float32": "REAL",
    "float64": "REAL",
    "bytes": "BLOB",
}
_AFFINITIES: Final = (
    (("INT",), NUMBER),
    (("CHAR", "CLOB", "TEXT"), TEXT),
    (("BLOB",), Kind("other")),
    (("REAL", "FLOA", "DOUB"), FLOAT64),
)


class Sqlite(SqliteSession):
    """Satisfies ``Database``. A transaction locks the whole database for other writers."""

    name_bytes_max = 1_000
    bytes_type = "BLOB"
    temporary = "temp"
    table_options = ""
    locks_all = True
    adds_many = False
    changes_end = False
    locking = ""

    def begin(self) -> None:
        """See ``Database``."""
        if not self._live.in_transaction:
            self.execute("begin immediate")

    def _undo_block(self) -> None:
        if not self._live.in_transaction:
            raise TableFault("SQLite: a trigger has undone the whole transaction; let it RAISE(ABORT, …)") from None
        super()._undo_block()

    def find_columns(self, table: TableName) -> list[Column]:
        """See ``Database``."""
        schema, name = (table[0], table[1]) if len(table) > 1 else ("main", table[0])
        found = self.execute("select name, type from pragma_table_info(?, ?)", (name, schema)).rows
        return [Column(column, _affinity(declared)) for column, declared in found]

    def lock_tables(self) -> None:
        """See ``Database``; the transaction has locked all."""

    def or_nothing(self, keys: Sequence[str]) -> str:
        """See ``Database``."""
        return f"on conflict ({', '.join(keys)}) do nothing"

    def type_name(self, kind: Kind, key: bool) -> str:
        """See ``Database``. Decimals are text: SQLite would make doubles of them."""
        return _TYPES.get(kind.name, "TEXT")

    def can_widen(self, column: Column) -> bool:
        """See ``Database``; columns take whatever is larger."""
        return False

    def widen(self, table: TableName, column: str, kind: Kind) -> None:
        """See ``Database``."""
        raise TableFault(f"the column {column!r} of {'.'.join(table)} cannot be widened in SQLite")

    def kind_of(self, column: Column, source: pa.DataType) -> Kind:
        """See ``Database``."""
        if column.kind.name != "other":
            return NUMBER if column.kind == FLOAT64 and not pa.types.is_integer(source) else column.kind
        return TEXT if pa.types.is_decimal(source) or is_text(source) else NUMBER

    def find_unfit(self, values: pa.Array[Any]) -> dict[int, str]:
        """See ``Database``; what fits is stored as it is."""
        return {}

    def begin_reading(self) -> None:
        """See ``Database``; without a write-ahead log, writers wait."""
        super().begin()

    def differs(self, one: str, other: str, column: Column) -> str:
        """See ``Database``."""
        return f"{one} is not {other}"

    def truncate(self, table: TableName) -> None:
        """See ``Database``."""
        self.execute(f"delete from {'.'.join(map(self.quote, table))}")

    def write(self, write: Write) -> None:
        """See ``Database``."""
        for part in runs(write):
            if part.mode == "patch":
                self._find_missing(part)
            statement, order = self._delete(part) if part.has_deletes else self._statement(part)
            with faults():
                self._live.executemany(statement, zip(*(part.columns[name].to_pylist() for name in order), strict=True))

    def _find_missing(self, write: Write) -> None:
        where = " and ".join(f"{self.quote(key)} = ?" for key in write.keys)
        for key in keys_of(write):
            if not self.execute(f"select 1 from {self._table(write)} where {where}", key).rows:
                raise missing_row(write)

    def _delete(self, write: Write) -> tuple[str, list[str]]:
        where = " and ".join(f"{self.quote(key)} = ?" for key in write.keys)
        return f"delete from {self._table(write)} where {where}", list(write.keys)

    def _statement(self, write: Write) -> tuple[str, list[str]]:
        names = list(write.columns)
        others = [name for name in names if name not in write.keys]
        if write.mode in ("update", "patch"):
            changes = ", ".join(f"{self.quote(name)} = ?" for name in others or write.keys)
            where = " and ".join(f"{self.quote(key)} = ?" for key in write.keys)
            order = [*(others or write.keys), *write.keys]
            return f"update {self._table(write)} set {changes} where {where}", order
        listed = ", ".join(map(self.quote, names))
        statement = f"insert into {self._table(write)} ({listed}) values ({', '.join('?' * len(names))})"
        if write.mode == "upsert":
            keys = ", ".join(map(self.quote, write.keys))
            changes = ", ".join(f"{self.quote(name)} = excluded.{self.quote(name)}" for name in others)
            statement += f" on conflict ({keys}) do " + (f"update set {changes}" if others else "nothing")
        return statement, names

    def _table(self, write: Write) -> str:
        return ".".join(map(self.quote, write.table))


def _affinity(declared: str) -> Kind:
    """SQLite's rules: what a column makes of what it is given follows from words in its type."""
    if not declared:
        return Kind("other")
    return next((kind for words, kind in _AFFINITIES if any(word in declared.upper() for word in words)), NUMBER)
