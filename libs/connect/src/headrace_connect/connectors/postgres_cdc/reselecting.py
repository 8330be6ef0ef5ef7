"""
Reads from their tables the large values that updates did not touch, which the server does not send.

A value is the row's of now, not of the change: a later change of it comes behind in the stream. A row that is not there
any more, or whose key was changed since, is not found.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from headrace_connect.connectors.postgres_cdc.collecting import Group
from headrace_connect.connectors.postgres_cdc.position import Place
from headrace_connect.connectors.postgres_cdc.session import Session, quote, sqlstate_of
from headrace_connect.connectors.postgres_cdc.tables import Table, describe
from headrace_connect.core.changes import Change
from headrace_connect.core.pgoutput.messages import UNCHANGED, Relation, Value
from headrace_connect.core.snapshot import Key

BYTES: Final = 8 << 20
"""A chunk ends when so many bytes were filled in, and a question should have an answer of less."""
KEYS_MAX: Final = 500
"""Rows that are asked for at once."""
_KEYS_FIRST: Final = 16
_NOT_THERE: Final = ("42P01", "3F000")
_log: Final = logging.getLogger(__name__)
Found = dict[Key, dict[int, Value]]
"""By key: values by the place of their column."""


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What is missing in a group."""

    table: Table
    relation: Relation
    key: tuple[int, ...]
    """Places of its columns in the relation."""
    columns: tuple[int, ...]
    """Places of those that are missing somewhere."""

    def key_of(self, change: Change) -> Key | None:
        assert change.after is not None, "it is an update"
        values = tuple(value for at in self.key if isinstance(value := change.after[at], bytes))
        return values if len(values) == len(self.key) else None


class Reselector:
    """Has the session that no other statement is running on meanwhile."""

    def __init__(self, session: Session, tables: Mapping[int, Table]) -> None:
        """
        Args:
            tables: by oid; may grow.
        """
        self._session = session
        self._tables = tables
        self._keys_max = _KEYS_FIRST

    async def fill(self, group: Group, place: Place) -> AsyncIterator[tuple[Group, Place]]:
        """
        The group with the values that were found, in parts that fit into memory, and the place behind each part.

        Raises:
            RetriableError: the server is away or busy, or the table is locked.
            InvalidConfig: the user may not read the table.
        """
        wanted = self._wanted(group)
        if wanted is None:
            yield group, place
            return
        begin, size, missing = 0, 0, 0
        known: Found = {}
        for at, change in enumerate(group.changes):
            if not _lacks(change):
                continue
            key = wanted.key_of(change)
            if key is not None and key not in known:
                known = await self._read(wanted, _next_keys(wanted, group.changes[at:], self._keys_max))
            values = known.get(key, {}) if key is not None else {}
            size += _fill(change, values)
            missing += not values
            if size >= BYTES and at + 1 < len(group.changes):
                part = _part(group, begin, at + 1)
                yield part, replace(group.base, ahead={**group.base.ahead, group.relation.oid: part.end})
                begin, size = at + 1, 0
        if missing:
            _log.warning("%s: the rows of %d updates are not there any more", group.relation, missing)
        yield (_part(group, begin, len(group.changes)) if begin else group), place

    def _wanted(self, group: Group) -> _Wanted | None:
        relation, table = group.relation, self._tables.get(group.relation.oid)
        names = [column.name for column in relation.columns]
        if table is None or not table.key or not {*names} >= {*table.key}:
            return None
        columns = {at for change in group.changes if _lacks(change) for at in _lacking(change)}
        key = tuple(names.index(name) for name in table.key)
        return _Wanted(table, relation, key, tuple(sorted(columns))) if columns else None

    async def _read(self, wanted: _Wanted, keys: Sequence[Key]) -> Found:
        """Of each key what its row has now; nothing of rows that are not there, and of columns that have changed."""
        session, table = self._session, wanted.table
        found: Found = {key: {} for key in keys}
        name = quote(table.schema, table.name)
        try:
            await session.fetch("begin isolation level repeatable read read only")
            await session.fetch(f"lock table {name} in access share mode")
            ((oid,),) = await session.fetch("select to_regclass($1)::oid::int8", name)
            now, _ = await describe(session, table)
            types = {column.name: (column.type_oid, column.type_modifier) for column in now.columns}
            columns = [
                (at, column)
                for at, column in enumerate(wanted.relation.columns)
                if (at in wanted.key or at in wanted.columns)
                and types.get(column.name) == (column.type_oid, column.type_modifier)
            ]
            if oid != table.oid or not {*wanted.key} <= {at for at, _ in columns}:
                return found
            places = [at for at, _ in columns]
            rows = await session.fetch_texts(*_query(name, [quote(column.name) for _, column in columns], table, keys))
        except Exception as error:
            if sqlstate_of(error) in _NOT_THERE:
                return found
            raise
        finally:
            await session.rollback()
        size = 0
        for row in rows:
            of = dict(zip(places, row, strict=True))
            key = tuple(value for at in wanted.key if isinstance(value := of[at], bytes))
            found[key] = {at: of[at] for at in wanted.columns if at in of}
            size += sum(len(value) for value in row if isinstance(value, bytes))
        self._keys_max = max(1, self._keys_max // 2) if size > BYTES else min(KEYS_MAX, self._keys_max * 2)
        return found


def _query(name: str, columns: Sequence[str], table: Table, keys: Sequence[Key]) -> tuple[str, ...]:
    """The statement and its values."""
    width = len(table.key)
    rows = [", ".join(f"${row * width + at + 1}" for at in range(width)) for row in range(len(keys))]
    key = ", ".join(map(quote, table.key))
    among = ", ".join(f"({row})" for row in rows)
    statement = f"select {', '.join(columns)} from {name} where ({key}) in ({among})"
    return statement, *(part.decode() for one in keys for part in one)


def _next_keys(wanted: _Wanted, changes: Sequence[Change], keys_max: int) -> list[Key]:
    """Of the next changes that lack something; there is one."""
    keys: dict[Key, None] = {}
    for change in changes:
        key = wanted.key_of(change) if _lacks(change) else None
        if key is not None:
            keys[key] = None
        if len(keys) >= keys_max:
            break
    return list(keys)


def _lacks(change: Change) -> bool:
    return change.after is not None and UNCHANGED in change.after


def _lacking(change: Change) -> list[int]:
    return [at for at, value in enumerate(change.after or ()) if value is UNCHANGED]


def _fill(change: Change, values: Mapping[int, Value]) -> int:
    """Put values in; their bytes."""
    assert change.after is not None, "it is an update"
    filled = [at for at in _lacking(change) if at in values]
    change.after = [values[at] if at in filled else value for at, value in enumerate(change.after)]
    return sum(len(value) for at in filled if isinstance(value := values[at], bytes))


def _part(group: Group, begin: int, end: int) -> Group:
    return Group(group.relation, group.changes[begin:end], group.transactions[begin:end], group.base)
