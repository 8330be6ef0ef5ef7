"""
Which time retention goes by, so that a clock that jumps deletes nothing early.

The retention task asks once per check with both clocks. Wall time that runs ahead of the monotonic clock is not
believed until it has stood for an hour; a clock that goes back is followed at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

JUMP_BELIEVED_AFTER_MS: Final = 3_600_000
DRIFT_MS_MAX: Final = 60_000
"""Differences up to this are the ordinary work of a time daemon."""


@dataclass(slots=True)
class RetentionClock:
    """The last reading that was believed."""

    wall_ms: int
    monotonic_ms: float
    doubted_since_ms: float | None = None
    """Monotonic time since when the wall clock is ahead; None: it is not."""

    def now(self, wall_ms: int, monotonic_ms: float) -> int:
        """The time to go by: never later than the wall clock, nor than what has passed says."""
        expected = self.wall_ms + int(monotonic_ms - self.monotonic_ms)
        if wall_ms - expected <= DRIFT_MS_MAX:
            return self._believe(wall_ms, monotonic_ms)
        if self.doubted_since_ms is None:
            self.doubted_since_ms = monotonic_ms
        if monotonic_ms - self.doubted_since_ms >= JUMP_BELIEVED_AFTER_MS:
            return self._believe(wall_ms, monotonic_ms)
        return expected

    def _believe(self, wall_ms: int, monotonic_ms: float) -> int:
        self.wall_ms, self.monotonic_ms, self.doubted_since_ms = wall_ms, monotonic_ms, None
        return wall_ms
