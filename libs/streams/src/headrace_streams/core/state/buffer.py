"""
Rows of two sides that wait for each other, found by key and time. All of them are in memory.

In the changelog rows are Arrow: one value holds the rows of a commit, of one side, that are near each other in time. It
is deleted when the last of them has closed. Which of its rows have met one of the other side is a value beside it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Final

import numpy as np
import pyarrow as pa

from headrace_streams.core.rows import (
    KEY,
    TIME,
    TIMESTAMP,
    Coded,
    Numbers,
    coded,
    from_arrow,
    numbers,
    take,
    to_arrow,
)
from headrace_streams.core.state.changelog import NotReadable
from headrace_streams.core.state.slots import prefix_of, start_of
from headrace_streams.core.state.store import NOTHING, Changes, Cold, Whole

VALUE_BYTES: Final = 512 * 1024
"""Rows of a commit are cut into values of about this size, as far as single rows allow."""
SIDES: Final = (b"l", b"r")
_VERSION: Final = 1
_ROWS: Final = b"r"
_MET: Final = b"m"
_NUMBER: Final = struct.Struct(">Q")
_COMPACTED_FROM: Final = 1_024
_ENTRY: Final = np.dtype(
    [("time", np.int64), ("key", np.int64), ("met", np.bool_), ("chunk", np.int64), ("place", np.int64)]
)
_FRESH: Final = -1
"""The chunk of a row that was not committed."""


@dataclass(slots=True)
class _Run:
    """Rows that came one after the other, sorted in two ways."""

    first: int
    """The place of the first."""
    rows: pa.Table
    order: Numbers
    """Key and time as one complex number each: these sort by key, and by time within it."""
    places: Numbers
    """Of the rows in that order."""
    times: Numbers
    by_time: Numbers
    """Places, in the order of ``times``."""
    closed: int = 0
    """So many of these have closed."""


@dataclass(slots=True)
class _Chunk:
    """Committed rows that are one value of the changelog."""

    newest: int
    """The greatest time of its rows, ms."""
    met: Numbers
    told: bool = False
    """Whether the cold tier has a value that says which rows have met another."""


class Buffer:
    """One side: rows that have not closed yet, in the order in which they came. A place is a row's number there."""

    def __init__(self) -> None:
        self._entries: Numbers = np.zeros(64, _ENTRY)
        self._count = 0
        self._runs: list[_Run] = []
        self._keys: dict[bytes, int] = {}
        self._closed = 0
        self._closed_until = -(2**63)
        self._settled = 0
        self._due: list[tuple[int, int]] = []
        self.chunks: dict[int, _Chunk] = {}
        self.changed: set[int] = set()
        """Chunks that have rows which have met another since the last commit."""
        self.gone: list[tuple[int, _Chunk]] = []
        """Chunks of which every row has closed since the last commit."""

    def add(self, keys: Coded, rows: pa.Table) -> Numbers:
        """Rows with their columns ``_key`` and ``_time``; returns their places."""
        count = rows.num_rows
        places = np.arange(self._count, self._count + count)
        if not count:
            return places
        if self._count + count > len(self._entries):
            more = np.zeros(max(len(self._entries), count), _ENTRY)
            self._entries = np.concatenate([self._entries, more])
        self._count += count
        entries = self._entries[places[0] : self._count]
        entries["time"], entries["key"] = numbers(rows[TIME]), self._number(keys)
        entries["met"], entries["chunk"] = False, _FRESH
        self._runs.append(self._run(int(places[0]), rows.combine_chunks()))
        while len(self._runs) > 1 and self._runs[-1].rows.num_rows * 2 > self._runs[-2].rows.num_rows:
            later, earlier = self._runs.pop(), self._runs.pop()
            self._runs.append(self._both(earlier, later))
        return places

    def _number(self, keys: Coded) -> Numbers:
        known = self._keys
        used = np.unique(keys.codes)
        of_code = np.zeros(len(keys.values), np.int64)
        of_code[used] = [known.setdefault(keys.values[code], len(known)) for code in used.tolist()]
        found: Numbers = of_code[keys.codes]
        return found

    def _run(self, first: int, rows: pa.Table) -> _Run:
        entries = self._entries[first : first + rows.num_rows]
        order = entries["key"] + 1j * entries["time"]
        sorted_ = np.argsort(order, kind="stable")
        by_time = np.argsort(entries["time"], kind="stable")
        return _Run(first, rows, order[sorted_], first + sorted_, entries["time"][by_time], first + by_time)

    def _both(self, earlier: _Run, later: _Run) -> _Run:
        """Two runs as one: sorting what is sorted in two parts is one pass."""
        order = np.concatenate([earlier.order, later.order])
        sorted_ = np.argsort(order, kind="stable")
        open_ = [(run.times[run.closed :], run.by_time[run.closed :]) for run in (earlier, later)]
        times = np.concatenate([of for of, _ in open_])
        by_time = np.argsort(times, kind="stable")
        rows = pa.concat_tables([earlier.rows, later.rows]).combine_chunks()
        places = np.concatenate([earlier.places, later.places])[sorted_]
        of_times = np.concatenate([of for _, of in open_])
        return _Run(earlier.first, rows, order[sorted_], places, times[by_time], of_times[by_time])

    def find(self, keys: Coded, low: Numbers, high: Numbers) -> tuple[Numbers, Numbers]:
        """
        For each of the asking rows and each row here of its key whose time is from ``low`` to ``high``: the number of
        the one and the place of the other, by asking row, time, and arrival.
        """
        asks, places = [], []
        if self._runs and len(keys.codes):
            get = self._keys.get
            of_code = np.array([get(key, -1) for key in keys.values], np.int64)
            begin, end = (of_code[keys.codes] + 1j * bound for bound in (low, high))
            for run in self._runs:
                first = np.searchsorted(run.order, begin)
                counts = np.searchsorted(run.order, end, side="right") - first
                many = int(counts.sum())
                if many:
                    before = np.repeat(np.cumsum(counts) - counts, counts)
                    asks.append(np.repeat(np.arange(len(counts)), counts))
                    places.append(run.places[np.repeat(first, counts) + np.arange(many) - before])
        if not asks:
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        ask, place = np.concatenate(asks), np.concatenate(places)
        order = np.lexsort((place, self.times(place), ask))
        return ask[order], place[order]

    def times(self, places: Numbers) -> Numbers:
        """Of rows, ms."""
        found: Numbers = self._entries["time"][places]
        return found

    def rows(self, places: Numbers) -> pa.Table:
        """The rows at these places, in that order."""
        if len(self._runs) == 1:
            found: pa.Table = take(self._runs[0].rows, places - self._runs[0].first)
            return found
        firsts = [run.first for run in self._runs]
        which = np.searchsorted(firsts, places, side="right") - 1
        parts, of = [], []
        for number, run in enumerate(self._runs):
            here = np.flatnonzero(which == number)
            parts.append(take(run.rows, places[here] - run.first))
            of.append(here)
        back = np.argsort(np.concatenate(of), kind="stable")
        ordered: pa.Table = take(pa.concat_tables(parts), back)
        return ordered

    def meet(self, places: Numbers) -> None:
        """These rows have met one of the other side."""
        new = np.unique(places[~self._entries["met"][places]])
        self._entries["met"][new] = True
        chunks = self._entries["chunk"][new]
        for number in np.unique(chunks[chunks != _FRESH]).tolist():
            chunk = self.chunks[number]
            chunk.met[self._entries["place"][new[chunks == number]]] = True
            self.changed.add(number)

    def alone(self, places: Numbers) -> Numbers:
        """Those of these rows that have met none."""
        found: Numbers = places[~self._entries["met"][places]]
        return found

    def close(self, until: int) -> Numbers:
        """Rows of times up to ``until`` are done with: the places of those that have not been before, by time."""
        found = []
        self._closed_until = max(self._closed_until, until)
        for run in self._runs:
            end = int(np.searchsorted(run.times, until, side="right"))
            if end > run.closed:
                found.append(run.by_time[run.closed : end])
                run.closed = end
        while self._due and self._due[0][0] <= until:
            _, number = heappop(self._due)
            self.gone.append((number, self.chunks.pop(number)))
            self.changed.discard(number)
        if not found:
            return np.zeros(0, np.int64)
        places = np.concatenate(found)
        self._closed += len(places)
        ordered: Numbers = places[np.lexsort((places, self.times(places)))]
        return ordered

    def waiting(self) -> Numbers:
        """The places of all rows that have not closed."""
        parts = [run.by_time[run.closed :] for run in self._runs]
        return np.sort(np.concatenate(parts)) if parts else np.zeros(0, np.int64)

    def compact(self) -> None:
        """Have no room for rows that have closed, where they are the most. Places are others then."""
        if not self._closed or self._closed < _COMPACTED_FROM or self._closed * 2 < self._count:
            return
        waiting = self.waiting()
        rows, entries = self.rows(waiting), self._entries[waiting]
        names = list(self._keys)
        used, entries["key"] = np.unique(entries["key"], return_inverse=True)
        self._keys = {names[number]: place for place, number in enumerate(used.tolist())}
        self._settled = int(np.searchsorted(waiting, self._settled))
        self._entries, self._count, self._closed = entries, len(entries), 0
        self._runs = [self._run(0, rows)] if len(entries) else []

    # --- changelog --------------------------------------------------------------------------------------------------

    def fresh(self) -> Numbers:
        """The places of the rows that were not committed and are still needed."""
        places = np.arange(self._settled, self._count)
        found: Numbers = places[self.times(places) > self._closed_until]
        return found

    def met(self, places: Numbers) -> Numbers:
        """Of rows, whether they have met another."""
        found: Numbers = self._entries["met"][places]
        return found

    def committed(self, number: int, chunk: _Chunk, places: Numbers) -> None:
        """These rows are in the changelog now, as that chunk."""
        self.chunks[number] = chunk
        heappush(self._due, (chunk.newest, number))
        self._entries["chunk"][places] = number
        self._entries["place"][places] = np.arange(len(places))
        self._entries["met"][places] = chunk.met

    def settle(self) -> None:
        """What was not committed is now, or is not needed any more."""
        self.changed, self.gone = set(), []
        self._settled = self._count


