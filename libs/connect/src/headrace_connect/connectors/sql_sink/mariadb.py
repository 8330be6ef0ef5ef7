"""
MariaDB, by PyMySQL: rows go into their table in statements of many rows, or over a temporary table.

A change of a table commits the transaction there, so the transaction is undone before, and written again. Keys that
differ may be equal to their column, as ``a`` and ``A`` mostly are: then records are written strictly in their order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from headrace_connect.connectors.sql.mariadb import MariadbSession, literal
from headrace_connect.connectors.sql.session import RowFault, TableFault, TableName, show_table
from headrace_connect.connectors.sql.url import MariadbAddress
from headrace_connect.connectors.sql_sink.database import Write
from headrace_connect.connectors.sql_sink.folding import fold, groups, missing_row, runs
from headrace_connect.connectors.sql_sink.kinds import BOOLEAN, Column, Kind
from headrace_connect.connectors.sql_sink.mariadb_tables import (
    COLLATIONS,
    COLUMNS,
    DEFINITION,
    ENGINE,
    UNIQUE,
    Keys,
    column_of,
    type_name,
    widest,
)
from headrace_connect.connectors.sql_sink.mariadb_values import tuples_of
from headrace_connect.plugin import RetriableError

_STATEMENT_BYTES_MAX: Final = 4 << 20
"""Of one statement with rows; one row may have more, as far as the server takes it."""
_PACKET_REST: Final = 64 << 10
"""Of the server's largest packet, what is left for the rest of a statement."""
_WHOLE_MAX: Final = 35
"""Digits before the point of a decimal that has all 30 behind it."""


