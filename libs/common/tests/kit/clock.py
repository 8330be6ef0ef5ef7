"""A clock that a test moves by hand."""

from __future__ import annotations

import asyncio
import heapq
from itertools import count


class FakeClock:
    """Stands still until ``advance``; sleepers wake in order of their time."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._wall_ms = float(now_ms)
        self._monotonic_ms = 0.0
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._order = count()
        self._slept = asyncio.Event()

    def now_ms(self) -> int:
        """Wall clock."""
        return int(self._wall_ms)

    def monotonic_ms(self) -> float:
        """Monotonic clock, from 0."""
        return self._monotonic_ms

    async def sleep_ms(self, ms: float) -> None:
        """Wait until the test has moved the clock so far."""
        if ms <= 0:
            await asyncio.sleep(0)
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._monotonic_ms + ms, next(self._order), future))
        self._slept.set()
        await future

    @property
    def sleepers(self) -> int:
        """Tasks that wait for this clock."""
        return sum(not future.done() for _, _, future in self._sleepers)

    async def until_asleep(self) -> None:
        """Return once some task waits for this clock."""
        while not self.sleepers:
            self._slept.clear()
            await self._slept.wait()

    async def advance(self, ms: float) -> None:
        """Move the time on by ``ms``, waking each sleeper at its time; what they start is let run in between."""
        end = self._monotonic_ms + ms
        while self._sleepers and self._sleepers[0][0] <= end:
            due, _, future = heapq.heappop(self._sleepers)
            self._move_to(max(due, self._monotonic_ms))
            if not future.done():
                future.set_result(None)
            await _let_others_run()
        self._move_to(end)
        await _let_others_run()

    def jump_wall(self, ms: float) -> None:
        """Change the wall clock alone, as an operator or NTP does."""
        self._wall_ms += ms

    def _move_to(self, monotonic_ms: float) -> None:
        self._wall_ms += monotonic_ms - self._monotonic_ms
        self._monotonic_ms = monotonic_ms


async def _let_others_run() -> None:
    for _ in range(10):
        await asyncio.sleep(0)
