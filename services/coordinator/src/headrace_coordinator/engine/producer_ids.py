"""
A few producer ids that nobody has, at hand before somebody needs one.

The state machines take an id in the moment in which they handle an event, when nobody can wait. An id that was looked
at and not taken is the next one's.
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
        self._taken = asyncio.Event()
        self._taken.set()

    async def fill(self) -> None:
        """Keep ids at hand; runs until cancelled."""
        failures = 0
        while True:
            await self._taken.wait()
            wanted = min(AT_ONCE, SPARES - len(self._spares))
            found = await asyncio.gather(*(self._ids.next_id() for _ in range(wanted)), return_exceptions=True)
            failures = failures + 1 if any(isinstance(one, HeadraceError) for one in found) else 0
            for one in found:
                if isinstance(one, int):
                    self._spares.append(one)
                elif not isinstance(one, HeadraceError):
                    raise one
            if self._spares:
                self._filled.set()
            if len(self._spares) >= SPARES:
                self._taken.clear()
            if failures:
                if failures == 1 or failures % 20 == 0:
                    log.info("no producer ids are given now; asking again", extra={"tries": failures})
                await self._clock.sleep_ms(backoff_ms(failures))

    async def until_some(self) -> None:
        """Wait until there is one; whoever waits long enough gives up."""
        await self._filled.wait()

    @property
    def next_spare(self) -> int | None:
        """The id that may be taken next; None: there is none now."""
        return self._spares[0] if self._spares else None

    def took(self, producer_id: int) -> None:
        """``next_spare`` has been taken."""
        assert self._spares, "an id that is taken was there"
        taken = self._spares.popleft()
        assert taken == producer_id, "ids are taken in the moment in which they are looked at"
        self._taken.set()
        if not self._spares:
            self._filled.clear()
