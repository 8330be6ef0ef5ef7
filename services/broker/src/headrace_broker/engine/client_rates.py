"""
Quotas of bytes: each caller is told to wait for as long as it is above its own, and its stream is not read meanwhile.

Nothing is refused for it: what has arrived is written or answered, as in Kafka. Clients that wait as they are told
never find the stream unread.
"""

from __future__ import annotations

import asyncio
from typing import Final

from headrace_broker.core.measures import Measures
from headrace_common.core.access.control import EVERYTHING, Rights
from headrace_common.core.quotas.kinds import Rate
from headrace_common.core.quotas.metered import Metered
from headrace_common.core.quotas.meters import Meter
from headrace_common.runtime.clock import Clock, call_later_ms


class ClientRate:
    """One stream and one rate."""

    def __init__(self, metered: Metered, clock: Clock, measures: Measures) -> None:
        self._metered = metered
        self._clock = clock
        self._measures = measures
        self._open = asyncio.Event()
        self._open.set()
        self._timer: asyncio.TimerHandle | None = None
        self._ended = False

    @property
    def holds(self) -> bool:
        """Whether there is a quota for the caller."""
        return self._metered.holding is not None

    def most_at_once(self) -> int | None:
        """Bytes that one answer may have; None: as many as it can."""
        return self._metered.most_at_once()

    def record(self, size: int) -> int:
        """Count so many bytes; how many milliseconds the caller has to wait, in which ``room`` waits too."""
        wait_ms = self._metered.record(size, self._clock.monotonic_ms())
        if wait_ms > 0 and not self._ended:
            self._measures.throttled_seconds += wait_ms / 1_000
            if self._timer is not None:
                self._timer.cancel()
            self._open.clear()
            self._timer = call_later_ms(wait_ms, self._open.set)
        return wait_ms

    async def room(self) -> None:
        """Wait until the caller may go on."""
        await self._open.wait()

    def end(self) -> None:
        """Nobody is to wait any more: the stream ends."""
        self._ended = True
        if self._timer is not None:
            self._timer.cancel()
        self._open.set()


class ClientRates:
    """What all clients of this broker do; a broker counts for itself. One event loop."""

    def __init__(self, clock: Clock, measures: Measures) -> None:
        self._clock = clock
        self._measures = measures
        self._writes: Final = Meter(Rate.PRODUCER_BYTE_RATE)
        self._reads: Final = Meter(Rate.CONSUMER_BYTE_RATE)

    def writes(self, rights: Rights = EVERYTHING, client_id: str = "") -> ClientRate:
        """For a stream that produces."""
        return ClientRate(Metered(rights, self._writes, client_id), self._clock, self._measures)

    def reads(self, rights: Rights = EVERYTHING, client_id: str = "") -> ClientRate:
        """For a stream that fetches."""
        return ClientRate(Metered(rights, self._reads, client_id), self._clock, self._measures)
