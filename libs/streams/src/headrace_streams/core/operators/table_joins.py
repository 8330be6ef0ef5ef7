"""
Joins with a table by key.

A row is joined with the table as it was when the row's record came. A table that changes in what is being fed is ahead
of that: then what a row finds is taken from the changes behind it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace_streams.core.changes import (
    ADDED,
    REMOVED,
    REPLACED,
    WAS,
    changes_of,
    take_or_null,
    with_changes,
)
from headrace_streams.core.operators.base import Emitted, Failed, Operator
from headrace_streams.core.operators.tables import Found, Matched, View
from headrace_streams.core.rows import (
    KEY,
    ROW,
    SYSTEM,
    TIME,
    WATERMARK,
    Numbers,
    coded,
    concat,
    distinct,
    last_turns,
    numbers,
    ordered,
    plain_keys,
    take,
    user_columns,
    with_system,
)

LEFT: Final = 0
RIGHT: Final = 1


class Changed:
    """The changes of a table in what is being fed."""

    def __init__(self, tables: Sequence[pa.Table] = ()) -> None:
        self._of: dict[bytes, list[tuple[int, int]]] = {}
        if not tables:
            return
        self.rows = concat(tables)
        changes, turn = changes_of(self.rows), last_turns(numbers(self.rows[ROW]))
        self.removed = changes != ADDED
        keys: list[Any] = plain_keys(self.rows[KEY]).to_pylist()
        for place, (key, at) in enumerate(zip(keys, turn.tolist(), strict=True)):
            self._of.setdefault(key, []).append((at, place))
        for changed in self._of.values():
            changed.sort()

    def __bool__(self) -> bool:
        return bool(self._of)

    def __contains__(self, key: bytes) -> bool:
        return key in self._of

    def behind(self, key: bytes, turn: int) -> int | None:
        """The place of the first change of a key at ``turn`` or behind it."""
        changed = self._of[key]
        found = bisect_left(changed, (turn, -1))
        return changed[found][1] if found < len(changed) else None


def match(view: View, rows: pa.Table, changed: Changed, at: int) -> Matched:
    """
    Args:
        changed: what the table has changed in what is being fed.
        at: 1 where changes of a row's own turn come before it, 0 where they come behind.
    """
    if not changed:
        return view.find(rows[KEY])
    names, key = distinct(coded(rows[KEY]))
    found = view.lookup(names)
    places = np.where(np.append(found.exists, False)[key], key, -1)
    ahead = np.array([*(name in changed for name in names), False])
    of_rows, turn = np.flatnonzero(ahead[key]), last_turns(numbers(rows[ROW]))
    for row, code, of in zip(of_rows.tolist(), key[of_rows].tolist(), turn[of_rows].tolist(), strict=True):
        behind = changed.behind(names[code], of + at)
        if behind is not None:
            places[row] = len(names) + behind if changed.removed[behind] else -1
    both = pa.concat_tables([found.rows, changed.rows.select(found.rows.column_names)]).combine_chunks()
    times = np.concatenate([found.times, numbers(changed.rows[WAS])])
    return Matched(both, places, np.append(times, 0)[places])


class JoinTable(Operator):
    """Rows of a stream (input ``LEFT``) with those of a table (``RIGHT``)."""

    def __init__(self, table: View, columns: Mapping[str, str], *, left: bool) -> None:
        """
        Args:
            columns: of the table, and what they are called in the result.
            left: rows that find none stay.
        """
        self._table = table
        self.columns = self._columns = columns
        self.left = self._left = left
        self._changed = Changed()
        self.dropped = 0
        """Rows without a key, of an inner join."""

    def together(self, waiting: list[tuple[pa.Table, int]]) -> list[tuple[pa.Table, int]]:
        given, changes = ([rows for rows, port in waiting if port == side] for side in (LEFT, RIGHT))
        self._changed = Changed(changes if given else [])
        return [(ordered(given), LEFT)] if given else []

    def feed(self, rows: pa.Table, port: int, failed: Failed) -> Iterable[Emitted]:
        found, places = self._find(rows)
        if not self._left:
            self.dropped += self._looked_up(rows).null_count
            there = np.flatnonzero(places >= 0)
            if len(there) < rows.num_rows:
                rows, places = take(rows, there), places[there]
        yield Emitted(_beside(rows, found, places, self._columns))

    def _looked_up(self, rows: pa.Table) -> pa.ChunkedArray[Any]:
        """What rows of the table are looked up by."""
        return rows[KEY]

    def _find(self, rows: pa.Table) -> tuple[pa.Table, Numbers]:
        """Rows of the table, and which of them each row finds; below 0: none."""
        matched = match(self._table, rows, self._changed, 1)
        return matched.rows, matched.places


def _beside(rows: pa.Table, found: pa.Table, places: Numbers, columns: Mapping[str, str]) -> pa.Table:
    """Rows with columns of what they find."""
    user = user_columns(rows.column_names)
    taken = take_or_null(found.select(list(columns)), places)
    return pa.Table.from_arrays(
        [*(rows[name] for name in user), *taken.columns, *(rows[name] for name in SYSTEM)],
        names=[*user, *columns.values(), *SYSTEM],
    )


@dataclass(frozen=True, slots=True)
class Sides:
    """How the rows of two tables become one row."""

    columns: tuple[Mapping[str, str], Mapping[str, str]]
    """Of each side, and what they are called in the result."""
    keys: tuple[str, ...]
    """The columns of the key, which both sides have; the left one has them in ``columns``."""
    stays: tuple[bool, bool]
    """Whether rows of a side stay that find none on the other."""

    def join(self, tables: tuple[pa.Table, pa.Table], places: tuple[Numbers | None, Numbers | None]) -> pa.Table:
        """Rows made of those at these places, or of all; below 0: there is none on that side."""
        names: list[str] = []
        arrays: list[Any] = []
        right_keys = take_or_null(tables[RIGHT].select(list(self.keys)), places[RIGHT])
        for side in (LEFT, RIGHT):
            taken = take_or_null(tables[side].select(list(self.columns[side])), places[side])
            for name, out in self.columns[side].items():
                shared = side == LEFT and name in self.keys
                arrays.append(pc.coalesce(taken[name], right_keys[name]) if shared else taken[name])
                names.append(out)
        return pa.Table.from_arrays(arrays, names=names)


class Joined(View):
    """The join of two tables as it is now."""

    def __init__(self, left: View, right: View, sides: Sides) -> None:
        self._tables = (left, right)
        self._sides = sides

    def lookup(self, keys: Sequence[bytes]) -> Found:
        """The rows of these different keys."""
        left, right = (table.lookup(keys) for table in self._tables)
        stays = self._sides.stays
        exists = (left.exists & right.exists) | (left.exists & stays[LEFT]) | (right.exists & stays[RIGHT])
        every = np.arange(len(keys))
        places = (np.where(left.exists & exists, every, -1), np.where(right.exists & exists, every, -1))
        return Found(self._sides.join((left.rows, right.rows), places), exists, _later(left, right))


def _later(left: Found, right: Found) -> Numbers:
    least = np.iinfo(np.int64).min
    found: Numbers = np.maximum(np.where(left.exists, left.times, least), np.where(right.exists, right.times, least))
    return np.where(left.exists | right.exists, found, 0)


class JoinTables(Operator):
    """Two tables by key: changes of either side are changes of the result."""

    def __init__(self, left: View, right: View, sides: Sides) -> None:
        self._views = (left, right)
        self._sides = sides
        self._changed = (Changed(), Changed())
        self._held: list[pa.Table] = []
        """What changes of the left side bring about, until those of the right side are fed too."""

    def together(self, waiting: list[tuple[pa.Table, int]]) -> list[tuple[pa.Table, int]]:
        self._changed, self._held = (Changed(), Changed()), []
        if len({port for _, port in waiting}) == 1:
            return super().together(waiting)
        left, right = ([rows for rows, port in waiting if port == side] for side in (LEFT, RIGHT))
        self._changed = (Changed(left), Changed(right))
        return [(ordered(left), LEFT), (ordered(right), RIGHT)]

    def feed(self, rows: pa.Table, port: int, failed: Failed) -> Iterable[Emitted]:
        if not rows.num_rows:
            return
        other = 1 - port
        # Of one turn, changes of the left side come first.
        matched = match(self._views[other], rows, self._changed[other], port)
        changes = changes_of(rows)
        there = matched.places >= 0
        inserted = (changes == ADDED) & np.append(True, changes[:-1] != REPLACED)
        alone = there & self._sides.stays[other]  # the other side's row is, or was, in the result without this side's
        twice = alone & (inserted | (changes == REMOVED))
        counts = (there | self._sides.stays[port]) * (1 + twice.astype(np.int64))
        of = np.repeat(np.arange(len(changes)), counts)
        first = np.zeros(len(of), bool)
        first[(np.cumsum(counts) - counts)[counts > 0]] = True
        without = twice[of] & (first == inserted[of])
        change = np.where(twice[of], np.where(first, REPLACED, ADDED), changes[of])
        own, found = np.where(without, -1, of), matched.places[of]
        tables, places = ((rows, matched.rows), (own, found)) if port == LEFT else ((matched.rows, rows), (found, own))
        time, was = (
            np.where(there, np.maximum(numbers(rows[name]), matched.times), numbers(rows[name])) for name in (TIME, WAS)
        )
        marks, row = numbers(rows[WATERMARK])[of], numbers(rows[ROW])[of]
        joined = with_system(self._sides.join(tables, places), take(rows[KEY], of), time[of], marks, row)
        was = np.where(without, matched.times[of], was[of])
        self._held.append(with_changes(joined, change).append_column(WAS, pa.array(was, pa.int64())))
        if port == RIGHT or not self._changed[RIGHT]:
            told, self._held = ordered(self._held), []
            yield Emitted(told)
