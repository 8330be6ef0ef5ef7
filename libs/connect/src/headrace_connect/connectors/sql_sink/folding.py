"""
Records that do not say all values of their row: an update in the source did not touch them.

Several records of a key become one, and records with the same columns are written together. Pure; both databases write
what comes out of here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from headrace_connect.connectors.sql.session import RowFault, show_table
from headrace_connect.connectors.sql_sink.database import Write

Key = tuple[Any, ...]


def keys_of(write: Write) -> list[Key]:
    """Of each row."""
    return list(zip(*(write.columns[name].to_pylist() for name in write.keys), strict=True))


def fold(write: Write) -> Write:
    """
    One row for each key, as its last record leaves it: what that does not say is as an earlier record says it.

    Raises:
        RowFault: a row was deleted, and a record behind that does not say all of it.
    """
    keys = keys_of(write)
    last = {key: row for row, key in enumerate(keys)}
    if write.mode == "update" and write.has_deletes:
        # What was deleted stays so: an update makes no row.
        last |= {keys[row]: row for row, delete in enumerate(write.deletes.to_pylist()) if delete}
    rows = sorted(last.values())
    if len(rows) == len(keys):
        return write
    if not write.absent:
        return write.choose(rows)
    places, whole = _places(write, keys, last)
    chosen = pa.array(rows, pa.int64())
    folded = write.choose(rows)
    columns, absent = dict(folded.columns), dict(folded.absent)
    for name, own in places.items():
        found = [own.get(keys[row]) for row in rows]
        columns[name] = write.columns[name].take(pa.array(found, pa.int64()))
        absent[name] = pa.array([place is None for place in found])
    partial = pc.and_not(pa.array([keys[row] not in whole for row in rows]), write.deletes.take(chosen))
    return replace(folded, columns=columns, absent=absent, partial=partial)


def _places(write: Write, keys: Sequence[Key], last: dict[Key, int]) -> tuple[dict[str, dict[Key, int]], set[Key]]:
    """
    By column that some records do not have, and by key: the row that has the value that counts. And the keys of which
    a record says the whole row.
    """
    masks = {name: mask.to_pylist() for name, mask in write.absent.items()}
    places: dict[str, dict[Key, int]] = {name: {} for name in masks}
    whole, deletes, deleted = set[Key](), write.deletes.to_pylist(), set[Key]()
    for row, key in enumerate(keys):
        lacks = [name for name, mask in masks.items() if mask[row]]
        if deletes[row]:
            whole.discard(key)
            deleted.add(key)
        elif not lacks:
            whole.add(key)
        for name in masks:
            if deletes[row] and row != last[key]:
                places[name].pop(key, None)
            elif name not in lacks:
                places[name][key] = row
    if any(key not in whole and not deletes[last[key]] for key in deleted):
        raise missing_row(write)
    return places, whole


def runs(write: Write) -> Iterator[Write]:
    """
    Rows that follow each other and have the same columns, all deletes or none; without the columns that they lack.

    An upsert that lacks some is a ``patch``: no row can be made of it.
    """
    if not write.absent and not write.has_deletes:
        yield write
        return
    for shape, run in groupby(enumerate(_shapes(write)), key=lambda one: one[1]):
        rows = [row for row, _ in run]
        yield _shaped(write.take(rows[0], len(rows)), shape)


def groups(write: Write) -> Iterator[Write]:
    """As ``runs``, with all rows of the same columns together: deletes first. For rows of different keys."""
    if not write.absent and not write.has_deletes:
        yield write
        return
    places: dict[_Shape, list[int]] = {}
    for row, shape in enumerate(_shapes(write)):
        places.setdefault(shape, []).append(row)
    for shape, rows in sorted(places.items(), key=lambda one: not one[0].delete):
        yield _shaped(write.choose(rows), shape)


class _Shape(NamedTuple):
    """What records have in common that one statement writes."""

    delete: bool
    partial: bool = False
    lacking: tuple[str, ...] = ()


def _shapes(write: Write) -> list[_Shape]:
    """Of each row."""
    deletes: list[bool] = [bool(delete) for delete in write.deletes.to_pylist()]
    if not write.absent:
        return [_Shape(delete) for delete in deletes]
    names = list(write.absent)
    flags = zip(*(mask.to_pylist() for mask in write.absent.values()), strict=True)
    lacking = [tuple(name for name, lacks in zip(names, own, strict=True) if lacks) for own in flags]
    partial = lacking if write.partial is None else write.partial.to_pylist()
    return [
        _Shape(delete=True) if delete else _Shape(delete, bool(is_partial), own)
        for delete, is_partial, own in zip(deletes, partial, lacking, strict=True)
    ]


def _shaped(write: Write, shape: _Shape) -> Write:
    columns = {name: column for name, column in write.columns.items() if name not in shape.lacking}
    mode = "patch" if shape.partial and write.mode == "upsert" else write.mode
    return replace(write, columns=columns, absent={}, partial=None, mode=mode)


def missing_row(write: Write) -> RowFault:
    """There is no row that a record could leave partly as it is."""
    return RowFault(
        f"the table {show_table(write.table)} has no row of this key, and the record does not say all values of one: "
        "the update in the source did not touch a large value. Read the table of the source again, set "
        "reselect.unavailable.values there, or REPLICA IDENTITY FULL for its table"
    )
