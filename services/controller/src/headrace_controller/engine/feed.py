"""
Hands the cluster image to everyone who follows it: a snapshot, then each step in order.

One task publishes; each watcher has a bounded queue of its own. A watcher that cannot keep up loses its queue and
gets a snapshot instead, so that nobody slow holds memory and nobody misses a step without knowing.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator

from headrace_common.core.image import ClusterImage, ImageDelta


class _Watcher:
    def __init__(self) -> None:
        self.steps: deque[ImageDelta] = deque()
        self.behind = True
        """The next thing it gets is a snapshot."""
        self.ready = asyncio.Event()


class Feed:
    """The present image and all its watchers. Used from one event loop."""

    def __init__(self, image: ClusterImage, queue_max: int) -> None:
        self.image = image
        self._queue_max = queue_max
        self._watchers: dict[_Watcher, None] = {}
        self._snapshot: ImageDelta | None = None
        self._closed = False
        self.overflows = 0
        """How often a slow watcher lost its queue."""

    @property
    def watchers(self) -> int:
        return len(self._watchers)

    def publish(self, image: ClusterImage, step: ImageDelta) -> None:
        """The image moved on by ``step``; a step without ``previous_revision`` replaces everything."""
        self.image = image
        self._snapshot = None
        for watcher in self._watchers:
            if watcher.behind:
                pass
            elif step.previous_revision is None or len(watcher.steps) >= self._queue_max:
                self.overflows += step.previous_revision is not None
                watcher.steps.clear()
                watcher.behind = True
            else:
                watcher.steps.append(step)
            watcher.ready.set()

    def close(self) -> None:
        """End every watch after what it has been given."""
        self._closed = True
        for watcher in self._watchers:
            watcher.ready.set()

    async def follow(self) -> AsyncIterator[ImageDelta]:
        """A snapshot as soon as there is an image, then every step; ends when the feed closes."""
        watcher = _Watcher()
        self._watchers[watcher] = None
        watcher.ready.set()
        try:
            while True:
                await watcher.ready.wait()
                watcher.ready.clear()
                if watcher.behind and self.image.revision:
                    watcher.behind = False
                    yield self._whole()
                while watcher.steps:
                    yield watcher.steps.popleft()
                if watcher.behind and self.image.revision:
                    watcher.ready.set()
                if self._closed:
                    return
        finally:
            self._watchers.pop(watcher, None)

    def _whole(self) -> ImageDelta:
        if self._snapshot is None:
            self._snapshot = self.image.snapshot()
        return self._snapshot
