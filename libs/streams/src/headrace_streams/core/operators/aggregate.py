"""
Aggregates by key, and by key and window.

Late rows are those whose window had closed when they came: the watermark *of the row* decides, not that of its batch,
so the cutting of batches is not seen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import numpy as np
import pyarrow as pa

from headrace_streams.core.changes import ADDED, CHANGE, REPLACED, changes_of
from headrace_streams.core.errors import StateFailed
from headrace_streams.core.formats.keys import decode_keys
from headrace_streams.core.operators.aggregates import Function, Refused, Values, values_of
from headrace_streams.core.operators.base import LATE, Emitted, Failed, Operator
from headrace_streams.core.operators.windows import Hopping
from headrace_streams.core.rows import (
    KEY,
    NO_TIME,
    ROW,
    TIME,
    TIMESTAMP,
    WATERMARK,
    Coded,
    Numbers,
    coded,
    numbers,
    take,
    with_system,
)
from headrace_streams.core.state.slots import Columns, Field, KeyedStore, Layout, Slots, WindowedStore

WINDOW_START: Final = "window_start"
WINDOW_END: Final = "window_end"
BOUNDS: Final = (WINDOW_START, WINDOW_END)
_TIME_FIELD: Final = Field(np.dtype(np.int64), 0)
_ROUNDS_MAX: Final = 8


class Emit(StrEnum):
    """When an aggregate says what it holds."""

    CHANGES = "changes"
    EVERY = "every"
    FINAL = "final"


@dataclass(frozen=True, slots=True)
class Aggregated:
    """One column of the result."""

    name: str
    function: Function
    column: str | None
    """The input column; None: rows."""
    kind: str = ""
    """As ``agg`` calls the function."""


_without_warnings: Final = np.errstate(all="ignore")
"""Numpy warns of NaN and of infinities, which are values like others here."""


class Groups:
    """What aggregates with and without windows share: how rows enter slots and slots become rows."""

    def __init__(
        self,
        keys: Sequence[pa.Field[Any]],
        columns: Sequence[Aggregated],
        what: str = "agg",
        hidden: Sequence[Aggregated] = (),
    ) -> None:
        """
        Args:
            keys: the columns that the key is made of; empty: the record's key alone.
            what: the node, for messages.
            hidden: computed too, and in no result.
        """
        shown, columns = columns, [*columns, *hidden]
        self._what = what
        self.keys = self._keys = list(keys)
        self.columns = self._columns = columns
        self._shown = len(shown)
        self._ends: list[tuple[int, int]] = []
        fields: list[Field] = []
        for column in columns:
            self._ends.append((len(fields), len(fields) + len(column.function.fields)))
            fields.extend(column.function.fields)
        self._time = len(fields)
        self.layout = Layout([*fields, _TIME_FIELD])

    def inputs(self, rows: pa.Table) -> list[Values]:
        """The input column of each aggregate."""
        found = [
            values_of(
                rows[column.column] if column.column is not None else None,
                rows.num_rows,
                objects=column.function.fields[0].is_object,
            )
            for column in self._columns
        ]
        if CHANGE not in rows.column_names:
            return found
        signs = np.where(changes_of(rows) == ADDED, 1, -1)
        numeric = [not column.function.fields[0].is_object for column in self._columns]
        return [
            Values(values.numbers * signs if signed else values.numbers, values.valid * signs)
            for values, signed in zip(found, numeric, strict=True)
        ]

    @_without_warnings
    def add(self, slots: Columns, places: Numbers, inputs: Sequence[Values], times: Numbers) -> None:
        """
        Take rows in; ``places`` are their slots.

        Raises:
            StateFailed: a sum does not fit, or a function of the user's failed; part of the rows was taken in.
        """
        for column, (first, end), values in zip(self._columns, self._ends, inputs, strict=True):
            try:
                column.function.add(slots.columns[first:end], places, values)
            except Refused as error:
                raise self._failed(column, slots.key_of(error.slot), error) from error.__cause__
        np.maximum.at(slots.columns[self._time], places, times)
        slots.dirty[places] = True

    def _failed(self, column: Aggregated, key: bytes, error: Refused) -> StateFailed:
        return StateFailed(f"{self._what}: {column.name!r} of key {key!r:.100} {error.why}")

    @_without_warnings
    def add_each(self, slots: Columns, places: Numbers, inputs: Sequence[Values], times: Numbers) -> list[Numbers]:
        """Take rows in; the fields of each row's slot as they were right after it."""
        kept = [np.empty(len(places), field.dtype) for field in self.layout.fields]
        rank, depth = ranks(places)
        if depth <= _ROUNDS_MAX:
            for turn in range(depth):  # the rows of one turn have different slots
                of = np.flatnonzero(rank == turn)
                self.add(slots, places[of], [chosen(v, of) for v in inputs], times[of])
                for target, state, field in zip(kept, slots.columns, self.layout.fields, strict=True):
                    target[of] = state[places[of]] if field.copy is None else copies(state[places[of]], field.copy)
            return kept
        for slot in np.unique(places).tolist():
            of = np.flatnonzero(places == slot)
            states: list[Numbers] = []
            for column, (first, end), values in zip(self._columns, self._ends, inputs, strict=True):
                try:
                    states += column.function.running(slots.columns[first:end], slot, chosen(values, of))
                except Refused as error:
                    raise self._failed(column, slots.key_of(error.slot), error) from error.__cause__
            running_time = np.maximum.accumulate(np.maximum(times[of], slots.columns[self._time][slot]))
            slots.columns[self._time][slot] = running_time[-1]
            for target, state in zip(kept, [*states, running_time], strict=True):
                target[of] = state
        slots.dirty[places] = True
        return kept

    def merge(self, slots: Columns, slot: int, later: int) -> None:
        """
        A slot takes in another, as if its rows had come later.

        Raises:
            StateFailed: a sum does not fit, or a function of the user's failed.
        """
        for column, (first, end) in zip(self._columns, self._ends, strict=True):
            try:
                column.function.merge(slots.columns[first:end], slot, later)
            except Refused as error:
                raise self._failed(column, slots.key_of(error.slot), error) from error.__cause__
        times = slots.columns[self._time]
        times[slot] = max(times[slot], times[later])
        slots.dirty[slot] = True

    @_without_warnings
    def result(
        self,
        keys: Sequence[bytes],
        columns: Sequence[Numbers],
        time: Numbers | None,
        watermark: Numbers,
        row: Numbers,
        window: tuple[Numbers, Numbers] | None,
    ) -> pa.Table:
        """
        Rows of keys and the fields of their slots.

        Args:
            time: event times, ms; None: those of the slots' newest rows.
            window: start and end of each row's, ms.

        Raises:
            StateFailed: a function of the user's gave what its type does not hold.
        """
        arrays = list(decode_keys(list(keys), self._keys)) if self._keys else []
        names = [field.name for field in self._keys]
        if window is not None:
            arrays += [pa.array(at, pa.int64()).cast(TIMESTAMP) for at in window]
            names += BOUNDS
        for column, (first, end) in zip(self._columns[: self._shown], self._ends, strict=False):
            try:
                arrays.append(column.function.finish(columns[first:end]))
            except Refused as error:
                raise self._failed(column, keys[error.slot], error) from error.__cause__
            names.append(column.name)
        user = pa.Table.from_arrays(arrays, names=names)
        times = columns[self._time] if time is None else time
        return with_system(user, pa.array(keys, pa.binary()), times, watermark, row)

    def times(self, columns: Sequence[Numbers]) -> Numbers:
        """Of the newest row of each slot, ms."""
        return columns[self._time]

    def schema(self, *, windowed: bool) -> pa.Schema:
        """Of the result, without system columns."""
        window = [pa.field(name, TIMESTAMP) for name in BOUNDS] if windowed else []
        results = [pa.field(column.name, column.function.type) for column in self._columns[: self._shown]]
        return pa.schema([*self._keys, *window, *results])


