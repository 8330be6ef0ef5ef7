"""
What somebody may do of a rate, as Kafka counts changes of topics (KIP-599): a bucket of 11 seconds' worth.

It is filled at the rate of the quota, and begins full. Something is done if there is no debt, however much it takes:
what takes more than there is makes a debt, and the wait is until that is paid. So over any time there is at most the
quota of that time, a bucket, and one more that is done.

Bytes are counted so too. Kafka counts those in 11 windows of a second and forgets what is older, paid or not: who does
21 seconds' worth at one time waits 11 s and may do it again, at nearly twice the quota, for ever.
"""

from __future__ import annotations

from math import floor, inf
from typing import Final

BUCKET_S: Final = 11
"""Seconds' worth of the quota, as by Kafka's defaults."""
THROTTLE_MS_MAX: Final = 2**31 - 1
"""What an answer can say: 24 days."""


class TokenBucket:
    """
    Counts for one quota and whoever shares it. ``now_ms`` is monotonic, in milliseconds, never less than before.
    """

    __slots__ = ("_at_ms", "_quota", "_tokens")

    def __init__(self, now_ms: float) -> None:
        self._tokens = inf
        """Cut to what the bucket holds when the quota is known."""
        self._quota = inf
        self._at_ms = now_ms

    def take(self, value: float, quota: float, now_ms: float) -> int | None:
        """
        Take this if there is no debt, else nothing; milliseconds until the debt is paid, None: it is taken.

        They are 0 for a debt of less than half a millisecond, which is one nevertheless.
        """
        self._fill(quota, now_ms)
        if self._tokens < 0:
            return whole_ms(-self._tokens / quota * 1_000)
        self._tokens -= value
        return None

    def record(self, value: float, quota: float, now_ms: float) -> int:
        """
        Take this whatever there is; milliseconds to wait, 0: there is no debt. What is below 0 is given back.
        """
        self._fill(quota, now_ms)
        self._tokens = min(most_at_once(quota), self._tokens - value)
        return 0 if self._tokens >= 0 else whole_ms(-self._tokens / quota * 1_000)

    def is_idle(self, now_ms: float, /) -> bool:
        """Whether it is as good as new: full."""
        return self._tokens + self._quota * ((now_ms - self._at_ms) / 1_000) >= most_at_once(self._quota)

    def _fill(self, quota: float, now_ms: float) -> None:
        self._tokens = min(most_at_once(quota), self._tokens + quota * ((now_ms - self._at_ms) / 1_000))
        self._quota = quota
        self._at_ms = now_ms


def most_at_once(quota: float) -> float:
    """What who has done nothing yet can do at one time without having to wait."""
    return BUCKET_S * quota


def whole_ms(wait_ms: float) -> int:
    """Rounded as Kafka rounds, halves up; at most ``THROTTLE_MS_MAX``."""
    if wait_ms >= THROTTLE_MS_MAX:
        return THROTTLE_MS_MAX
    whole = floor(wait_ms)
    return whole + (wait_ms - whole >= 0.5)
