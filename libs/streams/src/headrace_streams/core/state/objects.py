"""State of record functions: a few named values and timers for each key."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import ormsgpack

from headrace_streams.core.errors import StateFailed
from headrace_streams.core.state.lifting import Lifting
from headrace_streams.core.state.store import NOTHING, OBJECT_FACTOR, Changes, Cold
from headrace_streams.core.state.timers import Timers

_STATE: Final = b"s"
_TIMER: Final = b"t"
_WALL_TIMER: Final = b"w"
_VERSION: Final = 1
_SCALARS: Final = (int, float, str, bytes, bool)
_ONE_FORM: Final = (int, str, bytes, bool)
"""Equal values of one of these types are one value."""
_ENTRY_BYTES: Final = 400
"""About what the entry of a key takes beside its key's bytes and what the values hold."""


@dataclass(frozen=True, slots=True)
class Value:
    """A value that is kept for each key."""

    type: type
    default: Any
    """What a key without it has."""
    ttl_ms: int | None = None
    """For how much event time it is kept after it was written; None: for good."""

    def check(self, name: str, value: Any) -> Any:
        """
        The value, if it is of the type; its parts are looked at when the function has returned.

        Raises:
            TypeError: it is of another type.
        """
        if self.type is float and type(value) is int:
            value = float(value)
        if value is not None and (not isinstance(value, self.type) or (self.type is int and isinstance(value, bool))):
            raise TypeError(f"{name} is declared as {self.type.__name__}, and was set to {value!r:.100}")
        return value

    def kept(self, name: str, value: Any) -> Any:
        """
        The value as it is after a restart, and free of the function's hands.

        Raises:
            TypeError: it is of another type, or has parts that cannot be kept.
        """
        return as_kept(name, self.check(name, value))


def as_kept(name: str, value: Any) -> Any:
    """
    A value as it is after a restart, and free of the function's hands.

    Raises:
        TypeError: it has parts that cannot be kept.
    """
    try:
        packed = ormsgpack.packb(value, option=ormsgpack.OPT_NON_STR_KEYS)
    except ormsgpack.MsgpackEncodeError as error:
        raise TypeError(f"{name} was set to {value!r:.100}, which cannot be kept: {error}") from error
    return ormsgpack.unpackb(packed, option=ormsgpack.OPT_NON_STR_KEYS)


def differs(value: Any, other: Any) -> bool:
    """Whether it is another value after a restart: 1, 1.0 and True are equal, and three values."""
    if value != other or type(value) is not type(other):
        return True
    if value is None or type(value) in _ONE_FORM:
        return False
    try:
        one, two = (ormsgpack.packb(each, option=ormsgpack.OPT_NON_STR_KEYS) for each in (value, other))
    except ormsgpack.MsgpackEncodeError:  # who keeps it says why
        return True
    return one != two


@dataclass(slots=True)
class _Entry:
    """What is in memory of a key."""

    values: dict[str, Any]
    written: bool
    """Whether the cold tier has something of the key."""
    bytes: int
    """About how much memory it takes."""
    asked: bool = False
    """Whether it was asked for since it came, or since the last round."""


