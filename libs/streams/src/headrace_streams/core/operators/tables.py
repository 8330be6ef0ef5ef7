"""
Tables: the latest row of each key. What comes in are rows, each in place of the one before; what goes out are changes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from headrace_streams.core.changes import (
    ADDED,
    REMOVED,
    REPLACED,
    WAS,
    changes_of,
    parted,
    take_or_null,
    with_changes,
)
from headrace_streams.core.formats.port import NotEncodable
from headrace_streams.core.operators.base import Emitted, Failed, Operator, halved
from headrace_streams.core.operators.columns import KeyBy
from headrace_streams.core.operators.ends import Sink
from headrace_streams.core.operators.table_rows import TableRows
from headrace_streams.core.rows import (
    KEY,
    NO_TIME,
    ROW,
    SYSTEM,
    TIME,
    WATERMARK,
    Coded,
    Column,
    Numbers,
    brought_about,
    coded,
    concat,
    distinct,
    numbers,
    take,
    user_columns,
    with_system,
)
from headrace_streams.core.state.mirror import SIZE_MAX, Mirror
from headrace_streams.core.state.slots import KeyedStore

HELD_MAX: Final = 50_000
"""So many changes are held at most before they are brought down to one for each key."""


@dataclass(frozen=True, slots=True)
class Found:
    """What a table holds of some keys, one row for each."""

    rows: pa.Table
    """The user's columns; null where the key has no row."""
    exists: Numbers
    times: Numbers
    """Event times of the rows, ms."""


@dataclass(frozen=True, slots=True)
class Matched:
    """What each row of a batch finds in a table."""

    rows: pa.Table
    places: Numbers
    """Of ``rows``, for each row of the batch; below 0: it finds nothing."""
    times: Numbers
    """Event times of what they find, ms."""


class View(ABC):
    """A table as it is now."""

    @abstractmethod
    def lookup(self, keys: Sequence[bytes]) -> Found:
        """The rows of these different keys."""

    def find(self, keys: Column) -> Matched:
        """What each of these keys has, which may be null and may be alike."""
        names, key = distinct(coded(keys))
        found = self.lookup(names)
        places = np.where(np.append(found.exists, False)[key], key, -1)
        return Matched(found.rows, places, np.append(found.times, 0)[places])


