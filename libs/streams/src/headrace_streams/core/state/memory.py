"""A cold tier in memory, for the driver and for tests."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence

from headrace_streams.core.state.store import Changes


class MemoryCold:
    """Committed state as a dict; satisfies ``Cold``."""

    def __init__(self) -> None:
        self._rows: dict[bytes, bytes] = {}
        self._keys: list[bytes] = []

    def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return [self._rows.get(key) for key in keys]

    def scan(self, prefix: bytes = b"") -> Iterable[tuple[bytes, bytes]]:
        place = bisect_left(self._keys, prefix)
        while place < len(self._keys) and self._keys[place].startswith(prefix):
            yield self._keys[place], self._rows[self._keys[place]]
            place += 1

    def write(self, changes: Changes) -> None:
        """Apply what was committed."""
        for key, value in changes:
            known = key in self._rows
            if value is not None:
                self._rows[key] = value
                if not known:
                    insort(self._keys, key)
            elif known:
                del self._rows[key]
                del self._keys[bisect_left(self._keys, key)]
