"""
Aggregates of many keys as columns: a dict says which slot a key has, and each field of an aggregate is one numpy array.

A batch of rows becomes slot numbers first; after that nothing costs Python per row. A value in the changelog is a
version byte, the numbers packed in the order of their fields (little-endian), and MessagePack of the fields that are
objects.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import ormsgpack

from headrace_streams.core.rows import Coded, Numbers
from headrace_streams.core.state.store import Changes, Cold

FORMAT: Final = 1
_FIRST_CAPACITY: Final = 64
_OBJECTS: Final = ormsgpack.OPT_NON_STR_KEYS
_ORIGIN: Final = 1 << 63


@dataclass(frozen=True, slots=True)
class Field:
    """One number or object that is kept for each key."""

    dtype: np.dtype[Any]
    initial: Any
    """Of a key without rows; of objects, a function without arguments that makes one."""
    copy: Callable[[Any], Any] | None = None
    """Of an object that is changed in place."""

    @property
    def is_object(self) -> bool:
        """A Python object: kept as MessagePack."""
        return bool(self.dtype == object)


class Layout:
    """The fields of all aggregates of one node, and how a slot becomes bytes."""

    def __init__(self, fields: Sequence[Field]) -> None:
        self.fields = tuple(fields)
        self._numbers = [i for i, field in enumerate(fields) if not field.is_object]
        self._objects = [i for i, field in enumerate(fields) if field.is_object]
        packed = [("format", "u1"), *((f"f{i}", fields[i].dtype.newbyteorder("<")) for i in self._numbers)]
        self._packed = np.dtype(packed)

    def pack(self, columns: Sequence[Numbers], slots: Numbers) -> list[bytes]:
        """The values of these slots, as they stand in the changelog."""
        rows = np.empty(len(slots), self._packed)
        rows["format"] = FORMAT
        for i in self._numbers:
            rows[f"f{i}"] = columns[i][slots]
        raw, size = rows.tobytes(), self._packed.itemsize
        values = [raw[at : at + size] for at in range(0, len(raw), size)]
        if self._objects:
            for place, slot in enumerate(slots.tolist()):
                objects = [columns[i][slot] for i in self._objects]
                values[place] += ormsgpack.packb(objects, option=_OBJECTS)
        return values

    def unpack(self, values: Sequence[bytes]) -> list[Numbers]:
        """The fields of these values, one array each."""
        size = self._packed.itemsize
        assert all(value[0] == FORMAT for value in values), "a value of another format is migrated before"
        rows = np.frombuffer(b"".join([value[:size] for value in values]), self._packed)
        columns: list[Numbers] = [np.empty(0)] * len(self.fields)
        for i in self._numbers:
            columns[i] = rows[f"f{i}"].astype(self.fields[i].dtype)
        if self._objects:
            unpacked = [ormsgpack.unpackb(value[size:], option=_OBJECTS) for value in values]
            for n, i in enumerate(self._objects):
                columns[i] = object_array([objects[n] for objects in unpacked])
        return columns

    def fresh(self, field: Field, count: int) -> Numbers:
        """The initial values of ``count`` slots."""
        if field.is_object:
            return object_array([field.initial() for _ in range(count)])
        return np.full(count, field.initial, field.dtype)


def object_array(objects: Sequence[Any]) -> Numbers:
    """An array of these, each as it is."""
    array = np.empty(len(objects), object)
    for place, one in enumerate(objects):  # numpy would take lists apart
        array[place] = one
    return array


class Slots:
    """One table of keys: all keys of a store, or those of one window."""

    def __init__(self, layout: Layout, cold: Cold, prefix: bytes = b"", *, known: bool = False) -> None:
        """
        Args:
            prefix: of its keys in the cold tier.
            known: the cold tier has none of them.
        """
        self._layout = layout
        self._cold = cold
        self._prefix = prefix
        self._known = known
        self._slots: dict[bytes, int] = {}
        self.keys: list[bytes] = []
        """Of the slots, in the order of their numbers."""
        self.columns: list[Numbers] = [layout.fresh(field, _FIRST_CAPACITY) for field in layout.fields]
        """One array for each field, as long as the capacity."""
        self.dirty: Numbers = np.zeros(_FIRST_CAPACITY, bool)
        """Which slots differ from what was committed."""
        self._written: Numbers = np.zeros(_FIRST_CAPACITY, bool)

    def __len__(self) -> int:
        return len(self.keys)

    def places(self, coded: Coded) -> Numbers:
        """The slot of each row; keys that are new get one. There are no null keys."""
        used = np.unique(coded.codes)
        by_code = np.zeros(len(coded.values) or 1, np.int64)
        missing = []
        slots, values = self._slots, coded.values
        for code in used.tolist():
            slot = slots.get(values[code])
            if slot is None:
                missing.append(code)
            else:
                by_code[code] = slot
        if missing:
            by_code[missing] = self._add([values[code] for code in missing])
        return by_code[coded.codes]

    def _add(self, keys: list[bytes]) -> Numbers:
        """Slots for keys that have none, with what the cold tier holds of them."""
        first = len(self.keys)
        self._grow(first + len(keys))
        self._slots.update(zip(keys, range(first, first + len(keys)), strict=True))
        self.keys.extend(keys)
        if not self._known:
            kept = self._cold.get([self._prefix + key for key in keys])
            self._fill([(first + i, value) for i, value in enumerate(kept) if value is not None])
        return np.arange(first, first + len(keys))

    def _fill(self, found: list[tuple[int, bytes]]) -> None:
        if not found:
            return
        places = np.array([slot for slot, _ in found])
        for column, kept in zip(self.columns, self._layout.unpack([value for _, value in found]), strict=True):
            column[places] = kept
        self._written[places] = True

    def _grow(self, count: int) -> None:
        capacity = len(self.dirty)
        if count <= capacity:
            return
        more = max(capacity, count - capacity)
        for i, field in enumerate(self._layout.fields):
            self.columns[i] = np.concatenate([self.columns[i], self._layout.fresh(field, more)])
        self.dirty = np.concatenate([self.dirty, np.zeros(more, bool)])
        self._written = np.concatenate([self._written, np.zeros(more, bool)])

    def load(self) -> None:
        """Have every key of the cold tier in memory."""
        if self._known:
            return
        cut = len(self._prefix)
        rows = [(key[cut:], value) for key, value in self._cold.scan(self._prefix)]
        rows = [(key, value) for key, value in rows if key not in self._slots]
        first = len(self.keys)
        self._grow(first + len(rows))
        self._slots.update((key, first + i) for i, (key, _) in enumerate(rows))
        self.keys.extend(key for key, _ in rows)
        self._fill([(first + i, value) for i, (_, value) in enumerate(rows)])
        self._known = True

    def changes(self) -> Changes:
        """What is dirty, as the changelog has it."""
        places = np.flatnonzero(self.dirty[: len(self.keys)])
        values = self._layout.pack(self.columns, places)
        return [(self._prefix + self.keys[slot], value) for slot, value in zip(places.tolist(), values, strict=True)]

    def settle(self) -> None:
        """The changes were committed."""
        self._written |= self.dirty
        self.dirty[:] = False

    def committed_keys(self) -> list[bytes]:
        """What the cold tier has of it, as the changelog names it. All of it is in memory."""
        return [self._prefix + self.keys[slot] for slot in np.flatnonzero(self._written[: len(self.keys)]).tolist()]


class KeyedStore:
    """Slots by key, without windows."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._cold: Cold | None = None
        self.slots: Slots | None = None

    def open(self, cold: Cold) -> None:
        self._cold = cold
        self.slots = Slots(self._layout, cold)

    def changes(self) -> Changes:
        assert self.slots is not None
        return sorted(self.slots.changes(), key=_by_key)

    def settle(self) -> None:
        assert self.slots is not None
        self.slots.settle()

    def drop(self) -> None:
        assert self._cold is not None
        self.open(self._cold)


