"""
Joins of two tables where a column of the left one has the key of the right one: many rows may refer to one.

A row of the left table asks the task that has the row of the right table; that remembers who asks, and answers now and
whenever its row changes. Questions and answers go through a topic each. An answer counts while the row that has asked
still refers to the key that it is about; so what comes late does no harm.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from headrace_streams.core.changes import (
    ADDED,
    CHANGE,
    REMOVED,
    REPLACED,
    changes_of,
    with_changes,
)
from headrace_streams.core.formats.keys import encode_keys
from headrace_streams.core.operators.base import Emitted, Failed, Operator
from headrace_streams.core.operators.table_joins import LEFT, Sides
from headrace_streams.core.operators.tables import Regroup, View
from headrace_streams.core.rows import (
    KEY,
    ROW,
    SYSTEM,
    TIME,
    WATERMARK,
    Numbers,
    coded,
    distinct,
    numbers,
    plain_keys,
    take,
    with_system,
)
from headrace_streams.core.state.asked import AskedStore

WHO: Final = "_who"
"""The key of the row that asks."""
ABOUT: Final = "_about"
"""The key that an answer is about."""
THERE: Final = "_there"
"""Whether there is a row of that key."""


class Ask(Regroup):
    """Changes of the left table as questions: rows of which only the key that they refer to is left, and who asks."""

    def __init__(self, on: str) -> None:
        super().__init__((on,))

    def feed(self, rows: pa.Table, port: int, failed: Failed) -> Iterable[Emitted]:
        who = plain_keys(rows[KEY])
        (made,) = super().feed(rows, port, failed)
        asks = made.rows.select([*SYSTEM, CHANGE]).append_column(WHO, who)
        yield Emitted(asks.filter(pa.array(changes_of(asks) != REPLACED)))


class Answer(Operator):
    """At the right table: questions come by input ``LEFT``, changes of its rows by the other."""

    def __init__(self, table: View, columns: Sequence[str]) -> None:
        self._table = table
        self._columns = list(columns)
        self.store = AskedStore()
        self._store = self.store

    def feed(self, rows: pa.Table, port: int, failed: Failed) -> Iterable[Emitted]:
        if not rows.num_rows:
            return
        yield Emitted(self._to_questions(rows) if port == LEFT else self._to_all(rows))

    def _to_questions(self, asks: pa.Table) -> pa.Table:
        added = changes_of(asks) == ADDED
        keys: list[Any] = plain_keys(asks[KEY]).to_pylist()
        who: list[Any] = asks[WHO].to_pylist()
        for key, one, asked in zip(keys, who, added.tolist(), strict=True):
            (self._store.add if asked else self._store.remove)(key, one)
        asks = asks.filter(pa.array(added))
        names, key_of = distinct(coded(asks[KEY]))
        found = self._table.lookup(names)
        there = found.exists[key_of]
        time = np.where(there, found.times[key_of], numbers(asks[TIME]))
        return self._answers(asks, asks[WHO], take(found.rows, key_of), there, time)

    def _to_all(self, changes: pa.Table) -> pa.Table:
        kinds = changes_of(changes)
        keys: list[Any] = plain_keys(changes[KEY]).to_pylist()
        asking = [() if kinds[n] == REPLACED else list(self._store.asking(key)) for n, key in enumerate(keys)]
        of = np.repeat(np.arange(len(keys)), [len(one) for one in asking])
        who = pa.array([one for of_key in asking for one in of_key], pa.binary())
        changes = take(changes, of)
        return self._answers(changes, who, changes, changes_of(changes) == ADDED, numbers(changes[TIME]))

    def _answers(self, rows: pa.Table, who: Any, found: pa.Table, there: Numbers, time: Numbers) -> pa.Table:
        user = found.select(self._columns)
        made = with_system(user, who, time, numbers(rows[WATERMARK]), numbers(rows[ROW]))
        return made.append_column(ABOUT, plain_keys(rows[KEY])).append_column(THERE, pa.array(there, pa.bool_()))


class JoinAnswers(Operator):
    """At the left table: its changes come by input ``LEFT``, answers by the other. Emits rows, and keys to delete."""

    def __init__(self, table: View, on: str, sides: Sides, columns: pa.Schema) -> None:
        """
        Args:
            on: the column that refers to the right table.
            sides: how the rows of both become one.
            columns: of the right table.
        """
        self._table = table
        self._on = on
        self._sides = sides
        self._none = columns.empty_table()

    def feed(self, rows: pa.Table, port: int, failed: Failed) -> Iterable[Emitted]:
        yield Emitted(self._without(rows) if port == LEFT else self._answered(rows))

    def _without(self, rows: pa.Table) -> pa.Table:
        """Rows that are deleted or refer to nothing need no answer."""
        changes = changes_of(rows)
        deleted = changes == REMOVED
        nothing = coded(encode_keys([rows[self._on]])).codes < 0
        places = np.flatnonzero(deleted | ((changes == ADDED) & nothing))
        rows, deleted = take(rows, places), deleted[places]
        every = np.arange(len(places))
        return self._made(rows, rows, np.where(deleted, -1, every), self._none, np.full(len(places), -1), rows[TIME])

    def _answered(self, answers: pa.Table) -> pa.Table:
        names, who = distinct(coded(answers[KEY]))
        found = self._table.lookup(names)
        refers = take(encode_keys([found.rows[self._on]]).cast(pa.binary()), who).to_pylist()
        about: list[Any] = answers[ABOUT].to_pylist()
        counts = [one == other for one, other in zip(refers, about, strict=True)]
        places = np.flatnonzero(np.array(counts, bool) & found.exists[who])
        answers, who = take(answers, places), who[places]
        there = numbers(answers[THERE])
        time = pa.array(np.maximum(numbers(answers[TIME]), found.times[who]))
        return self._made(answers, found.rows, who, answers, np.where(there, np.arange(len(places)), -1), time)

    def _made(
        self, rows: pa.Table, left: pa.Table, own: Numbers, right: pa.Table, found: Numbers, time: Any
    ) -> pa.Table:
        stays = (own >= 0) & ((found >= 0) | self._sides.stays[LEFT])
        user = self._sides.join((left, right), (own, found))
        made = with_system(user, rows[KEY], numbers(time), numbers(rows[WATERMARK]), numbers(rows[ROW]))
        return with_changes(made, np.where(stays, ADDED, REMOVED))
