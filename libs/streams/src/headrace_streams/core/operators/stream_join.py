"""
Joins of two streams: rows of one key whose times are near each other.

A row is late when the watermark, as it was when the row came, is further beyond its time than the grace. So which rows
meet does not depend on how the inputs were interleaved. A row closes once everything that it could meet would be late;
then it is forgotten, and told if it has met nothing and its side wants that.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace_streams.core.operators.base import Emitted, Failed, Operator
from headrace_streams.core.operators.table_joins import LEFT, RIGHT, Sides
from headrace_streams.core.rows import (
    KEY,
    NO_TIME,
    ROW,
    TIME,
    WATERMARK,
    Coded,
    Numbers,
    brought_about,
    coded,
    numbers,
    ordered,
    plain_keys,
    take,
    turns,
    with_system,
)
from headrace_streams.core.state.buffer import JoinStore

LATE_OF: Final = ("late left", "late right")
"""By which edge the late rows of each side leave."""
_STRETCHES: Final = 16
_STRETCH_MIN_MS: Final = 1_000


@dataclass(frozen=True, slots=True)
class Within:
    """The right row is from ``lower_ms`` to ``upper_ms`` after the left one, both ends in; negative is before."""

    lower_ms: int
    upper_ms: int
    grace_ms: int

    def reach(self, side: int) -> tuple[int, int]:
        """From where to where, after a row of that side, what it meets is, ms."""
        return (self.lower_ms, self.upper_ms) if side == LEFT else (-self.upper_ms, -self.lower_ms)

    def closes_after(self, side: int) -> int:
        """How far the watermark must be beyond a row of that side for it to close, ms."""
        return self.reach(side)[1] + self.grace_ms + 1

    @property
    def stretch_ms(self) -> int:
        """Rows so near each other are kept together: they close at about the same time."""
        return max(_STRETCH_MIN_MS, (self.upper_ms - self.lower_ms + self.grace_ms) // _STRETCHES)


@dataclass(slots=True)
class _Came:
    """Rows that came by one side, neither late nor without a key; they are in its buffer."""

    side: int
    keys: Coded
    times: Numbers
    marks: Numbers
    turns: Numbers
    rows: Numbers
    """The column ``_row``."""
    places: Numbers
    """In the buffer."""


@dataclass(slots=True)
class _Pairs:
    """Rows that met, by their places in the buffers; and when: with which record, at which watermark."""

    left: Numbers
    right: Numbers
    marks: Numbers
    turns: Numbers
    by: Numbers
    """The side of the row that came later."""


class StreamJoin(Operator):
    """Rows of two streams by key and time. A pair has the greater time, and comes with its later row."""

    def __init__(self, sides: Sides, schemas: Sequence[pa.Schema], within: Within) -> None:
        """
        Args:
            schemas: the user columns of each side.
        """
        self.sides = self._sides = sides
        self._schemas = schemas
        self.within = self._within = within
        self._held: pa.Table | None = None
        self._watermark = NO_TIME
        self.late = 0
        """Rows that came too late for what they could have met."""
        self.dropped = 0
        """Rows without a key, of a side that is not told alone."""
        self.store = JoinStore(schemas, within.stretch_ms, sides.stays)
        self._store = self.store

    def begin(self, watermark: int) -> None:
        self._watermark = watermark
        for side in (LEFT, RIGHT):
            self._close(side, watermark)  # what closes there was told before

    def together(self, waiting: list[tuple[pa.Table, int]]) -> list[tuple[pa.Table, int]]:
        left, right = ([rows for rows, port in waiting if port == side] for side in (LEFT, RIGHT))
        self._held = ordered(left) if left and right else None
        return [(ordered(right or left), RIGHT if right else LEFT)]

    def feed(self, rows: pa.Table, port: int, failed: Failed) -> Iterable[Emitted]:
        """Rows of one side; those of the left one that the same records brought are held for them."""
        inputs = [(rows, port)] if self._held is None else [(self._held, LEFT), (rows, port)]
        self._held = None
        came = []
        for given, side in inputs:
            rows, late = self._split_late(given)
            if late.num_rows:
                self.late += late.num_rows
                yield Emitted(late, LATE_OF[side])
            valid = pc.is_valid(rows[KEY])
            yield from self._keyless(side, rows.filter(pc.invert(valid)))
            came.append(self._take(side, rows.filter(valid)))
        pairs = self._pairs(came)
        if len(pairs.left):
            buffers = self._store.sides
            buffers[LEFT].meet(pairs.left)
            buffers[RIGHT].meet(pairs.right)
            yield Emitted(self._result(pairs))
        for one in came:
            yield from self._closed_already(one)

    def _split_late(self, rows: pa.Table) -> tuple[pa.Table, pa.Table]:
        late = numbers(rows[WATERMARK]) > numbers(rows[TIME]) + self._within.grace_ms
        if not late.any():
            return rows, rows.slice(0, 0)
        return rows.filter(pa.array(~late)), rows.filter(pa.array(late))

    def _keyless(self, side: int, rows: pa.Table) -> Iterable[Emitted]:
        """Rows without a key meet nothing."""
        if not rows.num_rows:
            return
        if self._sides.stays[side]:
            system = (numbers(rows[name]) for name in (TIME, WATERMARK, ROW))
            yield Emitted(self._alone(side, rows, *system))
        else:
            self.dropped += rows.num_rows

    def _take(self, side: int, rows: pa.Table) -> _Came:
        keys = coded(rows[KEY])
        times, marks, row = (numbers(rows[name]) for name in (TIME, WATERMARK, ROW))
        places = self._store.add(side, keys, rows)
        return _Came(side, keys, times, marks, turns(row), row, places)

    def _pairs(self, came: Sequence[_Came]) -> _Pairs:
        if len(came) == 1:
            return self._met(came[0], None)
        both = [self._met(came[LEFT], came[RIGHT]), self._met(came[RIGHT], came[LEFT])]
        joined: list[Any] = [
            np.concatenate([getattr(of, name) for of in both]) for name in ("left", "right", "marks", "turns", "by")
        ]
        left, right, marks, turn, by = joined
        of_left, of_right = (self._store.sides[side].times(of) for side, of in ((LEFT, left), (RIGHT, right)))
        # As they would come one by one: by the later row, then by time and arrival of the other.
        other_time, other_place = np.where(by == LEFT, of_right, of_left), np.where(by == LEFT, right, left)
        order = np.lexsort((other_place, other_time, by, turn))
        return _Pairs(left[order], right[order], marks[order], turn[order], by[order])

    def _met(self, one: _Came, other: _Came | None) -> _Pairs:
        """
        Args:
            other: what came by the other side with the same records; pairs within it are found from the left.
        """
        low, high = self._within.reach(one.side)
        asks, found = self._store.sides[1 - one.side].find(one.keys, one.times + low, one.times + high)
        if other is not None and len(other.places):
            new = found >= other.places[0]
            if one.side == RIGHT:
                asks, found, new = asks[~new], found[~new], new[~new]
        else:
            new = np.zeros(len(found), bool)
        marks, turn, by = one.marks[asks], one.turns[asks], np.full(len(asks), one.side)
        if new.any():
            assert other is not None
            of = found[new] - other.places[0]
            by[new] = np.where(other.turns[of] >= turn[new], other.side, one.side)
            marks[new], turn[new] = np.maximum(marks[new], other.marks[of]), np.maximum(turn[new], other.turns[of])
        left, right = (one.places[asks], found) if one.side == LEFT else (found, one.places[asks])
        return _Pairs(left, right, marks, turn, by)

    def _result(self, pairs: _Pairs) -> pa.Table:
        left, right = (
            buffer.rows(places) for buffer, places in zip(self._store.sides, (pairs.left, pairs.right), strict=True)
        )
        times = np.maximum(numbers(left[TIME]), numbers(right[TIME]))
        user = self._sides.join((left, right), (None, None))
        return with_system(user, left[KEY], times, pairs.marks, brought_about(pairs.turns).astype(np.int32))

    def _closed_already(self, one: _Came) -> Iterable[Emitted]:
        """Rows that could meet only what came before them: those that did not are told at once."""
        if self._within.closes_after(one.side) > self._within.grace_ms or not self._sides.stays[one.side]:
            return
        closed = one.times + self._within.closes_after(one.side) <= one.marks
        buffer = self._store.sides[one.side]
        alone = np.flatnonzero(closed & ~buffer.met(one.places))
        if len(alone):
            places = one.places[alone]
            buffer.meet(places)  # so that they are not told again
            yield Emitted(
                self._alone(one.side, buffer.rows(places), one.times[alone], one.marks[alone], one.rows[alone])
            )

    def advance(self, watermark: int, failed: Failed) -> Iterable[Emitted]:
        if watermark <= self._watermark:
            return
        self._watermark = watermark
        parts: list[tuple[pa.Table, Numbers]] = []
        for side, buffer in enumerate(self._store.sides):
            places = self._close(side, watermark)
            if self._sides.stays[side]:
                places = buffer.alone(places)
                if len(places):
                    at = buffer.times(places) + self._within.closes_after(side)
                    parts.append((self._closed(side, places, at), at))
            buffer.compact()
        if parts:
            order = np.argsort(np.concatenate([at for _, at in parts]), kind="stable")
            yield Emitted(take(pa.concat_tables([table for table, _ in parts]), order))

    def _close(self, side: int, watermark: int) -> Numbers:
        return self._store.sides[side].close(watermark - self._within.closes_after(side))

    def _closed(self, side: int, places: Numbers, at: Numbers) -> pa.Table:
        buffer = self._store.sides[side]
        moments = {time: self.clock.passes(time) for time in np.unique(at).tolist()}
        marks = np.array([moments[time].before for time in at.tolist()])
        rows = np.array([moments[time].row for time in at.tolist()], np.int32)
        return self._alone(side, buffer.rows(places), buffer.times(places), marks, rows)

    def _alone(self, side: int, rows: pa.Table, times: Numbers, marks: Numbers, row: Numbers) -> pa.Table:
        other, none = self._schemas[1 - side].empty_table(), np.full(rows.num_rows, -1)
        tables, places = ((rows, other), (None, none)) if side == LEFT else ((other, rows), (none, None))
        user = self._sides.join(tables, places)
        return with_system(user, plain_keys(rows[KEY]), times, marks, row)

    def contents(self) -> pa.Table | None:
        found = []
        for side, buffer in enumerate(self._store.sides):
            places = buffer.waiting()
            if len(places):
                count = len(places)
                marks, row = np.full(count, self._watermark), np.full(count, -1, np.int32)
                found.append(self._alone(side, buffer.rows(places), buffer.times(places), marks, row))
        return pa.concat_tables(found) if found else None
