"""
Aggregates by key and sliding window: windows of one length that differ in what they hold, as in Kafka Streams.

State is one slot for each time at which a key has rows. A window is the slots of its times, merged in their order.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from headrace_streams.core.operators.aggregate import Emit, Groups, chosen, late_rows
from headrace_streams.core.operators.base import LATE, Emitted, Failed, Operator
from headrace_streams.core.operators.windows import Sliding
from headrace_streams.core.rows import KEY, NO_TIME, ROW, TIME, WATERMARK, Coded, Numbers, coded, numbers
from headrace_streams.core.state.slots import START_BYTES, Columns, WindowedStore, object_array, prefix_of, start_of
from headrace_streams.core.state.store import Whole

_Window = tuple[int, bytes]
"""Start (ms) and key."""
_Told = tuple[_Window, list[Any], int, int]
"""A window, its fields, and the watermark and ``_row`` of the result."""


class _Rows(Whole, WindowedStore):
    """Rows by time and key. All of them are in memory, since windows are made of those near each other."""


class SlidingAggregate(Operator):
    """
    For each row there is the window that ends with it, and the one that begins right behind it, if that holds any.
    """

    def __init__(self, groups: Groups, window: Sliding, emit: Emit) -> None:
        self._groups = groups
        self._window = window
        self._emit = emit
        self._watermark = NO_TIME
        self.late = 0
        """Rows for which every window had closed when they came."""
        self.store = _Rows(groups.layout)
        self._store = self.store
        self._scratch = Columns(groups.layout)
        self._scratch.keys = [b"", b""]
        self._clear()

    def _clear(self) -> None:
        self._times: dict[bytes, list[int]] = {}
        self._closing: list[tuple[int, int, bytes]] = []
        self._open: set[_Window] = set()
        self._changed: set[_Window] = set()

    def begin(self, watermark: int) -> None:
        self._watermark = watermark
        self._clear()
        self._store.load()
        slots = self._store.slots
        for name in sorted(slots.keys[slot] for slot in slots.used().tolist()):
            self._came(name[START_BYTES:], start_of(name), watermark)

    def _came(self, key: bytes, time: int, mark: int) -> list[_Window]:
        """A key has rows at a time; the windows that hold them, or that there are now, and are open."""
        times = self._times.setdefault(key, [])
        place = bisect_left(times, time)
        if place == len(times) or times[place] != time:
            times.insert(place, time)
        size = self._window.size_ms
        near = times[bisect_left(times, time - size - 1) : bisect_right(times, time + size + 1)]
        starts = {start for of in near for start in (of - size, of + 1)}
        found = []
        for start in sorted(starts):
            # The one behind the row does not hold it, and is there if something does.
            holds = start <= time <= start + size or start == time + 1
            if holds and self._window.closes_at(start) > mark and self._held(key, start):
                found.append((start, key))
                if (start, key) not in self._open:
                    self._open.add((start, key))
                    heapq.heappush(self._closing, (self._window.closes_at(start), start, key))
        return found

    def _held(self, key: bytes, start: int) -> list[int]:
        """The times of the rows in a window."""
        times = self._times.get(key, [])
        return times[bisect_left(times, start) : bisect_right(times, start + self._window.size_ms)]

    def feed(self, rows: pa.Table, port: int, failed: Failed) -> Iterable[Emitted]:
        if not rows.num_rows:
            return
        keys, times, marks = coded(rows[KEY]), numbers(rows[TIME]), numbers(rows[WATERMARK])
        row, inputs = numbers(rows[ROW]), self._groups.inputs(rows)
        late: list[int] = []
        waiting: list[int] = []
        told: list[_Told] = []

        def enter() -> None:
            of = np.array(waiting, np.int64)
            if len(of):
                slots = self._store.places(times[of], Coded(keys.codes[of], keys.values))
                self._groups.add(self._store.slots, slots, [chosen(values, of) for values in inputs], times[of])
            waiting.clear()

        for place, (time, mark) in enumerate(zip(times.tolist(), marks.tolist(), strict=True)):
            if self._closing and self._closing[0][0] <= mark:
                enter()
                told += self._close(mark)
            if self._window.closes_at(time) <= mark:
                late.append(place)
                continue
            windows = self._came(keys.values[keys.codes[place]], time, mark)
            waiting.append(place)
            if self._emit == Emit.EVERY:
                enter()
                told += [(window, self._fields(window), mark, int(row[place])) for window in windows]
            else:
                self._changed.update(windows)
        enter()
        if late:
            self.late += len(late)
            ends = times[late]
            yield Emitted(late_rows(rows, np.array(late), ends - self._window.size_ms, ends), LATE)
        if told:
            yield Emitted(self._rows(told))
        yield from self.advance(int(marks[-1]), failed)

    def advance(self, watermark: int, failed: Failed) -> Iterable[Emitted]:
        if watermark <= self._watermark:
            return
        self._watermark = watermark
        told = self._close(watermark)
        if told:
            yield Emitted(self._rows(told))
        store = self._store
        # A row is needed until the window right behind it has closed: that one is there because of it.
        while (time := store.oldest) is not None and self._window.closes_at(time + 1) <= watermark:
            slots = store.close_oldest()
            for slot in slots.tolist():
                key = store.slots.key_of(slot)
                self._times[key].remove(time)
                if not self._times[key]:
                    del self._times[key]
            store.release(slots)

    def _close(self, watermark: int) -> list[_Told]:
        told = []
        while self._closing and self._closing[0][0] <= watermark:
            at, start, key = heapq.heappop(self._closing)
            window = start, key
            self._open.discard(window)
            if self._emit == Emit.FINAL or (self._emit == Emit.CHANGES and window in self._changed):
                moment = self.clock.passes(at)
                told.append((window, self._fields(window), moment.before, moment.row))
            self._changed.discard(window)
        return told

    def flush(self) -> Iterable[Emitted]:
        changed, self._changed = sorted(self._changed), set()
        if self._emit == Emit.CHANGES and changed:
            yield Emitted(self._now(changed))

    def contents(self) -> pa.Table | None:
        return self._now(sorted(self._open)) if self._open else None

    def _now(self, windows: Sequence[_Window]) -> pa.Table:
        return self._rows([(window, self._fields(window), self._watermark, -1) for window in windows])

    def _fields(self, window: _Window) -> list[Any]:
        """What a window holds."""
        start, key = window
        slots, scratch = self._store.slots, self._scratch
        scratch.keys[0] = key
        scratch.reset(np.array([0]))
        places, missing = slots.find([prefix_of(time) + key for time in self._held(key, start)])
        assert not missing, "each time of a key has a slot"
        for slot in places.tolist():
            for column, of, field in zip(scratch.columns, slots.columns, self._groups.layout.fields, strict=True):
                column[1] = of[slot] if field.copy is None else field.copy(of[slot])
            self._groups.merge(scratch, 0, 1)
        return [column[0] for column in scratch.columns]

    def _rows(self, told: Sequence[_Told]) -> pa.Table:
        columns: list[Numbers] = []
        for place, field in enumerate(self._groups.layout.fields):
            values = [fields[place] for _, fields, _, _ in told]
            columns.append(object_array(values) if field.is_object else np.array(values, field.dtype))
        starts = np.array([start for (start, _), _, _, _ in told])
        ends = starts + self._window.size_ms
        marks = np.array([mark for _, _, mark, _ in told])
        rows = np.array([row for _, _, _, row in told], np.int32)
        return self._groups.result([key for (_, key), _, _, _ in told], columns, ends, marks, rows, (starts, ends))
