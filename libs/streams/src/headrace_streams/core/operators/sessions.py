"""
Aggregates by key and session: rows of a key that are at most a gap apart.

Rows are placed one by one, since their order decides which sessions meet; their values enter the accumulators together.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from headrace_streams.core.operators.aggregate import Emit, Groups, chosen, late_rows
from headrace_streams.core.operators.aggregates import Values
from headrace_streams.core.operators.base import LATE, Emitted, Failed, Operator
from headrace_streams.core.operators.windows import Session as Window
from headrace_streams.core.rows import KEY, NO_TIME, ROW, TIME, WATERMARK, Numbers, coded, numbers
from headrace_streams.core.state.sessions import Session, SessionStore


class SessionAggregate(Operator):
    """
    A row joins the sessions of its key that it is within the gap of. Those become one, in which the rows of the earlier
    one count as having come first.
    """

    def __init__(self, groups: Groups, window: Window, emit: Emit) -> None:
        self.groups = self._groups = groups
        self.window = self._window = window
        self.emit = self._emit = emit
        self._watermark = NO_TIME
        self.late = 0
        """Rows that would have begun a session that had closed when they came."""
        self.store = SessionStore(groups.layout)
        self._store = self.store
        self._closing: list[tuple[int, int, bytes, int, Session]] = []
        self._pushed = 0

    def begin(self, watermark: int) -> None:
        self._watermark = watermark
        self._closing = []
        for session in self._store.sessions():
            self._closes_later(session)

    def _closes_later(self, session: Session) -> None:
        """Have it looked at when it would close, did no row come for it."""
        self._pushed += 1  # so that sessions are not compared
        at = self._window.closes_at(session.last)
        heapq.heappush(self._closing, (at, session.start, session.key, self._pushed, session))

    def feed(self, rows: pa.Table, port: int, failed: Failed) -> Iterable[Emitted]:
        if not rows.num_rows:
            return
        batch = _Batch(self._groups, self._store, rows, each=self._emit == Emit.EVERY)
        late: list[int] = []
        closed: list[Session] = []
        keys, times, marks = coded(rows[KEY]), numbers(rows[TIME]).tolist(), numbers(rows[WATERMARK]).tolist()
        for place, (code, time, mark) in enumerate(zip(keys.codes.tolist(), times, marks, strict=True)):
            closed += self._due(mark)
            session = self._session(keys.values[code], time, mark, batch)
            if session is None:
                late.append(place)
            else:
                batch.place(place, session)
        batch.enter()
        if late:
            self.late += len(late)
            starts = numbers(rows[TIME])[late]
            yield Emitted(late_rows(rows, np.array(late), starts, starts + self._window.gap_ms), LATE)
        if self._emit == Emit.EVERY and batch.each:
            yield Emitted(self._every(rows, batch))
        yield from self._close([*closed, *self._due(marks[-1])])
        self._watermark = max(self._watermark, marks[-1])

    def _session(self, key: bytes, time: int, mark: int, batch: _Batch) -> Session | None:
        """The session that a row is in; None: it is late."""
        gap, store = self._window.gap_ms, self._store
        near = [s for s in store.by_key.get(key, ()) if s.start - gap <= time <= s.last + gap]
        if not near:
            if self._window.closes_at(time) <= mark:
                return None
            session = store.add(key, time)
            self._closes_later(session)
            return session
        near.sort(key=lambda one: one.start)
        session, *others = near
        for other in others:
            batch.enter()  # what is of them is in their slots now
            self._groups.merge(store, session.slot, other.slot)
            session.last = max(session.last, other.last)
            store.close(other)
            store.release([other])
        if time < session.start:
            store.begin_at(session, time)
        session.last = max(session.last, time)
        return session

    def advance(self, watermark: int, failed: Failed) -> Iterable[Emitted]:
        if watermark <= self._watermark:
            return ()
        self._watermark = watermark
        return self._close(list(self._due(watermark)))

    def _due(self, watermark: int) -> Iterable[Session]:
        """The sessions that close, in their order; they take no rows any more."""
        while self._closing and self._closing[0][0] <= watermark:
            *_, session = heapq.heappop(self._closing)
            if not session.open:
                continue
            if self._window.closes_at(session.last) > watermark:
                self._closes_later(session)
                continue
            self._store.close(session)
            yield session

    def _close(self, closed: Sequence[Session]) -> Iterable[Emitted]:
        if self._emit == Emit.CHANGES:
            told = [session for session in closed if self._store.dirty[session.slot]]
        else:
            told = list(closed) if self._emit == Emit.FINAL else []
        if told:
            moments = [self.clock.passes(self._window.closes_at(session.last)) for session in told]
            yield Emitted(self._rows(told, [m.before for m in moments], [m.row for m in moments]))
        self._store.release(closed)

    def flush(self) -> Iterable[Emitted]:
        if self._emit != Emit.CHANGES:
            return
        dirty = [session for session in self._store.sessions() if self._store.dirty[session.slot]]
        if dirty:
            yield Emitted(self._rows(dirty, [self._watermark] * len(dirty), [-1] * len(dirty)))

    def contents(self) -> pa.Table | None:
        sessions = self._store.sessions()
        return self._rows(sessions, [self._watermark] * len(sessions), [-1] * len(sessions)) if sessions else None

    def _rows(self, sessions: Sequence[Session], marks: list[int], rows: list[int]) -> pa.Table:
        places = np.array([session.slot for session in sessions])
        columns = [column[places] for column in self._store.columns]
        starts = np.array([session.start for session in sessions])
        return self._result([s.key for s in sessions], columns, starts, np.array(marks), np.array(rows, np.int32))

    def _every(self, rows: pa.Table, batch: _Batch) -> pa.Table:
        places, starts, columns = batch.results()
        keys = coded(rows[KEY])
        of_rows = [keys.values[code] for code in keys.codes[places].tolist()]
        return self._result(of_rows, columns, starts, numbers(rows[WATERMARK])[places], numbers(rows[ROW])[places])

    def _result(
        self, keys: list[bytes], columns: Sequence[Numbers], starts: Numbers, marks: Numbers, rows: Numbers
    ) -> pa.Table:
        ends = self._groups.times(columns) + self._window.gap_ms
        return self._groups.result(keys, columns, ends, marks, rows, (starts, ends))


class _Batch:
    """Rows whose session is known, until their values enter its slot."""

    def __init__(self, groups: Groups, store: SessionStore, rows: pa.Table, *, each: bool) -> None:
        """
        Args:
            each: keep what the accumulators were after each row.
        """
        self._groups = groups
        self._store = store
        self._inputs = groups.inputs(rows)
        self._times = numbers(rows[TIME])
        self._places: list[int] = []
        self._slots: list[int] = []
        self._keep = each
        self._starts: list[int] = []
        self.each: list[tuple[list[int], list[Numbers]]] = []
        """Places of rows, and the fields after each."""

    def place(self, place: int, session: Session) -> None:
        """The row there is in that session."""
        self._places.append(place)
        self._slots.append(session.slot)
        self._starts.append(session.start)

    def enter(self) -> None:
        """The values of what was placed enter the slots."""
        if not self._places:
            return
        of = np.array(self._places)
        given: list[Values] = [chosen(values, of) for values in self._inputs]
        slots, times = np.array(self._slots), self._times[of]
        if self._keep:
            self.each.append((self._places, self._groups.add_each(self._store, slots, given, times)))
        else:
            self._groups.add(self._store, slots, given, times)
        self._places, self._slots = [], []

    def results(self) -> tuple[Numbers, Numbers, list[Numbers]]:
        """Of all rows that entered: their places, the starts of their sessions then, and the fields after each."""
        places = np.concatenate([np.array(of) for of, _ in self.each])
        columns: list[Any] = [np.concatenate(parts) for parts in zip(*(fields for _, fields in self.each), strict=True)]
        return places, np.array(self._starts), columns
