"""A rate for copying to new replicas: bytes spent now are paid for by waiting (a token bucket that may go negative)."""

from __future__ import annotations

from collections.abc import Callable


class Throttle:
    """One for the broker. ``rate`` gives bytes per second as they are set now; below 0: no bound."""

    def __init__(self, rate: Callable[[], int]) -> None:
        self._rate = rate
        self._debt_bytes = 0.0
        self._at_ms = 0.0

    def spend(self, size: int, now_ms: float) -> float:
        """Take ``size`` bytes; how many ms to wait before the next are asked for, 0: none."""
        rate = self._rate()
        if rate < 0:
            self._debt_bytes, self._at_ms = 0.0, now_ms
            return 0.0
        paid = (now_ms - self._at_ms) * rate / 1_000
        self._debt_bytes = max(0.0, self._debt_bytes - paid) + size
        self._at_ms = now_ms
        return self._debt_bytes * 1_000 / max(rate, 1)