class Keep(Operator, View):
    """Keeps the latest row of each key, and tells what has changed. A row whose ``_change`` is ``REMOVED`` deletes."""

    def __init__(self, rows: TableRows) -> None:
        self._rows = rows
        self._found = 0
        """Rows that have looked for theirs since the table changed, or since a mirror was made."""
        self._watermark = NO_TIME
        self.store = KeyedStore(rows.layout)
        self._store = self.store

    def begin(self, watermark: int) -> None:
        self._watermark = watermark

    def feed(self, rows: pa.Table, port: int, failed: Failed) -> Iterable[Emitted]:
        if not rows.num_rows:
            return
        self._watermark = int(numbers(rows[WATERMARK])[-1])
        self._store.slots.mirror, self._found = None, 0
        names, key = distinct(coded(rows[KEY]))
        slots = self._store.known(names)
        before, last = _in_turn_by_key(key)
        added = changes_of(rows) == ADDED
        # What is replaced: a row of the batch, or one that was kept, which stand before those of the batch.
        kept = np.flatnonzero((before < 0) & (slots[key] >= 0))
        old = np.full(rows.num_rows, -1, np.int64)
        old[kept] = np.arange(len(kept))
        again = np.flatnonzero(before >= 0)
        again = again[added[before[again]]]
        old[again] = len(kept) + before[again]
        schema = self._rows.schema
        user = pa.Table.from_arrays([rows[name] for name in schema.names], schema=schema)
        held = slots[key[kept]]
        both = pa.concat_tables([self._rows.take(self._store.slots, held), user]).combine_chunks()
        times = np.concatenate([self._rows.times(self._store.slots, held), numbers(rows[TIME])])
        yield Emitted(_changes(rows, both, times, old, added))
        self._put(names, key, slots, rows, np.flatnonzero(last & added))
        gone = slots[key[last & ~added]]
        self._store.release(gone[gone >= 0])

    def _put(self, names: list[bytes], key: Numbers, slots: Numbers, rows: pa.Table, places: Numbers) -> None:
        if len(places):
            found = self._store.places(Coded(key[places], names))
            self._rows.put(self._store.slots, found, take(rows, places))

    def lookup(self, keys: Sequence[bytes]) -> Found:
        """The rows of these different keys."""
        slots = self._store.known(keys)
        return Found(self._rows.take(self._store.slots, slots), slots >= 0, self._rows.times(self._store.slots, slots))

    def find(self, keys: Column) -> Matched:
        """What each of these keys has, which may be null and may be alike."""
        mirror = self._mirror_for(len(keys))
        if mirror is None:
            return super().find(keys)
        places = mirror.find(keys)
        times = np.append(mirror.times, 0)[places]
        self._store.slots.ask(mirror.slots[places[places >= 0]])
        missing = np.flatnonzero((places < 0) & keys.is_valid().to_numpy(zero_copy_only=False))
        if not len(missing):
            return Matched(mirror.rows, places, times)
        others = super().find(take(keys, missing))  # the cold tier may have them
        places[missing] = np.where(others.places >= 0, len(mirror) + others.places, -1)
        times[missing] = others.times
        return Matched(pa.concat_tables([mirror.rows, others.rows]), places, times)

    def _mirror_for(self, count: int) -> Mirror | None:
        """What is in memory as Arrow, where that pays for a batch of so many rows."""
        slots = self._store.slots
        if len(slots) > SIZE_MAX * count:
            return None
        if slots.mirror is None:
            self._found += count
            if self._found >= len(slots):
                self._found = 0
                used = slots.used()
                keys = pa.array(slots.used_keys(), pa.binary())
                slots.mirror = Mirror(keys, used, self._rows.take(slots, used), self._rows.times(slots, used))
        return slots.mirror

    def contents(self) -> pa.Table | None:
        slots = self._store.slots
        slots.load()
        used = slots.used()
        keys = pa.array([slots.key_of(slot) for slot in used.tolist()], pa.binary())
        marks = np.full(len(used), self._watermark)
        times = self._rows.times(slots, used)
        return with_system(self._rows.take(slots, used), keys, times, marks, np.full(len(used), -1, np.int32))


def _in_turn_by_key(key: Numbers) -> tuple[Numbers, Numbers]:
    """The place of the row of the same key before each, -1 where there is none; and which rows are the last."""
    order = np.argsort(key, kind="stable")
    again = np.flatnonzero(key[order][1:] == key[order][:-1])
    before = np.full(len(key), -1, np.int64)
    before[order[again + 1]] = order[again]
    last = np.ones(len(key), bool)
    last[order[again]] = False
    return before, last


def _changes(rows: pa.Table, user: pa.Table, times: Numbers, old: Numbers, added: Numbers) -> pa.Table:
    """
    Rows, each behind the one that it replaces.

    Args:
        user: rows that may be replaced, and behind them those of ``rows``.
        times: their event times, ms.
        old: which of ``user`` each replaces; -1: none.
        added: whether a row is in the table now; the others delete.
    """
    has_old = old >= 0
    counts = has_old.astype(np.int64) + added
    of = np.repeat(np.arange(len(old)), counts)
    first = np.zeros(len(of), bool)
    first[(np.cumsum(counts) - counts)[counts > 0]] = True
    is_old = first & has_old[of]
    change = np.where(is_old, np.where(added[of], REPLACED, REMOVED), ADDED)
    places = np.where(is_old, old[of], user.num_rows - len(old) + of)
    row = numbers(rows[ROW])[of]
    system = [take(rows[name], of) for name in (KEY, TIME, WATERMARK)]
    made = pa.Table.from_arrays(
        [*take(user, places).columns, *system, pa.array(np.where(is_old, brought_about(row), row), pa.int32())],
        names=[*user.column_names, KEY, TIME, WATERMARK, ROW],
    )
    return with_changes(made, change).append_column(WAS, pa.array(times[places], pa.int64()))


