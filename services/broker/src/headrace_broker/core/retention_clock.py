"""
Which time retention goes by, and which one records are stamped with, so that a clock that jumps deletes nothing early.

While there is doubt about the wall clock, what is stamped here gets the later of two times, and retention goes by the
earlier. A jump, in either direction, is doubted for an hour: what deletes does not believe one that goes ahead, what
stamps does not believe one that goes back. The first reading after a restart is compared with what the last process
believed. Upkeep asks, once for each look; the storage loop asks for stamps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

JUMP_BELIEVED_AFTER_MS: Final = 3_600_000
DRIFT_MS_MAX: Final = 60_000
"""Differences up to this are the ordinary work of a time daemon."""
RESTART_MS_MAX: Final = 600_000
"""A wall clock that is so far ahead of what the last process believed is believed at once: that is a restart."""


@dataclass(slots=True)
class _Believed:
    """A reading of both clocks that was believed, and since when the wall clock has said something else."""

    wall_ms: int
    monotonic_ms: float
    doubted_ms: int = 0
    """How far it was from what was expected when it was first doubted, in either direction; 0: it is not."""
    doubted_since_ms: float = 0.0
    """Monotonic."""

    def predict(self, monotonic_ms: float) -> int:
        """What the wall clock would say without a jump."""
        return self.wall_ms + int(monotonic_ms - self.monotonic_ms)

    def believe(self, wall_ms: int, monotonic_ms: float) -> int:
        self.wall_ms, self.monotonic_ms, self.doubted_ms = wall_ms, monotonic_ms, 0
        return wall_ms

    def doubt(self, wall_ms: int, monotonic_ms: float) -> int:
        """The expected time, or ``wall_ms`` once it has stood for long enough."""
        expected = self.predict(monotonic_ms)
        off = wall_ms - expected
        if self.doubted_ms == 0 or abs(off - self.doubted_ms) > DRIFT_MS_MAX:  # another jump is doubted anew
            self.doubted_ms, self.doubted_since_ms = off, monotonic_ms
        if monotonic_ms - self.doubted_since_ms >= JUMP_BELIEVED_AFTER_MS:
            return self.believe(wall_ms, monotonic_ms)
        return expected


class RetentionClock:
    """The time to delete by."""

    def __init__(self, wall_ms: int, monotonic_ms: float, last_ms: int | None = None) -> None:
        """``last_ms``: what the last process on these logs believed at its end; None: there was none."""
        restarted = last_ms is None or wall_ms - last_ms <= RESTART_MS_MAX
        self._believed = _Believed(wall_ms if last_ms is None or restarted else last_ms, monotonic_ms)
        self.now(wall_ms, monotonic_ms)

    def now(self, wall_ms: int, monotonic_ms: float) -> int:
        """Never later than the wall clock, nor than what has passed says. One that goes back is followed at once."""
        if wall_ms - self._believed.predict(monotonic_ms) <= DRIFT_MS_MAX:
            return self._believed.believe(wall_ms, monotonic_ms)
        return self._believed.doubt(wall_ms, monotonic_ms)


class StampClock:
    """The time to stamp with."""

    def __init__(self, wall_ms: int, monotonic_ms: float) -> None:
        self._believed = _Believed(wall_ms, monotonic_ms)

    def now(self, wall_ms: int, monotonic_ms: float) -> int:
        """Never earlier than the wall clock. One that goes ahead is followed at once."""
        if self._believed.predict(monotonic_ms) - wall_ms <= DRIFT_MS_MAX:
            return self._believed.believe(wall_ms, monotonic_ms)
        return self._believed.doubt(wall_ms, monotonic_ms)