class WindowedStore:
    """Slots by the start of a window and key; a window that closed is dropped as a whole."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._cold: Cold | None = None
        self._gone: list[bytes] = []
        self.windows: dict[int, Slots] = {}
        """By the start of the window, ms; also those of which nothing is in memory yet."""

    def open(self, cold: Cold) -> None:
        self._cold = cold
        self._gone = []
        starts = {start_of(key) for key, _ in cold.scan()}
        self.windows = {start: Slots(self._layout, cold, prefix_of(start)) for start in sorted(starts)}

    def window(self, start: int) -> Slots:
        """The slots of that window, new if there is none."""
        assert self._cold is not None
        slots = self.windows.get(start)
        if slots is None:
            slots = self.windows[start] = Slots(self._layout, self._cold, prefix_of(start), known=True)
        return slots

    def close(self, start: int) -> Slots:
        """Drop a window; what it held is returned, whole."""
        slots = self.windows.pop(start)
        slots.load()
        self._gone.extend(slots.committed_keys())
        return slots

    def changes(self) -> Changes:
        written = [change for slots in self.windows.values() for change in slots.changes()]
        return sorted([*written, *((key, None) for key in self._gone)], key=_by_key)

    def settle(self) -> None:
        self._gone = []
        for slots in self.windows.values():
            slots.settle()

    def drop(self) -> None:
        assert self._cold is not None
        self.open(self._cold)


def _by_key(change: tuple[bytes, bytes | None]) -> bytes:
    return change[0]


def prefix_of(start: int) -> bytes:
    """The start of a window (ms, may be negative) as bytes that sort as it does."""
    return (start + _ORIGIN).to_bytes(8, "big")


def start_of(key: bytes) -> int:
    """The inverse, of the key of a windowed store."""
    return int.from_bytes(key[:8], "big") - _ORIGIN