class JoinStore(Whole):
    """Two buffers, as rows of a changelog; satisfies ``Store``."""

    key_at: int | None = None

    def __init__(self, schemas: Sequence[pa.Schema], stretch_ms: int, told: Sequence[bool]) -> None:
        """
        Args:
            schemas: the user columns of each side.
            stretch_ms: rows of one such stretch of time are one value.
            told: of each side, whether it is kept which rows have met another.
        """
        self._schemas = [pa.schema([*s, pa.field(KEY, pa.binary()), pa.field(TIME, TIMESTAMP)]) for s in schemas]
        self._stretch = stretch_ms
        self._told = told
        self._cold: Cold = NOTHING
        self._clear()

    def _clear(self) -> None:
        self.sides = (Buffer(), Buffer())
        self._next = 0
        self._writing: list[tuple[int, int, Numbers]] = []

    def open(self, cold: Cold) -> None:
        self._cold = cold
        self._clear()
        met = {key[1:]: value for key, value in cold.scan(_MET)}
        # In the order in which they were written: rows of one time stay as they came.
        rows = sorted(((_number_of(key), key[1:], value) for key, value in cold.scan(_ROWS)), key=lambda row: row[0])
        for number, name, value in rows:
            side = SIDES.index(name[:1])
            read = _read(value, self._schemas[side])
            flags = _read_met(met[name], len(read)) if name in met else np.zeros(len(read), bool)
            places = self.sides[side].add(coded(read[KEY]), read)
            self.sides[side].committed(number, _Chunk(start_of(name[1:]), flags, name in met), places)
            self.sides[side].settle()
            self._next = number + 1

    def add(self, side: int, keys: Coded, rows: pa.Table) -> Numbers:
        """See ``Buffer``."""
        schema = self._schemas[side]
        return self.sides[side].add(keys, rows.select(schema.names).cast(schema))

    def changes(self) -> Changes:
        found: Changes = []
        for side, buffer in enumerate(self.sides):
            for number, chunk in buffer.gone:
                name = _name(side, chunk.newest, number)
                found += [(_ROWS + name, None), *([(_MET + name, None)] if chunk.told else [])]
            for number in buffer.changed if self._told[side] else ():
                chunk = buffer.chunks[number]
                found.append((_MET + _name(side, chunk.newest, number), _written_met(chunk.met)))
        self._writing = []
        for side, places, value in self._fresh():
            number = self._next + len(self._writing)
            self._writing.append((number, side, places))
            name = _name(side, int(self.sides[side].times(places).max()), number)
            met = self.sides[side].met(places)
            found.append((_ROWS + name, value))
            if self._told[side] and met.any():
                found.append((_MET + name, _written_met(met)))
        return sorted(found, key=lambda change: change[0])

    def _fresh(self) -> Iterable[tuple[int, Numbers, bytes]]:
        """What a commit adds: side, places and value of each chunk."""
        for side, buffer in enumerate(self.sides):
            fresh = buffer.fresh()
            stretches = buffer.times(fresh) // self._stretch
            for stretch in np.unique(stretches).tolist():
                parts = [fresh[stretches == stretch]]
                while parts:
                    places = parts.pop()
                    value = bytes([_VERSION]) + to_arrow(buffer.rows(places))
                    if len(value) > VALUE_BYTES and len(places) > 1:
                        half = len(places) // 2
                        parts += [places[half:], places[:half]]
                    else:
                        yield side, places, value

    def settle(self) -> None:
        for number, side, places in self._writing:
            buffer = self.sides[side]
            met = buffer.met(places)
            told = self._told[side] and bool(met.any())
            buffer.committed(number, _Chunk(int(buffer.times(places).max()), met, told), places)
        for side, buffer in enumerate(self.sides):
            for number in buffer.changed:
                buffer.chunks[number].told |= self._told[side]
            buffer.settle()
        self._next += len(self._writing)
        self._writing = []

    def drop(self) -> None:
        self.open(self._cold)


def _name(side: int, newest: int, number: int) -> bytes:
    return SIDES[side] + prefix_of(newest) + _NUMBER.pack(number)


def _number_of(key: bytes) -> int:
    return int(_NUMBER.unpack(key[-_NUMBER.size :])[0])


def _read(value: bytes, schema: pa.Schema) -> pa.Table:
    _check(value)
    try:
        rows = from_arrow(value[1:])
    except (pa.ArrowException, OSError) as error:
        raise NotReadable(f"rows of a join in the changelog are broken: {error}") from error
    if rows.schema != schema:
        raise NotReadable("rows of a join in the changelog have other columns than the program gives them")
    return rows


def _written_met(met: Numbers) -> bytes:
    return bytes([_VERSION]) + np.packbits(met).tobytes()


def _read_met(value: bytes, count: int) -> Numbers:
    _check(value)
    return np.unpackbits(np.frombuffer(value, np.uint8, offset=1), count=count).astype(bool)


def _check(value: bytes) -> None:
    if value[:1] != bytes([_VERSION]):
        raise NotReadable("rows of a join in the changelog were not written by this version of Streams")
