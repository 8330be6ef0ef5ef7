"""Which keys were seen, and when: forgotten once event time is far enough beyond. All of it is in memory."""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import Final

from headrace_streams.core.state.store import NOTHING, Changes, Cold, Whole

_VERSION: Final = 1
_TIME_BYTES: Final = 8


class SeenStore(Whole):
    """
    Satisfies ``Store``. A value is a version byte and an event time in ms (8 bytes, signed, big-endian).
    """

    key_at: int | None = None

    def __init__(self) -> None:
        self._cold: Cold = NOTHING
        self._seen: dict[bytes, int] = {}
        self._order: list[tuple[int, bytes]] = []
        self._dirty: set[bytes] = set()

    def open(self, cold: Cold) -> None:
        self._cold = cold
        self._seen = {}
        for key, value in cold.scan():
            assert value[0] == _VERSION, "a value of another version is migrated before"
            self._seen[key] = int.from_bytes(value[1:], "big", signed=True)
        self._order = [(at, key) for key, at in self._seen.items()]
        heapify(self._order)
        self._dirty = set()

    def get(self, key: bytes) -> int | None:
        """When it was seen, ms."""
        return self._seen.get(key)

    def put(self, key: bytes, at: int) -> None:
        """It is seen at that event time (ms)."""
        self._seen[key] = at
        heappush(self._order, (at, key))
        self._dirty.add(key)

    def forget(self, until: int) -> None:
        """What was seen at ``until`` (ms) or before."""
        while self._order and self._order[0][0] <= until:
            at, key = heappop(self._order)
            if self._seen.get(key) == at:
                del self._seen[key]
                self._dirty.add(key)

    def changes(self) -> Changes:
        found: Changes = []
        for key in sorted(self._dirty):
            at = self._seen.get(key)
            if at is not None:
                found.append((key, bytes([_VERSION]) + at.to_bytes(_TIME_BYTES, "big", signed=True)))
            elif self._cold.get([key])[0] is not None:
                found.append((key, None))
        return found

    def settle(self) -> None:
        self._dirty = set()

    def drop(self) -> None:
        self.open(self._cold)
