"""What a task remembers of one node: hot in memory, committed in a cold tier, told to a changelog."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, Protocol

Changes = list[tuple[bytes, bytes | None]]
"""Keys and what they hold now; None: nothing any more."""
OBJECT_FACTOR: Final = 6
"""About how much more memory Python's objects take than their MessagePack."""


class Cold(Protocol):
    """The committed state of one store. It holds exactly what the changelog says below the last commit."""

    def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """What each key holds, None where there is nothing."""

    def scan(self, prefix: bytes = b"") -> Iterable[tuple[bytes, bytes]]:
        """Keys and values with that prefix, in the order of their bytes."""


class Nothing:
    """The committed state of a store that was not opened; satisfies ``Cold``."""

    def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return [None] * len(keys)

    def scan(self, prefix: bytes = b"") -> Iterable[tuple[bytes, bytes]]:
        return ()


NOTHING: Final = Nothing()


class Store(Protocol):
    """
    State of one node of one task. What was not committed is in memory only.

    After ``settle`` memory and the cold tier agree; after ``drop`` there is nothing in memory, and what is asked for
    comes from the cold tier. So does what was evicted.
    """

    @property
    def key_at(self) -> int | None:
        """How many bytes stand before the record's key in the key of a row; None: its rows are found otherwise."""

    @property
    def hits(self) -> int:
        """How often a key was asked for that was in memory."""

    @property
    def misses(self) -> int:
        """How many keys the cold tier was asked for."""

    def open(self, cold: Cold) -> None:
        """Begin, with what was committed."""

    def changes(self) -> Changes:
        """What differs from what was committed, each key once, in the order of their bytes."""

    def settle(self) -> None:
        """The changes have been committed, and the cold tier has them."""

    def drop(self) -> None:
        """The changes were aborted."""

    def kept_bytes(self) -> int:
        """About how much memory is taken by entries that can be evicted, now or once they are committed."""

    def dirty_bytes(self) -> int:
        """About how much of that differs from what was committed."""

    def evict(self, wanted: int) -> int:
        """
        Remove from memory what was committed and was not asked for since the last round, until ``wanted`` bytes are
        free, or to the end of this round; returns how many are.
        """


class Whole:
    """The part of a ``Store`` that says that all of it stays in memory, whatever its size."""

    hits = 0
    misses = 0

    def kept_bytes(self) -> int:
        return 0

    def dirty_bytes(self) -> int:
        return 0

    def evict(self, wanted: int) -> int:
        return 0
