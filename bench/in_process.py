"""What benchmarks of a broker's engine in their own process share: its settings of the interpreter, and its delays."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from headrace_broker.main import SWITCH_S
from headrace_common.runtime.memory import keep_freed_memory


def as_brokers_do() -> None:
    """Set the interpreter as a broker's process does."""
    keep_freed_memory()
    sys.setswitchinterval(SWITCH_S)


@asynccontextmanager
async def delays() -> AsyncIterator[list[float]]:
    """How many ms too late a task was that wanted to run every millisecond within the block; sorted at its end."""
    late: list[float] = []
    ticking = asyncio.ensure_future(_tick(late))
    await asyncio.sleep(0.05)
    late.clear()
    try:
        yield late
    finally:
        ticking.cancel()
        with suppress(asyncio.CancelledError):
            await ticking
        late.sort()


async def _tick(late: list[float]) -> None:
    while True:
        start = time.perf_counter()
        await asyncio.sleep(0.001)
        late.append((time.perf_counter() - start) * 1e3 - 1)
