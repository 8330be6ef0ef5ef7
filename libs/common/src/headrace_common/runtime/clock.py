"""Decides where time comes from. Everything that waits is given a Clock."""

from __future__ import annotations

import asyncio
from typing import Protocol

from headrace_common.runtime.machine import MACHINE


class Clock(Protocol):
    """Time as a service sees it; a test owns its own."""

    def now_ms(self) -> int:
        """Wall clock, UTC, milliseconds since the epoch. It may jump; never subtract two of them."""
        ...

    def monotonic_ms(self) -> float:
        """Milliseconds since some moment in the past; never goes back. For durations."""
        ...

    async def sleep_ms(self, ms: float) -> None:
        """Wait; 0 or less lets other tasks run once."""
        ...


class SystemClock:
    """The machine's clocks."""

    def now_ms(self) -> int:
        """Wall clock, UTC."""
        return MACHINE.get().time_ns() // 1_000_000

    def monotonic_ms(self) -> float:
        """Monotonic clock."""
        return MACHINE.get().monotonic() * 1_000

    async def sleep_ms(self, ms: float) -> None:
        """Wait on the event loop."""
        await asyncio.sleep(max(0.0, ms) / 1_000)