class Mariadb(MariadbSession):
    """Satisfies ``Database``."""

    bytes_type = "varbinary(3000)"
    temporary = ""
    table_options = " engine=InnoDB"
    locks_all = False
    adds_many = True
    changes_end = True
    locking = " for update"

    def __init__(self, address: MariadbAddress, user: str, password: str, timeout_ms: int) -> None:
        super().__init__(address, user, password, timeout_ms)
        self._packet_max = _STATEMENT_BYTES_MAX
        self._has_lock = False
        self._stages: dict[tuple[object, ...], str] = {}
        self._stages_made = 0
        self._keys: dict[TableName, Keys] = {}

    def _prepare(self) -> None:
        self._has_lock = False
        self._stages = {}
        self._keys = {}
        ((size,),) = self.execute("select @@max_allowed_packet").rows
        self._packet_max = int(size) - _PACKET_REST

    def begin(self) -> None:
        """See ``Database``."""
        self._unlock()
        super().begin()

    def commit(self) -> None:
        """See ``Database``."""
        super().commit()
        self._unlock()

    def rollback(self) -> None:
        """See ``Database``."""
        super().rollback()
        if self._connection is not None:
            self._forget()
            self._unlock()

    def _forget(self) -> None:
        """What is known of tables, as they may change."""
        self._keys = {}
        stages, self._stages = self._stages, {}
        for stage in stages.values():
            self.execute(f"drop temporary table if exists {stage}")

    def find_columns(self, table: TableName) -> list[Column]:
        """
        See ``Database``.

        Raises:
            TableFault: it is in an engine that undoes nothing.
        """
        schema, name = self._place(table)
        found = self.execute(COLUMNS, (schema, name, name)).rows
        if found:
            ((engine,),) = self.execute(ENGINE, (schema, name, name)).rows
            if engine != "InnoDB":
                raise TableFault(
                    f"{show_table(table)} is {f'a table of {engine}' if engine else 'a view'}, and its rows could come "
                    "twice: ALTER TABLE … ENGINE=InnoDB, or write into another table"
                )
        return [column_of(row) for row in found]

    def _place(self, table: TableName) -> tuple[str, str]:
        return (table[0], table[1]) if len(table) > 1 else (self._address.database, table[0])

    def lock_tables(self) -> None:
        """See ``Database``."""
        self.rollback()
        seconds = max(1, round(self._timeout_s))
        ((taken,),) = self.execute(f"select get_lock(concat('headrace.', md5(database())), {seconds})").rows
        if taken != "1":
            raise RetriableError("MariaDB: another task makes or changes a table")
        self._has_lock = True

    def _unlock(self) -> None:
        if self._has_lock:
            self._has_lock = False
            self.execute("do release_lock(concat('headrace.', md5(database())))")

    def or_nothing(self, keys: Sequence[str]) -> str:
        """See ``Database``."""
        return f"on duplicate key update {keys[0]} = {keys[0]}"

    def type_name(self, kind: Kind, key: bool) -> str:
        """See ``Database``."""
        return type_name(kind, key)

    def can_widen(self, column: Column) -> bool:
        """See ``Database``. Text of a key has to have a bound."""
        kind = column.kind
        if kind.name == "numeric" and kind.digits is not None:
            return kind.digits - (kind.scale or 0) <= _WHOLE_MAX
        return not (column.key and kind.name == "text")

    def widen(self, table: TableName, column: str, kind: Kind) -> None:
        """See ``Database``. All else that was said of the column stays."""
        schema, name = self._place(table)
        nullable, default, extra, comment, charset, collation = self.execute(
            DEFINITION, (schema, name, name, column)
        ).rows[0]
        type_ = "longtext" if kind.name == "text" else type_name(kind, key=False)
        parts = [self._table(table), "modify column", self.quote(column), type_]
        if kind.name == "text" and charset:
            parts.append(f"character set {charset} collate {collation}")
        parts.append("null" if nullable == "YES" else "not null")
        if default is not None:
            parts.append(f"default {default}")
        if "auto_increment" in extra and kind.name != "numeric":
            parts.append("auto_increment")
        if comment:
            parts.append(f"comment {literal(comment)}")
        try:
            self.execute(f"alter table {' '.join(parts)}")
        except RowFault as error:  # of a row that is there
            raise TableFault(str(error)) from error

    def kind_of(self, column: Column, source: pa.DataType) -> Kind:
        """See ``Database``."""
        if pa.types.is_boolean(source) and column.kind.name in ("int8", "uint8"):
            return BOOLEAN
        return widest(column.kind)

    def find_unfit(self, values: pa.Array[Any]) -> dict[int, str]:
        """See ``Database``."""
        if not pa.types.is_floating(values.type):
            return {}
        mask = pc.is_finite(values).to_pylist()
        return {row: "MariaDB has no NaN and no infinity" for row, finite in enumerate(mask) if finite is False}

    def truncate(self, table: TableName) -> None:
        """See ``Database``. ``TRUNCATE`` would commit the transaction."""
        self.execute(f"delete from {self._table(table)}")

    def write(self, write: Write) -> None:
        """See ``Database``."""
        if write.mode == "insert" or self._find_keys(write.table).inexact & set(write.keys):
            parts = runs(write)
        else:
            parts = groups(fold(write))
        for part in parts:
            if part.has_deletes:
                self._delete(part)
            elif part.mode == "insert":
                self._insert(self._table(part.table), part, tuple(part.columns))
            elif part.mode == "upsert":
                self._upsert(part)
            else:
                self._update(part)

    def _find_keys(self, table: TableName) -> Keys:
        if table not in self._keys:
            schema, name = self._place(table)
            unique, collations = (self.execute(query, (schema, name, name)).rows for query in (UNIQUE, COLLATIONS))
            self._keys[table] = Keys.of(unique, collations)
        return self._keys[table]

    def _insert(self, table: str, write: Write, names: tuple[str, ...], behind: str = "") -> None:
        """Rows in their order, in as many statements as their size needs."""
        head = f"insert into {table} ({', '.join(map(self.quote, names))}) values ".encode()
        tail = f" {behind}".encode()
        some: list[bytes] = []
        size = 0
        for row in tuples_of([write.columns[name] for name in names]):
            if len(row) > self._packet_max:
                raise RowFault(
                    f"the row has {len(row)} bytes as a statement, and max_allowed_packet of the server is "
                    f"{self._packet_max + _PACKET_REST}"
                )
            if some and size + len(row) > min(_STATEMENT_BYTES_MAX, self._packet_max):
                self._run(head + b",".join(some) + tail)
                some, size = [], 0
            some.append(row)
            size += len(row) + 1
        self._run(head + b",".join(some) + tail)

    def _upsert(self, write: Write) -> None:
        others = [self.quote(name) for name in write.columns if name not in write.keys]
        keys, unique = frozenset(write.keys), self._find_keys(write.table).unique
        if keys not in unique:
            raise TableFault(
                f"{show_table(write.table)} has no unique key of {', '.join(write.keys)} alone, and insert.mode=upsert "
                "needs one: add it, or set pk.fields"
            )
        if set(unique) == {keys}:
            changes = ", ".join(f"{name} = values({name})" for name in others)
            behind = f"on duplicate key update {changes}" if others else self.or_nothing([self.quote(write.keys[0])])
            self._insert(self._table(write.table), write, tuple(write.columns), behind)
            return
        # ON DUPLICATE KEY would change the row of another key, where that has an equal value in another unique column.
        stage = self._fill_stage(write, tuple(write.columns))
        table, matching = self._table(write.table), self._matching(write)
        if others:
            self._update_from(stage, write)
        listed = ", ".join(f"s.{self.quote(name)}" for name in write.columns)
        self.execute(
            f"insert into {table} ({', '.join(map(self.quote, write.columns))}) select {listed} from {stage} s "
            f"left join {table} t on {matching} where t.{self.quote(write.keys[0])} is null"
        )

    def _update(self, write: Write) -> None:
        stage = self._fill_stage(write, tuple(write.columns))
        if write.mode == "patch":
            table, matching = self._table(write.table), self._matching(write)
            there = f"exists (select 1 from {table} t where {matching})"
            if self.execute(f"select 1 from {stage} s where not {there} limit 1").rows:
                raise missing_row(write)
        self._update_from(stage, write)

    def _update_from(self, stage: str, write: Write) -> None:
        names = [name for name in write.columns if name not in write.keys] or list(write.keys)
        changes = ", ".join(f"t.{self.quote(name)} = s.{self.quote(name)}" for name in names)
        table = self._table(write.table)
        self.execute(f"update {stage} s straight_join {table} t on {self._matching(write)} set {changes}")

    def _delete(self, write: Write) -> None:
        stage = self._fill_stage(write, write.keys)
        table = self._table(write.table)
        self.execute(f"delete t from {stage} s straight_join {table} t on {self._matching(write)}")

    def _fill_stage(self, write: Write, names: tuple[str, ...]) -> str:
        """A temporary table that has only these rows; of equal keys it has the last one."""
        key = (write.table, write.keys, names)
        if key not in self._stages:
            self._stages_made += 1
            stage = self._stages[key] = f"headrace_stage_{self._stages_made}"
            columns, keys = (", ".join(map(self.quote, some)) for some in (names, write.keys))
            self.execute(
                f"create temporary table {stage} (unique ({keys})) engine=InnoDB "
                f"select {columns} from {self._table(write.table)} limit 0"
            )
        stage = self._stages[key]
        self.execute(f"delete from {stage}")
        changes = ", ".join(f"{self.quote(name)} = values({self.quote(name)})" for name in names)
        self._insert(stage, write, names, f"on duplicate key update {changes}")
        return stage

    def _matching(self, write: Write) -> str:
        return " and ".join(f"t.{self.quote(key)} = s.{self.quote(key)}" for key in write.keys)

    def _table(self, table: TableName) -> str:
        return ".".join(map(self.quote, table))
