"""
Which log a scrub reads next, and when a pass over all of them begins. Pure; ``engine/scrubber`` reads.

A pass takes each log once, in an order that differs from pass to pass: a broker that restarts more often than a pass
lasts still comes to every log in time. Times are milliseconds, of the clock that is named.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from headrace_common.core.ids import PartitionId
from headrace_common.core.murmur2 import murmur2


@dataclass(slots=True)
class Scrubbing:
    """The passes of one broker. ``started_ms``: when the broker began, on the monotonic clock."""

    started_ms: float
    first_ms: float
    """The first pass begins so long after the start, or after the interval if that is shorter."""
    logs: int = 0
    """Of the pass under way, or of the last one."""
    left: list[PartitionId] = field(default_factory=list)
    _began_ms: float | None = None

    def wait_ms(self, now_ms: float, interval_ms: float) -> float:
        """Until the next pass begins; 0: it is due, or one is under way."""
        if self.left:
            return 0.0
        since, wait = (
            (self.started_ms, min(self.first_ms, interval_ms))
            if self._began_ms is None
            else (self._began_ms, interval_ms)
        )
        return max(0.0, since + wait - now_ms)

    def begin(self, logs: Collection[PartitionId], now_ms: float, seed: int) -> None:
        assert not self.left, "one pass ends before the next begins"
        salt = (seed & (1 << 64) - 1).to_bytes(8, "big")
        self.left = sorted(logs, key=lambda id: murmur2(salt + bytes(id.topic_id) + id.partition.to_bytes(4, "big")))
        self.logs, self._began_ms = len(self.left), now_ms

    def take(self) -> PartitionId | None:
        """The log to read next, which then counts as done; None: the pass has ended."""
        return self.left.pop() if self.left else None
