"""Which rows changes belong to, as far as rows of their tables are being read meanwhile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headrace_connect.core.changes import Change, Op
from headrace_connect.core.pgoutput.messages import Relation, Row
from headrace_connect.core.snapshot import Key


def keys_of(changes: Sequence[Change], tables: Mapping[int, Sequence[str]]) -> dict[str, set[Key] | None]:
    """
    By table: keys before and after each change.

    Args:
        tables: by oid: the columns of the key; none: rows cannot be told apart.

    Returns:
        By the oid as text. None: any row may have changed.
    """
    found: dict[str, set[Key] | None] = {}
    places: dict[int, list[int] | None] = {}
    for change in changes:
        relation = change.relation
        if relation.oid not in tables:
            continue
        name = str(relation.oid)
        known = found.setdefault(name, set())
        if known is None:
            continue
        described = id(relation)  # a table may be described anew within a transaction
        if described not in places:
            places[described] = _places(relation, tables[relation.oid])
        keys = _keys(change, places[described])
        if keys is None:
            found[name] = None
        else:
            known |= keys
    return found


def _places(relation: Relation, key: Sequence[str]) -> list[int] | None:
    names = [column.name for column in relation.columns]
    return [names.index(column) for column in key] if key and {*names} >= {*key} else None


def _keys(change: Change, places: Sequence[int] | None) -> set[Key] | None:
    if change.op is Op.TRUNCATE or places is None:
        return None
    keys: set[Key] = set()
    for row in (change.before, change.after):
        if row is not None:
            key = _key(row, places)
            if key is None:
                return None
            keys.add(key)
    return keys


def _key(row: Row, places: Sequence[int]) -> Key | None:
    key = tuple(value for at in places if isinstance(value := row[at], bytes))
    return key if len(key) == len(places) else None
