"""What takes long is not waited for by a worker that is told to stop."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any


async def before(stop: asyncio.Event, steps: Coroutine[Any, Any, None]) -> bool:
    """Whether it was done before ``stop`` was set, which cancels it."""
    doing, stopping = asyncio.ensure_future(steps), asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait([doing, stopping], return_when=asyncio.FIRST_COMPLETED)
        if not doing.done():
            return False
        doing.result()
        return True
    finally:
        for one in (doing, stopping):
            one.cancel()
        await asyncio.wait([doing, stopping])
