"""
Which windows a time belongs to, and when they close.

A hopping window is [start, end). It closes when the watermark reaches its end plus the grace; rows that come for it
later are late.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from headrace_streams.core.rows import Numbers


@dataclass(frozen=True, slots=True)
class Counting:
    """``rows`` rows of a key each, as they come."""

    rows: int


@dataclass(frozen=True, slots=True)
class Session:
    """
    Rows of a key that are at most ``gap_ms`` apart: from the first to the gap behind the last, both ends in.

    It closes when the watermark is beyond its end plus the grace.
    """

    gap_ms: int
    grace_ms: int

    def closes_at(self, last: int) -> int:
        """The watermark that closes it, ms."""
        return last + self.gap_ms + self.grace_ms + 1


@dataclass(frozen=True, slots=True)
class Sliding:
    """Windows of ``size_ms``, both ends in. One closes when the watermark is beyond its end plus the grace."""

    size_ms: int
    grace_ms: int

    def closes_at(self, start: int) -> int:
        """The watermark that closes the one that begins there, ms."""
        return start + self.size_ms + self.grace_ms + 1


@dataclass(frozen=True, slots=True)
class Hopping:
    """
    Windows of ``size_ms`` that begin each ``advance_ms``, aligned to 1970 plus ``offset_ms``.

    Tumbling windows are those whose size is their advance.
    """

    size_ms: int
    advance_ms: int
    grace_ms: int
    offset_ms: int = 0

    def assign(self, times: Numbers) -> tuple[Numbers, Numbers]:
        """
        For each row and each of its windows: the row's place, and the start of the window (ms).

        In the order of the rows, and of the starts for one row.
        """
        newest = times - (times - self.offset_ms) % self.advance_ms
        if self.size_ms == self.advance_ms:
            return np.arange(len(times)), newest
        count = -(-self.size_ms // self.advance_ms)
        starts = newest[:, None] - np.arange(count - 1, -1, -1)[None, :] * self.advance_ms
        places = np.repeat(np.arange(len(times)), count)
        flat = starts.reshape(-1)
        inside = flat + self.size_ms > times[places]
        return places[inside], flat[inside]

    def end(self, start: int) -> int:
        """Of the window that begins there, ms; not in it any more."""
        return start + self.size_ms

    def closes_at(self, start: int) -> int:
        """The watermark that closes it, ms."""
        return start + self.size_ms + self.grace_ms
