"""
Tables with their history: a row of a stream is joined with the row that its key had at that row's time.

What a row finds is decided by its own watermark and by what came before it, so the cutting of batches is not seen.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Mapping, Sequence
from heapq import heapify, heappop, heappush
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace_streams.core.changes import ADDED, REMOVED, changes_of, with_changes
from headrace_streams.core.operators.base import Emitted, Failed, Operator
from headrace_streams.core.operators.table_joins import LEFT, RIGHT, JoinTable
from headrace_streams.core.operators.table_rows import TableRows
from headrace_streams.core.operators.tables import Found, View
from headrace_streams.core.rows import (
    KEY,
    NO_TIME,
    ROW,
    SYSTEM,
    TIME,
    TIMESTAMP,
    WATERMARK,
    Coded,
    Numbers,
    coded,
    concat,
    last_turns,
    numbers,
    ordered,
    plain_keys,
    take,
    user_columns,
    whole,
    with_system,
)
from headrace_streams.core.state.slots import START_BYTES, KeyedStore, prefix_of, start_of

VERSIONS: Final = "versions"
"""The edge by which all versions leave; by the other go those that are the newest of their key."""
VALID_FROM: Final = "valid_from"
"""What the time of a version is called where all are shown."""
_GONE: Final = "_gone"
_TURN: Final = "_turn"
_STORED: Final = b"s"
_FRESH: Final = b"f"
_PLACE_BYTES: Final = 8
_Version = tuple[bytes, int]
"""Key, and from when on, ms."""


class History(Operator):
    """
    Keeps the rows of each key with the times from which on they hold, ``keep_ms`` back. A row that is behind that is
    late, and dropped. What each key had is found in memory, the rows may be elsewhere.
    """

    def __init__(self, schema: pa.Schema, keep_ms: int, what: str) -> None:
        """
        Args:
            what: the node, for messages.
        """
        self.keep_ms = keep_ms
        self._schema = TableRows(schema, what).schema
        self._rows = TableRows(pa.schema([*schema, pa.field(_GONE, pa.bool_())]), what)
        self.store = KeyedStore(self._rows.layout, START_BYTES)
        self._store = self.store
        self.late = 0
        """Rows that came after what they would have changed was forgotten."""
        self._times: dict[bytes, list[int]] = {}
        self._gone: set[_Version] = set()
        self._ends: list[tuple[int, _Version]] = []
        self._passed = NO_TIME

    def begin(self, watermark: int) -> None:
        slots = self._store.slots
        slots.load()
        used = slots.used()
        gone = self._rows.take(slots, used)[_GONE].to_pylist()
        self._times, self._gone, self._ends, self._passed = {}, set(), [], watermark
        for slot, is_gone in zip(used.tolist(), gone, strict=True):
            name = slots.keys[slot]
            key, time = name[START_BYTES:], start_of(name)
            insort(self._times.setdefault(key, []), time)
            if is_gone:
                self._gone.add((key, time))
        for key, times in self._times.items():
            self._ends += [(end, (key, time)) for time, end in pairwise(times)]
        self._ends += [(version[1], version) for version in self._gone]
        heapify(self._ends)

    def feed(self, rows: pa.Table, port: int, failed: Failed) -> Iterable[Emitted]:
        if not rows.num_rows:
            return
        keys, changes = coded(rows[KEY]), changes_of(rows)
        stored: dict[bytes, int] = {}
        replaced: list[bytes] = []
        accepted: list[int] = []
        newest: list[int] = []
        columns = (keys.codes, numbers(rows[TIME]), numbers(rows[WATERMARK]), changes)
        for place, (code, time, mark, change) in enumerate(zip(*(one.tolist() for one in columns), strict=True)):
            if time < mark - self.keep_ms:
                self.late += 1
                continue
            version = keys.values[code], time
            name = _name(version)
            if not self._add(version, gone=change != ADDED) and name not in stored:
                replaced.append(name)
            stored[name] = place
            accepted.append(place)
            if self._times[version[0]][-1] == time:
                newest.append(place)
        came = take(rows, np.array(accepted, np.int64))
        versions = _as_versions(came, changes_of(came), last_turns(numbers(came[ROW])))
        yield Emitted(concat([*self._before(replaced), versions]), VERSIONS)
        self._put(list(stored), take(rows, np.fromiter(stored.values(), np.int64, len(stored))))
        yield Emitted(take(rows, np.array(newest, np.int64)))

    def _add(self, version: _Version, *, gone: bool) -> bool:
        """Whether its key had none of that time."""
        key, time = version
        times = self._times.setdefault(key, [])
        place = bisect_left(times, time)
        is_new = place == len(times) or times[place] != time
        if is_new:
            times.insert(place, time)
            if place:
                heappush(self._ends, (time, (key, times[place - 1])))
            if place + 1 < len(times):
                heappush(self._ends, (times[place + 1], version))
        if gone:
            self._gone.add(version)
            heappush(self._ends, (time, version))
        else:
            self._gone.discard(version)
        return is_new

    def _before(self, names: list[bytes]) -> list[pa.Table]:
        """Versions as they are until others of the same times replace them."""
        if not names:
            return []
        found = self.lookup(names)
        count = len(names)
        keys = pa.array([name[START_BYTES:] for name in names], pa.binary())
        rows = with_system(found.rows, keys, found.times, np.full(count, NO_TIME), np.full(count, -1, np.int32))
        return [_as_versions(rows, np.where(found.exists, ADDED, REMOVED), np.full(count, -1))]

    def _put(self, names: list[bytes], rows: pa.Table) -> None:
        if names:
            gone = pa.array(changes_of(rows) != ADDED)
            slots = self._store.places(Coded(np.arange(len(names)), names))
            self._rows.put(self._store.slots, slots, rows.append_column(_GONE, gone))

    def advance(self, watermark: int, failed: Failed) -> Iterable[Emitted]:
        # What is being fed may still ask as of before.
        until, self._passed = self._passed - self.keep_ms, max(self._passed, watermark)
        ended: list[_Version] = []
        while self._ends and self._ends[0][0] <= until:
            _, (key, time) = heappop(self._ends)
            times = self._times.get(key, [])
            place = bisect_left(times, time)
            if place == len(times) or times[place] != time:
                continue
            is_last = place + 1 == len(times)
            if (times[place + 1] <= until) if not is_last else (key, time) in self._gone:
                ended.append((key, time))
                self._gone.discard((key, time))
                del times[place]
                if not times:
                    del self._times[key]
        slots = self._store.known([_name(version) for version in ended])
        self._store.release(slots[slots >= 0])
        return ()

    def versions(self, key: bytes) -> Sequence[int]:
        """From when on the rows of a key hold, ms, those of deletions too, in their order."""
        return self._times.get(key, ())

    def lookup(self, keys: Sequence[bytes]) -> Found:
        """Versions by their names, which are different."""
        slots = self._store.known(keys)
        rows = self._rows.take(self._store.slots, slots)
        gone = numbers(pc.fill_null(whole(rows[_GONE]), True))
        return Found(rows.select(self._schema.names), ~gone, self._rows.times(self._store.slots, slots))

    def contents(self) -> pa.Table | None:
        slots = self._store.slots
        slots.load()
        names = [slots.keys[slot] for slot in slots.used().tolist()]
        found = self.lookup(names)
        starts = pa.array([start_of(name) for name in names], pa.int64()).cast(TIMESTAMP)
        keys = pa.array([name[START_BYTES:] for name in names], pa.binary())
        none = np.full(len(names), NO_TIME)
        user = found.rows.append_column(VALID_FROM, starts)
        rows = with_system(user, keys, found.times, none, np.full(len(names), -1, np.int32))
        return rows.filter(pa.array(found.exists))


def _name(version: _Version) -> bytes:
    return prefix_of(version[1]) + version[0]


def _as_versions(rows: pa.Table, changes: Numbers, turns: Numbers) -> pa.Table:
    names = [*user_columns(rows.column_names), *SYSTEM]
    alike = with_changes(pa.Table.from_arrays([rows[name] for name in names], names=names), changes)
    return alike.append_column(_TURN, pa.array(turns, pa.int64()))


class AsOf(View):
    """The rows that keys had at a time, those that came with what is being fed among them."""

    def __init__(self, history: History) -> None:
        self._history = history
        self.came([])

    def came(self, tables: Sequence[pa.Table]) -> None:
        """Versions that came with what is being fed."""
        self._fresh = concat(tables) if tables else None
        self._came: dict[_Version, list[tuple[int, int]]] = {}
        if self._fresh is None:
            return
        keys: list[Any] = plain_keys(self._fresh[KEY]).to_pylist()
        columns = zip(keys, numbers(self._fresh[TIME]).tolist(), numbers(self._fresh[_TURN]).tolist(), strict=True)
        for place, (key, time, turn) in enumerate(columns):
            insort(self._came.setdefault((key, time), []), (turn, place))

    def names(self, rows: pa.Table) -> list[bytes | None]:
        """What each row finds, by a name for ``lookup``; None: nothing."""
        keys = coded(rows[KEY])
        times = np.maximum(numbers(rows[TIME]), numbers(rows[WATERMARK]) - self._history.keep_ms)
        turns = last_turns(numbers(rows[ROW]))
        each = zip(keys.codes.tolist(), times.tolist(), turns.tolist(), strict=True)
        return [self._name(keys.values[code], time, turn) if code >= 0 else None for code, time, turn in each]

    def _name(self, key: bytes, time: int, turn: int) -> bytes | None:
        versions = self._history.versions(key)
        for place in range(bisect_right(versions, time) - 1, -1, -1):
            version = key, versions[place]
            came = self._came.get(version)
            if came is None:
                return _STORED + _name(version)
            before = [at for of, at in came if of <= turn]
            if before:
                return _FRESH + before[-1].to_bytes(_PLACE_BYTES, "big")
        return None

    def lookup(self, keys: Sequence[bytes]) -> Found:
        """The rows of these different names."""
        stored = [place for place, name in enumerate(keys) if name.startswith(_STORED)]
        found = self._history.lookup([keys[place][1:] for place in stored])
        if self._fresh is None:
            return found
        fresh = [place for place, name in enumerate(keys) if name.startswith(_FRESH)]
        came = take(self._fresh, np.array([int.from_bytes(keys[place][1:], "big") for place in fresh], np.int64))
        there = changes_of(came) == ADDED
        back = np.argsort([*stored, *fresh])
        rows = pa.concat_tables([found.rows, came.select(found.rows.column_names).cast(found.rows.schema)])
        return Found(
            take(rows.combine_chunks(), back),
            np.concatenate([found.exists, there])[back],
            np.concatenate([found.times, numbers(came[TIME])])[back],
        )


class JoinVersions(JoinTable):
    """Rows of a stream (input ``LEFT``) with those that a table had at their times (``RIGHT``)."""

    def __init__(self, versions: AsOf, table: View, columns: Mapping[str, str], *, left: bool) -> None:
        """
        Args:
            table: what is looked up by the names that ``versions`` gives.
        """
        super().__init__(table, columns, left=left)
        self._versions = versions

    def together(self, waiting: list[tuple[pa.Table, int]]) -> list[tuple[pa.Table, int]]:
        given, came = ([rows for rows, port in waiting if port == side] for side in (LEFT, RIGHT))
        self._versions.came(came if given else [])
        return [(ordered(given), LEFT)] if given else []

    def _find(self, rows: pa.Table) -> tuple[pa.Table, Numbers]:
        names = self._versions.names(rows)
        number = {name: place for place, name in enumerate(dict.fromkeys(name for name in names if name is not None))}
        found = self._table.lookup(list(number))
        places = np.array([-1 if name is None else number[name] for name in names], np.int64)
        return found.rows, np.where(np.append(found.exists, False)[places], places, -1)
