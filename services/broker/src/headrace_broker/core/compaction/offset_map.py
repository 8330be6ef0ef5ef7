"""
The newest offset of each key in the part of a log that is compacted, within a bound of memory.

``dirty_keys`` fills it, ``cleaning`` asks it. A dictionary from key to offset: the keys of a batch go in, and are
looked up, in one call each. Afterwards the offsets alone, sorted, tell for the dirty part which of its records are the
newest, so keys are looked up only for what was clean before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice, repeat
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import numpy as np

    Offsets = np.ndarray[Any, np.dtype[np.int64]]

KEY_OVERHEAD_BYTES: Final = 192
"""Of one key beside its own bytes: two objects, its place in the dictionary while that grows, and the sorted offset."""
_OFFSETS_PER_TURN: Final = 16_384
"""Of one turn of ``sort`` and ``release``: about a millisecond."""


class OffsetMap:
    """Keys and offsets of one compaction."""

    __slots__ = ("_bytes_max", "_newest", "_sorted", "bytes_held")

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._newest: dict[bytes | None, int] = {}
        self._sorted: Offsets | None = None
        self.bytes_held = 0
        """About what it takes of memory."""

    def __len__(self) -> int:
        return len(self._newest)

    def add(self, keys: Sequence[bytes | None], offsets: Sequence[int]) -> bool:
        """
        Take in the keys of one batch, later than all before; False, and nothing is taken, if they do not fit.

        The first batch is taken whatever its size, so that each compaction gets on. Missing keys are not kept.
        """
        newest = self._newest
        before = len(newest)
        if before and self.bytes_held + self._cost(keys) > self._bytes_max:
            fresh = set(keys).difference(newest)  # many are known already, more often than not
            if self.bytes_held + self._cost(list(fresh)) > self._bytes_max:
                return False
        newest.update(zip(keys, offsets, strict=True))
        if newest.pop(None, None) is not None and len(newest) == before:
            return True
        added = len(newest) - before
        self.bytes_held += self._cost(list(islice(reversed(newest), added)))
        return True

    @staticmethod
    def _cost(keys: Sequence[bytes | None]) -> int:
        return sum(map(len, filter(None, keys))) + KEY_OVERHEAD_BYTES * len(keys)

    def sort(self) -> Iterator[None]:
        """Make the sorted offsets, once all keys are in; after each ``yield`` others may have a turn."""
        import numpy as np

        count = len(self._newest)
        offsets = np.empty(count, np.int64)
        values = iter(self._newest.values())
        for at in range(0, count, _OFFSETS_PER_TURN):
            some = min(_OFFSETS_PER_TURN, count - at)
            offsets[at : at + some] = np.fromiter(islice(values, some), np.int64, some)
            yield
        offsets.sort()
        self._sorted = offsets

    def newest_within(self, start: int, end: int) -> Offsets:
        """The offsets in ``start <= offset < end`` that are the newest of their keys, ascending."""
        assert self._sorted is not None, "sorted first"
        low, high = self._sorted.searchsorted((start, end))
        return self._sorted[low:high]

    def count_within(self, start: int, end: int) -> int:
        """How many those are."""
        return len(self.newest_within(start, end))

    def newest_of(self, keys: Sequence[bytes | None]) -> Offsets:
        """The newest offset of each key; -1 where it is not known."""
        import numpy as np

        return np.fromiter(map(self._newest.get, keys, repeat(-1)), np.int64, len(keys))

    def release(self) -> Iterator[None]:
        """Give the memory back in turns: at once it would hold everybody up."""
        self._sorted, newest = None, self._newest
        while newest:
            for _ in islice(iter(newest.popitem, None), min(len(newest), _OFFSETS_PER_TURN)):
                pass
            yield
        self.bytes_held = 0
