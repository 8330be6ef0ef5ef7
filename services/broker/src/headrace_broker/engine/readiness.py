"""Waits until this broker has caught up, as ``core.readiness`` decides it from the images. Started by ``main``."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Final

from headrace_broker.core.readiness import Readiness
from headrace_common.core.image import ClusterImage
from headrace_common.runtime.clock import Clock
from headrace_common.runtime.tasks import first_of

_NAMED_IN_LOG: Final = 20

_log = logging.getLogger(__name__)


async def until_caught_up(readiness: Readiness, images: AsyncIterator[ClusterImage], clock: Clock) -> None:
    """Return when the broker is ready; fed by ``images``, and by the clock only for the limit."""
    takes_part = asyncio.Event()

    async def follow() -> None:
        async for image in images:
            if readiness.take(image, clock.monotonic_ms()):
                return
            if readiness.deadline_ms is not None:
                takes_part.set()

    async def limit() -> None:
        await takes_part.wait()
        assert readiness.deadline_ms is not None, "it is set before the event"
        while not readiness.look(clock.monotonic_ms()):
            await clock.sleep_ms(readiness.deadline_ms - clock.monotonic_ms())

    await first_of(follow(), limit())
    if readiness.behind:
        some = sorted(map(str, readiness.behind))[:_NAMED_IN_LOG]
        _log.warning(
            "ready, with replicas that are not in sync: they were hopeless, are on the move, or took too long",
            extra={"replicas": len(readiness.behind), "partitions": some},
        )
