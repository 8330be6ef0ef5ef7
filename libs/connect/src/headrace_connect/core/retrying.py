"""How long something that fails by the world's fault is tried again: ``errors.retry.timeout`` and its delays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from headrace_connect.core.backoff import Backoff

FIRST_MS: Final = 300.0
FOR_EVER: Final = -1


@dataclass(slots=True)
class Retrying:
    """Tries of one thing in a row."""

    timeout_ms: float
    """-1: for ever; 0: not at all."""
    delay_ms_max: float
    since_ms: float | None = None
    """When it failed first; None: it works."""
    attempts: int = 0

    def wait_ms(self, now_ms: float, least_ms: float = 0) -> float | None:
        """
        It has failed: how long to wait before it is tried again. None: it is given up.

        Args:
            least_ms: the other system wants to be left alone for so long; more than the longest delay if need be, but
                no longer than there are tries.
        """
        if self.since_ms is None:
            self.since_ms = now_ms
        left_ms = self.since_ms + self.timeout_ms - now_ms
        if self.timeout_ms != FOR_EVER and left_ms <= 0:
            return None
        self.attempts += 1
        wait_ms = Backoff(min(FIRST_MS, self.delay_ms_max), self.delay_ms_max).wait_ms(self.attempts)
        wait_ms = max(wait_ms, least_ms)
        return wait_ms if self.timeout_ms == FOR_EVER else min(wait_ms, left_ms)

    def worked(self) -> None:
        """It has worked."""
        self.since_ms, self.attempts = None, 0
