"""Does what ``core.snapshot`` asks of the database: marks, snapshots, and chunks of rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from headrace_connect.connectors.postgres_cdc.session import Session, quote, sqlstate_of
from headrace_connect.connectors.postgres_cdc.tables import Table, Types, describe
from headrace_connect.core.pgoutput.messages import Relation
from headrace_connect.core.snapshot import (
    MARK_PREFIX,
    ChunkRead,
    Event,
    Key,
    ReadChunk,
    ReadSnapshot,
    SnapshotRead,
    TableAdded,
    TableRemoved,
    Visible,
    WriteMark,
)
from headrace_connect.core.values.types import Array
from headrace_connect.plugin import RetriableError
from headrace_connect.settings import Problem, invalid

_NOT_THERE: Final = ("42P01", "3F000")
"""No such table, no such schema."""
BUSY: Final = ("55P03", "57014", "40P01")
"""Locked by somebody, took too long, deadlock: the same again later."""
_NO_KEY: Final = ("22", "42804", "42883", "42703")
"""The key of the last row cannot be compared any more."""
BUSY_MAX: Final = 300
"""So often in a row the same is tried."""
FETCH_ROWS: Final = 1_000
CHUNK_BYTES: Final = 8 << 20
"""A chunk ends when it has so many."""
UNKEYED_BYTES_MAX: Final = 64 << 20
"""Of a table that is read at once."""
AGAIN_MAX: Final = 100
"""So often a table without a key is read again because it changed meanwhile."""
# With an id of its own the transaction is flushed when it commits, and the mark with it.
_MARK: Final = "select pg_current_xact_id(), pg_logical_emit_message(false, $1::text, $2::text)"


class Busy(Exception):
    """Not now: the same effect comes again."""


@dataclass(frozen=True, slots=True)
class RowsRead:
    """A chunk that waits for its high mark."""

    table: Table
    relation: Relation
    types: Types
    columns: Sequence[Array]
    """Texts of their values (binary)."""


class Copier:
    """Has one session, and the rows of chunks until they are emitted or dropped."""

    def __init__(self, session: Session, tables: Mapping[str, Table], unkeyed_rows_max: int) -> None:
        """
        Args:
            tables: by the names that ``Snapshots`` knows them under; may change.
        """
        self._session = session
        self._tables = tables
        self._unkeyed_rows_max = unkeyed_rows_max
        self._read: dict[str, RowsRead] = {}
        self._again: dict[str, int] = {}
        self._busy = 0

    async def do(self, effect: ReadSnapshot | WriteMark | ReadChunk) -> Event | None:
        """
        What came of it; None: nothing is to be told.

        Raises:
            Busy: it has to be tried again.
            RetriableError: the server is away, or busy for too long.
            InvalidConfig: it refuses, or a table cannot be read.
        """
        try:
            event = await self._do(effect)
        except RetriableError as error:
            self._busy += 1
            if sqlstate_of(error) not in BUSY or self._busy > BUSY_MAX:
                raise
            await self._session.rollback()
            raise Busy from error
        self._busy = 0
        return event

    async def _do(self, effect: ReadSnapshot | WriteMark | ReadChunk) -> Event | None:
        match effect:
            case ReadSnapshot(number):
                ((next_xid,),) = await self._session.fetch("select pg_current_xact_id()::text")
                ((visible,),) = await self._session.fetch("select pg_current_snapshot()::text")
                return SnapshotRead(number, int(next_xid), Visible.parse(visible))
            case WriteMark(mark):
                await self._session.fetch(_MARK, MARK_PREFIX, mark.encode().decode())
                return None
            case ReadChunk(chunk, name, after, limit):
                return await self._read_chunk(chunk, name, after, limit)

    def take(self, chunk: str) -> RowsRead:
        """Rows that are emitted."""
        read = self._read.pop(chunk)
        self._again.pop(str(read.table.oid), None)
        return read

    def drop(self, chunk: str) -> None:
        """
        Forget rows.

        Raises:
            InvalidConfig: a table without a key changes all the time.
        """
        read = self._read.pop(chunk, None)
        if read is None or read.table.key:
            return
        times = self._again[str(read.table.oid)] = self._again.get(str(read.table.oid), 0) + 1
        if times >= AGAIN_MAX:
            raise _unreadable(read.table, f"it has changed while it was read, {times} times")

    async def _read_chunk(self, chunk: str, name: str, after: Key | None, limit: int) -> Event:
        table = self._tables.get(name)
        if table is None:
            return TableRemoved(name)
        try:
            await self._session.fetch("begin isolation level repeatable read read only")
            await self._session.fetch(f"lock table {quote(table.schema, table.name)} in access share mode")
            ((text, oid),) = await self._session.fetch(
                "select pg_current_snapshot()::text, to_regclass($1)::oid::int8", quote(table.schema, table.name)
            )
            relation, types = await describe(self._session, table)
            known = {column.name for column in relation.columns}
            if oid != table.oid or not known >= {*table.key}:
                return TableRemoved(name)  # another one has its name, or its key has changed
            if not relation.columns:
                raise _unreadable(table, "it has no columns")
            columns, is_last = await self._fetch(table, _query(table, relation, after), limit)
        except Exception as error:
            state = sqlstate_of(error)
            if state in _NOT_THERE:
                return TableRemoved(name)
            if after is not None and state.startswith(_NO_KEY):
                return TableAdded(name)
            raise
        finally:
            await self._session.rollback()
        self._read[chunk] = RowsRead(table, relation, types, columns)
        names = [column.name for column in relation.columns]
        of_key = [columns[names.index(name)].to_pylist() for name in table.key]
        keys: list[Key] = list(zip(*of_key, strict=True)) if of_key else [()] * len(columns[0])
        return ChunkRead(chunk, Visible.parse(text), keys, last=is_last)

    async def _fetch(self, table: Table, query: tuple[str, ...], limit: int) -> tuple[list[Array], bool]:
        """Rows, at most ``limit`` and not much more than ``CHUNK_BYTES``; and whether there are no more behind them."""
        statement, *values = query
        await self._session.fetch(f"declare rows no scroll cursor for {statement}", *values)
        parts: list[list[Array]] = []
        count = size = 0
        while True:
            # Not all at once: nobody knows how large they are.
            wanted = min(FETCH_ROWS, limit - count) if table.key else FETCH_ROWS
            fetched = await self._session.fetch_columns(f"fetch {wanted} from rows")
            parts.append(fetched)
            count += len(fetched[0])
            size += sum(column.nbytes for column in fetched)
            if not table.key and count > self._unkeyed_rows_max:
                raise _unreadable(table, f"it has more than {self._unkeyed_rows_max:,} rows")
            is_last = len(fetched[0]) < wanted
            if is_last or (table.key and (count >= limit or size >= CHUNK_BYTES)):
                return [pa.concat_arrays(column) for column in zip(*parts, strict=True)], is_last
            if size > UNKEYED_BYTES_MAX:
                raise _unreadable(table, f"they have more than {UNKEYED_BYTES_MAX >> 20} MiB")


def _query(table: Table, relation: Relation, after: Key | None) -> tuple[str, ...]:
    """The statement and its values."""
    columns = ", ".join(quote(column.name) for column in relation.columns)
    conditions = [f"({table.row_filter})"] if table.row_filter else []
    keys = ", ".join(map(quote, table.key))
    if after is not None:
        places = ", ".join(f"${number}" for number in range(1, len(after) + 1))
        conditions.append(f"({keys}) > ({places})")
    where = f" where {' and '.join(conditions)}" if conditions else ""
    order = f" order by {keys}" if keys else ""
    statement = f"select {columns} from {quote(table.schema, table.name)}{where}{order}"
    return statement, *(part.decode() for part in after or ())


def _unreadable(table: Table, why: str) -> Exception:
    name = quote(table.schema, table.name)
    return invalid(
        [
            Problem(
                "snapshot.include.collection.list",
                f"{table} has no primary key, so its rows are read at once, and {why}: give it a key (ALTER TABLE "
                f"{name} ADD PRIMARY KEY …;), raise snapshot.unkeyed.rows.max, or leave it out of "
                "snapshot.include.collection.list",
            )
        ]
    )
