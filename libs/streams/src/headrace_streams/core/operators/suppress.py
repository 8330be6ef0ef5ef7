"""Results that change often, told at most once in an interval of event time: the last of each key counts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heappush
from typing import Final

import numpy as np
import pyarrow as pa

from headrace_streams.core.operators.aggregate import WINDOW_START
from headrace_streams.core.operators.base import Emitted, Failed, Operator
from headrace_streams.core.operators.table_rows import TableRows
from headrace_streams.core.rows import (
    KEY,
    NO_TIME,
    TIME,
    WATERMARK,
    Coded,
    Numbers,
    coded,
    numbers,
    take,
    with_system,
)
from headrace_streams.core.state.slots import START_BYTES, KeyedStore, prefix_of

_DUE: Final = "_due"
_Passed = tuple[int, bytes, int]
"""When a row was due, of which key, and its place in what is fed; below 0: it is in the store."""


class Suppress(Operator):
    """
    The first row of a key (and window) waits until the watermark is ``interval_ms`` beyond its own; rows that come
    meanwhile take its place. The one with which the watermark comes there begins the next interval. What waits is
    state.
    """

    def __init__(self, schema: pa.Schema, interval_ms: int, what: str, *, windowed: bool) -> None:
        """
        Args:
            what: the node, for messages.
            windowed: rows of different ``window_start`` do not replace each other.
        """
        self._interval = interval_ms
        self._schema = schema
        self._windowed = windowed
        self._rows = TableRows(pa.schema([*schema, pa.field(_DUE, pa.int64())]), what)
        self.store = KeyedStore(self._rows.layout, START_BYTES)
        self._store = self.store
        self._due: dict[bytes, int] = {}
        self._queue: list[tuple[int, bytes]] = []

    def begin(self, watermark: int) -> None:
        slots = self._store.slots
        slots.load()
        used = slots.used()
        dues = numbers(self._rows.take(slots, used)[_DUE]).tolist()
        self._due = {slots.keys[slot]: due for slot, due in zip(used.tolist(), dues, strict=True)}
        self._queue = [(due, key) for key, due in self._due.items()]
        heapify(self._queue)

    def feed(self, rows: pa.Table, port: int, failed: Failed) -> Iterable[Emitted]:
        if not rows.num_rows:
            return
        last: dict[bytes, int] = {}
        passed: list[_Passed] = []
        marks = numbers(rows[WATERMARK])
        for place, (key, mark) in enumerate(zip(self._keys(rows), marks.tolist(), strict=True)):
            due = self._due.get(key)
            if due is not None and due <= mark:
                passed.append((due, key, last.pop(key, -1)))
            if due is None or due <= mark:
                self._due[key] = mark + self._interval
                heappush(self._queue, (mark + self._interval, key))
            last[key] = place
        ended = self._take_due(int(marks.max()), last)
        yield from self._told(sorted([*passed, *ended]), rows)
        self._release(ended)
        self._put(list(last), take(rows, np.fromiter(last.values(), np.int64, len(last))))

    def _keys(self, rows: pa.Table) -> list[bytes]:
        keys = coded(rows[KEY])
        starts = numbers(rows[WINDOW_START]) if self._windowed else np.zeros(rows.num_rows, np.int64)
        return [
            prefix_of(at) + keys.values[code] for at, code in zip(starts.tolist(), keys.codes.tolist(), strict=True)
        ]

    def _put(self, keys: list[bytes], rows: pa.Table) -> None:
        dues = pa.array([self._due[key] for key in keys], pa.int64())
        self._rows.put(
            self._store.slots, self._store.places(Coded(np.arange(len(keys)), keys)), rows.append_column(_DUE, dues)
        )

    def advance(self, watermark: int, failed: Failed) -> Iterable[Emitted]:
        ended = self._take_due(watermark, {})
        yield from self._told(ended, None)
        self._release(ended)

    def _take_due(self, watermark: int, last: dict[bytes, int]) -> list[_Passed]:
        """What is due by then and waits no more; ``last`` has the places of those that have just come."""
        ended: list[_Passed] = []
        while self._queue and self._queue[0][0] <= watermark:
            due, key = heappop(self._queue)
            if self._due.get(key) == due:
                del self._due[key]
                ended.append((due, key, last.pop(key, -1)))
        return ended

    def _release(self, ended: Sequence[_Passed]) -> None:
        slots = self._store.known([key for _, key, _ in ended])
        self._store.release(slots[slots >= 0])

    def _told(self, passed: Sequence[_Passed], rows: pa.Table | None) -> Iterable[Emitted]:
        """Rows whose time has come, some of which may be among ``rows``."""
        if not passed:
            return
        keys = [key for _, key, _ in passed]
        places = np.array([place for _, _, place in passed])
        slots = self._store.known(keys)
        user, times = self._rows.take(self._store.slots, slots).select(self._schema.names), self._times(slots)
        if rows is not None:
            given = pa.Table.from_arrays([rows[name] for name in self._schema.names], schema=user.schema)
            of = np.where(places < 0, np.arange(len(keys)), len(keys) + places)
            user = take(pa.concat_tables([user, given]).combine_chunks(), of)
            times = np.concatenate([times, numbers(rows[TIME])])[of]
        moments = [self.clock.passes(due) for due, _, _ in passed]
        marks = np.array([moment.before for moment in moments])
        row = np.array([moment.row for moment in moments], np.int32)
        yield Emitted(with_system(user, _row_keys(keys), times, marks, row))

    def _times(self, slots: Numbers) -> Numbers:
        return self._rows.times(self._store.slots, slots)

    def contents(self) -> pa.Table | None:
        self._store.slots.load()
        used = self._store.slots.used()
        keys = [self._store.slots.keys[slot] for slot in used.tolist()]
        user = self._rows.take(self._store.slots, used).select(self._schema.names)
        none = np.full(len(used), NO_TIME)
        return with_system(user, _row_keys(keys), self._times(used), none, np.full(len(used), -1, np.int32))


def _row_keys(keys: Sequence[bytes]) -> pa.Array[pa.BinaryScalar]:
    return pa.array([key[START_BYTES:] for key in keys], pa.binary())
