"""
What somebody does a second, as Kafka counts it (``Rate`` over ``SampledStat`` there, KIP-13, KIP-219): in 11 windows of
a second, of which ten are whole and one is under way.

A window begins with the first thing that is counted after the one before had its second, and counts while its last
one is younger than 11 s. The rate is the sum of all windows by the time since the oldest began, at least 10 s and so
much of the window under way as is over. Above the quota the wait is such that sum by time and wait is the quota.

So a client is never throttled while no stretch of its time, of at least 10 s, has more than the quota. Of one that
waits as told, 11 s have at most the quota of 12 s and of the wait that is told after them. More cannot be said: what
is older than 11 s is forgotten, paid or not. Who does 21 seconds' worth at one time waits 11 s, and may do it again:
nearly twice the quota, for ever. Kafka lets it pass. ``TokenBucket`` forgets no debt, and counts by the same calls.
"""

from __future__ import annotations

from collections import deque
from math import floor
from typing import Final

WINDOW_MS: Final = 1_000
WINDOWS: Final = 11
"""The one under way is among them."""
THROTTLE_MS_MAX: Final = 2**31 - 1
"""What an answer can say: 24 days."""
_MEMORY_MS: Final = WINDOWS * WINDOW_MS
_WHOLE: Final = WINDOWS - 1


class Windows:
    """
    Counts for one quota and whoever shares it. ``now_ms`` is monotonic, whole milliseconds, never less than before.
    """

    __slots__ = ("_last_ms", "_older", "_older_sum", "_start_ms", "_sum")

    def __init__(self, now_ms: int) -> None:
        self._older: deque[tuple[int, int, float]] = deque()
        """Windows of before, oldest first: when it began, when something was counted last, the sum. At most 11."""
        self._older_sum: float = 0
        self._start_ms = self._last_ms = now_ms
        self._sum: float = 0

    def record(self, value: float, quota: float, now_ms: int) -> int:
        """Count this, and say how many milliseconds its client has to wait; 0: it is within the quota."""
        self.add(value, now_ms)
        older = self._older
        if older and now_ms - older[0][1] >= _MEMORY_MS:
            self._forget(now_ms)
        elapsed_ms = now_ms - (older[0][0] if older else self._start_ms)
        missing = _WHOLE - elapsed_ms // WINDOW_MS
        if missing > 0:
            elapsed_ms += missing * WINDOW_MS
        rate = (self._older_sum + self._sum) / (elapsed_ms / 1_000)
        return 0 if rate <= quota else whole_ms((rate - quota) / quota * elapsed_ms)

    def add(self, value: float, now_ms: int) -> None:
        """Count this and do not ask; what is below 0 takes back what was counted and then not done."""
        if now_ms - self._start_ms >= WINDOW_MS:
            self._older.append((self._start_ms, self._last_ms, self._sum))
            self._forget(now_ms)
            self._start_ms = now_ms
            self._sum = 0
        self._last_ms = now_ms
        self._sum += value

    def is_idle(self, now_ms: int, /) -> bool:
        """Whether it is as good as new: nothing of it would be counted any more."""
        return now_ms - self._last_ms >= _MEMORY_MS

    def _forget(self, now_ms: int) -> None:
        older = self._older
        while older and now_ms - older[0][1] >= _MEMORY_MS:
            older.popleft()
        self._older_sum = sum(window[2] for window in older)


def whole_ms(wait_ms: float) -> int:
    """Rounded as Kafka rounds, halves up; at most ``THROTTLE_MS_MAX``."""
    if wait_ms >= THROTTLE_MS_MAX:
        return THROTTLE_MS_MAX
    whole = floor(wait_ms)
    return whole + (wait_ms - whole >= 0.5)


def most_at_once(quota: float) -> float:
    """What can be done at one time by who has done nothing yet, without having to wait."""
    return quota * (_WHOLE * WINDOW_MS // 1_000)