def ranks(places: Numbers) -> tuple[Numbers, int]:
    """How many earlier rows have the slot of each row, and one more than the greatest of these numbers."""
    if not len(places):
        return places, 0
    order = np.argsort(places, kind="stable")
    ordered = places[order]
    begins = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
    lengths = np.diff(np.concatenate([begins, [len(places)]]))
    rank = np.empty(len(places), np.int64)
    rank[order] = np.arange(len(places)) - np.repeat(begins, lengths)
    return rank, int(lengths.max())


def copies(objects: Numbers, copy: Callable[[Any], Any]) -> Numbers:
    """Copies of objects that will be changed."""
    made = np.empty(len(objects), object)
    for place, one in enumerate(objects):
        made[place] = copy(one)
    return made


def chosen(values: Values, of: Numbers) -> Values:
    """Those of some rows."""
    return Values(values.numbers[of], values.valid[of])


class Aggregate(Operator):
    """By key, without windows."""

    def __init__(self, groups: Groups, emit: Emit) -> None:
        assert emit != Emit.FINAL, "what has no window has no end"
        self.groups = self._groups = groups
        self.emit = self._emit = emit
        self._watermark = NO_TIME
        self.store = KeyedStore(groups.layout)
        self._store = self.store

    def begin(self, watermark: int) -> None:
        self._watermark = watermark

    def feed(self, rows: pa.Table, port: int, failed: Failed) -> Iterable[Emitted]:
        if not rows.num_rows:
            return
        keys = coded(rows[KEY])
        places, inputs, times = self._store.places(keys), self._groups.inputs(rows), numbers(rows[TIME])
        self._watermark = int(numbers(rows[WATERMARK])[-1])
        if self._emit == Emit.CHANGES:
            self._groups.add(self._store.slots, places, inputs, times)
            return
        columns = self._groups.add_each(self._store.slots, places, inputs, times)
        of_rows = [keys.values[code] for code in keys.codes.tolist()]
        watermark, row = numbers(rows[WATERMARK]), numbers(rows[ROW])
        told = self._groups.result(of_rows, columns, None, watermark, row, None)
        yield Emitted(
            told if CHANGE not in rows.column_names else take(told, np.flatnonzero(changes_of(rows) != REPLACED))
        )

    def flush(self) -> Iterable[Emitted]:
        changed = self._store.slots.changed()
        if self._emit == Emit.CHANGES and len(changed):
            yield Emitted(rows_of(self._groups, self._store.slots, changed, self._watermark, None))

    def contents(self) -> pa.Table | None:
        self._store.slots.load()
        return rows_of(self._groups, self._store.slots, self._store.slots.used(), self._watermark, None)