class Derived(View):
    """A table that is another one's rows as an operator without state makes them."""

    def __init__(self, table: View, operator: Operator, *, skips: bool) -> None:
        """
        Args:
            skips: rows that the operator cannot process are left out, as they were when they came.
        """
        self._table = table
        self._operator = operator
        self._skips = skips

    def lookup(self, keys: Sequence[bytes]) -> Found:
        """The rows of these different keys."""
        found = self._table.lookup(keys)
        there = np.flatnonzero(found.exists)
        none = np.zeros(len(there), np.int64)
        given = with_system(
            take(found.rows, there), pa.nulls(len(there), pa.binary()), none, none, np.arange(len(there))
        )
        made = pa.concat_tables([self._made(given.slice(0, 0)), *halved(given, self._made, self._failed)])
        places = np.full(len(keys), -1, np.int64)
        places[there[numbers(made[ROW])]] = np.arange(made.num_rows)
        rows = take_or_null(made.select(user_columns(made.column_names)), places)
        return Found(rows, places >= 0, found.times)

    def _made(self, rows: pa.Table) -> pa.Table:
        (emitted,) = self._operator.feed(rows, 0, self._failed)
        return emitted.rows

    def _failed(self, rows: pa.Table, error: BaseException) -> None:
        if not self._skips:
            raise error


class Regroup(KeyBy):
    """Another key, made of columns: an update whose rows differ in it is two changes."""

    def feed(self, rows: pa.Table, port: int, failed: Failed) -> Iterable[Emitted]:
        (made,) = super().feed(rows, port, failed)
        keys = coded(made.rows[KEY]).codes
        apart = np.append(keys[1:] != keys[:-1], True)
        yield Emitted(with_changes(made.rows, parted(changes_of(rows), apart)))


class Latest(Operator):
    """Holds changes until a commit, and tells the last of each key."""

    def __init__(self) -> None:
        self.begin(NO_TIME)

    def begin(self, watermark: int) -> None:
        # It is no state: what is held is part of a commit, or is fed again.
        self._held: list[pa.Table] = []
        self._count = 0
        self._watermark = watermark

    def feed(self, rows: pa.Table, port: int, failed: Failed) -> Iterable[Emitted]:
        if rows.num_rows:
            self._watermark = int(numbers(rows[WATERMARK])[-1])
            self._held.append(rows)
            self._count += rows.num_rows
        if self._count > HELD_MAX:
            yield from self.flush()

    def flush(self) -> Iterable[Emitted]:
        if not self._held:
            return
        rows = concat(self._held)
        self.begin(self._watermark)
        changes = changes_of(rows)
        names, key = distinct(coded(rows[KEY]))
        before, last = _in_turn_by_key(key)
        first = before < 0
        was_there = np.zeros(len(names), bool)
        was_there[key[first]] = changes[first] != ADDED
        rows = take(rows, np.flatnonzero(last & ((changes == ADDED) | was_there[key])))
        count = rows.num_rows
        yield Emitted(_told(rows, np.full(count, self._watermark), np.full(count, -1, np.int32)))


def _told(rows: pa.Table, marks: Numbers, row: Numbers) -> pa.Table:
    user = rows.select(user_columns(rows.column_names))
    told = with_system(user, rows[KEY], numbers(rows[TIME]), marks, row)
    return with_changes(told, changes_of(rows))


class Rows(Operator):
    """A table's changes as rows of a stream: the new ones."""

    def feed(self, rows: pa.Table, port: int, failed: Failed) -> Iterable[Emitted]:
        added = changes_of(rows) == ADDED
        user = user_columns(rows.column_names)
        yield Emitted((rows if added.all() else rows.filter(pa.array(added))).select([*user, *SYSTEM]))


class TableSink(Sink):
    """A table's changes as records of a topic: its rows, and a null value for each key that is deleted."""

    def feed(self, rows: pa.Table, port: int, failed: Failed) -> Iterable[Emitted]:
        told = changes_of(rows) != REPLACED
        return super().feed(rows if told.all() else rows.filter(pa.array(told)), port, failed)

    def _encoded(self, rows: pa.Table) -> pa.Array[Any] | pa.ChunkedArray[Any]:
        added = changes_of(rows) == ADDED
        if added.all():
            return super()._encoded(rows)
        places = np.flatnonzero(added)
        try:
            values = super()._encoded(take(rows, places))
        except NotEncodable as error:
            raise NotEncodable(int(places[error.row]), str(error)) from None
        of_row = np.full(rows.num_rows, -1, np.int64)
        of_row[places] = np.arange(len(places))
        found: pa.Array[Any] | pa.ChunkedArray[Any] = take_or_null(values, of_row)
        return found
