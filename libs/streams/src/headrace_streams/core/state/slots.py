"""
Aggregates of many keys as columns: a dict says which slot a key has, and each field of an aggregate is one numpy array.

A batch of rows becomes slot numbers first; after that nothing costs Python per row. A value in the changelog is a
version byte, the numbers packed in the order of their fields (little-endian), and MessagePack of the fields that are
objects.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import repeat
from typing import Any, Final

import numpy as np
import ormsgpack

from headrace_streams.core.rows import Coded, Numbers, distinct
from headrace_streams.core.state.changelog import NotReadable
from headrace_streams.core.state.mirror import Mirror
from headrace_streams.core.state.store import NOTHING, OBJECT_FACTOR, Changes, Cold

FORMAT: Final = 1
_FORMAT: Final = bytes([FORMAT])
_FIRST_CAPACITY: Final = 64
_OBJECTS: Final = ormsgpack.OPT_NON_STR_KEYS
_ORIGIN: Final = 1 << 63
_SLOT_BYTES: Final = 170
"""About what a slot takes beside its fields and the bytes of its key: the key's object, and its places in dicts."""
_COMPACTED_FROM: Final = 1_024
START_BYTES: Final = 8


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
        self.slot_bytes = _SLOT_BYTES + sum(field.dtype.itemsize for field in self.fields)
        """About how much memory a slot takes, without its key's bytes and without what objects hold."""

    @property
    def has_objects(self) -> bool:
        """Whether a field is kept as MessagePack."""
        return bool(self._objects)

    def object_bytes(self, values: Sequence[bytes]) -> list[int]:
        """About how much memory the objects of these values take."""
        size = self._packed.itemsize
        return [OBJECT_FACTOR * (len(value) - size) for value in values]

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
        if any(value[:1] != _FORMAT or len(value) < size for value in values):
            raise NotReadable("a value of the changelog was not written by this version of Streams")
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


