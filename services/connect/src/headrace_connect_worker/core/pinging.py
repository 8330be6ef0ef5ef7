"""
Decides when a host is pinged: at each look while its tasks do something, for its answer says what they have counted;
rarely while they do not, for an idle host is to cost nothing. Times are monotonic milliseconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from headrace_connect.core.counts import Counts
from headrace_connect.core.host_messages import TaskCounts

IDLE_MS_MAX: Final = 5_000.0
"""Between two pings of an idle host."""
_PINGS_MIN: Final = 6
"""Within the silence after which a host is killed."""


class Pinging:
    """Of one host."""

    def __init__(self, silence_ms: float) -> None:
        self._idle_ms = min(IDLE_MS_MAX, silence_ms / _PINGS_MIN)
        self._pinged_ms: float | None = None
        self._is_busy = False
        self._done: Mapping[tuple[str, int], Counts] = {}
        """As the last answer had it."""

    def hear(self, counted: Sequence[TaskCounts]) -> None:
        """The answer to a ping, with what has changed. That a task has waited longer is no work."""
        before = self._done
        self._done = {(one.connector, one.task): replace(one.counts, read_us=0) for one in counted}
        self._is_busy = any(before.get(task) != done for task, done in self._done.items())

    def is_due(self, now_ms: float) -> bool:
        """Whether it is pinged with this look."""
        if self._pinged_ms is not None and not self._is_busy and now_ms - self._pinged_ms < self._idle_ms:
            return False
        self._pinged_ms = now_ms
        return True
