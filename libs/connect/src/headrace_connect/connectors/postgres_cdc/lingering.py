"""
When changes that wait are given: at once after a pause, else so long after the last ones that many are converted
together. Times are monotonic milliseconds.
"""

from __future__ import annotations

from typing import Final

LINGER_MS: Final = 5.0
"""Between two times that changes are given, where nothing else has them given."""
BACKLOG_MS: Final = 50.0
"""A change waits so long for others while there is more to be read than has just been written."""


class Lingering:
    """Of one reading."""

    def __init__(self) -> None:
        self._since_ms: float | None = None
        """When the first of what waits came; None: nothing waits."""
        self._given_ms: float | None = None
        """When changes were given last."""

    @property
    def has_begun(self) -> bool:
        """Whether something waits."""
        return self._since_ms is not None

    def begin(self, now_ms: float) -> None:
        """The first change waits."""
        self._since_ms = now_ms

    def end(self, now_ms: float) -> None:
        """What waits is given, if anything does."""
        if self._since_ms is not None:
            self._since_ms, self._given_ms = None, now_ms

    def left_ms(self, now_ms: float, *, caught_up: bool) -> float:
        """How long what waits goes on to wait; 0 or less: no longer."""
        if self._since_ms is None:
            return 0
        if not caught_up:
            return self._since_ms + BACKLOG_MS - now_ms
        return 0 if self._given_ms is None else self._given_ms + LINGER_MS - now_ms