class Columns:
    """One array for each field of a layout, by slot."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.clear()

    def clear(self) -> None:
        """No slots."""
        self.keys: list[bytes] = []
        """Of the slots, in the order of their numbers; empty where a slot is free."""
        self.columns: list[Numbers] = [self.layout.fresh(field, _FIRST_CAPACITY) for field in self.layout.fields]
        """One array for each field, as long as the capacity."""
        self.dirty: Numbers = np.zeros(_FIRST_CAPACITY, bool)
        """Which slots differ from what was committed."""

    def key_of(self, slot: int) -> bytes:
        """The key of the rows of a slot."""
        return self.keys[slot]

    def grow(self, count: int) -> int:
        """Have room for ``count`` slots; returns how much was added."""
        capacity = len(self.dirty)
        if count <= capacity:
            return 0
        more = max(capacity, count - capacity)
        for i, field in enumerate(self.layout.fields):
            self.columns[i] = np.concatenate([self.columns[i], self.layout.fresh(field, more)])
        self.dirty = np.concatenate([self.dirty, np.zeros(more, bool)])
        return more

    def reset(self, slots: Numbers) -> None:
        """These slots have no rows."""
        for column, field in zip(self.columns, self.layout.fields, strict=True):
            column[slots] = self.layout.fresh(field, len(slots))
        self.dirty[slots] = False


class Slots(Columns):
    """A table of keys: which slot each has, and a column for each field."""

    def __init__(self, layout: Layout, cold: Cold, cut: int = 0) -> None:
        """
        Args:
            cut: how many bytes of a key stand before the key of the rows.
        """
        super().__init__(layout)
        self._cut = cut
        self.hits = self.misses = 0
        self.open(cold)

    def open(self, cold: Cold) -> None:
        """Begin, with what the cold tier has."""
        self.cold = cold
        self.clear()

    def clear(self) -> None:
        super().clear()
        self._slots: dict[bytes, int] = {}
        self._free: list[int] = []
        self._written: Numbers = np.zeros(_FIRST_CAPACITY, bool)
        self._asked: Numbers = np.zeros(_FIRST_CAPACITY, bool)
        """Which slots were asked for since the hand passed them."""
        self._sizes: Numbers = np.zeros(_FIRST_CAPACITY, np.int64)
        self._hand = 0
        self.bytes = 0
        """About how much memory they take."""
        self.mirror: Mirror | None = None
        """Their rows, if somebody has made it since they changed; who changes columns forgets it."""

    def __len__(self) -> int:
        return len(self._slots)

    def key_of(self, slot: int) -> bytes:
        return self.keys[slot][self._cut :]

    def find(self, keys: Sequence[bytes]) -> tuple[Numbers, list[int]]:
        """The slot of each key, -1 where it has none; and the places of those."""
        slots = np.fromiter(map(self._slots.get, keys, repeat(-1)), np.int64, len(keys))
        missing: list[int] = np.flatnonzero(slots < 0).tolist()
        self.ask(slots[slots >= 0] if missing else slots)
        return slots, missing

    def ask(self, slots: Numbers) -> None:
        """Somebody has found these, which have keys."""
        self._asked[slots] = True
        self.hits += len(slots)

    def add(self, keys: Sequence[bytes], new: Sequence[bool]) -> Numbers:
        """
        Slots for keys that have none, with what the cold tier holds of them.

        Args:
            new: for each key, whether the cold tier is known to have nothing of it.
        """
        taken = self._take(keys)
        asked = [place for place, is_new in enumerate(new) if not is_new]
        self._read(taken[asked], [keys[place] for place in asked])
        return taken

    def fetch(self, keys: Sequence[bytes]) -> Numbers:
        """Slots for those of the keys (that have none) which the cold tier has; -1 for the others."""
        kept = self._get(keys)
        found = [(place, value) for place, value in enumerate(kept) if value is not None]
        slots = np.full(len(keys), -1, np.int64)
        if found:
            places = [place for place, _ in found]
            slots[places] = self._take([keys[place] for place in places])
            self._fill([(int(slots[place]), value) for place, value in found])
        return slots

    def _get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        self.misses += len(keys)
        return self.cold.get(keys) if keys else []

    def _read(self, slots: Numbers, keys: Sequence[bytes]) -> None:
        kept = self._get(keys)
        self._fill([(slot, value) for slot, value in zip(slots.tolist(), kept, strict=True) if value is not None])

    def _take(self, keys: Sequence[bytes]) -> Numbers:
        self.mirror = None
        again = min(len(self._free), len(keys))
        slots = [self._free.pop() for _ in range(again)]
        for slot, key in zip(slots, keys, strict=False):
            self.keys[slot] = key
        slots += range(len(self.keys), len(self.keys) + len(keys) - again)
        self.keys.extend(keys[again:])
        self.grow(len(self.keys))
        self._slots.update(zip(keys, slots, strict=True))
        taken = np.array(slots, np.int64)
        self._weigh(taken, self.layout.slot_bytes + np.fromiter(map(len, keys), np.int64, len(keys)))
        return taken

    def _fill(self, found: list[tuple[int, bytes]]) -> None:
        if not found:
            return
        places, values = np.array([slot for slot, _ in found]), [value for _, value in found]
        for column, kept in zip(self.columns, self.layout.unpack(values), strict=True):
            column[places] = kept
        self._written[places] = True
        self._weigh_objects(places, values)

    def _weigh(self, slots: Numbers, sizes: Numbers) -> None:
        """They take so many bytes now."""
        self.bytes += int(sizes.sum() - self._sizes[slots].sum())
        self._sizes[slots] = sizes

    def _weigh_objects(self, slots: Numbers, values: Sequence[bytes]) -> None:
        if self.layout.has_objects:
            keys = np.array([len(self.keys[slot]) for slot in slots.tolist()], np.int64)
            self._weigh(slots, self.layout.slot_bytes + keys + np.array(self.layout.object_bytes(values), np.int64))

    def grow(self, count: int) -> int:
        more = super().grow(count)
        if more:
            self._written = np.concatenate([self._written, np.zeros(more, bool)])
            self._asked = np.concatenate([self._asked, np.zeros(more, bool)])
            self._sizes = np.concatenate([self._sizes, np.zeros(more, np.int64)])
        return more

    def load(self, prefix: bytes = b"") -> Numbers:
        """Have every key of the cold tier with that prefix in memory; the slots of those that were not."""
        rows = [(key, value) for key, value in self.cold.scan(prefix) if key not in self._slots]
        slots = self._take([key for key, _ in rows])
        self._fill([(slot, value) for slot, (_, value) in zip(slots.tolist(), rows, strict=True)])
        return slots

    def absent(self, prefix: bytes) -> list[bytes]:
        """The keys of the cold tier with that prefix that are not in memory."""
        return [key for key, _ in self.cold.scan(prefix) if key not in self._slots]

    def release(self, slots: Numbers) -> list[bytes]:
        """These have no rows any more; the keys that the cold tier has are returned."""
        written = [self.keys[slot] for slot in slots[self._written[slots]].tolist()]
        self.evict(slots)
        return written

    def idle(self, wanted: int) -> Numbers:
        """
        Slots that were committed and not asked for since the hand passed them, from there on: as many as take
        ``wanted`` bytes, or all up to the end, where the next round begins. The hand is behind them then.
        """
        end = len(self.keys)
        part = slice(self._hand, end)
        slots = self._hand + np.flatnonzero(self._written[part] & ~(self.dirty[part] | self._asked[part]))
        count = int(np.searchsorted(np.cumsum(self._sizes[slots]), wanted)) + 1
        reaches_end = count > len(slots)
        passed = end if reaches_end else int(slots[count - 1]) + 1
        self._asked[self._hand : passed] = False
        self._hand = 0 if reaches_end else passed
        return slots[:count]

    def evict(self, slots: Numbers) -> None:
        """They are not in memory any more."""
        self.mirror = None
        for slot in slots.tolist():
            del self._slots[self.keys[slot]]
            self.keys[slot] = b""
        self.reset(slots)
        self._written[slots] = self._asked[slots] = False
        self._weigh(slots, np.zeros(len(slots), np.int64))
        self._free.extend(slots.tolist())

    def used_keys(self) -> list[bytes]:
        """The keys of ``used``, in the same order."""
        return list(self._slots)

    def used(self) -> Numbers:
        """All slots that have a key."""
        return np.fromiter(self._slots.values(), np.int64, len(self._slots))

    def changed(self) -> Numbers:
        """The slots that differ from what was committed."""
        return np.flatnonzero(self.dirty[: len(self.keys)])

    def dirty_bytes(self) -> int:
        """About how much memory these take."""
        count = int(np.count_nonzero(self.dirty))
        return count and count * self.bytes // len(self._slots)

    def changes(self) -> Changes:
        """What is dirty, as the changelog has it."""
        places = self.changed()
        values = self.layout.pack(self.columns, places)
        self._weigh_objects(places, values)
        return [(self.keys[slot], value) for slot, value in zip(places.tolist(), values, strict=True)]

    def settle(self) -> bool:
        """The changes were committed. Returns whether slots have other numbers now, since most of them were free."""
        self._written |= self.dirty
        self.dirty[:] = False
        sparse = len(self.keys) >= max(_COMPACTED_FROM, 4 * len(self._slots))
        if sparse:
            self._compact()
        return sparse

    def _compact(self) -> None:
        used = np.sort(self.used())
        keys = [self.keys[slot] for slot in used.tolist()]
        kept = [self._written[used], self._asked[used], self._sizes[used]]
        columns = [column[used] for column in self.columns]
        self.clear()
        slots = self._take(keys)
        for column, values in zip(self.columns, columns, strict=True):
            column[slots] = values
        self._written[slots], self._asked[slots] = kept[:2]
        self._weigh(slots, kept[2])


class _SlotStore:
    """What stores of slots share."""

    def __init__(self, layout: Layout, cut: int = 0) -> None:
        self.slots = Slots(layout, NOTHING, cut)

    @property
    def hits(self) -> int:
        return self.slots.hits

    @property
    def misses(self) -> int:
        return self.slots.misses

    def kept_bytes(self) -> int:
        return self.slots.bytes + (0 if self.slots.mirror is None else self.slots.mirror.bytes)

    def dirty_bytes(self) -> int:
        return self.slots.dirty_bytes()

    def evict(self, wanted: int) -> int:
        before = self.kept_bytes()
        self.slots.mirror = None
        freed = before - self.slots.bytes
        if freed < wanted:
            self._evict(self.slots.idle(wanted - freed))
        return before - self.slots.bytes

    def _evict(self, slots: Numbers) -> None:
        self.slots.evict(slots)


class KeyedStore(_SlotStore):
    """Slots by key, without windows."""

    def __init__(self, layout: Layout, key_at: int = 0) -> None:
        """
        Args:
            key_at: how many bytes of a key stand before the key of the rows.
        """
        super().__init__(layout, key_at)
        self.key_at = key_at
        self._gone: set[bytes] = set()

    def open(self, cold: Cold) -> None:
        self._gone = set()
        self.slots.open(cold)

    def places(self, keys: Coded) -> Numbers:
        """The slot of each row; keys that are new get one. There are no null keys."""
        named, of_row = distinct(keys)
        slots, missing = self.slots.find(named)
        if missing:
            added = [named[place] for place in missing]
            slots[missing] = self.slots.add(added, [key in self._gone for key in added])
        found: Numbers = slots[of_row]
        return found

    def known(self, keys: Sequence[bytes]) -> Numbers:
        """The slot of each key; -1 where it has none. No key gets one."""
        slots, missing = self.slots.find(keys)
        asked = [place for place in missing if keys[place] not in self._gone]
        if asked:
            wanted = list(dict.fromkeys(keys[place] for place in asked))
            found = dict(zip(wanted, self.slots.fetch(wanted).tolist(), strict=True))
            slots[asked] = [found[keys[place]] for place in asked]
        return slots

    def release(self, slots: Numbers) -> None:
        """Forget keys; they begin anew."""
        self._gone.update(self.slots.release(slots))

    def changes(self) -> Changes:
        deleted: dict[bytes, bytes | None] = dict.fromkeys(self._gone)
        return sorted((deleted | dict(self.slots.changes())).items())

    def settle(self) -> None:
        self._gone = set()
        self.slots.settle()

    def drop(self) -> None:
        self.open(self.slots.cold)


class WindowedStore(_SlotStore):
    """Slots by the start of a window and key; a window that closed is dropped as a whole."""

    key_at = START_BYTES

    def __init__(self, layout: Layout) -> None:
        super().__init__(layout, START_BYTES)
        self._gone: list[bytes] = []
        self._of: dict[int, set[int]] = {}
        self._unloaded: set[int] = set()
        """The starts of windows of which the cold tier may have what is not in memory."""
        self._starts: list[int] = []

    def open(self, cold: Cold) -> None:
        self._gone = []
        self.slots.open(cold)
        self._unloaded = {start_of(key) for key, _ in cold.scan()}
        self._of = {start: set() for start in self._unloaded}
        self._starts = sorted(self._of)

    def places(self, starts: Numbers, keys: Coded) -> Numbers:
        """
        The slot of each row; keys that are new in their window get one. There are no null keys.

        Args:
            starts: of the window of each row, ms.
        """
        begin, of_start = np.unique(starts, return_inverse=True)
        pairs, of_row = np.unique(of_start * len(keys.values) + keys.codes, return_inverse=True)
        if not len(pairs):
            return pairs
        begins = begin.tolist()
        prefixes = [prefix_of(start) for start in begins]
        window, code = np.divmod(pairs, len(keys.values))
        named = [prefixes[w] + keys.values[c] for w, c in zip(window.tolist(), code.tolist(), strict=True)]
        slots, missing = self.slots.find(named)
        if missing:
            slots[missing] = self._add([named[place] for place in missing], [begins[w] for w in window[missing]])
        found: Numbers = slots[of_row]
        return found

    def _add(self, keys: list[bytes], starts: list[int]) -> Numbers:
        slots = self.slots.add(keys, [start not in self._unloaded for start in starts])
        for slot, start in zip(slots.tolist(), starts, strict=True):
            if start not in self._of:
                self._of[start] = set()
                heappush(self._starts, start)
            self._of[start].add(slot)
        return slots

    @property
    def oldest(self) -> int | None:
        """The start of the window that closes next, ms."""
        return self._starts[0] if self._starts else None

    def starts_of(self, slots: Numbers) -> Numbers:
        """The start of the window of each slot, ms."""
        return np.array([start_of(self.slots.keys[slot]) for slot in slots.tolist()], np.int64)

    def close_oldest(self, *, whole: bool = True) -> Numbers:
        """
        The slots of the window that closes next: ``release`` them. It is open no more.

        Args:
            whole: what is committed and not in memory is asked for too; else it is forgotten.
        """
        start = heappop(self._starts)
        slots = self._of.pop(start)
        if start in self._unloaded:
            self._unloaded.discard(start)
            if whole:
                slots.update(self.slots.load(prefix_of(start)).tolist())
            else:
                self._gone += self.slots.absent(prefix_of(start))
        return np.array(sorted(slots), np.int64)

    def release(self, slots: Numbers) -> None:
        """Forget what a closed window held."""
        self._gone += self.slots.release(slots)

    def load(self) -> None:
        """Have all open windows in memory, whole."""
        for start in sorted(self._unloaded):
            self._of[start].update(self.slots.load(prefix_of(start)).tolist())
        self._unloaded = set()

    def _evict(self, slots: Numbers) -> None:
        for start, of_start in self._by_start(slots).items():
            self._of[start] -= of_start
            self._unloaded.add(start)
        super()._evict(slots)

    def _by_start(self, slots: Numbers) -> dict[int, set[int]]:
        found: dict[int, set[int]] = {}
        for slot, start in zip(slots.tolist(), self.starts_of(slots).tolist(), strict=True):
            found.setdefault(start, set()).add(slot)
        return found

    def changes(self) -> Changes:
        return sorted([*self.slots.changes(), *((key, None) for key in self._gone)], key=_by_key)

    def settle(self) -> None:
        self._gone = []
        if self.slots.settle():
            self._of = {start: set() for start in self._of} | self._by_start(self.slots.used())

    def drop(self) -> None:
        self.open(self.slots.cold)


def _by_key(change: tuple[bytes, bytes | None]) -> bytes:
    return change[0]


def prefix_of(start: int) -> bytes:
    """The start of a window (ms, may be negative) as bytes that sort as it does."""
    return (start + _ORIGIN).to_bytes(START_BYTES, "big")


def start_of(key: bytes) -> int:
    """The inverse, of the key of a windowed store."""
    return int.from_bytes(key[:START_BYTES], "big") - _ORIGIN
