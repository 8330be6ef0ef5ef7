"""
Timestamps of records as runs of equal ones: what a clock gives to records that come one after the other.

The SDK makes them from its clock, cuts and joins them with the records, and ``column_writer`` writes them. The work
grows with the number of runs, not of records.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, chain, repeat
from typing import overload


class StampRuns(Sequence[int]):
    """
    A sequence of timestamps in milliseconds.

    Args:
        runs: (number of records, their timestamp), one after the other.
    """

    __slots__ = ("_ends", "_stamps")

    def __init__(self, runs: Iterable[tuple[int, int]]) -> None:
        there = [(count, stamp) for count, stamp in runs if count]
        self._ends = list(accumulate(count for count, _ in there))
        self._stamps = [stamp for _, stamp in there]

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __iter__(self) -> Iterator[int]:
        return chain.from_iterable(repeat(stamp, count) for count, stamp in self.runs())

    @overload
    def __getitem__(self, at: int) -> int: ...

    @overload
    def __getitem__(self, at: slice) -> StampRuns: ...

    def __getitem__(self, at: int | slice) -> int | StampRuns:
        if isinstance(at, int):
            return self._stamps[bisect_right(self._ends, range(len(self))[at])]
        start, stop, step = at.indices(len(self))
        assert step == 1, "records are cut, not skipped"
        return self._of_counts(min(max(end, start), stop) for end in (0, *self._ends))

    def take(self, rows: Sequence[int]) -> StampRuns:
        """Those of the records at ``rows``, which grow."""
        return self._of_counts(bisect_left(rows, end) for end in (0, *self._ends))

    def _of_counts(self, bounds: Iterable[int]) -> StampRuns:
        """The same runs, each now from one of ``bounds`` to the next."""
        edges = list(bounds)
        return StampRuns(zip(map(int.__sub__, edges[1:], edges), self._stamps, strict=True))

    def runs(self) -> list[tuple[int, int]]:
        """As they were given, without those of no record."""
        counts = map(int.__sub__, self._ends, [0, *self._ends])
        return list(zip(counts, self._stamps, strict=True))

    def highest(self) -> int:
        return max(self._stamps)

    def pack(self) -> bytes:
        """All timestamps, as 64-bit little-endian numbers."""
        return b"".join([struct.pack("<q", stamp) * count for count, stamp in self.runs()])
