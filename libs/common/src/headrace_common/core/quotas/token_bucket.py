"""
What somebody may do of a rate, as Kafka counts changes of topics (KIP-599): a bucket of 11 seconds' worth.

It is filled at the rate of the quota, and begins full. Something is done if there is no debt, however much it takes:
what takes more than there is makes a debt, and the wait is until that is paid. So over any time there is at most the
quota of that time, a bucket, and one more that is done.
"""

from __future__ import annotations

from math import inf

from headrace_common.core.quotas.windows import WINDOW_MS, WINDOWS, whole_ms


class TokenBucket:
    """Counts for one quota and whoever shares it; ``now_ms`` as in ``Windows``."""

    __slots__ = ("_at_ms", "_quota", "_tokens")

    def __init__(self, now_ms: int) -> None:
        self._tokens = inf
        """Cut to what the bucket holds when the quota is known."""
        self._quota = inf
        self._at_ms = now_ms

    def take(self, value: float, quota: float, now_ms: int) -> int | None:
        """
        Take this if there is no debt, else nothing; milliseconds until the debt is paid, None: it is taken.

        They are 0 for a debt of less than half a millisecond, which is one nevertheless.
        """
        self._fill(quota, now_ms)
        if self._tokens < 0:
            return whole_ms(-self._tokens / quota * 1_000)
        self._tokens -= value
        return None

    def record(self, value: float, quota: float, now_ms: int) -> int:
        """
        Take this whatever there is; milliseconds to wait, 0: there is no debt.

        Kafka does so for requests of versions that cannot be told THROTTLING_QUOTA_EXCEEDED.
        """
        self._fill(quota, now_ms)
        self._tokens = min(_burst(quota), self._tokens - value)
        return 0 if self._tokens >= 0 else whole_ms(-self._tokens / quota * 1_000)

    def is_idle(self, now_ms: int, /) -> bool:
        """Whether it is as good as new: full."""
        return self._tokens + self._quota * ((now_ms - self._at_ms) / 1_000) >= _burst(self._quota)

    def _fill(self, quota: float, now_ms: int) -> None:
        self._tokens = min(_burst(quota), self._tokens + quota * ((now_ms - self._at_ms) / 1_000))
        self._quota = quota
        self._at_ms = now_ms


def _burst(quota: float) -> float:
    return WINDOWS * (WINDOW_MS / 1_000) * quota
