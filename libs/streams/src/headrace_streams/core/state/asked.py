"""Who asks for a key: rows of another table that refer to it. All of it is in memory."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from headrace_streams.core.state.store import NOTHING, Changes, Cold, Whole

_VALUE: Final = b"\x01"
"""A version byte."""
_LENGTH_BYTES: Final = 4


class AskedStore(Whole):
    """
    Satisfies ``Store``. A key is the length of the key that is asked for (4 bytes, big-endian), that key, and who asks.
    """

    key_at: int | None = None

    def __init__(self) -> None:
        self._cold: Cold = NOTHING
        self._asking: dict[bytes, dict[bytes, None]] = {}
        self._dirty: dict[bytes, bool] = {}

    def open(self, cold: Cold) -> None:
        self._cold = cold
        self._asking, self._dirty = {}, {}
        for row, value in cold.scan():
            assert value == _VALUE, "a value of another version is migrated before"
            length = int.from_bytes(row[:_LENGTH_BYTES], "big")
            key, who = row[_LENGTH_BYTES : _LENGTH_BYTES + length], row[_LENGTH_BYTES + length :]
            self._asking.setdefault(key, {})[who] = None

    def add(self, key: bytes, who: bytes) -> None:
        """It asks for the key from now on."""
        asking = self._asking.setdefault(key, {})
        if who not in asking:
            asking[who] = None
            self._dirty[_row(key, who)] = True

    def remove(self, key: bytes, who: bytes) -> None:
        """It asks no more."""
        asking = self._asking.get(key, {})
        if who in asking:
            del asking[who]
            self._dirty[_row(key, who)] = False
            if not asking:
                del self._asking[key]

    def asking(self, key: bytes) -> Iterable[bytes]:
        """Who asks for the key."""
        return self._asking.get(key, ())

    def changes(self) -> Changes:
        rows = sorted(self._dirty)
        kept = self._cold.get(rows)
        return [
            (row, _VALUE if self._dirty[row] else None)
            for row, was in zip(rows, kept, strict=True)
            if self._dirty[row] != (was is not None)
        ]

    def settle(self) -> None:
        self._dirty = {}

    def drop(self) -> None:
        self.open(self._cold)


def _row(key: bytes, who: bytes) -> bytes:
    return len(key).to_bytes(_LENGTH_BYTES, "big") + key + who
