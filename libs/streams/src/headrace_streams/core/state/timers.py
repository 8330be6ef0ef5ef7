"""Timers of one clock, as rows of a changelog. All of them are in memory."""

from __future__ import annotations

import heapq
from typing import Final

import ormsgpack

from headrace_streams.core.state.store import Changes, Cold

_ORIGIN: Final = 1 << 63
Timer = tuple[int, bytes, str]
"""When (ms), of which key, and its name."""


class Timers:
    """Those that have not fired, and what of that is committed."""

    def __init__(self, prefix: bytes) -> None:
        """
        Args:
            prefix: what the keys of their rows begin with.
        """
        self._prefix = prefix
        self._timers: set[Timer] = set()
        self._changed: dict[Timer, bool] = {}
        """Those that came or went since the last commit, and whether they were there then."""
        self._due: list[Timer] = []

    def open(self, cold: Cold) -> None:
        """Begin, with what was committed."""
        self._timers = {_timer_of(key, len(self._prefix)) for key, _ in cold.scan(self._prefix)}
        self._changed = {}
        self._due = sorted(self._timers)

    def add(self, timer: Timer) -> None:
        """Have it fire."""
        if timer not in self._timers:
            self._timers.add(timer)
            self._changed.setdefault(timer, False)
            heapq.heappush(self._due, timer)

    def take_due(self, until: int) -> Timer | None:
        """The next timer whose time has come; it is gone then."""
        if not self._due or self._due[0][0] > until:
            return None
        timer = heapq.heappop(self._due)
        self._timers.discard(timer)
        self._changed.setdefault(timer, True)
        return timer

    def names(self, key: bytes) -> set[str]:
        """Of the timers of a key."""
        return {name for _, of, name in self._timers if of == key}

    @property
    def next_due(self) -> int | None:
        """When the next one fires, ms."""
        return self._due[0][0] if self._due else None

    def changes(self) -> Changes:
        """What differs from what was committed."""
        there = [(timer, timer in self._timers, was) for timer, was in self._changed.items()]
        return [(self._row(timer), b"" if now else None) for timer, now, was in there if now != was]

    def settle(self) -> None:
        """The changes have been committed."""
        self._changed = {}

    def _row(self, timer: Timer) -> bytes:
        at, key, name = timer
        return self._prefix + (at + _ORIGIN).to_bytes(8, "big") + ormsgpack.packb([key, name])


def _timer_of(row: bytes, begin: int) -> Timer:
    key, name = ormsgpack.unpackb(row[begin + 8 :])
    return int.from_bytes(row[begin : begin + 8], "big") - _ORIGIN, key, name
