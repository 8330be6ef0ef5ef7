"""
Since when brokers are away, as this process saw it: metadata has no times. Fed by a background task with each image.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from headrace_common.core.ids import NodeId
from headrace_common.core.image import ClusterImage
from headrace_common.runtime.clock import Clock


class Absences:
    """One event loop. At most one entry per registered broker."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._present: set[NodeId] = set()
        self.since_ms: dict[NodeId, int] = {}
        """Wall clock, by broker; only brokers that were there while this process looked."""

    async def follow(self, images: AsyncIterator[ClusterImage]) -> None:
        """Look at every image until they end."""
        async for image in images:
            self.look(image)

    def look(self, image: ClusterImage) -> None:
        """Note who left since the last image, and forget who came back or is not registered any more."""
        away = {n.key.id for n in image.brokers() if n.fenced}
        present = {n.key.id for n in image.brokers()} - away
        for broker in away & self._present:
            self.since_ms.setdefault(broker, self._clock.now_ms())
        self.since_ms = {b: ms for b, ms in self.since_ms.items() if b in away}
        self._present = present
