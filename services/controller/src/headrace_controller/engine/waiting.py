"""Waits that two things can end: an event and time."""

from __future__ import annotations

import asyncio

from headrace_common.runtime.clock import Clock


async def event_within(event: asyncio.Event, clock: Clock, ms: float) -> bool:
    """Wait until ``event`` is set or ``ms`` of ``clock`` have passed; whether it is set."""
    if event.is_set():
        return True
    waits = [asyncio.ensure_future(event.wait()), asyncio.ensure_future(clock.sleep_ms(ms))]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
    return event.is_set()
