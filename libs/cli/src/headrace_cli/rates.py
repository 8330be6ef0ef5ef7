"""Rates over the last seconds, for live views. Pure: time comes with each call."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field


@dataclass(slots=True)
class Rate:
    """Of a number that only grows."""

    window_seconds: float = 3.0
    _samples: deque[tuple[float, int]] = field(default_factory=deque)

    def update(self, now: float, total: int) -> float:
        """Note that it is ``total`` at ``now`` (monotonic seconds), and return the rate per second."""
        self._samples.append((now, total))
        while len(self._samples) > 2 and now - self._samples[0][0] > self.window_seconds:
            self._samples.popleft()
        begun, before = self._samples[0]
        return (total - before) / (now - begun) if now > begun else 0.0