class ObjectStore:
    """Values and timers by key; satisfies ``Store``. All timers are in memory."""

    key_at = len(_STATE)

    def __init__(self, values: dict[str, Value], lifting: Lifting | None = None) -> None:
        self.values = values
        self._lifting = lifting or Lifting()
        self._cold: Cold = NOTHING
        self.hits = self.misses = 0
        self.timers = Timers(_TIMER)
        """By event time."""
        self.wall_timers = Timers(_WALL_TIMER)
        """By the wall clock."""
        self._clear()

    def _clear(self) -> None:
        self._hot: dict[bytes, _Entry] = {}
        self._round: deque[bytes] = deque()
        """The keys in memory, the one that is to be looked at next first."""
        self._bytes = 0
        self._dirty: set[bytes] = set()

    def open(self, cold: Cold) -> None:
        self._cold = cold
        self._clear()
        self.timers.open(cold)
        self.wall_timers.open(cold)

    def fetch(self, keys: Iterable[bytes]) -> None:
        """Have these different keys in memory."""
        missing = []
        for key in keys:
            found = self._hot.get(key)
            if found is None:
                missing.append(key)
            else:
                self.hits += 1
                found.asked = True
        self.misses += len(missing)
        for key, value in zip(missing, self._cold.get([_STATE + key for key in missing]), strict=True):
            values = {} if value is None else self._read(key, value)
            entry = self._hot[key] = _Entry(values, value is not None, _bytes_of(key, value))
            self._round.append(key)
            self._bytes += entry.bytes

    def _read(self, key: bytes, value: bytes) -> dict[str, Any]:
        """
        Raises:
            StateFailed: it is of another version of the program, which this one does not lift.
        """
        assert value[0] == _VERSION, "another form of the values has another version of the changelog"
        kept: dict[str, Any] = ormsgpack.unpackb(value[1:], option=ormsgpack.OPT_NON_STR_KEYS)
        return self._lifting.lifted(key, kept, self._checked)

    def _checked(self, name: str, value: Any) -> Any:
        declared = self.values.get(name)
        return as_kept(name, value) if declared is None else declared.kept(name, value)

    def of(self, key: bytes) -> dict[str, Any]:
        """What is kept of a key; not to be changed."""
        return self._entry(key).values

    def _entry(self, key: bytes) -> _Entry:
        if key not in self._hot:
            self.fetch([key])
        return self._hot[key]

    def committed(self) -> Iterator[tuple[bytes, dict[str, Any]]]:
        """What is kept of each key, as of the last commit."""
        for key, value in self._cold.scan(_STATE):
            name = key[len(_STATE) :]
            yield name, self._read(name, value)

    def set(self, key: bytes, changed: dict[str, Any]) -> None:
        """Keep values of a key."""
        entry = self._entry(key)
        entry.values = {**entry.values, **changed}
        self._dirty.add(key)

    def keys_with_state(self) -> list[bytes]:
        """Those that something is kept of now, in the order of their bytes."""
        found = {key[len(_STATE) :] for key, _ in self._cold.scan(_STATE)} - self._hot.keys()
        return sorted([*found, *(key for key, entry in self._hot.items() if self._kept(entry))])

    def changes(self) -> Changes:
        found: Changes = []
        for key in self._dirty:
            entry = self._hot[key]
            kept = self._kept(entry)
            value = _packed(key, self._lifting.marked(kept)) if kept else None
            if kept or entry.written:
                found.append((_STATE + key, value))
            self._bytes += _bytes_of(key, value) - entry.bytes
            entry.bytes = _bytes_of(key, value)
        return sorted([*found, *self.timers.changes(), *self.wall_timers.changes()], key=lambda change: change[0])

    def _kept(self, entry: _Entry) -> dict[str, Any]:
        """Those of its values that differ from what a new key has."""
        return {name: value for name, value in entry.values.items() if differs(value, self._default(name))}

    def _default(self, name: str) -> Any:
        return self.values[name].default if name in self.values else None

    def settle(self) -> None:
        for key in self._dirty:
            entry = self._hot[key]
            entry.written = bool(self._kept(entry))
        self._dirty = set()
        self.timers.settle()
        self.wall_timers.settle()

    def drop(self) -> None:
        self.open(self._cold)

    def kept_bytes(self) -> int:
        return self._bytes

    def dirty_bytes(self) -> int:
        return len(self._dirty) * self._bytes // max(1, len(self._hot))

    def evict(self, wanted: int) -> int:
        freed = 0
        for _ in range(len(self._round)):
            if freed >= wanted:
                break
            key = self._round.popleft()
            entry = self._hot[key]
            if entry.asked or key in self._dirty:
                entry.asked = False
                self._round.append(key)
            else:
                del self._hot[key]
                freed += entry.bytes
        self._bytes -= freed
        return freed


def _bytes_of(key: bytes, value: bytes | None) -> int:
    return _ENTRY_BYTES + len(key) + OBJECT_FACTOR * len(value or b"")


def _packed(key: bytes, kept: dict[str, Any]) -> bytes:
    try:
        return bytes([_VERSION]) + ormsgpack.packb(kept, option=ormsgpack.OPT_NON_STR_KEYS)
    except (TypeError, ValueError) as error:
        raise StateFailed(f"the state of key {key!r:.100} cannot be kept: {error}") from error


class State:
    """One key's values, as a function sees them: what it changes counts if it does not raise."""

    __slots__ = ("_changed", "_kept", "_values")

    def __init__(self, store: ObjectStore, key: bytes) -> None:
        object.__setattr__(self, "_values", store.values)
        object.__setattr__(self, "_kept", store.of(key))
        object.__setattr__(self, "_changed", {})

    def __getattr__(self, name: str) -> Any:
        if name in self._changed:
            return self._changed[name]
        declared = self._values.get(name)
        if declared is None:
            raise AttributeError(f"state has no {name!r}; it is declared with: {', '.join(self._values) or 'nothing'}")
        value = self._kept.get(name, declared.default)
        if declared.type in _SCALARS or value is None:
            return value
        value = self._changed[name] = copy.deepcopy(value)  # the function may change it in place
        return value

    def __setattr__(self, name: str, value: Any) -> None:
        declared = self._values.get(name)
        if declared is None:
            raise AttributeError(f"state has no {name!r}; declare it: state={{{name!r}: value(TYPE)}}")
        self._changed[name] = declared.check(f"state.{name}", value)


def written(state: State) -> list[str]:
    """The values that a function has set or changed in place, also to what they were."""
    return [
        name
        for name, value in state._changed.items()
        if state._values[name].type in _SCALARS or _has_changed(state, name, value)
    ]


def _has_changed(state: State, name: str, value: Any) -> bool:
    return differs(value, state._kept.get(name, state._values[name].default))


def changes_of(state: State) -> dict[str, Any]:
    """
    What a function changed, as it is kept.

    Raises:
        TypeError: a value has parts that cannot be kept.
    """
    return {
        name: state._values[name].kept(f"state.{name}", value)
        for name, value in state._changed.items()
        if _has_changed(state, name, value)
    }
