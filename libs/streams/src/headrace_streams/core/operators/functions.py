"""Functions of the user's over single records, with state and timers, or without."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence, ValuesView
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np
import orjson
import pyarrow as pa

from headrace_streams.core.errors import NotAllowed
from headrace_streams.core.formats.ddl import type_text
from headrace_streams.core.operators.base import Emitted, Failed, Operator, halved
from headrace_streams.core.operators.columns import LAST_TIME
from headrace_streams.core.rows import (
    KEY,
    NO_TIME,
    RECORD,
    ROW,
    TIME,
    WATERMARK,
    Numbers,
    coded,
    distinct,
    numbers,
    user_columns,
    with_system,
)
from headrace_streams.core.state.lifting import Lifting
from headrace_streams.core.state.objects import ObjectStore, State, Value, changes_of, written
from headrace_streams.core.state.timers import Timer
from headrace_streams.core.time import Moment

EVENT: Final = "event"
WALL: Final = "wall"
CLOCKS: Final = (EVENT, WALL)
_SCHEDULE: Final = "\0"
"""Begins the name of a timer that is a schedule's, and has no key; its interval follows."""
_TTL: Final = "\1"
"""
Begins the name of a timer that ends a value, and that of the hidden value beside it, which is when it was written; the
value's name follows. Where there is one there is the other, so writing a value again and again makes no more timers.
"""
RECORDS: Final = pa.schema([pa.field(RECORD, pa.binary())])
"""The columns of rows that have no schema: each is JSON."""


class Asked(NamedTuple):
    """A timer that a function asks for."""

    clock: str
    at: int
    name: str


@dataclass(slots=True)
class Context:
    """What a function may know of the record beside its columns, and ask for."""

    key: bytes | None
    """The record's key."""
    time: int
    """Event time, ms since 1970."""
    watermark: int
    """Event time of the task, ms."""
    now: int = 0
    """The wall clock when the record was read, ms since 1970: another one when the record is read again."""
    _timers: list[Asked] | None = None
    """Those that were asked for; None where nothing takes them."""

    def timer(self, name: str, at: int, *, clock: str = EVENT) -> None:
        """
        Have ``on_timer`` called for this key once event time, or the ``"wall"`` clock, has reached ``at`` (ms).
        Durable: it fires after a restart too. The same name at the same time is one timer.
        """
        if self._timers is None:
            raise NotAllowed("a timer needs a function that takes it: process(…, on_timer=FUNCTION)")
        if not (isinstance(at, int | float | np.number) and 0 <= at <= LAST_TIME):
            raise ValueError(f"the timer {name!r} is at {at!r}; give ms since 1970, before the year 10000")
        if clock not in CLOCKS:
            raise ValueError(f"the timer {name!r} goes by {clock!r}; choose 'event' or 'wall'")
        if name.startswith((_SCHEDULE, _TTL)):
            raise ValueError(f"a timer cannot be called {name!r}")
        name.encode()
        self._timers.append(Asked(clock, int(at), name))


