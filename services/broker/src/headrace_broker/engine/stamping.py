"""The clock that this broker stamps records and segments with: the machine's, but for jumps back."""

from __future__ import annotations

from headrace_broker.core.retention_clock import StampClock
from headrace_common.runtime.clock import Clock


class StampingClock:
    """``Clock`` for whatever writes to logs."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._stamps = StampClock(clock.now_ms(), clock.monotonic_ms())

    def now_ms(self) -> int:
        """Wall clock; where that went back, for an hour what it would have been."""
        return self._stamps.now(self._clock.now_ms(), self._clock.monotonic_ms())

    def monotonic_ms(self) -> float:
        return self._clock.monotonic_ms()

    async def sleep_ms(self, ms: float) -> None:
        """As the machine's clock does."""
        await self._clock.sleep_ms(ms)
