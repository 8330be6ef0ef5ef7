"""How long to wait before something is tried again."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Backoff:
    """Doubling, bounded."""

    first_ms: float
    ms_max: float

    def wait_ms(self, attempt: int) -> float:
        """Before try number ``attempt``; 1 is the first repetition."""
        assert attempt >= 1, "the first try does not wait"
        return min(self.ms_max, self.first_ms * 2.0 ** min(attempt - 1, 60))