def late_rows(rows: pa.Table, places: Numbers, starts: Numbers, ends: Numbers) -> pa.Table:
    """The rows at these places with the windows that they came too late for."""
    found: pa.Table = take(rows, places)
    for name, at in ((WINDOW_END, ends), (WINDOW_START, starts)):
        found = found.add_column(0, name, pa.array(at, pa.int64()).cast(TIMESTAMP))
    return found


def rows_of(
    groups: Groups,
    slots: Slots,
    places: Numbers,
    watermark: int,
    window: tuple[Numbers, Numbers] | None,
    row: int = -1,
) -> pa.Table:
    """One row for each of these slots."""
    keys = [slots.key_of(slot) for slot in places.tolist()]
    count = len(keys)
    time = window[1] - 1 if window is not None else None
    columns = [column[places] for column in slots.columns]
    return groups.result(keys, columns, time, np.full(count, watermark), np.full(count, row, np.int32), window)


class WindowedAggregate(Operator):
    """By key and window, tumbling or hopping."""

    def __init__(self, groups: Groups, window: Hopping, emit: Emit) -> None:
        self.groups = self._groups = groups
        self.window = self._window = window
        self.emit = self._emit = emit
        self._watermark = NO_TIME
        self.late = 0
        """Rows that came for a window after it had closed, one for each such window."""
        self.store = WindowedStore(groups.layout)
        self._store = self.store

    def begin(self, watermark: int) -> None:
        self._watermark = watermark

    def feed(self, rows: pa.Table, port: int, failed: Failed) -> Iterable[Emitted]:
        if not rows.num_rows:
            return
        window = self._window
        places, starts = window.assign(numbers(rows[TIME]))
        watermark = numbers(rows[WATERMARK])
        late = starts + (window.size_ms + window.grace_ms) <= watermark[places]
        if late.any():
            self.late += int(late.sum())
            ends = starts[late] + window.size_ms
            yield Emitted(late_rows(rows, places[late], starts[late], ends), LATE)
            places, starts = places[~late], starts[~late]
        yield from self._take(rows, places, starts)
        yield from self._close(int(watermark.max()))

    def _take(self, rows: pa.Table, places: Numbers, starts: Numbers) -> Iterable[Emitted]:
        if not len(places):
            return
        keys, times = coded(rows[KEY]), numbers(rows[TIME])[places]
        codes = keys.codes[places]
        in_slots = self._store.places(starts, Coded(codes, keys.values))
        inputs = [chosen(values, places) for values in self._groups.inputs(rows)]
        if self._emit != Emit.EVERY:
            self._groups.add(self._store.slots, in_slots, inputs, times)
            return
        columns = self._groups.add_each(self._store.slots, in_slots, inputs, times)
        of_rows = [keys.values[code] for code in codes.tolist()]
        span = (starts, starts + self._window.size_ms)
        watermark, row = numbers(rows[WATERMARK])[places], numbers(rows[ROW])[places]
        yield Emitted(self._groups.result(of_rows, columns, span[1] - 1, watermark, row, span))

    def advance(self, watermark: int, failed: Failed) -> Iterable[Emitted]:
        return self._close(watermark)

    def _close(self, watermark: int) -> Iterable[Emitted]:
        """
        Close what ends. Its rows have the watermark of just before: they are not late for what they are fed to, as
        little as those that came before.
        """
        if watermark <= self._watermark:
            return
        self._watermark = watermark
        store = self._store
        while (start := store.oldest) is not None and self._window.closes_at(start) <= watermark:
            slots = store.close_oldest(whole=self._emit == Emit.FINAL)
            left = slots[store.slots.dirty[slots]] if self._emit == Emit.CHANGES else slots
            if self._emit != Emit.EVERY and len(left):
                at = self.clock.passes(self._window.closes_at(start))
                yield Emitted(self._rows(left, at.before, at.row))
            store.release(slots)

    def _rows(self, slots: Numbers, watermark: int, row: int = -1) -> pa.Table:
        starts = self._store.starts_of(slots)
        return rows_of(self._groups, self._store.slots, slots, watermark, (starts, starts + self._window.size_ms), row)

    def flush(self) -> Iterable[Emitted]:
        changed = self._store.slots.changed()
        if self._emit == Emit.CHANGES and len(changed):
            order = np.argsort(self._store.starts_of(changed), kind="stable")
            yield Emitted(self._rows(changed[order], self._watermark))

    def contents(self) -> pa.Table | None:
        self._store.load()
        return self._rows(self._store.slots.used(), self._watermark)
