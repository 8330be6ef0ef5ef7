"""Aggregates by key over so many rows each, as they come."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from headrace_streams.core.operators.aggregate import Aggregated, Emit, Groups, chosen, ranks
from headrace_streams.core.operators.aggregates import Count, Extreme
from headrace_streams.core.operators.base import Emitted, Failed, Operator
from headrace_streams.core.rows import (
    KEY,
    NO_TIME,
    ROW,
    TIME,
    TIMESTAMP,
    WATERMARK,
    Coded,
    Numbers,
    brought_about,
    coded,
    numbers,
    take,
)
from headrace_streams.core.state.slots import KeyedStore

HIDDEN: Final = (
    Aggregated("_earliest", Extreme(TIMESTAMP, greatest=False), TIME),
    Aggregated("_rows", Count(), None),
)
"""What windows of rows keep for themselves, behind the aggregates of the program."""
_EARLIEST, _ROWS = -4, -2
"""Their fields, with the newest time behind them."""


class CountedAggregate(Operator):
    """Windows of ``rows`` rows of a key: a full one is told, or forgotten, and the next row begins another."""

    def __init__(self, groups: Groups, rows: int, emit: Emit) -> None:
        """
        Args:
            groups: with ``HIDDEN``.
        """
        self._groups = groups
        self._size = rows
        self._emit = emit
        self._watermark = NO_TIME
        self.store = KeyedStore(groups.layout)
        self._store = self.store

    def begin(self, watermark: int) -> None:
        self._watermark = watermark

    def feed(self, rows: pa.Table, port: int, failed: Failed) -> Iterable[Emitted]:
        if not rows.num_rows:
            return
        keys, marks, row = coded(rows[KEY]), numbers(rows[WATERMARK]), numbers(rows[ROW])
        inputs, times = self._groups.inputs(rows), numbers(rows[TIME])
        self._watermark = int(marks[-1])
        slots = self._store.places(keys)
        position = self._store.slots.columns[_ROWS][slots] + ranks(slots)[0]
        told: list[tuple[Numbers, pa.Table]] = []
        for turn in range(int(position.max()) // self._size + 1):  # the rows of one turn are in different windows
            of = np.flatnonzero(position // self._size == turn)
            if turn:
                slots[of] = self._store.places(Coded(keys.codes[of], keys.values))
            given = [chosen(values, of) for values in inputs]
            if self._emit == Emit.EVERY:
                columns = self._groups.add_each(self._store.slots, slots[of], given, times[of])
                told.append((of, self._result(slots[of], columns, marks[of], row[of])))
            else:
                self._groups.add(self._store.slots, slots[of], given, times[of])
            full = of[position[of] % self._size == self._size - 1]
            if self._emit != Emit.EVERY and len(full):
                before = np.array([self.clock.of(one).before for one in row[full].tolist()])
                told.append((full, self._held(slots[full], before, brought_about(row[full]))))
            self._store.release(slots[full])
        if told:
            order = np.argsort(np.concatenate([of for of, _ in told]), kind="stable")
            yield Emitted(take(pa.concat_tables([table for _, table in told]), order))

    def flush(self) -> Iterable[Emitted]:
        changed = self._store.slots.changed()
        if self._emit == Emit.CHANGES and len(changed):
            yield Emitted(self._now(changed))

    def contents(self) -> pa.Table | None:
        self._store.slots.load()
        return self._now(self._store.slots.used())

    def _now(self, slots: Numbers) -> pa.Table:
        return self._held(slots, np.full(len(slots), self._watermark), np.full(len(slots), -1, np.int32))

    def _held(self, slots: Numbers, marks: Numbers, rows: Numbers) -> pa.Table:
        """What slots hold, as rows."""
        return self._result(slots, [column[slots] for column in self._store.slots.columns], marks, rows)

    def _result(self, slots: Numbers, columns: Sequence[Numbers], marks: Numbers, rows: Numbers) -> pa.Table:
        keys = [self._store.slots.key_of(slot) for slot in slots.tolist()]
        window = (columns[_EARLIEST], self._groups.times(columns))
        return self._groups.result(keys, columns, None, marks, rows, window)
