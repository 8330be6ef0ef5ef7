"""State of record functions: a few named values and timers for each key."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import ormsgpack

from headrace_streams.core.errors import StateFailed
from headrace_streams.core.state.store import Changes, Cold
from headrace_streams.core.state.timers import Timers

_STATE: Final = b"s"
_TIMER: Final = b"t"
_WALL_TIMER: Final = b"w"
_VERSION: Final = 1
_SCALARS: Final = (int, float, str, bytes, bool)


@dataclass(frozen=True, slots=True)
class Value:
    """A value that is kept for each key."""

    type: type
    default: Any
    """What a key without it has."""

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


class ObjectStore:
    """Values and timers by key; satisfies ``Store``."""

    key_at = len(_STATE)

    def __init__(self, values: dict[str, Value]) -> None:
        self.values = values
        self._cold: Cold | None = None
        self._hot: dict[bytes, dict[str, Any]] = {}
        self._dirty: set[bytes] = set()
        self._written: set[bytes] = set()
        self.timers = Timers(_TIMER)
        """By event time."""
        self.wall_timers = Timers(_WALL_TIMER)
        """By the wall clock."""

    def open(self, cold: Cold) -> None:
        self._cold = cold
        self._hot, self._dirty, self._written = {}, set(), set()
        self.timers.open(cold)
        self.wall_timers.open(cold)

    def of(self, key: bytes) -> dict[str, Any]:
        """What is kept of a key; not to be changed."""
        found = self._hot.get(key)
        if found is None:
            assert self._cold is not None
            (value,) = self._cold.get([_STATE + key])
            found = {}
            if value is not None:
                self._written.add(key)
                assert value[0] == _VERSION, "a value of another version is migrated before"
                found = ormsgpack.unpackb(value[1:], option=ormsgpack.OPT_NON_STR_KEYS)
            self._hot[key] = found
        return found

    def committed(self) -> Iterator[tuple[bytes, dict[str, Any]]]:
        """What is kept of each key, as of the last commit."""
        assert self._cold is not None
        for key, value in self._cold.scan(_STATE):
            yield key[len(_STATE) :], ormsgpack.unpackb(value[1:], option=ormsgpack.OPT_NON_STR_KEYS)

    def set(self, key: bytes, changed: dict[str, Any]) -> None:
        """Keep values of a key."""
        self._hot[key] = {**self.of(key), **changed}
        self._dirty.add(key)

    def keys_with_state(self) -> list[bytes]:
        """Those that something is kept of now, in the order of their bytes."""
        assert self._cold is not None
        found = {key[len(_STATE) :] for key, _ in self._cold.scan(_STATE)} - self._hot.keys()
        return sorted([*found, *(key for key in self._hot if self._differs(key))])

    def _differs(self, key: bytes) -> bool:
        return any(value != self._default(name) for name, value in self.of(key).items())

    def changes(self) -> Changes:
        found: Changes = []
        for key in self._dirty:
            kept = {name: value for name, value in self._hot[key].items() if value != self._default(name)}
            if kept:
                found.append((_STATE + key, _packed(key, kept)))
            elif key in self._written:
                found.append((_STATE + key, None))
        return sorted([*found, *self.timers.changes(), *self.wall_timers.changes()], key=lambda change: change[0])

    def _default(self, name: str) -> Any:
        return self.values[name].default if name in self.values else None

    def settle(self) -> None:
        for key in self._dirty:
            kept = any(value != self._default(name) for name, value in self._hot[key].items())
            (self._written.add if kept else self._written.discard)(key)
        self._dirty = set()
        self.timers.settle()
        self.wall_timers.settle()

    def drop(self) -> None:
        assert self._cold is not None
        self.open(self._cold)


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


def changes_of(state: State) -> dict[str, Any]:
    """
    What a function changed, as it is kept.

    Raises:
        TypeError: a value has parts that cannot be kept.
    """
    return {
        name: state._values[name].kept(f"state.{name}", value)
        for name, value in state._changed.items()
        if value != state._kept.get(name, state._values[name].default)
    }