def takes_context(function: Callable[..., Any], without: int) -> bool:
    """Whether a function wants the context behind its ``without`` other arguments."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # a builtin says nothing of its arguments
        return False
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return len(positional) > without


class Made:
    """Rows that functions return, until they are columns."""

    def __init__(self, schema: pa.Schema | None, what: str) -> None:
        """
        Args:
            schema: None: the rows are written as JSON.
        """
        self._schema = schema
        self._what = what
        self._rows: list[Any] = []
        self._keys: list[bytes | None] = []
        self._times: list[int] = []
        self._marks: list[int] = []
        self._places: list[int] = []

    def checked(self, row: Any) -> Any:
        """
        A row in the form in which it is kept.

        Raises:
            TypeError: it is no mapping, or has values that cannot be written.
        """
        if hasattr(row, "model_dump"):
            row = row.model_dump()
        elif hasattr(row, "__dataclass_fields__"):
            row = {name: getattr(row, name) for name in row.__dataclass_fields__}
        if not isinstance(row, Mapping):
            raise TypeError(f"{self._what} gave {row!r:.60}; a row is a dict (or a dataclass)")
        if self._schema is None:
            text = orjson.dumps(row)
            if b"null" in text and _has_odd_number(row):
                raise TypeError(f"{self._what} gave NaN or infinity, which JSON cannot hold; give None")
            return text
        unknown = [name for name in row if name not in self._schema.names]
        if unknown:
            raise TypeError(f"{self._what} gave the column {unknown[0]!r}, which its schema does not have")
        return {column.name: _checked_value(row.get(column.name), column) for column in self._schema}

    def add(self, row: Any, key: bytes | None, time: int, mark: int, place: int) -> None:
        """Keep a row that is checked."""
        self._rows.append(row)
        self._keys.append(key)
        self._times.append(time)
        self._marks.append(mark)
        self._places.append(place)

    def table(self) -> pa.Table:
        """All of them."""
        if self._schema is None:
            user = pa.table({RECORD: pa.array(self._rows, pa.binary())})
        else:
            user = pa.Table.from_pylist(self._rows, schema=self._schema)
        places = np.array(self._places, np.int32)
        times, marks = np.array(self._times, np.int64), np.array(self._marks, np.int64)
        return with_system(user, pa.array(self._keys, pa.binary()), times, marks, places)


_PYTHON: Final[dict[Any, tuple[type, ...]]] = {
    pa.int64(): (int,),
    pa.int32(): (int,),
    pa.float64(): (float, int),
    pa.string(): (str,),
    pa.bool_(): (bool,),
}


def _checked_value(value: Any, column: pa.Field[Any]) -> Any:
    """The value, which the function cannot change any more; raises where Arrow would not take it."""
    kind = type(value)
    fits = value is None or kind in _PYTHON.get(column.type, ())
    if fits and kind is str:
        value.encode()  # raises for what is no text
    if fits and not (kind is int and abs(value) >= 2**31):
        return value
    try:
        (kept,) = pa.array([value], column.type).to_pylist()
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as wrong:
        raise TypeError(f"{column.name}: {value!r:.60} is no {type_text(column.type)}") from wrong
    if _is_cut(value, column.type):
        raise TypeError(f"{column.name}: {value!r:.60} is no {type_text(column.type)}")
    return kept


def _has_odd_number(value: Any) -> bool:
    """Whether orjson has written null for a number."""
    if isinstance(value, float):
        return not math.isfinite(value)
    if hasattr(value, "__dataclass_fields__"):
        value = [getattr(value, name) for name in value.__dataclass_fields__]
    elif isinstance(value, Mapping):
        value = value.values()
    return isinstance(value, list | tuple | ValuesView) and any(map(_has_odd_number, value))


def _is_cut(value: Any, kind: pa.DataType) -> bool:
    """Whether a float stands where whole numbers do, which Arrow would cut."""
    types: Any = pa.types
    inner: Any = kind
    if value is None:
        return False
    if types.is_integer(kind):
        return isinstance(value, float) and not value.is_integer()
    if types.is_list(kind) or types.is_large_list(kind):
        return any(_is_cut(one, inner.value_type) for one in value)
    if types.is_map(kind):
        pairs = value.items() if isinstance(value, Mapping) else value
        return any(_is_cut(one, inner.item_type) for _, one in pairs)
    there = types.is_struct(kind) and isinstance(value, Mapping)
    return there and any(_is_cut(value.get(field.name), field.type) for field in inner)


_SHOWN: Final = {int: pa.int64(), float: pa.float64(), str: pa.string(), bytes: pa.binary(), bool: pa.bool_()}


def shown(kind: type, values: list[Any]) -> pa.Array[Any]:
    """Values of state as a column; what is no single value is JSON."""
    if kind in _SHOWN:
        return pa.array(values, _SHOWN[kind])
    return pa.array([_as_json(value) for value in values], pa.string())


def _as_json(value: Any) -> str:
    try:
        return orjson.dumps(value, default=repr, option=orjson.OPT_NON_STR_KEYS).decode()
    except TypeError:  # a key that is no single value, a number of more than 64 bits
        return orjson.dumps(repr(value)).decode()


def given_records(rows: pa.Table) -> list[dict[str, Any]]:
    """Rows as functions get them."""
    if RECORD in rows.column_names:
        values: list[Any] = rows[RECORD].to_pylist()
        return [orjson.loads(value) for value in values]
    return rows.select(user_columns(rows.column_names)).to_pylist()


def keys_of(rows: pa.Table) -> list[bytes | None]:
    """The key of each row."""
    keys = coded(rows[KEY])
    return [keys.values[code] if code >= 0 else None for code in keys.codes.tolist()]


class Apply(Operator):
    """A function without state: each record becomes none, one, or more."""

    def __init__(
        self,
        function: Callable[..., Any],
        many: Callable[[Any, Any], Iterable[Any]],
        schema: pa.Schema | None,
        what: str,
    ) -> None:
        """
        Args:
            many: what the function returned, and the record, to the rows that leave.
        """
        self._function = function
        self._context = takes_context(function, 1)
        self._many = many
        self._schema = schema
        self._what = what

    def feed(self, rows: pa.Table, port: int, failed: Failed) -> Iterable[Emitted]:
        made = Made(self._schema, self._what)
        for place, (row, key, time, mark, of) in enumerate(each_row(rows, given_records(rows))):
            try:
                context = (Context(key, time, mark, self.clock.wall),) if self._context else ()
                left = [made.checked(one) for one in self._many(self._function(row, *context), row)]
            except BaseException as error:  # noqa: BLE001  # the user's function
                failed(rows.slice(place, 1), error)
                continue
            for one in left:
                made.add(one, key, time, mark, of)
        yield Emitted(made.table())


class Choose(Operator):
    """A function that says which records stay, or only looks at them; columns are untouched."""

    def __init__(self, function: Callable[..., Any], *, keep_all: bool) -> None:
        self._function = function
        self._context = takes_context(function, 1)
        self._keep_all = keep_all

    def feed(self, rows: pa.Table, port: int, failed: Failed) -> Iterable[Emitted]:
        stays = np.zeros(rows.num_rows, bool)
        for place, (row, key, time, mark, _) in enumerate(each_row(rows, given_records(rows))):
            try:
                context = (Context(key, time, mark, self.clock.wall),) if self._context else ()
                stays[place] = bool(self._function(row, *context)) or self._keep_all
            except BaseException as error:  # noqa: BLE001  # the user's function
                failed(rows.slice(place, 1), error)
        yield Emitted(rows.filter(pa.array(stays)))


def each_row(
    rows: pa.Table, given: Sequence[dict[str, Any]]
) -> Iterable[tuple[dict[str, Any], bytes | None, int, int, int]]:
    """Record (as ``given_records`` has it), key, time, watermark and place of each row."""
    system = (numbers(rows[name]).tolist() for name in (TIME, WATERMARK, ROW))
    return zip(given, keys_of(rows), *system, strict=True)


@dataclass(frozen=True, slots=True)
class Functions:
    """What the user gave to ``process``."""

    on_record: Callable[..., Any]
    on_timer: Callable[..., Any] | None
    values: Mapping[str, Value]
    schema: pa.Schema | None
    what: str
    schedules: Mapping[str, Mapping[int, Callable[..., Any]]]
    """By clock and interval, ms."""
    lifting: Lifting = field(default_factory=Lifting)
    """Of values that an earlier version of the program has written."""


class Process(Operator):
    """
    A function with one key's state for each record, and one for its timers.

    What it changes counts if it does not raise: a savepoint for each record. After each row the timers that are due by
    then fire, so the cutting of batches is not seen.
    """

    def __init__(self, functions: Functions) -> None:
        self._functions = functions
        self.store = ObjectStore(dict(functions.values), functions.lifting)
        self._store = self.store
        self._timers = {EVENT: self.store.timers, WALL: self.store.wall_timers}
        self._begun: set[str] = set()
        """The clocks whose schedules have begun."""
        self._written_at = NO_TIME
        """Event time of what a call writes."""
        self._ttls = {name: one.ttl_ms for name, one in functions.values.items() if one.ttl_ms is not None}

    def begin(self, watermark: int) -> None:
        self._begun = {clock for clock in CLOCKS if not self._functions.schedules[clock]}
        if watermark != NO_TIME:
            self._begin_schedules(EVENT, watermark)

    def _begin_schedules(self, clock: str, now: int) -> None:
        """Each goes on as of the last commit, or begins now."""
        self._begun.add(clock)
        there = self._timers[clock].names(b"")
        for interval in self._functions.schedules[clock]:
            if f"{_SCHEDULE}{interval}" not in there:
                self._schedule(clock, interval, now)

    def _schedule(self, clock: str, interval: int, now: int) -> None:
        self._timers[clock].add(((now // interval + 1) * interval, b"", f"{_SCHEDULE}{interval}"))

    def feed(self, rows: pa.Table, port: int, failed: Failed) -> Iterable[Emitted]:
        made = Made(self._functions.schema, self._functions.what)
        self._look_at_time()
        self._store.fetch(distinct(coded(rows[KEY]))[0])
        for part, given in halved(rows, lambda part: (part, given_records(part)), failed):
            self._feed(part, given, made, failed)
        yield Emitted(made.table())

    def _feed(self, rows: pa.Table, given: Sequence[dict[str, Any]], made: Made, failed: Failed) -> None:
        for place, (row, key, time, mark, of) in enumerate(each_row(rows, given)):
            assert key is not None, "rows without a key are dropped before"
            if self._is_due(mark):  # by records that did not come here
                self._fire(self.clock.of(of).before, made, failed)
            self._written_at = max(time, mark)
            try:
                self._call(partial(self._functions.on_record, row), key, time, Moment(mark, mark, of), made)
            except BaseException as error:  # noqa: BLE001  # the user's function
                failed(rows.slice(place, 1), error)
            if self._is_due(mark):
                self._fire(mark, made, failed, self.clock.of(of))

    def _look_at_time(self) -> None:
        """Event time begins with the first record that has one, wherever the batch was cut."""
        first = self.clock.passes(NO_TIME + 1).now
        if EVENT not in self._begun and first != NO_TIME:
            self._begin_schedules(EVENT, first)

    def advance(self, watermark: int, failed: Failed) -> Iterable[Emitted]:
        self._look_at_time()
        if not self._is_due(watermark):
            return ()
        made = Made(self._functions.schema, self._functions.what)
        self._fire(watermark, made, failed)
        return (Emitted(made.table()),)

    @property
    def due(self) -> int | None:
        return self._store.wall_timers.next_due if WALL in self._begun else 0

    def tick(self, now: int, failed: Failed) -> Iterable[Emitted]:
        if WALL not in self._begun:
            self._begin_schedules(WALL, now)
        made = Made(self._functions.schema, self._functions.what)
        moment = self.clock.of(-1)
        while (timer := self._store.wall_timers.take_due(now)) is not None:
            self._ring(WALL, timer, now, moment, made, failed)
        if self._is_due(moment.now):
            self._fire(moment.now, made, failed, moment)
        return (Emitted(made.table()),)

    def contents(self) -> pa.Table | None:
        keys: list[bytes] = []
        values: dict[str, list[Any]] = {name: [] for name in self._store.values}
        for key, kept in self._store.committed():
            keys.append(key)
            for name, declared in self._store.values.items():
                values[name].append(kept.get(name, declared.default))
        columns = {name: shown(self._store.values[name].type, of) for name, of in values.items()}
        count = len(keys)
        none = np.full(count, NO_TIME)
        user = pa.table({"key": pa.array(keys, pa.binary()), **columns})
        return with_system(user, user["key"], none, none, np.full(count, -1, np.int32))

    def _is_due(self, watermark: int) -> bool:
        due = self._store.timers.next_due
        return due is not None and due <= watermark

    def _fire(self, until: int, made: Made, failed: Failed, then: Moment | None = None) -> None:
        """
        Fire the timers that are due.

        Args:
            then: when; if not told, each when the watermark passed its time.
        """
        while (timer := self._store.timers.take_due(until)) is not None:
            moment = then or self.clock.passes(timer[0])
            self._ring(EVENT, timer, moment.now, moment, made, failed)

    def _ring(self, clock: str, timer: Timer, now: int, moment: Moment, made: Made, failed: Failed) -> None:
        """A timer or a schedule; ``now`` by its clock."""
        at, key, name = timer
        self._written_at = moment.now
        if name.startswith(_TTL):
            self._end(name.removeprefix(_TTL), key, at)
            return
        if not name.startswith(_SCHEDULE):
            assert self._functions.on_timer is not None, "timers are refused where nothing takes them"
            self._try(partial(self._functions.on_timer, name), timer, moment, made, failed, clock)
            return
        interval = int(name.removeprefix(_SCHEDULE))
        function = self._functions.schedules[clock].get(interval)
        if function is None:  # the program before had it
            return
        self._schedule(clock, interval, now)
        for one in self._store.keys_with_state():
            self._try(function, (at, one, f"every {interval} ms"), moment, made, failed)

    def _end(self, name: str, key: bytes, at: int) -> None:
        """A value that was not written since is what a new key has."""
        hidden = _TTL + name
        kept = self._store.of(key)
        ttl_ms = self._ttls.get(name)
        if ttl_ms is None:  # the program before had it
            self._store.set(key, {hidden: None})
        elif (ends := kept[hidden] + ttl_ms) > at:
            self._store.timers.add((ends, key, hidden))
        else:
            self._store.set(key, {name: self._store.values[name].default, hidden: None})

    def _lives(self, state: State, key: bytes) -> dict[str, Any]:
        """What is kept beside values that end, now that the function has written some of them."""
        hidden: dict[str, Any] = {}
        if not self._ttls or self._written_at == NO_TIME:
            return hidden
        for name in self._ttls.keys() & written(state):
            before = self._store.of(key).get(_TTL + name)
            at = hidden[_TTL + name] = max(self._written_at, NO_TIME if before is None else before)
            if before is None:
                self._store.timers.add((at + self._ttls[name], key, _TTL + name))
        return hidden

    def _try(
        self,
        function: Callable[..., Any],
        timer: Timer,
        moment: Moment,
        made: Made,
        failed: Failed,
        rings: str = "",
    ) -> None:
        at, key, _ = timer
        try:
            self._call(function, key, at, moment, made, rings)
        except BaseException as error:  # noqa: BLE001  # the user's function
            failed(_row_of_timer(timer, moment.now), error)

    def _call(
        self, function: Callable[..., Any], key: bytes, time: int, moment: Moment, made: Made, rings: str = ""
    ) -> None:
        """
        Args:
            rings: the clock of the timer that calls.
        """
        timers: list[Asked] = []
        state = State(self._store, key)
        taken = None if self._functions.on_timer is None else timers
        left = function(state, Context(key, time, moment.now, self.clock.wall, taken))
        # A generator runs here; a single row may be returned as it is.
        rows = () if left is None else (left,) if isinstance(left, Mapping) else left
        checked = [made.checked(row) for row in rows]
        if any(asked.clock == rings and asked.at <= time for asked in timers):
            raise ValueError("a timer that is set by a timer must be later than that one")
        changed = changes_of(state)
        changed |= self._lives(state, key)
        if changed:
            self._store.set(key, changed)
        for asked in timers:
            self._timers[asked.clock].add((asked.at, key, asked.name))
        for row in checked:
            made.add(row, key, time, moment.before, moment.row)


def _row_of_timer(timer: Timer, mark: int) -> pa.Table:
    at, key, name = timer
    user = pa.table({"timer": [name]})
    one: Sequence[Numbers] = (np.array([at]), np.array([mark]), np.array([-1], np.int32))
    return with_system(user, pa.array([key], pa.binary()), *one)
