"""
A few producer ids that nobody has, at hand before somebody needs one.

A request that may need one brings it along, because a state machine cannot wait. What was not needed is the next one's.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

from headrace_common.core.errors import HeadraceError
from headrace_common.runtime.clock import Clock
from headrace_common.runtime.entropy import backoff_ms
from headrace_common.runtime.logs import logger
from headrace_coordinator.ports import ProducerIds

SPARES: Final = 64
"""Ids at hand; each start of a transactional producer that is new takes one."""
AT_ONCE: Final = 8
"""Requests for ids side by side."""

log = logger(__name__)


class SpareProducerIds:
    """One per process; one event loop."""

    def __init__(self, ids: ProducerIds, clock: Clock) -> None:
        self._ids = ids
        self._clock = clock
        self._spares: deque[int] = deque()
        self._filled = asyncio.Event()
        self._wanted = asyncio.Event()
        self._wanted.set()

    async def fill(self) -> None:
        """Keep ids at hand; runs until cancelled."""
        failures = 0
        while True:
            await self._wanted.wait()
            missing = min(AT_ONCE, max(0, SPARES - len(self._spares)))
            found = await asyncio.gather(*(self._ids.next_id() for _ in range(missing)), return_exceptions=True)
            failures = failures + 1 if any(isinstance(one, HeadraceError) for one in found) else 0
            for one in found:
                if isinstance(one, int):
                    self._spares.append(one)
                elif not isinstance(one, HeadraceError):
                    raise one
            if self._spares:
                self._filled.set()
            if len(self._spares) >= SPARES:
                self._wanted.clear()
            if failures:
                if failures == 1 or failures % 20 == 0:
                    log.info("no producer ids are given now; asking again", extra={"tries": failures})
                await self._clock.sleep_ms(backoff_ms(failures))

    async def take(self) -> int:
        """An id that nobody has; whoever waits long enough gives up."""
        while not self._spares:
            self._filled.clear()
            await self._filled.wait()
        self._wanted.set()
        return self._spares.popleft()

    def give_back(self, producer_id: int) -> None:
        """It was taken, and nobody got it."""
        self._spares.appendleft(producer_id)
        self._filled.set()
